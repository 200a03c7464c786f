"""Each term of the memory of any trainer against a second source, next to the cases worked by hand in test_tier_memory.

What DeepSpeed holds is known from the rules of our own engine, which follow its source operator by operator and are held against
rehearsals of it (tests/rehearse); what belongs to one matrix or block is counted on the worker's own decoder on the meta device.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from hpctrain.plan.memory.decoder_activations import DecoderActivations
from hpctrain.plan.memory.estimate import DEVICE_CONTEXT_BYTES
from hpctrain.plan.memory.estimate import rank_memory as engine_memory
from hpctrain.plan.memory.terms import MemoryPhase, RankMemory
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.speed.software import SOFTWARE
from hpctrain.plan.speed.step_parts import Setup
from hpctrain.plan.stated import tier_memory as module
from hpctrain.plan.stated.memory_habits import COLLECTIVES_GIB, FAMILY_CONTEXT_GIB, HABITS
from hpctrain.plan.stated.tier_memory import RankTerm, rank_memory
from hpctrain.units import GIB
from hpctrain.worker.model.decoder import Decoder
from tests.plan.works import work_of

MIB = 2**20
_PLAIN = "model=13b nodes=4 training.micro_batch_size=1 training.loss_chunk_size=0"
_KEPT = f"{_PLAIN} parallelism=zero3 training.activation_checkpointing=none"
_HOST = f"{_PLAIN} parallelism=zero3_offload training.activation_checkpointing=full training.offload_activations=true"
_BLOCK = f"{_KEPT} model.vocab_size=1024"
_SECOND = f"{_KEPT} parallelism.hpz_partition_size=8 training.gradient_accumulation_steps=2"


@cache
def engine(words: str) -> tuple[RankWork, RankMemory]:
    """Our engine's rules."""
    work = work_of(*words.split())
    return work, engine_memory(work, 0)


def term(
    words: str,
    name: str,
    tier: str = "gpu",
    trainer: str = "deepspeed",
    habits: dict[str, Any] = {},  # noqa: B006  (never changed)
    **changes: Any,
) -> int:
    """Bytes of one term of a trainer, of the same run; terms of a name and tier together."""
    work, _ = engine(words)
    setup = Setup(
        *(work.shape, work.batch.seq_len, work.batch.micro_batch_size, work.batch.gradient_accumulation_steps),
        work.layout.world_size,
        zero_stage=work.parallelism.zero_stage,
    )
    terms: tuple[RankTerm, ...] = rank_memory(
        replace(setup, **changes),
        SOFTWARE[trainer],
        replace(HABITS[trainer], **habits),
        changes.get("pipeline_degree", 1) - 1,
    ).terms
    return sum(each.num_bytes for each in terms if (each.name, each.tier) == (name, tier))


def held(words: str, phase: MemoryPhase, *names: str, tier: str = "gpu") -> int:
    """The same by the engine's rules at the height of a phase."""
    memory = engine(words)[1]
    of_phases = memory.gpu if tier == "gpu" else memory.host
    return sum(of_phases[phase].get(name, 0) for name in names)


@cache
def meta_numels(words: str) -> dict[str, int]:
    """Elements of every parameter of the worker's own decoder, which is built without memory."""
    with torch.device("meta"):
        model = Decoder(engine(words)[0].shape, "none", 1)
    return {name: parameter.numel() for name, parameter in model.named_parameters()}


