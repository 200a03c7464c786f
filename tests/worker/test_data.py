"""Corpora and their errors; the global batch is the same however it is split."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain.config.schema import DataConfig
from hpctrain.plan.layout import Batch
from hpctrain.worker.data.batches import TokenBatches
from hpctrain.worker.data.corpus import Corpus, load_corpus
from hpctrain.worker.data.tokenizer import END_OF_DOCUMENT, VOCAB_SIZE, encode_document
from hpctrain.worker.end_reasons import DataError

GLOBAL_BATCH, SEQ_LEN = 24, 6
SPLITS = [
    (world_size, micro, GLOBAL_BATCH // (world_size * micro))
    for world_size in range(1, GLOBAL_BATCH + 1)
    for micro in range(1, GLOBAL_BATCH + 1)
    if GLOBAL_BATCH % (world_size * micro) == 0
]


def load(kind: Any, vocab_size: int = VOCAB_SIZE, seq_len: int = 32, seed: int = 1, **data: Any) -> Corpus:
    return load_corpus(DataConfig(name="x", kind=kind, **data), vocab_size, seq_len, seed)


def test_tokens_of_a_document() -> None:
    text = bytes(range(256))
    tokens = encode_document(text)
    assert bytes(tokens[:-1].astype(np.uint8)) == text
    assert tokens[-1] == END_OF_DOCUMENT == VOCAB_SIZE - 1
    assert tokens.dtype == np.uint16


def test_standard_library() -> None:
    corpus = load("stdlib", max_bytes=200_000)
    ends = int((corpus.tokens == END_OF_DOCUMENT).sum())
    assert len(corpus.tokens) == 200_000 + ends
    first_file = Path(sysconfig.get_path("stdlib"), "__future__.py").read_bytes()
    assert bytes(corpus.tokens[:200].astype(np.uint8)) == first_file[:200]
    assert corpus.digest == load("stdlib", max_bytes=200_000).digest != load("stdlib", max_bytes=199_999).digest


def test_a_folder_of_texts(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("zwei")
    (tmp_path / "a.txt").write_text("één")
    (tmp_path / "c.md").write_text("left out")
    tokens = load("text", path=str(tmp_path), seq_len=4).tokens
    assert tokens.tolist() == [*"één".encode(), END_OF_DOCUMENT, *b"zwei", END_OF_DOCUMENT]
    assert load("text", path=str(tmp_path / "b.txt"), seq_len=4).tokens.tolist() == [*b"zwei", END_OF_DOCUMENT]


def test_synthetic_tokens_are_of_the_vocabulary_and_mostly_periodic() -> None:
    corpus = load("synthetic", vocab_size=50304, max_bytes=1)
    assert corpus.tokens.max() < 50304
    repeats = float((corpus.tokens[61:] == corpus.tokens[:-61]).mean())
    assert 0.8 < repeats < 0.85  # 0.9 squared, and a little by chance
    assert corpus.digest == load("synthetic", vocab_size=50304).digest
    assert corpus.digest != load("synthetic", vocab_size=50304, seed=2).digest
    assert load("synthetic", vocab_size=3).tokens.max() == 2
    assert load("synthetic", vocab_size=100_000).tokens.dtype == np.int32
    assert len(load("synthetic", seq_len=100_000).tokens) == 64 * 100_001


def text_file(folder: Path, text: bytes) -> str:
    path = folder / "text.txt"
    path.write_bytes(text)
    return str(path)


ERRORS: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "no path": (lambda folder: {"path": None}, r"data.path=null: .* set data.path"),
    "no such file": (lambda folder: {"path": str(folder / "no.txt")}, r"data.path=.*no.txt: there is no such file"),
    "empty folder": (lambda folder: {"path": str(folder)}, r"the folder holds no \*.txt"),
    "empty file": (lambda folder: {"path": text_file(folder, b"")}, r"the text is empty \(1 file\(s\) of 0 bytes\)"),
    "not UTF-8": (lambda folder: {"path": text_file(folder, b"abc\xff")}, "text.txt is not UTF-8: byte 3 is 0xff"),
    "too large": (
        lambda folder: {"path": text_file(folder, b"x" * 101), "max_bytes": 100},
        "the text has 101 bytes, data.max_bytes=100: .* set data.max_bytes=101",
    ),
    "too short": (
        lambda folder: {"path": text_file(folder, b"x" * 31)},
        "training.seq_len=32: .* takes 33 tokens, but .* has 32; set training.seq_len=31",
    ),
    "unknown token": (
        lambda folder: {"path": text_file(folder, b"x" * 40), "vocab_size": 256},
        "model.vocab_size=256: .* has token 256; set model.vocab_size=257",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_texts_that_do_not_fit(name: str, tmp_path: Path) -> None:
    arguments, text = ERRORS[name]
    with pytest.raises(DataError, match=text):
        load("text", **arguments(tmp_path))


def test_a_text_of_one_window_is_enough(tmp_path: Path) -> None:
    assert len(load("text", path=text_file(tmp_path, b"x" * 32)).tokens) == 33


def batches_of(split: tuple[int, int, int], seed: int = 1) -> list[TokenBatches]:
    """All ranks' batches over a corpus of 100 windows whose tokens are their positions."""
    world_size, micro, accumulation = split
    batch = Batch(micro, accumulation, GLOBAL_BATCH, SEQ_LEN)
    tokens = np.arange(100 * (SEQ_LEN + 1) + 3, dtype=np.int32)
    return [TokenBatches(tokens, batch, seed, rank, world_size) for rank in range(world_size)]


def first_tokens(split: tuple[int, int, int], step: int) -> list[int]:
    """First token of every sequence of a step, all ranks and micro-steps."""
    found: list[int] = []
    for batches in batches_of(split):
        for micro_step in range(split[2]):
            ids, labels = batches.micro_batch(step, micro_step)
            assert ids.shape == labels.shape == (split[1], SEQ_LEN)
            assert (labels == ids + 1).all()
            found += ids[:, 0].tolist()
    return found


@pytest.mark.parametrize("step", [1, 2, 5], ids=["first", "second", "over the end of an epoch"])
def test_the_global_batch_is_the_same_however_it_is_split(step: int) -> None:
    expected = sorted(first_tokens((1, GLOBAL_BATCH, 1), step))
    for split in SPLITS:
        found = first_tokens(split, step)
        assert sorted(found) == expected, split
        if step < 4:
            assert len(set(found)) == GLOBAL_BATCH, split


def test_an_epoch_shows_every_window_once_and_the_next_one_in_another_order() -> None:
    (batches,) = batches_of((1, GLOBAL_BATCH, 1))
    first = [batches.window(sample) for sample in range(100)]
    second = [batches.window(sample) for sample in range(100, 200)]
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    assert [batches_of((1, GLOBAL_BATCH, 1), seed=2)[0].window(sample) for sample in range(100)] != first
    assert batches.window(99) == first[99]
