"""Token files in Megatron's form: read as others write them, written as others read them, and damage named."""

from __future__ import annotations

import io
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpctrain.tokens import indexed
from hpctrain.tokens.header import TYPE_OF_CODE, TokenFileError, read_header, token_prefix
from hpctrain.tokens.indexed import check_ids, check_structure, open_tokens, write_index
from tests.tokens.golden_files import write_golden

DOCUMENTS = [[[5, 6, 7]], [[1], [2, 3]], [[9, 9, 9, 9]]]
"""The second is of two sequences, as of sentences."""


@pytest.mark.parametrize("code", TYPE_OF_CODE, ids=TYPE_OF_CODE.values())
def test_files_of_another_program_are_read(tmp_path: Path, code: int) -> None:
    write_golden(tmp_path / "c.1", DOCUMENTS, code)
    files = open_tokens(tmp_path / "c.1")
    assert files.tokens.tolist() == [5, 6, 7, 1, 2, 3, 9, 9, 9, 9]
    assert files.tokens.dtype == np.dtype(TYPE_OF_CODE[code])
    assert (files.num_documents, files.header.num_sequences, files.num_tokens) == (3, 4, 10)
    assert files.document_offsets().tolist() == [0, 3, 6, 10]
    assert files.manifest is None
    check_structure(files)
    assert check_ids(files, 10) == 9


def test_what_is_written_is_what_struct_writes(tmp_path: Path) -> None:
    _, expected = write_golden(tmp_path / "c", [[[5, 6, 7]], [[1, 2, 3]], [[9]]])
    stream = io.BytesIO()
    write_index(stream, "uint16", np.array([3, 3, 1]))
    assert stream.getvalue() == expected


@pytest.mark.parametrize("chunk", [1, 2, 3, 2**20])
def test_a_document_beyond_the_largest_size_is_several_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(indexed, "MAX_SEQUENCE_TOKENS", 3)
    monkeypatch.setattr(indexed, "_CHUNK", chunk)
    documents = [[[1, 2, 3], [4]], [[5]], [[6, 7, 8], [9, 10, 11]], [[1, 2]]]
    _, expected = write_golden(tmp_path / "c", documents, code=4)
    stream = io.BytesIO()
    write_index(stream, "int32", np.array([4, 1, 6, 2]))
    assert stream.getvalue() == expected
    files = open_tokens(tmp_path / "c")
    check_structure(files)
    assert files.document_offsets().tolist() == [0, 4, 5, 11, 13]


def test_no_tokens_at_all(tmp_path: Path) -> None:
    write_golden(tmp_path / "c", [])
    files = open_tokens(tmp_path / "c")
    check_structure(files)
    assert (files.num_tokens, files.tokens.tolist(), files.document_offsets().tolist()) == (0, [], [0])
    assert check_ids(files, 1) == -1


def test_an_index_cut_anywhere_is_named_with_its_last_byte(tmp_path: Path) -> None:
    _, index = write_golden(tmp_path / "c", DOCUMENTS)
    for length in range(len(index)):
        (tmp_path / "c.idx").write_bytes(index[:length])
        with pytest.raises(TokenFileError, match=re.escape("c.idx")) as caught:
            open_tokens(tmp_path / "c")
        assert caught.value.offset == length
        assert caught.value.path == tmp_path / "c.idx"


def test_tokens_cut_anywhere_are_named_with_sequence_and_byte(tmp_path: Path) -> None:
    tokens, _ = write_golden(tmp_path / "c", DOCUMENTS)
    sequence_of_byte = [0] * 6 + [1] * 2 + [2] * 4 + [3] * 8
    for length in range(len(tokens)):
        (tmp_path / "c.bin").write_bytes(tokens[:length])
        expected = f"c.bin, byte {length}: ends here, in sequence {sequence_of_byte[length]} of bytes"
        with pytest.raises(TokenFileError, match=expected) as caught:
            read_header(tmp_path / "c")
        assert caught.value.offset == length


