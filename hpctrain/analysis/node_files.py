"""``nodes/<name>.jsonl`` to the rows of the frame ``samples``: how full and how busy the nodes of a run were."""

from __future__ import annotations

import os
import urllib.parse
from pathlib import Path
from typing import Any

import pandas as pd

from hpctrain.record.files import plain_text
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_node_samples
from hpctrain.record.schema import GpuSample, NodeSample

SAMPLE_DTYPES: dict[str, str] = {
    "folder": "string",
    "run": "string",
    "attempt": "int64",
    "node": "string",
    "time_s": "float64",
    "step": "int64",
    "host_used_bytes": "int64",
    "host_total_bytes": "int64",
    "ranks_rss_bytes": "int64",
    "num_gpus": "int64",
    "gpu_used_bytes": "Int64",
    "gpu_used_max_bytes": "Int64",
    "gpu_total_bytes": "Int64",
    "gpu_utilisation": "Float64",
    "gpu_power_w": "Float64",
}

_SUFFIX = ".jsonl"


def read_samples(run: RunPaths) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The looks at all nodes of a run, by node and as they were written, and what could not be read.

    The frame lacks ``folder`` and ``run``. Each file is read by itself.
    """
    rows: list[dict[str, Any]] = []
    problems = []
    try:
        names = sorted(os.listdir(run.nodes))
    except FileNotFoundError:
        names = []  # telemetry is off, or the run has not started
    except OSError as error:
        names = []
        problems.append(f"{run.nodes}: {error.strerror}")
    for path in (run.nodes / name for name in names if name.endswith(_SUFFIX)):
        try:
            samples, damaged_lines = read_node_samples(path)
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")
            continue
        if damaged_lines:
            problems.append(f"{path}: {damaged_lines} damaged line(s), left out")
        node = _node_name(path)
        rows += [{"node": node, **_row(sample)} for sample in samples]
    dtypes = {name: dtype for name, dtype in SAMPLE_DTYPES.items() if name not in ("folder", "run")}
    return pd.DataFrame(rows, columns=list(dtypes)).astype(dtypes), tuple(problems)


def _node_name(path: Path) -> str:
    """The node's name, which the writer percent-encoded."""
    return plain_text(urllib.parse.unquote(path.name.removesuffix(_SUFFIX)))


def _row(sample: NodeSample) -> dict[str, Any]:
    row = {name: value for name, value in vars(sample).items() if name not in ("schema_version", "gpus")}
    row["num_gpus"] = len(sample.gpus)
    return row | _gpu_columns(sample.gpus) if sample.gpus else row


def _gpu_columns(gpus: tuple[GpuSample, ...]) -> dict[str, Any]:
    """Sums over GPUs, the largest one's memory and the mean utilisation; a value that one GPU lacks is missing for all."""
    utilisation = [gpu.utilisation for gpu in gpus if gpu.utilisation is not None]
    power_w = [gpu.power_w for gpu in gpus if gpu.power_w is not None]
    return {
        "gpu_used_bytes": sum(gpu.used_bytes for gpu in gpus),
        "gpu_used_max_bytes": max(gpu.used_bytes for gpu in gpus),
        "gpu_total_bytes": sum(gpu.total_bytes for gpu in gpus),
        "gpu_utilisation": sum(utilisation) / len(gpus) if len(utilisation) == len(gpus) else None,
        "gpu_power_w": sum(power_w) if len(power_w) == len(gpus) else None,
    }
