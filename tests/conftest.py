"""Which rank tests ``make test`` leaves to ``make test-long``, so that it stays below 25 minutes on two cores."""

from __future__ import annotations

from pathlib import Path

import pytest

SLURM_TESTS = Path(__file__).parent / "slurm"
LONG = (
    "test_other_cuts.py::test_the_state_stays_to_the_bit_and_the_losses_follow[zero2, 2 ranks: zero0]",
    "test_other_cuts.py::test_the_state_stays_to_the_bit_and_the_losses_follow[zero0: zero3]",
    "test_other_cuts.py::test_states_move_between_tiers[NVMe: none]",
    "test_other_cuts.py::test_states_move_between_tiers[none: NVMe]",
    "test_other_cuts.py::test_states_move_between_tiers[half on the host: half on NVMe]",
    "test_other_cuts.py::test_the_state_stays_to_the_bit_and_the_losses_follow[zero2, fp16, 2 ranks: 4 ranks, zero3]",
    "test_other_cuts.py::test_the_state_stays_to_the_bit_and_the_losses_follow[zero3, sequence parallel: zero1, tensor parallel]",
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
    "test_validation.py::test_a_ramp_and_its_validations_are_those_of_one_process[2 tensor-parallel ranks]",
    "test_validation.py::test_a_ramp_and_its_validations_are_those_of_one_process[2 sequence-parallel ranks]",
    "test_offload_forms.py::test_a_second_partition_is_gathered_from_fewer_ranks[none]",
    "test_offload_forms.py::test_block_inputs_on_the_host_change_no_bit[zero1]",
    "test_offload_forms.py::test_block_inputs_on_the_host_change_no_bit[zero2, accumulation 2]",
    "test_parallel_forms.py::test_a_few_micro_batches_say_what_all_of_them_do[zero3]",
    "test_parallel_forms.py::test_a_few_micro_batches_say_what_all_of_them_do[second stage of four]",
    "test_truth.py::test_a_rehearsal_holds_and_sends_what_real_ranks_do[zero3, 8 micro batches]",
    "test_gpu_bench.py::test_the_bench_on_the_cpu",
    "test_nvme.py::test_losses_are_those_of_plain_pytorch_and_nothing_is_left[all]",
    "test_nvme.py::test_a_resumed_run_is_the_uninterrupted_one_to_the_bit",
    "test_nvme.py::test_a_killed_ranks_folder_is_removed",
    "test_truth.py::test_a_rehearsal_holds_and_sends_what_real_ranks_do[zero3, all on NVMe]",
    "test_nvme.py::test_losses_are_those_of_plain_pytorch_and_nothing_is_left[optimizer, one after another, accumulation]",
    "test_nvme.py::test_losses_are_those_of_plain_pytorch_and_nothing_is_left[parameters]",
    "test_nvme.py::test_losses_are_those_of_plain_pytorch_and_nothing_is_left[parameters, optimizer on the host]",
    "test_nvme.py::test_losses_are_those_of_plain_pytorch_and_nothing_is_left[half of the optimizer]",
    "test_truth.py::test_a_rehearsal_holds_and_sends_what_real_ranks_do[zero3, optimizer on NVMe, one after another]",
    "test_truth.py::test_a_rehearsal_holds_and_sends_what_real_ranks_do[zero3, on device, host and NVMe]",
    "test_gradients.py::test_they_are_those_of_one_process[ddp, fp16, llama]",
    "test_gradients.py::test_they_are_those_of_one_process[zero3, bf16]",
    "test_gradients.py::test_they_are_those_of_one_process[ddp, bf16, accumulation 2, recomputed]",
    "test_ddp.py::test_losses_and_norms_are_those_of_plain_pytorch[one rank]",
    "test_ddp.py::test_losses_and_norms_are_those_of_plain_pytorch[tensor parallel]",
    "test_ddp.py::test_losses_and_norms_are_those_of_plain_pytorch[sequence parallel]",
    "test_ddp.py::test_a_resumed_run_is_the_uninterrupted_one_to_the_bit[fp32]",
    "test_fp16.py::test_losses_and_norms_are_those_of_plain_pytorch[ddp, tensor parallel]",
    "test_fp16.py::test_losses_and_norms_are_those_of_plain_pytorch[zero1, optimizer on the host]",
    "test_fp16.py::test_losses_and_norms_are_those_of_plain_pytorch[zero2, tensor parallel]",
    "test_fp16.py::test_losses_and_norms_are_those_of_plain_pytorch[zero3, sequence parallel, recomputed]",
    "test_fp16.py::test_overflows_are_skipped_and_a_resumed_run_goes_on_to_the_bit[zero2, offloaded]",
    "test_fp16.py::test_overflows_are_skipped_and_a_resumed_run_goes_on_to_the_bit[zero1, pipeline]",
    "test_truth.py::test_a_rehearsal_holds_and_sends_what_real_ranks_do[ddp, fp32, tensor parallel]",
    "test_truth.py::test_a_rehearsal_holds_and_sends_what_real_ranks_do[zero3, fp16]",
    "test_compile.py::test_losses_and_norms_are_those_of_plain_pytorch_and_a_block_is_one_graph[zero3, parameters on the host]",
    "test_compile.py::test_losses_and_norms_are_those_of_plain_pytorch_and_a_block_is_one_graph[zero1, tensor parallel]",
    "test_compile.py::test_losses_and_norms_are_those_of_plain_pytorch_and_a_block_is_one_graph[zero2, sequence parallel]",
    "test_compile.py::test_losses_and_norms_are_those_of_plain_pytorch_and_a_block_is_one_graph[ddp, bf16]",
    "test_compile.py::test_losses_and_norms_are_those_of_plain_pytorch_and_a_block_is_one_graph[pipeline]",
    "test_pipeline.py::test_losses_and_norms_are_those_of_plain_pytorch[2 stages, loss in chunks]",
    "test_training.py::test_losses_are_those_of_plain_pytorch[zero1, accumulation 4]",
    "test_training.py::test_losses_are_those_of_plain_pytorch[zero1, recomputed]",
    "test_truth.py::test_a_rehearsal_holds_and_sends_what_real_ranks_do[zero2, optimizer on the host, accumulation 2]",
    "test_truth.py::test_a_rehearsal_holds_and_sends_what_real_ranks_do[zero3, optimizer on the host]",
    "test_truth.py::test_a_rehearsal_holds_and_sends_what_real_ranks_do[zero1, first stage of 2]",
)
"""Ends of node ids: each is a combination whose parts other cases show, trains with states on NVMe, for which DeepSpeed
compiles three minutes, or is a bench."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks them ``long``.

    Raises:
        pytest.UsageError: a test is marked ``slurm`` where ``make test`` does not look for it.
    """
    for item in items:
        if item.get_closest_marker("slurm") and SLURM_TESTS not in item.path.parents:
            raise pytest.UsageError(f"{item.nodeid}: tests marked slurm are in {SLURM_TESTS}")
        if item.nodeid.endswith(LONG):
            item.add_marker("long")
