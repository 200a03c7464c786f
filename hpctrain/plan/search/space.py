"""What a search may choose: forms of parallelism, recomputation, and how the sequences of a step are spread."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from hpctrain.config.schema import Config
from hpctrain.errors import Problem
from hpctrain.plan.divisors import divisors
from hpctrain.plan.layout import Layout, resolve_batch
from hpctrain.plan.memory.fitted_ratio import RATIOS
from hpctrain.plan.model_shape import ModelShape, resolve_model_shape
from hpctrain.plan.rules.capacity import may_use_host
from hpctrain.plan.rules.compile import compile_problems, recomputation_modes
from hpctrain.plan.rules.parallelism import (
    PIPELINE_STAGE,
    parallelism_problems,
    sequence_wholes,
    stage_problems,
    tensor_wholes,
)
from hpctrain.plan.search.candidate import (
    Candidate,
    Degrees,
    Kept,
    OpenKeys,
    Passes,
    Place,
    Row,
    Space,
    Spread,
    States,
)
from hpctrain.plan.search.held_batch import LARGEST_MICRO_BATCH, stated


def search_space(config: Config, open_keys: OpenKeys, num_sequences: int, uses_nvme: bool) -> Space:
    """All candidates that the rules of the degrees, the states and the batch allow.

    Args:
        config: typed; the values of open keys are not looked at.
        open_keys: what may be chosen.
        num_sequences: of a step.
        uses_nvme: states may be moved to NVMe, and then all of these candidates do; where a key of it is stated, that stands.
            Recomputation that is open is then full and stages of a pipeline one: this is the last resort, of few candidates.
    """
    if uses_nvme or "nvme" in _stated_places(config, open_keys):
        config, open_keys = _last_resort(config, open_keys)
    shape, _ = resolve_model_shape(config.model)
    degrees = tuple(_degrees(config, open_keys, shape))
    layouts = [Layout(config.nodes, config.hardware.gpus_per_node, *each) for each in degrees]
    data = [each.data_parallel_degree for each in layouts]
    spreads = {degree: _spreads(config, open_keys, num_sequences, degree) for degree in set(data)}
    rows = tuple(
        Row(number, degrees[number], spread) for number, degree in enumerate(data) for spread in spreads[degree]
    )
    passes = _passes(config, open_keys)
    if not rows or not passes:
        return Space(degrees, (), (), ())
    together = _Together(config, shape, layouts, degrees)
    kept = []
    for states in _states(config, open_keys, uses_nvme):
        fitting = frozenset(
            number for number, degree in enumerate(data) if spreads[degree] and together(number, states)
        )
        if fitting:
            kept.append(Kept(states, fitting, _ratios(config, open_keys, states)))
    return Space(degrees, rows, tuple(kept), passes)


def _stated_places(config: Config, open_keys: OpenKeys) -> list[Place]:
    """Of what is offloaded, as far as somebody stated it."""
    names = ("offload_optimizer", "offload_param")
    return [getattr(config.parallelism, name) for name in names if f"parallelism.{name}" not in open_keys]


def _last_resort(config: Config, open_keys: OpenKeys) -> tuple[Config, OpenKeys]:
    """With full recomputation, all of the optimizer moved, and nothing that takes room for speed, where they are open.

    Ranks of a tensor or of a sequence stay open: what a rank works on at a time is all that is left on the GPU.
    """
    sizes = ("pipeline_parallel_size", "hpz_partition_size", "offload_ratio")
    plain = [name for name in sizes if f"parallelism.{name}" in open_keys]
    parallelism = dataclasses.replace(config.parallelism, **cast(Any, dict.fromkeys(plain, 1)))
    training, closed = config.training, {f"parallelism.{name}" for name in plain}
    if "training.activation_checkpointing" in open_keys:
        training = dataclasses.replace(training, activation_checkpointing="full")
        closed.add("training.activation_checkpointing")
    return dataclasses.replace(config, parallelism=parallelism, training=training), OpenKeys(open_keys.names - closed)


def _degrees(config: Config, open_keys: OpenKeys, shape: ModelShape) -> Iterator[Degrees]:
    """Degrees that divide the ranks, and where they are open what else they must divide."""
    parallelism, per_node = config.parallelism, config.hardware.gpus_per_node
    world_size, seq_len = config.nodes * per_node, config.training.seq_len or shape.max_seq_len

    def options(name: str, wholes: Iterable[int]) -> list[int]:
        is_open = f"parallelism.{name}" in open_keys
        return divisors(math.gcd(world_size, *wholes)) if is_open else [getattr(parallelism, name)]

    for tensor in options("tensor_parallel_size", tensor_wholes(shape, per_node).values()):
        sequences = options("sequence_parallel_size", sequence_wholes(shape, tensor, seq_len).values())
        for pipeline in options("pipeline_parallel_size", (shape.num_layers,)):
            for sequence in sequences:
                if world_size % (tensor * pipeline * sequence) == 0:
                    yield Degrees(tensor, pipeline, sequence)


def _states(config: Config, open_keys: OpenKeys, uses_nvme: bool) -> Iterator[States]:
    """All that the stages can do; not yet held against degrees."""
    parallelism, hardware = config.parallelism, config.hardware
    places: tuple[Place, ...] = ("none", "cpu", "nvme") if uses_nvme else ("none", "cpu")
    places = places if may_use_host(config) else ("none",)  # what is read from NVMe passes through the host too
    options: dict[str, tuple[Any, ...]] = {
        "zero_stage": (0, 1, 2, 3),
        "offload_optimizer": places,
        "offload_param": places,
        # Of one node the second partition is a copy of the first.
        "hpz_partition_size": (1, hardware.gpus_per_node) if config.nodes > 1 < hardware.gpus_per_node else (1,),
    }
    for name in options:
        if f"parallelism.{name}" not in open_keys:
            options[name] = (getattr(parallelism, name),)
    ratio = 1.0 if "parallelism.offload_ratio" in open_keys else parallelism.offload_ratio
    for states in map(States._make, itertools.product(*options.values())):
        tried = dataclasses.replace(parallelism, **states._asdict(), offload_ratio=ratio)
        is_on_nvme = "nvme" in states
        is_wanted = is_on_nvme or not uses_nvme
        if is_on_nvme and states.zero_stage != 3:
            continue  # as its own rules say at length
        if is_wanted and not stage_problems(tried, hardware.device == "cuda"):
            yield states


def _ratios(config: Config, open_keys: OpenKeys, states: States) -> tuple[float, ...]:
    """Of the optimizer's states that may be offloaded."""
    ratio, is_fitted = config.parallelism.offload_ratio, config.parallelism.fit_offload_ratio
    if "parallelism.offload_ratio" not in open_keys and (ratio < 1 or not is_fitted):
        return (ratio,)
    return RATIOS if states.zero_stage == 3 and states.offload_optimizer == "cpu" else (1.0,)


