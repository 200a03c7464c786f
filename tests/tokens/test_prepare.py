"""``prepare`` whole: what comes out, that it depends on the inputs alone, and what it says of mistakes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from hpctrain.cli import run
from hpctrain.errors import ConfigError, HpctrainError
from hpctrain.tokens.header import TokenFileError
from hpctrain.tokens.manifest import manifest_path, read_manifest
from hpctrain.tokens.tokenizer import train_bpe
from hpctrain.tokens.workers import PrepareError
from tests.tokens.making import SOURCE, contents, documents_of, make, write_corpus
from tests.tokens.test_tokenizer import STDLIB


@pytest.fixture
def corpus(tmp_path: Path) -> list[Path]:
    return write_corpus(tmp_path)


def test_text_becomes_bytes_and_ends_of_documents(corpus: list[Path], tmp_path: Path) -> None:
    manifest = make(corpus, tmp_path / "out", workers=2, unit_bytes=1000)
    expected = [[*path.read_bytes(), 256] for path in corpus if path.stat().st_size]
    assert documents_of(tmp_path / "out") == expected
    assert (manifest.num_documents, manifest.num_empty_documents, manifest.num_tokens) == (
        4,
        1,
        sum(map(len, expected)),
    )
    assert (manifest.max_token_id, manifest.dtype) == (256, "uint16")
    assert [file.path for file in manifest.inputs] == [str(path) for path in corpus]
    assert sorted(path.name for path in tmp_path.iterdir() if path not in corpus) == ["out.bin", "out.idx", "out.json"]
    answer = subprocess.run(
        ["sha256sum", *(file.path for file in manifest.inputs)], capture_output=True, text=True, check=True
    )
    assert [line.split()[0] for line in answer.stdout.splitlines()] == [file.sha256 for file in manifest.inputs]
    answer = subprocess.run(
        ["sha256sum", "out.bin", "out.idx"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert [line.split()[0] for line in answer.stdout.splitlines()] == [manifest.bin.sha256, manifest.idx.sha256]


def test_the_number_of_workers_and_the_units_change_nothing(corpus: list[Path], tmp_path: Path) -> None:
    for number, (workers, unit_bytes) in enumerate(((1, 2**22), (3, 1000))):
        make(corpus, tmp_path / f"out{number}", workers=workers, unit_bytes=unit_bytes, tokenizer=None, train_bpe=400)
    assert contents(tmp_path / "out0", (".bin", ".idx")) == contents(tmp_path / "out1", (".bin", ".idx"))
    tokenizer = Tokenizer.from_file(str(tmp_path / "out0.tokenizer.json"))
    assert [tokenizer.decode(ids[:-1]) for ids in documents_of(tmp_path / "out0")] == [
        text for path in corpus if (text := path.read_text(encoding="utf-8"))
    ]
    assert {ids[-1] for ids in documents_of(tmp_path / "out0")} == {0}
    # And again with the tokenizer that it left behind.
    trained = str(tmp_path / "out0.tokenizer.json")
    manifest = make(corpus, tmp_path / "out2", tokenizer=trained)
    assert contents(tmp_path / "out2", (".bin", ".idx")) == contents(tmp_path / "out0", (".bin", ".idx"))
    first = read_manifest(tmp_path / "out0")
    assert first is not None
    assert first.tokenizer == manifest.tokenizer


def test_json_lines_and_parquet_give_the_same(tmp_path: Path) -> None:
    texts = ["one", "", "two\n\u00fc", "three"] * 50
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in texts), encoding="utf-8")
    pq.write_table(pa.table({"body": texts}), tmp_path / "b.parquet", row_group_size=60)
    for number, name in enumerate(("a.jsonl", "b.parquet")):
        manifest = make(
            [tmp_path / name], tmp_path / f"out{number}", field="body", ends_documents=False, unit_bytes=500
        )
        assert (manifest.text_field, manifest.num_empty_documents, manifest.tokenizer.eod_id) == ("body", 50, None)
        assert documents_of(tmp_path / f"out{number}") == [list(text.encode()) for text in texts if text]
    assert contents(tmp_path / "out0", (".bin", ".idx")) == contents(tmp_path / "out1", (".bin", ".idx"))


def test_a_corpus_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "out.idx").write_text("old")
    with pytest.raises(
        ConfigError, match=r"--out=.*out: out.idx is there already; name another prefix, or replace with --force"
    ):
        make([tmp_path / "a.txt"], tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "out.idx"]
    make([tmp_path / "a.txt"], tmp_path / "out", force=True)
    assert documents_of(tmp_path / "out") == [[97, 256]]


@pytest.mark.parametrize(
    ("texts", "num_empty"), [([""], 1), (["", "\ufeff"], 2), (["\n\n\n"], 0)], ids=["empty", "two", "only ends"]
)
def test_a_corpus_without_text(tmp_path: Path, texts: list[str], num_empty: int) -> None:
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
    split_at = None if num_empty else "\n"
    with pytest.raises(HpctrainError, match=r"0.txt: no token in .* file\(s\) of .* bytes: \d documents without text"):
        make([tmp_path / f"{number}.txt" for number in range(len(texts))], tmp_path / "out", split_at=split_at)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("out")]


def test_texts_that_give_no_token_are_left_out(tmp_path: Path) -> None:
    raw = json.loads(train_bpe(["a b"], 300))
    raw["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}
    (tmp_path / "t.json").write_text(json.dumps(raw))
    rows = ["a", "  ", "b", "\n"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    manifest = make([tmp_path / "a.jsonl"], tmp_path / "out", tokenizer=str(tmp_path / "t.json"))
    assert (manifest.num_documents, manifest.num_empty_documents, manifest.num_tokens) == (2, 2, 4)


def test_an_input_that_is_wrong_ends_it_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 99 + '{"text": 1}\n')
    with pytest.raises(
        PrepareError, match=r"a.jsonl, line 100 \(byte 1,386\): the field 'text' is int, no text"
    ) as caught:
        make([tmp_path / "a.jsonl"], tmp_path / "out", workers=2, unit_bytes=100)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "out.bin").exists()
    damaged = [b"PAR1", b"PAR1" + b"\xff" * 40 + (40).to_bytes(4, "little") + b"PAR1"]
    for content in damaged:  # the second is none of Arrow's own errors
        (tmp_path / "c.parquet").write_bytes(content)
        with pytest.raises(HpctrainError, match=r"c.parquet: .*it is no Parquet, or truncated") as refused:
            make([tmp_path / "c.parquet"], tmp_path / "other")
        assert refused.value.exit_code == 2
        shutil.rmtree(tmp_path / "other.partial")
    words = {"type": "WordLevel", "vocab": {"a": 0, "</s>": 1}, "unk_token": "[UNK]"}
    (tmp_path / "t.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": words}))
    (tmp_path / "d.txt").write_text("unknown")
    with pytest.raises(
        PrepareError, match=r"--tokenizer: has no ids for a text: WordLevel error: Missing \[UNK\]"
    ) as caught:
        make([tmp_path / "d.txt"], tmp_path / "d", tokenizer=str(tmp_path / "t.json"))
    assert caught.value.exit_code == 2


def test_a_folder_in_the_place_of_an_output(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "out.idx").mkdir()
    with pytest.raises(ConfigError, match=r"--out=.*out: out.idx is a folder; name another prefix"):
        make([tmp_path / "a.txt"], tmp_path / "out", force=True)
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "out.idx"]


def test_the_verb_and_its_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [STDLIB / "abc.py", STDLIB / "heapq.py"]
    prefix = tmp_path / "std lib"
    words = ["prepare", *map(str, names), "--out", str(prefix), "--train-bpe", "300", "--workers", "1"]
    assert run(words) == 0
    said = capsys.readouterr().out
    assert re.search(r"std lib: 2 documents, [\d,]+ tokens\n", said)
    assert "std lib.tokenizer.json, vocabulary 300, <|endoftext|> 0 ends a document" in said
    assert run(["prepare", "--check", f"{prefix}.bin"]) == 0
    assert "checksums as in the manifest; std lib.tokenizer.json, vocabulary 300" in capsys.readouterr().out
    manifest = read_manifest(prefix)
    assert manifest is not None
    assert manifest.command == tuple(words[1:])
    content = Path(f"{prefix}.bin").read_bytes()
    Path(f"{prefix}.bin").write_bytes(b"\1\0" + content[2:])
    with pytest.raises(TokenFileError, match=r"std lib.bin: its SHA-256 is .*, the manifest says .*; it was changed"):
        run(["prepare", "--check", str(prefix)])
    Path(f"{prefix}.bin").write_bytes(b"\xff\xff" + content[2:])
    with pytest.raises(TokenFileError, match=r"byte 0: token 0 \(document 0\) is 65535, the vocabulary has 0 to 299"):
        run(["prepare", "--check", str(prefix)])
    Path(f"{prefix}.bin").write_bytes(content)
    tokenizer = Path(f"{prefix}.tokenizer.json")
    tokenizer.write_text(tokenizer.read_text().replace("th", "ht"))
    with pytest.raises(TokenFileError, match=r"std lib.tokenizer.json: its SHA-256 is"):
        run(["prepare", "--check", str(prefix)])
    manifest_path(prefix).unlink()
    assert run(["prepare", "--check", str(prefix)]) == 0
    assert "there is no manifest: no checksum to compare" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "FILES: none is named"),
        (["a.txt"], "--out: must be given"),
        (["a.txt", "--out", "o"], "--tokenizer, --train-bpe: neither is given"),
        (["a.txt", "--out", "o", "--tokenizer", "bytes", "--train-bpe", "300"], "both are given"),
        (["a.txt", "--out", "o", "--train-bpe", "256"], "--train-bpe=256: a byte-level BPE has .* 257 ids at least"),
        (["a.txt", "--out", "o", "--tokenizer", "bytes", "--workers", "0"], "--workers=0: must be 1 or more"),
        (["a.txt", "--out", "o", "--tokenizer", "bytes", "--split-at", ""], "--split-at: is empty"),
        (["a.txt", "--out", "o", "--tokenizer", "bytes", "--field", "x"], "--field=x: text has no fields"),
        (["a.txt", "--out", "o", "--tokenizer", "bytes", "--eod", "x"], "--eod=x: belongs to --tokenizer FILE"),
        (
            ["j.jsonl", "--out", "o", "--tokenizer", "bytes", "--split-at", "x"],
            "--split-at='x': each row of jsonl is a",
        ),
        (
            ["a.txt", "--out", "no/where/o", "--tokenizer", "bytes"],
            "no/where/o: there is no folder no/where; .* is there; mkdir -p",
        ),
        (["a.txt", "--out", ".", "--tokenizer", "bytes"], "--out=.: is a folder; name the files in it: corpus"),
        (
            ["a.txt", "--out", "o.bin", "--tokenizer", "bytes"],
            "--out=o.bin: is a prefix, to which .bin, .* are added; --out o",
        ),
        (["in.json", "--out", "in", "--tokenizer", "bytes", "--force"], "--out=in: would replace the input in.json"),
        (
            ["missing", "--out", "no/o", "--tokenizer", "bytes"],
            r"(?s)--out=no/o: .*FILES=missing: there is no such file",
        ),
        (["--check", "o", "--out", "p"], "--check o: stands alone; --out belongs to a new corpus"),
        (["--check", "nothing"], "nothing.bin: there is no such file"),
        (["a.txt", "--out", "o", "--tokenizer", "."], "--tokenizer=.: Is a directory; --tokenizer tokenizer.json"),
        (["a.txt", "--out", "o\udcff", "--tokenizer", "bytes"], r"--out=o\\xff: the name is not UTF-8"),
        (["a.txt", "--out", "o", "--tokenizer", "t.json"], "--tokenizer=t.json: No such file or directory"),
        (
            ["a.txt", "--out", "in", "--tokenizer", "in.json", "--force"],
            "--out=in: would replace the tokenizer in.json; name another",
        ),
        (["a.txt", "--out", "o", "--tokenizer", "t\udcff.json"], r"--tokenizer=t\\xff.json: is not UTF-8"),
        (["a.txt", "--out", "o", "--tokenizer", "bytes", "--split-at", "\udcff"], r"--split-at=\\xff: is not UTF-8"),
        (["a.txt", "--out", "o", "--train-bpe", "9" * 20], "--train-bpe=9*: must be at most 16,777,216"),
        (["a.txt", "--out", "o" * 241, "--tokenizer", "bytes"], "--out=o*: the name has 241 bytes, and .*; 240 bytes"),
        (["a.txt", "--out", "o" * 300 + "/o", "--tokenizer", "bytes"], "--out=o*/o: there is no folder o*"),
        (["a.txt", "--out", "o", "--tokenizer", "t" * 300], "--tokenizer=t*: File name too long"),
        (["a" * 300, "--out", "o", "--tokenizer", "bytes"], "FILES=a*: File name too long; name another file"),
        (["", "--out", "o", "--tokenizer", "bytes"], "FILES: is empty; name a file"),
        (["--check", ""], r"\.: is a folder; a prefix is meant"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "j.jsonl", "in.json"):
        (tmp_path / name).write_text('{"text": "a"}\n')
    with pytest.raises(HpctrainError, match=expected) as caught:
        run(["prepare", *words])
    assert caught.value.exit_code == 2
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "in.json", "j.jsonl"]


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in ("tokenizers", "pyarrow") else name)
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(
        HpctrainError, match=r"prepare needs tokenizers, pyarrow; pip install 'hpctrain\[data\]'"
    ) as caught:
        make([tmp_path / "a.parquet"], tmp_path / "out", tokenizer=None, train_bpe=300)
    assert caught.value.exit_code == 4


def test_neither_torch_nor_deepspeed_is_imported(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    code = (
        "import sys; from hpctrain.cli import run; run(sys.argv[1:]);"
        "print(sorted({'torch', 'deepspeed', 'pandas', 'hydra', 'pydantic'} & sys.modules.keys()))"
    )
    words = ["prepare", str(tmp_path / "a.txt"), "--out", str(tmp_path / "o"), "--tokenizer", "bytes"]
    answer = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=SOURCE, capture_output=True, text=True, check=True
    )
    assert answer.stdout.splitlines()[-1] == "[]"
