"""The fast reader of ``steps.jsonl`` against the strict one, a table of nasty lines, and files damaged at random."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain.analysis import step_files
from hpctrain.analysis.step_files import StepColumns, read_steps
from hpctrain.record.lines import MAX_LINE_BYTES, parse_step
from hpctrain.record.reader import StepsFile
from hpctrain.record.schema import STEP_FIELDS_SINCE_2, StepRecord
from hpctrain.record.writer import StepWriter

GOOD = StepRecord(2, 1, 1, 1.7e9, 2.5, 1e-4, 0.75, False, 0.5, 0.01, 1024, 2**30, 0.125, 0.25, 0.0625, 65536.0)
LINE = json.dumps(dataclasses.asdict(GOOD)).encode()
OLD = dataclasses.replace(GOOD, schema_version=1, **dict.fromkeys(STEP_FIELDS_SINCE_2))  # type: ignore[arg-type]
OLD_LINE = json.dumps({name: value for name, value in vars(OLD).items() if name not in STEP_FIELDS_SINCE_2}).encode()
NAMES = [field.name for field in dataclasses.fields(StepRecord) if field.name != "schema_version"]


def line(**texts: str) -> bytes:
    """A whole record with the JSON text of some of its values replaced."""
    values = {name: json.dumps(value) for name, value in dataclasses.asdict(GOOD).items()} | texts
    return ("{" + ", ".join(f'"{name}": {text}' for name, text in values.items()) + "}").encode()


def strict(path: Path) -> tuple[list[StepRecord], int]:
    file = StepsFile(path)
    return list(file.new_records()), file.damaged_lines


def assert_same(found: StepColumns, records: list[StepRecord], damaged_lines: int) -> None:
    assert found.damaged_lines == damaged_lines
    assert found.num_lines == len(records) + damaged_lines
    assert list(found.columns) == NAMES
    for name, column in found.columns.items():
        expected = np.array([getattr(record, name) for record in records], dtype=column.dtype)
        np.testing.assert_array_equal(column, expected, err_msg=name)


WHOLE: dict[str, bytes] = {
    "as written": LINE,
    "no loss": line(loss="null", grad_norm="null"),
    "NaN": line(loss="NaN", grad_norm="-Infinity"),
    "whole numbers for floats": line(loss="3", time_s="1700000000", step_time_s="-0"),
    "exponents": line(loss="1e5", learning_rate="1E-05", grad_norm="-2.5e+3"),
    "the smallest and the largest": line(
        loss="5e-324", grad_norm="1.7976931348623157e308", tokens="9223372036854775807"
    ),
    "many digits": line(loss="0.1234567890123456789", time_s="123456789012345678901234567890"),
    "too large for a float": line(loss="1e400"),
    "skipped": line(skipped="true"),
    "blanks": LINE.replace(b": ", b" :\t").replace(b", ", b" , ") + b" \r",
    "another order": json.dumps(dict(reversed(dataclasses.asdict(GOOD).items()))).encode(),
    "an escaped key": LINE.replace(b'"loss"', b'"\\u006coss"'),
    "no blanks": LINE.replace(b" ", b""),
    "no parts": line(forward_time_s="null", backward_time_s="null", optimizer_time_s="null", loss_scale="null"),
    "an older version": OLD_LINE,
}
DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "blank": b"  ",
    "null": b"null",
    "list": b"[]",
    "list around": b"[" + LINE + b"]",
    "number": b"1",
    "half": LINE[:60],
    "second half": LINE[60:],
    "glued": LINE + LINE,
    "text behind": LINE + b" x",
    "comma behind": LINE[:-1] + b",}",
    "bad byte in a key": LINE.replace(b"loss", b"lo\xe9s"),
    "bad byte in a value": line(loss="2.5").replace(b"2.5", b"2.\xe9"),
    "byte order mark": b"\xef\xbb\xbf" + LINE,
    "UTF-16": LINE.decode().encode("utf-16-le").replace(b"\n", b""),
    "zero byte": LINE + b"\0",
    "zero byte in a number": line(tokens="10\x0024"),
    "single quotes": LINE.replace(b'"', b"'"),
    "comment": LINE + b"// x",
    "too long": line(loss="2." + "5" * MAX_LINE_BYTES),
    "deep": b"[" * 100_000,
    "another version": line(schema_version="3"),
    "an older version with the fields of a newer one": line(schema_version="1"),
    "a newer version without its fields": OLD_LINE.replace(b'"schema_version": 1', b'"schema_version": 2'),
    "version as float": line(schema_version="1.0"),
    "version as text": line(schema_version='"1"'),
    "version as flag": line(schema_version="true"),
    "missing key": LINE.replace(b', "tokens": 1024', b""),
    "missing key that may be null": LINE.replace(b', "loss": 2.5', b""),
    "key misspelt": LINE.replace(b'"loss"', b'"lost"'),
    "key in capitals": LINE.replace(b'"loss"', b'"LOSS"'),
    "key with a zero byte": LINE.replace(b'"loss"', b'"loss\\u0000"'),
    "unknown key": LINE[:-1] + b', "new": 1}',
    "unknown key for a known one": LINE.replace(b'"tokens"', b'"tokenz"'),
    "key twice": LINE[:-1] + b', "tokens": 1024}',
    "key twice for another": LINE.replace(b'"peak_memory_bytes"', b'"tokens"'),
    "whole number as float": line(step="1.0"),
    "whole number with exponent": line(tokens="1e3"),
    "whole number as text": line(step='"1"'),
    "whole number as flag": line(step="true"),
    "whole number as null": line(step="null"),
    "whole number as list": line(step="[1]"),
    "beyond 64 bits": line(tokens="9223372036854775808"),
    "far beyond 64 bits": line(tokens="1" * 5000),
    "negative": line(step="-1"),
    "float as text": line(loss='"2.5"'),
    "float as flag": line(loss="false"),
    "float as object": line(loss="{}"),
    "float that must not be null": line(step_time_s="null"),
    "float with 400 digits": line(loss="1" * 400),
    "flag as number": line(skipped="0"),
    "flag as text": line(skipped='"false"'),
    "flag as null": line(skipped="null"),
    "flag in capitals": line(skipped="False"),
    "zero in front": line(tokens="01024"),
    "zero in front of a negative": line(loss="-02.5"),
    "zero in front of a fraction": line(loss="02.5"),
    "plus": line(loss="+2.5"),
    "no digit before the point": line(loss=".5"),
    "no digit before the point, negative": line(loss="-.5"),
    "no digit after the point": line(loss="2."),
    "no digit between point and exponent": line(loss="2.e5"),
    "no digit in the exponent": line(loss="2e"),
    "two points": line(loss="2.5.1"),
    "two signs": line(loss="--2"),
    "sign only": line(loss="-"),
    "base 16": line(tokens="0x10"),
    "underscore": line(tokens="1_024"),
    "no value": line(loss=""),
    "nan": line(loss="nan"),
    "inf": line(loss="inf"),
    "Inf": line(loss="Inf"),
    "nul": line(loss="nul"),
    "nulll": line(loss="nulll"),
    "Arabic digits": line(tokens="١٢"),
    "comma as point": line(loss="2,5"),
    "colon in a number": line(loss="2:5"),
    "carriage return inside": LINE.replace(b"2.5", b"2\r.5"),
}


@pytest.mark.parametrize("text", [*WHOLE.values(), *DAMAGED.values()], ids=[*WHOLE, *DAMAGED])
def test_both_readers_judge_every_line_alike(tmp_path: Path, text: bytes) -> None:
    """Alone, first, between others and last."""
    for before, after in ((0, 0), (0, 2), (2, 2), (2, 0)):
        path = tmp_path / f"{before}-{after}.jsonl"
        path.write_bytes(b"".join(part + b"\n" for part in [*[LINE] * before, text, *[LINE] * after]))
        records, damaged_lines = strict(path)
        assert damaged_lines == (text in DAMAGED.values())
        found = read_steps(path)
        assert_same(found, records, damaged_lines)
        assert found.first_damage.startswith(f"line {before + 1}: ") == bool(damaged_lines)


@pytest.mark.parametrize("name", ["as written", "no loss", "exponents", "skipped", "the smallest and the largest"])
def test_what_the_writer_writes_is_read_fast(name: str) -> None:
    """Else all of this would be as slow as the strict reader, and nobody would notice."""
    assert step_files._read_columns(WHOLE[name] + b"\n" + LINE + b"\n") is not None


def test_every_float_comes_back_as_it_was(tmp_path: Path) -> None:
    """Numbers of every size and length, written by the project's writer, to the last bit."""
    noise = random.Random(11)
    floats = [noise.uniform(-1, 1) * 10.0 ** noise.randint(-300, 300) for _ in range(3000)]
    records = [
        dataclasses.replace(GOOD, step=step, loss=loss, learning_rate=rate, tokens=noise.randrange(2**63))
        for step, (loss, rate) in enumerate(zip(floats, reversed(floats), strict=True))
    ]
    StepWriter(tmp_path / "steps.jsonl").append(records)
    assert step_files._read_columns((tmp_path / "steps.jsonl").read_bytes()) is not None
    assert_same(read_steps(tmp_path / "steps.jsonl"), records, 0)


