"""The environment of ranks on a real Slurm: leaks, outer jobs, secrets, scripts submitted by hand, containers, time limits."""

from __future__ import annotations

import json
import secrets
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import pytest

from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts, read_submission
from hpctrain.units import parse_slurm_time
from tests.slurm.conftest import DEADLINE_S

pytestmark = pytest.mark.slurm

SOURCE = Path(__file__).parents[2]
LIGHT = ("cluster=sandbox", "model=tiny", "training=launch_check", "nodes=1")
SECRET, OTHER_SECRET = secrets.token_hex(12), secrets.token_hex(12)
"""Made here: a difference of this file from its commit is kept in code.json."""
ENDED = "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED TIMEOUT".split()
PROBE = """
import json, os, sys
if "hpctrain.launch.rank_entry" in sys.orig_argv:
    name = f"{os.environ['SLURM_JOB_ID']}-{os.environ['SLURM_PROCID']}.json"
    with open(os.path.join(os.path.dirname(__file__), name), "w") as stream:
        json.dump(dict(os.environ), stream)
"""
FAKE_APPTAINER = """#!/bin/bash
echo "$*" >> {log}
shift
while [[ "$1" == -* ]]; do shift; done
image=$1; shift
export PYTHONPATH=/of/the/image
for name in $(compgen -v APPTAINERENV_); do export "${{name#APPTAINERENV_}}=${{!name}}"; done
exec "$@"
"""
FAKE_SRUN = """#!/bin/bash
echo "$*" >> {log}
words=()
for word in "$@"; do [[ "$word" == *--container-* || "$word" == --no-container-* ]] || words+=("$word"); done
exec {srun} "${{words[@]}}"
"""


class Sandbox(Protocol):
    """What the fixture of conftest.py gives."""

    env: dict[str, str]


class Shell:
    """A shell on the sandbox's login node, with a probe that keeps the environment of every rank."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "a b'c $d"
        self.probe = folder / "probe"
        self.probe.mkdir()
        (self.probe / "sitecustomize.py").write_text(PROBE, encoding="utf-8")
        self.env = {**sandbox.env, "PYTHONPATH": str(SOURCE)}

    def run(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=self.env | env,
            cwd=self.folder,
            check=False,
            timeout=DEADLINE_S,
        )

    def slurm(self, *command: str, **env: str) -> str:
        answer = self.run(*command, **env)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def words(self, *words: str) -> list[str]:
        probe = f"env.PYTHONPATH={self.probe}"
        return [sys.executable, "-m", "hpctrain", *LIGHT, probe, f'run.root="{self.root}"', *words]

    def submit(self, *words: str, env: dict[str, str] | None = None, before: tuple[str, ...] = ()) -> RunPaths:
        seen = set(self.root.glob("[!.]*"))
        answer = self.run(*before, *self.words(*words), **(env or {}))
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert SECRET not in answer.stdout + answer.stderr
        (made,) = set(self.root.glob("[!.]*")) - seen
        return RunPaths(made)

    def ended(self, job_id: str) -> str:
        """The state that the job ends in."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            words = self.slurm("scontrol", "-o", "show", "job", job_id).split()
            state = next(word.removeprefix("JobState=") for word in words if word.startswith("JobState="))
            if state in ENDED:
                return state
            time.sleep(0.2)
        raise AssertionError(f"job {job_id} is {state}")

    def completed(self, run: RunPaths, num_ranks: int = 2) -> list[dict[str, str]]:
        """The environment of each rank of the run, which must end well."""
        job_id = read_submission(run).job_id
        state = self.ended(job_id)
        assert state == "COMPLETED", (run.logs / "batch.log").read_text(encoding="utf-8")
        assert [attempt.state for attempt in read_attempts(run)] == ["completed"]
        return self.ranks(job_id, num_ranks)

    def ranks(self, job_id: str, num_ranks: int = 2) -> list[dict[str, str]]:
        files = sorted(self.probe.glob(f"{job_id}-*.json"))
        found: list[dict[str, str]] = [json.loads(path.read_text(encoding="utf-8")) for path in files]
        assert len(found) == num_ranks
        return found

    def program(self, name: str, text: str, **values: Any) -> str:
        """A PATH whose first program of that name is this one."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text.format(log=shlex.quote(str(self.folder / "calls")), **values), encoding="utf-8")
        (folder / name).chmod(0o755)
        return f"{folder}:{self.env['PATH']}"


@pytest.fixture
def shell(sandbox: Sandbox, tmp_path: Path) -> Shell:
    return Shell(sandbox, tmp_path)


def files_with(folder: Path, text: str) -> list[str]:
    """Files that hold the text anywhere."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]


