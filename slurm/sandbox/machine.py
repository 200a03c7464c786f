"""What a sandbox takes from the machine: a folder under a lock, free ports, lines of the hosts file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from cluster_files import fallback_root
from processes import EXIT_REFUSED, SandboxError

HOSTS_FILE = Path("/etc/hosts")
LOCK_NAME = ".hpctrain-sandbox.lock"
# sun_path of an AF_UNIX address holds 108 bytes with the final zero; slurmstepd's sockets are the longest:
# SlurmdSpoolDir/NODE_JOB.STEP, with a job of 26 bits and a step of 32.
MAX_SOCKET_BYTES = 107
STEP_SUFFIX = "_67108863.4294967295"
# Below Linux' default range of ephemeral ports, so that no client's socket takes a daemon's port.
PORTS = range(10000, 15000)


@contextlib.contextmanager
def locked(sandbox_dir: Path) -> Iterator[None]:
    """Hold the folder against other calls; the kernel releases it when this process is killed."""
    path = sandbox_dir / LOCK_NAME
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            current = path.exists() and os.path.samestat(path.stat(), os.fstat(stream.fileno()))
        except BlockingIOError:
            current = False
        if not current:
            raise SandboxError(
                f"--dir={sandbox_dir}: another sandbox.py is working on it; wait for it to end", EXIT_REFUSED
            )
        yield


def choose_root(sandbox_dir: Path, node: str) -> Path:
    """The folder itself if Slurm can work in it, else one in /tmp.

    Sockets need a short path; slurm.conf gives blanks, '%', '#', ',' and brackets a meaning.
    """
    longest = f"{sandbox_dir}/spool/{node}/{node}{STEP_SUFFIX}"
    if len(longest) <= MAX_SOCKET_BYTES and re.fullmatch(r"[\w./+@-]+", str(sandbox_dir), re.ASCII):
        return sandbox_dir
    return fallback_root(sandbox_dir)


@contextlib.contextmanager
def reserved_ports(count: int) -> Iterator[int]:
    """Hold a block of free ports and yield the first.

    The sockets are bound without SO_REUSEADDR, so that no two sandboxes hold the same port, and get it
    afterwards: the daemons, which set it as well, can bind while the port is still held.
    """
    with contextlib.ExitStack() as stack:
        for first in random.sample(PORTS[: len(PORTS) - count], 200):
            sockets = []
            try:
                for port in range(first, first + count):
                    sockets.append(stack.enter_context(socket.socket()))
                    sockets[-1].bind(("", port))
            except OSError:
                stack.close()
                continue
            for held in sockets:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            yield first
            return
        raise SandboxError(f"no {count} free ports in a row in {PORTS.start}-{PORTS.stop}, 200 places tried")


def hosts_tag(sandbox_dir: Path) -> str:
    """The comment that marks each of a sandbox's lines in the hosts file."""
    return f" # hpctrain sandbox {sandbox_dir}"


def rewrite_hosts(sandbox_dir: Path, names: list[str]) -> None:
    """Replace the sandbox's lines in the hosts file, in place: it may be a mount, which can't be renamed."""
    with HOSTS_FILE.open("r+b", buffering=0) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        tag = hosts_tag(sandbox_dir).encode()
        lines = [line for line in stream.read().splitlines() if not line.endswith(tag)]
        lines += [f"127.0.0.1 {name}".encode() + tag for name in names]
        text = b"\n".join(lines) + b"\n"
        stream.seek(0)
        stream.write(text)
        stream.truncate(len(text))


def add_hosts(sandbox_dir: Path, names: list[str]) -> None:
    """Make the node names resolve.

    Raises:
        SandboxError: They don't, and the hosts file may not be written.
    """
    if os.access(HOSTS_FILE, os.W_OK):
        rewrite_hosts(sandbox_dir, names)
        return
    try:
        unresolved = [name for name in names if socket.gethostbyname(name) != "127.0.0.1"]
    except socket.gaierror:
        unresolved = names
    if unresolved:
        raise SandboxError(
            f"{HOSTS_FILE} is not writable and the node names don't resolve to 127.0.0.1: run as root,"
            f" or once: printf '127.0.0.1 %s\\n' {' '.join(names)} | sudo tee -a {HOSTS_FILE}",
            EXIT_REFUSED,
        )


def remove_hosts(sandbox_dir: Path) -> None:
    """Remove the sandbox's lines from the hosts file, if there are any."""
    tag = hosts_tag(sandbox_dir)
    if any(line.endswith(tag) for line in HOSTS_FILE.read_text(errors="replace").splitlines()):
        rewrite_hosts(sandbox_dir, [])
