"""The memory of a plan as text: tier by tier what is taken, by what, and what is free; a checkpoint's size; peaks by phase."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.plan.checkpoint_size import saved_bytes
from hpctrain.plan.memory.estimate import MemoryEstimate
from hpctrain.plan.nvme.need import NvmeNeed
from hpctrain.plan.run_plan import RunPlan
from hpctrain.units import gib

_FOUND_BY = {
    "rules": "an estimate by closed rules",
    "rehearsal": "found by the real engine on a simulated cluster",
}
_NAME_WIDTH = 30
_SMALL_SHARE = 0.005
"""Terms below this share of what is taken are told together."""


def render_memory(plan: RunPlan) -> str:
    """The three tiers, the largest term of each first, then what the phases of a run peak at."""
    memory = plan.memory
    ranks = memory.ranks_per_node
    lines = [
        f"memory by tier ({_FOUND_BY[memory.found_by]}, not measured; % of what there is, or of what is needed if more)"
    ]
    if memory.gpu_bytes or memory.gpu_capacity_bytes is not None:
        of_gpu = [(term.name, term.num_bytes) for term in memory.terms if term.tier == "gpu"]
        lines += _tier("a GPU", memory.gpu_capacity_bytes, memory.gpu_bytes, of_gpu)
    of_host = [(term.name, ranks * term.num_bytes) for term in memory.terms if term.tier == "host"]
    name = f"a node's memory, {ranks} rank{'s' * (ranks != 1)}"
    lines += _tier(name, memory.host_capacity_bytes, memory.host_bytes_per_node, of_host, _pinned(memory))
    if plan.nvme is not None:
        where = f"below {plan.nvme.folder or '(not stated)'}"
        lines += _tier("a node's NVMe", plan.nvme.capacity_bytes, plan.nvme.bytes_per_node, _on_nvme(plan.nvme), where)
    lines.append(_row("a checkpoint on disk", gib(saved_bytes(plan)), "all ranks together"))
    return "\n".join([*lines, *_phases(memory)])


def _tier(name: str, capacity: int | None, taken: int, terms: Sequence[tuple[str, int]], beside: str = "") -> list[str]:
    """One line for the tier, and one for each of its terms with its share of what there is, or of what is taken."""
    if capacity is None:
        room = "capacity not stated"
    else:
        free = capacity - taken
        room = f"of {gib(capacity)}, " + (f"{gib(free)} free" if free >= 0 else f"short by {gib(-free)}")
    lines = [_row(name, gib(taken), "; ".join(filter(None, (room, beside))))]
    whole = max(taken, capacity or 0, 1)
    shown = sorted((term for term in terms if term[1] >= _SMALL_SHARE * taken), key=lambda term: -term[1])
    lines += [_row(f"  {term}", gib(num_bytes), f"{num_bytes / whole:>4.0%}") for term, num_bytes in shown]
    rest = [term for term in terms if term not in shown]
    if len(rest) == 1:
        lines.append(_row(f"  {rest[0][0]}", gib(rest[0][1]), f"{rest[0][1] / whole:>4.0%}"))
    elif rest:
        total = sum(num_bytes for _, num_bytes in rest)
        lines.append(_row("  all else", gib(total), f"{total / whole:>4.0%}  {', '.join(term for term, _ in rest)}"))
    return lines


def _pinned(memory: MemoryEstimate) -> str:
    """Of a node's memory what is page-locked, and what torch's cache of pinned memory takes for it."""
    pinned = memory.ranks_per_node * sum(term.pinned_bytes for term in memory.terms)
    return f"pinned {gib(pinned)}, rounded up {gib(memory.pinned_bytes_per_node)}" if pinned else ""


def _on_nvme(need: NvmeNeed) -> list[tuple[str, int]]:
    parts = {"optimizer states": need.state_bytes, "gradients": need.gradient_bytes, "parameters": need.parameter_bytes}
    return [(name, need.ranks_per_node * num_bytes) for name, num_bytes in parts.items() if num_bytes]


def _phases(memory: MemoryEstimate) -> list[str]:
    """Construction and initialisation of the engine beside the parts of a step; nothing where an older version did not tell."""
    if not memory.phases:
        return []
    rows = {
        "GPU, of torch's allocator": [phase.gpu_bytes for phase in memory.phases],
        "node, without Python": [memory.ranks_per_node * phase.host_bytes for phase in memory.phases],
    }
    header = "".join(f"{phase.phase:>14}" for phase in memory.phases)
    lines = [f"  {'peak of each phase':<{_NAME_WIDTH}}{header}"]
    for name, sizes in rows.items():
        if any(sizes):
            lines.append(
                f"  {f'  {name}':<{_NAME_WIDTH}}" + "".join(f"{gib(size) if size else '-':>14}" for size in sizes)
            )
    return lines


def _row(name: str, size: str, beside: str) -> str:
    return f"  {name:<{_NAME_WIDTH}}{size:>14}  {beside}".rstrip()
