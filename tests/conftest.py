"""Which rank tests ``make test`` leaves to ``make test-long``, so that it stays below 25 minutes on two cores."""

from __future__ import annotations

import pytest

LONG = (
    "test_real_device.py::test_real_tensors_take_what_fake_ones_do[zero3, sequence parallel, recomputed]",
    "test_real_device.py::test_real_tensors_take_what_fake_ones_do[zero2, tensor parallel]",
    "test_real_device.py::test_real_tensors_take_what_fake_ones_do[zero3, secondary partition of 2, 4 ranks]",
    "test_sequence_parallel.py::test_losses_and_norms_are_those_of_plain_pytorch[2, zero3, offloaded]",
    "test_sequence_parallel.py::test_losses_and_norms_are_those_of_plain_pytorch[4, zero1]",
    "test_sequence_parallel.py::test_losses_and_norms_are_those_of_plain_pytorch[2 x data 2, zero2, accumulation 2]",
    "test_tensor_parallel.py::test_losses_and_norms_are_those_of_plain_pytorch[2 x data 2, zero2, offloaded]",
    "test_tensor_parallel.py::test_losses_and_norms_are_those_of_plain_pytorch[4, zero2]",
    "test_tensor_parallel.py::test_losses_and_norms_are_those_of_plain_pytorch[2, zero3, offloaded]",
    "test_pipeline.py::test_losses_and_norms_are_those_of_plain_pytorch[4 stages]",
    "test_pipeline.py::test_losses_and_norms_are_those_of_plain_pytorch[2 stages x 2 tensor-parallel ranks]",
    "test_pipeline.py::test_a_resumed_run_is_the_uninterrupted_one_to_the_bit[2 stages x 2 data-parallel ranks]",
    "test_checkpoint.py::test_a_resumed_run_is_the_uninterrupted_one_to_the_bit[zero1, tensor parallel]",
    "test_checkpoint.py::test_a_resumed_run_is_the_uninterrupted_one_to_the_bit[zero2, bf16]",
    "test_offload_forms.py::test_a_second_partition_is_gathered_from_fewer_ranks[none]",
    "test_offload_forms.py::test_block_inputs_on_the_host_change_no_bit[zero1]",
    "test_offload_forms.py::test_block_inputs_on_the_host_change_no_bit[zero2, accumulation 2]",
    "test_parallel_forms.py::test_a_few_micro_batches_say_what_all_of_them_do[zero3]",
    "test_parallel_forms.py::test_a_few_micro_batches_say_what_all_of_them_do[second stage of four]",
    "test_truth.py::test_a_rehearsal_holds_and_sends_what_real_ranks_do[zero3, 8 micro batches]",
)
"""Ends of node ids: each is a combination whose parts other cases show."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks them ``long``."""
    for item in items:
        if item.nodeid.endswith(LONG):
            item.add_marker("long")
