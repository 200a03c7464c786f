"""The best micro batch: which ones are looked at, where the table ends, what is best."""

from __future__ import annotations

import dataclasses

import pytest

from hpctrain.errors import ConfigError
from hpctrain.plan.questions.micro_batch import BestMicroBatch, best_micro_batch
from hpctrain.plan.questions.render import render_micro_batches
from hpctrain.plan.run_plan import build_run_plan
from tests.plan.questions.test_largest import config_of

WORDS = "model=13b nodes=2 parallelism=zero3"


def best_of(words: str) -> BestMicroBatch:
    return best_micro_batch(config_of(words), build_run_plan)


def test_rows_end_with_the_first_that_does_not_fit() -> None:
    answer = best_of(WORDS)
    sizes = [row.micro_batch_size for row in answer.rows]
    assert sizes == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64][: len(sizes)]
    assert [row.fits for row in answer.rows] == [True] * (len(sizes) - 1) + [False]
    assert answer.ends_by == f"{sizes[-1]} does not fit"
    assert answer.rows[0].global_batch_size == 16


def test_the_best_has_most_tokens_of_those_with_headroom() -> None:
    answer = best_of(WORDS)
    assert answer.best is not None
    for row in answer.rows:
        training = dataclasses.replace(config_of(WORDS).training, micro_batch_size=row.micro_batch_size)
        plan = build_run_plan(dataclasses.replace(config_of(WORDS), training=training))
        assert plan.prediction is not None
        assert (row.fits, row.tokens_per_s) == (not plan.problems, plan.prediction.tokens_per_s)
        if plan.memory.fits_with_headroom:
            assert plan.prediction.tokens_per_s <= (answer.best.tokens_per_s or 0)
    assert answer.best.has_headroom
    text = render_micro_batches(answer, config_of(WORDS))
    assert f"zero3: {answer.best.micro_batch_size}, the most tokens/s predicted" in text
    assert "\nbest  " in text and "\ndoes not fit  " in text


def test_with_a_global_batch_only_those_that_divide_it() -> None:
    """960 sequences over 16 ranks are 60 each; accumulation makes up the rest."""
    answer = best_of(f"{WORDS} training.global_batch_size=960")
    rows = answer.rows
    assert [row.micro_batch_size for row in rows] == [1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60][: len(rows)]
    assert {row.micro_batch_size * row.gradient_accumulation_steps * 16 for row in rows} == {960}
    assert {row.global_batch_size for row in rows} == {960}
    assert answer.ends_by in (
        "no larger one divides a rank's share of the global batch",
        f"{rows[-1].micro_batch_size} does not fit",
    )


def test_a_ramp_takes_some_sizes_and_not_others() -> None:
    """Steps of 32 sequences over 16 ranks: micro batches of 1 and 2 alone."""
    ramp = "training.batch_ramp={start:32,increment:32,samples:320} training.global_batch_size=320"
    assert [row.micro_batch_size for row in best_of(f"{WORDS} {ramp}").rows] == [1, 2]


def test_without_headroom_the_fastest_that_fits_is_told_as_such() -> None:
    """A GPU of a size between one sequence's need and ten ninths of it."""
    words = "model=1.3b nodes=1 parallelism=zero3 training.activation_checkpointing=full"
    (need, *_) = [row.gpu_bytes / 2**30 for row in best_of(words).rows]
    answer = best_of(f"{words} hardware.gpu_memory_gib={need * 1.01:.3f}")
    assert answer.best is not None and not answer.best.has_headroom
    assert "none leaves a tenth of each tier free" in answer.why
    assert "\nbest " in render_micro_batches(answer, config_of(words))


def test_without_predictions_the_largest_with_headroom() -> None:
    answer = best_of("model=tiny cluster=local parallelism=zero3 hardware.host_memory_gib=2")
    assert answer.best is not None
    assert answer.why == "the largest, since no step time is predicted"
    assert answer.best.micro_batch_size == max(row.micro_batch_size for row in answer.rows if row.has_headroom)


def test_none_fits() -> None:
    answer = best_of("model=530b nodes=1 parallelism=ddp")
    assert (answer.best, answer.why, len(answer.rows)) == (None, "none fits", 1)
    assert "none fits" in render_micro_batches(answer, config_of("model=530b nodes=1 parallelism=ddp"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (f"{WORDS} training.global_batch_size=100", ["training.global_batch_size=100", "16", "nearest: 96 or 112"]),
        (
            f"{WORDS} training.global_batch_size=960 training.gradient_accumulation_steps=20",
            ["training.gradient_accumulation_steps=20", "leaves one micro batch", "leave it out"],
        ),
        (f"{WORDS} parallelism.tensor_parallel_size=3", ["tensor_parallel_size=3", "must divide"]),
        ("model=tiny cluster=local parallelism=zero3", ["hardware.host_memory_gib=null"]),
    ],
    ids=["batch", "no-choice", "rule", "no-memory"],
)
def test_no_answer_is_told_with_its_reason(words: str, expected: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        best_of(words)
    assert error.value.exit_code == 2
    assert all(text in str(error.value) for text in expected)


def test_rows_of_a_pipeline_hold_the_batch_and_the_words_that_are_said_give_the_best_one() -> None:
    """8 sequences a GPU: of 2 x 8 GPUs in 4 replicas, 32 a replica; a micro batch of 3 has 10 whole ones."""
    words = "model=13b nodes=2 parallelism=zero1 parallelism.pipeline_parallel_size=4 training.seq_len=1024"
    answer = best_of(words)
    assert [row.gradient_accumulation_steps for row in answer.rows[:4]] == [32, 16, 10, 8]
    assert [row.global_batch_size for row in answer.rows[:4]] == [128, 128, 120, 128]
    assert answer.rows[-1].micro_batch_size == 32
    assert answer.ends_by.startswith("a larger one has more sequences than the step that a pipeline holds")
    text = render_micro_batches(answer, config_of(words))
    assert "a step has more tokens" not in text
    (line,) = (line for line in text.splitlines() if line.startswith("plan it with "))
    typed = build_run_plan(config_of(f"{words} {line.removeprefix('plan it with ')}"))
    assert answer.best is not None and typed.prediction is not None
    assert typed.prediction.tokens_per_s == answer.best.tokens_per_s
