"""Every kind of damage to a run folder: told, counted, and never the end of a report (case 108)."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hpctrain.analysis.frames import (
    load_frames,
)
from tests.analysis.make_runs import CPU_NODE, Attempt, make_run, sample, toy_config, write_samples
from tests.analysis.test_frames import load_one, only


@pytest.mark.parametrize("name", ["plan.json", "steps.jsonl", "attempts/1.json", "attempts/1.failure.json"])
def test_a_pipe_in_the_place_of_a_file(tmp_path: Path, name: str) -> None:
    """Nobody writes into it, so that opening it would wait for ever."""
    run = make_run(tmp_path / "run")
    (run.root / name).unlink(missing_ok=True)
    os.mkfifo(run.root / name)
    summary = load_one(tmp_path)
    assert not summary.valid
    assert str(run.root / name) in summary.reason
    assert "no regular file" in summary.reason


def test_links_in_a_circle_are_told(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    (tmp_path / "a.log").symlink_to("b.log")
    (tmp_path / "b.log").symlink_to("a.log")
    frames = load_frames([tmp_path])
    assert frames.runs["run"].tolist() == ["run"]
    assert frames.problems
    assert all("Too many levels of symbolic links" in problem for problem in frames.problems)


def test_names_of_logs_that_are_no_text(tmp_path: Path) -> None:
    log = Path(__file__).parents[1] / "data" / "logs" / "maxtext_three_generations_of_the_line.log"
    shutil.copy(log, tmp_path / os.fsdecode(b"caf\xe9.log"))
    (tmp_path / os.fsdecode(b"empty\xe9.log")).touch()
    frames = load_frames([tmp_path])
    names = frames.runs["run"].tolist()
    assert names
    assert all(name.startswith("caf\\xe9.log") for name in names)
    assert frames.problems[0].startswith(f"{tmp_path}/empty\\xe9.log: ")
    assert not frames.steps_of(frames.runs["folder"][0]).empty


def test_a_damaged_run_in_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / os.fsdecode(b"caf\xe9"))
    run.plan.write_text("[]")
    assert load_one(tmp_path).reason.startswith(f"{tmp_path}/caf\\xe9/plan.json: ")


def test_half_a_pair_in_a_plan_is_spelled_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.plan.write_text(run.plan.read_text().replace('"toy"', '"\\ud800"'))
    assert load_one(tmp_path).model == "\\ud800"


def test_steps_of_an_attempt_that_nobody_wrote_down(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", attempts=[Attempt([1.0] * 5), Attempt([1.0] * 5, 6)])
    run.attempt(1).unlink()
    summary = load_one(tmp_path)
    assert (summary.wall_tokens_per_s, summary.lost_time_share, summary.gpu_hours) == (None, None, None)
    assert summary.step_time_s == 1


# Prediction beside measurement.


def test_one_unreadable_plan_among_good_runs(tmp_path: Path) -> None:
    make_run(tmp_path / "good")
    for name, text in {"half": '{"schema_version": 1, "na', "empty": "", "old": '{"schema_version": 0}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text(text)
    (tmp_path / "folder" / "plan.json").mkdir(parents=True)
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes" / "plan.json").write_bytes(b'{"name": "\xe9"}')
    runs = load_frames([tmp_path]).runs.set_index("run")
    assert runs.index.tolist() == ["bytes", "empty", "folder", "good", "half", "old"]
    assert runs.loc["good", "valid"]
    damaged = runs.drop("good")
    assert set(damaged["state"]) == {"unreadable"}
    assert not damaged["valid"].any()
    assert all(f"{tmp_path}/{run}/plan.json" in reason for run, reason in damaged["reason"].items())
    assert "schema_version=0, this hpctrain reads 1" in str(runs.loc["old", "reason"])


def test_damaged_lines_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    """A bad byte, a half line inside, another schema, an empty and a very long line, and a last line still being written."""
    run = make_run(tmp_path / "run")
    lines = run.steps.read_bytes().splitlines()
    broken = [b'{"loss": "\xe9"}', lines[0][:30], b'{"schema_version": 2}', b"", b"x" * 5_000_000, b"[]"]
    run.steps.write_bytes(b"\n".join([*lines[:5], *broken, *lines[5:], lines[0][:50]]))
    summary = load_one(tmp_path)
    assert (summary.damaged_lines, summary.num_recorded_steps) == (6, 10)
    assert summary.step_time_s == 0.5
    assert summary.reason == (
        "6 of 16 lines of steps.jsonl are damaged, at most 5%; the first: line 6: 'utf-8' codec can't decode byte 0xe9 in"
        " position 10: invalid continuation byte"
    )


def test_one_damaged_line_in_twenty_does_not_spoil_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", attempts=[Attempt([1.0] * 19)])
    with run.steps.open("a") as stream:
        stream.write("half a li\n")
    summary = load_one(tmp_path)
    assert summary.valid, summary.reason
    assert summary.damaged_lines == 1


def test_a_run_whose_steps_have_another_schema(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.steps.write_text(run.steps.read_text().replace('"schema_version": 2', '"schema_version": 3'))
    assert load_one(tmp_path).reason == (
        "10 of 10 lines of steps.jsonl are damaged, at most 5%; the first: line 1: schema_version=3, this hpctrain reads 1 and 2;"
        " no steady step among 0 recorded"
    )


def test_empty_steps_file(tmp_path: Path) -> None:
    make_run(tmp_path / "run").steps.write_text("")
    assert load_one(tmp_path).reason == "no steady step among 0 recorded"


def test_steps_file_that_cannot_be_opened(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.steps.unlink()
    run.steps.mkdir()
    summary = load_one(tmp_path)
    assert not summary.valid
    assert summary.reason == f"{run.steps}: Is a directory; no steady step among 0 recorded"


@pytest.mark.parametrize(
    ("damaged", "state", "gpu_hours"), [(1, "completed", None), (2, "unreadable", None), (None, "completed", 66 / 900)]
)
def test_one_damaged_attempt_among_others(
    tmp_path: Path, damaged: int | None, state: str, gpu_hours: float | None
) -> None:
    """What the other says is kept; the cost is not known any more, and the state only if the last one is readable."""
    run = make_run(tmp_path / "run", attempts=[Attempt([6.0] * 6), Attempt([1.0] * 10, 1)])
    if damaged:
        run.attempt(damaged).write_text('{"schema_version": 1, "attempt": 1}')
    summary = load_one(tmp_path)
    assert (summary.state, summary.num_attempts) == (state, 1 if damaged else 2)
    assert summary.gpu_hours == (None if gpu_hours is None else pytest.approx((10 + 36 + 10 + 10) * 8 / 3600))
    assert (summary.lost_time_share is None) == (gpu_hours is None)
    if damaged:
        assert summary.reason.startswith(f"{run.attempt(damaged)}: job_id: Field required")


def test_an_attempt_of_another_schema(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.attempt(1).write_text(run.attempt(1).read_text().replace('"schema_version": 1', '"schema_version": 7'))
    assert load_one(tmp_path).reason.startswith(f"{run.attempt(1)}: schema_version=7, this hpctrain reads 1")


# Numbers out of range: they must not stop the reading of others.


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            '"exit_code": 0',
            '"exit_code": 9223372036854775808',
            "exit_code=9223372036854775808 is out of range (64 bits)",
        ),
        ('"started_at_s": 1000.0', '"started_at_s": NaN', "started_at_s=nan is no finite number"),
        ('"ended_at_s": 1017.0', '"ended_at_s": 1e999', "ended_at_s=inf is no finite number"),
    ],
    ids=["64 bits", "NaN", "infinite"],
)
def test_an_attempt_with_numbers_out_of_range(tmp_path: Path, old: str, new: str, reason: str) -> None:
    run = make_run(tmp_path / "run")
    text = run.attempt(1).read_text()
    assert old in text
    run.attempt(1).write_text(text.replace(old, new))
    summary = load_one(tmp_path)
    assert summary.reason.startswith(f"{run.attempt(1)}: {reason}")
    assert summary.step_time_s == 0.5


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (["num_parameters"], 10**30, "num_parameters=1000000000000000000000000000000 is out of range (64 bits)"),
        (["layout", "num_nodes"], 0, "layout.num_nodes=0 must be above 0"),
        (["layout", "gpus_per_node"], 2**62, "layout.world_size=9223372036854775808 is out of range (64 bits)"),
        (["batch", "seq_len"], -1, "batch.seq_len=-1 must be above 0"),
        (["memory", "ranks_per_node"], 0, "memory.ranks_per_node=0 must be above 0"),
        (["flops_per_step", "hardware_flops"], math.nan, "flops_per_step.hardware_flops=nan is no finite number"),
        (["peak_tflops_per_gpu"], 0, "peak_tflops_per_gpu=0.0 must be above 0"),
        (["num_steps"], 0, "num_steps=0 must be above 0"),
        (["achievable_tflops_per_gpu"], -1, "achievable_tflops_per_gpu=-1.0 must be above 0"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_a_plan_with_numbers_out_of_range(tmp_path: Path, keys: list[str], value: float, reason: str) -> None:
    make_run(tmp_path / "good")
    run = make_run(tmp_path / "bad")
    plan = json.loads(run.plan.read_text())
    *parents, key = keys
    place = plan
    for parent in parents:
        place = place[parent]
    place[key] = value
    run.plan.write_text(json.dumps(plan))
    runs = load_frames([tmp_path]).runs.set_index("run")
    assert runs["valid"].to_dict() == {"bad": False, "good": True}
    assert (runs["state"]["bad"], runs["reason"]["bad"]) == ("unreadable", f"{run.plan}: {reason}")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param(
            {"tokens": 2**63 - 1}, "1,024 tokens a step planned, 9,223,372,036,854,775,807 recorded", id="tokens"
        ),
        pytest.param({"step_time_s": 1.7e308}, "measured step_time_s=inf is no finite number", id="time"),
        pytest.param(
            {"time_s": 1.7e308},
            "attempt 1 has a step that ended 1.7e+308 s after its end: the time stamps contradict each other",
            id="time stamps",
        ),
        pytest.param({"loss": 1e308, "grad_norm": 1e308, "learning_rate": -1e308}, "", id="loss"),
        pytest.param({"peak_memory_bytes": 2**63 - 1}, "", id="memory"),
        pytest.param(
            {"step_time_s": 1e200},
            "attempt 1 has a step that began 1e+200 s before it started: the time stamps contradict each other",
            id="contradiction",
        ),
    ],
)
def test_steps_with_the_largest_numbers(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    run = make_run(tmp_path / "run")
    lines = [json.loads(line) | fields for line in run.steps.read_text().splitlines()]
    run.steps.write_text("".join(json.dumps(line) + "\n" for line in lines))
    frames = load_frames([tmp_path])
    summary = only(frames)
    assert summary.reason == reason
    json.dumps(asdict(summary), allow_nan=False)


def test_a_tiny_step_time_on_a_device_without_a_peak(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", toy_config(hardware=CPU_NODE))
    lines = [json.loads(line) | {"step_time_s": 5e-324} for line in run.steps.read_text().splitlines()]
    run.steps.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert load_one(tmp_path).reason == "measured tokens_per_s=inf is no finite number"


# No permission: a row or a line that says so, never an end of the reading.


@pytest.fixture
def without_rights() -> Iterator[Path]:
    """A folder that anybody may read, in a process that has no rights beyond those of nobody."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        is_root = os.geteuid() == 0
        yield root
        if is_root:
            os.seteuid(0)
        for path in root.rglob("*"):
            path.chmod(0o755)


