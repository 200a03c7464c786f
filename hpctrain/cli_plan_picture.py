"""``plan --picture FILE``: where the bytes of each tier go, as a picture; its packages are loaded only where it is asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain.errors import ConfigError

if TYPE_CHECKING:
    from hpctrain.config.compose import Point
    from hpctrain.plan.run_plan import RunPlan

_OPTION = "--picture"
_KINDS = (".png", ".svg")


def take_picture_word(words: Sequence[str]) -> tuple[Path, Sequence[str]]:
    """The file of ``--picture`` among the words of ``plan``, and the other words.

    Args:
        words: with the option among them.

    Raises:
        ConfigError: no file is named, more than one is, its ending is no kind of picture, or it could not be written.
        LaunchError: packages that draw are missing.
    """
    found, rest = list[str](), list[str]()
    left = iter(words)
    for word in left:
        name, sign, value = word.partition("=")
        if name == _OPTION:
            found.append(value if sign else next(left, ""))
        else:
            rest.append(word)
    if len(found) > 1:
        raise ConfigError(f"{_OPTION} {found[1]}: is given {len(found)} times; leave one")
    if not found[0]:
        raise ConfigError(f"{_OPTION}: must be followed by a file; for example {_OPTION} plan.png")
    path = Path(found[0])
    if path.suffix.lower() not in _KINDS:
        raise ConfigError(f"{_OPTION} {found[0]}: must end in {' or '.join(_KINDS)}; nearest: {_OPTION} plan.png")
    folder = path.absolute().parent
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise ConfigError(f"{_OPTION} {path}: {folder} is no folder that you may write")
    from hpctrain.cli_records import require_analysis

    require_analysis(_OPTION)
    return path, rest


def write_picture(path: Path, planned: Sequence[tuple[Point, RunPlan]]) -> str:
    """Draws the memory of the plans, impossible ones and launch checks left out, and returns a line that tells of it.

    Raises:
        ConfigError: the file cannot be written.
    """
    from hpctrain.analysis.figures.plan_memory_plot import PlannedMemory
    from hpctrain.analysis.report.plan_picture import write_plan_picture
    from hpctrain.launch.point_labels import point_labels
    from hpctrain.plan.memory.phases import gpu_phases

    labels = point_labels([point.overrides for point, _ in planned])
    is_alone = len(planned) == 1
    points = [
        PlannedMemory(short_label(label), plan, gpu_phases(point.config, plan) if is_alone else {})
        for label, (point, plan) in zip(labels, planned, strict=True)
        if plan.payload == "train" and not plan.is_impossible
    ]
    if not points:
        return f"no picture {path}: there is no plan to draw"
    try:
        write_plan_picture(path, points)
    except OSError as error:
        raise ConfigError(f"{_OPTION} {path}: cannot be written ({error.strerror})") from error
    return f"picture {path}"


def short_label(label: str) -> str:
    """A point's overrides with what tells them apart: of a group its choice, of a key its last part.

    >>> short_label("model=175b nodes=4 training.micro_batch_size=2")
    '175b nodes=4 micro_batch_size=2'
    """
    words = []
    for word in label.split():
        key, _, value = word.partition("=")
        name = key.rpartition(".")[2]
        words.append(value if value and key == name and key != "nodes" else f"{name}={value}" if value else word)
    return " ".join(words)
