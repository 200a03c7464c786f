"""The answers of scontrol and sacctmgr as values: formats of Slurm 17.11 to 25.05, pure text, unknown fields ignored.

What differs between versions: fields come and go, ``State`` has more words, a GPU may carry its type and its sockets
(``gpu:a100:8(S:0-1)``), counts and sizes may have units, and «nothing» is spelled ``(null)``, ``N/A``, ``NONE`` or ``n/a``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from hpctrain.plan.site.limits import Node, NodeGroup, NodeShape, Partition, Reservation
from hpctrain.plan.site.need import parse_gres, size_in_mib
from hpctrain.units import parse_slurm_time

_NOTHING = frozenset({"", "(null)", "N/A", "n/a", "NONE", "None", "none"})
_NO_LIMIT = frozenset({*_NOTHING, "UNLIMITED", "INFINITE", "unlimited"})
_BUSY_OR_FREE = frozenset(
    "IDLE MIXED MIX ALLOCATED ALLOC COMPLETING PLANNED CLOUD DYNAMIC_NORM DYNAMIC_FUTURE POWERED_DOWN POWERING_UP"
    " POWERING_DOWN POWER_UP POWER_DOWN POWER RESERVED PERFCTRS BLOCKED REBOOT_REQUESTED UNDRAIN RESUME".split()
)
"""Words of a node that takes jobs, now or after others; any other word (DOWN, DRAIN, MAINT, ...) keeps jobs off."""


def config_values(text: str) -> dict[str, str]:
    """``scontrol show config`` by lower-case key."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip().lower(): value.strip() for key, equals, value in pairs if equals}


def named(value: str) -> str:
    """The value, empty where Slurm says nothing in one of its spellings."""
    return "" if value.strip() in _NOTHING else value.strip()


def names(value: str) -> tuple[str, ...]:
    """The items of a comma list; none where Slurm says nothing."""
    return tuple(item for item in named(value).split(",") if item)


def limit(value: str) -> int | None:
    """A whole number, or None for no limit.

    >>> limit("16"), limit("UNLIMITED"), limit("")
    (16, None, None)
    """
    value = value.strip()
    return None if value in _NO_LIMIT or not value.isdecimal() else int(value)


def size_mib(value: str) -> int | None:
    """A size in MiB, or None for no limit."""
    return None if value.strip() in _NO_LIMIT else size_in_mib(value)


def time_s(value: str) -> int | None:
    """A time in seconds, or None for no limit.

    >>> time_s("1-00:00:00"), time_s("00:30:00"), time_s("UNLIMITED"), time_s("NONE"), time_s("00:00:00")
    (86400, 1800, None, None, 0)
    """
    value = value.strip()
    if value in _NO_LIMIT:
        return None
    if value and not value.strip("0:-"):
        return 0
    try:
        return parse_slurm_time(value)
    except ValueError:  # a word of a version we do not know
        return None


def tres(value: str) -> dict[str, float]:
    """Counts by TRES name; memory in MiB.

    >>> tres("cpu=32,mem=256G,node=4,gres/gpu:a100=8")
    {'cpu': 32.0, 'mem': 262144.0, 'node': 4.0, 'gres/gpu:a100': 8.0}
    """
    counts: dict[str, float] = {}
    for item in named(value).split(","):
        name, _, count = item.partition("=")
        size = size_in_mib(count)
        if size is not None and (name == "mem" or count.isdecimal()):  # cpu=N is a limit that was taken back
            counts[name] = float(size)
    return counts


def partitions(text: str, nodes: Mapping[str, Node] | None, config: Mapping[str, str]) -> dict[str, Partition]:
    """``scontrol show partition --oneliner`` by name.

    Args:
        text: scontrol's answer.
        nodes: for their shapes; None: not known.
        config: of ``config_values``: memory limits that hold where a partition has none of its own.
    """
    groups = node_groups(nodes.values()) if nodes is not None else {}
    found = {}
    for line in text.splitlines():
        # A name may have blanks; in every version AllowGroups follows it.
        head = re.match(r"\s*PartitionName=(.+?)\s+(?=AllowGroups=)", line)
        if head:
            fields = _with_site_memory(one_line_fields(line[head.end() :]), config)
            found[head[1]] = _partition(head[1], fields, groups.get(head[1], ()))
    return found


def _with_site_memory(fields: dict[str, str], config: Mapping[str, str]) -> dict[str, str]:
    for kind in ("Def", "Max"):
        keys = (f"{kind}MemPerCPU", f"{kind}MemPerNode")
        if all(size_mib(fields.get(key, "")) is None for key in keys):
            fields |= {key: config[key.lower()] for key in keys if key.lower() in config}
    if not named(fields.get("JobDefaults", "")):
        fields["JobDefaults"] = config.get("jobdefaults", "")
    return fields


