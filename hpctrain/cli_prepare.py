"""``prepare``: text, JSON lines or Parquet to token files, and a check of such files."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain.config.hydra_text import typed_override
from hpctrain.errors import EXIT_OK, ConfigError, LaunchError
from hpctrain.launch.termination import Terminated, terminable
from hpctrain.text_table import printable

if TYPE_CHECKING:
    from hpctrain.tokens.conduct import Told
    from hpctrain.tokens.manifest import Manifest

_SECONDS_BETWEEN_LINES = 20.0
"""Where standard error is no terminal."""
_MB = 1e6


def prepare(words: Sequence[str]) -> int:
    """Makes token files of a corpus, or checks some; the exit code.

    Raises:
        ConfigError: a word is wrong, or an input.
        LaunchError: a package is missing.
        PrepareError: the disk is full, a worker died.
        TokenFileError: with --check, what is wrong with the files.
    """
    known = _parser().parse_args(list(words))
    if importlib.util.find_spec("numpy") is None:
        raise LaunchError("prepare needs numpy; pip install 'hpctrain[data]'")
    if known.check is not None:
        return _check(known)
    _check_words(known)
    from hpctrain.tokens.conduct import Request
    from hpctrain.tokens.conduct import prepare as make

    request = Request(
        files=tuple(known.files),
        out=known.out,
        tokenizer=known.tokenizer,
        train_bpe=known.train_bpe,
        kind=known.kind,
        field=known.field,
        split_at=None if known.split_at is None else _unescaped(known.split_at),
        eod=known.eod,
        ends_documents=not known.no_eod,
        workers=known.workers,
        force=known.force,
        command=tuple(words),
    )
    start_s = time.monotonic()
    try:
        with terminable(), _progress() as told:
            manifest = make(request, told)
    except KeyboardInterrupt as interrupt:
        end = "ended by SIGTERM" if isinstance(interrupt, Terminated) else "stopped"
        print(printable(f"hpctrain: {end}; the same command goes on where it was"), file=sys.stderr)
        raise
    print(_summary(known.out, manifest, time.monotonic() - start_s))
    return EXIT_OK


def _check_words(known: argparse.Namespace) -> None:
    """Raises ConfigError where words are missing or contradict one another."""
    if not known.files:
        raise ConfigError("FILES: none is named; python -m hpctrain prepare FILES... --out PREFIX --tokenizer bytes")
    if known.out is None:
        raise ConfigError("--out: must be given; --out PREFIX makes PREFIX.bin, PREFIX.idx and PREFIX.json")
    if (known.tokenizer is None) == (known.train_bpe is None):
        rule = "both are given" if known.tokenizer else "neither is given"
        raise ConfigError(f"--tokenizer, --train-bpe: {rule}; --tokenizer bytes, --tokenizer FILE or --train-bpe 8192")
    if known.workers < 1:
        raise ConfigError(f"--workers={known.workers}: must be 1 or more; this process may use {_num_cpus()} CPUs")
    if known.split_at == "":
        raise ConfigError("--split-at: is empty; state the text that ends a document, or leave it out")


def _unescaped(word: str) -> str:
    """``\\n``, ``\\r`` and ``\\t`` as a shell passes them on."""
    return word.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t")


def _num_cpus() -> int:
    return len(os.sched_getaffinity(0))


@contextmanager
def _progress() -> Iterator[Told]:
    """A bar for each stage on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks = {}

        def told(stage: str, num_bytes: int, total: int) -> None:
            if stage not in tasks:
                # What an earlier call did is no part of the speed.
                tasks[stage] = bars.add_task(stage, total=total, completed=num_bytes)
            else:
                bars.advance(tasks[stage], num_bytes)

        yield told


def _lines() -> Callable[[str, int, int], None]:
    done: dict[str, int] = {}
    last_s = time.monotonic()

    def told(stage: str, num_bytes: int, total: int) -> None:
        nonlocal last_s
        done[stage] = done.get(stage, 0) + num_bytes
        if time.monotonic() - last_s >= _SECONDS_BETWEEN_LINES:
            last_s = time.monotonic()
            print(f"{stage} {done[stage] / _MB:,.1f} of {total / _MB:,.1f} MB", file=sys.stderr, flush=True)

    return told


