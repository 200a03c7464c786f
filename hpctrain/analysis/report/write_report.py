"""The file that ``report -o`` leaves: its kind by the suffix of its name."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd

import hpctrain
from hpctrain.analysis.comparison import Comparison
from hpctrain.analysis.frames import Frames
from hpctrain.analysis.published import load_published
from hpctrain.analysis.report.environment import Environment, read_environment
from hpctrain.analysis.report.html_report import MAX_PICTURES, PublishedResults, render_html
from hpctrain.analysis.report.run_names import with_distinct_names
from hpctrain.analysis.report.table_files import csv_bytes, latex_text, markdown_text, parquet_bytes
from hpctrain.analysis.run_row import OWN_SOURCE
from hpctrain.errors import ConfigError, Problem, RecordError
from hpctrain.record.files import replace_file

_TABLES: dict[str, Callable[[pd.DataFrame], bytes]] = {
    ".csv": csv_bytes,
    ".parquet": parquet_bytes,
    ".tex": lambda runs: latex_text(runs).encode("utf-8", errors="backslashreplace"),
    ".md": lambda runs: markdown_text(runs).encode("utf-8", errors="backslashreplace"),
}
SUFFIXES = (".html", *_TABLES)


def check_report_path(path: Path) -> None:
    """Refuses, before any run is read, what ``write_report`` could not write.

    Raises:
        ConfigError: the suffix is none of ``SUFFIXES``.
        RecordError: the folder of ``path`` is missing or closed, the name is too long, or ``path`` is a folder.
    """
    if path.suffix.lower() not in SUFFIXES:
        rule = f"the suffix must be one of {', '.join(SUFFIXES)}"
        stem = "report" if path.name.startswith(".") else path.stem
        raise ConfigError((Problem("-o", str(path), rule, f"{stem}.html is the whole report"),))
    try:
        has_folder, is_folder = path.parent.is_dir(), path.is_dir()
    except OSError as error:
        raise RecordError(f"-o {path}: cannot be written: {error.strerror}; name a file elsewhere") from error
    if not has_folder:
        raise RecordError(f"-o {path}: there is no folder {path.parent}; make it, or name another one")
    if is_folder:
        raise RecordError(f"-o {path}: is a folder; name a file")


def write_report(
    frames: Frames,
    path: Path,
    published: pd.DataFrame | None = None,
    comparison: Comparison | None = None,
    max_pictures: int = MAX_PICTURES,
) -> None:
    """Writes the runs as page (.html), as data (.csv, .parquet) or as a paper's table (.tex, .md), by the suffix of ``path``.

    The file is written beside its place and renamed. Nothing else is written, least of all into a run folder.

    Args:
        frames: the runs.
        path: the file.
        published: rows of ``load_published`` for the page; None: those of ``analysis/published``, and where they are missing
            the page says so.
        comparison: with a baseline, for the page.
        max_pictures: how many runs get a picture of their own in the page; 0: a page without any picture.

    Raises:
        ConfigError: the suffix is none of ``SUFFIXES``.
        RecordError: the file cannot be written.
    """
    check_report_path(path)
    suffix = path.suffix.lower()
    if suffix == ".html":
        frames = with_distinct_names(frames)
        page = render_html(
            frames,
            environments=_environments(frames.runs),
            published=_published(published),
            comparison=comparison,
            written_at=_written_at(),
            max_pictures=max_pictures,
        )
        content = page.encode("utf-8", errors="backslashreplace")
    else:
        content = _TABLES[suffix](frames.runs)
    try:
        replace_file(path, content)
    except OSError as error:
        raise RecordError(f"-o {path}: cannot be written: {error.strerror}; name a file elsewhere") from error


def _environments(runs: pd.DataFrame) -> list[Environment]:
    """Of our own runs, with their hardware and cluster; a foreign log has no ``code.json``."""
    own = runs.loc[runs["source"] == OWN_SOURCE, ["folder", "run", "hardware", "cluster"]]
    environments = []
    for folder, run, hardware, cluster in own.itertuples(index=False):
        found = read_environment(Path(folder), str(run))
        planned = {"hardware": str(hardware), "cluster": str(cluster)} if found.values else {}
        environments.append(replace(found, values={**planned, **found.values}))
    return environments


def _published(rows: pd.DataFrame | None) -> PublishedResults:
    if rows is not None:
        return PublishedResults(rows)
    try:
        return PublishedResults(load_published())
    except RecordError as error:
        return PublishedResults(problem=str(error))


def _written_at() -> str:
    now = datetime.datetime.now(datetime.UTC)
    return f"Written by hpctrain {hpctrain.__version__} at {now:%Y-%m-%d %H:%M} UTC. This file loads nothing from elsewhere."
