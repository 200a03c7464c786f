"""From a step of a few micro batches to one of many: exact where counts are linear, told where they are not."""

from __future__ import annotations

import dataclasses

import pytest

from hpctrain.rehearse.accumulation import extended, micro_batches_of_steps, plan_of_micro_batches, shortened
from hpctrain.rehearse.result import Collective, CountedFlops, Rehearsal, Timeline
from tests.rehearse.make_rehearsal import make_rehearsal, tier_phase
from tests.rehearse.rehearsals import GPT, make_plan


def counted(of_each: int, once: int, peaks: tuple[int, int, int] = (900, 900, 900)) -> Rehearsal:
    """Steps 2, 3 and 4 with 3, 4 and 5 micro batches, of which each gathers ``of_each`` times."""
    steps = {2: 3, 3: 4, 4: 5}
    return make_rehearsal(
        memory=tuple(
            tier_phase({"activations": peak}, {"parameters": 100}, step)
            for step, peak in zip(steps, peaks, strict=True)
        ),
        collectives=(
            Collective(1, "forward", "all_gather", 16, True, of_each * 3, 64),
            *(
                Collective(step, "forward", "all_gather", 16, True, of_each * count, 64 * of_each * count)
                for step, count in steps.items()
            ),
            *(Collective(step, "optimizer", "all_gather", 16, True, once, 8) for step in steps),
        ),
        flops=CountedFlops(300, {"aten::mm": 300}, 16_000.0),
        timeline=Timeline((1, 2, 3), (1, 2, 3), (2, 2, 2), (5, 6, 7), (0, 0, 0), (0, 0, 0), 4),
    )


FLOPS = [{"aten::mm": 300}, {"aten::mm": 400}, {"aten::mm": 500}]


def test_what_each_micro_batch_does_is_multiplied_and_what_a_step_does_is_not() -> None:
    found = extended(counted(of_each=7, once=2), 160, 3, FLOPS)
    rows = {(row.step, row.phase): (row.count, row.num_bytes) for row in found.collectives}
    assert rows == {(1, "forward"): (21, 64), (2, "forward"): (7 * 160, 64 * 7 * 160), (2, "optimizer"): (2, 8)}
    assert (found.flops.counted, found.flops.by_operator, found.flops.planned) == (16_000, {"aten::mm": 16_000}, 16_000)
    assert {row.step for row in found.memory} == {2}
    assert found.timeline.step == (1, 2)
    check = found.accumulation
    assert check is not None
    assert (check.micro_batches, check.rehearsed) == (160, (3, 4, 5))
    assert check.counts_deviation == check.memory_deviation == 0


def test_counts_that_are_not_linear_are_told() -> None:
    bent = [{"aten::mm": 330}, {"aten::mm": 400}, {"aten::mm": 500}]
    check = extended(counted(7, 2), 160, 3, bent).accumulation
    assert check is not None
    assert check.counts_deviation == pytest.approx(30 / 330)


def test_memory_that_grows_with_the_micro_batches_is_told() -> None:
    check = extended(counted(7, 2, peaks=(900, 918, 936)), 160, 3, FLOPS).accumulation
    assert check is not None
    assert check.memory_deviation == pytest.approx(36 / 900)


PIPELINE = {"parallelism": {"pipeline_parallel_size": 16}, "model": GPT | {"num_layers": 16}}


@pytest.mark.parametrize(
    ("changes", "accumulation", "rank", "expected"),
    [
        ({}, 480, 0, 3),
        ({}, 1, 0, 1),
        ({}, 7, 0, 7),  # 3 + 3 + 4 + 5 are not fewer than 2 x 7
        ({}, 8, 0, 3),
        (PIPELINE, 160, 0, 18),  # 16 in flight
        (PIPELINE, 160, 1, 17),
        (PIPELINE, 160, 15, 3),
        (PIPELINE, 32, 0, 32),
    ],
    ids=["many", "one", "few", "just enough", "first stage", "second stage", "last stage", "few for a pipeline"],
)
def test_how_many_are_run(changes: dict[str, dict[str, int]], accumulation: int, rank: int, expected: int) -> None:
    plan = make_plan(1, gradient_accumulation_steps=accumulation, **changes)  # type: ignore[arg-type]
    assert shortened(plan, rank, steps=2) == expected


def test_more_steps_follow_only_to_be_counted() -> None:
    assert micro_batches_of_steps(4, 3, counts_more=False) == (4, 4, 4)
    assert micro_batches_of_steps(4, 3, counts_more=True) == (4, 4, 4, 5, 6)


def test_the_shorter_plan_asks_the_engine_for_fewer_micro_batches_of_the_same_size() -> None:
    plan = make_plan(3, gradient_accumulation_steps=12, parallelism={"sequence_parallel_size": 2})
    short = plan_of_micro_batches(plan, 3)
    assert short.batch == dataclasses.replace(
        plan.batch, gradient_accumulation_steps=3, global_batch_size=plan.batch.global_batch_size // 4
    )
    assert short.ds_config["gradient_accumulation_steps"] == 3
    assert short.ds_config["train_batch_size"] == plan.ds_config["train_batch_size"] // 4
    same = ("train_micro_batch_size_per_gpu", "zero_optimization")
    assert all(short.ds_config[key] == plan.ds_config[key] for key in same)
    assert plan_of_micro_batches(plan, 12) is plan
