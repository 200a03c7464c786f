"""What the exact rules say of one candidate: its memory, and what of the choice breaks a rule."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.config.schema import Config
from hpctrain.errors import Problem
from hpctrain.plan.flops import step_flops
from hpctrain.plan.memory.estimate import MemoryEstimate, estimate_memory
from hpctrain.plan.memory.settings import settled
from hpctrain.plan.model_shape import resolve_model_shape
from hpctrain.plan.nvme.need import NvmeNeed, nvme_need, nvme_problems
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.rules.compile import compile_problems
from hpctrain.plan.rules.parallelism import parallelism_problems, resolve_layout
from hpctrain.plan.speed.step_time import StepPrediction, predict_step


@dataclass(frozen=True)
class Verdict:
    """Of one configuration with nothing open."""

    config: Config
    work: RankWork
    memory: MemoryEstimate
    nvme: NvmeNeed | None
    """None: nothing is there."""
    problems: tuple[Problem, ...]
    """Of what a search chooses; what it cannot mend is left to the plan. Those of memory are among them."""

    def fits(self, has_headroom: bool) -> bool:
        """Breaks no rule, and every tier holds it; with headroom a tenth of each stays free."""
        return not self.problems and (self.memory.fits_with_headroom or not has_headroom)

    @property
    def gpu_free_bytes(self) -> int | None:
        """Of the fullest GPU; negative: short by as much."""
        capacity = self.memory.gpu_capacity_bytes
        return None if capacity is None else capacity - self.memory.gpu_bytes

    @property
    def host_free_bytes(self) -> int | None:
        """Of a node's memory."""
        capacity = self.memory.host_capacity_bytes
        return None if capacity is None else capacity - self.memory.host_bytes_per_node

    @property
    def nvme_free_bytes(self) -> int | None:
        """Of a node's NVMe; None: nothing is there, or its size is not stated."""
        if self.nvme is None or self.nvme.capacity_bytes is None:
            return None
        return self.nvme.capacity_bytes - self.nvme.bytes_per_node

    def prediction(self) -> StepPrediction | None:
        """Of its step."""
        batch, parallelism = self.work.batch, self.work.parallelism
        flops = step_flops(
            self.work.shape, batch.seq_len, batch.global_batch_size, self.work.checkpointing, parallelism.zero_stage
        )
        return predict_step(self.work, flops, self.config.calibration)[0]


def verdict_of(config: Config) -> Verdict:
    """Of a configuration whose micro batch and recomputation are stated.

    Args:
        config: of ``Candidate.applied``; its degrees divide the ranks.
    """
    shape, _ = resolve_model_shape(config.model)
    layout, layout_problems = resolve_layout(config)
    tiered, batch_problems, work, _ = settled(config, shape, layout)
    memory = estimate_memory(work)
    need = nvme_need(work.parallelism, work.hardware, shape, layout, work.bytes_per_element)
    problems = (
        *layout_problems,
        *batch_problems,
        *parallelism_problems(tiered, shape, layout, work.batch.seq_len),
        *compile_problems(tiered),
        *memory.problems(),
        *nvme_problems(work.parallelism, work.hardware, need),
    )
    return Verdict(config, work, memory, need, problems)
