"""``plan --calibrate`` and what reads its file: plan, sweeps, submissions; and what is said where a file is not for a plan."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.cli import run
from hpctrain.config.compose import compose_points
from hpctrain.errors import ConfigError
from hpctrain.launch.calibrations import CalibrationWords
from hpctrain.launch.point_plans import plan_points
from hpctrain.launch.run_folder import create_run_folder
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_plan
from tests.analysis.make_calibration_runs import make_calibration_run, make_calibration_runs
from tests.analysis.make_runs import CPU_NODE, Attempt, make_run, toy_config

COMMON = (
    *("model=1.3b", "hardware=ndm_a100_v4", "parallelism=zero3"),
    *("training.micro_batch_size=1", "training.activation_checkpointing=full"),
)
FACTOR = 1.25


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six composed runs on 1 to 32 nodes, each a quarter slower than planned give or take a percent, and one on the CPU."""
    root = tmp_path_factory.mktemp("cluster") / "runs"
    points = compose_points([*COMMON, "training.num_steps=12", "nodes=1,2,4,8,16,32"], multirun=True)
    configs = [point.config for point in points]
    make_calibration_runs(root, {"compute": FACTOR, "communication": FACTOR}, sigma=0.01, configs=configs)
    make_run(root / "on-cpu", toy_config(nodes=1, hardware=CPU_NODE), [Attempt([1.0] * 10)])
    return root


@pytest.fixture(scope="module")
def fitted(runs: Path) -> Path:
    assert run(["plan", "--calibrate", str(runs)]) == 0
    return runs / "calibration.json"


def step_s(*words: str, capsys: pytest.CaptureFixture[str]) -> float:
    """Predicted by ``plan``."""
    capsys.readouterr()
    run(["plan", *COMMON, "nodes=4", *words, "--json"])
    found: float = json.loads(capsys.readouterr().out)["prediction"]["step_time_s"]
    return found


def test_it_tells_the_factor_each_configuration_and_what_was_left_out(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "--calibrate", str(runs)]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0].startswith("ndm_a100_v4 in bf16: step time x 1.2")
    assert sum(line.startswith("1.3b, ") for line in lines) == 6
    assert lines[2].startswith("1.3b, 1 x 8 GPUs, zero3, micro batch 1")
    assert "95 % of further configurations: -" in text
    assert "seen: 1 to 32 nodes; 1.32 B parameters; ZeRO stages 3; " in text
    assert "memory, not calibrated: the predicted peak of rank 0's GPU allocator is +" in text
    assert "left out, 1:\n  on-cpu: hardware=test_cpu has device=cpu: step times are predicted for GPUs" in text
    assert lines[-1] == (
        f"calibration {runs}/calibration.json; plan and submit use it where run.root is {runs}; --no-calibration leaves it out"
    )


