"""AngelPTM's four results as ratios over their base, and what our plan and our own runs have to say about each.

AngelPTM publishes sizes and ratios; its absolute throughput is in no text that we know, so none is drawn. Source:
``analysis/published/angelptm.csv`` (Tencent's documentation of 2023-12-21 and the abstract of arXiv 2303.02868).
"""

from __future__ import annotations

import re
from typing import Literal

import pandas as pd

from hpctrain.analysis.angelptm_sizes import predicted_sizes
from hpctrain.analysis.azure_figures import own_model_name
from hpctrain.analysis.predicted import ANGELPTM_SEQ_LEN, predict_published
from hpctrain.analysis.published_runs import published_run
from hpctrain.analysis.scaling import scaling_efficiency
from hpctrain.plan.speed.calibration import KIND_OF_PART
from hpctrain.plan.speed.step_parts import step_parts

FILE = "angelptm.csv"
HARDWARE = "hccpnv4h"
"""The node type of the results, by our name."""
NETWORK = "network 100 Gb/s a node"
"""As the documentation says, in the words that ``predict_published`` reads."""
PLANNED_NODES = (1, 2, 4)
"""Sizes of the predicted scaling; the largest result is of 4 nodes."""
Result = Literal["largest model", "same-size speed", "multi-node scaling", "100B-class speed"]
RESULTS: dict[Result, str] = {
    "largest model": "largest model on 1 node",
    "same-size speed": "speed at equal size, 1 node",
    "multi-node scaling": "scaling over nodes",
    "100B-class speed": "speed of a 100B-class model, 4 nodes",
}
POINT_DTYPES = {
    "result": "string",
    "series": "string",
    "label": "string",
    "ratio": "Float64",
    "up_to": "boolean",
    "nodes": "Int64",
    "num_runs": "Int64",
}
"""Columns of ``angelptm_points``: ``series`` is base, published, predicted or measured; ``ratio`` is over the base;
``up_to`` marks the best of several cases."""

_GAIN = re.compile(
    r"(?P<up_to>up to )?\+(?P<percent>[\d.]+) % (?P<what>largest model|throughput|over the community version on (?P<nodes>\d+))"
)


def published_gains(published: pd.DataFrame) -> pd.DataFrame:
    """The ratios that AngelPTM publishes, a row a ratio, ``POINT_DTYPES``: +44.42 % is a ratio of 1.4442.

    Args:
        published: of ``load_published``; rows of other files are left out.
    """
    rows = []
    relative = published[(published["file"] == FILE) & (published["evidence"] == "RELATIVE")]
    for row in relative.to_dict("records"):
        for match in _GAIN.finditer(row["notes"]):
            rows.append(
                {
                    "result": _result_of(match),
                    "series": "published",
                    "label": "paper, up to" if match["up_to"] else "AngelPTM",
                    "ratio": 1 + float(match["percent"]) / 100,
                    "up_to": match["up_to"] is not None,
                    "nodes": row["nodes"],
                }
            )
    return pd.DataFrame(rows, columns=list(POINT_DTYPES)).astype(POINT_DTYPES)


def _result_of(match: re.Match[str]) -> Result:
    if match["nodes"]:
        return "100B-class speed"
    return "largest model" if match["what"] == "largest model" else "same-size speed"


def size_rows(published: pd.DataFrame) -> pd.DataFrame:
    """The published rows of the two largest models that are named with their shapes, smallest first.

    Returns:
        The columns of ``load_published`` with ``own_model`` (its name in ``conf/model``) and ``ratio`` over the smallest.
    """
    rows = published[(published["file"] == FILE) & (published["evidence"] == "EXACT")]
    rows = rows[rows["layers"].notna() & rows["max_model_b"].notna()].sort_values("params_b").reset_index(drop=True)
    own = pd.array([own_model_name(model) for model in rows["model"]], dtype="string")
    return rows.assign(own_model=own, ratio=rows["params_b"] / rows["params_b"].min())


def scaling_rows(published: pd.DataFrame) -> pd.DataFrame:
    """The two models on 1, 2 and 4 nodes with the batch of each GPU kept, as rows that can be predicted.

    Not published, and taken: all states in the host's memory, full recomputation, 1,024 tokens a sequence.

    Args:
        published: of ``load_published``.
    """
    sizes = size_rows(published)
    tables = []
    for nodes in PLANNED_NODES:
        gpus = sizes["num_gpus"] // sizes["nodes"] * nodes
        tables.append(
            sizes.assign(
                nodes=nodes,
                num_gpus=gpus,
                dp=gpus,
                global_batch=sizes["micro_batch_per_gpu"] * gpus,
                seq_len=sizes["seq_len"].fillna(ANGELPTM_SEQ_LEN),
                activation_ckpt="full",
                precision="fp16",
                offload_optimizer="cpu",
                offload_param="cpu",
                notes=sizes["notes"] + f"; {NETWORK}",
            )
        )
    return pd.concat(tables, ignore_index=True)


