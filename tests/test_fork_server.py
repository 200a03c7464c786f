"""Forked processes: as true ones, but for their imports."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.fork_server import ForkedProcess, ForkServer, fork_server

LIGHT = ("decimal",)
HERE = fork_server(LIGHT).environment


def start(command: str, log: Path, *arguments: str, **variables: str) -> ForkedProcess:
    with log.open("wb") as stream:
        return fork_server(LIGHT).start(command, arguments, HERE | variables, stream, folder=log.parent)


def test_a_forked_process_has_its_own_environment_folder_arguments_and_output(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = """
import os, sys
print("decimal" in sys.modules, sys.argv[1:], os.environ["RANK"], os.getcwd(), os.getpid(), __name__)
print(len(os.environ), file=sys.stderr)
os.system("echo $RANK")
"""
    process = start(command, log, "a b", "$x", RANK="3")
    assert process.wait(10) == process.poll() == 0
    first = f"True ['a b', '$x'] 3 {tmp_path} {process.pid} __main__"
    assert sorted(log.read_text().splitlines()) == sorted([first, str(len(HERE) + 1), "3"])
    assert "RANK" not in os.environ


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("import os; os._exit(7)", 7, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(True)", 1, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("import os; os.abort()", -signal.SIGABRT, ""),
        ("def f(:", 1, "SyntaxError"),
    ],
    ids=["exit", "sys.exit", "no code", "true", "exception", "abort", "syntax"],
)
def test_the_exit_code_is_that_of_the_process(command: str, code: int, words: str, tmp_path: Path) -> None:
    assert start(command, tmp_path / "log").wait(10) == code
    assert words in (tmp_path / "log").read_text()


def test_signals_arrive_and_time_passes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = (
        "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: print('told', flush=True)); print(flush=True)"
    )
    process = start(command + "\nwhile True: time.sleep(0.01)", log)
    while not log.read_text():
        time.sleep(0.01)
    process.send_signal(signal.SIGUSR1)
    while "told" not in log.read_text():
        time.sleep(0.01)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(10) == -signal.SIGKILL
    process.send_signal(signal.SIGTERM)


def test_output_through_a_pipe_ends_with_the_process(tmp_path: Path) -> None:
    command = "import os; print('out', os.getppid()); os.write(2, b'errors')"
    with (tmp_path / "errors").open("wb") as errors:
        process = fork_server(LIGHT).start(command, (), HERE, subprocess.PIPE, errors)
    assert process.stdout is not None
    with process.stdout as stream:
        assert stream.read() == f"out {fork_server(LIGHT).pid}\n"
    assert (process.wait(10), (tmp_path / "errors").read_text()) == (0, "errors")


def test_a_variable_that_an_import_may_have_read_needs_a_true_process(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\['TORCH_LOGS'\]: may be read at the import of torch; start a true process"):
        start("", tmp_path / "log", TORCH_LOGS="+all")
    with pytest.raises(ValueError, match=r"\['MALLOC_PERTURB_'\]"):
        start("", tmp_path / "log", MALLOC_PERTURB_="1")
    assert start("", tmp_path / "log", OMP_NUM_THREADS="2", ANY="thing").wait(10) == 0


def test_a_server_that_cannot_import_starts_nothing(tmp_path: Path) -> None:
    broken = ForkServer(("no_such_module",), {})
    with (tmp_path / "log").open("wb") as log, pytest.raises((AssertionError, OSError)):
        broken.start("", (), broken.environment, log)
    broken.close()


def test_nothing_is_left_when_the_asking_process_ends(tmp_path: Path) -> None:
    server = ForkServer(LIGHT, {})
    with (tmp_path / "log").open("wb") as log:
        process = server.start("print('over')", (), server.environment, log)
    process.wait(10)
    server.close()
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
