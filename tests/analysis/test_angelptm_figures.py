"""AngelPTM's results: the ratios that its texts print, and nothing beyond them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from hpctrain.analysis.angelptm_figures import (
    RESULTS,
    angelptm_points,
    hidden_host_gains,
    published_gains,
    scaling_rows,
    size_rows,
)
from hpctrain.analysis.angelptm_sizes import predicted_sizes
from hpctrain.analysis.figures.angelptm_plots import plot_angelptm
from hpctrain.analysis.frames import RUN_DTYPES
from hpctrain.analysis.predicted import predict_memory_published, predict_published
from hpctrain.analysis.published import load_published
from tests.analysis.figures.test_plots import png


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    return load_published()


def own_runs(*rows: dict[str, Any]) -> pd.DataFrame:
    """A frame ``runs``; each row is a valid run of the 28B model on AngelPTM's node type, but for what it states."""
    usual = {
        "run": "run",
        "model": "28b",
        "num_parameters": 27_900_000_000,
        "hardware": "hccpnv4h",
        "device": "cuda",
        "valid": True,
        "reason": "",
        "nodes": 1,
        "gpus": 8,
        "micro_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "global_batch_size": 32,
        "seq_len": 1024,
        "zero_stage": 3,
        "zero_settings": "{}",
        "tokens_per_s": 800.0,
    }
    return pd.DataFrame([usual | row for row in rows], columns=list(RUN_DTYPES)).astype(RUN_DTYPES)


NONE = own_runs()


def test_ratios_are_those_that_are_printed(published: pd.DataFrame) -> None:
    """Source: +44.42 %, +26.8 %, +94.71 % of the documentation, up to +114.8 % and +88.9 % of the abstract."""
    gains = published_gains(published)
    assert {(row.result, row.label): row.ratio for row in gains.itertuples()} == {
        ("same-size speed", "AngelPTM"): pytest.approx(1.4442),
        ("100B-class speed", "AngelPTM"): pytest.approx(1.268),
        ("largest model", "AngelPTM"): pytest.approx(1.9471),
        ("largest model", "paper, up to"): pytest.approx(2.148),
        ("same-size speed", "paper, up to"): pytest.approx(1.889),
    }
    assert len(gains) == 5, "scaling over nodes is published as an image only"


def test_the_printed_sizes_agree_with_the_printed_ratio(published: pd.DataFrame) -> None:
    sizes = size_rows(published)
    assert sizes[["own_model", "params_b"]].to_numpy().tolist() == [["28b", 27.9], ["55b", 54.8]]
    assert sizes["ratio"].iloc[1] == pytest.approx(1.9471, rel=0.01)


def test_without_own_runs_there_is_no_measured_point(published: pd.DataFrame) -> None:
    other = own_runs({"hardware": "hgx_h200"}, {"valid": False}, {"hardware": None, "nodes": None})
    for runs in (NONE, other):
        assert "no run of ours on hccpnv4h" in plot_angelptm(published, runs).get_suptitle()
        assert set(angelptm_points(published, runs)["series"]) == {"base", "published", "predicted"}


def test_scaling_rows_keep_the_batch_of_a_gpu(published: pd.DataFrame) -> None:
    rows = scaling_rows(published)
    assert rows[["own_model", "nodes", "num_gpus", "global_batch"]].to_numpy().tolist() == [
        ["28b", 1, 8, 304],
        ["55b", 1, 8, 80],
        ["28b", 2, 16, 608],
        ["55b", 2, 16, 160],
        ["28b", 4, 32, 1216],
        ["55b", 4, 32, 320],
    ]
    assert rows["notes"].str.contains("network 100 Gb/s a node", regex=False).all()


def test_largest_models_of_the_published_batches_by_hand(published: pd.DataFrame) -> None:
    """With the micro batches of the printed scripts, 38 and 10, and logits whole."""
    sizes = predict_memory_published(size_rows(published), 1024).set_index("own_model")["predicted_largest_b"] * 1e9
    tables = (50304 + 2048) * 8192
    # GPU, 39.6 GiB = 42.52e9 bytes. At the height of the backward pass: logits and loss 38 x 1,024 x 50,304 x 12 = 23.49e9, the
    # reduce bucket 1e9, gathered parameters 3.01e9, two activations 1.28e9, context 1.61e9. The 12.14e9 left take the inputs of
    # 19 blocks, 38 x 1,024 x 8,192 x 2 = 0.6375e9 each. A block has 16 h² parameters.
    assert sizes["28b"] == pytest.approx(19 * 16 * 8192**2 + tables, rel=1e-3)
    # Host, 1,024 GiB = 1,099.5e9 bytes. The tables and 62 blocks of 12 h² are 50.36e9 parameters: 20 bytes of each are 125.9e9 a
    # rank, Python 0.43e9, and torch's cache rounds pinned pieces up to powers of two: gradients and parameters, 12.59e9 in one
    # buffer each, to 2^34 (9.18e9 more), the fp32 gradients by 1.67e9. Eight ranks: 1,097.5e9; a 63rd block is 18e9 more.
    assert sizes["55b"] == pytest.approx(62 * 12 * 8192**2 + tables, rel=1e-3)


