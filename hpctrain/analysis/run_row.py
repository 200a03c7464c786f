"""One run in one row: what the columns of the frame ``runs`` mean, and what they are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from hpctrain.analysis.steady import attempt_bounds
from hpctrain.analysis.validation_files import NO_VALIDATIONS
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.schema import AttemptRecord

OWN_SOURCE = "hpctrain"
"""System of our own runs; a foreign log has that of its writer."""

FLOP_CONVENTIONS = {
    "model": "forward and backward once, dense attention",
    "hardware": "what is executed: the model count and recomputation",
    "megatron": "96·B·s·l·h²·(1 + s/6h + V/16lh): full recomputation always counted",
}
"""The three counts of ``StepFlops`` by the names that tables and figures use."""


@dataclass(frozen=True)
class RunData:
    """One run folder as read. What could not be read is None or empty, and ``problem`` says why."""

    folder: str
    plan: RunPlan | None
    attempts: tuple[AttemptRecord, ...]
    columns: Mapping[str, NDArray[Any]]
    """The marked steps by (attempt, step), see ``steady.mark_steps``."""
    damaged_lines: int
    """In ``steps.jsonl``."""
    problem: str
    num_lines: int = 0
    """In ``steps.jsonl``, damaged ones included."""
    first_damage: str = ""
    """Place and reason of the first damaged line."""
    all_attempts_are_known: bool = True
    """False: the file of one cannot be read, so neither time nor cost is known."""
    last_attempt_is_known: bool = True
    """False: nobody knows how the run stands."""
    was_cancelled: bool = False
    """A user cancelled the job of the last attempt after it began."""
    validations: pd.DataFrame = field(default_factory=lambda: NO_VALIDATIONS)
    """See ``validation_files.read_validations``."""
    validation_problems: tuple[str, ...] = ()
    """They cost validations, and no run its validity."""

    @property
    def steps(self) -> pd.DataFrame:
        """``columns`` as a frame."""
        return pd.DataFrame(self.columns, copy=False)

    @property
    def attempts_on_curve(self) -> set[int]:
        """Numbers of the attempts that made the curve."""
        on_curve = self.columns["attempt"][~self.columns["superseded"]]
        return set(on_curve[attempt_bounds(on_curve)[:-1]].tolist())


@dataclass(frozen=True)
class RunSummary:
    """A row of the ``runs`` frame; None is «not known» or «not measured»."""

    folder: str
    run: str
    """The folder's own name; of a foreign log the file's."""
    source: str = OWN_SOURCE
    """Who wrote the records: ``hpctrain``, or the foreign system whose log was read."""
    name: str | None = None
    """As planned; several runs may share it."""
    model: str | None = None
    num_parameters: int | None = None
    parallelism: str | None = None
    zero_stage: int | None = None
    zero_settings: str | None = None
    """DeepSpeed's section ``zero_optimization`` as JSON with sorted keys."""
    hardware: str | None = None
    cluster: str | None = None
    data: str | None = None
    device: str | None = None
    precision: str | None = None
    activation_checkpointing: str | None = None
    nodes: int | None = None
    gpus: int | None = None
    """Planned ranks; on ``device=cpu`` a rank stands for a GPU in every count."""
    micro_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    global_batch_size: int | None = None
    seq_len: int | None = None
    tokens_per_step: int | None = None
    num_steps: int | None = None
    """Planned."""
    peak_tflops_per_gpu: float | None = None
    achievable_tflops_per_gpu: float | None = None
    """Best measured matrix-multiply rate of that GPU, where one is known."""
    predicted_step_time_s: float | None = None
    prediction_error: float | None = None
    """Predicted step time over the measured one, less 1: above 0 the plan was too pessimistic."""
    predicted_step_time_low_s: float | None = None
    """The plan's own range, up to ``predicted_step_time_high_s``."""
    predicted_step_time_high_s: float | None = None
    in_predicted_range: bool | None = None
    """The measured step time lies in that range; None: one of them is not known."""
    prediction_gap: str | None = None
    """Why the plan predicted no step time; None: it did."""
    calibration: str | None = None
    """Factors in the predicted times and the past runs that they are from, in words; None: none."""
    predicted_memory_bytes: int | None = None
    """The plan's estimate for one rank: on its GPU, or on ``device=cpu`` in the host's memory."""
    memory_error: float | None = None
    """Predicted memory over the measured peak, less 1: above 0 the plan was too pessimistic."""
    predicted_host_bytes: int | None = None
    """The plan's estimate of host memory, of all ranks of a node together."""
    forced: str | None = None
    """What the plan says is short and --force let pass; None: nothing."""
    memory_capacity_bytes: int | None = None
    """Of one GPU."""
    state: str = "not started"
    """Of the last attempt, or ``unreadable``. Of a foreign log ``completed``, ``failed`` or, where it does not tell its end,
    ``unknown``."""
    end_reason: str | None = None
    num_attempts: int = 0
    world_size: int | None = None
    """Measured by a collective; None if the attempts that made the curve measured none, or not the same."""
    num_recorded_steps: int = 0
    """Different steps on the curve."""
    num_dead_steps: int = 0
    """On the curve: skipped, without a finite loss, or without a time; but not the skips in which fp16 finds its loss scale."""
    dead_share: float | None = None
    """Share of the curve."""
    num_outlier_steps: int = 0
    """On the curve, see ``steady.mark_steps``."""
    num_rejected_steps: int = 0
    """On the curve: faster than the hardware's peak allows; in no speed."""
    damaged_lines: int = 0
    num_steady_steps: int = 0
    step_time_s: float | None = None
    """Median over the steady steps, like every speed below."""
    step_time_low_s: float | None = None
    """95 % interval of the median that allows for dependence of neighbouring steps, see ``intervals``; None: too few steps."""
    step_time_high_s: float | None = None
    data_time_s: float | None = None
    """Waiting for data, median; the next three are rank 0's, see ``StepRecord``, and None of a pipeline and of old records."""
    forward_time_s: float | None = None
    backward_time_s: float | None = None
    optimizer_time_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    wall_tokens_per_s: float | None = None
    """Tokens of the curve over the wall-clock time of all attempts; the time between attempts is not counted. None too where
    lines of steps are missing."""
    lost_time_share: float | None = None
    """Share of that time that was not spent in steps of the curve: set-up, saving, evaluation, undone steps."""
    model_tflops_per_gpu: float | None = None
    hardware_tflops_per_gpu: float | None = None
    megatron_tflops_per_gpu: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    printed_tflops_per_gpu: float | None = None
    """What a foreign log itself prints, median over the steady steps; None for own runs."""
    printed_convention: str | None = None
    """What it counts: ``model``, ``hardware``, ``megatron`` or ``unknown``."""
    final_loss: float | None = None
    """Of the last step on the curve; None if it had none."""
    validation_loss: float | None = None
    """On held-out data, last on the curve; None: not validated, or not finite."""
    peak_memory_bytes: int | None = None
    """Rank 0."""
    gpu_hours: float | None = None
    """All attempts, undone steps included."""
    valid: bool = False
    """The speeds may be compared with other runs. Of our own runs only ``completed`` ones; of a foreign log whatever its end."""
    reason: str = ""
    """Why not."""

    @property
    def tflops_per_gpu(self) -> dict[str, float | None]:
        """TFLOP/s a GPU by FLOP convention."""
        rates = (self.model_tflops_per_gpu, self.hardware_tflops_per_gpu, self.megatron_tflops_per_gpu)
        return dict(zip(FLOP_CONVENTIONS, rates, strict=True))


def rank_word(device: str | None) -> str:
    """What «per GPU» is called on this device; None or NA, as in rows of foreign logs, is taken for one with GPUs."""
    return "rank" if isinstance(device, str) and device == "cpu" else "GPU"


def counted_ranks(count: int, device: str | None) -> str:
    """A number of GPUs, or of what stands for them on this device, see ``rank_word``.

    >>> counted_ranks(8, "cuda"), counted_ranks(1, "cuda"), counted_ranks(2, "cpu")
    ('8 GPUs', '1 GPU', '2 ranks')
    """
    return f"{count} {rank_word(device)}{'' if count == 1 else 's'}"
