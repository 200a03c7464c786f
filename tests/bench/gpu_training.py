"""Training steps on one device, held against its matmul rate and the plan's memory; called by ``gpu_bench``.

Each case is one rank alone, so that nothing is simulated: the worker's engine with real tensors and kernels, which a rehearsal on
a real device runs and times. Layers have a published width; there are as many as the plan says fit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import psutil

from hpctrain.config.compose import compose_points
from hpctrain.config.schema import Config
from hpctrain.errors import HpctrainError, LaunchError
from hpctrain.plan.flops import tflops_per_gpu
from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.rehearse.conduct import conduct
from hpctrain.rehearse.device_check import WAY_OF, Device, check_device
from hpctrain.rehearse.request import Request
from hpctrain.rehearse.result import PHASES, DeviceWay, Rehearsal
from hpctrain.text_table import MISSING, aligned
from hpctrain.units import GIB, duration_in_words, gib, short_count
from tests.bench.matmul_rate import MatmulRate

BAR = 0.05
"""Of the plan's memory against what was allocated."""
_COMMON = "nodes=1 hardware.gpus_per_node=1 data=synthetic training.num_steps=10"
_HARDWARE: dict[Device, str] = {"cuda": "cluster=slurm", "cpu": "hardware=cpu cluster=local"}


class Case(NamedTuple):
    """What is trained."""

    words: str
    most_layers: int
    """Fewer where the plan says that these do not fit."""


CASES: dict[Device, tuple[Case, ...]] = {
    "cuda": (
        Case("model=1.3b parallelism=ddp training.micro_batch_size=8", 24),
        Case("model=1.3b parallelism=zero1 training.micro_batch_size=8", 24),
        Case("model=1.3b parallelism=zero3 training.micro_batch_size=8", 24),
        Case("model=6.7b parallelism=zero1 training.micro_batch_size=4", 16),
        Case("model=llama3_8b parallelism=ddp training.seq_len=4096 training.micro_batch_size=2", 16),
        Case("model=llama3_8b parallelism=zero1 training.seq_len=4096 training.micro_batch_size=2", 16),
        Case("model=llama3_8b parallelism=zero3 training.seq_len=4096 training.micro_batch_size=2", 16),
        Case("model=13b parallelism=zero1 training.micro_batch_size=4", 12),
        Case("model=13b parallelism=zero3 training.micro_batch_size=4", 12),
        Case("model=13b parallelism=zero3_offload training.micro_batch_size=4", 4),
    ),
    "cpu": (
        Case("model=tiny parallelism=ddp training.micro_batch_size=2", 4),
        Case("model=tiny parallelism=zero3 training.micro_batch_size=2 training.loss_chunk_size=100", 4),
    ),
}
"""Without recomputation; offload has few layers since one host core steps its optimizer."""


class Trained(NamedTuple):
    """One case."""

    case: str
    num_layers: int
    num_parameters: int
    tokens: int
    """Of a step."""
    step_s: float
    model_tflops: float
    """1e12 FLOP/s, forward and backward counted once, dense attention."""
    peak_tflops: float | None
    """The data sheet's; None: not stated."""
    matmul_tflops: float
    peak_bytes: int
    """Allocated at most, on the CPU counted."""
    planned_bytes: int
    took_s: float

    @property
    def off(self) -> float:
        """The plan against what was allocated, as a fraction."""
        return self.planned_bytes / self.peak_bytes - 1


def matmul_rate(device: Device) -> MatmulRate:
    """Measured in a process of its own.

    Raises:
        LaunchError: it failed; with torch's last line.
    """
    command = [sys.executable, "-W", "ignore", "-m", "tests.bench.matmul_rate", device]
    found = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if found.returncode:
        raise LaunchError(f"matmul rate of {device}: {(found.stderr.splitlines() or ['(no word)'])[-1]}")
    raw = json.loads(found.stdout.splitlines()[-1])
    return MatmulRate(**raw | {"shape": tuple(raw["shape"])})


def request_of(plan: RunPlan, config: Config, way: DeviceWay) -> Request:
    """Two steps of rank 0 with all layers, on what ``way`` says."""
    return Request(
        plan=plan,
        num_layers=plan.model.num_layers,
        weight_decay=config.training.weight_decay,
        seed=config.training.seed,
        rank=0,
        steps=2,
        device_way=way,
        num_largest=0,
        answer="",
    )


