"""What a Slurm request needs of each node and of the site, read from its options."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from hpctrain.plan.job.nodelist import node_names
from hpctrain.plan.job.slurm_request import SlurmRequest
from hpctrain.plan.site.limits import Gres, Partition, Site
from hpctrain.units import parse_slurm_time

MEMORY_PER_NODE = "cluster.memory_per_node"
"""The key of sbatch's --mem."""
_UNIT_MIB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>[KMGTP]?)B?", re.IGNORECASE)
_SLURMS_SIGNAL_LEAD_S = 60
_COUNT_UNIT = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_COUNT = re.compile(r"(?P<number>\d+)(?P<unit>[KMGT]?)", re.IGNORECASE)


@dataclass(frozen=True)
class Need:
    """One request in numbers. Memory is in MiB of one node, resources are of one node."""

    num_nodes: int
    tasks_per_node: int
    cpus_per_task: int | None
    partitions: tuple[str, ...]
    """Empty: the site's default one."""
    time_s: float | None
    """None: not stated; infinite: none at all."""
    signal_lead_s: int
    """The warning comes so long before the end; 0: none."""
    memory_mib: int | None
    """None: not stated; 0: all of a node's."""
    memory_key: str
    """The key that states the memory."""
    memory_text: str
    """As it is stated."""
    gres: tuple[Gres, ...]
    single_threads: bool
    """One CPU of each core is used."""
    whole_nodes: bool
    constraint: str
    nodelist: tuple[str, ...] | None
    """None: not stated, or not readable."""
    exclude: tuple[str, ...]
    account: str
    qos: str
    reservation: str

    @property
    def cpus_per_node(self) -> int:
        return self.tasks_per_node * (self.cpus_per_task or 1)

    @property
    def num_gpus(self) -> int:
        """Of one node."""
        return sum(gres.count for gres in self.gres if gres.name == "gpu")

    @property
    def gpu_type(self) -> str:
        return next((gres.type for gres in self.gres if gres.name == "gpu"), "")

    def memory_of_node_mib(self, partition: Partition) -> int:
        """What the job takes of a node in this partition, the site's default filled in; 0: all of it, or not known."""
        if self.memory_mib is not None:
            return self.memory_mib
        return default_memory_mib(self, partition)


def default_memory_mib(need: Need, partition: Partition) -> int:
    """Memory of a node that Slurm gives where none is stated; 0: all of it.

    Source: sbatch(1), --mem; slurm.conf(5), DefMemPerCPU, DefMemPerNode, DefMemPerGPU of JobDefaults.
    """
    if partition.def_mem_per_gpu_mib and need.num_gpus:
        return partition.def_mem_per_gpu_mib * need.num_gpus
    if partition.def_mem_per_cpu_mib:
        return partition.def_mem_per_cpu_mib * need.cpus_per_node
    return partition.def_mem_per_node_mib or 0


def request_need(request: SlurmRequest) -> Need:
    """The request in numbers; what has a form that Slurm will refuse is left to Slurm."""
    options = request.options
    gres = _gres(request)
    memory_mib, memory_key, memory_text = _memory(request, sum(item.count for item in gres if item.name == "gpu"))
    return Need(
        num_nodes=request.num_nodes,
        tasks_per_node=request.tasks_per_node,
        cpus_per_task=request.cpus_per_task,
        partitions=tuple(name for name in options.get("partition", "").split(",") if name),
        time_s=_time_s(options.get("time")),
        signal_lead_s=_signal_lead_s(options.get("signal", "")),
        memory_mib=memory_mib,
        memory_key=memory_key,
        memory_text=memory_text,
        gres=gres,
        single_threads=options.get("hint") == "nomultithread" or options.get("threads-per-core") == "1",
        whole_nodes="exclusive" in options,
        constraint=options.get("constraint", ""),
        nodelist=_names(options.get("nodelist", "")) or None,
        exclude=_names(options.get("exclude", "")),
        account=options.get("account", "").lower(),
        qos=options.get("qos", "").lower(),
        reservation=options.get("reservation", ""),
    )


