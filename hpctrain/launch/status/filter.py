"""Which runs a user asked to see: by state, the newest ones."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.errors import ConfigError, known_names_hint
from hpctrain.launch.slurm.states import ACTIVE, FINISHED, WAITING
from hpctrain.launch.status.rows import RunStatus

GROUPS = ("running", "waiting", "done", "unknown", "active")
_WORDS = FINISHED | ACTIVE | {"SUBMITTED", "LAUNCH_FAILED", "UNKNOWN"}


def group_of(row: RunStatus) -> str:
    """One of running, waiting, done, unknown; a bad end by its own word: failed, cancelled, timeout, ..."""
    if row.state == "UNKNOWN":
        return "unknown"
    if row.state == "COMPLETED":
        return "done"
    if row.is_over or row.state == "LAUNCH_FAILED":
        return row.state.lower()
    return "waiting" if row.state in WAITING or row.state == "SUBMITTED" else "running"


def filtered(rows: Sequence[RunStatus], words: Sequence[str], last: int | None) -> list[RunStatus]:
    """Rows in one of the states, of those the ``last`` newest.

    Args:
        rows: oldest first.
        words: groups or words of Slurm, in any case; none: all.
        last: None: all.

    Raises:
        ConfigError: a word is no state.
    """
    for word in words:
        if word.lower() not in GROUPS and word.upper() not in _WORDS:
            hint = known_names_hint(word.lower(), {*GROUPS, *(known.lower() for known in _WORDS)})
            raise ConfigError(f"--state={word}: is no state; {hint}")
    kept = [row for row in rows if not words or any(_matches(row, word) for word in words)]
    return kept if last is None else kept[-last:] if last else []


def _matches(row: RunStatus, word: str) -> bool:
    if word.lower() == "active":
        return not row.is_over
    return group_of(row) == word.lower() if word.lower() in GROUPS else row.state == word.upper()
