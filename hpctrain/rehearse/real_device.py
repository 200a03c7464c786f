"""A rehearsal's rank on a real device: what torch's allocator took in each phase, and how long its own work lasts."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import psutil
import torch

from hpctrain.plan.run_plan import RunPlan
from hpctrain.rehearse.measured import compute_parts, correction
from hpctrain.rehearse.result import PHASES, STEP_PHASES, DevicePhase, Measured, Phase, Rehearsal
from hpctrain.rehearse.stand_ins import CannotRehearseError
from hpctrain.units import gib
from hpctrain.worker.timing import Mark, mark, seconds_between

_MOST_STEPS, _FEWEST_STEPS = 5, 2
_ENOUGH_S = 120.0
"""Measured steps after which no further one begins."""
_BOUND = 10.0
_NO_HOST_MEMORY = "DefaultCPUAllocator: can't allocate memory"
"""Torch has an exception of its own for GPUs only. Source: torch 2.13, c10/core/impl/alloc_cpu.cpp."""


class Meter:
    """Allocator peaks and seconds by phase; the device's queue is never waited for before the end."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._marks: list[tuple[Phase, Mark]] = []
        self._phases: dict[Phase, DevicePhase] = {}

    def begin(self, phase: Phase) -> None:
        """Ends the phase before and begins another, or the same of a later micro batch."""
        self._note()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._marks.append((phase, mark(self.device)))

    def end(self) -> dict[Phase, float]:
        """Seconds on the device by phase since the first ``begin``, or since the last ``end``."""
        self._note()
        end = mark(self.device)
        end.wait()
        seconds: dict[Phase, float] = defaultdict(float)
        ends = [*(start for _, start in self._marks[1:]), end]
        for (phase, start), behind in zip(self._marks, ends, strict=True):
            seconds[phase] += seconds_between(start, behind)
        self._marks = []
        return dict(seconds)

    def forget(self) -> None:
        """Begins the allocator's peaks anew."""
        self._phases = {}

    def phases(self) -> tuple[DevicePhase, ...]:
        """In order; on the CPU none, whose memory has no allocator that counts."""
        return tuple(self._phases[phase] for phase in PHASES if phase in self._phases)

    def _note(self) -> None:
        if self.device.type != "cuda" or not self._marks:
            return
        phase, _ = self._marks[-1]
        former = self._phases.get(phase, DevicePhase(phase, 0, 0, 0))
        self._phases[phase] = DevicePhase(
            phase=phase,
            allocated_peak_bytes=max(former.allocated_peak_bytes, torch.cuda.max_memory_allocated(self.device)),
            allocated_rest_bytes=torch.cuda.memory_allocated(self.device),
            reserved_peak_bytes=max(former.reserved_peak_bytes, torch.cuda.max_memory_reserved(self.device)),
        )


@torch.no_grad()
def tame_padding(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Bounds what pads a rank's share of each parameter: DeepSpeed leaves it as it finds it, and cuts it off after a gather.

    Here the share is taken for other ranks' shares too, padding and all. First weights are far within the bounds.
    """
    for parameter in parameters:
        share = getattr(parameter, "ds_tensor", None)
        if share is not None:
            share.nan_to_num_(0.0, 0.0, 0.0).clamp_(-_BOUND, _BOUND)


class MeasuredSteps:
    """Steps in which nothing is counted, as many as make a median."""

    def __init__(self, device: torch.device) -> None:
        self.meter = Meter(device)
        self.seconds: list[dict[Phase, float]] = []

    def run(self, run_step: Callable[[], None]) -> None:
        """Runs them; ``run_step`` is one, and tells the meter where each phase begins."""
        run_step()  # counting had slowed the host so much that the device was never behind
        self.meter.end()
        self.meter.forget()
        start_s = time.perf_counter()
        while len(self.seconds) < _FEWEST_STEPS or (
            len(self.seconds) < _MOST_STEPS and time.perf_counter() - start_s < _ENOUGH_S
        ):
            run_step()
            self.seconds.append(self.meter.end())

    def median_s(self, phase: Phase) -> float:
        """Of the phase, in all measured steps."""
        return statistics.median(step.get(phase, 0.0) for step in self.seconds)


def with_measurements(
    found: Rehearsal, plan: RunPlan, engine: Any, meters: tuple[Meter, MeasuredSteps], micro_batches: int
) -> Rehearsal:
    """The rehearsal with what the device took.

    Args:
        found: of the watched steps.
        plan: whole.
        engine: DeepSpeed's.
        meters: of the phases before the steps, and of the steps.
        micro_batches: of each measured step.

    Raises:
        CannotRehearseError: a step was skipped for its values, so that neither memory nor time is the job's.
    """
    if engine.skipped_steps:
        raise CannotRehearseError(
            f"--rank {found.rank}: DeepSpeed skipped {engine.skipped_steps} steps for gradients that are not finite, so neither"
            " memory nor time is the job's; either training.learning_rate drives made-up values too far, or what pads this rank's"
            " share of a parameter, which may be anything, was taken for other ranks' shares: rank 0's is not padded"
        )
    building, steps = meters
    planned = plan.batch.gradient_accumulation_steps
    times_s: dict[str, float] = {phase: steps.median_s(phase) for phase in STEP_PHASES}
    for phase in ("forward", "backward"):
        times_s[phase] *= planned / micro_batches
    measured_s = sum(times_s.values())
    phases = (*building.phases(), *steps.meter.phases())
    predicted_s = compute_parts(plan.prediction.parts_s) if plan.prediction else {}
    measured = Measured(
        device_name=device_name(building.device),
        device_bytes=device_bytes(building.device),
        phases=phases,
        num_steps=len(steps.seconds),
        micro_batches=micro_batches,
        planned_micro_batches=planned,
        planned_phases=tuple((peak.phase, peak.gpu_bytes, peak.host_bytes) for peak in plan.memory.phases),
        predicted_s=predicted_s,
        prediction_gap=plan.prediction_gap,
        time_ratio=measured_s / sum(predicted_s.values()) if predicted_s else None,
        correction=correction(plan, predicted_s, measured_s),
    )
    reserved = max((phase.reserved_peak_bytes for phase in phases), default=None)
    return dataclasses.replace(found, phase_times_s=times_s, reserved_bytes=reserved, measured=measured)


def device_name(device: torch.device) -> str:
    """As its maker calls it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "this machine's CPU"


def device_bytes(device: torch.device) -> int:
    """All the memory that it has."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total)


def is_out_of_memory(error: BaseException) -> bool:
    """The device has no more memory."""
    return isinstance(error, torch.OutOfMemoryError) or _NO_HOST_MEMORY in str(error)


def out_of_memory_text(
    error: BaseException, device: torch.device, step: int, live_bytes: int, planned_bytes: int
) -> str:
    """How much was taken when it ran out, and torch's own words.

    Args:
        error: torch's.
        device: which is too small.
        step: 0: before the first one.
        live_bytes: of storages that the rehearsal had counted.
        planned_bytes: what the plan expects, without context and NCCL.
    """
    when = f"of step {step} " if step else ""
    taken = f"{gib(live_bytes)} in live tensors"
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device)
        taken = f"{gib(torch.cuda.memory_allocated(device))} allocated and {gib(reserved)} reserved by torch"
    words = " ".join(str(error).split())[:300]
    return (
        f"{when}with {taken}, on {device_name(device)} of {gib(device_bytes(device))}; the plan expects up to"
        f" {gib(planned_bytes)} (torch: «{words}»)"
    )