def test_ranks_have_what_is_stated_and_nothing_that_leaks(shell: Shell) -> None:
    bogus = shell.folder / "bogus"
    (bogus / "hpctrain").mkdir(parents=True)
    (bogus / "hpctrain" / "__init__.py").write_text("raise RuntimeError('the package of a bogus PYTHONPATH')")
    leaks = {
        "LEAK": "1",
        "SBATCH_EXPORT": "NONE",
        "SRUN_CPUS_PER_TASK": "2",
        "SLURM_MEM_PER_CPU": "100",
        "RANK": "5",
        "CUDA_VISIBLE_DEVICES": "7",
        "VIRTUAL_ENV": "/bogus",
        "PYTHONSTARTUP": "/bogus",
        "PYTHONPATH": f"{SOURCE}:{bogus}",
    }
    words = ("cluster.memory_per_node=300M", "cluster.cpus_per_task=2", "env.OURS='a b$c'")
    quiet = shell.submit(*words, env=leaks)
    inherits = shell.submit(*words, "cluster.inherit_env=true", env=leaks)
    for rank in shell.completed(quiet):
        assert rank["OURS"] == "a b$c"
        assert not {"LEAK", "RANK", "VIRTUAL_ENV", "PYTHONSTARTUP", "SBATCH_EXPORT"} & rank.keys()
        assert not [name for name in rank if name.startswith("SLURM_MEM_PER_")]
        assert rank["SLURM_CPUS_PER_TASK"] == "2"
        snapshot, *others = rank["PYTHONPATH"].split(":")
        assert snapshot.startswith(f"{shell.root}/.code/")
        assert others == [str(shell.probe)]
    for rank in shell.completed(inherits):
        assert rank["LEAK"] == "1"
        assert str(bogus) in rank["PYTHONPATH"].split(":")
    assert "LEAK" not in quiet.environment.read_text(encoding="utf-8")
    assert json.loads(inherits.environment.read_text(encoding="utf-8"))["variables"]["LEAK"] == "1"


def test_secrets_reach_the_ranks_and_no_file(shell: Shell) -> None:
    words = (f"env.HF_TOKEN={SECRET}", f"env.DATA_URL='https://me:{SECRET}@host/x'", "env_from_shell=[TOPOLOGY]")
    run = shell.submit(*words, env={"TOPOLOGY": OTHER_SECRET})
    for rank in shell.completed(run):
        assert rank["HF_TOKEN"] == SECRET
        assert rank["DATA_URL"] == f"https://me:{SECRET}@host/x"
        assert rank["TOPOLOGY"] == OTHER_SECRET
    for secret in (SECRET, OTHER_SECRET):
        assert not files_with(shell.root, secret)
    job = read_submission(run).job_id
    assert SECRET not in shell.slurm("scontrol", "show", "job", job) + shell.slurm(
        "scontrol", "write", "batch_script", job, "-"
    )
    for verb in (("plan",), ("plan", "--json"), ("--cfg", "job")):
        command = shell.words(*words)
        answer = shell.run(*command[:3], *verb, *command[3:], TOPOLOGY=OTHER_SECRET)
        assert answer.returncode == 0
        assert SECRET not in answer.stdout + answer.stderr
    answer = shell.run(*shell.words(f"env.HF_TOKEN={SECRET}=="))
    assert answer.returncode == 2
    assert SECRET not in answer.stderr


def test_a_script_submitted_by_hand_has_its_code_and_asks_for_its_secrets(shell: Shell) -> None:
    run = shell.submit(f"env.HF_TOKEN={SECRET}", "cluster.extra.hold=true", "cluster.memory_per_node=300M")
    shell.slurm("scancel", read_submission(run).job_id)
    by_hand = ("sbatch", "--parsable", str(run.submission_script))
    bare = {"PYTHONPATH": "/bogus", "SLURM_MEM_PER_CPU": "100", "SLURM_MEM_PER_NODE": "100", "SRUN_CPUS_PER_TASK": "2"}
    jobs = [shell.slurm(*by_hand, **bare).strip()]
    shell.slurm("scontrol", "release", jobs[0])
    assert shell.ended(jobs[0]) == "FAILED"
    (attempt,) = read_attempts(run)
    assert "env.HF_TOKEN: secret, so no file has it; export it before sbatch" in attempt.message
    jobs.append(shell.slurm(*by_hand, **bare, HF_TOKEN=SECRET).strip())
    shell.slurm("scontrol", "release", jobs[1])
    assert shell.ended(jobs[1]) == "COMPLETED", (run.logs / "batch.log").read_text(encoding="utf-8")
    assert all(rank["HF_TOKEN"] == SECRET for rank in shell.ranks(jobs[1]))
    # A run that is complete is not started again.
    jobs.append(shell.slurm(*by_hand, **bare, HF_TOKEN=SECRET).strip())
    shell.slurm("scontrol", "release", jobs[2])
    assert shell.ended(jobs[2]) == "COMPLETED"
    assert [attempt.state for attempt in read_attempts(run)] == ["failed", "completed"]


