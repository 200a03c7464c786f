"""Run folders to calibrations: known factors come back, runs that say nothing are left out with the reason, none counts twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain.analysis.calibration_runs import CalibrationResult, calibrate
from hpctrain.analysis.frames import load_frames, run_summaries
from hpctrain.config.calibration import Calibration, PartKind
from hpctrain.config.schema import BatchRampConfig
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.plan.speed.calibration_choice import calibration_for
from hpctrain.record.files import write_text
from hpctrain.record.frozen_config import config_text
from hpctrain.record.reader import read_plan
from tests.analysis.make_calibration_runs import (
    COMPOSED_NODE,
    OFFLOAD,
    SPREAD,
    composed_config,
    make_calibration_run,
    make_calibration_runs,
)
from tests.analysis.make_runs import CPU_NODE, Attempt, make_run, toy_config
from tests.plan.test_calibration import SEEN

SLOW_NETWORK: dict[PartKind, float] = {"compute": 1.06, "communication": 1.4}


def calibrated(root: Path) -> CalibrationResult:
    return calibrate(run_summaries(load_frames([root], steps=False, samples=False).runs), "2026-11-29")


def only(root: Path) -> Calibration:
    (fitted,) = calibrated(root).fitted
    return fitted.calibration


@pytest.fixture(scope="module")
def slow_network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight runs whose network is slower than the planner thinks."""
    root = tmp_path_factory.mktemp("runs")
    make_calibration_runs(root, SLOW_NETWORK, sigma=0.01, seed=1)
    return root


def test_factors_of_composed_runs_come_back_with_what_the_runs_were(slow_network: Path) -> None:
    result = calibrated(slow_network)
    (fitted,) = result.fitted
    found = fitted.calibration
    assert found.factors["compute"] == pytest.approx(1.06, rel=0.02)
    assert found.factors["communication"] == pytest.approx(1.4, rel=0.06)
    assert (found.hardware, found.precision, found.compiled) == ("composed_gpu", "bf16", False)
    assert (found.num_runs, found.num_configurations, found.fitted_on) == (8, 8, "2026-11-29")
    assert (found.seen.nodes, found.seen.zero_stages) == ((1, 16), (1, 3))
    assert found.seen.shares["communication"] == pytest.approx((0.02, 0.51), abs=0.02)
    assert found.runs == tuple(f"run-{number}" for number in range(8))
    assert "hardware.host_link_gb_per_s" not in found.rates, "no run used it"
    assert result.folders == (slow_network,)
    assert result.left_out == ()


def test_a_further_run_is_predicted_within_the_range(slow_network: Path) -> None:
    """A configuration that no run had: measured as the runs were made."""
    config = composed_config(nodes=4, layers=32, width=4096, micro_batch_size=2)
    calibration, why = calibration_for([only(slow_network)], config)
    plan = build_run_plan(replace(config, calibration=calibration))
    plain = build_run_plan(config).prediction
    assert (why, plan.prediction is None, plain is None) == ("", False, False)
    assert plan.prediction is not None
    assert plain is not None
    communication = plain.parts_s["parameter gathers"] + plain.parts_s["gradient reduce-scatter"]
    measured_s = 1.06 * (plain.step_time_s - communication) + 1.4 * communication
    assert plan.prediction.low_s < measured_s < plan.prediction.high_s
    assert plan.prediction.step_time_s == pytest.approx(measured_s, rel=0.03)
    assert plan.prediction.high_s - plan.prediction.low_s < 0.3 * (plain.high_s - plain.low_s), "narrower than assumed"


def test_runs_that_were_planned_with_a_calibration_do_not_count_twice(slow_network: Path, tmp_path: Path) -> None:
    """The same runs with the same times, their plans made with the calibration: the factors are the same again."""
    before = only(slow_network)
    made_with = replace(before, source="calibration.json")
    make_calibration_runs(
        tmp_path,
        SLOW_NETWORK,
        sigma=0.01,
        seed=1,
        configs=[replace(config, calibration=made_with) for config in SPREAD],
    )
    frames = load_frames([tmp_path])
    assert frames.runs["prediction_error"].abs().max() < 0.05, "the stored predictions are calibrated"
    assert frames.runs["in_predicted_range"].sum() >= 7
    told = frames.runs["calibration"]
    assert told.str.fullmatch(
        r"compute x 1\.0\d, communication x 1\.\d+ by 8 runs on composed_gpu, 2026-11-29, cal.*json"
    ).all()
    after = only(tmp_path)
    assert after.factors == pytest.approx(before.factors, rel=1e-9)
    assert after.errors == pytest.approx(before.errors, rel=1e-9)


def test_an_older_planners_prediction_does_not_matter(slow_network: Path, tmp_path: Path) -> None:
    """Whatever the plan said: a run is held against today's prediction of it."""
    make_calibration_runs(tmp_path, SLOW_NETWORK, sigma=0.01, seed=1)
    for path in tmp_path.glob("*/plan.json"):
        plan = json.loads(path.read_text())
        plan["prediction"]["step_time_s"] *= 3
        plan["prediction"]["parts_s"] = {"matrix work": 3.0}
        path.write_text(json.dumps(plan))
    assert only(tmp_path).factors == pytest.approx(only(slow_network).factors, rel=1e-9)


def test_the_host_has_a_factor_of_its_own(tmp_path: Path) -> None:
    offloads = [replace(config, parallelism=OFFLOAD) for config in SPREAD[1:7]]
    make_calibration_runs(tmp_path, {"compute": 1.0, "communication": 1.0, "host": 1.5}, configs=[*SPREAD, *offloads])
    found = only(tmp_path)
    assert found.factors == pytest.approx({"compute": 1.0, "communication": 1.0, "host": 1.5}, rel=0.01)
    assert found.rates["hardware.host_memory_gb_per_s"] == 400


