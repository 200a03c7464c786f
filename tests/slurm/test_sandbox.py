"""The sandbox Slurm itself: what it offers, its refusals, and that nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.slurm.conftest import DEADLINE_S

pytestmark = pytest.mark.slurm

SANDBOX = Path(__file__).parents[2] / "slurm" / "sandbox" / "sandbox.py"
NAME = f"s{os.getpid()}"
UNUSUAL = "a b'c $d " + 100 * "e"


def start(*words: str, folder: Path) -> subprocess.Popen[str]:
    verb, *options = words
    return subprocess.Popen(
        [sys.executable, SANDBOX, verb, "--dir", folder, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def call(*words: str, folder: Path, exit_code: int = 0) -> tuple[str, str]:
    with start(*words, folder=folder) as process:
        stdout, stderr = process.communicate()
    assert process.returncode == exit_code, stderr
    return stdout, stderr


def slurm(export: str, *command: str, exit_code: int = 0) -> str:
    (assignment,) = shlex.split(export)[1:]
    env = os.environ | {"SLURM_CONF": assignment.removeprefix("SLURM_CONF=")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == exit_code, done.stderr
    return done.stdout + done.stderr


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def job_runs(export: str) -> bool:
    return slurm(export, "squeue", "-h", "-o", "%T") == "RUNNING\n"


def traces(*folders: Path) -> list[str]:
    """Processes, host names and files of sandboxes; zombies have no environment and no folder."""
    found = [str(folder) for folder in folders if folder.exists()]
    hosts = Path("/etc/hosts").read_text().splitlines()
    found += [line for line in hosts if any(line.endswith(f" {folder}") for folder in folders)]
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            text = f"{(process / 'cwd').readlink()} {os.fsdecode((process / 'environ').read_bytes())}"
            found += [process.name for folder in folders if str(folder) in text]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a sandbox of two nodes with two GPUs each, and accounting."""
    folder = tmp_path_factory.mktemp("up")
    try:
        call("up", "--name", NAME, "--nodes", "2", "--slurm-conf-line", "MaxArraySize=11", folder=folder)
        yield folder
    finally:
        call("down", folder=folder)
    assert not traces(folder)


@pytest.fixture
def export(folder: Path) -> str:
    return call("env", folder=folder)[0]


def test_nodes_and_partitions(export: str) -> None:
    lines = slurm(export, "sinfo", "-h", "-N", "-o", "%N %T %R %c %m %G").splitlines()
    nodes = [f"{NAME}-n001", f"{NAME}-n002"]
    assert sorted(lines) == sorted(f"{node} idle {part} 8 65536 gpu:2" for node in nodes for part in ("main", "urgent"))


def test_line_of_the_user_replaces_the_default(export: str) -> None:
    lines = slurm(export, "scontrol", "show", "config").splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("MaxArraySize")] == ["11"]


def test_ranks_names_and_gpus(export: str) -> None:
    script = "echo $SLURM_PROCID $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
    lines = slurm(export, "srun", "-N2", "--ntasks-per-node=2", "--gpus-per-node=2", "bash", "-c", script)
    assert set(lines.splitlines()) == {
        f"0 {NAME}-n001 0,1",
        f"1 {NAME}-n001 0,1",
        f"2 {NAME}-n002 0,1",
        f"3 {NAME}-n002 0,1",
    }


def test_jobs_run_side_by_side_and_host_names_resolve(export: str) -> None:
    script = f"sleep 1; getent hosts {NAME}-n002; date +%s"
    command = ["sbatch", "--parsable", "--wait", "-N2", "--gpus-per-node=1", "-o", "/dev/null", "--wrap", script]
    (assignment,) = shlex.split(export)[1:]
    env = os.environ | {"SLURM_CONF": assignment.removeprefix("SLURM_CONF=")}
    jobs = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    ids = [job.communicate()[0].strip() for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0]
    times = [slurm(export, "scontrol", "-o", "show", "job", number) for number in ids]
    starts = [word for text in times for word in text.split() if word.startswith("StartTime=")]
    ends = [word.replace("End", "Start") for text in times for word in text.split() if word.startswith("EndTime=")]
    assert max(starts) < min(ends)


def test_sacct_shows_a_job(export: str, tmp_path: Path) -> None:
    command = ("sbatch", "--parsable", "--wait", "-o", str(tmp_path / "out"), "--wrap", "exit 3")
    number = slurm(export, *command, exit_code=3).split()[0]
    sacct = ("sacct", "-X", "-n", "-P", "-j", number, "-o", "Account,State,ExitCode")
    wait_for(lambda: slurm(export, *sacct) == "sandbox|FAILED|3:0\n", f"sacct: {slurm(export, *sacct)}")


def test_status(folder: Path) -> None:
    lines = call("status", folder=folder)[0].splitlines()
    daemons = ["munged", "mariadbd", "slurmdbd", "slurmctld"]
    assert [line.split() for line in lines[:4]] == [[daemon, "runs"] for daemon in daemons]
    assert lines[4].split() == ["slurmd", "2", "of", "2", "run"]


def test_second_up_is_refused(folder: Path) -> None:
    stdout, stderr = call("up", "--name", NAME, folder=folder, exit_code=2)
    assert "holds a sandbox already" in stderr
    assert "sandbox.py down" in stderr
    assert not stdout


