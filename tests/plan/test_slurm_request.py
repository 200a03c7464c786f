"""The batch script, whole, for each kind of request; and the text forms it rests on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpctrain.plan.slurm_request import sbatch_script, slurm_safe_name
from hpctrain.units import parse_slurm_time
from tests.plan.test_run_plan import plan_of

GOLDEN = Path(__file__).parent.parent / "golden"

SCRIPTS = {
    "plain": ("model=tiny", "cluster=slurm", "hardware=cpu", "nodes=1"),
    "gpus_per_node": (
        "model=530b",
        "nodes=128",
        "cluster.time=2-12",
        "cluster.partition=gpu",
        "cluster.memory_per_node=0",
    ),
    "gres_typed": (
        "model=13b",
        "nodes=2",
        "cluster.gpu_request=gres",
        "cluster.gpu_type=a100",
        "cluster.exclusive=true",
    ),
    "everything": (
        "model=13b",
        "nodes=4",
        "run.name='my run (1) é|x'",
        "cluster.account=acc",
        "cluster.qos=high",
        "cluster.constraint='a&b'",
        "cluster.comment='it is \"ours\"'",
        "cluster.setup=['module load cuda/12.4']",
        "cluster.srun_args=['--mpi=none']",
        "cluster.extra.licenses='matlab:1'",
        "cluster.extra.spread_job=true",
        "env.NCCL_DEBUG=INFO",
        "env.TEXT='a b$c'",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_golden(name: str) -> None:
    script = sbatch_script(plan_of(*SCRIPTS[name]).slurm, "/runs/a b'c $d/run-1", "/opt/env/bin/python")
    golden = GOLDEN / f"{name}.sbatch"
    if os.environ.get("HPCTRAIN_UPDATE_GOLDEN"):
        golden.write_text(script, encoding="utf-8")
    assert script == golden.read_text(encoding="utf-8")


def test_the_least_request_holds_nothing_that_a_site_could_refuse() -> None:
    script = sbatch_script(plan_of("model=tiny", "nodes=1").slurm, "/runs/x", "/bin/python")
    for option in ("wckey", "account", "qos", "mail", "gpu-bind", "partition", "--time"):
        assert option not in script


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        (90, 5400),
        ("4:00", 240),
        ("0:240:0", 14400),
        ("4:00:00", 14400),
        ("2-12", 216000),
        ("3-0:00", 259200),
        ("1-24:00:00", 172800),
        ("INFINITE", None),
        ("UNLIMITED", None),
    ],
)
def test_time_forms(text: str | int, seconds: int | None) -> None:
    assert parse_slurm_time(text) == seconds


@pytest.mark.parametrize("text", ["", "-5", "0", "0:00", "1:2:3:4", "1-", "x", "1-2:3:4:5", "1.5"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"none of Slurm's time forms|zero"):
        parse_slurm_time(text)


@pytest.mark.parametrize(
    ("name", "safe"), [("a b", "a-b"), ("((", "hpctrain"), ("tiny-2n", "tiny-2n"), ("x/y:z", "x-y-z")]
)
def test_safe_names(name: str, safe: str) -> None:
    assert slurm_safe_name(name) == safe
