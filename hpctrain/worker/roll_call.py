"""Rank 0 of a launch check: counts the ranks that come, node by node, and measures them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

from hpctrain.worker.end_reasons import LostRankError, RankEnvironmentError
from hpctrain.worker.master_address import listen
from hpctrain.worker.meeting import Meeting
from hpctrain.worker.rank_env import STEP_NODELIST, RankEnv
from hpctrain.worker.wire import Inbox, Peer

NUM_BARRIERS = 5
_NUM_CLOCK_LOOKS = 3
_ANSWER_TIMEOUT_S = 60.0
_LOOK_AT_FAILURE_S = 2.0
_NUM_NAMED = 20


@dataclass
class Seat:
    """One node as far as it has come."""

    name: str
    node_rank: int
    facts: dict[str, Any]
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What each rank of the node said of itself."""
    clock_ahead_s: float = 0.0
    clock_error_s: float = 0.0
    barriers_s: list[float] = field(default_factory=list)


class RollCall:
    """The meeting as rank 0 leads it."""

    def __init__(self, meeting: Meeting) -> None:
        """Begins to listen.

        Raises:
            RankEnvironmentError: the port is taken.
        """
        self._meeting = meeting
        self._env = meeting.env
        self._inbox = Inbox(listen(meeting.env))
        self._speakers: dict[Peer, Seat] = {}
        self._looked_at = time.monotonic()
        self.seats: dict[int, Seat] = {}
        """By node rank."""

    def gather(self, own: dict[str, Any], facts: dict[str, Any]) -> None:
        """Returns when all ranks have come.

        Raises:
            RankEnvironmentError: some did not in time, with their numbers and nodes, or two are the same rank.
            LostRankError: another rank failed or went away meanwhile.
            StoppedBySignalError: this rank was told to stop meanwhile.
        """
        seat = self._seat(self._env.node_name, self._env.node_rank, facts)
        seat.ranks[self._env.rank] = own
        while self._num_arrived() < self._env.world_size:
            self._hear(self._meeting.deadline)
            if self._meeting.is_late and self._num_arrived() < self._env.world_size:
                raise RankEnvironmentError(self._missing_text())

    def measure(self) -> list[float]:
        """Clocks of all nodes, and seconds of each barrier.

        Raises:
            LostRankError: a node does not answer.
        """
        for peer, seat in self._speakers.items():
            looks = [self._look_at_clock(peer, seat) for _ in range(_NUM_CLOCK_LOOKS)]
            if seat.node_rank != self._env.node_rank:
                seat.clock_error_s, seat.clock_ahead_s = min(looks)
        return [self._barrier(number + 1) for number in range(NUM_BARRIERS)]

    def dismiss(self) -> None:
        """Lets all ranks go."""
        for peer in self._speakers:
            peer.send(do="leave")

    def _hear(self, until: float) -> list[tuple[Peer, dict[str, Any]]]:
        """Takes in arrivals; returns the other messages of known nodes."""
        answers = []
        for peer, message in self._inbox.wait(until):
            if peer in self._speakers and "arrived" in message:
                self._arrive(self._speakers[peer], message["arrived"])
            elif peer in self._speakers:
                answers.append((peer, message))
            elif message.get("run") == self._meeting.token:
                self._speakers[peer] = self._seat(message["node"], message["node_rank"], message["facts"])
            else:
                peer.lost = True  # a stranger at the port
        self._check_going_on()
        return answers

    def _seat(self, name: str, node_rank: int, facts: dict[str, Any]) -> Seat:
        seat = self.seats.setdefault(node_rank, Seat(name, node_rank, facts))
        if seat.name != name:
            raise RankEnvironmentError(f"nodes {seat.name} and {name} both say that they are node {node_rank}")
        return seat

    def _arrive(self, seat: Seat, arrived: list[dict[str, Any]]) -> None:
        for rank in arrived:
            for other in self.seats.values():
                if rank["rank"] in other.ranks:
                    raise RankEnvironmentError(
                        f"rank {rank['rank']} came twice: from node {other.name} and from node {seat.name}"
                    )
            seat.ranks[rank["rank"]] = rank

    def _num_arrived(self) -> int:
        return sum(len(seat.ranks) for seat in self.seats.values())

    def _check_going_on(self) -> None:
        self._meeting.stop.check_before_first_step()
        for peer in [peer for peer in self._inbox.peers if peer.lost]:
            if peer not in self._speakers:
                self._inbox.drop(peer)
                continue
            self._meeting.check_failure()
            raise LostRankError(
                f"node {self._speakers[peer].name} went away during the launch check; see its ranks' logs"
            )
        if time.monotonic() - self._looked_at > _LOOK_AT_FAILURE_S:
            self._looked_at = time.monotonic()
            self._meeting.check_failure()

    def _look_at_clock(self, peer: Peer, seat: Seat) -> tuple[float, float]:
        """Half of the round trip, and how far the node's clock is ahead."""
        asked_at, asked = time.time(), time.monotonic()
        peer.send(do="clock")
        (answer,) = self._answers("clock", {peer: seat}).values()
        half_s = (time.monotonic() - asked) / 2
        return half_s, answer["clock"] - (asked_at + half_s)

    def _barrier(self, number: int) -> float:
        began = time.monotonic()
        for peer in self._speakers:
            peer.send(do="barrier", barrier=number)
        for peer, answer in self._answers("ready", self._speakers).items():
            self._speakers[peer].barriers_s.append(answer["barrier_s"])
        return time.monotonic() - began

    def _answers(self, kind: str, awaited: dict[Peer, Seat]) -> dict[Peer, dict[str, Any]]:
        found: dict[Peer, dict[str, Any]] = {}
        until = time.monotonic() + _ANSWER_TIMEOUT_S
        while len(found) < len(awaited):
            found |= {peer: message for peer, message in self._hear(until) if kind in message}
            if time.monotonic() > until and len(found) < len(awaited):
                silent = ", ".join(seat.name for peer, seat in awaited.items() if peer not in found)
                raise LostRankError(f"no answer within {_ANSWER_TIMEOUT_S:g} s from: {silent}")
        return found

    def _missing_text(self) -> str:
        env = self._env
        here = {rank for seat in self.seats.values() for rank in seat.ranks}
        missing = [rank for rank in range(env.world_size) if rank not in here]
        return (
            f"training.start_timeout_min: {len(missing)} of {env.world_size} ranks did not arrive: {_named(missing)};"
            f" {_short_nodes(env, self.seats)}; see their logs, or allow more time"
        )


def _short_nodes(env: RankEnv, seats: dict[int, Seat]) -> str:
    """The nodes of which not all ranks came; those that nobody spoke for by their place in the job's list."""
    short = [
        f"{seat.name} ({len(seat.ranks)} of {env.local_world_size} came)"
        for _, seat in sorted(seats.items())
        if len(seat.ranks) < env.local_world_size
    ]
    silent = [node_rank for node_rank in range(env.num_nodes) if node_rank not in seats]
    names = {node_rank: _node_name(node_rank) for node_rank in silent}
    short += [f"{names[node_rank]} (none came)" for node_rank in silent]
    return f"nodes with ranks missing: {_named(short)}"


def _node_name(node_rank: int) -> str:
    """By the step's list of nodes, which is in the order of their numbers."""
    from hpctrain.worker.nodelist import expand_nodelist

    if STEP_NODELIST not in os.environ:
        return f"node number {node_rank}"
    return expand_nodelist(os.environ[STEP_NODELIST])[node_rank]


def _named(items: list[Any]) -> str:
    return ", ".join(map(str, items[:_NUM_NAMED])) + (f", ... {len(items)} in all" if len(items) > _NUM_NAMED else "")
