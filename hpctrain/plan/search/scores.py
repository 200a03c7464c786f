"""The predicted times of all candidates and lower bounds of their memory, many at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from hpctrain.config.schema import Config, HardwareConfig
from hpctrain.plan.layout import Layout
from hpctrain.plan.memory.fitted_ratio import RATIOS
from hpctrain.plan.memory.settings import settled
from hpctrain.plan.memory.stage3 import stage3_states
from hpctrain.plan.rank_parameters import rank_parameters
from hpctrain.plan.rules.capacity import counted_hardware
from hpctrain.plan.search.candidate import Candidate, Degrees, Passes, Space, Spread, States
from hpctrain.plan.search.columns import Columns, Floats, Numbers
from hpctrain.plan.search.floors import (
    Floors,
    activation_floors,
    gathered_floors,
    node_floors,
    state_floors,
)
from hpctrain.plan.speed.nvme_parts import NvmeTraffic
from hpctrain.plan.speed.step_time import nvme_traffic, prediction_gap, step_seconds
from hpctrain.units import GIB

Booleans = npt.NDArray[np.bool_]
ACTIVATIONS_MOVED = 1
"""The bit of ``Scores.moved`` for blocks' inputs in host memory; those of states are above it."""


class _Part(NamedTuple):
    """Candidates whose states and passes are the same."""

    kept: int
    passes: int
    rows: Numbers
    ratio_numbers: Numbers
    offload_ratios: Floats
    times_s: Floats
    floors: Floors
    states: Floors


