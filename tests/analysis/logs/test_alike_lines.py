"""Records that are read by column give what the same records give line by line."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hpctrain.analysis.logs import alike_lines, lines, reading, record_table, step_joiner
from hpctrain.analysis.logs.line_plan import LinePlan, Place, decimals, float_or_none, integers, seconds_of_ms
from hpctrain.analysis.logs.reading import LogReading, read_log
from hpctrain.analysis.logs.record_table import RecordTable

LINE_BY_LINE = 10**9


def line(step: int, draw: random.Random, **other: Any) -> str:
    """Megatron's line; ``other``: total, batch, rate, loss, time, more, before."""
    time_ms = other.get("time", draw.uniform(1000, 9999))
    batch = other.get("batch", 512)
    rate = other.get("rate", 1000 * batch / time_ms)
    return (
        f"{other.get('before', '')} iteration {step:8d}/{other.get('total', 999999):8d} | consumed samples: {step * batch:12d} "
        f"| elapsed time per iteration (ms): {time_ms:.1f} | learning rate: {draw.uniform(1e-5, 9e-4):.3E} "
        f"| global batch size: {batch:5d} | lm loss: {other.get('loss', f'{draw.uniform(0.5, 30):.6E}')} "
        f"| loss scale: 1.0 | grad norm: {other.get('norm', f'{draw.uniform(0.5, 1.1):.3f}')} | {other.get('more', '')}"
        f"number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: {rate:.3f} |"
    )


