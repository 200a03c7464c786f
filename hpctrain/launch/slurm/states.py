"""Slurm's words for jobs, and its commands: state words whole and cut, job ids of arrays, moments, the cluster that is asked."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hpctrain.launch.environment import job_environment
from hpctrain.record.slurm_command import ask_slurm, call_slurm

QUERY_TIMEOUT_S = 30

FINISHED = frozenset(
    "COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL OUT_OF_MEMORY PREEMPTED BOOT_FAIL DEADLINE REVOKED".split()
)
ACTIVE = frozenset(
    "PENDING RUNNING CONFIGURING COMPLETING SUSPENDED STOPPED REQUEUED REQUEUE_HOLD REQUEUE_FED RESIZING SIGNALING"
    " SPECIAL_EXIT STAGE_OUT".split()
)
WAITING = frozenset("PENDING REQUEUED REQUEUE_HOLD REQUEUE_FED SPECIAL_EXIT CONFIGURING".split())
"""Of the active ones: no process of the job runs."""

_ARRAY_ID = re.compile(r"(?P<base>\d+)_(\[(?P<list>[^\]]*)\]|(?P<task>\d+))")
_ARRAY_RANGE = re.compile(r"(?P<first>\d+)(-(?P<last>\d+)(:(?P<step>\d+))?)?")
_LONGEST_ARRAY = 4_000_001
"""Slurm's own bound of MaxArraySize; longer lists are damage."""


class SlurmJob(NamedTuple):
    """A job of ours, and by what it is told from another one of the same number."""

    job_id: str
    """``123`` or ``123_4``."""
    script: str = ""
    """Absolute path of its batch script."""
    key: str = ""
    """Its comment, if it was given one to be found by."""
    submitted_at_s: float = 0.0


@dataclass(frozen=True)
class SlurmState:
    """What Slurm says of one job."""

    state: str
    reason: str
    source: str
    """``squeue``, ``scontrol`` or ``sacct``."""
    exit_code: str = ""
    """``code:signal`` as Slurm prints it; empty: not told."""
    nodes: str = ""
    submitted_at_s: float | None = None
    start_at_s: float | None = None
    """When it started; for a job that waits, when Slurm expects it to."""
    ended_at_s: float | None = None

    @property
    def is_active(self) -> bool:
        """An unknown word counts as not finished, unless Slurm gives the moment of the end."""
        ended = self.ended_at_s is not None and self.source != "squeue"
        return self.state not in FINISHED and not (self.state not in ACTIVE and ended)


def state_word(text: str) -> str:
    """Slurm's full word for a printed state: ``CANCELLED by 1000``, ``CANCELLED+`` and ``OUT_OF_ME+`` are cut forms.

    >>> state_word("CANCELLED by 1000"), state_word("OUT_OF_ME+"), state_word("RUNNING,COMPLETING"), state_word("NEWSTATE")
    ('CANCELLED', 'OUT_OF_MEMORY', 'RUNNING', 'NEWSTATE')
    """
    word = re.split(r"[\s,]", text.strip(), maxsplit=1)[0].upper()
    if not word.endswith("+"):
        return word
    matches = [known for known in sorted(FINISHED | ACTIVE) if known.startswith(word[:-1])]
    return matches[0] if matches else word[:-1]


def array_base(job_id: str) -> str:
    """The number that names the whole array; of a job without an array, its own.

    >>> array_base("123_4"), array_base("123")
    ('123', '123')
    """
    return job_id.partition("_")[0]


def printed_ids(text: str) -> Iterator[str]:
    """The job ids that a printed one stands for: pending tasks of an array share a line, parts of a job have ``+0``, ``+1``.

    >>> list(printed_ids("123_[5-7,9%2]")), list(printed_ids("123_4")), list(printed_ids("12+0"))
    (['123_5', '123_6', '123_7', '123_9'], ['123_4'], ['12'])
    """
    match = _ARRAY_ID.fullmatch(text)
    if match is None:
        yield text.partition("+")[0]
    elif match["task"] is not None:
        yield text
    else:
        for part in match["list"].partition("%")[0].split(","):
            found = _ARRAY_RANGE.fullmatch(part)
            if found is not None:
                first = int(found["first"])
                last = min(int(found["last"] or first), _LONGEST_ARRAY)
                for index in range(first, last + 1, max(1, int(found["step"] or 1))):
                    yield f"{match['base']}_{index}"


def moment(text: str) -> float | None:
    """Unix time of a moment that Slurm printed, in seconds since 1970 or in ISO form; None for ``N/A`` and ``Unknown``.

    >>> moment("1796026098"), moment("Unknown"), moment("N/A")
    (1796026098.0, None, None)
    """
    if text.isdigit():
        return float(text) if int(text) else None
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


class SlurmCluster(NamedTuple):
    """Which cluster to ask: as it was selected when a job was submitted."""

    slurm_conf: str = ""
    """Path of its slurm.conf; empty: the default one."""
    name: str = ""
    """Of a federation or multi-cluster site, for ``-M``; empty: the one that slurm.conf names."""

    def call(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """What a client of Slurm answered, whatever its exit code.

        Raises:
            LaunchError: it is not on PATH, or gave no answer.
        """
        return call_slurm(self._words(command), QUERY_TIMEOUT_S, self._environment())

    def ask(self, command: Sequence[str], timeout_s: float = QUERY_TIMEOUT_S) -> tuple[str, str]:
        """Output, and what went wrong (empty if nothing)."""
        return ask_slurm(self._words(command), timeout_s, self._environment())

    def _words(self, command: Sequence[str]) -> list[str]:
        return [command[0], *(["-M", self.name] if self.name else []), *command[1:]]

    def _environment(self) -> dict[str, str]:
        """Without the filters that the shell may have set for Slurm's clients."""
        # Moments in seconds since 1970; lists of array tasks whole.
        environment = job_environment(os.environ, inherit=False) | {
            "SLURM_TIME_FORMAT": "%s",
            "SLURM_BITSTR_LEN": "0",
        }
        if self.slurm_conf:
            environment["SLURM_CONF"] = self.slurm_conf
        return environment