def test_a_plan_uses_the_file_of_its_runs_folder_and_says_so(
    fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, elsewhere = f"run.root={fitted.parent}", f"run.root={tmp_path}"
    plain = step_s(elsewhere, capsys=capsys)
    assert step_s(root, capsys=capsys) == pytest.approx(FACTOR * plain, rel=0.02)
    assert step_s(root, "--no-calibration", capsys=capsys) == plain
    assert step_s(elsewhere, "--calibration", str(fitted), capsys=capsys) == pytest.approx(FACTOR * plain, rel=0.02)
    run(["plan", *COMMON, "nodes=4", root])
    text = capsys.readouterr().out
    assert "  from      calibrated, x 1.2" in text
    assert " by 6 runs on ndm_a100_v4, 20" in text
    assert f", {fitted}; -" in text


def test_a_sweep_uses_it_too(fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times_s = {}
    for root in (fitted.parent, tmp_path):
        run(["plan", "-m", *COMMON, "nodes=2,4", f"run.root={root}", "--json"])
        times_s[root] = [plan["sweep_row"]["step_time_s"] for plan in json.loads(capsys.readouterr().out)]
    ratios = [slow / plain for slow, plain in zip(times_s[fitted.parent], times_s[tmp_path], strict=True)]
    assert ratios == pytest.approx([FACTOR, FACTOR], rel=0.02)
    run(["plan", "-m", *COMMON, "nodes=2,4", f"run.root={fitted.parent}"])
    assert "note: calibrated, x 1.2" in capsys.readouterr().out


@pytest.mark.parametrize("question", ["--largest", "--fewest-nodes", "--best-micro-batch"])
def test_questions_use_it_and_say_so(
    fitted: Path, tmp_path: Path, question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", question, "model=1.3b", "parallelism=zero3"]

    def told(*more: str) -> str:
        capsys.readouterr()
        assert run([*words, *more]) == 0
        return capsys.readouterr().out

    plain, slow = told(f"run.root={tmp_path}", "--json"), told(f"run.root={fitted.parent}", "--json")
    key = {"--largest": "largest", "--fewest-nodes": "fewest", "--best-micro-batch": "best"}[question]
    times_s = [json.loads(text)[key]["step_time_s"] for text in (plain, slow)]
    assert times_s[1] / times_s[0] == pytest.approx(FACTOR, rel=0.02)
    (note,) = [text for text in json.loads(slow)["notes"] if "calibrat" in text]
    assert note.startswith("speeds are calibrated, x 1.2")
    assert note.endswith(str(fitted))
    assert f"note: {note}\n" in told(f"run.root={fitted.parent}")
    assert "calibrat" not in told(f"run.root={fitted.parent}", "--no-calibration")
    other = told(f"run.root={fitted.parent}", "hardware=dgx_h100")
    assert f"note: calibration: left out, {fitted}: has no calibration for hardware=dgx_h100" in other


def test_another_trainers_memory_has_no_speeds_to_calibrate(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "plan",
        "--largest",
        "--trainer",
        "deepspeed",
        "model=1.3b",
        "parallelism=zero3",
        f"run.root={fitted.parent}",
    ]
    assert run(words) == 0
    assert "calibrat" not in capsys.readouterr().out


def test_a_search_ranks_with_it(fitted: Path, tmp_path: Path) -> None:
    words = ("model=1.3b", "hardware=ndm_a100_v4", "nodes=2", "parallelism=auto")
    found = {}
    for root in (fitted.parent, tmp_path):
        ((_, plan),) = plan_points(compose_points([*words, f"run.root={root}"], multirun=False))
        assert plan.choice is not None
        assert plan.prediction is not None
        assert plan.choice.alternatives[0].step_time_s == pytest.approx(plan.prediction.step_time_s)
        found[root] = plan.prediction.step_time_s
    assert found[fitted.parent] == pytest.approx(FACTOR * found[tmp_path], rel=0.02)


def test_a_run_keeps_what_it_was_planned_with_and_calibrates_as_others_do(fitted: Path, tmp_path: Path) -> None:
    """Submitted with the calibration, it is held against the plain prediction by the next fit."""
    points = compose_points([*COMMON, "nodes=4", "training.num_steps=12", f"run.root={fitted.parent}"], multirun=False)
    ((point, plan),) = plan_points(points)
    (tmp_path / "made").mkdir()
    kept = create_run_folder(tmp_path / "made", point, plan, sys.executable)
    prediction = read_plan(kept).prediction
    assert prediction is not None
    assert prediction.calibration is not None
    assert prediction.calibration.source == str(fitted)
    assert "\ncalibration:" not in f"\n{kept.config.read_text()}"
    make_calibration_run(tmp_path / "runs" / "again", point.config, {"compute": FACTOR, "communication": FACTOR})
    assert run(["plan", "--calibrate", str(tmp_path / "runs")]) == 0
    again = json.loads((tmp_path / "runs" / "calibration.json").read_text())["calibrations"][0]
    assert again["factors"] == pytest.approx({"compute": FACTOR, "communication": FACTOR})
    assert again["errors"] is None, "one configuration tells no spread"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("{", "Expecting property name", id="damaged"),
        pytest.param('{"schema_version": 9}', "schema_version=9, this hpctrain reads 1; fit it again", id="version"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_a_note_and_asked_for_an_error(
    tmp_path: Path, text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    words = ["plan", *COMMON, "nodes=1", f"run.root={tmp_path}"]
    assert run(words) == 0
    (note,) = [line for line in capsys.readouterr().out.splitlines() if "calibration" in line]
    assert note.startswith(f"note: calibration: left out, {path}: ")
    assert told in note
    with pytest.raises(ConfigError, match=r"--calibration .*calibration\.json: ") as raised:
        run([*words, "--calibration", str(path)])
    assert told in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["hardware=hgx_h200", "nodes=1"], "has no calibration for hardware=hgx_h200 in bf16, only for hardware=ndm_a100_v4"),
        (["hardware.inter_node_gb_per_s=100"], "hardware.inter_node_gb_per_s=100 now, 200 in its runs"),
        (["training.precision=fp16"], "has no calibration for hardware=ndm_a100_v4 in fp16"),
        (["hardware=cpu", "cluster=local"], "hardware=cpu has device=cpu: step times are predicted for GPUs"),
    ],
    ids=["hardware", "rates", "precision", "CPU"],
)  # fmt: skip
def test_a_file_for_something_else(fitted: Path, words: list[str], told: str) -> None:
    stated = [word for word in COMMON if word.partition("=")[0] not in {given.partition("=")[0] for given in words}]
    (point,) = compose_points([*stated, *words, *([] if "nodes=1" in words else ["nodes=1"])], multirun=False)
    at_root = replace(point, config=replace(point.config, run=replace(point.config.run, root=str(fitted.parent))))
    with pytest.raises(ConfigError) as raised:
        plan_points([point], CalibrationWords(str(fitted)))
    assert told in str(raised.value)
    ((_, plan),) = plan_points([at_root])
    notes = [text for text in plan.assumptions if text.startswith("calibration: left out")]
    assert notes == ([] if words[0] == "hardware=cpu" else [notes[0]])
    assert all(told in note for note in notes)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--calibrate"], "name run folders"),
        (["--calibrate", "nosuch"], "nosuch: no such folder"),
        (["--calibrate", "on-cpu"], "no run can be used"),
        (["--calibrate", "run-0", "model=1.3b", "--json"], "--json: past runs are read as they are"),
        (["--calibrate", "run-0", "-o", "nosuch/file.json"], "-o nosuch/file.json: cannot be written: No such file"),
        (["--calibrate", "run-0", "-o", "run-0/plan.json"], "-o run-0/plan.json: is there and is no calibration"),
        (
            [*COMMON, "--calibration", "none.json"],
            "--calibration none.json: no such file; plan --calibrate RUNS -o FILE",
        ),
        (
            [*COMMON, "--calibration", "a", "--no-calibration"],
            "--calibration a: and --no-calibration exclude each other",
        ),
        ([*COMMON, "+calibration=x"], "calibration"),
    ],
)
def test_mistakes_are_one_message(runs: Path, words: list[str], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    before = RunPaths(runs / "run-0").plan.read_text()
    with pytest.raises(ConfigError) as raised:
        run(["plan", *words])
    assert told in str(raised.value)
    assert raised.value.exit_code == 2
    assert RunPaths(runs / "run-0").plan.read_text() == before


def test_runs_of_several_folders_need_a_name_for_the_file(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (point,) = compose_points([*COMMON, "training.num_steps=12", "nodes=1"], multirun=False)
    make_calibration_run(tmp_path / "other" / "run", point.config, {"compute": 1.5, "communication": 1.5})
    words = ["plan", "--calibrate", str(runs / "run-0"), str(tmp_path / "other")]
    with pytest.raises(ConfigError, match=r"the runs are in several folders .* name the file with -o FILE"):
        run(words)
    assert run([*words, "-o", str(tmp_path / "ours.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[-1] == f"calibration {tmp_path}/ours.json; plan and submit use it with --calibration {tmp_path}/ours.json"
    )
    assert any(line.startswith("seen: 1 node; 1.32 B parameters") for line in lines)


def test_reading_it_loads_nothing_heavy(fitted: Path) -> None:
    heavy = ("torch", "deepspeed", "pandas", "matplotlib", "numpy", "pydantic")
    words = ["plan", *COMMON, "nodes=4", f"run.root={fitted.parent}"]
    program = (
        f"import sys; from hpctrain.cli import run; run({words!r});"
        f"sys.exit(' '.join(name for name in {heavy} if name in sys.modules) or 0)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "calibrated, x 1.2" in answer.stdout
