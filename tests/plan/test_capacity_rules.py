"""The memory that a plan is held against: of the hardware file, of the device table, or what the job asks Slurm for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpctrain import cli
from hpctrain.config.compose import compose_points
from hpctrain.errors import FORCED_KINDS, ConfigError
from hpctrain.launch.point_plans import plan_point
from hpctrain.plan.changes.cheapest import cheapest_changes
from hpctrain.plan.run_plan import RunPlan
from hpctrain.units import GIB
from tests.plan.test_rate_rules import unknown_gpu
from tests.plan.test_run_plan import plan_of

ON_A100 = ("hardware=ndm_a100_v4", "training.activation_checkpointing=full", "training.micro_batch_size=1")
OFFLOADED = ("model=13b", "nodes=1", "parallelism=zero3_offload", *ON_A100)
NO_HOST = "hardware.host_memory_gib=null"


def chosen(*words: str) -> RunPlan:
    """Of what is open the planner's choice."""
    (point,) = compose_points(words, multirun=False)
    return plan_point(point)[1]


@pytest.mark.parametrize(("gpu", "capacity_gib"), [("A100-SXM4-80GB", 79.2), ("A100-SXM4-40GB", 39.6)])
def test_a_gpu_without_a_stated_memory_has_that_of_the_table(gpu: str, capacity_gib: float) -> None:
    """0.99 of 80, and of 40 GiB; 175B in 16 bytes a parameter are 2,600 GiB on every GPU of data parallelism."""
    words = (
        "hardware=ndm_a100_v4",
        f"hardware.gpu={gpu}",
        "hardware.gpu_memory_gib=null",
        "hardware.gpu_memory_gb_per_s=1555",
    )
    plan = plan_of("model=175b", "nodes=2", "parallelism=ddp", *words)
    assert plan.memory.gpu_capacity_bytes == int(capacity_gib * GIB)
    assert any(f"hardware.gpu_memory_gib not stated: {capacity_gib:g}, what" in note for note in plan.assumptions)
    assert [problem.key for problem in plan.problems] == ["memory.gpu"]
    assert ConfigError(plan.problems).exit_code == 3
    assert not any("gpu_memory_gib" in note for note in plan_of("model=125m", *ON_A100).assumptions)


def test_a_choice_fits_into_the_memory_of_the_table() -> None:
    table = chosen("model=13b", "nodes=1", "hardware=ndm_a100_v4", "hardware.gpu_memory_gib=null")
    stated = chosen("model=13b", "nodes=1", "hardware=ndm_a100_v4", "hardware.gpu_memory_gib=79.2")
    assert table.problems == ()
    assert table.form == stated.form
    assert table.memory == stated.memory


def test_an_unknown_gpu_without_a_memory_is_a_problem_that_force_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peaks = {"peak_tflops": {"bf16": 500}, "sources": {"peak_tflops": "its data sheet"}, "gpu_memory_gib": None}
    site = unknown_gpu(tmp_path, **peaks)
    assert cli.run(["plan", "model=1.3b", "nodes=1", "parallelism=zero3", *site]) == 2
    text = " ".join(capsys.readouterr().out.split())
    assert "hardware.gpu_memory_gib=null: is not stated by hardware=x9, and hardware.gpu=X9000 is not in the" in text
    assert "GiB of one GPU that a process can allocate, such as hardware.gpu_memory_gib=79.2 (A100-SXM-80GB)" in text
    assert cli.run(["plan", "model=1.3b", "nodes=1", "parallelism=zero3", *site, "--json"]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["key"], problem["kind"]) == ("hardware.gpu_memory_gib", "rate")
    assert problem["kind"] in FORCED_KINDS
    with pytest.raises(ConfigError, match=r"hardware\.gpu_memory_gib=null: is not stated"):
        cli.run(["plan", "--fewest-nodes", "model=1.3b", "parallelism=zero3", *site])
    with pytest.raises(ConfigError, match=r"hardware\.gpu_memory_gib=null: is not stated"):
        cli.run(["plan", "--largest", "--trainer", "deepspeed", "model=1.3b", "nodes=1", "parallelism=zero3", *site])
    assert cli.run(["plan", "model=1.3b", "nodes=1", "parallelism=zero3", *site, "hardware.gpu_memory_gib=64"]) == 0
    assert cli.run(["plan", "nodes=1", "model=tiny", "training=launch_check", *site]) == 0


