"""A command line of submit or plan: its words taken apart, composed and planned."""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpctrain.errors import EXIT_OK, ConfigError, nearest_names

if TYPE_CHECKING:
    from hpctrain.config.compose import Point
    from hpctrain.plan.run_plan import RunPlan
    from hpctrain.plan.site.limits import Site

_NO_SLURM = ("cluster=local", "cluster=azureml", "launch.mode=here")
"""Nothing is asked where no answer matters; a site's own files of these kinds cost a question."""


class ComposeWords(NamedTuple):
    """A command line of submit or plan, taken apart."""

    overrides: tuple[str, ...]
    multirun: bool
    config_dirs: tuple[Path, ...]
    as_json: bool
    force: bool
    site: bool
    """plan: ask Slurm what the site says; submit always does."""
    rehearse: bool
    """plan: rehearse every point; submit does where launch.rehearse is set."""
    shown_config: str
    """``job``: print the configuration and do nothing; empty: do what the verb does."""
    calibration: str | None
    """A file of past runs' factors; None: the one in ``run.root``, where there is one."""
    no_calibration: bool


def parse_compose_words(words: Sequence[str]) -> ComposeWords:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--config-dir", "-cd", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--site", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--calibration")
    parser.add_argument("--no-calibration", action="store_true")
    parser.add_argument("--cfg", "-c", choices=["job"], default="")
    parser.add_argument("--resolve", action="store_true")  # ours is always resolved
    try:
        known, overrides = parser.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from None
    for word in overrides:
        if word.startswith("-"):
            raise ConfigError(_unknown_option(word))
        if not word.isprintable() and any("\udc80" <= letter <= "\udcff" for letter in word):
            raise ConfigError(f"{word!r}: must be UTF-8")
    dirs = tuple(Path(folder) for folder in known.config_dir)
    for folder in dirs:
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {folder}: no such folder")
    flags = (known.json, known.force, known.site, known.rehearse)
    if known.calibration is not None and known.no_calibration:
        raise ConfigError(f"--calibration {known.calibration}: and --no-calibration exclude each other; leave one out")
    of_calibration = (known.calibration, known.no_calibration)
    return ComposeWords(tuple(overrides), known.multirun, dirs, *flags, known.cfg, *of_calibration)


def _unknown_option(word: str) -> str:
    from hpctrain.help_text import option_names

    name, names = word.partition("=")[0], option_names()
    near = nearest_names(name, names)
    hint = ", but of another one or of another question" if name in names else f"; nearest: {near[0]}" if near else ""
    return f"{word}: is no option of this verb{hint}; see python -m hpctrain --help"


def planned_points(words: ComposeWords, asks_site: bool) -> tuple[list[tuple[Point, RunPlan]], Site | None]:
    """The plan of each point, held against the site if it is asked, and the site."""
    # Importing and composing makes many objects and hardly any garbage; collecting would cost a sixth of the start.
    gc.disable()
    try:
        question = None
        if asks_site and not any(word in _NO_SLURM for word in words.overrides):
            # First of all: what follows takes about as long as the answers.
            from hpctrain.launch.site.question import start_asking

            question = start_asking()
        from hpctrain.config.compose import compose_points
        from hpctrain.launch.calibrations import CalibrationWords
        from hpctrain.launch.point_plans import plan_points
        from hpctrain.launch.submitting_shell import as_submitted_here

        composed = compose_points(words.overrides, words.multirun, words.config_dirs)
        of_calibration = CalibrationWords(words.calibration, words.no_calibration)
        planned = plan_points((as_submitted_here(point, os.environ) for point in composed), of_calibration)
        if question is None:
            return planned, None
        from hpctrain.launch.site.plans import planned_on_site

        return planned_on_site(planned, question)
    finally:
        gc.freeze()  # what is there now stays until the end
        gc.enable()


def print_config(parsed: ComposeWords) -> int:
    """Hydra's ``--cfg job``, with every key of the schema in it and nothing left open."""
    from hpctrain.config.compose import compose_points
    from hpctrain.launch.point_plans import closed_points
    from hpctrain.record.frozen_config import config_text

    points = closed_points(compose_points(parsed.overrides, parsed.multirun, parsed.config_dirs))
    print("---\n".join(config_text(point.config) for point in points), end="")
    return EXIT_OK


def asks_rehearsal(planned: Sequence[tuple[Point, RunPlan]]) -> bool:
    """Some point has launch.rehearse."""
    return any(point.config.launch.rehearse for point, _ in planned)
