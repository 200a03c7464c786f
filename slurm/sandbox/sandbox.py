#!/usr/bin/env python3
"""A real Slurm on one machine: munged, MariaDB, slurmdbd, slurmctld and one slurmd for each node."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from cluster_files import (
    Cluster,
    conf_key,
    export_line,
    fallback_root,
    gres_conf,
    num_ports,
    slurm_conf,
    slurmdbd_conf,
)
from machine import LOCK_NAME, add_hosts, choose_root, locked, remove_hosts, reserved_ports
from processes import (
    EXIT_FAILED,
    EXIT_REFUSED,
    Daemons,
    Process,
    SandboxError,
    find_processes,
    kill_all,
    missing_programs,
    progress,
    run_client,
)
from startup import controller_knows_nodes, node_answers, start_all

EXIT_NOT_UP = 1
EXIT_MISSING_PROGRAMS = 4

STATE_NAME = "sandbox.json"


def load(sandbox_dir: Path) -> Cluster | None:
    """The cluster of a folder, None if there is none."""
    path = sandbox_dir / STATE_NAME
    if not path.exists():
        return None
    values = json.loads(path.read_text())
    return Cluster(**values | {"conf_lines": tuple(values["conf_lines"])})


def load_running(sandbox_dir: Path) -> Cluster:
    """The cluster of a folder.

    Raises:
        SandboxError: None is up there.
    """
    cluster = load(sandbox_dir)
    if cluster is None or not find_processes(sandbox_dir):
        raise SandboxError(f"--dir={sandbox_dir}: no sandbox is up there; run: sandbox.py up", EXIT_NOT_UP)
    return cluster


def up(args: argparse.Namespace) -> None:
    """Bring a sandbox up and print its export line; what a failure leaves half-way is taken down."""
    sandbox_dir: Path = args.dir
    check_request(args)
    own = (sandbox_dir / LOCK_NAME).exists()
    if sandbox_dir.exists() and not own and (not sandbox_dir.is_dir() or any(sandbox_dir.iterdir())):
        raise SandboxError(f"--dir={sandbox_dir}: must be new or empty; try --dir={sandbox_dir}/sandbox", EXIT_REFUSED)
    sandbox_dir.mkdir(parents=True, exist_ok=True)
    with locked(sandbox_dir):
        if (sandbox_dir / STATE_NAME).exists() or find_processes(sandbox_dir):
            raise SandboxError(
                f"--dir={sandbox_dir}: holds a sandbox already; use it (sandbox.py env), end it (sandbox.py"
                " down), or give another --dir",
                EXIT_REFUSED,
            )
        with reserved_ports(num_ports(args.nodes)) as first_port:
            try:
                cluster = create(sandbox_dir, args, first_port)
                start_all(cluster)
            except BaseException:
                progress("failed, taking it down")
                take_down(sandbox_dir)
                raise
    progress(f"{cluster.num_nodes} nodes are idle: {cluster.node_list}")
    print(export_line(cluster), flush=True)


def check_request(args: argparse.Namespace) -> None:
    """Raise on options that no sandbox can have, and on missing programs."""
    limits = {"nodes": (1, 1000), "gpus": (0, 64), "cpus": (1, 1024), "memory_mib": (1, 1 << 30)}
    for key, (low, high) in limits.items():
        value = getattr(args, key)
        if not low <= value <= high:
            nearest = min(max(value, low), high)
            option = f"--{key.replace('_', '-')}"
            raise SandboxError(f"{option}={value}: must be {low} to {high}; nearest: {nearest}", EXIT_REFUSED)
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,22}[a-z0-9])?", args.name):
        raise SandboxError(
            f"--name={args.name!r}: must be 1 to 24 of a-z, 0-9 and '-', begin with a letter and not end with"
            " '-', since host names derive from it",
            EXIT_REFUSED,
        )
    if not str(args.dir).isprintable():
        raise SandboxError(f"--dir={str(args.dir)!r}: must be printable; give another folder", EXIT_REFUSED)
    try:
        for line in args.slurm_conf_line:
            conf_key(line)
    except ValueError as error:
        raise SandboxError(str(error), EXIT_REFUSED) from error
    missing = missing_programs(args.accounting)
    if missing:
        hint = "; --no-accounting needs no database" if args.accounting else ""
        raise SandboxError(
            f"programs not found: {', '.join(missing)}; install: "
            f"apt-get install {' '.join(sorted(set(missing.values())))}{hint}",
            EXIT_MISSING_PROGRAMS,
        )


def user_name() -> str:
    """Name of the calling user, who becomes Slurm's user, too."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError as error:
        raise SandboxError(
            f"user {os.geteuid()} has no name, and Slurm needs one; run as a user of /etc/passwd",
            EXIT_REFUSED,
        ) from error


