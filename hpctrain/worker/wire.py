"""Lines of JSON over stream sockets, waited for without blocking a signal: what the ranks of a launch check talk with.

Of the standard library alone and light to import: a thousand processes start with it.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

_LONGEST_LINE = 1 << 20
_POLL_S = 2.0


class Peer:
    """The other end of a connection; ``lost`` once it has closed or sent what is no line of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self.connection = connection
        self.lost = False
        self.facts: dict[str, Any] = {}
        """What its first message said."""
        self._rest = b""

    def send(self, **message: Any) -> None:
        """Sends a line; a peer that is gone becomes ``lost``."""
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.lost = True

    def receive(self) -> list[dict[str, Any]]:
        """What has arrived since the last call; call it when the selector says that there is something."""
        try:
            data = self.connection.recv(1 << 16)
        except OSError:
            data = b""
        *lines, self._rest = (self._rest + data).split(b"\n")
        messages = []
        try:
            messages = [json.loads(line) for line in lines]
        except ValueError:
            self.lost = True
        if not all(isinstance(message, dict) for message in messages) or len(self._rest) > _LONGEST_LINE or not data:
            self.lost = True
        return [message for message in messages if isinstance(message, dict)]


class Inbox:
    """The listening socket and all peers of one process; wakes up for messages, for signals, and every two seconds."""

    def __init__(self, listener: socket.socket | None) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self.peers: list[Peer] = []
        if listener is not None:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, None)
        woken, self._waker = socket.socketpair()
        for end in (woken, self._waker):
            end.setblocking(False)
        # Python's own handler runs only when a system call returns; the byte makes it return.
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._selector.register(woken, selectors.EVENT_READ, woken)

    def add(self, peer: Peer) -> None:
        self._selector.register(peer.connection, selectors.EVENT_READ, peer)
        self.peers.append(peer)

    def drop(self, peer: Peer) -> None:
        with contextlib.suppress(KeyError):  # a lost one is no longer waited for
            self._selector.unregister(peer.connection)
        self.peers.remove(peer)
        peer.connection.close()

    def wait(self, until: float) -> Iterator[tuple[Peer, dict[str, Any]]]:
        """New messages with their senders, after at most two seconds; takes in new peers.

        Args:
            until: ``time.monotonic()`` after which it returns at once.
        """
        timeout_s = max(0.0, min(_POLL_S, until - time.monotonic()))
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, Peer):
                for message in key.data.receive():
                    yield key.data, message
                if key.data.lost:
                    # Left in the list for the owner to find, but no longer waited for.
                    with contextlib.suppress(KeyError):
                        self._selector.unregister(key.data.connection)
            else:
                key.data.recv(1 << 10)

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            self.add(Peer(connection))
