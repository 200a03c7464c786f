"""The points of the figures of "DeepSpeed on Azure": published, predicted by our plan, and measured by our own runs.

Source: deepspeedai/DeepSpeed, docs/_posts/2022-07-26-deepspeed-azure.md, captions of figures 3, 5, 6 and 7: which model,
sequence length, batch and number of GPUs each shows. The values are those of ``analysis/published/azure-deepspeed.csv``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from hpctrain.analysis.published_runs import row_shape
from hpctrain.analysis.validation import CALIBRATION, validation_rows
from hpctrain.plan.flop_conventions import HARDWARE_SPELLING, convert

FILE = "azure-deepspeed.csv"
FigureName = Literal["3a", "3b", "5a", "5b", "6", "7"]


@dataclass(frozen=True)
class AzureFigure:
    """What one figure of the post holds fixed; None: it shows several."""

    caption: str
    seq_len: int
    model: str | None = None
    num_gpus: int | None = None
    micro_batch_size: int | None = None


FIGURES: dict[FigureName, AzureFigure] = {
    "3a": AzureFigure("throughput over model size", 1024, num_gpus=1024, micro_batch_size=8),
    "3b": AzureFigure("scaling of the 175B model", 1024, model="GPT 175B", micro_batch_size=16),
    "5a": AzureFigure("175B, 512 tokens a sequence", 512, model="GPT 175B"),
    "5b": AzureFigure("175B, 1,024 tokens a sequence", 1024, model="GPT 175B"),
    "6": AzureFigure("530B, 1,024 tokens a sequence", 1024, model="GPT 530B"),
    "7": AzureFigure("1T, 1,024 tokens a sequence", 1024, model="GPT 1T"),
}
POINT_DTYPES = {
    "series": "string",
    "model": "string",
    "params_b": "Float64",
    "hardware": "string",
    "gpus": "Int64",
    "micro_batch_size": "Int64",
    "tflops_per_gpu": "Float64",
    "low": "Float64",
    "high": "Float64",
    "model_tflops_per_gpu": "Float64",
    "printed": "boolean",
    "fitted": "boolean",
    "num_runs": "Int64",
}
"""Columns of ``azure_points``: ``series`` is published, predicted or measured; ``low`` and ``high`` bound the value;
``model_tflops_per_gpu`` is the value in model FLOPs, every score counted and no recomputation; ``printed`` says whether a
published value is printed or read from a bar, ``fitted`` whether the constants of a prediction were fitted on that value."""


def with_predictions(published: pd.DataFrame) -> pd.DataFrame:
    """The rows of the post with what our plan predicts for them, in the TFLOP/s of the row's own convention.

    Added are ``predicted_tflops_per_gpu``, ``predicted_low`` and ``predicted_high`` (between which the published value lies if
    the errors are those of rows that were not fitted), ``fitted`` and ``prediction_assumptions``; all are missing where there
    is no prediction.

    Args:
        published: of ``load_published``.
    """
    rows = published[published["file"] == FILE]
    predicted = validation_rows(rows)
    tflops = predicted["predicted_tflops_per_gpu"]
    # A rate is one over a time: the longest time has the lowest rate.
    work = tflops * predicted["predicted_step_time_s"]
    columns = pd.DataFrame(
        {
            "predicted_tflops_per_gpu": tflops,
            "predicted_low": work / predicted["predicted_high_s"],
            "predicted_high": work / predicted["predicted_low_s"],
            "fitted": (predicted["role"] == CALIBRATION).astype("boolean"),
            "prediction_assumptions": predicted["prediction_assumptions"],
        }
    )
    return rows.join(columns)


def azure_points(name: FigureName, published: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """All points of one figure, in TFLOP/s per GPU by the Megatron count, a row a point, ``POINT_DTYPES``.

    Args:
        name: of the figure.
        published: of ``load_published``; of ``with_predictions``, if the predicted series is wanted.
        runs: frame ``runs``; a valid run counts where it trained the model of the figure with its sequence length,
            batch and GPUs, without accumulation, on whatever hardware.

    Raises:
        ConfigError: a row of the figure lacks layers or hidden size, or its heads do not divide.
    """
    rows = _published_rows(FIGURES[name], published)
    series = [_published_points(rows), _predicted_points(rows), _measured_points(FIGURES[name], rows, runs)]
    return pd.concat([table.astype(POINT_DTYPES) for table in series], ignore_index=True)


def all_points(published: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The points of all figures one below the other, with the column ``figure``.

    Args:
        published: as for ``azure_points``.
        runs: frame ``runs``.
    """
    tables = [azure_points(name, published, runs).assign(figure=name) for name in FIGURES]
    return pd.concat(tables, ignore_index=True)[["figure", *POINT_DTYPES]]


