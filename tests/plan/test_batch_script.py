"""The batch script, whole, for each kind of cluster and job; and that bash does with it what it should."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from hpctrain.plan.job import batch_script, container
from hpctrain.plan.job.batch_script import ScriptTarget, TaskArray, sbatch_script
from hpctrain.plan.job.own_variables import OWN_VARIABLES
from hpctrain.secret_text import REDACTED
from tests.plan.test_run_plan import plan_of

GOLDEN = Path(__file__).parent.parent / "golden"
RUN = "/runs/a b'c $d/run-1"
SNAPSHOT = "/runs/a b'c $d/.code/0a1b"
PYTHON = "/opt/env/bin/python"
ONE = ScriptTarget(RUN, PYTHON, SNAPSHOT, key="hpctrain-0123456789abcdef")

SCRIPTS = {
    "plain": (("model=tiny", "cluster=slurm", "hardware=cpu", "nodes=1"), ScriptTarget(RUN, PYTHON)),
    "gpus_per_node": (
        ("model=530b", "nodes=128", "cluster.time=2-12", "cluster.partition=gpu", "cluster.memory_per_node=0"),
        ONE,
    ),
    "gres_typed": (
        (
            "model=13b",
            "nodes=2",
            "cluster.gpu_request=gres",
            "cluster.gpu_type=a100",
            "cluster.exclusive=true",
            "cluster.extra.gres='nvme:2'",
        ),
        ONE,
    ),
    "nothing_optional": (
        ("model=tiny", "hardware=cpu", "nodes=1", "cluster.requeue=null", "cluster.signal=null"),
        ScriptTarget(RUN, PYTHON, SNAPSHOT),
    ),
    "everything": (
        (
            "model=13b",
            "nodes=4",
            "run.name='my run (1) é|x'",
            "cluster.account=acc",
            "cluster.qos=high",
            "cluster.constraint='a&b'",
            "cluster.comment='it is \"ours\"'",
            "cluster.setup=['module load cuda/12.4','export A=1 # b']",
            "cluster.srun_args=['--mpi=none']",
            "cluster.extra.licenses='matlab:1'",
            "cluster.extra.spread_job=true",
            "cluster.extra.hold=false",
            "cluster.extra.tmp=null",
            "env.NCCL_DEBUG=INFO",
            "env.TEXT='a b$c'",
            "env.PYTHONPATH=/mine",
            "env.WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567",
            "env_from_shell=[HF_TOKEN]",
        ),
        ONE,
    ),
    "array": (
        ("model=175b", "nodes=16", "cluster.time=4:00:00"),
        ScriptTarget(TaskArray("/runs/a b'c $d/sweep-1", 2, "0-15%4"), PYTHON, SNAPSHOT, "hpctrain-0123456789abcdef"),
    ),
    "chain_requeue": (("model=175b", "nodes=16", "cluster.time=4:00:00", "launch.chain=requeue"), ONE),
    "chain_dependency": (
        ("model=175b", "nodes=16", "cluster.time=4:00:00", "launch.chain=dependency"),
        ScriptTarget(RUN, PYTHON, SNAPSHOT, "hpctrain-0123456789abcdef", after="4711", first_attempt=3),
    ),
    "pyxis": (
        (
            "model=13b",
            "nodes=2",
            "cluster.container.runtime=pyxis",
            "cluster.container.image='nvcr.io#nvidia/pytorch:25.01-py3'",
            "cluster.container.mounts=['/data:/data:ro','/scratch']",
            "cluster.container.python=/usr/bin/python3",
            "cluster.container.args=['--container-writable']",
            "env.NCCL_DEBUG=INFO",
            "env_from_shell=[HF_TOKEN]",
        ),
        ONE,
    ),
    "apptainer": (
        (
            "model=13b",
            "nodes=2",
            "cluster.container.runtime=apptainer",
            "cluster.container.image='/images/py torch.sif'",
            "cluster.container.mounts=['/data:/data:ro']",
            "cluster.container.python=/usr/bin/python3",
            "cluster.setup=['module load apptainer']",
            "env.NCCL_DEBUG=INFO",
        ),
        ONE,
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_golden(name: str) -> None:
    words, target = SCRIPTS[name]
    script = sbatch_script(plan_of(*words).slurm, target)
    golden = GOLDEN / f"{name}.sbatch"
    if os.environ.get("HPCTRAIN_UPDATE_GOLDEN"):
        golden.write_text(script, encoding="utf-8")
    assert script == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_bash(name: str) -> None:
    subprocess.run(["bash", "-n", GOLDEN / f"{name}.sbatch"], check=True)


def test_the_least_request_holds_nothing_that_a_site_could_refuse() -> None:
    script = sbatch_script(plan_of("model=tiny", "nodes=1").slurm, ScriptTarget("/runs/x", "/bin/python"))
    for option in ("wckey", "account", "qos", "mail", "gpu-bind", "partition", "--time", "comment", "reservation"):
        assert option not in script


def test_no_value_of_a_secret_is_in_the_script() -> None:
    plan = plan_of("model=tiny", "nodes=1", "env.HF_TOKEN=hunter22", "env.URL='https://me:hunter22@host/x'")
    script = sbatch_script(plan.slurm, ScriptTarget("/runs/x", "/bin/python"))
    assert "hunter22" not in script + plan.to_json()
    assert REDACTED not in script
    assert "for name in HF_TOKEN URL; do" in script


FAKE = """#!/bin/bash
echo "$(basename "$0") $*" >> {log}
case "$*" in
    *open_attempt*) {opened} ;;
    *close_attempt*) echo "ended by ${{HPCTRAIN_BATCH_SIGNAL:-itself}}" >> {log} ;;
    *rank_entry*) {rank} ;;
