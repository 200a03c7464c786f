"""The fewest nodes: against every count, counts that break a rule, the table of more."""

from __future__ import annotations

import dataclasses

import pytest

from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError, Problem
from hpctrain.plan.questions.fewest_nodes import FewestNodes, fewest_nodes, possible_counts
from hpctrain.plan.questions.render import render_nodes
from hpctrain.plan.run_plan import RunPlan, build_run_plan
from tests.plan.questions.test_largest import config_of

WORDS = "model=175b parallelism=zero3"


def fewest_of(words: str, max_nodes: int = 64) -> FewestNodes:
    return fewest_nodes(config_of(words), build_run_plan, max_nodes)


def test_every_smaller_count_leaves_less_than_a_tenth() -> None:
    """175B needs 16 bytes a parameter: 2.8e12 bytes, more than 40 GPUs of 80 GB with a tenth free hold beside what works."""
    answer = fewest_of(WORDS)
    assert answer.fewest is not None and answer.nearest is not None
    nodes = answer.fewest.nodes
    assert 4 < nodes < 8
    assert nodes & (nodes - 1), "not a power of two"
    plans = [build_run_plan(dataclasses.replace(config_of(WORDS), nodes=count)) for count in range(1, nodes + 1)]
    assert [plan.memory.fits_with_headroom for plan in plans] == [False] * (nodes - 1) + [True]
    assert answer.nearest.nodes == nodes - 1
    assert {nodes - 1, nodes} <= set(answer.tried)


def test_more_nodes_are_told_up_to_four_times() -> None:
    answer = fewest_of(WORDS)
    assert answer.fewest is not None
    nodes = answer.fewest.nodes
    assert [row.nodes for row in answer.more] == sorted(
        {nodes + 1, *(-(-nodes * part // 4) for part in (5, 6, 8, 12, 16))}
    )
    assert all(row.has_headroom and row.step_time_s for row in answer.more)
    row = answer.more[0]
    assert row.gpu_hours_per_billion_tokens == pytest.approx(1e9 / (row.tokens_per_s or 0) * row.gpus / 3600)
    text = render_nodes(answer, config_of(WORDS))
    assert f"fewest nodes of 8 (ndm_a100_v4) for 175b: {nodes}, with a tenth of each tier free" in text
    assert f"too few  {nodes - 1:>5}" in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "a tenth of each tier free"),
        ("hardware.host_memory_gib=null", "a tenth of each GPU's memory free"),
        ("hardware.gpu_memory_gib=null", "a tenth of each tier free"),
    ],
)
def test_what_is_said_to_stay_free_is_of_tiers_whose_size_is_known(words: str, expected: str) -> None:
    text = render_nodes(fewest_of(f"model=13b parallelism=zero3_offload {words}"), config_of(f"model=13b {words}"))
    assert f" for 13b: 1, with {expected}\n" in text
    assert ("note: hardware.host_memory_gib is not stated" in text) == ("host_memory_gib=null" in words)
    assert ("note: hardware.gpu_memory_gib not stated: 79.2, what" in text) == ("gpu_memory_gib=null" in words)


def test_counts_hold_whole_replicas_and_divide_the_batch() -> None:
    words = (
        "model=175b parallelism=megatron_3d parallelism.tensor_parallel_size=8 parallelism.pipeline_parallel_size=12"
    )
    assert possible_counts(config_of(words), 40) == (12, 24, 36)
    # A replica is 12 nodes; 48 sequences in micro batches of 4 are 12 ranks at most, and 12 / 5 is no number.
    batch = f"{words} training.global_batch_size=48 training.micro_batch_size=4"
    assert possible_counts(config_of(batch), 100) == (12, 24, 36, 48, 72)
    answer = fewest_of(batch, 100)
    assert answer.fewest is not None and answer.fewest.nodes in (12, 24, 36)
    assert not answer.refused


