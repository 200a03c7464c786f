"""What one rehearsal found, field by field: ``rehearsal.json``. Imports no torch: it is read where there is none.

Bytes are those that torch's storages hold, GPU storages rounded up to 512 B as torch's allocator does. Outside of them stand the
CUDA context, workspaces of the matrix libraries, NCCL's buffers and fragmentation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from hpctrain.plan.memory.terms import MEMORY_PHASES, MemoryPhase
from hpctrain.record.files import read_record, write_record

RESULT_FILE = "rehearsal.json"

Tier = Literal["gpu", "host", "pinned", "pinned_rounded"]
"""``host`` holds all host memory, the pinned with it. ``pinned_rounded``: what torch's cache of pinned memory takes for it, each
piece rounded up to a power of two. On CPU ranks everything is ``host``."""
TIERS: tuple[Tier, ...] = ("gpu", "host", "pinned", "pinned_rounded")

Phase = MemoryPhase
"""``model``: construction under zero.Init; ``engine``: deepspeed.initialize; then the three parts of a step."""
PHASES: tuple[Phase, ...] = MEMORY_PHASES
STEP_PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")

Owner = Literal[
    "parameters",
    "persistent_parameters",
    "gathered_parameters",
    "gradients",
    "optimizer",
    "activations",
    "buffers",
    "temporary",
    "other",
]
"""What a storage is for.

``parameters``: the rank's own partition, in stages 1 and 2 the whole model. ``persistent_parameters``: small ones that stage
3 keeps whole. ``gathered_parameters``: whole copies that stage 3 fetches for a block, prefetched ones with them.
``optimizer``: fp32 copy, moments. ``buffers``: communication buckets. ``temporary``: copies made and freed inside
initialisation or the optimizer step. ``other``: nobody knows.
"""
OWNERS: tuple[Owner, ...] = get_args(Owner)

Way = Literal["whole", "quick"]
DeviceWay = Literal["simulated_gpu", "cpu", "real_gpu", "real_cpu"]
"""``simulated_gpu``: fake tensors on a simulated GPU; ``cpu``: fake tensors under DeepSpeed's CPU accelerator; ``real_gpu`` and
``real_cpu``: real tensors and kernels."""
REAL_WAYS: tuple[DeviceWay, ...] = ("real_gpu", "real_cpu")
CPU_WAYS: tuple[DeviceWay, ...] = ("cpu", "real_cpu")


@dataclass(frozen=True)
class TierPhase:
    """One memory tier in one phase of one step."""

    step: int
    """0: before the first step."""
    phase: Phase
    tier: Tier
    peak_bytes: int
    peak_by_owner: dict[str, int]
    """``Owner`` to bytes at the moment of this tier's peak; their sum is ``peak_bytes``."""
    resting_bytes: int
    """At the end of the phase; with accumulation, of its last one in the step."""
    resting_by_owner: dict[str, int]


@dataclass(frozen=True)
class Collective:
    """Equal collectives of one phase, seen from this rank."""

    step: int
    phase: Phase
    kind: str
    """``all_gather``, ``reduce_scatter``, ``all_reduce``, ``broadcast``, ``all_to_all``, ``send``, ..."""
    group_size: int
    """Ranks that take part."""
    is_world: bool
    """All ranks of the job take part."""
    count: int
    num_bytes: int
    """Of the larger side: what an all_gather gives out, what a reduce_scatter takes in; in all ``count`` together."""


@dataclass(frozen=True)
class CountedFlops:
    """FLOPs of this rank in the reported step, by torch's formulas, beside those of the plan's ledger."""

    counted: int
    by_operator: dict[str, int]
    planned: float
    """``plan.flops_per_step.hardware_flops`` divided by the ranks; a pipeline's stage may do more or less than the mean."""

    @property
    def scores_again(self) -> int:
        """Of ``counted`` what fused attention computes once more in its backward pass: one of five products.

        The ledger counts the mathematics, in which it is no part. Source: torch 2.13, torch/utils/flop_counter.py,
        sdpa_backward_flop_count.
        """
        return sum(
            count // 5 for name, count in self.by_operator.items() if "attention" in name and name.endswith("backward")
        )


@dataclass(frozen=True)
class LiveTensors:
    """Storages of one form that were alive at the GPU's peak (on CPU ranks: the host's) in the reported step."""

    owner: Owner
    place: str
    """Function that made them, ``file.function`` of DeepSpeed or of this package, or ``autograd``."""
    dtype: str
    shape: tuple[int, ...]
    """Empty: several shapes, or one that depends on the depth in a quick rehearsal."""
    count: int
    num_bytes: int
    """Of all ``count`` together."""
    tier: Tier


@dataclass(frozen=True)
class Timeline:
    """Live bytes over the course of the rehearsal: columns of equal length, about 2,000 points; each phase keeps its peaks."""

    operator: tuple[int, ...] = ()
    """Operators executed so far: a clock without a device."""
    step: tuple[int, ...] = ()
    phase: tuple[int, ...] = ()
    """Index into ``PHASES``."""
    gpu_bytes: tuple[int, ...] = ()
    host_bytes: tuple[int, ...] = ()
    pinned_bytes: tuple[int, ...] = ()
    num_layers: int = 0
    """Layers of the model it was seen at: fewer than the plan's in a quick rehearsal."""


@dataclass(frozen=True)
class LinearityCheck:
    """Of a quick rehearsal, whose numbers are on the line through ``depths[1]`` and ``checked_depth``: is it a line?"""

    depths: tuple[int, int]
    checked_depth: int
    worst_deviation: float
    """Greatest fraction by which the line through ``depths`` misses a peak or resting value at ``checked_depth``."""
    worst_quantity: str
    largest_peak_deviation: float
    """The same for the step's peak of the GPU (on CPU ranks: of the host)."""


