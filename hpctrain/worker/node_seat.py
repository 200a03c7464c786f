"""How a rank other than 0 takes part in a launch check: the ranks of a node speak to rank 0 through one of them.

The first rank that comes speaks for its node: it takes a name that only one process of the node can have. So rank 0 hears one
connection a node, and the ranks of a node find each other without waiting for a certain one of them.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

from hpctrain.worker.end_reasons import EXIT_CODES, LostRankError, RankEnvironmentError
from hpctrain.worker.meeting import Meeting
from hpctrain.worker.rank_env import RankEnv
from hpctrain.worker.wire import Inbox, Peer

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_CONNECT_TIMEOUT_S = 5.0
_GRACE_S = 10.0
"""The rank that speaks for the node gives up first: it knows whom it could not reach."""


def take_part(meeting: Meeting, own: dict[str, Any], node_facts: Callable[[], dict[str, Any]]) -> None:
    """Arrives, takes part in every barrier, and returns when rank 0 lets all go.

    Args:
        meeting: whom to meet.
        own: what this rank says of itself.
        node_facts: asked if this rank speaks for its node.

    Raises:
        RankEnvironmentError: rank 0 cannot be reached, or a stranger has the node's name.
        LostRankError: another rank went away.
        StoppedBySignalError: this rank was told to stop.
        SystemExit: the same, where this rank does not speak for its node.
    """
    name = _meeting_point(meeting)
    while True:
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(name)
        except OSError:
            listener.close()
        else:
            listener.listen(socket.SOMAXCONN)
            _Speaker(meeting, Inbox(listener)).serve(own, node_facts())
            return
        speaker = socket.socket(socket.AF_UNIX)
        try:
            speaker.connect(name)
        except OSError:
            # It has the name and does not listen yet.
            speaker.close()
            meeting.stop.check_before_first_step()
            if meeting.is_late:
                raise RankEnvironmentError(
                    f"the rank that speaks for node {meeting.env.node_name} does not answer"
                ) from None
            time.sleep(_FIRST_PAUSE_S)
            continue
        _check_same_user(speaker, meeting.env.node_name)
        _listen_to_speaker(Peer(speaker), own, meeting)
        return


def _meeting_point(meeting: Meeting) -> str:
    """A name of the abstract kind: it has no file, and goes when its process does. It may be 107 bytes long.

    With the port it is one job's own on this machine, as the port is.
    """
    env = meeting.env
    start = f"{zlib.crc32(meeting.token.encode()):08x}-{env.master_port}"
    return f"\0hpctrain-{start}-{env.attempt}-{env.node_rank}-{env.node_name}"[:107]


def _check_same_user(connection: socket.socket, node_name: str) -> None:
    """Raises RankEnvironmentError if the process at the other end is another user's."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    if uid != os.getuid():
        raise RankEnvironmentError(f"node {node_name}: a process of user {uid} has taken this job's meeting point")


def _listen_to_speaker(speaker: Peer, own: dict[str, Any], meeting: Meeting) -> None:
    inbox = Inbox(None)
    inbox.add(speaker)
    speaker.send(**own)
    deadline = meeting.deadline + _GRACE_S
    while True:
        for _, message in inbox.wait(deadline):
            if message["do"] == "leave":
                return
            speaker.send(ready=message["barrier"])
        if meeting.stop.received:
            # Rank 0 and those that speak for their nodes record it; a thousand at once would be too many.
            print(f"hpctrain: stopped by {meeting.stop.name}; see the log of rank 0", flush=True)
            raise SystemExit(EXIT_CODES["signal"])
        if speaker.lost:
            raise LostRankError("the rank that speaks for this node went away during the launch check")
        if time.monotonic() > deadline:
            raise LostRankError("rank 0 did not let this rank go in time (training.start_timeout_min); see its log")


