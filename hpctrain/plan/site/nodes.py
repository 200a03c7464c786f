"""Which nodes of a partition can carry a request: CPUs, memory, GPUs, features, names. Each shortage is one ``Problem``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from hpctrain.errors import Problem, known_names_hint, nearest_names
from hpctrain.plan.site.limits import NodeGroup, NodeShape, Partition, Site
from hpctrain.plan.site.need import MEMORY_PER_NODE, Need
from hpctrain.units import GIB, MIB, counted, gib

_MAX_LISTED = 8
_CPUS_KEY = "cluster.cpus_per_task"


class _Rule(NamedTuple):
    """One thing that each node must have."""

    key: str
    value: str
    what: str
    """Such as ``8 GPUs``."""
    fits: Callable[[NodeShape], bool]
    nearest: Callable[[int], str]
    """Fix for the greatest amount that enough nodes have."""
    amount: Callable[[NodeShape], int]


def named_nodes_problems(need: Need, site: Site) -> list[Problem]:
    """Node names that the site does not know."""
    if site.nodes is None:
        return []
    problems = []
    for key, asked in (("cluster.nodelist", need.nodelist or ()), ("cluster.exclude", need.exclude)):
        unknown = [name for name in asked if name not in site.nodes]
        if unknown:
            close = nearest_names(unknown[0], site.nodes)
            fix = f"nearest: {', '.join(close)}" if close else f"known: {short_list(site.nodes)}"
            problems.append(Problem(key, short_list(unknown), "the site has no nodes of these names", fix, kind="site"))
    if need.nodelist is not None and len(set(need.nodelist)) > need.num_nodes:
        count = len(set(need.nodelist))
        rule = f"names {counted(count)}, and Slurm uses all of them, but nodes={need.num_nodes}"
        problems.append(
            Problem(
                "cluster.nodelist", short_list(need.nodelist), rule, f"set nodes={count}, or name fewer", kind="site"
            )
        )
    return problems


def node_problems(need: Need, partition: Partition, site: Site) -> tuple[list[Problem], list[str]]:
    """What the nodes of one partition lack, and a warning where enough would fit but too few take jobs now."""
    if strangers := _strangers(need, partition, site):
        return strangers, []
    groups = _groups(need, partition, site)
    if groups is None:
        return [], []
    total = sum(group.total for group in groups)
    if need.num_nodes > total:
        return [_too_many_nodes(need, partition, total)], []
    rules = _rules(need, partition)
    problems = [problem for rule in rules if (problem := _shortage(rule, need, partition, groups))]
    if problems:
        # Memory that nobody stated goes with the CPUs.
        short_of_cpus = any(problem.key == _CPUS_KEY for problem in problems)
        return [problem for problem in problems if not (short_of_cpus and _is_default_memory(problem))], []
    fitting = [group for group in groups if all(rule.fits(group.shape) for rule in rules)]
    together = sum(group.total for group in fitting)
    if together < need.num_nodes:
        what = " and ".join(rule.what for rule in rules)
        rule_text = f"only {together} of partition {partition.name}'s {counted(total)} have {what} at once"
        fix = f"nearest: {together}" if together else "ask for less of one"
        return [Problem("nodes", str(need.num_nodes), rule_text, fix, kind="site")], []
    return [], _usable_warnings(need, partition, fitting)


def _strangers(need: Need, partition: Partition, site: Site) -> list[Problem]:
    """Named nodes that the site has, but not in this partition."""
    named = [site.nodes[name] for name in need.nodelist or () if site.nodes and name in site.nodes]
    outside = [node for node in named if partition.name not in node.partitions]
    if not outside:
        return []
    homes = sorted({name for node in outside for name in node.partitions})
    fix = f"they are in {', '.join(homes)}" if homes else "they are in none"
    rule = f"not in partition {partition.name}"
    return [Problem("cluster.nodelist", short_list(node.name for node in outside), rule, fix, kind="site")]


def named_nodes_warnings(need: Need, site: Site) -> list[str]:
    """Named nodes that take no jobs now: the job waits for just these."""
    named = [site.nodes[name] for name in need.nodelist or () if site.nodes and name in site.nodes]
    return [
        f"cluster.nodelist: {node.name} is {node.state} and takes no jobs now: the job waits for it"
        for node in named[:_MAX_LISTED]
        if not node.is_usable
    ]


def _is_default_memory(problem: Problem) -> bool:
    return problem.key == MEMORY_PER_NODE and problem.value == "null"


def _groups(need: Need, partition: Partition, site: Site) -> tuple[NodeGroup, ...] | None:
    """The nodes that come into question, by shape; None where they are not known."""
    all_named = need.nodelist is not None and len(set(need.nodelist)) >= need.num_nodes
    if not need.exclude and not all_named:
        return (partition.groups if need.constraint else partition.kinds) or None
    if site.nodes is None:
        return None
    members = [
        node
        for node in site.nodes.values()
        if partition.name in node.partitions
        and node.name not in need.exclude
        and not (all_named and node.name not in (need.nodelist or ()))
    ]
    states: dict[NodeShape, Counter[str]] = {}
    for node in members:
        states.setdefault(node.shape, Counter())["" if node.is_usable else node.state] += 1
    return tuple(
        NodeGroup(shape, counts[""], tuple(item for item in counts.items() if item[0]))
        for shape, counts in states.items()
    )


def _too_many_nodes(need: Need, partition: Partition, total: int) -> Problem:
    left = " that are not excluded" if need.exclude else ""
    rule = f"partition {partition.name} has {counted(total)}{left}; Slurm would take the job and never start it"
    return Problem("nodes", str(need.num_nodes), rule, f"nearest: {total}" if total else "", kind="site")


def _shortage(rule: _Rule, need: Need, partition: Partition, groups: tuple[NodeGroup, ...]) -> Problem | None:
    total = sum(group.total for group in groups)
    count = sum(group.total for group in groups if rule.fits(group.shape))
    if count >= need.num_nodes:
        return None
    most = max(rule.amount(group.shape) for group in groups)
    enough = _amount_of_enough(rule, groups, need.num_nodes)
    have = "no node" if not count else f"only {count} of the {total} nodes"
    text = f"{have} of partition {partition.name} {'has' if not count else 'have'} {rule.what}"
    if most and not count:
        text += f" (most: {_shown(rule, most)})"
    return Problem(rule.key, rule.value, text, rule.nearest(enough), kind="site")


def _shown(rule: _Rule, amount: int) -> str:
    return gib(amount * MIB) if "GiB" in rule.what or "MiB" in rule.what else f"{amount:,}"


def _amount_of_enough(rule: _Rule, groups: tuple[NodeGroup, ...], num_nodes: int) -> int:
    """The greatest amount that ``num_nodes`` nodes have."""
    seen = 0
    for group in sorted(groups, key=lambda group: -rule.amount(group.shape)):
        seen += group.total
        if seen >= num_nodes:
            return rule.amount(group.shape)
    return 0


def _rules(need: Need, partition: Partition) -> list[_Rule]:
    rules = [_cpu_rule(need, partition), *_gres_rules(need, partition)]
    if (memory := need.memory_of_node_mib(partition)) > 0:
        rules.append(_memory_rule(need, memory, partition))
    features = constraint_groups(need.constraint)
    if features is not None:
        rules.append(
            _Rule(
                "cluster.constraint",
                need.constraint,
                f"the features {need.constraint}",
                lambda shape: any(group <= set(shape.features) for group in features),
                lambda _: f"features there: {short_list(sorted(partition.features))}",
                lambda _: 0,
            )
        )
    return rules


def cpus_for_jobs(shape: NodeShape, partition: Partition, single_threads: bool) -> int:
    """CPUs of a node that one job may have in a partition."""
    cpus = shape.cpus // shape.threads_per_core if single_threads else shape.cpus
    return cpus if partition.max_cpus_per_node is None else min(cpus, partition.max_cpus_per_node)


def _cpu_rule(need: Need, partition: Partition) -> _Rule:
    ranks, per_task = need.tasks_per_node, need.cpus_per_task or 1

    def nearest(cpus: int) -> str:
        if cpus >= ranks:
            return f"nearest: {cpus // ranks}"
        return f"hardware.gpus_per_node={cpus} is the most with a CPU for each rank" if cpus else ""

    one_each = per_task == 1
    return _Rule(
        "hardware.gpus_per_node" if one_each else _CPUS_KEY,
        str(ranks if one_each else per_task),
        f"{ranks * per_task} CPUs for {ranks} ranks of {per_task}",
        lambda shape: cpus_for_jobs(shape, partition, need.single_threads) >= ranks * per_task,
        nearest,
        lambda shape: cpus_for_jobs(shape, partition, need.single_threads),
    )


def _gres_rules(need: Need, partition: Partition) -> list[_Rule]:
    return [
        _gpu_type_rule(item.type, partition)
        if item.name == "gpu" and item.type and item.type.lower() not in map(str.lower, partition.gpu_types)
        else _gres_rule(item.name, item.type, item.count)
        for item in need.gres
    ]


def _gpu_type_rule(type_name: str, partition: Partition) -> _Rule:
    types = ", ".join(partition.gpu_types) or "none is named"
    return _Rule(
        "cluster.gpu_type",
        type_name,
        f"GPUs of type {type_name}",
        lambda _: False,
        lambda _: f"types there: {types}",
        lambda _: 0,
    )


def _gres_rule(name: str, type_name: str, count: int) -> _Rule:
    words = f"{type_name} {name}".strip().replace("gpu", "GPUs" if count > 1 else "GPU")

    def nearest(most: int) -> str:
        return f"nearest: {most}" if most else "choose another partition"

    return _Rule(
        "hardware.gpus_per_node" if name == "gpu" else "cluster.extra.gres",
        str(count),
        f"{count} {words}",
        lambda shape: shape.gres_count(name, type_name) >= count,
        nearest,
        lambda shape: shape.gres_count(name, type_name),
    )


def _memory_rule(need: Need, memory_mib: int, partition: Partition) -> _Rule:
    stated = need.memory_mib is not None

    def fits(shape: NodeShape) -> bool:
        most = partition.max_mem_per_node_mib
        return memory_mib <= (shape.memory_mib if most is None else min(most, shape.memory_mib))

    def nearest(most: int) -> str:
        if not stated:
            return "set cluster.memory_per_node=0 for all of a node's memory"
        return f"nearest: {most}M, or 0 for all of it" if need.memory_key == MEMORY_PER_NODE else "lower it"

    source = "" if stated else " (not stated; the site's default for each CPU or GPU)"
    return _Rule(
        need.memory_key,
        need.memory_text if stated else "null",
        f"{gib(memory_mib * MIB)} for jobs{source}",
        fits,
        nearest,
        lambda shape: min(shape.memory_mib, partition.max_mem_per_node_mib or shape.memory_mib),
    )


def _usable_warnings(need: Need, partition: Partition, fitting: Iterable[NodeGroup]) -> list[str]:
    usable = sum(group.usable for group in fitting)
    if usable >= need.num_nodes:
        return []
    states = Counter[str]()
    for group in fitting:
        states.update(dict(group.unusable))
    off = ", ".join(f"{count} {state}" for state, count in states.most_common())
    return [
        f"nodes={need.num_nodes}: of partition {partition.name}'s nodes that fit only {usable} take jobs now ({off}):"
        " the job waits until others come back"
    ]


def feature_problems(need: Need, site: Site, partitions: Iterable[Partition]) -> list[Problem]:
    """Features that no node has: Slurm refuses their names. What nodes of a partition lack together is told there."""
    if not need.constraint or site.nodes is None:
        return []
    judged_there = constraint_groups(need.constraint) is not None or "|" in need.constraint
    pool = (site.partitions or {}).values() if judged_there else partitions
    known = {feature for partition in pool for feature in partition.features}
    asked = re.findall(r"[^\s&|,()\[\]*!]+", re.sub(r"\*\d+", "", need.constraint))
    return [
        Problem(
            "cluster.constraint",
            need.constraint,
            f"no node there has the feature {name}",
            known_names_hint(name, known) if known else "its nodes have no features: leave it out",
            kind="site",
        )
        for name in asked
        if name not in known
    ]


def constraint_groups(text: str) -> list[set[str]] | None:
    """Sets of features of which a node must have one whole; None for a form that sets them for the job as a whole.

    >>> constraint_groups("ib&a100") == [{"ib", "a100"}], constraint_groups("x|y") == [{"x"}, {"y"}]
    (True, True)
    >>> constraint_groups("[rack1|rack2]"), constraint_groups("ib*4"), constraint_groups("")
    (None, None, None)
    """
    if not text or any(sign in text for sign in "[]()*!"):
        return None
    return [set(re.split(r"[&,]", group)) for group in text.split("|")]


def short_list(found: Iterable[str]) -> str:
    """The first names of a long list, and how many there are.

    >>> short_list(["a", "b"]), short_list(map(str, range(20)))
    ('a, b', '0, 1, 2, 3, 4, 5, 6, 7, ... (20)')
    """
    listed = list(found)
    more = f", ... ({len(listed)})" if len(listed) > _MAX_LISTED else ""
    return ", ".join(listed[:_MAX_LISTED]) + more


def memory_words(memory_mib: int) -> str:
    """A node's memory for people."""
    return f"{memory_mib * MIB / GIB:,.0f} GiB"
