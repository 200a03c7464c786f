"""Sweeps against a fake sbatch: grouped, stopped, killed, continued; never a point twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli import run
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.launch.point_labels import point_labels
from tests.launch.fake_slurm import FakeSlurm
from tests.launch.fake_slurm import slurm as slurm  # the fixture

WORDS = ("-m", "model=tiny", "cluster=sandbox", "launch.submit_retry_s=5")


def manifest_of(slurm: FakeSlurm) -> dict[str, Any]:
    (path,) = slurm.root.glob("*/sweep.json")
    manifest = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(manifest, dict)
    return manifest


def states(slurm: FakeSlurm) -> list[str]:
    return [point["state"] for point in manifest_of(slurm)["points"]]


def runs_of(slurm: FakeSlurm) -> dict[str, tuple[int, int]]:
    """Nodes and seed of every run that has a job, by its job."""
    found = {}
    for path in slurm.root.glob("*/run-*/submission.json"):
        overrides = json.loads((path.parent / "overrides.json").read_text(encoding="utf-8"))
        values = dict(word.lstrip("+").split("=") for word in overrides)
        job = json.loads(path.read_text(encoding="utf-8"))["job_id"]
        assert job not in found
        found[job] = (int(values["nodes"]), int(values.get("training.seed", 0)))
    return found


def test_points_of_equal_shape_share_an_array_and_a_point_alone_is_a_job(slurm: FakeSlurm) -> None:
    assert run([*WORDS, "nodes=1", "training.seed=1,2,3", f"run.root={slurm.root}", "launch.max_running=2"]) == 0
    assert run([*WORDS, "nodes=1,2,4", f"run.root={slurm.root}"]) == 0
    assert slurm.num_calls == 4
    array, *single = [Path(script) for script in slurm.scripts]
    text = array.read_text(encoding="utf-8")
    assert "#SBATCH --array=0-2%2\n" in text
    assert f"--output={array.parents[1]}/run-0-%4a/logs/batch.log" in text
    assert [script.name for script in single] == ["submission.sh"] * 3
    assert all("--array" not in script.read_text(encoding="utf-8") for script in single)
    assert runs_of(slurm) == {
        **{f"101_{task}": (1, task + 1) for task in range(3)},
        **{str(102 + place): (nodes, 0) for place, nodes in enumerate((1, 2, 4))},
    }


def test_one_allocation_has_all_points_one_after_another(slurm: FakeSlurm) -> None:
    words = [*WORDS, "nodes=2,1,4", "training.seed=1,2", "launch.sweep=one_allocation", f"run.root={slurm.root}"]
    assert run(words) == 0
    (script,) = [Path(path) for path in slurm.scripts]
    text = script.read_text(encoding="utf-8")
    assert "#SBATCH --nodes=4\n" in text
    ran = [line.split() for line in text.splitlines() if line.startswith("run_point ")]
    assert [words[1:3] for words in ran] == [["2", "4"], ["2", "4"], ["1", "2"], ["1", "2"], ["4", "8"], ["4", "8"]]
    folders = [Path(words[3]) for words in ran]
    assert [folder.name for folder in folders] == [f"run-0-{task:04d}" for task in range(6)]
    for folder, nodes in zip(folders, (2, 2, 1, 1, 4, 4), strict=True):
        assert f"#SBATCH --nodes={nodes}\n" in (folder / "submission.sh").read_text(encoding="utf-8")
        assert json.loads((folder / "submission.json").read_text(encoding="utf-8"))["job_id"] == "101"


def test_one_allocation_wants_points_that_ask_for_the_same_but_nodes(slurm: FakeSlurm) -> None:
    with pytest.raises(ConfigError, match=r"launch\.sweep=one_allocation: its points may differ in nodes"):
        run([*WORDS, "cluster.time='5','6'", "launch.sweep=one_allocation", f"run.root={slurm.root}"])


def test_what_reaches_the_job_by_its_environment_alone_has_a_job_of_its_own(slurm: FakeSlurm) -> None:
    words = ["env.MY_TOKEN=secret1,secret2,secret1", "nodes=1", f"run.root={slurm.root}"]
    assert run([*WORDS, *words]) == 0
    assert [group["num_points"] for group in manifest_of(slurm)["groups"]] == [2, 1]
    assert "secret1" not in "".join(
        path.read_text(encoding="utf-8")
        for path in slurm.root.rglob("*")
        if path.is_file() and ".code" not in str(path)
    )


MODEL_CASE = ("-m", "model=175b", "parallelism=zero3", "nodes=16,32,64,128", "training.micro_batch_size=4,8,16")


def test_points_that_do_not_fit_are_left_out_and_the_others_submitted(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*MODEL_CASE, f"run.root={slurm.root}"]) == 3
    told = capsys.readouterr()
    rows = [line.split() for line in told.out.splitlines() if line.startswith("nodes=")]
    assert [row[2] for row in rows] == ["submitted"] * 8 + ["does"] * 4
    assert all("training.micro_batch_size=16 does not fit" in " ".join(row) for row in rows[8:])
    assert "8 of 12 points submitted, as 4 jobs" in told.out
    assert slurm.num_calls == 4
    assert len(manifest_of(slurm)["left_out"]) == 4
    # The file system here has no room for checkpoints of 175B, which the preset would make.
    assert "warning: checkpoints will fail, which costs them and not the run" in told.err


def test_a_sweep_of_which_nothing_fits_is_refused(slurm: FakeSlurm) -> None:
    with pytest.raises(ConfigError, match="2 of 2 points are wrong; nothing was submitted") as caught:
        run(["-m", "model=2t", "nodes=1,2", f"run.root={slurm.root}"])
    assert caught.value.exit_code == 3
    assert slurm.num_calls == 0


def test_a_sweep_with_bad_points_submits_nothing_and_shows_all(slurm: FakeSlurm) -> None:
    words = [*WORDS, "hardware.gpus_per_node=1", "training.micro_batch_size=1", "training.global_batch_size=8"]
    with pytest.raises(ConfigError, match="2 of 4 points are wrong; nothing was submitted") as caught:
        run([*words, "nodes=1,3,2,5", f"run.root={slurm.root}"])
    rows = {line.split()[0]: line.split()[1] for line in str(caught.value).splitlines() if line.startswith("nodes=")}
    assert rows == {"nodes=1": "valid", "nodes=3": "wrong", "nodes=2": "valid", "nodes=5": "wrong"}
    assert caught.value.exit_code == 2
    assert slurm.num_calls == 0
    assert not slurm.root.exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run.root={root}/a,{root}/b"], "share one folder"),
        (["run.root={root}", "cluster=local"], "cluster=local: a sweep needs Slurm"),
        (["run.root={root}", "launch.sweep_name=a/b"], "launch.sweep_name=a/b: names a folder in run.root"),
        (["run.root={root}", "launch.sweep_name=.."], "launch.sweep_name=..: names a folder"),
        (["run.root={root}", "launch.mode=here"], "launch.mode=here"),
        (["run.root={root}", "cluster.wait=true"], "never waited for"),
        (["run.root={root}", "launch.chain=dependency"], "launch.chain=dependency: each link of an array"),
    ],
    ids=["roots", "local", "slash", "dots", "here", "wait", "chain"],
)
def test_what_is_no_sweep_is_refused(slurm: FakeSlurm, words: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        run([*WORDS, *(word.format(root=slurm.root) for word in words)])
    assert not slurm.root.exists()


def test_a_limit_half_way_keeps_what_was_reached_and_is_continued(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, "nodes=1,2,3,4,5", f"run.root={slurm.root}"]
    slurm.act("ok", "ok", "ok", "limit")
    assert run(words) == 4
    out, err = capsys.readouterr()
    assert states(slurm) == ["submitted"] * 3 + ["refused", "not reached"]
    assert "QOSMaxSubmitJobPerUserLimit" in err
    assert "3 of 5 points submitted, as 3 jobs" in out
    (line,) = [line for line in err.splitlines() if "to submit the rest: " in line]
    again = line.partition("python -m hpctrain ")[2].split()
    slurm.act("ok")
    assert run(again) == 0
    assert states(slurm) == ["submitted"] * 5
    assert slurm.num_calls == 2
    assert Counter(runs_of(slurm).values()) == {(nodes, 0): 1 for nodes in range(1, 6)}
    # Once more: there is nothing to do.
    assert run(again) == 0
    assert slurm.num_calls == 2


def test_with_a_waiting_time_a_limit_is_waited_for(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    slurm.act("ok", "limit", "ok")
    assert run([*WORDS, "nodes=1,2,3", f"run.root={slurm.root}", "launch.submit_wait_min=0.02"]) == 0
    assert states(slurm) == ["submitted"] * 3
    assert "Slurm takes no more jobs now" in capsys.readouterr().err


def test_a_first_point_that_slurm_refuses_leaves_nothing(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    slurm.act("refused")
    assert run([*WORDS, "nodes=1,2", f"run.root={slurm.root}"]) == 4
    assert not [path for path in slurm.root.iterdir() if path.name != ".code"]
    assert "nothing was submitted" in capsys.readouterr().err


def test_a_sweep_grows_and_does_not_change(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    name = ["launch.sweep_name=scaling", f"run.root={slurm.root}"]
    assert run([*WORDS, "nodes=1,2", *name]) == 0
    assert "2 of 2 points submitted, as 2 jobs\n" in capsys.readouterr().out
    assert run([*WORDS, "nodes=1,2,4", *name]) == 0
    assert "3 of 3 points submitted, as 3 jobs; 1 newly submitted\n" in capsys.readouterr().out
    assert run([*WORDS, "nodes=1,2,4", *name]) == 0
    assert "3 of 3 points have jobs already; nothing new was submitted\n" in capsys.readouterr().out
    assert sorted(runs_of(slurm).values()) == [(1, 0), (2, 0), (4, 0)]
    with pytest.raises(ConfigError, match=r"3 of its 3 points are not in this command"):
        run([*WORDS, "nodes=1,2,4", "training.num_steps=7", *name])
    with pytest.raises(ConfigError, match=r"1 of its 3 points are not in this command.*nodes=4"):
        run([*WORDS, "nodes=1,2", *name])
    assert slurm.num_calls == 3


def test_a_folder_that_is_no_sweep_is_left_alone(slurm: FakeSlurm) -> None:
    (slurm.root / "mine").mkdir(parents=True)
    (slurm.root / "mine" / "notes.txt").touch()
    with pytest.raises(LaunchError, match=r"is no sweep of hpctrain \(it holds notes.txt\)"):
        run([*WORDS, "nodes=1,2", "launch.sweep_name=mine", f"run.root={slurm.root}"])
    assert [path.name for path in (slurm.root / "mine").iterdir()] == ["notes.txt"]


def test_a_damaged_manifest_is_told(slurm: FakeSlurm) -> None:
    words = [*WORDS, "nodes=1,2", "launch.sweep_name=mine", f"run.root={slurm.root}"]
    assert run(words) == 0
    manifest = slurm.root / "mine" / "sweep.json"
    manifest.write_text(manifest.read_text(encoding="utf-8")[:-200], encoding="utf-8")
    with pytest.raises(LaunchError, match=r"manifest cannot be read: .*sweep\.json"):
        run(words)
    assert slurm.num_calls == 2


@pytest.mark.parametrize("what", ["groups", "points"])
def test_a_manifest_that_contradicts_itself_is_told_and_nothing_submitted_twice(slurm: FakeSlurm, what: str) -> None:
    words = [*WORDS, "nodes=1,2", "launch.sweep_name=mine", f"run.root={slurm.root}"]
    assert run(words) == 0
    path = slurm.root / "mine" / "sweep.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(manifest | {what: manifest[what][:1]}), encoding="utf-8")
    with pytest.raises(LaunchError, match="manifest contradicts itself"):
        run(words)
    assert slurm.num_calls == 2


def test_a_file_of_the_sweeps_name_is_told(slurm: FakeSlurm) -> None:
    slurm.root.mkdir()
    (slurm.root / "mine").touch()
    with pytest.raises(LaunchError, match="mine: is there and is no folder"):
        run([*WORDS, "nodes=1,2", "launch.sweep_name=mine", f"run.root={slurm.root}"])


def test_a_lost_answer_stops_the_sweep_and_the_next_call_finds_the_job(slurm: FakeSlurm) -> None:
    words = [*WORDS, "nodes=1,2,3", "launch.sweep_name=mine", f"run.root={slurm.root}"]
    slurm.act("ok", "taken-then-lost", "ok")
    jobs = slurm.root.parent / "slurm" / "jobs"
    slurm.program("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    assert run([*words, "launch.submit_retry_s=1"]) == 4
    assert states(slurm) == ["submitted", "unclear", "not reached"]
    assert run([*words, "launch.submit_retry_s=1"]) == 4
    assert (states(slurm), slurm.num_calls) == (["submitted", "unclear", "not reached"], 2)
    slurm.program("squeue", f"cat {jobs}")
    assert run(words) == 0
    assert runs_of(slurm) == {"101": (1, 0), "102": (2, 0), "103": (3, 0)}


def start(slurm: FakeSlurm, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hpctrain", *WORDS, *words, f"run.root={slurm.root}", "launch.sweep_name=s"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_calls(slurm: FakeSlurm, count: int) -> None:
    deadline = time.monotonic() + 60
    while slurm.num_calls < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("delay_s", [0.0, 0.5, 1.1], ids=["sbatch-began", "in-sbatch", "sbatch-ended"])
def test_a_sweep_whose_process_group_is_killed_goes_on_without_a_point_twice(slurm: FakeSlurm, delay_s: float) -> None:
    slurm.act("slow")
    slurm.program("squeue", "exit 1")  # what sbatch printed is enough
    words = ("nodes=1,2,3,4,5",)
    process = start(slurm, *words)
    wait_for_calls(slurm, 2)
    time.sleep(delay_s)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    again = start(slurm, *words)
    _, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert states(slurm) == ["submitted"] * 5
    assert Counter(Path(script).parent.name for script in slurm.scripts) == {f"run-{k}-0000": 1 for k in range(5)}
    assert Counter(runs_of(slurm).values()) == {(nodes, 0): 1 for nodes in range(1, 6)}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)], ids=["int", "term"])
def test_a_signal_ends_a_sweep_between_two_submissions(slurm: FakeSlurm, number: int, code: int) -> None:
    slurm.act("ok", "held", "ok")
    process = start(slurm, "nodes=1,2,3")
    wait_for_calls(slurm, 2)
    process.send_signal(number)
    slurm.let_go()
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert states(slurm) == ["submitted", "submitted", "not reached"]
    assert "2 of 3 points submitted" in out
    assert "to submit the rest: python -m hpctrain -m" in err
    assert run([*WORDS, "nodes=1,2,3", f"run.root={slurm.root}", "launch.sweep_name=s"]) == 0
    assert sorted(runs_of(slurm).values()) == [(1, 0), (2, 0), (3, 0)]


@pytest.fixture
def small_disk(slurm: FakeSlurm) -> Iterator[Path]:
    """The runs' folder as a file system of its own."""
    slurm.root.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", slurm.root], capture_output=True, check=False
    )
    if mount.returncode != 0:
        pytest.skip("nothing can be mounted here")
    yield slurm.root
    subprocess.run(["umount", slurm.root], check=True)


