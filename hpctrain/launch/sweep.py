"""A sweep: all points planned first, then submitted as few arrays; whatever ends it, the same call again continues it."""

from __future__ import annotations

import dataclasses
import re
import secrets
import shutil
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpctrain.config.compose import Point
from hpctrain.errors import ConfigError, InterruptedLaunchError, LaunchError, Problem, UnclearSubmissionError
from hpctrain.launch.environment import write_environment
from hpctrain.launch.interpreter import interpreter
from hpctrain.launch.point_labels import point_labels
from hpctrain.launch.run_folder import code_text, create_point_folder
from hpctrain.launch.slurm.held_signals import HeldSignals
from hpctrain.launch.slurm.job_search import FoundJob
from hpctrain.launch.slurm.lost_answer import find_job
from hpctrain.launch.slurm.sbatch import Submission
from hpctrain.launch.submit import new_key, slurm_record, submit_patiently, submitting_environment
from hpctrain.launch.submitted_code import submitted_code
from hpctrain.launch.sweep_manifest import (
    HAS_A_JOB,
    MAY_HAVE_A_JOB,
    GroupState,
    LeftOut,
    SweepGroup,
    SweepManifest,
    SweepPoint,
    identities,
    locked,
    read_manifest,
    submitted,
)
from hpctrain.plan.job.batch_script import ScriptTarget, TaskArray, sbatch_script
from hpctrain.plan.job.slurm_request import SlurmRequest
from hpctrain.plan.run_plan import RunPlan
from hpctrain.plan.sweep.groups import (
    allocation_request,
    allocation_script,
    array_request,
    array_spec,
    group_points,
    point_shape,
)
from hpctrain.record.files import write_record, write_text
from hpctrain.record.paths import RunPaths
from hpctrain.text_table import aligned

_NAME = re.compile(r"[A-Za-z0-9_][\w.=+-]{0,99}", re.ASCII)
Planned = Sequence[tuple[Point, RunPlan]]


def without_what_does_not_fit(
    planned: list[tuple[Point, RunPlan]], force: bool
) -> tuple[list[tuple[Point, RunPlan]], tuple[LeftOut, ...]]:
    """The points that can run, and those whose only problem is memory: where a sweep ends is what one wants to know of it.

    All of them where none fits: then the sweep is refused.
    """
    problems = [plan.blocking_problems(force) for _, plan in planned]
    fits = [not found or any(problem.kind != "memory" for problem in found) for found in problems]
    if not any(fits):
        return planned, ()
    left_out = tuple(
        LeftOut(point.overrides, "; ".join(map(str, found)))
        for (point, _), found, fitting in zip(planned, problems, fits, strict=True)
        if not fitting
    )
    return [pair for pair, fitting in zip(planned, fits, strict=True) if fitting], left_out