def texts(*values: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer("".join(values).encode(), dtype=np.uint8).reshape(len(values), -1)


def everything(log: LogReading) -> dict[str, str]:
    """All that a reading says, with types: 1, 1.0 and True differ."""
    told = {
        name: repr(getattr(log, name)) for name in LogReading.__slots__ if name not in ("records", "facts", "engine")
    }
    told["traits"] = repr(sorted(log.traits))
    for name, table in [("records", log.records), ("engine", log.engine), *log.facts.items()]:
        told[name] = repr((list(table), list(table.line_numbers), table.names))
    told["incomplete_records"] = repr(list(log.incomplete_records))
    return told


def composed(draw: random.Random, num_parts: int = 12) -> str:
    """A log of plain stretches, with all that may come between and into them."""
    step, out, label, stamp = 1, list[str](), "", ""
    total, day = 999999, 1
    for _ in range(num_parts):
        for _ in range(draw.choice((1, 3, 20, 60))):
            before = stamp.format(day=day, second=step % 60)
            out.append(
                label
                + line(step, draw, total=total, before=before, time=draw.choice((1234.5, draw.uniform(1000, 9999))))
            )
            step += 1
        special: list[Callable[[int], str]] = [
            lambda step: line(step, draw, loss="nan", norm="nan"),
            lambda step: line(step, draw, more="num zeros: 0.0 | "),
            lambda step: line(step, draw, rate=0.008),
            lambda step: line(step, draw, time=12345.6),
            lambda step: line(step - 2, draw),
            lambda _: out[-1],
            lambda step: "\x1b[32m" + line(step, draw) + "\x1b[0m",
            lambda step: line(step, draw)[:200],
            lambda step: line(step, draw) + " and more" + line(step + 1, draw),
            lambda _: " loading checkpoint from /x at iteration 2",
            lambda _: "after restart",
            lambda _: "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 8.0, reducing to 4.0",
            lambda _: "TP=4/PP=2/MBS=1/Nodes=8",
            lambda step: (
                f"[x] [INFO] [Rank 0] step={draw.choice((step + 3, step - 2))}, skipped=4, lr=[0.1], mom=[(0.9, 0.9)]"
            ),
            lambda _: "time (ms) | forward: 12.50 | backward: 20.00",
            lambda _: "Step Time : 2.00s GPU utilization: 9.5TFLOP/s/GPU",
            lambda _: "noise\n" * 30,
            lambda _: "\n".join("[default7]:" + text for text in out[-30:]),
            lambda step: line(step, draw, more="grad noise: 0.000 | ", rate=0.0),
            lambda step: line(step, draw, before="ä"),
        ]
        out.append(draw.choice(special)(step))
        step += draw.choice((0, 1, 1, 1, -step + 1, -3, 100))
        step = max(step, 1)
        label = draw.choice((label, label, "", "[default7]:", "12: "))
        stamp = draw.choice((stamp, stamp, "", " [2025-01-{day:02d} 03:04:{second:02d}]"))
        total = draw.choice((total, total, total, 500))
        day = max(1, day + draw.choice((0, 0, 1, -3)))
    text = "\n".join(out) + draw.choice(("", "\n"))
    text = text[: draw.choice((len(text), len(text) - draw.randrange(300)))]
    return text.replace("\n", draw.choice(("\n", "\n", "\r\n")))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Everything that is done in large pieces is done in small ones; gives the sizes of what was read by column."""
    monkeypatch.setattr(alike_lines, "MAX_ALIKE_LINES", 13)
    monkeypatch.setattr(reading, "_NUM_LOOKED_AT", 2)
    monkeypatch.setattr(record_table, "NUM_NEW_ROWS", 17)
    monkeypatch.setattr(step_joiner, "NUM_RECENT_STEPS", 16)
    sizes = []
    plain = RecordTable.append_columns

    def noted(table: RecordTable, numbers: npt.NDArray[np.int64], columns: Any) -> None:
        sizes.append(len(numbers))
        plain(table, numbers, columns)

    monkeypatch.setattr(RecordTable, "append_columns", noted)
    return sizes


@pytest.mark.parametrize("seed", range(24))
def test_reading_by_column_is_reading_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: list[int], seed: int
) -> None:
    draw = random.Random(seed)
    path = tmp_path / "x.log"
    path.write_text(composed(draw), encoding="utf-8", newline="")
    monkeypatch.setattr(lines, "CHUNK_BYTES", draw.choice((2**19, 5000 + draw.randrange(3000))))
    monkeypatch.setattr(alike_lines, "MIN_ALIKE_LINES", LINE_BY_LINE)
    plain = everything(read_log(path))
    assert not small
    monkeypatch.setattr(alike_lines, "MIN_ALIKE_LINES", 2)
    monkeypatch.setattr(alike_lines, "MAX_ALIKE_LINES", draw.choice((13, 40)))
    monkeypatch.setattr(alike_lines, "MAX_ALIKE_SHAPES", draw.choice((1, 3, 64)))
    assert everything(read_log(path)) == plain
    assert small


def test_a_chunk_may_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: list[int]) -> None:
    draw = random.Random(1)
    path = tmp_path / "x.log"
    path.write_text("\n".join(line(step, draw, norm="0.500") for step in range(1, 13)))
    monkeypatch.setattr(alike_lines, "MIN_ALIKE_LINES", LINE_BY_LINE)
    plain = everything(read_log(path))
    monkeypatch.setattr(alike_lines, "MIN_ALIKE_LINES", 2)
    for chunk_bytes in range(1400, 1850, 5):
        monkeypatch.setattr(lines, "CHUNK_BYTES", chunk_bytes)
        assert everything(read_log(path)) == plain, chunk_bytes
    assert len(small) > 60


def test_nearly_all_of_a_plain_log_is_read_by_column(
    tmp_path: Path, small: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alike_lines, "MAX_ALIKE_LINES", 512)
    draw = random.Random(1)
    path = tmp_path / "x.log"
    path.write_text("".join(line(step, draw, norm="0.500") + "\n" for step in range(1, 2001)))
    assert len(read_log(path).records) == 2000
    assert sum(small) > 1900


@pytest.mark.parametrize("form", ["{:.3f}", "-{:.1f}", "{:.6E}", "{:.0f}.", "{:.0f}", "+{:.2e}", "{:.10E}"])
@pytest.mark.parametrize("power", [0, -3])
def test_decimals_are_those_of_float(form: str, power: int) -> None:
    draw = random.Random(3)
    values = [
        form.format(draw.uniform(10, 99) * (10 ** -draw.randint(2, 7) if "e" in form.lower() else 1))
        for _ in range(500)
    ]
    width = len(values[0])
    values = [value for value in values if len(value) == width and "e+" not in value.lower()[1:]]
    found = decimals(texts(*values), power)
    assert found is not None
    if "e" in form.lower():
        expected = [
            float(value[: value.lower().index("e")] + f"e{int(value.lower().split('e')[1]) + power}")
            for value in values
        ]
    else:
        expected = [float(f"{value}e{power}") for value in values]
    assert len(values) > 300
    assert found.tolist() == expected


@pytest.mark.parametrize("value", ["nan", "1.5e-30", "1234567890.123456", "1.2.3", ".5", "1,5"])
def test_numbers_that_take_a_closer_look_are_left_to_it(value: str) -> None:
    assert decimals(texts(value, value), 0) is None


def test_integers_are_those_of_int() -> None:
    for values in (["007", "120"], ["-5", "-0"], ["+1", "+9"], ["9" * 15, "1" * 15]):
        found = integers(texts(*values))
        assert found is not None
        assert found.tolist() == [int(value) for value in values]
    assert integers(texts("1.5")) is None
    assert integers(texts("1" * 16)) is None


def test_columns_of_a_plan() -> None:
    plan = LinePlan(
        [
            Place("iteration", 0, 2, int),
            Place("loss", 3, 6, float),
            Place("rate", 3, 6, float_or_none),
            Place("time", 3, 6, seconds_of_ms),
            Place("stamp", 7, 12, str),
        ],
        {"norm": None},
    )
    columns = plan.columns(texts("12 2.5 03:04", "13 0.1 23:59"))
    assert columns is not None
    rows = {name: values.tolist() if isinstance(values, np.ndarray) else values for name, values in columns.items()}
    assert rows == {
        "iteration": [12, 13],
        "loss": [2.5, 0.1],
        "rate": [2.5, 0.1],
        "time": [0.0025, 0.0001],
        "stamp": ["03:04", "23:59"],
        "norm": None,
    }
    # A rounded zero is missing, which a column of floats cannot tell.
    assert plan.columns(texts("12 2.5 03:04", "13 0.0 23:59")) is None


def test_rows_by_column_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_table, "NUM_NEW_ROWS", 4)
    by_row, by_column = RecordTable(), RecordTable()
    draw = random.Random(5)
    for start in range(0, 300, 10):
        length = draw.randint(1, 10)
        numbers = np.arange(start, start + length)
        rows = [
            {"step": start + place, "loss": place / 7, "stamp": f"day {place % 3}", "norm": None, "flag": True, "tp": 4}
            for place in range(length)
        ]
        if draw.random() < 0.3:
            rows = [{"other": 1, **row} for row in rows]
            for number, row in zip(numbers.tolist(), rows, strict=True):
                by_column.append(number, dict(row))
        else:
            columns: dict[str, Any] = {
                "step": np.array([row["step"] for row in rows]),
                "loss": np.array([row["loss"] for row in rows]),
                "stamp": [row["stamp"] for row in rows],
            }
            by_column.append_columns(numbers, {**columns, "norm": None, "flag": True, "tp": 4})
        for number, row in zip(numbers.tolist(), rows, strict=True):
            by_row.append(number, dict(row))
        if draw.random() < 0.3:
            for table in (by_row, by_column):
                changed = table.new_row(len(table) - 2)
                assert changed is not None
                changed["late"] = 0.5
    assert repr(list(by_column)) == repr(list(by_row))
    assert list(by_column.line_numbers) == list(by_row.line_numbers)
    assert by_column.names == by_row.names
    for name in by_row.names:
        np.testing.assert_array_equal(by_column.numbers(name), by_row.numbers(name))
        assert by_column.has(name).tolist() == by_row.has(name).tolist()