def create(sandbox_dir: Path, args: argparse.Namespace, first_port: int) -> Cluster:
    """Write all files of a sandbox and the host names."""
    cluster = Cluster(
        name=args.name,
        user=user_name(),
        sandbox_dir=str(sandbox_dir),
        root=str(choose_root(sandbox_dir, f"{args.name}-n{args.nodes:03d}")),
        num_nodes=args.nodes,
        gpus_per_node=args.gpus,
        cpus_per_node=args.cpus,
        memory_mib_per_node=args.memory_mib,
        accounting=args.accounting,
        first_port=first_port,
        conf_lines=tuple(args.slurm_conf_line),
    )
    new_state = sandbox_dir / f"{STATE_NAME}.new"
    new_state.write_text(json.dumps(asdict(cluster), indent=2) + "\n")
    new_state.replace(sandbox_dir / STATE_NAME)
    add_hosts(sandbox_dir, cluster.node_names)
    root = cluster.root_path
    if root != sandbox_dir:
        root.mkdir(mode=0o700)
    for folder in ("log", "run", "state", "spool"):
        (root / folder).mkdir()
    for node in cluster.node_names:
        (root / "spool" / node).mkdir()
        (root / "dev" / node).mkdir(parents=True)
        for gpu in range(cluster.gpus_per_node):
            # slurmd wants a character device and never opens it; a link needs no right to mknod.
            (root / "dev" / node / f"nvidia{gpu}").symlink_to("/dev/null")
    cluster.slurm_conf.write_text(slurm_conf(cluster))
    (root / "gres.conf").write_text(gres_conf(cluster))
    for name, content in (("munge.key", os.urandom(128)), ("slurmdbd.conf", slurmdbd_conf(cluster).encode())):
        (root / name).touch(mode=0o600)
        (root / name).write_bytes(content)
    return cluster


def take_down(sandbox_dir: Path) -> int:
    """End all processes, then remove host names and files; the count of processes.

    The state file is not read: it may be lost, or not be written yet.
    """
    killed = kill_all(lambda: find_processes(sandbox_dir))
    remove_hosts(sandbox_dir)
    if fallback_root(sandbox_dir).exists():
        shutil.rmtree(fallback_root(sandbox_dir))
    if (sandbox_dir / LOCK_NAME).exists():
        shutil.rmtree(sandbox_dir)
    return killed


def down(args: argparse.Namespace) -> None:
    """End a sandbox, whatever state it is in."""
    if (args.dir / LOCK_NAME).exists():
        with locked(args.dir):
            killed = take_down(args.dir)
    else:
        killed = take_down(args.dir)
    progress(f"down: {args.dir}, {killed} processes ended")


# --- commands on a running sandbox ---------------------------------------------------------------------


def env(args: argparse.Namespace) -> None:
    """Print the export line of a running sandbox."""
    print(export_line(load_running(args.dir)))


def status(args: argparse.Namespace) -> None:
    """Print which daemons run, and sinfo."""
    cluster = load_running(args.dir)
    processes = find_processes(args.dir)
    running = {process.role for process in processes if process.command == process.role.partition(":")[0]}
    database = ["mariadbd", "slurmdbd"] if cluster.accounting else []
    for role in ["munged", *database, "slurmctld"]:
        print(f"{role:12} {'runs' if role in running else 'STOPPED'}")
    stopped = [node for node in cluster.node_names if f"slurmd:{node}" not in running]
    print(f"{'slurmd':12} {cluster.num_nodes - len(stopped)} of {cluster.num_nodes} run", *stopped[:8])
    print(f"{'jobs':12} {sum(process.role.startswith('job:') for process in processes)} processes")
    print(run_client(cluster, "sinfo") if "slurmctld" in running else "sinfo needs slurmctld\n", end="")


def node_of(args: argparse.Namespace, cluster: Cluster) -> str:
    """The node of the command line."""
    if args.node not in cluster.node_names:
        raise SandboxError(f"{args.node}: no such node; nodes are {cluster.node_list}", EXIT_REFUSED)
    return str(args.node)


