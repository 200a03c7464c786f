"""Accounts, QOS and their limits: what accounting lets one job of this user do. Sizes of memory in MiB.

Source: Slurm's «Resource Limits» page: of the same limit at several levels the first binds, in the order QOS of the partition,
QOS of the job (the other way round with OverPartQOS), the user's association; limits of a group (Grp) bind at each account
above, too. A limit that a QOS sets is not asked for again at the association.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hpctrain.errors import Problem, known_names_hint
from hpctrain.plan.site.limits import Accounting, Association, Limits, Partition, Qos, Site
from hpctrain.plan.site.need import Need
from hpctrain.units import MIB, counted, duration_in_words, gib, slurm_time


class Level(NamedTuple):
    """Where a limit is set, in words, and its values."""

    name: str
    limits: Limits
    is_group: bool = False
    """An account above the user's own: only its Grp limits bind."""


def effective_account(need: Need, site: Site) -> str:
    """The account the job would run under; empty where it is not known."""
    if need.account or site.accounting is None:
        return need.account
    return site.accounting.default_account


def account_problems(need: Need, site: Site) -> list[Problem]:
    """An account that this user may not use."""
    accounting = site.accounting
    if accounting is None or "associations" not in site.enforce:
        return []
    known = sorted({association.account for association in accounting.associations})
    if not known:
        rule = f"user {site.user} has no account on cluster {site.cluster}, which it asks for"
        return [_problem("cluster.account", need.account or "null", rule, "ask the site for one")]
    account = effective_account(need, site)
    if not account:
        return [_problem("cluster.account", "null", "must be stated: you have no default account", _known(known))]
    if account not in known:
        rule = f"user {site.user} may not use this account on cluster {site.cluster}"
        return [_problem("cluster.account", account, rule, known_names_hint(account, known))]
    rows = [row for row in accounting.associations if row.account == account]
    open_to = sorted({row.partition for row in rows})
    asked = need.partitions or ((default.name,) if (default := site.default_partition) else ())
    if "" not in open_to and asked and not set(asked) & set(open_to):
        rule = f"account {account} may be used in {', '.join(open_to)} only"
        return [_problem("cluster.partition", ",".join(asked), rule, f"nearest: {open_to[0]}")]
    return []


def _known(names: list[str]) -> str:
    return f"known: {', '.join(names)}"


def association_of(need: Need, partition: Partition, site: Site) -> Association | None:
    """The user's association that Slurm would take: the one for the partition before the one for all."""
    if site.accounting is None:
        return None
    account = effective_account(need, site)
    rows = [row for row in site.accounting.associations if row.account == account]
    of_partition = [row for row in rows if row.partition == partition.name]
    of_all = [row for row in rows if not row.partition]
    return next(iter([*of_partition, *of_all]), None)


def effective_qos(need: Need, association: Association | None, accounting: Accounting) -> Qos | None:
    """The QOS the job would have; None where it is not known."""
    name = need.qos
    if not name and association is not None:
        name = association.default_qos or (association.qos[0] if len(association.qos) == 1 else "normal")
    return accounting.qos.get(name)


def qos_problems(need: Need, partition: Partition, site: Site) -> list[Problem]:
    """A QOS that is not there, or not for this account."""
    accounting = site.accounting
    if accounting is None or not need.qos or "qos" not in site.enforce:
        return []
    association = association_of(need, partition, site)
    allowed = sorted(accounting.qos) if association is None else sorted(allowed_qos(association, accounting))
    if need.qos not in accounting.qos:
        return [_problem("cluster.qos", need.qos, "the site has no such QOS", known_names_hint(need.qos, allowed))]
    if need.qos not in allowed and association is not None:
        rule = f"account {association.account} may not use it"
        return [_problem("cluster.qos", need.qos, rule, known_names_hint(need.qos, allowed))]
    return []


def allowed_qos(association: Association, accounting: Accounting) -> tuple[str, ...]:
    """Names of the QOS that an association may use."""
    if not association.qos:
        return tuple(accounting.qos)
    # +name and -name change what the parent has, which is in the list already.
    return tuple(name.lstrip("+") for name in association.qos if not name.startswith("-"))


