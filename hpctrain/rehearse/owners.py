"""Whose a new storage is: by the function that made it, else by the phase; later by identity (``identities``). No torch here.

A function is named ``file.function``; the innermost one that the table knows decides. Source: DeepSpeed 0.19.8, runtime/zero,
runtime/comm and ops; a function that a later version renames makes its storages ``other`` or, in forward and backward,
``activations``: they are shown there, none is lost.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import CodeType, FrameType

from hpctrain.rehearse.result import Owner, Phase

_OWN_ROOM = os.path.dirname(__file__) + os.sep
_OWN_OPTIMIZER = "plain_optimizer"
"""Of stage 0, in the place of DeepSpeed's: hpctrain/worker/plain_optimizer.py."""
_NOT_A_PLACE = ("nvtx", "compiler")
"""Files of wrappers around every function of DeepSpeed."""
_NO_FUNCTIONS = ("wrapped_fn", "new_tensor", "wrapper", "decorate_context")
"""Wrappers around torch's constructors, in DeepSpeed's files."""

_FUNCTIONS: dict[Owner, dict[str, str]] = {
    "parameters": {
        "partition_parameters": "_partition_param _partition_param_sec",
        "stage3": (
            "_create_fp16_partitions_with_defragmentation _create_param_groups_fp16_flat_cpu_memory _move_to_flat_buffer"
        ),
        "utils": "defragment",
        "engine": "_cast_module_mixed_precision",
        "stage_1_and_2": "flatten_dense_tensors_aligned _update_model_bit16_weights",
        "bf16_optimizer": "_flatten_dense_tensors_aligned",
    },
    "gathered_parameters": {
        "partition_parameters": (
            "_all_gather_dtype _all_gather_sequential _all_gather_coalesced all_gather_coalesced all_gather _all_gather"
            " _allgather_param _allgather_params_coalesced _allgather_params_sequential wait"
        ),
        "partitioned_param_coordinator": "__all_gather_params __all_gather_params_ fetch_sub_module",
    },
    "optimizer": {
        "stage3": "_create_fp32_partitions _create_momentum_buffer",
        "plain_optimizer": "_master_copy",
        "adam": "_init_group",
        "cpu_adam": "step",
        "fused_adam": "step",
    },
    "gradients": {
        "stage3": (
            "_setup_for_real_optimizer initialize_optimizer_states partition_grads _finalize_offload_gradient_accumulation"
            " _offload_grad_partition_at_boundary"
        ),
        "stage_1_and_2": (
            "initialize_optimizer_states copy_grads_in_partition get_flat_partition get_all_grad_tensors"
            " _build_compact_grad_partition_buffer buffer_to_accumulate_to_in_cpu async_accumulate_grad_in_cpu_via_gpu"
            " _fill_param_grad_accum_attribute get_param_gradient_attribute"
        ),
        "bf16_optimizer": "_update_hp_grad accumulate_hp_grads_and_remove_lp",
    },
    # What a pipeline's engine receives activations and gradients in.
    "activations": {"engine": "_allocate_or_extend_buffers"},
    "buffers": {
        "stage3": (
            "__add_grad_to_ipg_bucket __reduce_and_partition_ipg_grads __avg_scatter_grads __avg_scatter_contiguous_grads"
            " allreduce_bucket"
        ),
        "engine": "allreduce_bucket",
        "coalesced_collectives": "reduce_scatter_coalesced all_to_all_quant_reduce",
        "partitioned_param_swapper": "_configure_aio reserve_partitioned_swap_space",
        "optimizer_utils": "__init__",
        "stage_1_and_2": (
            "setup_buckets reduce_gradients reduce_independent_p_g_buckets_and_remove_grads gradient_reduction_w_predivide"
            " allreduce_and_copy_with_multiple_ranks allreduce_and_scatter average_tensor allreduce_bucket"
            " allreduce_and_copy allreduce_no_retain buffered_reduce_fallback reduce_ipg_grads"
        ),
    },
    "temporary": {
        "partition_parameters": "_zero_init_param _convert_to_deepspeed_param",
        "stage3": (
            "_prepare_fp32_grad_for_sub_group _optimizer_step unscale_and_clip_grads get_grad_norm_direct _get_norm_groups"
            " _pre_step _post_step _reassign_or_swap_out_partitioned_parameters has_overflow step"
        ),
        "stage_1_and_2": "step _optimizer_step unscale_and_clip_grads get_grad_norm_direct scaled_global_norm has_overflow",
        "bf16_optimizer": "step",
        "plain_optimizer": "step",
    },
}

