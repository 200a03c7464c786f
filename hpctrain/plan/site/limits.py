"""What a Slurm cluster has and allows, as plain values: ``launch.site.question`` asks, ``site_check`` holds requests against it.

``None`` in a limit means that there is none, or that it is not known; what could not be asked is told in ``Site.gaps``.
Memory is in MiB, as Slurm counts it; times are in seconds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Gres:
    """A generic resource of one node, such as 8 GPUs of type a100."""

    name: str
    type: str
    """The site's name in gres.conf; empty: the site names no type."""
    count: int


@dataclass(frozen=True)
class NodeShape:
    """What nodes of one kind offer to jobs."""

    cpus: int
    """Without those that the site keeps for itself (CoreSpecCount)."""
    memory_mib: int
    """Without what the site keeps for itself (MemSpecLimit)."""
    threads_per_core: int = 1
    gres: tuple[Gres, ...] = ()
    features: tuple[str, ...] = ()

    def gres_count(self, name: str, type_name: str = "") -> int:
        """Units of a resource on a node, of one type or of all; Slurm compares names without regard to case."""
        wanted = type_name.lower()
        return sum(
            gres.count for gres in self.gres if gres.name == name and (not wanted or gres.type.lower() == wanted)
        )

    @property
    def num_gpus(self) -> int:
        return self.gres_count("gpu")


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of one partition with the same shape."""

    shape: NodeShape
    usable: int
    unusable: tuple[tuple[str, int], ...] = ()
    """Nodes that take no job now, as (state, count)."""

    @property
    def total(self) -> int:
        return self.usable + sum(count for _, count in self.unusable)


@dataclass(frozen=True)
class Node:
    """One node by name."""

    name: str
    shape: NodeShape
    state: str
    is_usable: bool
    partitions: tuple[str, ...]


@dataclass(frozen=True)
class Partition:
    """One partition: who may use it, how large and how long a job may be, and the nodes in it."""

    name: str
    state: str = "UP"
    is_default: bool = False
    allow_accounts: tuple[str, ...] | None = None
    """None: all, but for ``deny_accounts``."""
    deny_accounts: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] | None = None
    deny_qos: tuple[str, ...] = ()
    allow_groups: tuple[str, ...] | None = None
    qos: str = ""
    """QOS whose limits every job of the partition has."""
    root_only: bool = False
    no_root_jobs: bool = False
    needs_reservation: bool = False
    min_nodes: int = 0
    max_nodes: int | None = None
    total_nodes: int = 0
    max_time_s: int | None = None
    default_time_s: int | None = None
    max_cpus_per_node: int | None = None
    max_mem_per_node_mib: int | None = None
    def_mem_per_node_mib: int | None = None
    def_mem_per_cpu_mib: int | None = None
    def_mem_per_gpu_mib: int | None = None
    oversubscribe: str = "NO"
    preempt_mode: str = "OFF"
    groups: tuple[NodeGroup, ...] = ()
    """Empty where the nodes could not be asked, or there are none."""

    @property
    def gives_whole_nodes(self) -> bool:
        return self.oversubscribe == "EXCLUSIVE"

    @property
    def usable_nodes(self) -> int:
        return sum(group.usable for group in self.groups)

    @functools.cached_property
    def kinds(self) -> tuple[NodeGroup, ...]:
        """The groups without their features: a site may give each rack its own, and then has as many groups as racks."""
        found: dict[NodeShape, list[NodeGroup]] = {}
        for group in self.groups:
            found.setdefault(dataclasses.replace(group.shape, features=()), []).append(group)
        return tuple(_joined(shape, groups) for shape, groups in found.items())

    @functools.cached_property
    def features(self) -> frozenset[str]:
        """All that its nodes have."""
        return frozenset(feature for group in self.groups for feature in group.shape.features)

    @functools.cached_property
    def gpu_types(self) -> tuple[str, ...]:
        """Names of its GPUs' types; empty where it has none, or names none."""
        types = {gres.type for group in self.kinds for gres in group.shape.gres if gres.name == "gpu"}
        return tuple(sorted(types - {""}))


def _joined(shape: NodeShape, groups: list[NodeGroup]) -> NodeGroup:
    states = Counter[str]()
    for group in groups:
        states.update(dict(group.unusable))
    return NodeGroup(shape, sum(group.usable for group in groups), tuple(sorted(states.items())))


@dataclass(frozen=True)
class Limits:
    """Limits of a QOS or an association on one job, on one user and on all together; counts by TRES name (``gres/gpu``)."""

    max_wall_s: int | None = None
    max_tres: dict[str, float] = field(default_factory=dict)
    """Of one job."""
    max_tres_per_node: dict[str, float] = field(default_factory=dict)
    max_tres_per_user: dict[str, float] = field(default_factory=dict)
    max_tres_per_account: dict[str, float] = field(default_factory=dict)
    group_tres: dict[str, float] = field(default_factory=dict)
    """Of all running jobs under it together."""
    min_tres: dict[str, float] = field(default_factory=dict)
    max_jobs: int | None = None
    """Running jobs of one user."""
    max_submit: int | None = None
    """Waiting and running jobs of one user."""
    group_jobs: int | None = None
    group_submit: int | None = None


@dataclass(frozen=True)
class Qos:
    """One quality of service."""

    name: str
    limits: Limits
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Association:
    """What one user may do under one account (and in one partition, if it names one)."""

    account: str
    partition: str = ""
    qos: tuple[str, ...] = ()
    default_qos: str = ""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Account:
    """Limits that all users of an account share."""

    name: str
    parent: str
    limits: Limits


@dataclass(frozen=True)
class Reservation:
    """Nodes that are kept for some users and some time."""

    name: str
    state: str
    num_nodes: int
    users: tuple[str, ...] = ()
    """A name with - in front may not use it."""
    accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Accounting:
    """What slurmdbd knows of the asking user."""

    default_account: str = ""
    associations: tuple[Association, ...] = ()
    accounts: dict[str, Account] = field(default_factory=dict)
    qos: dict[str, Qos] = field(default_factory=dict)


@dataclass(frozen=True)
class Site:
    """One cluster as it answered."""

    cluster: str = ""
    version: str = ""
    user: str = ""
    user_groups: tuple[str, ...] = ()
    """Empty where no partition asks for one."""
    is_root: bool = False
    max_array_size: int | None = None
    """Indexes of an array are below it; None: not known."""
    max_job_count: int | None = None
    select_type: str = ""
    gres_types: tuple[str, ...] | None = None
    """Resources that the site configures; None: not known."""
    enforce: frozenset[str] = frozenset()
    """AccountingStorageEnforce: which of associations, limits, qos bind."""
    enforce_part_limits: str = "NO"
    job_requeue: bool = True
    job_submit_plugins: tuple[str, ...] = ()
    licenses: tuple[str, ...] = ()
    has_accounting: bool = False
    partitions: dict[str, Partition] | None = None
    """None: could not be asked."""
    nodes: dict[str, Node] | None = None
    reservations: dict[str, Reservation] | None = None
    accounting: Accounting | None = None
    """None: there is none, none of its rules bind, or it could not be asked."""
    gaps: tuple[str, ...] = ()
    """What could not be asked, and why, one sentence each."""

    @property
    def default_partition(self) -> Partition | None:
        found = [partition for partition in (self.partitions or {}).values() if partition.is_default]
        return found[0] if found else None
