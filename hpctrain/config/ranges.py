"""Values that a run and a machine can have: beyond them a number is a slip, or in another unit."""

from __future__ import annotations

from typing import Annotated

from hpctrain.config.limits import Limits

LARGEST_COUNTS = {
    "layers": 10_000,
    "hidden": 1_000_000,
    "heads": 100_000,
    "kv_heads": 100_000,
    "ffn_hidden": 10_000_000,
    "vocab": 10_000_000,
    "seq_len": 1_000_000_000,
    "num_gpus": 10_000_000,
    "nodes": 1_000_000,
    "gpus_per_node": 1_024,
    "tp": 100_000,
    "pp": 100_000,
    "cp_sp": 100_000,
    "dp": 10_000_000,
    "micro_batch_per_gpu": 1_000_000,
    "global_batch": 1_000_000_000,
}
"""Above these a number is a slip, not a run; the names are those of the published tables."""

MOST_GPU_GIB = 2_048
"""Of one GPU."""


def _hardware(least: float, most: float, unit: str) -> Limits:
    """Of a number of a hardware file: wide enough for what is sold and for what comes next, and too narrow for the same number in
    Gb/s, MB/s, bytes, MiB, FLOP/s or kW.

    Args:
        least: that hardware has.
        most: several times the largest of 2026.
        unit: with an example, for the message.
    """
    return Limits(gt=0, between=(least, most), unit=unit)


Layers = Annotated[int, Limits(gt=0, le=LARGEST_COUNTS["layers"])]
Hidden = Annotated[int, Limits(gt=0, le=LARGEST_COUNTS["hidden"])]
Heads = Annotated[int, Limits(gt=0, le=LARGEST_COUNTS["heads"])]
FeedForward = Annotated[int, Limits(gt=0, le=LARGEST_COUNTS["ffn_hidden"])]
Vocabulary = Annotated[int, Limits(gt=1, le=LARGEST_COUNTS["vocab"])]
SequenceLength = Annotated[int, Limits(gt=0, le=LARGEST_COUNTS["seq_len"])]
MicroBatch = Annotated[int, Limits(gt=0, le=LARGEST_COUNTS["micro_batch_per_gpu"])]
GlobalBatch = Annotated[int, Limits(gt=0, le=LARGEST_COUNTS["global_batch"])]
Nodes = Annotated[int, Limits(gt=0, le=LARGEST_COUNTS["nodes"])]
HeadDim = Annotated[int, Limits(gt=0, le=4_096)]
"""Of one head; 64 to 256 are usual, 576 is in use."""
NormEps = Annotated[float, Limits(gt=0, lt=1)]
InitStd = Annotated[float, Limits(gt=0, lt=10)]
RopeTheta = Annotated[float, Limits(gt=0, le=1e12)]
"""Of long contexts; 1e4 to 5e7 are in use."""
HostCores = Annotated[int, Limits(gt=0, le=16_384)]
GpusPerNode = Annotated[int, Limits(gt=0, le=LARGEST_COUNTS["gpus_per_node"])]
Tflops = Annotated[float, _hardware(0.001, 10_000, "1e12 FLOP/s of one GPU, dense: an A100 has 312 in bf16")]
GpuGib = Annotated[float, _hardware(0, MOST_GPU_GIB, "GiB of one GPU: an A100 has 79.15")]
HostGib = Annotated[float, _hardware(0, 65_536, "GiB of one node, such as 1,583")]
GpuMemoryRate = Annotated[float, _hardware(20, 40_000, "GB/s (1e9 bytes a second) of one GPU: an A100 has 2,039")]
LinkRate = Annotated[float, _hardware(0.5, 5_000, "GB/s (1e9 bytes a second) one way: an A100 has 300 to its peers")]
NetworkRate = Annotated[float, _hardware(0.05, 20_000, "GB/s (1e9 bytes a second) of a node: 8 x 200 Gb/s are 200")]
HostMemoryRate = Annotated[float, _hardware(1, 20_000, "GB/s (1e9 bytes a second) of a node, such as 409")]
NvmeGib = Annotated[float, _hardware(16, 4_194_304, "GiB of one node, such as 6,400")]
NvmeRate = Annotated[float, _hardware(0.1, 2_000, "GB/s (1e9 bytes a second) of a node, such as 25")]
GpuWatts = Annotated[float, _hardware(5, 20_000, "W: an A100 takes 400")]
NodeWatts = Annotated[float, _hardware(20, 500_000, "W: a DGX H100 takes 10,200")]
GpuHourPrice = Annotated[float, _hardware(1e-4, 1e6, "hardware.price_currency for one GPU and one hour, such as 2.10")]
NodeMtbfHours = Annotated[float, _hardware(1, 1e7, "hours of one node: published are 3,692 to 6,335")]
