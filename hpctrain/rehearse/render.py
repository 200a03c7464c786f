"""A rehearsal as text for people. Imports no torch."""

from __future__ import annotations

from hpctrain.rehearse.compare import render_comparison
from hpctrain.rehearse.measured import render_measured
from hpctrain.rehearse.result import OWNERS, STEP_PHASES, AccumulationCheck, Rehearsal, Tier, TierPhase
from hpctrain.text_table import MISSING, aligned
from hpctrain.units import duration_in_words, gib

_TIER_WORDS: dict[Tier, str] = {
    "gpu": "GPU",
    "host": "host",
    "pinned": "of it pinned",
    "pinned_rounded": "pinned, as torch's cache takes it",
}
_MAIN_TIERS: tuple[Tier, ...] = ("gpu", "host")
_NUM_SHOWN = 8


def render_rehearsal(found: Rehearsal) -> str:
    """Facts, memory by tier and phase, owners at the peak, collectives, FLOPs, largest tensors."""
    parts = [
        _facts(found),
        _stages(found),
        _memory(found),
        _owners(found),
        render_comparison(found),
        render_measured(found),
        _collectives(found),
        _flops(found),
        _largest(found),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(found: Rehearsal) -> str:
    way = f"all {found.num_layers} layers"
    lines = []
    if found.linearity is not None:
        check = found.linearity
        way = f"{check.depths[1]} and {check.checked_depth} layers, extrapolated to {found.num_layers}"
        lines.append(
            f"linear      the line through {check.depths[0]} and {check.depths[1]} layers misses the step's peak at"
            f" {check.checked_depth} by {check.largest_peak_deviation:.2%}, at worst {check.worst_deviation:.2%}"
            f" ({check.worst_quantity})"
        )
    if found.accumulation is not None:
        lines.append(f"accumulated {_accumulation(found.accumulation)}")
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    return "\n".join(
        [
            f"rehearsal   rank {found.rank:,} of {found.world_size:,}{_stage(found)}, {found.plan_name}: {way};"
            f" step {found.reported_step} of {found.steps} is reported, the first records the order",
            f"simulated   {'; '.join(found.simulated)}",
            *lines,
            f"took        {duration_in_words(found.wall_s)}, {gib(found.process_peak_bytes)} of memory; {versions}",
        ]
    )


def _stage(found: Rehearsal) -> str:
    if found.num_stages == 1:
        return ""
    why = ", the fullest of those below" if found.others else ""
    return f" (stage {found.stage + 1} of {found.num_stages}{why})"


def _accumulation(check: AccumulationCheck) -> str:
    """What was run of a step with many micro batches."""
    first, *more = check.rehearsed
    return (
        f"{first} of the step's {check.micro_batches:,} micro batches were run; collectives and FLOPs are extended from"
        f" {' and '.join(map(str, more))}, whose line misses {first} by {check.counts_deviation:.2%}; memory differs by"
        f" {check.memory_deviation:.2%} between them"
    )


def _stages(found: Rehearsal) -> str:
    """One rank of each kind of stage; empty: there is one kind, or one rank was asked for."""
    if not found.others:
        return ""
    rows = [["STAGE", "RANK", "GPU PEAK", "GPU RESTING", "HOST PEAK", "FLOPS OF A STEP", "OF THE MEAN"]]
    for each in found.of_all_stages():
        gpu, host = _highest(each, "gpu"), _highest(each, "host")
        resting = [row.resting_bytes for row in each.rows("gpu") if row.phase == "optimizer"]
        mean = each.flops.planned
        rows.append(
            [
                f"{each.stage + 1} of {each.num_stages}",
                f"{each.rank:,}",
                gib(gpu.peak_bytes) if gpu else MISSING,
                gib(resting[0]) if resting else MISSING,
                gib(host.peak_bytes) if host else MISSING,
                f"{each.flops.counted - each.flops.scores_again:.4e}",
                f"{(each.flops.counted - each.flops.scores_again) / mean:.3f}" if mean else MISSING,
            ]
        )
    return aligned(rows)


def _memory(found: Rehearsal) -> str:
    rows = [["MEMORY OF ONE RANK", "BEFORE THE STEPS", *(phase.upper() for phase in STEP_PHASES), "RESTING"]]
    for tier, words in _TIER_WORDS.items():
        by_phase = {(row.step, row.phase): row for row in found.rows(tier)}
        if not by_phase:
            continue
        before = max(row.peak_bytes for (step, _), row in by_phase.items() if step == 0)
        peaks = [by_phase[found.reported_step, phase].peak_bytes for phase in STEP_PHASES]
        resting = by_phase[found.reported_step, "optimizer"].resting_bytes
        rows.append([words, *(gib(number) for number in (before, *peaks, resting))])
    lines = [aligned(rows)]
    if found.late_free_margin_bytes:
        lines.append(
            f"margin: {gib(found.late_free_margin_bytes)} more at the peak where the device frees a gathered parameter late"
        )
    if found.gpu_capacity_bytes is not None and (peak := _highest(found, "gpu")) is not None:
        free = found.gpu_capacity_bytes - peak.peak_bytes
        left = f"{gib(free)} free" if free >= 0 else f"short by {gib(-free)}"
        lines.append(
            f"a GPU has {gib(found.gpu_capacity_bytes)}: {left}, from which CUDA's context, NCCL and fragmentation go"
        )
    return "\n".join(lines)


def _highest(found: Rehearsal, tier: Tier) -> TierPhase | None:
    return max(found.rows(tier), key=lambda row: row.peak_bytes, default=None)


def _owners(found: Rehearsal) -> str:
    """Whose the bytes are at the peak of the step, and at rest after it."""
    rows = [["OWNER", *(f"{tier} peak" for tier in _MAIN_TIERS), *(f"{tier} rest" for tier in _MAIN_TIERS)]]
    columns: list[dict[str, int]] = []
    for tier in _MAIN_TIERS:
        peak = found.peak(tier)
        columns.append({} if peak is None else peak.peak_by_owner)
    for tier in _MAIN_TIERS:
        last = [row for row in found.rows(tier) if row.phase == "optimizer"]
        columns.append(last[0].resting_by_owner if last else {})
    for owner in OWNERS:
        numbers = [column.get(owner, 0) for column in columns]
        if any(numbers):
            rows.append([owner.replace("_", " "), *(gib(number) if number else "-" for number in numbers)])
    return aligned(rows)


def _collectives(found: Rehearsal) -> str:
    rows = [["COLLECTIVE OF A STEP", "PHASE", "RANKS", "COUNT", "BYTES"]]
    for row in found.step_collectives():
        ranks = f"{row.group_size:,}"
        rows.append([row.kind, row.phase, ranks, f"{row.count:,}", gib(row.num_bytes)])
    return aligned(rows) if len(rows) > 1 else ""


def _flops(found: Rehearsal) -> str:
    flops = found.flops
    again = flops.scores_again
    ratio = (flops.counted - again) / flops.planned if flops.planned else 0.0
    text = f"FLOPs of this rank: {flops.counted:.4e} by torch's formulas"
    if again:
        text += f", {again:.4e} of it attention scores that the backward kernel computes once more; without these"
    return f"{text} {ratio:.4f} of the ledger's {flops.planned:.4e}"


def _largest(found: Rehearsal) -> str:
    rows = [["LARGEST AT THE PEAK", "BYTES", "COUNT", "SHAPE", "TYPE", "MADE IN"]]
    for tensors in found.largest[:_NUM_SHOWN]:
        shape = " x ".join(map(str, tensors.shape)) or "-"
        owner = tensors.owner.replace("_", " ")
        rows.append([owner, gib(tensors.num_bytes), f"{tensors.count:,}", shape, tensors.dtype, tensors.place])
    return aligned(rows)
