"""Telemetry to rows: sums over GPUs by hand, nodes by their names, damaged lines counted file by file."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpctrain.analysis.frames import load_frames
from hpctrain.record.schema import GpuSample, NodeSample
from hpctrain.units import GIB
from tests.analysis.make_runs import make_run, sample, write_samples


def test_a_row_by_hand(tmp_path: Path) -> None:
    """Two GPUs: 3 and 5 of 16 GiB, half and fully busy, 200 and 300 W."""
    write_samples(make_run(tmp_path / "run"), "n1", sample())
    (row,) = load_frames([tmp_path]).samples.to_dict("records")
    assert row == {
        "folder": str(tmp_path / "run"),
        "run": "run",
        "attempt": 1,
        "node": "n1",
        "time_s": 2000.0,
        "step": 3,
        "host_used_bytes": 16 * GIB,
        "host_total_bytes": 64 * GIB,
        "ranks_rss_bytes": 8 * GIB,
        "num_gpus": 2,
        "gpu_used_bytes": 8 * GIB,
        "gpu_used_max_bytes": 5 * GIB,
        "gpu_total_bytes": 32 * GIB,
        "gpu_utilisation": 0.75,
        "gpu_power_w": 500.0,
    }


GPU_COLUMNS = ["gpu_used_bytes", "gpu_used_max_bytes", "gpu_total_bytes", "gpu_utilisation", "gpu_power_w"]


@pytest.mark.parametrize(
    ("gpus", "missing"),
    [
        pytest.param((), GPU_COLUMNS, id="no GPU"),
        pytest.param((GpuSample(0, 1, 2),), ["gpu_utilisation", "gpu_power_w"], id="the driver does not say"),
        pytest.param(
            (GpuSample(0, 1, 2, 0.5, 100.0), GpuSample(1, 1, 2, None, 100.0)),
            ["gpu_utilisation"],
            id="one does not say",
        ),
    ],
)
def test_what_is_not_known_is_missing(tmp_path: Path, gpus: tuple[GpuSample, ...], missing: list[str]) -> None:
    write_samples(make_run(tmp_path / "run"), "n1", sample(gpus=gpus))
    samples = load_frames([tmp_path]).samples
    assert samples["num_gpus"].tolist() == [len(gpus)]
    assert [column for column in GPU_COLUMNS if pd.isna(samples[column][0])] == missing


def test_nodes_in_order_and_names_as_they_were(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for node in ("n2", "n1", "rack a/é"):
        write_samples(run, node, sample(time_s=1.0), sample(time_s=2.0))
    (run.nodes / "notes.txt").write_text("no telemetry")
    samples = load_frames([tmp_path]).samples
    assert list(zip(samples["node"], samples["time_s"], strict=True)) == [
        ("n1", 1.0),
        ("n1", 2.0),
        ("n2", 1.0),
        ("n2", 2.0),
        ("rack a/é", 1.0),
        ("rack a/é", 2.0),
    ]


def changed(**fields: Any) -> bytes:
    return json.dumps(asdict(sample()) | fields).encode()


DAMAGED = {
    "empty": b"",
    "half": changed()[:50],
    "null": b"null",
    "bad byte": changed().replace(b"gpus", b"gp\xe9s"),
    "another version": changed(schema_version=2),
    "version as text": changed(schema_version="1"),
    "missing key": changed().replace(b'"host_used_bytes"', b'"host_bytes"'),
    "text for a number": changed(step="3"),
    "flag for a number": changed(host_used_bytes=True),
    "beyond 64 bits": changed(host_used_bytes=2**63),
    "not finite": changed(time_s=float("nan")),
    "a GPU beyond 64 bits": changed(gpus=[asdict(GpuSample(0, 2**64, 1))]),
    "a GPU not finite": changed(gpus=[asdict(GpuSample(0, 1, 1, float("inf")))]),
    "GPUs beyond 64 bits together": changed(gpus=[asdict(GpuSample(index, 2**62, 1)) for index in range(2)]),
    "GPUs that are none": changed(gpus=[1]),
    "too long": b" " * 2_000_000 + changed(),
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("line", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_lines_are_counted_and_the_rest_is_read(tmp_path: Path, line: bytes) -> None:
    run = make_run(tmp_path / "run")
    path = write_samples(run, "n1", sample(step=1), sample(step=2))
    first, second = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, line, second, first[:40]]))
    write_samples(run, "n2", sample(step=3))
    frames = load_frames([tmp_path])
    assert frames.samples["step"].tolist() == [1, 2, 3]
    assert frames.problems == (f"{path}: 1 damaged line(s), left out",)
    assert frames.runs["valid"].tolist() == [True], "telemetry says nothing about the speed"


def test_places_that_cannot_be_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    (run.nodes / "n1.jsonl").mkdir(parents=True)
    os.mkfifo(run.nodes / "n3.jsonl")
    write_samples(run, "n2", NodeSample(1, 1, 0.0, 0, 1, 2, 1))
    other = make_run(tmp_path / "b")
    other.nodes.write_text("")
    frames = load_frames([tmp_path])
    assert frames.samples["node"].tolist() == ["n2"]
    assert frames.problems == (
        f"{run.nodes}/n1.jsonl: Is a directory",
        f"{run.nodes}/n3.jsonl: no regular file",
        f"{other.nodes}: Not a directory",
    )