esac
"""


class Bash:
    """Runs a script with an srun that starts one rank, and an interpreter that only says what it was called with."""

    def __init__(self, folder: Path, opened: str = "echo 1", rank: str = "exit 0") -> None:
        self.log, self.run = folder / "calls", folder / "a b'c $d"
        self.python = folder / "python"
        self.python.write_text(FAKE.format(log=self.log, opened=opened, rank=rank), encoding="utf-8")
        srun = folder / "srun"
        srun.write_text('#!/bin/bash\nwhile [[ "$1" == -* ]]; do shift; done\n"$@"\n', encoding="utf-8")
        for program in (self.python, srun):
            program.chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        self.env = {"PATH": path, "SLURM_JOB_ID": "84", "USER": "me", "TMPDIR": str(folder / "tmp")}

    def start(
        self, *words: str, runs: str | TaskArray | None = None, setup: tuple[str, ...] = (), **env: str
    ) -> subprocess.Popen[str]:
        request = plan_of("model=tiny", "cluster=slurm", "hardware=cpu", "nodes=1", *words).slurm
        target = ScriptTarget(runs or str(self.run), str(self.python), "/snapshot")
        script = self.log.with_name("script.sh")
        script.write_text(sbatch_script(dataclasses.replace(request, setup=setup), target), encoding="utf-8")
        command = ["bash", str(script)]
        return subprocess.Popen(command, env=self.env | env, stderr=subprocess.PIPE, text=True)

    def call(
        self, *words: str, runs: str | TaskArray | None = None, setup: tuple[str, ...] = (), **env: str
    ) -> tuple[int, list[str]]:
        with self.start(*words, runs=runs, setup=setup, **env) as process:
            process.communicate()
        return process.returncode, self.log.read_text(encoding="utf-8").splitlines()


def test_a_run_is_opened_ranked_and_closed(tmp_path: Path) -> None:
    bash = Bash(tmp_path, rank='echo "attempt $HPCTRAIN_ATTEMPT $PYTHONPATH $PYTHONSAFEPATH" >> ' + f"{tmp_path}/calls")
    code, calls = bash.call("env.PYTHONPATH=/mine")
    assert code == 0
    assert calls == [
        f"python -m hpctrain.record.open_attempt {bash.run}",
        f"python -u -m hpctrain.launch.rank_entry {bash.run}",
        "attempt 1 /snapshot:/mine 1",
        f"python -m hpctrain.record.close_attempt {bash.run} 0 ",
        "ended by itself",
    ]


def test_the_first_failing_code_is_the_scripts(tmp_path: Path) -> None:
    code, calls = Bash(tmp_path, rank="exit 13").call()
    assert code == 13
    assert calls[2].endswith("13 ")


@pytest.mark.parametrize(("opened", "code"), [("exit 0", 0), ("exit 21", 21)], ids=["nothing-to-do", "not-allowed"])
def test_no_rank_starts_where_no_attempt_is_opened(tmp_path: Path, opened: str, code: int) -> None:
    found, calls = Bash(tmp_path, opened=opened).call()
    assert found == code
    assert len(calls) == 1


@pytest.mark.parametrize(("line", "code"), [("false", 1), ("exit 3", 3), ("nosuchprogram", 127), ("x=$(exit 4)", 4)])
def test_a_failing_setup_line_ends_the_job_before_the_ranks(tmp_path: Path, line: str, code: int) -> None:
    bash = Bash(tmp_path)
    found, calls = bash.call(setup=("true", line))
    assert found == code
    assert calls[1:] == [
        f"python -m hpctrain.record.close_attempt {bash.run} {code} cluster.setup: {line}",
        "ended by itself",
    ]


def test_setup_lines_may_set_shell_options_and_pythonpath(tmp_path: Path) -> None:
    bash = Bash(tmp_path, rank=f'echo "$PYTHONPATH" >> {tmp_path}/calls; exit 5')
    code, calls = bash.call(setup=("set -eu", "export PYTHONPATH=/module"))
    assert code == 5
    assert calls[2] == "/snapshot:/module"
    assert calls[3].endswith("5 ")


def test_a_secret_that_is_not_in_the_environment_ends_the_job(tmp_path: Path) -> None:
    code, calls = Bash(tmp_path).call("env.HF_TOKEN=abcdef")
    assert code == 1
    assert "env.HF_TOKEN: secret, so no file has it; export it before sbatch" in calls[1]
    assert Bash(tmp_path).call("env.HF_TOKEN=abcdef", HF_TOKEN="abcdef")[0] == 0


def test_values_arrive_as_they_were_typed(tmp_path: Path) -> None:
    values = [
        "a#b",
        "a%b",
        "a@b",
        "é",
        "a(b)",
        "a[1]",
        "a\\",
        "$HOME",
        "a:b",
        "a=b",
        "a'b\"c",
        "`x`",
        "a\nb",
        "!",
        "*",
        " ",
    ]
    seen = tmp_path / "seen"
    bash = Bash(tmp_path, rank=f"env -0 > {seen}")
    request = dataclasses.replace(
        plan_of("model=tiny", "nodes=1").slurm, environment={f"V{n}": value for n, value in enumerate(values)}
    )
    script = tmp_path / "script.sh"
    script.write_text(sbatch_script(request, ScriptTarget(str(bash.run), str(bash.python))), encoding="utf-8")
    subprocess.run(["bash", script], env=bash.env, check=True)
    found = dict(line.split("=", 1) for line in seen.read_text(encoding="utf-8").split("\0") if line)
    assert [found[f"V{n}"] for n in range(len(values))] == values


def test_a_task_of_an_array_finds_its_run_folder(tmp_path: Path) -> None:
    sweep = f"{tmp_path}/a b'c $d"
    array = TaskArray(sweep, 3, "0-11")
    _, calls = Bash(tmp_path).call(runs=array, SLURM_ARRAY_TASK_ID="8", SLURM_ARRAY_JOB_ID="83")
    assert calls[0].endswith(f" {sweep}/run-3-0008")
    assert array.run_dir(8) == f"{sweep}/run-3-0008"


def test_the_cache_of_killed_ranks_is_removed(tmp_path: Path) -> None:
    bash = Bash(tmp_path, rank="exit 1")
    ours, others = (tmp_path / "tmp" / f"hpctrain-me-84-{attempt}" for attempt in (1, 2))
    for folder in (ours, others):
        (folder / "triton").mkdir(parents=True)
    bash.call()
    assert not ours.exists()
    assert others.exists()


def test_sigterm_is_awaited_and_told(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    rank = f"trap 'kill $!; exit 16' TERM; sleep 30 & echo $$ > {ready}.tmp; mv {ready}.tmp {ready}; wait"
    with Bash(tmp_path, rank=rank).start() as process:
        while not ready.exists():
            assert process.poll() is None
        process.terminate()
        # Slurm sends it to the whole job.
        os.kill(int(ready.read_text(encoding="utf-8")), signal.SIGTERM)
        process.communicate()
    calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert calls[-1] == "ended by TERM"
    assert process.returncode == 16


def test_the_warning_signal_to_the_script_alone_does_not_end_it(tmp_path: Path) -> None:
    ready, go = tmp_path / "ready", tmp_path / "go"
    rank = f"touch {ready}; while [ ! -e {go} ]; do sleep 0.05; done"
    with Bash(tmp_path, rank=rank).start() as process:
        while not ready.exists():
            assert process.poll() is None
        process.send_signal(signal.SIGUSR1)
        go.touch()
        process.communicate()
    assert process.returncode == 0


def test_variables_of_the_script_are_those_that_the_others_know() -> None:
    sources = (Path(module.__file__ or "").read_text(encoding="utf-8") for module in (batch_script, container))
    named = {name for source in sources for name in re.findall(r"\bHPCTRAIN_\w+", source)}
    assert named
    assert named <= set(OWN_VARIABLES)
