from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.analysis.logs.metaseq import MetaseqFormat
from tests.analysis.logs.format_driver import assert_sample, events_of_text, facts, incomplete, samples, steps


@pytest.mark.parametrize("json_path", samples("metaseq_*"))
def test_composed_sample(json_path: Path) -> None:
    assert_sample(MetaseqFormat(), json_path)


def test_loss_in_bits_becomes_nats_where_the_perplexity_shows_it(tmp_path: Path) -> None:
    line = '{{"epoch": 1, "loss": "{loss}", {ppl}"wps": "100", "num_updates": "{step}"}}\n'
    text = (
        line.format(loss="4.000", ppl='"ppl": "16", ', step=1)  # 2**4
        + line.format(loss="2.773", ppl='"ppl": "16.01", ', step=2)  # e**2.773
        + line.format(loss="3.000", ppl="", step=3)
    )
    records = steps(events_of_text(MetaseqFormat(), text, tmp_path))
    assert [record["loss"] for record in records] == [4.0, 2.773, 3.0]
    assert [record.get("loss_nats_per_token") for record in records] == [pytest.approx(2.772589, abs=1e-6), 2.773, None]


def test_evaluation_is_told_apart(tmp_path: Path) -> None:
    text = (
        '| INFO | valid | {"epoch": 25, "valid_loss": 3.11, "valid_ppl": "8.63", "num_updates": "40000"}\n'
        "| epoch 001 | valid on 'valid' subset | valid_loss 8.5 | valid_ppl 362.04 | num_updates 495\n"
    )
    events = events_of_text(MetaseqFormat(), text, tmp_path)
    assert facts(events, "validation") == [
        {"iteration": 40000, "val_loss": 3.11, "ppl": 8.63},
        {"iteration": 495, "val_loss": 8.5, "ppl": 362.04},
    ]
    assert len(events) == 2


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(
            "| epoch 030 | loss 3.5 | ppl 4.0 | wps 1.1e+06 | ups 2.5 | num_updates 12000 | lr 0.0005", id="epoch"
        ),
        pytest.param(
            '| train | {"epoch": 1, "train_loss": "3.5", "train_wps": "10", "train_num_updates": "9"}', id="epoch-json"
        ),
        pytest.param("Loaded checkpoint x.pt (epoch 5 @ 1000 updates, num_updates=1000)", id="checkpoint"),
    ],
)
def test_other_lines_are_no_records(line: str, tmp_path: Path) -> None:
    events = events_of_text(MetaseqFormat(), f"{line}\n", tmp_path)
    assert steps(events) + incomplete(events) + facts(events, "validation") == []


def test_bar_of_fairseq(tmp_path: Path) -> None:
    text = "5000/9000 [1:00:00<48:00,  1.39it/s, loss=5.5, wps=8.5e+4, ups=1.39, bsz=5.1e+03, num_updates=23000, lr=0.0002]\n"
    (record,) = steps(events_of_text(MetaseqFormat(), text, tmp_path))
    assert (record["iteration"], record["tokens_per_s"], record["global_batch_size"]) == (23000, 85000, 5100)


def test_numbers_in_quotes_are_told_once(tmp_path: Path) -> None:
    quoted = '{"epoch": 1, "loss": "4.0", "wps": "100", "num_updates": "1"}\n'
    events = events_of_text(MetaseqFormat(), quoted + quoted, tmp_path)
    assert facts(events, "trait") == [{"name": "numbers_as_strings"}]
    assert len(steps(events)) == 2
    bare = '{"epoch": 1, "loss": 4.0, "wps": 100, "num_updates": 1}\n'
    assert facts(events_of_text(MetaseqFormat(), bare, tmp_path), "trait") == []


HEAD = '2024-03-05 10:20:30 | INFO | train_inner | {"epoch": 1, "loss": "9.500", "ppl": "724.08", "wps": "51000", '


@pytest.mark.parametrize("cut", ['"wpb": "1.0', '"num_upd', '"bsz": "51'], ids=["number", "key", "batch"])
def test_a_line_cut_before_the_number_of_its_update(cut: str, tmp_path: Path) -> None:
    for end in ("", "\n"):
        events = events_of_text(MetaseqFormat(), HEAD + cut + end, tmp_path)
        (fields,) = incomplete(events)
        assert (fields["loss"], fields["tokens_per_s"], fields["timestamp"]) == (9.5, 51000, "2024-03-05 10:20:30")
        assert "iteration" not in fields
        assert steps(events) == []


def test_the_rest_of_a_line_is_a_fragment(tmp_path: Path) -> None:
    rest = 'ss": "9.400", "wps": "50100", "num_updates": "7", "lr": "3e-05"}\n'
    whole = HEAD + '"num_updates": "6"}\n'
    traits = [facts(events_of_text(MetaseqFormat(), text, tmp_path), "trait") for text in (rest, whole + rest)]
    assert traits == [
        [{"name": "truncated_first_line"}],
        [{"name": "numbers_as_strings"}, {"name": "orphan_fragment"}],
    ]
