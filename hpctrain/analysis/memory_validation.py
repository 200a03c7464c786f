"""How true the predicted memory is: published rows through the path of ``plan --table``, peaks and fits apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from hpctrain.analysis.validation import CALIBRATION, VALIDATION
from hpctrain.plan.stated.cells import COLUMNS
from hpctrain.plan.stated.table import PlannedRow, plan_row

_FITTED_TABLE = "48 node contenders"
_CHOSEN_LOADS = ("sequence ", "micro batch ", "from params_b")
"""Words of assumptions that make a peak one of ours, not of the row."""
_SETTINGS = (
    "source model layers hidden heads seq_len gpu num_gpus tp pp cp_sp dp zero_stage offload_optimizer offload_param"
    " activation_ckpt micro_batch_per_gpu precision"
).split()
RIGHT, FALSE_FIT, FALSE_REFUSAL, UNDECIDED = "right", "false fit", "false refusal", "undecided"


def memory_rows(published: pd.DataFrame) -> pd.DataFrame:
    """Rows that ran or ran out of memory and that the planner answers.

    Added columns: ``predicted_peak_gib``, ``memory_error`` (predicted over measured - 1; missing where nothing was measured),
    ``verdict`` on the fit, ``role``, ``stated`` (empty: shape, load and recomputation are given) and ``memory_assumptions``.

    Args:
        published: of ``load_published``.
    """
    is_oom = published["flag"] == "STATUS=OOM"
    has_result = published[["step_time_s", "tflops_per_gpu", "tokens_per_s_per_gpu", "peak_mem_gb"]].notna().any(axis=1)
    rows = published[(is_oom.fillna(False) | has_result) & (published["flag"] != "CHECK").fillna(True)]
    records = rows.to_dict("records")
    plans = [plan_row(_cells(row), str(row["file"])) for row in records]
    pairs = list(zip(records, plans, strict=True))
    peaks = pd.array([plan.peak_mem_gib for plan in plans], dtype="Float64")
    table = rows.assign(
        predicted_peak_gib=peaks,
        memory_error=peaks / rows["peak_mem_gb"].array - 1,
        verdict=pd.array([_verdict(row, plan) for row, plan in pairs], dtype="string"),
        role=pd.array([_role(row) for row in records], dtype="string"),
        stated=pd.array([_not_stated(row, plan) for row, plan in pairs], dtype="string"),
        memory_assumptions=pd.array(["; ".join(plan.assumptions) for plan in plans], dtype="string"),
    )
    return table[table["predicted_peak_gib"].notna()]


def memory_table(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a role, source and GPU: peaks with their error, and fits with what is wrong.

    Args:
        rows: of ``memory_rows``.
    """
    table = []
    for keys, group in rows.groupby(["role", "stated", "source", "gpu"], sort=True, dropna=False):
        errors = group["memory_error"].dropna()
        table.append(
            {
                **dict(zip(("role", "stated", "source", "gpu"), keys, strict=True)),
                "rows": len(group),
                "peaks": len(errors),
                "median": errors.abs().median(),
                "largest": errors.abs().max(),
                "mean": errors.mean(),
                "within_10": (errors.abs() <= 0.1).mean() if len(errors) else pd.NA,
                **{
                    verdict: int((group["verdict"] == verdict).sum())
                    for verdict in (FALSE_FIT, FALSE_REFUSAL, UNDECIDED)
                },
            }
        )
    return pd.DataFrame(table)


def repeated_peaks(rows: pd.DataFrame) -> pd.DataFrame:
    """Peaks of equal settings, a row each: ``count``, ``lowest``, ``highest`` and ``spread`` (highest over lowest - 1).

    No prediction can be nearer to both ends than half of the spread. Accumulation does not change a peak, so the global batch may
    differ.

    Args:
        rows: of ``memory_rows``, of sources whose tables use one software.
    """
    measured = rows[rows["peak_mem_gb"].notna()]
    groups = measured.groupby(_SETTINGS, dropna=False)["peak_mem_gb"]
    table = groups.agg(count="count", lowest="min", highest="max").reset_index()
    table = table[table["count"] > 1]
    return table.assign(spread=table["highest"] / table["lowest"] - 1).sort_values("spread", ascending=False)


def memory_row_name(row: pd.Series) -> str:
    """A published row in a few words, with predicted and measured peak."""
    degrees = "".join(
        f", {word} {row[column]}"
        for column, word in (("tp", "tp"), ("pp", "pp"), ("zero_stage", "stage"))
        if pd.notna(row[column])
    )
    measured = "it ran" if pd.isna(row["peak_mem_gb"]) else f"{row['peak_mem_gb']} GB measured"
    if pd.notna(row["flag"]):
        measured = "out of memory"
    return (
        f"{row['model']}, {row['num_gpus']} {row['gpu']}{degrees}, micro batch {row['micro_batch_per_gpu']}:"
        f" {row['predicted_peak_gib']:.1f} GiB, {measured}"
    )


def _cells(row: Mapping[Any, Any]) -> dict[str, str]:
    return {name: "" if pd.isna(row[name]) else str(row[name]) for name in COLUMNS}


def _verdict(row: Mapping[Any, Any], plan: PlannedRow) -> str:
    if plan.fits is None:
        return UNDECIDED
    ran = pd.isna(row["flag"])
    if plan.fits == ran:
        return RIGHT
    return FALSE_REFUSAL if ran else FALSE_FIT


def _role(row: Mapping[Any, Any]) -> str:
    """Which rows ``memory_habits.CACHED_SHARE`` was read from."""
    fitted = "BLOOM" in str(row["source"]) and _FITTED_TABLE in str(row["notes"])
    return CALIBRATION if fitted else VALIDATION


def _not_stated(row: Mapping[Any, Any], plan: PlannedRow) -> str:
    if any(words in text for text in plan.assumptions for words in _CHOSEN_LOADS) and not _layers_fitted(row):
        return "shape or load not stated"
    if pd.isna(row["tp"]) and pd.isna(row["dp"]):
        return "degrees not stated"
    return "recomputation not stated" if pd.isna(row["activation_ckpt"]) else ""


def _layers_fitted(row: Mapping[Any, Any]) -> bool:
    """BigScience prints the parameters of models whose layers it fitted to the pipeline; these two give the layers back."""
    return "layers fitted to the pipeline degree" in str(row["notes"])
