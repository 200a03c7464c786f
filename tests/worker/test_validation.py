"""The loss on held-out data, and the batch ramp: real ranks against one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain.record.files import read_record
from hpctrain.record.reader import ValidationsFile
from hpctrain.record.schema import AttemptRecord
from tests.worker.reference import reference_steps, reference_validation_loss
from tests.worker.run_folder import make_config, make_run, start_ranks, step_records

pytestmark = pytest.mark.train

RAMP = {"start": 2, "increment": 2, "samples": 24}
"""With a full batch of 8: 4 steps of 2 sequences, 2 of 4, 2 of 6."""
TOKENS = [64, 64, 64, 64, 128, 128, 192, 192, 256, 256]
HELD_OUT = {"name": "synthetic", "kind": "synthetic", "validation_fraction": 0.01}

CASES: dict[str, dict[str, Any]] = {
    "zero2, offloaded": {"zero_stage": 2, "offload": True},
    "zero3": {"zero_stage": 3, "activation_checkpointing": "full"},
    "2 pipeline stages": {"zero_stage": 1, "degrees": {"pipeline_parallel_size": 2}},
    "2 tensor-parallel ranks": {"degrees": {"tensor_parallel_size": 2}},
    "2 sequence-parallel ranks": {"zero_stage": 2, "degrees": {"sequence_parallel_size": 2}},
}


@pytest.mark.parametrize("case", CASES)
def test_a_ramp_and_its_validations_are_those_of_one_process(case: str, tmp_path: Path) -> None:
    """To it, whichever rank has which sequences, and to every number of ranks, since the process is the same."""
    config = make_config(
        num_steps=10,
        micro_batch_size=1,
        batch_ramp=RAMP,
        validation_interval=4,
        validation_batches=2,
        data=HELD_OUT,
        **CASES[case],
    )
    run = make_run(tmp_path, config)
    with start_ranks(run) as ranks:
        assert ranks.wait() == [0, 0], ranks.logs()
    steps, expected = step_records(run), reference_steps(config)
    assert [step.tokens for step in steps] == TOKENS
    assert [step.loss for step in steps] == pytest.approx([step.loss for step in expected], rel=1e-5)
    assert [step.grad_norm for step in steps] == pytest.approx([step.grad_norm for step in expected], rel=1e-5)
    validations = list(ValidationsFile(run.validations).new_records())
    assert [validation.step for validation in validations] == [4, 8, 10]
    assert validations[-1].loss == pytest.approx(reference_validation_loss(config), rel=1e-5)
    assert {(validation.num_sequences, validation.tokens) for validation in validations} == {(16, 512)}
    is_pipeline = case == "2 pipeline stages"
    for step in steps:
        parts = (step.forward_time_s, step.backward_time_s, step.optimizer_time_s)
        if is_pipeline:
            assert parts == (None, None, None)
        else:
            assert 0 < sum(part or 0 for part in parts) <= step.step_time_s
    # A step after a validation does not hold its time.
    ended = {step.step: step.time_s for step in steps}
    for validation in validations[:-1]:
        step = steps[validation.step]
        waited = ended[step.step] - ended[step.step - 1]
        assert step.step_time_s <= waited - validation.validation_time_s + 1e-3


def test_less_than_a_batch_held_out_is_told_with_numbers(tmp_path: Path) -> None:
    data = HELD_OUT | {"validation_fraction": 1e-5}
    run = make_run(tmp_path, make_config(num_ranks=1, num_steps=2, validation_interval=1, data=data))
    with start_ranks(run, 1) as ranks:
        assert ranks.wait() == [13], ranks.logs()
    message = read_record(run.failure(1), AttemptRecord).message
    assert "training.validation_interval=1: 1 sequences of 32 tokens are held out" in message
    assert "a global batch of 8" in message
