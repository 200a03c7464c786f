"""Token files held against the model, at submission and by the ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain.config.schema import DataConfig
from hpctrain.errors import ConfigError
from hpctrain.token_corpora import token_corpora
from hpctrain.worker.data import mapped_corpus
from hpctrain.worker.data.corpus import load_corpus
from hpctrain.worker.end_reasons import DataError
from tests.token_files import write_tokens

SEQ_LEN, VOCAB = 9, 260
SOME = np.arange(300) % 250

Arguments = dict[str, Any]
Case = tuple[Callable[[Path], Arguments], list[str]]


def cut(prefix: Path, ending: str, num_bytes: int) -> Path:
    path = prefix.with_name(prefix.name + ending)
    os.truncate(path, num_bytes)
    return prefix


def blend(*prefixes: Path) -> Arguments:
    return {"blend": {str(prefix): 1.0 for prefix in prefixes}}


def path(prefix: Path) -> Arguments:
    return {"path": str(prefix)}


CASES: dict[str, Case] = {
    "no files": (lambda folder: path(folder / "none"), ["data.path=", "none.bin: there is no such file"]),
    "no index": (
        lambda folder: path(_without(write_tokens(folder / "a", SOME), ".idx")),
        ["data.path=", "a.idx: there is no such file"],
    ),
    "truncated tokens": (
        lambda folder: path(cut(write_tokens(folder / "a", SOME), ".bin", 301)),
        ["data.path=", "a.bin, byte 301: ends here, in sequence 1 of bytes 200 to 400", "truncated"],
    ),
    "truncated index": (
        lambda folder: path(cut(write_tokens(folder / "a", SOME), ".idx", 60)),
        ["data.path=", "a.idx, byte 60: ", "truncated"],
    ),
    "another format": (
        lambda folder: path(_begins_with(write_tokens(folder / "a", SOME), b"TNTIDX\x00\x00")),
        ["a.idx, byte 0: begins with", "another format"],
    ),
    "the manifest of other files": (
        lambda folder: path(_with_manifest_of_other(folder)),
        ["data.path=", "a.json: is of other files"],
    ),
    "no tokens": (
        lambda folder: path(write_tokens(folder / "a", [])),
        ["data.path=", "has no tokens (0 documents)"],
    ),
    "fewer than a sequence": (
        lambda folder: path(write_tokens(folder / "a", SOME[:9])),
        ["training.seq_len=9: one sequence with its labels takes 10 tokens", "has 9", "training.seq_len=8 or less"],
    ),
    "no sequence left to train on": (
        lambda folder: path(write_tokens(folder / "a", SOME[:19])) | {"validation_fraction": 0.1},
        ["training.seq_len=9: ", "has 19: not 2 for training and one for validation", "training.seq_len=8 or less"],
    ),
    "all of it is for validation": (
        lambda folder: path(write_tokens(folder / "a", SOME)) | {"validation_fraction": 0.999},
        ["data.validation_fraction=0.999: keeps all 30 sequences of 10 tokens in data.path=", "0.5 or less"],
    ),
    "validation data that are trained on": (
        lambda folder: path(write_tokens(folder / "a", SOME)) | {"validation_path": str(folder / "a.bin")},
        ["data.validation_path=", "a.bin: is data.path=", "by another name, so that its loss validates nothing"],
    ),
    "the same files twice": (
        lambda folder: blend(write_tokens(folder / "a", SOME), _linked(folder)),
        ["data.blend=", "/b: is data.blend=", "/a by another name; name it once"],
    ),
    "a folder": (
        lambda folder: path(write_tokens(folder / "a", SOME).parent),
        ["data.path=", "is a folder; a prefix is meant; token files there: ", "/a"],
    ),
    "no name at all": (lambda folder: path(Path("/")), ["data.path=/: /: is a folder"]),
    "the home of nobody": (lambda folder: path(Path("~nosuchuser/a")), ["data.path=~nosuchuser/a: ", "no such file"]),
    "a short corpus for validation": (
        lambda folder: (
            path(write_tokens(folder / "a", SOME)) | {"validation_path": str(write_tokens(folder / "v", SOME[:5]))}
        ),
        ["training.seq_len=9: ", "data.validation_path=", "has 5"],
    ),
    "tokenizer beyond the model": (
        lambda folder: path(write_tokens(folder / "a", SOME, tokenizer="bpe.json", vocab_size=8192)),
        ["model.vocab_size=260: ", "bpe.json, gives ids up to 8,191", "in the file is 249", "nearest: 8192"],
    ),
    "token beyond its own tokenizer": (
        lambda folder: path(write_tokens(folder / "a", SOME + 100, tokenizer="bpe.json")),
        ["model.vocab_size=260: ", "has token 349, the model 0 to 259", "ends at 259"],
    ),
    "two tokenizers": (
        lambda folder: blend(
            write_tokens(folder / "a", SOME, tokenizer="x"),
            write_tokens(folder / "b", SOME),
            write_tokens(folder / "c", SOME, tokenizer="y"),
        ),
        ["data.blend=", "c: was made by the tokenizer y", "a by x", "same --tokenizer"],
    ),
    "validation by another tokenizer": (
        lambda folder: (
            path(write_tokens(folder / "a", SOME, tokenizer="x"))
            | {"validation_path": str(write_tokens(folder / "v", SOME, tokenizer="y"))}
        ),
        ["data.validation_path=", "tokenizer y", "data.path=", "by x"],
    ),
    "not the wanted tokenizer": (
        lambda folder: path(write_tokens(folder / "a", SOME, tokenizer="x")) | {"tokenizer_digest": "0123456789"},
        ["data.tokenizer_digest=0123456789: data.path=", "was made by x of digest 2d711642b726b044"],
    ),
    "no manifest, and a tokenizer is wanted": (
        lambda folder: path(write_tokens(folder / "a", SOME)) | {"tokenizer_digest": "0123456789"},
        ["data.tokenizer_digest=0123456789: data.path=", "has no manifest"],
    ),
}


def _without(prefix: Path, ending: str) -> Path:
    prefix.with_name(prefix.name + ending).unlink()
    return prefix


def _linked(folder: Path) -> Path:
    for ending in (".bin", ".idx"):
        (folder / f"b{ending}").symlink_to(folder / f"a{ending}")
    return folder / "b"


def _begins_with(prefix: Path, head: bytes) -> Path:
    index = prefix.with_name(prefix.name + ".idx")
    index.write_bytes(head + index.read_bytes()[len(head) :])
    return prefix


def _with_manifest_of_other(folder: Path) -> Path:
    prefix = write_tokens(folder / "a", SOME)
    other = write_tokens(folder / "b", SOME[:200], tokenizer="x")
    other.with_name("b.json").rename(prefix.with_name("a.json"))
    return prefix


def data_of(**values: Any) -> DataConfig:
    return DataConfig("tokens", "tokens", **values)


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_told_at_submission_and_by_the_ranks(tmp_path: Path, name: str) -> None:
    make, expected = CASES[name]
    data = data_of(**make(tmp_path))
    with pytest.raises(ConfigError) as caught:
        token_corpora(data, VOCAB, SEQ_LEN)
    (problem,) = caught.value.problems
    for part in expected:
        assert part in str(problem)
    with pytest.raises(DataError) as told_by_rank:
        load_corpus(data, VOCAB, SEQ_LEN, seed=1)
    assert str(told_by_rank.value) == str(problem)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    data = data_of(**blend(tmp_path / "none", write_tokens(tmp_path / "a", SOME[:3]), tmp_path / "neither"))
    with pytest.raises(ConfigError) as caught:
        token_corpora(data, VOCAB, SEQ_LEN)
    assert len(caught.value.problems) == 3


def test_what_fits(tmp_path: Path) -> None:
    first = write_tokens(tmp_path / "a", SOME, tokenizer="x")
    second = write_tokens(tmp_path / "b", SOME)
    data = data_of(blend={str(first): 3.0, f"{second}.bin": 1.0}, validation_fraction=0.5)
    assert [corpus.weight for corpus in token_corpora(data, VOCAB, SEQ_LEN)] == [3.0, 1.0]
    notes = load_corpus(data, VOCAB, SEQ_LEN, seed=1).notes
    assert "3 documents, 300 tokens of uint16; tokenizer x (2d711642b726b044), ids up to 249" in notes[0]
    assert "no manifest: ids of 300 tokens are below 260" in notes[1]


@pytest.mark.parametrize("token", [260, -1])
@pytest.mark.parametrize("place", [0, 150, 299])
def test_without_a_manifest_ranks_look_into_the_file(tmp_path: Path, token: int, place: int) -> None:
    tokens = SOME.astype(np.int32)
    tokens[place] = token
    data = data_of(path=str(write_tokens(tmp_path / "a", tokens, "int32")))
    with pytest.raises(
        DataError, match=rf"model.vocab_size=260: data.path=.*a.bin\) has token {token} at place {place}"
    ):
        load_corpus(data, VOCAB, SEQ_LEN, seed=1)


def test_the_highest_of_several_ids_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one would be mended, and then the next."""
    monkeypatch.setattr(mapped_corpus, "_SAMPLE_TOKENS", 100)
    tokens = SOME.astype(np.int32)
    tokens[[20, 150, 280]] = (300, 999, 400)
    data = data_of(path=str(write_tokens(tmp_path / "a", tokens, "int32")))
    with pytest.raises(DataError, match=r"token 999 at place 150; set model.vocab_size=1000 or more"):
        load_corpus(data, VOCAB, SEQ_LEN, seed=1)