@dataclass(frozen=True)
class AccumulationCheck:
    """Of a step with so many micro batches that only a few of them were run: the reported step's collectives and FLOPs are on the
    line through the last two of ``rehearsed``, those of the steps before it are of ``rehearsed[0]`` micro batches."""

    micro_batches: int
    """Of the plan's step."""
    rehearsed: tuple[int, int, int]
    """Of the reported step, and of two more that were only counted."""
    counts_deviation: float
    """Greatest fraction by which the line misses a count or its bytes at ``rehearsed[0]``."""
    memory_deviation: float
    """Greatest difference of a peak or resting value between the three steps, as a fraction of the highest peak."""


@dataclass(frozen=True)
class DevicePhase:
    """What torch's allocator says of one phase on a real GPU, the step's phases over all measured steps."""

    phase: Phase
    allocated_peak_bytes: int
    allocated_rest_bytes: int
    """At the end of the phase."""
    reserved_peak_bytes: int
    """The allocator keeps what it has reserved: no phase has less than the one before."""


@dataclass(frozen=True)
class Measured:
    """What a real device took, in steps after those that were counted."""

    device_name: str
    device_bytes: int
    phases: tuple[DevicePhase, ...]
    """Empty on the CPU, whose memory has no allocator that counts."""
    num_steps: int
    micro_batches: int
    """Of each measured step."""
    planned_micro_batches: int
    planned_phases: tuple[tuple[str, int, int], ...]
    """Phase, and bytes of GPU and host at its height by the plan, without context and NCCL."""
    predicted_s: dict[str, float]
    """Seconds by part of the plan's step, without those between ranks; empty: see ``prediction_gap``."""
    prediction_gap: str
    """Why the plan predicts no time; empty: it does."""
    time_ratio: float | None
    """Measured over predicted seconds of a rank's own work."""
    correction: str
    """The override under which the plan predicts what was measured; empty: none does."""


@dataclass(frozen=True)
class Rehearsal:
    """One rank of one plan, rehearsed."""

    schema_version: int
    plan_name: str
    model_name: str
    num_layers: int
    num_parameters: int
    world_size: int
    rank: int
    zero_stage: int
    device_way: DeviceWay
    way: Way
    steps: int
    reported_step: int
    """The steady one: the first records the order of the parameters and makes the optimizer's states."""
    simulated: tuple[str, ...]
    """What was not real, one sentence each."""
    versions: dict[str, str]
    memory: tuple[TierPhase, ...]
    collectives: tuple[Collective, ...]
    flops: CountedFlops
    largest: tuple[LiveTensors, ...]
    timeline: Timeline
    late_free_margin_bytes: int
    """Largest parameter that is gathered whole: where the device frees one late, the GPU's peak is higher by as much."""
    wall_s: float
    process_peak_bytes: int
    """Resident memory of the rehearsing process at its peak."""
    gpu_capacity_bytes: int | None = None
    linearity: LinearityCheck | None = None
    accumulation: AccumulationCheck | None = None
    """None: every micro batch of a step was run."""
    stage: int = 0
    """Of the pipeline, in which the rank stands."""
    num_stages: int = 1
    others: tuple[Rehearsal, ...] = ()
    """Ranks of the other kinds of stages, whose devices are less full; by stage."""
    planned_memory: tuple[tuple[str, str, int], ...] = ()
    """Name, tier (``gpu`` or ``host``) and bytes of the planner's terms."""
    phase_times_s: dict[str, float] = field(default_factory=dict)
    """Real devices: seconds of each phase of a whole step of the plan, without communication; the median of measured steps."""
    reserved_bytes: int | None = None
    """``real_gpu``: what torch's allocator had reserved at its peak."""
    measured: Measured | None = None
    """Real devices."""

    def rows(self, tier: Tier, step: int | None = None) -> tuple[TierPhase, ...]:
        """The phases of one tier in order; ``step`` None: before the first step and the reported step."""
        steps = (0, self.reported_step) if step is None else (step,)
        return tuple(row for row in self.memory if row.tier == tier and row.step in steps)

    def peak(self, tier: Tier, phases: tuple[Phase, ...] = STEP_PHASES) -> TierPhase | None:
        """The reported step's phase in which the tier is fullest; None where the tier holds nothing."""
        rows = [row for row in self.rows(tier) if row.phase in phases]
        return max(rows, key=lambda row: row.peak_bytes, default=None)

    def of_all_stages(self) -> tuple[Rehearsal, ...]:
        """This one and the others, by stage."""
        return tuple(sorted((self, *self.others), key=lambda found: found.stage))

    @property
    def main_tier(self) -> Tier:
        """Where the model lives."""
        return "host" if self.device_way in CPU_WAYS else "gpu"

    def step_collectives(self) -> tuple[Collective, ...]:
        """Those of the reported step."""
        return tuple(row for row in self.collectives if row.step == self.reported_step)


def write_rehearsal(folder: Path, rehearsal: Rehearsal) -> Path:
    """Writes ``rehearsal.json`` into the folder, by replacing, and returns its path.

    Raises:
        OSError: the folder is missing or cannot be written.
    """
    path = folder / RESULT_FILE
    write_record(path, rehearsal)
    return path


def read_rehearsal(path: Path) -> Rehearsal:
    """The rehearsal in a file, or in a folder's ``rehearsal.json``.

    Raises:
        RecordError: it is missing or no rehearsal of this version.
    """
    return read_record(path / RESULT_FILE if path.is_dir() else path, Rehearsal)
