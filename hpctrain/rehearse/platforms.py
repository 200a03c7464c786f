"""On what a rehearsal runs: where tensors come from, and which accelerator DeepSpeed sees."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from hpctrain.plan.run_plan import RunPlan
from hpctrain.rehearse import local_collectives, simulated_gpu, stand_ins
from hpctrain.rehearse.ledger import Ledger
from hpctrain.rehearse.private_names import private
from hpctrain.rehearse.result import DeviceWay

_GROUP = "a process group of one process: collectives are counted and not carried out"
_CONTENTS = (
    "tensors have shapes, types and devices but no contents; values that the engine reads are those of a healthy step"
)
_OTHERS = (
    "the other ranks: a gather gives this rank's own share as often as there are ranks, a sum its own part, a neighbour noise; so"
    " gathered weights, loss and gradients are not the job's, and a collective lasts as long as its result takes to write"
)
_KERNELS = "native optimizer kernels do nothing; their states are real"


@dataclass(frozen=True)
class Platform:
    """Everything that differs between the ways to rehearse."""

    device: torch.device
    gpu_device_type: str
    """Tensors of this device type are counted as on the GPU; empty: there is none."""
    tensors: AbstractContextManager[Any]
    """Entered around the whole rehearsal."""
    with_contents: bool
    simulated: tuple[str, ...]


def start_platform(device_way: DeviceWay, plan: RunPlan, ledger: Ledger) -> Platform:
    """Puts everything in place, once in a process; the rank's environment is set already.

    The process group of the planned size is there afterwards.
    """
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    stand_ins.before_deepspeed_is_imported()
    if device_way == "simulated_gpu":
        return _start_simulated_gpu(plan, ledger)
    if device_way == "cpu":
        return _start_cpu(plan)
    return _start_real(torch.device("cpu") if device_way == "real_cpu" else torch.device("cuda", 0), plan)


def _start_simulated_gpu(plan: RunPlan, ledger: Ledger) -> Platform:
    gpus_per_node = plan.layout.gpus_per_node
    simulated_gpu.register_device()
    create = private("torch.testing._internal.distributed.fake_pg._create_fake_pg")
    dist.Backend.register_backend(
        simulated_gpu.BACKEND, create, extended_api=True, devices=["cpu", simulated_gpu.DEVICE]
    )
    _start_group(simulated_gpu.BACKEND, plan)
    accelerator = simulated_gpu.accelerator(ledger, gpus_per_node, plan.memory.gpu_capacity_bytes)
    private("deepspeed.accelerator.real_accelerator.set_accelerator")(accelerator)
    stand_ins.for_fake_tensors()
    stand_ins.for_simulated_gpu(ledger)
    return Platform(
        device=torch.device(simulated_gpu.DEVICE, simulated_gpu.NUMBER),
        gpu_device_type=simulated_gpu.DEVICE,
        tensors=_fake_tensors(),
        with_contents=False,
        simulated=(_CONTENTS, "the GPU: streams are empty at once, attention is the flash kernel's", _GROUP, _KERNELS),
    )


def _start_cpu(plan: RunPlan) -> Platform:
    _start_group("fake", plan)
    stand_ins.for_fake_tensors()
    return Platform(torch.device("cpu"), "", _fake_tensors(), False, (_CONTENTS, _GROUP, _KERNELS))


def _start_real(device: torch.device, plan: RunPlan) -> Platform:
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.set_device(device)
    _start_group("fake", plan)
    stand_ins.for_other_ranks()
    local_collectives.register(device.type)
    return Platform(device, "cuda" if device.type == "cuda" else "", nullcontext(), True, (_OTHERS,))


def _start_group(backend: str, plan: RunPlan) -> None:
    # Importing the module of the store makes torch know the backend "fake".
    store = private("torch.testing._internal.distributed.fake_pg.FakeStore")()
    dist.init_process_group(backend, rank=int(os.environ["RANK"]), world_size=plan.layout.world_size, store=store)


def _fake_tensors() -> AbstractContextManager[Any]:
    mode: AbstractContextManager[Any] = private("torch._subclasses.fake_tensor.FakeTensorMode")(
        allow_non_fake_inputs=True
    )
    return mode
