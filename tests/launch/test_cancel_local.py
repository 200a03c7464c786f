"""What ends a local run leaves to the ranks' guards what is theirs: files of killed ranks."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import psutil
import pytest

from hpctrain.launch.status import local_run
from hpctrain.plan.job.own_variables import GUARD_MODULE


def test_guards_clean_up_after_ranks_that_had_to_be_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_run, "_CANCEL_GRACE_S", 1.0)
    ready, removed = tmp_path / "ready", tmp_path / "removed"
    # The rank holds one end of a pipe, its guard waits for the other; SIGTERM is nothing to either.
    guard = f"sh -c 'touch {ready}; cat > /dev/null; sleep 0.3; touch {removed}' {GUARD_MODULE}"
    with subprocess.Popen(["/bin/sh", "-c", f"trap '' TERM; sleep 600 | {guard}"]) as controller:
        while not ready.exists():
            time.sleep(0.02)
        local_run._end_processes(psutil.Process(controller.pid), is_script=False)
    assert removed.exists()
