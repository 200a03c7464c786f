"""sbatch, called so that a script becomes exactly one job: its answer read strictly, a lost one looked up before a retry."""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from hpctrain.errors import InterruptedLaunchError, LaunchError, SubmitLimitError, UnclearSubmissionError
from hpctrain.launch.slurm.held_signals import HeldSignals
from hpctrain.launch.slurm.job_search import FoundJob, JobSearch, search_jobs
from hpctrain.text_table import printable

_PARSABLE_ANSWER = re.compile(r"(?P<id>\d+)(;(?P<cluster>[\w.-]+))?")
_SENTENCE = re.compile(r"Submitted batch job (?P<id>\d+)( on cluster (?P<cluster>[\w.-]+))?")
"""What a wrapper around sbatch may say that drops --parsable."""
_TERMINAL_COLOUR = re.compile(r"\x1b\[[\d;]*[A-Za-z]")

_NOT_SENT = ("connect failure", "onnection refused", "No route to host")
_LOST_ANSWERS = (
    *_NOT_SENT,
    *("timed out", "Unable to contact", "Zero Bytes", "onnection reset", "onnection failure", "Broken pipe"),
    *("send failure", "receive failure", "not connected", "standby mode", "shutdown failure"),
)
"""What sbatch says when its request may or may not have arrived. Source: slurm_errno.c of Slurm 20.11 to 24.11."""
_LIMITS = re.compile(
    r"Max\w*Submit|Grp\w*Submit|MaxJobCount|temporarily unable to accept job|Resource temporarily unavailable"
)
"""Reasons that go away when jobs end; the controller answers EAGAIN where MaxJobCount is reached."""

_FAILED = "submission failed"

_ANSWER_BYTES = 4096
_QUIET_S = 15.0
_ANSWER_TIMEOUT_S = 600.0
_LAST_WORDS_S = 30.0
_PAUSES_S = (1.0, 2.0, 3.0, 5.0, 8.0, 13.0)


@dataclass(frozen=True)
class Submission:
    """One job to be: a script and what is needed to find its job again."""

    script: Path
    environment: Mapping[str, str]
    """What sbatch, and with it the job, gets."""
    key: str
    """Unique text; found in the job's comment if the script sets it, else the job is known by the script's path."""
    after: str = ""
    """Job that must have ended before: a link of a chain."""
    known_jobs: frozenset[str] = frozenset()
    """Jobs of the same script that were there before."""
    retry_s: float = 60.0
    """For how long a controller that does not answer is asked again."""

    @property
    def command(self) -> tuple[str, ...]:
        dependency = (f"--dependency=afterany:{self.after}",) if self.after else ()
        return ("sbatch", "--parsable", *dependency, str(self.script))

    @property
    def answer_files(self) -> tuple[Path, Path]:
        """Where sbatch prints to, so that its answer outlives this process; removed when it was read."""
        return self.script.with_suffix(".sbatch-out"), self.script.with_suffix(".sbatch-err")

    def search(self, since_s: float) -> JobSearch:
        """What Slurm knows of its jobs."""
        by_key = self.key in self.script.read_text(encoding="utf-8")
        return search_jobs(self.environment, self.key if by_key else str(self.script), self.known_jobs, since_s)

    def forget_answer(self) -> None:
        for path in self.answer_files:
            path.unlink(missing_ok=True)


