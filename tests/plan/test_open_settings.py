"""What nobody states of micro batch, recomputation and ratio: the fastest of what fits, held against whole plans one by one."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from hpctrain.config.calibration import PartKind
from hpctrain.config.compose import compose_points
from hpctrain.config.schema import ActivationCheckpointing, BatchRampConfig, Config, TrainingConfig
from hpctrain.plan.memory.estimate import estimate_memory
from hpctrain.plan.open_settings import micro_batch_sizes
from hpctrain.plan.run_plan import RunPlan, build_run_plan, planned_work
from hpctrain.plan.search.plainness import NOISE
from tests.plan.test_calibration import CALIBRATION

A100 = "hardware=ndm_a100_v4"
MODES: tuple[ActivationCheckpointing, ...] = ("none", "selective", "full")


def config_of(words: str) -> Config:
    (point,) = compose_points([*words.split(), A100], multirun=False)
    return point.config


def with_settings(config: Config, **settings: object) -> RunPlan:
    training = dataclasses.replace(config.training, **settings)  # type: ignore[arg-type]
    return build_run_plan(dataclasses.replace(config, training=training))


def token_s(plan: RunPlan) -> float:
    assert plan.prediction is not None
    return plan.prediction.step_time_s / plan.batch.tokens_per_step


CASES = {
    "stage 3": "model=13b parallelism=zero3 nodes=2",
    "stage 3, tight": "model=175b parallelism=zero3 nodes=16",
    "stage 2": "model=13b parallelism=zero2 nodes=5",
    "stage 0": "model=1.3b parallelism=ddp nodes=1",
    "offload": "model=13b parallelism=zero3_offload nodes=2",
    "tensor": "model=llama3_70b parallelism=tensor nodes=8",
    "long": "model=llama3_8b parallelism=ulysses nodes=1 training.seq_len=32768",
    "batch": "model=llama3_8b parallelism=zero3 nodes=4 training.global_batch_size=1024",
    "short, batch": "model=175b parallelism=zero3 nodes=32 training.seq_len=512 training.global_batch_size=8192",
    "pipeline, batch": "model=530b parallelism=megatron_3d nodes=70 training.global_batch_size=1920",
    "fitted": "model=175b parallelism=zero_cache nodes=16 hardware.host_memory_gib=130",
    "fitted, full": "model=530b parallelism=zero_cache nodes=12",
    "fitted, batch": "model=13b parallelism=zero_cache nodes=1 training.global_batch_size=96",
    "micro stated": "model=13b parallelism=zero3 nodes=2 training.micro_batch_size=6",
    "recomputation stated": "model=13b parallelism=zero3 nodes=2 training.activation_checkpointing=full",
    "pipeline": "model=llama3_70b parallelism=zero1 nodes=8 parallelism.tensor_parallel_size=8"
    " parallelism.pipeline_parallel_size=4",
}


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_it_is_the_plainest_of_the_fastest_that_fit(words: str) -> None:
    check_choice(config_of(words))


FACTORS: dict[str, dict[PartKind, float]] = {
    "slow network": {"communication": 5.0},
    "slow host": {"host": 5.0, "compute": 0.5},
    "slow GPU": {"compute": 4.0, "communication": 0.3},
}
CALIBRATED = ("stage 2", "offload", "batch", "pipeline, batch", "fitted", "fitted, batch")


@pytest.mark.parametrize("factors", FACTORS.values(), ids=FACTORS)
@pytest.mark.parametrize("case", CALIBRATED)
def test_factors_of_past_runs_choose_too(case: str, factors: dict[PartKind, float]) -> None:
    config = config_of(CASES[case])
    check_choice(dataclasses.replace(config, calibration=dataclasses.replace(CALIBRATION, factors=factors)))


def test_a_slow_network_wants_more_tokens_for_each_exchange() -> None:
    """Parameters are gathered once for a micro batch, however many tokens it has; what they cost is recomputation."""
    config = config_of("model=28b parallelism=zero_cache nodes=4")
    slow = dataclasses.replace(CALIBRATION, factors=FACTORS["slow network"])
    plain, found = build_run_plan(config), build_run_plan(dataclasses.replace(config, calibration=slow))
    assert plain.batch.micro_batch_size < found.batch.micro_batch_size
    assert MODES.index(plain.activation_checkpointing) < MODES.index(found.activation_checkpointing)


def check_choice(config: Config) -> None:
    """Against whole plans one by one."""
    training = config.training
    chosen = build_run_plan(config)
    sizes = micro_batch_sizes(training, chosen.layout.data_parallel_degree, 128)
    modes = MODES if training.activation_checkpointing is None else (training.activation_checkpointing,)
    plans = [
        with_settings(config, micro_batch_size=size, activation_checkpointing=mode)
        for size, mode in itertools.product(sizes, modes)
    ]
    fitting = [plan for plan in plans if not plan.problems and plan.memory.fits_with_headroom]
    assert fitting
    fastest_s = min(map(token_s, fitting))
    as_fast = [plan for plan in fitting if token_s(plan) <= (1 + NOISE) * fastest_s]

    def plain(plan: RunPlan) -> tuple[float, ...]:
        optimizer = plan.ds_config["zero_optimization"].get("offload_optimizer")
        moved = 0.0 if optimizer is None else optimizer.get("ratio", 1.0)
        passes = MODES.index(plan.activation_checkpointing)
        return (optimizer is not None, moved, passes, plan.batch.gradient_accumulation_steps, token_s(plan))

    best = min(as_fast, key=plain)
    assert dataclasses.replace(chosen, assumptions=best.assumptions) == best


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_what_is_asked_of_a_plan_later_is_asked_of_what_it_chose(words: str) -> None:
    config = config_of(words)
    plan = build_run_plan(config)
    assert estimate_memory(planned_work(config, plan)) == plan.memory


def test_a_form_without_a_micro_batch_is_as_fast_as_its_best_one() -> None:
    """The largest one of 8 takes 82 % of the speed here, since it has to recompute all."""
    plan = build_run_plan(config_of(CASES["stage 3"]))
    assert (plan.batch.micro_batch_size, plan.activation_checkpointing) == (4, "none")
    largest = with_settings(config_of(CASES["stage 3"]), micro_batch_size=8)
    assert largest.activation_checkpointing == "full"
    assert token_s(largest) > 1.2 * token_s(plan)
    assert plan.assumptions[:2] == (
        "training.micro_batch_size not stated: 4, the fastest of 1, 2, 3, 4, 6, 8 as predicted (with a tenth of the memory free)",
        "training.activation_checkpointing not stated: none, it fits without recomputation at a micro batch of 4",
    )


def test_where_only_the_batch_bounds_it_the_plan_says_so() -> None:
    """More sequences a step are another training, so that nobody but the user takes them."""
    words = "model=175b parallelism=zero3 nodes=32 training.seq_len=512"
    plan = build_run_plan(config_of(words))
    told = "(with a tenth of the memory free); 8 is the most without a training.global_batch_size, since a step grows with it"
    assert (
        plan.assumptions[0]
        == f"training.micro_batch_size not stated: 8, the fastest of 1, 2, 3, 4, 6, 8 as predicted {told}"
    )
    stated = build_run_plan(config_of(f"{words} training.global_batch_size=8192"))
    assert stated.batch.micro_batch_size > 8
    assert token_s(stated) < 0.9 * token_s(plan)
    assert "is the most" not in stated.assumptions[0]


def test_where_a_plainer_one_is_nearly_as_fast_it_says_so() -> None:
    plan = build_run_plan(config_of(CASES["fitted"]))
    (note, reason, *_) = plan.assumptions
    assert note.startswith(f"training.micro_batch_size not stated: {plan.batch.micro_batch_size}, within 1.")
    assert "of the fastest of 1, 2, 3, 4, 6, 8 as predicted, with fewer mechanisms (with a tenth" in note
    assert (
        "full, with less of it more of the optimizer leaves the GPU, or it does not fit at a micro batch of" in reason
    )
    assert any("none is moved" in note for note in plan.assumptions)


def test_many_sizes_are_told_by_their_ends() -> None:
    plan = build_run_plan(config_of(CASES["pipeline, batch"]))
    assert "not stated: 1, the fastest of 22 between 1 and 120 as predicted" in plan.assumptions[0]


@pytest.mark.parametrize(
    ("words", "micro", "mode", "told"),
    [
        ("hardware.gpu_memory_gb_per_s=null", 4, "none", "the largest of 1, 2, 3, 4, 6, 8 without recomputation (with"),
        ("hardware.gpu_memory_gib=null", 4, "none", "the fastest of 1, 2, 3, 4, 6, 8 as predicted (with a tenth"),
        ("hardware.gpu_memory_gib=13", 1, "full", "1, and even that does not fit"),
        ("hardware.gpu_memory_gib=19.5", 1, "full", "which leaves less than a tenth of the memory free"),
    ],
    ids=["no-rates", "of-the-table", "too-small", "tight"],
)
def test_what_is_not_known_or_does_not_fit(words: str, micro: int, mode: str, told: str) -> None:
    plan = build_run_plan(config_of(f"{CASES['stage 3']} {words}"))
    assert (plan.batch.micro_batch_size, plan.activation_checkpointing) == (micro, mode)
    assert any(told in note for note in plan.assumptions if note.startswith("training.micro_batch_size")), (
        plan.assumptions
    )


def test_without_a_prediction_no_more_than_eight_are_taken() -> None:
    words = f"{CASES['short, batch']} hardware.gpu_memory_gb_per_s=null"
    assert (
        build_run_plan(config_of(words)).batch.micro_batch_size
        <= 8
        < build_run_plan(config_of(CASES["short, batch"])).batch.micro_batch_size
    )


PIPELINE = (
    "model=llama3_70b nodes=8 parallelism=megatron_3d parallelism.tensor_parallel_size=8"
    " parallelism.pipeline_parallel_size=4"
)


@pytest.mark.parametrize(
    ("words", "accumulation", "sequences"),
    [
        ("training.micro_batch_size=1", 64, 128),
        ("training.micro_batch_size=3", 21, 126),
        ("training.micro_batch_size=1 training.seq_len=2048", 256, 512),
        ("training.micro_batch_size=100", 1, 200),
        ("training.micro_batch_size=1 parallelism.pipeline_parallel_size=1", 1, 8),
        ("training.micro_batch_size=1 training.gradient_accumulation_steps=7", 7, 14),
        ("training.micro_batch_size=1 training.global_batch_size=24", 12, 24),
    ],
    ids=["two-a-gpu", "whole-ones", "eight-a-gpu", "at-least-one", "no-pipeline", "steps-stated", "batch-stated"],
)
def test_a_pipeline_without_a_batch_has_micro_steps_for_its_stages(
    words: str, accumulation: int, sequences: int
) -> None:
    """By hand: 64 GPUs in 2 replicas of 8 x 4; 16,384 tokens a GPU are 2 sequences of 8,192, so 64 a replica, or 8 of 2,048."""
    stages = [word for word in PIPELINE.split() if word.partition("=")[0] not in words]
    plan = build_run_plan(config_of(" ".join([*stages, words])))
    batch = plan.batch
    assert (batch.gradient_accumulation_steps, batch.global_batch_size) == (accumulation, sequences)
    told = [note for note in plan.assumptions if note.startswith("training.gradient_accumulation_steps not stated")]
    assert bool(told) == ("pipeline" not in words and "steps=" not in words and "global" not in words)


def test_a_pipeline_tells_the_batch_that_it_holds_and_is_hardly_idle() -> None:
    """3 of 64 + 3 turns of a stage, where one micro batch leaves 3 of 4."""
    plan = build_run_plan(config_of(PIPELINE))
    assert plan.batch.gradient_accumulation_steps == 64
    assert (
        "training.gradient_accumulation_steps not stated: 64, the whole micro batches of a step with 2 sequences a GPU"
        " (128 in all); fewer leave the pipeline's stages idle" in plan.assumptions
    )
    assert not any("since a step grows with it" in note for note in plan.assumptions)
    assert plan.prediction is not None
    assert plan.prediction.parts_s["pipeline bubble"] < 3 / 64 * plan.prediction.step_time_s


TRAINING = TrainingConfig("x", 1)


@pytest.mark.parametrize(
    ("stated", "sizes"),
    [
        ({}, (1, 2, 3, 4, 6, 8)),
        ({"micro_batch_size": 5}, (5,)),
        ({"gradient_accumulation_steps": 3}, (1, 2, 3, 4, 6, 8)),
        ({"global_batch_size": 4 * 48}, (1, 2, 3, 4, 6, 8, 12, 16, 24)),
        ({"global_batch_size": 4 * 48, "gradient_accumulation_steps": 3}, (16,)),
        ({"global_batch_size": 4 * 48 + 1}, (1,)),
        ({"global_batch_size": 3}, (1,)),
        ({"global_batch_size": 4 * 32, "batch_ramp": BatchRampConfig(16, 8, 96)}, (1, 2)),
        ({"batch_ramp": BatchRampConfig(5, 5, 50), "global_batch_size": 40}, (1,)),
    ],
)
def test_sizes_that_the_rest_of_the_batch_allows(stated: dict[str, object], sizes: tuple[int, ...]) -> None:
    assert micro_batch_sizes(dataclasses.replace(TRAINING, **stated), 4, 24) == sizes  # type: ignore[arg-type]
