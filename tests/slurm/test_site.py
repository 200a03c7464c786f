"""The site asked on a real Slurm: what is refused is what Slurm would refuse or never start, what passes is taken."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpctrain.config.compose import compose_points
from hpctrain.launch.site.question import ask_site
from hpctrain.launch.slurm.states import SlurmCluster
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.plan.site.check import plan_on_site
from tests.slurm.conftest import SANDBOX, Sandbox, environment

pytestmark = pytest.mark.slurm

SOURCE = SANDBOX.parents[2]
WORDS = ("model=tiny", "cluster=sandbox", "cluster.extra.hold=true")
Call = Callable[..., subprocess.CompletedProcess[str]]


def caller(sandbox: Sandbox, root: Path) -> Call:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hpctrain", *words]
        variables = sandbox.env | {"PYTHONPATH": str(SOURCE)}
        return subprocess.run(command, capture_output=True, text=True, env=variables, cwd=root, check=False)

    return call


@pytest.fixture
def call(sandbox: Sandbox, tmp_path: Path) -> Call:
    return caller(sandbox, tmp_path)


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sandbox, Path]]:
    """Two nodes whose accounts, QOS and limits bind, and a partition for 10 minutes and one node."""
    folder, name = tmp_path_factory.mktemp("limited"), f"l{os.getpid()}"
    lines = [
        "AccountingStorageEnforce=associations,limits,qos",
        "MaxArraySize=11",
        f"PartitionName=short Nodes={name}-n[001-002] MaxTime=10 MaxNodes=1 DefaultTime=5 MaxMemPerNode=4096",
        f"PartitionName=closed Nodes={name}-n001 State=DRAIN",
    ]
    command = [sys.executable, str(SANDBOX)]
    options = [word for line in lines for word in ("--slurm-conf-line", line)]
    try:
        up = [*command, "up", "--dir", str(folder), "--name", name, "--nodes", "2", *options]
        started = subprocess.run(up, capture_output=True, text=True, check=False)
        assert started.returncode == 0, started.stderr
        (assignment,) = shlex.split(started.stdout)[1:]
        conf = Path(assignment.removeprefix("SLURM_CONF="))
        sandbox = Sandbox(conf, environment(conf))
        user = pwd.getpwuid(os.getuid()).pw_name
        for words in (
            "add qos brief MaxWall=00:20:00 MaxTRESPerJob=node=1 Flags=DenyOnLimit",
            "add qos other",
            "add account lab GrpTRES=gres/gpu=2",
            f"add user {user} account=lab QOS=normal,brief",
        ):
            subprocess.run(["sacctmgr", "-i", *words.split()], env=sandbox.env, check=True, capture_output=True)
        yield sandbox, folder
    finally:
        subprocess.run([*command, "down", "--dir", str(folder)], check=True, capture_output=True)


def test_impossible_wishes_are_refused_together_before_anything_is_written(call: Call, tmp_path: Path) -> None:
    answer = call(*WORDS, "nodes=128", "cluster.time=2-00:00:00", "cluster.gpu_type=h100", "run.root=runs")
    assert answer.returncode == 2
    assert (
        "nodes=128: partition main has 4 nodes; Slurm would take the job and never start it; nearest: 4"
        in answer.stderr
    )
    assert "cluster.time=2-00:00:00: 2 d, and partition main allows 1 d (MaxTime); nearest: 1-00:00:00" in answer.stderr
    assert "cluster.gpu_type=h100: the site has no GPUs of this type; it names no types: leave it out" in answer.stderr
    assert not (tmp_path / "runs").exists()


def test_what_is_told_is_what_slurm_does(call: Call, sandbox: Sandbox) -> None:
    answer = call(*WORDS, "nodes=4", "hardware.cpu_cores_per_node=null", "cluster.cpus_per_task=null")
    assert answer.returncode == 0, answer.stderr
    assert "cluster.partition not stated: main, this site's default" in answer.stdout
    assert "cluster.time not stated: 1 d, partition main's MaxTime" in answer.stdout
    assert "cluster.cpus_per_task not stated: 4, a rank's share" in answer.stdout
    job_id = answer.stdout.partition("job ")[2].split()[0]
    job = subprocess.run(
        ["scontrol", "show", "job", job_id], env=sandbox.env, capture_output=True, text=True, check=True
    )
    assert "Partition=main" in job.stdout
    assert "TimeLimit=1-00:00:00" in job.stdout
    assert "CPUs/Task=4" in job.stdout
    subprocess.run(["scancel", job_id], env=sandbox.env, check=True)


def test_slurms_own_refusal_comes_with_the_sites_names_and_leaves_no_run(call: Call, tmp_path: Path) -> None:
    answer = call(*WORDS, "cluster.partition=nosuch", "--force", "run.root=runs")
    assert answer.returncode == 4
    assert "warning: --force: cluster.partition=nosuch" in answer.stderr
    assert "Invalid partition name specified" in answer.stderr
    assert "$ sbatch --parsable" in answer.stderr
    assert "partitions (cluster.partition=NAME): known: main, urgent" in answer.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [".code"]


def test_doctor_tells_what_is_here(call: Call, sandbox: Sandbox) -> None:
    answer = call("doctor", "--json")
    assert answer.returncode == 0, answer.stdout
    told = json.loads(answer.stdout)
    assert set(told["site"]["partitions"]) >= {"main", "urgent"}
    assert told["site"]["has_accounting"]
    assert {"torch"} <= {word for row in told["machine"] for word in row["told"].split()}
    assert next(row for row in told["machine"] if row["name"] == "Slurm answers")["state"] == "ok"


LIMITED = {
    "time-of-a-partition": (
        ["cluster.partition=short", "cluster.time=11"],
        "partition short allows 10 min (MaxTime); nearest: 0:10:00",
    ),
    "nodes-of-a-partition": (
        ["cluster.partition=short", "nodes=2"],
        "nodes=2: partition short allows at most 1 node a job",
    ),
    "memory-of-a-partition": (
        ["cluster.partition=short", "cluster.memory_per_node=8G"],
        "cluster.memory_per_node=8G: no node of partition short has 8.00 GiB for jobs (most: 4.00 GiB); nearest: 4096M",
    ),
    "drained-partition": (["cluster.partition=closed"], "partition closed is DRAIN and takes no jobs"),
    "gpus-of-a-node": (
        ["cluster.account=lab", "hardware.gpus_per_node=4"],
        "hardware.gpus_per_node=4: no node of partition main has 4 GPUs (most: 2); nearest: 2",
    ),
    "cpus": (
        ["cluster.account=lab", "cluster.memory_per_node=100G", "cluster.cpus_per_task=5"],
        "cluster.cpus_per_task=5: no node of partition main has 10 CPUs for 2 ranks of 5 (most: 8); nearest: 4",
    ),
    "account": (["cluster.account=labs"], "may not use this account on cluster"),
    "qos": (["cluster.account=lab", "cluster.qos=brif"], "cluster.qos=brif: the site has no such QOS; nearest: brief"),
    "qos-of-others": (["cluster.account=lab", "cluster.qos=other"], "account lab may not use it; known: brief, normal"),
    "time-of-a-qos": (
        ["cluster.account=lab", "cluster.qos=brief", "cluster.time=30"],
        "cluster.time=0:30:00: QOS brief allows at most 20 min (MaxWall); nearest: 0:20:00",
    ),
    "nodes-of-a-qos": (
        ["cluster.account=lab", "cluster.qos=brief", "nodes=2", "hardware.gpus_per_node=1"],
        "nodes=2: the job asks for 2 nodes; QOS brief: MaxTRES, one job, is 1 node; nearest: nodes=1",
    ),
    "gpus-of-an-account": (
        ["cluster.account=lab", "nodes=2"],
        "the job asks for 4 GPUs; account lab: GrpTRES, all its jobs together, is 2 GPUs; nearest: nodes=1",
    ),
}


def test_limits_bind(limited: tuple[Sandbox, Path]) -> None:
    site = ask_site(SlurmCluster(str(limited[0].slurm_conf)))
    for name, (words, expected) in LIMITED.items():
        (point,) = compose_points([*WORDS, *words], multirun=False)
        plan = plan_on_site(build_run_plan(point.config), point.config, site)
        assert expected in "\n".join(map(str, plan.problems)), name


def test_slurm_agrees_with_the_limits(limited: tuple[Sandbox, Path]) -> None:
    """Without the hold Slurm looks at its limits: it refuses, or lets the job wait for a limit that stays."""
    sandbox, folder = limited
    call = caller(sandbox, folder)
    words = ("model=tiny", "cluster=sandbox", "--force", "cluster.account=lab")
    for refused, reason in (
        (["cluster.qos=brief", "cluster.time=30"], "Job violates accounting/QOS policy"),
        (["cluster.qos=other"], "Invalid qos specification"),
        (["cluster.partition=closed"], "Required partition not available"),
    ):
        answer = call(*words, *refused)
        assert answer.returncode == 4
        assert reason in answer.stderr
    answer = call(*words, "nodes=2")
    assert answer.returncode == 0, answer.stderr
    job_id = answer.stdout.partition("job ")[2].split()[0]
    queue = ["squeue", "-h", "-j", job_id, "-o", "%T %r"]
    told = subprocess.run(queue, env=sandbox.env, capture_output=True, text=True, check=True).stdout
    assert told.split() in (["PENDING", "AssocGrpGRES"], ["PENDING", "None"])
    subprocess.run(["scancel", job_id], env=sandbox.env, check=True)


def test_what_is_allowed_passes_and_the_site_is_shown(limited: tuple[Sandbox, Path]) -> None:
    sandbox, folder = limited
    call = caller(sandbox, folder)
    answer = call("plan", *WORDS, "cluster.account=lab", "cluster.qos=brief", "cluster.time=20", "--site")
    assert answer.returncode == 0, answer.stdout
    assert "associations, limits, qos bind" in answer.stdout
    assert "arrays of up to 11 tasks" in answer.stdout
    assert "QOS brief; MaxWall 20 min, MaxTRES node=1" in answer.stdout
    short = call(
        "plan", *WORDS, "cluster.partition=short", "hardware.gpus_per_node=1", "cluster.memory_per_node=1G", "--site"
    )
    assert short.returncode == 0, short.stdout
    assert "cluster.time not stated: 5 min, partition short's DefaultTime" in short.stdout
