"""How ranks meet, and what they say if they do not."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.plan.layout import Layout
from hpctrain.record.schema import NodeRecord
from hpctrain.worker import rendezvous
from hpctrain.worker.end_reasons import (
    LostRankError,
    RankEnvironmentError,
    StoppedBySignalError,
    WorldSizeError,
    end_reason_of,
)
from hpctrain.worker.master_address import check_address
from hpctrain.worker.rank_env import RankEnv
from hpctrain.worker.rendezvous import meet
from hpctrain.worker.stop_signal import StopSignal
from hpctrain.worker.world import World, check_world


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.fixture
def first() -> RankEnv:
    """Rank 0 of three."""
    return RankEnv(
        rank=0,
        world_size=3,
        local_rank=0,
        local_world_size=3,
        node_rank=0,
        num_nodes=1,
        node_name="n1",
        master_addr="127.0.0.1",
        master_addr_source="here",
        master_port=free_port(),
        master_port_source="there",
        attempt=1,
        job_id="1",
    )


def test_all_arrive_in_any_order(first: RankEnv, tmp_path: Path) -> None:
    others = [replace(first, rank=rank) for rank in (2, 1)]
    arrived: list[int] = []

    def arrive(rank_env: RankEnv) -> None:
        meet(rank_env, 20, tmp_path / "none", StopSignal())
        arrived.append(rank_env.rank)

    threads = [threading.Thread(target=arrive, args=(rank_env,)) for rank_env in others]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    store = meet(first, 20, tmp_path / "none", StopSignal())
    for thread in threads:
        thread.join()
    assert sorted(arrived) == [1, 2]
    assert store.get("arrived/2") == b"n1"


def test_missing_ranks_are_named_by_rank_0(first: RankEnv, tmp_path: Path) -> None:
    reasons: list[str] = []

    def arrive() -> None:
        try:
            meet(replace(first, rank=1), 20, tmp_path / "none", StopSignal())
        except Exception as error:
            reasons.append(end_reason_of(error))

    second = threading.Thread(target=arrive)
    second.start()
    text = "training.start_timeout_min=0.025: 1 of 3 ranks did not arrive: 2; see"
    with pytest.raises(RankEnvironmentError, match=re.escape(text)):
        meet(first, 1.5, tmp_path / "none", StopSignal())
    second.join()
    assert reasons == ["killed"]


def test_rank_0_cannot_be_reached(first: RankEnv, tmp_path: Path) -> None:
    text = rf"rank 1 on node n1 cannot reach rank 0 at 127.0.0.1:{first.master_port} \("
    with pytest.raises(RankEnvironmentError, match=text):
        meet(replace(first, rank=1), 0.3 - rendezvous._GRACE_S, tmp_path / "none", StopSignal())


def test_the_port_is_taken(first: RankEnv, tmp_path: Path) -> None:
    with socket.create_server(("", first.master_port)):
        text = (
            rf"MASTER_PORT={first.master_port} \(from there\): rank 0 cannot listen on it on node n1 .*env.MASTER_PORT"
        )
        with pytest.raises(RankEnvironmentError, match=text):
            meet(first, 5, tmp_path / "none", StopSignal())


@pytest.mark.parametrize("name", ["no-such-host.invalid", "x" * 100])
def test_an_address_that_nobody_knows(first: RankEnv, name: str) -> None:
    with pytest.raises(RankEnvironmentError, match=rf"MASTER_ADDR={name} \(from here\): node n1 cannot resolve it"):
        check_address(replace(first, master_addr=name))


@pytest.mark.parametrize("rank", [0, 1])
def test_nobody_waits_for_a_rank_that_has_failed(first: RankEnv, rank: int, tmp_path: Path) -> None:
    failure = tmp_path / "1.failure.json"
    failure.write_text(json.dumps({}))
    with pytest.raises(LostRankError, match=r"another rank failed during the start, see .*1.failure.json"):
        meet(replace(first, rank=rank), 20, failure, StopSignal())


def test_a_signal_ends_the_waiting(first: RankEnv, tmp_path: Path) -> None:
    stop = StopSignal()
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2), signal.getsignal(signal.SIGTERM)
    stop.install()
    try:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(StoppedBySignalError, match="stopped by SIGTERM before the first step"):
            meet(first, 20, tmp_path / "none", stop)
    finally:
        for number, handler in zip((signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


def test_the_world_is_held_against_the_plan() -> None:
    nodes = (NodeRecord("n1", (0, 1), 4), NodeRecord("n2", (2, 3), 4))
    check_world(World(4, nodes), Layout(num_nodes=2, gpus_per_node=2))
    with pytest.raises(WorldSizeError, match="world size: 4 ranks met, the plan has 2 nodes x 4 = 8"):
        check_world(World(4, nodes), Layout(num_nodes=2, gpus_per_node=4))
    with pytest.raises(WorldSizeError, match=r"nodes: the 4 ranks run on 2 nodes \(n1, n2\), the plan has 1"):
        check_world(World(4, nodes), Layout(num_nodes=1, gpus_per_node=4))
