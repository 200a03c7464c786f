"""Which token ends a document of a run, and its tokenizer's file: what an exported model is used with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.config.schema import DataConfig
from hpctrain.errors import ConfigError, HpctrainError, Problem
from hpctrain.plan.rules.data import named_paths
from hpctrain.tokens.header import token_prefix
from hpctrain.tokens.manifest import file_digest, manifest_path, read_manifest, tokenizer_path
from hpctrain.tokens.tokenizer import bytes_choice

_BYTES = "its tokens are bytes, for which there is no tokenizer.json"


@dataclass(frozen=True)
class RunTokenizer:
    """Of a run's data."""

    eos_token_id: int | None
    """None: no token ends a document, or nobody says which."""
    file: Path | None
    """Its JSON, as Hugging Face's ``tokenizers`` writes it."""
    note: str = ""
    """Why there is no file, for the user."""
    eos_token: str | None = None
    """The text of ``eos_token_id``, where the manifest tells it."""


def tokenizer_config(tokenizer: RunTokenizer, max_seq_len: int) -> dict[str, Any]:
    """What tokenizer_config.json says beside tokenizer.json.

    Without it transformers takes the class by the model's type and not by the file: for a Llama, release 4 puts ``<s>`` in front,
    with an id beyond a vocabulary that has none, and no release knows which token ends a document.
    """
    eos = {} if tokenizer.eos_token is None else {"eos_token": tokenizer.eos_token}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_seq_len,
        "clean_up_tokenization_spaces": False,
        **eos,
    }


def run_tokenizer(data: DataConfig, stated: Path | None) -> RunTokenizer:
    """What the data of a run names.

    Args:
        data: of the run's configuration.
        stated: a tokenizer's file that the user names; checked against the digest in the manifest.

    Raises:
        ConfigError: the stated file is missing, or another one than the manifest names.
    """
    digest = None if stated is None else _digest(stated)
    if data.kind == "synthetic":
        return RunTokenizer(None, stated, "" if stated else "the tokens are made up, so there is no tokenizer")
    if data.kind != "tokens":
        return RunTokenizer(bytes_choice(True).record.eod_id, stated, "" if stated else _BYTES)
    _, named = named_paths(data)[0]
    try:
        prefix = token_prefix(Path(named))
        manifest = read_manifest(prefix)
    except (HpctrainError, OSError) as error:
        return RunTokenizer(None, stated, f"the tokenizer is not known: {error}")
    if manifest is None:
        note = f"there is no manifest {manifest_path(prefix)}, so the tokenizer and the end of a document are not known"
        return RunTokenizer(None, stated, note)
    record = manifest.tokenizer
    if record.kind == "bytes":
        return RunTokenizer(record.eod_id, stated, "" if stated else _BYTES)
    beside = tokenizer_path(prefix)
    file = stated or (beside if beside.is_file() else None)
    if file is None:
        what = f"{record.name} (digest {record.digest[:16]})"
        return RunTokenizer(record.eod_id, None, f"tokenizer.json is left out: name {what} with --tokenizer FILE")
    if (found := digest or _digest(file)) != record.digest:
        rule = (
            f"has digest {found[:16]}, and the run's tokens were made with {record.name} of digest {record.digest[:16]}"
        )
        raise ConfigError([Problem("--tokenizer", str(file), rule, "name the file that prepare was given")])
    return RunTokenizer(record.eod_id, file, eos_token=record.eod_token)


def _digest(file: Path) -> str:
    try:
        return file_digest(file)
    except OSError as error:
        raise ConfigError(f"--tokenizer {file}: {error.strerror}") from None
