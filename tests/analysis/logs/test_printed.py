from __future__ import annotations

import re

import pytest

from hpctrain.analysis.logs.events import Line, Value
from hpctrain.analysis.logs.printed import (
    NUMBER,
    certain_text,
    clock_seconds,
    gib,
    glued,
    is_nan,
    number,
    parts_from,
    put_number,
    put_or_missing,
    put_rank,
    put_timestamp,
    si_number,
)
from hpctrain.analysis.logs.tqdm_bar import BAR, CUT_BAR, bar_fields, seconds_per_step


@pytest.mark.parametrize(
    ("text", "shift", "expected"),
    [
        ("7,282", 0, 7282),
        ("-3", 0, -3.0),
        ("1e-05", 0, 1e-05),
        ("1.04858e+06", 0, 1048580.0),
        ("7.725906669975302e-08", 0, 7.725906669975302e-08),
        (".5", 0, 0.5),
        ("1099.34", -3, 1.09934),
        ("1.5e3", -3, 1.5),
        ("64.4", 9, 64_400_000_000),
        ("nan", 0, None),
        ("-inf", 0, None),
        ("N/A", 0, None),
        ("", 0, None),
        ("", 3, None),
        ("1.2.3", 0, None),
    ],
)
def test_number(text: str, shift: int, expected: float | None) -> None:
    found = number(text, shift)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10,050 ", ["10,050"]),
        ("196608, loss", ["196608"]),
        ("1,234,567.5", ["1,234,567.5"]),
        ("12,5000", ["12", "5000"]),
        ("nan inf -3.5E-7", ["nan", "inf", "-3.5E-7"]),
    ],
)
def test_pattern_of_a_number(text: str, found: list[str]) -> None:
    assert re.findall(NUMBER, text) == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("14.2K", 14200),
        ("85.8G", 85_800_000_000),
        ("2.00B", 2_000_000_000),
        ("512.00", 512.0),
        ("5.46", 5.46),
        ("1.27 | x", None),
    ],
)
def test_si_number(text: str, expected: float | None) -> None:
    assert si_number(text) == expected


def test_nan_is_marked_and_zero_is_kept_or_missing() -> None:
    fields: dict[str, Value] = {}
    put_number(fields, "loss", "nan")
    put_number(fields, "grad_norm", "0.0")
    put_or_missing(fields, "tflops_per_gpu", "0.0")
    put_or_missing(fields, "mfu_percent", "-100.00")
    put_or_missing(fields, "tokens_per_s", "inf")
    assert fields == {
        "loss": None,
        "loss_is_nan": True,
        "grad_norm": 0.0,
        "tflops_per_gpu": None,
        "mfu_percent": None,
        "tokens_per_s": None,
    }
    assert [is_nan(text) for text in ("NaN", "Infinity", "0", "")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("9:07:58", 32878), ("0:15:19.02", 919.02), ("00:58", 58), ("878:01:48", 3160908), ("2 days, 0:00:01", 172801)],
)
def test_clock_seconds(text: str, expected: float) -> None:
    assert clock_seconds(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[2024-04-18 19:06:17] INFO", "2024-04-18 19:06:17"),
        ("2026-05-18 16:04:46,338 - root", "2026-05-18 16:04:46,338"),
        ("[2025-10-17T11:32:59+08:00] x", "2025-10-17T11:32:59+08:00"),
        ("01/17/2024 13:47:27", None),
    ],
)
def test_timestamp(text: str, expected: str | None) -> None:
    fields: dict[str, Value] = {}
    put_timestamp(fields, text)
    assert fields.get("timestamp") == expected


@pytest.mark.parametrize(("label", "expected"), [("rank12", 12), ("rank 3", 3), ("default7", None), ("", None)])
def test_rank_of_a_label(label: str, expected: int | None) -> None:
    fields: dict[str, Value] = {}
    put_rank(fields, label)
    assert fields.get("rank") == expected


def test_gib_of_nothing_is_nothing() -> None:
    assert gib(None) is None
    assert gib(2**30) == 1.0


@pytest.mark.parametrize(
    ("text", "whole", "expected"),
    [
        ("a: 1 b: 23", True, ("a: 1 b: 23", True)),
        ("a: 1 b: 23", False, ("a: 1 b: ", False)),
        ("a: 1 b: 23%", False, ("a: 1 b: 23%", True)),
        ("a: 1 | ", False, ("a: 1 | ", True)),
        ("a: 1 | wo", False, ("a: 1 | ", False)),
    ],
)
def test_certain_text(text: str, whole: bool, expected: tuple[str, bool]) -> None:
    assert certain_text(Line(1, text, whole=whole), ("%",)) == expected


def test_parts_of_glued_records() -> None:
    parts = parts_from(re.compile(r"step (\d)"), "x step 1 a step 2 b")
    assert [(match[1], rest) for match, rest in parts] == [("1", " a "), ("2", " b")]
    assert parts_from(re.compile("y"), "x") == []
    line = Line(3, "x")
    assert [(fact.kind, fact.fields) for fact in glued(line, parts)] == [("trait", {"name": "glued_lines"})]
    assert list(glued(line, parts[:1])) == []


@pytest.mark.parametrize(
    ("rate", "unit", "expected"),
    [
        ("58.76", "s/it", 58.76),
        ("0.54", "it/s", 1.852),
        ("?", "it/s", None),
        (None, None, None),
        ("0.00", "it/s", None),
    ],
)
def test_seconds_per_step(rate: str | None, unit: str | None, expected: float | None) -> None:
    assert seconds_per_step(rate, unit) == expected


def test_bar_of_unknown_length() -> None:
    match = BAR.search("5/? [00:02<?,  2.00it/s, loss=1.5]")
    assert match is not None
    assert bar_fields(match) == {"step": 5, "total": None, "elapsed_s": 2, "time_per_step_s": 0.5}
    assert match["metrics"] == "loss=1.5"
    assert BAR.search("33/238 [01:01<1230") is None
    assert CUT_BAR.search("33/238 [01:01<1230") is not None
