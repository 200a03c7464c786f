"""The largest model that fits: by hand, against every size, and AngelPTM's finding on one node."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest

from hpctrain.config.compose import compose_points
from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError
from hpctrain.launch.point_plans import plan_points
from hpctrain.plan.auto.choice import any_form_fits
from hpctrain.plan.questions.largest import MOST_LAYERS, LargestModel, grown, largest_model, with_layers
from hpctrain.plan.questions.other_trainer import TRAINERS, largest_of_trainer
from hpctrain.plan.questions.outcome import Outcome
from hpctrain.plan.questions.render import render_largest
from hpctrain.plan.run_plan import RunPlan, build_run_plan

NODE = "hardware=hccpnv4h"
PUBLISHED_COMMUNITY_B, PUBLISHED_ANGELPTM_B = 27.9, 54.8
"""Source: analysis/published/angelptm.csv, the printed shapes of the largest models on one node."""


@cache
def config_of(words: str) -> Config:
    (point,) = compose_points(words.split(), multirun=False)
    return point.config


def largest_of(words: str) -> LargestModel:
    return largest_model(config_of(words), build_run_plan)


def outcome_at(layers: int, fits: bool, has_headroom: bool = False) -> Outcome:
    """An outcome of which only the layers and what fits matter."""
    return Outcome(
        num_layers=layers,
        num_parameters=layers,
        nodes=1,
        gpus=8,
        parallelism="zero3",
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        global_batch_size=8,
        seq_len=1024,
        activation_checkpointing="full",
        step_time_s=None,
        tokens_per_s=None,
        gpu_bytes=layers,
        gpu_capacity_bytes=12,
        host_bytes=0,
        host_capacity_bytes=None,
        fits=fits,
        has_headroom=has_headroom,
        short=(),
    )


def test_no_size_but_the_next_was_missed() -> None:
    """All sizes from one to eight above the answer, planned one by one, none skipped."""
    words = f"model=28b parallelism=zero3 {NODE} training.seq_len=1024"
    answer = largest_of(words)
    assert answer.largest is not None and answer.with_headroom is not None
    layers = answer.largest.num_layers
    plans = {number: build_run_plan(with_layers(config_of(words), number)) for number in range(1, layers + 9)}
    fitting = [number for number, plan in plans.items() if not plan.problems]
    spacious = [number for number in fitting if plans[number].memory.fits_with_headroom]
    assert (max(fitting), max(spacious)) == (layers, answer.with_headroom.num_layers)
    assert answer.above.num_layers == layers + 1
    assert not answer.above.fits
    assert answer.binds == ("memory.gpu",)
    assert answer.largest.num_parameters == plans[layers].num_parameters


SMALL_NODE = (
    "hardware.gpus_per_node=2 hardware.gpu_memory_gib=8 hardware.host_memory_gib=48 training.global_batch_size=2"
    " parallelism.pipeline_parallel_size=1"
)


@pytest.mark.parametrize(
    "more",
    [
        "training.seq_len=1024",
        "training.seq_len=512 parallelism.nvme_path=/nvme parallelism.sub_group_size=10000000",
    ],
    ids=["memory", "nvme"],
)
def test_of_an_open_form_no_size_but_the_next_was_missed(more: str) -> None:
    """Its form is chosen for each of all sizes, one by one; the answer asks most of them only whether any form fits."""
    (point,) = compose_points(f"parallelism=auto model=6.7b {SMALL_NODE} {more}".split(), multirun=False)
    planned = list[int]()

    def plan_of(config: Config) -> RunPlan:
        planned.append(config.model.num_layers)
        ((_, plan),) = plan_points([dataclasses.replace(point, config=config)])
        return plan

    answer = largest_model(point.config, plan_of, lambda config, room: any_form_fits(config, point.open_keys, room))
    assert answer.largest is not None and answer.with_headroom is not None
    layers = answer.largest.num_layers
    assert set(planned) == {1, layers, answer.with_headroom.num_layers, layers + 1}
    plans = {number: plan_of(with_layers(point.config, number)) for number in range(1, layers + 9)}
    fitting = [number for number, plan in plans.items() if not plan.problems]
    spacious = [number for number in fitting if plans[number].memory.fits_with_headroom]
    assert (max(fitting), max(spacious)) == (layers, answer.with_headroom.num_layers)
    assert not answer.above.fits


def test_only_the_depth_changes() -> None:
    answer = largest_of(f"model=llama3_8b parallelism=zero3 {NODE}")
    assert answer.largest is not None
    shape = build_run_plan(
        with_layers(config_of(f"model=llama3_8b parallelism=zero3 {NODE}"), answer.largest.num_layers)
    ).model
    published = build_run_plan(config_of(f"model=llama3_8b parallelism=zero3 {NODE}")).model
    assert dataclasses.replace(shape, num_layers=published.num_layers) == published
    assert shape.num_layers > published.num_layers


def test_stages_of_a_pipeline_get_equal_shares() -> None:
    words = f"model=28b parallelism=megatron_3d parallelism.tensor_parallel_size=2 parallelism.pipeline_parallel_size=4 {NODE}"
    answer = largest_of(words)
    assert answer.largest is not None
    assert answer.largest.num_layers % 4 == 0
    assert answer.above.num_layers == answer.largest.num_layers + 4


def test_what_fits_again_behind_a_gap_is_found() -> None:
    """Need jumps with pinned memory in powers of two: of sizes 1 to 12 and 15 the last is the answer, not the twelfth."""
    answer = grown(lambda layers: outcome_at(layers, layers <= 12 or layers == 15, layers <= 3), step=1)
    assert answer.largest is not None and answer.with_headroom is not None
    assert (answer.largest.num_layers, answer.above.num_layers, answer.with_headroom.num_layers) == (15, 16, 3)


@pytest.mark.parametrize("last", [0, 1, 2, 3, 4, 5, 63, 64, 65, 100, MOST_LAYERS - 1])
def test_bisection_ends_at_the_last_that_fits(last: int) -> None:
    answer = grown(lambda layers: outcome_at(layers, layers <= last), step=1)
    assert (answer.largest.num_layers if answer.largest else 0) == last
    assert answer.above.num_layers == last + 1
    assert answer.with_headroom is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("model=tiny cluster=local parallelism=zero3", ["hardware.host_memory_gib=null", "state what a node has"]),
        (f"model=28b parallelism=megatron_3d {NODE}", ["parallelism.", "must divide"]),
    ],
    ids=["no-memory", "rule"],
)
def test_no_answer_is_told_with_its_reason(words: str, expected: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        largest_of(words)
    assert error.value.exit_code == 2
    assert all(text in str(error.value) for text in expected)


@pytest.mark.parametrize(
    ("host_bytes", "fix"), [(None, "state hardware.host_memory_gib, or take a wider model"), (9, "; a wider model")]
)
def test_a_width_that_fills_nothing_is_told(host_bytes: int | None, fix: str) -> None:
    with pytest.raises(ConfigError) as error:
        grown(lambda layers: dataclasses.replace(outcome_at(layers, True), host_capacity_bytes=host_bytes), step=4)
    assert "model.num_layers: does not bind: 8,192 layers of this width fit" in str(error.value)
    assert fix in str(error.value)


def test_angelptm_with_unified_placement_on_one_node() -> None:
    """55B on 8 x 40 GB and 1 TiB, within 10 %: our engine with the optimizer's state on GPU and host together."""
    answer = largest_of(f"model=55b parallelism=zero_cache {NODE}")
    assert answer.largest is not None
    assert answer.largest.num_parameters / 1e9 == pytest.approx(PUBLISHED_ANGELPTM_B, rel=0.10)
    assert answer.binds == ("memory.host",)


