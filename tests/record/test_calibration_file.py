"""``calibration.json``: written and read back, and what is said of one that is damaged or of another planner."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import RecordError
from hpctrain.record.calibration_file import is_calibration_file, read_calibrations, write_calibrations
from tests.plan.test_calibration import CALIBRATION

MARK = "0123abcd"


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "calibration.json"
    write_calibrations(path, [replace(CALIBRATION, **changes)], MARK, "0.1.0")
    return path


@pytest.mark.parametrize("errors", [(-0.05, 0.06), None], ids=["spread", "none"])
def test_what_is_written_is_read_back_with_its_place(tmp_path: Path, errors: tuple[float, float] | None) -> None:
    path = written(tmp_path, errors=errors)
    assert read_calibrations(path, MARK) == (replace(CALIBRATION, errors=errors, source=str(path)),)
    assert "source" not in path.read_text(), "a file may be moved"
    assert is_calibration_file(path)
    assert [left.name for left in tmp_path.iterdir()] == ["calibration.json"]


@pytest.mark.parametrize(
    ("keys", "value", "told"),
    [
        pytest.param(["schema_version"], 7, "schema_version=7, this hpctrain reads 1", id="version"),
        pytest.param(["step_model"], "ffffffff", "step_model=ffffffff, this planner's is 0123abcd", id="mark"),
        pytest.param(["calibrations"], [], "calibrations: must not be empty", id="no entry"),
        pytest.param(["calibrations", 0, "factors"], {}, "factors: must not be empty", id="no factor"),
        pytest.param(
            ["calibrations", 0, "factors", "compute"], 50, "factors.compute=50: must be 0.2 to 5", id="factor"
        ),
        pytest.param(["calibrations", 0, "factors", "compute"], "x", "must be a number", id="text"),
        pytest.param(["calibrations", 0, "factors", "compute"], float("nan"), "factors.compute=nan", id="NaN"),
        pytest.param(["calibrations", 0, "factors", "discs"], 1.0, "discs", id="kind"),
        pytest.param(["calibrations", 0, "errors"], [-0.1], "errors=[-0.1]: must be the lowest", id="one error"),
        pytest.param(["calibrations", 0, "errors"], [-1.5, 0.1], "errors=[-1.5, 0.1]: must lie below", id="-150 %"),
        pytest.param(["calibrations", 0, "errors"], [0.1, 0.2], "errors=[0.1, 0.2]: must lie below", id="one side"),
        pytest.param(["calibrations", 0, "seen", "nodes"], [8, 1], "seen.nodes=[8, 1]: must be the lowest", id="nodes"),
        pytest.param(["calibrations", 0, "num_runs"], 0, "num_runs=0: must be above 0", id="no run"),
        pytest.param(["calibrations", 0, "fitted_on"], "\x1b[31m", "fitted_on='\\x1b[31m': must be a date", id="date"),
        pytest.param(["calibrations", 0, "colour"], "red", "is no key of hpctrain", id="stranger"),
        pytest.param(["calibrations", 0, "hardware"], None, "calibrations.0.hardware", id="null"),
    ],
)
def test_what_is_wrong_is_told_with_what_to_do(tmp_path: Path, keys: list[Any], value: Any, told: str) -> None:
    path = written(tmp_path)
    raw = json.loads(path.read_text())
    place = raw
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.write_text(json.dumps(raw))
    with pytest.raises(RecordError, match=re.escape(told)) as raised:
        read_calibrations(path, MARK)
    assert str(raised.value).startswith(f"{path}: ")
    assert str(raised.value).endswith(f"fit it again: python -m hpctrain plan --calibrate RUNS -o {path}")
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "null"], ids=["empty", "half", "list", "text", "null"])
def test_a_damaged_file_is_one_message(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=re.escape(str(path))):
        read_calibrations(path, MARK)
    assert not is_calibration_file(path)


def test_a_folder_or_a_record_of_a_run_is_no_calibration(tmp_path: Path) -> None:
    with pytest.raises(RecordError):
        read_calibrations(tmp_path, MARK)
    (tmp_path / "plan.json").write_text('{"schema_version": 1, "name": "x"}')
    assert not is_calibration_file(tmp_path / "plan.json")
    assert not is_calibration_file(tmp_path / "missing.json")
