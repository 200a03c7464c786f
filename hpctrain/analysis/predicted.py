"""Published rows as the planner would have predicted them: step time, TFLOP/s in the row's own convention, memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from hpctrain.analysis.published_runs import gpu_memory_gib, published_run, row_shape, text_of
from hpctrain.config.schema import HardwareConfig, ParallelismConfig
from hpctrain.errors import ConfigError
from hpctrain.plan.flop_conventions import convention_flops
from hpctrain.plan.flops import tflops_per_gpu
from hpctrain.plan.layout import Batch, Layout
from hpctrain.plan.memory.estimate import MemoryEstimate, estimate_memory
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.speed.step_parts import step_parts
from hpctrain.plan.speed.step_time import time_range_s
from hpctrain.plan.stated.plain_shape import plain_shape
from hpctrain.units import GIB

SPEED_DTYPES = {
    "predicted_step_time_s": "Float64",
    "predicted_low_s": "Float64",
    "predicted_high_s": "Float64",
    "predicted_tflops_per_gpu": "Float64",
    "prediction_problem": "string",
    "prediction_assumptions": "string",
}
MEMORY_DTYPES = {
    "predicted_gpu_gib": "Float64",
    "predicted_host_gib_per_node": "Float64",
    "predicted_fits": "boolean",
    "predicted_largest_b": "Float64",
    "prediction_problem": "string",
}
ANGELPTM_SEQ_LEN = 1024
"""Tokens of a sequence for rows that state a micro batch and no length, as AngelPTM's do; told in ``prediction_problem``.

It is the length of DeepSpeed on Azure's figures. With the 2,048 that ``plan --table`` takes, our rules ask for 87 GiB of a GPU of
40 GB for AngelPTM's 28B model at its micro batch of 38; with 1,024 for 46."""
ASSUMED_SEQ_LEN = ANGELPTM_SEQ_LEN


