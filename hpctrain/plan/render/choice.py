"""The choice of ``parallelism=auto`` beside its runner-ups, as a table for people."""

from __future__ import annotations

from hpctrain.plan.auto.alternatives import Alternative, AutoChoice
from hpctrain.text_table import MISSING, folded
from hpctrain.units import gib

_INDENT = "  "
_HEADER = ("form", "micro", "accum.", "recomputation", "step s", "tokens/s", "free a GPU", "why")


def render_choice(choice: AutoChoice, width: int | None = None) -> str:
    """A line for each, the choice first, then what they have in common and how to take another one.

    Args:
        choice: of a plan.
        width: columns of the terminal, to which the table is folded; None: a file or pipe.
    """
    rows = [_HEADER, *map(_cells, choice.alternatives)]
    second = next((found for found in choice.alternatives[1:] if found.fits), None)
    lines = [f"parallelism, the choice among {choice.num_considered:,} (predictions, not measured)"]
    table = folded(rows, 1, None if width is None else width - len(_INDENT))
    lines += [f"{_INDENT}{line}".rstrip() for line in table.splitlines()]
    if choice.held_equal:
        lines.append(f"  held equal: {choice.held_equal}")
    if second is not None:
        lines.append(f"  the second: {' '.join(second.overrides)}")
    return "\n".join(lines)


def _cells(found: Alternative) -> tuple[str, ...]:
    on_host = ", inputs on host" if found.offload_activations else ""
    return (
        found.parallelism,
        str(found.micro_batch_size),
        str(found.gradient_accumulation_steps),
        f"{found.activation_checkpointing}{on_host}",
        MISSING if found.step_time_s is None else f"{found.step_time_s:,.3g}",
        MISSING if found.tokens_per_s is None else f"{found.tokens_per_s:,.0f}",
        _free(found.gpu_free_bytes),
        found.reason or MISSING,
    )


def _free(num_bytes: int | None) -> str:
    if num_bytes is None:
        return MISSING
    return gib(num_bytes) if num_bytes >= 0 else f"{gib(-num_bytes)} short"
