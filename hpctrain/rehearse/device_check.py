"""Whether a plan can be rehearsed on a real device of this machine. Imports no torch: it asks another process."""

from __future__ import annotations

import subprocess
import sys
from typing import Literal

from hpctrain.errors import ConfigError, Problem
from hpctrain.plan.run_plan import RunPlan
from hpctrain.rehearse.result import DeviceWay
from hpctrain.units import gib

Device = Literal["cuda", "cpu"]
WAY_OF: dict[Device, DeviceWay] = {"cuda": "real_gpu", "cpu": "real_cpu"}

_COUNT_GPUS = "import torch; print(torch.cuda.device_count())"


def check_device(device: Device, plan: RunPlan, quick: bool) -> None:
    """Asks before any work.

    Raises:
        ConfigError: the plan is for another kind of device, or there is none here.
    """
    if quick:
        raise ConfigError(
            f"--quick --device {device}: a quick rehearsal runs three depths side by side, and a real device shows one whole"
            " rank; nearest: leave --quick out, or --device"
        )
    if device != plan.device:
        other = "the simulated GPU's" if plan.device == "cuda" else "the CPU's"
        nearest = "--device cpu" if plan.device == "cpu" else "--device cuda, or hardware=cpu"
        raise ConfigError(
            [
                Problem(
                    "--device",
                    device,
                    f"hardware={plan.hardware_name} trains on {plan.device}, whose engine takes other memory and other kernels",
                    f"nearest: {nearest}, or leave --device out to rehearse on {other} fake tensors",
                )
            ]
        )
    if plan.nvme is not None:
        raise ConfigError(
            f"--device {device}: the plan moves {gib(plan.nvme.bytes_per_rank)} of a rank to NVMe, which its nodes have and this"
            " machine is not asked for; leave --device out to rehearse on simulated tensors, which move nothing"
        )
    if device == "cuda" and num_gpus_here() == 0:
        raise ConfigError(
            "--device cuda: torch sees no CUDA device here; leave --device out to rehearse on simulated tensors"
        )


def num_gpus_here() -> int:
    """CUDA devices that torch sees on this machine.

    Raises:
        ConfigError: torch cannot be imported.
    """
    asked = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _COUNT_GPUS],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode != 0:
        last = (asked.stderr.splitlines() or ["(no word)"])[-1]
        raise ConfigError(
            f"--device cuda: torch cannot be imported here ({last}); python -m hpctrain doctor tells more"
        )
    return int(asked.stdout.split()[-1])
