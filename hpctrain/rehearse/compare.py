"""A rehearsal beside the planner's terms: whose the bytes are, by both, at the height of each tier. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpctrain.plan.memory.terms import OUTSIDE_OF_TORCH
from hpctrain.rehearse.result import OWNERS, PHASES, Owner, Rehearsal, Tier
from hpctrain.text_table import MISSING, aligned
from hpctrain.units import gib

OWNER_OF_TERM: dict[str, Owner] = {
    "parameters": "parameters",
    "secondary partition": "parameters",
    "persistent parameters": "persistent_parameters",
    "gathered parameters": "gathered_parameters",
    "gradients": "gradients",
    "whole gradients": "gradients",
    "fp32 gradients": "gradients",
    "fp32 master": "optimizer",
    "Adam moments": "optimizer",
    "block inputs": "activations",
    "activations": "activations",
    "activations of one block": "activations",
    "logits and loss": "activations",
    "pipeline buffers": "activations",
    "reduce buckets": "buffers",
    "flattened for reduction": "buffers",
    "transfer buffers": "buffers",
    "swap buffers": "buffers",
    "optimizer step": "temporary",
    "initialisation": "temporary",
}
"""The planner's words to the rehearsal's. The one place that joins them: a term that is missing here is a mistake of ours."""

_SHOWN_BYTES = 2**16
"""Less is left out of the text: tensors of a few numbers, which the planner does not count."""


@dataclass(frozen=True)
class OwnerDifference:
    """One owner at the height of one tier."""

    tier: Tier
    owner: Owner
    rehearsed_bytes: int
    planned_bytes: int
    terms: tuple[str, ...]
    """The planner's terms that are this owner's."""

    @property
    def difference_bytes(self) -> int:
        """Above 0: the planner says more."""
        return self.planned_bytes - self.rehearsed_bytes


@dataclass(frozen=True)
class TierDifference:
    """The height of one tier over all phases, and its parts."""

    tier: Tier
    phase: str
    """In which the rehearsal was fullest."""
    rehearsed_bytes: int
    planned_bytes: int
    owners: tuple[OwnerDifference, ...]

    @property
    def error(self) -> float:
        """Planned against rehearsed, as a fraction: 0.03 is 3 % too much."""
        return self.planned_bytes / self.rehearsed_bytes - 1 if self.rehearsed_bytes else 0.0


def compare(found: Rehearsal) -> tuple[TierDifference, ...]:
    """The tiers that hold anything, the device's first.

    The planner's terms are those that the rehearsal stored, at the height that the planner expects. Where the two put the
    height into different phases, the sums are near each other and the parts are not.
    """
    tiers: tuple[Tier, ...] = ("gpu", "host") if found.main_tier == "gpu" else ("host",)
    return tuple(row for tier in tiers if (row := _of_tier(found, tier)).rehearsed_bytes or row.planned_bytes)


def _of_tier(found: Rehearsal, tier: Tier) -> TierDifference:
    peak = found.peak(tier, PHASES)
    rehearsed = {} if peak is None else peak.peak_by_owner
    planned = [
        (name, num_bytes) for name, of, num_bytes in found.planned_memory if of == tier and name not in OUTSIDE_OF_TORCH
    ]
    owners = tuple(_owner_rows(tier, rehearsed, planned))
    return TierDifference(
        tier=tier,
        phase="" if peak is None else peak.phase,
        rehearsed_bytes=0 if peak is None else peak.peak_bytes,
        planned_bytes=sum(num_bytes for _, num_bytes in planned),
        owners=owners,
    )


def _owner_rows(tier: Tier, rehearsed: dict[str, int], planned: list[tuple[str, int]]) -> Iterator[OwnerDifference]:
    """One row for each owner that either knows. A plan of an older version may have terms of other names: they are ``other``."""
    for owner in OWNERS:
        terms = [(name, num_bytes) for name, num_bytes in planned if OWNER_OF_TERM.get(name, "other") == owner]
        there = rehearsed.get(owner, 0)
        if there or terms:
            names = tuple(name for name, _ in terms)
            yield OwnerDifference(tier, owner, there, sum(num_bytes for _, num_bytes in terms), names)


def render_comparison(found: Rehearsal) -> str:
    """A table for people: owner by owner, with the planner's terms; empty: the plan has no estimate."""
    tiers = [tier for tier in compare(found) if max(tier.rehearsed_bytes, tier.planned_bytes) >= _SHOWN_BYTES]
    if not any(tier.planned_bytes for tier in tiers):
        return ""
    rows = [["AGAINST THE PLAN", "REHEARSED", "PLANNED", "DIFFERENCE", "TERMS OF THE PLAN"]]
    for tier in tiers:
        for owner in tier.owners:
            if max(owner.rehearsed_bytes, owner.planned_bytes) < _SHOWN_BYTES:
                continue
            rows.append(
                [
                    f"{tier.tier} {owner.owner.replace('_', ' ')}",
                    gib(owner.rehearsed_bytes),
                    gib(owner.planned_bytes),
                    _signed(owner.difference_bytes),
                    ", ".join(owner.terms) or MISSING,
                ]
            )
        rows.append(
            [
                f"{tier.tier} in all",
                gib(tier.rehearsed_bytes),
                gib(tier.planned_bytes),
                _signed(tier.planned_bytes - tier.rehearsed_bytes),
                f"{tier.error:+.1%}, fullest in {tier.phase}",
            ]
        )
    return aligned(rows)


def _signed(num_bytes: int) -> str:
    return f"{'-' if num_bytes < 0 else '+'}{gib(abs(num_bytes))}"
