"""The telemetry's thread in one process; real runs with it are in test_training.py and tests/slurm."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import psutil
import pytest
import torch
import torch.distributed as dist

from hpctrain.config.build import build_config
from hpctrain.errors import HpctrainError
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import NodeSample
from hpctrain.record.writer import SampleWriter
from hpctrain.worker import telemetry as module
from hpctrain.worker.rank_env import local_rank_env
from hpctrain.worker.step_log import StepLog
from hpctrain.worker.telemetry import RankProcess, Telemetry, node_telemetry, own_process
from tests.worker.run_folder import SOURCE, make_config, rank_environment, read_samples

CPU = torch.device("cpu")
INTERVAL_S = 0.1
ENV = local_rank_env(rank_environment(0, 1, "7"), {}, "a run", "node/1")
SAMPLE = NodeSample(1, 1, 0.5, 0, 1, 2, 3)


def process_of(pid: int, local_rank: int = 1, pid_namespace: str | None = None) -> RankProcess:
    own = own_process(ENV, CPU)
    return dataclasses.replace(own, local_rank=local_rank, pid=pid, pid_namespace=pid_namespace or own.pid_namespace)


def make_telemetry(path: Path, *others: RankProcess) -> Telemetry:
    own = own_process(ENV, CPU)
    return Telemetry(SampleWriter(path), 2, own, (own, *others), INTERVAL_S)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "nodes" / "n.jsonl"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds 200 MB."""
    command = "import sys; held = bytes(range(250)) * 800_000; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_samples_at_the_start_in_between_and_at_the_end(path: Path, child: subprocess.Popen[bytes]) -> None:
    log = StepLog(None, attempt=2, device=CPU)
    telemetry = make_telemetry(path, process_of(child.pid))
    started_at_s = time.time()
    telemetry.start()
    wait_until(lambda: num_lines(path) >= 2)
    telemetry.follow(log)
    log.last_step = 7
    child.kill()
    child.wait()
    own_bytes = psutil.Process().memory_info().rss
    telemetry.stop()
    ended_at_s = time.time()

    samples = read_samples(path)
    first, last = samples[0], samples[-1]
    assert (first.attempt, first.step, last.step) == (2, 0, 7)
    assert started_at_s <= first.time_s < started_at_s + 10
    times = [sample.time_s for sample in samples]
    assert times == sorted(times)
    # Not sooner; later on a busy machine.
    assert 0.9 * INTERVAL_S < times[1] - times[0] < 10
    assert last.time_s <= ended_at_s
    assert last.host_total_bytes <= psutil.virtual_memory().total
    assert 0 < last.host_used_bytes < last.host_total_bytes
    assert last.gpus == ()
    # The child has ended before the last sample, and its 200 MB with it.
    assert last.ranks_rss_bytes == pytest.approx(own_bytes, rel=0.05)
    assert 200_000_000 < first.ranks_rss_bytes - last.ranks_rss_bytes < 300_000_000


