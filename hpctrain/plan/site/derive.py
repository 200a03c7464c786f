"""What a user left out and the partition decides: each value is told as an assumption, each doubt as a warning."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from hpctrain.config.schema import ClusterConfig, HardwareConfig
from hpctrain.errors import Problem
from hpctrain.plan.job.slurm_request import SlurmRequest
from hpctrain.plan.site.limits import NodeGroup, Partition, Site
from hpctrain.plan.site.need import MEMORY_PER_NODE, Need, default_memory_mib
from hpctrain.plan.site.nodes import cpus_for_jobs
from hpctrain.units import MIB, duration_in_words, gib

_GPU_MODEL = re.compile(r"(?<![a-z0-9])[a-z]{1,2}\d{1,4}[a-z]?(?![a-z0-9])")


def gpu_model(text: str) -> str:
    """The model in a name of a GPU, lower case; empty where there is none.

    >>> gpu_model("A100-SXM4-80GB"), gpu_model("nvidia_a100_80gb_pcie"), gpu_model("NVIDIA H200 NVL"), gpu_model("ampere")
    ('a100', 'a100', 'h200', '')
    """
    match = _GPU_MODEL.search(text.lower())
    return match[0] if match else ""


_WITHOUT_GPU_OPTIONS = ("select/cons_res", "select/linear")
"""Select plug-ins that know GPUs as --gres only. Source: sbatch(1): --gpus and its kin need select/cons_tres."""
_GPU_OPTIONS = ("gpus-per-node", "gpus", "gpus-per-task", "gpus-per-socket")


def derive_gpu_form(request: SlurmRequest, cluster: ClusterConfig, site: Site) -> tuple[SlurmRequest, list[str]]:
    """The request with --gres where the site's select plug-in knows no other form, and nobody chose one; assumptions."""
    count = request.options.get("gpus-per-node")
    if site.select_type not in _WITHOUT_GPU_OPTIONS or cluster.gpu_request != "auto" or count is None:
        return request, []
    options = {
        ("gres" if name == "gpus-per-node" else name): (f"gpu:{count}" if name == "gpus-per-node" else value)
        for name, value in request.options.items()
    }
    told = f"cluster.gpu_request=auto: gres, since this site's {site.select_type} knows no --gpus-per-node"
    return dataclasses.replace(request, options=options), [told]


def gpu_form_problems(request: SlurmRequest, cluster: ClusterConfig, site: Site) -> list[Problem]:
    """A form of asking for GPUs that the site's select plug-in does not know."""
    used = [name for name in _GPU_OPTIONS if name in request.options]
    if site.select_type not in _WITHOUT_GPU_OPTIONS or not used:
        return []
    rule = f"this site's {site.select_type} knows no --{used[0]}"
    is_own = used[0] == "gpus-per-node"
    key, value = ("cluster.gpu_request", cluster.gpu_request) if is_own else (f"cluster.extra.{used[0]}", "")
    return [Problem(key, value, rule, "set cluster.gpu_request=gres", kind="site")]


def derive_gpu_type(
    request: SlurmRequest, need: Need, hardware: HardwareConfig, partition: Partition
) -> tuple[SlurmRequest, list[str], list[str]]:
    """The request with a GPU type where the partition has several and the hardware tells which; assumptions, warnings.

    GPUs of different models in one job would run at the pace of the slowest.
    """
    types = partition.gpu_types
    wanted = gpu_model(hardware.gpu)
    if hardware.device == "cuda" and need.num_gpus == 0 and any(kind.shape.num_gpus for kind in partition.kinds):
        told = f"the job asks Slurm for no GPUs, and nodes of partition {partition.name} have some"
        return request, [], [f"{told}: where the site confines devices, ranks see none; set cluster.gpu_request=auto"]
    if need.num_gpus == 0 or hardware.device != "cuda" or not types:
        return request, [], []
    if need.gpu_type or len(types) == 1:
        there = need.gpu_type or types[0]
        model = gpu_model(there)
        if wanted and model and model != wanted:
            told = (
                f"cluster.gpu_type={there}" if need.gpu_type else f"the GPUs of partition {partition.name} are {there}"
            )
            return request, [], [f"{told}, but hardware={hardware.name} plans with {hardware.gpu}"]
        return request, [], []
    matches = [name for name in types if wanted and gpu_model(name) == wanted]
    if len(matches) != 1:
        listed = ", ".join(types)
        return request, [], [f"partition {partition.name} has GPUs of several types ({listed}): set cluster.gpu_type"]
    options = dict(request.options)
    if "gpus-per-node" in options:
        options["gpus-per-node"] = f"{matches[0]}:{options['gpus-per-node']}"
    elif options.get("gres", "").startswith("gpu:"):
        options["gres"] = f"gpu:{matches[0]}:{options['gres'].removeprefix('gpu:')}"
    told = (
        f"cluster.gpu_type not stated: {matches[0]}, since hardware.gpu={hardware.gpu} and partition {partition.name}"
        f" has {', '.join(types)}"
    )
    return dataclasses.replace(request, options=options), [told], []


