"""The plan: batch triangle, choices, refusals, JSON."""

from __future__ import annotations

import json

import pytest

from hpctrain.config.compose import compose_points
from hpctrain.errors import ConfigError
from hpctrain.plan.render.plan import render_plan
from hpctrain.plan.run_plan import RunPlan, build_run_plan


def plan_of(*words: str) -> RunPlan:
    """The plan of ZeRO-3 unless a word says another form."""
    (point,) = compose_points(["parallelism=zero3", *words], multirun=False)
    return build_run_plan(point.config, point.assumptions)


def test_the_showpiece() -> None:
    plan = plan_of("model=530b", "nodes=128")
    assert plan.layout.world_size == 1024
    assert plan.problems == ()
    assert plan.assumptions[0].startswith("hardware not stated: ndm_a100_v4")
    # By hand: 4 x 1024 sequences of 2048 tokens.
    assert plan.batch.tokens_per_step == plan.batch.micro_batch_size * 1024 * 2048
    assert plan.activation_checkpointing == "full"


def test_the_published_530b_point_fits_and_2t_does_not_without_offload() -> None:
    published = ("nodes=128", "training.seq_len=1024", "training.micro_batch_size=8")
    assert plan_of("model=530b", *published).problems == ()
    problems = plan_of("model=2t", *published).problems
    assert [problem.kind for problem in problems] == ["memory"]
    assert "short by" in str(problems[0])
    assert ConfigError(problems).exit_code == 3


@pytest.mark.parametrize(
    ("words", "micro", "accumulation", "total"),
    [
        ((), 8, 1, 16),
        (("training.micro_batch_size=2",), 2, 1, 4),
        (("training.micro_batch_size=2", "training.gradient_accumulation_steps=3"), 2, 3, 12),
        (("training.micro_batch_size=2", "training.global_batch_size=12"), 2, 3, 12),
        (("training.global_batch_size=12",), 6, 1, 12),
        (("training.global_batch_size=12", "training.gradient_accumulation_steps=3"), 2, 3, 12),
        (("training.global_batch_size=12", "training.gradient_accumulation_steps=6"), 1, 6, 12),
    ],
)
def test_the_batch_triangle_is_solved(words: tuple[str, ...], micro: int, accumulation: int, total: int) -> None:
    batch = plan_of("model=tiny", "cluster=local", *words).batch
    found = (batch.micro_batch_size, batch.gradient_accumulation_steps, batch.global_batch_size)
    assert found == (micro, accumulation, total)


PROBLEMS = [
    pytest.param(
        ["training.compile=true", "training.activation_checkpointing=selective"],
        ["training.activation_checkpointing=selective", "with training.compile=true", "=none or full"],
        id="compiled-blocks-choose-what-they-keep",
    ),
    pytest.param(
        ["training.global_batch_size=9", "training.micro_batch_size=2"],
        ["training.global_batch_size=9", "2 x 2 = 4", "nearest: 8, 12"],
        id="batch-does-not-divide",
    ),
    pytest.param(
        ["training.global_batch_size=8", "training.micro_batch_size=2", "training.gradient_accumulation_steps=3"],
        ["training.global_batch_size=8", "2 x 2 x 3 = 12", "accumulation_steps=2"],
        id="batch-triangle-contradicts",
    ),
    pytest.param(["model.num_heads=5"], ["model.num_heads=5", "128 mod 5 = 3", "nearest: 4, 8"], id="heads"),
    pytest.param(
        ["training.seq_len=999"], ["training.seq_len=999", "128 learned positions", "nearest: 128"], id="positions"
    ),
    pytest.param(["nodes=2"], ["nodes=2", "one machine", "nearest: 1"], id="local-on-two-nodes"),
    pytest.param(
        ["parallelism=zero2", "parallelism.offload_param=cpu"],
        ["offload_param=cpu", "stage 3, here it is 2"],
        id="offload",
    ),
    pytest.param(["env.RANK=3"], ["env.RANK=3", "leave it out"], id="rank-for-all"),
    pytest.param(["env.A-B=1"], ["env.A-B=1", "no name of an environment variable"], id="variable-name"),
    pytest.param(["data.path=/x"], ["data.path=/x", "add data=text"], id="path-that-nobody-reads"),
    pytest.param(
        ["cluster.time=1", "cluster.signal_lead_s=60"], ["signal_lead_s=60", "(60 s)", "nearest: 30"], id="lead"
    ),
    pytest.param(
        ["cluster.memory_per_node=1G", "cluster.extra.mem_per_cpu=1G"],
        ["mem_per_cpu=1G", "memory_per_node=1G"],
        id="memory-twice",
    ),
    pytest.param(["cluster.extra.no_requeue=true"], ["no_requeue", "set by hpctrain itself"], id="requeue"),
    pytest.param(["data=text"], ["data.path=null", "set data.path=FILE"], id="text-without-path"),
    pytest.param(["training.min_learning_rate=1"], ["min_learning_rate=1.0", "0.0006"], id="learning-rates"),
    pytest.param(["cluster.time=0:240:0x"], ["cluster.time=0:240:0x", "hours:minutes:seconds"], id="time-form"),
    pytest.param(["cluster.time=0"], ["cluster.time=0", "zero"], id="time-zero"),
    pytest.param(["cluster.extra.gress=gpu:1"], ["cluster.extra.gress=gpu:1", "nearest: gres"], id="sbatch-option"),
    pytest.param(["cluster.extra.nodes=4"], ["cluster.extra.nodes=4", "set by hpctrain itself"], id="own-option"),
    pytest.param(
        ["cluster.gpu_request=gres", "cluster.extra.gpus_per_task=1"],
        ["gpus_per_task=1", "--gres=gpu:2"],
        id="two-gpu-forms",
    ),
    pytest.param(["hardware.host_memory_gib=0.01"], ["memory.host", "short by"], id="host-memory"),
]