def test_a_disk_that_fills_up_during_a_sweep_costs_no_job(
    slurm: FakeSlurm, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, "nodes=1,2,3,4", f"run.root={slurm.root}", "launch.sweep_name=s"]
    slurm.act("ok", "fill")
    assert run(words) == 4
    assert "No space left on device" in capsys.readouterr().err
    assert slurm.num_calls == 2
    (small_disk / "filler").unlink()
    slurm.act("ok")
    assert run(words) == 0
    assert slurm.num_calls == 2
    assert Counter(runs_of(slurm).values()) == {(nodes, 0): 1 for nodes in range(1, 5)}


def test_two_calls_on_one_sweep_do_not_submit_side_by_side(slurm: FakeSlurm) -> None:
    slurm.act("held")
    process = start(slurm, "nodes=1,2")
    wait_for_calls(slurm, 1)
    with pytest.raises(LaunchError, match="another hpctrain is submitting this sweep"):
        run([*WORDS, "nodes=1,2", f"run.root={slurm.root}", "launch.sweep_name=s"])
    slurm.let_go()
    process.communicate(timeout=60)
    assert states(slurm) == ["submitted"] * 2


def test_a_sweep_folder_is_flat_with_short_names(slurm: FakeSlurm, tmp_path: Path) -> None:
    (tmp_path / "deep" / ("c" * 200)).mkdir(parents=True)
    texts = (tmp_path / "deep" / "a.txt", tmp_path / "deep" / ("c" * 200) / "b.txt")
    for text in texts:
        text.write_text("text", encoding="utf-8")
    words = [*WORDS, "data=text", f"data.path={','.join(map(str, texts))}", "run.name='a/b [1]'"]
    assert run([*words, f"run.root={slurm.root}"]) == 0
    found = list(slurm.root.glob("sweep-*/*/config.yaml"))
    assert len(found) == 2
    assert all(len(path.parent.name) < 100 for path in found)


