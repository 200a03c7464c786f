"""Holds a Slurm request against what the site has: every impossible wish as a ``Problem``, what was left out as assumptions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple

from hpctrain.config.schema import ClusterConfig, Config, HardwareConfig
from hpctrain.errors import Problem, known_names_hint
from hpctrain.plan.job.slurm_request import SlurmRequest
from hpctrain.plan.run_plan import RunPlan, no_cpus_warning
from hpctrain.plan.site.accounts import (
    account_problems,
    association_of,
    effective_account,
    effective_qos,
    limit_problems,
    qos_problems,
    submit_limit,
)
from hpctrain.plan.site.derive import (
    derive_cpus,
    derive_gpu_form,
    derive_gpu_type,
    gpu_form_problems,
    memory_verdict,
    told_defaults,
)
from hpctrain.plan.site.limits import Partition, Qos, Site
from hpctrain.plan.site.need import Need, asked_partitions, request_need
from hpctrain.plan.site.nodes import (
    feature_problems,
    named_nodes_problems,
    named_nodes_warnings,
    node_problems,
    short_list,
)
from hpctrain.units import counted, duration_in_words, slurm_time

_MAX_OFFERED = 3


class SiteVerdict(NamedTuple):
    """What the site says of one request."""

    request: SlurmRequest
    """With what the partition decides filled in."""
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()


def plan_on_site(plan: RunPlan, config: Config, site: Site) -> RunPlan:
    """The plan with what the site says: values that were left out, assumptions, warnings and problems."""
    host_bytes = plan.memory.host_bytes_per_node if plan.payload == "train" else 0
    verdict = hold_against_site(plan.slurm, config.cluster, config.hardware, host_bytes, site)
    stale = no_cpus_warning(config.hardware) if verdict.request.cpus_per_task is not None else ""
    return dataclasses.replace(
        plan,
        slurm=verdict.request,
        assumptions=(*plan.assumptions, *verdict.assumptions),
        warnings=(*(text for text in plan.warnings if text != stale), *verdict.warnings),
        problems=(*plan.problems, *verdict.problems),
    )


class _PartitionVerdict(NamedTuple):
    partition: Partition
    problems: list[Problem]
    warnings: list[str]


def hold_against_site(
    request: SlurmRequest, cluster: ClusterConfig, hardware: HardwareConfig, host_bytes_per_node: int, site: Site
) -> SiteVerdict:
    """Everything that is wrong at once; a site that could not be asked says nothing.

    Args:
        request: what sbatch would be asked for.
        cluster: what of it the user stated.
        hardware: which GPUs the plan rests on.
        host_bytes_per_node: the plan's estimate of host memory.
        site: what the cluster answered.
    """
    request, form_notes = derive_gpu_form(request, cluster, site)
    need = request_need(request)
    common = [
        *gpu_form_problems(request, cluster, site),
        *account_problems(need, site),
        *named_nodes_problems(need, site),
        *_reservation_problems(need, site),
    ]
    if site.partitions is None:
        return SiteVerdict(request, tuple(common), (), tuple(form_notes))
    partitions = asked_partitions(need, site)
    common += _partition_problems(need, site)
    if not partitions:
        return SiteVerdict(request, tuple(common))
    common += _gpu_existence_problems(need, cluster, site) + feature_problems(need, site, partitions)
    request, need, notes, doubts = _derived(request, need, cluster, hardware, partitions)
    notes = form_notes + notes
    verdicts = [_held_against(need, partition, site) for partition in partitions]
    possible = [verdict for verdict in verdicts if not verdict.problems]
    all_must = site.enforce_part_limits in ("ALL", "YES")
    if common or not possible or (all_must and len(possible) < len(verdicts)):
        told = {problem.key for problem in common}
        found = [problem for verdict in verdicts for problem in verdict.problems if problem.key not in told]
        if not common and found and not possible:
            found = _with_offer(found, need, partitions, site)
        return SiteVerdict(request, tuple(dict.fromkeys([*common, *found])), tuple(doubts), tuple(notes))
    warnings = [*doubts, *(text for verdict in possible for text in verdict.warnings)]
    warnings += [
        f"partition {verdict.partition.name} of cluster.partition={','.join(need.partitions)} cannot run it: {problem}"
        for verdict in verdicts
        for problem in verdict.problems
    ]
    first = possible[0].partition
    too_large, memory_doubts = memory_verdict(need, [verdict.partition for verdict in possible], host_bytes_per_node)
    warnings += [
        *named_nodes_warnings(need, site),
        *_reservation_warnings(need, site),
        *memory_doubts,
        *_requeue_warnings(request, first, site),
    ]
    return SiteVerdict(
        request,
        too_large,
        tuple(dict.fromkeys(warnings)),
        (*told_defaults(need, cluster, first), *notes),
    )


def _derived(
    request: SlurmRequest, need: Need, cluster: ClusterConfig, hardware: HardwareConfig, partitions: list[Partition]
) -> tuple[SlurmRequest, Need, list[str], list[str]]:
    """The request with what was left out, as numbers; assumptions and doubts."""
    notes: list[str] = []
    doubts: list[str] = []
    if len(partitions) == 1:
        request, notes, doubts = derive_gpu_type(request, need, hardware, partitions[0])
        need = request_need(request)
    request, cpu_notes = derive_cpus(request, need, cluster, hardware, partitions)
    return request, request_need(request), notes + cpu_notes, doubts


def _partition_problems(need: Need, site: Site) -> list[Problem]:
    """Partitions that the site does not have, or none named where it has no default one."""
    known = site.partitions or {}
    if not need.partitions and site.default_partition is None:
        rule = "must be stated: this site has no default partition"
        return [_problem("cluster.partition", "null", rule, known_names_hint("", known))]
    return [
        _problem("cluster.partition", name, "the site has no such partition", known_names_hint(name, known))
        for name in need.partitions
        if name not in known
    ]


def _held_against(need: Need, partition: Partition, site: Site) -> _PartitionVerdict:
    """One partition: its state, who may use it, its limits, those of accounting, its nodes."""
    qos = _qos(need, partition, site)
    flags = qos.flags if qos is not None else ()
    problems = [
        *_access_problems(need, partition, site, qos),
        *_count_problems(need, partition, flags),
        *_time_problems(need, partition, flags),
        *qos_problems(need, partition, site),
        *limit_problems(need, partition, site, need.time_s),
    ]
    found, warnings = node_problems(need, partition, site)
    if any(problem.key == "nodes" for problem in problems):
        found = [problem for problem in found if problem.key != "nodes"]
    if partition.state == "DOWN":
        warnings.append(
            f"partition {partition.name} is DOWN: Slurm takes the job and starts it when the partition is up again"
        )
    return _PartitionVerdict(partition, [*problems, *found], warnings)


def _qos(need: Need, partition: Partition, site: Site) -> Qos | None:
    if site.accounting is None:
        return None
    return effective_qos(need, association_of(need, partition, site), site.accounting)


def _access_problems(need: Need, partition: Partition, site: Site, qos: Qos | None) -> list[Problem]:
    name, problems = partition.name, []
    if partition.state in ("DRAIN", "INACTIVE"):
        rule = f"partition {name} is {partition.state} and takes no jobs"
        problems.append(_problem("cluster.partition", name, rule, ""))
    if partition.root_only and not site.is_root:
        problems.append(_problem("cluster.partition", name, "is for root only (RootOnly)", ""))
    if partition.no_root_jobs and site.is_root:
        problems.append(_problem("cluster.partition", name, "takes no jobs of root (DisableRootJobs)", ""))
    if qos is not None and "RequiresReservation" in qos.flags and not need.reservation:
        problems.append(
            _problem("cluster.reservation", "null", f"QOS {qos.name} takes jobs with a reservation only", "")
        )
    if partition.needs_reservation and not need.reservation:
        problems.append(
            _problem("cluster.reservation", "null", f"partition {name} takes jobs with a reservation only", "")
        )
    groups = partition.allow_groups
    if groups is not None and not site.is_root and not set(groups) & set(site.user_groups):
        rule = f"is for the groups {short_list(groups)}, and {site.user or 'you'} is in none of them"
        problems.append(_problem("cluster.partition", name, rule, ""))
    problems += _member_problems(
        "account", effective_account(need, site), partition, partition.allow_accounts, partition.deny_accounts
    )
    qos_name = qos.name if qos is not None else need.qos
    problems += _member_problems("qos", qos_name, partition, partition.allow_qos, partition.deny_qos)
    return problems


def _member_problems(
    what: str, name: str, partition: Partition, allowed: tuple[str, ...] | None, denied: tuple[str, ...]
) -> list[Problem]:
    """An account or QOS that the partition does not take."""
    if not name:
        return []
    wanted = name.lower()
    if allowed is not None and wanted not in {item.lower() for item in allowed}:
        rule = f"partition {partition.name} does not take it"
        return [_problem(f"cluster.{what}", name, rule, known_names_hint(name, allowed))]
    if allowed is None and wanted in {item.lower() for item in denied}:
        rule = f"partition {partition.name} does not take it"
        return [_problem(f"cluster.{what}", name, rule, f"any but {short_list(denied)}")]
    return []


def _count_problems(need: Need, partition: Partition, flags: tuple[str, ...]) -> list[Problem]:
    name, count = partition.name, need.num_nodes
    if partition.max_nodes is not None and count > partition.max_nodes and "PartitionMaxNodes" not in flags:
        rule = f"partition {name} allows at most {counted(partition.max_nodes)} a job (MaxNodes)"
        return [_problem("nodes", str(count), rule, f"nearest: {partition.max_nodes}")]
    if count < partition.min_nodes and "PartitionMinNodes" not in flags:
        rule = f"partition {name} wants at least {counted(partition.min_nodes)} a job (MinNodes)"
        return [_problem("nodes", str(count), rule, f"nearest: {partition.min_nodes}")]
    if count > partition.total_nodes and not partition.groups:
        rule = f"partition {name} has {counted(partition.total_nodes)}"
        return [
            _problem("nodes", str(count), rule, f"nearest: {partition.total_nodes}" if partition.total_nodes else "")
        ]
    return []


def _time_problems(need: Need, partition: Partition, flags: tuple[str, ...]) -> list[Problem]:
    most = partition.max_time_s
    given = most if partition.default_time_s is None else partition.default_time_s
    if need.time_s is None and given is not None and need.signal_lead_s >= given:
        rule = f"the warning must come before the end, and cluster.time=null gets {duration_in_words(given)} here"
        fix = f"nearest: {max(1, given // 2)}, or set cluster.time"
        return [_problem("cluster.signal_lead_s", str(need.signal_lead_s), rule, fix)]
    if need.time_s is None or most is None or need.time_s <= most or "PartitionTimeLimit" in flags:
        return []
    asked = slurm_time(need.time_s)
    words = "no limit" if math.isinf(need.time_s) else duration_in_words(need.time_s)
    rule = f"{words}, and partition {partition.name} allows {duration_in_words(most)} (MaxTime)"
    return [
        _problem("cluster.time", asked, rule, f"nearest: {slurm_time(most)}; for a longer run launch.chain=requeue")
    ]


def _gpu_existence_problems(need: Need, cluster: ClusterConfig, site: Site) -> list[Problem]:
    """Resources and GPU types that the site does not know at all: Slurm refuses their names."""
    partitions = (site.partitions or {}).values()
    problems = []
    for item in need.gres:
        key = "cluster.gpu_request" if item.name == "gpu" else "cluster.extra.gres"
        value = cluster.gpu_request if item.name == "gpu" else item.name
        if site.gres_types is not None and item.name not in site.gres_types:
            rule = (
                f"asks Slurm for {item.name}, and the site configures {short_list(site.gres_types) or 'no resources'}"
            )
            fix = "cluster.gpu_request=none asks for none" if item.name == "gpu" else ""
            problems.append(_problem(key, value, rule, fix))
            continue
        types = sorted({name for partition in partitions for name in partition.gpu_types})
        if (
            item.name == "gpu"
            and item.type
            and site.nodes is not None
            and item.type.lower() not in map(str.lower, types)
        ):
            rule = "the site has no GPUs of this type"
            fix = known_names_hint(item.type, types) if types else "it names no types: leave it out"
            problems.append(_problem("cluster.gpu_type", item.type, rule, fix))
    return problems


def _requeue_warnings(request: SlurmRequest, partition: Partition, site: Site) -> list[str]:
    """Where a job that must give way does not come back by itself."""
    if "CANCEL" in partition.preempt_mode.split(","):
        return [
            f"partition {partition.name} cancels preempted jobs and does not requeue them: resume starts the run again"
        ]
    if request.requeue is None and not site.job_requeue:
        return [
            "cluster.requeue=null: this site does not requeue jobs by itself (JobRequeue=0); resume starts the run again"
        ]
    return []


def _reservation_problems(need: Need, site: Site) -> list[Problem]:
    problems = []
    for name in filter(None, need.reservation.split(",")):
        if site.reservations is None:
            continue
        found = site.reservations.get(name)
        if found is None:
            hint = known_names_hint(name, site.reservations) if site.reservations else "there is none: leave it out"
            problems.append(_problem("cluster.reservation", name, "the site has no such reservation", hint))
            continue
        users = [user for user in found.users if not user.startswith("-")]
        account = effective_account(need, site)
        by_account = bool(account) and account in found.accounts
        denied = f"-{site.user}" in found.users or f"-{account}" in found.accounts
        named = bool(users or [item for item in found.accounts if not item.startswith("-")])
        if denied or (named and not site.is_root and site.user not in users and not by_account and not found.groups):
            rule = f"is for users {short_list(users) or '-'} and accounts {short_list(found.accounts) or '-'}"
            problems.append(_problem("cluster.reservation", name, rule, "ask its owner, or leave it out"))
        elif found.num_nodes and found.num_nodes < need.num_nodes and "," not in need.reservation:
            rule = f"reservation {name} has {counted(found.num_nodes)}"
            problems.append(_problem("nodes", str(need.num_nodes), rule, f"nearest: {found.num_nodes}"))
    return problems


def _reservation_warnings(need: Need, site: Site) -> list[str]:
    known = site.reservations or {}
    return [
        f"cluster.reservation: {name} is INACTIVE: it begins later or is over, and the job waits for it"
        for name in need.reservation.split(",")
        if name in known and known[name].state == "INACTIVE"
    ]


def _with_offer(problems: list[Problem], need: Need, tried: Iterable[Partition], site: Site) -> list[Problem]:
    """The problems, and at the last one the other partitions that could run the request as it is."""
    names = {partition.name for partition in tried}
    able = [
        partition.name
        for partition in (site.partitions or {}).values()
        if partition.name not in names
        and partition.state == "UP"
        and not _held_against(dataclasses.replace(need, partitions=(partition.name,)), partition, site).problems
    ]
    if not able:
        return problems
    offer = f"cluster.partition={' or '.join(able[:_MAX_OFFERED])} could run it as it is"
    last = problems[-1]
    fix = f"{last.fix}; {offer}" if last.fix else offer
    return [*problems[:-1], dataclasses.replace(last, fix=fix)]


def sweep_warnings(need: Need, num_jobs: int, site: Site) -> list[str]:
    """Limits on the number of jobs that a sweep of ``num_jobs`` points runs into; Slurm then refuses the rest."""
    found = [
        limit
        for partition in asked_partitions(need, site)[:1]
        if (limit := submit_limit(need, partition, site)) is not None
    ]
    if site.max_job_count is not None:
        found.append((site.max_job_count, "the site (MaxJobCount)"))
    return [
        f"a sweep of {num_jobs:,} points: {who} allows {most:,} jobs waiting and running at once; launch.submit_wait_min waits"
        " for room, and the same launch.sweep_name later submits what is left"
        for most, who in found
        if num_jobs > most
    ]


def _problem(key: str, value: str, rule: str, fix: str) -> Problem:
    return Problem(key, value, rule, fix, kind="site")
