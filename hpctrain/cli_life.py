"""The verbs that start a run again: resume (the same folder) and rerun (a new one)."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain.cli_submit import held_point, submit_one, wait_for_end
from hpctrain.errors import EXIT_OK, ConfigError, HpctrainError, LaunchError, PreparedRunError, UnclearSubmissionError
from hpctrain.text_table import printable

if TYPE_CHECKING:
    from hpctrain.launch.resume import ResumeRequest
    from hpctrain.launch.status.rows import RunStatus
    from hpctrain.plan.run_plan import RunPlan
    from hpctrain.record.paths import RunPaths

_OVERRIDE = re.compile(r"[+~]{0,2}[A-Za-z_][\w.-]*(=.*)?", re.DOTALL)


def resume(words: Sequence[str]) -> int:
    """Submits run folders again."""
    parser = _parser(
        "resume",
        "Submits runs that have ended once more, each in its own folder, from its newest complete checkpoint. What does not"
        " decide the result may change: cluster.*, launch.*, env.*, more training.num_steps, and over how many ranks it is"
        " spread: nodes, hardware.gpus_per_node, parallelism.*, training.micro_batch_size; the global batch stays.",
    )
    parser.add_argument("--from-step", type=int, metavar="N", help="an older checkpoint; 0: from the beginning")
    parser.add_argument("--current-code", action="store_true", help="the code as it is now, not the run's own copy")
    known = parser.parse_intermixed_args(list(words))
    named, overrides = _named_and_overrides(known.words)
    if known.from_step is not None and known.from_step < 0:
        raise ConfigError(f"--from-step {known.from_step}: must be 0 or above")
    from hpctrain.launch.resume import ResumeRequest

    rows = _rows(named, known.state)
    request = ResumeRequest(overrides, known.current_code, known.from_step, known.force)
    chosen = rows if len(rows) == 1 else [row for row in rows if _is_worth_resuming(row, known.state)]
    waits = [0]

    def resume_one(run: RunPaths, row: RunStatus) -> None:
        del row
        plan, is_followed = _resume_one(run, request)
        if is_followed and len(chosen) == 1:
            waits.append(wait_for_end(run, plan))

    _each(chosen, resume_one)
    return max(waits)


def rerun(words: Sequence[str]) -> int:
    """Submits new runs with the configuration of old ones."""
    parser = _parser(
        "rerun",
        "Submits new runs with the frozen configuration of old ones and KEY=VALUE on top, beside them, with the code as it is"
        " now. Each is told in code.json (rerun_of).",
    )
    known = parser.parse_intermixed_args(list(words))
    named, overrides = _named_and_overrides(known.words)
    from hpctrain.launch.interpreter import interpreter
    from hpctrain.launch.rerun import rerun_point

    codes = [EXIT_OK]

    def rerun_one(run: RunPaths, row: RunStatus) -> None:
        del row
        point, root = rerun_point(run, overrides)
        held, plan = held_point(point, known.force)
        codes.append(submit_one(held, plan, root, interpreter()))

    _each(_rows(named, known.state), rerun_one)
    return max(codes)


def _parser(verb: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m hpctrain {verb}", description=description, allow_abbrev=False)
    parser.add_argument(
        "words", nargs="+", metavar="RUN|KEY=VALUE", help="run or sweep folders, names in ./runs, job ids"
    )
    parser.add_argument(
        "--state",
        action="append",
        default=[],
        metavar="STATE",
        help="only runs that ended so: failed, timeout, cancelled, ...",
    )
    parser.add_argument(
        "--force", action="store_true", help="where nobody knows whether a run is over, or the estimate says no"
    )
    return parser


def _named_and_overrides(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """What is there is a run, whatever signs are in its name; the rest with an equals sign is an override."""
    named = [
        word for word in words if Path(word).exists() or ("=" not in word.lstrip("~") and not word.startswith("~"))
    ]
    overrides = tuple(word for word in words if word not in named)
    for word in overrides:
        if not _OVERRIDE.fullmatch(word):
            raise ConfigError(f"{word}: is no run folder that is there, and no key=value")
    if not named:
        raise ConfigError("name a run folder first, then key=value")
    return named, overrides


def _rows(named: Sequence[str], states: Sequence[str]) -> list[RunStatus]:
    from hpctrain.launch.run_names import runs_named
    from hpctrain.launch.status.filter import filtered
    from hpctrain.launch.status.rows import collect_status

    rows = filtered(collect_status(runs_named(named)), states, None)
    if not rows:
        raise ConfigError(f"--state={','.join(states)}: none of the runs is in this state")
    return rows


def _is_worth_resuming(row: RunStatus, states: Sequence[str]) -> bool:
    """Of many runs those that ended and did not complete, unless a state is asked for."""
    chosen = bool(states) or (row.is_over and row.state != "COMPLETED")
    if not chosen:
        print(printable(f"{row.run}: left alone, it is {row.state}"))
    return chosen


def _each(rows: Sequence[RunStatus], act: Callable[[RunPaths, RunStatus], None]) -> None:
    """Acts on one run after the other; of several, one that is refused does not keep the others.

    Raises:
        HpctrainError: of a single run its own error; of several a ``LaunchError`` with all of them.
    """
    from hpctrain.record.paths import RunPaths

    failures = []
    for row in rows:
        try:
            act(RunPaths(Path(row.path)), row)
        except HpctrainError as error:
            if len(rows) == 1:
                raise
            failures.append(f"{row.run}: {error}")
    if failures:
        raise LaunchError("\n".join(failures))


def _resume_one(run: RunPaths, request: ResumeRequest) -> tuple[RunPlan, bool]:
    """Submits one run again; returns its plan, and whether its configuration asks to follow it."""
    from hpctrain.config.compose import Point
    from hpctrain.launch import resume as life
    from hpctrain.launch.interpreter import interpreter
    from hpctrain.launch.run_folder import code_text
    from hpctrain.launch.snapshot import snapshot_of
    from hpctrain.launch.status.rows import collect_status
    from hpctrain.launch.submit import submit
    from hpctrain.record.checkpoints import set_aside_after
    from hpctrain.record.reader import read_config, runs_folder

    with life.locked(run):
        life.check_from_step(run, request.from_step)
        # Asked again: another resume may have come before.
        (status,) = collect_status([run])
        life.check_is_over(run, status, request.force)
        if not request.current_code:
            snapshot_of(run)  # refused here if it is gone
        frozen = read_config(run)
        changes = life.resumed_config(run, frozen, request)
        at_home = dataclasses.replace(changes.config.run, root=str(runs_folder(run)))
        begins = not life.has_checkpoint(run, request.from_step)
        point = Point(request.words, dataclasses.replace(changes.to_plan, run=at_home), ())
        try:
            held, plan = held_point(point, request.force, begins, is_resumed=True)
        except ConfigError as error:
            raise life.refused_as_resumed(error) from None
        checkpoint = life.checkpoint_to_go_on_from(run, plan, held.config, request.from_step)
        for note in (*changes.notes, *plan.warnings, life.start_note(run, checkpoint, plan)):
            print(printable(f"note: {note}"))
        former = life.FormerRecords(run)
        try:
            former.keep()
            code = code_text(runs_folder(run), interpreter()) if request.current_code else ""
            config = changes.to_freeze(held.config)
            life.write_resumed(run, dataclasses.replace(changes, config=config), plan, code)
            if request.from_step is not None:
                for folder in set_aside_after(run, request.from_step):
                    print(printable(f"note: set aside: {folder}"))
            submission = submit(run, plan, config)
        except (UnclearSubmissionError, PreparedRunError):
            raise
        except OSError as error:
            former.put_back()
            raise LaunchError(f"{error.filename2 or error.filename or run.root}: {error.strerror}") from error
        except BaseException:
            former.put_back()
            raise
    print(printable(f"job {submission.job_id}\nrun {run.root}"))
    return plan, config.cluster.wait
