"""The first node of a step, from Slurm's compressed node list."""

from __future__ import annotations

import shutil
import subprocess

from hpctrain.plan.job.nodelist import node_names
from hpctrain.worker.end_reasons import RankEnvironmentError

# Without its slurm.conf scontrol retries for a minute.
_SCONTROL_TIMEOUT_S = 10.0


def first_host(text: str) -> str:
    """The first node of the list, by ``scontrol show hostnames`` where that works, else by our own parser.

    scontrol is missing or has no configuration in some containers, and 22.05 refuses names with a suffix behind the
    brackets (tried: ``gpu[1-2]-ib0``), which the parser knows.

    Raises:
        RankEnvironmentError: the list is in neither's grammar.
    """
    return (_hosts_by_scontrol(text) or expand_nodelist(text))[0]


def _hosts_by_scontrol(text: str) -> list[str]:
    """Empty if scontrol cannot tell. The expansion is local: the controller is not asked."""
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        return []
    command = [scontrol, "show", "hostnames", text]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SCONTROL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return []
    return result.stdout.split() if result.returncode == 0 else []


def expand_nodelist(text: str) -> list[str]:
    """All node names in the list's order.

    Raises:
        RankEnvironmentError: anything that is not a list of names with bracketed ranges.
    """
    try:
        return node_names(text)
    except ValueError as error:
        raise RankEnvironmentError(f"node list {text!r}: {error}") from None