_BY_OPERATOR: dict[tuple[str, str], dict[str, Owner]] = {
    # One function makes the reduce bucket (empty) and the gradient partition (zeros).
    ("stage3", "_setup_for_real_optimizer"): {"empty": "buffers", "zeros": "gradients"},
    # The fp32 copy is cloned and converted, the 16-bit transfer buffer filled, the offload buffers zeroed.
    ("stage_1_and_2", "__init__"): {
        "clone": "optimizer",
        "_to_copy": "optimizer",
        "full": "parameters",
        "zeros": "buffers",
    },
    ("bf16_optimizer", "_setup_for_real_optimizer"): {
        "clone": "optimizer",
        "_to_copy": "optimizer",
        "zeros_like": "gradients",
    },
}

_OWNER_OF: dict[tuple[str, str], Owner] = {
    (file, function): owner
    for owner, files in _FUNCTIONS.items()
    for file, functions in files.items()
    for function in functions.split()
}

_BY_PHASE: dict[Phase, Owner] = {
    "model": "temporary",
    "engine": "other",
    "forward": "activations",
    "backward": "activations",
    "optimizer": "other",
}

_Known = tuple[str, Owner | None, dict[str, Owner] | None]
"""Place, its owner, and its owners by operator; an empty place: a frame that says nothing."""


class PlaceFinder:
    """Looks up who asked for a storage, from the Python stack."""

    def __init__(self, zero_stage: int) -> None:
        self._known: dict[CodeType, _Known] = {}
        # In stage 3 zero.Init cuts each parameter up as soon as it is made; below, the model stays as it is made.
        self._by_phase: dict[Phase, Owner] = _BY_PHASE | ({} if zero_stage == 3 else {"model": "parameters"})

    def find(self, operator: str, phase: Phase) -> tuple[Owner, str]:
        """Owner and place of a storage that ``operator`` (such as ``zeros``) has just made."""
        first_place = ""
        for frame in _frames(sys._getframe(1)):
            code = frame.f_code
            known = self._known.get(code)
            if known is None:
                known = self._known[code] = _look_at(code)
            place, owner, by_operator = known
            if not place:
                continue
            first_place = first_place or place
            if by_operator is not None and operator in by_operator:
                return by_operator[operator], first_place
            if owner is not None:
                return owner, first_place
        return self._by_phase[phase], first_place or "autograd"


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _look_at(code: CodeType) -> _Known:
    path = code.co_filename
    is_ours = f"{os.sep}hpctrain{os.sep}" in path and not path.startswith(_OWN_ROOM)
    is_engine = f"{os.sep}deepspeed{os.sep}" in path
    is_optimizer = f"{os.sep}torch{os.sep}optim{os.sep}" in path
    file = os.path.basename(path).removesuffix(".py")
    if not (is_ours or is_engine or is_optimizer) or file in _NOT_A_PLACE or code.co_name in _NO_FUNCTIONS:
        return "", None, None
    key = (file, code.co_name)
    is_own_optimizer = is_ours and file == _OWN_OPTIMIZER
    owner = _OWNER_OF.get(key) if is_engine or is_optimizer or is_own_optimizer else None
    return f"{file}.{code.co_name}", owner, _BY_OPERATOR.get(key) if is_engine else None


def known_places() -> list[tuple[str, str]]:
    """File and function of every place in the tables; a test looks for them in the installed engine."""
    return [*_OWNER_OF, *_BY_OPERATOR]
