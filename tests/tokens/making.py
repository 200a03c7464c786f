"""Requests to ``prepare``, and what came of them."""

from __future__ import annotations

import dataclasses
import itertools
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpctrain.tokens.conduct import Request, prepare
from hpctrain.tokens.indexed import check_ids, check_structure, open_tokens
from hpctrain.tokens.manifest import Manifest
from tests.tokens.test_tokenizer import text_of

SOURCE = Path(__file__).parents[2]
OUTPUTS = (".bin", ".idx", ".json")


def request(files: Sequence[Path | str], out: Path, **changes: Any) -> Request:
    plain = Request(
        files=tuple(map(str, files)),
        out=out,
        tokenizer="bytes",
        train_bpe=None,
        kind=None,
        field=None,
        split_at=None,
        eod=None,
        ends_documents=True,
        workers=1,
        force=False,
        command=("words",),
    )
    return dataclasses.replace(plain, **changes)


def silent(stage: str, num_bytes: int, total: int) -> None:
    del stage, num_bytes, total


def make(files: Sequence[Path | str], out: Path, **changes: Any) -> Manifest:
    return prepare(request(files, out, **changes), silent)


def documents_of(prefix: Path) -> list[list[int]]:
    """The ids of each document, after all checks."""
    files = open_tokens(prefix)
    assert files.manifest is not None
    check_structure(files)
    assert check_ids(files, files.manifest.tokenizer.vocab_size) == files.manifest.max_token_id
    offsets = files.document_offsets().tolist()
    return [files.tokens[start:stop].tolist() for start, stop in itertools.pairwise(offsets)]


def contents(prefix: Path, endings: Sequence[str] = OUTPUTS) -> list[bytes]:
    return [Path(f"{prefix}{ending}").read_bytes() for ending in endings]


def write_corpus(tmp_path: Path) -> list[Path]:
    """A large file of text between small ones."""
    texts = ["a\u00fc", "", text_of("heapq.py", "bisect.py"), "\u4e2d", text_of("abc.py")]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
    return [tmp_path / f"{number}.txt" for number in range(len(texts))]


def command(*words: object, limit_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    def limited() -> None:
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))

    line = [sys.executable, "-m", "hpctrain", "prepare", *map(str, words)]
    return subprocess.run(line, cwd=SOURCE, capture_output=True, text=True, check=False, preexec_fn=limited)
