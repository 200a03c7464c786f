"""A process that encodes units, reads checksums or trains a tokenizer, as the process that started it asks.

``python -m hpctrain.tokens.worker FOLDER PARENT THREADS``: each line of standard input is a task, each of standard output an
answer, both JSON. It ends when its input does, and with its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from hpctrain.errors import EXIT_FAILED, HpctrainError

_SET_DEATH_SIGNAL = 1
"""Source: linux/prctl.h, PR_SET_PDEATHSIG."""
_BYTES_BETWEEN_WORDS = 2**20

Say = Callable[[dict[str, Any]], None]


def main() -> None:
    folder, parent, training_threads = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    _end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the parent decides
    # What a library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # Where texts are encoded, the processes are what runs side by side.
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if training_threads else "false"
    os.environ["RAYON_NUM_THREADS"] = str(training_threads or 1)
    try:
        _serve(folder, sys.stdin, answers)
    except BrokenPipeError:  # the parent has ended
        os._exit(1)


def _end_with_parent(parent: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(_SET_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before that
        os._exit(1)


def _serve(folder: Path, tasks: IO[str], answers: IO[str]) -> None:
    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    from hpctrain.record.files import path_text
    from hpctrain.tokens.workers import FULL

    work: _Work | None = None
    for line in tasks:
        task = json.loads(line)
        try:
            work = work or _Work(folder, say)
            result = work.do(task["name"], task["number"])
        except HpctrainError as error:
            say({"failed": str(error), "exit_code": error.exit_code})
        except OSError as error:
            if error.errno in FULL:
                say({"full": error.strerror})
            else:
                words = f"{path_text(Path(error.filename or folder))}: {error.strerror or error}"
                say({"failed": words, "exit_code": EXIT_FAILED})
        else:
            say({"done": result})


class _Work:
    """The job, as it is known to one worker."""

    def __init__(self, folder: Path, say: Say) -> None:
        from hpctrain.tokens.inputs import InputError
        from hpctrain.tokens.job import load_job, load_units

        job = load_job(folder)
        if job is None:
            raise InputError(folder, "", "the job is gone", "another process removed it")
        self._folder, self._say, self._job, self._units = folder, say, job, load_units(folder)
        self._choice: Any = None
        self._unsaid_bytes = 0

    def do(self, task: str, number: int) -> Any:
        """One task; a result that is not already in a file.

        Raises:
            HpctrainError: an input is not what it should be.
            OSError: the disk is full, an input cannot be read.
        """
        result = {"unit": self._encode, "digest": self._digest, "train": self._train}[task](number)
        if self._unsaid_bytes:
            self._say({"read": self._unsaid_bytes})
            self._unsaid_bytes = 0
        return result

    def _encode(self, number: int) -> None:
        from hpctrain.tokens.documents import segment_batches
        from hpctrain.tokens.inputs import check_unchanged
        from hpctrain.tokens.job import tokenizer_of
        from hpctrain.tokens.unit_file import UnitWriter, unit_path

        job, unit = self._job, self._units[number]
        if self._choice is None:
            self._choice = tokenizer_of(job, self._folder)
            self._encoder = self._choice.encoder()
        first = unit[0]
        is_whole_text = job.inputs[first.file].kind == "text" and job.split_at is None
        path = unit_path(self._folder, number)
        eod_id = self._choice.record.eod_id
        writer = UnitWriter(path, self._encoder, eod_id, continues=is_whole_text and first.start > 0)
        try:
            for segment in unit:
                file = job.inputs[segment.file]
                check_unchanged(file)
                for batch in segment_batches(file, segment, job.reading):
                    writer.add(batch)
                    self._read(batch.num_bytes)
            writer.finish()
        except BaseException:
            writer.abandon()
            raise

    def _digest(self, number: int) -> str:
        from hpctrain.tokens.inputs import check_unchanged
        from hpctrain.tokens.manifest import file_digest

        file = self._job.inputs[number]
        digest = file_digest(Path(file.path), self._read)
        check_unchanged(file)
        return digest

    def _train(self, vocab_size: int) -> None:
        from hpctrain.record.files import replace_file
        from hpctrain.tokens.job import TOKENIZER
        from hpctrain.tokens.tokenizer import train_bpe

        replace_file(self._folder / TOKENIZER, train_bpe(self._all_texts(), vocab_size).encode())

    def _all_texts(self) -> Iterator[str]:
        from hpctrain.tokens.documents import segment_batches
        from hpctrain.tokens.inputs import check_unchanged

        for unit in self._units:
            for segment in unit:
                file = self._job.inputs[segment.file]
                check_unchanged(file)
                for batch in segment_batches(file, segment, self._job.reading):
                    yield from batch.texts
                    self._read(batch.num_bytes)

    def _read(self, num_bytes: int) -> None:
        """Tells how far it is, now and then."""
        self._unsaid_bytes += num_bytes
        if self._unsaid_bytes >= _BYTES_BETWEEN_WORDS:
            self._say({"read": self._unsaid_bytes})
            self._unsaid_bytes = 0


if __name__ == "__main__":
    main()
