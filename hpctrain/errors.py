"""Every message that a user can cause, under one base class with its exit code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpctrain.secret_text import redact_text, redact_value

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_DOES_NOT_FIT = 3
EXIT_LAUNCH = 4
EXIT_REGRESSION = 5


FORCED_KINDS = ("memory", "site", "rate")
"""Of problems, which --force lets pass: what is short by the estimate or by the site's word, and what only the times need."""


@dataclass(frozen=True)
class Problem:
    """One broken rule: the key with its value, the rule with numbers put in, the nearest values that work; no secrets."""

    key: str
    value: str
    rule: str
    fix: str
    kind: str = "config"
    """``config`` (exit code 2), ``memory`` (3: an estimate), ``site`` (2: what Slurm told) or ``rate`` (2: no time can be
    predicted without it); --force passes all but the first."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", redact_value(self.key.rpartition(".")[2], self.value))
        object.__setattr__(self, "rule", redact_text(self.rule))
        object.__setattr__(self, "fix", redact_text(self.fix))

    def __str__(self) -> str:
        head = f"{self.key}={self.value}" if self.value else self.key
        tail = f"; {self.fix}" if self.fix else ""
        return f"{head}: {self.rule}{tail}"


class HpctrainError(Exception):
    """Base of all errors that are shown as a message, without a traceback."""

    exit_code = EXIT_CONFIG


class ConfigError(HpctrainError):
    """The configuration breaks rules; carries all of them at once."""

    def __init__(self, problems: Iterable[Problem] | str, text: str = "") -> None:
        self.problems: tuple[Problem, ...] = () if isinstance(problems, str) else tuple(problems)
        lines = problems if isinstance(problems, str) else "\n".join(str(problem) for problem in self.problems)
        super().__init__(text or lines)
        if self.problems and all(problem.kind == "memory" for problem in self.problems):
            self.exit_code = EXIT_DOES_NOT_FIT


class LaunchError(HpctrainError):
    """A valid plan that could not be handed to the machine or to Slurm."""

    exit_code = EXIT_LAUNCH


class UnclearSubmissionError(LaunchError):
    """The job may exist, or does, without our record of it: its run folder must stay."""


class PreparedRunError(LaunchError):
    """Nothing was submitted, and the run folder is complete: the user hands it over by hand, so it must stay."""


class SubmitLimitError(LaunchError):
    """Slurm takes no more jobs of this user, account or cluster until some have ended."""


class InterruptedLaunchError(LaunchError):
    """A signal came before there was a job."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class RecordError(HpctrainError):
    """A run folder, or a file in it, that cannot be read as what it should be."""


def nearest_names(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names most like ``name``, best first; empty if none is alike.

    >>> nearest_names("modle", ["model", "nodes"])
    ['model', 'nodes']
    """
    import difflib  # of use after a mistake only

    names = list(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=0.5)
    return [lowered[match] for match in close]


def known_names_hint(name: str, known: Iterable[str]) -> str:
    """``nearest: a, b; known: a, b, c`` for an error about an unknown name."""
    names = sorted(known)
    close = nearest_names(name, names)
    listing = f"known: {', '.join(names)}"
    return f"nearest: {', '.join(close)}; {listing}" if close else listing
