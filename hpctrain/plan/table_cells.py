"""Cells of a table of runs: what each column may hold, read from text with every problem told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hpctrain.errors import ConfigError, Problem, known_names_hint

CHOICES = {
    "offload_optimizer": ("none", "cpu", "nvme"),
    "offload_param": ("none", "cpu", "nvme"),
    "activation_ckpt": ("none", "selective", "full"),
}
_LARGEST_COUNTS = {
    "layers": 100_000,
    "hidden": 1_000_000,
    "heads": 100_000,
    "kv_heads": 100_000,
    "ffn_hidden": 10_000_000,
    "vocab": 10_000_000,
    "seq_len": 1_000_000_000,
    "num_gpus": 10_000_000,
    "nodes": 10_000_000,
    "tp": 100_000,
    "pp": 100_000,
    "cp_sp": 100_000,
    "dp": 10_000_000,
    "micro_batch_per_gpu": 1_000_000,
    "global_batch": 1_000_000_000,
}
"""Above these a number is a slip of the unit, not a run."""
_NUMBERS = "params_b gpu_mem_gb tflops_per_gpu mfu hfu tokens_per_s_per_gpu step_time_s peak_mem_gb max_model_b".split()
_LARGEST_NUMBER = 1e9
_STAGES = range(4)
COLUMNS = (
    "source ref model params_b layers hidden heads kv_heads ffn_hidden vocab seq_len gpu gpu_mem_gb num_gpus nodes tp pp cp_sp"
    " dp zero_stage offload_optimizer offload_param activation_ckpt micro_batch_per_gpu global_batch precision tflops_per_gpu"
    " tflops_convention mfu hfu tokens_per_s_per_gpu step_time_s peak_mem_gb max_model_b notes"
).split()
"""The header of the published files."""


def check_header(header: Sequence[str], file: str, added: Sequence[str]) -> None:
    """Further columns are passed on; what is missing may be a slip of the pen, so it is refused.

    Args:
        header: first line of the file.
        file: its name, for messages.
        added: columns that the plan writes and the file must not have.

    Raises:
        ConfigError: columns are missing, stand there twice, or would be written a second time.
    """
    problems = []
    for name in COLUMNS:
        if name not in header:
            strangers = [given for given in header if given not in COLUMNS]
            close = [given for given in strangers if known_names_hint(given, [name]).startswith("nearest")]
            fix = f"nearest: {', '.join(close)}" if close else f"the header must have {', '.join(COLUMNS)}"
            problems.append(Problem(f"{file} header", name, "this column is missing", fix))
    for name in sorted({name for name in header if header.count(name) > 1}):
        problems.append(Problem(f"{file} header", name, "stands there more than once", "remove one of the columns"))
    for name in added:
        if name in header:
            problems.append(Problem(f"{file} header", name, "is a column that the plan writes", "remove or rename it"))
    if problems:
        raise ConfigError(problems)


def read_cells(cells: Mapping[str, str]) -> dict[str, str | float | None]:
    """Typed values of one row; an empty cell is None.

    Raises:
        ConfigError: cells that cannot be what their column says, all at once.

    >>> read_cells({"layers": "32", "gpu": "H100", "dp": ""})
    {'layers': 32.0, 'gpu': 'H100', 'dp': None}
    """
    values: dict[str, str | float | None] = {}
    problems: list[Problem] = []
    for name, raw in cells.items():
        text = raw.strip()
        if not text:
            values[name] = None
        elif name in CHOICES:
            values[name] = text.lower()
            if text.lower() not in CHOICES[name]:
                problems.append(
                    Problem(name, text, "is no choice of this column", f"one of {', '.join(CHOICES[name])}")
                )
        elif name in _LARGEST_COUNTS or name in _NUMBERS or name == "zero_stage":
            values[name], problem = _number(name, text)
            problems += [problem] if problem else []
        else:
            values[name] = text
    if problems:
        raise ConfigError(problems)
    return values


def _number(name: str, text: str) -> tuple[float, Problem | None]:
    try:
        value = float(text)
    except ValueError:
        return 0.0, Problem(name, text, "is no number", "a plain number such as 8, or an empty cell")
    if not math.isfinite(value):
        return 0.0, Problem(name, text, "is no finite number", "a plain number, or an empty cell")
    if name == "zero_stage":
        known = ", ".join(map(str, _STAGES))
        return value, None if value in _STAGES else Problem(name, text, "is no ZeRO stage", f"one of {known}")
    if name in _LARGEST_COUNTS:
        largest = _LARGEST_COUNTS[name]
        if value != int(value) or not 1 <= value <= largest:
            return value, Problem(name, text, f"must be a whole number from 1 to {largest}", "or an empty cell")
        return value, None
    positive = value > 0 or (value == 0 and name not in ("params_b", "gpu_mem_gb"))
    if not positive or value > _LARGEST_NUMBER:
        return value, Problem(name, text, f"must be above 0 and at most {_LARGEST_NUMBER:g}", "or an empty cell")
    return value, None
