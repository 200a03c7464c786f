"""The predicted times of all candidates and lower bounds of their memory, many at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hpctrain.config.schema import Config, HardwareConfig
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.search.candidate import Candidate, Kept, Passes, Space
from hpctrain.plan.search.columns import Columns, Floats, Numbers
from hpctrain.plan.search.floors import Floors, activation_floors, node_floors, state_floors
from hpctrain.plan.search.verdict import verdict_of
from hpctrain.plan.speed.calibration import calibrated_parts
from hpctrain.plan.speed.software import SOFTWARE
from hpctrain.plan.speed.step_parts import step_parts
from hpctrain.plan.speed.step_time import OWN_SOFTWARE, prediction_gap, step_machine, step_setup
from hpctrain.units import GIB

Booleans = npt.NDArray[np.bool_]
ACTIVATIONS_MOVED = 1
"""The bit of ``Scores.moved`` for blocks' inputs in host memory; those of states are above it."""


class _Part(NamedTuple):
    """Candidates whose states and passes are the same."""

    kept: int
    passes: int
    rows: Numbers
    offload_ratios: Floats
    times_s: Floats
    floors: Floors


class Scores:
    """All candidates of a space, by number."""

    def __init__(self, config: Config, space: Space) -> None:
        """Scores every candidate.

        Args:
            config: typed; what the space varies is not looked at.
            space: with at least one row, kept states and passes.
        """
        self._config, self._space = config, space
        self._columns = Columns(config, space)
        parts = list(self._parts())
        sizes = [len(part.rows) for part in parts]
        self.kept = np.repeat([part.kept for part in parts], sizes)
        """Numbers in the space, as the next two."""
        self.passes = np.repeat([part.passes for part in parts], sizes)
        self.rows = np.concatenate([part.rows for part in parts])
        self.offload_ratios = np.concatenate([part.offload_ratios for part in parts])
        self.times_s = np.concatenate([part.times_s for part in parts])
        """Predicted, of one step; infinite: the hardware states too little, or is too small for it."""
        self.floors = Floors(
            np.concatenate([part.floors.gpu for part in parts]), np.concatenate([part.floors.host for part in parts])
        )
        """Bytes of some GPU and of some node's memory, at least."""

        states = [kept.states for kept in space.kept]
        stages = np.array([16 * each.zero_stage + 8 * (each.hpz_partition_size > 1) for each in states])
        self.forms = stages[self.kept] + self._columns.kinds[self.rows]
        """Equal for candidates of the same stage with the same kinds of parallelism, in other sizes."""
        places = np.array(
            [4 * (each.offload_optimizer != "none") + 2 * (each.offload_param != "none") for each in states]
        )
        inputs = np.array([ACTIVATIONS_MOVED * each.offload_activations for each in space.passes])
        self.moved = places[self.kept] + inputs[self.passes]
        """What leaves the GPU: a bit each for the optimizer's states, the parameters and the activations."""

    def __len__(self) -> int:
        return len(self.times_s)

    def may_fit(self, used_at_most: float) -> Booleans:
        """Whose lower bounds are within that share of what the hardware has."""
        return _within(self._config.hardware, self.floors, used_at_most)

    def relatives(self, number: int) -> Booleans:
        """Those that differ in micro batch and passes alone, of a step with as few micro steps, or with as many."""
        found: Booleans
        layouts, accumulates = self._columns.layout_numbers[self.rows], self._columns.accumulates[self.rows]
        found = (self.kept == self.kept[number]) & (self.offload_ratios == self.offload_ratios[number])
        found &= (layouts == layouts[number]) & (accumulates == accumulates[number])
        return found

    @cached_property
    def used_shares(self) -> Floats:
        """By the lower bounds, of the tier that is the shortest; 0: the hardware states no capacity."""
        hardware = self._config.hardware
        found = np.zeros(len(self))
        for capacity_gib, least in zip((hardware.gpu_memory_gib, hardware.host_memory_gib), self.floors, strict=True):
            if capacity_gib is not None:
                found = np.maximum(found, least / (capacity_gib * GIB))
        return found

    def candidate(self, number: int) -> Candidate:
        """One of them."""
        space = self._space
        row, states = space.rows[self.rows[number]], space.kept[self.kept[number]].states
        passes, ratio = space.passes[self.passes[number]], float(self.offload_ratios[number])
        return Candidate(row.degrees, states, ratio, passes, row.spread)

    def _parts(self) -> Iterator[_Part]:
        space, columns = self._space, self._columns
        everything = np.arange(len(space.rows))
        inside = {
            (number, is_stage3): activation_floors(columns, everything, passes, 3 if is_stage3 else 0)
            for number, passes in enumerate(space.passes)
            for is_stage3 in {kept.states.zero_stage == 3 for kept in space.kept}
        }
        for kept_number, kept in enumerate(space.kept):
            own = columns.of(kept)
            rows = np.tile(own, len(kept.offload_ratios))
            ratios = np.repeat(np.array(kept.offload_ratios), len(own))
            states = state_floors(columns, rows, kept.states, ratios)
            for number, passes in enumerate(space.passes):
                of_rows = inside[number, kept.states.zero_stage == 3]
                rank = Floors(states.gpu + of_rows.gpu[rows], states.host + of_rows.host[rows])
                floors = node_floors(self._config, rank, columns.pipeline[rows] > 1)
                yield _Part(
                    kept_number, number, rows, ratios, self._times_s(kept, passes, rows, ratios, floors), floors
                )

    def _times_s(self, kept: Kept, passes: Passes, rows: Numbers, ratios: Floats, floors: Floors) -> Floats:
        """Of what the hardware may hold; of the rest nobody asks. What is on NVMe is counted one by one, file by file."""
        times_s = np.full(len(rows), np.inf)
        asked = np.flatnonzero(_within(self._config.hardware, floors, 1.0))
        if "nvme" in kept.states:
            for number in asked.tolist():
                row = self._space.rows[rows[number]]
                each = Candidate(row.degrees, kept.states, float(ratios[number]), passes, row.spread)
                prediction = verdict_of(each.applied(self._config)).prediction()
                times_s[number] = np.inf if prediction is None else prediction.step_time_s
            return times_s
        work = self._columns.work(rows[asked], passes, kept.states, ratios[asked])
        if len(asked) and not prediction_gap(work):
            times_s[asked] = step_times_s(self._config, work)
        return times_s


def _within(hardware: HardwareConfig, floors: Floors, used_at_most: float) -> Booleans:
    found = np.ones(len(floors.gpu), dtype=bool)
    for capacity_gib, least in zip((hardware.gpu_memory_gib, hardware.host_memory_gib), floors, strict=True):
        if capacity_gib is not None:
            found &= least <= used_at_most * int(capacity_gib * GIB)
    return found


def step_times_s(config: Config, work: RankWork) -> Floats:
    """Seconds of one step, as ``predict_step`` has them."""
    machine = step_machine(config.hardware, config.precision)
    parts = step_parts(step_setup(work), machine, SOFTWARE[OWN_SOFTWARE])
    return np.asarray(sum(calibrated_parts(parts, config.calibration).values()))