def derive_cpus(
    request: SlurmRequest, need: Need, cluster: ClusterConfig, hardware: HardwareConfig, partitions: Sequence[Partition]
) -> tuple[SlurmRequest, list[str]]:
    """The request with as many CPUs a rank as every one of these partitions can give, where the user states none."""
    shares = [
        _fair_share(group, partition, need) for partition in partitions for group in _candidates(partition.kinds, need)
    ]
    if cluster.cpus_per_task is not None or not shares:
        return request, []
    share, whole = min(share for share, _ in shares), min(whole for _, whole in shares)
    names = ",".join(partition.name for partition in partitions)
    if request.cpus_per_task is None and share > 0:
        told = f"cluster.cpus_per_task not stated: {share}, a rank's share of a node's CPUs in partition {names}"
        return dataclasses.replace(request, cpus_per_task=share), [told]
    if request.cpus_per_task is not None and 0 < whole < request.cpus_per_task:
        told = (
            f"cluster.cpus_per_task not stated: {whole}; hardware={hardware.name} would give {request.cpus_per_task}, but"
            f" nodes of partition {names} have CPUs for {need.tasks_per_node} x {whole}"
        )
        return dataclasses.replace(request, cpus_per_task=whole), [told]
    return request, []


def _candidates(groups: Sequence[NodeGroup], need: Need) -> list[NodeGroup]:
    """The nodes that have the GPUs; of a mixed partition the others do not count."""
    return [
        group
        for group in groups
        if all(group.shape.gres_count(item.name, item.type) >= item.count for item in need.gres)
    ]


def _fair_share(group: NodeGroup, partition: Partition, need: Need) -> tuple[int, int]:
    """CPUs a rank: its share beside other jobs on the node's GPUs, and at most."""
    cpus = cpus_for_jobs(group.shape, partition, need.single_threads)
    sharers = need.tasks_per_node if partition.gives_whole_nodes or need.whole_nodes else group.shape.num_gpus
    return cpus // max(need.tasks_per_node, sharers), cpus // need.tasks_per_node


def told_defaults(need: Need, cluster: ClusterConfig, partition: Partition) -> list[str]:
    """What Slurm fills in."""
    told = []
    if not need.partitions:
        told.append(f"cluster.partition not stated: {partition.name}, this site's default")
    if cluster.time is None:
        limit_s = partition.max_time_s if partition.default_time_s is None else partition.default_time_s
        which = "MaxTime, since it has no DefaultTime" if partition.default_time_s is None else "DefaultTime"
        words = "no limit" if limit_s is None else duration_in_words(limit_s)
        told.append(f"cluster.time not stated: {words}, partition {partition.name}'s {which}")
    return told


def memory_verdict(
    need: Need, partitions: Sequence[Partition], host_bytes: int
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Where the plan's host memory is more than nodes have, or than the job would get of them: problems, warnings.

    It is a problem where none of these partitions, each of which Slurm could choose, has nodes with so much.
    """
    most = {partition.name: _most_memory_mib(partition, need) for partition in partitions}
    short = [_short_of_memory(host_bytes, name, mib) for name, mib in most.items() if mib and host_bytes > mib * MIB]
    if len(short) == len(partitions):
        return tuple(short), ()
    enough = next(partition for partition in partitions if not 0 < most[partition.name] * MIB < host_bytes)
    doubts = [str(dataclasses.replace(problem, fix="")) for problem in short]
    return (), (*doubts, *_given_memory_warnings(need, enough, host_bytes))


def _most_memory_mib(partition: Partition, need: Need) -> int:
    """Of a node that could run it; 0: not known. Slurm takes a node of unstated RealMemory for one of 1 MiB, slurm.conf(5)."""
    most = max((group.shape.memory_mib for group in _candidates(partition.kinds, need)), default=0)
    return most if most > 1 else 0


def _short_of_memory(host_bytes: int, partition: str, most_mib: int) -> Problem:
    there = most_mib * MIB
    rule = (
        f"the plan's estimate of host memory a node; those of partition {partition} have {gib(there)}, short by"
        f" {gib(host_bytes - there)}"
    )
    fix = (
        "a smaller model or training.micro_batch_size, more nodes, or a cluster.partition of larger nodes; --force"
        " submits all the same"
    )
    return Problem("memory.host", gib(host_bytes), rule, fix, kind="memory")


def _given_memory_warnings(need: Need, partition: Partition, host_bytes: int) -> list[str]:
    """Where Slurm gives the job less of a node than the plan needs; cluster.memory_per_node is in the plan's own capacity."""
    if need.memory_mib is not None and need.memory_key == MEMORY_PER_NODE:
        return []
    given = need.memory_of_node_mib(partition)
    whole = need.memory_mib is None and (need.whole_nodes or partition.gives_whole_nodes)
    if given and host_bytes > given * MIB and not whole:
        if need.memory_mib is not None:
            stated = f"{need.memory_key} gives {gib(given * MIB)}"
        else:
            stated = f"cluster.memory_per_node not stated: Slurm gives {gib(default_memory_mib(need, partition) * MIB)}"
        return [
            f"{stated} a node, the plan estimates {gib(host_bytes)} of host memory; cluster.memory_per_node=0 asks for all of it"
        ]
    return []