def _summary(prefix: Path, manifest: Manifest, seconds: float) -> str:
    record = manifest.tokenizer
    num_bytes = sum(file.num_bytes for file in manifest.inputs)
    empty = f", {manifest.num_empty_documents:,} without text left out" if manifest.num_empty_documents else ""
    end = (
        "documents end with no token"
        if record.eod_id is None
        else f"{record.eod_token or 'id'} {record.eod_id} ends a document"
    )
    rows = (
        ("corpus", f"{prefix}: {manifest.num_documents:,} documents, {manifest.num_tokens:,} tokens{empty}"),
        ("tokenizer", f"{record.name}, vocabulary {record.vocab_size:,}, {end}"),
        ("files", f"{prefix}.bin ({manifest.bin.num_bytes / _MB:,.1f} MB, {manifest.dtype}), .idx, .json"),
        ("input", f"{len(manifest.inputs):,} files, {num_bytes / _MB:,.1f} MB, in {seconds:,.1f} s"),
        (
            "train",
            f"python -m hpctrain model=tiny cluster=local data=tokens {typed_override('data.path', str(prefix))}"
            f" model.vocab_size={record.vocab_size}",
        ),
    )
    return "\n".join(printable(f"{name:<10} {text}", kept="") for name, text in rows)


def _check(known: argparse.Namespace) -> int:
    """Reads everything of a corpus and says what it is."""
    from hpctrain.tokens.header import token_prefix
    from hpctrain.tokens.indexed import check_ids, check_structure, open_tokens
    from hpctrain.tokens.manifest import check_digests

    if known.files or known.out:
        raise ConfigError(
            f"--check {known.check}: stands alone; {'FILES' if known.files else '--out'} belongs to a new corpus"
        )
    files = open_tokens(token_prefix(known.check))
    header, manifest = files.header, files.manifest
    check_structure(files)
    with terminable(), _progress() as told:
        vocab_size = 2**63 if manifest is None else manifest.tokenizer.vocab_size
        highest = check_ids(files, vocab_size, lambda done: told("token ids", done, header.bin_bytes))
        if manifest is not None:
            total = header.bin_bytes + header.idx_bytes
            check_digests(header.prefix, manifest, lambda done: told("checksums", done, total))
    print(
        printable(
            f"{header.prefix}: {header.num_documents:,} documents, {header.num_tokens:,} tokens of {header.dtype},"
            f" the highest is {highest:,}; the index is whole",
            kept="",
        )
    )
    if manifest is None:
        print("there is no manifest: no checksum to compare, and no vocabulary to hold the ids against")
    else:
        record = manifest.tokenizer
        print(printable(f"checksums as in the manifest; {record.name}, vocabulary {record.vocab_size:,}", kept=""))
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hpctrain prepare",
        description="Turns text, JSON lines or Parquet into token files (Megatron's PREFIX.bin and PREFIX.idx, with a manifest"
        " PREFIX.json) that data=tokens trains on. Killed, the same command goes on where it was.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("files", nargs="*", metavar="FILES", help="of one kind; .gz and .zst are unpacked on the way")
    add("--out", type=Path, metavar="PREFIX", help="where to, without an ending")
    add("--tokenizer", metavar="FILE|bytes", help="a tokenizer.json, or bytes: UTF-8 as it is, vocabulary 257")
    add(
        "--train-bpe", type=int, metavar="VOCAB_SIZE", help="train a byte-level BPE on the files: PREFIX.tokenizer.json"
    )
    add("--kind", choices=("text", "jsonl", "parquet"), help="of the files; else by their names")
    add("--field", metavar="NAME", help="of JSON lines or Parquet that holds the text (default text)")
    add("--split-at", metavar="TEXT", help=r"what ends a document of text, as '\n\n'; else each file is one")
    add("--eod", metavar="TOKEN", help="of the tokenizer file, which ends a document; else its eos token")
    add("--no-eod", action="store_true", help="no token ends a document")
    add(
        "--workers",
        type=int,
        default=_num_cpus(),
        metavar="N",
        help="processes (default: the CPUs it may use, %(default)s)",
    )
    add("--force", action="store_true", help="replace a corpus, or work that was begun with other words")
    add("--check", type=Path, metavar="PREFIX", help="read a corpus whole: structure, ids, checksums")
    return parser
