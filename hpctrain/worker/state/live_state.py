"""Puts a state into a running engine, by parameter: each rank takes the elements that it holds, from wherever they are kept.

DeepSpeed's own way for other numbers of ranks, universal checkpoints, writes the whole state anew first. This one gives its
optimizer the dict that this rank's file would hold, had it been saved with as many ranks as there are now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from deepspeed.ops.adam import DeepSpeedCPUAdam
from torch import Tensor

from hpctrain.plan.layout import RankPlace
from hpctrain.plan.parameters import decoder_parameters, stage_names
from hpctrain.plan.run_plan import RunPlan
from hpctrain.plan.state_cut import StateCut
from hpctrain.worker.nvme_states import swapped_files
from hpctrain.worker.partial_offload import join_optimizers
from hpctrain.worker.plain_optimizer import PlainOptimizer
from hpctrain.worker.state.saved_state import SavedState
from hpctrain.worker.state.source import MOMENTS, StateKind, StateSource, TensorPlace
from hpctrain.worker.state.zero_keys import LOSS_SCALER, zero_keys


@dataclass(frozen=True)
class RankState:
    """What one rank loads."""

    optimizer: dict[str, Any]
    """In the form of its optimizer's ``state_dict``."""
    has_moments: bool


class LiveState(Protocol):
    """The state of one rank's engine."""

    def read(self, source: StateSource, adam_step: int | None, extra: dict[str, Any]) -> RankState:
        """What this rank's file would hold; no collective, since ranks may fail here each for itself.

        Args:
            source: where each element is read from.
            adam_step: updates made so far; None: weights alone, and the optimizer begins anew.
            extra: entries of the optimizer's dict that are the same on all ranks, such as the loss scaler.

        Raises:
            RecordError: the source is damaged.
        """

    def fill(self, read: RankState) -> None:
        """Fills master weights, moments and the parameters in the training type; a collective of all ranks."""


def live_state(engine: Any, plan: RunPlan, rank: int) -> LiveState:
    """That of an engine as ``build_engine`` makes it.

    Args:
        engine: DeepSpeed's.
        plan: what it was built from.
        rank: this one.
    """
    return _PlainState(engine, plan, rank) if plan.zero_stage == 0 else _ZeroState(engine, plan, rank)


class _OwnParts:
    """The parameters of a rank by the names that its pipeline stage gives them, read from a source."""

    def __init__(self, plan: RunPlan, place: RankPlace) -> None:
        self._place = TensorPlace(place.tensor, plan.layout.tensor_parallel_size)
        by_name = {parameter.name: parameter for parameter in decoder_parameters(plan.model)}
        names = stage_names(plan.model, plan.layout.pipeline_parallel_size, place.pipeline)
        self._parameters = {local: by_name[name] for local, name in names.items()}

    def flat(self, source: StateSource, kind: StateKind, cut: StateCut, rank: int) -> Tensor | None:
        """The flat tensor of one group of ``rank``, fp32, zero where it is padded; None: the source has no such state."""
        flat = torch.zeros(cut.length, dtype=torch.float32)
        for span in cut.spans_of(rank):
            piece = source.piece(kind, self._parameters[span.name], self._place, span.start, span.stop)
            if piece is None:
                return None
            flat[span.offset : span.offset + piece.numel()] = piece
        return flat

    def moments(self, source: StateSource, cuts: Mapping[int, StateCut], rank: int) -> dict[int, dict[str, Tensor]]:
        """Adam's moments by the number of the group; empty where the source has none."""
        found: dict[int, dict[str, Tensor]] = {}
        for number, cut in cuts.items():
            flats = {kind: self.flat(source, kind, cut, rank) for kind in MOMENTS}
            present: dict[str, Tensor] = {kind: flat for kind, flat in flats.items() if flat is not None}
            if len(present) < len(MOMENTS):
                return {}
            found[number] = present
        return found