def gathered_at_a_time(words: str, ranks: int, bucket: int) -> int:
    """Elements of one gathering of a rank's share, by the loop of DeepSpeed's step (0.6, runtime/zero/stage_1_and_2.py)."""
    share = -(-sum(meta_numels(words).values()) // ranks)
    num_shards = max(1, share * ranks // bucket)
    return ranks * max(
        (share if shard == num_shards - 1 else (shard + 1) * (share // num_shards)) - shard * (share // num_shards)
        for shard in range(num_shards)
    )


def of_block(words: str) -> int:
    return sum(
        numel for name, numel in meta_numels(words).items() if name.startswith("blocks.") and ".0." in f"{name}."
    )


_OFFLOADED: dict[str, Any] = {
    "recomputation": "full",
    "offload_optimizer": True,
    "offload_param": True,
    "offload_activations": True,
}
ROADS: dict[str, tuple[Callable[[], float], Callable[[], float], float]] = {
    "parameters": (lambda: term(_KEPT, "parameters"), lambda: held(_KEPT, "forward", "parameters"), 1e-3),
    "gradients": (lambda: term(_KEPT, "gradients"), lambda: held(_KEPT, "forward", "gradients"), 1e-3),
    "master": (lambda: term(_KEPT, "master"), lambda: held(_KEPT, "forward", "fp32 master"), 1e-3),
    "Adam moments": (lambda: term(_KEPT, "Adam moments"), lambda: held(_KEPT, "forward", "Adam moments"), 1e-3),
    "fp32 gradients": (
        lambda: term(_HOST, "fp32 gradients", "host", **_OFFLOADED),
        lambda: held(_HOST, "forward", "fp32 gradients", tier="host"),
        1e-3,
    ),
    "reduction buckets": (
        lambda: term(_HOST, "reduction buckets", **_OFFLOADED),
        lambda: held(_HOST, "backward", "reduce buckets", "flattened for reduction"),
        0.1,
    ),
    "gathered parameters": (
        lambda: term(_KEPT, "gathered parameters"),
        lambda: held(_KEPT, "backward", "gathered parameters"),
        0.1,
    ),
    "secondary partition": (
        lambda: term(_SECOND, "secondary partition", shard_within_node=True),
        lambda: held(_SECOND, "forward", "secondary partition"),
        1e-3,
    ),
    "block inputs": (
        lambda: term(_HOST, "block inputs", "host", **_OFFLOADED),
        lambda: held(_HOST, "forward", "block inputs", tier="host"),
        1e-3,
    ),
    "activations": (lambda: term(_KEPT, "activations"), lambda: held(_KEPT, "forward", "activations"), 0.01),
    "backward of one block": (
        lambda: term(_BLOCK, "backward of one block", recomputation="full"),
        lambda: max(each.num_bytes for each in DecoderActivations(engine(_BLOCK)[0]).block_heights()),
        0.2,
    ),
    "logits and loss": (
        # Of ours the scores are gone when their gradient comes, and its copy in 16 bits is made later.
        lambda: term(_KEPT, "logits and loss"),
        lambda: held(_KEPT, "backward", "logits and loss") * 14 / 12,
        0.01,
    ),
    "optimizer step": (lambda: term(_KEPT, "optimizer step"), lambda: held(_KEPT, "optimizer", "optimizer step"), 1e-3),
    "gradient in fp32": (
        lambda: term(_KEPT, "gradient in fp32", habits={"cast_gradients": True}),
        lambda: 4 * max(meta_numels(_KEPT).values()),
        1e-3,
    ),
    "gathered list": (
        lambda: term(_KEPT, "gathered list", trainer="megatron_deepspeed_2022", zero_stage=1),
        lambda: 2 * gathered_at_a_time(_KEPT, 32, 500_000_000),
        1e-3,
    ),
    "placeholder gradients": (
        lambda: term(_KEPT, "placeholder gradients", trainer="megatron"),
        lambda: 2 * of_block(_KEPT),
        0.01,
    ),
    "gradients summed whole": (
        lambda: term(_KEPT, "gradients summed whole", trainer="fsdp", pipeline_degree=2),
        lambda: 4 * sum(meta_numels(_KEPT).values()) / 2,
        0.05,
    ),
    "CUDA context": (
        # Ours has NCCL's buffers in it, and the reading of nvidia-smi was taken of a process with them.
        lambda: FAMILY_CONTEXT_GIB["A100"] * GIB,
        lambda: DEVICE_CONTEXT_BYTES,
        0.1,
    ),
    # NCCL has 4 MiB (NCCL_BUFFSIZE) for each of up to 32 channels and two directions; a run has a communicator or a few.
    "collective library": (lambda: COLLECTIVES_GIB * GIB, lambda: 4 * (4 * MIB * 32 * 2), 0.11),
}
"""By term: ours, the second source, and the share by which they may differ."""


@pytest.mark.parametrize("name", ROADS)
def test_a_term_is_what_its_second_source_says(name: str) -> None:
    ours, second, share = ROADS[name]
    assert ours() == pytest.approx(second(), rel=share)
    assert second() > 0
    assert 1.25 * ours() != pytest.approx(second(), rel=share), "a rule that is off would be seen"


def test_every_term_has_one() -> None:
    """All names that the module gives a term, read from its text."""
    calls = (node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Call))
    names = {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in ("_gpu", "_host", "param_tier") and call.args
        if isinstance(call.args[0], ast.Constant)
    }
    assert names == ROADS.keys()
