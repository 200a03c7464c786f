"""A step of many micro batches from a step of a few: the same memory, counts of a + b x micro batches. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpctrain.plan.run_plan import RunPlan
from hpctrain.rehearse.result import AccumulationCheck, Collective, Rehearsal, TierPhase, Timeline

_FEWEST = 3
"""One that begins the accumulation, one between, and one that ends it."""
_NUM_COUNTS = 3
"""Steps that are counted: two make a line, the third says whether it is one."""


def shortened(plan: RunPlan, rank: int, steps: int) -> int:
    """How many micro batches each of the first ``steps`` rehearsed steps has; the plan's own number where few are spared.

    With 1F1B a stage holds as many micro batches at a time as there are stages from it to the last one; two more, and it has
    taken each of its turns. Source: DeepSpeed 0.19.8, runtime/pipe/schedule.py, TrainSchedule.num_pipe_buffers.
    """
    layout, planned = plan.layout, plan.batch.gradient_accumulation_steps
    stages = layout.pipeline_parallel_size
    fewest = _FEWEST if stages == 1 else max(_FEWEST, stages - layout.place(rank).pipeline + 2)
    is_spared = sum(micro_batches_of_steps(fewest, steps, counts_more=True)) < steps * planned
    return fewest if is_spared else planned


def micro_batches_of_steps(first: int, steps: int, counts_more: bool) -> tuple[int, ...]:
    """Micro batches of each rehearsed step: where more are counted, two steps follow with one and two micro batches more.

    >>> micro_batches_of_steps(3, 2, counts_more=True)
    (3, 3, 4, 5)
    """
    return (first,) * steps + tuple(first + more for more in range(1, _NUM_COUNTS) if counts_more)


def plan_of_micro_batches(plan: RunPlan, count: int) -> RunPlan:
    """The plan with another number of micro batches in a step, and all else as it is."""
    batch = plan.batch
    if count == batch.gradient_accumulation_steps:
        return plan
    samples = plan.ds_config["train_batch_size"] // batch.gradient_accumulation_steps
    ds_config = plan.ds_config | {"gradient_accumulation_steps": count, "train_batch_size": samples * count}
    sequences = batch.global_batch_size // batch.gradient_accumulation_steps
    short = dataclasses.replace(batch, gradient_accumulation_steps=count, global_batch_size=sequences * count, ramp=())
    return dataclasses.replace(plan, batch=short, ds_config=ds_config)


@dataclass(frozen=True)
class _Line:
    """Through three counts at neighbouring numbers of micro batches."""

    first: int
    """Micro batches of the first count."""
    wanted: int

    def at(self, counts: Sequence[int]) -> int:
        """On the line through the last two, at the wanted number."""
        _, low, high = counts
        return high + (high - low) * (self.wanted - self.first - 2)

    @staticmethod
    def deviation(counts: Sequence[int]) -> float:
        """How far the line through the last two misses the first, as a fraction."""
        first, low, high = counts
        return abs(2 * low - high - first) / max(first, 1)


def extended(found: Rehearsal, micro_batches: int, first: int, flops_by_step: Sequence[Mapping[str, int]]) -> Rehearsal:
    """The rehearsal with the collectives and FLOPs of a whole step, without the steps that were run to count them.

    Args:
        found: of a reported step with ``first`` micro batches, and two steps more with one and two micro batches more.
        micro_batches: of the plan's step.
        first: of the reported step.
        flops_by_step: by operator, of the reported step and the two after it.
    """
    line, last = _Line(first, micro_batches), found.reported_step
    collectives, worst_count = _collectives(line, found.collectives, last)
    names = dict.fromkeys(name for step in flops_by_step for name in step)
    counts = {name: tuple(step.get(name, 0) for step in flops_by_step) for name in names}
    by_operator = {name: line.at(three) for name, three in counts.items()}
    flops = dataclasses.replace(found.flops, counted=sum(by_operator.values()), by_operator=by_operator)
    worst_flops = max(map(line.deviation, counts.values()), default=0.0)
    check = AccumulationCheck(
        micro_batches=micro_batches,
        rehearsed=(first, first + 1, first + 2),
        counts_deviation=max(worst_count, worst_flops),
        memory_deviation=_memory_deviation(found.memory, last),
    )
    return dataclasses.replace(
        found,
        memory=tuple(row for row in found.memory if row.step <= last),
        collectives=collectives,
        flops=flops,
        timeline=_until(found.timeline, last),
        accumulation=check,
    )


def _collectives(line: _Line, rows: Sequence[Collective], last: int) -> tuple[tuple[Collective, ...], float]:
    """Those of the reported step for all micro batches, those of the steps before as they are, and the worst deviation."""
    keys = dict.fromkeys((row.phase, row.kind, row.group_size, row.is_world) for row in rows if row.step >= last)
    by_key = {(row.step, row.phase, row.kind, row.group_size, row.is_world): row for row in rows}
    found, worst = [row for row in rows if row.step < last], 0.0
    for key in keys:
        three = [by_key.get((step, *key)) for step in range(last, last + _NUM_COUNTS)]
        counts, sizes = ([getattr(row, name, 0) for row in three] for name in ("count", "num_bytes"))
        worst = max(worst, line.deviation(counts), line.deviation(sizes))
        found.append(Collective(last, *key, count=line.at(counts), num_bytes=line.at(sizes)))
    return tuple(found), worst


def _memory_deviation(rows: Iterable[TierPhase], last: int) -> float:
    """How far peaks and resting bytes with more micro batches are from those of the reported step, in parts of its highest."""
    by_key = {(row.step, row.phase, row.tier): row for row in rows}
    highest = max((row.peak_bytes for row in rows if row.step == last), default=0)
    worst = 0
    for (step, phase, tier), row in by_key.items():
        former = by_key.get((last, phase, tier))
        if step > last and former is not None:
            resting = abs(row.resting_bytes - former.resting_bytes)
            worst = max(worst, abs(row.peak_bytes - former.peak_bytes), resting)
    return worst / max(highest, 1)


def _until(line: Timeline, last: int) -> Timeline:
    """The points of the steps up to the reported one."""
    kept = [index for index, step in enumerate(line.step) if step <= last]

    def column(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(values[index] for index in kept)

    return Timeline(
        column(line.operator),
        column(line.step),
        column(line.phase),
        column(line.gpu_bytes),
        column(line.host_bytes),
        column(line.pinned_bytes),
        line.num_layers,
    )
