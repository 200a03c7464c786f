"""Start the daemons of a sandbox in their order, and ask them how they are."""

from __future__ import annotations

import socket

from cluster_files import Cluster
from processes import Daemons, progress, run_client


def start_all(cluster: Cluster) -> None:
    """Start all daemons and wait until every node is idle."""
    root = cluster.root
    daemons = Daemons(cluster)
    progress(f"starting {cluster.name} in {root}")
    # --force: the folder may lie below one that a group may write, as homes often do.
    munge_files = [f"--{what}-file={root}/munge.{what}" for what in ("key", "seed", "pid")]
    daemons.start("munged", "munged", "--foreground", "--force", f"--socket={cluster.munge_socket}", *munge_files)
    daemons.wait("munged: its socket", cluster.munge_socket.exists, 30)
    if cluster.accounting:
        start_accounting(daemons, cluster)
    daemons.start("slurmctld", "slurmctld", "-D")
    for node in cluster.node_names:
        daemons.start(f"slurmd:{node}", "slurmd", "-D", "-N", node)
    progress("waiting for the nodes")

    def all_idle() -> bool:
        return controller_answers(cluster) and set(node_states(cluster).values()) == {"idle"}

    daemons.wait("nodes: not all idle", all_idle, 60 + cluster.num_nodes)


def start_accounting(daemons: Daemons, cluster: Cluster) -> None:
    """Start MariaDB and slurmdbd, and register the cluster and the calling user."""
    progress("creating the database")
    options = ["--no-defaults", f"--datadir={cluster.root}/database", f"--user={cluster.user}"]
    (cluster.root_path / "database").mkdir()
    run_client(
        cluster,
        "mariadb-install-db",
        *options,
        "--skip-test-db",
        "--auth-root-authentication-method=socket",
        f"--auth-root-socket-user={cluster.user}",
    )
    daemons.start(
        "mariadbd",
        "mariadbd",
        *options,
        "--skip-networking",
        f"--socket={cluster.database_socket}",
        f"--pid-file={cluster.root}/run/mariadbd.pid",
        # slurmdbd complains about less.
        "--innodb-lock-wait-timeout=900",
        # Nobody needs this database after a crash of the machine.
        "--innodb-flush-log-at-trx-commit=0",
    )
    daemons.wait("mariadbd: its socket", cluster.database_socket.exists, 60)
    daemons.start("slurmdbd", "slurmdbd", "-D")
    daemons.wait("slurmdbd: its port", lambda: port_answers(cluster.database_daemon_port), 60)
    for words in (
        ["cluster", cluster.name],
        ["account", "sandbox", "Description=sandbox", "Organization=sandbox"],
        ["user", cluster.user, "DefaultAccount=sandbox"],
    ):
        run_client(cluster, "sacctmgr", "-i", "add", *words)


def port_answers(port: int) -> bool:
    """True if something listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def controller_answers(cluster: Cluster) -> bool:
    """True if slurmctld serves its port."""
    return port_answers(cluster.controller_port)


def node_states(cluster: Cluster) -> dict[str, str]:
    """State of each node in sinfo's words; an appended '*' means that slurmd does not answer."""
    lines = run_client(cluster, "sinfo", "-h", "-N", "-o", "%N %T").splitlines()
    return dict(line.split() for line in lines)


def controller_knows_nodes(cluster: Cluster) -> bool:
    """True if slurmctld has heard from every node or given it up."""
    if not controller_answers(cluster):
        return False
    return not any(state.startswith("unk") for state in node_states(cluster).values())


def node_answers(cluster: Cluster, node: str) -> bool:
    """True if a node's slurmd serves its port and the controller counts on it."""
    port = cluster.first_node_port + cluster.node_names.index(node)
    return port_answers(port) and node_states(cluster)[node] in {"idle", "mixed", "allocated", "completing"}
