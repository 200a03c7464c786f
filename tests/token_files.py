"""Token files made from arrays, with a manifest or without."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpctrain.tokens.header import bin_path, idx_path
from hpctrain.tokens.indexed import write_index
from hpctrain.tokens.manifest import FileRecord, Manifest, TokenizerRecord, manifest_path, manifest_text


def write_tokens(
    prefix: Path,
    tokens: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.integer]],
    dtype: str = "uint16",
    document_tokens: int = 100,
    tokenizer: str | None = None,
    vocab_size: int = 260,
) -> Path:
    """``PREFIX.bin`` and ``PREFIX.idx`` of documents of equal length (the last may be shorter); returns ``prefix``.

    Args:
        prefix: where.
        tokens: all of them.
        dtype: of a token in the file.
        document_tokens: length of a document.
        tokenizer: name of the one in the manifest, of which its digest is made; None: no manifest.
        vocab_size: of that tokenizer.
    """
    array = np.asarray(tokens).astype(dtype)
    sizes = np.diff(np.append(np.arange(0, len(array), document_tokens), len(array)))
    bin_path(prefix).write_bytes(array.tobytes())
    with idx_path(prefix).open("wb") as stream:
        write_index(stream, dtype, sizes.astype(np.int64))
    if tokenizer is not None:
        digest = hashlib.sha256(tokenizer.encode()).hexdigest()
        manifest = Manifest(
            schema_version=1,
            tokenizer=TokenizerRecord("huggingface", tokenizer, digest, vocab_size, None, None),
            dtype=dtype,
            num_documents=len(sizes),
            num_empty_documents=0,
            num_tokens=len(array),
            max_token_id=int(array.max()) if len(array) else -1,
            bin=_record(bin_path(prefix)),
            idx=_record(idx_path(prefix)),
            inputs=(),
            text_field=None,
            split_at=None,
            versions={},
            command=(),
        )
        manifest_path(prefix).write_text(manifest_text(manifest), encoding="utf-8")
    return prefix


def _record(path: Path) -> FileRecord:
    content = path.read_bytes()
    return FileRecord(path.name, len(content), hashlib.sha256(content).hexdigest())
