"""The table of a sweep: a row a point with batch, speed, memory, scaling efficiency and, where asked, the cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpctrain.config.open_keys import AUTO, NEUTRAL
from hpctrain.config.schema import Config, RunConfig
from hpctrain.errors import FORCED_KINDS, Problem
from hpctrain.plan.auto.alternatives import CHOICE_NOTE
from hpctrain.plan.cost.cost import RunCost, run_cost
from hpctrain.plan.cost.options import CostOptions
from hpctrain.plan.flop_conventions import FlopConvention, convention_flops
from hpctrain.plan.memory.estimate import MemoryEstimate
from hpctrain.plan.run_plan import RunPlan
from hpctrain.units import TERA, gib

ScalingKind = Literal["strong", "weak"]


@dataclass(frozen=True)
class PlannedPoint:
    """One point of a sweep."""

    overrides: tuple[str, ...]
    """``key=value`` as chosen."""
    config: Config
    plan: RunPlan


@dataclass(frozen=True)
class SweepRow:
    """One point. None: not known, or not said of a point that cannot run; ``notes`` and ``problems`` tell why."""

    overrides: tuple[str, ...]
    swept: dict[str, str]
    """Those of the overrides that differ between points, but not ``nodes``."""
    nodes: int
    gpus: int
    parallelism: str | None
    """Name of the form; None, as all that a plan derives: the plan is impossible, or a launch check."""
    micro_batch_size: int | None
    data_parallel_degree: int | None
    gradient_accumulation_steps: int | None
    global_batch_size: int | None
    seq_len: int | None
    activation_checkpointing: str | None
    step_time_s: float | None
    step_time_low_s: float | None
    step_time_high_s: float | None
    tokens_per_s: float | None
    tflops_per_gpu: float | None
    convention: FlopConvention
    """How ``tflops_per_gpu`` counts FLOPs."""
    mfu: float | None
    fits: bool | None
    memory: str
    """What is free or short, in words."""
    scaling: ScalingKind
    """strong: the global batch is stated and stays; weak: each GPU keeps its own batch."""
    efficiency: float | None
    """Tokens/s a GPU over that of the smallest size of the group; None without another size to compare with."""
    base_nodes: int | None
    """Nodes of that smallest size."""
    cost: RunCost | None
    cost_gap: str
    """Why there is no cost; empty where none was asked for."""
    problems: tuple[str, ...]


@dataclass(frozen=True)
class SweepTable:
    """All rows in the order of the sweep, and what is to be known about them."""

    fixed: tuple[str, ...]
    """Overrides that all points share."""
    rows: tuple[SweepRow, ...]
    notes: tuple[str, ...]
    with_choices: bool = False
    """Whether the form of parallelism of some point was chosen."""


def sweep_table(points: Sequence[PlannedPoint], options: CostOptions, force: bool = False) -> SweepTable:
    """The table of a sweep.

    Points are compared where the whole configuration but ``nodes`` and the run's name is the same, and with it what the plan
    chose: the form of parallelism, checkpointing, and micro batch and accumulation (weak scaling) or the global batch (strong
    scaling).

    Args:
        points: all of the sweep.
        options: what was asked about cost, and the FLOP convention.
        force: points that are short of memory by the estimate only count as points that run.
    """
    differing = _differing_keys(points)
    groups: dict[str, list[PlannedPoint]] = {}
    for point in points:
        if _speed_counts(point, force):
            groups.setdefault(_group_key(point), []).append(point)
    rows = [_row(point, groups.get(_group_key(point), []), differing, options, force) for point in points]
    fixed = tuple(
        text.lstrip("+") for text in (points[0].overrides if points else ()) if _key_and_value(text)[0] not in differing
    )
    with_choices = any(point.plan.choice is not None for point in points)
    return SweepTable(fixed, tuple(rows), tuple(_notes(points, rows, force)), with_choices)


def _speed_counts(point: PlannedPoint, force: bool) -> bool:
    return point.plan.prediction is not None and not point.plan.blocking_problems(force)


def _differing_keys(points: Sequence[PlannedPoint]) -> list[str]:
    values: dict[str, set[str]] = {}
    for point in points:
        for key, value in map(_key_and_value, point.overrides):
            values.setdefault(key, set()).add(value)
    return [key for key, found in values.items() if len(found) > 1]


def _key_and_value(override: str) -> tuple[str, str]:
    """Hydra marks keys of the user's own with plus signs, which say nothing here."""
    key, _, value = override.partition("=")
    return key.lstrip("+"), value


