"""How true the predicted step times are: published rows, those that constants were fitted on and those that were not apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from hpctrain.analysis.predicted import predict_published

CALIBRATION, VALIDATION = "calibration", "validation"
_BIGSCIENCE_FITTED = ("3D Topology", "tile and wave", "48 node contenders")


def validation_rows(published: pd.DataFrame) -> pd.DataFrame:
    """Rows with a measured and a predicted step time, with ``role``, ``kind``, ``stated`` and ``error`` added.

    ``error`` is predicted over measured - 1. ``stated`` is empty where parallelism, batch and recomputation are given and the
    source is quiet; else it says what is not. Rows that their source contradicts, or without a step time, are left out.

    Args:
        published: of ``load_published``.
    """
    usable = published[published["step_time_s"].notna() & published["flag"].isna()]
    rows = predict_published(usable)
    rows = rows[rows["predicted_step_time_s"].notna()]
    records = rows.to_dict("records")
    return rows.assign(
        role=pd.array([_role(row) for row in records], dtype="string"),
        kind=pd.array([_kind(row) for row in records], dtype="string"),
        stated=pd.array([_not_stated(row) for row in records], dtype="string"),
        error=rows["predicted_step_time_s"] / rows["step_time_s"] - 1,
    )


def validation_table(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a source, kind and role: number of rows, median and largest absolute error, mean error, and the worst row.

    Args:
        rows: of ``validation_rows``.
    """
    table = []
    for keys, group in rows.groupby(["role", "stated", "source", "kind"], sort=True):
        distance = group["error"].abs()
        worst = group.iloc[int(distance.argmax())]
        table.append(
            {
                **dict(zip(("role", "stated", "source", "kind"), keys, strict=True)),
                "rows": len(group),
                "median": distance.median(),
                "largest": distance.max(),
                "mean": group["error"].mean(),
                "worst_row": row_name(worst),
            }
        )
    return pd.DataFrame(table)


def row_name(row: pd.Series) -> str:
    """A published row in a few words, with its error."""
    degrees = "".join(
        f", {word} {row[column]}"
        for column, word in (("tp", "tp"), ("pp", "pp"))
        if pd.notna(row[column]) and row[column] > 1
    )
    return (
        f"{row['model']}, {row['num_gpus']} GPUs{degrees}, micro batch {row['micro_batch_per_gpu']},"
        f" {row['seq_len']} tokens: {row['error']:+.0%}"
    )


def _role(row: Mapping[Any, Any]) -> str:
    """Which rows the constants of ``plan/speed/software.py`` were fitted on."""
    file, ampere, gpus = row["file"], "A100" in str(row["gpu"]), row["num_gpus"]
    fitted = {
        "llm-foundry.csv": ampere or gpus == 8,
        "fms-fsdp.csv": ampere,
        "megatron.csv": "SC21" in row["source"] and gpus <= 512,
        "azure-deepspeed.csv": row["seq_len"] == 512 or (row["model"] == "GPT 1T" and row["micro_batch_per_gpu"] == 8),
        "memory-peaks.csv": row["source"] == "torchtitan" and row["model"] == "Llama-3.1-8B" and row["seq_len"] > 8192,
        "nemo.csv": row["source"].startswith("DGX Cloud"),
        "zero-family.csv": "low-precision master weights" in row["source"],
        "bigscience.csv": ampere and any(words in row["notes"] for words in _BIGSCIENCE_FITTED),
    }
    return CALIBRATION if fitted.get(file, False) else VALIDATION


def _kind(row: Mapping[Any, Any]) -> str:
    tensor, pipeline = (pd.notna(row[name]) and row[name] > 1 for name in ("tp", "pp"))
    if pipeline:
        return "tensor and pipeline" if tensor else "pipeline"
    if tensor:
        return "tensor"
    stage = row["zero_stage"]
    words = "HSDP" if "HSDP" in row["notes"] else f"ZeRO-{stage}"
    if pd.isna(stage) or stage == 0:
        words = "data parallel"
    return f"{words}, offload" if row["offload_optimizer"] == "cpu" else words


def _not_stated(row: Mapping[Any, Any]) -> str:
    if "network noise" in row["notes"] or "step time rounded" in row["notes"]:
        return "source warns of noise"
    if pd.isna(row["activation_ckpt"]):
        return "recomputation not stated"
    return "sequence or rate assumed" if pd.isna(row["seq_len"]) else ""
