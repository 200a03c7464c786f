"""The process that hands rank 0's records to trackers: started before the first step, told how the attempt ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpctrain.plan.job.own_variables import RANK_PROCESS_VARIABLE
from hpctrain.record.schema import TRACKERS_END_S
from hpctrain.worker.end_reasons import StoppedBySignalError
from hpctrain.worker.rank_guard import RankGuard
from hpctrain.worker.rank_start import Rank


@contextlib.contextmanager
def trackers(rank: Rank, first_step: int, guard: RankGuard) -> Iterator[None]:
    """A context in which the trackers of ``track`` follow the run; on ranks other than 0, and without any, nothing.

    Whatever becomes of the process, the training does not see it: it reads the run folder, and no pipe is written to before
    the end.

    Args:
        rank: this one.
        first_step: of this attempt.
        guard: waits for the process before it ends what this rank leaves behind.
    """
    if rank.env.rank != 0 or not rank.config.track.names:
        yield
        return
    process = _start(rank, first_step)
    ending = "failed"
    # Also where the watchdog or a deadline ends this process from another thread.
    guard.wait_at_end(process, TRACKERS_END_S[ending])
    try:
        yield
        ending = "completed"
    except StoppedBySignalError:
        ending = "stopped"
        raise
    finally:
        _tell_if_ended(process, rank.config.track.names)
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.write(f"{ending}\n".encode())
            process.stdin.close()
        guard.wait_at_end(process, TRACKERS_END_S[ending])


def _tell_if_ended(process: subprocess.Popen[bytes], names: Sequence[str]) -> None:
    """Before it is told the end, the process ends by an error that it has printed, or is killed, of which it can say nothing."""
    code = process.poll()
    if code is not None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        print(
            f"hpctrain: warning: the process of track.{', track.'.join(names)} {how}; what they lack is in steps.jsonl",
            flush=True,
        )


def _start(rank: Rank, first_step: int) -> subprocess.Popen[bytes]:
    sizes = (_size(rank.paths.steps), _size(rank.paths.validations))
    numbers = map(str, (rank.env.attempt, first_step, *sizes))
    source = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH", ""))))
    # No tracker needs a GPU, and none shall find one.
    environment = os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "CUDA_VISIBLE_DEVICES": ""}
    # The guard of a killed rank ends at once what has this mark; trackers take the last records first, and end by themselves.
    environment.pop(RANK_PROCESS_VARIABLE, None)
    command = [sys.executable, "-m", "hpctrain.track", str(rank.paths.root), *numbers]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
