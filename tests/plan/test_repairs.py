"""Every constraint between values names a repair that repairs: what a message offers is applied, and its problem is gone."""

from __future__ import annotations

import functools
import re

import pytest

from hpctrain.config.changes import change_config
from hpctrain.config.compose import compose_points
from hpctrain.config.schema import Config
from hpctrain.errors import Problem
from hpctrain.plan.run_plan import build_run_plan

GPT = "model=13b parallelism=zero3 hardware=ndm_a100_v4"
LLAMA = "model=llama3_8b parallelism=zero3 hardware=ndm_a100_v4"
DGX = "model=13b parallelism=zero3 hardware=dgx_h100"
LOCAL = "model=tiny parallelism=zero3 cluster=local hardware=cpu"
CASES = {
    "heads": (LOCAL, "model.num_heads=5"),
    "kv-heads": (LLAMA, "model.num_kv_heads=5"),
    "head-width": (LLAMA, "model.head_dim=127"),
    "sequence": (GPT, "training.seq_len=4096"),
    "ranks": (GPT, "nodes=3 parallelism.zero_stage=1 parallelism.pipeline_parallel_size=5"),
    "ranks-of-two-degrees": (
        GPT,
        "nodes=3 parallelism.zero_stage=1 parallelism.pipeline_parallel_size=5 parallelism.tensor_parallel_size=8",
    ),
    "ranks-of-the-second-degree": (
        "model=55b parallelism=megatron_3d hardware=ndm_a100_v4",
        "nodes=4 parallelism.tensor_parallel_size=4",
    ),
    "ranks-of-one-machine": (LOCAL, "parallelism.zero_stage=1 parallelism.tensor_parallel_size=4"),
    "tensor-heads": (GPT, "nodes=3 parallelism.zero_stage=1 parallelism.tensor_parallel_size=6"),
    "tensor-kv-heads": (
        LLAMA,
        "nodes=2 parallelism.zero_stage=1 model.num_kv_heads=4 parallelism.tensor_parallel_size=8",
    ),
    "tensor-feed-forward": (
        GPT,
        "nodes=2 parallelism.zero_stage=1 model.ffn_hidden_size=20482 parallelism.tensor_parallel_size=4",
    ),
    "tensor-vocabulary": (
        GPT,
        "nodes=2 parallelism.zero_stage=1 model.vocab_size=50257 parallelism.tensor_parallel_size=4",
    ),
    "tensor-beyond-a-node": (GPT, "nodes=2 parallelism.zero_stage=1 parallelism.tensor_parallel_size=16"),
    "tensor-between-stages": (
        GPT,
        "parallelism.zero_stage=1 model.hidden_size=5160 model.head_dim=129 training.seq_len=2047"
        " parallelism.pipeline_parallel_size=2 parallelism.tensor_parallel_size=4 model.hidden_size=5155",
    ),
    "pipeline-layers": (GPT, "nodes=3 parallelism.zero_stage=1 parallelism.pipeline_parallel_size=3"),
    "pipeline-layers-and-ranks": (GPT, "nodes=2 parallelism.zero_stage=1 parallelism.pipeline_parallel_size=16"),
    "pipeline-stage-0": (GPT, "nodes=2 parallelism.zero_stage=0 parallelism.pipeline_parallel_size=2"),
    "pipeline-stage-2": (GPT, "nodes=2 parallelism.zero_stage=2 parallelism.pipeline_parallel_size=2"),
    "pipeline-stage-3": (GPT, "nodes=2 parallelism.pipeline_parallel_size=2"),
    "pipeline-stage-3-offloaded": (
        GPT,
        "nodes=2 parallelism.pipeline_parallel_size=2 parallelism.offload_optimizer=cpu parallelism.offload_param=cpu"
        " parallelism.offload_ratio=0.5",
    ),
    "pipeline-sequence": (
        GPT,
        "nodes=2 parallelism.zero_stage=1 parallelism.pipeline_parallel_size=2 parallelism.sequence_parallel_size=2",
    ),
    "sequence-heads": (GPT, "nodes=3 parallelism.sequence_parallel_size=6"),
    "sequence-kv-heads": (LLAMA, "nodes=2 parallelism.sequence_parallel_size=16"),
    "sequence-length": (GPT, "nodes=2 parallelism.sequence_parallel_size=8 training.seq_len=2044"),
    "sequence-of-tensor-ranks": (
        LLAMA,
        "nodes=2 parallelism.zero_stage=1 parallelism.sequence_parallel_size=4 parallelism.tensor_parallel_size=4",
    ),
    "batch": (GPT, "nodes=2 training.micro_batch_size=3 training.global_batch_size=100"),
    "batch-of-any-micro-batch": (GPT, "nodes=3 training.global_batch_size=100"),
    "batch-below-the-ranks": (GPT, "nodes=2 training.micro_batch_size=2 training.global_batch_size=4"),
    "batch-of-a-smaller-micro-batch": (GPT, "nodes=2 training.micro_batch_size=2 training.global_batch_size=16"),
    "batch-triangle": (
        GPT,
        "nodes=2 training.micro_batch_size=2 training.global_batch_size=64 training.gradient_accumulation_steps=3",
    ),
    "batch-triangle-open": (GPT, "nodes=2 training.global_batch_size=96 training.gradient_accumulation_steps=4"),
    "parameters-below-stage-3": (GPT, "parallelism.zero_stage=2 parallelism.offload_param=cpu"),
    "optimizer-without-a-stage": (GPT, "parallelism.zero_stage=0 parallelism.offload_optimizer=cpu"),
    "ratio-below-stage-3": (
        GPT,
        "parallelism.zero_stage=2 parallelism.offload_optimizer=cpu parallelism.offload_ratio=0.5",
    ),
    "ratio-of-nothing": (GPT, "parallelism.offload_ratio=0.5"),
    "ratio-and-sub-groups": (
        GPT,
        "parallelism.offload_optimizer=cpu parallelism.offload_ratio=0.5 parallelism.sub_group_size=1000000000",
    ),
    "fitted-ratio-below-stage-3": (
        GPT,
        "parallelism.zero_stage=2 parallelism.offload_optimizer=cpu parallelism.fit_offload_ratio=true",
    ),
    "second-partition-below-stage-3": (GPT, "parallelism.zero_stage=2 parallelism.hpz_partition_size=8"),
    "second-partition-and-ranks": (GPT, "nodes=2 parallelism.hpz_partition_size=3"),
    "second-partition-and-tensor": (
        GPT,
        "nodes=2 parallelism.hpz_partition_size=8 parallelism.tensor_parallel_size=2",
    ),
    "quantized-weights-below-stage-3": (GPT, "parallelism.zero_stage=2 parallelism.quantized_weights=true"),
    "quantized-weights-on-cpu": (LOCAL, "parallelism.quantized_weights=true"),
    "quantized-weights-and-ranks": (LLAMA, "nodes=3 parallelism.quantized_weights=true"),
    "quantized-gradients-in-bf16": (GPT, "nodes=2 parallelism.quantized_gradients=true"),
    "quantized-gradients-and-tensor": (
        GPT,
        "nodes=2 parallelism.quantized_gradients=true training.precision=fp16 parallelism.tensor_parallel_size=2",
    ),
    "quantized-gradients-and-ranks": (GPT, "nodes=25 parallelism.quantized_gradients=true training.precision=fp16"),
    "gather-bucket": (GPT, "parallelism.zero_stage=1 parallelism.allgather_bucket_size=99999"),
    "host-activations": (GPT, "training.offload_activations=true"),
    "host-activations-selective": (
        GPT,
        "training.offload_activations=true training.activation_checkpointing=selective",
    ),
    "compiled-selective": (GPT, "training.compile=true training.activation_checkpointing=selective"),
    "nvme-folder": (GPT, "parallelism.offload_optimizer=nvme"),
    "nvme-folder-relative": (GPT, "parallelism.offload_optimizer=nvme parallelism.nvme_path=local/x"),
    "nvme-below-stage-3": (DGX, "parallelism.zero_stage=2 parallelism.offload_optimizer=nvme"),
    "nvme-ratio": (DGX, "parallelism.offload_optimizer=cpu parallelism.nvme_ratio=0.5"),
    "nvme-parameters-and-ratio": (
        DGX,
        "parallelism.offload_optimizer=nvme parallelism.offload_param=nvme parallelism.offload_ratio=0.5",
    ),
    "nvme-parameters-and-fitted-ratio": (
        DGX,
        "parallelism.offload_optimizer=cpu parallelism.offload_param=nvme parallelism.fit_offload_ratio=true",
    ),
    "nvme-parameters-and-second-partition": (DGX, "parallelism.offload_param=nvme parallelism.hpz_partition_size=8"),
    "one-machine": (LOCAL, "nodes=2"),
    "learning-rates": (LOCAL, "training.min_learning_rate=1"),
    "loss-scale": (GPT, "training.loss_scale=1024"),
    "smallest-loss-scale": (GPT, "training.precision=fp16 training.min_loss_scale=1048576"),
    "fixed-loss-scale": (GPT, "training.precision=fp16 training.loss_scale=1024 training.hysteresis=3"),
    "no-units-for-it": (GPT, "hardware.gpu=V100-SXM2-32GB"),
    "unknown-gpu": (GPT, "hardware.gpu=NoSuchGPU"),
    "slip-in-a-gpu": (GPT, "hardware.gpu=A1O0-SXM4-80GB"),
    "rate-with-sparsity": (GPT, "hardware.gpu_memory_gb_per_s=4078"),
    "link-in-both-directions": (GPT, "hardware.intra_node_gb_per_s=600"),
}
"""Groups, and the keys that break a rule."""