@pytest.mark.parametrize("text", ["64G", "64GB", "65536", "65536M", "67108864K"])
def test_a_node_has_no_more_memory_than_the_job_asks_for(text: str) -> None:
    """12 bytes a parameter of 13B, its copy in fp32 and Adam's two moments, are 145 GiB."""
    plan = plan_of(*OFFLOADED, f"cluster.memory_per_node={text}")
    assert plan.memory.host_capacity_bytes == 64 * GIB
    assert plan.memory.host_bytes_per_node > 145 * GIB
    (problem,) = plan.problems
    assert (problem.key, problem.kind) == ("memory.host", "memory")
    assert f"cluster.memory_per_node={text}, where 0 asks for all of a node, gives 64.00 GiB, short" in problem.rule
    assert ConfigError(plan.problems).exit_code == 3
    assert plan.blocking_problems(force=True) == ()


@pytest.mark.parametrize("words", [(), ("cluster.memory_per_node=0",), ("cluster.memory_per_node=2T",)])
def test_all_of_a_node_is_what_the_hardware_has(words: tuple[str, ...]) -> None:
    plan = plan_of(*OFFLOADED, *words)
    assert plan.memory.host_capacity_bytes == 1583 * GIB
    assert plan.problems == ()
    (problem,) = plan_of(*OFFLOADED, *words, "hardware.host_memory_gib=100").problems
    assert "a node has 100.00 GiB" in problem.rule


def test_a_choice_fits_into_the_memory_that_the_job_asks_for() -> None:
    """13B in 16 bytes a parameter are 194 GiB; with a tenth free 8 x 27 and 90 GiB hold them, and little beside."""
    words = ("model=13b", "nodes=1", "hardware=ndm_a100_v4", "hardware.gpu_memory_gib=30")
    whole, part = chosen(*words), chosen(*words, "cluster.memory_per_node=100G")
    assert whole.memory.host_bytes_per_node > 90 * GIB
    assert part.memory.host_bytes_per_node <= 90 * GIB
    assert part.memory.gpu_bytes <= 27 * GIB
    assert part.problems == ()


def test_the_ratio_that_a_gpu_needs_does_not_depend_on_what_the_job_asks_for() -> None:
    words = ("model=55b", "nodes=1", "parallelism=zero_cache", *ON_A100)
    ratios = [
        plan_of(*words, f"cluster.memory_per_node={size}").ds_config["zero_optimization"]["offload_optimizer"]["ratio"]
        for size in ("0", "64G")
    ]
    assert ratios[0] == ratios[1] > 0


def test_nothing_is_moved_to_a_host_of_unknown_memory_that_nobody_stated() -> None:
    words = ("model=175b", "nodes=2", "hardware=ndm_a100_v4")
    assert "offload_optimizer" in chosen(*words).ds_config["zero_optimization"]
    plan = chosen(*words, NO_HOST)
    zero = plan.ds_config["zero_optimization"]
    assert not {"offload_optimizer", "offload_param"} & set(zero)
    assert not plan.offload_activations
    assert [problem.key for problem in plan.problems] == ["memory.gpu"]
    assert "hardware.host_memory_gib is not stated: nothing is moved to the host that nobody stated" in plan.assumptions


def test_no_change_moves_anything_to_a_host_of_unknown_memory() -> None:
    def offers(*words: str) -> str:
        (point,) = compose_points(["model=55b", "nodes=1", "parallelism=zero3", *ON_A100, *words], multirun=False)
        closed, plan = plan_point(point)
        assert plan.problems
        return " ".join(word for change in cheapest_changes(closed.config, plan).changes for word in change.overrides)

    assert offers() == offers(NO_HOST, "cluster.memory_per_node=1500G") == "nodes=2 parallelism=zero_cache"
    assert offers(NO_HOST) == "nodes=2"


def test_host_memory_that_nobody_can_check_is_told() -> None:
    plan = plan_of(*OFFLOADED, NO_HOST)
    assert plan.problems == ()
    needed = plan.memory.host_bytes_per_node / GIB
    told = f"hardware.host_memory_gib is not stated: nobody can check whether a node has the {needed:,.2f} GiB of host memory"
    assert any(told in warning for warning in plan.warnings)
    for words in ((*OFFLOADED,), ("model=125m", "parallelism=ddp", *ON_A100, NO_HOST), ("model=tiny", "cluster=local")):
        assert not any("nobody can check" in warning for warning in plan_of(*words).warnings)


def test_two_nodes_of_h200_do_not_hold_two_trillion_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    """16 bytes for each of 2e12 are 29,800 GiB; two nodes have 2 x (8 x 139.8 + 1,862) = 5,961 GiB."""
    assert cli.run(["plan", "model=2t", "nodes=2", "hardware=hgx_h200"]) == 3
    text = capsys.readouterr().out
    assert "of 1,862.00 GiB, short by" in text
    assert "capacity not stated" not in text
