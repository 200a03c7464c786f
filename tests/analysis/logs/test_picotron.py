from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.analysis.logs.picotron import PicotronFormat
from tests.analysis.logs.format_driver import assert_sample, events_of_text, samples, steps


@pytest.mark.parametrize("json_path", samples("picotron_*"))
def test_composed_sample(json_path: Path) -> None:
    assert_sample(PicotronFormat(), json_path)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("Step: 5 | Accuracy: 0.5 | Global batch size: 8", id="no-loss"),
        pytest.param("Global batch size: 8 | Step: five", id="no-step"),
    ],
)
def test_other_lines_are_no_records(line: str, tmp_path: Path) -> None:
    assert events_of_text(PicotronFormat(), f"{line}\n", tmp_path) == []


def test_rank_from_the_label_and_total_of_the_steps(tmp_path: Path) -> None:
    text = (
        "[rank7]:Step: 5/20 | Loss: 2.5 | Global batch size: 8.00K | Tok/s: 1.00M | Tok/s/GPU: 125.00K | MFU: 40.00%\n"
    )
    (record,) = steps(events_of_text(PicotronFormat(), text, tmp_path))
    assert (record["rank"], record["iteration"], record["total_iterations"]) == (7, 5, 20)
    assert (record["tokens_per_s"], record["tokens_per_s_per_gpu"]) == (1_000_000, 125_000)
