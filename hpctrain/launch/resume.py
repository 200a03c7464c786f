"""The same run folder handed over once more: what may change, what must fit its checkpoints, and what becomes of old records."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import os
from collections.abc import Iterator, Sequence

from hpctrain.config.changes import ChangedConfig, change_config
from hpctrain.config.compose import Point
from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError, LaunchError, Problem, RecordError
from hpctrain.launch.point_plans import closed_points
from hpctrain.launch.status.rows import RunStatus
from hpctrain.plan.job.nodelist import node_names
from hpctrain.plan.memory.fitted_ratio import is_fitted
from hpctrain.plan.memory.settings import with_passes
from hpctrain.plan.run_plan import RunPlan
from hpctrain.plan.speed.calibration_choice import moved_as_planned
from hpctrain.record.checkpoints import Checkpoint, read_checkpoints
from hpctrain.record.deciding_keys import DECIDE_NOTHING, HOW_IT_IS_SPREAD
from hpctrain.record.files import write_json, write_text
from hpctrain.record.frozen_config import config_text
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import StepsFile, read_each_attempt, read_overrides, read_plan, read_submission
from hpctrain.record.resume_check import is_cut_alike, resume_problems
from hpctrain.record.schema import AttemptRecord
from hpctrain.secret_text import redact_override
from hpctrain.units import counted


@dataclasses.dataclass(frozen=True)
class ResumeRequest:
    """What was asked for."""

    words: tuple[str, ...]
    """Overrides in Hydra's spelling."""
    current_code: bool = False
    """Run the code as it is now, and not the copy that the run was submitted with."""
    from_step: int | None = None
    """Go on from this checkpoint; 0: from the beginning. None: from the newest."""
    force: bool = False
    """Also where nobody knows whether the run is still active."""


@dataclasses.dataclass(frozen=True)
class ResumeChanges:
    """The configuration that a run goes on with."""

    config: Config
    notes: tuple[str, ...]
    """What the user should know, a sentence each."""
    overrides: tuple[str, ...] = ()
    settings: Config | None = None
    """The configuration with what the plan once chose stated: a run that is spread as before keeps it, whatever was calibrated,
    or is planned by other rules, since. None: nothing was, or it is chosen anew."""

    @property
    def to_plan(self) -> Config:
        """What the plan is made of."""
        return self.settings or self.config

    def to_freeze(self, held: Config) -> Config:
        """The planned configuration as the run folder keeps it: what nobody stated stays open."""
        training, own = held.training, self.config.training
        names = ("micro_batch_size", "gradient_accumulation_steps", "activation_checkpointing")
        open_still = {name: getattr(own, name) for name in names}
        kept = dataclasses.replace(held, parallelism=self.config.parallelism, run=self.config.run)
        return dataclasses.replace(kept, training=dataclasses.replace(training, **open_still))


@contextlib.contextmanager
def locked(run: RunPaths) -> Iterator[None]:
    """Keeps two resumes of one run apart.

    Raises:
        LaunchError: another one is under way.
    """
    path = run.root / ".resume.lock"
    try:
        stream = path.open("w")
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror}") from None
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LaunchError(f"{run.root}: is being resumed by another process") from None
        yield


def check_is_over(run: RunPaths, status: RunStatus, force: bool) -> None:
    """Raises LaunchError where the run is, or may be, waiting or running."""
    detail = f" ({status.detail})" if status.detail else ""
    if status.state == "UNKNOWN" and not force:
        raise LaunchError(
            f"{run.root}: whether job {status.job_id or '-'} still runs is not known{detail}; look with squeue, then resume"
            " with --force"
        )
    if not status.is_over and status.state != "UNKNOWN":
        raise LaunchError(
            f"{run.root}: is {status.state} as job {status.job_id}{detail}; cancel it first, or let it go on by itself"
        )


def check_from_step(run: RunPaths, from_step: int | None) -> None:
    """Raises ConfigError where there is no complete checkpoint of this step."""
    steps = [checkpoint.step for checkpoint in read_checkpoints(run).complete] if from_step else []
    if from_step and from_step not in steps:
        listed = ", ".join(map(str, steps)) or "none"
        raise ConfigError(
            f"--from-step {from_step}: there is no complete checkpoint of this step; there are: {listed};"
            " 0 begins at step 1 again"
        )


def resumed_config(run: RunPaths, config: Config, request: ResumeRequest) -> ResumeChanges:
    """The configuration to go on with.

    Args:
        run: the run folder.
        config: frozen at the last submission.
        request: what was asked for.

    Raises:
        ConfigError: a key may not change, or the run has completed and is not given more steps.
    """
    changed = change_config(config, request.words)
    problems = [*_kept_problems(config, changed), *_steps_problems(run, config, changed.config)]
    if problems:
        raise ConfigError(problems)
    told = changed.changed
    if changed.open_keys:  # what is chosen is told by its own note
        told = tuple(key for key in told if not key.startswith("parallelism.") and key not in changed.open_keys)
    notes = [f"{key} is changed" for key in told]
    changed, batch_notes = _with_the_same_batch(run, changed)
    (closed,) = closed_points([Point((), changed.config, (), changed.open_keys)])
    changed = dataclasses.replace(changed, config=closed.config)
    notes += [*batch_notes, *closed.assumptions]
    if changed.config.training.num_steps != config.training.num_steps:
        notes.append(
            f"training.num_steps={changed.config.training.num_steps}: the learning-rate schedule now ends there, and not at"
            f" {config.training.num_steps}"
        )
    config, exclude_notes = _without_failed_nodes(changed.config, failed_nodes(read_each_attempt(run).attempts))
    settings = None if _is_spread_anew(changed) else _settings_of_before(run, config)
    return ResumeChanges(config, (*notes, *exclude_notes), request.words, settings)