def test_the_largest_models_come_out_within_a_tenth(published: pd.DataFrame) -> None:
    """28B by the community version with all states on the host, 55B with GPU and host together; 1.95 times as large."""
    points = angelptm_points(published, NONE, 1024)
    sizes = points[(points["series"] == "predicted") & (points["result"] == "largest model")].set_index("label")[
        "ratio"
    ]
    assert sizes["plan, DeepSpeed then"] == pytest.approx(1, rel=0.10)
    assert sizes["plan, zero_cache"] == pytest.approx(54.8 / 27.9, rel=0.10)
    assert sizes["plan, zero_cache"] / sizes["plan, DeepSpeed then"] == pytest.approx(1.9471, rel=0.05)
    assert sizes["plan, DeepSpeed then"] < sizes["plan, plain offload"] < sizes["plan, zero_cache"]
    table = predicted_sizes(size_rows(published), 1024).set_index("label")
    assert table["layers"].tolist()[0] == 28
    assert table["published_b"].isna().tolist() == [False, True, False], "of plain offload today nothing is published"


def test_the_published_gain_on_one_node_comes_out(published: pd.DataFrame) -> None:
    """+44.42 % at the community version's largest model, 28B at micro batch 38; nothing was fitted on it."""
    gains = hidden_host_gains(published).set_index(["own_model", "nodes"])
    step_s, hidden_s, gain = (gains[name] for name in ("step_s", "hidden_s", "gain"))
    assert gain["28b", 1] == pytest.approx(1.4442, rel=0.03)
    # Adam on the CPU: 28.34e9 parameters, 44 bytes of each, at 0.16 of 409 GB/s. The GPU is busy for longer.
    adam_s = 28.34e9 * 44 / (0.16 * 409e9)
    assert adam_s < hidden_s["28b", 1] < step_s["28b", 1] - adam_s
    # At micro batch 10 the CPU is the longer one, and then both are as long as it.
    assert hidden_s["55b", 1] == pytest.approx(54.79e9 * 44 / (0.16 * 409e9), rel=0.03)
    points = angelptm_points(published, NONE)
    (ratio,) = points.loc[(points["result"] == "same-size speed") & (points["series"] == "predicted"), "ratio"]
    assert ratio == gain["28b", 1]


def test_scaling_is_near_linear_as_published(published: pd.DataFrame) -> None:
    """In words only: «near-linear» on 1 to 4 nodes of 100 Gb/s. With the host's work hidden or not, no size loses a fifth."""
    gains = hidden_host_gains(published)
    for _, rows in gains.groupby("own_model"):
        for seconds in ("step_s", "hidden_s"):
            steps = rows.set_index("nodes")[seconds]
            assert steps[1] / steps[4] > 0.8


def test_predicted_scaling_by_hand(published: pd.DataFrame) -> None:
    points = angelptm_points(published, NONE)
    scaling = points[points["result"] == "multi-node scaling"].set_index(["label", "nodes"])["ratio"]
    assert scaling["28b", 1] == scaling["55b", 1] == 1
    # 28.34e9 parameters in 16 bits, gathered twice and reduced once, half hidden: from a half to three quarters of it comes
    # through 12.5 GB/s, of which 0.632 can be used. A quarter of the optimizer (44 bytes a parameter at 0.16 of 409 GB/s) and of
    # the way back from the host (2 bytes at 8 x 25 GB/s; the rest is hidden) is saved.
    network_s = 0.5 * 3 * 2 * 28.34e9 * (3 / 4 - 1 / 2) / (12.5e9 * 0.632)
    saved_s = 28.34e9 * (44 / (409e9 * 0.16) + 2 / (8 * 25e9)) / 4
    rows = predict_published(scaling_rows(published)).set_index(["own_model", "nodes"])["predicted_step_time_s"]
    assert 1 / scaling["28b", 4] - 1 / scaling["28b", 2] == pytest.approx(
        (network_s - saved_s) / rows["28b", 1], rel=0.01
    )
    assert scaling["55b", 4] < scaling["55b", 2], "its micro batch of 10 is too short to hide them"


