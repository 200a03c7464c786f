"""The figures of "DeepSpeed on Azure": which points belong to which, and that what is drawn is what is published."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer

from hpctrain.analysis.azure_figures import (
    FIGURES,
    POINT_DTYPES,
    FigureName,
    all_points,
    azure_points,
    with_predictions,
)
from hpctrain.analysis.figures.azure_plots import plot_azure_figure
from hpctrain.analysis.frames import RUN_DTYPES
from hpctrain.analysis.predicted import predict_published
from hpctrain.analysis.published import load_published
from hpctrain.plan.speed.software import SOFTWARE
from tests.analysis.figures.test_plots import png

NAMES: list[FigureName] = list(FIGURES)


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    """All files, so that rows of other sources must stay out."""
    return load_published()


@pytest.fixture(scope="module")
def predicted(published: pd.DataFrame) -> pd.DataFrame:
    return with_predictions(published)


def own_runs(*rows: dict[str, Any]) -> pd.DataFrame:
    """A frame ``runs``; each row is a valid run of the 175B model like those of figure 5b, but for what it states."""
    usual = {
        "run": "run",
        "model": "175b",
        "hardware": "hgx_h200",
        "valid": True,
        "seq_len": 1024,
        "gradient_accumulation_steps": 1,
        "gpus": 128,
        "micro_batch_size": 16,
        "megatron_tflops_per_gpu": 300.0,
    }
    table = pd.DataFrame([usual | row for row in rows], columns=list(RUN_DTYPES))
    return table.astype(RUN_DTYPES)


NONE = own_runs()


@pytest.mark.parametrize(
    ("name", "count"), [("3a", 4), ("3b", 4), ("5a", 17), ("5b", 20), ("6", 8), ("7", 8)], ids=NAMES
)
def test_number_of_points(published: pd.DataFrame, name: FigureName, count: int) -> None:
    points = azure_points(name, published, NONE)
    assert points["series"].value_counts().to_dict() == {"published": count}
    assert points.dtypes.astype(str).to_dict() == POINT_DTYPES


def test_figure_3a_is_micro_batch_8_on_1024_gpus(published: pd.DataFrame) -> None:
    """Source: the post's caption, and its printed numbers of 530B, 1T and 2T."""
    points = azure_points("3a", published, NONE)
    assert points[["model", "tflops_per_gpu", "printed"]].to_numpy().tolist() == [
        ["GPT 175B", 165.9, False],
        ["GPT 530B", 171.37, True],
        ["GPT 1T", 165.36, True],
        ["GPT 2T", 157.0, True],
    ]
    first = points.iloc[0]
    assert (first["low"], first["high"]) == (pytest.approx(164.6), pytest.approx(167.2)), "+/- 1.3 from the bar"


def test_figure_3b_is_micro_batch_16_of_175b(published: pd.DataFrame) -> None:
    points = azure_points("3b", published, NONE)
    assert points[["gpus", "tflops_per_gpu"]].to_numpy().tolist() == [
        [128, 194.5],
        [256, 203.2],
        [512, 197.0],
        [1024, 192.0],
    ]


@pytest.mark.parametrize("name", ["5a", "5b", "6", "7"])
def test_rows_are_those_that_name_the_figure(published: pd.DataFrame, name: FigureName) -> None:
    """The choice is by model and sequence length; ``ref`` names the figure and must agree."""
    named = published[published["ref"].str.contains(f"Figure {name} ", regex=False)]
    points = azure_points(name, published, NONE)
    assert points["tflops_per_gpu"].tolist() == named["tflops_per_gpu"].tolist()
    assert points["micro_batch_size"].tolist() == named["micro_batch_per_gpu"].tolist()


def test_all_points_are_the_figures_one_below_the_other(published: pd.DataFrame) -> None:
    points = all_points(published, NONE)
    assert points["figure"].value_counts(sort=False).to_dict() == {"3a": 4, "3b": 4, "5a": 17, "5b": 20, "6": 8, "7": 8}


def test_predictions_stand_beside_their_points(published: pd.DataFrame, predicted: pd.DataFrame) -> None:
    points = azure_points("3b", predicted, NONE)
    theirs = points[points["series"] == "predicted"]
    source = predict_published(published[published["file"] == "azure-deepspeed.csv"])
    source = source[(source["seq_len"] == 1024) & (source["micro_batch_per_gpu"] == 16)]
    assert theirs["gpus"].tolist() == source["num_gpus"].tolist() == [128, 256, 512, 1024]
    assert theirs["tflops_per_gpu"].tolist() == source["predicted_tflops_per_gpu"].tolist()
    lowest, highest = SOFTWARE["deepspeed_2022"].errors
    rates = theirs["tflops_per_gpu"].astype(float)
    assert theirs["low"].tolist() == pytest.approx((rates * (1 + lowest)).tolist())
    assert theirs["high"].tolist() == pytest.approx((rates * (1 + highest)).tolist())


