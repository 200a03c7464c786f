"""A device that fills up during training and is freed again (case 85)."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpctrain.record.reader import StepsFile
from tests.worker.run_folder import SOURCE, failure_of, make_config, make_run, start_ranks

_ROOM_BYTES = 1500
SIGNAL = 16
# A limit on the size of files takes a part of a line and then refuses the rest, as a full device does.
APPEND = """
import resource, sys
from pathlib import Path
from hpctrain.record import writer
path = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (25, resource.RLIM_INFINITY))
writer._append_whole(path, b"0123456789\\n")
try:
    writer._append_whole(path, b"a" * 20 + b"\\n")
except OSError:
    print("refused", path.stat().st_size)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer._append_whole(path, b"again\\n")
"""


def test_a_line_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    command = [sys.executable, "-c", APPEND, str(path)]
    answer = subprocess.run(command, env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=True)
    assert answer.stdout == "refused 11\n"
    assert path.read_text() == "0123456789\nagain\n"


@pytest.mark.train
def test_training_goes_on_and_what_was_lost_is_told(tmp_path: Path) -> None:
    config = make_config(num_ranks=1, zero_stage=1, num_steps=100_000, log_interval=1, telemetry_interval_s=None)
    run = make_run(tmp_path, config)
    with start_ranks(run, num_ranks=1, forked=False) as ranks:
        ranks.wait_for_steps(4)
        started_s = time.monotonic()
        ranks.wait_for_steps(8)
        four_steps_s = time.monotonic() - started_s
        rank = ranks.processes[0]
        _, most = resource.prlimit(rank.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(rank.pid, resource.RLIMIT_FSIZE, (_ROOM_BYTES, most))
        time.sleep(max(2.0, 4 * four_steps_s))
        before = run.steps.read_bytes().count(b"\n")
        resource.prlimit(rank.pid, resource.RLIMIT_FSIZE, (most, most))
        ranks.wait_for_steps(before + 3)
        rank.send_signal(signal.SIGTERM)
        assert ranks.wait() == [SIGNAL], ranks.logs()
    steps = StepsFile(run.steps)
    written = [record.step for record in steps.new_records()]
    assert steps.damaged_lines == 0
    assert len(written) < written[-1]
    log = ranks.log()
    assert " step records lost so far" in log or "lines of this log were lost (File too large)" in log
    assert failure_of(run).end_reason == "signal"