def give_up_rights() -> None:
    if os.geteuid() == 0:
        os.seteuid(65534)


def test_files_and_folders_without_permission(without_rights: Path) -> None:
    root = without_rights
    runs = {name: make_run(root / name) for name in ("attempts", "closed", "good", "nodes", "plan", "steps")}
    write_samples(runs["nodes"], "n1", sample())
    for path in (
        runs["attempts"].attempts,
        runs["closed"].root,
        runs["nodes"].nodes,
        runs["plan"].plan,
        runs["steps"].steps,
    ):
        path.chmod(0)
    give_up_rights()
    frames = load_frames([root, root / "closed"])
    assert dict(zip(frames.runs["run"], frames.runs["reason"], strict=True)) == {
        "attempts": f"{runs['attempts'].attempts}: Permission denied; unreadable, 10 of 10 steps recorded",
        "good": "",
        "nodes": "",
        "plan": f"{runs['plan'].plan}: Permission denied",
        "steps": f"{runs['steps'].steps}: Permission denied; no steady step among 0 recorded",
    }
    assert frames.problems == (
        f"{root}/closed: Permission denied",
        f"{root}/closed: Permission denied",
        f"{root}/closed: no run here; a run folder holds plan.json, a log of another system ends in .log, .out, .err or .txt",
        f"{root}/nodes/nodes: Permission denied",
    )


def test_a_folder_inside_one_that_may_not_be_entered(without_rights: Path) -> None:
    make_run(without_rights / "closed" / "run")
    (without_rights / "closed").chmod(0)
    give_up_rights()
    assert load_frames([without_rights / "closed" / "run"]).problems == (
        f"{without_rights}/closed/run: Permission denied",
    )


def test_damaged_attempt_leaves_the_steps_readable(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.attempt(1).write_text("{")
    summary = load_one(tmp_path)
    assert not summary.valid
    assert summary.reason.startswith(f"{run.attempt(1)}: Expecting property name")
    assert (summary.num_recorded_steps, summary.step_time_s, summary.world_size) == (10, 0.5, None)
    assert summary.tokens_per_s_per_gpu is None
