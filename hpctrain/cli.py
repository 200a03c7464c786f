"""The command line: a verb first (without one: submit), then Hydra's own grammar. Parses, calls, prints."""

from __future__ import annotations

import argparse
import errno
import gc
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hpctrain
from hpctrain.cli_answers import answer_flag
from hpctrain.errors import (
    EXIT_OK,
    ConfigError,
    HpctrainError,
    LaunchError,
    PreparedRunError,
    UnclearSubmissionError,
    known_names_hint,
)
from hpctrain.launch.termination import Terminated, terminable
from hpctrain.secret_text import redact_text, secrets_in
from hpctrain.text_table import printable

if TYPE_CHECKING:
    from hpctrain.config.compose import Point
    from hpctrain.launch.sweep_manifest import LeftOut
    from hpctrain.plan.run_plan import RunPlan
    from hpctrain.plan.site_limits import Site
    from hpctrain.record.paths import RunPaths

_VERB = re.compile(r"[A-Za-z_][\w-]*")
_EXIT_FAILED = 1
_NO_SLURM = ("cluster=local", "cluster=azureml", "launch.mode=here")
"""Nothing is asked where no answer matters; a site's own files of these kinds cost a question."""


def main() -> None:
    """Entry point; leaves the process with the documented exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A C locale must not stop a name with an umlaut from being printed.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        # Under a C locale the words come with escapes for what is not ASCII; they are UTF-8 all the same.
        code = run([os.fsencode(word).decode("utf-8", "surrogateescape") for word in sys.argv[1:]])
        sys.stdout.flush()
    except HpctrainError as error:
        text = redact_text(str(error), secrets_in(sys.argv[1:]))
        print(printable(f"hpctrain: {text}"), file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt as interrupt:
        code = 143 if isinstance(interrupt, Terminated) else 130
    except BrokenPipeError:
        # `plan | head`: the reader has what it wanted; without this Python complains once more at its end.
        _silence_stdout()
        code = EXIT_OK
    except UnicodeEncodeError as error:
        if sys.getfilesystemencoding() == "utf-8":
            raise
        print(
            f"hpctrain: {error.object}: this shell's file names are {error.encoding}; set LC_ALL=C.UTF-8",
            file=sys.stderr,
        )
        code = ConfigError.exit_code
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _silence_stdout()
        print(f"hpctrain: {error.filename or 'the output'} cannot be written: {error.strerror}", file=sys.stderr)
        code = _EXIT_FAILED
    gc.freeze()  # at its end Python would look for garbage again, a fifth of the time of plan
    sys.exit(code)


def _silence_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _verb_of(module: str, name: str) -> Callable[..., int]:
    """A verb of another module, which is imported when the verb is called."""

    def call(*arguments: Any) -> int:
        code: int = getattr(importlib.import_module(f"hpctrain.{module}"), name)(*arguments)
        return code

    return call


def run(words: Sequence[str]) -> int:
    """Runs one command line and returns its exit code."""
    verbs: dict[str, Callable[[Sequence[str]], int]] = {
        "submit": _submit,
        "plan": _plan,
        "status": _verb_of("cli_runs", "status"),
        "logs": _verb_of("cli_runs", "logs"),
        "cancel": _verb_of("cli_runs", "cancel"),
        "diff": _verb_of("cli_runs", "diff"),
        "resume": lambda words: _verb_of("cli_life", "resume")(words, _held_point, _wait),
        "rerun": lambda words: _verb_of("cli_life", "rerun")(words, _held_point, _submit_one),
        "report": _verb_of("cli_records", "report"),
        "read-log": _verb_of("cli_records", "read_log"),
        "doctor": _verb_of("cli_doctor", "doctor"),
        "rehearse": _verb_of("cli_rehearse", "rehearse"),
    }
    if words and words[0] in verbs:
        return verbs[words[0]](words[1:])
    if words and words[0] == "--version":
        print(f"hpctrain {hpctrain.__version__}")
        return EXIT_OK
    if words and _VERB.fullmatch(words[0]):
        raise ConfigError(f"{words[0]}: is no verb; {known_names_hint(words[0], verbs)}")
    return _submit(words)


class _ComposeWords(NamedTuple):
    """A command line of submit or plan, taken apart."""

    overrides: tuple[str, ...]
    multirun: bool
    config_dirs: tuple[Path, ...]
    as_json: bool
    force: bool
    site: bool
    """plan: ask Slurm what the site says; submit always does."""
    shown_config: str
    """``job``: print the configuration and do nothing; empty: do what the verb does."""


def _parse_compose_words(words: Sequence[str]) -> _ComposeWords:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--config-dir", "-cd", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--site", action="store_true")
    parser.add_argument("--cfg", "-c", choices=["job"], default="")
    parser.add_argument("--resolve", action="store_true")  # ours is always resolved
    try:
        known, overrides = parser.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from None
    for word in overrides:
        if word.startswith("-"):
            raise ConfigError(f"{word}: is no option of this verb; see python -m hpctrain --help")
        if not word.isprintable() and any("\udc80" <= letter <= "\udcff" for letter in word):
            raise ConfigError(f"{word!r}: must be UTF-8")
    dirs = tuple(Path(folder) for folder in known.config_dir)
    for folder in dirs:
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {folder}: no such folder")
    return _ComposeWords(tuple(overrides), known.multirun, dirs, known.json, known.force, known.site, known.cfg)


def _planned(words: _ComposeWords, asks_site: bool) -> tuple[list[tuple[Point, RunPlan]], Site | None]:
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
        from hpctrain.launch.submitting_shell import as_submitted_here
        from hpctrain.plan.run_plan import build_run_plan

        composed = compose_points(words.overrides, words.multirun, words.config_dirs)
        points = [as_submitted_here(point, os.environ) for point in composed]
        planned = [(point, build_run_plan(point.config, point.assumptions)) for point in points]
        if question is None:
            return planned, None
        from hpctrain.launch.site.plans import planned_on_site

        return planned_on_site(planned, question)
    finally:
        gc.freeze()  # what is there now stays until the end
        gc.enable()


def _plan(words: Sequence[str]) -> int:
    if (code := answer_flag(words)) is not None:
        return code
    if any(word == "--table" or word.startswith("--table=") for word in words):
        from hpctrain.cli_plan_table import plan_table_words

        return plan_table_words(words)
    from hpctrain.cli_plan_cost import plan_json, plan_text, take_cost_words
    from hpctrain.launch.interpreter import interpreter

    options, rest = take_cost_words(words)
    parsed = _parse_compose_words(rest)
    if parsed.shown_config:
        return _print_config(parsed)
    planned, site = _planned(parsed, asks_site=parsed.site)
    if parsed.site and site is None:
        print("note: --site asks Slurm, and this plan makes no job of it", file=sys.stderr)
    if parsed.as_json:
        print(plan_json(planned, options, parsed.multirun, parsed.force), end="")
    else:
        print(plan_text(planned, options, parsed.multirun, parsed.force, interpreter(), site), end="")
        if site is not None:
            from hpctrain.launch.site.render import render_site

            print(f"\n{render_site(site)}", end="")
    problems = [problem for _, plan in planned for problem in plan.problems]
    return ConfigError(problems).exit_code if problems else EXIT_OK


def _print_config(parsed: _ComposeWords) -> int:
    """Hydra's ``--cfg job``, with every key of the schema in it."""
    from hpctrain.config.compose import compose_points
    from hpctrain.record.frozen_config import config_text

    points = compose_points(parsed.overrides, parsed.multirun, parsed.config_dirs)
    print("---\n".join(config_text(point.config) for point in points), end="")
    return EXIT_OK


