"""Every sample gives its values, whatever launcher, terminal or system wrote it, and no piece of it gives others."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain.analysis.logs.events import END_REASONS, FIELDS, TRAITS, FactKind
from hpctrain.analysis.logs.reading import read_log
from hpctrain.errors import RecordError
from tests.analysis.logs.sample_files import NO_VALUES, REPOSITORY, SAMPLES, differences, log_json, log_of, name_of

all_samples = pytest.mark.parametrize("sample", SAMPLES, ids=name_of)


def _refuse(name: str) -> object:
    raise AssertionError(f"{name} is no JSON")


@all_samples
def test_a_sample_gives_its_values(sample: Path) -> None:
    told = json.loads(sample.read_text(encoding="utf-8"))
    expected = {key: value for key, value in told["expected"].items() if key not in NO_VALUES}
    document = json.loads(log_json(read_log(log_of(sample))), parse_constant=_refuse)
    assert list(differences(expected, document, tolerances=told["expected"].get("tolerance"))) == []
    assert set(told["expected"].get("flags", ())) <= set(document["flags"])
    # «composed» says who wrote that sample, not which system did.
    assert document["system"] == told["system"] or told["system"] == "composed"
    assert document["encoding"] == told["encoding"]


@all_samples
def test_a_sample_has_no_words_of_its_own_and_no_damage_but_what_it_tells(sample: Path) -> None:
    """A defect of a format would show as a damaged line."""
    reading = read_log(log_of(sample))
    expected = json.loads(sample.read_text(encoding="utf-8"))["expected"]
    assert reading.damaged_lines == expected.get("damaged_lines", 0)
    assert set(reading.records.names) <= set(FIELDS)
    assert reading.traits <= set(TRAITS)
    assert {row["reason"] for row in reading.fact_rows("end")} <= set(END_REASONS)


def by_line(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda data: b"\n".join(change(line) for line in data.split(b"\n"))


def with_colours(line: bytes) -> bytes:
    """As a logger with colours writes it: around the line and around each value."""
    return (
        b"\x1b[32m" + line.replace(b": ", b":\x1b[1m ").replace(b"|", b"\x1b[0m|") + b"\x1b[0m\x1b[K" if line else line
    )


NUM_CUTS = 4
"""Of each file; the places are drawn by its name."""

VARIANTS: dict[str, Callable[[bytes], bytes]] = {
    "crlf": lambda data: data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
    "srun-l": by_line(lambda line: b" 3: " + line if line else line),
    "colours": by_line(with_colours),
    "byte-order-mark": lambda data: b"\xef\xbb\xbf" + data,
}
KINDS: tuple[FactKind, ...] = ("bar", "microstep", "comm_row", "validation")
OF_THE_LINE = {"rank_label", "rank"}
"""A label that is put before the lines changes these; nothing else."""


def told(path: Path, drop: set[str] = OF_THE_LINE) -> list[list[dict[str, object]]]:
    """Records, and what stands in for them where a trainer prints none."""
    reading = read_log(path)
    tables = [reading.fact_rows(kind) for kind in KINDS]
    rows = [list(reading.records), list(reading.incomplete_records), *map(list, tables)]
    return [[{key: value for key, value in row.items() if key not in drop} for row in kind] for kind in rows]


@pytest.mark.parametrize("sample", [path for path in SAMPLES if "utf_16" not in path.name], ids=name_of)
def test_who_carried_the_lines_changes_nothing(sample: Path, tmp_path: Path) -> None:
    path = log_of(sample)
    data, rows = path.read_bytes(), told(path)
    for variant, change in VARIANTS.items():
        changed = tmp_path / path.name
        changed.write_bytes(change(data))
        assert told(changed) == rows, variant


def values_of(path: Path) -> dict[str, set[object]]:
    """All values of each field in records and in what is left of records."""
    values: dict[str, set[object]] = {}
    try:
        kinds = told(path, drop={"segment", "attempt", "rank_label", "overflow_line_before"})[:2]
    except RecordError:
        return {}  # Too little is left to know a system by.
    for kind in kinds:
        for row in kind:
            for name, value in row.items():
                values.setdefault(name, set()).add(value)
    return values


@all_samples
def test_a_cut_line_adds_no_value_that_the_whole_file_has_not(sample: Path, tmp_path: Path) -> None:
    path = log_of(sample)
    data, whole = path.read_bytes(), values_of(path)
    draw = random.Random(path.name)
    cut = tmp_path / path.name
    for end in draw.sample(range(1, len(data)), min(NUM_CUTS, len(data) - 1)):
        cut.write_bytes(data[: max(data.rfind(b"\n", 0, end), data.rfind(b"\r", 0, end)) + 1] or b"\n")
        before = values_of(cut)
        cut.write_bytes(data[:end])
        for name, values in values_of(cut).items():
            known = whole.get(name, set()) | before.get(name, set()) | {None}
            assert values <= known, f"{path.name}: first {end} bytes: {name}"


@all_samples
def test_random_bytes_stop_nothing(sample: Path, tmp_path: Path) -> None:
    path = log_of(sample)
    draw = random.Random(path.name)
    data = bytearray(path.read_bytes())
    for place in sorted(draw.sample(range(len(data)), min(12, len(data))), reverse=True):
        data[place:place] = draw.randbytes(draw.randrange(1, 20))
    (tmp_path / path.name).write_bytes(data)
    try:
        reading = read_log(tmp_path / path.name)
    except RecordError as error:
        assert "none of a known system" in str(error)
    else:
        assert json.loads(log_json(reading))["num_lines"] == reading.num_lines > 0


NOISE = {
    "readme": REPOSITORY / "README.md",
    "yaml": REPOSITORY / "conf" / "config.yaml",
    "python": Path(__file__),
    "changelog": REPOSITORY / "CHANGELOG.md",
}


@pytest.mark.parametrize("name", NOISE)
def test_what_is_no_log_gives_no_record(name: str, tmp_path: Path) -> None:
    try:
        reading = read_log(NOISE[name])
    except RecordError as error:
        assert "none of a known system; known: bigscience, deepspeed, " in str(error)
        return
    assert len(reading.records) == len(reading.incomplete_records) == 0


@pytest.mark.parametrize(
    "text",
    [
        'Traceback (most recent call last):\n  File "train.py", line 3, in step\n    backward()\nRuntimeError: iteration 5\n',
        "node01:57932:58124 [0] NCCL INFO Channel 01 : 5[88000] -> 7[88000] [send] via NET/IB/3\n" * 50,
        "epoch: 3\nsteps: 100\nloss: mse\nlr: 0.1\n" * 10,
        "saving checkpoint at iteration 5 to /x\n[2024-01-01 10:00:00] some chatter | iteration noise\nTP=4/PP=2/MBS=1\n",
    ],
    ids=["traceback", "nccl", "configuration", "words"],
)
def test_noise_gives_no_record(text: str, tmp_path: Path) -> None:
    path = tmp_path / "noise.log"
    path.write_text(text)
    try:
        reading = read_log(path)
    except RecordError:
        return
    assert len(reading.records) == len(reading.incomplete_records) == 0