def levels(need: Need, partition: Partition, site: Site) -> list[Level]:
    """Where limits of this job can be set, the first binding first; empty where limits do not bind."""
    accounting = site.accounting
    if accounting is None or "limits" not in site.enforce:
        return []
    association = association_of(need, partition, site)
    job_qos = effective_qos(need, association, accounting)
    of_partition = accounting.qos.get(partition.qos.lower())
    found = []
    if of_partition is not None:
        found.append(Level(f"QOS {of_partition.name} of partition {partition.name}", of_partition.limits))
    if job_qos is not None and job_qos is not of_partition:
        first = "OverPartQOS" in job_qos.flags
        found.insert(0 if first else len(found), Level(f"QOS {job_qos.name}", job_qos.limits))
    if association is not None:
        found.append(Level(f"account {association.account}", association.limits))
        found += [
            Level(f"account {name}", limits, is_group=True)
            for name, limits in _accounts_above(association.account, accounting)
        ]
    return found


def _accounts_above(name: str, accounting: Accounting) -> Iterator[tuple[str, Limits]]:
    """The account itself, whose Grp limits its users share, and its parents."""
    seen: set[str] = set()
    while name in accounting.accounts and name not in seen:
        seen.add(name)
        account = accounting.accounts[name]
        yield name, account.limits
        name = account.parent


def limit_problems(need: Need, partition: Partition, site: Site, time_s: float | None) -> list[Problem]:
    """Limits of accounting that one job alone breaks: Slurm refuses it, or takes it and never starts it."""
    found = levels(need, partition, site)
    return [*_wall_problems(found, need, time_s), *_tres_problems(found, need, partition), *_job_count_problems(found)]


def _wall_problems(found: list[Level], need: Need, time_s: float | None) -> list[Problem]:
    if need.time_s is None or time_s is None:
        return []  # Slurm fills the limit in
    binding = next((level for level in found if level.limits.max_wall_s is not None and not level.is_group), None)
    if binding is None or binding.limits.max_wall_s is None or time_s <= binding.limits.max_wall_s:
        return []
    most = binding.limits.max_wall_s
    rule = f"{binding.name} allows at most {duration_in_words(most)} (MaxWall)"
    return [_problem("cluster.time", slurm_time(time_s), rule, f"nearest: {slurm_time(most)}")]


_TRES_LIMITS = (
    ("max_tres", "MaxTRES, one job", False),
    ("max_tres_per_node", "MaxTRESPerNode", True),
    ("max_tres_per_user", "MaxTRESPerUser, all jobs of one user", False),
    ("max_tres_per_account", "MaxTRESPerAccount, all jobs of one account", False),
    ("group_tres", "GrpTRES, all its jobs together", False),
)
"""Field of ``Limits``, its name in words, and whether it is of one node."""


def _tres_problems(found: list[Level], need: Need, partition: Partition) -> list[Problem]:
    of_node = _tres_of_node(need, partition)
    of_job = {"node": float(need.num_nodes)} | {name: need.num_nodes * count for name, count in of_node.items()}
    problems = []
    for field, words, per_node in _TRES_LIMITS:
        asked = of_node if per_node else of_job
        for level, name, most in _binding(found, field, field == "group_tres"):
            if asked.get(name, 0) > most:
                problems.append(_tres_problem(name, asked[name], most, f"{level.name}: {words}", need, per_node))
    for level, name, least in _binding(found, "min_tres", False):
        if (asked_for := of_job.get(name, 0.0 if name.startswith("gres/") else least)) < least:
            rule = f"the job asks for {_amount(name, asked_for)}; {level.name} wants at least {_amount(name, least)} (MinTRES)"
            problems.append(_problem(_tres_key(name), "", rule, "ask for more, or set another cluster.qos"))
    return problems


def _binding(found: list[Level], field: str, in_groups: bool) -> Iterator[tuple[Level, str, float]]:
    """Each limit that binds: the first level that sets it; of a group also each account above."""
    seen: set[str] = set()
    for level in found:
        values: Mapping[str, float] = getattr(level.limits, field)
        for name, most in values.items():
            if level.is_group and not in_groups:
                continue
            if name not in seen or level.is_group:
                yield level, name, most
        if not level.is_group:
            seen |= set(values)


