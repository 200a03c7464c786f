"""Tokenizers: bytes, JSON files, training."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from hpctrain.errors import ConfigError
from hpctrain.tokens.tokenizer import END_OF_TEXT, JsonEncoder, bytes_choice, json_choice, train_bpe

STDLIB = Path(sysconfig.get_path("stdlib"))


def text_of(*names: str) -> str:
    return "".join((STDLIB / name).read_text(encoding="utf-8") for name in names)


@pytest.fixture(scope="module")
def trained() -> str:
    return train_bpe([text_of("abc.py", "argparse.py")], 600)


def words_json(*tokens: str, dropout: float | None = None) -> str:
    """A tokenizer of whole words."""
    if dropout is not None:
        return Tokenizer(models.BPE(vocab={"a": 0}, merges=[], dropout=dropout)).to_str()
    tokenizer = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token=tokens[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer.to_str()


def test_bytes_are_utf_8() -> None:
    choice = bytes_choice(ends_documents=True)
    encoder = choice.encoder()
    parts = encoder.parts(["aé", "", "b"])
    assert list(map(len, parts)) == [3, 0, 1]
    tokens = encoder.joined(parts, None, 3)
    assert (tokens.tolist(), tokens.dtype) == ([97, 0xC3, 0xA9, 98], np.dtype("uint16"))
    assert encoder.joined(parts, 256, 3).tolist() == [97, 0xC3, 0xA9, 256, 256, 98, 256]
    assert encoder.joined(parts, 256, 2).tolist() == [97, 0xC3, 0xA9, 256, 256, 98]
    assert encoder.joined(parts[:1], 256, 0).tolist() == [97, 0xC3, 0xA9]
    assert (choice.record.vocab_size, choice.record.eod_id) == (257, 256)
    assert bytes_choice(ends_documents=False).record.eod_id is None


def test_a_trained_tokenizer_gives_back_the_text(trained: str) -> None:
    tokenizer = Tokenizer.from_str(trained)
    assert tokenizer.get_vocab_size() == 600
    assert tokenizer.token_to_id(END_OF_TEXT) == 0
    text = text_of("bisect.py") + "\u00fc\u4e2d\U0001f600\0\r\n"  # bytes that the training never saw
    encoder = JsonEncoder(trained, 600)
    parts = encoder.parts([text, "", "a"])
    assert tokenizer.decode(parts[0]) == text
    assert len(parts[0]) < 0.6 * len(text.encode())
    assert list(map(len, parts[1:])) == [0, 1]
    expected = [*parts[0], 0, 0, *parts[2]]
    assert encoder.joined(parts, 0, 2).tolist() == expected


def test_training_depends_on_the_text_alone(trained: str) -> None:
    code = (
        "import sys; from hpctrain.tokens.tokenizer import train_bpe; from tests.tokens.test_tokenizer import text_of;"
        "sys.stdout.write(train_bpe([text_of('abc.py', 'argparse.py')], 600))"
    )
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", code]
    answer = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert answer.stdout == trained


def test_little_text_gives_a_smaller_vocabulary() -> None:
    assert Tokenizer.from_str(train_bpe(["abab"], 5000)).get_vocab_size() == 258


def test_special_tokens_spelled_out_in_a_text_are_text(trained: str) -> None:
    assert 0 not in JsonEncoder(trained, 600).parts([f"a{END_OF_TEXT}b"])[0]


def test_a_file_that_cuts_and_fills_up_texts_does_not(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(words_json("<eos>", "a", "b"))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=5)
    assert JsonEncoder(tokenizer.to_str(), 3).parts(["a b a b", "b"]) == [[1, 2, 1, 2], [2]]


def test_ids_of_a_large_vocabulary_are_int32(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(words_json(*[f"w{number}" for number in range(70_000)], "</s>"))
    (tmp_path / "t.json").write_text(tokenizer.to_str())
    choice = json_choice(tmp_path / "t.json", None, True)
    assert choice.record.vocab_size == 70_001
    encoder = choice.encoder()
    tokens = encoder.joined(encoder.parts(["w69999"]), None, 1)
    assert (tokens.tolist(), tokens.dtype) == ([69_999], np.dtype("int32"))


def test_the_vocabulary_ends_above_the_highest_id(tmp_path: Path) -> None:
    raw = json.loads(words_json("</s>", "a"))
    raw["model"]["vocab"]["far"] = 99
    (tmp_path / "t.json").write_text(json.dumps(raw))
    record = json_choice(tmp_path / "t.json", None, True).record
    assert (record.vocab_size, record.eod_id, record.eod_token) == (100, 0, "</s>")
    assert record.digest == hashlib.sha256((tmp_path / "t.json").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("tokens", "config", "eod", "expected"),
    [
        (("u", "</s>"), None, None, "</s>"),
        (("u", "</s>", "<eos>"), None, "<eos>", "<eos>"),
        (("u", "</s>", "fin"), '{"eos_token": "fin"}', None, "fin"),
        (("u", "</s>", "fin"), '{"eos_token": {"content": "fin"}}', None, "fin"),
        (("u", "</s>", "fin"), '{"eos_token": "fin"}', "</s>", "</s>"),
        (("u", "</s>"), '{"eos_token": null}', None, "</s>"),
    ],
    ids=["usual", "stated", "configured", "configured, object", "stated beats configured", "configured as none"],
)
def test_which_token_ends_a_document(
    tmp_path: Path, tokens: tuple[str, ...], config: str | None, eod: str | None, expected: str
) -> None:
    (tmp_path / "tokenizer.json").write_text(words_json(*tokens))
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(config)
    assert json_choice(tmp_path / "tokenizer.json", eod, True).record.eod_token == expected
    assert json_choice(tmp_path / "tokenizer.json", None, False).record.eod_id is None


@pytest.mark.parametrize(
    ("content", "config", "eod", "expected"),
    [
        (None, None, None, "t.json: No such file or directory; name a tokenizer.json, or bytes"),
        ("{", None, None, "t.json: is no JSON of a tokenizer: EOF"),
        ("\udcff", None, None, "is no JSON of a tokenizer: 'utf-8' codec can't decode byte 0xff"),
        (words_json("a"), None, None, "which token ends a document is not clear: it has none of <.endoftext.>.*--eod"),
        (words_json("</s>", "<eos>"), None, None, "it has </s> and <eos>; --eod TOKEN names it, --no-eod does without"),
        (words_json("</s>"), None, "</S>", "--eod=</S>: is no token of .*t.json; nearest: </s>"),
        (words_json("</s>"), "{", None, "tokenizer_config.json: cannot be read: Expecting"),
        (words_json(dropout=0.1), None, None, "model.dropout=0.1 makes ids random"),
    ],
    ids=["missing", "no JSON", "no UTF-8", "no end", "two ends", "unknown end", "config", "dropout"],
)
def test_a_file_that_is_no_tokenizer_for_a_corpus(
    tmp_path: Path, content: str | None, config: str | None, eod: str | None, expected: str
) -> None:
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content, errors="surrogateescape")
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(ConfigError, match=expected):
        json_choice(path, eod, True)


def test_ids_beyond_int32_are_refused(tmp_path: Path) -> None:
    words = {"type": "WordLevel", "vocab": {"a": 2**31, "u": 0}, "unk_token": "u"}
    (tmp_path / "t.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": words}))
    with pytest.raises(ConfigError, match="gives ids up to 2,147,483,648, and a token file has int32 at most"):
        json_choice(tmp_path / "t.json", None, False)


def test_added_tokens_count(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(words_json("u", "a"))
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    (tmp_path / "t.json").write_text(tokenizer.to_str())
    assert json_choice(tmp_path / "t.json", None, True).record.vocab_size == 3