def angelptm_points(published: pd.DataFrame, runs: pd.DataFrame, host_memory_gib: float | None = None) -> pd.DataFrame:
    """All points of the four panels, ``POINT_DTYPES``.

    Our runs are of DeepSpeed, which is the base of the ratios, so none of them has a speed to put beside AngelPTM's; they have
    the largest model on a node, and the scaling over nodes. The plan has these too, and what it would gain that the work of the
    host runs beside the GPU's. Runs count on AngelPTM's own node type alone.

    Args:
        published: of ``load_published``.
        runs: frame ``runs``.
        host_memory_gib: memory of a node; AngelPTM does not state it. None: no largest model is predicted.
    """
    gains = published_gains(published)
    sizes = size_rows(published)
    base = gains.drop_duplicates("result").assign(series="base", label="DeepSpeed", ratio=1.0, up_to=False)
    parts = [
        base,
        gains,
        _predicted_sizes(sizes, host_memory_gib),
        _predicted_speed(published),
        _predicted_scaling(published),
        _measured_size(sizes, runs),
        _measured_scaling(runs),
    ]
    return pd.concat([part.astype(POINT_DTYPES) for part in parts], ignore_index=True)


def _predicted_sizes(sizes: pd.DataFrame, host_memory_gib: float | None) -> pd.DataFrame:
    """The largest models that fit by our plan over the community version's published one, as ``plan --largest`` says."""
    if host_memory_gib is None or sizes.empty:
        return pd.DataFrame(columns=list(POINT_DTYPES))
    rows = predicted_sizes(sizes, host_memory_gib)
    rows = rows[rows["params_b"].notna()]
    return pd.DataFrame(
        {
            "result": "largest model",
            "series": "predicted",
            "label": rows["label"],
            "ratio": rows["params_b"] / sizes["params_b"].min(),
            "up_to": False,
            "nodes": 1,
            "num_runs": pd.Series(pd.NA, index=rows.index, dtype="Int64"),
        }
    )


def hidden_host_gains(published: pd.DataFrame) -> pd.DataFrame:
    """What hiding the host's work behind the GPU's gains, by our plan: ``scaling_rows`` with ``step_s``, ``hidden_s``, ``gain``.

    DeepSpeed updates on the CPU after the passes, one sub-group after the other, and the GPU waits. AngelPTM runs both at once
    (``pipeline_optimizer``, multi-stream execution), so that a step takes as long as the longer of the two.

    Args:
        published: of ``load_published``.
    """
    rows = scaling_rows(published)
    steps = []
    for row in rows.to_dict("records"):
        run = published_run(row)
        parts = step_parts(run.setup, run.machine, run.software)
        host_s = sum(seconds for name, seconds in parts.items() if KIND_OF_PART[name] == "host")
        step_s = sum(parts.values())
        steps.append((step_s, max(step_s - host_s, host_s)))
    table = pd.DataFrame(steps, columns=["step_s", "hidden_s"], index=rows.index)
    return rows.assign(**table, gain=table["step_s"] / table["hidden_s"])


def _predicted_speed(published: pd.DataFrame) -> pd.DataFrame:
    """The gain on one node at the size of the published ratio, the community version's largest model."""
    rows = hidden_host_gains(published)
    rows = rows[rows["nodes"] == 1].head(1)
    return pd.DataFrame(
        {
            "result": "same-size speed",
            "series": "predicted",
            "label": "plan, host's work hidden",
            "ratio": rows["gain"],
            "up_to": False,
            "nodes": rows["nodes"],
            "num_runs": pd.Series(pd.NA, index=rows.index, dtype="Int64"),
        }
    )


def _predicted_scaling(published: pd.DataFrame) -> pd.DataFrame:
    """Weak scaling by our plan: the step time of one node over that of several, since the batch of a GPU is kept."""
    rows = predict_published(scaling_rows(published))
    rows = rows[rows["predicted_step_time_s"].notna()]
    one_node = rows[rows["nodes"] == 1].set_index("own_model")["predicted_step_time_s"]
    return pd.DataFrame(
        {
            "result": "multi-node scaling",
            "series": "predicted",
            "label": rows["own_model"],
            "ratio": rows["own_model"].map(one_node).astype("Float64") / rows["predicted_step_time_s"],
            "up_to": False,
            "nodes": rows["nodes"],
            "num_runs": pd.Series(pd.NA, index=rows.index, dtype="Int64"),
        }
    )


def own_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of the frame ``runs`` on AngelPTM's node type."""
    return runs[runs["hardware"].eq(HARDWARE).fillna(False).astype(bool)]


def _measured_size(sizes: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The largest model that we trained on one such node, over the base's."""
    ours = own_runs(runs)
    ours = ours[ours["valid"] & ours["nodes"].eq(1).fillna(False).astype(bool)]
    if ours.empty or sizes.empty:
        return pd.DataFrame(columns=list(POINT_DTYPES))
    largest = ours["num_parameters"].max()
    row = {
        "result": "largest model",
        "series": "measured",
        "label": "our run",
        "ratio": float(largest) / (1e9 * float(sizes["params_b"].min())),
        "up_to": False,
        "nodes": 1,
        "num_runs": int((ours["num_parameters"] == largest).sum()),
    }
    return pd.DataFrame([row])


def _measured_scaling(runs: pd.DataFrame) -> pd.DataFrame:
    """Weak scaling of our own runs on such nodes: tokens/s a GPU over that of the fewest nodes."""
    scaling = scaling_efficiency(own_runs(runs), "weak")
    points = scaling.points[scaling.points["efficiency"].notna()]
    return pd.DataFrame(
        {
            "result": "multi-node scaling",
            "series": "measured",
            "label": points["group"],
            "ratio": points["efficiency"],
            "up_to": False,
            "nodes": points["nodes"],
            "num_runs": points["num_runs"],
        }
    )
