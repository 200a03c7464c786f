"""Bandwidths that a plan needs and its hardware file does not state: one message each, exit code 2, and nothing else is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from hpctrain import cli
from hpctrain.config.compose import config_dir
from hpctrain.errors import ConfigError
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.files import write_record
from hpctrain.record.paths import RunPaths
from tests.launch.fake_slurm import FakeSlurm
from tests.launch.fake_slurm import slurm as slurm  # the fixture
from tests.plan.test_run_plan import plan_of
from tests.record.test_files import attempt

ON_A100 = ("model=13b", "nodes=4", "hardware=ndm_a100_v4")
FULL = "training.activation_checkpointing=full"


def rate_problems(plan: RunPlan) -> dict[str, str]:
    return {each.key: str(each) for each in plan.problems if each.kind == "rate"}


@pytest.mark.parametrize(
    ("words", "key", "parts"),
    [
        pytest.param(
            (),
            "inter_node_gb_per_s",
            ("4 nodes exchange data over it", "such as hardware.inter_node_gb_per_s=200 (8 adapters of 200 Gb/s)"),
            id="network",
        ),
        pytest.param(
            (),
            "intra_node_gb_per_s",
            ("the 8 GPUs of a node exchange data over it", "hardware.intra_node_gb_per_s=300 (A100-SXM-80GB)"),
            id="links",
        ),
        pytest.param(
            (),
            "gpu_memory_gb_per_s",
            ("GB/s of one GPU, such as hardware.gpu_memory_gb_per_s=2039 (A100-SXM-80GB)",),
            id="memory",
        ),
        pytest.param(
            (FULL, "training.offload_activations=true"),
            "host_link_gb_per_s",
            ("what is offloaded passes over it", "such as hardware.host_link_gb_per_s=25 (A100-SXM-80GB)"),
            id="host-link",
        ),
        pytest.param(
            ("parallelism=zero3_offload",),
            "host_memory_gb_per_s",
            ("the optimizer on the CPU reads and writes it", "GB/s of a node, all sockets together, such as"),
            id="host-memory",
        ),
    ],
)
def test_what_is_missing_is_named_with_unit_and_example(
    words: tuple[str, ...], key: str, parts: tuple[str, ...]
) -> None:
    plan = plan_of(*ON_A100, *words, f"hardware.{key}=null")
    ((found, text),) = rate_problems(plan).items()
    assert found == f"hardware.{key}"
    assert text.startswith(f"hardware.{key}=null: is not stated by hardware=ndm_a100_v4, and ")
    assert all(part in text for part in ("; state it there or here, GB/s of", *parts)), text
    assert ConfigError(plan.problems).exit_code == 2
    assert rate_problems(plan_of(*ON_A100, *words)) == {}


def test_what_the_plan_does_not_need_may_be_missing() -> None:
    network, links = "hardware.inter_node_gb_per_s=null", "hardware.intra_node_gb_per_s=null"
    assert rate_problems(plan_of("model=1.3b", "nodes=1", "hardware=ndm_a100_v4", network)) == {}
    alone = ("model=125m", "nodes=1", "hardware=ndm_a100_v4", "hardware.gpus_per_node=1", "parallelism=ddp")
    assert rate_problems(plan_of(*alone, network, links)) == {}
    no_host = ("hardware.host_link_gb_per_s=null", "hardware.host_memory_gb_per_s=null")
    assert rate_problems(plan_of(*ON_A100, *no_host)) == {}
    # A launch check times nothing, CPU ranks are not predicted, and nobody publishes rates of drives.
    assert rate_problems(plan_of(*ON_A100, network, "training=launch_check")) == {}
    assert rate_problems(plan_of("model=tiny", "cluster=local")) == {}
    nvme = plan_of(*ON_A100, "parallelism=zero3_nvme", "parallelism.nvme_path=/local")
    assert nvme.problems == ()
    assert "does not state hardware.nvme_read_gb_per_s" in nvme.prediction_gap


def test_memory_and_layout_stand_without_a_bandwidth() -> None:
    whole, lacking = plan_of(*ON_A100), plan_of(*ON_A100, "hardware.inter_node_gb_per_s=null")
    stated = ("training.micro_batch_size=2", FULL)
    assert lacking.memory.gpu_bytes > 0
    assert not lacking.is_impossible
    assert plan_of(*ON_A100, *stated, "hardware.inter_node_gb_per_s=null").memory == plan_of(*ON_A100, *stated).memory
    assert lacking.blocking_problems(force=True) == whole.problems == ()


@pytest.mark.parametrize("name", sorted(path.stem for path in config_dir().glob("hardware/*.yaml")))
@pytest.mark.parametrize("form", ["zero3", "zero3_offload"])
def test_shipped_hardware_states_what_its_plans_need(name: str, form: str) -> None:
    plan = plan_of("model=1.3b", "nodes=2", f"hardware={name}", f"parallelism={form}", FULL)
    assert rate_problems(plan) == {}


def unknown_gpu(folder: Path, **changes: object) -> list[str]:
    """Words of a site's hardware file whose GPU is not in the device table and whose peak nobody states."""
    node = yaml.safe_load((config_dir() / "hardware" / "ndm_a100_v4.yaml").read_text(encoding="utf-8"))
    node |= {"name": "x9", "gpu": "X9000", "peak_tflops": {}, "achievable_tflops": {}, "sources": {}, **changes}
    (folder / "hardware").mkdir(exist_ok=True)
    (folder / "hardware" / "x9.yaml").write_text(yaml.safe_dump(node), encoding="utf-8")
    return [f"--config-dir={folder}", "hardware=x9"]


