"""Which tokenizer goes with an exported model."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.cli import run as run_words
from hpctrain.config.schema import DataConfig
from hpctrain.errors import ConfigError
from hpctrain.huggingface.run_tokenizer import RunTokenizer, run_tokenizer


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``bpe`` and ``bytes``, both of one text."""
    folder = tmp_path_factory.mktemp("corpora")
    text = folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 50)
    for name, words in (("bpe", ["--train-bpe", "300"]), ("bytes", ["--tokenizer", "bytes"])):
        assert run_words(["prepare", str(text), "--out", str(folder / name), "--workers", "1", *words]) == 0
    return folder


def tokens(prefix: Path) -> DataConfig:
    return DataConfig("tokens", "tokens", path=str(prefix))


def test_one_that_was_trained_with_the_corpus(corpora: Path) -> None:
    beside = corpora / "bpe.tokenizer.json"
    found = run_tokenizer(tokens(corpora / "bpe"), None)
    assert (found.file, found.note) == (beside, "")
    assert (found.eos_token_id, found.eos_token) == (0, "<|endoftext|>")
    assert run_tokenizer(tokens(corpora / "bpe"), beside) == found


def test_another_one_than_the_manifests_is_refused(corpora: Path, tmp_path: Path) -> None:
    other = tmp_path / "tokenizer.json"
    other.write_text((corpora / "bpe.tokenizer.json").read_text() + "\n")
    rule = r"--tokenizer=.*: has digest [0-9a-f]{16}, and the run's tokens were made with .* of digest [0-9a-f]{16}"
    with pytest.raises(ConfigError, match=rule):
        run_tokenizer(tokens(corpora / "bpe"), other)
    with pytest.raises(ConfigError, match=r"gone.json: No such file"):
        run_tokenizer(tokens(corpora / "bpe"), tmp_path / "gone.json")


def test_one_that_is_not_beside_the_corpus_is_asked_for(corpora: Path) -> None:
    beside = corpora / "bpe.tokenizer.json"
    away = beside.rename(corpora / "elsewhere.json")
    try:
        found = run_tokenizer(tokens(corpora / "bpe"), None)
        assert found.file is None
        assert "tokenizer.json is left out: name bpe.tokenizer.json" in found.note
        assert run_tokenizer(tokens(corpora / "bpe"), away).file == away
    finally:
        away.rename(beside)


def test_bytes_have_an_end_and_no_file(corpora: Path) -> None:
    note = "its tokens are bytes, for which there is no tokenizer.json"
    for data in (tokens(corpora / "bytes"), DataConfig("stdlib", "stdlib"), DataConfig("text", "text", path="x")):
        assert run_tokenizer(data, None) == RunTokenizer(256, None, note)


def test_a_corpus_that_is_gone_or_another_programs_is_told(corpora: Path, tmp_path: Path) -> None:
    assert "there is no manifest" in run_tokenizer(tokens(tmp_path / "gone"), None).note
    (tmp_path / "damaged.json").write_text("{")
    assert "the tokenizer is not known: " in run_tokenizer(tokens(tmp_path / "damaged"), None).note
    for ending in ("bin", "idx"):
        (tmp_path / f"foreign.{ending}").write_bytes((corpora / f"bpe.{ending}").read_bytes())
    found = run_tokenizer(tokens(tmp_path / "foreign"), None)
    assert (found.eos_token_id, found.file) == (None, None)
    assert "there is no manifest" in found.note
