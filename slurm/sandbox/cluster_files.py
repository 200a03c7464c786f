"""The configuration texts of a Slurm cluster that lives on one machine (pure functions of a `Cluster`)."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass
from pathlib import Path

# Bookkeeping of the sandbox (ports, folders, who listens where) rests on these: own value, no override.
OWN_KEYS = {
    "authinfo": "fixed",
    "clustername": "use --name",
    "grestypes": "use --gpus",
    "nodename": "use --nodes, --cpus, --gpus, --memory-mib",
    "slurmctldhost": "fixed",
    "slurmctldport": "chosen free port",
    "slurmdspooldir": "fixed",
    "slurmuser": "the calling user",
    "slurmduser": "the calling user",
    "statesavelocation": "fixed",
}


@dataclass(frozen=True)
class Cluster:
    """Everything that decides the files of one sandbox; stored as JSON in its folder.

    Attributes:
        sandbox_dir: The folder the user named.
        root: The folder of all files and sockets; another one if Slurm can't work in the first.
    """

    name: str
    user: str
    sandbox_dir: str
    root: str
    num_nodes: int
    gpus_per_node: int
    cpus_per_node: int
    memory_mib_per_node: int
    accounting: bool
    first_port: int
    conf_lines: tuple[str, ...]

    @property
    def root_path(self) -> Path:
        """The folder of all files and sockets."""
        return Path(self.root)

    @property
    def slurm_conf(self) -> Path:
        """The file SLURM_CONF points to."""
        return self.root_path / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        """The socket of the sandbox's own munged."""
        return self.root_path / "munge.socket"

    @property
    def database_socket(self) -> Path:
        """The socket of the sandbox's own MariaDB, which opens no port."""
        return self.root_path / "mariadb.socket"

    @property
    def digits(self) -> int:
        """Digits of a node number: at least three, so that names of small and large sandboxes look alike."""
        return max(3, len(str(self.num_nodes)))

    @property
    def node_names(self) -> list[str]:
        """Node names in order, such as ``sandbox-n001``."""
        return [f"{self.name}-n{number:0{self.digits}d}" for number in range(1, self.num_nodes + 1)]

    @property
    def node_list(self) -> str:
        """All nodes in Slurm's bracket form.

        >>> Cluster("a", "root", "/x", "/x", 4, 0, 1, 1, False, 9000, ()).node_list
        'a-n[001-004]'
        """
        return f"{self.name}-n[{1:0{self.digits}d}-{self.num_nodes:0{self.digits}d}]"

    @property
    def is_small(self) -> bool:
        """True if its daemons answer at once; with more of them on one machine, Slurm gets longer timeouts."""
        return self.num_nodes <= 16

    @property
    def controller_port(self) -> int:
        """Port of slurmctld; slurmdbd and the slurmd follow."""
        return self.first_port

    @property
    def database_daemon_port(self) -> int:
        """Port of slurmdbd."""
        return self.first_port + 1

    @property
    def first_node_port(self) -> int:
        """Port of the first slurmd."""
        return self.first_port + 2


def fallback_root(sandbox_dir: Path) -> Path:
    """The folder in /tmp for a sandbox whose own folder Slurm can't work in: the same one for each call."""
    return Path("/tmp") / f"hpcsb-{hashlib.sha256(bytes(sandbox_dir)).hexdigest()[:8]}"


def num_ports(num_nodes: int) -> int:
    """Count of contiguous ports a sandbox needs: slurmctld, slurmdbd and one for each slurmd."""
    return num_nodes + 2


def conf_key(line: str) -> str:
    """The key under which a line of slurm.conf replaces another one.

    Args:
        line: ``Key=value``, or ``PartitionName=name Key=value ...``.

    Raises:
        ValueError: It is no such line, or it sets something that the sandbox itself decides.

    >>> conf_key("MinJobAge=20"), conf_key("PartitionName=main MaxTime=10")
    ('minjobage', 'partitionname=main')
    """
    key, equals, rest = line.strip().partition("=")
    if not equals or not key.isalnum() or not rest.strip() or "\n" in line:
        raise ValueError(f"--slurm-conf-line={line!r}: must be one line KEY=VALUE, such as 'MinJobAge=20'")
    key = key.lower()
    if key in OWN_KEYS:
        raise ValueError(f"--slurm-conf-line={line!r}: the sandbox decides {key} itself ({OWN_KEYS[key]})")
    return f"{key}={rest.split()[0].lower()}" if key in {"partitionname", "downnodes"} else key


def slurm_conf(cluster: Cluster) -> str:
    """The text of slurm.conf; a line of the user replaces the sandbox's line with the same key."""
    lines = [
        *_daemon_lines(cluster),
        *_scheduling_lines(cluster),
        *_accounting_lines(cluster),
        *_node_lines(cluster),
    ]
    by_key = {line.partition("=")[0].lower(): line for line in lines}
    partitions = [
        f"PartitionName=main Nodes={cluster.node_list} Default=YES MaxTime=1-00:00:00 PriorityTier=1",
        f"PartitionName=urgent Nodes={cluster.node_list} MaxTime=1-00:00:00 PriorityTier=10",
    ]
    by_key |= {conf_key(line): line for line in (*partitions, *cluster.conf_lines)}
    return "\n".join(by_key.values()) + "\n"


