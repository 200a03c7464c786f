"""Logs: bytes as text, the end of huge files, labels, attempts, and following till the run ends."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain.cli import run as run_command
from hpctrain.errors import ConfigError
from hpctrain.launch.logs.show import LogRequest, show_logs
from hpctrain.launch.logs.text import LogPrinter, tail_offset
from hpctrain.record.log_sizes import log_sizes, note_log_sizes
from hpctrain.record.paths import RunPaths
from tests.analysis.make_runs import Attempt
from tests.launch.status_runs import FakeSlurm, start_attempt, submitted_run
from tests.launch.test_jobs import FAILED
from tests.launch.test_jobs import slurm as slurm  # the fixture


def log(run: RunPaths, name: str, content: str | bytes) -> Path:
    run.logs.mkdir(exist_ok=True)
    path = run.logs / name
    with path.open("ab") as stream:
        stream.write(content.encode() if isinstance(content, str) else content)
    return path


def shown(run: RunPaths, *words: str) -> str:
    out = io.StringIO()
    options = dict(zip(words[::2], words[1::2], strict=True))
    attempt = options.get("attempt")
    request = LogRequest.parse(
        options.get("rank"), int(attempt) if attempt else None, False, options.get("tail"), options.get("grep")
    )
    show_logs(run, request, out)
    return out.getvalue()


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    done = submitted_run(tmp_path / "run", "7", [Attempt([1.0] * 10)])
    log(done, "batch.log", "from the script\n")
    for rank in range(12):
        log(done, f"rank-{rank}.log", f"I am {rank}\nloss {rank}.5\n")
    return done


def test_rank_0_by_default(run: RunPaths) -> None:
    assert shown(run) == "I am 0\nloss 0.5\n"


def test_one_rank_several_and_all(run: RunPaths) -> None:
    assert shown(run, "rank", "11") == "I am 11\nloss 11.5\n"
    assert shown(run, "rank", "batch") == "from the script\n"
    assert [line.split(":")[0] for line in shown(run, "rank", "2-4,3,batch", "tail", "1").splitlines()] == [
        "rank 2", "rank 3", "rank 4", "batch",
    ]  # fmt: skip
    assert shown(run, "rank", "3,1") == "rank 3: I am 3\nrank 3: loss 3.5\nrank 1: I am 1\nrank 1: loss 1.5\n"
    lines = shown(run, "rank", "all").splitlines()
    assert lines[0] == "batch: from the script"
    assert [line.split(":")[0] for line in lines[1::2]] == [f"rank {rank}" for rank in range(12)]


def test_tail_and_grep(run: RunPaths) -> None:
    assert shown(run, "tail", "1") == "loss 0.5\n"
    assert shown(run, "tail", "0") == ""
    assert shown(run, "rank", "all", "grep", r"loss 1\d?\.5") == "".join(
        f"rank {rank}: loss {rank}.5\n" for rank in (1, 10, 11)
    )


def test_of_a_failed_run_the_rank_that_failed_first(tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7", [FAILED])
    for rank in range(4):
        log(run, f"rank-{rank}.log", f"{rank}\n")
    assert shown(run) == "3\n"


def test_a_damaged_record_does_not_keep_the_logs(run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    run.attempt(1).write_text("{", encoding="utf-8")
    before = shown(run)
    assert before
    assert "1.json" in capsys.readouterr().err


def test_of_a_run_that_never_started_the_batch_log(tmp_path: Path) -> None:
    ended = {"state": "failed", "end_reason": "launch_failed", "exit_code": 127, "message": "cluster.setup"}
    run = submitted_run(tmp_path / "run", "7", [Attempt([], end=ended)])
    log(run, "batch.log", "module: command not found\n")
    assert shown(run) == "module: command not found\n"


def test_attempts_share_the_files_and_are_told_apart(tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7", [FAILED, FAILED, Attempt([1.0] * 10)])
    log(run, "rank-0.log", "first\n")
    note_log_sizes(run, 1)
    assert log_sizes(run, 1) == {}
    note_log_sizes(run, 2)
    log(run, "rank-0.log", "second\n")
    log(run, "rank-1.log", "second of 1\n")
    note_log_sizes(run, 3)
    log(run, "rank-0.log", "third\n")
    assert [shown(run, "attempt", number, "rank", "0") for number in "123"] == ["first\n", "second\n", "third\n"]
    assert shown(run, "attempt", "2", "rank", "1") == "second of 1\n"
    assert shown(run, "attempt", "1", "rank", "1") == ""
    assert shown(run, "tail", "all", "rank", "0") == "first\nsecond\nthird\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--rank", "99"], "no log of rank 99; there are those of ranks 0 to 11"),
        (["--rank", "x"], "--rank=x: must be a rank, several such as 0,3 or 0-7, batch, or all"),
        (["--rank", "-1"], "--rank=-1: must be a rank"),
        (["--attempt", "4"], "--attempt=4: this run has no such attempt; there are 1"),
        (["--tail", "-3"], "--tail=-3: must be a number of lines"),
        (["--grep", "("], "--grep=(: is no regular expression"),
    ],
)
def test_what_cannot_be_shown_is_told(run: RunPaths, words: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_command(["logs", str(run.root), *words])
    assert expected in str(caught.value)


def test_no_process_has_started(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7")
    with pytest.raises(ConfigError, match="no process has started yet; --follow waits for it"):
        run_command(["logs", str(run.root)])


def test_attempts_whose_bounds_nobody_noted(tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7", [FAILED, FAILED])
    log(run, "rank-0.log", "both\n")
    with pytest.raises(ConfigError, match="nobody noted where its output begins"):
        shown(run, "attempt", "2")


def test_local_runs(tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "4711", [Attempt([1.0] * 10)], cluster_kind="local", command=())
    log(run, "controller.log", "controller\n")
    run.submitit.mkdir(parents=True)
    for name, text in (("4711_0_log.out", "out 0\n"), ("4711_1_log.out", "out 1\n"), ("4710_0_log.out", "old\n")):
        (run.submitit / name).write_text(text, encoding="utf-8")
    assert shown(run) == "out 0\n"
    assert shown(run, "rank", "all") == "batch: controller\nrank 0: out 0\nrank 1: out 1\n"


def test_a_run_inside_an_allocation_has_the_logs_of_a_job(tmp_path: Path) -> None:
    command = ("bash", "submission.sh")
    run = submitted_run(tmp_path / "run", "4711", [Attempt([1.0] * 10)], cluster_kind="local", command=command)
    log(run, "batch.log", "script\n")
    log(run, "rank-0.log", "zero\n")
    assert shown(run, "rank", "all") == "batch: script\nrank 0: zero\n"


@pytest.mark.parametrize(
    ("content", "num_lines", "expected"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"", 2, b""),
        (b"\n\n\n", 2, b"\n\n"),
        (b"x" * 200_000 + b"\nlast\n", 2, b"x" * 200_000 + b"\nlast\n"),
        (b"first\n" + b"y" * 65_530 + b"\nlast\n", 1, b"last\n"),
    ],
)
def test_tail_offset(content: bytes, num_lines: int, expected: bytes) -> None:
    stream = io.BytesIO(content)
    assert content[tail_offset(stream, 0, len(content), num_lines) :] == expected


def test_the_end_of_a_huge_log_takes_no_time(run: RunPaths) -> None:
    path = run.logs / "rank-0.log"
    with path.open("r+b") as stream:
        stream.truncate(3 << 30)  # a file with a hole
        stream.seek(0, 2)
        stream.write(b"\nthe end\n")
    started = time.perf_counter()
    assert shown(run, "tail", "1") == "the end\n"
    assert len(shown(run, "tail", "5")) < (17 << 20)
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_characters_that_come_in_halves(size: int) -> None:
    content = "é€😀\n".encode() * 5 + b"\xe9 broken \xff\n"
    for label in ("", "rank 0: "):
        out = io.StringIO()
        printer = LogPrinter(out, label, None)
        for start in range(0, len(content), size):
            printer.feed(content[start : start + size])
        printer.finish()
        assert out.getvalue() == f"{label}é€😀\n" * 5 + f"{label}\ufffd broken \ufffd\n"


def test_a_line_without_end_is_printed_in_parts() -> None:
    out = io.StringIO()
    printer = LogPrinter(out, "rank 0: ", None)
    for _ in range(100):
        printer.feed("é".encode() * 1000)
    printer.finish()
    assert out.getvalue().count("é") == 100_000
    assert out.getvalue().startswith("rank 0: é")


def start_following(run: RunPaths, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "hpctrain", "logs", str(run.root), "--follow", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def later(*actions: Callable[[], object]) -> None:
    def act() -> None:
        for action in actions:
            time.sleep(0.7)
            action()

    threading.Thread(target=act, daemon=True).start()


def test_following_from_before_the_first_line_to_the_end_of_the_run(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7")
    slurm.queue((run, "7", "RUNNING"))
    half = "é".encode()
    following = start_following(run)
    later(
        lambda: log(run, "rank-0.log", "é".encode() * 100_000 + half[:1]),
        lambda: log(run, "rank-0.log", half[1:] + b"\xe9 and\nlast words"),
        lambda: start_attempt(run, 1, "7", state="completed", end_reason="completed", exit_code=0),
    )
    out, err = following.communicate(timeout=60)
    assert following.returncode == 0, err
    assert out.decode() == "é" * 100_001 + "\ufffd and\nlast words"


def test_following_all_ranks_takes_in_files_that_appear_later(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7")
    start_attempt(run, 1, "7")
    log(run, "rank-0.log", "zero\n")
    slurm.queue((run, "7", "RUNNING"))
    following = start_following(run, "--rank", "all", "--grep", "zero|one")
    assert following.stdout is not None
    assert following.stdout.readline() == b"rank 0: zero\n"
    log(run, "rank-1.log", "one\nnoise\n")
    assert following.stdout.readline() == b"rank 1: one\n"
    log(run, "rank-0.log", "zero again\n")
    assert following.stdout.readline() == b"rank 0: zero again\n"
    start_attempt(run, 1, "7", state="completed", end_reason="completed", exit_code=0)
    out, err = following.communicate(timeout=60)
    assert (following.returncode, out) == (0, b""), err
