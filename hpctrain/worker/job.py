"""What runs in every rank, from its first line to its exit code."""

from __future__ import annotations

import faulthandler
import os
import time
import traceback
from pathlib import Path
from typing import NoReturn

from hpctrain.record.paths import RunPaths
from hpctrain.worker.end_reasons import EXIT_CODES
from hpctrain.worker.rank_failure import record_failure
from hpctrain.worker.rank_guard import RankGuard, start_guard
from hpctrain.worker.rank_output import protect_output
from hpctrain.worker.rank_start import Rank, start_rank
from hpctrain.worker.stop_signal import StopSignal
from hpctrain.worker.watchdog import Leave


def run(run_dir: str) -> NoReturn:
    """Runs one rank of the run in ``run_dir`` and ends the process with the exit code of its end reason."""
    started_at_s = time.time()
    protect_output()
    guard = start_guard(run_dir)
    faulthandler.enable()
    stop = StopSignal()
    stop.install()
    paths = RunPaths(Path(run_dir))

    def leave(error: BaseException) -> NoReturn:
        _end(record_failure(paths, error, started_at_s), guard)

    try:
        rank = start_rank(paths, started_at_s, guard.remove_at_end)
        stop.leave_after(rank.config.cluster.signal_lead_s, leave)
        _run_payload(rank, stop, leave, guard)
    # Whatever ends a rank, KeyboardInterrupt included, leaves its reason.
    except BaseException as error:
        traceback.print_exc()
        leave(error)
    _end(EXIT_CODES["completed"], guard)


def _run_payload(rank: Rank, stop: StopSignal, leave: Leave, guard: RankGuard) -> None:
    """What ``training.payload`` names; its module is imported here, since torch reads the environment at its import."""
    if rank.plan.payload == "launch_check":
        # Mostly rank_entry goes there at once; here its node saw the run folder late.
        from hpctrain.worker.launch_check import run as check

        check(str(rank.paths.root))
    from hpctrain.worker.training import run_training

    run_training(rank, stop, leave, guard)


def _end(exit_code: int, guard: RankGuard) -> NoReturn:
    """Ends the process, what it started and what it leaves on the node, without finalizing Python.

    A gloo worker thread that drops the last reference of an asynchronous all-gather's tensor while the interpreter is
    finalizing aborts the process (about 1 run in 12), and a left-over thread would keep it for ever.
    """
    guard.finish()
    os._exit(exit_code)
