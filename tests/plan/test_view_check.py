"""The part of the batch script that asks every node whether it sees the run folder (case 82)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpctrain.plan.job.batch_script import _VIEW_CHECK

# A real Slurm has one file system here. Each node gets its own view of the path, and a second of waiting takes none.
SRUN = """#!/bin/sh
[ "$1 $2 $3 $4" = "--ntasks=2 --ntasks-per-node=1 sh -c" ] || exit 99
for node in n1 n2; do
    SLURMD_NODENAME=$node sh -c "$5" "$VIEWS/$node$6"
done
"""


@pytest.fixture
def views(tmp_path: Path) -> Path:
    for name, text in (("srun", SRUN), ("sleep", '#!/bin/sh\n[ -z "$LATE" ] || touch "$LATE"\n')):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    for node in ("n1", "n2"):
        (tmp_path / node / "runs" / "a b'c $d").mkdir(parents=True)
    return tmp_path


def ask(views: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    lines = ['run_dir="/runs/a b\'c \\$d"', "trap 'echo \"$doing\"' EXIT", *_VIEW_CHECK, "doing=started"]
    path = f"{views / 'bin'}:{os.environ['PATH']}"
    env = {"PATH": path, "VIEWS": str(views), "SLURM_JOB_NUM_NODES": "2", **variables}
    return subprocess.run(["bash", "-c", "\n".join(lines)], env=env, capture_output=True, text=True, check=False)


def token(views: Path, node: str) -> Path:
    return views / node / "runs" / "a b'c $d" / "token"


def test_all_nodes_see_it(views: Path) -> None:
    token(views, "n1").touch()
    token(views, "n2").touch()
    answer = ask(views)
    assert (answer.returncode, answer.stdout) == (0, "started\n"), answer.stderr


def test_the_nodes_that_do_not_see_it_are_named(views: Path) -> None:
    token(views, "n1").touch()
    answer = ask(views)
    assert answer.returncode == 11
    assert answer.stdout.rstrip() == "run.root: /runs/a b'c $d is not on a file system that these nodes see: n2"
    token(views, "n1").unlink()
    assert ask(views).stdout.rstrip().endswith("see: n1 n2")


def test_a_file_that_comes_late_is_waited_for(views: Path) -> None:
    token(views, "n1").touch()
    answer = ask(views, LATE=str(token(views, "n2")))
    assert (answer.returncode, answer.stdout) == (0, "started\n")


def test_a_site_that_refuses_the_step_is_not_stopped(views: Path) -> None:
    answer = ask(views, SLURM_JOB_NUM_NODES="3")
    assert (answer.returncode, answer.stdout) == (0, "started\n")
