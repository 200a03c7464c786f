"""Slurm's compressed node lists, such as ``node[01-03,7],gpu-a1``, as names."""

from __future__ import annotations

import itertools
import math
import re
import shutil
import subprocess

from hpctrain.worker.end_reasons import RankEnvironmentError

_MAX_NODES = 100_000
# Without its slurm.conf scontrol retries for a minute.
_SCONTROL_TIMEOUT_S = 10.0
_ITEM = re.compile(r"(?:[A-Za-z0-9._-]|\[[0-9,-]+\])+")
_PART = re.compile(r"[A-Za-z0-9._-]+|\[[0-9,-]+\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


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

    >>> expand_nodelist("node[01-03,7],gpu-a1")
    ['node01', 'node02', 'node03', 'node7', 'gpu-a1']
    >>> expand_nodelist("r[1-2]n[01-02]")
    ['r1n01', 'r1n02', 'r2n01', 'r2n02']
    """
    names: list[str] = []
    for item in _split_at_outer_commas(text):
        if not _ITEM.fullmatch(item) or item.startswith(("[", "-", ".")):
            raise _invalid(text, f"{item!r} is no node name with [ranges]")
        parts = [_expand_range(part, text) if part.startswith("[") else [part] for part in _PART.findall(item)]
        if len(names) + math.prod(map(len, parts)) > _MAX_NODES:
            raise _invalid(text, f"it names more than {_MAX_NODES} nodes")
        names += ("".join(choice) for choice in itertools.product(*parts))
    return names


def _split_at_outer_commas(text: str) -> list[str]:
    return re.split(r",(?![^\[]*\])", text)


def _expand_range(part: str, text: str) -> list[str]:
    """``[08-11]`` as ``08 09 10 11``: the width of a first number with a leading zero is kept."""
    numbers: list[str] = []
    for piece in part[1:-1].split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise _invalid(text, f"{piece!r} is no number and no range")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise _invalid(text, f"range {piece!r} runs backwards")
        if int(last) - int(first) >= _MAX_NODES:
            raise _invalid(text, f"range {piece!r} names more than {_MAX_NODES} nodes")
        width = len(first) if first.startswith("0") else 0
        numbers += (f"{number:0{width}d}" for number in range(int(first), int(last) + 1))
    return numbers


def _invalid(text: str, rule: str) -> RankEnvironmentError:
    return RankEnvironmentError(f"node list {text!r}: {rule}")
