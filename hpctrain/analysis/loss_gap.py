"""Whether final losses are those of one training, so that they may be compared."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path

from hpctrain.analysis.name_lists import joined_names
from hpctrain.errors import RecordError
from hpctrain.record.deciding_keys import loss_settings
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_config


def loss_gap(runs: Sequence[tuple[str, Hashable]]) -> str:
    """Why they are of different trainings; empty if they are of one.

    Runs of equal configuration take as long a step with any learning rate. For their losses everything else is equal too that
    decides what a step computes; foreign logs say data and steps alone.

    Args:
        runs: folder or log, and its data and recorded steps.
    """
    if len({data_and_steps for _, data_and_steps in runs}) > 1:
        return "data or number of steps differ"
    try:
        found = [loss_settings(read_config(RunPaths(Path(folder)))) for folder, _ in runs if Path(folder).is_dir()]
    except RecordError as error:
        return f"what was trained is not known: {error}"
    differ = [key for key in (found[0] if found else ()) if any(each[key] != found[0][key] for each in found)]
    if not differ:
        return ""
    if len(differ) > 1:
        return f"not the same training: {joined_names(differ, 3)} differ"
    values = dict.fromkeys(str(each[differ[0]]) for each in found)
    return f"not the same training: {differ[0]} is {' and '.join(values)}"
