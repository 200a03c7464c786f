"""``python -m hpctrain.record.open_attempt RUN_DIR``: the next attempt of a run, begun by the batch script.

Prints the attempt's number and nothing else. Where the run must not start (again), it prints no number, says why on standard
error, and its exit code is the one the script ends with. Light: neither torch nor pandas.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hpctrain.errors import HpctrainError, LaunchError
from hpctrain.record.attempt_files import attempt_numbers
from hpctrain.record.attempt_rules import Refusal, Start, refusal_of
from hpctrain.record.checkpoints import complete_checkpoints
from hpctrain.record.close_attempt import Ending, close_attempt, slurm_evidence, unclosed_attempts
from hpctrain.record.end_evidence import EndEvidence
from hpctrain.record.files import create_record, read_record
from hpctrain.record.identity import first_attempt_number, job_id_of, node_name
from hpctrain.record.log_sizes import note_log_sizes
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_config, read_each_attempt
from hpctrain.record.schema import SCHEMA_VERSION, AttemptRecord
from hpctrain.record.slurm_job import job_facts, nodes_down_since

_ASK_PAUSES_S = (2.0, 5.0, 10.0, 20.0)

IsAlive = Callable[[AttemptRecord], bool]


def open_attempt(run: RunPaths, start: Start, host: str, now_s: float, is_alive: IsAlive) -> int | Refusal:
    """Takes the next free number by creating its record in state ``running``, unless the run must not start.

    Args:
        run: the run folder.
        start: what is asked for.
        host: the machine that begins the attempt.
        now_s: Unix time.
        is_alive: whether an attempt whose record says ``running`` still does.

    Raises:
        LaunchError: another attempt runs: two trainings must not write one folder.
    """
    while True:
        # Before the look at who runs: of an attempt that begins after it the number is taken, and one looks again.
        number = max(attempt_numbers(run), default=0) + 1
        for attempt in unclosed_attempts(run):
            _close_lost(run, attempt, start.job_id, now_s, is_alive)
        refusal = refusal_of(start, read_each_attempt(run).attempts)
        record = AttemptRecord(
            SCHEMA_VERSION,
            number,
            start.job_id,
            "running",
            started_at_s=now_s,
            host=host,
            start_step=start.newest_step,
            log_offset=run.batch_log.stat().st_size if run.batch_log.exists() else 0,
        )
        if refusal is None and create_record(run.attempt(number), record):
            return number
        if refusal is not None and (refusal.reason is None or _record_refusal(run, record, refusal)):
            return refusal


def open_local_attempt(run: RunPaths, host: str, now_s: float) -> int:
    """``open_attempt`` for a run of this machine, after its submission has seen that no earlier one is alive."""
    number = max(attempt_numbers(run), default=0) + 1
    start = Start(job_id="", first_attempt=number, newest_step=newest_step(run), max_attempts=1)
    opened = open_attempt(run, start, host, now_s, is_alive=lambda _: False)
    assert not isinstance(opened, Refusal), "the first start of a submission"
    return opened


def _record_refusal(run: RunPaths, record: AttemptRecord, refusal: Refusal) -> bool:
    ended = dataclasses.replace(
        record,
        state="failed",
        ended_at_s=record.started_at_s,
        end_reason=refusal.reason,
        exit_code=refusal.exit_code,
        message=refusal.message,
    )
    return create_record(run.attempt(record.attempt), ended)


def _close_lost(run: RunPaths, attempt: AttemptRecord, job_id: str, now_s: float, is_alive: IsAlive) -> None:
    """Closes an attempt whose batch script did not come to its end."""
    # A job that starts again has left its former start behind.
    if attempt.job_id != job_id and is_alive(attempt):
        raise LaunchError(
            f"attempt {attempt.attempt} of this run is running as job {attempt.job_id}"
            + (f" on {attempt.host}" if attempt.host else "")
            + "; two jobs must not write one run folder, so this one ends"
        )
    again = "Slurm started the job again" if attempt.job_id == job_id else f"job {attempt.job_id} is gone"
    evidence = slurm_evidence(run, attempt) or _node_evidence(attempt)
    lost = f"ended without a word, since its batch script or the node {attempt.host} went away; {again}"
    if not job_id:
        lost = f"ended without a word: its process on {attempt.host} is gone"
    close_attempt(run, attempt.attempt, Ending(None, evidence=evidence, lost=lost), now_s)


def _node_evidence(attempt: AttemptRecord) -> EndEvidence | None:
    """The nodes of an attempt that failed, where Slurm had nobody left to tell."""
    nodes = sorted({node.name for node in attempt.nodes} | {attempt.host})
    if not attempt.job_id or not attempt.host:
        return None
    try:
        failed = nodes_down_since(nodes, attempt.started_at_s)
    except LaunchError as error:
        print(f"hpctrain: which node of attempt {attempt.attempt} failed is not known: {error}", file=sys.stderr)
        return None
    if not failed:
        return None
    names = ",".join(failed)
    message = f"ended without a word; by scontrol its node {names} is down or was started again since"
    return EndEvidence("node_failure", message, failed_node=names)


def with_opening(record: AttemptRecord, path: Path) -> AttemptRecord:
    """The record of the ranks with what was known when the attempt was opened, if somebody opened it."""
    if not path.exists():
        return record
    opened = read_record(path, AttemptRecord)
    names = ("started_at_s", "host", "start_step", "log_offset")
    return dataclasses.replace(record, **{name: getattr(opened, name) for name in names})


def newest_step(run: RunPaths) -> int:
    """Step of the newest complete checkpoint; 0: there is none."""
    complete = complete_checkpoints(run)
    return complete[-1].step if complete else 0


def job_is_alive(attempt: AttemptRecord) -> bool:
    """Whether the Slurm job of an attempt still has its nodes; waits for a controller that does not answer.

    Raises:
        LaunchError: Slurm cannot be asked, so that nobody knows.
    """
    for pause_s in (*_ASK_PAUSES_S, None):
        try:
            facts = job_facts(attempt.job_id)
        except LaunchError as error:
            if pause_s is None:
                raise LaunchError(
                    f"whether attempt {attempt.attempt} (job {attempt.job_id}) still runs is not known: {error}; two jobs must"
                    " not write one run folder, so this one ends"
                ) from None
            time.sleep(pause_s)
            continue
        return facts is not None and facts.holds_nodes
    raise AssertionError("unreachable")


def main() -> None:
    run, job_id = RunPaths(Path(sys.argv[1])), job_id_of(os.environ)
    try:
        launch = read_config(run).launch
        start = Start(
            job_id=job_id,
            first_attempt=first_attempt_number(os.environ),
            newest_step=newest_step(run),
            max_attempts=launch.max_attempts,
            is_chained=launch.chain == "dependency",
        )
        opened = open_attempt(run, start, node_name(os.environ), time.time(), job_is_alive)
    except (HpctrainError, OSError) as error:
        print(f"hpctrain: not started: {error}", file=sys.stderr)
        sys.exit(LaunchError.exit_code)
    if isinstance(opened, Refusal):
        print(f"hpctrain: not started: {opened.message}", file=sys.stderr)
        sys.exit(opened.exit_code)
    try:
        note_log_sizes(run, opened)
    except OSError as error:
        print(f"hpctrain: {error}; logs --attempt {opened} will not find its output", file=sys.stderr)
    print(opened)


if __name__ == "__main__":
    main()
