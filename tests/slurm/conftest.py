"""A sandbox Slurm for the tests of this folder: one for each process, or the one HPCTRAIN_TEST_SANDBOX_CONF names."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SANDBOX = Path(__file__).parents[2] / "slurm" / "sandbox" / "sandbox.py"
DEADLINE_S = 240
"""Of each wait. Seconds on a quiet machine; a busy one makes no test fail."""


@dataclass(frozen=True)
class Sandbox:
    """A running sandbox.

    Attributes:
        slurm_conf: Its slurm.conf.
        env: The environment for commands of Slurm.
    """

    slurm_conf: Path
    env: dict[str, str]


def environment(slurm_conf: Path) -> dict[str, str]:
    # pytest may run in a job of another Slurm, whose variables are options to these commands.
    foreign = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    return kept | {"SLURM_CONF": str(slurm_conf)}


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Four nodes with two GPUs each, and accounting."""
    running = os.environ.get("HPCTRAIN_TEST_SANDBOX_CONF")
    if running:
        if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
            pytest.fail(
                "HPCTRAIN_TEST_SANDBOX_CONF: tests of several processes would disturb each other; run with -n 0"
            )
        yield Sandbox(Path(running), environment(Path(running)))
        return
    folder = tmp_path_factory.mktemp("sandbox")
    command = [sys.executable, str(SANDBOX)]
    try:
        up = subprocess.run(
            [*command, "up", "--dir", folder, "--name", f"t{os.getpid()}"], capture_output=True, text=True, check=False
        )
        if up.returncode:
            pytest.fail(f"no sandbox: {up.stderr}", pytrace=False)
        (assignment,) = shlex.split(up.stdout)[1:]
        slurm_conf = Path(assignment.removeprefix("SLURM_CONF="))
        yield Sandbox(slurm_conf, environment(slurm_conf))
    finally:
        subprocess.run([*command, "down", "--dir", folder], check=True)


def start_now(slurm: Callable[..., str], job_id: str) -> None:
    """A requeued job waits for 20 s in the sandbox; this one does not.

    Args:
        slurm: runs a command of Slurm and returns its output.
        job_id: of a job that has just been requeued.
    """
    deadline = time.monotonic() + DEADLINE_S
    while "PENDING" not in slurm("squeue", "-h", "-j", job_id, "-o", "%T"):
        assert time.monotonic() < deadline, slurm("scontrol", "show", "job", job_id)
        time.sleep(0.1)
    # In the second of the requeue a node still refuses the job («Job credential revoked»).
    slurm("scontrol", "update", f"JobId={job_id}", "StartTime=now+3")