class SbatchAnswer(NamedTuple):
    """What sbatch printed."""

    returncode: int | None
    """None: it did not end in time, or it is not known since its caller is gone."""
    stdout: str
    stderr: str

    @property
    def job(self) -> FoundJob | None:
        """The last line that is a job id as ``--parsable`` prints it; banners and notices of the site come before."""
        lines = [_TERMINAL_COLOUR.sub("", line).strip() for line in self.stdout.splitlines()]
        for pattern in (_PARSABLE_ANSWER, _SENTENCE):
            matches = [match for line in lines if (match := pattern.fullmatch(line))]
            if matches:
                return FoundJob(matches[-1]["id"], matches[-1]["cluster"] or "")
        return None

    @property
    def verdict(self) -> Literal["accepted", "no id", "lost", "limit", "refused"]:
        if self.returncode == 0:
            return "accepted" if self.job else "no id"
        if self.returncode is None or self.returncode < 0 or any(words in self.stderr for words in _LOST_ANSWERS):
            return "lost"
        if self.job and _FAILED not in self.stderr:
            return "no id"  # the id is a wrapper's or sbatch's own before it broke off: Slurm knows
        return "limit" if _LIMITS.search(self.stderr) else "refused"

    @property
    def words(self) -> str:
        """sbatch's last words, in a line."""
        lines = [line for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        ended = "no answer" if self.returncode is None else f"exit code {self.returncode}"
        return printable(lines[-1].strip(), kept="") if lines else ended

    def told(self, command: tuple[str, ...]) -> str:
        return printable(f"$ {shlex.join(command)}\n{self.stdout}{self.stderr}".rstrip())


def submit_script(submission: Submission, held: HeldSignals, hint: Callable[[str], str]) -> FoundJob:
    """Makes the script a job, once, however often the controller has to be asked.

    Args:
        submission: the script and how its job is known.
        held: signals wait until it is known whether there is a job.
        hint: what the site has, for sbatch's words of a refusal; empty if they say nothing of it.

    Raises:
        LaunchError: Slurm refused; its own words and the whole command are in the message. There is no job.
        SubmitLimitError: a limit of jobs is reached; later it may work.
        InterruptedLaunchError: a signal came before there was a job.
        UnclearSubmissionError: the answer is lost or holds no job id, and Slurm cannot tell whether there is a job.
    """
    command, started_s = submission.command, time.time()
    answer = call_sbatch(submission, held)
    if answer.verdict == "lost":
        answer = _ask_again(submission, answer, started_s, held)
    if answer.verdict == "no id":
        answer = _looked_up(submission, answer, started_s)
    if answer.job is not None and answer.verdict == "accepted":
        return answer.job
    submission.forget_answer()
    told = answer.told(command)
    if answer.verdict == "limit":
        raise SubmitLimitError(f"Slurm takes no more jobs now: {answer.words}\n{told}")
    raise LaunchError(f"Slurm refused the job (exit code {answer.returncode}):\n{told}{hint(answer.stderr)}")


def call_sbatch(submission: Submission, held: HeldSignals) -> SbatchAnswer:
    """One call; sbatch has its own session and prints to files, so that it answers whatever happens to this process."""
    out_path, err_path = submission.answer_files
    with _with_room(out_path) as out, _with_room(err_path) as err:
        process = subprocess.Popen(
            submission.command,
            env=dict(submission.environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    _wait(process, err_path, held)
    return SbatchAnswer(process.poll(), *(answer_text(path) for path in submission.answer_files))


def answer_text(path: Path) -> str:
    """What sbatch printed to one of its files, without the room that was held for it."""
    return path.read_text(encoding="utf-8", errors="replace").rstrip("\n\0") + "\n"


def _with_room(path: Path) -> BinaryIO:
    """A file that a short answer fits into even if the disk gets full meanwhile.

    Raises:
        LaunchError: it is full already; nothing was submitted.
    """
    try:
        stream = path.open("wb", buffering=0)
        stream.write(b"\n" * _ANSWER_BYTES)
        stream.seek(0)
    except OSError as error:
        raise LaunchError(f"{path}: cannot be written ({error.strerror}); this script was not submitted") from None
    return stream


def _wait(process: subprocess.Popen[bytes], err_path: Path, held: HeldSignals) -> None:
    """Until it ends; says so where that takes long, and gives up after 10 minutes, or half a minute after a signal."""
    waiter = select.poll()
    descriptor = os.pidfd_open(process.pid)
    try:
        waiter.register(descriptor, select.POLLIN)
        started, asked_to_end = time.monotonic(), None
        has_told = False
        while not waiter.poll(1000):
            waited = time.monotonic() - started
            asked_to_end = waited if held.received is not None and asked_to_end is None else asked_to_end
            if waited > _QUIET_S and not has_told:
                has_told = True
                _tell(
                    f"sbatch has not answered for {waited:.0f} s: {' '.join(answer_text(err_path).split()) or 'no word'}"
                )
            if waited > _ANSWER_TIMEOUT_S or (asked_to_end is not None and waited > asked_to_end + _LAST_WORDS_S):
                process.send_signal(signal.SIGTERM)
                return
    finally:
        os.close(descriptor)


def _ask_again(submission: Submission, answer: SbatchAnswer, started_s: float, held: HeldSignals) -> SbatchAnswer:
    """sbatch's next answer that says something, or the found job's; a request is sent again only if no job is there.

    Raises:
        InterruptedLaunchError: a signal came while there was no job.
        UnclearSubmissionError: the time is over, and Slurm still does not say whether there is a job.
    """
    num_absent, trouble, search = 0, "", JobSearch((), "")
    _tell(f"{answer.words}; asks Slurm for the job, and again for up to {submission.retry_s:.0f} s")
    for pause_s in _pauses(submission.retry_s):
        held.pause(pause_s)
        search = submission.search(started_s)
        if search.jobs:
            return _found(search)
        trouble = search.trouble
        num_absent = 0 if trouble else num_absent + 1
        if held.received is not None:
            break
        was_sent = not any(words in answer.stderr for words in _NOT_SENT)
        # A slow controller may still take a request that it got: it is looked for twice before it is sent again.
        if trouble or num_absent < (2 if was_sent else 1):
            continue
        _tell("there is no job of this submission: submits once more")
        answer, num_absent = call_sbatch(submission, held), 0
        if answer.verdict != "lost":
            return _without_twins(submission, answer, started_s)
    if held.received is not None and not trouble:
        submission.forget_answer()
        raise InterruptedLaunchError("interrupted; Slurm has no job of this submission", held.received)
    raise UnclearSubmissionError(
        "the controller did not answer, so a job may have been submitted; the run folder stays. Look with squeue"
        f" (job script {submission.script}) before you submit again:\n{answer.told(submission.command)}"
        + (f"\n{trouble}" if trouble else "\nsqueue knows no such job so far")
    )


def _pauses(total_s: float) -> Iterator[float]:
    """Growing pauses until their sum and what was done between them is over; at least one look without a pause."""
    deadline = time.monotonic() + total_s
    yield min(_PAUSES_S[0], total_s)
    for number in range(1, sys.maxsize):
        rest_s = deadline - time.monotonic()
        if rest_s <= 0:
            return
        yield min(_PAUSES_S[min(number, len(_PAUSES_S) - 1)], rest_s)


def _looked_up(submission: Submission, answer: SbatchAnswer, started_s: float) -> SbatchAnswer:
    """The job of an answer without an id, or with one and a failure.

    Raises:
        UnclearSubmissionError: Slurm does not know one either.
    """
    search = submission.search(started_s)
    if search.jobs:
        return _found(search)
    trouble = "names a job and fails" if answer.job else "holds no job id"
    raise UnclearSubmissionError(
        f"a job may have been submitted, but sbatch's answer {trouble}; the run folder stays:\n"
        + answer.told(submission.command)
        + f"\n{search.trouble or 'squeue knows no such job'}"
    )


def _found(search: JobSearch) -> SbatchAnswer:
    job = search.jobs[0]
    _tell(f"found as job {job.job_id}: submitted")
    cluster = f";{job.slurm_cluster}" if job.slurm_cluster else ""
    return SbatchAnswer(0, f"{job.job_id}{cluster}\n", "")


def _without_twins(submission: Submission, answer: SbatchAnswer, started_s: float) -> SbatchAnswer:
    """After a retry: where the first request was taken after all, the later job is cancelled."""
    search = submission.search(started_s)
    first, *twins = search.jobs or [answer.job]
    if answer.job is None or first is None or not twins:
        return answer
    for twin in twins:
        where = ["-M", twin.slurm_cluster] if twin and twin.slurm_cluster else []
        if twin is not None:
            _tell(f"the first request was taken after all as job {first.job_id}: cancels job {twin.job_id}")
            subprocess.run(["scancel", *where, twin.job_id], env=dict(submission.environment), check=False)
    return _found(search)


def _tell(text: str) -> None:
    print(printable(f"hpctrain: {text}", kept=""), file=sys.stderr, flush=True)