def _partition(name: str, fields: Mapping[str, str], groups: tuple[NodeGroup, ...]) -> Partition:
    def text(key: str, default: str = "") -> str:
        return fields.get(key, default)

    defaults = dict(item.partition("=")[::2] for item in names(text("JobDefaults")))
    return Partition(
        name=name,
        state=text("State", "UP"),
        is_default=text("Default") == "YES",
        allow_accounts=_allowed(text("AllowAccounts", "ALL")),
        deny_accounts=names(text("DenyAccounts")),
        allow_qos=_allowed(text("AllowQos", "ALL")),
        deny_qos=names(text("DenyQos")),
        allow_groups=_allowed(text("AllowGroups", "ALL")),
        qos=named(text("QoS")),
        root_only=text("RootOnly") == "YES",
        no_root_jobs=text("DisableRootJobs") == "YES",
        needs_reservation=text("ReqResv") == "YES",
        min_nodes=limit(text("MinNodes")) or 0,
        max_nodes=limit(text("MaxNodes")),
        total_nodes=limit(text("TotalNodes")) or 0,
        max_time_s=time_s(text("MaxTime")),
        default_time_s=time_s(text("DefaultTime")),
        max_cpus_per_node=limit(text("MaxCPUsPerNode")),
        max_mem_per_node_mib=size_mib(text("MaxMemPerNode")),
        def_mem_per_node_mib=size_mib(text("DefMemPerNode")),
        def_mem_per_cpu_mib=size_mib(text("DefMemPerCPU")),
        def_mem_per_gpu_mib=size_mib(defaults.get("DefMemPerGPU", "")),
        oversubscribe=text("OverSubscribe", text("Shared", "NO")),
        preempt_mode=text("PreemptMode", "OFF"),
        groups=groups,
    )


def _allowed(value: str) -> tuple[str, ...] | None:
    return None if value == "ALL" else names(value)


def one_line_fields(line: str) -> dict[str, str]:
    """``Key=value`` pairs of a line of scontrol; a later pair of the same key stands in free text and is left out."""
    found: dict[str, str] = {}
    for word in line.split():
        key, equals, value = word.partition("=")
        if equals and key not in found:
            found[key] = value
    return found


_NODE_FIELD = re.compile(
    r" (CPUEfctv|CPUTot|AvailableFeatures|Features|Gres|RealMemory|MemSpecLimit|State|ThreadsPerCore|Partitions)=(\S*)"
)


def nodes(text: str) -> dict[str, Node]:
    """``scontrol show node --oneliner`` by name. Nodes of equal text share one shape."""
    shapes: dict[tuple[str, ...], NodeShape] = {}
    states: dict[str, bool] = {}
    found = {}
    for line in text.splitlines():
        if not line.startswith("NodeName="):
            continue
        name = line[9 : line.find(" ")] if " " in line else line[9:]
        # From the end, so that the first of two equal keys stays: free text (Reason, Comment) stands last.
        fields = dict(reversed(_NODE_FIELD.findall(line)))
        get = fields.get
        key = (
            get("CPUEfctv") or get("CPUTot", ""),
            get("RealMemory", ""),
            get("MemSpecLimit", ""),
            get("ThreadsPerCore", ""),
            get("Gres", ""),
            get("AvailableFeatures") or get("Features", ""),
        )
        shape = shapes.get(key)
        if shape is None:
            shape = shapes[key] = _node_shape(key)
        state = get("State", "")
        if state not in states:
            states[state] = _takes_jobs(state)
        found[name] = Node(name, shape, state, states[state], names(get("Partitions", "")))
    return found


def _node_shape(key: tuple[str, ...]) -> NodeShape:
    cpus, memory, reserved, threads, resources, features = key
    return NodeShape(
        cpus=limit(cpus) or 0,
        memory_mib=max(0, (size_mib(memory) or 0) - (size_mib(reserved) or 0)),
        threads_per_core=limit(threads) or 1,
        gres=parse_gres(resources),
        features=names(features),
    )


def _takes_jobs(state: str) -> bool:
    """Whether a node starts jobs, now or when others end.

    >>> [_takes_jobs(text) for text in ("IDLE+CLOUD+POWERED_DOWN", "MIXED-", "IDLE~", "IDLE+DRAIN", "DOWN*+CLOUD", "IDLE*", "")]
    [True, True, True, False, False, False, False]
    """
    words = [word for word in state.split("+") if word]
    # A star: the node does not answer. Other signs say that power goes up or down, or that a job is planned.
    return bool(words) and all(not word.endswith("*") and word.rstrip("~#!%$@^-") in _BUSY_OR_FREE for word in words)


def node_groups(found: Iterable[Node]) -> dict[str, tuple[NodeGroup, ...]]:
    """The nodes of each partition by shape, in the order of the first of each."""
    counts: dict[str, dict[int, Counter[str]]] = {}
    shapes: dict[int, NodeShape] = {}
    for node in found:
        shapes[id(node.shape)] = node.shape
        state = "" if node.is_usable else node.state.split("+")[-1].rstrip("*~#!%$@^-")
        for name in node.partitions:
            counts.setdefault(name, {}).setdefault(id(node.shape), Counter())[state] += 1
    return {
        name: tuple(
            NodeGroup(shapes[shape], by_state[""], tuple(sorted(item for item in by_state.items() if item[0])))
            for shape, by_state in by_shape.items()
        )
        for name, by_shape in counts.items()
    }


def reservations(text: str) -> dict[str, Reservation]:
    """``scontrol show reservation --oneliner`` by name."""
    found = {}
    for line in text.splitlines():
        fields = one_line_fields(line)
        if name := fields.get("ReservationName"):
            found[name] = Reservation(
                name=name,
                state=fields.get("State", ""),
                num_nodes=limit(fields.get("NodeCnt", "")) or 0,
                users=names(fields.get("Users", "")),
                accounts=names(fields.get("Accounts", "")),
                groups=names(fields.get("Groups", "")),
            )
    return found
