"""Telemetry made by code, with values that can be worked out by hand: inputs for tests, never measurements."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import SCHEMA_VERSION, GpuSample, NodeSample
from hpctrain.record.writer import SampleWriter
from hpctrain.units import GIB


def make_samples(
    run: RunPaths,
    *,
    attempt: int = 1,
    nodes: Sequence[str] = ("node0", "node1"),
    num_gpus: int = 2,
    num_looks: int = 4,
    started_at_s: float = 1000.0,
    steps: Sequence[int] = (0, 2, 4, 6),
) -> None:
    """Writes looks ten seconds apart into ``nodes/`` with the project's own writer.

    At look i node k has 100 GiB, 10·(k+1) + i GiB of it in use, 5·(k+1) GiB by the ranks; its GPU g has 80 GiB, 20 + 4·k + g
    GiB in use, is busy half of the time and draws 300 W. Node k looks k seconds after node 0.
    """
    for number, node in enumerate(nodes):
        writer = SampleWriter(run.node_samples(node))
        writer.open()
        for look in range(num_looks):
            writer.append(
                NodeSample(
                    schema_version=SCHEMA_VERSION,
                    attempt=attempt,
                    time_s=started_at_s + 10 * look + number,
                    step=steps[look],
                    host_used_bytes=(10 * (number + 1) + look) * GIB,
                    host_total_bytes=100 * GIB,
                    ranks_rss_bytes=5 * (number + 1) * GIB,
                    gpus=tuple(
                        GpuSample(gpu, (20 + 4 * number + gpu) * GIB, 80 * GIB, utilisation=0.5, power_w=300.0)
                        for gpu in range(num_gpus)
                    ),
                )
            )
