"""One plan of the many that a question looks at, in the numbers by which they are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError, Problem
from hpctrain.plan.run_plan import RunPlan

PlanOf = Callable[[Config], RunPlan]
"""A plan with nothing left open; what nobody stated is chosen for each configuration anew."""


@dataclass(frozen=True)
class Outcome:
    """None: the hardware states too little for this number."""

    num_layers: int
    num_parameters: int
    nodes: int
    gpus: int
    parallelism: str
    micro_batch_size: int
    gradient_accumulation_steps: int
    global_batch_size: int
    seq_len: int
    activation_checkpointing: str
    step_time_s: float | None
    """Predicted, as the next."""
    tokens_per_s: float | None
    gpu_bytes: int
    """Of the fullest GPU; on CPU ranks 0."""
    gpu_capacity_bytes: int | None
    host_bytes: int
    """Of a node."""
    host_capacity_bytes: int | None
    fits: bool
    has_headroom: bool
    """A tenth of each tier stays free, which is what the planner asks of what it chooses itself."""
    short: tuple[Problem, ...]
    """What is short, on which tier, by how much; empty where it fits."""

    @property
    def gpu_hours_per_billion_tokens(self) -> float | None:
        """GPU-hours of steps alone for 1e9 tokens, by the prediction."""
        return None if self.tokens_per_s is None else 1e9 / self.tokens_per_s * self.gpus / 3600


def outcome_of(plan: RunPlan) -> Outcome:
    """The numbers of a plan.

    Raises:
        ConfigError: it breaks rules other than those of memory.
    """
    wrong = [problem for problem in plan.problems if problem.kind != "memory"]
    if wrong:
        raise ConfigError(wrong)
    memory, batch, prediction = plan.memory, plan.batch, plan.prediction
    return Outcome(
        num_layers=plan.model.num_layers,
        num_parameters=plan.num_parameters,
        nodes=plan.layout.num_nodes,
        gpus=plan.layout.world_size,
        parallelism=plan.parallelism_name,
        micro_batch_size=batch.micro_batch_size,
        gradient_accumulation_steps=batch.gradient_accumulation_steps,
        global_batch_size=batch.global_batch_size,
        seq_len=batch.seq_len,
        activation_checkpointing=plan.activation_checkpointing,
        step_time_s=None if prediction is None else prediction.step_time_s,
        tokens_per_s=None if prediction is None else prediction.tokens_per_s,
        gpu_bytes=memory.gpu_bytes,
        gpu_capacity_bytes=memory.gpu_capacity_bytes,
        host_bytes=memory.host_bytes_per_node,
        host_capacity_bytes=memory.host_capacity_bytes,
        fits=not plan.problems,
        has_headroom=not plan.problems and memory.fits_with_headroom,
        short=plan.problems,
    )


def check_capacity(outcome: Outcome) -> None:
    """A question about what fits needs a memory to fit into.

    Raises:
        ConfigError: the hardware states none.
    """
    if outcome.gpu_capacity_bytes is None and outcome.host_capacity_bytes is None:
        rule = "is not stated, nor is hardware.gpu_memory_gib: there is no memory that anything could fit into"
        raise ConfigError([Problem("hardware.host_memory_gib", "null", rule, "state what a node has, in GiB")])