def trained(case: Case, device: Device, hardware: str, ceiling: MatmulRate) -> Trained:
    """Trains one case.

    Args:
        case: what.
        device: on what.
        hardware: name of the preset whose peak is the MFU's; of the CPU it is ``cpu``.
        ceiling: of the device.

    Raises:
        HpctrainError: not even one layer fits, or the steps failed.
    """
    start_s = time.perf_counter()
    config, plan = deepest(case, device, hardware, ceiling.device_bytes)
    check_device(device, plan, quick=False)
    request = request_of(plan, config, WAY_OF[device])
    found = conduct([request], "whole", lambda line: None)
    step_s = sum(found.phase_times_s.values())
    flops = plan.flops_per_step.model_flops
    return Trained(
        case=case.words,
        num_layers=plan.model.num_layers,
        num_parameters=plan.num_parameters,
        tokens=plan.batch.tokens_per_step,
        step_s=step_s,
        model_tflops=tflops_per_gpu(flops, step_s, num_gpus=1),
        peak_tflops=plan.peak_tflops_per_gpu,
        matmul_tflops=ceiling.tflops,
        peak_bytes=_peak_bytes(found),
        planned_bytes=max(peak.gpu_bytes or peak.host_bytes for peak in plan.memory.phases),
        took_s=time.perf_counter() - start_s,
    )


def deepest(case: Case, device: Device, hardware: str, device_bytes: int) -> tuple[Config, RunPlan]:
    """The plan of the most layers that fit with a tenth of the memory free.

    Raises:
        ConfigError: not even one layer fits.
    """
    host_gib = psutil.virtual_memory().total / GIB
    memory = f"hardware.host_memory_gib={host_gib:.1f}"
    if device == "cuda":
        memory += f" hardware={hardware} hardware.gpu_memory_gib={device_bytes / GIB:.1f}"
    words = f"{_COMMON} {_HARDWARE[device]} {memory} {case.words} training.activation_checkpointing=none".split()
    for num_layers in range(case.most_layers, 0, -1):
        (point,) = compose_points([*words, f"model.num_layers={num_layers}"], multirun=False)
        plan = build_run_plan(point.config)
        if plan.memory.fits_with_headroom and not plan.problems:
            break
    if plan.problems:
        raise LaunchError(f"{case.words}: {plan.problems[0]}")
    return point.config, plan


def _peak_bytes(found: Rehearsal) -> int:
    """By torch's allocator; on the CPU, which has none, by the storages that were counted."""
    assert found.measured is not None, "a real device measures"
    counted = found.peak(found.main_tier, PHASES)
    assert counted is not None, "there is a model"
    return max((phase.allocated_peak_bytes for phase in found.measured.phases), default=counted.peak_bytes)


def table(rows: Sequence[Trained], ceiling: MatmulRate) -> str:
    """Figures of all cases, below the ceiling that they are held against."""
    shape = " x ".join(f"{size:,}" for size in ceiling.shape)
    head = f"matmul of {ceiling.device_name}: {ceiling.tflops:.4g} TFLOP/s in {ceiling.dtype} at {shape}, the best of its shapes"
    cells = [["TRAINED ON ONE DEVICE", "LAYERS", "PARAMETERS", "TOKENS", "STEP", "MODEL TFLOP/s", "MFU", "OF MATMUL"]]
    cells[0] += ["PEAK", "PLANNED", "PLAN OFF BY", "TOOK"]
    for row in rows:
        mfu = MISSING if row.peak_tflops is None else f"{row.model_tflops / row.peak_tflops:.1%}"
        sizes = (str(row.num_layers), short_count(row.num_parameters), f"{row.tokens:,}", duration_in_words(row.step_s))
        speed = (f"{row.model_tflops:.4g}", mfu, f"{row.model_tflops / row.matmul_tflops:.1%}")
        off = f"{row.off:+.1%}{'' if abs(row.off) <= BAR else ' !'}"
        cells.append(
            [row.case, *sizes, *speed, gib(row.peak_bytes), gib(row.planned_bytes), off, f"{row.took_s:.0f} s"]
        )
    return f"{head}\n{aligned(cells)}\nthe plan's bar is {BAR:.0%}; a plan beyond it has a !"


def train_cases(device: Device, hardware: str, until_s: float) -> tuple[list[Trained], MatmulRate, list[str]]:
    """Trains the cases one after another.

    Args:
        device: on what.
        hardware: see ``trained``.
        until_s: of ``time.monotonic``; no case begins later.

    Returns:
        What was found, the ceiling, and in words what was left out or failed.
    """
    ceiling = matmul_rate(device)
    rows, missing = [], []
    for case in CASES[device]:
        if time.monotonic() > until_s:
            missing.append(f"left out, since the time is up: {case.words}")
            continue
        try:
            rows.append(trained(case, device, hardware, ceiling))
        except HpctrainError as error:
            missing.append(f"failed: {case.words}: {error}")
    return rows, ceiling, missing
