"""Micro batch, recomputation and offload ratio that nobody states: chosen together, the fastest of what fits."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from hpctrain.config.calibration import Calibration
from hpctrain.config.schema import ActivationCheckpointing, Config, TrainingConfig
from hpctrain.plan.divisors import divisors, powers_and_halves
from hpctrain.plan.held_sequences import MOST_SEQUENCES_PER_GPU, sequences_per_gpu
from hpctrain.plan.layout import Layout, resolve_batch
from hpctrain.plan.memory.decoder_activations import DecoderActivations
from hpctrain.plan.memory.estimate import USED_AT_MOST, MemoryEstimate, estimate_memory
from hpctrain.plan.memory.fitted_ratio import is_fitted, with_least_moved
from hpctrain.plan.memory.settings import Settled, resolved_work, settled, with_passes, with_tiers
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.rules.capacity import counted_hardware
from hpctrain.plan.rules.compile import recomputation_modes
from hpctrain.plan.search.candidate import Candidate
from hpctrain.plan.search.held_batch import LARGEST_MICRO_BATCH
from hpctrain.plan.search.plainness import NOISE, plainness
from hpctrain.plan.speed.step_time import prediction_gap, step_seconds
from hpctrain.units import GIB, counted

_MOST_LISTED = 8
_HOW = {"none": "without recomputation", "selective": "with selective recomputation", "full": "with full recomputation"}


class Chosen(NamedTuple):
    """What was stated or chosen, with all that follows from it."""

    settled: Settled
    memory: MemoryEstimate
    notes: tuple[str, ...]
    """A sentence for each choice of micro batch and recomputation."""


class _Option(NamedTuple):
    """A micro batch and a recomputation, with as little moved off the GPU as there can be."""

    settled: Settled
    token_s: float
    """Predicted; infinite: it is not."""
    plainness: tuple[float, ...]

    @property
    def micro_batch_size(self) -> int:
        return self.settled.work.batch.micro_batch_size

    @property
    def checkpointing(self) -> ActivationCheckpointing:
        return self.settled.work.checkpointing


class _Found(NamedTuple):
    """An option with what has to be moved for it."""

    settled: Settled
    memory: MemoryEstimate
    token_s: float
    plainness: tuple[float, ...]


def choose_settings(config: Config, shape: ModelShape, layout: Layout) -> Chosen:
    """The fastest micro batch, recomputation and fitted ratio by predicted time per token; what is stated stays.

    Looked at are those with which a tenth of each tier stays free. Of times within 5 % the plainest is taken. Where no time is
    predicted it is the least recomputation that fits, with the largest micro batch; where nothing fits, what needs least.

    Args:
        config: typed; null is chosen. The factors of its calibration count in the times.
        shape: of its model.
        layout: of its ranks.
    """
    options = _options(config, shape, layout)
    looks = _Looks(config, options)
    fitting = _fastest(options, looks)
    if fitting:
        chosen = min(fitting, key=lambda each: (each.plainness, each.token_s))
        why = _why(config, options, chosen, min(each.token_s for each in fitting))
    else:
        chosen = looks.at(options[-1])
        why = _short_text(chosen.memory)
    return Chosen(chosen.settled, chosen.memory, _notes(config, chosen.settled.work, why))


def micro_batch_sizes(training: TrainingConfig, data_parallel_degree: int, most: int) -> tuple[int, ...]:
    """Micro batches that the rest of the batch allows, rising; what is stated is all there is.

    Args:
        training: as stated.
        data_parallel_degree: of the ranks.
        most: sequences of a stated global batch that a rank takes at a time; without one no more than 8, since the batch grows.

    >>> micro_batch_sizes(TrainingConfig("x", 1), 4, 128), micro_batch_sizes(TrainingConfig("x", 1, global_batch_size=40), 4, 128)
    ((1, 2, 3, 4, 6, 8), (1, 2, 5, 10))
    """
    if training.micro_batch_size is not None:
        return (training.micro_batch_size,)
    sizes = tuple(powers_and_halves(MOST_SEQUENCES_PER_GPU))
    if training.global_batch_size is not None:
        accumulation = training.gradient_accumulation_steps
        share, rest = divmod(training.global_batch_size, data_parallel_degree * (accumulation or 1))
        if rest or not share:
            return (1,)
        sizes = (share,) if accumulation else tuple(size for size in divisors(share) if size <= most)
    if (ramp := training.batch_ramp) is not None:
        smallest = math.gcd(ramp.start, ramp.increment)
        sizes = tuple(size for size in sizes if smallest % (data_parallel_degree * size) == 0) or (1,)
    return sizes


def _options(config: Config, shape: ModelShape, layout: Layout) -> list[_Option]:
    """From the most that is kept to the least; without those that no GPU holds, but the least of all is there."""
    training, modes = config.training, recomputation_modes(config.training)
    plain = dataclasses.replace(config, parallelism=with_least_moved(config.parallelism))
    tiered, notes = with_tiers(plain, shape, layout)
    seq_len = training.seq_len or shape.max_seq_len

    def all_of(size: int, mode: ActivationCheckpointing) -> Settled:
        batch, problems = resolve_batch(training, size, layout, seq_len)
        work = resolved_work(tiered, shape, layout, batch, config.precision, mode)
        return Settled(tiered, problems, work, tuple(notes))

    # More than 8 are taken for their gain: where that is predicted, and it is known what they have to fit into.
    has_gain = counted_hardware(config).gpu_memory_gib is not None and not prediction_gap(all_of(1, modes[0]).work)
    most = LARGEST_MICRO_BATCH if has_gain else MOST_SEQUENCES_PER_GPU
    sizes = micro_batch_sizes(training, layout.data_parallel_degree, most)
    found = [all_of(size, mode) for size in reversed(sizes) for mode in modes]
    return [
        _Option(each, _token_s(each.work, config.calibration), plainness(Candidate.of(each.work)))
        for each in (*filter(_may_fit, found[:-1]), found[-1])
    ]


def _may_fit(option: Settled) -> bool:
    """Whether a GPU has room for what the backward pass of the last block finds; where not, nothing else need be counted."""
    work = option.work
    capacity_gib = work.hardware.gpu_memory_gib
    if capacity_gib is None or work.hardware.device == "cpu":
        return True
    last = work.shape.num_layers // work.layout.pipeline_parallel_size - 1
    return DecoderActivations(work).kept_before(last) <= USED_AT_MOST * capacity_gib * GIB


def _token_s(work: RankWork, calibration: Calibration | None) -> float:
    return math.inf if prediction_gap(work) else step_seconds(work, calibration) / work.batch.tokens_per_step


class _Looks:
    """What options need. Memory grows with the micro batch, so that few are looked at."""

    def __init__(self, config: Config, options: Sequence[_Option]) -> None:
        self._config = config
        self._relatives: dict[tuple[str, int], list[_Option]] = {}
        """By what is kept, micro batches rising: of steps with as few micro steps, or with as many."""
        for option in reversed(options):
            self._relatives.setdefault(self._kind(option), []).append(option)
        self._largest: dict[tuple[str, int], int] = {}
        """Of a kind of which some do not fit, the micro batch up to which they do."""
        self._known: dict[tuple[int, str], _Found] = {}

    def fits(self, option: _Option) -> bool:
        """With headroom."""
        kind = self._kind(option)
        if kind not in self._largest:
            if self._has_headroom(option):
                return True
            smaller = [each for each in self._relatives[kind] if each.micro_batch_size < option.micro_batch_size]
            self._largest[kind] = self._largest_of(smaller)
        return option.micro_batch_size <= self._largest[kind]

    def at(self, option: _Option) -> _Found:
        """The option with the smallest ratio that a GPU needs for it."""
        key = (option.micro_batch_size, option.checkpointing)
        if key not in self._known:
            self._known[key] = self._found(option)
        return self._known[key]

    def _found(self, option: _Option) -> _Found:
        work = option.settled.work
        if not is_fitted(self._config.parallelism):
            return _Found(option.settled, estimate_memory(work), option.token_s, option.plainness)
        stated = with_passes(self._config, option.micro_batch_size, option.checkpointing)
        found = settled(stated, work.shape, work.layout)
        token_s = _token_s(found.work, self._config.calibration)
        return _Found(found, estimate_memory(found.work), token_s, plainness(Candidate.of(found.work)))

    def _largest_of(self, options: Sequence[_Option]) -> int:
        """The largest micro batch of these that fits, rising ones of a kind; 0: none does, which is asked of the smallest."""
        if not options or not self._has_headroom(options[0]):
            return 0
        place = bisect.bisect_left(options, True, lo=1, key=lambda each: not self._has_headroom(each))
        return options[place - 1].micro_batch_size

    def _has_headroom(self, option: _Option) -> bool:
        return self.at(option).memory.fits_with_headroom

    def _kind(self, option: _Option) -> tuple[str, int]:
        work = option.settled.work
        accumulates = min(work.batch.gradient_accumulation_steps, max(2, work.layout.pipeline_parallel_size))
        return work.checkpointing, accumulates


def _fastest(options: Sequence[_Option], looks: _Looks) -> list[_Found]:
    """Those that fit and are as fast as the fastest of them, as far as one may be the plainest; empty: none fits."""
    found, fastest_s = list[_Found](), math.inf
    for option in sorted(options, key=lambda each: (each.token_s, each.plainness, -each.micro_batch_size)):
        if option.token_s > (1 + NOISE) * fastest_s:
            break  # what has to be moved off the GPU makes it no faster
        if found and option.token_s >= fastest_s and option.plainness >= min(each.plainness for each in found):
            continue
        if looks.fits(option):
            found.append(looks.at(option))
            fastest_s = min(each.token_s for each in found)
            found = [each for each in found if each.token_s <= (1 + NOISE) * fastest_s]
    return found


def _notes(config: Config, work: RankWork, why: str) -> tuple[str, ...]:
    """A sentence for what was not stated."""
    training, notes = config.training, list[str]()
    batch, mode, size = work.batch, work.checkpointing, work.batch.micro_batch_size
    is_batch_open = training.global_batch_size is None and training.gradient_accumulation_steps is None
    is_held = is_batch_open and work.layout.pipeline_parallel_size > 1
    if training.micro_batch_size is None:
        is_most = training.global_batch_size is None and size == MOST_SEQUENCES_PER_GPU
        grows = "" if is_held else ", since a step grows with it"
        bound = f"; {size} is the most without a training.global_batch_size{grows}" if is_most else ""
        notes.append(f"training.micro_batch_size not stated: {size}, {why}{bound}")
    if training.activation_checkpointing is None:
        reason = f", {_reason(config, mode)} at a micro batch of {size}" if _has_capacity(config) else ""
        notes.append(f"training.activation_checkpointing not stated: {mode}{reason}")
    if is_held:
        per_gpu = counted(sequences_per_gpu(batch.seq_len), "sequence")
        notes.append(
            f"training.gradient_accumulation_steps not stated: {batch.gradient_accumulation_steps}, the whole micro batches of a"
            f" step with {per_gpu} a GPU ({batch.global_batch_size:,} in all); fewer leave the pipeline's stages idle"
        )
    return tuple(notes)


def _why(config: Config, options: Sequence[_Option], chosen: _Found, fastest_s: float) -> str:
    """Why this micro batch and no other."""
    sizes = sorted({each.micro_batch_size for each in options})
    listed = ", ".join(map(str, sizes))
    if len(sizes) > _MOST_LISTED:
        listed = f"{len(sizes)} between {sizes[0]} and {sizes[-1]}"
    room = "with a tenth of the memory free" if _has_capacity(config) else "memory not stated by the hardware"
    if math.isinf(chosen.token_s):
        return f"the largest of {listed} {_HOW[chosen.settled.work.checkpointing]} ({room})"
    slower = f"{1 - fastest_s / chosen.token_s:.1%}"
    if slower == "0.0%":
        return f"the fastest of {listed} as predicted ({room})"
    return f"within {slower} of the fastest of {listed} as predicted, with fewer mechanisms ({room})"


def _short_text(memory: MemoryEstimate) -> str:
    if memory.problems():
        return "and even that does not fit"
    return "which leaves less than a tenth of the memory free"


def _reason(config: Config, mode: ActivationCheckpointing) -> str:
    """Why no less is recomputed; of one micro batch less is always faster, unless more has to be moved for it."""
    if mode == "none":
        return "it fits without recomputation"
    if is_fitted(config.parallelism):
        return "with less of it more of the optimizer leaves the GPU, or it does not fit"
    if mode == "full" and "selective" in recomputation_modes(config.training):
        return "neither without recomputation nor with selective one does it fit"
    return "without recomputation it does not fit"


def _has_capacity(config: Config) -> bool:
    hardware = counted_hardware(config)
    return hardware.gpu_memory_gib is not None or hardware.host_memory_gib is not None
