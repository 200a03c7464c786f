"""Plans every row of a table of runs: step time, TFLOP/s, peak memory and whether it fits; text in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpctrain.errors import ConfigError, Problem
from hpctrain.plan.flop_conventions import FlopConvention, convention_flops
from hpctrain.plan.flops import tflops_per_gpu
from hpctrain.plan.speed.step_parts import Setup, step_parts
from hpctrain.plan.stated.cells import check_header, known_names, read_cells
from hpctrain.plan.stated.contradictions import contradictions, reconciled
from hpctrain.plan.stated.left_out import ZERO_OFFLOAD_STAGE, stage_of_offload
from hpctrain.plan.stated.memory_choice import MemoryChoice, choose_memory
from hpctrain.plan.stated.remarks import optimizer_is_open
from hpctrain.plan.stated.run import StatedRow, StatedRun, stated_run, text_of
from hpctrain.units import GIB, gib

ADDED = ("pred_step_time_s", "pred_tflops_per_gpu", "pred_peak_mem_gb", "pred_fits", "problem", "pred_assumptions")
"""Columns that are written beside those of the input."""
_CHOSEN_CONVENTION: FlopConvention = "palm"
_DEGREE_COLUMNS = ("tp", "pp", "dp")
_LOAD_COLUMNS = ("seq_len", "micro_batch_per_gpu")


@dataclass(frozen=True)
class PlannedRow:
    """The answer for one row; None: not known, and ``problem`` or ``assumptions`` say why."""

    step_time_s: float | None = None
    tflops_per_gpu: float | None = None
    """In the row's own convention."""
    peak_mem_gib: float | None = None
    fits: bool | None = None
    problem: str = ""
    assumptions: tuple[str, ...] = ()

    def cells(self) -> list[str]:
        """In the order of ``ADDED``."""
        numbers = (self.step_time_s, self.tflops_per_gpu, self.peak_mem_gib)
        fits = "" if self.fits is None else str(self.fits).lower()
        texts = ["" if number is None else f"{number:.5g}" for number in numbers]
        return [*texts, fits, self.problem, "; ".join(self.assumptions)]


def plan_rows(header: Sequence[str], rows: Iterable[Sequence[str]], file: str) -> Iterator[list[str]]:
    """The header and each row with ``ADDED`` beside its cells; a row that cannot be planned stops no other.

    Args:
        header: names of the columns, those of the published files and any others.
        rows: cells of each row, as text.
        file: name of the table, for messages.

    Raises:
        ConfigError: the header is not that of the published files.
    """
    check_header(header, file, ADDED)
    yield [*header, *ADDED]
    for number, row in enumerate(rows, start=1):
        where, width = f"{file} row {number}", len(header)
        if len(row) != width:
            problem = f"{where}: has {len(row)} cells, the header has {width}; what is too much is left out"
            yield [*row[:width], *[""] * (width - len(row)), *PlannedRow(problem=problem).cells()]
            continue
        yield [*row, *plan_row(dict(zip(header, row, strict=True)), where).cells()]


def plan_row(cells: Mapping[str, str], where: str) -> PlannedRow:
    """The answer for one row.

    Args:
        cells: text by column.
        where: file and row, for messages.
    """
    try:
        values, unknown = known_names(read_cells(cells))
        row, dropped = reconciled(values)
        run = stated_run(row)
        return _planned(row, run, where, [*unknown, *dropped])
    except ConfigError as error:
        return PlannedRow(problem=_text(where, error.problems))


def _planned(row: StatedRow, run: StatedRun, where: str, unknown: Iterable[Problem]) -> PlannedRow:
    choice = choose_memory(run, row)
    chosen = tuple(f"{words}, since it does not fit otherwise" for words in choice.chosen)
    if choice.micro_batch_chosen:
        chosen = (f"micro batch {choice.setup.micro_batch_size}", *chosen)
    problems = list(unknown)
    if run.machine is None and not any(problem.key == "gpu" for problem in problems):
        untold = "neither a step time nor a fit" if run.capacity_bytes is None else "no step time"
        problems.append(Problem("gpu", "", f"is not stated, so {untold} can be told", ""))
    problems += contradictions(row, run)
    fits, doubt = _fits(row, choice, run.capacity_bytes)
    if fits is False and run.capacity_bytes is not None:
        problems.append(_short(choice, run.capacity_bytes))
    if doubt:
        problems.append(Problem("pred_fits", "", doubt, ""))
    speed, words = _speed(row, replace(run, setup=_timed_setup(run, choice)))
    return replace(
        speed,
        peak_mem_gib=choice.peak_bytes / GIB,
        fits=fits,
        problem=_text(where, problems),
        assumptions=(*run.assumptions, *chosen, *words),
    )


