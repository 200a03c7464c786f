"""The verb ``submit``, and what ``resume`` and ``rerun`` share with it: refuse early, make the run folder, hand over, follow."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain.cli_answers import answer_flag
from hpctrain.cli_compose import ComposeWords, asks_rehearsal, parse_compose_words, planned_points, print_config
from hpctrain.errors import EXIT_FAILED, EXIT_OK, ConfigError, LaunchError, PreparedRunError, UnclearSubmissionError
from hpctrain.launch.termination import terminable
from hpctrain.text_table import printable

if TYPE_CHECKING:
    from hpctrain.config.compose import Point
    from hpctrain.launch.sweep_manifest import LeftOut
    from hpctrain.plan.run_plan import RunPlan
    from hpctrain.plan.site.limits import Site
    from hpctrain.record.paths import RunPaths
    from hpctrain.rehearse.result import Rehearsal


def submit_words(words: Sequence[str]) -> int:
    """Plans, checks, hands over; the exit code."""
    if (code := answer_flag(words)) is not None:
        return code
    parsed = parse_compose_words(words)
    if parsed.rehearse:
        raise ConfigError("--rehearse: is an option of plan; nearest: launch.rehearse=true")
    if parsed.shown_config:
        return print_config(parsed)
    from hpctrain.launch.working_tree import begin_to_ask
    from hpctrain.record.code_version import package_folder

    begin_to_ask(package_folder().parent)  # git answers while the rest is imported
    planned, site = planned_points(parsed, asks_site=True)
    root: Path | None = None
    rehearsal: Rehearsal | None = None
    if asks_rehearsal(planned):
        root, rehearsed = _rehearsed(planned, parsed.multirun, parsed.force)
        planned, rehearsal = [(point, plan) for point, plan, _ in rehearsed], rehearsed[0][2]
    left_out: tuple[LeftOut, ...] = ()
    if parsed.multirun:
        from hpctrain.launch.sweep import without_what_does_not_fit

        planned, left_out = without_what_does_not_fit(planned, parsed.force)
    _refuse_problems(planned, parsed.multirun, parsed.force, site)
    root = root or _checked_root(planned, parsed.force)
    from hpctrain.launch.preflight import held_on_this_machine

    planned = held_on_this_machine(planned, parsed.force)
    for problem in dict.fromkeys(problem for _, plan in planned for problem in plan.problems):
        print(printable(f"warning: --force: {dataclasses.replace(problem, fix='')}"), file=sys.stderr)
    from hpctrain.launch.interpreter import interpreter

    if parsed.multirun:
        return _submit_sweep(planned, left_out, site, root, parsed)
    return submit_one(*planned[0], root, interpreter(), rehearsal)


def _rehearsed(
    planned: Sequence[tuple[Point, RunPlan]], multirun: bool, force: bool, begins: bool = True
) -> tuple[Path, list[tuple[Point, RunPlan, Rehearsal | None]]]:
    """The folder of the runs, and the points that ask for it with rehearsed memory.

    It takes half a minute and decides about memory: what else can be refused comes first.
    """
    from hpctrain.cli_rehearsed import with_rehearsals

    _refuse_problems(planned, multirun, force, but_memory=True)
    return _checked_root(planned, force, begins), with_rehearsals(planned, all_points=False)


def _refuse_problems(
    planned: Sequence[tuple[Point, RunPlan]],
    multirun: bool,
    force: bool,
    site: Site | None = None,
    but_memory: bool = False,
) -> None:
    """Raises ConfigError for what keeps the plans from being submitted; with ``but_memory`` memory does not.

    The ``site`` bounds what is offered for a run that does not fit.
    """
    if but_memory:
        planned = [
            (point, dataclasses.replace(plan, problems=tuple(each for each in plan.problems if each.kind != "memory")))
            for point, plan in planned
        ]
    if multirun:
        from hpctrain.launch.sweep import check_sweep

        check_sweep(planned, force)
    elif planned[0][1].blocking_problems(force):
        from hpctrain.plan.auto.alternatives import CHOICE_NOTE
        from hpctrain.plan.changes.render import refusal

        for text in planned[0][1].assumptions:
            if text.startswith(CHOICE_NOTE):  # what is refused is nothing that the user typed
                print(printable(f"note: {text}"), file=sys.stderr)
        raise refusal(planned[0][0].config, planned[0][1], force, site, planned[0][0].overrides)


def _checked_root(planned: Sequence[tuple[Point, RunPlan]], force: bool, begins: bool = True) -> Path:
    """The folder of the runs, after everything else that can be refused has been asked.

    Args:
        planned: the runs.
        force: see ``--force``.
        begins: False: they go on from a checkpoint, so nobody reads the weights that they once began with.
    """
    from hpctrain.launch.container_check import check_container
    from hpctrain.launch.environment import secret_values
    from hpctrain.launch.first_weights import check_first_weights
    from hpctrain.launch.here import here_problems
    from hpctrain.launch.interpreter import interpreter
    from hpctrain.launch.preflight import (
        check_checkpoint_room,
        check_data,
        check_packages,
        check_run_root,
        check_setup,
        check_slurm_is_here,
        check_this_machine,
    )

    first_point, first_plan = planned[0]
    # Points of a sweep share most of what is looked at: each thing once.
    check_data([(point.config.data, plan) for point, plan in planned if plan.payload == "train"])
    for setup in dict.fromkeys(point.config.cluster.setup for point, plan in planned if plan.cluster_kind == "slurm"):
        check_setup(setup)
    for point, plan in planned:
        secret_values(point.config, os.environ)
        if plan.cluster_kind == "slurm":
            check_container(point.config, interpreter())
    if problems := here_problems(first_point.config, first_plan.slurm, os.environ):
        raise ConfigError(problems)
    if first_plan.cluster_kind == "slurm":
        check_slurm_is_here()
    elif first_plan.cluster_kind == "local":
        check_this_machine(first_point.config, first_plan, force)
    check_packages(first_plan)
    root = check_run_root(first_point.config.run.root)
    short = [check_checkpoint_room(plan, point.config.training, root) for point, plan in planned]
    notes = check_first_weights([(point.config, plan) for point, plan in planned]) if begins else []
    if any(short) or notes:
        from hpctrain.cli_sweep import tell_warnings

        tell_warnings([[*filter(None, short), *notes]])
    return root


def held_point(point: Point, force: bool, begins: bool = True, is_resumed: bool = False) -> tuple[Point, RunPlan]:
    """The plan of a configuration that is there already, after everything that can be refused has been asked.

    Args:
        point: the configuration.
        force: see ``--force``.
        begins: False: the run goes on from a checkpoint.
        is_resumed: the run was submitted before; that its step cannot be predicted is no reason to end it.
    """
    from hpctrain.launch.point_plans import plan_points

    planned = plan_points([point])
    if is_resumed:
        planned = [(held, plan.without_rate_problems()) for held, plan in planned]
    site: Site | None = None
    if point.config.cluster.kind == "slurm":
        from hpctrain.launch.site.plans import planned_on_site
        from hpctrain.launch.site.question import start_asking

        planned, site = planned_on_site(planned, start_asking())
    if asks_rehearsal(planned):
        _, rehearsed = _rehearsed(planned, False, force, begins)
        planned = [(held, plan) for held, plan, _ in rehearsed]
    _refuse_problems(planned, multirun=False, force=force, site=site)
    _checked_root(planned, force, begins)
    from hpctrain.launch.preflight import held_on_this_machine

    return held_on_this_machine(planned, force)[0]


def submit_one(point: Point, plan: RunPlan, root: Path, python: str, rehearsal: Rehearsal | None = None) -> int:
    from hpctrain.launch.run_folder import create_run_folder, remove_run_folder
    from hpctrain.launch.submit import submit
    from hpctrain.plan.render.plan import render_notes

    print("\n".join(render_notes(plan)))
    run_paths = create_run_folder(root, point, plan, python)
    if rehearsal is not None:
        from hpctrain.rehearse.result import write_rehearsal

        print(f"rehearsed: see {write_rehearsal(run_paths.root, rehearsal)}")
    try:
        submission = submit(run_paths, plan, point.config)
    except (UnclearSubmissionError, PreparedRunError):
        raise
    except LaunchError:
        remove_run_folder(run_paths)
        raise
    is_here = point.config.launch.mode == "here"
    job = f"{os.environ['SLURM_JOB_ID']} (this allocation)" if is_here else submission.job_id
    print(f"job {job}\nrun {run_paths.root}")
    if not (point.config.cluster.wait or is_here):
        return EXIT_OK
    return wait_for_end(run_paths, plan)


def wait_for_end(run_paths: RunPaths, plan: RunPlan) -> int:
    """Follows the run; Ctrl-C and SIGTERM end a local run, and only the watching of a run on Slurm."""
    from rich.console import Console

    from hpctrain.launch.cancel import cancel
    from hpctrain.launch.status.follow import follow
    from hpctrain.launch.status.rows import collect_status
    from hpctrain.record.reader import read_submission

    submission = read_submission(run_paths)
    with terminable():
        try:
            attempt = follow(run_paths, plan, submission, Console())
        except KeyboardInterrupt:
            # Still inside terminable: the end of the run takes a while, and a second signal must not break it off.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            is_ours = submission.cluster_kind == "local"
            print(cancel(run_paths) if is_ours else "the job goes on; see status, or cancel it")
            raise
    (status,) = collect_status([run_paths])
    if status.state != "COMPLETED":
        print(f"hpctrain: the run ended as {status.state}: {status.detail}\nlogs: {run_paths.logs}", file=sys.stderr)
        return (attempt.exit_code if attempt else None) or EXIT_FAILED
    if plan.payload == "launch_check":
        from hpctrain.record.files import read_record
        from hpctrain.record.launch_check import LaunchCheck, summary_text

        print(summary_text(read_record(run_paths.launch_check, LaunchCheck)))
        return EXIT_OK
    from hpctrain.cli_records import require_analysis

    require_analysis("the result's table")
    from hpctrain.analysis.report.terminal import write_summary

    print(f"\n{write_summary(run_paths)}")
    return EXIT_OK


def _submit_sweep(
    planned: Sequence[tuple[Point, RunPlan]],
    left_out: tuple[LeftOut, ...],
    site: Site | None,
    root: Path,
    parsed: ComposeWords,
) -> int:
    from hpctrain.cli_sweep import submit_planned_sweep, tell_warnings
    from hpctrain.plan.sweep.groups import largest_array

    tell_warnings([plan.warnings for _, plan in planned])
    return submit_planned_sweep(
        planned, left_out, root, parsed.overrides, parsed.as_json, lambda request: largest_array(site, request)
    )
