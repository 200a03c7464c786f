"""The numbers in which candidates differ, as numpy columns, and one rank's work with columns in the place of numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hpctrain.config.schema import Config
from hpctrain.plan.layout import Batch, Layout
from hpctrain.plan.model_shape import resolve_model_shape
from hpctrain.plan.rank_parameters import RankParameters, rank_parameters
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.search.candidate import Kept, Passes, Space, States

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


class Columns:
    """One element for each row of a space. Counts are floats: a product of them may pass the largest 64-bit integer."""

    def __init__(self, config: Config, space: Space) -> None:
        self._config = config
        self.shape, _ = resolve_model_shape(config.model)
        self.precision, self.parallelism = config.precision, config.parallelism
        self.is_pinned = config.parallelism.pin_memory and config.hardware.device == "cuda"
        """States in host memory are."""
        degrees = np.array([row.degrees for row in space.rows], dtype=np.float64)
        spreads = np.array([row.spread for row in space.rows], dtype=np.float64)
        self.tensor, self.pipeline, self.sequence = degrees.T
        self.micro_batch_sizes, self.accumulations = spreads.T
        self.zero_ranks = config.nodes * config.hardware.gpus_per_node / (self.tensor * self.pipeline)
        """Ranks over which ZeRO spreads the states."""
        self.kinds = 4 * (self.tensor > 1) + 2 * (self.pipeline > 1) + (self.sequence > 1)
        """Which degrees are above 1, a bit each."""
        self.accumulates = np.minimum(self.accumulations, np.maximum(self.pipeline, 2))
        """Micro steps whose gradients or activations wait for others."""
        self.layout_numbers = np.array([row.layout for row in space.rows])
        cuts = {(each.tensor, each.pipeline): number for number, each in reversed(list(enumerate(space.layouts)))}
        self.cut_numbers = np.array([cuts[each.tensor, each.pipeline] for each in space.layouts])
        """Of each layout the first that cuts the model in the same way."""
        own = [
            rank_parameters(self.shape, Layout(config.nodes, config.hardware.gpus_per_node, *each))
            for each in space.layouts
        ]
        self.parameters = self._of_layouts([each.total for each in own])
        """Elements of a rank of the first pipeline stage, before ZeRO shares them out."""
        self.fewest_matrices = self._of_layouts([each.num_blocks * sum(each.block_matrices) for each in own])
        """Elements in matrices of any rank: the stages between the first and the last have blocks alone."""
        self.matrices = tuple(self._of_layouts([each.block_matrices[place] for each in own]) for place in (3, 2, 1, 0))
        """Elements of a block's matrices, in the order in which their gradients come."""
        threshold = config.parallelism.param_persistence_threshold
        self.gathered = self._of_layouts([_gathered(each, threshold) for each in own])
        """Elements of a block that are not whole all the time in stage 3."""

    def _of_layouts(self, values: list[int]) -> Floats:
        found: Floats = np.array(values, dtype=np.float64)[self.layout_numbers]
        return found

    def of(self, kept: Kept) -> Numbers:
        """The rows whose degrees go with these states."""
        return np.flatnonzero(np.isin(self.layout_numbers, list(kept.layouts)))

    def work(self, rows: Numbers, passes: Passes, states: States, offload_ratios: Floats | float) -> RankWork:
        """One rank's work of so many rows, whose degrees, batch sizes and offload ratios are columns.

        What takes it goes through ``elementwise`` where it chooses by them. The loss is not cut into chunks.
        """
        config = self._config
        columns = cast(Any, (self.tensor[rows], self.pipeline[rows], self.sequence[rows]))
        micro_batch_sizes, accumulations = cast(Any, (self.micro_batch_sizes[rows], self.accumulations[rows]))
        ratio = cast(float, offload_ratios)
        return RankWork(
            self.shape,
            Layout(config.nodes, config.hardware.gpus_per_node, *columns),
            Batch(micro_batch_sizes, accumulations, 0, config.training.seq_len or self.shape.max_seq_len),
            replace(config.parallelism, **states._asdict(), offload_ratio=ratio),
            config.hardware,
            config.precision,
            passes.checkpointing,
            passes.offload_activations,
        )


def _gathered(parameters: RankParameters, threshold: int) -> int:
    return sum(size for size in parameters.block_matrices if size > threshold)