def test_of_a_large_file_without_manifest_samples_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten stretches of 10 of 10,000 tokens: the last is the end of the file, and what is between them is not seen."""
    monkeypatch.setattr(mapped_corpus, "_SAMPLES", 10)
    monkeypatch.setattr(mapped_corpus, "_SAMPLE_TOKENS", 10)
    tokens = np.zeros(10_000, np.int32)
    for place, is_seen in ((0, True), (9, True), (10, False), (5555, True), (9989, False), (9990, True), (9999, True)):
        tokens[place] = 999
        data = data_of(path=str(write_tokens(tmp_path / str(place), tokens, "int32")))
        tokens[place] = 0
        if is_seen:
            with pytest.raises(DataError, match=f"token 999 at place {place:,};"):
                load_corpus(data, VOCAB, SEQ_LEN, seed=1)
        else:
            assert "ids of 100 tokens are below 260" in load_corpus(data, VOCAB, SEQ_LEN, seed=1).notes[0]


def test_the_digest_knows_every_token_of_a_small_file_and_the_manifest_of_a_large_one(tmp_path: Path) -> None:
    def digest(name: str, tokens: Any, tokenizer: str | None = None) -> str:
        return load_corpus(
            data_of(path=str(write_tokens(tmp_path / name, tokens, tokenizer=tokenizer))), VOCAB, 9, 1
        ).digest

    small = SOME.copy()
    small[150] = 7
    assert digest("a", SOME) == digest("b", SOME) != digest("c", small)
    large = np.zeros(400_000, np.uint16)
    changed = large.copy()
    changed[5000] = 7  # between the samples
    assert digest("d", large) == digest("e", changed)
    assert digest("f", large, "x") != digest("g", changed, "x")


def test_a_submission_looks_at_token_files_without_numpy(tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "a", SOME, tokenizer="x")
    program = (
        "import sys; from hpctrain.config.schema import DataConfig; from hpctrain.token_corpora import token_corpora;"
        f"token_corpora(DataConfig('x', 'tokens', {str(prefix)!r}), 260, 9);"
        "sys.exit(' '.join(name for name in ('numpy', 'torch') if name in sys.modules) or 0)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