def _is_spread_anew(changed: ChangedConfig) -> bool:
    return any(key.startswith(HOW_IT_IS_SPREAD) for key in (*changed.changed, *changed.open_keys))


def _settings_of_before(run: RunPaths, config: Config) -> Config | None:
    """The configuration with batch, recomputation and offload ratio as the run has them; None: all of it is stated."""
    training = config.training
    is_batch_open = training.global_batch_size is None and training.gradient_accumulation_steps is None
    is_open = is_batch_open or None in (training.micro_batch_size, training.activation_checkpointing)
    if training.payload != "train" or not (is_open or is_fitted(config.parallelism)):
        return None
    plan = read_plan(run)
    moved = moved_as_planned(plan, config) if is_fitted(config.parallelism) else {}
    if is_batch_open:
        training = dataclasses.replace(training, gradient_accumulation_steps=plan.batch.gradient_accumulation_steps)
    stated = with_passes(
        dataclasses.replace(config, training=training), plan.batch.micro_batch_size, plan.activation_checkpointing
    )
    return dataclasses.replace(stated, parallelism=dataclasses.replace(config.parallelism, **moved))


def _with_the_same_batch(run: RunPaths, changed: ChangedConfig) -> tuple[ChangedConfig, list[str]]:
    """The global batch as it was, where the ranks or their micro batches are others now; the accumulation follows from it."""
    if not _is_spread_anew(changed):
        return changed, []
    training, batch = changed.config.training, read_plan(run).batch
    notes = []
    if training.global_batch_size is None:
        notes.append(f"training.global_batch_size={batch.global_batch_size}: stays what it was")
        training = dataclasses.replace(training, global_batch_size=batch.global_batch_size)
    if (
        training.gradient_accumulation_steps is not None
        and "training.gradient_accumulation_steps" not in changed.changed
    ):
        notes.append("training.gradient_accumulation_steps=null: it follows from the global batch and the ranks")
        training = dataclasses.replace(training, gradient_accumulation_steps=None)
    return dataclasses.replace(changed, config=dataclasses.replace(changed.config, training=training)), notes


def _kept_problems(before: Config, changed: ChangedConfig) -> list[Problem]:
    values = dataclasses.asdict(changed.config)
    problems = []
    for key in changed.changed:
        if not key.startswith(DECIDE_NOTHING):
            value: object = values
            for part in key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            rule = "decides what the run computes, and a run that goes on keeps it"
            problems.append(Problem(key, str(value), rule, "leave it out, or begin a new run: rerun RUN with it"))
    if before.cluster.kind != changed.config.cluster.kind:
        rule = f"the run was made for cluster.kind={before.cluster.kind}"
        problems.append(
            Problem("cluster.kind", changed.config.cluster.kind, rule, "rerun RUN cluster=... begins a new run")
        )
    return problems


def refused_as_resumed(error: ConfigError) -> ConfigError:
    """The same refusal, with what of its fixes is not open to a run that goes on."""
    keys = (problem.key for problem in error.problems if problem.key.startswith(("model.", "training.", "data.")))
    kept = dict.fromkeys(key for key in keys if not key.startswith(DECIDE_NOTHING))
    if not kept:
        return error
    is_or_are = "stays what it was" if len(kept) == 1 else "stay what they were"
    return ConfigError(
        error.problems,
        f"{error}\n{' and '.join(kept)} {is_or_are} in a run that goes on: take another way, or begin a new run with rerun",
    )


def _steps_problems(run: RunPaths, before: Config, after: Config) -> list[Problem]:
    done, steps = before.training.num_steps, after.training.num_steps
    attempts = read_each_attempt(run).attempts
    has_completed = bool(attempts) and attempts[-1].state == "completed"
    if after.training.payload == "train" and has_completed and steps <= done:
        rule = f"the run has completed its {done} steps"
        return [Problem("training.num_steps", str(steps), rule, f"resume RUN training.num_steps=N with N above {done}")]
    if steps < done:
        rule = f"the run was begun for {done} steps, and its learning-rate schedule with it"
        return [Problem("training.num_steps", str(steps), rule, f"nearest: {done}")]
    return []


def failed_nodes(attempts: Sequence[AttemptRecord]) -> list[str]:
    """Nodes that failed in one of the attempts, each once, in order."""
    found = [
        name
        for attempt in attempts
        if attempt.end_reason == "node_failure" and attempt.failed_node
        for name in attempt.failed_node.split(",")
    ]
    return list(dict.fromkeys(found))


