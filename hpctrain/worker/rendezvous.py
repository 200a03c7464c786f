"""How the ranks find each other: a meeting that names who is missing.

torch's own start waits silently, and its time-out names nobody; of a thousand ranks one wants to know which did not come.
"""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hpctrain.worker.end_reasons import LostRankError, RankEnvironmentError
from hpctrain.worker.master_address import listen
from hpctrain.worker.rank_env import RankEnv
from hpctrain.worker.stop_signal import StopSignal

_CONNECT_TIMEOUT_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_GRACE_S = 10.0
_NUM_NAMED = 20


def meet(rank_env: RankEnv, timeout_s: float, failure: Path, stop: StopSignal) -> TCPStore:
    """The store at which all ranks have arrived.

    Args:
        rank_env: who we are and where rank 0 listens.
        timeout_s: how long to wait for all.
        failure: where the first failing rank of this attempt leaves its record.
        stop: signals to this rank.

    Raises:
        RankEnvironmentError: the port is taken, or ranks are missing after ``timeout_s``.
        LostRankError: another rank has failed meanwhile.
        StoppedBySignalError: this rank was told to stop meanwhile.
    """
    # Rank 0 gives up first: it holds the store that says who is missing.
    deadline = time.monotonic() + timeout_s + (0.0 if rank_env.rank == 0 else _GRACE_S)
    if rank_env.rank == 0:
        listen(rank_env).close()  # torch would say less of a port that is taken
    else:
        _wait_for_listener(rank_env, deadline, failure, stop)
    store = TCPStore(
        rank_env.master_addr,
        rank_env.master_port,
        is_master=rank_env.rank == 0,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
    )
    store.set(_arrival_key(rank_env.rank), rank_env.node_name)
    num_arrived = store.add("num_arrived", 1)
    pause_s = _FIRST_PAUSE_S
    while num_arrived < rank_env.world_size:
        _check_going_on(failure, stop)
        if time.monotonic() > deadline:
            raise RankEnvironmentError(_missing_text(store, rank_env, timeout_s))
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        num_arrived = store.add("num_arrived", 0)
    return store


def _wait_for_listener(rank_env: RankEnv, deadline: float, failure: Path, stop: StopSignal) -> None:
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            address = (rank_env.master_addr, rank_env.master_port)
            socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S).close()
            return
        except OSError as error:
            _check_going_on(failure, stop)
            if time.monotonic() > deadline:
                raise RankEnvironmentError(
                    f"rank {rank_env.rank} on node {rank_env.node_name} cannot reach rank 0 at"
                    f" {rank_env.master_addr}:{rank_env.master_port} ({error}) after training.start_timeout_min; is the port"
                    " open between the nodes, and did rank 0 start?"
                ) from error
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _check_going_on(failure: Path, stop: StopSignal) -> None:
    stop.check_before_first_step()
    if failure.exists():
        raise LostRankError(f"another rank failed during the start, see {failure}")


def _missing_text(store: TCPStore, rank_env: RankEnv, timeout_s: float) -> str:
    missing = [rank for rank in range(rank_env.world_size) if not store.check([_arrival_key(rank)])]
    named = ", ".join(map(str, missing[:_NUM_NAMED])) + (", ..." if len(missing) > _NUM_NAMED else "")
    return (
        f"training.start_timeout_min={timeout_s / 60:g}: {len(missing)} of {rank_env.world_size} ranks did not arrive:"
        f" {named}; see their logs, or allow more time"
    )


def _arrival_key(rank: int) -> str:
    return f"arrived/{rank}"
