"""Answers as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.config.schema import Config
from hpctrain.errors import Problem
from hpctrain.plan.auto.form_name import form_words
from hpctrain.plan.model_shape import resolve_model_shape
from hpctrain.plan.questions.fewest_nodes import FewestNodes
from hpctrain.plan.questions.largest import LargestModel
from hpctrain.plan.questions.micro_batch import BestMicroBatch
from hpctrain.plan.questions.outcome import Outcome
from hpctrain.plan.rules.capacity import capacity_notes
from hpctrain.text_table import MISSING, folded
from hpctrain.units import counted, gib, number_ranges, short_count

_SPEEDS_NOTE = "memory is an estimate by closed rules, speeds are predictions; neither is measured"
_MEMORY_NOTE = "memory is an estimate by closed rules, not measured"


def render_largest(answer: LargestModel, config: Config, trainer: str = "", width: int | None = None) -> str:
    """The text that ``plan --largest`` prints.

    Args:
        answer: of the question.
        config: what was asked of.
        trainer: whose rules of memory were taken; empty: our own worker's.
        width: columns of the terminal, to which a wide table is folded; None: a file or pipe.
    """
    rows = [
        ("a tenth free", answer.with_headroom),
        ("largest that fits", answer.largest),
        ("does not fit", answer.above),
    ]
    if answer.with_headroom == answer.largest:
        rows = rows[1:]
    cells = [
        [name, *_size_cells(row), row.parallelism, *_load_cells(row), *_free_cells(row)]
        for name, row in rows
        if row is not None
    ]
    header = ["", "LAYERS", "PARAMETERS", "FORM", *_LOAD_HEADER, *_FREE_HEADER]
    largest = answer.largest
    found = "none fits" if largest is None else f"{_layers(largest)}, {short_count(largest.num_parameters)} parameters"
    of_trainer = f", by the memory of {trainer}" if trainer else ""
    parts = [
        f"largest model of this width on {_place(config)}{of_trainer}: {found}\n{_width(config)}",
        folded([header, *cells], _NUM_KEYS, width),
        "\n".join(
            [
                *_binding_lines(answer),
                *([] if trainer or largest is None else [f"plan it with model.num_layers={largest.num_layers}"]),
                *_notes(answer.above, config, _MEMORY_NOTE if trainer else _SPEEDS_NOTE),
            ]
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _layers(outcome: Outcome) -> str:
    return counted(outcome.num_layers, "layer")


def _place(config: Config) -> str:
    hardware = config.hardware
    what = "GPUs" if hardware.device == "cuda" else "CPU ranks"
    return f"{counted(config.nodes)} x {hardware.gpus_per_node} {what} ({hardware.name})"


def _width(config: Config) -> str:
    shape, _ = resolve_model_shape(config.model)
    return (
        f"width of model={shape.name}: hidden {shape.hidden_size}, {shape.num_heads} heads of {shape.head_dim}, feed-forward"
        f" {shape.ffn_hidden_size}, vocabulary {shape.vocab_size}"
    )


def _binding_lines(answer: LargestModel) -> list[str]:
    return [f"binds at {_layers(answer.above)}: {_shortage(problem)}" for problem in answer.above.short]


def _shortage(problem: Problem) -> str:
    """Without its fixes, which the plan of that one run has."""
    return f"{problem.key}={problem.value}: {problem.rule}"


def _notes(outcome: Outcome, config: Config, text: str = _SPEEDS_NOTE) -> list[str]:
    """What the numbers are, what of the capacities is the device table's, and whether a node's binds nothing."""
    notes = list(capacity_notes(config.hardware))
    if outcome.host_capacity_bytes is None:
        notes.append("hardware.host_memory_gib is not stated, so that memory bounds nothing")
    return [f"note: {note}" for note in (*notes, text)]


def render_nodes(answer: FewestNodes, config: Config, width: int | None = None) -> str:
    """The text that ``plan --fewest-nodes`` prints; ``width`` as of ``render_largest``."""
    fewest = answer.fewest
    rows = [row for row in (answer.nearest, fewest, *answer.more) if row is not None]
    if fewest is not None:
        rows = [row for row in rows if row is fewest or row.nodes > fewest.nodes or not row.has_headroom]
    header = ["", "NODES", "GPUS", "FORM", *_LOAD_HEADER, "GPU-H/1B TOKENS", *_FREE_HEADER]
    cells = [
        [
            _nodes_mark(row, fewest),
            f"{row.nodes:,}",
            f"{row.gpus:,}",
            row.parallelism,
            *_load_cells(row),
            _number(row.gpu_hours_per_billion_tokens if row.fits else None),
            *_free_cells(row),
        ]
        for row in rows
    ]
    head = f"fewest nodes of {config.hardware.gpus_per_node} ({config.hardware.name}) for {config.model.name}"
    if fewest is not None:
        found = f"{fewest.nodes:,}, with {_headroom(fewest)}"
    else:
        found = f"none of at most {answer.max_nodes:,} with {_headroom(rows[0])}"
    lines = [f"planned: nodes={number_ranges(answer.tried)}, up to --max-nodes {answer.max_nodes:,}"]
    lines += [f"nodes={nodes} breaks a rule: {rule}" for nodes, rule in answer.refused]
    if fewest is None and answer.nearest is not None:
        lines += [f"nodes={answer.nearest.nodes}: {_shortage(problem)}" for problem in answer.nearest.short]
    lines += _notes(rows[0], config, f"{_SPEEDS_NOTE}; GPU-hours are of steps alone")
    return "\n\n".join([f"{head}: {found}", folded([header, *cells], _NUM_KEYS, width), "\n".join(lines)]) + "\n"


def _headroom(outcome: Outcome) -> str:
    """What stays free, of the tiers whose size is known."""
    if outcome.host_capacity_bytes is None:
        return "a tenth of each GPU's memory free"
    return "a tenth of each tier free" if outcome.gpu_capacity_bytes else "a tenth of each node's memory free"


def _nodes_mark(row: Outcome, fewest: Outcome | None) -> str:
    if row is fewest:
        return "fewest"
    return "too few" if fewest is None or row.nodes < fewest.nodes else _mark(row, None)


def render_micro_batches(answer: BestMicroBatch, config: Config, width: int | None = None) -> str:
    """The text that ``plan --best-micro-batch`` prints; ``width`` as of ``render_largest``."""
    best = answer.best
    header = ["", *_LOAD_HEADER, *_FREE_HEADER]
    cells = [[_mark(row, best), *_load_cells(row), *_free_cells(row)] for row in answer.rows]
    found = "none fits" if best is None else f"{best.micro_batch_size}, {answer.why}"
    head = f"best micro batch of {config.model.name} on {_place(config)}, {answer.rows[0].parallelism}: {found}"
    lines = [] if best is None else [f"plan it with {' '.join(_words_of(best, config))}"]
    lines += [f"ends there: {answer.ends_by}"]
    lines += [f"micro batch {answer.rows[-1].micro_batch_size}: {_shortage(each)}" for each in answer.rows[-1].short]
    if answer.rows[-1].global_batch_size > answer.rows[0].global_batch_size:
        lines.append("note: no global batch is stated, so a step has more tokens with a larger micro batch")
    lines += _notes(answer.rows[0], config)
    return "\n\n".join([head, folded([header, *cells], _NUM_KEYS, width), "\n".join(lines)]) + "\n"


def _words_of(best: Outcome, config: Config) -> list[str]:
    """What states the micro batch, with form and accumulation that were chosen before: with it others could be."""
    words = list[str]()
    if any(key.startswith("parallelism.") for key in config.run.chosen):
        words += form_words(config.parallelism, config.hardware.gpus_per_node)
    if config.training.offload_activations:  # goes with a stated recomputation alone
        of_inputs = {"offload_activations": "true", "activation_checkpointing": best.activation_checkpointing}
        words += [
            f"training.{name}={value}" for name, value in of_inputs.items() if f"training.{name}" in config.run.chosen
        ]
    accumulation = "training.gradient_accumulation_steps"
    if accumulation in config.run.chosen and config.training.gradient_accumulation_steps is not None:
        words.append(f"{accumulation}={best.gradient_accumulation_steps}")
    return [*words, f"training.micro_batch_size={best.micro_batch_size}"]


def _mark(row: Outcome, best: Outcome | None) -> str:
    if row is best:
        return "best"
    if not row.fits:
        return "does not fit"
    return "" if row.has_headroom else "below a tenth free"


_NUM_KEYS = 2
"""What a line is, and the number that is asked for: they come first in every table."""
_LOAD_HEADER = ("MICRO BATCH", "ACCUM.", "GLOBAL BATCH", "RECOMPUTED", "STEP S", "TOKENS/S")
_FREE_HEADER = ("GPU FREE", "HOST FREE")


def _size_cells(row: Outcome) -> list[str]:
    return [f"{row.num_layers:,}", short_count(row.num_parameters)]


def _load_cells(row: Outcome) -> list[str]:
    """Speed is not said of what does not fit."""
    step_time_s, tokens_per_s = (row.step_time_s, row.tokens_per_s) if row.fits else (None, None)
    return [
        f"{row.micro_batch_size:,}",
        f"{row.gradient_accumulation_steps:,}",
        f"{row.global_batch_size:,}",
        row.activation_checkpointing,
        _number(step_time_s),
        MISSING if tokens_per_s is None else f"{tokens_per_s:,.0f}",
    ]


def _free_cells(row: Outcome) -> Sequence[str]:
    return [_free(row.gpu_bytes, row.gpu_capacity_bytes), _free(row.host_bytes, row.host_capacity_bytes)]


def _free(needed: int, there: int | None) -> str:
    if there is None:
        return MISSING
    return gib(there - needed) if needed <= there else f"{gib(needed - there)} short"


def _number(value: float | None) -> str:
    """Three digits, and whole numbers from a thousand on."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"
