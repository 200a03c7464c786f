"""What is written into a run folder, field by field. Readers accept exactly ``SCHEMA_VERSION``, of steps all versions so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# The part that a submission needs is a module of its own, and belongs to what this one offers.
from hpctrain.record.submission_schema import SCHEMA_VERSION as SCHEMA_VERSION
from hpctrain.record.submission_schema import SubmissionRecord as SubmissionRecord

STEP_SCHEMA_VERSION = 2
"""Of ``steps.jsonl``. Lines of version 1 lack ``STEP_FIELDS_SINCE_2``; an older run may go on, so a file may hold both."""
STEP_FIELDS_SINCE_2 = ("forward_time_s", "backward_time_s", "optimizer_time_s", "loss_scale")

AttemptState = Literal["running", "completed", "failed"]
EndReason = Literal[
    "completed",
    "exception",
    "out_of_memory",
    "non_finite_loss",
    "world_size_mismatch",
    "bad_environment",
    "bad_data",
    "signal",
    "time_limit",
    "cancelled",
    "preempted",
    "requeued",
    "node_failure",
    "hang",
    "no_progress",
    "out_of_attempts",
    "bad_checkpoint",
    "killed",
    "launch_failed",
    "no_end_marker",
]


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step, a line of ``steps.jsonl``, written by rank 0."""

    schema_version: int
    attempt: int
    step: int
    """1 for the first optimizer step of the run."""
    time_s: float
    """Unix time at the step's end."""
    loss: float | None
    """Mean over all ranks and micro-steps, nats per token; None if it was not finite."""
    learning_rate: float
    grad_norm: float | None
    skipped: bool
    """The optimizer did not update."""
    step_time_s: float
    data_time_s: float
    """Part of ``step_time_s`` spent waiting for data."""
    tokens: int
    """Tokens of all ranks."""
    peak_memory_bytes: int
    """Rank 0: the GPU allocator's peak since the start, on CPU the process's peak resident size."""
    forward_time_s: float | None = None
    """Rank 0: part of ``step_time_s`` in forward passes, of all micro steps; on a GPU its own time between events. None: a
    pipeline, whose passes overlap, or a line of version 1."""
    backward_time_s: float | None = None
    """With the recomputation and the reduction of gradients that DeepSpeed starts in it."""
    optimizer_time_s: float | None = None
    """In the engine's ``step``: norm, clipping, update, in ZeRO 1 and 2 the gathering of parameters."""
    loss_scale: float | None = None
    """fp16: by which the loss was multiplied in this step; None: other types are not scaled, or a line of version 1."""


@dataclass(frozen=True)
class ValidationRecord:
    """One validation, a line of ``validation.jsonl``, written by rank 0."""

    schema_version: int
    attempt: int
    step: int
    """The last optimizer step before it."""
    time_s: float
    """Unix time at its end."""
    loss: float | None
    """Mean over all held-out tokens that were evaluated, nats per token; None if it was not finite."""
    num_sequences: int
    tokens: int
    validation_time_s: float
    """In no step's time."""


@dataclass(frozen=True)
class NodeRecord:
    """One node of an attempt as its ranks saw it."""

    name: str
    ranks: tuple[int, ...]
    cpus: int
    """CPUs that the first of its ranks may run on."""


@dataclass(frozen=True)
class GpuSample:
    """One GPU of a node, by the driver: all processes on it together."""

    index: int
    """Local rank of the rank that trains on it."""
    used_bytes: int
    """The driver's own reserve included."""
    total_bytes: int
    utilisation: float | None = None
    """Share of the last sampling period in which a kernel ran, 0 to 1; None: the driver does not say."""
    power_w: float | None = None


@dataclass(frozen=True)
class NodeSample:
    """One look at a node, a line of ``nodes/<name>.jsonl``, written by its rank with local rank 0."""

    schema_version: int
    attempt: int
    time_s: float
    """Unix time."""
    step: int
    """The last optimizer step that this rank had ended; 0 before the first."""
    host_used_bytes: int
    """Memory of the node that is not available to a new process, whoever uses it."""
    host_total_bytes: int
    """Of the node, or of the tightest memory limit of the job's control groups; ``host_used_bytes`` follows the same limit."""
    ranks_rss_bytes: int
    """Resident size of all ranks of this run on the node together; shared pages count in each."""
    gpus: tuple[GpuSample, ...] = ()
    """Empty on ``device=cpu``."""


