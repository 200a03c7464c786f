"""The table of analysis/PARALLELISM.md from what is stored of its rows, and the bars that it is held to."""

from __future__ import annotations

from collections.abc import Mapping

from hpctrain.units import MIB
from tests.parallelism.group_cases import CASES
from tests.worker.reference import LOSS_TOLERANCE, NORM_TOLERANCE

MEMORY_BAR = 0.05
"""Of the planner's height of a rank, as a share of the bytes that the engine allocated."""
Row = Mapping[str, str]
_TOLERANCES = {
    "loss": LOSS_TOLERANCE,
    "norm": NORM_TOLERANCE | {"bf16": 2e-2},
    "gradient": {"fp32": 1e-5, "fp16": 5e-3, "bf16": 5e-2},
}
"""By type. The largest in 16 bits are those of norms' biases: sums over all tokens of rounded numbers that nearly cancel."""


def memory_error(row: Row) -> float:
    """Of the planned bytes, as a share of the measured ones."""
    return int(row["planned_bytes"]) / int(row["measured_bytes"]) - 1


def beyond_the_bars(row: Row) -> list[str]:
    """In words; empty: all is well."""
    found = []
    if abs(memory_error(row)) > MEMORY_BAR:
        found.append(f"memory {memory_error(row):+.1%}")
    found += [name for name in ("parameters", "flops") if row[name] != row[f"planned_{name}"]]
    if not row["gpu_only"]:
        found += [
            f"{what} {row[f'{what}_difference']}"
            for what, tolerances in _TOLERANCES.items()
            if not float(row[f"{what}_difference"]) <= tolerances[row["precision"]]
        ]
        if row["steps"] != "20":
            found.append(f"{row['steps']} steps")
    return found


def document(rows: Mapping[str, Row]) -> str:
    """The table in Markdown, with what it was made with."""
    trained = [row for row in rows.values() if not row["gpu_only"]]
    versions = sorted({f"torch {row['torch']}, DeepSpeed {row['deepspeed']}" for row in rows.values()})
    dates = sorted({row["measured_on"] for row in rows.values()})
    when = f"{'; '.join(versions)}, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}"
    worst = max(rows.values(), key=lambda row: abs(memory_error(row)))
    bars = "; ".join(
        f"{what} " + ", ".join(f"{kind} {bar:g}" for kind, bar in tolerances.items())
        for what, tolerances in _TOLERANCES.items()
    )
    lines = [
        "# Every form of parallelism, trained and measured",
        "",
        f"{len(trained)} configurations of `model=tiny`, each trained for 20 steps by real ranks on CPUs (gloo), {when}, beside"
        " one process of plain PyTorch in fp32 without DeepSpeed. Differences are shares of the reference's"
        " value, the largest of all steps; of gradients the norm of the difference as a share of the norm, the largest of all"
        " parameters in the first step."
        " Memory is what torch's storages of one rank hold at their height, of that rank whose plan is farthest off; FLOPs are"
        " torch's count of one step of all ranks.",
        "",
        f"Bars: {bars}; memory {MEMORY_BAR:.0%}; parameters and FLOPs equal the plan's. Farthest off in memory:"
        f" {worst['case']}, {memory_error(worst):+.1%}. What DeepSpeed has for CUDA alone is rehearsed on 16 simulated GPUs and"
        " says what the plan says of CPU ranks.",
        "",
        "Written by `python -m tests.parallelism.measure_groups`; `tests/parallelism/test_group_table.py` holds it to its bars.",
        "",
    ]
    header = ["parallelism", "ranks", "trained on", "type", "loss", "gradient norm", "gradients", "parameters"]
    header += ["GFLOP a step", "measured, MiB", "planned", "error"]
    lines += [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    lines += [f"| {' | '.join(_cells(rows[name]))} |" for name in CASES if name in rows]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    differences = [row[f"{what}_difference"] or "-" for what in _TOLERANCES]
    place = f"GPU only: {row['gpu_only']}" if row["gpu_only"] else "CPU"
    counts = [f"{int(row['parameters']):,}", f"{int(row['flops']) / 1e9:.2f}"]
    memory = [f"{int(row[name]) / MIB:.2f}" for name in ("measured_bytes", "planned_bytes")]
    return [
        row["case"],
        row["ranks"],
        place,
        row["precision"],
        *differences,
        *counts,
        *memory,
        f"{memory_error(row):+.2%}",
    ]
