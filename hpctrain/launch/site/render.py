"""What a site has, as text for people."""

from __future__ import annotations

from collections.abc import Iterable

from hpctrain.plan.site.accounts import allowed_qos, limit_words
from hpctrain.plan.site.limits import Limits, NodeShape, Partition, Site
from hpctrain.plan.site.nodes import short_list
from hpctrain.text_table import MISSING, aligned
from hpctrain.units import GIB, MIB, duration_in_words


def render_site(site: Site) -> str:
    """Name and limits, accounting of the asking user, the table of partitions, and what could not be asked."""
    parts = ["\n".join(_heading(site))]
    if site.partitions:
        parts.append(partition_table(site.partitions.values()))
    if site.reservations:
        parts.append(f"reservations: {short_list(site.reservations)}")
    parts += [f"not known: {gap}" for gap in site.gaps]
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(site: Site) -> list[str]:
    lines = [f"cluster {site.cluster} (Slurm {site.version}), asked as {site.user}"] if site.cluster else []
    limits = [
        *([f"arrays of up to {site.max_array_size:,} tasks (MaxArraySize)"] if site.max_array_size else []),
        *([f"{site.max_job_count:,} jobs at once (MaxJobCount)"] if site.max_job_count else []),
        *([f"submit plug-ins {', '.join(site.job_submit_plugins)}"] if site.job_submit_plugins else []),
    ]
    if limits:
        lines.append(f"limits: {', '.join(limits)}")
    return [*lines, *_accounting_lines(site)] if site.version else lines


def _accounting_lines(site: Site) -> list[str]:
    if not site.has_accounting:
        return ["accounting: none (no slurmdbd): Slurm forgets ended jobs after some minutes"]
    enforced = [word for word in ("associations", "limits", "qos") if word in site.enforce]
    binds = f"{', '.join(enforced)} bind" if enforced else "no account, limit or QOS binds"
    if site.accounting is None:
        return [f"accounting: slurmdbd; {binds}"]
    names = sorted({row.account for row in site.accounting.associations})
    default = site.accounting.default_account
    accounts = ", ".join(f"{name} (default)" if name == default else name for name in names) or "none"
    lines = [f"accounting: slurmdbd; {binds}; your accounts: {accounts}"]
    for row in site.accounting.associations:
        where = f" in partition {row.partition}" if row.partition else ""
        qos = short_list(allowed_qos(row, site.accounting))
        lines.append(f"  account {row.account}{where}: QOS {qos}{_limit_words(row.limits)}")
    for qos_name, found in site.accounting.qos.items():
        if words := _limit_words(found.limits):
            lines.append(f"  QOS {qos_name}{words}")
    return lines


def _limit_words(limits: Limits) -> str:
    words = limit_words(limits)
    return f"; {', '.join(words)}" if words else ""


def partition_table(partitions: Iterable[Partition]) -> str:
    """One line a partition; the default one has a star. CPUs and memory are of one node, smallest to greatest."""
    rows = [
        [
            "PARTITION",
            "STATE",
            "NODES",
            "TAKE JOBS",
            "CPUS",
            "MEMORY GiB",
            "GPUS A NODE",
            "MAX TIME",
            "MAX NODES",
            "NOTES",
        ]
    ]
    for partition in partitions:
        shapes = [group.shape for group in partition.kinds]
        rows.append(
            [
                f"{partition.name}{'*' if partition.is_default else ''}",
                partition.state,
                f"{partition.total_nodes:,}",
                f"{partition.usable_nodes:,}" if partition.groups else MISSING,
                _range(shape.cpus for shape in shapes),
                _range(round(shape.memory_mib * MIB / GIB) for shape in shapes),
                gpu_words(shapes),
                "unlimited" if partition.max_time_s is None else duration_in_words(partition.max_time_s),
                MISSING if partition.max_nodes is None else f"{partition.max_nodes:,}",
                "; ".join(_notes(partition)) or MISSING,
            ]
        )
    return aligned(rows)


def _range(values: Iterable[int]) -> str:
    found = sorted(set(values))
    if not found:
        return MISSING
    return f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}"


def gpu_words(shapes: Iterable[NodeShape]) -> str:
    """Kinds of GPUs on nodes, such as ``8 x a100 or 4 x v100``."""
    kinds = {
        " + ".join(f"{gres.count} x {gres.type or 'gpu'}" for gres in shape.gres if gres.name == "gpu")
        for shape in shapes
    }
    return " or ".join(sorted(kinds - {""})) or MISSING


def _notes(partition: Partition) -> list[str]:
    notes = []
    if partition.default_time_s is not None:
        notes.append(f"default time {duration_in_words(partition.default_time_s)}")
    if partition.gives_whole_nodes:
        notes.append("whole nodes")
    if partition.preempt_mode not in ("OFF", ""):
        notes.append(f"preemption {partition.preempt_mode.lower()}")
    if partition.qos:
        notes.append(f"QOS {partition.qos}")
    if partition.needs_reservation:
        notes.append("with a reservation only")
    if partition.root_only:
        notes.append("root only")
    for what, allowed in (
        ("accounts", partition.allow_accounts),
        ("groups", partition.allow_groups),
        ("QOS", partition.allow_qos),
    ):
        if allowed is not None:
            notes.append(f"{what} {short_list(allowed)} only")
    return notes