def _daemon_lines(cluster: Cluster) -> list[str]:
    root = cluster.root
    return [
        f"ClusterName={cluster.name}",
        "SlurmctldHost=localhost(127.0.0.1)",
        f"SlurmctldPort={cluster.controller_port}",
        f"SlurmUser={cluster.user}",
        f"SlurmdUser={cluster.user}",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        # A requeued job waits this long before it may start again; Slurm's 120 s make tests of requeue slow.
        f"AuthInfo=socket={cluster.munge_socket},cred_expire={20 if cluster.is_small else 60}",
        f"StateSaveLocation={root}/state",
        f"SlurmdSpoolDir={root}/spool/%n",
        f"SlurmctldPidFile={root}/run/slurmctld.pid",
        f"SlurmdPidFile={root}/run/%n.pid",
        f"SlurmctldLogFile={root}/log/slurmctld.log",
        f"SlurmdLogFile={root}/log/slurmd-%n.log",
        # Jobs of a sandbox mail nobody.
        "MailProg=/bin/true",
        # With many nodes on few cores an answer may take longer than Slurm's 10 s; but clients wait as long for
        # a controller that is away.
        f"MessageTimeout={10 if cluster.is_small else 60}",
        f"SlurmdTimeout={30 if cluster.is_small else 60}",
        "MpiDefault=none",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "ReturnToService=2",
        "KillWait=5",
        "InactiveLimit=0",
        "MinJobAge=300",
    ]


def _scheduling_lines(cluster: Cluster) -> list[str]:
    return [
        "SchedulerType=sched/backfill",
        "SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        # Without it a job that names no memory takes all of a node's, and no second job fits beside it.
        f"DefMemPerCPU={max(1, cluster.memory_mib_per_node // cluster.cpus_per_node)}",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "JobRequeue=1",
        "MaxArraySize=1001",
    ]


def _accounting_lines(cluster: Cluster) -> list[str]:
    gather = [
        "JobAcctGatherType=jobacct_gather/linux",
        # Steps shorter than this have no MaxRSS; every slurmstepd reads all of /proc each time.
        f"JobAcctGatherFrequency={5 if cluster.is_small else 30}",
    ]
    if not cluster.accounting:
        return ["AccountingStorageType=accounting_storage/none", *gather]
    return [
        *gather,
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=localhost",
        f"AccountingStoragePort={cluster.database_daemon_port}",
        f"AccountingStoragePass={cluster.munge_socket}",
        *(["AccountingStorageTRES=gres/gpu"] if cluster.gpus_per_node else []),
    ]


def _node_lines(cluster: Cluster) -> list[str]:
    last_port = cluster.first_node_port + cluster.num_nodes - 1
    gres = f" Gres=gpu:{cluster.gpus_per_node}" if cluster.gpus_per_node else ""
    return [
        *(["GresTypes=gpu"] if cluster.gpus_per_node else []),
        # The nodes have the sizes written here, whatever the machine has.
        "SlurmdParameters=config_overrides",
        f"NodeName={cluster.node_list} NodeHostname=localhost NodeAddr=127.0.0.1"
        f" Port=[{cluster.first_node_port}-{last_port}] CPUs={cluster.cpus_per_node} Sockets=1"
        f" CoresPerSocket={cluster.cpus_per_node} ThreadsPerCore=1"
        f" RealMemory={cluster.memory_mib_per_node}{gres} State=UNKNOWN",
    ]


def gres_conf(cluster: Cluster) -> str:
    """The text of gres.conf: fake GPUs of every node, named like NVIDIA's devices."""
    last = cluster.gpus_per_node - 1
    devices = "nvidia0" if last == 0 else f"nvidia[0-{last}]"
    lines = [f"NodeName={node} Name=gpu File={cluster.root}/dev/{node}/{devices}" for node in cluster.node_names]
    return "\n".join(["AutoDetect=off", *lines]) + "\n"


def slurmdbd_conf(cluster: Cluster) -> str:
    """The text of slurmdbd.conf; libmariadb takes the database's socket from MYSQL_UNIX_PORT."""
    return "\n".join(
        [
            "AuthType=auth/munge",
            f"AuthInfo=socket={cluster.munge_socket}",
            "DbdHost=localhost",
            "DbdAddr=127.0.0.1",
            f"DbdPort={cluster.database_daemon_port}",
            f"SlurmUser={cluster.user}",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            f"StorageUser={cluster.user}",
            "StorageLoc=slurm_acct_db",
            f"PidFile={cluster.root}/run/slurmdbd.pid",
            f"LogFile={cluster.root}/log/slurmdbd.log",
            "",
        ]
    )


def export_line(cluster: Cluster) -> str:
    """The line a shell evaluates to talk to this sandbox."""
    return f"export SLURM_CONF={shlex.quote(str(cluster.slurm_conf))}"
