"""``PREFIX.json``: what a pair of token files is made of. Free of numpy, so that a submission can ask."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpctrain.config.strict_values import read_strictly
from hpctrain.errors import ConfigError
from hpctrain.record.files import json_text, open_regular
from hpctrain.tokens.header import IndexHeader, TokenFileError, bin_path, idx_path

SCHEMA_VERSION = 1
_MOST_BYTES = 2**28
"""A manifest has some 200 bytes for each input; what is larger is another program's file of that name."""
_CHUNK_BYTES = 2**22


@dataclass(frozen=True)
class TokenizerRecord:
    """Which tokenizer made the ids."""

    kind: Literal["bytes", "huggingface"]
    name: str
    """``bytes``, or the file's name."""
    digest: str
    """SHA-256 of the tokenizer's JSON file; of the bytes' own, of its definition."""
    vocab_size: int
    """One above the highest id that it can give."""
    eod_id: int | None
    """The token that ends a document; None where none does (``--no-eod``)."""
    eod_token: str | None
    """Its text, which bytes have none of."""


@dataclass(frozen=True)
class FileRecord:
    """One file with its checksum."""

    path: str
    """As it was named; of the token files themselves the name alone."""
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What the token files hold and what they were made of; no times or machines, so that equal input gives equal bytes."""

    schema_version: int
    tokenizer: TokenizerRecord
    dtype: str
    num_documents: int
    num_empty_documents: int
    """Left out: they had no text, or text that gives no token."""
    num_tokens: int
    max_token_id: int
    bin: FileRecord
    idx: FileRecord
    inputs: tuple[FileRecord, ...]
    text_field: str | None
    """Of JSON lines and Parquet."""
    split_at: str | None
    """What ends a document of plain text; None: the end of the file."""
    versions: dict[str, str]
    """Of hpctrain, and of tokenizers and pyarrow where they were used."""
    command: tuple[str, ...]
    """The words behind ``prepare``."""

    def check_fits(self, header: IndexHeader) -> None:
        """Compares counts and sizes; no byte of the files is read.

        Raises:
            TokenFileError: the manifest is of other files.
        """
        stated = {
            "dtype": self.dtype,
            "documents": self.num_documents,
            "tokens": self.num_tokens,
            "bytes of .bin": self.bin.num_bytes,
            "bytes of .idx": self.idx.num_bytes,
        }
        found = dict(
            zip(
                stated,
                (header.dtype, header.num_documents, header.num_tokens, header.bin_bytes, header.idx_bytes),
                strict=True,
            )
        )
        different = [f"{key} {stated[key]}, the files {found[key]}" for key in stated if stated[key] != found[key]]
        if different:
            raise TokenFileError(
                manifest_path(header.prefix),
                f"is of other files: it says {'; '.join(different)}",
                "prepare them again, or move the manifest away",
            )


def manifest_path(prefix: Path) -> Path:
    """The manifest of a pair of token files."""
    return prefix.with_name(f"{prefix.name}.json")


def tokenizer_path(prefix: Path) -> Path:
    """The tokenizer that was trained with a corpus."""
    return prefix.with_name(f"{prefix.name}.tokenizer.json")


def manifest_text(manifest: Manifest) -> str:
    """The manifest as JSON."""
    return json_text(dataclasses.asdict(manifest))


def read_manifest(prefix: Path) -> Manifest | None:
    """The manifest of the token files, None where there is none.

    Raises:
        TokenFileError: it cannot be read, is no JSON, of another version, or is no manifest.
    """
    path = manifest_path(prefix)
    try:
        with open_regular(path) as stream:
            content = stream.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TokenFileError(path, str(error.strerror)) from None
    fix = "it is no manifest of hpctrain; move it away if it belongs to something else"
    if len(content) > _MOST_BYTES:
        raise TokenFileError(path, f"more than {_MOST_BYTES:,} bytes", fix)
    try:
        raw = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise TokenFileError(path, f"is not UTF-8: 0x{content[error.start]:02x}", fix, offset=error.start) from None
    except ValueError as error:
        raise TokenFileError(path, f"is no JSON: {error}", fix) from None
    except RecursionError:
        raise TokenFileError(path, "is no JSON: brackets in brackets without end", fix) from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION:
        raise TokenFileError(path, f"schema_version={version}, this hpctrain reads {SCHEMA_VERSION}", fix)
    return _parsed(raw, path, fix)


def _parsed(raw: dict[str, Any], path: Path, fix: str) -> Manifest:
    try:
        return read_strictly(Manifest, raw)
    except ConfigError as error:
        raise TokenFileError(path, str(error).replace("\n", "; "), fix) from None


def file_digest(path: Path, told: Callable[[int], None] = lambda num_bytes: None) -> str:
    """SHA-256 of a file.

    Args:
        path: of the file.
        told: called with the number of bytes that were read since its last call.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            told(len(chunk))
    return digest.hexdigest()


def check_digests(prefix: Path, manifest: Manifest, told: Callable[[int], None] = lambda num_bytes: None) -> None:
    """Reads both token files, and the tokenizer that was trained with them, and compares checksums with the manifest's.

    Raises:
        TokenFileError: one differs, or cannot be read.
    """
    stated = [(bin_path(prefix), manifest.bin.sha256), (idx_path(prefix), manifest.idx.sha256)]
    if manifest.tokenizer.name == tokenizer_path(prefix).name:
        stated.append((tokenizer_path(prefix), manifest.tokenizer.digest))
    for path, sha256 in stated:
        try:
            digest = file_digest(path, told)
        except OSError as error:
            raise TokenFileError(path, str(error.strerror)) from None
        if digest != sha256:
            rule = f"its SHA-256 is {digest}, the manifest says {sha256}"
            raise TokenFileError(path, rule, "it was changed or damaged after it was made; prepare it again")
