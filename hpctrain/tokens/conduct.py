"""Text to token files, from the first look at the inputs to the last rename."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import hpctrain
from hpctrain.errors import ConfigError, LaunchError, Problem
from hpctrain.record.files import path_text, plain_text
from hpctrain.tokens.header import ITEM_BYTES, bin_path, idx_path, token_dtype
from hpctrain.tokens.indexed import write_index
from hpctrain.tokens.inputs import UNIT_BYTES, InputError, InputFile, Kind, Unit, find_inputs, plan_units
from hpctrain.tokens.job import (
    SCHEMA_VERSION,
    TOKENIZER,
    Job,
    check_same,
    load_job,
    load_units,
    save_job,
    tokenizer_of,
)
from hpctrain.tokens.manifest import SCHEMA_VERSION as MANIFEST_VERSION
from hpctrain.tokens.manifest import FileRecord, Manifest, read_manifest, tokenizer_path
from hpctrain.tokens.partial import (
    INDEX,
    LOCK,
    SIZES,
    TOKENS,
    JoinedUnits,
    add_digest,
    existing_output,
    give_names,
    is_done,
    locked,
    partial_path,
    read_digests,
    refuse_output,
    remove_work,
    save_manifest,
    synced_record,
)
from hpctrain.tokens.tokenizer import BYTES, LARGEST_BPE, SMALLEST_BPE, TokenizerChoice, json_choice
from hpctrain.tokens.unit_file import unit_path
from hpctrain.tokens.workers import FULL, PrepareError, Task, Workers, disk_full

Told = Callable[[str, int, int], None]
"""Gets the stage, the bytes of input that it has read since the last call, and those that it has to read in all."""
_BPE_ADVICE = "8192 suits some MB of text, 32768 some GB"
_MOST_NAME_BYTES = 255
"""Source: linux/limits.h, NAME_MAX."""
_STAGES = {"unit": "encoding", "digest": "checksums"}


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    files: tuple[str, ...]
    out: Path
    tokenizer: str | None
    """``bytes`` or the path of a JSON file; None: a BPE is trained."""
    train_bpe: int | None
    """Its vocabulary."""
    kind: Kind | None
    field: str | None
    split_at: str | None
    eod: str | None
    ends_documents: bool
    workers: int
    force: bool
    command: tuple[str, ...]
    unit_bytes: int = UNIT_BYTES


def prepare(request: Request, told: Told) -> Manifest:
    """Makes the token files of a corpus, or goes on where an earlier call with the same request was stopped.

    The result depends on the inputs and the request alone, to the byte: not on ``workers``, nor on where it was stopped.

    Raises:
        ConfigError: the request or an input is wrong; all problems that are seen at once.
        PrepareError: a worker failed, the disk is full.
        OSError: the output's folder cannot be written.
    """
    inputs = _checked(request)
    prefix, folder = request.out, partial_path(request.out)
    trains = request.train_bpe is not None
    _refuse_existing(request, folder)
    choice = None if request.tokenizer in (None, BYTES) else _json_choice(request)
    job = _job(request, inputs, choice)
    try:
        folder.mkdir(exist_ok=True)
        with locked(folder):
            _refuse_existing(request, folder)  # that another call has made meanwhile
            _begin(folder, job, choice, force=request.force)
            if not is_done(folder):
                _work(request, job, folder, told)
            give_names(folder, prefix, with_tokenizer=trains)
    except OSError as error:
        if error.errno in FULL:
            raise disk_full(folder, str(error.strerror)) from None
        words = error.strerror or str(error)
        raise PrepareError(f"{path_text(Path(error.filename or folder))}: {words}") from error
    manifest = read_manifest(prefix)
    assert manifest is not None
    return manifest


def _refuse_existing(request: Request, folder: Path) -> None:
    """Raises ConfigError where a corpus would be replaced that is not to be."""
    if request.force or is_done(folder):
        return
    if there := existing_output(request.out, with_tokenizer=request.train_bpe is not None):
        if folder.is_dir() and not any(path.name != LOCK for path in folder.iterdir()):
            remove_work(folder)
        raise refuse_output(request.out, there)


def _checked(request: Request) -> tuple[InputFile, ...]:
    """The inputs; raises ConfigError with what is wrong with the request as a whole."""
    problems = [*_output_problems(request), *_word_problems(request)]
    if request.train_bpe is not None and request.train_bpe < SMALLEST_BPE:
        rule = f"a byte-level BPE has 256 bytes and the end of a document, {SMALLEST_BPE} ids at least"
        problems.append(Problem("--train-bpe", str(request.train_bpe), rule, _BPE_ADVICE))
    if request.train_bpe is not None and request.train_bpe > LARGEST_BPE:
        rule = f"must be at most {LARGEST_BPE:,}"
        problems.append(Problem("--train-bpe", str(request.train_bpe), rule, _BPE_ADVICE))
    if request.eod is not None and (request.tokenizer in (None, BYTES) or not request.ends_documents):
        problems.append(Problem("--eod", request.eod, "belongs to --tokenizer FILE without --no-eod", "leave it out"))
    try:
        inputs = find_inputs(request.files, request.kind)
    except ConfigError as error:
        raise ConfigError((*problems, *error.problems)) from None
    kind = inputs[0].kind
    if kind == "text" and request.field is not None:
        fix = "leave it out, or state --kind jsonl"
        problems.append(Problem("--field", request.field, "text has no fields; JSON lines and Parquet have", fix))
    if kind != "text" and request.split_at is not None:
        rule = f"each row of {kind} is a document already; only text is split"
        problems.append(Problem("--split-at", repr(request.split_at), rule, "leave it out"))
    there = [] if problems else existing_output(request.out, with_tokenizer=True)
    outputs = {os.path.realpath(path) for path in there}
    read = [(f"the input {file.path}", file.path) for file in inputs]
    if request.tokenizer not in (None, BYTES):
        read.append((f"the tokenizer {request.tokenizer}", str(request.tokenizer)))
    problems += [
        Problem("--out", path_text(request.out), f"would replace {what}", "name another")
        for what, path in read
        if os.path.realpath(path) in outputs
    ]
    if problems:
        raise ConfigError(problems)
    packages = _packages(inputs, uses_tokenizers=request.tokenizer != BYTES)
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise LaunchError(f"prepare needs {', '.join(missing)}; pip install 'hpctrain[data]'")
    return inputs


def _word_problems(request: Request) -> list[Problem]:
    """The manifest is UTF-8, and keeps all words."""
    words = {
        "--tokenizer": (request.tokenizer, "rename it, or link to it by another name"),
        "--field": (request.field, "a field's name is UTF-8"),
        "--split-at": (request.split_at, "text is UTF-8"),
        "--eod": (request.eod, "a token is UTF-8"),
    }
    return [
        Problem(key, plain_text(word), "is not UTF-8, and the manifest could not tell it", fix)
        for key, (word, fix) in words.items()
        if word is not None and plain_text(word) != word
    ]


def _output_problems(request: Request) -> list[Problem]:
    out, word = request.out, path_text(request.out)
    if word != str(out):
        return [
            Problem("--out", word, "the name is not UTF-8, and the manifest could not tell it", "take another name")
        ]
    longest = _MOST_NAME_BYTES - len(tokenizer_path(Path("x")).name) + 1
    if (num_bytes := len(os.fsencode(out.name))) > longest:
        rule = f"the name has {num_bytes} bytes, and with the endings of its files more than {_MOST_NAME_BYTES}"
        return [Problem("--out", word, rule, f"{longest} bytes or fewer")]
    if os.path.isdir(out) or not out.name:
        return [Problem("--out", word, "is a folder", f"name the files in it: {path_text(out / 'corpus')}")]
    if not os.path.isdir(out.parent):
        nearest = next(parent for parent in out.absolute().parents if os.path.isdir(parent))
        fix = f"{path_text(nearest)} is there; mkdir -p {path_text(out.parent)}"
        return [Problem("--out", word, f"there is no folder {path_text(out.parent)}", fix)]
    if out.suffix in (".bin", ".idx", ".json"):
        fix = f"--out {path_text(out.with_suffix(''))}"
        return [Problem("--out", word, "is a prefix, to which .bin, .idx and .json are added", fix)]
    if not os.access(out.parent, os.W_OK):
        return [Problem("--out", word, f"{path_text(out.parent)} may not be written", "name another folder")]
    folders = [path for path in existing_output(out, with_tokenizer=True) if path.is_dir() and not path.is_symlink()]
    return [Problem("--out", word, f"{path.name} is a folder", "name another prefix") for path in folders]


def _json_choice(request: Request) -> TokenizerChoice:
    assert request.tokenizer is not None
    return json_choice(Path(request.tokenizer), request.eod, request.ends_documents)


def _job(request: Request, inputs: tuple[InputFile, ...], choice: TokenizerChoice | None) -> Job:
    eod, digest, name = request.eod, BYTES, BYTES
    if choice is not None:
        # What stands beside the tokenizer's file is looked at once, now.
        eod, digest, name = choice.record.eod_token, choice.record.digest, choice.record.name
    elif request.train_bpe is not None:
        digest, name = "", tokenizer_path(request.out).name
    packages = _packages(inputs, uses_tokenizers=digest != BYTES)
    versions = {"hpctrain": hpctrain.__version__}
    versions |= {package: importlib.metadata.version(package) for package in packages}
    return Job(
        SCHEMA_VERSION,
        inputs,
        digest,
        name,
        request.train_bpe,
        eod,
        request.ends_documents,
        "text" if request.field is None else request.field,
        request.split_at,
        request.unit_bytes,
        versions,
    )


def _packages(inputs: tuple[InputFile, ...], *, uses_tokenizers: bool) -> list[str]:
    """What the work needs beside numpy."""
    uses_arrow = any(file.kind == "parquet" or file.compression == "zstd" for file in inputs)
    return ["tokenizers"] * uses_tokenizers + ["pyarrow"] * uses_arrow


def _begin(folder: Path, job: Job, choice: TokenizerChoice | None, *, force: bool) -> None:
    """Makes the folder one of this job, new or as an earlier call left it."""
    try:
        earlier = load_job(folder)
        if earlier is not None:
            check_same(earlier, job, folder)
            return
    except ConfigError:
        if not force:
            raise
    for path in folder.iterdir():
        if path.name != "lock":
            path.unlink()
    units = plan_units(job.inputs, job.split_at, job.unit_bytes, job.field)
    save_job(folder, job, units, None if choice is None else choice.content)


def _work(request: Request, job: Job, folder: Path, told: Told) -> None:
    units = load_units(folder)
    if job.train_bpe is not None and not (folder / TOKENIZER).exists():
        total = sum(file.num_bytes for file in job.inputs)
        told("training", 0, total)
        with Workers(folder, 1, training_threads=request.workers) as workers:
            for _ in workers.run([Task("train", job.train_bpe)], lambda task, done: told("training", done, total)):
                pass
    choice = tokenizer_of(job, folder)
    joined = JoinedUnits(folder)
    try:
        _encode(request, job, units, folder, joined, told)
    finally:
        joined.close()
    state = joined.state
    if state.token_bytes == 0:
        remove_work(folder)
        num_bytes = sum(file.num_bytes for file in job.inputs)
        rule = f"no token in {len(job.inputs):,} file(s) of {num_bytes:,} bytes: {state.num_empty:,} documents without text"
        raise InputError(job.inputs[0].path, "", rule, "name other files, or another --field")
    _finish(request, job, folder, choice, joined)


def _encode(request: Request, job: Job, units: Sequence[Unit], folder: Path, joined: JoinedUnits, told: Told) -> None:
    """Has all units and checksums made that are not there yet, and joins the units."""
    joined.append_ready()
    missing = [number for number in range(joined.state.next_unit, len(units)) if not unit_path(folder, number).exists()]
    unread = sorted(set(range(len(job.inputs))) - read_digests(folder).keys())
    # Each input is read twice: for its tokens, and whole for its checksum.
    total = sum(file.num_bytes for file in job.inputs)
    told("encoding", total - sum(segment.num_bytes for number in missing for segment in units[number]), total)
    tasks = [Task("unit", number) for number in missing] + [Task("digest", number) for number in unread]
    if not tasks:
        return
    with Workers(folder, min(request.workers, len(tasks))) as workers:
        for task, result in workers.run(tasks, lambda task, done: told(_STAGES[task.name], done, total)):
            if task.name == "digest":
                add_digest(folder, task.number, result)
            else:
                joined.append_ready()


def _finish(request: Request, job: Job, folder: Path, choice: TokenizerChoice, joined: JoinedUnits) -> None:
    """Writes the index and the manifest."""
    state, prefix, record = joined.state, request.out, choice.record
    dtype = token_dtype(record.vocab_size)
    sizes = np.memmap(folder / SIZES, "<i8", "r", shape=(state.num_sizes,))
    with (folder / INDEX).open("wb") as stream:
        write_index(stream, dtype, sizes)
    digests = read_digests(folder)
    kinds = {file.kind for file in job.inputs}
    save_manifest(
        folder,
        Manifest(
            MANIFEST_VERSION,
            record,
            dtype,
            state.num_sizes,
            state.num_empty,
            state.token_bytes // ITEM_BYTES[dtype],
            state.max_id,
            synced_record(folder / TOKENS, bin_path(prefix).name, state.tokens_sha256),
            synced_record(folder / INDEX, idx_path(prefix).name),
            tuple(FileRecord(file.path, file.num_bytes, digests[number]) for number, file in enumerate(job.inputs)),
            None if kinds == {"text"} else job.field,
            job.split_at,
            job.versions,
            request.command,
        ),
    )
