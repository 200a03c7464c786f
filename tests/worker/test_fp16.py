"""fp16 on real ranks: losses and gradient norms of one process in fp32, overflows and what follows, resumed runs to the bit.

torch computes fp16 on any processor, many times slower than fp32 where it has no AVX512-FP16. Measured here (torch 2.13,
DeepSpeed 0.19.8, 20 steps): losses within 5e-5 of the reference, norms within 5e-4.
"""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hpctrain.record.checkpoints import complete_checkpoints
from hpctrain.record.schema import StepRecord
from hpctrain.worker.end_reasons import EXIT_CODES
from hpctrain.worker.schedule import learning_rate
from tests.worker.reference import MODELS, assert_steps_of_reference
from tests.worker.run_folder import failure_of, make_config, make_run, start_ranks, step_records, train
from tests.worker.test_checkpoint import end, records_of

pytestmark = pytest.mark.train

_PIPELINE: dict[str, Any] = {
    "zero_stage": 1,
    "degrees": {"pipeline_parallel_size": 2},
    "gradient_accumulation_steps": 4,
    "micro_batch_size": 2,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "zero2": ("gpt", {"zero_stage": 2}),
    "zero3, offloaded, loss in chunks": ("llama", {"offload": True, "loss_chunk_size": 60}),
    "ddp, tensor parallel": ("gpt", {"zero_stage": 0, "degrees": {"tensor_parallel_size": 2}}),
    "zero1, pipeline": ("gpt", _PIPELINE),
    "zero1, optimizer on the host": ("gpt", {"zero_stage": 1, "offload": True}),
    "zero2, tensor parallel": ("llama", {"zero_stage": 2, "degrees": {"tensor_parallel_size": 2}}),
    "zero3, sequence parallel, recomputed": (
        "gpt",
        {"degrees": {"sequence_parallel_size": 2}, "activation_checkpointing": "full"},
    ),
}
HIGH: dict[str, Any] = {"initial_scale_power": 20, "loss_scale_window": 2, "hysteresis": 1}
"""A scale at which gradients of a test's model overflow, so that it comes down, goes up and overflows again in a few steps."""
NUM_STEPS = 10


@pytest.mark.parametrize("case", CASES)
def test_losses_and_norms_are_those_of_plain_pytorch(case: str, tmp_path: Path) -> None:
    model, arguments = CASES[case]
    records = train(tmp_path, make_config(model=MODELS[model], precision="fp16", **arguments))
    assert {(record.loss_scale, record.skipped) for record in records} == {(2.0**16, False)}
    assert_steps_of_reference(records, model, "fp16")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"zero_stage": 0}, id="ddp"),
        pytest.param({"zero_stage": 3}, id="zero3"),
        pytest.param({"zero_stage": 2, "offload": True}, id="zero2, offloaded"),
        pytest.param(_PIPELINE, id="zero1, pipeline"),
    ],
)
def test_overflows_are_skipped_and_a_resumed_run_goes_on_to_the_bit(arguments: dict[str, Any], tmp_path: Path) -> None:
    config = make_config(
        precision="fp16", num_steps=NUM_STEPS, checkpoint_interval=7, checkpoint_at_end=True, **HIGH, **arguments
    )
    run = make_run(tmp_path, config)
    codes, log = end(run, 1)
    assert codes == [0, 0], log
    first = records_of(run, 1)
    assert_scale_follows_overflows(first)
    training = config.training
    # The schedule is that of the steps, skipped or not.
    rates = [
        learning_rate(step, NUM_STEPS, training.warmup_steps, training.learning_rate, training.min_learning_rate)
        for step in range(1, NUM_STEPS + 1)
    ]
    assert [record.learning_rate for record in first] == rates
    shutil.rmtree(complete_checkpoints(run)[-1].folder)
    codes, log = end(run, 2)
    assert codes == [0, 0], log
    assert "goes on after step 7 of 10" in log
    assert [values(record) for record in records_of(run, 2)] == [values(record) for record in first[7:]]


def assert_scale_follows_overflows(records: list[StepRecord]) -> None:
    """Halved by each skipped step, doubled by two good ones in a row; and there are both kinds."""
    assert records[0].skipped
    assert records[0].loss_scale == 2.0**20
    assert 2 <= sum(record.skipped for record in records) <= NUM_STEPS - 3
    num_good = 0
    for record, following in pairwise(records):
        assert record.loss is not None
        assert record.loss_scale is not None
        assert (record.grad_norm is None) == record.skipped
        num_good = 0 if record.skipped else num_good + 1
        factor = 0.5 if record.skipped else 2.0 if num_good == 2 else 1.0
        num_good = 0 if factor == 2.0 else num_good
        assert following.loss_scale == record.loss_scale * factor


def values(record: StepRecord) -> tuple[int, float | None, float | None, bool, float | None]:
    return record.step, record.loss, record.grad_norm, record.skipped, record.loss_scale


def test_a_run_whose_only_steps_overflow_at_a_fixed_scale_is_not_completed(tmp_path: Path) -> None:
    config = make_config(num_ranks=1, zero_stage=2, precision="fp16", loss_scale=2.0**24, num_steps=2)
    run = make_run(tmp_path, config)
    with start_ranks(run, num_ranks=1) as ranks:
        assert ranks.wait() == [EXIT_CODES["non_finite_loss"]], ranks.logs()
    assert "gradients overflowed fp16 in all 2 steps, and no weight was updated; nearest: " in failure_of(run).message
    assert [(record.step, record.skipped, record.grad_norm) for record in step_records(run)] == [
        (1, True, None),
        (2, True, None),
    ]


def test_an_overflow_at_the_smallest_scale_ends_the_run_with_its_steps_recorded(tmp_path: Path) -> None:
    config = make_config(num_ranks=1, zero_stage=1, precision="fp16", **HIGH, min_loss_scale=2**19, log_interval=100)
    run = make_run(tmp_path, config)
    with start_ranks(run, num_ranks=1) as ranks:
        assert ranks.wait() == [EXIT_CODES["non_finite_loss"]], ranks.logs()
    failure = failure_of(run)
    assert failure.message.startswith(
        "training.min_loss_scale=524288: gradients overflow fp16 even at this loss scale, after 2 skipped steps in a row"
    )
    found = [(record.step, record.skipped, record.loss_scale) for record in step_records(run)]
    assert found == [(1, True, 2.0**20), (2, True, 2.0**19)]
