"""Handing a prepared run folder to Slurm or to this machine."""

from __future__ import annotations

import dataclasses
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpctrain.config.schema import Config, LaunchConfig
from hpctrain.errors import SubmitLimitError, UnclearSubmissionError
from hpctrain.launch.environment import job_environment, secret_values, write_environment
from hpctrain.launch.interpreter import interpreter
from hpctrain.launch.slurm.held_signals import HeldSignals
from hpctrain.launch.slurm.job_search import FoundJob
from hpctrain.launch.slurm.sbatch import Submission, submit_script
from hpctrain.launch.snapshot import python_path, snapshot_of
from hpctrain.plan.job.batch_script import ScriptTarget, sbatch_script
from hpctrain.plan.job.slurm_request import SlurmRequest
from hpctrain.plan.rules.chain import num_links
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.attempt_files import attempt_numbers
from hpctrain.record.files import write_record, write_text
from hpctrain.record.paths import RunPaths
from hpctrain.record.submission_schema import SCHEMA_VERSION, SubmissionRecord
from hpctrain.text_table import printable
from hpctrain.units import duration_in_words

_LIMIT_PAUSES_S = (10.0, 20.0, 40.0, 60.0, 120.0, 300.0)


def submit(run: RunPaths, plan: RunPlan, config: Config) -> SubmissionRecord:
    """Submits the run and writes ``submission.json``. Signals wait until both is done, then they act.

    Raises:
        LaunchError: Slurm refused (its own words and the whole command are in the message), or its answer is unclear.
    """
    with HeldSignals() as held:
        environment = submitting_environment(snapshot_of(run), config)
        write_environment(run, environment, plan.slurm.secret_names)
        if plan.cluster_kind == "slurm":
            record = _submit_slurm(run, plan, config, environment, held)
        elif plan.azureml is not None:
            from hpctrain.launch.azureml import submit_azureml

            record = submit_azureml(run, plan.azureml)
        else:
            from hpctrain.launch.local import submit_local

            record = submit_local(run, plan, environment)
        try:
            write_record(run.submission, record)
        except OSError as error:
            raise UnclearSubmissionError(
                f"job {record.job_id} was submitted, but {run.submission} cannot be written ({error.strerror}): status and"
                " cancel will not know it"
            ) from None
        if held.received is not None:
            print(f"job {record.job_id} was submitted before the signal came\nrun {run.root}")
    return record


def submitting_environment(snapshot: str, config: Config) -> dict[str, str]:
    """What sbatch (or a local run) is called with, and the job begins with."""
    environment = job_environment(os.environ, config.cluster.inherit_env) | secret_values(config, os.environ)
    return environment | python_path(snapshot, environment.get("PYTHONPATH", ""))


def new_key() -> str:
    """A text by which the job of one submission is told from all others."""
    return f"hpctrain-{secrets.token_hex(8)}"


def _submit_slurm(
    run: RunPaths, plan: RunPlan, config: Config, environment: Mapping[str, str], held: HeldSignals
) -> SubmissionRecord:
    key = new_key()
    first_attempt = max(attempt_numbers(run), default=0) + 1
    target = ScriptTarget(
        str(run.root),
        interpreter(),
        snapshot_of(run),
        key=key if config.launch.comment_key else "",
        first_attempt=first_attempt,
    )
    write_text(run.submission_script, sbatch_script(plan.slurm, target))
    if config.launch.mode == "here":
        from hpctrain.launch.here import submit_here

        return submit_here(run, plan.layout, environment, first_attempt)
    submission = Submission(run.submission_script, environment, key, retry_s=config.launch.submit_retry_s)
    job = submit_patiently(submission, [run.root], config.launch, held, plan.slurm)
    submission.forget_answer()
    record = slurm_record(submission, job, job.job_id, first_attempt)
    if config.launch.chain != "dependency":
        return record
    return dataclasses.replace(record, chain=_submit_links(run, plan, config, submission, job.job_id, held))


def _submit_links(
    run: RunPaths, plan: RunPlan, config: Config, submission: Submission, first_job: str, held: HeldSignals
) -> tuple[str, ...]:
    """The later jobs of the chain; says so where Slurm does not take all of them, since the first one is submitted."""
    from hpctrain.launch.chain import ChainBrokenError, step_seconds, submit_links
    from hpctrain.record.open_attempt import newest_step

    count = num_links(config, step_seconds(run, plan), newest_step(run))

    def submit_link(link: Submission) -> str:
        job = submit_patiently(link, [run.root], config.launch, held, plan.slurm)
        link.forget_answer()
        return job.job_id

    try:
        return submit_links(submission, first_job, count, submit_link)
    except ChainBrokenError as error:
        print(
            printable(f"hpctrain: {error}\nthe run ends with the last of them; then: resume", kept=""), file=sys.stderr
        )
        return error.ids


def slurm_record(submission: Submission, job: FoundJob, job_id: str, first_attempt: int = 1) -> SubmissionRecord:
    """What a run folder keeps of its submission.

    Args:
        submission: of the run's job, or of the array that it is a task of.
        job: what became of it.
        job_id: of the run: the job's, or ``JOB_TASK`` in an array.
        first_attempt: number of the first start that the submission makes.
    """
    return SubmissionRecord(
        schema_version=SCHEMA_VERSION,
        cluster_kind="slurm",
        job_id=job_id,
        submitted_at_s=time.time(),
        host=socket.gethostname(),
        slurm_cluster=job.slurm_cluster,
        slurm_conf=submission.environment.get("SLURM_CONF", ""),
        command=submission.command,
        first_attempt=first_attempt,
        key=submission.key,
    )


def submit_patiently(
    submission: Submission, runs: Sequence[Path], launch: LaunchConfig, held: HeldSignals, request: SlurmRequest
) -> FoundJob:
    """``submit_script``, again and again for ``launch.submit_wait_min`` where a limit of jobs is reached.

    Args:
        submission: of one job, or of an array.
        runs: the folder of each task's run.
        launch: how long to wait.
        held: a signal ends the waiting.
        request: what is asked for, for the site's names after a refusal.

    Raises:
        LaunchError: see ``submit_script``.
    """
    from hpctrain.launch.slurm.executor import ScriptExecutor

    hint = _site_hint(submission, request)
    executor = ScriptExecutor(submission.script, lambda: submit_script(submission, held, hint))
    deadline = time.monotonic() + 60 * launch.submit_wait_min
    for number in range(sys.maxsize):
        try:
            return executor.submit_runs(runs)
        except SubmitLimitError as error:
            rest_s = deadline - time.monotonic()
            if rest_s <= 0 or held.received is not None:
                raise
            pause_s = min(_LIMIT_PAUSES_S[min(number, len(_LIMIT_PAUSES_S) - 1)], rest_s)
            first_line = str(error).splitlines()[0]
            told = (
                f"hpctrain: {first_line}; tries again in {duration_in_words(pause_s)}, for {duration_in_words(rest_s)}"
            )
            print(printable(told, kept=""), file=sys.stderr, flush=True)
            held.pause(pause_s)
    raise AssertionError("unreachable")


def _site_hint(submission: Submission, request: SlurmRequest) -> Callable[[str], str]:
    """The site's valid names for what Slurm's words speak of; asked only after a refusal."""

    def hint(words: str) -> str:
        from hpctrain.launch.site.plans import refusal_hint

        return refusal_hint(words, request, submission.environment.get("SLURM_CONF", ""))

    return hint
