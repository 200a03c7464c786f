"""Asking Slurm about many jobs at once: squeue, then scontrol for a few, then accounting for those that the controller forgot."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from hpctrain.launch.slurm.states import (
    SlurmCluster,
    SlurmJob,
    SlurmState,
    array_base,
    moment,
    printed_ids,
    state_word,
)

_MAX_LIST_BYTES = 100_000
"""Of job ids in one command; Linux takes 131,072 in one word."""
_MAX_SCONTROL = 2
"""scontrol tells of one job a call; more than these are left to accounting."""
_MAX_STEP_JOBS = 20
_CLOCK_SLACK_S = 300.0
"""munge refuses clocks that differ by more."""
_SACCT_FIELDS = ("JobID", "State", "ExitCode", "Submit", "End", "NodeList", "Comment", "SubmitLine")
_OLD_SACCT_FIELDS = _SACCT_FIELDS[:-1]
"""SubmitLine came with Slurm 21.08."""
_QUEUE_FORMAT = "%i|%T|%r|%S|%V|%e|%N|%k|%o"
_SCONTROL_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:]*)=")
_BAD_NODE_STATES = ("down", "drain", "drng", "drained", "fail", "err", "boot", "unk")
_STEP = re.compile(r"(?P<job>[\d_+]+)\.(?P<step>\d+)(\+\d+)?")


@dataclass(frozen=True)
class SlurmAnswer:
    """States by job, and what could not be asked."""

    states: dict[SlurmJob, SlurmState] = field(default_factory=dict)
    trouble: str = ""
    """The controller could not be asked: nothing is known of what waits or runs."""
    accounting: str = ""
    """Why accounting could not tell of the jobs that the controller forgot; empty where it could."""
    foreign: frozenset[SlurmJob] = frozenset()
    """Their numbers belong to other jobs now."""
    num_calls: int = 0
    """How many times a command of Slurm was run."""


def down_nodes(cluster: SlurmCluster, nodes: Iterable[str]) -> frozenset[str]:
    """Those of the nodes that Slurm calls down, drained or failing; empty where it cannot be asked."""
    text, trouble = _Asked(cluster).run(["sinfo", "-h", "-N", "-n", ",".join(sorted(nodes)), "-o", "%N|%t"])
    rows = [] if trouble else _rows(text, 2)
    return frozenset(name for name, state in rows if state.startswith(_BAD_NODE_STATES))


@dataclass
class _Asked:
    """One round of questions to one cluster."""

    cluster: SlurmCluster
    num_calls: int = 0

    def run(self, command: list[str]) -> tuple[str, str]:
        """Output, and what went wrong (empty if nothing): a failing query says nothing about a job."""
        self.num_calls += 1
        return self.cluster.ask(command)


def query_states(cluster: SlurmCluster, jobs: Iterable[SlurmJob], queue_only: Collection[SlurmJob] = ()) -> SlurmAnswer:
    """States of jobs: squeue for those it still knows, scontrol for details of a few, sacct for the others.

    Slurm counts from 1 again on a new cluster, so a number with another script and comment is another job.

    Args:
        cluster: whom to ask.
        jobs: whom to ask about; two may have the same number.
        queue_only: of which only matters whether they are still in the queue.
    """
    wanted = tuple(dict.fromkeys(jobs))
    if not wanted:
        return SlurmAnswer()
    asked = _Asked(cluster)
    states, foreign, trouble = _from_queue(asked, wanted)
    if not trouble:
        _add_details(asked, [job for job in wanted if job not in queue_only], states, foreign)
    accounting = ""
    missing = [job for job in wanted if job not in states and job not in foreign and job not in queue_only]
    if missing:
        found, others, accounting = _from_accounting(asked, missing)
        states |= found
        foreign |= others
    return SlurmAnswer(states, trouble, accounting, frozenset(foreign - states.keys()), asked.num_calls)


def _id_lists(jobs: Sequence[SlurmJob]) -> list[str]:
    """Comma lists short enough for a command line; an array is asked for as a whole."""
    lists: list[str] = []
    for job_id in dict.fromkeys(array_base(job.job_id) for job in jobs):
        if lists and len(lists[-1]) + len(job_id) < _MAX_LIST_BYTES:
            lists[-1] += f",{job_id}"
        else:
            lists.append(job_id)
    return lists


def _rows(text: str, count: int) -> list[list[str]]:
    rows = [line.strip().split("|", count - 1) for line in text.splitlines()]
    return [row for row in rows if len(row) == count]


def _by_id(jobs: Sequence[SlurmJob]) -> dict[str, list[SlurmJob]]:
    found: dict[str, list[SlurmJob]] = {}
    for job in jobs:
        found.setdefault(job.job_id, []).append(job)
    return found


def _from_queue(asked: _Asked, jobs: Sequence[SlurmJob]) -> tuple[dict[SlurmJob, SlurmState], set[SlurmJob], str]:
    states: dict[SlurmJob, SlurmState] = {}
    foreign: set[SlurmJob] = set()
    by_id = _by_id(jobs)
    for ids in _id_lists(jobs):
        text, trouble = asked.run(["squeue", "-h", "-a", "-r", "-t", "all", "-j", ids, "-o", _QUEUE_FORMAT])
        # With one id that is gone squeue fails, with several it leaves it out.
        if trouble and "Invalid job id" not in trouble:
            return {}, set(), trouble
        for printed, state, reason, start, submitted, end, nodes, rest in _rows(text, 8):
            told = SlurmState(
                state_word(state),
                "" if reason == "None" else reason,
                "squeue",
                nodes=nodes,
                submitted_at_s=moment(submitted),
                start_at_s=moment(start),
                ended_at_s=moment(end),
            )
            for job in (job for job_id in printed_ids(printed) for job in by_id.get(job_id, ())):
                if _is_it(job, *rest.rpartition("|")[::2], rest):
                    states[job] = told
                else:
                    foreign.add(job)
    return states, foreign - states.keys(), ""


def _is_it(job: SlurmJob, comment: str, script: str, line: str = "") -> bool:
    """Whether a job in Slurm is ours, by comment or script; a script's arguments may follow its path."""
    if job.key and comment == job.key:
        return True
    if not job.script:
        return not job.key
    return script == job.script or line.endswith(f"|{job.script}") or f"{job.script} " in f"{line or script} "


