"""Predicted memory of runs, term by term, as a tidy frame beside the frames of what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from hpctrain.errors import RecordError
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_plan

TERM_DTYPES = {
    "folder": "string",
    "run": "string",
    "tier": "string",
    "term": "string",
    "num_bytes": "Int64",
    "sharing_ranks": "Int64",
}


@dataclass(frozen=True)
class MemoryTerms:
    """What the plans of runs predicted."""

    terms: pd.DataFrame
    """A row a run and term: ``folder``, ``run``, ``tier`` (``gpu`` or ``host``), ``term``, ``num_bytes`` of one rank, and
    ``sharing_ranks``, the ranks that have one such tier together (1 a GPU, those of a node its host)."""
    problems: tuple[str, ...]
    """Runs whose plan cannot be read."""


def load_memory_terms(runs: pd.DataFrame) -> MemoryTerms:
    """The terms of all runs that have a plan; logs of other systems have none and are left out without a word.

    Args:
        runs: frame ``runs``.
    """
    rows, problems = [], []
    for folder in runs["folder"].tolist():
        run = RunPaths(Path(folder))
        if not run.plan.is_file():
            continue
        try:
            rows += term_rows(folder, read_plan(run))
        except RecordError as error:
            problems.append(str(error))
    return MemoryTerms(pd.DataFrame(rows, columns=list(TERM_DTYPES)).astype(TERM_DTYPES), tuple(problems))


def term_rows(folder: str, plan: RunPlan) -> list[dict[str, object]]:
    """One row a term of one plan."""
    return [
        {
            "folder": folder,
            "run": Path(folder).name,
            "tier": term.tier,
            "term": term.name,
            "num_bytes": term.num_bytes,
            "sharing_ranks": plan.memory.ranks_per_node if term.tier == "host" else 1,
        }
        for term in plan.memory.terms
    ]


def measured_memory(runs: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """Predicted and measured peaks of each run, in bytes, with the error of the prediction.

    ``gpu_driver_bytes`` is the fullest GPU as the driver tells it, with context and communication buffers;
    ``host_ranks_bytes`` the resident size of a node's ranks together, ``host_used_bytes`` what anybody uses of the node's
    memory, and ``host_total_bytes`` what the smallest node has.

    Args:
        runs: frame ``runs``.
        samples: frame ``samples``; may be empty.

    Returns:
        A row a run: ``folder``, ``run``, ``device``, ``predicted_bytes`` and ``measured_bytes`` of one rank (its GPU's
        allocator, on the CPU its resident size), ``error`` (predicted / measured - 1), and the four above.
        What was not measured is NA.
    """
    by_folder = samples.groupby("folder")
    peaks = pd.DataFrame(
        {
            "gpu_driver_bytes": by_folder["gpu_used_max_bytes"].max().replace(0, pd.NA),
            "host_ranks_bytes": by_folder["ranks_rss_bytes"].max(),
            "host_used_bytes": by_folder["host_used_bytes"].max(),
            "host_total_bytes": by_folder["host_total_bytes"].min(),
        }
    ).astype("Int64")
    table = runs[["folder", "run", "device"]].assign(
        predicted_bytes=runs["predicted_memory_bytes"],
        measured_bytes=runs["peak_memory_bytes"],
        error=runs["memory_error"],
    )
    return table.merge(peaks, left_on="folder", right_index=True, how="left")
