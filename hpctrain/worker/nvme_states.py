"""States on NVMe: let go of when written, and in checkpoints one file a sub-group, so that no rank needs memory for more.

DeepSpeed 0.19.8 copies the folder of its swap files (engine.py save_checkpoint), past our error handling, and loads nothing but
that copy: neither the step that Adam's bias correction counts, nor states that are too small for NVMe, nor parameters there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from hpctrain.worker.checkpoint_files import SWAPPED, RankFiles
from hpctrain.worker.state.source import MOMENTS
from hpctrain.worker.state.zero_keys import LOSS_SCALER, zero_keys

_KEYS = zero_keys(3)


def prepare_nvme(engine: Any) -> None:
    """Has what was written leave host memory, and checkpoints load it through ``load_states``; without NVMe nothing changes."""
    zero = engine.optimizer
    if not _is_on_nvme(zero):
        return
    _release_after_writing(zero)
    engine.zero_nvme_offload_optimizer = lambda: False
    zero._rigid_load_state_dict = lambda state, load_optimizer_states=True: load_states(engine, state)


def _release_after_writing(zero: Any) -> None:
    """Without it Adam's moments, made in the first step, would all stay in host memory till the second.

    DeepSpeed 0.19.8, runtime/swap_tensor/pipelined_optimizer_swapper.py: what is written is copied to buffers first, and a
    sub-group's own tensors are let go only where it is read again.
    """
    swapper = getattr(zero, "optimizer_swapper", None)
    if swapper is None:
        return
    write = swapper.swap_out_optimizer_state

    def write_and_release(parameter: torch.Tensor, async_swap: bool = False) -> None:
        write(parameter=parameter, async_swap=async_swap)
        swapper.swap_params_info[swapper.parameter_id(parameter)].release_memory()

    swapper.swap_out_optimizer_state = write_and_release


def _is_on_nvme(zero: Any) -> bool:
    return bool(getattr(zero, "swap_optimizer", False) or getattr(zero, "params_in_nvme_and_cpu", False))


def save_swapped(engine: Any, files: RankFiles, folder: Path) -> None:
    """Writes this rank's sub-groups on NVMe into a checkpoint's folder; a failure stays in ``files.error``.

    Args:
        engine: DeepSpeed's, between two steps.
        files: this rank's.
        folder: of the checkpoint.
    """
    zero = engine.optimizer
    if not getattr(zero, "swap_optimizer", False):
        return
    for number in _swapped(zero):
        if files.error:
            return
        master = zero.fp32_partitioned_groups_flat[number]
        zero._optimizer_states_and_gradient_swap_in(number)
        state = zero.optimizer.state.get(master, {})
        # Copies, since a file of a view would hold the whole buffer.
        tensors = {name: state[name].clone() for name in MOMENTS if name in state}
        files.save({"fp32": master.detach().clone(), **tensors}, str(folder / _name(number)))
        zero._release_swap_buffers(number)


def _swapped(zero: Any) -> list[int]:
    return [number for number in range(len(zero.fp16_groups)) if zero._swappable_optimizer_subgroup(number)]


def swapped_files(zero: Any) -> dict[str, int]:
    """Names of the files in which this rank's sub-groups on NVMe are saved, each with the sub-group's number."""
    return {_name(number): number for number in _swapped(zero)} if getattr(zero, "swap_optimizer", False) else {}


def _name(number: int) -> str:
    return f"{SWAPPED}_rank_{os.environ['RANK']}_sub_group_{number:05d}.pt"


def load_states(engine: Any, saved: dict[str, Any]) -> None:
    """What ``_rigid_load_state_dict`` of stage 3 does, for states and parameters that may be on NVMe.

    Args:
        engine: DeepSpeed's, whose checkpoint engine holds this rank's files.
        saved: this rank's own state: all of it that is not on NVMe.
    """
    zero, files = engine.optimizer, engine.checkpoint_engine
    zero.loss_scaler = saved[LOSS_SCALER]
    zero.dynamic_loss_scale, zero.overflow = saved["dynamic_loss_scale"], saved["overflow"]
    zero._set_fp32_optimizer_param_groups()
    zero.optimizer.load_state_dict(saved[_KEYS.inner])
    zero._clear_fp32_optimizer_param_groups()
    swapped = set(_swapped(zero)) if zero.swap_optimizer else set()
    if swapped:
        # The moments of before are forgotten; those that are loaded are written in their place.
        zero.optimizer_swapper.purge_state()
    zero._partition_all_parameters()
    for number, master in enumerate(zero.fp32_partitioned_groups_flat):
        if number in swapped:
            # A moment that is known is read from a file, and there is none yet.
            for name in MOMENTS:
                zero.optimizer.state[master].pop(name, None)
            zero._optimizer_states_and_gradient_swap_in(number)
            tensors: dict[str, torch.Tensor] = files.load_swapped(_name(number))
            master.data.copy_(tensors["fp32"])
            for name in MOMENTS:
                if name in tensors:
                    zero.optimizer.state[master][name] = tensors[name].clone()
        else:
            master.data.copy_(saved[_KEYS.weights][number].data)
        zero._reassign_or_swap_out_partitioned_parameters(number)
        if number in swapped:
            zero._optimizer_states_and_gradient_swap_out(number)
