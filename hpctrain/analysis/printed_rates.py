"""What a foreign log prints as TFLOP/s against what its tokens per second allow (13 against 125 for one run is a real report)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from hpctrain.analysis.run_row import FLOP_CONVENTIONS
from hpctrain.plan.flop_conventions import FLOPS_PER_PARAMETER
from hpctrain.units import TERA

MAX_OFF = 0.1
"""Share by which a printed rate may differ from one computed in its own convention: printed values are rounded and averaged."""

ROUGH_RANGE = (0.5, 4.0)
"""Where only the number of parameters is known, the range of a printed rate over 6 FLOPs a parameter and token. Above: all
blocks recomputed is 8/6, and full attention over long sequences may double or treble the count. Below: half of the
parameters are embeddings, which take no product, in small models with a large vocabulary."""


def tflops_contradictions(runs: pd.DataFrame) -> tuple[str, ...]:
    """A text for each run whose printed TFLOP/s a GPU and tokens/s cannot both be true; nothing for runs that print none.

    The count is the one that the log states (or any of the three, where it states none) if the run's row has it, since then
    the model is known; else 6 FLOPs a parameter and token, within ``ROUGH_RANGE``.

    Args:
        runs: frame ``runs``, or a part of it.
    """
    if "printed_tflops_per_gpu" not in runs:
        return ()
    rows: list[dict[Any, Any]] = runs[runs["printed_tflops_per_gpu"].notna()].to_dict("records")
    texts = (_contradiction(row) for row in rows)
    return tuple(text for text in texts if text)


def _contradiction(row: dict[Any, Any]) -> str:
    printed, convention = float(row["printed_tflops_per_gpu"]), row["printed_convention"]
    stated = convention if convention in FLOP_CONVENTIONS else None
    names = [stated] if stated else list(FLOP_CONVENTIONS)
    computed = [float(row[f"{name}_tflops_per_gpu"]) for name in names if pd.notna(row[f"{name}_tflops_per_gpu"])]
    if computed:
        low, high = (1 - MAX_OFF) * min(computed), (1 + MAX_OFF) * max(computed)
        basis = f"tokens/s x {stated or 'any'} FLOPs a token"
    elif pd.notna(row["num_parameters"]) and pd.notna(row["tokens_per_s_per_gpu"]):
        rough = FLOPS_PER_PARAMETER * float(row["num_parameters"]) * float(row["tokens_per_s_per_gpu"]) / TERA
        computed, (low, high) = [rough], (ROUGH_RANGE[0] * rough, ROUGH_RANGE[1] * rough)
        basis = f"tokens/s x {FLOPS_PER_PARAMETER} FLOPs a parameter"
    else:
        return ""
    if low <= printed <= high:
        return ""
    shown = " to ".join(f"{value:,.4g}" for value in sorted({min(computed), max(computed)}))
    return (
        f"{row['run']}: {printed:,.4g} TFLOP/s a GPU printed ({stated or 'convention not stated'}), but {basis} give"
        f" {shown}; both cannot be true, and an efficiency is taken from tokens/s"
    )