def test_node_is_killed_and_comes_back(folder: Path, export: str) -> None:
    node = f"{NAME}-n002"
    slurm(export, "sbatch", "-w", node, "--no-requeue", "-o", "/dev/null", "--wrap", "sleep 1000 & setsid sleep 1000")
    wait_for(lambda: "3 processes" in call("status", folder=folder)[0], "the job does not run")
    call("kill-node", node, folder=folder)
    lines = call("status", folder=folder)[0].splitlines()
    assert lines[4].split() == ["slurmd", "1", "of", "2", "run", node]
    assert lines[5].split() == ["jobs", "0", "processes"]
    call("start-node", node, folder=folder)
    slurm(export, "scancel", "-w", node)
    assert "runs already" in call("start-node", node, folder=folder, exit_code=2)[1]
    assert slurm(export, "srun", "-w", node, "-N1", "printenv", "SLURMD_NODENAME") == f"{node}\n"
    assert f"nodes are {NAME}-n[001-002]" in call("kill-node", "n9", folder=folder, exit_code=2)[1]


def test_controller_is_stopped_and_comes_back(folder: Path, export: str) -> None:
    call("stop-controller", folder=folder)
    assert "slurmctld    STOPPED" in call("status", folder=folder)[0]
    call("start-controller", folder=folder)
    assert "runs already" in call("start-controller", folder=folder, exit_code=2)[1]
    assert set(slurm(export, "sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"}


def test_side_by_side_without_accounting(tmp_path: Path) -> None:
    folders = [tmp_path / "plain", tmp_path / UNUSUAL]
    names = [f"{NAME}-a", f"{NAME}-b".ljust(24, "x")]
    options = ("--nodes", "1", "--gpus", "0", "--no-accounting")
    try:
        ups = [
            start("up", "--name", name, *options, folder=folder) for name, folder in zip(names, folders, strict=True)
        ]
        exports = [up.communicate()[0] for up in ups]
        assert [up.returncode for up in ups] == [0, 0]
        for name, export in zip(names, exports, strict=True):
            assert slurm(export, "srun", "printenv", "SLURMD_NODENAME") == f"{name}-n001\n"
            assert "accounting storage is disabled" in slurm(export, "sacct", exit_code=1)
            slurm(export, "sbatch", "-o", "/dev/null", "--wrap", "setsid sleep 1000 & sleep 1000")
            wait_for(partial(job_runs, export), "the job does not run")
    finally:
        for folder in folders:
            call("down", folder=folder)
    roots = [Path(shlex.split(export)[1].removeprefix("SLURM_CONF=")).parent for export in exports]
    assert len(os.fsencode(roots[1])) < 60
    assert not traces(*folders, *roots)


def test_down_cleans_after_a_killed_up_and_is_idempotent(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    state = folder / "sandbox.json"
    with start("up", "--name", NAME, "--nodes", "1", folder=folder) as up:
        try:
            wait_for(state.exists, "no state file")
            root = Path(json.loads(state.read_text())["root"])
            wait_for((root / "database").exists, "no database")
        finally:
            up.kill()
            up.communicate()
    try:
        assert traces(root)
    finally:
        call("down", folder=folder)
    assert not traces(folder, root)
    call("down", folder=folder)
    assert "no sandbox is up" in call("env", folder=folder, exit_code=1)[1]


def test_down_needs_no_files(tmp_path: Path) -> None:
    folder = tmp_path / "lost"
    options = ("--nodes", "1", "--no-accounting")
    try:
        export = call("up", "--name", NAME, *options, folder=folder)[0]
        slurm(export, "sbatch", "-o", "/dev/null", "--wrap", "sleep 1000")
        root = Path(shlex.split(export)[1].removeprefix("SLURM_CONF=")).parent
        shutil.rmtree(folder)
        assert "holds a sandbox already" in call("up", "--name", NAME, folder=folder, exit_code=2)[1]
    finally:
        call("down", folder=folder)
    assert not traces(folder, root)


def test_failed_up_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "failed"
    options = ("--no-accounting", "--slurm-conf-line", "Bogus=1")
    stderr = call("up", "--name", NAME, *options, folder=folder, exit_code=3)[1]
    assert "slurmctld ended with code 1" in stderr
    assert "unrecognized key: Bogus" in stderr
    assert not traces(folder)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(("--nodes", "0"), "--nodes=0: must be 1 to 1000; nearest: 1", id="no-node"),
        pytest.param(("--memory-mib", "0"), "--memory-mib=0: must be 1", id="no-memory"),
        pytest.param(("--name", "a_b"), "--name='a_b': must be 1 to 24 of a-z, 0-9 and '-'", id="name"),
        pytest.param(("--slurm-conf-line", "x"), "'x': must be one line KEY=VALUE", id="no-key"),
        pytest.param(("--slurm-conf-line", "NodeName=a"), "use --nodes", id="own-key"),
    ],
)
def test_options_are_refused(options: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    assert expected in call("up", *options, folder=tmp_path / "new", exit_code=2)[1]
    assert not (tmp_path / "new").exists()


def test_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    assert f"must be new or empty; try --dir={tmp_path}/sandbox" in call("up", folder=tmp_path, exit_code=2)[1]
    call("down", folder=tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_missing_programs_are_all_named(tmp_path: Path) -> None:
    script = (
        "import sys, processes, sandbox; processes.search_path = lambda: '/nonexistent'; "
        f"sys.argv = ['sandbox.py', 'up', '--dir', {str(tmp_path / 'new')!r}]; sys.exit(sandbox.main())"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=SANDBOX.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "munged, slurmctld, slurmd, sinfo, scontrol, mariadbd, mariadb-install-db, slurmdbd" in done.stderr
    assert "apt-get install mariadb-server munge slurm-client slurmctld slurmd slurmdbd" in done.stderr


def test_doctests_of_its_modules() -> None:
    subprocess.run([sys.executable, "-m", "doctest", "cluster_files.py"], cwd=SANDBOX.parent, check=True)