@dataclass(frozen=True)
class AttemptRecord:
    """One start of the job: ``attempts/<n>.json``, replaced at the end."""

    schema_version: int
    attempt: int
    job_id: str
    state: AttemptState
    started_at_s: float
    """Unix time."""
    ended_at_s: float | None = None
    end_reason: EndReason | None = None
    exit_code: int | None = None
    message: str = ""
    failed_rank: int | None = None
    failed_node: str | None = None
    world_size: int | None = None
    """As measured by a collective, not as planned."""
    form: str = ""
    """How a step was spread (``RunPlan.form``): a resume may have changed it. Empty in records of earlier versions."""
    nodes: tuple[NodeRecord, ...] = ()
    master_addr: str = ""
    master_port: int | None = None
    setup_time_s: float | None = None
    """From the rank's start to the first step."""
    resumed_from_step: int | None = None
    """Step of the checkpoint that the ranks loaded; 0: none, from the beginning; None: they did not come so far."""
    num_checkpoints: int = 0
    """Complete ones that this attempt saved."""
    num_failed_checkpoints: int = 0
    checkpoint_time_s: float = 0.0
    """Spent on saving, failed saves included; no step's time holds a part of it."""
    versions: dict[str, str] = field(default_factory=dict)
    host: str = ""
    """Machine whose batch script or submitting process opened the attempt; empty where nobody did."""
    start_step: int = 0
    """Step of the newest complete checkpoint when the attempt began; 0: from the beginning."""
    log_offset: int = 0
    """Size of ``logs/batch.log`` when the attempt began, in bytes: what Slurm says of this attempt stands after it."""
    continuation: str = ""
    """What the end of the attempt did for the next one, or why there is none; empty where nobody asked for one."""


@dataclass(frozen=True)
class TrackerProblem:
    """What kept a tracker from its records for a while, or for the rest of an attempt; the training went on."""

    attempt: int
    tracker: str
    time_s: float
    """Unix time."""
    text: str


TRACKERS_END_S = {"completed": 60.0, "stopped": 20.0, "failed": 10.0}
"""By how an attempt ended: seconds that the end of rank 0 waits for trackers to take the last records."""


@dataclass(frozen=True)
class TrackersRecord:
    """``trackers.json``: under which ids trackers know the run, written by ``hpctrain.track``."""

    schema_version: int
    wandb_id: str | None = None
    mlflow_run_id: str | None = None
    mlflow_uri: str | None = None
    """Of the server that knows ``mlflow_run_id``."""
    problems: tuple[TrackerProblem, ...] = ()
    """The last ones."""


@dataclass(frozen=True)
class CancelRecord:
    """``cancelled.json``: a user asked Slurm to end these jobs."""

    schema_version: int
    job_ids: tuple[str, ...]
    cancelled_at_s: float
    user: str


@dataclass(frozen=True)
class CheckpointFile:
    """One file of a checkpoint."""

    name: str
    num_bytes: int
    rank: int
    """Wrote it and reads it back; ``mp_rank_00_model_states.pt`` of ZeRO 0, 1 and 2 is read by all ranks."""


@dataclass(frozen=True)
class CheckpointRecord:
    """``complete.json`` of a checkpoint, its last file: what is in it, and what a run must have in common with it."""

    schema_version: int
    step: int
    """The last optimizer step in it; also where the data goes on, since the step decides the sequences."""
    attempt: int
    job_id: str
    saved_at_s: float
    """Unix time."""
    save_time_s: float
    num_bytes: int
    """Of all files together."""
    world_size: int
    zero_stage: int
    offload_optimizer: str
    offload_param: str
    sub_group_size: int | None
    """ZeRO 3 cuts its optimizer state at this size, in elements; None for stages 1 and 2."""
    precision: str
    model: dict[str, int | float | bool | str]
    """The shape, see ``ModelShape``."""
    num_parameters: int
    global_batch_size: int
    seq_len: int
    seed: int
    corpus_digest: str
    files: tuple[CheckpointFile, ...]
    versions: dict[str, str] = field(default_factory=dict)
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    sequence_parallel_size: int = 1
    offload_ratio: float | None = None
    """Share of the optimizer's sub-groups that left the GPU; None: nothing did, or a checkpoint of before this was told."""
    nvme_state_bytes: int | None = None
    """Of the fp32 copy and the moments, those of a rank that are on NVMe; None as above."""
    num_sequences: int | None = None
    """Consumed up to ``step``; None, in checkpoints of before there were batch ramps: as many as steps x global batch."""