class _ZeroState:
    """Of ZeRO stages 1 to 3."""

    def __init__(self, engine: Any, plan: RunPlan, rank: int) -> None:
        self._engine, self._optimizer, self._stage = engine, engine.optimizer, plan.zero_stage
        self._rank = dist.get_rank(group=self._optimizer.dp_process_group)
        self._parts = _OwnParts(plan, plan.layout.place(rank))
        self._cuts = [
            StateCut(plan.zero_stage, plan.layout.zero_degree, {name: _size(shape) for name, shape in group.items()})
            for group in engine._get_zero_param_shapes()
        ]

    def read(self, source: StateSource, adam_step: int | None, extra: dict[str, Any]) -> RankState:
        """See ``LiveState``; what belongs on NVMe is read when it is filled in, a sub-group at a time."""
        state = self._optimizer.state_dict() | extra
        weights, inner = zero_keys(self._stage)
        self._swapped = _SwappedGroups(self._parts, self._cuts, self._rank, source, swapped_files(self._optimizer))
        here = [number for number in range(len(self._cuts)) if number not in self._swapped.numbers]
        state[weights] = [
            self._parts.flat(source, "fp32", cut, self._rank) if number in here else torch.empty(0)
            for number, cut in enumerate(self._cuts)
        ]
        moments = {}
        if adam_step is not None:
            moments = self._parts.moments(source, {number: self._cuts[number] for number in here}, self._rank)
        elif self._swapped.numbers:
            adam_step = 0  # what is on NVMe gets moments of zero
        if adam_step is not None and (moments or self._swapped.numbers):
            state[inner]["state"] = {
                number: {"step": self._step_value(number, adam_step), **moments.get(number, {})}
                for number in (*moments, *self._swapped.numbers)
            }
        return RankState(state, bool(moments))

    def fill(self, read: RankState) -> None:
        """See ``LiveState``."""
        optimizer = self._optimizer
        if self._swapped.numbers:
            # ``nvme_states.load_states`` asks it.
            self._engine.checkpoint_engine = self._swapped
        if self._stage == 3:
            optimizer.checkpoint_event_prologue()
        optimizer.load_state_dict(
            {self._rank: read.optimizer}, load_optimizer_states=read.has_moments, load_from_fp32_weights=True
        )
        if self._stage == 3:
            optimizer.checkpoint_event_epilogue()
        else:
            optimizer.update_lp_params()
        join_optimizers(self._engine)

    def _step_value(self, group: int, adam_step: int) -> int | Tensor:
        """The number of updates as the Adam of this group counts it."""
        is_host_adam = isinstance(self._optimizer.optimizer, DeepSpeedCPUAdam)
        # Of a partial offload the sub-groups on the GPU belong to torch's Adam.
        devices = getattr(self._optimizer, "subgroup_to_device", {})
        if is_host_adam and devices.get(group, "cpu") == "cpu":
            return adam_step
        return torch.tensor(float(adam_step))


class _SwappedGroups:
    """Sub-groups on NVMe by the names of the files that they would be saved in, see ``nvme_states``."""

    def __init__(
        self, parts: _OwnParts, cuts: list[StateCut], rank: int, source: StateSource, files: dict[str, int]
    ) -> None:
        self._parts, self._cuts, self._rank, self._source, self._files = parts, cuts, rank, source, files
        self.numbers = tuple(files.values())

    def load_swapped(self, name: str) -> dict[str, Tensor]:
        """State by its kind, flat, fp32."""
        cut = self._cuts[self._files[name]]
        kinds: tuple[StateKind, ...] = ("fp32", *MOMENTS)
        found = {kind: self._parts.flat(self._source, kind, cut, self._rank) for kind in kinds}
        return {kind: torch.zeros(cut.length) if flat is None else flat for kind, flat in found.items()}


class _PlainState:
    """Of stage 0: every parameter whole, as a group of its own."""

    def __init__(self, engine: Any, plan: RunPlan, rank: int) -> None:
        optimizer: PlainOptimizer = engine.optimizer
        self._optimizer = optimizer
        self._parts = _OwnParts(plan, plan.layout.place(rank))
        names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
        self._shapes = [master.shape for _, master in optimizer.pairs()]
        self._cuts = [StateCut(0, 1, {names[id(each)]: each.numel()}) for each, _ in optimizer.pairs()]

    def read(self, source: StateSource, adam_step: int | None, extra: dict[str, Any]) -> RankState:
        """See ``LiveState``."""
        state = self._optimizer.state_dict() | extra
        state["masters"] = [
            self._in_shape(number, self._parts.flat(source, "fp32", cut, 0)) for number, cut in enumerate(self._cuts)
        ]
        moments = {}
        if adam_step is not None:
            moments = self._parts.moments(source, dict(enumerate(self._cuts)), 0)
        if moments and adam_step is not None:
            state["optimizer"]["state"] = {
                number: {
                    "step": torch.tensor(float(adam_step)),
                    **{kind: self._in_shape(number, flat) for kind, flat in flats.items()},
                }
                for number, flats in moments.items()
            }
        return RankState(state, bool(moments))

    def fill(self, read: RankState) -> None:
        """See ``LiveState``."""
        self._optimizer.load_masters(read.optimizer["masters"])
        self._optimizer.loss_scaler = read.optimizer[LOSS_SCALER]
        if read.has_moments:
            self._optimizer.optimizer.load_state_dict(read.optimizer["optimizer"])

    def _in_shape(self, number: int, flat: Tensor | None) -> Tensor:
        assert flat is not None
        shape = self._shapes[number]
        return flat[: shape.numel()].view(shape)


def _size(shape: Any) -> int:
    return torch.Size(shape).numel()


def take_counts(engine: Any, plan: RunPlan, saved: SavedState) -> None:
    """Sets the engine's counters to those of the checkpoint."""
    counts = saved.engine_counts
    engine.global_steps, engine.skipped_steps = counts["global_steps"], counts["skipped_steps"]
    # A sequence-parallel rank's part of a sequence is a sample of its own to the engine.
    parts, saved_parts = plan.layout.sequence_parallel_size, saved.layout.sequence_parallel_size
    engine.global_samples = counts["global_samples"] * parts // saved_parts