def test_without_host_memory_no_largest_model_is_predicted(published: pd.DataFrame) -> None:
    points = angelptm_points(published, NONE)
    assert set(points.loc[points["series"] == "predicted", "result"]) == {"multi-node scaling", "same-size speed"}
    assert "sizes with no memory stated for a host" in plot_angelptm(published, NONE).get_suptitle()


def test_own_runs_on_the_node_type(published: pd.DataFrame) -> None:
    larger = {"model": "55b", "num_parameters": 54_800_000_000}
    two_nodes = {"nodes": 2, "gpus": 16, "global_batch_size": 64, "tokens_per_s": 1520.0}
    runs = own_runs({}, larger, two_nodes)
    points = angelptm_points(published, runs)
    ours = points[points["series"] == "measured"]
    size = ours[ours["result"] == "largest model"].iloc[0]
    assert (size["ratio"], size["num_runs"]) == (pytest.approx(54.8 / 27.9), 1)
    scaling = ours[ours["result"] == "multi-node scaling"]
    assert scaling[["nodes", "ratio"]].to_numpy().tolist() == [[1, 1.0], [2, pytest.approx(0.95)]]


def bar_widths(figure: Any) -> dict[str, list[float]]:
    return {axis.get_title("left"): [bar.get_width() for bar in axis.patches] for axis in figure.axes}


def test_what_is_drawn_is_what_is_published(published: pd.DataFrame) -> None:
    figure = plot_angelptm(published, NONE, 1024)
    assert len(png(figure)) > 3_000
    points = angelptm_points(published, NONE, 1024)
    predicted = points.loc[(points["series"] == "predicted") & (points["result"] == "largest model"), "ratio"]
    assert bar_widths(figure) == {
        RESULTS["largest model"]: [1, pytest.approx(1.9471), pytest.approx(2.148), *predicted],
        RESULTS["same-size speed"]: [1, pytest.approx(1.4442), pytest.approx(1.889), pytest.approx(1.4442, rel=0.03)],
        RESULTS["multi-node scaling"]: [],
        RESULTS["100B-class speed"]: [1, pytest.approx(1.268)],
    }
    assert [axis.get_xlabel() for axis in figure.axes] == [
        "ratio of parameters (base = 1)",
        "ratio of speeds (base = 1)",
        "nodes",
        "ratio of speeds (base = 1)",
    ]
    assert figure.axes[2].get_ylabel() == "weak scaling\nefficiency (%)"
    texts = [text.get_text().replace("\n", " ") for text in figure.axes[2].texts]
    assert texts == ["28b", "55b", "AngelPTM: published as an image only, no text gives a number"]
    assert "sizes with 1,024 GiB of a host; speeds with 1,024 tokens" in figure.get_suptitle()
    assert "no run of ours on hccpnv4h" in figure.get_suptitle()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "measured by us: no run on hccpnv4h" in labels
    lines = {line.get_linestyle() for line in figure.axes[2].lines if line.get_marker() == "x"}
    assert lines == {"--"}


def test_own_runs_are_drawn(published: pd.DataFrame) -> None:
    runs = own_runs({}, {"nodes": 2, "gpus": 16, "global_batch_size": 64, "tokens_per_s": 1520.0})
    figure = plot_angelptm(published, runs)
    assert len(png(figure)) > 3_000
    size, _, scaling, _ = figure.axes
    (star,) = [line for line in size.lines if line.get_marker() == "*"]
    assert np.asarray(star.get_xdata(), dtype=float) == pytest.approx([1.0])
    (line,) = [line for line in scaling.lines if line.get_marker() == "*"]
    assert np.asarray(line.get_ydata(), dtype=float) == pytest.approx([100, 95])
    assert [label.get_text() for label in scaling.get_xticklabels()] == ["1", "2", "4"]
    assert "2 of our runs on hccpnv4h" in figure.get_suptitle()


def test_without_the_published_rows_it_says_so(published: pd.DataFrame) -> None:
    figure = plot_angelptm(published[published["file"] != "angelptm.csv"], NONE)
    texts = [axis.texts[0].get_text() for axis in figure.axes]
    assert texts.count("not in the frame of published results") == 3
    assert "predicted by our plan: none" in [text.get_text() for text in figure.legends[0].get_texts()]