def _tres_of_node(need: Need, partition: Partition) -> dict[str, float]:
    """What the job takes of one node, by TRES name; what is not known is left out."""
    found: dict[str, float] = {}
    if need.cpus_per_task is not None:
        found["cpu"] = float(need.cpus_per_node)
    if (memory := need.memory_of_node_mib(partition)) > 0:
        found["mem"] = float(memory)
    for item in need.gres:
        found[f"gres/{item.name}"] = found.get(f"gres/{item.name}", 0.0) + item.count
        if item.type:
            found[f"gres/{item.name}:{item.type}"] = float(item.count)
    return found


def _tres_problem(name: str, asked: float, most: float, limit: str, need: Need, per_node: bool) -> Problem:
    rule = f"the job asks for {_amount(name, asked)}{' a node' if per_node else ''}; {limit}, is {_amount(name, most)}"
    per_unit = asked if per_node else asked / need.num_nodes
    if per_node:
        return _problem(_tres_key(name), "", rule, f"at most {_amount(name, most)} a node")
    nodes = int(most // per_unit) if per_unit else 0
    fix = f"nearest: nodes={nodes}" if nodes else "another cluster.qos or cluster.account may allow more"
    return _problem("nodes", str(need.num_nodes), rule, fix)


def _tres_key(name: str) -> str:
    if name.startswith("gres/gpu"):
        return "hardware.gpus_per_node"
    return {"cpu": "cluster.cpus_per_task", "mem": "cluster.memory_per_node", "node": "nodes"}.get(
        name, "cluster.extra"
    )


def _amount(name: str, count: float) -> str:
    if name == "mem":
        return f"{gib(count * MIB)} of memory"
    nouns = {"cpu": "CPU", "node": "node", "gres/gpu": "GPU"}
    return counted(count, nouns[name]) if name in nouns else f"{count:,.0f} {name.removeprefix('gres/')}"


_COUNT_LIMITS = (
    ("max_jobs", "MaxJobs"),
    ("max_submit", "MaxSubmitJobs"),
    ("group_jobs", "GrpJobs"),
    ("group_submit", "GrpSubmitJobs"),
)


def _job_count_problems(found: list[Level]) -> list[Problem]:
    return [
        _problem("cluster.qos", "", f"{level.name} allows no job at all ({words}=0)", "another cluster.qos or account")
        for field, words in _COUNT_LIMITS
        for level in found
        if getattr(level.limits, field) == 0
    ]


_LIMIT_NAMES = {
    "max_tres": "MaxTRES",
    "max_tres_per_node": "MaxTRESPerNode",
    "max_tres_per_user": "MaxTRESPerUser",
    "max_tres_per_account": "MaxTRESPerAccount",
    "group_tres": "GrpTRES",
    "min_tres": "MinTRES",
    "max_jobs": "MaxJobs",
    "max_submit": "MaxSubmitJobs",
    "group_jobs": "GrpJobs",
    "group_submit": "GrpSubmitJobs",
}
"""A field of ``Limits`` to Slurm's name."""


def limit_words(limits: Limits, only_of_groups: bool = False) -> list[str]:
    """The limits that are set, in Slurm's names.

    >>> limit_words(Limits(max_wall_s=3600, max_tres={"node": 4.0}, max_jobs=2))
    ['MaxWall 1 h', 'MaxTRES node=4', 'MaxJobs 2']
    """
    words = []
    if limits.max_wall_s is not None and not only_of_groups:
        words.append(f"MaxWall {duration_in_words(limits.max_wall_s)}")
    for field, name in _LIMIT_NAMES.items():
        value = getattr(limits, field)
        if value in (None, {}) or (only_of_groups and not field.startswith("group")):
            continue
        amounts = ",".join(f"{tres}={count:g}" for tres, count in value.items()) if isinstance(value, dict) else value
        words.append(f"{name} {amounts}")
    return words


def submit_limit(need: Need, partition: Partition, site: Site) -> tuple[int, str] | None:
    """How many jobs this user may have waiting and running, and who says so; None: no limit is known."""
    limits = [
        (value, f"{level.name} ({words})")
        for level in levels(need, partition, site)
        for field, words in (("max_submit", "MaxSubmitJobs"), ("group_submit", "GrpSubmitJobs"))
        if (value := getattr(level.limits, field)) is not None and not (level.is_group and field == "max_submit")
    ]
    return min(limits, default=None)


def _problem(key: str, value: str, rule: str, fix: str) -> Problem:
    return Problem(key, value, rule, fix, kind="site")
