"""The verbs of a run's life after submission: status, logs, cancel, diff."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hpctrain.errors import EXIT_OK, ConfigError, LaunchError
from hpctrain.text_table import printable

_EXIT_DIFFERENT = 1
_DEFAULT_FOLDERS = ["runs"]
"""Where no word is given; it need not be there yet."""


def status(words: Sequence[str]) -> int:
    """A table of runs, once or live."""
    known = _status_parser().parse_args(list(words))
    if known.last is not None and known.last < 1:
        raise ConfigError(f"--last={known.last}: must be 1 or above")
    if known.watch and known.json:
        raise ConfigError("--watch: prints text; leave --json out, or ask once")
    from hpctrain.launch.run_names import folders_named, runs_in, unknown_run
    from hpctrain.launch.status.filter import filtered
    from hpctrain.launch.status.rows import collect_status

    folders = []
    for word in known.folders:
        found = folders_named(word)
        if not found and "/" in word:
            found = [Path(word)]  # reading it tells why not
        elif not found and known.folders is not _DEFAULT_FOLDERS:
            raise unknown_run(word)
        folders += found
    states = [word for words_of_one in known.state for word in words_of_one.split(",")]
    filtered((), states, None)
    if known.watch:
        from hpctrain.launch.status.watch import watch

        return watch(folders, lambda rows: filtered(rows, states, known.last))
    # A thousand runs make many objects and hardly any garbage.
    gc.disable()
    try:
        known_rows = collect_status(runs_in(folders))
    finally:
        gc.enable()
    rows = filtered(known_rows, states, known.last)
    if known.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
        return EXIT_OK
    from hpctrain.launch.status.sweep_points import points_without_job
    from hpctrain.launch.status.table import status_table

    waiting = points_without_job(known_rows, folders)
    # A filter is about runs; points that have no job have none, and count in the total only.
    totals = Counter(row.sweep for row in known_rows if row.sweep) + Counter(waiting)
    shown = {} if known.state or known.last else waiting
    print(status_table(rows, terminal_width(), shown, totals))
    return EXIT_OK


def terminal_width() -> int | None:
    """Columns of the terminal; None where the output goes into a file or pipe and may be as wide as it likes."""
    if os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return None


def _status_parser() -> argparse.ArgumentParser:
    parser = folder_parser("status", "State of runs: end marker, else Slurm or the local process, else UNKNOWN.")
    parser.add_argument("--json", action="store_true", help="all that is known, one object a run")
    parser.add_argument(
        "--watch", action="store_true", help="a live table till all runs have ended, q or Ctrl-C leaves"
    )
    parser.add_argument(
        "--state",
        action="append",
        default=[],
        metavar="STATE",
        help="running, waiting, done, unknown, active, or a word of Slurm's: failed, cancelled, ...; several with commas",
    )
    parser.add_argument("--last", type=int, metavar="N", help="the N newest runs")
    return parser


def folder_parser(verb: str, help_text: str) -> argparse.ArgumentParser:
    """Words of a verb that looks at all runs below some folders."""
    parser = argparse.ArgumentParser(prog=f"python -m hpctrain {verb}", description=help_text)
    parser.add_argument(
        "folders",
        nargs="*",
        default=_DEFAULT_FOLDERS,
        metavar="RUN",
        help="run folders, folders that hold some, names in ./runs, or job ids",
    )
    return parser


def logs(words: Sequence[str]) -> int:
    """What a run's processes printed."""
    parser = argparse.ArgumentParser(
        prog="python -m hpctrain logs",
        description="What a run printed: of a failed run the rank that failed first, else rank 0, before it the batch log.",
    )
    parser.add_argument("run", help="run folder, its name in ./runs, or its job id")
    parser.add_argument(
        "--rank", metavar="N|all|batch", help="one rank, several (0,3 or 0-7), all, or the batch script's log"
    )
    parser.add_argument("--attempt", type=int, metavar="N", help="what start N of the job printed")
    parser.add_argument("-f", "--follow", action="store_true", help="go on till the run ends")
    parser.add_argument("--tail", default=None, metavar="N|all", help="last lines of each log (default 100; all)")
    parser.add_argument("--grep", metavar="REGEX", help="lines that match, of the whole log unless --tail says less")
    known = parser.parse_args(list(words))
    from hpctrain.launch.logs.show import LogRequest, show_logs
    from hpctrain.launch.run_names import find_run

    request = LogRequest.parse(known.rank, known.attempt, known.follow, known.tail, known.grep)
    show_logs(find_run(known.run), request, sys.stdout)
    return EXIT_OK


def cancel(words: Sequence[str]) -> int:
    """Ends jobs of runs and sweeps; each that could not be ended is told."""
    parser = argparse.ArgumentParser(
        prog="python -m hpctrain cancel",
        description="Ends the jobs of runs, whole sweeps and chains included; waiting ones leave the queue.",
    )
    parser.add_argument("runs", nargs="+", help="run folders, folders that hold some, names in ./runs, or job ids")
    known = parser.parse_args(list(words))
    from hpctrain.launch.cancel import cancel_runs
    from hpctrain.launch.run_names import runs_named

    answers = cancel_runs(runs_named(known.runs))
    refused = [answer for answer in answers if not answer.done]
    for answer in answers:
        if answer.done:
            print(printable(f"{answer.run}: {answer.text}"))
    if refused:
        raise LaunchError("\n".join(f"{answer.run}: {answer.text}" for answer in refused))
    return EXIT_OK


def diff(words: Sequence[str]) -> int:
    """What differs between two runs, key by key; exit code as of diff(1)."""
    parser = argparse.ArgumentParser(
        prog="python -m hpctrain diff",
        description="What differs between two runs: configuration, code, versions, nodes, environment, batch script, plan."
        " Exit code 0: nothing, 1: something, 2: one of them cannot be read.",
    )
    parser.add_argument("a", help="run folder, its name in ./runs, or its job id (of an array 123_4)")
    parser.add_argument("b")
    parser.add_argument("--json", action="store_true")
    known = parser.parse_args(list(words))
    from hpctrain.launch.run_diff import diff_runs, render_diff
    from hpctrain.launch.run_names import find_run

    found = diff_runs(find_run(known.a), find_run(known.b))
    if known.json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        print(render_diff(found))
    return _EXIT_DIFFERENT if found.differences else EXIT_OK