def check_sweep(planned: Planned, force: bool) -> None:
    """Refuses the whole sweep if a point is wrong: nothing is submitted, a table shows all points with their problems.

    Raises:
        ConfigError: a point is wrong, or they do not go together.
    """
    configs = [point.config for point, _ in planned]
    if any(config.cluster.kind != "slurm" for config in configs):
        kinds = ",".join(sorted({config.cluster.kind for config in configs} - {"slurm"}))
        why = "runs of this machine would share its cores" if kinds == "local" else "start its points one by one"
        raise ConfigError(f"cluster={kinds}: a sweep needs Slurm; {why}")
    if any(config.launch.mode == "here" for config in configs):
        raise ConfigError("launch.mode=here: a sweep is submitted as jobs; leave it out")
    if any(config.launch.chain == "dependency" for config in configs):
        rule = "each link of an array would wait for all points of the one before"
        raise ConfigError((Problem("launch.chain", "dependency", rule, "use launch.chain=requeue"),))
    if any(config.cluster.wait for config in configs):
        raise ConfigError("cluster.wait=true: a sweep is never waited for; leave it out, and see status")
    shared: dict[str, set[str]] = {
        "run.root": {config.run.root for config in configs},
        "launch.sweep_name": {str(config.launch.sweep_name) for config in configs},
        "launch.max_running": {str(config.launch.max_running) for config in configs},
        "launch.sweep": {config.launch.sweep for config in configs},
    }
    for key, values in shared.items():
        if len(values) > 1:
            told = ",".join(sorted(values))
            raise ConfigError(f"{key}={told}: the runs of a sweep share one folder and its arrays; leave one of them")
    name = configs[0].launch.sweep_name
    if name is not None and not _NAME.fullmatch(name):
        rule = "names a folder in run.root: letters, digits and _ . = + -, at most 100, none of . = + - first"
        raise ConfigError((Problem("launch.sweep_name", name, rule, "choose another name"),))
    if configs[0].launch.sweep == "one_allocation" and _num_shapes(planned) > 1:
        rule = "its points may differ in nodes and in what they train, not in what else they ask of Slurm"
        raise ConfigError((Problem("launch.sweep", "one_allocation", rule, "use launch.sweep=array"),))
    problems = [plan.blocking_problems(force) for _, plan in planned]
    if any(problems):
        num_bad = sum(bool(found) for found in problems)
        rows = [
            (label, "wrong" if found else "valid", "; ".join(map(str, found)))
            for label, found in zip(point_labels([point.overrides for point, _ in planned]), problems, strict=True)
        ]
        summary = f"{num_bad} of {len(planned)} points are wrong; nothing was submitted"
        table = aligned([("POINT", "STATE", "REASON"), *rows])
        raise ConfigError([problem for found in problems for problem in found], f"\n{table}\n{summary}")


def _num_shapes(planned: Planned) -> int:
    return len({point_shape(point.config, plan.slurm) for point, plan in planned})


@dataclass(frozen=True)
class SweepResult:
    """What a call did."""

    folder: Path
    manifest: SweepManifest
    num_new: int = 0
    """Points that this call submitted."""
    trouble: str = ""
    """Why it stopped before the end; empty if it did not."""
    exit_code: int = 0


