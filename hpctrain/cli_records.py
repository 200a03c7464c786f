"""The verbs that read what runs left behind: report, read-log."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpctrain.cli_runs import folder_parser
from hpctrain.errors import EXIT_OK, ConfigError, LaunchError, RecordError
from hpctrain.text_table import printable

ANALYSIS_PACKAGES = ("pandas", "matplotlib", "pyarrow", "jinja2", "tabulate")


def require_analysis(verb: str) -> None:
    """Refuses before any work what needs packages that are not there.

    Raises:
        LaunchError: some are missing.
    """
    missing = [name for name in ANALYSIS_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise LaunchError(f"{verb} needs {', '.join(missing)}; pip install 'hpctrain[analysis]'")


def report(words: Sequence[str]) -> int:
    """Tables of runs and logs; of a single run with a picture in its folder; with a baseline, a verdict in the exit code."""
    known = _report_parser().parse_args(list(words))
    require_analysis("report")
    from hpctrain.analysis.comparison import DEFAULT_TOLERANCE, compare
    from hpctrain.analysis.frames import find_sources, load_frames, run_summaries
    from hpctrain.analysis.report.comparison_text import comparison_json, render_comparison
    from hpctrain.analysis.report.terminal import render_text, write_summary
    from hpctrain.analysis.report.write_report import SUFFIXES, check_report_path, write_report

    if known.tolerance is not None and not known.against:
        raise ConfigError(f"--tolerance {known.tolerance}: belongs to --against BASE")
    for path in known.output:
        check_report_path(path)
    needs_steps = bool(known.against) or any(path.suffix.lower() == SUFFIXES[0] for path in known.output)
    folders = [folder for word in known.folders for folder in sources_named(word)]
    found = find_sources(folders)
    if len(found.runs) == 1 and not (found.logs or known.output or known.against or known.json):
        _tell(found.problems)
        print(write_summary(found.runs[0]))
        return EXIT_OK
    frames = load_frames(folders, steps=needs_steps, samples=needs_steps)
    if frames.runs.empty:
        raise ConfigError("\n".join(frames.problems))
    if known.output or known.against:
        _tell(frames.problems)
    comparison = None
    if known.against:
        tolerance = DEFAULT_TOLERANCE if known.tolerance is None else known.tolerance
        comparison = compare(frames, load_frames(sources_named(known.against)), tolerance)
    for path in known.output:
        write_report(frames, path, comparison=comparison)
        print(printable(f"report {path}", kept=""))
    if comparison is not None:
        print(comparison_json(comparison) if known.json else render_comparison(comparison))
        return comparison.exit_code
    if known.json:
        rows = [dataclasses.asdict(row) for row in run_summaries(frames.runs)]
        print(json.dumps({"runs": rows, "problems": frames.problems}, indent=2, allow_nan=False))
    elif not known.output:
        print(render_text(frames))
    return EXIT_OK


def sources_named(word: str) -> list[Path]:
    """A path that is there, also of a log, else runs by name or job id; what is not there is told by who reads it."""
    if os.path.lexists(word):
        return [Path(word)]
    from hpctrain.launch.run_names import folders_named

    return folders_named(word) or [Path(word)]


def _tell(problems: Iterable[str]) -> None:
    for problem in problems:
        print(printable(f"hpctrain: {problem}"), file=sys.stderr)


def _report_parser() -> argparse.ArgumentParser:
    parser = folder_parser(
        "report", "Measured numbers of runs, and of logs of other systems, as tables, as a page or as data."
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="write FILE.html (the whole report), .csv, .parquet, .tex or .md; may be given several times",
    )
    parser.add_argument(
        "--against",
        metavar="BASE",
        help="folder of baseline runs: change of each figure, exit code 5 if slower",
    )
    parser.add_argument(
        "--tolerance", type=float, metavar="SHARE", help="with --against: slower than this counts (default 0.05)"
    )
    parser.add_argument("--json", action="store_true", help="the runs, or with --against the comparison, as JSON")
    return parser


def read_log(words: Sequence[str]) -> int:
    """One log of another system, read and told; several give a list."""
    parser = argparse.ArgumentParser(
        prog="python -m hpctrain read-log",
        description="Reads a training log of another system (Megatron, DeepSpeed, torchtitan, NeMo, ...).",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="every record, in fixed field names and units")
    known = parser.parse_args(list(words))
    require_analysis("read-log")
    from hpctrain.analysis.logs.log_json import write_log_json
    from hpctrain.analysis.logs.log_text import render_log
    from hpctrain.analysis.logs.reading import read_log as read

    several = len(known.files) > 1
    failed, start = False, "[\n" if several and known.json else ""
    for path in known.files:
        try:
            reading = read(path)
        except RecordError as error:
            if not several:
                raise
            _tell([str(error)])
            failed = True
            continue
        print(start, end="")
        if known.json:
            write_log_json(reading, sys.stdout)
        else:
            print(render_log(reading))
        start = ",\n" if known.json else "\n"
    if several and known.json:
        print("]" if start == ",\n" else "[\n]")
    return RecordError.exit_code if failed else EXIT_OK