def test_json_has_every_point(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*WORDS, "nodes=1,2", "training.seed=1,2", f"run.root={slurm.root}", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [point["job_id"] for point in told["points"]] == ["101_0", "101_1", "102_0", "102_1"]
    assert all(Path(point["path"], "submission.json").is_file() for point in told["points"])


def test_labels_leave_out_what_all_points_share() -> None:
    assert point_labels([("a=1", "++b.c=2"), ("a=1", "++b.c=3")]) == ["b.c=2", "b.c=3"]
    assert point_labels([("a=1",)]) == ["a=1"]
    assert point_labels([("a=1",), ("a=1",)]) == ["-", "-"]


def test_a_sweep_tells_each_note_once_and_for_how_many_points_it_holds(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, "parallelism=zero3", "nodes=1,2", "training.global_batch_size=8", f"run.root={slurm.root}"]
    assert run([*words, "training.micro_batch_size=null,1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    notes = [line for line in lines if line.startswith("note")]
    assert lines[: len(notes)] == notes == list(dict.fromkeys(notes))
    assert "note: not stated: training=pretrain, data=stdlib" in notes
    assert any(line.startswith("note (2 of 4 points): training.micro_batch_size not stated") for line in notes) or (
        sum(line.startswith("note (1 of 4 points): training.micro_batch_size not stated") for line in notes) == 2
    )
    assert run([*words, "training.micro_batch_size=null,1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trouble"] == ""