def test_lines_of_the_version_before_are_read_fast_and_go_on_in_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes((OLD_LINE + b"\n") * 3)
    assert step_files._read_columns(path.read_bytes()) is not None
    assert_same(read_steps(path), [OLD] * 3, 0)
    StepWriter(path).append([GOOD, GOOD])
    assert_same(read_steps(path), [OLD] * 3 + [GOOD] * 2, 0)


TOKENS = [
    b"null",
    b"true",
    b"-",
    b"1e9",
    b"e",
    b".",
    b"0",
    b"\r",
    b"nan",
    b"\xff",
    b"1 2",
    b"0x1",
    b"+",
    b'"',
    b"{",
    b"}",
    b"\n",
    b", ",
    b": ",
]


@pytest.mark.parametrize("seed", range(3))
def test_files_damaged_at_random(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes of a file cut, replaced or put in: blocks of four lines, so that fast and slow ones stand side by side."""
    noise = random.Random(seed)
    path = tmp_path / "steps.jsonl"
    records = [dataclasses.replace(GOOD, step=step, loss=noise.random() if step % 3 else None) for step in range(12)]
    whole = b"".join(json.dumps(dataclasses.asdict(record)).encode() + b"\n" for record in records)
    monkeypatch.setattr(step_files, "BLOCK_BYTES", 4 * len(LINE))
    num_damaged = 0
    for _ in range(150):
        text = bytearray(whole)
        for _ in range(noise.randint(1, 3)):
            start = noise.randrange(len(text))
            end = start + noise.choice([0, 0, 1, 2, 5, 20, 300])
            few = bytes(noise.randrange(256) for _ in range(noise.randint(0, 2)))
            text[start:end] = noise.choice([few, noise.choice(TOKENS)])
        path.write_bytes(text)
        expected, damaged_lines = strict(path)
        num_damaged += damaged_lines
        assert_same(read_steps(path), expected, damaged_lines)
    assert num_damaged > 100


def test_a_number_that_is_read_fast_is_one_for_the_strict_reader() -> None:
    """Short texts of the signs that numbers are made of, in the place of a value."""
    noise = random.Random(3)
    num_fast = 0
    for _ in range(1500):
        name = noise.choice(["loss", "learning_rate", "tokens", "skipped"])
        text = "".join(noise.choices("0019.eE+-xnulls ", k=noise.randint(1, 5)))
        columns = step_files._read_columns(line(**{name: text}) + b"\n")
        if columns is not None:
            num_fast += 1
            assert columns[name].tolist() == [getattr(parse_step(line(**{name: text})), name)]
    assert num_fast > 60


@pytest.mark.parametrize("block_bytes", [1, 7, 300, 1000, 1 << 20])
def test_blocks_of_any_size_give_the_same(tmp_path: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(LINE + b"\n\n" + b"x" * 900 + b"\n" + LINE + b"\n" + LINE[:-1] + b"\n" + LINE + b"\n" + LINE)
    monkeypatch.setattr(step_files, "BLOCK_BYTES", block_bytes)
    found = read_steps(path)
    assert_same(found, [GOOD, GOOD, GOOD], 3)
    assert found.first_damage.startswith("line 2: Expecting value")


def test_a_line_of_fifty_megabytes_costs_one_line_and_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    with path.open("wb") as stream:
        stream.write(LINE + b"\n")
        for _ in range(50):
            stream.write(b"x" * 1_000_000)
        stream.write(b"\n" + LINE + b"\n")
    found = read_steps(path)
    assert_same(found, [GOOD, GOOD], 1)
    assert found.first_damage == "line 2: more than 1,048,576 bytes in one line"


def test_a_long_line_that_is_still_being_written_is_no_line(tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_bytes(LINE + b"\n" + b"x" * 40_000_000)
    assert_same(read_steps(tmp_path / "steps.jsonl"), [GOOD], 0)


def test_a_file_that_is_not_there_has_no_steps(tmp_path: Path) -> None:
    found = read_steps(tmp_path / "none")
    assert (found.num_lines, found.damaged_lines, found.first_damage) == (0, 0, "")
    assert {name: len(column) for name, column in found.columns.items()} == dict.fromkeys(NAMES, 0)


def test_a_folder_in_the_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_steps(tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("another version", "schema_version=3, this hpctrain reads 1 and 2"),
        ("version as float", "schema_version=1.0, this hpctrain reads 1 and 2"),
        ("list", "schema_version=None, this hpctrain reads 1 and 2"),
        (
            "a newer version without its fields",
            "missing or unknown: backward_time_s, forward_time_s, loss_scale, optimizer_time_s",
        ),
        ("missing key", "missing or unknown: tokens"),
        ("key misspelt", "missing or unknown: loss, lost"),
        ("key twice", "a key stands twice"),
        ("beyond 64 bits", "tokens=9223372036854775808: out of range or of the wrong type"),
        ("whole number as text", "step='1': out of range or of the wrong type"),
        ("float with 400 digits", "loss: a number of 400 digits"),
        ("too long", f"{len(DAMAGED['too long']):,} bytes in one line, at most 1,048,576"),
        ("deep", "brackets in brackets without end"),
    ],
)
def test_what_is_wrong_with_a_line_is_told(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        parse_step(DAMAGED[text])


def test_python_s_words_for_numbers_are_numbers() -> None:
    record: Any = parse_step(WHOLE["NaN"])
    assert math.isnan(record.loss)
    assert record.grad_norm == -math.inf