def test_a_process_of_another_pid_namespace_is_told_and_not_counted(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its pid would be another process here, as this one."""
    telemetry = make_telemetry(path, process_of(os.getpid(), local_rank=3, pid_namespace="pid:[1]"))
    telemetry.start()
    telemetry.stop()
    own_bytes = psutil.Process().memory_info().rss
    assert read_samples(path)[0].ranks_rss_bytes == pytest.approx(own_bytes, rel=0.05)
    assert capsys.readouterr().out == (
        "hpctrain: telemetry of node node/1 counts no resident size of local ranks 3: they run in other pid namespaces\n"
    )


def test_a_removed_folder_ends_the_telemetry_with_one_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    telemetry = make_telemetry(path)
    telemetry.start()
    wait_until(lambda: num_lines(path) >= 1)
    shutil.rmtree(path.parent)
    wait_until(lambda: not telemetry._thread.is_alive())
    telemetry.stop()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("hpctrain: telemetry of node node/1 has ended: FileNotFoundError: [Errno 2]")
    assert str(path) in line
    assert line.endswith("; training goes on")
    assert not path.parent.exists()


def test_a_full_device_ends_the_telemetry_with_one_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.parent.mkdir()
    path.symlink_to("/dev/full")
    telemetry = make_telemetry(path)
    telemetry.start()
    wait_until(lambda: not telemetry._thread.is_alive())
    telemetry.stop()
    (line,) = capsys.readouterr().out.splitlines()
    assert "has ended: OSError: [Errno 28] No space left on device; training goes on" in line


def test_a_line_that_fits_only_in_part(tmp_path: Path) -> None:
    """A limit on the size of files cuts a write as a full disk does."""
    command = f"""
import resource, sys
from pathlib import Path
from hpctrain.record.schema import NodeSample
from hpctrain.record.writer import SampleWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (250, 250))
writer = SampleWriter(Path(sys.argv[1]))
writer.open()
while True:
    writer.append({SAMPLE})
"""
    path = tmp_path / "n.jsonl"
    answer = subprocess.run(
        [sys.executable, "-c", command, str(path)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    line = len(json.dumps(dataclasses.asdict(SAMPLE))) + 1
    assert path.stat().st_size == 250
    assert f"OSError: {path}: {250 - line} of {line} bytes written, the device is full" in answer.stderr


def test_an_attempt_after_an_unfinished_line_starts_a_new_one(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"whole": 1}\n{"cut":')
    for _ in range(2):
        writer = SampleWriter(path)
        writer.open()
        writer.append(SAMPLE)
    whole, cut, *samples = path.read_text().splitlines()
    assert (whole, cut) == ('{"whole": 1}', '{"cut":')
    assert [json.loads(line)["time_s"] for line in samples] == [0.5, 0.5]


def test_a_file_system_that_hangs_does_not_keep_the_run(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STOP_TIMEOUT_S", 0.3)
    telemetry = make_telemetry(path)
    telemetry.start()
    wait_until(lambda: num_lines(path) >= 1)
    fifo = path.with_name("fifo")
    os.mkfifo(fifo)
    fifo.replace(path)  # who opens it to write waits for a reader
    time.sleep(2 * INTERVAL_S)
    telemetry.stop()
    assert "has not stopped within 0.3 s, the last sample may be missing" in capsys.readouterr().out
    with path.open("rb") as stream:
        assert stream.readline().startswith(b'{"schema_version": 1')
        telemetry._thread.join()


def test_the_rank_that_watches(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        other = dataclasses.replace(ENV, local_rank=1, local_world_size=2)
        for env, interval_s in ((ENV, None), (other, INTERVAL_S)):
            with node_telemetry(RunPaths(tmp_path), env, CPU, interval_s) as telemetry:
                assert telemetry is None
        assert list(tmp_path.iterdir()) == []
        with (
            pytest.raises(ZeroDivisionError),
            node_telemetry(RunPaths(tmp_path), ENV, CPU, INTERVAL_S) as telemetry,
        ):
            assert telemetry is not None
            raise ZeroDivisionError
    finally:
        dist.destroy_process_group()
    (found,) = (tmp_path / "nodes").iterdir()
    assert unquote(found.stem) == ENV.node_name
    assert len(read_samples(found)) == 2
    assert "hpctrain-telemetry" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("value", [0.05, 0, 86401, "5"], ids=str)
def test_intervals_that_are_refused(value: object) -> None:
    raw = dataclasses.asdict(make_config())
    raw["training"]["telemetry_interval_s"] = value
    with pytest.raises(HpctrainError, match=f"training.telemetry_interval_s='?{value}"):
        build_config(raw)


def test_the_interval_is_five_seconds_unless_told() -> None:
    assert make_config().training.telemetry_interval_s == 5.0
    assert make_config(telemetry_interval_s=None).training.telemetry_interval_s is None
