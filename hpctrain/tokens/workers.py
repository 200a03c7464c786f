"""The workers of ``prepare``, seen from the process that started them: who does what, what became of it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from hpctrain.errors import EXIT_FAILED, HpctrainError
from hpctrain.record.files import path_text

_TASKS_AHEAD = 2
"""Of each worker, so that none waits for this process."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the kernel says of a full disk, an exhausted quota, a file that may not grow."""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""numpy's library would start as many threads in each worker as there are processors."""
_LAST_WORDS = 10
"""Lines of a worker that ended badly."""


class Task(NamedTuple):
    """``unit`` with its number, ``digest`` with the input's, ``train`` with the vocabulary."""

    name: str
    number: int


class PrepareError(HpctrainError):
    """Work that could not be done; what is done already is kept."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Workers:
    """Processes that live as long as the ``with`` block, and no longer than this process."""

    def __init__(self, folder: Path, count: int, *, training_threads: int = 0) -> None:
        """Starts them.

        Args:
            folder: ``PREFIX.partial`` with the job in it.
            count: how many.
            training_threads: of each, for a task ``train``; without it a worker has one.
        """
        self._folder, self._workers = folder, [_Worker(folder, number, training_threads) for number in range(count)]

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.end()

    def run(self, tasks: Sequence[Task], read: Callable[[Task, int], None]) -> Iterator[tuple[Task, Any]]:
        """Gives each task to a worker that has little to do; yields it with its result when it is done, in any order.

        Args:
            tasks: are begun in this order.
            read: called with a task and the bytes of input that were read for it since the last call.

        Raises:
            PrepareError: a task failed, a worker died, or the disk is full.
        """
        waiting = deque(tasks)
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.output, selectors.EVENT_READ, worker)
            for _ in range(_TASKS_AHEAD):
                for worker in self._workers:
                    if waiting:
                        worker.give(waiting.popleft())
            while any(worker.tasks for worker in self._workers):
                for key, _ in selector.select():
                    worker = key.data
                    for answer in worker.answers():
                        if "read" in answer:
                            read(worker.tasks[0], answer["read"])
                            continue
                        task = worker.tasks.popleft()
                        if waiting:
                            worker.give(waiting.popleft())
                        yield task, self._result(answer)

    def _result(self, answer: dict[str, Any]) -> Any:
        if "failed" in answer:
            raise PrepareError(answer["failed"], answer["exit_code"])
        if "full" in answer:
            raise disk_full(self._folder, answer["full"])
        return answer["done"]


def disk_full(path: Path, words: str) -> PrepareError:
    """What is told of a full disk."""
    fix = "make room, and the same command goes on where it stopped"
    return PrepareError(f"{path_text(path)} cannot be written: {words}; {fix}")


class _Worker:
    """One process."""

    def __init__(self, folder: Path, number: int, training_threads: int) -> None:
        self.tasks: deque[Task] = deque()
        self._errors = folder / f"worker-{number}.err"
        command = [sys.executable, "-m", "hpctrain.tokens.worker", str(folder), str(os.getpid()), str(training_threads)]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | _ONE_THREAD,
            )
        assert self._process.stdout is not None
        self.output = self._process.stdout
        self._unread = b""

    def give(self, task: Task) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(task._asdict()).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None
        self.tasks.append(task)

    def answers(self) -> Iterator[dict[str, Any]]:
        """Those that have come; call it when there is something to read.

        Raises:
            PrepareError: the process has ended.
        """
        content = os.read(self.output.fileno(), 2**16)
        if not content:
            raise self._death()
        *lines, self._unread = (self._unread + content).split(b"\n")
        for line in lines:
            yield json.loads(line)

    def _death(self) -> PrepareError:
        code = self._process.wait()
        doing = f" while it had to do {self.tasks[0].name} {self.tasks[0].number}" if self.tasks else ""
        if code == -signal.SIGKILL:
            end = "was killed by signal 9, as the kernel does where memory is short; fewer --workers need less"
        else:
            end = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        lines = self._errors.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_WORDS:]
        words = "; its last words:\n" + "\n".join(lines) if lines else ""
        return PrepareError(f"a worker (process {self._process.pid}){doing} {end}{words}")

    def end(self) -> None:
        """Whatever it does."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self.output.close()