def test_angelptm_community_solution_on_one_node() -> None:
    """28B within 10 %: DeepSpeed's plain offload under Megatron-DeepSpeed, which needs 35 bytes of host memory a parameter.

    By hand: 28 blocks of 16 h² and the tables are 30.50e9 parameters, 3.812e9 a rank. Bytes of one rank, in 1e9: parameters and
    gradients in 16 bit 7.62 each, pinned as 8.59; first copies of each share 8.58 (0.302 a block, tables 0.12); fp32 gradients in
    sub-groups of 1e9, pinned as 4 x 4.29; master 15.25 and moments 30.50, both once more for the forked loaders, 45.75; Python
    0.43. In all 134.87, of eight ranks 1,079e9 = 1,004.9 GiB.
    """
    config = config_of(f"model=28b parallelism=zero3_offload {NODE}")
    answer = largest_of_trainer(config, "megatron_deepspeed_2022")
    assert answer.largest is not None
    assert answer.largest.num_layers == 28
    assert answer.largest.host_bytes == pytest.approx(8 * 134.87e9, rel=1e-3)
    assert answer.largest.num_parameters / 1e9 == pytest.approx(PUBLISHED_COMMUNITY_B, rel=0.10)
    assert answer.binds == ("memory.host",)


def test_the_engine_of_today_holds_more_with_the_same_placement() -> None:
    """Its worker forks nothing behind the engine and gives the first copies back: 20 bytes a parameter, and rounding."""
    today = largest_of(f"model=28b parallelism=zero3_offload {NODE}").largest
    config = config_of(f"model=28b parallelism=zero3_offload {NODE}")
    then = largest_of_trainer(config, "megatron_deepspeed_2022").largest
    assert today is not None and then is not None
    assert 20 < today.host_bytes / today.num_parameters < 22.5
    assert 34 < then.host_bytes / then.num_parameters < 36
    assert today.num_parameters > 1.5 * then.num_parameters