class _Speaker:
    """The rank that speaks for its node."""

    def __init__(self, meeting: Meeting, inbox: Inbox) -> None:
        self._meeting = meeting
        self._env = meeting.env
        self._inbox = inbox
        self._seated: list[Peer] = []
        """The other ranks of the node."""
        self._root: Peer | None = None
        self._arrivals: list[dict[str, Any]] = []
        """Not yet told to rank 0."""
        self._barrier = 0
        self._barrier_began = 0.0
        self._num_awaited = 0

    def serve(self, own: dict[str, Any], facts: dict[str, Any]) -> None:
        self._arrivals.append(own)
        self._root = root = self._connect()
        root.send(run=self._meeting.token, node=self._env.node_name, node_rank=self._env.node_rank, facts=facts)
        self._inbox.add(root)
        while True:
            if self._arrivals:
                root.send(arrived=self._arrivals)
                self._arrivals = []
            for peer, message in self._inbox.wait(self._meeting.deadline):
                if peer is not root:
                    self._hear_rank(peer, message)
                elif not self._obey(message):
                    return
            self._check_going_on()

    def _hear_rank(self, peer: Peer, message: dict[str, Any]) -> None:
        if "rank" in message:
            peer.facts = message
            self._seated.append(peer)
            self._arrivals.append(message)
        elif message.get("ready") == self._barrier:
            self._num_awaited -= 1
            self._answer_barrier()

    def _obey(self, message: dict[str, Any]) -> bool:
        """Does what rank 0 says; False: it lets all go."""
        assert self._root is not None
        if message["do"] == "clock":
            self._root.send(clock=time.time())
        elif message["do"] == "barrier":
            self._barrier, self._barrier_began = message["barrier"], time.monotonic()
            self._num_awaited = len(self._seated)
            for peer in self._seated:
                peer.send(do="barrier", barrier=self._barrier)
            self._answer_barrier()
        else:
            for peer in self._seated:
                peer.send(do="leave")
            return False
        return True

    def _answer_barrier(self) -> None:
        assert self._root is not None
        if self._num_awaited == 0:
            self._root.send(ready=self._barrier, barrier_s=time.monotonic() - self._barrier_began)

    def _check_going_on(self) -> None:
        self._meeting.stop.check_before_first_step()
        for peer in self._inbox.peers:
            if peer.lost and peer.facts:
                raise LostRankError(f"rank {peer.facts['rank']} of this node went away during the launch check")
        if self._root is not None and self._root.lost:
            raise LostRankError("rank 0 went away during the launch check; see its log")
        if self._meeting.is_late:
            raise LostRankError("rank 0 did not let this rank go in time (training.start_timeout_min); see its log")

    def _connect(self) -> Peer:
        """The connection to rank 0, tried until it listens; meanwhile the node's ranks arrive."""
        env, pause_s = self._env, _FIRST_PAUSE_S
        while True:
            try:
                address = (env.master_addr, env.master_port)
                connection = _connected(address)
            except OSError as error:
                for peer, message in self._inbox.wait(min(self._meeting.deadline, time.monotonic() + pause_s)):
                    self._hear_rank(peer, message)
                self._meeting.stop.check_before_first_step()
                self._meeting.check_failure()
                if isinstance(error, socket.gaierror) or self._meeting.is_late:
                    raise RankEnvironmentError(_unreachable(env, error)) from error
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return Peer(connection)


def _connected(address: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S)
    if connection.getsockname() == connection.getpeername():
        # Linux lets a socket meet itself where nobody listens at a port that it hands out for outgoing connections.
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    return connection


def _unreachable(env: RankEnv, error: OSError) -> str:
    place = f"rank {env.rank} on node {env.node_name}"
    source = f"MASTER_ADDR={env.master_addr} (from {env.master_addr_source})"
    if isinstance(error, socket.gaierror):
        return f"{source}: {place} cannot resolve it ({error}); set env.MASTER_ADDR to an address that all nodes know"
    return (
        f"{place} cannot reach rank 0 at {env.master_addr}:{env.master_port} ({error}) after training.start_timeout_min;"
        " is the port open between the nodes, and did rank 0 start?"
    )
