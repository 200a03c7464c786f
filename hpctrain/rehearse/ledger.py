"""The book of live storages: how many bytes of which tier belong to whom, and where each phase had its peak. Imports no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from hpctrain.rehearse.result import OWNERS, TIERS, LiveTensors, Owner, Phase, Tier, TierPhase
from hpctrain.rehearse.timeline import Track
from hpctrain.units import next_power_of_two

GPU, HOST, PINNED, PINNED_ROUNDED = range(4)
_INDEX = {owner: index for index, owner in enumerate(OWNERS)}
_GPU_BLOCK_BYTES = 512
"""torch's allocator gives out multiples of it. Source: c10/cuda/CUDACachingAllocator.h, kMinBlockSize."""


@dataclass(slots=True)
class Entry:
    """One storage."""

    num_bytes: int
    """As counted: rounded up on a GPU."""
    pinned_rounded_bytes: int
    """0: not pinned."""
    on_gpu: bool
    owner: int
    """Index into ``OWNERS``."""
    place: str
    dtype: str
    shape: tuple[int, ...]


class Ledger:
    """Books storages by tier, phase and owner. A tier's split at its peak is read when the first byte leaves it again."""

    def __init__(self, main_tier: Tier, reported_step: int) -> None:
        self.track = Track()
        self.operators = 0
        """Operators so far, counted by the recorder: the time line's clock."""
        self.step = 0
        self.phase: Phase = "model"
        self._main, self._reported_step = TIERS.index(main_tier), reported_step
        self._live: dict[Hashable, Entry] = {}
        self._totals = [0] * len(TIERS)
        self._owners = [[0] * len(OWNERS) for _ in TIERS]
        self._rows: dict[tuple[int, Phase, int], _Peak] = {}
        self._peaks = [_Peak() for _ in TIERS]
        self._is_at_peak = [True] * len(TIERS)
        self._largest_bytes = -1
        self._largest: list[tuple[Entry, int]] = []
        self._begin()

    def live_bytes(self, tier: Tier) -> int:
        return self._totals[TIERS.index(tier)]

    def peak_bytes(self, tier: Tier) -> int:
        """Greatest of all phases so far."""
        index = TIERS.index(tier)
        return max(row.num_bytes for (_, _, row_tier), row in self._rows.items() if row_tier == index)

    def begin(self, step: int, phase: Phase) -> None:
        """Ends the phase before and begins another, or the same of a later micro-step."""
        self.end_phase()
        self.step, self.phase = step, phase
        self._begin()

    def _begin(self) -> None:
        for tier in range(len(TIERS)):
            row = self._rows.setdefault((self.step, self.phase, tier), _Peak())
            self._peaks[tier] = row
            if self._totals[tier] >= row.num_bytes:
                row.num_bytes = self._totals[tier]
                self._is_at_peak[tier] = True
                self._mark(tier)

    def end_phase(self) -> None:
        """Notes what rests at the end of the phase."""
        for tier, row in enumerate(self._peaks):
            self._settle(tier)
            row.resting_bytes, row.resting = self._totals[tier], list(self._owners[tier])
        self.track.add(self.operators, self.step, self.phase, self._totals)

    def add(self, key: Hashable, entry: Entry) -> None:
        """A storage that is new."""
        self._live[key] = entry
        self._change(entry, 1)

    def get(self, key: Hashable) -> Entry | None:
        return self._live.get(key)

    def remove(self, key: Hashable) -> None:
        """A storage that is gone; unknown ones (of the meta device) are no matter."""
        entry = self._live.get(key)
        if entry is not None:
            self._settle_for(entry)
            del self._live[key]
            self._change(entry, -1)

    def resize(self, entry: Entry, num_bytes: int) -> None:
        """The storage was given another size by the engine."""
        self._settle_for(entry)
        self._change(entry, -1)
        entry.num_bytes = num_bytes
        self._change(entry, 1)

    def pin(self, entry: Entry) -> None:
        """The storage turns out to be pinned host memory."""
        if entry.pinned_rounded_bytes or entry.on_gpu:
            return
        self._settle_for(entry)
        self._change(entry, -1)
        entry.pinned_rounded_bytes = next_power_of_two(entry.num_bytes)
        self._change(entry, 1)

    def assign(self, key: Hashable, owner: Owner) -> None:
        """The storage turns out to be somebody's."""
        entry = self._live.get(key)
        if entry is not None:
            self._give(entry, _INDEX[owner])

    def assign_like(self, entry: Entry, source: Entry) -> None:
        """The storage is a copy of another one, and its owner's."""
        self._give(entry, source.owner)

    def _give(self, entry: Entry, owner: int) -> None:
        for tier, num_bytes in _shares(entry):
            self._owners[tier][entry.owner] -= num_bytes
            self._owners[tier][owner] += num_bytes
        entry.owner = owner

    def memory(self) -> tuple[TierPhase, ...]:
        """All phases so far, by step, phase and tier; tiers that never held anything are left out."""
        used = {tier for (_, _, tier), row in self._rows.items() if row.num_bytes}
        return tuple(
            TierPhase(
                step=step,
                phase=phase,
                tier=TIERS[tier],
                peak_bytes=row.num_bytes,
                peak_by_owner=_named(row.owners),
                resting_bytes=row.resting_bytes,
                resting_by_owner=_named(row.resting),
            )
            for (step, phase, tier), row in self._rows.items()
            if tier in used
        )

    def largest(self, count: int) -> tuple[LiveTensors, ...]:
        """Storages alive at the main tier's peak in the reported step, equal ones together, the largest sums first."""
        groups: dict[tuple[int, str, str, tuple[int, ...]], list[int]] = defaultdict(list)
        for entry, owner in self._largest:
            groups[owner, entry.place, entry.dtype, entry.shape].append(entry.num_bytes)
        found = [
            LiveTensors(OWNERS[owner], place, dtype, shape, len(sizes), sum(sizes), TIERS[self._main])
            for (owner, place, dtype, shape), sizes in groups.items()
        ]
        return tuple(sorted(found, key=lambda group: -group.num_bytes)[:count])

    def _change(self, entry: Entry, sign: int) -> None:
        for tier, num_bytes in _shares(entry):
            self._totals[tier] += sign * num_bytes
            self._owners[tier][entry.owner] += sign * num_bytes
            peak = self._peaks[tier]
            if self._totals[tier] > peak.num_bytes:
                peak.num_bytes = self._totals[tier]
                self._is_at_peak[tier] = True
                self._mark(tier)
        self.track.see(self.operators, self.step, self.phase, self._totals)

    def _mark(self, tier: int) -> None:
        row = self._peaks[tier]
        row.operator, row.totals = self.operators, tuple(self._totals)

    def _settle_for(self, entry: Entry) -> None:
        for tier, _ in _shares(entry):
            self._settle(tier)

    def _settle(self, tier: int) -> None:
        """Reads the split of a peak, before it is left."""
        if not self._is_at_peak[tier]:
            return
        self._is_at_peak[tier] = False
        peak = self._peaks[tier]
        peak.owners = list(self._owners[tier])
        is_reported = self.step == self._reported_step and tier == self._main
        if is_reported and peak.num_bytes > self._largest_bytes:
            self._largest_bytes = peak.num_bytes
            wanted = tier == GPU
            self._largest = [(entry, entry.owner) for entry in self._live.values() if entry.on_gpu == wanted]

    def marked_peaks(self) -> Iterable[tuple[int, int, Phase, tuple[int, ...]]]:
        """Operator count, step, phase and totals at each peak, for the time line."""
        for (step, phase, _), row in self._rows.items():
            if row.totals:
                yield row.operator, step, phase, row.totals