def own_model_name(published_model: str) -> str:
    """The name under which ``conf/model`` has a published model: its size.

    >>> own_model_name("GPT 175B"), own_model_name("GPT 28B (start.sh 28)")
    ('175b', '28b')
    """
    match = re.search(r"\b\d+(\.\d+)?[MBT]\b", published_model)
    return match.group().lower() if match else published_model


def _published_rows(figure: AzureFigure, published: pd.DataFrame) -> pd.DataFrame:
    """The rows of one figure, by the caption: quoted runs of others and other sequence lengths stay out."""
    rows = published[
        (published["file"] == FILE)
        & (published["tflops_convention"] == HARDWARE_SPELLING)
        & (published["seq_len"] == figure.seq_len)
        & published["tflops_per_gpu"].notna()
    ]
    for column, value in (
        ("model", figure.model),
        ("num_gpus", figure.num_gpus),
        ("micro_batch_per_gpu", figure.micro_batch_size),
    ):
        rows = rows if value is None else rows[rows[column] == value]
    return rows


def _published_points(rows: pd.DataFrame) -> pd.DataFrame:
    error = rows["tflops_error"].fillna(0.0)
    return _point_frame(rows, "published", rows["tflops_per_gpu"]).assign(
        low=rows["tflops_per_gpu"] - error,
        high=rows["tflops_per_gpu"] + error,
        printed=rows["evidence"] != "DIGITISED",
    )


def _predicted_points(rows: pd.DataFrame) -> pd.DataFrame:
    if "predicted_tflops_per_gpu" not in rows:
        return _point_frame(rows.iloc[:0], "predicted", rows["tflops_per_gpu"].iloc[:0])
    known = rows[rows["predicted_tflops_per_gpu"].notna()]
    return _point_frame(known, "predicted", known["predicted_tflops_per_gpu"]).assign(
        low=known["predicted_low"], high=known["predicted_high"], fitted=known["fitted"]
    )


def _point_frame(rows: pd.DataFrame, series: str, values: pd.Series) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "series": series,
            "model": rows["model"],
            "params_b": rows["params_b"],
            "hardware": rows["gpu"],
            "gpus": rows["num_gpus"],
            "micro_batch_size": rows["micro_batch_per_gpu"],
            "tflops_per_gpu": values,
            "low": values,
            "high": values,
            "model_tflops_per_gpu": values * _model_share(rows),
            "printed": pd.Series(pd.NA, index=rows.index, dtype="boolean"),
            "fitted": pd.Series(pd.NA, index=rows.index, dtype="boolean"),
            "num_runs": pd.Series(pd.NA, index=rows.index, dtype="Int64"),
        }
    )


def _model_share(rows: pd.DataFrame) -> pd.Series:
    """Model FLOPs over those of the Megatron count, by the shape of each row."""
    shares = [convert(1.0, "megatron", "model", row_shape(row)[0], row["seq_len"]) for row in rows.to_dict("records")]
    return pd.Series(shares, index=rows.index, dtype="Float64")


def _measured_points(figure: AzureFigure, rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The median of our valid runs of each size, with the smallest and the largest of them as its bounds."""
    models = rows[["model", "params_b"]].drop_duplicates("model")
    models["own_model"] = pd.array([own_model_name(model) for model in models["model"]], dtype="string")
    ours = runs[runs["valid"] & runs["megatron_tflops_per_gpu"].notna()]
    for column, value in (
        ("seq_len", figure.seq_len),
        ("gradient_accumulation_steps", 1),
        ("gpus", figure.num_gpus),
        ("micro_batch_size", figure.micro_batch_size),
    ):
        # What a run does not state is not equal to anything; a comparison with NA is NA.
        ours = ours if value is None else ours[ours[column].eq(value).fillna(False).astype(bool)]
    ours = ours.rename(columns={"model": "own_model"}).merge(models, on="own_model")
    keys = ["model", "params_b", "hardware", "gpus", "micro_batch_size"]
    statistics = {"tflops_per_gpu": "median", "low": "min", "high": "max", "num_runs": "size"}
    table = ours.groupby(keys).agg(
        **{name: ("megatron_tflops_per_gpu", how) for name, how in statistics.items()},
        model_tflops_per_gpu=("model_tflops_per_gpu", "median"),
    ).reset_index()  # fmt: skip
    unknown = pd.Series(pd.NA, index=table.index, dtype="boolean")
    return table.assign(series="measured", printed=unknown, fitted=unknown)[list(POINT_DTYPES)]