def submit_sweep(
    planned: Planned,
    left_out: tuple[LeftOut, ...],
    root: Path,
    largest: Callable[[SlurmRequest], int],
    held: HeldSignals,
) -> SweepResult:
    """Submits every point that has no job yet; stops at the first trouble and says in the manifest what was not reached.

    Args:
        planned: checked with ``check_sweep``.
        left_out: points that do not fit; the manifest tells of them.
        root: of the runs.
        largest: tasks that an array of such a request may have.
        held: a signal ends it between two submissions.

    Raises:
        ConfigError: the sweep of this name has other points.
        LaunchError: it is being submitted by another process, or its folder cannot be used.
    """
    name = planned[0][0].config.launch.sweep_name
    folder = root / (name or f"sweep-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
    try:
        folder.mkdir(exist_ok=name is not None)
    except FileExistsError:
        raise LaunchError(f"{folder}: is there and is no folder; take another name") from None
    except OSError as error:
        raise LaunchError(f"{folder}: cannot be made ({error.strerror}); nothing was submitted") from None
    read_manifest(folder)  # a folder of something else is left as it is
    try:
        with locked(folder):
            return _Sweep(folder, root, planned, left_out, held).run(largest)
    except OSError as error:
        raise LaunchError(
            f"{error.filename or folder}: cannot be written ({error.strerror}); nothing new was submitted"
        ) from None


class _Sweep:
    """One call on one sweep folder, which is locked."""

    def __init__(
        self, folder: Path, root: Path, planned: Planned, left_out: tuple[LeftOut, ...], held: HeldSignals
    ) -> None:
        self._folder = folder
        self._held = held
        self._num_new = 0
        self._launch = planned[0][0].config.launch
        names = identities([point.config for point, _ in planned])
        self._planned: Mapping[str, tuple[Point, RunPlan]] = dict(zip(names, planned, strict=True))
        self._manifest = dataclasses.replace(read_manifest(folder), left_out=left_out)
        self._code_file = folder / ".code.json"
        self._snapshot = str(submitted_code(root, interpreter())[0].folder)
        self._check_same_points()
        write_text(self._code_file, code_text(root, interpreter()))

    def _check_same_points(self) -> None:
        others = [point for point in self._manifest.points if point.identity not in self._planned]
        if others:
            raise ConfigError(
                f"launch.sweep_name={self._folder.name}: {len(others)} of its {len(self._manifest.points)} points are not"
                f" in this command, the first: {' '.join(others[0].overrides)}; repeat the command of the sweep"
                " (with further points, if you like), or take another name"
            )

    def run(self, largest: Callable[[SlurmRequest], int]) -> SweepResult:
        """Settles what is open, groups what is missing, submits it."""
        try:
            self._settle_open_groups()
            self._complete_records()
            self._regroup(largest)
            for group in self._manifest.groups:
                if group.state == "not reached":
                    if self._held.received is not None:
                        raise InterruptedLaunchError("interrupted between two submissions", self._held.received)
                    self._submit(group)
        except LaunchError as error:
            return self._stopped(error)
        except OSError as error:
            trouble = f"{error.filename or self._folder}: cannot be written ({error.strerror})"
            return SweepResult(self._folder, self._manifest, self._num_new, trouble, LaunchError.exit_code)
        return SweepResult(self._folder, self._manifest, self._num_new)

    def _stopped(self, error: LaunchError) -> SweepResult:
        """A sweep of which Slurm refused the first job leaves nothing behind, unless it can go on later."""
        result = SweepResult(self._folder, self._manifest, self._num_new, str(error), error.exit_code)
        if type(error) is LaunchError and not any(
            group.state in (*HAS_A_JOB, *MAY_HAVE_A_JOB) for group in self._manifest.groups
        ):
            shutil.rmtree(self._folder)
        return result

    def _settle_open_groups(self) -> None:
        """Groups that an earlier call left between asking and knowing.

        Raises:
            UnclearSubmissionError: Slurm cannot say.
        """
        for group in self._manifest.groups:
            if group.state in MAY_HAVE_A_JOB:
                submission = self._submission(group, group.key)
                job = find_job(submission, self._runs(group), group.submitting_at_s)
                self._note(submitted(group, job) if job else dataclasses.replace(group, state="not reached", reason=""))
                submission.forget_answer()

    def _complete_records(self) -> None:
        """Run folders of an earlier call that ended before it told them their job."""
        for group in self._manifest.groups:
            if group.state in HAS_A_JOB:
                self._write_records(group)

    def _regroup(self, largest: Callable[[SlurmRequest], int]) -> None:
        """New groups for all points without a job; the folders that they had are removed."""
        kept = [group for group in self._manifest.groups if group.state in HAS_A_JOB]
        numbers = {group.number for group in kept}
        for group in self._manifest.groups:
            if group.number not in numbers:
                self._remove_folders(group)
        points = [point for point in self._manifest.points if point.group in numbers]
        done = {point.identity for point in points}
        missing = [name for name in self._planned if name not in done]
        shapes = [self._shape(name) for name in missing]
        requests = {shape: self._planned[name][1].slurm for shape, name in zip(shapes, missing, strict=True)}
        kind: Literal["array", "allocation"] = "allocation" if self._launch.sweep == "one_allocation" else "array"
        sizes = {
            shape: len(missing) if kind == "allocation" else largest(request) for shape, request in requests.items()
        }
        for number, members in enumerate(group_points(shapes, sizes), start=max(numbers, default=-1) + 1):
            group = SweepGroup(number, len(members), kind)
            kept.append(group)
            points += [
                SweepPoint(
                    missing[index],
                    self._planned[missing[index]][0].overrides,
                    number,
                    group.run_name(task),
                    group.state,
                )
                for task, index in enumerate(members)
            ]
        self._manifest = dataclasses.replace(self._manifest, groups=tuple(kept), points=tuple(points))
        self._manifest.write(self._folder)

    def _shape(self, name: str) -> Hashable:
        """Equal for points that one call of sbatch can submit; secrets are in its environment, not in the script."""
        point, plan = self._planned[name]
        return point_shape(point.config, plan.slurm)

    def _submit(self, group: SweepGroup) -> None:
        key = new_key()
        submission = self._submission(group, key)
        self._write_runs(group)
        for run, (_, plan) in zip(self._runs(group), self._members(group), strict=True):
            write_environment(run, submission.environment, plan.slurm.secret_names)
        write_text(submission.script, self._script_text(group, key))
        group = dataclasses.replace(group, state="submitting", key=key, submitting_at_s=time.time())
        self._note(group)
        try:
            request = self._members(group)[0][1].slurm
            job = submit_patiently(submission, self._task_folders(group), self._launch, self._held, request)
        except LaunchError as error:
            self._note(dataclasses.replace(group, state=_state_after(error), reason=str(error).splitlines()[0]))
            raise
        group = submitted(group, job)
        self._num_new += group.num_points
        self._note(group)
        self._write_records(group)
        submission.forget_answer()

    def _note(self, group: SweepGroup) -> None:
        self._manifest = self._manifest.with_group(group)
        self._manifest.write(self._folder)

    def _runs(self, group: SweepGroup) -> list[RunPaths]:
        return [RunPaths(self._folder / group.run_name(task)) for task in range(group.num_points)]

    def _task_folders(self, group: SweepGroup) -> list[Path]:
        """One for each task of the group's job; an allocation has one task, which runs all points."""
        folders = [run.root for run in self._runs(group)]
        return folders if group.kind == "array" else folders[:1]

    def _members(self, group: SweepGroup) -> list[tuple[Point, RunPlan]]:
        return [self._planned[self._manifest.points[index].identity] for index in self._manifest.members(group.number)]

    def _submission(self, group: SweepGroup, key: str) -> Submission:
        runs = self._runs(group)
        script = self._folder / "arrays" / f"{group.number}.sh" if len(runs) > 1 else runs[0].submission_script
        config = self._members(group)[0][0].config
        environment = submitting_environment(self._snapshot, config)
        return Submission(script, environment, key, retry_s=config.launch.submit_retry_s)

    def _script_text(self, group: SweepGroup, key: str) -> str:
        members = self._members(group)
        requests = [plan.slurm for _, plan in members]
        launch = members[0][0].config.launch
        folders = [str(run.root) for run in self._runs(group)]
        target = ScriptTarget(folders[0], interpreter(), self._snapshot, key if launch.comment_key else "")
        if group.num_points == 1:
            return sbatch_script(requests[0], target)
        if group.kind == "array":
            array = TaskArray(str(self._folder), group.number, array_spec(group.num_points, launch.max_running))
            return sbatch_script(array_request(requests, self._folder.name), dataclasses.replace(target, runs=array))
        for request, run in zip(requests, self._runs(group), strict=True):
            write_text(run.submission_script, sbatch_script(request, dataclasses.replace(target, runs=str(run.root))))
        home = self._folder / "arrays" / str(group.number)
        (home / "logs").mkdir(parents=True, exist_ok=True)
        request = allocation_request(requests, self._folder.name)
        directives = sbatch_script(request, dataclasses.replace(target, runs=str(home)))
        return allocation_script(directives, list(zip(requests, folders, strict=True)))

    def _write_runs(self, group: SweepGroup) -> None:
        (self._folder / "arrays").mkdir(exist_ok=True)
        for run, (point, plan) in zip(self._runs(group), self._members(group), strict=True):
            create_point_folder(run.root, point, plan, self._code_file)

    def _write_records(self, group: SweepGroup) -> None:
        """``submission.json`` of each run that has none yet."""
        submission = self._submission(group, group.key)
        job = FoundJob(group.job_id, group.slurm_cluster)
        for task, run in enumerate(self._runs(group)):
            if run.root.is_dir() and not run.submission.exists():
                write_record(run.submission, slurm_record(submission, job, group.job_of(task)))

    def _remove_folders(self, group: SweepGroup) -> None:
        for run in self._runs(group):
            shutil.rmtree(run.root, ignore_errors=True)
        (self._folder / "arrays" / f"{group.number}.sh").unlink(missing_ok=True)


def _state_after(error: LaunchError) -> GroupState:
    if isinstance(error, UnclearSubmissionError):
        return "unclear"
    return "not reached" if isinstance(error, InterruptedLaunchError) else "refused"
