"""Names of runs, models and the like in little room: for tables, figures and messages alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def joined_names(names: Sequence[str], most: int) -> str:
    """The first ``most`` of the names, and how many more there are.

    >>> joined_names(["a", "b", "c", "d"], 3), joined_names(["a", "b"], 3), joined_names([], 3)
    ('a, b, c and 1 more', 'a, b', '')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def short_name(name: str, width: int = 34) -> str:
    """A name that fits beside a row: the middle is left out, since run names begin and end with what differs.

    >>> short_name("175b-16n-zero3-20260101-120000-ab12", 20)
    '175b-16n-z…0000-ab12'
    """
    if len(name) <= width:
        return name
    kept = width - 1
    return f"{name[: kept - kept // 2]}…{name[-(kept // 2) :]}"


def distinct_names(names: Sequence[str], folders: Sequence[str]) -> list[str]:
    """The names; before one that several share stands as much of its folder's path as tells it from the others.

    Args:
        names: of runs or logs.
        folders: where each lies, its own name included.

    >>> distinct_names(["run0", "run0", "run1"], ["/x/old/run0", "/x/new/run0", "/x/new/run1"])
    ['old/run0', 'new/run0', 'run1']
    """
    shared = Counter(names)
    parents = [folder.strip("/").split("/")[:-1] for folder in folders]
    told = list(names)
    for depth in range(1, 1 + max(map(len, parents), default=0)):
        open_places = [place for place, name in enumerate(told) if shared[name] > 1]
        if not open_places:
            break
        for place in open_places:
            told[place] = "/".join([*parents[place][-depth:], names[place]])
        shared = Counter(told)
    return told
