"""``rehearsal.json`` and the questions that are asked of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.errors import RecordError
from hpctrain.rehearse.extrapolate import linearity
from hpctrain.rehearse.render import render_rehearsal
from hpctrain.rehearse.result import PHASES, read_rehearsal, write_rehearsal
from tests.rehearse.make_rehearsal import make_rehearsal


def test_round_trip(tmp_path: Path) -> None:
    checked = linearity(make_rehearsal(2), make_rehearsal(4), make_rehearsal(6))
    found = make_rehearsal(linearity=checked, gpu_capacity_bytes=80, phase_times_s={"forward": 0.5}, reserved_bytes=9)
    path = write_rehearsal(tmp_path, found)
    assert path == tmp_path / "rehearsal.json"
    assert [file.name for file in tmp_path.iterdir()] == ["rehearsal.json"]
    assert read_rehearsal(tmp_path) == read_rehearsal(path) == found


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    path = write_rehearsal(tmp_path, make_rehearsal(schema_version=99))
    with pytest.raises(RecordError, match="schema_version=99"):
        read_rehearsal(path)


def test_a_folder_without_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"rehearsal\.json: no such file"):
        read_rehearsal(tmp_path)


def test_the_peak_is_that_of_the_reported_step() -> None:
    peak = make_rehearsal().peak("gpu")
    assert peak is not None
    assert (peak.step, peak.phase, peak.peak_bytes) == (2, "backward", 1400)
    assert make_rehearsal().peak("host") is None
    before = make_rehearsal().peak("gpu", ("model",))
    assert before is not None
    assert before.peak_bytes == 300


def test_rows_leave_the_first_step_out_unless_asked() -> None:
    found = make_rehearsal()
    assert [(row.step, row.phase) for row in found.rows("gpu")] == [
        (0, "model"),
        (2, "forward"),
        (2, "backward"),
        (2, "optimizer"),
    ]
    assert [row.phase for row in found.rows("gpu", step=1)] == ["forward"]


def test_one_of_five_products_of_fused_attention_is_done_again() -> None:
    assert make_rehearsal().flops.scores_again == 4 * 100 // 5


def test_the_text_has_every_part() -> None:
    checked = linearity(make_rehearsal(2), make_rehearsal(4), make_rehearsal(6))
    text = render_rehearsal(make_rehearsal(way="quick", linearity=checked, gpu_capacity_bytes=1024))
    for part in (
        "rank 0 of 16, tiny-2n: 4 and 6 layers, extrapolated to 4",
        "through 2 and 4 layers misses the step's peak at 6 by 0.00%",
        "MEMORY OF ONE RANK",
        "short by",
        "COLLECTIVE OF A STEP",
        "all_gather",
        "2 x 64",
        "margin:",
        "4.0000 of the ledger's",
    ):
        assert part in text, text


def test_time_lines_name_phases_by_their_place_in_the_list() -> None:
    assert [PHASES[index] for index in make_rehearsal().timeline.phase] == ["model", "backward"]
