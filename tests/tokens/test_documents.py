"""Documents from files: the same however the files are cut, and what is wrong named with its place."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpctrain.errors import ConfigError
from hpctrain.tokens import documents
from hpctrain.tokens.documents import Reading, piece_end, segment_batches
from hpctrain.tokens.inputs import InputError, Kind, check_unchanged, find_inputs, plan_units
from hpctrain.tokens.tokenizer import JsonEncoder, train_bpe
from tests.tokens.test_tokenizer import text_of

TEXTS = ["one\ntwo", "", "drei\u2028\x85 \u00fc\u4e2d", "\n\n", "x" * 50, "last \U0001f600\r\n"]


def read(
    paths: Sequence[Path],
    *,
    field: str = "text",
    split_at: str | None = None,
    unit_bytes: int = 2**22,
    kind: Kind | None = None,
) -> tuple[list[str], int, int]:
    """Documents, joined from their pieces; how many were empty; bytes that were told."""
    files = find_inputs([str(path) for path in paths], kind)
    found: list[str] = []
    num_empty, num_bytes, goes_on = 0, 0, False
    for unit in plan_units(files, split_at, unit_bytes, field):
        assert sum(segment.num_bytes for segment in unit[:-1]) < unit_bytes
        for segment in unit:
            for batch in segment_batches(files[segment.file], segment, Reading(field, split_at)):
                num_empty += batch.num_empty
                num_bytes += batch.num_bytes
                for place, text in enumerate(batch.texts):
                    if goes_on:
                        found[-1] += text
                    else:
                        found.append(text)
                    goes_on = batch.is_open and place == len(batch.texts) - 1
    assert not goes_on
    return found, num_empty, num_bytes


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_zstd(path: Path, content: bytes) -> Path:
    with pa.CompressedOutputStream(str(path), "zstd") as stream:
        stream.write(content)
    return path


@pytest.mark.parametrize("unit_bytes", [1, 7, 40, 2**22])
def test_json_lines_are_the_same_however_they_are_cut(tmp_path: Path, unit_bytes: int) -> None:
    rows: list[Any] = [{"id": number, "text": text, "meta": {"text": "no"}} for number, text in enumerate(TEXTS)]
    path = write_lines(tmp_path / "a.jsonl", [*rows, {"text": None}])
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n\n", 1) + json.dumps({"text": "no line end"}).encode())
    found, num_empty, num_bytes = read([path], unit_bytes=unit_bytes)
    assert found == [*filter(None, TEXTS), "no line end"]
    assert num_empty == 2
    assert num_bytes == path.stat().st_size


@pytest.mark.parametrize("split_at", ["\n", "\n\n", "ab", "aba", "<|endoftext|>"])
def test_text_is_split_as_by_split_however_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split_at: str
) -> None:
    chance = random.Random(split_at)
    pieces = [*split_at, split_at, split_at * 3, "x", "\u4e2d", "a", "b", "\n"]
    text = "".join(chance.choice(pieces) for _ in range(300))
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8", newline="")
    expected = [part for part in text.split(split_at) if part]
    for unit_bytes, read_bytes in ((1, 2**20), (5, 3), (64, 7), (2**22, 1), (2**22, 2**20)):
        monkeypatch.setattr(documents, "_READ_BYTES", read_bytes)
        found, _, num_bytes = read([path], split_at=split_at, unit_bytes=unit_bytes)
        assert found == expected
        assert num_bytes == path.stat().st_size


@pytest.mark.parametrize("unit_bytes", [1, 10, 100, 2**22])
@pytest.mark.parametrize("read_bytes", [1, 7, 2**20])
def test_a_file_of_text_is_one_document_however_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit_bytes: int, read_bytes: int
) -> None:
    monkeypatch.setattr(documents, "PIECE_CHARS", 20)
    monkeypatch.setattr(documents, "_READ_BYTES", read_bytes)
    texts = ["\u4e2d\U0001f600" * 30 + "\n  a\nb\n" + "c " * 40, "", "short", "line\n" * 30]
    paths = []
    for number, text in enumerate(texts):
        paths.append(tmp_path / f"{number}.md")
        paths[-1].write_text(text, encoding="utf-8", newline="")
    found, num_empty, _ = read(paths, unit_bytes=unit_bytes)
    assert (found, num_empty) == ([*filter(None, texts)], 1)


@pytest.mark.parametrize("length", [100, 333, 2000])
def test_a_text_in_pieces_has_the_ids_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, length: int
) -> None:
    text = text_of("heapq.py", "bisect.py")
    encoder = JsonEncoder(train_bpe([text], 500), 500)
    (whole,) = encoder.parts([text])
    monkeypatch.setattr(documents, "PIECE_CHARS", length)
    pieces, start = [], 0
    while start < len(text):
        pieces.append(text[start : piece_end(text, start)])
        start += len(pieces[-1])
    assert max(map(len, pieces)) <= length
    assert len(pieces) >= len(text) / length
    assert [number for part in encoder.parts(pieces) for number in part] == whole


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_compressed_files_are_read_as_they_are(tmp_path: Path, ending: str, kind: str) -> None:
    content = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS) if kind == "jsonl" else "a\n\u00fc\n" * 999
    path = tmp_path / f"a.{'jsonl' if kind == 'jsonl' else 'txt'}{ending}"
    if ending == ".gz":  # two members each, as of `cat a.gz b.gz`
        path.write_bytes(gzip.compress(content[:10].encode()) + gzip.compress(content[10:].encode()))
    else:
        write_zstd(path, content[:10].encode())
        path.write_bytes(path.read_bytes() + write_zstd(tmp_path / "more", content[10:].encode()).read_bytes())
    found, _, num_bytes = read([path], unit_bytes=8)
    assert found == ([text for text in TEXTS if text] if kind == "jsonl" else [content])
    assert num_bytes == path.stat().st_size


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_truncated_compressed_file_is_named(tmp_path: Path, ending: str) -> None:
    content = os.urandom(5000).hex().encode()
    path = tmp_path / f"a.txt{ending}"
    if ending == ".gz":
        path.write_bytes(gzip.compress(content))
    else:
        write_zstd(path, content)
    whole = path.read_bytes()
    for length in (1, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(
            InputError, match=rf"a.txt{ending}, byte [\d,]+ or shortly before: .*it is truncated or damaged"
        ):
            read([path])
    if ending == ".gz":  # of zstd not all programs write checksums
        path.write_bytes(whole[:100] + b"\xff" * 100 + whole[200:])
        with pytest.raises(InputError, match="truncated or damaged"):
            read([path])


@pytest.mark.parametrize(
    "column_type", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_parquet_of_several_row_groups(tmp_path: Path, column_type: pa.DataType) -> None:
    texts: list[str | None] = [*TEXTS, None] * 500
    table = pa.table({"id": list(range(len(texts))), "content": pa.array(texts, pa.string()).cast(column_type)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=700, compression="zstd")
    pq.write_table(table.slice(0, 10), tmp_path / "b.pq")
    for unit_bytes in (1, 2**22):
        found, num_empty, _ = read([tmp_path / "a.parquet", tmp_path / "b.pq"], field="content", unit_bytes=unit_bytes)
        assert found == [text for text in [*texts, *texts[:10]] if text]
        assert num_empty == 2 * 500 + 3


@pytest.mark.parametrize("damage", ["truncated", "page", "no parquet", "empty"])
def test_damaged_parquet_is_named_with_its_row_group(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [os.urandom(50).hex() for _ in range(3000)]})
    pq.write_table(table, path, row_group_size=1000, compression="none", use_dictionary=False, write_page_checksum=True)
    content = path.read_bytes()
    middle = len(content) // 2
    contents = {
        "truncated": content[:-100],
        "page": content[:middle] + b"\0" * 8 + content[middle + 8 :],
        "no parquet": b"text",
        "empty": b"",
    }
    path.write_bytes(contents[damage])
    expected = (
        "a.parquet, row group 1, row 1,000: .*it is damaged" if damage == "page" else "it is no Parquet, or truncated"
    )
    with pytest.raises(InputError, match=expected):
        read([path])


def test_a_row_of_parquet_that_is_not_utf_8(tmp_path: Path) -> None:
    column = pa.array([b"fine", b"ab\xff"] * 2000, pa.binary())
    table = pa.table({"text": pa.Array.from_buffers(pa.string(), len(column), column.buffers())})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1500)
    with pytest.raises(InputError, match=r"a.parquet, row 1: is not UTF-8: byte 2 of the text is 0xff"):
        read([tmp_path / "a.parquet"])


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"content": ["a"]}, "has no column 'text'; --field COLUMN; nearest: content; known: content"),
        ({"text": [1], "body": ["a"]}, "column 'text' is int64, no text; columns of text: body"),
        ({"text": [1]}, "column 'text' is int64, no text; it has no column of text"),
    ],
    ids=["missing", "number", "no text at all"],
)
def test_a_column_that_is_none_of_text(tmp_path: Path, columns: dict[str, Any], expected: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=expected):
        read([tmp_path / "a.parquet"])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "is no JSON: Expecting property name enclosed in double quotes at character 2 (the line has 1)"),
        (
            '{"text": "a"',
            "is no JSON: Expecting ',' delimiter at character 13 (the line has 12); each line must be one object",
        ),
        ('["text"]', "is list, no object"),
        ("3", "is int, no object"),
        ('{"txet": "a"}', "has no field 'text'; --field NAME; nearest: txet; known: txet"),
        ('{"text": 3}', "the field 'text' is int, no text"),
        ('{"text": ["a"]}', "the field 'text' is list, no text"),
        ('{"text": "\\ud800"}', "the field 'text' holds half a character"),
        ("[" * 200_000, "brackets in brackets without end"),
    ],
    ids=["half", "truncated", "list", "number", "field", "value", "values", "surrogate", "deep"],
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: str, expected: str, ending: str) -> None:
    head = "\ufeff" + '{"text": "\u00fc"}\n\n' * 50
    content = (head + line + "\n").encode()
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(gzip.compress(content) if ending else content)
    place = rf"a.jsonl{ending}, line 101 \(byte{' .unpacked.' if ending else ''} {len(head.encode()):,}\): "
    for unit_bytes in (1, 2**22):
        with pytest.raises(InputError, match=place + ".*" + re.escape(expected)):
            read([path], unit_bytes=unit_bytes)


@pytest.mark.parametrize("ending", ["txt", "jsonl"])
@pytest.mark.parametrize("read_bytes", [1, 16, 2**20])
def test_bytes_that_are_no_utf_8_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, read_bytes: int
) -> None:
    monkeypatch.setattr(documents, "_READ_BYTES", read_bytes)
    path = tmp_path / f"a.{ending}"
    head = ('{"text": "\u4e2d"}\n' * 9).encode()
    path.write_bytes(head + b"\xe4\xf6" + head)
    for unit_bytes in (10, 2**22):
        with pytest.raises(InputError, match=rf"a.{ending}, byte {len(head)}: is not UTF-8: 0xe4; convert it"):
            read([path], unit_bytes=unit_bytes)
    path.write_bytes(head + "\u4e2d".encode()[:2])
    with pytest.raises(InputError, match=rf"byte {len(head)}: is not UTF-8: 0xe4 and the file ends in the middle"):
        read([path])


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        ("ab".encode("utf-16"), "it is UTF-16: iconv -f UTF-16"),
        (gzip.compress(b"ab"), "it is compressed: let its name end with .gz"),
        (b"BZh91AY&SY\xff", "it is compressed: unpack it with bunzip2"),
        (b"\xe4", "it is truncated"),
        (b"\xe4\xf6", "convert it: iconv -f LATIN1"),
    ],
    ids=["UTF-16", "gzip", "bzip2", "half a character", "Latin"],
)
def test_what_is_no_text_is_told(tmp_path: Path, content: bytes, advice: str) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(InputError, match=f"is not UTF-8: .*; {advice}"):
        read([tmp_path / "a.txt"])


def test_a_number_of_too_many_digits(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "n": ' + "1" * 5000 + "}\n")
    with pytest.raises(InputError, match=r"a.jsonl, line 1 \(byte 0\): is no JSON that can be read: Exceeds the limit"):
        read([tmp_path / "a.jsonl"])


def test_endings_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "a.TXT.GZ").write_bytes(gzip.compress(b"ab"))
    assert read([tmp_path / "a.TXT.GZ"])[0] == ["ab"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa\xef\xbb\xbf")
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbf")
    assert read([tmp_path / "a.txt", tmp_path / "b.txt"])[:2] == (["a\ufeff"], 1)


def test_inputs_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "same.txt").symlink_to("a.txt")
    (tmp_path / "b.jsonl").write_text("")
    (tmp_path / "c.gz").write_text("")
    (tmp_path / "d.parquet.gz").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    names = ["a.txt", "same.txt", "b.jsonl", "c.gz", "d.parquet.gz", "pipe", "missing.txt", "."]
    with pytest.raises(ConfigError) as caught:
        find_inputs(["-", *(str(tmp_path / name) for name in names)], None)
    for expected in (
        r"FILES=-: standard input cannot be read twice.*; write it to a file first",
        r"same.txt: is the same file as .*a.txt; name it once",
        r"c.gz: has 0 bytes, which is no gzip; it is truncated",
        r"d.parquet.gz: Parquet is compressed inside; unpack it to .*d.parquet",
        r"pipe: is no regular file",
        rf"missing.txt: there is no such file; {tmp_path} is there",
        rf"FILES={tmp_path}.*: is a folder; name its files: {tmp_path}.*/\*",
        r"4 files: are of 3 kinds \(text: .*a.txt; jsonl: .*b.jsonl; parquet: .*\); prepare each kind by itself",
    ):
        assert re.search(expected, str(caught.value)), expected


def test_the_kind_can_be_stated(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "dump", [{"text": "a"}])
    assert read([path], kind="jsonl")[0] == ["a"]
    assert read([path])[0] == ['{"text": "a"}\n']


def test_an_input_that_changes_during_the_work(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("abc")
    (file,) = find_inputs([str(path)], None)
    check_unchanged(file)
    path.write_text("abcd")
    with pytest.raises(InputError, match="was changed during the work: 3 bytes when it began, 4 now"):
        check_unchanged(file)
    path.write_text("")
    (unit,) = plan_units((file,), None, 100, "text")
    with pytest.raises(InputError, match=r"a.txt, byte 0: ends here, it was longer when the work began"):
        list(segment_batches(file, unit[0], Reading("text", None)))
    path.unlink()
    with pytest.raises(InputError, match="No such file or directory; it was there when the work began"):
        check_unchanged(file)