def test_of_a_whole_stated_batch_one_data_parallel_degree_is_left() -> None:
    """23,040 sequences in 4 micro batches of 1 are 5,760 ranks, the only count: the 30th of those that divide the batch."""
    batch = (
        f"{WORDS} training.global_batch_size=23040 training.micro_batch_size=1 training.gradient_accumulation_steps=4"
    )
    assert possible_counts(config_of(batch), 1024) == (720,)
    answer = fewest_of(batch, 1024)
    assert answer.fewest is not None and answer.fewest.nodes == 720
    assert not answer.refused
    assert possible_counts(config_of(f"{batch} training.micro_batch_size=7"), 1024) == (), "23,040 / 28 is no number"


def test_open_degrees_share_a_small_batch() -> None:
    """Two sequences are two ranks at most where nothing splits a model, a quarter of a node; split models fill it."""
    config = config_of(f"{WORDS} training.global_batch_size=2")
    assert possible_counts(config, 8) == ()
    assert possible_counts(config, 8, ["parallelism.tensor_parallel_size"]) == (1, 2)
    assert possible_counts(config, 8, ["parallelism.pipeline_parallel_size"]) == (1, 2, 3, 4, 6, 8), "96 layers"


def test_more_nodes_that_do_not_fit_are_not_too_few() -> None:
    """Where batch, micro batch and accumulation are stated, more nodes split the model more, which may fit worse."""
    words = (
        f"{WORDS} training.global_batch_size=1536 training.micro_batch_size=1 training.gradient_accumulation_steps=24"
    )

    def odd_multiples_of_two_fit(config: Config) -> RunPlan:
        fits = config.nodes in (8, 16)
        return build_run_plan(config_of(f"model={'125m' if fits else '2t'} parallelism=zero3 nodes={config.nodes}"))

    answer = fewest_nodes(config_of(words), odd_multiples_of_two_fit, 32, ["parallelism.pipeline_parallel_size"])
    assert answer.fewest is not None and answer.fewest.nodes == 8, "neither the first that fits by doubling nor none"
    lines = render_nodes(answer, config_of(words)).splitlines()
    marks = {line[:12].strip() for line in lines if line.endswith("GiB")}
    assert marks == {"fewest", "", "does not fit"}


def test_counts_that_break_a_rule_are_passed_over_and_told() -> None:
    """Here all odd counts do."""

    def even_only(config: Config) -> RunPlan:
        plan = build_run_plan(config)
        if config.nodes % 2 == 0:
            return plan
        odd = Problem("nodes", str(config.nodes), "must be even", "one more")
        return dataclasses.replace(plan, problems=(odd, *plan.problems))

    answer = fewest_nodes(config_of(WORDS), even_only, 64)
    assert answer.fewest is not None and answer.fewest.nodes % 2 == 0
    assert answer.fewest.nodes - (fewest_of(WORDS).fewest or answer.fewest).nodes in (0, 1)
    assert all(nodes % 2 == 0 for nodes in answer.tried)
    assert {rule for _, rule in answer.refused} == {
        f"nodes={nodes}: must be even; one more" for nodes, _ in answer.refused
    }
    assert "must be even" in render_nodes(answer, config_of(WORDS))


def test_none_is_enough() -> None:
    answer = fewest_of(WORDS, 4)
    assert answer.fewest is None
    assert answer.more == ()
    assert answer.nearest is not None and answer.nearest.nodes == 4
    text = render_nodes(answer, config_of(WORDS))
    assert "none of at most 4" in text
    assert "nodes=4: memory.gpu=" in text


@pytest.mark.parametrize(
    ("words", "max_nodes", "expected"),
    [
        (
            "model=175b parallelism=tensor parallelism.tensor_parallel_size=5",
            64,
            ["tensor_parallel_size=5", "must divide"],
        ),
        (
            f"{WORDS} parallelism.zero_stage=1 parallelism.pipeline_parallel_size=96",
            4,
            ["--max-nodes=4", "one replica needs"],
        ),
        (f"{WORDS} training.global_batch_size=7", 64, ["--max-nodes=64", "training.global_batch_size"]),
        ("model=tiny cluster=local parallelism=zero3", 64, ["hardware.host_memory_gib=null"]),
    ],
    ids=["rule", "replica", "batch", "no-memory"],
)
def test_no_answer_is_told_with_its_reason(words: str, max_nodes: int, expected: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        fewest_of(words, max_nodes)
    assert error.value.exit_code == 2
    assert all(text in str(error.value) for text in expected)
