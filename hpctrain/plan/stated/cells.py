"""Cells of a table of runs: what each column may hold, read from text with every problem told."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from hpctrain.config.ranges import LARGEST_COUNTS, MOST_GPU_GIB
from hpctrain.errors import ConfigError, Problem, known_names_hint
from hpctrain.plan.devices import find_device
from hpctrain.plan.flop_conventions import published_convention
from hpctrain.plan.stated.spellings import usual_spelling

CHOICES = {
    "offload_optimizer": ("none", "cpu", "nvme"),
    "offload_param": ("none", "cpu", "nvme"),
    "activation_ckpt": ("none", "selective", "full"),
}
_NUMBERS = "params_b gpu_mem_gb tflops_per_gpu mfu hfu tokens_per_s_per_gpu step_time_s peak_mem_gb max_model_b".split()
_LARGEST_NUMBER = 1e9
_LEAST_COUNTS = {"vocab": 2}
"""Of one token there is nothing to learn."""
_NO_GPU = re.compile(r"\btpu|gaudi|\bhpu|trainium|\btrn\d|ascend|\bnpu|\bipu|cerebras", re.IGNORECASE)
_DATA_TYPE = re.compile(r"(?<!int)(?<!int-)(?:16|32)|fp8|mixed|amp|half|single", re.IGNORECASE)
_STAGES = range(4)
COLUMNS = (
    "source ref model params_b layers hidden heads kv_heads ffn_hidden vocab seq_len gpu gpu_mem_gb num_gpus nodes tp pp cp_sp"
    " dp zero_stage offload_optimizer offload_param activation_ckpt micro_batch_per_gpu global_batch precision tflops_per_gpu"
    " tflops_convention mfu hfu tokens_per_s_per_gpu step_time_s peak_mem_gb max_model_b notes"
).split()
"""The header of the published files."""
_SHOWN_HEADER = 60
"""Letters of what stands in the place of a header."""
_NEEDED = (("layers", "params_b", "model"), ("gpu", "gpu_mem_gb"), ("num_gpus", "nodes", "tp", "pp", "dp"))
"""One of each: without them no row describes a run."""


def check_header(header: Sequence[str], file: str, added: Sequence[str]) -> None:
    """Further columns are passed on; a column that is missing is stated by no row.

    What looks like a slip of the pen is refused, and a table that describes no runs.

    Args:
        header: first line of the file.
        file: its name, for messages.
        added: columns that the plan writes and the file must not have.

    Raises:
        ConfigError: a column is missing and another has nearly its name, what no run can do without is missing, or columns stand
            there twice or would be written a second time.
    """
    missing = [name for name in COLUMNS if name not in header]
    if lacking := [names for names in _NEEDED if not set(names) & set(header)]:
        rule = f"{len(missing)} columns are missing: {', '.join(missing)}"
        needed = "; ".join(" or ".join(names) for names in lacking)
        fix = f"needed are {needed}; the header may have {', '.join(COLUMNS)}"
        if {name.strip().lower() for name in header}.issuperset(missing):
            fix = "they stand there in capitals or between blanks; write them as they are here"
        elif not set(COLUMNS) & set(header):
            rule = f"the first line is no header, it has no column of a table: {', '.join(header)[:_SHOWN_HEADER]}"
        raise ConfigError([Problem(f"{file} header", "", rule, fix)])
    problems = []
    strangers = [name for name in header if name not in COLUMNS]
    for name in missing:
        close = [given for given in strangers if known_names_hint(given, [name]).startswith("nearest")]
        if close:
            fix = f"nearest: {', '.join(close)}"
            problems.append(Problem(f"{file} header", name, "this column is missing", fix))
    for name in sorted({name for name in header if name and header.count(name) > 1}):
        problems.append(Problem(f"{file} header", name, "stands there more than once", "remove one of the columns"))
    for name in added:
        if name in header:
            problems.append(Problem(f"{file} header", name, "is a column that the plan writes", "remove or rename it"))
    if problems:
        raise ConfigError(problems)


def read_cells(cells: Mapping[str, str]) -> dict[str, str | float | None]:
    """Typed values of one row; an empty cell is None. A stage in words (FSDP) joins the notes, which name the software.

    Raises:
        ConfigError: cells that cannot be what their column says, all at once.

    >>> read_cells({"layers": "32", "gpu": "H100", "dp": ""})
    {'layers': 32.0, 'gpu': 'H100', 'dp': None}
    """
    values: dict[str, str | float | None] = {}
    problems: list[Problem] = []
    for name, raw in cells.items():
        typed = raw.strip()
        is_number = name in LARGEST_COUNTS or name in _NUMBERS
        is_typed = is_number or name in CHOICES or name in ("zero_stage", "precision", "tflops_convention")
        text = usual_spelling(name, typed) if is_typed else typed
        if not text:
            values[name] = None
        elif name in CHOICES:
            values[name] = text.lower()
            if text.lower() not in CHOICES[name]:
                choices = ", ".join(CHOICES[name])
                problems.append(Problem(name, typed, "is no choice of this column", f"one of {choices}"))
        elif is_number or name == "zero_stage":
            values[name], problem = _number(name, text, typed)
            problems += [problem] if problem else []
        else:
            values[name] = text
    if problems:
        raise ConfigError(problems)
    stage = cells.get("zero_stage", "").strip()
    if stage and not stage.replace(".", "").isdigit():
        # The word for a stage is often that of the software: FSDP, HSDP, Megatron's distributed optimizer.
        values["notes"] = "; ".join(filter(None, (str(values.get("notes") or ""), stage)))
    return values


def known_names(values: Mapping[str, str | float | None]) -> tuple[dict[str, str | float | None], list[Problem]]:
    """The row without names that only one of its answers needs and nobody knows, and what is to be said of them.

    Without its GPU a row still has a memory, and with ``gpu_mem_gb`` a fit; without its FLOP convention it has all but a rate.
    What is no GPU at all stays: its software is none of ours. A data type that nobody trains in is left out as well.
    """
    known, problems = dict(values), list[Problem]()
    gpu, memory_gb = values.get("gpu"), values.get("gpu_mem_gb")
    if gpu and not _NO_GPU.search(str(gpu)):
        try:
            find_device(str(gpu), None if memory_gb is None else float(memory_gb))
        except ConfigError as error:
            known["gpu"] = None
            problems += error.problems
    if spelling := values.get("tflops_convention"):
        try:
            published_convention(str(spelling), str(values.get("source") or ""))
        except ConfigError as error:
            known["tflops_convention"] = ""  # None would leave the choice to us
            problems += error.problems
    precision = str(values.get("precision") or "")
    if precision and not _DATA_TYPE.search(precision):
        known["precision"] = None
        problems.append(Problem("precision", precision, "is no data type of training", "16 bit is taken"))
    return known, problems


def _number(name: str, text: str, typed: str) -> tuple[float, Problem | None]:
    try:
        value = float(text)
    except ValueError:
        meant = _plain_number(typed)
        return 0.0, Problem(name, typed, "is no number", f"a plain number such as {meant}, or an empty cell")
    if not math.isfinite(value):
        return 0.0, Problem(name, typed, "is no finite number", "a plain number, or an empty cell")
    if name == "zero_stage":
        known = ", ".join(map(str, _STAGES))
        return value, None if value in _STAGES else Problem(name, typed, "is no ZeRO stage", f"one of {known}")
    if name in LARGEST_COUNTS:
        least, largest = _LEAST_COUNTS.get(name, 1), LARGEST_COUNTS[name]
        if value != int(value) or not least <= value <= largest:
            return value, Problem(name, typed, f"must be a whole number from {least} to {largest}", "or an empty cell")
        return value, None
    if name == "gpu_mem_gb" and not 1 <= value <= MOST_GPU_GIB:
        return value, Problem(name, typed, f"must be from 1 to {MOST_GPU_GIB:,} GB", "or an empty cell")
    positive = value > 0 or (value == 0 and name not in ("params_b", "gpu_mem_gb"))
    if not positive or value > _LARGEST_NUMBER:
        return value, Problem(name, typed, f"must be above 0 and at most {_LARGEST_NUMBER:g}", "or an empty cell")
    return value, None


def _plain_number(text: str) -> str:
    """What somebody may have meant who wrote a unit or separated thousands.

    >>> _plain_number("2,048"), _plain_number("80 GiB"), _plain_number("ZeRO-3"), _plain_number("n/a")
    ('2048', '80', '3', '8')
    """
    digits = re.search(r"\d+(?:,\d{3})*(?:\.\d+)?", text)
    return digits[0].replace(",", "") if digits else "8"
