"""Memory terms by hand, and against rehearsals of the real engine (DeepSpeed 0.19.8 on a simulated cluster)."""

from __future__ import annotations

import pytest

from hpctrain.units import GIB
from tests.plan.test_run_plan import plan_of


def terms_of(*words: str) -> dict[str, int]:
    return {term.name: term.num_bytes for term in plan_of(*words).memory.terms}


def test_states_by_hand() -> None:
    # tiny has 858,880 parameters; on 2 ranks a share is 429,440. fp32: parameters and gradients 4 B each.
    share = 429_440
    stage3 = terms_of("model=tiny", "cluster=local", "parallelism=zero3")
    assert (stage3["parameters"], stage3["gradients"]) == (4 * share, 4 * share)
    assert (stage3["fp32 master"], stage3["Adam moments"]) == (4 * share, 8 * share)
    stage2 = terms_of("model=tiny", "cluster=local", "parallelism=zero2")
    assert (stage2["parameters"], stage2["gradients"]) == (8 * share, 4 * share)
    stage1 = terms_of("model=tiny", "cluster=local", "parallelism=zero1")
    assert (stage1["parameters"], stage1["gradients"]) == (8 * share, 8 * share)


def test_sixteen_bytes_a_parameter_without_offload_eighteen_on_the_host_with() -> None:
    # Source: Rajbhandari et al. 2020; with offload DeepSpeed keeps an fp32 gradient on the host beside the 16-bit one.
    names = ("parameters", "gradients", "fp32 master", "Adam moments", "fp32 gradients")
    share = -(-plan_of("model=13b", "nodes=4").num_parameters // 32)
    whole = terms_of("model=13b", "nodes=4")
    assert sum(whole.get(name, 0) for name in names) == 16 * share
    plan = plan_of("model=13b", "nodes=4", "parallelism=zero3_offload", "parallelism.offload_param=none")
    states = sum(term.num_bytes for term in plan.memory.terms if term.tier == "host" and term.name in names)
    assert states == 18 * share


def test_the_optimizer_step_is_the_peak_where_activations_are_small() -> None:
    # 6.7b on 8 ranks, stage 1: a share of the parameters, 2 + 4 bytes each, against a micro batch of 16 tokens.
    small = ("training.micro_batch_size=1", "training.seq_len=16")
    plan = plan_of("model=6.7b", "nodes=1", "parallelism=zero1", *small)
    terms = {term.name: term.num_bytes for term in plan.memory.terms}
    assert terms["optimizer step"] == 6 * -(-plan.num_parameters // 8)
    assert "activations" not in terms


REHEARSED = [
    # model, micro batch, peak of the GPU in GiB without CUDA's context.
    # Source: rehearsals of DeepSpeed 0.19.8 at 1,024 ranks, sequence 1024, full checkpointing, blocks not leaf modules.
    ("175b", 16, 51.9),
    ("530b", 8, 60.3),
    ("1t", 8, 93.0),
    ("2t", 8, 153.1),
]


@pytest.mark.parametrize(("model", "micro", "rehearsed_gib"), REHEARSED)
def test_estimate_is_near_the_rehearsed_engine(model: str, micro: int, rehearsed_gib: float) -> None:
    plan = plan_of(f"model={model}", "nodes=128", "training.seq_len=1024", f"training.micro_batch_size={micro}")
    terms = {term.name: term.num_bytes for term in plan.memory.terms}
    estimate = (plan.memory.gpu_bytes - terms["context and NCCL"]) / GIB
    # A block as leaf module costs 2 to 5 GiB more than the rehearsed form; the estimate must not be low.
    assert rehearsed_gib <= estimate <= 1.15 * rehearsed_gib
