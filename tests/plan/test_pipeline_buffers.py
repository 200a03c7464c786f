"""A pipeline's buffers by hand. Against ranks and rehearsals: analysis/PARALLELISM.md, tests/rehearse/test_parallel_forms.py."""

from __future__ import annotations

import pytest

from hpctrain.plan.memory.pipeline_buffers import PipelineBuffers, micro_batches_in_flight, pipeline_buffers
from hpctrain.plan.rank_work import RankWork
from tests.plan.test_memory import terms_of
from tests.plan.works import work_of

WORDS = "model=13b nodes=2 parallelism=zero1 training.micro_batch_size=1 training.gradient_accumulation_steps=8"


def work(stages: int, tensor: int = 1, *more: str) -> RankWork:
    degrees = (f"parallelism.pipeline_parallel_size={stages}", f"parallelism.tensor_parallel_size={tensor}")
    return work_of(*WORDS.split(), *degrees, *more)


def test_without_a_pipeline_there_are_none() -> None:
    assert pipeline_buffers(work(1), 0, 100) == PipelineBuffers(0, 0, 0, 0, 0)


def test_the_first_stage_keeps_its_outputs_and_one_buffer_for_gradients() -> None:
    # Four micro batches in flight: three outputs beside the one in work, and the buffer.
    assert micro_batches_in_flight(work(4), 0) == 4
    assert pipeline_buffers(work(4), 0, 100) == PipelineBuffers(400, 400, 400, 400, 100)


def test_a_middle_stage_keeps_what_it_received_too() -> None:
    # Three in flight: two outputs, the buffer, and three inputs as they came.
    assert pipeline_buffers(work(4), 1, 100) == PipelineBuffers(600, 600, 600, 600, 100)


def test_the_last_stage_holds_two_micro_batches_through_their_outputs() -> None:
    # Output, input and its gradient of each: 300. At work on one, whose input came (100), with the buffer (100).
    found = pipeline_buffers(work(4), 3, 100)
    assert found.in_forward == 100 + 100 + 2 * 300
    assert found.at_loss == 100 + 100 + 300
    assert found.in_backward == found.at_loss + 100
    assert found.at_end == found.at_loss + 200
    assert found.in_step == 100 + 2 * 300


def test_a_single_micro_batch_has_a_single_place() -> None:
    found = pipeline_buffers(work(4, 1, "training.gradient_accumulation_steps=1"), 3, 100)
    assert (found.in_forward, found.at_loss, found.in_step) == (500, 200, 400)


@pytest.mark.parametrize(("stage", "handed_on"), [(0, 2 * 50), (1, 50)])
def test_tensor_parallel_ranks_hand_on_a_part_each(stage: int, handed_on: int) -> None:
    found = pipeline_buffers(work(2, 2), stage, 100)
    if stage == 0:
        # The whole output is put together again for its backward pass.
        assert found == PipelineBuffers(handed_on, handed_on, handed_on + 100, handed_on + 100, 50)
    else:
        assert (found.at_loss, found.in_step) == (handed_on + 300, 50 + 600)


def test_they_are_a_term_of_the_plan() -> None:
    one = 2048 * 5120 * 2
    four = terms_of(*WORDS.split(), "parallelism.pipeline_parallel_size=4", "training.activation_checkpointing=none")
    # The first stage is the fullest.
    assert four["pipeline buffers"] == 4 * one
    assert "pipeline buffers" not in terms_of(*WORDS.split())