def test_an_unknown_gpu_without_a_peak_is_told_beside_its_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "model=1.3b", "nodes=1", "parallelism=zero3", "--json", *unknown_gpu(tmp_path)]
    assert cli.run(words) == 2
    plan = json.loads(capsys.readouterr().out)
    assert [(each["key"], each["kind"]) for each in plan["problems"]] == [("hardware.gpu", "rate")]
    assert "hardware.peak_tflops, which says what it can do, is not stated" in plan["problems"][0]["rule"]
    assert plan["memory"]["gpu_bytes"] > 0


def test_a_run_goes_on_without_a_peak_and_a_network_rate_but_no_new_one_begins(
    slurm: FakeSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = unknown_gpu(tmp_path, inter_node_gb_per_s=None)
    words = ["model=1.3b", "nodes=2", "parallelism=zero3", "cluster=slurm", "data=synthetic", "training.num_steps=20"]
    words += ["training.warmup_steps=2", f"run.root={slurm.root}"]
    with pytest.raises(ConfigError) as refused:
        cli.run([*words, *site])
    assert {problem.key for problem in refused.value.problems} == {"hardware.gpu", "hardware.inter_node_gb_per_s"}
    assert refused.value.exit_code == 2
    assert slurm.num_calls == 0
    assert cli.run([*words, *site, "--force"]) == 0
    (run,) = slurm.root.glob("1.3b-*")
    write_record(RunPaths(run).attempt(1), attempt(1, state="failed", end_reason="exception"))
    slurm.program("squeue", "exit 0")  # the job has ended
    capsys.readouterr()
    assert cli.run(["resume", str(run)]) == 0
    assert slurm.num_calls == 2
    told = capsys.readouterr().out
    assert "note: hardware.inter_node_gb_per_s=null: is not stated by hardware=x9" in told
    assert "note: hardware.gpu=X9000: is not in the device table" in told


def test_the_fewest_nodes_are_not_counted_past_a_missing_network() -> None:
    words = ["model=175b", "parallelism=zero3", "hardware=ndm_a100_v4", "hardware.inter_node_gb_per_s=null"]
    with pytest.raises(ConfigError, match=r"hardware.inter_node_gb_per_s=null: is not stated") as refused:
        cli.run(["plan", "--fewest-nodes", *words])
    assert refused.value.exit_code == 2


def test_a_measured_step_stands_in_for_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", *ON_A100, "parallelism=zero3", "hardware.inter_node_gb_per_s=null", "--tokens", "1B"]
    assert cli.run(words) == 2
    assert "cost: none" in capsys.readouterr().out
    assert cli.run([*words, "--step-time-s", "10"]) == 0
    text = capsys.readouterr().out
    assert "GPU-hours" in text
    assert "warning: hardware.inter_node_gb_per_s=null: is not stated" in text


def test_a_sweep_tells_the_points_that_lack_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "-m", "model=13b", "nodes=1,2", "hardware=ndm_a100_v4", "parallelism=zero3"]
    assert cli.run([*words, "hardware.inter_node_gb_per_s=null"]) == 2
    text = capsys.readouterr().out
    assert text.count("is not stated by hardware=ndm_a100_v4, and 2 nodes exchange data over it") == 1
    assert "refused" not in text