def _fits(row: StatedRow, choice: MemoryChoice, capacity_bytes: float | None) -> tuple[bool | None, str]:
    """Whether it fits, as far as that follows from the row; and why it does not follow.

    What is chosen is the smallest load, so a refusal holds without it being stated; an assumed sequence may be too long. A fit
    that needs a choice of ours does not follow, since the run may not have made it.
    """
    if choice.too_near and capacity_bytes is not None:
        nearest = choice.near or choice
        words = f" with {', '.join(nearest.chosen)}" if nearest.chosen else ""
        needed = f"{gib(nearest.memory.needed_bytes)} of {gib(capacity_bytes)}{words}"
        return None, f"too near to the limit to be told: {needed}, and a prediction is true to {choice.doubt_share:.0%}"
    open_load = [name for name in _LOAD_COLUMNS if row.get(name) is None]
    if choice.fits and (open_load or (choice.setup.sequence_degree > 1 and row.get("cp_sp") is None)):
        names = ", ".join(open_load) or "cp_sp"
        return None, f"fits with what was taken for {names}, which the row does not state"
    if choice.fits and stage_of_offload(row) == ZERO_OFFLOAD_STAGE:
        return None, f"fits with ZeRO stage {ZERO_OFFLOAD_STAGE}, which the row does not state"
    if choice.fits and choice.chosen:
        return None, f"fits with {', '.join(choice.chosen)}, which the row does not state"
    if choice.fits is False and "seq_len" in open_load:
        return None, "does not fit with what was taken for seq_len, which the row does not state"
    if choice.fits is False and choice.setup.num_gpus > 1 and all(row.get(name) is None for name in _DEGREE_COLUMNS):
        return None, "does not fit as data parallel; tp, pp and dp are not stated"
    if choice.fits is False and optimizer_is_open(text_of(row, "notes")):
        return None, "does not fit with Adam's states in fp32, and the row may have others, which it does not state"
    return choice.fits, ""


def _short(choice: MemoryChoice, capacity_bytes: float) -> Problem:
    memory = choice.memory
    largest = max((term for term in memory.terms if term.tier == "gpu"), key=lambda term: term.num_bytes)
    return Problem(
        "memory.gpu",
        gib(memory.needed_bytes),
        f"is needed, a GPU has {gib(capacity_bytes)}, short by {gib(memory.needed_bytes - capacity_bytes)}",
        f"the largest part is {largest.name} with {gib(largest.num_bytes)}",
        kind="memory",
    )


def _timed_setup(run: StatedRun, choice: MemoryChoice) -> Setup:
    """What was chosen so that it fits; where that is more pieces of a pipeline rank, a block each, as the time sees it.

    Memory falls with more pieces to what a rank in one piece holds, so the choice says 1; the bubble falls with each.
    """
    if choice.setup.virtual_stages >= run.setup.virtual_stages:
        return choice.setup
    pieces = max(run.setup.virtual_stages, choice.setup.shape.num_layers // choice.setup.pipeline_degree)
    return replace(choice.setup, virtual_stages=pieces)


def _speed(row: StatedRow, run: StatedRun) -> tuple[PlannedRow, tuple[str, ...]]:
    """Step time and TFLOP/s, with what was taken for them."""
    if run.machine is None:
        return PlannedRow(), ()
    setup, words = run.setup, []
    step_time_s = sum(step_parts(setup, run.machine, run.trainer.software).values())
    convention = run.convention
    if convention is None and row.get("tflops_convention") is None:
        convention = _CHOSEN_CONVENTION
        words.append("TFLOP/s as model flops, 6N + 12Lhs")
    tflops = None
    if convention is not None:
        flops = convention_flops(convention, setup.shape, setup.seq_len, run.global_batch, run.num_parameters)
        tflops = tflops_per_gpu(flops, step_time_s, setup.num_gpus)
    if "nvme" in (row.get("offload_optimizer"), row.get("offload_param")):
        words.append("NVMe as fast as host memory")
    return PlannedRow(step_time_s=step_time_s, tflops_per_gpu=tflops), tuple(words)


def _text(where: str, problems: Iterable[Problem]) -> str:
    """``file row n: column=value: rule; fix``, problems on one line."""
    texts = [
        f"{problem.rule}{f'; {problem.fix}' if problem.fix else ''}" if problem.key == "row" else str(problem)
        for problem in problems
    ]
    return f"{where}: {' | '.join(texts)}" if texts else ""
