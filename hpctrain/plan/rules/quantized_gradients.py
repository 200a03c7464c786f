"""Where gradients can be reduced by quantized all-to-alls (ZeRO++ qgZ), on CUDA in stage 3.

Source: DeepSpeed 0.19.8, runtime/comm/coalesced_collectives.py all_to_all_quant_reduce, ops/csrc/quantization/pt_binding.cpp.
Built and rehearsed; never run on a GPU by us.
"""

from __future__ import annotations

from hpctrain.config.schema import Config, ParallelismConfig
from hpctrain.errors import Problem
from hpctrain.plan.divisors import nearest_where
from hpctrain.plan.layout import Layout
from hpctrain.plan.model_shape import ModelShape

_KEY = "parallelism.quantized_gradients"


def quantized_gradient_problems(config: Config, shape: ModelShape, layout: Layout) -> list[Problem]:
    """What would give wrong gradients without a word; that it needs CUDA and stage 3 is said elsewhere."""
    parallelism = config.parallelism
    precision = config.precision
    if not parallelism.quantized_gradients or config.hardware.device != "cuda" or parallelism.zero_stage != 3:
        return []
    if precision != "fp16":
        rule = f"reads gradients as fp16 bits, and this run is in {precision}: they would be wrong without a word"
        return [Problem(_KEY, "true", rule, "add training.precision=fp16, or leave it out")]
    if layout.tensor_parallel_size > 1:
        rule = f"sums over all ranks, which with tensor_parallel_size={layout.tensor_parallel_size} hold different parameters"
        return [Problem(_KEY, "true", rule, "set parallelism.tensor_parallel_size=1, or leave it out")]
    ranks, found = layout.world_size, _bad_matrices(shape, layout.world_size)
    bad = [
        f"{name} {rows:,} x {columns:,}: {max(rows, columns):,} mod {ranks:,} = {max(rows, columns) % ranks}"
        for name, (rows, columns) in found.items()
    ]
    if layout.num_nodes == 1 or not bad:
        return []

    def is_right(num_nodes: int) -> bool:
        return num_nodes == 1 or not _bad_matrices(shape, num_nodes * layout.gpus_per_node)

    rule = f"gives each of the {ranks:,} ranks as many groups of a matrix, one a row or column: {'; '.join(bad)}"
    nodes = " or ".join(map(str, nearest_where(layout.num_nodes, is_right)))
    fix = f"nearest: nodes={nodes}, or leave it out" if nodes else "leave it out"
    return [Problem(_KEY, "true", rule, fix)]


def _bad_matrices(shape: ModelShape, ranks: int) -> dict[str, tuple[int, int]]:
    """Those that the engine would quantize and whose longer side the ranks do not divide."""
    return {
        name: (rows, columns)
        for name, (rows, columns) in _matrices(shape).items()
        if rows * columns % (2 * ranks) == 0 and max(rows, columns) % ranks
    }


def quantized_gradient_warnings(parallelism: ParallelismConfig, layout: Layout) -> list[str]:
    """What is allowed and does nothing."""
    if not parallelism.quantized_gradients or layout.num_nodes > 1:
        return []
    return [
        f"{_KEY}=true has no effect on one node: DeepSpeed quantizes what crosses the network, and reduces as usual here"
    ]


def _matrices(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """Rows and columns of what is reduced so; vectors are not. Source: hpctrain/worker/model/layers.py."""
    hidden, inner = shape.hidden_size, shape.ffn_hidden_size
    return {
        "queries, keys and values": (shape.attention_width + 2 * shape.kv_width, hidden),
        "the projection": (hidden, shape.attention_width),
        "into the feed-forward": (inner * (2 if shape.architecture == "llama" else 1), hidden),
        "out of the feed-forward": (hidden, inner),
        "the token table": (shape.vocab_size, hidden),
    }