@pytest.mark.parametrize("series", ["published", "predicted"])
def test_model_flops_beside_the_megatron_count(predicted: pd.DataFrame, series: str) -> None:
    """By hand, 72·(1 + s/6h + V/12lh) over 96·(1 + s/6h + V/16lh): 175B at 512 tokens, 96 x 12,288; 2T at 1,024, 160 x 32,768."""
    points = all_points(predicted, NONE)
    points = points[points["series"] == series]
    share = points["model_tflops_per_gpu"] / points["tflops_per_gpu"]
    small, large = points["figure"] == "5a", points["model"] == "GPT 2T"
    expected = 0.75 * (1 + 0.006944 + 0.003554) / (1 + 0.006944 + 0.002665)
    assert share[small].astype(float).tolist() == pytest.approx([expected] * small.sum(), rel=1e-5)
    expected = 0.75 * (1 + 0.005208 + 0.000800) / (1 + 0.005208 + 0.000600)
    assert share[large].astype(float).tolist() == pytest.approx([expected], rel=1e-5)


def test_what_was_fitted_is_marked(predicted: pd.DataFrame) -> None:
    """Source: ``Software.fitted_on`` of this generation, «175B at 512 tokens, and 1T at micro batch 8»; 3a has points of 7."""
    points = all_points(predicted, NONE)
    fitted = points[points["series"] == "predicted"].groupby("figure")["fitted"].agg(["all", "any"])
    assert fitted["any"].to_dict() == {"3a": True, "3b": False, "5a": True, "5b": False, "6": False, "7": True}
    assert fitted["all"].to_dict() == {"3a": False, "3b": False, "5a": True, "5b": False, "6": False, "7": False}


def test_a_row_that_cannot_be_predicted_has_no_point(published: pd.DataFrame) -> None:
    unknown = published["num_gpus"].where(published["num_gpus"] == 256)
    rows = with_predictions(published.assign(global_batch=published["global_batch"].where(unknown.isna())))
    points = azure_points("3b", rows, NONE)
    assert points.loc[points["series"] == "predicted", "gpus"].tolist() == [128, 512, 1024]
    assert len(points[points["series"] == "published"]) == 4


def test_our_runs_are_medians_with_their_range(published: pd.DataFrame) -> None:
    rates = ((300.0, 225.0), (330.0, 247.0), (310.0, 233.0))
    runs = own_runs(*({"megatron_tflops_per_gpu": count, "model_tflops_per_gpu": model} for count, model in rates))
    points = azure_points("3b", published, runs)
    (ours,) = points[points["series"] == "measured"].to_dict("records")
    assert (ours["tflops_per_gpu"], ours["low"], ours["high"], ours["num_runs"]) == (310.0, 300.0, 330.0, 3)
    assert ours["model_tflops_per_gpu"] == 233.0
    assert (ours["model"], ours["params_b"], ours["hardware"]) == ("GPT 175B", 175.0, "hgx_h200")


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"valid": False}, id="not valid"),
        pytest.param({"model": "13b"}, id="other model"),
        pytest.param({"model": None, "seq_len": None}, id="log without a shape"),
        pytest.param({"seq_len": 512}, id="other sequence"),
        pytest.param({"gradient_accumulation_steps": 2}, id="accumulation"),
        pytest.param({"micro_batch_size": 8}, id="other micro batch"),
        pytest.param({"megatron_tflops_per_gpu": None}, id="no FLOPs"),
    ],
)
def test_runs_of_another_shape_are_no_points(published: pd.DataFrame, other: dict[str, Any]) -> None:
    points = azure_points("3b", published, own_runs(other))
    assert set(points["series"]) == {"published"}


def test_figure_3a_takes_runs_on_1024_gpus_only(published: pd.DataFrame) -> None:
    runs = own_runs({"micro_batch_size": 8}, {"micro_batch_size": 8, "gpus": 1024, "megatron_tflops_per_gpu": 222.0})
    points = azure_points("3a", published, runs)
    assert points.loc[points["series"] == "measured", "tflops_per_gpu"].tolist() == [222.0]