@pytest.mark.parametrize(
    ("trainer", "words", "expected"),
    [
        ("megatron", "parallelism=zero3_offload", ["parallelism.offload_param=cpu", "keeps all states on the GPUs"]),
        ("deepspeed", "parallelism=zero_cache", ["parallelism.fit_offload_ratio=true", "moved whole"]),
        ("deepspeed", "parallelism=zero3_nvme parallelism.nvme_path=/nvme", ["=nvme", "no NVMe", "set it to cpu"]),
        ("fsdp", "parallelism=tensor parallelism.tensor_parallel_size=3", ["tensor_parallel_size", "must divide"]),
    ],
)
def test_what_another_trainer_does_not_have_is_refused(trainer: str, words: str, expected: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        largest_of_trainer(config_of(f"model=28b {NODE} {words}"), trainer)
    assert all(text in str(error.value) for text in expected)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_trainer_answers(trainer: str) -> None:
    answer = largest_of_trainer(config_of(f"model=13b parallelism=zero3 {NODE}"), trainer)
    assert answer.largest is not None
    assert 10e9 < answer.largest.num_parameters < 25e9, "16 bytes each of 320 GB, and room to work"
    assert answer.binds == ("memory.gpu",)
    assert trainer in render_largest(answer, config_of(f"model=13b parallelism=zero3 {NODE}"), trainer)


def test_a_pipeline_is_filled_before_its_size_is_counted() -> None:
    """Four micro batches are in flight on the first of four stages: the largest model is that of four micro steps, not of one."""
    words = (
        "model=28b parallelism=megatron_3d parallelism.tensor_parallel_size=2 parallelism.pipeline_parallel_size=4"
        f" training.micro_batch_size=1 training.activation_checkpointing=none {NODE}"
        " model.hidden_size=2048 model.num_heads=16"
    )
    by_steps = [largest_of(f"{words} training.gradient_accumulation_steps={steps}").largest for steps in (1, 4)]
    one, four = (outcome.num_layers for outcome in by_steps if outcome is not None)
    found = largest_of(words).largest
    assert found is not None
    assert found.num_layers == four < one