def kill_node(args: argparse.Namespace) -> None:
    """End a node as a power cut does: slurmd, its slurmstepd and the processes of jobs."""
    with running(args.dir) as cluster:
        node = node_of(args, cluster)
        killed = kill_all(lambda: [process for process in find_processes(args.dir) if process.node == node])
        progress(f"{node}: {killed} processes killed")


def start_node(args: argparse.Namespace) -> None:
    """Start the slurmd of a node again and wait until the controller has it back."""
    with running(args.dir) as cluster:
        node = node_of(args, cluster)
        role = f"slurmd:{node}"
        if any(process.role == role and process.command == "slurmd" for process in find_processes(args.dir)):
            raise SandboxError(f"{node}: slurmd runs already; to end it: sandbox.py kill-node {node}", EXIT_REFUSED)
        daemons = Daemons(cluster)
        daemons.start(role, "slurmd", "-D", "-N", node)
        daemons.wait(f"{node}: not back", lambda: node_answers(cluster, node), 60)
        progress(f"{node}: back")


def stop_controller(args: argparse.Namespace) -> None:
    """End slurmctld in good order: it saves the state of its jobs."""
    with running(args.dir):
        for process in controller_processes(args.dir):
            if process.command == "slurmctld":
                os.kill(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 60
        while controller_processes(args.dir):
            if time.monotonic() > deadline:
                raise SandboxError("slurmctld: still there 60 s after SIGTERM; sandbox.py down ends all")
            time.sleep(0.1)
        progress("slurmctld: stopped")


def start_controller(args: argparse.Namespace) -> None:
    """Start slurmctld again and wait until it knows the state of its nodes."""
    with running(args.dir) as cluster:
        if controller_processes(args.dir):
            raise SandboxError("slurmctld: runs already; to end it: sandbox.py stop-controller", EXIT_REFUSED)
        daemons = Daemons(cluster)
        daemons.start("slurmctld", "slurmctld", "-D")
        daemons.wait("slurmctld: nodes are still unknown", lambda: controller_knows_nodes(cluster), 120)
        progress("slurmctld: started")


def controller_processes(sandbox_dir: Path) -> list[Process]:
    """The processes of the controller: slurmctld and its helper slurmscriptd, which ends with it."""
    return [process for process in find_processes(sandbox_dir) if process.role == "slurmctld"]


@contextlib.contextmanager
def running(sandbox_dir: Path) -> Iterator[Cluster]:
    """The running sandbox of a folder, held against other calls."""
    load_running(sandbox_dir)
    with locked(sandbox_dir):
        yield load_running(sandbox_dir)


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, function: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        text = (function.__doc__ or "").splitlines()[0]
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(function=function)
        command.add_argument(
            "--dir",
            type=lambda text: Path(text).resolve(),
            default=Path(".sandbox").resolve(),
            help="folder of the sandbox (default: .sandbox)",
        )
        return command

    options = add("up", up)
    options.add_argument("--name", default="sandbox", help="name of the cluster; nodes are NAME-n001, ...")
    options.add_argument("--nodes", type=int, default=4)
    options.add_argument("--gpus", type=int, default=2, help="GPUs of each node, fake; 0: none (default: 2)")
    options.add_argument("--cpus", type=int, default=8, help="CPUs of each node (default: 8)")
    options.add_argument("--memory-mib", type=int, default=65536, help="memory of each node (default: 65536)")
    options.add_argument("--accounting", action=argparse.BooleanOptionalAction, default=True, help="sacct (default)")
    options.add_argument(
        "--slurm-conf-line",
        metavar="LINE",
        action="append",
        default=[],
        help="replaces the line of slurm.conf with the same key, or is added; repeatable",
    )
    add("down", down)
    add("status", status)
    add("env", env)
    for name, function in (("kill-node", kill_node), ("start-node", start_node)):
        add(name, function).add_argument("node", metavar="NODE")
    add("stop-controller", stop_controller)
    add("start-controller", start_controller)
    return parser.parse_args(words)


def main() -> int:
    """Run the command; the exit code."""
    # As an exception, so that `up` takes down what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    args = parse(sys.argv[1:])
    try:
        args.function(args)
    except (SandboxError, OSError) as error:
        print(f"sandbox.py: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, SandboxError) else EXIT_FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