def test_submission_from_inside_a_job(shell: Shell) -> None:
    outer = ("srun", "-N2", "-n1", "-c1", "--mem-per-cpu=150", "--gpus-per-node=1")
    ranks = shell.completed(shell.submit("cluster.cpus_per_task=2", before=outer))
    assert {rank["SLURM_JOB_NUM_NODES"] for rank in ranks} == {"1"}
    assert {rank["SLURM_CPUS_PER_TASK"] for rank in ranks} == {"2"}
    assert {rank["CUDA_VISIBLE_DEVICES"] for rank in ranks} == {"0,1"}
    assert {rank["SLURM_CONF"] for rank in ranks} == {shell.env["SLURM_CONF"]}


def test_jobs_that_share_a_node_have_gpus_of_their_own(shell: Shell) -> None:
    node = shell.slurm("sinfo", "-h", "-N", "-o", "%N").split()[0]
    go = shell.folder / "go"
    waits = f"cluster.setup=['until [ -e {go} ]; do sleep 0.1; done']"
    runs = [shell.submit(f"cluster.nodelist={node}", "hardware.gpus_per_node=1", waits) for _ in range(2)]
    jobs = ",".join(read_submission(run).job_id for run in runs)
    deadline = time.monotonic() + DEADLINE_S
    while shell.slurm("squeue", "-h", "-j", jobs, "-o", "%T").split() != ["RUNNING", "RUNNING"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    go.touch()
    devices = [rank["CUDA_VISIBLE_DEVICES"] for run in runs for rank in shell.completed(run, num_ranks=1)]
    assert sorted(devices) == ["0", "1"]


def test_ranks_in_an_apptainer_image_have_our_variables_and_mounts(shell: Shell) -> None:
    image = shell.folder / "py torch.sif"
    image.touch()
    run = shell.submit(
        "cluster.container.runtime=apptainer",
        "cluster.container.image='py torch.sif'",
        f"cluster.container.python={sys.executable}",
        "cluster.container.mounts=['/data:/data:ro']",
        f"env.HF_TOKEN={SECRET}",
        env={"PATH": shell.program("apptainer", FAKE_APPTAINER)},
    )
    for rank in shell.completed(run):
        assert rank["PYTHONPATH"].startswith(f"{shell.root}/.code/")
        assert rank["HF_TOKEN"] == SECRET
        assert rank["TMPDIR"] == "/tmp"
    snapshot = next((shell.root / ".code").glob("[!.]*"))
    calls = (shell.folder / "calls").read_text(encoding="utf-8").splitlines()
    expected = (
        f"exec --no-home --pwd={run.root} --bind={run.root}:{run.root} --bind={snapshot}:{snapshot}:ro --bind=/data:/data:ro"
        f" {image} {sys.executable} -u -m hpctrain.launch.rank_entry {run.root}"
    )
    assert calls == [expected, expected]


def test_ranks_in_a_pyxis_image_are_started_by_srun(shell: Shell) -> None:
    srun = subprocess.run(["which", "srun"], capture_output=True, text=True, check=True).stdout.strip()
    run = shell.submit(
        "cluster.container.runtime=pyxis",
        "cluster.container.image='nvcr.io#nvidia/pytorch:25.01-py3'",
        f"cluster.container.python={sys.executable}",
        f"env.HF_TOKEN={SECRET}",
        env={"PATH": shell.program("srun", FAKE_SRUN, srun=srun)},
    )
    assert len(shell.completed(run)) == 2
    (call,) = (shell.folder / "calls").read_text(encoding="utf-8").splitlines()
    snapshot = next((shell.root / ".code").glob("[!.]*"))
    assert (
        f"--container-image=nvcr.io#nvidia/pytorch:25.01-py3 --container-mounts={run.root}:{run.root},{snapshot}:{snapshot}:ro"
        f" --container-workdir={run.root} --no-container-mount-home --container-env=PYTHONUTF8,PYTHONUNBUFFERED,"
        f"PYTHONSAFEPATH,PYTHONPATH,TMPDIR,HPCTRAIN_ATTEMPT,HF_TOKEN {sys.executable} -u -m"
    ) in call


def test_time_forms_are_slurms(shell: Shell) -> None:
    for text in "90 4:00 0:240:0 4:00:00 2-12 3-0:00 1-24:00:00 2-0:30:15 INFINITE UNLIMITED".split():
        command = ("sbatch", "--parsable", "--hold", f"--time={text}", "--output=/dev/null", "--wrap=true")
        job_id = shell.slurm(*command).strip()
        try:
            shown = shell.slurm("scontrol", "-o", "show", "job", job_id).split("TimeLimit=")[1].split()[0]
        finally:
            shell.slurm("scancel", job_id)
        ours = parse_slurm_time(text)
        # Slurm keeps whole minutes.
        assert parse_slurm_time(shown) == (None if ours is None else -(-ours // 60) * 60), text
