"""What a run must have in common with a checkpoint to go on from it; pure."""

from __future__ import annotations

import dataclasses
from typing import Any

from hpctrain.errors import Problem
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.checkpoints import Checkpoint
from hpctrain.record.schema import CheckpointRecord

_NO_EFFECT = ("name", "init_std")
"""Of a shape: the first weights come out of the checkpoint."""
_NOT_TOLD_BEFORE = ("offload_ratio", "nvme_state_bytes")
_ONLY_THE_SAME = "{} can be resumed with the same value only: keep it, or start a new run"


def shape_values(shape: ModelShape) -> dict[str, int | float | bool | str]:
    """The values of a shape that a checkpoint depends on."""
    return {name: value for name, value in dataclasses.asdict(shape).items() if name not in _NO_EFFECT}


def parallelism_values(plan: RunPlan) -> dict[str, Any]:
    """What decides how the model and its optimizer state are cut and kept, by its name in a checkpoint's record."""
    zero: dict[str, Any] = plan.ds_config["zero_optimization"]
    return {
        "zero_stage": plan.zero_stage,
        "offload_optimizer": zero.get("offload_optimizer", {}).get("device", "none"),
        "offload_param": zero.get("offload_param", {}).get("device", "none"),
        "sub_group_size": zero.get("sub_group_size"),
        "offload_ratio": zero.get("offload_optimizer", {}).get("ratio"),
        "nvme_state_bytes": None if plan.nvme is None else plan.nvme.state_bytes,
        "tensor_parallel_size": plan.layout.tensor_parallel_size,
        "pipeline_parallel_size": plan.layout.pipeline_parallel_size,
        "sequence_parallel_size": plan.layout.sequence_parallel_size,
    }


def resume_problems(
    checkpoint: Checkpoint | CheckpointRecord,
    plan: RunPlan,
    seed: int | None = None,
    corpus_digest: str | None = None,
) -> tuple[Problem, ...]:
    """Why a run with this plan cannot go on from the checkpoint; empty if it can.

    Args:
        checkpoint: the newest complete one.
        plan: of the run that is to go on.
        seed: ``training.seed``; None: not compared.
        corpus_digest: of the tokens that the ranks read; None: not known yet.
    """
    record = checkpoint.record if isinstance(checkpoint, Checkpoint) else checkpoint
    return (
        *_value_problems(record, plan),
        *_data_problems(record, plan, seed, corpus_digest),
    )


def is_cut_alike(record: CheckpointRecord, plan: RunPlan) -> bool:
    """Whether each rank of the plan finds its own state in its own files; else the state is cut anew when it is loaded."""
    wanted = parallelism_values(plan)
    # Older checkpoints do not say how much of it was on which tier, and could not be gone on with otherwise.
    differ = [
        name
        for name, value in wanted.items()
        if (saved := getattr(record, name)) != value and not (saved is None and name in _NOT_TOLD_BEFORE)
    ]
    return record.world_size == plan.layout.world_size and not differ


def _value_problems(record: CheckpointRecord, plan: RunPlan) -> list[Problem]:
    """What the numbers of a step depend on; on how many ranks, and with which parallelism, is free."""
    wanted: dict[str, Any] = {"training.precision": plan.precision}
    saved: dict[str, Any] = {"training.precision": record.precision}
    shape = shape_values(plan.model)
    names = dict.fromkeys((*shape, *record.model))
    wanted |= {f"model.{name}": shape.get(name) for name in names}
    saved |= {f"model.{name}": record.model.get(name) for name in names}
    return [
        _differs(key, value, saved[key], record.step, key.split(".")[0])
        for key, value in wanted.items()
        if value != saved[key]
    ]


def _data_problems(
    record: CheckpointRecord, plan: RunPlan, seed: int | None, corpus_digest: str | None
) -> list[Problem]:
    """The step decides which sequences come next, as long as these are the same."""
    pairs = {
        "training.global_batch_size": (plan.batch.global_batch_size, record.global_batch_size),
        "training.seq_len": (plan.batch.seq_len, record.seq_len),
        "training.seed": (record.seed if seed is None else seed, record.seed),
    }
    problems = [
        _differs(key, value, saved, record.step, "the order of the data")
        for key, (value, saved) in pairs.items()
        if value != saved
    ]
    consumed = record.num_sequences
    if consumed is None:
        consumed = record.step * record.global_batch_size
    planned = plan.batch.samples_before(record.step + 1)
    if not problems and planned != consumed:
        rule = f"takes {planned:,} sequences in {record.step} steps, and the checkpoint of step {record.step} took {consumed:,}"
        fix = "keep training.batch_ramp as it was when that was saved, or start a new run"
        problems.append(Problem("training.batch_ramp", "null" if not plan.batch.ramp else "", rule, fix))
    if record.step > plan.num_steps:
        rule = f"the checkpoint is of step {record.step} already"
        problems.append(
            Problem("training.num_steps", str(plan.num_steps), rule, f"nearest: {record.step}; above it, it goes on")
        )
    if corpus_digest is not None and corpus_digest != record.corpus_digest:
        rule = f"the tokens have digest {corpus_digest}, those of the checkpoint of step {record.step} {record.corpus_digest}"
        fix = (
            "give it what it was trained on, the text or the token files with their manifests, weights and"
            " data.validation_fraction, or start a new run"
        )
        problems.append(Problem("data", plan.data_name, rule, fix))
    return problems


def _differs(key: str, value: Any, saved: Any, step: int, what: str) -> Problem:
    rule = f"the checkpoint of step {step} was saved with {saved}"
    return Problem(key, str(value), rule, f"set {key}={saved}: {_ONLY_THE_SAME.format(what)}")
