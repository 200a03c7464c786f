"""The table of a sweep as aligned text for people."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.plan.render.cost import amount_text, hours_word, money_text
from hpctrain.plan.sweep.table import SweepRow, SweepTable
from hpctrain.text_table import column_blocks
from hpctrain.units import duration_in_words, short_count

_NOT_SAID = "-"
_MEMORY = "memory"


def render_sweep(table: SweepTable, width: int | None = None) -> str:
    """What ``plan -m`` prints: the table, how to read it, notes, and the problems of each point.

    Args:
        table: of ``sweep_table``, with at least one row.
        width: columns of the terminal, to which a wide table is folded; None: a file or pipe, which may be as wide as it likes.
    """
    keys = list(table.rows[0].swept)
    with_cost = any(row.cost for row in table.rows)
    header = [*_short_names(keys), "nodes", "GPUs", *(["form", "recompute"] if table.with_choices else [])]
    header += ["batch = micro x data parallel x accum.", "step s", "between"]
    header += ["tokens/s", "TFLOP/s/GPU", "MFU", "scaling", "efficiency"]
    if with_cost:
        header += ["time", _hours_header(table.rows), "money"]
    header.append(_MEMORY)
    lines = [
        [
            *row.swept.values(),
            *_speed_cells(row, table.with_choices),
            *(_cost_cells(row) if with_cost else []),
            row.memory,
        ]
        for row in table.rows
    ]
    plural = "s" if len(table.rows) > 1 else ""
    title = f"sweep of {len(table.rows)} point{plural}" + (f": {' '.join(table.fixed)}" if table.fixed else "")
    parts = [title, *_folded(header, lines, len(keys) + 2, width), "\n".join(_legend(table, with_cost))]
    problems = [f"{' '.join(row.overrides)}: {problem}" for row in table.rows for problem in row.problems]
    if problems:
        parts.append("problems\n" + "\n".join(f"  {problem}" for problem in problems))
    return "\n\n".join(parts) + "\n"


def _short_names(keys: Sequence[str]) -> list[str]:
    """Last parts of dotted keys, whole keys where two end alike."""
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)]


def _speed_cells(row: SweepRow, with_form: bool) -> list[str]:
    batch = _NOT_SAID
    if row.global_batch_size is not None:
        parts = f"{row.micro_batch_size} x {row.data_parallel_degree:,} x {row.gradient_accumulation_steps}"
        batch = f"{row.global_batch_size:,} = {parts}"
    form = [row.parallelism or _NOT_SAID, row.activation_checkpointing or _NOT_SAID] if with_form else []
    cells = [f"{row.nodes:,}", f"{row.gpus:,}", *form, batch]
    if row.step_time_s is None:
        cells += [_NOT_SAID] * 4
    else:
        between = f"{_seconds(row.step_time_low_s)} to {_seconds(row.step_time_high_s)}"
        cells += [_seconds(row.step_time_s), between, f"{row.tokens_per_s:,.0f}", f"{row.tflops_per_gpu:.1f}"]
    cells.append(_NOT_SAID if row.mfu is None else f"{row.mfu:.1%}")
    cells.append(row.scaling)
    cells.append(_NOT_SAID if row.efficiency is None else f"{row.efficiency:.1%} of {row.base_nodes:,}")
    return cells


def _seconds(value: float | None) -> str:
    """Three digits, and whole seconds from a thousand on."""
    if value is None:
        return _NOT_SAID
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def _cost_cells(row: SweepRow) -> list[str]:
    if row.cost is None:
        return [_NOT_SAID] * 3
    time_s = (row.cost.elapsed_s or row.cost.compute_s).value
    money = _NOT_SAID if row.cost.money is None else money_text(row.cost.money.value, row.cost)
    return [duration_in_words(time_s), amount_text(row.cost.gpu_hours.value), money]


def _hours_header(rows: Sequence[SweepRow]) -> str:
    return next(hours_word(row.cost) for row in rows if row.cost)


def _legend(table: SweepTable, with_cost: bool) -> list[str]:
    """How to read the columns that could be read in two ways, then the notes."""
    convention = table.rows[0].convention
    meant = " (forward and backward once, dense attention)" if convention == "model" else ""
    lines = [
        f"TFLOP/s/GPU counts FLOPs in the convention {convention}{meant}; all speeds are predictions, memory is an estimate:"
        " nothing here is measured"
    ]
    bases = {row.scaling for row in table.rows if row.efficiency is not None}
    if "weak" in bases:
        lines.append(
            "weak scaling: each GPU keeps its batch; efficiency is tokens/s a GPU over that of the nodes named"
        )
    if "strong" in bases:
        lines.append(
            "strong scaling: the global batch stays; efficiency is tokens/s a GPU over that of the nodes named"
        )
    if any((row.efficiency or 0) > 1.001 for row in table.rows):
        lines.append(
            "above 100 %: more nodes leave each GPU less of the states, so less optimizer work or room for a larger micro batch"
        )
    if bases:
        lines.append("efficiency has no range: how far the errors of two sizes cancel is not known")
    if with_cost:
        lines += _cost_legend(table.rows)
    return [*lines, *(f"note: {text}" for text in table.notes)]


def _cost_legend(rows: Sequence[SweepRow]) -> list[str]:
    """What time and money are for."""
    costs = [row.cost for row in rows if row.cost]
    tokens = [cost.tokens for cost in costs]
    amount = " to ".join(dict.fromkeys((short_count(min(tokens)), short_count(max(tokens)))))
    counted = "with saving, lost work and restarts" if all(cost.elapsed_s for cost in costs) else "of the steps alone"
    if any(cost.elapsed_s for cost in costs) and not all(cost.elapsed_s for cost in costs):
        counted = "with saving, lost work and restarts where a point gets on between failures, else of the steps alone"
    return [f"predicted time and cost are for {amount} tokens in whole steps, {counted}; --json has their ranges"]


def _folded(header: Sequence[str], lines: Sequence[Sequence[str]], num_keys: int, width: int | None) -> list[str]:
    """The table, or as many below each other as make it fit, each with the columns that say which point a line is of."""
    return [
        _aligned([header[each] for each in own], [[line[each] for each in own] for line in lines])
        for own in column_blocks([header, *lines], num_keys, width)
    ]


def _aligned(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Columns to the right, words of memory, which come last, to the left."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]

    def text(cells: Sequence[str]) -> str:
        right = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)]
        return "  ".join([*right[:-1], cells[-1]] if header[-1] == _MEMORY else right)

    return "\n".join(text(cells) for cells in (header, *lines))