def test_nodes_and_data_types_are_fitted_apart(tmp_path: Path) -> None:
    other = replace(COMPOSED_NODE, inter_node_gb_per_s=100)
    configs = {"a": COMPOSED_NODE, "b": other, "c": replace(COMPOSED_NODE, name="other_gpu")}
    for number, (name, hardware) in enumerate(configs.items()):
        factor = 1.1 + 0.1 * number
        make_calibration_run(
            tmp_path / name, composed_config(nodes=2, hardware=hardware), {"compute": factor, "communication": factor}
        )
    result = calibrated(tmp_path)
    found = [(one.calibration.hardware, one.calibration.rates["hardware.inter_node_gb_per_s"]) for one in result.fitted]
    assert found == [("composed_gpu", 50), ("composed_gpu", 100), ("other_gpu", 50)]
    assert [one.calibration.factors["compute"] for one in result.fitted] == pytest.approx([1.1, 1.2, 1.3])
    chosen, _ = calibration_for([one.calibration for one in result.fitted], composed_config(hardware=other))
    assert chosen is not None
    assert chosen.factors["compute"] == pytest.approx(1.2)


def test_only_steps_of_the_full_batch_count(tmp_path: Path) -> None:
    """The ramp's steps are ten times as fast here, and more of them than of the others."""
    config = composed_config(num_steps=32)
    training = replace(
        config.training,
        gradient_accumulation_steps=None,
        global_batch_size=128,
        batch_ramp=BatchRampConfig(32, 32, 32 * 60),
    )
    config = replace(config, training=training)
    plan = build_run_plan(config)
    assert plan.prediction is not None, plan.problems
    first_full = plan.batch.ramp[-1].first_step
    assert first_full > 10
    times_s = [plan.prediction.step_time_s * (0.5 if step < first_full else 1.2) for step in range(1, first_full + 20)]
    config = replace(config, training=replace(training, num_steps=len(times_s)))
    run = make_run(tmp_path / "ramp", config, [Attempt(times_s)], data_time_s=0.0)
    write_text(run.config, config_text(config))
    assert only(tmp_path).factors["compute"] == pytest.approx(1.2)


def _without_config(root: Path) -> None:
    make_calibration_run(root / "run", composed_config(), {}).config.unlink()


def _with_other_config(root: Path) -> None:
    run = make_calibration_run(root / "run", composed_config(), {})
    write_text(run.config, config_text(composed_config(nodes=4)))


def _failed(root: Path) -> None:
    run = make_run(
        root / "run", composed_config(), [Attempt([9.0] * 9, end={"state": "failed", "end_reason": "killed"})]
    )
    write_text(run.config, config_text(composed_config()))


def _of_another_speed(root: Path) -> None:
    make_calibration_run(root / "run", composed_config(), {"compute": 7.0, "communication": 7.0})


def _short(root: Path) -> None:
    make_calibration_run(root / "run", composed_config(num_steps=9), {}, (1.0,) * 7)


def _waiting_for_data(root: Path) -> None:
    make_run(root / "run", composed_config(num_steps=10))


def _on_unknown_gpus(root: Path) -> None:
    make_run(root / "run", toy_config(), data_time_s=0.0)
    write_text(root / "run" / "config.yaml", config_text(toy_config()))


def _on_cpus(root: Path) -> None:
    make_run(root / "run", toy_config(nodes=1, hardware=CPU_NODE), [Attempt([1.0] * 10)])


def _of_a_log(root: Path) -> None:
    sample = Path(__file__).parents[1] / "data" / "logs"
    log = sorted(sample.glob("*.log"))[0]
    (root / "run.log").write_bytes(log.read_bytes())


@pytest.mark.parametrize(
    ("make", "told"),
    [
        pytest.param(_without_config, "config.yaml: No such file", id="no configuration"),
        pytest.param(
            _with_other_config, "its plan.json and config.yaml are of different runs: nodes 1 and 4", id="other"
        ),
        pytest.param(_failed, "failed (killed), 9 of 12 steps recorded", id="failed"),
        pytest.param(
            _of_another_speed, "measured is 7 times the predicted time (compute), outside 0.2 to 5", id="speed"
        ),
        pytest.param(_short, "7 steady steps, fewer than 8", id="short"),
        pytest.param(_waiting_for_data, "10% of a step is waiting for data, more than 5%", id="data"),
        pytest.param(_on_unknown_gpus, "hardware=test_gpu does not state hardware.achievable_tflops.bf16", id="rates"),
        pytest.param(_on_cpus, "hardware=test_cpu has device=cpu: step times are predicted for GPUs", id="CPU"),
        pytest.param(_of_a_log, "it has no plan of ours", id="log"),
    ],
)
def test_what_calibrates_nothing_is_left_out_with_the_reason(tmp_path: Path, make: Any, told: str) -> None:
    make(tmp_path)
    result = calibrated(tmp_path)
    assert result.fitted == ()
    (left_out, *_) = result.left_out
    assert told in left_out[1]


def test_the_plan_of_a_run_keeps_what_it_was_calibrated_with(tmp_path: Path) -> None:
    calibration = Calibration(
        "composed_gpu", "bf16", False, {}, {"compute": 1.1, "communication": 1.1}, None, 1, 1, "2026-11-29",
        SEEN, ("x",), "c.json",
    )  # fmt: skip
    run = make_calibration_run(tmp_path / "run", replace(composed_config(), calibration=calibration), {})
    prediction = read_plan(run).prediction
    assert prediction is not None
    assert prediction.calibration is not None
    assert prediction.calibration.text == "x 1.1 by 1 run on composed_gpu, 2026-11-29, c.json"
    assert "calibration" not in run.config.read_text()