def _add_details(
    asked: _Asked, jobs: Sequence[SlurmJob], states: dict[SlurmJob, SlurmState], foreign: set[SlurmJob]
) -> None:
    """What squeue does not print of jobs that ended badly, and the few that it lost although the controller knows them."""
    ended_badly = [
        job for job in jobs if job in states and not states[job].is_active and states[job].state != "COMPLETED"
    ]
    lost = [job for job in jobs if job not in states and job not in foreign]
    candidates = ended_badly if len(ended_badly) <= _MAX_SCONTROL else []
    if len(candidates) + len(lost) <= _MAX_SCONTROL:
        candidates = candidates + lost
    if not candidates or shutil.which("scontrol") is None:
        return
    for job in candidates:
        text, trouble = asked.run(["scontrol", "-o", "show", "job", job.job_id])
        lines = [] if trouble else [line for line in text.splitlines() if line.strip()]
        fields = _scontrol_fields(lines[-1]) if lines else {}
        if not fields.get("JobState") or not _is_it(job, fields.get("Comment", ""), fields.get("Command", "")):
            continue
        before = states.get(job)
        told = _from_scontrol(fields)
        states[job] = replace(told, source=before.source) if before is not None else told


def _from_scontrol(fields: dict[str, str]) -> SlurmState:
    reason, nodes = fields.get("Reason", ""), fields.get("NodeList", "")
    is_over = state_word(fields["JobState"]) != "RUNNING"
    return SlurmState(
        state_word(fields["JobState"]),
        "" if reason == "None" else reason,
        "scontrol",
        fields.get("ExitCode", ""),
        "" if nodes == "(null)" else nodes,
        moment(fields.get("SubmitTime", "")),
        moment(fields.get("StartTime", "")),
        # Of a job that runs this is the limit.
        moment(fields.get("EndTime", "")) if is_over else None,
    )


