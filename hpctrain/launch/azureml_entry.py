"""``python -m hpctrain.launch.azureml_entry SUBMITTED RUN_DIR [DATA]``: what AzureML starts, once for each GPU.

There is no batch script: the first process of a node puts the files of the submission into the run folder, which is the job's
output, and rank 0's opens the attempt and writes the end marker where the ranks could not.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from hpctrain.errors import LaunchError
from hpctrain.plan.job.own_variables import DATA_PATH_VARIABLE
from hpctrain.record.close_attempt import Ending, close_attempt
from hpctrain.record.files import checked_json, create_record, json_text, write_record
from hpctrain.record.identity import attempt_number, job_id_of
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import SCHEMA_VERSION, AttemptRecord, SubmissionRecord

_COPY_TIMEOUT_S = 300.0
_POLL_S = 0.1
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def start(submitted: Path, run: RunPaths, data: str) -> int:
    """Runs one rank; returns its exit code.

    Raises:
        LaunchError: the run folder does not fill, or this process has no LOCAL_RANK and RANK.
    """
    missing = [name for name in ("RANK", "LOCAL_RANK") if not os.environ.get(name)]
    if missing:
        raise LaunchError(f"{', '.join(missing)}: missing; AzureML must start this with distribution.type=pytorch")
    if os.environ["LOCAL_RANK"] == "0":
        fill_run_folder(submitted, run)
    else:
        _wait_for(run.plan)
    is_first = os.environ["RANK"] == "0"
    if is_first:
        _open_attempt(run)
    if data:
        os.environ[DATA_PATH_VARIABLE] = data
    command = [sys.executable, "-u", "-m", "hpctrain.launch.rank_entry", str(run.root)]
    if not is_first:
        os.execv(sys.executable, command)
    exit_code = _run_with_signals(command)
    final = close_attempt(run, attempt_number(os.environ), Ending(exit_code, job_id_of(os.environ)), time.time())
    if final.state == "failed":
        # The others look for it: no launcher tells them that rank 0 is gone.
        create_record(run.failure(final.attempt), final)
    print(f"hpctrain: attempt {final.attempt} {final.state} ({final.end_reason}): {final.message}", flush=True)
    return exit_code


def fill_run_folder(submitted: Path, run: RunPaths) -> None:
    """Copies what the submission froze; ``plan.json`` last, so that where it is, all is."""
    if run.plan.exists():
        return
    for folder in (run.root, run.attempts, run.logs):
        folder.mkdir(parents=True, exist_ok=True)
    files = sorted((path for path in submitted.iterdir() if path.is_file()), key=lambda path: path.name == "plan.json")
    for path in files:
        # Each node may do so at once, with the same contents.
        beside = run.root / f".{path.name}.{platform.node()}.{os.getpid()}.tmp"
        if path.name == run.code.name:
            # The copy of the code came along, to wherever AzureML puts it on each node.
            beside.write_text(json_text(checked_json(path) | {"snapshot": ""}), encoding="utf-8")
        else:
            shutil.copyfile(path, beside)
        os.replace(beside, run.root / path.name)


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + _COPY_TIMEOUT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise LaunchError(f"{path}: not there after {_COPY_TIMEOUT_S:g} s; did local rank 0 of this node fail?")
        time.sleep(_POLL_S)


def _open_attempt(run: RunPaths) -> None:
    """The submission gave the attempt its number, so that all ranks know it; a node that AzureML replaces begins it again."""
    number = attempt_number(os.environ)
    record = AttemptRecord(
        SCHEMA_VERSION, number, job_id_of(os.environ), "running", started_at_s=time.time(), host=platform.node()
    )
    run.failure(number).unlink(missing_ok=True)
    write_record(run.attempt(number), record)
    if not run.submission.exists():
        # The job may have been sent by hand, and its output is a run folder all the same. When it was sent nobody knows here.
        sent = SubmissionRecord(
            SCHEMA_VERSION, "azureml", record.job_id, record.started_at_s, record.host, first_attempt=number
        )
        write_record(run.submission, sent)


def _run_with_signals(command: list[str]) -> int:
    """The rank as a child, so that its end is recorded even if it is killed; signals are passed on to it."""
    child = subprocess.Popen(command)

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        child.send_signal(number)

    for number in _SIGNALS:
        signal.signal(number, pass_on)
    code = child.wait()
    return 128 - code if code < 0 else code


def main() -> None:
    submitted, run_dir = Path(sys.argv[1]), Path(sys.argv[2]).absolute()
    try:
        code = start(submitted, RunPaths(run_dir), sys.argv[3] if len(sys.argv) > 3 else "")
    except LaunchError as error:
        print(f"hpctrain: {error}", file=sys.stderr)
        code = error.exit_code
    sys.exit(code)


if __name__ == "__main__":
    main()