_WORD = r"(?:nodes|[a-z]+\.[a-z_.]+)=[^\s,;:]+"


@functools.cache
def composed(groups: str) -> Config:
    (point,) = compose_points(groups.split(), multirun=False)
    return point.config


def problems_of(groups: str, words: list[str]) -> list[Problem]:
    config = change_config(composed(groups), words).config if words else composed(groups)
    return [problem for problem in build_run_plan(config).problems if problem.kind == "config"]


def repairs(problem: Problem, words: list[str]) -> list[list[str]]:
    """What the message offers, each as the words with it: overrides (those beside each other are one), values of the key itself,
    and leaving it out."""
    found = []
    for group in re.finditer(rf"{_WORD}(?: {_WORD})*", problem.fix):
        last = group[0].split()[-1]
        found.append(group[0].split())
        rest = problem.fix[group.end() :]
        while other := re.match(r"(?:, or|,| or) (none|full|\d+)\b(?!\S*=)", rest):
            found.append([*group[0].split()[:-1], f"{last.partition('=')[0]}={other[1]}"])
            rest = rest[other.end() :]
    if values := re.search(r"nearest: ((?:[\d.]*\d(?:, or |, | or )?)+)", problem.fix):
        found += [[f"{problem.key}={value}"] for value in re.findall(r"[\d.]*\d", values[1])]
    repaired = [[*(word for word in words if word.split("=")[0] not in _keys(each)), *each] for each in found]
    if "leave it out" in problem.fix:
        repaired.append([word for word in words if word.split("=")[0] != problem.key])
    return repaired


def _keys(words: list[str]) -> set[str]:
    return {word.split("=")[0] for word in words}


@pytest.mark.parametrize(("groups", "keys"), CASES.values(), ids=CASES)
def test_what_a_message_offers_repairs(groups: str, keys: str) -> None:
    words = keys.split()
    problems = problems_of(groups, words)
    assert problems
    for problem in problems:
        offered = repairs(problem, words)
        assert offered, f"names no repair that can be typed: {problem}"
        for repaired in offered:
            left = problems_of(groups, repaired)
            assert (problem.key, problem.rule) not in {(each.key, each.rule) for each in left}, (str(problem), repaired)
            known = {each.key for each in problems}
            new = [str(each) for each in left if each.key not in known and each.key != "training.global_batch_size"]
            assert not new, f"{repaired} breaks another rule: {new}"


def test_all_broken_rules_are_told_at_once() -> None:
    words = "nodes=2 parallelism.zero_stage=2 parallelism.offload_param=cpu parallelism.pipeline_parallel_size=3"
    found = {problem.key for problem in problems_of(GPT, [*words.split(), "training.seq_len=4096"])}
    assert found == {
        "parallelism.pipeline_parallel_size",
        "parallelism.offload_param",
        "training.seq_len",
    }
