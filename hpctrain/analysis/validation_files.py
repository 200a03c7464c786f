"""``validation.jsonl`` to the rows of the frame ``validations``: the loss on held-out data along a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpctrain.errors import RecordError
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import ValidationsFile

VALIDATION_DTYPES: dict[str, str] = {
    "folder": "string",
    "run": "string",
    "attempt": "int64",
    "step": "int64",
    "time_s": "float64",
    "loss": "Float64",
    "num_sequences": "int64",
    "tokens": "int64",
    "validation_time_s": "float64",
    "superseded": "bool",
}
_OWN_DTYPES = {name: dtype for name, dtype in VALIDATION_DTYPES.items() if name not in ("folder", "run")}
NO_VALIDATIONS = pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in _OWN_DTYPES.items()})


def read_validations(run: RunPaths, steps: Mapping[str, NDArray[Any]]) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The validations of a run as they were written, and what could not be read.

    The frame lacks ``folder`` and ``run``. ``superseded``: a later attempt started again at or before its step.

    Args:
        run: the run folder.
        steps: of the run, with attempt and step.
    """
    file = ValidationsFile(run.validations)
    try:
        records = list(file.new_records())
    except RecordError as error:
        return NO_VALIDATIONS, (str(error),)
    problems = (f"{run.validations}: {file.damaged_lines} damaged line(s), left out",) if file.damaged_lines else ()
    rows = [{name: value for name, value in vars(record).items() if name != "schema_version"} for record in records]
    table = pd.DataFrame(rows, columns=[name for name in _OWN_DTYPES if name != "superseded"])
    starts = {
        int(number): int(steps["step"][steps["attempt"] == number].min()) for number in np.unique(steps["attempt"])
    }
    undone = [
        any(start <= record.step for attempt, start in starts.items() if attempt > record.attempt) for record in records
    ]
    return table.assign(superseded=undone).astype(_OWN_DTYPES), problems


def last_validation_loss(validations: pd.DataFrame) -> float | None:
    """Of the curve; None: there is none, or it was not finite."""
    losses = validations.loc[~validations["superseded"], "loss"]
    return None if losses.empty or pd.isna(losses.iloc[-1]) else float(losses.iloc[-1])