def _submit(words: Sequence[str]) -> int:
    if (code := answer_flag(words)) is not None:
        return code
    parsed = _parse_compose_words(words)
    if parsed.shown_config:
        return _print_config(parsed)
    from hpctrain.launch.working_tree import begin_to_ask
    from hpctrain.record.code_version import package_folder

    begin_to_ask(package_folder().parent)  # git answers while the rest is imported
    planned, site = _planned(parsed, asks_site=True)
    left_out: tuple[LeftOut, ...] = ()
    if parsed.multirun:
        from hpctrain.launch.sweep import without_what_does_not_fit

        planned, left_out = without_what_does_not_fit(planned, parsed.force)
    root = _checked_root(planned, parsed.multirun, parsed.force)
    for problem in dict.fromkeys(problem for _, plan in planned for problem in plan.problems):
        print(printable(f"warning: --force: {problem}"), file=sys.stderr)
    from hpctrain.launch.interpreter import interpreter

    if parsed.multirun:
        return _submit_sweep(planned, left_out, site, root, parsed)
    return _submit_one(*planned[0], root, interpreter())


def _checked_root(planned: Sequence[tuple[Point, RunPlan]], multirun: bool, force: bool) -> Path:
    """The folder of the runs, after everything that can be refused has been asked."""
    from hpctrain.launch.container_check import check_container
    from hpctrain.launch.environment import secret_values
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
    if multirun:
        from hpctrain.launch.sweep import check_sweep

        check_sweep(planned, force)
    elif problems := first_plan.blocking_problems(force):
        raise ConfigError(problems)
    # Points of a sweep share most of what is looked at: each thing once.
    for data in dict.fromkeys(point.config.data for point, plan in planned if plan.payload == "train"):
        check_data(data)
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
        check_this_machine(first_plan, force)
    check_packages(first_plan)
    root = check_run_root(first_point.config.run.root)
    short = [check_checkpoint_room(plan, point.config.training, root) for point, plan in planned]
    if any(short):
        from hpctrain.cli_sweep import tell_warnings

        tell_warnings([list(filter(None, short))])
    return root


