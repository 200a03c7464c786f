"""What to try after sbatch refused all the same: the site's valid names for what Slurm's words speak of."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from hpctrain.errors import known_names_hint
from hpctrain.plan.job.slurm_request import SlurmRequest
from hpctrain.plan.site.accounts import allowed_qos, association_of, levels, limit_words
from hpctrain.plan.site.limits import Site
from hpctrain.plan.site.need import Need, asked_partitions, request_need
from hpctrain.plan.site.nodes import memory_words, short_list
from hpctrain.units import counted, slurm_time


def site_hint(stderr: str, request: SlurmRequest, site: Site) -> str:
    """Lines with the site's valid names, by what Slurm's message names; empty if it names nothing that we know.

    Args:
        stderr: of sbatch.
        request: what was asked for.
        site: what the cluster answered; what it did not is left out.
    """
    need = request_need(request)
    found = [
        text for pattern, tell in _SUBJECTS if re.search(pattern, stderr, re.IGNORECASE) if (text := tell(need, site))
    ]
    return "\n".join(dict.fromkeys(found))


def _partitions(need: Need, site: Site) -> str:
    if not site.partitions:
        return ""
    up = [name for name, partition in site.partitions.items() if partition.state in ("UP", "DOWN")]
    wanted = next((name for name in need.partitions if name not in site.partitions), "")
    return f"partitions ({_setter('cluster.partition')}): {_names(wanted, up)}"


def _names(asked: str, known: Iterable[str]) -> str:
    """The known names; the nearest first where what was asked for is none of them."""
    found = list(known)
    return known_names_hint("" if asked in found else asked, found)


def _setter(key: str) -> str:
    return f"{key}=NAME"


def _accounts(need: Need, site: Site) -> str:
    if site.accounting is None:
        return ""
    names = sorted({row.account for row in site.accounting.associations})
    taken = [
        f"partition {partition.name} takes {short_list(partition.allow_accounts)}"
        for partition in asked_partitions(need, site)
        if partition.allow_accounts is not None
    ]
    tail = f"; {'; '.join(taken)}" if taken else ""
    return f"your accounts ({_setter('cluster.account')}): {_names(need.account, names)}{tail}"


def _qos(need: Need, site: Site) -> str:
    if site.accounting is None:
        return ""
    names = sorted(site.accounting.qos)
    for partition in asked_partitions(need, site)[:1]:
        if (association := association_of(need, partition, site)) is not None:
            names = sorted(allowed_qos(association, site.accounting))
    return f"QOS of your account ({_setter('cluster.qos')}): {_names(need.qos, names)}"


def _gpus(need: Need, site: Site) -> str:
    lines = []
    for partition in (site.partitions or {}).values():
        kinds = sorted(
            {
                f"{gres.name}:{gres.type}:{gres.count}" if gres.type else f"{gres.name}:{gres.count}"
                for group in partition.kinds
                for gres in group.shape.gres
            }
        )
        if kinds:
            lines.append(f"{partition.name} has {', '.join(kinds)} a node")
    if not lines:
        return "" if site.nodes is None else "no node of the site has GPUs for Slurm: cluster.gpu_request=none"
    if not need.gpu_type and any(partition.gpu_types for partition in asked_partitions(need, site)):
        lines.append("the site may want the type: cluster.gpu_type=NAME")
    return f"GPUs (hardware.gpus_per_node, cluster.gpu_type, cluster.gpu_request=gres): {'; '.join(lines)}"


def _features(need: Need, site: Site) -> str:
    if site.nodes is None:
        return ""
    known = {feature for node in site.nodes.values() for feature in node.shape.features}
    return f"features (cluster.constraint): {short_list(sorted(known)) or 'no node has any'}"


def _times(need: Need, site: Site) -> str:
    lines = [
        f"{partition.name} allows {'no limit' if partition.max_time_s is None else slurm_time(partition.max_time_s)}"
        for partition in asked_partitions(need, site)
    ]
    for partition in asked_partitions(need, site):
        for level in levels(need, partition, site):
            if level.limits.max_wall_s is not None and not level.is_group:
                lines.append(f"{level.name} allows {slurm_time(level.limits.max_wall_s)}")
    return f"longest time (cluster.time): {'; '.join(dict.fromkeys(lines))}" if lines else ""


def _nodes(need: Need, site: Site) -> str:
    lines = []
    for partition in asked_partitions(need, site):
        most = "" if partition.max_nodes is None else f", at most {partition.max_nodes} a job"
        least = f", at least {partition.min_nodes}" if partition.min_nodes > 1 else ""
        lines.append(f"partition {partition.name} has {counted(partition.total_nodes)}{most}{least}")
    return "; ".join(lines)


def _shapes(need: Need, site: Site) -> str:
    lines = []
    for partition in asked_partitions(need, site):
        shapes = [
            f"{group.total} of {group.shape.cpus} CPUs, {memory_words(group.shape.memory_mib)}, {group.shape.num_gpus} GPUs"
            for group in partition.kinds
        ]
        if shapes:
            lines.append(f"nodes of partition {partition.name}: {'; '.join(shapes[:8])}")
    asked = f"asked for: {need.cpus_per_node} CPUs, {need.num_gpus} GPUs a node"
    return "\n".join([*lines, asked]) if lines else ""


def _limits(need: Need, site: Site) -> str:
    lines: list[str] = []
    for partition in asked_partitions(need, site):
        for level in levels(need, partition, site):
            values = limit_words(level.limits, only_of_groups=level.is_group)
            if values:
                lines.append(f"{level.name}: {', '.join(values)}")
    return "limits: " + "; ".join(dict.fromkeys(lines)) if lines else ""


def _node_names(need: Need, site: Site) -> str:
    return f"nodes: {short_list(sorted(site.nodes))}" if site.nodes else ""


def _reservations(need: Need, site: Site) -> str:
    if site.reservations is None:
        return ""
    return f"reservations (cluster.reservation): {', '.join(sorted(site.reservations)) or 'there is none'}"


def _licenses(need: Need, site: Site) -> str:
    return f"licenses of the site: {', '.join(site.licenses) or 'it configures none'}" if site.version else ""


_SUBJECTS: tuple[tuple[str, Callable[[Need, Site], str]], ...] = (
    (r"partition", _partitions),
    (r"account", _accounts),
    (r"\bqos|QOS", _qos),
    (r"gres|generic resource|\bgpus?\b|tres", _gpus),
    (r"feature|constraint", _features),
    (r"time ?limit|TimeLimit|size and/or time|MaxWall|WallDuration", _times),
    (r"node count|more processors|node limit|nodes? .*(not permitted|limit)|MaxNode|PartitionNode", _nodes),
    (r"node configuration|cpu count|memory", _shapes),
    (
        r"violates accounting|limit exceeded|Max(Submit|Jobs|TRES|Cpu|Node|Wall)|Grp[A-Z]|PerUser|PerAccount|PerJob",
        _limits,
    ),
    (r"invalid node name|node name", _node_names),
    (r"reservation", _reservations),
    (r"license", _licenses),
)
"""What Slurm's message speaks of to what the site has of it. Source: slurm_strerror's texts of 17.11 to 25.05."""
