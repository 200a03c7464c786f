"""What tells the points of a sweep apart, from their overrides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpctrain.record.files import read_json
from hpctrain.record.paths import SWEEP_MANIFEST


def point_labels(overrides: Sequence[Sequence[str]]) -> list[str]:
    """For each point the overrides that not all of them share.

    >>> point_labels([("model=tiny", "nodes=1"), ("model=tiny", "nodes=2")])
    ['nodes=1', 'nodes=2']
    """
    shared = set(overrides[0]).intersection(*overrides[1:]) if len(overrides) > 1 else set()
    return [" ".join(word.lstrip("+") for word in words if word not in shared) or "-" for words in overrides]


def labels_in(sweep: Path) -> dict[str, str]:
    """The labels of a sweep's points by the names of their run folders, as submitting printed them.

    A manifest that cannot be read says nothing; submitting names it.
    """
    try:
        manifest = read_json(sweep / SWEEP_MANIFEST)
        points = manifest["points"]
        overrides = [[*map(str, point["overrides"])] for point in [*points, *manifest.get("left_out", ())]]
        return {str(point["run"]): label for point, label in zip(points, point_labels(overrides), strict=False)}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}