def scaling_kind(config: Config) -> ScalingKind:
    """Which batch stays when ``nodes`` grows: with a stated global batch the whole one, else that of each GPU."""
    return "weak" if config.training.global_batch_size is None else "strong"


_BATCH_KEYS = ("micro_batch_size", "gradient_accumulation_steps", "activation_checkpointing")
"""Of ``training``: what a plan chooses with every form of parallelism."""


def _config_key(point: PlannedPoint) -> str:
    """Equal for points of one configuration, whatever batch and recomputation were chosen for them."""
    config = point.config
    chosen = [name for name in _BATCH_KEYS if f"training.{name}" in config.run.chosen]
    training = dataclasses.replace(config.training, **{name: NEUTRAL[f"training.{name}"] for name in chosen})
    return repr(dataclasses.replace(config, nodes=1, training=training, run=RunConfig()))


def _asked_key(point: PlannedPoint) -> str:
    """Equal for points of which the same was asked: what ``parallelism=auto`` chose is left out."""
    config = point.config
    sections: dict[str, dict[str, Any]] = {"parallelism": {}, "training": {}}
    for key in NEUTRAL.keys() & set(config.run.chosen):
        section, _, name = key.partition(".")
        sections[section][name] = NEUTRAL[key]
    if sections["parallelism"]:
        sections["parallelism"]["name"] = AUTO
    parallelism = dataclasses.replace(config.parallelism, **sections["parallelism"])
    training = dataclasses.replace(config.training, **sections["training"])
    return repr(dataclasses.replace(config, nodes=1, parallelism=parallelism, training=training, run=RunConfig()))


def _group_key(point: PlannedPoint) -> str:
    batch = point.plan.batch
    weak = scaling_kind(point.config) == "weak"
    kept = (batch.micro_batch_size, batch.gradient_accumulation_steps) if weak else batch.global_batch_size
    return f"{_config_key(point)} {point.plan.activation_checkpointing} {kept}"


def _row(
    point: PlannedPoint, group: Sequence[PlannedPoint], differing: Sequence[str], options: CostOptions, force: bool
) -> SweepRow:
    plan, batch = point.plan, point.plan.batch
    problems, has_numbers = plan.problems, plan.payload == "train" and not plan.is_impossible
    speed = plan.prediction if all(problem.kind == "memory" for problem in problems) else None
    convention: FlopConvention = options.convention or "model"
    flops = convention_flops(convention, plan.model, batch.seq_len, batch.global_batch_size)
    efficiency, base = _efficiency(point, group) if point in group else (None, None)
    cost, cost_gap = run_cost(plan, point.config.hardware, options, force) if options.is_asked else (None, "")
    return SweepRow(
        overrides=tuple(text.lstrip("+") for text in point.overrides),
        swept={
            key: value for key, value in map(_key_and_value, point.overrides) if key in differing and key != "nodes"
        },
        nodes=plan.layout.num_nodes,
        gpus=plan.layout.world_size,
        parallelism=plan.parallelism_name if has_numbers else None,
        micro_batch_size=batch.micro_batch_size if has_numbers else None,
        data_parallel_degree=plan.layout.data_parallel_degree if has_numbers else None,
        gradient_accumulation_steps=batch.gradient_accumulation_steps if has_numbers else None,
        global_batch_size=batch.global_batch_size if has_numbers else None,
        seq_len=batch.seq_len if has_numbers else None,
        activation_checkpointing=plan.activation_checkpointing if has_numbers else None,
        step_time_s=speed.step_time_s if speed else None,
        step_time_low_s=speed.low_s if speed else None,
        step_time_high_s=speed.high_s if speed else None,
        tokens_per_s=speed.tokens_per_s if speed else None,
        tflops_per_gpu=flops / speed.step_time_s / plan.layout.world_size / TERA if speed else None,
        convention=convention,
        mfu=speed.mfu if speed else None,
        fits=not any(problem.kind == "memory" for problem in problems) if has_numbers else None,
        memory=_memory(plan),
        scaling=scaling_kind(point.config),
        efficiency=efficiency,
        base_nodes=base,
        cost=cost,
        cost_gap=cost_gap,
        problems=tuple(map(str, problems)),
    )


