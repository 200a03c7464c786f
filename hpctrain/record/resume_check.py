"""What a run must have in common with a checkpoint to go on from it; pure."""

from __future__ import annotations

import dataclasses
from typing import Any

from hpctrain.errors import Problem
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.checkpoints import Checkpoint
from hpctrain.record.schema import CheckpointRecord
from hpctrain.units import counted

_NO_EFFECT = ("name", "init_std")
"""Of a shape: the first weights come out of the checkpoint."""
_ONLY_THE_SAME = "{} can be resumed with the same value only: keep it, or start a new run"


def shape_values(shape: ModelShape) -> dict[str, int | float | bool | str]:
    """The values of a shape that a checkpoint depends on."""
    return {name: value for name, value in dataclasses.asdict(shape).items() if name not in _NO_EFFECT}


def parallelism_values(plan: RunPlan) -> dict[str, Any]:
    """What decides how the model and its optimizer state are cut, by its name in ``parallelism``."""
    zero: dict[str, Any] = plan.ds_config["zero_optimization"]
    return {
        "zero_stage": plan.zero_stage,
        "offload_optimizer": zero.get("offload_optimizer", {}).get("device", "none"),
        "offload_param": zero.get("offload_param", {}).get("device", "none"),
        "sub_group_size": zero.get("sub_group_size"),
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
        *_world_problems(record, plan),
        *_value_problems(record, plan),
        *_data_problems(record, plan, seed, corpus_digest),
    )


def _world_problems(record: CheckpointRecord, plan: RunPlan) -> list[Problem]:
    world_size, per_node = plan.layout.world_size, plan.layout.gpus_per_node
    if record.world_size == world_size:
        return []
    num_nodes, rest = divmod(record.world_size, per_node)
    same = f"nodes={num_nodes}" if num_nodes and not rest else f"nodes x hardware.gpus_per_node = {record.world_size}"
    rule = (
        f"{counted(plan.layout.num_nodes)} x {counted(per_node, 'GPU')} make {counted(world_size, 'rank')}, and the checkpoint"
        f" of step {record.step} is cut for {record.world_size}: ZeRO's optimizer state has one part for each rank"
    )
    fix = f"set {same}, or start a new run; universal checkpoints, which fit any number of ranks, are not offered yet"
    return [Problem("nodes", str(plan.layout.num_nodes), rule, fix)]


def _value_problems(record: CheckpointRecord, plan: RunPlan) -> list[Problem]:
    wanted: dict[str, Any] = {f"parallelism.{name}": value for name, value in parallelism_values(plan).items()}
    wanted["training.precision"] = plan.precision
    saved: dict[str, Any] = {f"parallelism.{name}": getattr(record, name) for name in parallelism_values(plan)}
    saved["training.precision"] = record.precision
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
    if record.step > plan.num_steps:
        rule = f"the checkpoint is of step {record.step} already"
        problems.append(
            Problem("training.num_steps", str(plan.num_steps), rule, f"nearest: {record.step}; above it, it goes on")
        )
    if corpus_digest is not None and corpus_digest != record.corpus_digest:
        rule = f"the tokens have digest {corpus_digest}, those of the checkpoint of step {record.step} {record.corpus_digest}"
        fix = "give it the text that it was trained on, or start a new run"
        problems.append(Problem("data", plan.data_name, rule, fix))
    return problems


def _differs(key: str, value: Any, saved: Any, step: int, what: str) -> Problem:
    rule = f"the checkpoint of step {step} was saved with {saved}"
    return Problem(key, str(value), rule, f"set {key}={saved}: {_ONLY_THE_SAME.format(what)}")
