"""Lines out of bytes: encodings, labels, damage, pieces at the borders of chunks."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from hpctrain.analysis.logs import lines
from hpctrain.analysis.logs.events import Line
from hpctrain.analysis.logs.lines import LineScanner
from hpctrain.analysis.logs.process_labels import split_label

MARKERS = (("mark",), ("other 1", "mark"))


def scan(path: Path, follow_after: str = "nothing") -> tuple[list[Line], LineScanner]:
    """All lines with a marker; behind one with ``follow_after`` also the next one."""
    scanner = LineScanner(path, MARKERS)
    found = []
    for line, _ in scanner:
        found.append(line)
        scanner.follow = follow_after in line.text
    return found, scanner


def texts(found: list[Line]) -> list[str]:
    return [line.text for line in found]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.log"


def test_only_lines_with_a_marker_come_with_their_numbers(file: Path) -> None:
    file.write_bytes(b"a\nb mark 1\nc\n\nother 1\nmark")
    found, scanner = scan(file)
    assert [(line.number, line.text, line.whole) for line in found] == [
        (2, "b mark 1", True),
        (5, "other 1", True),
        (6, "mark", False),
    ]
    assert scanner.num_lines == 6


def test_each_line_comes_with_the_formats_that_want_it(file: Path) -> None:
    file.write_bytes(b"mark\nother 7\nno\n")
    # Digits are not looked at: a line too many is shown, never one too few.
    assert [wanted for _, wanted in LineScanner(file, MARKERS)] == [(0, 1)]
    file.write_bytes(b"mark\nother 1\nno\n")
    assert [wanted for _, wanted in LineScanner(file, MARKERS)] == [(0, 1), (1,)]


def test_a_follower_sees_the_next_line_even_in_the_next_chunk(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 8)
    file.write_bytes(b"a mark go\nnext\nlast\n")
    assert texts(scan(file, follow_after="go")[0]) == ["a mark go", "next"]


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 64])
def test_the_size_of_chunks_changes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    file.write_bytes("mark ä\r\nno\rmark b\rmark c\n\n12: mark d\r\nmark e".encode())
    whole = scan(file)[0]
    monkeypatch.setattr(lines, "CHUNK_BYTES", chunk_bytes)
    assert scan(file)[0] == whole
    assert texts(whole) == ["mark ä", "mark b", "mark c", "mark d", "mark e"]
    assert [line.number for line in whole] == [1, 2, 2, 4, 5]


@pytest.mark.parametrize(
    ("data", "encoding", "damaged"),
    [
        ("mark ä".encode(), "utf-8", 0),
        (b"\xef\xbb\xbfmark \xc3\xa4", "utf-8", 0),
        ("﻿mark ä".encode("utf-16-le"), "utf-16-le", 0),
        ("﻿mark ä".encode("utf-16-be"), "utf-16-be", 0),
        ("mark ä and some more words\n".encode("utf-16-le"), "utf-16-le", 0),
        ("mark ä".encode("latin-1"), "latin-1", 0),
        ("Lauf für ä\nmark ä".encode() + b"\xff\xfe\n", "utf-8", 1),
    ],
    ids=["utf-8", "with-mark", "utf-16-le", "utf-16-be", "utf-16-without-mark", "latin-1", "a-bad-byte"],
)
def test_encodings_are_told_and_none_stops(file: Path, data: bytes, encoding: str, damaged: int) -> None:
    file.write_bytes(data)
    found, scanner = scan(file)
    assert len(found) == 1 and found[0].text.startswith("mark ")
    assert (scanner.encoding, scanner.damaged_lines) == (encoding, damaged)
    assert ("non_utf8" in scanner.traits) == (encoding != "utf-8" or damaged > 0)


def test_an_endless_line_keeps_its_start_and_counts_as_damaged(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(lines, "CHUNK_BYTES", 700)
    file.write_bytes(b"mark 1\nmark 2 " + b"x" * 9_000 + b" mark 3\nmark 4\nmark 5 " + b"y" * 5_000)
    found, scanner = scan(file)
    assert [(line.number, line.text[:6], len(line.text), line.whole) for line in found] == [
        (1, "mark 1", 6, True),
        (2, "mark 2", 1000, False),
        (3, "mark 4", 6, True),
        (4, "mark 5", 1000, False),
    ]
    assert (scanner.damaged_lines, scanner.num_lines) == (2, 4)


def test_fifty_megabytes_in_one_line_take_no_time(file: Path) -> None:
    file.write_bytes(b"mark 1\n" + b"x" * 50_000_000 + b"\nmark 2\n")
    found, scanner = scan(file)
    assert texts(found) == ["mark 1", "mark 2"]
    assert (scanner.damaged_lines, scanner.num_lines) == (1, 3)


def test_a_number_without_an_end_is_damage(file: Path) -> None:
    file.write_bytes(b"mark " + b"7" * 5000 + b" x\nmark " + b"7" * 200 + b"\n")
    found, scanner = scan(file)
    assert texts(found) == ["mark  x", "mark " + "7" * 200]
    assert scanner.damaged_lines == 1


def test_nul_bytes_are_dropped_and_counted_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 512)
    file.write_bytes(b"mark 1\nma" + b"\0" * 3000 + b"rk 2\nmark 3\n")
    found, scanner = scan(file)
    assert texts(found) == ["mark 1", "mark 2", "mark 3"]
    assert scanner.damaged_lines == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\x1b[32mmark\x1b[0m 1\x1b[K\n",
        b"^[[1;31mmark^[[0m 1\n",
        b"[36mmark[0m 1\n",
        b"\x1b]0;title\x07ma\x1b[0mrk 1\n",
    ],
    ids=["escape", "caret", "lost-escape", "title"],
)
def test_escape_sequences_are_dropped(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    found, scanner = scan(file)
    assert texts(found) == ["mark 1"]
    assert scanner.traits == {"ansi"}


def test_packed_logs_are_read_and_a_cut_one_as_far_as_it_goes(tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(200_000).replace(b"\n", b"")
    data = gzip.compress(b"mark 1\n" + noise + b"\nmark 2\n")
    path = tmp_path / "x.log.gz"
    path.write_bytes(data)
    assert texts(scan(path)[0]) == ["mark 1", "mark 2"]
    path.write_bytes(data + gzip.compress(b"mark 3\n"))
    assert texts(scan(path)[0]) == ["mark 1", "mark 2", "mark 3"]
    for broken in (data[:100_000], data[:-500]):
        path.write_bytes(broken)
        found, scanner = scan(path)
        assert texts(found) == ["mark 1"]
        assert scanner.damaged_lines > 1  # The noise is no UTF-8, and the end is missing.


def test_bars_that_the_next_one_overwrites_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    bar = "\r 5%|▌ | {}/100 [00:01<00:10,  1.1it/s]"
    path.write_text(
        "".join(bar.format(step) for step in range(50))
        + "mark\n"
        + bar.format(50)
        + bar.format(51).replace("100", "90"),
        encoding="utf-8",
        newline="",
    )
    found = [line.text for line, _ in LineScanner(path, (("it/s]",),))]
    # The one that text is glued to is not overwritten; another total is another loop.
    assert [text.split("| ")[1].split(" ")[0] for text in found] == ["48/100", "49/100", "50/100", "51/90"]


@pytest.mark.parametrize(
    ("text", "label", "rest"),
    [
        ("[default7]: iteration", "default7", " iteration"),
        ("[rank0]:[titan] 2026", "rank0", "[titan] 2026"),
        (" 3: loss", "3", "loss"),
        ("12:  iteration", "12", " iteration"),
        ("0: ", "0", ""),
        ("12: [default7]:x", "default7", "x"),
        ("[1,0]<stdout>:x", "1,0", "x"),
        ("[prterun-a-1@1,7]<stderr>: x", "prterun-a-1@1,7", " x"),
        ("slurm_procid 0 : x", "slurm_procid 0", "x"),
        ("node-3: x", "node-3", "x"),
        ("10.0.0.12: x", "10.0.0.12", "x"),
        ("i.train/0 [default0]:x", "default0", "x"),
        ("[pod/train-worker-0/pytorch] x", "pod/train-worker-0/pytorch", "x"),
        ("(RayTrainWorker pid=77, ip=10.0.0.1) x", "RayTrainWorker pid=77, ip=10.0.0.1", "x"),
        ("12:30:01 x", "", "12:30:01 x"),
        ("12.5: x", "", "12.5: x"),
        ("[2024-05-01 10:00:00] x", "", "[2024-05-01 10:00:00] x"),
        ("[batch=1/10]: x", "", "[batch=1/10]: x"),
        ("[Rank 0] step=2", "", "[Rank 0] step=2"),
        ("step10: 5", "", "step10: 5"),
        ("iter1: 5", "", "iter1: 5"),
        ("loss: 5", "", "loss: 5"),
        ("node01:57932:58124 [0] NCCL", "", "node01:57932:58124 [0] NCCL"),
        ("1234567: x", "", "1234567: x"),
    ],
)
def test_labels_are_told_from_data(text: str, label: str, rest: str) -> None:
    assert split_label(text)[:2] == (label, rest)