def _time_s(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        limit_s = parse_slurm_time(text)
    except ValueError:  # told among the plan's problems
        return None
    return math.inf if limit_s is None else limit_s


def _signal_lead_s(text: str) -> int:
    """Seconds in ``[R][B:]SIGNAL@SECONDS``; Slurm's own 60 where none are given."""
    _, at, seconds = text.rpartition("@")
    if not text:
        return 0
    return int(seconds) if at and seconds.isdecimal() else _SLURMS_SIGNAL_LEAD_S


def size_in_mib(text: str) -> int | None:
    """A size as Slurm reads and prints it, in MiB without a unit; None for what is no size.

    >>> size_in_mib("515G"), size_in_mib("4096"), size_in_mib("0"), size_in_mib("1.5T"), size_in_mib("UNLIMITED")
    (527360, 4096, 0, 1572864, None)
    """
    match = _SIZE.fullmatch(text.strip())
    return math.ceil(float(match["number"]) * _UNIT_MIB[match["unit"].upper()]) if match else None


def _memory(request: SlurmRequest, num_gpus: int) -> tuple[int | None, str, str]:
    """MiB of one node, the key that states it, and the value as stated."""
    cpus = request.tasks_per_node * (request.cpus_per_task or 1)
    for option, units in (("mem-per-cpu", cpus), ("mem-per-gpu", num_gpus)):
        text = request.options.get(option, "")
        if (size := size_in_mib(text)) is not None:
            return size * units, f"cluster.extra.{option}", text
    text = request.options.get("mem", "")
    return size_in_mib(text), MEMORY_PER_NODE, text


def _gres(request: SlurmRequest) -> tuple[Gres, ...]:
    """The resources of one node; those of the whole job are spread over its nodes."""
    options = request.options
    found = [*parse_gres(options.get("gres", ""))]
    for option, units in (
        ("gpus-per-node", 1.0),
        ("gpus-per-task", float(request.tasks_per_node)),
        ("gpus", 1 / request.num_nodes),
    ):
        for spec in filter(None, options.get(option, "").split(",")):
            (gpu,) = parse_gres(f"gpu:{spec}")
            found.append(Gres("gpu", gpu.type, math.ceil(gpu.count * units)))
    return tuple(found)


def parse_gres(text: str) -> tuple[Gres, ...]:
    """The resources of a node, or that an option asks for; sockets and indexes in brackets are left out.

    >>> parse_gres("gpu:a100:8(S:0-1),nvme:1")
    (Gres(name='gpu', type='a100', count=8), Gres(name='nvme', type='', count=1))
    >>> parse_gres("gpu:h100"), parse_gres("gpu:2"), parse_gres("gres/gpu=4"), parse_gres("(null)")
    ((Gres(name='gpu', type='h100', count=1),), (Gres(name='gpu', type='', count=2),), (Gres(name='gpu', type='', count=4),), ())
    """
    found = []
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        name, *rest = item.strip().removeprefix("gres/").removeprefix("gres:").replace("=", ":").split(":")
        counted = _COUNT.fullmatch(rest[-1]) if rest else None
        count = int(counted["number"]) * _COUNT_UNIT[counted["unit"].upper()] if counted else 1
        if name:
            found.append(Gres(name, ":".join(rest[:-1] if counted else rest), count))
    return tuple(found)


def asked_partitions(need: Need, site: Site) -> list[Partition]:
    """The partitions that a request names and the site has; where it names none, the site's default one."""
    known = site.partitions or {}
    if need.partitions:
        return [known[name] for name in need.partitions if name in known]
    return [] if site.default_partition is None else [site.default_partition]


def _names(text: str) -> tuple[str, ...]:
    """Node names of a list; none where it is a file, or in no form that we read: Slurm judges it."""
    if not text or "/" in text:
        return ()
    try:
        return tuple(node_names(text))
    except ValueError:
        return ()