def values(axis: Axes, label: str) -> list[float]:
    (line,) = [line for line in axis.lines if line.get_label() == label]
    return list(np.asarray(line.get_ydata(), dtype=float))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_drawn_is_what_is_published(published: pd.DataFrame, name: FigureName) -> None:
    points = azure_points(name, published, NONE)
    figure = plot_azure_figure(name, published, NONE)
    if name in ("3a", "3b", "6"):  # one of each kind
        assert len(png(figure)) > 3_000
    drawn = [value for axis in figure.axes[-1 if name == "3b" else 0 :] for value in values(axis, "published")]
    assert sorted(drawn) == pytest.approx(sorted(points["tflops_per_gpu"]))
    assert all(re.search(r"\(1e1[25] FLOP/s\)|^$", axis.get_ylabel()) for axis in figure.axes)
    title = figure.get_suptitle().replace("\n", " ")
    assert title.startswith(f"DeepSpeed on Azure, figure {name}: ")
    assert f"on A100-SXM-80GB (ND A100 v4), {len(points)} points; no run of ours; no prediction" in title
    assert "Megatron FLOPs" in title
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert {"predicted by our plan: none", "measured by us: none of our runs has this shape"} <= set(labels)


@pytest.mark.parametrize("evidence", ["printed", "read", "both"])
def test_the_legend_names_only_the_published_points_that_are_drawn(published: pd.DataFrame, evidence: str) -> None:
    part = (
        published
        if evidence == "both"
        else published[(published["evidence"] != "DIGITISED") == (evidence == "printed")]
    )
    labels = [text.get_text() for text in plot_azure_figure("6", part, NONE).legends[0].get_texts()]
    assert ("published, printed in the text" in labels) == (evidence != "read")
    assert ("published, read from a bar, with its error" in labels) == (evidence != "printed")


def test_digitised_points_are_hollow_with_their_error(published: pd.DataFrame) -> None:
    figure = plot_azure_figure("6", published, NONE)
    for axis in figure.axes:
        hollow, filled = (bars for bars in axis.containers if isinstance(bars, ErrorbarContainer))
        assert hollow.lines[0] is not None
        assert filled.lines[0] is not None
        assert hollow.lines[0].get_markerfacecolor() == "white"
        assert len(np.asarray(hollow.lines[0].get_xdata())) == 3
        assert filled.lines[0].get_markerfacecolor() != "white"
        (segments,) = hollow.lines[2]
        heights = [float(np.ptp(np.asarray(segment)[:, 1])) for segment in segments.get_segments()]
        assert heights == pytest.approx([0.8] * 3)


def test_three_series_look_different(predicted: pd.DataFrame) -> None:
    runs = own_runs({}, {"gpus": 64})
    figure = plot_azure_figure("5b", predicted, runs)
    assert len(png(figure)) > 3_000
    assert [axis.get_title("left") for axis in figure.axes] == [
        "64 GPUs",
        "128 GPUs",
        "256 GPUs",
        "512 GPUs",
        "1,024 GPUs",
    ]
    axis = figure.axes[1]
    points = azure_points("5b", predicted, runs)
    expected = points[(points["series"] == "predicted") & (points["gpus"] == 128)]["tflops_per_gpu"]
    assert values(axis, "predicted") == pytest.approx(expected.astype(float).tolist())
    styles = {str(line.get_label()): line.get_linestyle() for line in axis.lines}
    assert (styles["published"], styles["predicted"]) == ("-", "--")
    assert "*" in {line.get_marker() for line in axis.lines}
    assert "20 points; 2 of our runs on hgx_h200" in figure.get_suptitle().replace("\n", " ")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {
        "predicted by our plan, not fitted on these points",
        "its range, by errors on points not fitted",
        "measured by us (median, smallest to largest run)",
    } <= set(labels)


@pytest.mark.parametrize(
    ("fitted", "words"),
    [
        ([True], "fitted on these points"),
        ([False], "not fitted on these points"),
        ([True, False], "partly fitted on these points"),
    ],
    ids=["all", "none", "some"],
)
def test_the_legend_says_what_the_prediction_had_seen(predicted: pd.DataFrame, fitted: list[bool], words: str) -> None:
    column = pd.array([fitted[number % len(fitted)] for number in range(len(predicted))], dtype="boolean")
    figure = plot_azure_figure("5a", predicted.assign(fitted=column), NONE)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert f"predicted by our plan, {words}" in labels


def test_figure_3b_shows_all_gpus_together_and_each(published: pd.DataFrame) -> None:
    figure = plot_azure_figure("3b", published, NONE)
    together, each = figure.axes
    assert values(together, "published") == pytest.approx([24.896, 52.019, 100.864, 196.608], abs=1e-3)
    assert values(together, "perfect scaling from the published 128 GPUs") == pytest.approx(
        [0.1945 * gpus for gpus in (128, 256, 512, 1024)]
    )
    assert values(each, "published") == [194.5, 203.2, 197.0, 192.0]


def test_without_the_published_rows_it_says_so(published: pd.DataFrame) -> None:
    others = published[published["file"] != "azure-deepspeed.csv"]
    figure = plot_azure_figure("3b", others, own_runs({}))
    assert len(png(figure)) > 500
    assert figure.axes[0].texts[0].get_text() == "the published rows of this figure are not in the frame"