def _passes(config: Config, open_keys: OpenKeys) -> tuple[Passes, ...]:
    """What goes together, of what is stated too; only full recomputation has inputs that can wait on the host."""
    training = config.training
    modes = recomputation_modes(training)
    if "training.activation_checkpointing" in open_keys:
        modes = recomputation_modes(dataclasses.replace(training, activation_checkpointing=None))
    elif compile_problems(config):
        return ()
    if "training.offload_activations" not in open_keys:
        moved = training.offload_activations
        return tuple(Passes(mode, moved) for mode in modes if mode == "full" or not moved)
    is_offered = "full" in modes and config.hardware.device == "cuda" and may_use_host(config)
    return (*(Passes(mode, False) for mode in modes), *([Passes("full", True)] if is_offered else []))


def _spreads(config: Config, open_keys: OpenKeys, num_sequences: int, data_parallel_degree: int) -> tuple[Spread, ...]:
    """Micro batches that divide a rank's share of the batch, and how many of them a step has; empty: the ranks do not."""
    training = config.training
    share, rest = divmod(num_sequences, data_parallel_degree)
    if rest or not share:
        return ()
    micro = stated(training.micro_batch_size, "training.micro_batch_size", open_keys)
    accumulation = stated(training.gradient_accumulation_steps, "training.gradient_accumulation_steps", open_keys)
    sizes = [micro] if micro else [size for size in divisors(share) if size <= LARGEST_MICRO_BATCH]
    spreads = [Spread(size, share // size) for size in sizes if share % size == 0]
    if accumulation:
        spreads = [each for each in spreads if each.accumulation == accumulation]
    seq_len = training.seq_len or config.model.max_seq_len
    return tuple(each for each in spreads if _is_whole(config, each, data_parallel_degree, seq_len))


def _is_whole(config: Config, spread: Spread, data_parallel_degree: int, seq_len: int) -> bool:
    """Whether the batch triangle holds, in every stage of a ramp too."""
    training = dataclasses.replace(config.training, gradient_accumulation_steps=spread.accumulation)
    replicas = Layout(1, data_parallel_degree)  # each of any ranks: they count only where the accumulation is open
    return not resolve_batch(training, spread.micro_batch_size, replicas, seq_len)[1]


class _Together:
    """Whether the rules allow degrees and states together; places of the states are held against the stage before."""

    def __init__(
        self, config: Config, shape: ModelShape, layouts: Sequence[Layout], degrees: Sequence[Degrees]
    ) -> None:
        # With full recomputation none of its rules is broken.
        self._config = Candidate(degrees[0], _PLAIN, 1.0, Passes("full", False), Spread(1, 1)).applied(config)
        self._shape, self._layouts, self._degrees = shape, layouts, degrees
        self._seq_len = config.training.seq_len or shape.max_seq_len
        self._known: dict[tuple[int, int, int], bool] = {}

    def __call__(self, number: int, states: States) -> bool:
        pipeline, sequence = self._degrees[number].pipeline, self._degrees[number].sequence
        if pipeline > 1 and (states.zero_stage != PIPELINE_STAGE or sequence > 1):
            return False  # as the rules say at length
        key = (number, states.zero_stage, states.hpz_partition_size)
        if key not in self._known:
            self._known[key] = not self._problems(number, states)
        return self._known[key]

    def _problems(self, number: int, states: States) -> list[Problem]:
        degrees = self._degrees[number]
        parallelism = dataclasses.replace(
            self._config.parallelism,
            zero_stage=states.zero_stage,
            hpz_partition_size=states.hpz_partition_size,
            tensor_parallel_size=degrees.tensor,
            pipeline_parallel_size=degrees.pipeline,
            sequence_parallel_size=degrees.sequence,
        )
        tried = dataclasses.replace(self._config, parallelism=parallelism)
        return parallelism_problems(tried, self._shape, self._layouts[number], self._seq_len)


_PLAIN = States(0, "none", "none", 1)
