"""How fast one GPU trains, and is a simulated rehearsal what it takes? Nothing to download, under six minutes.

``python -m tests.bench.gpu_bench`` measures the GPU's matmul rate; then it trains layers of 1.3B to 13B width with ZeRO 0, 1, 3
and offload, and prints model TFLOP/s, MFU, the share of the matmul rate, and the peak of memory beside the plan's
(``gpu_training``). Then it rehearses rank 0 of larger jobs twice, once simulated and once with real tensors and kernels, and
prints both peaks beside what torch's allocator had allocated and reserved (CUDA's context is in neither). No case begins after
``--minutes``; what is left out is named. Exit code 1 where a case failed, a plan is more than 5 % off what was allocated, or a
simulated peak more than 5 % off what was reserved.

With ``--device cpu`` tiny cases go the same way on the CPU, which has no allocator that could be asked: there the storages of
real tensors are counted, and the bar of simulated peaks is 1 %. The offload case compiles DeepSpeed's CPU optimizer when it
runs for the first time on a machine. Not yet run on a GPU: none was at hand.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from hpctrain.config.compose import compose_points
from hpctrain.errors import HpctrainError, LaunchError
from hpctrain.plan.run_plan import build_run_plan, with_memory_of
from hpctrain.rehearse.conduct import conduct
from hpctrain.rehearse.device_check import WAY_OF, Device, check_device, num_gpus_here
from hpctrain.rehearse.result import PHASES, DeviceWay, Rehearsal
from hpctrain.text_table import MISSING, aligned
from hpctrain.units import gib
from tests.bench.gpu_training import BAR, request_of, train_cases
from tests.bench.gpu_training import table as training_table

_SIMULATED: dict[Device, DeviceWay] = {"cuda": "simulated_gpu", "cpu": "cpu"}
_BARS: dict[Device, float] = {"cuda": 0.05, "cpu": 0.01}
_COMMON: dict[Device, str] = {
    # A network is stated so that the plan predicts a time at all; what passes between ranks is no part of what is compared.
    "cuda": "hardware=hgx_h200 cluster=slurm data=synthetic training.num_steps=10",
    "cpu": "hardware=cpu cluster=local data=synthetic training.num_steps=10 model=tiny training.micro_batch_size=1",
}
_CASES: dict[Device, tuple[str, ...]] = {
    "cuda": (
        "model=350m nodes=1 parallelism=zero1 training.micro_batch_size=8",
        "model=1.3b nodes=8 parallelism=zero2 training.micro_batch_size=2 training.gradient_accumulation_steps=2",
        "model=1.3b nodes=8 parallelism=zero3 training.micro_batch_size=4",
        "model=13b nodes=16 parallelism=zero3 model.num_layers=12 training.micro_batch_size=4"
        " training.activation_checkpointing=full",
        "model=llama3_8b nodes=8 parallelism=zero3 model.num_layers=8 training.micro_batch_size=1"
        " training.activation_checkpointing=full",
        "model=530b nodes=128 parallelism=zero3 model.num_layers=2 training.micro_batch_size=2"
        " training.activation_checkpointing=full",
    ),
    "cpu": (
        "parallelism=zero1 training.activation_checkpointing=none",
        "parallelism=zero3 training.activation_checkpointing=full",
    ),
}
"""Each fits a GPU of 40 GiB by the plan's estimate."""


class Compared(NamedTuple):
    """One case, both ways."""

    case: str
    simulated_bytes: int
    counted_bytes: int
    """The same storages, of real tensors."""
    allocated_bytes: int | None
    reserved_bytes: int | None
    time_ratio: float | None
    wall_s: float

    @property
    def off(self) -> float:
        """Simulated against what was reserved, on the CPU against what was counted."""
        return self.simulated_bytes / (self.reserved_bytes or self.counted_bytes) - 1


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--hardware", default="hgx_h200", help="preset that states the GPU's peak (default: %(default)s)"
    )
    parser.add_argument("--minutes", type=float, default=5.5, help="no case begins later (default: %(default)s)")
    typed = parser.parse_args(words)
    device: Device = typed.device
    until_s = time.monotonic() + 60 * typed.minutes
    try:
        if device == "cuda" and num_gpus_here() == 0:
            raise LaunchError("torch sees no CUDA device here; nearest: --device cpu, with tiny shapes")
        rows, ceiling, missing = train_cases(device, typed.hardware, until_s)
        print(training_table(rows, ceiling), flush=True)
        found = []
        for case in _CASES[device]:
            if time.monotonic() > until_s:
                missing.append(f"left out, since the time is up: {case}")
                continue
            found.append(compared(case, device))
    except HpctrainError as error:
        print(f"gpu_bench: {error}", file=sys.stderr)
        return error.exit_code
    print(table(found, _BARS[device]))
    for text in missing:
        print(f"gpu_bench: {text}", file=sys.stderr)
    is_failed = any(text.startswith("failed") for text in missing)
    is_off = any(abs(row.off) > BAR for row in rows) or any(abs(row.off) > _BARS[device] for row in found)
    return int(is_failed or is_off)


def compared(case: str, device: Device) -> Compared:
    """Rehearses a case in both ways.

    Raises:
        HpctrainError: there is no such device, it is too small, or a rehearsal failed.
    """
    start_s = time.perf_counter()
    (point,) = compose_points([*_COMMON[device].split(), *case.split()], multirun=False)
    config = point.config
    plan = with_memory_of(0, build_run_plan(config), config)
    assert not plan.problems, plan.problems
    check_device(device, plan, quick=False)
    request = request_of(plan, config, _SIMULATED[device])
    simulated = conduct([request], "whole", lambda line: None)
    real = conduct([dataclasses.replace(request, device_way=WAY_OF[device])], "whole", lambda line: None)
    measured = real.measured
    assert measured is not None, "a real device measures"
    return Compared(
        case=case,
        simulated_bytes=_peak_bytes(simulated),
        counted_bytes=_peak_bytes(real),
        allocated_bytes=max((phase.allocated_peak_bytes for phase in measured.phases), default=None),
        reserved_bytes=real.reserved_bytes,
        time_ratio=measured.time_ratio,
        wall_s=time.perf_counter() - start_s,
    )


def _peak_bytes(found: Rehearsal) -> int:
    peak = found.peak(found.main_tier, PHASES)
    assert peak is not None, "there is a model"
    return peak.peak_bytes


def table(found: Sequence[Compared], bar: float) -> str:
    rows = [["PEAK OF RANK 0", "SIMULATED", "COUNTED", "ALLOCATED", "RESERVED", "OFF BY", "TIME/PLAN", "TOOK"]]
    for row in found:
        allocator = (MISSING if size is None else gib(size) for size in (row.allocated_bytes, row.reserved_bytes))
        off = f"{row.off:+.2%}{'' if abs(row.off) <= bar else ' !'}"
        ratio = MISSING if row.time_ratio is None else f"{row.time_ratio:.3f}"
        sizes = (gib(row.simulated_bytes), gib(row.counted_bytes))
        rows.append([row.case, *sizes, *allocator, off, ratio, f"{row.wall_s:.0f} s"])
    return f"{aligned(rows)}\nthe bar is {bar:.0%}; a peak beyond it has a !"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
