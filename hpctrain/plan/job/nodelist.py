"""Slurm's compressed node lists, such as ``node[01-03,7],gpu-a1``, as names."""

from __future__ import annotations

import itertools
import math
import re

_MAX_NODES = 100_000
_ITEM = re.compile(r"(?:[A-Za-z0-9._-]|\[[0-9,-]+\])+")
_PART = re.compile(r"[A-Za-z0-9._-]+|\[[0-9,-]+\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def node_names(text: str) -> list[str]:
    """All node names in the list's order.

    Raises:
        ValueError: anything that is not a list of names with bracketed ranges.

    >>> node_names("node[01-03,7],gpu-a1")
    ['node01', 'node02', 'node03', 'node7', 'gpu-a1']
    >>> node_names("r[1-2]n[01-02]")
    ['r1n01', 'r1n02', 'r2n01', 'r2n02']
    """
    names: list[str] = []
    for item in _split_at_outer_commas(text):
        if not _ITEM.fullmatch(item) or item.startswith(("[", "-", ".")):
            raise ValueError(f"{item!r} is no node name with [ranges]")
        parts = [_expand_range(part) if part.startswith("[") else [part] for part in _PART.findall(item)]
        if len(names) + math.prod(map(len, parts)) > _MAX_NODES:
            raise ValueError(f"it names more than {_MAX_NODES} nodes")
        names += ("".join(choice) for choice in itertools.product(*parts))
    return names


def _split_at_outer_commas(text: str) -> list[str]:
    return re.split(r",(?![^\[]*\])", text)


def _expand_range(part: str) -> list[str]:
    """``[08-11]`` as ``08 09 10 11``: the width of a first number with a leading zero is kept."""
    numbers: list[str] = []
    for piece in part[1:-1].split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise ValueError(f"{piece!r} is no number and no range")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"range {piece!r} runs backwards")
        if int(last) - int(first) >= _MAX_NODES:
            raise ValueError(f"range {piece!r} names more than {_MAX_NODES} nodes")
        width = len(first) if first.startswith("0") else 0
        numbers += (f"{number:0{width}d}" for number in range(int(first), int(last) + 1))
    return numbers