def _held_point(point: Point, force: bool) -> tuple[Point, RunPlan]:
    """The plan of a configuration that is there already, after everything that can be refused has been asked."""
    from hpctrain.plan.run_plan import build_run_plan

    planned = [(point, build_run_plan(point.config, point.assumptions))]
    if point.config.cluster.kind == "slurm":
        from hpctrain.launch.site.plans import planned_on_site
        from hpctrain.launch.site.question import start_asking

        planned, _ = planned_on_site(planned, start_asking())
    _checked_root(planned, multirun=False, force=force)
    return planned[0]


def _submit_one(point: Point, plan: RunPlan, root: Path, python: str) -> int:
    from hpctrain.launch.run_folder import create_run_folder, remove_run_folder
    from hpctrain.launch.submit import submit
    from hpctrain.plan.render import render_notes

    print("\n".join(render_notes(plan)))
    run_paths = create_run_folder(root, point, plan, python)
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
    return _wait(run_paths, plan)


def _wait(run_paths: RunPaths, plan: RunPlan) -> int:
    """Follows the run; Ctrl-C and SIGTERM end a local run, and only the watching of a run on Slurm."""
    from rich.console import Console

    from hpctrain.launch.cancel import cancel
    from hpctrain.launch.status.follow import follow
    from hpctrain.launch.status.rows import collect_status
    from hpctrain.record.reader import read_submission

    submission = read_submission(run_paths)
    try:
        with terminable():
            attempt = follow(run_paths, plan, submission, Console())
    except KeyboardInterrupt:
        is_ours = submission.cluster_kind == "local"
        print(cancel(run_paths) if is_ours else "the job goes on; see status, or cancel it")
        raise
    (status,) = collect_status([run_paths])
    if status.state != "COMPLETED":
        print(f"hpctrain: the run ended as {status.state}: {status.detail}\nlogs: {run_paths.logs}", file=sys.stderr)
        return (attempt.exit_code if attempt else None) or _EXIT_FAILED
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
    parsed: _ComposeWords,
) -> int:
    from hpctrain.cli_sweep import submit_planned_sweep, tell_warnings
    from hpctrain.plan.sweep_groups import largest_array

    tell_warnings([plan.warnings for _, plan in planned])
    return submit_planned_sweep(
        planned, left_out, root, parsed.overrides, parsed.as_json, lambda request: largest_array(site, request)
    )