def _scontrol_fields(line: str) -> dict[str, str]:
    """``Key=value`` pairs of ``scontrol -o show job``; values may hold blanks.

    >>> _scontrol_fields("JobId=3 JobState=FAILED Reason=launch failed requeued held ExitCode=0:53")["Reason"]
    'launch failed requeued held'
    """
    parts = _SCONTROL_FIELD.split(line)
    return {key: value.strip() for key, value in zip(parts[1::2], parts[2::2], strict=True)}


def _from_accounting(asked: _Asked, jobs: Sequence[SlurmJob]) -> tuple[dict[SlurmJob, SlurmState], set[SlurmJob], str]:
    if shutil.which("sacct") is None:
        return {}, set(), "there is no sacct here"
    text, trouble = _sacct(asked, jobs, ["-X"])
    if trouble:
        return {}, set(), "accounting is off here" if "disabled" in trouble else trouble
    states, foreign, steps = _read_accounting(text, jobs)
    failed = [job for job, told in states.items() if told.state == "FAILED"]
    if failed and not steps and len(failed) <= _MAX_STEP_JOBS:
        more, trouble = _sacct(asked, failed, [])
        steps = {} if trouble else _read_accounting(more, failed)[2]
    for job in failed:
        # The batch script's code hides what ended the ranks.
        if job in steps:
            state, exit_code = steps[job]
            states[job] = replace(states[job], state=state, exit_code=exit_code)
    return states, foreign, ""


def _sacct(asked: _Asked, jobs: Sequence[SlurmJob], words: list[str]) -> tuple[str, str]:
    """Lines of all jobs in order: ``-D`` lists each restart."""
    texts = []
    for ids in _id_lists(jobs):
        command = ["sacct", "-n", *words, "-P", "-D", "-j", ids, "-o"]
        text, trouble = asked.run([*command, ",".join(_SACCT_FIELDS)])
        if "Invalid field" in trouble:
            text, trouble = asked.run([*command, ",".join(_OLD_SACCT_FIELDS)])
        if trouble:
            return "", trouble
        texts.append(text)
    return "\n".join(texts), ""


def _read_accounting(
    text: str, jobs: Sequence[SlurmJob]
) -> tuple[dict[SlurmJob, SlurmState], set[SlurmJob], dict[SlurmJob, tuple[str, str]]]:
    """Newest state of each job, jobs whose number is another's, and state and exit code of training steps that failed."""
    by_id = _by_id(jobs)
    states: dict[SlurmJob, SlurmState] = {}
    others: set[SlurmJob] = set()
    steps: dict[SlurmJob, tuple[str, str]] = {}
    for row in (line.strip().split("|", len(_SACCT_FIELDS) - 1) for line in text.splitlines()):
        printed, state, exit_code, submitted, end, nodes, comment, line = row + [""] * (len(_SACCT_FIELDS) - len(row))
        word = state_word(state)
        if step := _STEP.fullmatch(printed):
            for job in (job for job_id in printed_ids(step["job"]) for job in by_id.get(job_id, ())):
                if word not in ("COMPLETED", "RUNNING", "CANCELLED", "") and job in states:
                    steps[job] = (word, exit_code)
            continue
        if not word or "." in printed:
            continue
        by_whom = state.strip().partition(" ")[2]
        told = SlurmState(
            word,
            by_whom,
            "sacct",
            exit_code,
            "" if nodes == "None assigned" else nodes,
            moment(submitted),
            ended_at_s=moment(end),
        )
        for job in (job for job_id in printed_ids(printed) for job in by_id.get(job_id, ())):
            if _is_in_accounting(job, told, comment, line, job in states):
                states[job] = told
                # A restart is a new record, whose steps follow it.
                steps.pop(job, None)
            else:
                others.add(job)
    return states, others - states.keys(), steps


def _is_in_accounting(job: SlurmJob, told: SlurmState, comment: str, line: str, known: bool) -> bool:
    """Whether a record is of our job: comments are kept only where the site wants it, the command since 21.08."""
    if job.key and job.key in (comment, *line.replace("=", " ").split()):
        return True
    if line and job.script:
        return job.script in line
    if told.submitted_at_s is None or not job.submitted_at_s:
        return True
    # A restart's record has a later moment than that of the submission, which must have been seen before.
    since_s = told.submitted_at_s - job.submitted_at_s
    return since_s >= -_CLOCK_SLACK_S and (known or since_s <= _CLOCK_SLACK_S)
