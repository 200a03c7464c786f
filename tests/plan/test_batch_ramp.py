"""The batch ramp: against a simulation of the rule sample by sample, refusals, what plan, cost and status make of it."""

from __future__ import annotations

import json
import random

import pytest

from hpctrain.config.schema import BatchRampConfig
from hpctrain.launch.status.glance import PlanNumbers
from hpctrain.plan.batch_ramp import RampStage, ramp_problems, ramp_stages, samples_before, steps_for_samples
from hpctrain.plan.cost.cost import full_steps, steps_for_tokens
from hpctrain.plan.layout import Batch
from hpctrain.plan.render.plan import render_plan
from hpctrain.plan.run_plan import RunPlan
from tests.plan.test_run_plan import plan_of

LOCAL = ("model=tiny", "cluster=local", "training.micro_batch_size=2", "training.global_batch_size=16")


def simulated(start: int, increment: int, samples: int, full: int, num_steps: int) -> list[int]:
    """Batches step by step: the rule as it is stated, one increment after each equal share of the consumed samples."""
    consumed, sizes = 0, []
    share = samples / ((full - start) / increment)
    for _ in range(num_steps):
        size = full if consumed >= samples else start + int(consumed / share) * increment
        sizes.append(size)
        consumed += size
    return sizes


@pytest.mark.parametrize("seed", range(20))
def test_batches_are_those_of_the_rule_step_by_step(seed: int) -> None:
    noise = random.Random(seed)
    increment, num_increments = noise.randint(1, 64), noise.randint(1, 12)
    start = noise.randint(1, 100)
    full = start + increment * num_increments
    samples = num_increments * noise.randint(1, 2000)  # whole shares, of which floats are exact
    stages = ramp_stages(start, increment, samples, full)
    batch = Batch(1, full, full, 8, stages)
    num_steps = stages[-1].first_step + 5
    expected = simulated(start, increment, samples, full, num_steps)
    assert [batch.global_batch_of(step) for step in range(1, num_steps + 1)] == expected
    assert [batch.accumulation_of(step) for step in range(1, num_steps + 1)] == expected
    assert [batch.samples_before(step) for step in range(1, num_steps + 2)] == [
        sum(expected[:count]) for count in range(num_steps + 1)
    ]
    assert batch.tokens_before(num_steps + 1) == 8 * sum(expected)
    for wanted in (1, sum(expected) // 3, sum(expected) - 1, sum(expected)):
        steps = steps_for_samples(stages, wanted)
        assert samples_before(stages, steps + 1) >= wanted > samples_before(stages, steps)


def test_a_share_that_is_no_whole_number_is_exact() -> None:
    """3 increments over 10 samples: 10/3 and 20/3 samples, and no batch falls back."""
    stages = ramp_stages(1, 1, 10, 4)
    assert [(stage.first_sample, stage.global_batch_size) for stage in stages] == [(0, 1), (4, 2), (8, 3), (11, 4)]


def test_a_ramp_of_a_trillion_samples_has_as_many_stages_as_increments() -> None:
    stages = ramp_stages(32, 32, 10**12, 2048)
    assert len(stages) == 64
    assert stages[-1].first_sample >= 10**12


def test_without_a_ramp_every_step_has_the_full_batch() -> None:
    batch = Batch(2, 3, 12, 10)
    assert [batch.global_batch_of(1), batch.accumulation_of(7), batch.samples_before(3), batch.tokens_of(1)] == [
        12,
        3,
        24,
        120,
    ]


@pytest.mark.parametrize(
    ("ramp", "key", "texts"),
    [
        (
            (6, 4, 100),
            "start",
            [
                "start=6: must be a multiple of",
                "= 2 x 2 = 4 (6 mod 4 = 2)",
                "nearest: 4, 8, or training.micro_batch_size=1",
            ],
        ),
        ((4, 6, 100), "increment", ["increment=6: must be a multiple of", "nearest: 4, 8"]),
        ((1, 4, 100), "start", ["start=1", "nearest: 4, or a data-parallel degree of 1"]),
        (
            (16, 4, 100),
            "start",
            ["must be below training.global_batch_size=16", "nearest: 12, or", "global_batch_size=20"],
        ),
        ((4, 8, 100), "increment", ["16 - 4 = 12 (12 mod 8 = 4)", "nearest: 4, 12"]),
    ],
)
def test_what_makes_no_ramp_is_told_with_the_nearest_that_does(
    ramp: tuple[int, int, int], key: str, texts: list[str]
) -> None:
    (problem,) = ramp_problems(BatchRampConfig(*ramp), 16, 2, 2)
    assert problem.key == f"training.batch_ramp.{key}"
    assert all(text in str(problem) for text in texts), str(problem)


def test_a_batch_of_one_micro_step_has_the_larger_batch_as_its_fix() -> None:
    (problem,) = ramp_problems(BatchRampConfig(4, 4, 100), 4, 2, 2)
    assert str(problem).endswith("to which it grows; set training.global_batch_size=8 or more")
    assert ramp_problems(BatchRampConfig(4, 4, 100), 8, 2, 2) == []


def test_the_nearest_values_work() -> None:
    assert ramp_problems(BatchRampConfig(4, 12, 100), 16, 2, 2) == []
    assert ramp_problems(BatchRampConfig(12, 4, 100), 16, 2, 2) == []
    assert ramp_problems(BatchRampConfig(6, 2, 100), 16, 1, 2) == []


def ramp_plan(*words: str) -> RunPlan:
    return plan_of(*LOCAL, "training.batch_ramp={start: 4, increment: 4, samples: 60}", *words)


def test_the_plan_says_the_ramp_and_its_tokens() -> None:
    plan = ramp_plan("training.num_steps=20")
    # 5 steps of 4 sequences, 3 of 8 to 44, 2 of 12 to 68, then 16.
    assert [(stage.first_step, stage.global_batch_size) for stage in plan.batch.ramp] == [
        (1, 4),
        (6, 8),
        (9, 12),
        (11, 16),
    ]
    text = render_plan(plan, "python")
    assert (
        "batch ramp      4, 8, 12, 16 sequences a step in 4 stages; the full batch from step 11 on, after 68 sequences"
        in text
    )
    tokens = (68 + 10 * 16) * 128
    assert plan.batch.tokens_before(21) == tokens
    assert json.loads(plan.to_json())["batch"]["ramp"][1] == {
        "first_step": 6,
        "first_sample": 20,
        "global_batch_size": 8,
    }
    assert plan.problems == ()


def test_the_plan_refuses_a_ramp_that_does_not_divide() -> None:
    plan = plan_of(*LOCAL, "training.batch_ramp={start: 6, increment: 4, samples: 60}")
    assert [problem.key for problem in plan.problems] == ["training.batch_ramp.start"]
    assert plan.batch.ramp == ()


def test_a_micro_batch_that_nobody_states_fits_every_stage() -> None:
    words = ("model=tiny", "cluster=local", "training.global_batch_size=32")
    assert plan_of(*words).batch.micro_batch_size == 8
    plan = plan_of(*words, "training.batch_ramp={start: 8, increment: 8, samples: 60}")
    assert (plan.batch.micro_batch_size, plan.problems) == (4, ())


def test_a_ramp_that_the_run_does_not_end_is_warned_of() -> None:
    warnings = " ".join(ramp_plan("training.num_steps=7", "training.warmup_steps=0").warnings)
    assert "the full batch of 16 comes with step 11, and training.num_steps=7 ends at 8" in warnings
    jumping = plan_of(*LOCAL, "training.batch_ramp={start: 4, increment: 4, samples: 3}")
    assert "jumped over" in " ".join(jumping.warnings)


def test_cost_takes_the_small_steps_for_what_they_are() -> None:
    words = ("model=1.3b", "nodes=2", "training.micro_batch_size=4", "training.global_batch_size=512")
    plan = plan_of(*words, "training.batch_ramp={start: 64, increment: 64, samples: 70000}", "training.num_steps=3000")
    assert plan.prediction is not None
    times = plan.prediction.ramp_times_s
    assert len(times) == len(plan.batch.ramp) == 8
    assert times[-1] == plan.prediction.step_time_s
    assert list(times) == sorted(times)
    # What does not grow with the batch makes a small step dearer than its share.
    assert times[0] > plan.prediction.step_time_s / 8
    by_hand = (
        sum(
            (after.first_step - before.first_step) * time_s
            for before, after, time_s in zip(plan.batch.ramp, plan.batch.ramp[1:], times, strict=False)
        )
        + (3000 - plan.batch.ramp[-1].first_step + 1) * times[-1]
    )
    assert full_steps(plan, 3000) * plan.prediction.step_time_s == pytest.approx(by_hand)
    assert full_steps(plan, 1) == pytest.approx(times[0] / times[-1])
    assert steps_for_tokens(plan.batch.tokens_before(101), plan.batch) == 100


def test_status_reckons_with_larger_steps_to_come() -> None:
    ramp = (RampStage(1, 0, 4), RampStage(6, 20, 8))
    numbers = PlanNumbers("train", 10, 1, 2, 8e12, None, ramp)
    # Behind step 2: 3 steps of 4 and 5 of 8 sequences, 52 in all, are 13 steps like it.
    assert numbers.steps_left(2) == 13
    assert numbers.steps_left(8) == 2
    assert numbers.tflops_per_gpu(1.0, 2) == numbers.tflops_per_gpu(1.0, 8) / 2 == 2.0
    assert PlanNumbers("train", 10, 1, 2, 8e12, None).steps_left(4) == 6