class Scores:
    """All candidates of a space, by number."""

    def __init__(self, config: Config, space: Space) -> None:
        """Scores every candidate.

        Args:
            config: typed; what the space varies is not looked at.
            space: with at least one row, kept states and passes.
        """
        self._config, self._space, self._hardware = config, space, counted_hardware(config)
        self._columns = Columns(config, space)
        self._traffics: dict[tuple[int, int], NvmeTraffic | None] = {}
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
        self._of_states = Floors(
            np.concatenate([part.states.gpu for part in parts]), np.concatenate([part.states.host for part in parts])
        )
        """What of one rank's is of its states."""
        self.raised = Floors(self.floors.gpu.copy(), self.floors.host.copy())
        """The same, and what was learnt of some."""
        ratios = np.concatenate([part.ratio_numbers for part in parts])
        layouts, columns = self._columns.layout_numbers[self.rows], self._columns
        self._accumulates = columns.accumulates[self.rows]
        self._of_states_and_layout = (len(space.layouts) * (len(RATIOS) * self.kept + ratios)) + layouts
        # Ranks of a sequence share the states too, so that its degree does not matter.
        self._of_same_states = self._of_states_and_layout - layouts + columns.cut_numbers[layouts]
        """Equal for candidates whose states in stage 3 are cut and kept in the same way."""
        self._learnt: set[int] = set()

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
        return _within(self._hardware, self.raised, used_at_most)

    def learn(self, number: int) -> bool:
        """Raises the bounds of all that have the states of one candidate by what the exact rules say of these.

        Returns:
            Whether anything was learnt: of stage 3, whose states are cut into sub-groups, and on GPUs.
        """
        candidate, key = self.candidate(number), int(self._of_same_states[number])
        if candidate.states.zero_stage < 3 or self._config.hardware.device != "cuda" or key in self._learnt:
            return False
        self._learnt.add(key)
        same = np.flatnonzero(self._of_same_states == key)
        layout = self._layout(candidate.degrees)
        work = settled(candidate.applied(self._config), self._columns.shape, layout).work
        throughout, before = stage3_states(work, rank_parameters(self._columns.shape, layout))
        more = (throughout.gpu - self._of_states.gpu[same], throughout.host - self._of_states.host[same])
        ranks = self._config.hardware.gpus_per_node
        at_least = node_floors(self._config, Floors(*map(np.array, before)), np.array(False))
        self.raised.gpu[same] = np.maximum(self.floors.gpu[same] + more[0], at_least.gpu)
        self.raised.host[same] = np.maximum(self.floors.host[same] + ranks * more[1], at_least.host)
        return True

    def relatives(self, number: int) -> Booleans:
        """Those that differ in micro batch and passes alone, of a step with as few micro steps, or with as many."""
        found: Booleans
        found = self._of_states_and_layout == self._of_states_and_layout[number]
        found &= self._accumulates == self._accumulates[number]
        return found

    @cached_property
    def used_shares(self) -> Floats:
        """By the lower bounds, of the tier that is the shortest; 0: the hardware states no capacity."""
        hardware = self._hardware
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
            ratio_numbers = np.repeat(np.arange(len(kept.offload_ratios)), len(own))
            ratios = np.array(kept.offload_ratios)[ratio_numbers]
            states = state_floors(columns, rows, kept.states, ratios)
            gathered = gathered_floors(columns, rows, kept.states)
            for number, passes in enumerate(space.passes):
                of_rows = inside[number, kept.states.zero_stage == 3]
                rank = Floors(states.gpu + gathered + of_rows.gpu[rows], states.host + of_rows.host[rows])
                floors = node_floors(self._config, rank, columns.pipeline[rows] > 1)
                times_s = self._times_s(kept_number, passes, rows, ratios, floors)
                yield _Part(kept_number, number, rows, ratio_numbers, ratios, times_s, floors, states)

    def _times_s(self, kept_number: int, passes: Passes, rows: Numbers, ratios: Floats, floors: Floors) -> Floats:
        """Of what the hardware may hold; of the rest nobody asks."""
        times_s, states = np.full(len(rows), np.inf), self._space.kept[kept_number].states
        asked = np.flatnonzero(_within(self._hardware, floors, 1.0))
        work = self._columns.work(rows[asked], passes, states, ratios[asked])
        if not len(asked) or prediction_gap(work):
            return times_s
        if "nvme" not in states:
            times_s[asked] = step_seconds(work, self._config.calibration)
            return times_s
        in_memory = _from_nvme_to_host(states)
        cuts = self._columns.cut_numbers[self._columns.layout_numbers[rows[asked]]]
        for cut in set(cuts.tolist()):
            of_cut = asked[cuts == cut]
            work = self._columns.work(rows[of_cut], passes, in_memory, ratios[of_cut])
            traffic = self._nvme_traffic(kept_number, cut, float(ratios[of_cut[0]]))
            times_s[of_cut] = step_seconds(work, self._config.calibration, traffic)
        return times_s

    def _layout(self, degrees: Degrees) -> Layout:
        return Layout(self._config.nodes, self._config.hardware.gpus_per_node, *degrees)

    def _nvme_traffic(self, kept_number: int, cut: int, offload_ratio: float) -> NvmeTraffic | None:
        """Counted file by file: of how a rank's states are cut, whatever it works on."""
        if (kept_number, cut) not in self._traffics:
            degrees, config = self._space.layouts[cut], self._config
            states = self._space.kept[kept_number].states
            applied = Candidate(degrees, states, offload_ratio, Passes("full", False), Spread(1, 1)).applied(config)
            work = settled(applied, self._columns.shape, self._layout(degrees)).work
            self._traffics[kept_number, cut] = nvme_traffic(work)
        return self._traffics[kept_number, cut]


def _from_nvme_to_host(states: States) -> States:
    """The same as far as the rest of the step sees it."""
    moved = {name: "cpu" for name in ("offload_optimizer", "offload_param") if getattr(states, name) == "nvme"}
    return states._replace(**cast(Any, moved))


def _within(hardware: HardwareConfig, floors: Floors, used_at_most: float) -> Booleans:
    found = np.ones(len(floors.gpu), dtype=bool)
    for capacity_gib, least in zip((hardware.gpu_memory_gib, hardware.host_memory_gib), floors, strict=True):
        if capacity_gib is not None:
            found &= least <= used_at_most * int(capacity_gib * GIB)
    return found