@pytest.mark.parametrize(("words", "expected"), PROBLEMS)
def test_problems_name_key_rule_and_fix(words: list[str], expected: list[str]) -> None:
    cluster = "sandbox" if any(word.startswith("cluster.") for word in words) else "local"
    problems = plan_of("model=tiny", f"cluster={cluster}", *words).problems
    assert len(problems) == 1, [str(problem) for problem in problems]
    assert all(text in str(problems[0]) for text in expected), str(problems[0])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cluster.extra.gpu_bind=closest"], "gpu-bind hides"),
        (["nodes=2", "cluster.time=4:00"], "is 4 min: short for 2 nodes"),
        (
            ["cluster.time=3"],
            "cluster.signal_lead_s=120: Slurm may send USR1 up to 60 s earlier, and cluster.time=3 is 180 s",
        ),
        (["training.num_steps=10"], "warmup_steps=20 is not below training.num_steps=10"),
        (
            ["model.architecture=llama", "training.seq_len=256", "training.warmup_steps=0"],
            "training.seq_len=256 is longer than model.max_seq_len=128",
        ),
        (["cluster.cpus_per_task=null"], "states no cores"),
    ],
)
def test_warnings(words: list[str], expected: str) -> None:
    plan = plan_of("model=tiny", "cluster=sandbox", *words)
    assert plan.problems == ()
    assert expected in plan.warnings[0]


def test_local_runs_refuse_what_is_asked_of_slurm() -> None:
    problems = plan_of("model=tiny", "cluster=local", "cluster.time=10", "cluster.setup=[env]").problems
    assert [problem.key for problem in problems] == ["cluster.time", "cluster.setup"]


def test_notes_say_whether_anything_was_checked() -> None:
    assert "memory not stated" in " ".join(plan_of("model=13b", "cluster=local").assumptions)
    assert "even that does not fit" in " ".join(plan_of("model=2t", "nodes=4").assumptions)


def test_a_launch_check_has_no_notes_on_batch_and_recomputation() -> None:
    told = " ".join(plan_of("model=tiny", "training=launch_check").assumptions)
    assert "micro_batch_size" not in told
    assert "activation_checkpointing" not in told


def test_one_node_is_no_nodes() -> None:
    assert "1 node x 8 = 8 GPUs" in render_plan(plan_of("model=tiny", "nodes=1"), "python")


def test_force_lets_pass_what_is_short_of_memory_and_nothing_else() -> None:
    plan = plan_of("model=2t", "nodes=4", "training.seq_len=99999")
    assert [problem.kind for problem in plan.blocking_problems(force=True)] == ["config"]
    assert len(plan.blocking_problems(force=False)) == 2


def test_all_problems_at_once() -> None:
    plan = plan_of("model=tiny", "cluster=local", "nodes=2", "model.num_heads=5", "training.seq_len=999")
    assert {problem.key for problem in plan.problems} == {"nodes", "model.num_heads", "training.seq_len"}


def test_json_holds_the_whole_plan() -> None:
    plan = plan_of("model=530b", "nodes=128")
    decoded = json.loads(plan.to_json())
    assert decoded["layout"]["world_size"] == 1024
    assert decoded["num_parameters"] == plan.num_parameters
    assert decoded["memory"]["gpu_bytes"] == sum(
        term["num_bytes"] for term in decoded["memory"]["terms"] if term["tier"] == "gpu"
    )
    assert set(decoded) == set(plan.__dataclass_fields__)