def _without_failed_nodes(config: Config, failed: list[str]) -> tuple[Config, list[str]]:
    """Leaves them out where that is asked for, else says how."""
    try:
        excluded = node_names(config.cluster.exclude) if config.cluster.exclude else []
    except ValueError:
        excluded = []  # Slurm will judge it
    more = [name for name in failed if name not in excluded]
    if not more or config.cluster.kind != "slurm":
        return config, []
    names = ",".join(filter(None, (config.cluster.exclude, *more)))
    if not config.launch.exclude_failed_nodes:
        return config, [
            f"node {', '.join(more)} failed in an earlier attempt; leave it out with cluster.exclude='\"{names}\"'"
        ]
    cluster = dataclasses.replace(config.cluster, exclude=names)
    return dataclasses.replace(config, cluster=cluster), [f"cluster.exclude={names}: failed in an earlier attempt"]


def checkpoint_to_go_on_from(run: RunPaths, plan: RunPlan, config: Config, from_step: int | None) -> Checkpoint | None:
    """The newest complete checkpoint, or that of ``from_step``; None: the run begins at step 1.

    Raises:
        ConfigError: there is none of that step, all are damaged, or it does not fit the plan.
    """
    found = read_checkpoints(run)
    complete = list(found.complete)
    damaged = [
        f"{checkpoint.folder.name}: {checkpoint.reason}" for checkpoint in found.unusable if checkpoint.was_complete
    ]
    if damaged and not complete and from_step is None:
        raise ConfigError(f"no checkpoint can be used: {'; '.join(damaged)}; --from-step 0 begins at step 1 again")
    if from_step is not None:
        check_from_step(run, from_step)
        complete = [checkpoint for checkpoint in complete if checkpoint.step <= from_step]
    if not complete or plan.payload != "train":
        return None
    if problems := resume_problems(complete[-1], plan, config.training.seed):
        raise ConfigError(problems)
    return complete[-1]


def has_checkpoint(run: RunPaths, from_step: int | None) -> bool:
    """Whether there is something to go on from."""
    return from_step != 0 and bool(read_checkpoints(run).complete)


def start_note(run: RunPaths, checkpoint: Checkpoint | None, plan: RunPlan) -> str:
    """From where the run goes on."""
    if plan.payload != "train":
        return "the check is made once more"
    if checkpoint is not None:
        told = f"goes on after step {checkpoint.step} of {plan.num_steps}"
        if is_cut_alike(checkpoint.record, plan):
            return told
        saved = f"{counted(checkpoint.record.world_size, 'rank')} of ZeRO {checkpoint.record.zero_stage}"
        now = f"{counted(plan.layout.world_size, 'rank')} of ZeRO {plan.zero_stage} ({plan.layout.degrees_text})"
        return f"{told}; its state, saved by {saved}, is cut anew for {now}"
    steps = [record.step for record in StepsFile(run.steps).new_records()]
    lost = f"; its {max(steps)} steps are made once more" if steps else ""
    return f"begins at step 1 of {plan.num_steps}, since there is no checkpoint to go on from{lost}"


class FormerRecords:
    """The records of the last submission, moved into ``submissions/`` and put back if nothing is submitted."""

    def __init__(self, run: RunPaths) -> None:
        self._run = run
        stem = _free_stem(run)
        self._kept = {
            path: run.earlier_submissions / f"{stem}{suffix}"
            for path, suffix in (
                (run.submission, ".json"),
                (run.config, ".config.yaml"),
                (run.plan, ".plan.json"),
                (run.overrides, ".overrides.json"),
                (run.code, ".code.json"),
            )
            if path.is_file()
        }

    def keep(self) -> None:
        """Copies by name what will be replaced; the submission itself moves, since no job belongs to it any more."""
        self._run.earlier_submissions.mkdir(exist_ok=True)
        for path, kept in self._kept.items():
            if path == self._run.submission:
                path.rename(kept)
            else:
                kept.write_bytes(path.read_bytes())

    def put_back(self) -> None:
        for path, kept in self._kept.items():
            if kept.exists():
                os.replace(kept, path)
        with contextlib.suppress(OSError):  # records of earlier ones are in it
            self._run.earlier_submissions.rmdir()


def _free_stem(run: RunPaths) -> str:
    """The first attempt of the last submission; with a number where it was submitted anew before it had one."""
    try:
        stem = str(read_submission(run).first_attempt)
    except RecordError:
        stem = "0"  # it never came to a submission
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not (run.earlier_submissions / f"{name}.config.yaml").exists())


def write_resumed(run: RunPaths, changes: ResumeChanges, plan: RunPlan, code: str) -> None:
    """Freezes what the run goes on with.

    Args:
        run: the run folder, its former records kept.
        changes: the configuration and what was typed for it.
        plan: of the configuration.
        code: new text of ``code.json``; empty: the same code goes on.
    """
    typed = read_overrides(run)
    write_text(run.config, config_text(changes.config))
    write_json(run.overrides, [*typed, *map(redact_override, changes.overrides)])
    write_text(run.plan, plan.to_json())
    if code:
        write_text(run.code, code)
