from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.analysis.logs.composer import ComposerFormat
from tests.analysis.logs.format_driver import assert_sample, events_of_text, facts, incomplete, samples, steps


@pytest.mark.parametrize("json_path", samples("llm-foundry_*"))
def test_composed_sample(json_path: Path) -> None:
    assert_sample(ComposerFormat(), json_path)


LOSS = "         Train loss/train/total: 2.5000\n"


def test_evaluation_is_told_apart(tmp_path: Path) -> None:
    text = (
        "[batch=7/9]:\n"
        + LOSS
        + "[Eval batch=3/3] Eval on eval data:\n\t Eval metrics/eval/LanguageCrossEntropy: 2.8800\n"
    )
    events = events_of_text(ComposerFormat(), text, tmp_path)
    assert facts(events, "validation") == [{"iteration": 7, "val_loss": 2.88}]
    assert len(steps(events)) == 1


@pytest.mark.parametrize(
    ("head", "keys", "expected"),
    [
        pytest.param("[epoch=2][batch=3/100]:", "", {"epoch": 2, "iteration": 3, "total_iterations": 100}, id="epochs"),
        pytest.param(
            "[token=4096/8192]:",
            "         Train time/batch: 1\n",
            {"iteration": 2, "total_iterations": None},
            id="tokens-count-batches",
        ),
    ],
)
def test_units_of_the_header(head: str, keys: str, expected: dict[str, int], tmp_path: Path) -> None:
    (record,) = steps(events_of_text(ComposerFormat(), f"{head}\n{keys}{LOSS}", tmp_path))
    assert {name: record.get(name) for name in expected} == expected


def test_block_without_loss_is_incomplete(tmp_path: Path) -> None:
    events = events_of_text(
        ComposerFormat(), "[batch=7/9]:\n\t Train time/sample: 512\n[batch=8/9]:\n" + LOSS, tmp_path
    )
    assert incomplete(events) == [{"iteration": 7, "total_iterations": 9, "consumed_samples": 512}]
    assert [record["iteration"] for record in steps(events)] == [8]


def test_rank_from_the_banner(tmp_path: Path) -> None:
    text = "----------Begin global rank 5 STDERR----------\n[batch=7/9]:\n" + LOSS
    (record,) = steps(events_of_text(ComposerFormat(), text, tmp_path))
    assert record["rank"] == 5


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(LOSS, id="key-without-header"),
        pytest.param("[batch=7/9]\n" + LOSS, id="progress-without-colon"),
        pytest.param("lr schedule [batch=7/9]: warm\n" + LOSS, id="text-behind-the-header"),
    ],
)
def test_other_lines_are_no_records(text: str, tmp_path: Path) -> None:
    assert events_of_text(ComposerFormat(), text, tmp_path) == []


def test_a_cut_header_ends_the_block_before_it(tmp_path: Path) -> None:
    events = events_of_text(ComposerFormat(), "[batch=7/9]:\n" + LOSS + "[batch=8/", tmp_path)
    assert [record["iteration"] for record in steps(events)] == [7]
    assert facts(events, "trait") == [{"name": "truncated_last_line"}]
    assert incomplete(events) == []
