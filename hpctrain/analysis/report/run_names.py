"""Names that tell runs apart, for people: several folders may hold runs of one name."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from hpctrain.analysis.frames import Frames
from hpctrain.analysis.name_lists import distinct_names


def with_distinct_names(frames: Frames) -> Frames:
    """The frames with column ``run`` as ``distinct_names``; ``folder`` stays, so that they still join."""
    runs = distinct_runs(frames.runs)
    if runs is frames.runs:
        return frames
    names = dict(zip(runs["folder"].tolist(), runs["run"].tolist(), strict=True))
    return replace(
        frames,
        runs=runs,
        steps=_renamed(frames.steps, names),
        attempts=_renamed(frames.attempts, names),
        samples=_renamed(frames.samples, names),
    )


def distinct_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """The frame ``runs`` with names that differ; the same object where they do already."""
    if runs["run"].is_unique:
        return runs
    names = distinct_names(runs["run"].tolist(), runs["folder"].tolist())
    return runs.assign(run=pd.array(names, dtype="string"))


def _renamed(table: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    return table.assign(run=table["folder"].map(names).astype("string"))