@pytest.mark.parametrize(
    ("place", "content", "expected"),
    [
        (0, b"TNTIDX\0\0\0", r"c.idx, byte 0: begins with b'TNTIDX"),
        (9, struct.pack("<Q", 2), r"c.idx, byte 9: version 2, this hpctrain reads 1"),
        (17, b"\7", r"c.idx, byte 17: token type 7 is none of whole numbers; known: 1 uint8"),
        (26, struct.pack("<Q", 0), r"c.idx, byte 26: no document indices"),
        (18, struct.pack("<Q", 3), r"c.idx, byte 102: 3 sequences and 3 documents take 102 bytes, the file has 114"),
        (34 + 16, struct.pack("<q", 2), r"c.idx, byte 50: the first sequence is at byte 2 of the tokens, not 0"),
        (34 + 48, struct.pack("<q", 1), r"c.idx, byte 82: documents go from sequence 1 to 4, of 4"),
        (34 + 72, struct.pack("<q", 5), r"c.idx, byte 82: documents go from sequence 0 to 5, of 4"),
    ],
    ids=["magic", "version", "type", "no documents", "count", "first pointer", "first document", "last document"],
)
def test_a_wrong_head_is_named_with_its_byte(tmp_path: Path, place: int, content: bytes, expected: str) -> None:
    _, index = write_golden(tmp_path / "c", DOCUMENTS)
    (tmp_path / "c.idx").write_bytes(index[:place] + content + index[place + len(content) :])
    with pytest.raises(TokenFileError, match=expected):
        open_tokens(tmp_path / "c")


@pytest.mark.parametrize(
    ("place", "content", "expected"),
    [
        (34 + 4, struct.pack("<i", -1), r"c.idx, byte 38: sequence 1 has -1 tokens"),
        (34 + 16 + 8, struct.pack("<q", 8), r"c.idx, byte 58: sequence 1 begins at byte 8, the one before ends at 6"),
        (34 + 48 + 16, struct.pack("<q", 0), r"c.idx, byte 98: document 2 begins before the one in front of it"),
    ],
    ids=["negative size", "pointer", "documents"],
)
@pytest.mark.parametrize("chunk", [1, 2**20])
def test_a_damaged_index_is_found_by_the_whole_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int, content: bytes, expected: str, chunk: int
) -> None:
    monkeypatch.setattr(indexed, "_CHUNK", chunk)
    _, index = write_golden(tmp_path / "c", DOCUMENTS)
    (tmp_path / "c.idx").write_bytes(index[:place] + content + index[place + len(content) :])
    with pytest.raises(TokenFileError, match=expected):
        check_structure(open_tokens(tmp_path / "c"))


def test_files_of_different_corpora(tmp_path: Path) -> None:
    tokens, _ = write_golden(tmp_path / "c", DOCUMENTS)
    (tmp_path / "c.bin").write_bytes(tokens + b"\0\0")
    with pytest.raises(TokenFileError, match=r"c.bin, byte 20: 2 bytes more than its index knows of \(20\)"):
        open_tokens(tmp_path / "c")


def test_a_multimodal_corpus_is_refused(tmp_path: Path) -> None:
    write_golden(tmp_path / "c", DOCUMENTS, modes=b"\0" * 4)
    with pytest.raises(TokenFileError, match="multimodal"):
        open_tokens(tmp_path / "c")


@pytest.mark.parametrize(("code", "wrong"), [(8, 50), (4, -1)], ids=["too high", "negative"])
def test_a_token_outside_the_vocabulary_is_named(tmp_path: Path, code: int, wrong: int) -> None:
    write_golden(tmp_path / "c", [[[5, 6, 7]], [[1, wrong]]], code)
    expected = (
        rf"c.bin, byte {4 * (2 if code == 8 else 4)}: token 4 \(document 1\) is {wrong}, the vocabulary has 0 to 49"
    )
    with pytest.raises(TokenFileError, match=expected):
        check_ids(open_tokens(tmp_path / "c"), 50)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TokenFileError, match=f"c.bin: there is no such file; {tmp_path} is there"):
        read_header(tmp_path / "nowhere" / "c")
    with pytest.raises(TokenFileError, match=r"c.bin: there is no such file; python -m hpctrain prepare makes"):
        read_header(tmp_path / "c")
    write_golden(tmp_path / "other", DOCUMENTS)
    with pytest.raises(TokenFileError, match=f"token files there: {tmp_path}/other"):
        read_header(tmp_path / "c")
    (tmp_path / "other.idx").unlink()
    with pytest.raises(TokenFileError, match=r"other.idx: there is no such file"):
        read_header(tmp_path / "other")
    (tmp_path / "c.partial").mkdir()
    with pytest.raises(TokenFileError, match="prepare was stopped, and the same command goes on"):
        read_header(tmp_path / "c")


def test_either_file_names_both(tmp_path: Path) -> None:
    write_golden(tmp_path / "c", DOCUMENTS)
    names = [tmp_path / name for name in ("c", "c.bin", "c.idx")]
    assert [token_prefix(name) for name in names] == [tmp_path / "c"] * 3
    write_golden(tmp_path / "c.bin", DOCUMENTS)
    assert token_prefix(tmp_path / "c.bin") == tmp_path / "c.bin"


def test_heads_and_manifests_are_read_without_numpy() -> None:
    code = "import sys, hpctrain.tokens.header, hpctrain.tokens.manifest; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
