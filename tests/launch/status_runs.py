"""Run folders that were handed to Slurm, with a fake squeue that counts its calls: for the tests of what comes after."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpctrain.record.files import write_record
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import SCHEMA_VERSION, AttemptRecord, NodeRecord, SubmissionRecord
from tests.analysis.make_runs import Attempt, make_run
from tests.launch.test_slurm_states import fake

KEY = "hpctrain-00000000000000aa"


def submitted_run(
    folder: Path, job_id: str, attempts: Sequence[Attempt] = (), submitted_at_s: float = 900.0, **fields: Any
) -> RunPaths:
    """A run that was handed to Slurm as ``job_id``."""
    run = make_run(folder, attempts=attempts)
    submit_record(run, job_id, submitted_at_s, **fields)
    return run


def submit_record(run: RunPaths, job_id: str, submitted_at_s: float = 900.0, **fields: Any) -> None:
    record = SubmissionRecord(
        schema_version=SCHEMA_VERSION,
        cluster_kind="slurm",
        job_id=job_id,
        submitted_at_s=submitted_at_s,
        host="login",
        command=("sbatch", "--parsable", str(run.submission_script)),
    )
    write_record(run.submission, dataclasses.replace(record, **fields))


def start_attempt(run: RunPaths, number: int, job_id: str, started_at_s: float = 1000.0, **fields: Any) -> None:
    nodes = (NodeRecord("n1", (0, 1), 8), NodeRecord("n2", (2, 3), 8))
    record = AttemptRecord(
        SCHEMA_VERSION, number, job_id, "running", started_at_s, world_size=8, nodes=nodes, failed_rank=None
    )
    write_record(run.attempt(number), dataclasses.replace(record, **fields))


class FakeSlurm:
    """Programs first in PATH that print files and count their calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("squeue", "sacct", "scontrol", "sinfo", "scancel"):
            self.back(name)
            self.answer(name)

    def answer(self, name: str, *lines: str) -> None:
        (self.folder / f"{name}.out").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def queue(self, *jobs: tuple[RunPaths, str, str] | tuple[RunPaths, str, str, str]) -> None:
        """Jobs as (run, job id, state[, reason])."""
        self.answer("squeue", *(queue_line(*job) for job in jobs))

    def away(self) -> None:
        """The controller does not answer."""
        self.fail("squeue", "slurm_load_jobs error: Unable to contact slurm controller")

    def fail(self, name: str, words: str) -> None:
        fake(self.folder, name, f'echo "{name} $*" >> "{self.folder}/calls"; echo "{words}" >&2; exit 1')

    def back(self, name: str = "squeue") -> None:
        fake(self.folder, name, f'echo "{name} $*" >> "{self.folder}/calls"; cat "{self.folder}/{name}.out"')

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def queue_line(run: RunPaths, job_id: str, state: str, reason: str = "None") -> str:
    return f"{job_id}|{state}|{reason}|N/A|900|N/A|n1|(null)|{run.submission_script}"