class _Peak:
    """A tier in a phase, while it goes on."""

    __slots__ = ("num_bytes", "operator", "owners", "resting", "resting_bytes", "totals")

    def __init__(self) -> None:
        self.num_bytes, self.owners = 0, [0] * len(OWNERS)
        self.resting_bytes, self.resting = 0, [0] * len(OWNERS)
        self.operator = 0
        self.totals: tuple[int, ...] = ()


def entry_for(num_bytes: int, on_gpu: bool, owner: Owner, place: str, dtype: str, shape: tuple[int, ...]) -> Entry:
    """A storage of ``num_bytes`` as the ledger counts it."""
    return Entry(counted_bytes(num_bytes, on_gpu), 0, on_gpu, _INDEX[owner], place, dtype, shape)


def counted_bytes(num_bytes: int, on_gpu: bool) -> int:
    """Rounded up on a GPU, exact on the host.

    >>> counted_bytes(1, True), counted_bytes(512, True), counted_bytes(1, False)
    (512, 512, 1)
    """
    return -(-num_bytes // _GPU_BLOCK_BYTES) * _GPU_BLOCK_BYTES if on_gpu else num_bytes


def _shares(entry: Entry) -> tuple[tuple[int, int], ...]:
    if entry.on_gpu:
        return ((GPU, entry.num_bytes),)
    if entry.pinned_rounded_bytes:
        return ((HOST, entry.num_bytes), (PINNED, entry.num_bytes), (PINNED_ROUNDED, entry.pinned_rounded_bytes))
    return ((HOST, entry.num_bytes),)


def _named(by_owner: list[int]) -> dict[str, int]:
    return {owner: num_bytes for owner, num_bytes in zip(OWNERS, by_owner, strict=True) if num_bytes}