def predict_published(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with ``SPEED_DTYPES`` added.

    ``prediction_problem`` says why a row has no prediction, and is empty where it has one. TFLOP/s are in the convention of
    the row, missing where the publication does not say which. Between ``predicted_low_s`` and ``predicted_high_s`` the measured
    step lies if the errors are those of rows that were not fitted. ``prediction_assumptions`` lists what was taken.

    Args:
        rows: of ``load_published``.
    """
    answers = [_speed(row) for row in rows.to_dict("records")]
    table = pd.DataFrame(answers, columns=list(SPEED_DTYPES), index=rows.index).astype(SPEED_DTYPES)
    return rows.assign(**{name: table[name] for name in SPEED_DTYPES})


def _speed(row: Mapping[Any, Any]) -> dict[str, Any]:
    try:
        run = published_run(row)
    except ConfigError as error:
        return {"prediction_problem": str(error), "prediction_assumptions": ""}
    setup = run.setup
    step_time_s = sum(step_parts(setup, run.machine, run.software).values())
    low_s, high_s = time_range_s(step_time_s, run.software)
    tflops = None
    if run.convention is not None:
        flops = convention_flops(
            run.convention, setup.shape, setup.seq_len, int(row["global_batch"]), run.num_parameters
        )
        tflops = tflops_per_gpu(flops, step_time_s, setup.num_gpus)
    return {
        "predicted_step_time_s": step_time_s,
        "predicted_low_s": low_s,
        "predicted_high_s": high_s,
        "predicted_tflops_per_gpu": tflops,
        "prediction_problem": "",
        "prediction_assumptions": "; ".join(run.assumptions),
    }


def predict_memory_published(rows: pd.DataFrame, host_memory_gib: float | None = None) -> pd.DataFrame:
    """The rows with ``MEMORY_DTYPES`` added: what a plain ZeRO-3 run with all states in host memory would take.

    ``predicted_largest_b`` is the largest model (1e9 parameters) that fits when blocks of the row's width are added.

    Args:
        rows: of ``load_published``; rows of ZeRO-3 without further degrees are answered.
        host_memory_gib: memory of one node; no file of published results states it. None: what depends on it stays missing,
            and ``prediction_problem`` says so.
    """
    answers = [_memory(row, host_memory_gib) for row in rows.to_dict("records")]
    table = pd.DataFrame(answers, columns=list(MEMORY_DTYPES), index=rows.index).astype(MEMORY_DTYPES)
    return rows.assign(**{name: table[name] for name in MEMORY_DTYPES})


def _memory(row: Mapping[Any, Any], host_memory_gib: float | None) -> dict[str, Any]:
    missing = [name for name in ("layers", "hidden", "num_gpus", "nodes", "micro_batch_per_gpu") if pd.isna(row[name])]
    if missing:
        return {"prediction_problem": f"does not state {', '.join(missing)}"}
    if not pd.isna(row["zero_stage"]) and row["zero_stage"] != 3:
        return {"prediction_problem": f"zero_stage={row['zero_stage']}: only ZeRO-3 with offload is answered here"}
    if any(not pd.isna(row[name]) and row[name] > 1 for name in ("tp", "pp", "cp_sp")):
        return {
            "prediction_problem": "tensor, pipeline or sequence parallelism: only data-parallel rows are answered here"
        }
    try:
        shape, _ = row_shape(row)
        capacity_gib = gpu_memory_gib(row)
    except ConfigError as error:
        return {"prediction_problem": str(error)}
    estimate = _estimate(shape, row, capacity_gib, host_memory_gib)
    answer: dict[str, Any] = {
        "predicted_gpu_gib": estimate.gpu_bytes / GIB,
        "predicted_host_gib_per_node": estimate.host_bytes_per_node / GIB,
        "prediction_problem": "; ".join(_memory_gaps(row, host_memory_gib)),
    }
    if host_memory_gib is not None:
        answer["predicted_fits"] = not estimate.problems()
        answer["predicted_largest_b"] = _largest_b(shape, row, capacity_gib, host_memory_gib)
    return answer


def _memory_gaps(row: Mapping[Any, Any], host_memory_gib: float | None) -> list[str]:
    """What the answer leaves out."""
    gaps = []
    if pd.isna(row["seq_len"]):
        gaps.append(f"the row does not state seq_len, {ANGELPTM_SEQ_LEN} is taken")
    if host_memory_gib is None:
        gaps.append("the node's host memory is not stated, so neither the fit nor the largest model is answered")
    if "of the states kept on the GPUs" in text_of(row, "notes"):
        gaps.append("all states are taken to be on the host, also the part that this run kept on the GPUs")
    return gaps


def _estimate(shape: ModelShape, row: Mapping[Any, Any], gpu_gib: float, host_gib: float | None) -> MemoryEstimate:
    num_gpus, nodes, micro = (int(row[name]) for name in ("num_gpus", "nodes", "micro_batch_per_gpu"))
    seq_len = ANGELPTM_SEQ_LEN if pd.isna(row["seq_len"]) else int(row["seq_len"])
    work = RankWork(
        shape,
        Layout(nodes, num_gpus // nodes),
        Batch(micro, 1, micro * num_gpus, seq_len),
        ParallelismConfig("published", 3, offload_optimizer="cpu", offload_param="cpu"),
        HardwareConfig(
            name="published",
            device="cuda",
            gpu=text_of(row, "gpu"),
            gpus_per_node=num_gpus // nodes,
            cpu="not stated",
            cpu_cores_per_node=None,
            host_memory_gib=host_gib,
            default_precision="bf16",
            gpu_memory_gib=gpu_gib,
        ),
        "bf16",
        "full",
    )
    return estimate_memory(work)


def _largest_b(shape: ModelShape, row: Mapping[Any, Any], gpu_gib: float, host_gib: float) -> float | None:
    """1e9 parameters of the deepest model of this width that fits; None: not even one block does."""

    def deep(num_layers: int) -> ModelShape:
        return plain_shape(
            num_layers,
            shape.hidden_size,
            shape.vocab_size,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            ffn_hidden_size=shape.ffn_hidden_size,
            gated=shape.architecture == "llama",
            max_seq_len=shape.max_seq_len,
        )

    def fits(num_layers: int) -> bool:
        return not _estimate(deep(num_layers), row, gpu_gib, host_gib).problems()

    if not fits(1):
        return None
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return deep(low).num_parameters / 1e9