def test_the_same_configuration_gives_the_same_plan() -> None:
    assert plan_of("model=13b", "nodes=4") == plan_of("model=13b", "nodes=4")


def test_text_says_what_the_plan_holds() -> None:
    text = render_plan(plan_of("model=530b", "nodes=128", "cluster.time=1-0"), python="/opt/py/bin/python")
    assert text.startswith("note: hardware not stated: ndm_a100_v4")
    for part in ("529,582,469,120", "1,024 GPUs", "#SBATCH --nodes=128", '"stage": 3', "time limit", "1 d", "estimate"):
        assert part in text


def test_text_of_a_plan_with_problems_ends_with_them() -> None:
    text = render_plan(plan_of("model=tiny", "cluster=sandbox", "training.min_learning_rate=1"), "/opt/py/bin/python")
    assert "memory by tier" in text
    assert text.index("#SBATCH") < text.index("\nproblems\n  training.min_learning_rate=1")


IMPOSSIBLE = [
    pytest.param(["model=13b", "nodes=1", "parallelism.tensor_parallel_size=3"], id="degrees"),
    pytest.param(["model=13b", "nodes=1", "parallelism.hpz_partition_size=3"], id="second-partition"),
    pytest.param(["model=13b", "nodes=1", "model.num_heads=7"], id="shape"),
    pytest.param(["model=13b", "nodes=4", "training.micro_batch_size=4", "training.global_batch_size=7"], id="batch"),
    pytest.param(["model=13b", "hardware.intra_node_gb_per_s=2400"], id="unit"),
    pytest.param(["model=tiny", "cluster=local", "nodes=2"], id="nodes"),
]


@pytest.mark.parametrize("words", IMPOSSIBLE)
def test_an_impossible_plan_tells_its_problems_and_no_number(words: list[str]) -> None:
    plan = plan_of(*words)
    assert plan.is_impossible
    assert {problem.kind for problem in plan.problems} == {"config"}
    text = render_plan(plan, "python")
    assert "\nproblems\n" in text
    assert text.splitlines()[-1].startswith("nothing can run like this: mend the ")
    for part in (
        "GiB",
        "tokens/s",
        "TFLOP",
        "#SBATCH",
        "data parallel 8",
        "micro_batch_size not stated",
        "zero_optimization",
    ):
        assert part not in text.partition("nothing can run")[0], part
    decoded = json.loads(plan.to_json())
    assert set(decoded) == set(plan.__dataclass_fields__)
    nothing = (
        "layout",
        "batch",
        "memory",
        "prediction",
        "flops_per_step",
        "ds_config",
        "slurm",
        "model",
        "num_parameters",
    )
    assert {name: decoded[name] for name in nothing} == dict.fromkeys(nothing)
    assert [problem["key"] for problem in decoded["problems"]] == [problem.key for problem in plan.problems]


def test_without_a_layout_the_batch_is_not_judged() -> None:
    # Of 8 ranks in threes no batch is known; that of 8 data-parallel ranks would be another run's.
    words = ("model=13b", "nodes=1", "parallelism.tensor_parallel_size=3", "training.micro_batch_size=1")
    assert {problem.key for problem in plan_of(*words, "training.global_batch_size=9").problems} == {
        "parallelism.tensor_parallel_size"
    }


def test_more_nodes_are_offered_only_where_the_model_can_be_cut_so() -> None:
    whole = plan_of(
        "model=28b", "nodes=1", "model.num_layers=30", "parallelism=megatron_3d", "parallelism.pipeline_parallel_size=3"
    )
    assert any("nearest: nodes=" in str(problem) for problem in whole.problems)
    broken = plan_of("model=13b", "nodes=1", "parallelism.tensor_parallel_size=3")
    assert not any("nodes=" in str(problem) for problem in broken.problems)


def test_a_launch_check_tells_neither_memory_nor_speed() -> None:
    plan = plan_of("model=13b", "nodes=4", "training=launch_check", "cluster.time=30")
    assert plan.prediction is None
    assert plan.prediction_gap == "training=launch_check trains nothing"
    text = render_plan(plan, "python")
    for part in ("4 nodes x 8 = 32 GPUs", "at most 30 min", "time limit", "#SBATCH --nodes=4", "no model is built"):
        assert part in text
    for part in ("GiB", "tokens/s", "FLOP", "zero_optimization"):
        assert part not in text