def _memory(plan: RunPlan) -> str:
    if _is_refused(plan.problems):
        return "refused"
    return memory_in_words(plan.memory) if plan.payload == "train" else "no model"


def _is_refused(problems: Sequence[Problem]) -> bool:
    """Whether a rule is broken: then the rest of the plan is of a shape that nobody asked for."""
    return any(problem.kind not in FORCED_KINDS for problem in problems)


def _efficiency(point: PlannedPoint, group: Sequence[PlannedPoint]) -> tuple[float | None, int | None]:
    """Efficiency of a point, and the nodes of the size that it is held against; none where the group has one size only."""
    base = min(group, key=lambda other: other.plan.layout.world_size)
    if len({other.plan.layout.world_size for other in group}) < 2:
        return None, None
    return tokens_per_s_per_gpu(point.plan) / tokens_per_s_per_gpu(base.plan), base.plan.layout.num_nodes


def tokens_per_s_per_gpu(plan: RunPlan) -> float:
    """Predicted tokens/s of one GPU.

    Raises:
        ValueError: the plan has no prediction.
    """
    if plan.prediction is None:
        raise ValueError(f"{plan.name} has no prediction")
    return plan.prediction.tokens_per_s / plan.layout.world_size


def memory_in_words(memory: MemoryEstimate) -> str:
    """``fits, 12.62 GiB free`` for a GPU; where a tier is short, which one and by how much."""
    gpu, host = memory.gpu_capacity_bytes, memory.host_capacity_bytes
    short = []
    if gpu is not None and memory.gpu_bytes > gpu:
        short.append(f"GPU {gib(memory.gpu_bytes - gpu)} short")
    if host is not None and memory.host_bytes_per_node > host:
        short.append(f"host {gib(memory.host_bytes_per_node - host)} short")
    if short:
        return ", ".join(short)
    if gpu is not None:
        return f"fits, {gib(gpu - memory.gpu_bytes)} free"
    return "capacity not stated" if host is None else f"fits, {gib(host - memory.host_bytes_per_node)} free"


def _notes(points: Sequence[PlannedPoint], rows: Sequence[SweepRow], force: bool) -> list[str]:
    notes = list(dict.fromkeys(text for point in points for text in point.plan.assumptions))
    # Chosen point by point: the row shows it.
    notes = [text for text in notes if not text.startswith(("training.", CHOICE_NOTE))]
    notes += _uncompared([point for point in points if _speed_counts(point, force)])
    notes += dict.fromkeys(point.plan.prediction.uncertainty for point in points if point.plan.prediction is not None)
    gaps = [point.plan.prediction_gap for point in points if not point.plan.is_impossible and not point.plan.prediction]
    notes += [f"no prediction: {gap}" for gap in dict.fromkeys(gaps)]
    costs = [text for row in rows if row.cost for text in row.cost.gaps]
    costs += [row.cost_gap for row in rows if not row.problems]  # of the others the problems tell it
    notes += [f"cost: {text}" for text in dict.fromkeys(costs) if text]
    return notes


def _uncompared(points: Sequence[PlannedPoint]) -> list[str]:
    """Says where points of one configuration are not compared since the plan chose differently for them."""
    alike: dict[str, dict[str, list[str]]] = {}
    forms: dict[str, set[str]] = {}
    for point in points:
        batch, asked = point.plan.batch, _asked_key(point)
        chosen = f"checkpointing {point.plan.activation_checkpointing}"
        if scaling_kind(point.config) == "weak":
            chosen = f"micro batch {batch.micro_batch_size}, {chosen}"
        if point.plan.choice is not None:
            chosen = f"{point.plan.parallelism_name}, {chosen}"
        alike.setdefault(asked, {}).setdefault(chosen, []).append(str(point.plan.layout.num_nodes))
        forms.setdefault(asked, set()).add(point.plan.parallelism_name)
    return [
        "not compared with each other, since the plan chose differently: "
        + "; ".join(f"nodes={','.join(nodes)} with {chosen}" for chosen, nodes in choices.items())
        + f"; state {'parallelism, ' if len(forms[asked]) > 1 else ''}training.micro_batch_size and"
        " training.activation_checkpointing to compare them"
        for asked, choices in alike.items()
        if len(choices) > 1
    ]
