"""Runs against a baseline: what is matched, what counts as slower, what is an error."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpctrain.analysis.comparison import Change, Comparison, compare
from hpctrain.analysis.frames import load_frames
from hpctrain.analysis.report.comparison_text import comparison_json, render_comparison
from hpctrain.config.schema import BatchRampConfig
from hpctrain.errors import EXIT_OK, EXIT_REGRESSION, ConfigError, RecordError
from tests.analysis.make_runs import Attempt, make_run, toy_config

TOY = "toy on 4 x test_gpu, 1 node(s), zero3, bf16, micro batch 4 x 1, sequence 32"


def step_times(seconds: float, noise: float = 0.0, count: int = 50, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [seconds * (1 + noise * rng.gauss(0, 1)) for _ in range(count)]


def add(folder: Path, times: Sequence[float], nodes: int = 1, **end: object) -> Path:
    make_run(folder, toy_config(nodes=nodes, num_steps=len(times)), [Attempt(times, end=end or None)])
    return folder


def compared(root: Path, tolerance: float = 0.05) -> Comparison:
    return compare(load_frames([root / "new"]), load_frames([root / "base"]), tolerance)


def change(comparison: Comparison, metric: str, pair: int = 0) -> Change:
    return next(change for change in comparison.pairs[pair].changes if change.metric == metric)


def test_a_slower_run_is_a_regression(tmp_path: Path) -> None:
    add(tmp_path / "base" / "a", step_times(0.5))
    add(tmp_path / "new" / "a", step_times(0.6))
    result = compared(tmp_path)
    step, tokens = change(result, "step_time_s"), change(result, "tokens_per_s")
    assert numbers(step.base, step.new) == pytest.approx([0.5, 0.6])
    assert numbers(step.ratio, step.low, step.high) == pytest.approx([1.2] * 3)
    assert (step.judgement, step.verdict) == ("worse", "slower")
    assert step.noise == "within one run a side, blocks of 7 and 7 steps"  # 45 steady steps
    assert numbers(tokens.ratio, tokens.low, tokens.high) == pytest.approx([1 / 1.2] * 3)
    assert tokens.judgement == "worse"
    assert result.exit_code == EXIT_REGRESSION == 5


def test_a_faster_run_is_none(tmp_path: Path) -> None:
    add(tmp_path / "base" / "a", step_times(0.6))
    add(tmp_path / "new" / "a", step_times(0.5))
    result = compared(tmp_path)
    assert change(result, "step_time_s").verdict == change(result, "tokens_per_s").verdict == "faster"
    assert result.exit_code == EXIT_OK


def numbers(*values: float | None) -> list[float]:
    """The values, none of them missing."""
    assert all(value is not None for value in values)
    return [value for value in values if value is not None]


@pytest.mark.parametrize(
    ("seconds", "noise", "tolerance", "judgement"),
    [
        pytest.param(0.515, 0.01, 0.05, "equal", id="three percent of five"),
        pytest.param(0.515, 0.005, 0.01, "worse", id="three percent of one"),
        pytest.param(0.54, 0.20, 0.05, "unclear", id="eight percent in twenty percent of noise"),
        pytest.param(0.50, 0.20, 0.05, "unclear", id="no change in twenty percent of noise"),
        pytest.param(0.60, 0.05, 0.05, "worse", id="twenty percent in five percent of noise"),
        pytest.param(0.60, 0.00, 0.20, "equal", id="twenty percent is not more than twenty"),
    ],
)
def test_only_beyond_the_share_and_the_noise(
    tmp_path: Path, seconds: float, noise: float, tolerance: float, judgement: str
) -> None:
    add(tmp_path / "base" / "a", step_times(0.5, noise, seed=3))
    add(tmp_path / "new" / "a", step_times(seconds, noise, seed=4))
    result = compared(tmp_path, tolerance + 1e-9)
    assert change(result, "step_time_s").judgement == judgement
    assert (result.exit_code == EXIT_REGRESSION) is (judgement == "worse")


def test_repeated_runs_are_compared_as_runs(tmp_path: Path) -> None:
    for number, seconds in enumerate((0.50, 0.55, 0.60)):
        add(tmp_path / "base" / f"a{number}", step_times(seconds))
    for number, seconds in enumerate((0.56, 0.62)):
        add(tmp_path / "new" / f"a{number}", step_times(seconds))
    step = change(compared(tmp_path), "step_time_s")
    assert step.noise == "between runs (3 in the base, 2 now)"
    assert step.base == pytest.approx((0.50 * 0.55 * 0.60) ** (1 / 3))
    assert step.new == pytest.approx((0.56 * 0.62) ** 0.5)
    # the steps within each run are all alike, but the runs are not: within their noise this is no regression
    assert step.low is not None
    assert step.low < 1
    assert step.judgement == "unclear"


def test_what_is_measured_once_a_run_has_no_interval(tmp_path: Path) -> None:
    add(tmp_path / "base" / "a", step_times(0.5), setup_time_s=20.0)
    add(tmp_path / "new" / "a", step_times(0.5), setup_time_s=30.0)
    result = compared(tmp_path)
    setup, memory = change(result, "setup_time_s"), change(result, "peak_memory_bytes")
    assert (setup.base, setup.new, setup.ratio, setup.low) == (20.0, 30.0, 1.5, None)
    assert (memory.ratio, memory.verdict) == (1.0, "not judged")
    assert memory.noise == "one run a side: repeat runs for an interval"
    assert result.exit_code == EXIT_OK


def test_losses_of_different_length_are_not_compared(tmp_path: Path) -> None:
    add(tmp_path / "base" / "a", step_times(0.5, count=50))
    add(tmp_path / "new" / "a", step_times(0.5, count=40))
    loss = change(compared(tmp_path), "final_loss")
    assert (loss.ratio, loss.noise) == (None, "data or number of steps differ")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"learning_rate": 1e-3}, "training.learning_rate is 0.0006 and 0.001"),
        ({"seed": 5}, "training.seed is 1234 and 5"),
        ({"batch_ramp": BatchRampConfig(32, 32, 640)}, "training.batch_ramp is None and {'start': 32"),
        ({"decay": "linear", "beta2": 0.99}, "training.decay, training.beta2 differ"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
def test_losses_of_another_training_are_not_compared_and_speeds_are(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    config = toy_config(num_steps=50, gradient_accumulation_steps=2)
    other = replace(config, training=replace(config.training, **changes))
    for side, its_config in (("base", config), ("new", other)):
        make_run(tmp_path / side / "a", its_config, [Attempt(step_times(0.5))])
    result = compared(tmp_path)
    loss = change(result, "final_loss")
    assert (loss.ratio, loss.verdict) == (None, "not judged")
    assert loss.noise.startswith("not the same training: ")
    assert told in loss.noise
    assert told in render_comparison(result)
    if "batch_ramp" not in changes:  # its smaller steps are left out, so that too few are left here
        assert change(result, "step_time_s").judgement == "equal"


def test_what_decides_no_step_leaves_losses_comparable(tmp_path: Path) -> None:
    config = toy_config(num_steps=50)
    training = replace(config.training, log_interval=3, checkpoint_interval=20, collective_timeout_min=7)
    for side, its_config in (("base", config), ("new", replace(config, training=training))):
        make_run(tmp_path / side / "a", its_config, [Attempt(step_times(0.5))])
    assert change(compared(tmp_path), "final_loss").ratio == 1.0


def test_losses_are_not_compared_where_a_configuration_is_gone(tmp_path: Path) -> None:
    for side in ("base", "new"):
        add(tmp_path / side / "a", step_times(0.5))
    (tmp_path / "base" / "a" / "config.yaml").unlink()
    loss = change(compared(tmp_path), "final_loss")
    assert loss.ratio is None
    assert loss.noise.startswith("what was trained is not known: ")
    assert "config.yaml" in loss.noise


def test_too_few_steps_everywhere_are_an_error(tmp_path: Path) -> None:
    """A run that is ten times slower must not pass because it is short."""
    add(tmp_path / "base" / "a", step_times(0.5, count=30))
    add(tmp_path / "new" / "a", step_times(5.0, count=9))
    with pytest.raises(RecordError) as error:
        compared(tmp_path)
    assert str(error.value).splitlines() == [
        "--against: no step time could be judged, so nothing was compared: more steps or repeated runs are needed",
        f"  {TOY}: step time 0.5 s in the base, 5 s now (+900.0 %): too few steady steps for an interval (27 in the base,"
        " 7 now): more steps are needed, or repeated runs",
    ]


@pytest.mark.parametrize("seconds", [0.5, 0.6])
def test_pairs_that_are_judged_decide_and_the_others_are_named(tmp_path: Path, seconds: float) -> None:
    add(tmp_path / "base" / "a", step_times(0.5))
    add(tmp_path / "new" / "a", step_times(seconds))
    for side in ("base", "new"):
        add(tmp_path / side / "short", step_times(0.5, count=9), nodes=2)
    result = compared(tmp_path)
    short = TOY.replace("4 x test_gpu, 1 node", "8 x test_gpu, 2 node")
    assert result.exit_code == (EXIT_REGRESSION if seconds > 0.5 else EXIT_OK)
    assert [pair.configuration for pair in result.not_judged] == [short]
    assert change(result, "step_time_s", 1).judgement == "not judged"
    verdict = render_comparison(result).splitlines()[-1]
    assert verdict.startswith(
        "Regression: 1 of 2 configuration(s) slower" if seconds > 0.5 else "No regression shown in 1 configuration(s)"
    )
    assert verdict.endswith(f" Not judged, so nothing is known of {short}: more steps or repeated runs are needed.")
    assert json.loads(comparison_json(result))["not_judged"] == [short]


@pytest.mark.parametrize(
    ("base", "new", "is_told"),
    [
        pytest.param((1, 0), (1, 4), True, id="none before"),
        pytest.param((2, 2), (2, 2), False, id="as many"),
        pytest.param((1, 1), (3, 2), False, id="a smaller share"),
        pytest.param((3, 1), (2, 1), True, id="a larger share"),
    ],
)
def test_more_failures_than_the_base_are_a_regression(
    tmp_path: Path, base: tuple[int, int], new: tuple[int, int], is_told: bool
) -> None:
    for side, (num_valid, num_failed) in (("base", base), ("new", new)):
        for number in range(num_valid):
            add(tmp_path / side / f"v{number}", step_times(0.5))
        for number in range(num_failed):
            add(tmp_path / side / f"f{number}", step_times(0.5)[:9], state="failed", end_reason="killed")
    add(tmp_path / "new" / "z", step_times(0.5)[:9], state="running", ended_at_s=None)
    result = compared(tmp_path)
    assert len(result.pairs) == 1
    assert result.exit_code == (EXIT_REGRESSION if is_told else EXIT_OK)
    assert len(result.broken) == is_told
    if is_told:
        (text,) = result.broken
        shares = f"{new[1]} of {sum(new)} run(s) failed now, {base[1]} of {sum(base)} in the base"
        assert text.startswith(f"{TOY}: {shares}: f0: failed (killed), 9 of 9 steps recorded")
        assert render_comparison(result).splitlines()[-1] == (
            "Regression: 1 configuration(s) stopped working, or with more failed runs than the base."
        )


@pytest.mark.parametrize(("count", "steady", "is_judged"), [(14, 12, False), (18, 16, False), (22, 19, True)])
def test_steps_that_drift_need_more(tmp_path: Path, count: int, steady: int, is_judged: bool) -> None:
    """Eight constant steps have an interval, but of steps that only grow 19 are the fewest, see ``test_intervals``."""
    drift = [0.5 + 0.0001 * step for step in range(count)]
    add(tmp_path / "base" / "a", drift)
    add(tmp_path / "new" / "a", [1.2 * seconds for seconds in drift])
    if is_judged:
        step = change(compared(tmp_path), "step_time_s")
        assert step.ratio == pytest.approx(1.2)
        assert step.judgement == "worse"
        return
    with pytest.raises(RecordError, match=rf"\(\+20\.0 %\): .* \({steady} in the base, {steady} now\)"):
        compared(tmp_path)


def test_what_is_not_above_zero_has_no_ratio_and_is_told(tmp_path: Path) -> None:
    """A set-up of 0 s, of one run of three: its logarithm does not exist, and to leave the run out would flatter its side."""
    for name, seconds in (("a", 20.0), ("b", 0.0)):
        add(tmp_path / "base" / name, step_times(0.5), setup_time_s=seconds)
    add(tmp_path / "new" / "a", step_times(0.5), setup_time_s=30.0)
    setup = change(compared(tmp_path), "setup_time_s")
    assert (setup.base, setup.new, setup.ratio, setup.judgement) == (None, 30.0, None, "not judged")
    assert setup.noise == "not above 0, so no ratio: b (0)"


def test_each_configuration_has_its_own_place(tmp_path: Path) -> None:
    for name, nodes in (("alike", 1), ("missing", 2), ("killed", 4), ("running", 8)):
        add(tmp_path / "base" / name, step_times(0.5), nodes)
    add(tmp_path / "base" / "bad", step_times(0.5), 16, state="failed", end_reason="killed")
    add(tmp_path / "base" / "alike-failed", step_times(0.5)[:9], state="failed", end_reason="killed")
    add(tmp_path / "new" / "alike", step_times(0.5))
    add(tmp_path / "new" / "killed", step_times(0.5)[:20], 4, state="failed", end_reason="out_of_memory")
    add(tmp_path / "new" / "running", step_times(0.5)[:20], 8, state="running", ended_at_s=None)
    add(tmp_path / "new" / "added", step_times(0.5), 32)
    add(tmp_path / "new" / "unreadable", step_times(0.5), 32)
    (tmp_path / "new" / "unreadable" / "plan.json").write_text("{")
    result = compared(tmp_path)
    assert [pair.configuration for pair in result.pairs] == [TOY]
    [broken] = result.broken
    assert "16 x test_gpu" in broken
    assert "valid in the base (killed), not now: killed: failed (out_of_memory)" in broken
    texts = "\n".join(result.not_compared)
    for expected in (
        "8 x test_gpu, 2 node(s), zero3, bf16, micro batch 4 x 1, sequence 32: no run to compare with missing of the base",
        "32 x test_gpu, 8 node(s), zero3, bf16, micro batch 4 x 1, sequence 32: not finished: running: running",
        "64 x test_gpu, 16 node(s), zero3, bf16, micro batch 4 x 1, sequence 32: no valid run in the base: bad: failed",
        "128 x test_gpu, 32 node(s), zero3, bf16, micro batch 4 x 1, sequence 32: no such run in the base",
        f"{TOY}: left out: alike-failed: failed (killed), 9 of 9 steps recorded",
        f"{tmp_path}/new/unreadable: model, GPUs, batch or sequence not known: ",
    ):
        assert expected in texts
    assert result.exit_code == EXIT_REGRESSION


def test_no_matching_run_is_an_error(tmp_path: Path) -> None:
    add(tmp_path / "base" / "a", step_times(0.5), nodes=1)
    add(tmp_path / "new" / "b", step_times(0.5), nodes=2)
    with pytest.raises(RecordError) as error:
        compared(tmp_path)
    text = str(error.value)
    assert text.startswith("--against: no run here has a valid run of equal configuration in the base")
    assert "nearest: toy on 4 x test_gpu" in text
    assert "nodes=1 instead of 2, gpus=4 instead of 8" in text


def set_zero(run: Path, **settings: object) -> None:
    plan = json.loads((run / "plan.json").read_text())
    plan["ds_config"]["zero_optimization"] |= settings
    (run / "plan.json").write_text(json.dumps(plan))


def test_only_the_settings_of_zero_that_differ_are_told(tmp_path: Path) -> None:
    set_zero(add(tmp_path / "base" / "a", step_times(0.5)), reduce_bucket_size=1000)
    set_zero(add(tmp_path / "new" / "b", step_times(0.5)), reduce_bucket_size=2000, round_robin_gradients=True)
    with pytest.raises(RecordError) as error:
        compared(tmp_path)
    assert str(error.value).splitlines()[-1] == (
        f"  nearest: {TOY}: the base has zero_settings with reduce_bucket_size=1000 instead of 2000"
        " and round_robin_gradients=unset instead of true"
    )


def test_settings_of_zero_that_one_side_lacks_are_not_printed(tmp_path: Path) -> None:
    add(tmp_path / "base" / "a", step_times(0.5))
    add(tmp_path / "new" / "b", step_times(0.5))
    base, new = load_frames([tmp_path / "base"]), load_frames([tmp_path / "new"])
    lacking = pd.array([pd.NA], dtype="string")
    for first, second, words in (
        (base, replace(new, runs=new.runs.assign(zero_settings=lacking)), "zero_settings known instead of not known"),
        (replace(base, runs=base.runs.assign(zero_settings=lacking)), new, "zero_settings not known instead of known"),
    ):
        with pytest.raises(RecordError) as error:
            compare(second, first)
        assert str(error.value).endswith(f"the base has {words}")


def test_a_run_is_not_compared_with_itself(tmp_path: Path) -> None:
    add(tmp_path / "a", step_times(0.5))
    frames = load_frames([tmp_path])
    with pytest.raises(RecordError, match="every run is also in the base; give other folders"):
        compare(frames, frames)


def test_runs_of_the_base_inside_the_folder_are_left_out(tmp_path: Path) -> None:
    add(tmp_path / "base" / "a", step_times(0.5))
    add(tmp_path / "later", step_times(0.6))
    result = compare(load_frames([tmp_path]), load_frames([tmp_path / "base"]))
    assert result.pairs[0].new_runs == ("later",)


def test_an_empty_side_is_an_error(tmp_path: Path) -> None:
    add(tmp_path / "base" / "a", step_times(0.5))
    (tmp_path / "new").mkdir()
    with pytest.raises(RecordError) as error:
        compared(tmp_path)
    assert "no run to compare with a of the base" in str(error.value)
    assert f"{tmp_path}/new: no run here" in str(error.value)


@pytest.mark.parametrize("tolerance", [-0.1, float("nan"), float("inf")])
def test_a_tolerance_is_a_share(tmp_path: Path, tolerance: float) -> None:
    frames = load_frames([tmp_path])
    with pytest.raises(ConfigError, match=rf"--tolerance={tolerance:g}: must be a share of the step time, 0 or above"):
        compare(frames, frames, tolerance)


def test_text_and_json_say_the_same(tmp_path: Path) -> None:
    add(tmp_path / "base" / "a", step_times(0.5))
    add(tmp_path / "new" / "b", step_times(0.6))
    result = compared(tmp_path)
    lines = render_comparison(result).splitlines()
    assert lines[:2] == [TOY, "base: a; now: b"]
    assert lines[3].split() == "step time 0.5 s 0.6 s +20.0 % +20.0 % to +20.0 % slower".split()
    assert lines[-1] == (
        "Regression: 1 of 1 configuration(s) slower (step time more than 5 % longer and its 95 % interval above no change)."
    )
    values = json.loads(comparison_json(result))
    assert (values["schema_version"], values["exit_code"], values["slower"]) == (1, 5, [TOY])
    assert values["pairs"][0]["changes"][0]["ratio"] == pytest.approx(1.2)


def test_an_unclear_result_says_what_would_help(tmp_path: Path) -> None:
    add(tmp_path / "base" / "a", step_times(0.5, 0.2, seed=3))
    add(tmp_path / "new" / "a", step_times(0.5, 0.2, seed=4))
    last = render_comparison(compared(tmp_path)).splitlines()[-1]
    assert last.startswith("No regression shown in 1 configuration(s)")
    assert last.endswith("Unclear in 1: repeat runs, or make them longer, to narrow the interval.")
