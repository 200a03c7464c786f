"""Corpora that are made when a run starts, and their errors."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain.config.schema import DataConfig
from hpctrain.worker.data.corpus import Corpus, load_corpus
from hpctrain.worker.data.sequences import Tokens
from hpctrain.worker.data.tokenizer import END_OF_DOCUMENT, VOCAB_SIZE, encode_document
from hpctrain.worker.end_reasons import DataError


def load(kind: Any, vocab_size: int = VOCAB_SIZE, seq_len: int = 32, seed: int = 1, **data: Any) -> Corpus:
    return load_corpus(DataConfig(name="x", kind=kind, **data), vocab_size, seq_len, seed)


def tokens_of(corpus: Corpus) -> Tokens:
    """All that it trains on."""
    (part,) = corpus.training.parts
    return part.tokens


def test_tokens_of_a_document() -> None:
    text = bytes(range(256))
    tokens = encode_document(text)
    assert bytes(tokens[:-1].astype(np.uint8)) == text
    assert tokens[-1] == END_OF_DOCUMENT == VOCAB_SIZE - 1
    assert tokens.dtype == np.uint16


def test_standard_library() -> None:
    corpus = load("stdlib", max_bytes=200_000)
    tokens = tokens_of(corpus)
    ends = int((tokens == END_OF_DOCUMENT).sum())
    assert len(tokens) == 200_000 + ends
    first_file = Path(sysconfig.get_path("stdlib"), "__future__.py").read_bytes()
    assert bytes(tokens[:200].astype(np.uint8)) == first_file[:200]
    assert corpus.digest == load("stdlib", max_bytes=200_000).digest != load("stdlib", max_bytes=199_999).digest


def test_a_folder_of_texts(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("zwei")
    (tmp_path / "a.txt").write_text("één")
    (tmp_path / "c.md").write_text("left out")
    (tmp_path / "d.txt").mkdir()
    tokens = tokens_of(load("text", path=str(tmp_path), seq_len=4))
    assert tokens.tolist() == [*"één".encode(), END_OF_DOCUMENT, *b"zwei", END_OF_DOCUMENT]
    assert tokens_of(load("text", path=str(tmp_path / "b.txt"), seq_len=4)).tolist() == [*b"zwei", END_OF_DOCUMENT]


def test_synthetic_tokens_are_of_the_vocabulary_and_mostly_periodic() -> None:
    corpus = load("synthetic", vocab_size=50304, max_bytes=1)
    tokens = tokens_of(corpus)
    assert tokens.max() < 50304
    repeats = float((tokens[61:] == tokens[:-61]).mean())
    assert 0.8 < repeats < 0.85  # 0.9 squared, and a little by chance
    assert corpus.digest == load("synthetic", vocab_size=50304).digest
    assert corpus.digest != load("synthetic", vocab_size=50304, seed=2).digest
    assert tokens_of(load("synthetic", vocab_size=3)).max() == 2
    assert tokens_of(load("synthetic", vocab_size=100_000)).dtype == np.int32
    assert len(tokens_of(load("synthetic", seq_len=100_000))) == 64 * 100_001


def text_file(folder: Path, text: bytes) -> str:
    path = folder / "text.txt"
    path.write_bytes(text)
    return str(path)


def pipe(folder: Path) -> str:
    os.mkfifo(folder / "p.txt")
    return str(folder)


def dangling_link(folder: Path) -> str:
    (folder / "l.txt").symlink_to("nowhere")
    return str(folder)


ERRORS: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "no path": (lambda folder: {"path": None}, r"data.path=null: .* set data.path"),
    "no such file": (lambda folder: {"path": str(folder / "no.txt")}, r"data.path=.*no.txt: there is no such file"),
    "empty folder": (lambda folder: {"path": str(folder)}, r"the folder holds no \*.txt"),
    "empty file": (lambda folder: {"path": text_file(folder, b"")}, r"the text is empty \(1 file\(s\) of 0 bytes\)"),
    "pipe": (lambda folder: {"path": pipe(folder)}, "p.txt is no regular file"),
    "link to nothing": (lambda folder: {"path": dangling_link(folder)}, "l.txt is a link to a file that is not there"),
    "not UTF-8": (lambda folder: {"path": text_file(folder, b"abc\xff")}, "text.txt is not UTF-8: byte 3 is 0xff"),
    "too large": (
        lambda folder: {"path": text_file(folder, b"x" * 101), "max_bytes": 100},
        "the text has 101 bytes, data.max_bytes=100: .* set data.max_bytes=101",
    ),
    "too short": (
        lambda folder: {"path": text_file(folder, b"x" * 31)},
        "training.seq_len=32: .* takes 33 tokens, and .* has 32: not 1; set training.seq_len=31 or less",
    ),
    "unknown token": (
        lambda folder: {"path": text_file(folder, b"x" * 40), "vocab_size": 256},
        "model.vocab_size=256: .* has token 256 at place 40; set model.vocab_size=257",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_texts_that_do_not_fit(name: str, tmp_path: Path) -> None:
    arguments, text = ERRORS[name]
    with pytest.raises(DataError, match=text):
        load("text", **arguments(tmp_path))


def test_a_text_of_one_window_is_enough(tmp_path: Path) -> None:
    assert len(tokens_of(load("text", path=text_file(tmp_path, b"x" * 32)))) == 33


def test_a_text_of_its_own_for_validation(tmp_path: Path) -> None:
    held_out = tmp_path / "held_out.txt"
    held_out.write_text("y" * 80)
    corpus = load("text", path=text_file(tmp_path, b"x" * 400), validation_path=str(held_out))
    assert corpus.validation is not None
    assert [sequences.num_windows for sequences in (corpus.training, corpus.validation)] == [12, 2]
    ids, _ = corpus.validation.read(np.arange(2))
    assert set(ids.flat) == {ord("y")}
    assert corpus.digest == load("text", path=text_file(tmp_path, b"x" * 400)).digest


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("none.txt", "data.validation_path=.*none.txt: there is no such file"),
        ("short.txt", "seq_len=32: .* takes 33 tokens, and data.validation_path=.*short.txt has 3"),
    ],
)
def test_validation_texts_that_do_not_fit(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "short.txt").write_text("ab")
    with pytest.raises(DataError, match=text):
        load("text", path=text_file(tmp_path, b"x" * 400), validation_path=str(tmp_path / name))


def test_a_text_that_is_too_short_to_keep_a_part_for_validation(tmp_path: Path) -> None:
    text = r"takes 33 tokens, and .* has 40: not 2 for .* \(data.validation_fraction\); set training.seq_len=19 or less"
    with pytest.raises(DataError, match=text):
        load("text", path=text_file(tmp_path, b"x" * 39), validation_fraction=0.5)


def test_a_fraction_that_leaves_nothing_to_train_on(tmp_path: Path) -> None:
    text = r"data.validation_fraction=0.99: keeps all 12 sequences of 33 tokens in data.path=.* set .*=0.5 or less"
    with pytest.raises(DataError, match=text):
        load("text", path=text_file(tmp_path, b"x" * 400), validation_fraction=0.99)


def test_a_text_is_never_trained_on_and_validated(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("x" * 400)
    (tmp_path / "link.txt").symlink_to(tmp_path / "b.txt")
    for validation in ("b.txt", "link.txt", ""):
        with pytest.raises(DataError, match=r"data.validation_path=.*: data.path=.* has .*\.txt too \(. of . file"):
            load("text", path=str(tmp_path), validation_path=str(tmp_path / validation))
