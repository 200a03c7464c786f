"""Start, find and end the processes of a sandbox.

All that is started carries the sandbox's folder in its environment and hands it on to its children. So all is
found in /proc, even after an `up` that was killed half-way, without any list of process ids.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cluster_files import Cluster, fallback_root

DIR_VARIABLE = "HPCTRAIN_SANDBOX_DIR"
ROLE_VARIABLE = "HPCTRAIN_SANDBOX_ROLE"
# Debian's package of each program that a sandbox starts or calls.
PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sinfo": "slurm-client",
    "scontrol": "slurm-client",
}
ACCOUNTING_PACKAGES = {
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "slurmdbd": "slurmdbd",
    "sacctmgr": "slurm-client",
}

# These write their title over their environment; the log they have open tells whose they are.
RETITLED = ("slurmstepd", "slurmscriptd")
# Clients of Slurm that wait for a job; without the sandbox they would wait for ever. Not salloc: its child is
# the user's shell.
WAITING_CLIENTS = ("srun", "sbatch", "sattach")

EXIT_REFUSED = 2
EXIT_FAILED = 3


class SandboxError(Exception):
    """A refusal or failure with a message for the user."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def progress(message: str) -> None:
    """Print for people: stdout belongs to the export line."""
    print(f"sandbox: {message}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Process:
    """A process of a sandbox.

    Attributes:
        role: ``munged``, ``slurmctld``, ..., ``slurmd:NODE`` (also of its slurmstepd), ``job:NODE``, or
            ``client``.
        command: Name of the program, at most 15 bytes.
    """

    pid: int
    role: str
    command: str

    @property
    def node(self) -> str:
        """The node it runs on, empty for what belongs to no node."""
        return self.role.partition(":")[2]


def search_path() -> str:
    """PATH with the folders of daemons, which Debian leaves out for normal users."""
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/local/sbin:/usr/sbin:/sbin"


def missing_programs(accounting: bool) -> dict[str, str]:
    """Programs that are not installed, with their Debian packages."""
    packages = PACKAGES | (ACCOUNTING_PACKAGES if accounting else {})
    return {name: packages[name] for name in packages if shutil.which(name, path=search_path()) is None}


def clean_environment(cluster: Cluster, role: str) -> dict[str, str]:
    """The environment of daemons and clients: the caller's may come from a job, or set SINFO_FORMAT."""
    return {
        DIR_VARIABLE: cluster.sandbox_dir,
        ROLE_VARIABLE: role,
        **{key: os.environ[key] for key in ("HOME", "TZ") if key in os.environ},
        "PATH": search_path(),
        "LC_ALL": "C.UTF-8",
        "USER": cluster.user,
        "SLURM_CONF": str(cluster.slurm_conf),
        # slurmdbd has no option for the socket of its database, but libmariadb reads this.
        "MYSQL_UNIX_PORT": str(cluster.database_socket),
    }


def run_client(cluster: Cluster, *command: str) -> str:
    """Run a program against the sandbox; its output.

    Raises:
        SandboxError: It failed.
    """
    env = clean_environment(cluster, "client")
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        text = (done.stderr or done.stdout).strip()
        raise SandboxError(f"{' '.join(command)}: exit code {done.returncode}: {text}")
    return done.stdout


class Daemons:
    """The daemons started by this call, watched while something is waited for."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, role: str, *command: str) -> None:
        """Start a daemon in the foreground of a session of its own; its stderr goes to log/ROLE.out."""
        with self._log(role).open("ab") as stream:
            self._started[role] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                cwd=self._cluster.root,
                env=clean_environment(self._cluster, role),
                start_new_session=True,
            )

    def wait(self, what: str, done: Callable[[], bool], timeout_s: float) -> None:
        """Wait until it is done.

        Raises:
            SandboxError: A daemon ended, or the time is over; with the end of the log.
        """
        deadline = time.monotonic() + timeout_s
        while not done():
            for role, process in self._started.items():
                if process.poll() is not None:
                    raise SandboxError(f"{role} ended with code {process.returncode}\n{self._log_end(role)}")
            if time.monotonic() > deadline:
                role = list(self._started)[-1]
                raise SandboxError(f"{what}: not within {timeout_s:.0f} s; {role}:\n{self._log_end(role)}")
            time.sleep(0.1)

    def _log(self, role: str) -> Path:
        return self._cluster.root_path / "log" / f"{role.replace(':', '-')}.out"

    def _log_end(self, role: str) -> str:
        lines = self._log(role).read_text(errors="replace").splitlines()[-15:]
        return "\n".join(f"    {line}" for line in lines)


def find_processes(sandbox_dir: Path) -> list[Process]:
    """All processes of a sandbox and the clients that wait for its jobs, but not the caller.

    A process of a job is a descendant of a slurmstepd, or, once it has detached itself, one with the
    variables that slurmstepd sets. SLURM_CONF alone says nothing: the user's shell exports it, too.
    """
    roots = [sandbox_dir, fallback_root(sandbox_dir)]
    roles: dict[int, str] = {}
    commands: dict[int, str] = {}
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        # A process of another user, or one that has just ended, is none of ours.
        with contextlib.suppress(PermissionError, FileNotFoundError, ProcessLookupError):
            pid = int(folder.name)
            before, _, after = (folder / "stat").read_text(errors="replace").rpartition(")")
            commands[pid] = before.partition("(")[2]
            children.setdefault(int(after.split()[1]), []).append(pid)
            if commands[pid] in RETITLED:
                role = _role_by_log(folder, roots)
            else:
                variables = (folder / "environ").read_bytes()
                role = _role_by_environment(variables, commands[pid], roots)
            if role:
                roles[pid] = role
    pending = list(roles)
    while pending:
        parent = pending.pop()
        found = [pid for pid in children.get(parent, []) if pid not in roles]
        roles |= {pid: f"job:{roles[parent].partition(':')[2]}" for pid in found}
        pending += found
    return [Process(pid, role, commands[pid]) for pid, role in sorted(roles.items()) if pid != os.getpid()]


def _role_by_environment(variables: bytes, command: str, roots: list[Path]) -> str:
    pairs = (pair.partition("=") for pair in os.fsdecode(variables).split("\0"))
    env = {key: value for key, _, value in pairs}
    if env.get(DIR_VARIABLE) == str(roots[0]):
        return env.get(ROLE_VARIABLE, "")
    if env.get("SLURM_CONF") not in [f"{root}/slurm.conf" for root in roots]:
        return ""
    if "SLURMD_NODENAME" in env:
        return f"job:{env['SLURMD_NODENAME']}"
    return "client" if command in WAITING_CLIENTS else ""


def _role_by_log(folder: Path, roots: list[Path]) -> str:
    for descriptor in (folder / "fd").iterdir():
        log = descriptor.readlink()
        if log.parent in [root / "log" for root in roots] and log.suffix == ".log":
            return log.stem.replace("slurmd-", "slurmd:")
    return ""


def kill_all(find: Callable[[], list[Process]]) -> int:
    """Kill -9 until none is found, since a daemon may fork while it is looked for.

    Returns:
        How many processes were killed.

    Raises:
        SandboxError: Some outlive it for 20 s.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + 20
    while found := find():
        if time.monotonic() > deadline:
            raise SandboxError(f"processes outlive kill -9 for 20 s: {found}; see their state with ps")
        for process in found:
            # It may have ended since it was found.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        killed.update(process.pid for process in found)
        time.sleep(0.05)
    return len(killed)
