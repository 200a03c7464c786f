"""The cheapest changes of a refused plan: each one really fits, is as mild as can be, and costs what it says."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from hpctrain.config.compose import Point, compose_points
from hpctrain.launch.point_plans import plan_points
from hpctrain.plan.changes.change import Changes
from hpctrain.plan.changes.cheapest import cheapest_changes, is_short_of_memory
from hpctrain.plan.changes.levers import ACCUMULATION, MICRO, levers
from hpctrain.plan.changes.render import change_text, refusal, render_changes, with_changes
from hpctrain.plan.changes.trials import MOST_LOOKS
from hpctrain.plan.memory.estimate import ASK_THE_PLAN
from hpctrain.plan.memory.terms import MemoryTerm
from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.plan.site.limits import NodeGroup
from hpctrain.units import GIB
from tests.plan.sites import A100 as NODE
from tests.plan.sites import partition, site

A100 = "hardware=ndm_a100_v4"


@functools.cache
def planned(*words: str) -> tuple[Point, RunPlan]:
    (point,) = compose_points(words, multirun=False)
    return point, build_run_plan(point.config, point.assumptions)


@functools.cache
def changes_of(*words: str) -> Changes:
    point, plan = planned(*words)
    assert {problem.kind for problem in plan.problems} - {"rate"} == {"memory"}, plan.problems
    return cheapest_changes(point.config, plan)


REFUSED = {
    "states": ("model=530b", "nodes=8", "parallelism=zero3", A100),
    "few-nodes": ("model=175b", "nodes=2", "parallelism=zero3", A100),
    "activations": (
        *("model=2t", "nodes=128", "parallelism=zero3", A100),
        *("training.micro_batch_size=8", "training.seq_len=1024"),
    ),
    "no-sharding": ("model=13b", "nodes=1", "parallelism=ddp", A100),
    "host": ("model=175b", "nodes=2", "parallelism=zero3_offload", A100),
    "two-at-once": (
        *("model=llama3_70b", "nodes=2", "parallelism=zero2", "hardware=dgx_h100"),
        *("training.micro_batch_size=4", "training.activation_checkpointing=none"),
    ),
    "stated-batch": (
        *("model=530b", "nodes=70", "parallelism=megatron_3d", A100),
        *("training.micro_batch_size=64", "training.global_batch_size=1024"),
    ),
    "accumulation": (
        *("model=6.7b", "nodes=1", "parallelism=zero2", A100, "training.micro_batch_size=64"),
        "training.gradient_accumulation_steps=3",
    ),
    "loss": (
        *("model=llama3_8b", "nodes=1", "parallelism=zero3", A100, "training.micro_batch_size=8"),
        *("training.loss_chunk_size=0", "training.activation_checkpointing=full"),
    ),
    "second-partition": ("model=175b", "nodes=8", "parallelism=zeropp", A100, "training.micro_batch_size=1"),
    "one-node": (
        *("model=llama3_70b", "nodes=1", "hardware=dgx_h100", "parallelism=tensor", "training.micro_batch_size=1"),
        "training.activation_checkpointing=none",
    ),
    "pipeline": (
        *("model=175b", "nodes=4", "parallelism=megatron_3d", A100),
        *("parallelism.pipeline_parallel_size=4", "training.global_batch_size=512"),
    ),
    "long": ("model=llama3_8b", "nodes=1", "parallelism=zero3", A100, "training.seq_len=1048576"),
    "milder-together": (
        *("model=13b", "nodes=1", "parallelism=zero2", A100),
        *("training.micro_batch_size=8", "training.activation_checkpointing=none"),
    ),
    "ratio": (
        *("model=175b", "nodes=4", "parallelism=zero3", A100, "training.micro_batch_size=1"),
        *("parallelism.offload_optimizer=cpu", "parallelism.offload_ratio=0.1"),
    ),
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED)
def test_each_change_really_fits(words: tuple[str, ...]) -> None:
    found = changes_of(*words)
    assert 1 <= len(found.changes) <= 3
    assert found.num_looks <= MOST_LOOKS + 10, "the last search under way is ended"
    assert len({change.kinds for change in found.changes}) == len(found.changes), "each of another kind"
    _, before = planned(*words)
    for change in found.changes:
        _, plan = planned(*words, *change.overrides)
        assert plan.problems == (), change
        assert change.has_headroom == plan.memory.fits_with_headroom
        capacity = plan.memory.gpu_capacity_bytes
        assert capacity is not None
        assert change.gpu_free_bytes == capacity - plan.memory.gpu_bytes >= 0
        assert (change.micro_batch_size, change.global_batch_size) == (
            plan.batch.micro_batch_size,
            plan.batch.global_batch_size,
        )
        if change.gpu_hours_factor is None:
            assert change.gap
            continue
        assert plan.prediction is not None
        assert before.prediction is not None
        rates = [each.prediction.tokens_per_s / each.layout.world_size for each in (plan, before) if each.prediction]
        assert change.gpu_hours_factor == pytest.approx(rates[1] / rates[0])
        assert change.speed_factor == pytest.approx(plan.prediction.tokens_per_s / before.prediction.tokens_per_s)


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED)
def test_the_cheapest_comes_first_and_without_a_price_the_last(words: tuple[str, ...]) -> None:
    prices = [
        round(change.gpu_hours_factor * (1.0 if change.has_headroom else 1.1), 2)
        for change in changes_of(*words).changes
        if change.gpu_hours_factor is not None
    ]
    assert prices == sorted(prices)
    known = [change.gpu_hours_factor is not None for change in changes_of(*words).changes]
    assert known == sorted(known, reverse=True)


def test_the_2t_point_needs_its_activations_and_its_optimizer_on_the_host() -> None:
    """DeepSpeed on Azure says so of its 2T run: layer checkpoints alone take 86 GB."""
    first = changes_of(*REFUSED["activations"]).changes[0]
    assert set(first.overrides) == {
        "training.activation_checkpointing=full",
        "training.offload_activations=true",
        "parallelism=zero_cache",
    }
    assert first.holds_global_batch


def test_more_nodes_are_the_fewest_that_keep_a_tenth_free() -> None:
    words = ("model=175b", "nodes=2", "parallelism=zero3", A100)
    (change,) = (each for each in changes_of(*words).changes if each.kinds == ("more nodes",))
    (override,) = change.overrides
    nodes = int(override.removeprefix("nodes="))
    assert planned(*words, f"nodes={nodes}")[1].memory.fits_with_headroom
    assert not planned(*words, f"nodes={nodes - 1}")[1].memory.fits_with_headroom


def test_a_smaller_micro_batch_is_the_largest_that_keeps_a_tenth_free_and_holds_the_batch() -> None:
    words = REFUSED["loss"]
    (change,) = (each for each in changes_of(*words).changes if each.kinds == ("micro batch",))
    _, plan = planned(*words, *change.overrides)
    assert change.holds_global_batch
    assert plan.batch.global_batch_size == planned(*words)[1].batch.global_batch_size == 8 * 8
    larger = 2 * plan.batch.micro_batch_size
    assert not planned(*words, f"training.micro_batch_size={larger}")[1].memory.fits_with_headroom


def test_a_stated_accumulation_grows_as_the_micro_batch_shrinks() -> None:
    point, plan = planned(*REFUSED["accumulation"])
    (lever,) = (lever for lever in levers(point.config, plan) if lever.kind == "micro batch")
    assert lever.settings[0] == {MICRO: 32, ACCUMULATION: 6}
    assert lever.settings[-1] == {MICRO: 1, ACCUMULATION: 192}


def test_with_a_form_just_chosen_a_smaller_micro_batch_holds_the_batch_by_its_size() -> None:
    """An accumulation would be that of one form."""
    words = ("model=13b", "training.micro_batch_size=128", "training.activation_checkpointing=none", A100)
    ((point, plan),) = plan_points(compose_points(words, multirun=False))
    (change,) = (each for each in cheapest_changes(point.config, plan).changes if each.kinds == ("micro batch",))
    assert f"training.global_batch_size={plan.batch.global_batch_size}" in change.overrides
    assert change.holds_global_batch
    assert change.global_batch_size == plan.batch.global_batch_size


def test_what_is_on_already_is_not_offered() -> None:
    offered = {word for change in changes_of(*REFUSED["host"]).changes for word in change.overrides}
    assert not offered & {"parallelism=zero3", "parallelism.offload_param=cpu", "parallelism.offload_optimizer=cpu"}
    fitted = {"parallelism=zero_cache", "parallelism.fit_offload_ratio=true"}
    assert offered & fitted, "as much of the optimizer on the GPU as fits"


def test_a_shipped_form_is_offered_by_its_name_so_that_the_run_is_called_by_it() -> None:
    first = changes_of(*REFUSED["no-sharding"]).changes[0]
    assert first.overrides == ("parallelism=zero3",), "faster than stages 1 and 2, which have to recompute"
    assert planned(*REFUSED["no-sharding"], *first.overrides)[1].name == "13b-1n-zero3"


def test_what_was_typed_of_a_form_is_typed_anew_behind_its_name() -> None:
    """``parallelism=zero_cache`` alone would leave the ratio of a typed ``fit_offload_ratio=false``, and be another plan."""
    words = (
        "model=llama3_70b",
        "nodes=2",
        "hardware=hccpnv4h",
        "parallelism=zero1",
        "parallelism.fit_offload_ratio=false",
    )
    point, plan = planned(*words)
    _, changes = with_changes(point.config, plan, words=words)
    assert changes is not None
    of_cache = [each for each in changes.changes if "parallelism=zero_cache" in each.overrides]
    assert of_cache
    for change in of_cache:
        assert change.overrides[:2] == ("parallelism=zero_cache", "parallelism.fit_offload_ratio=true")
        kept = [word for word in words if not word.startswith(("parallelism=", "parallelism.fit", "nodes="))]
        of_nodes = [] if any(word.startswith("nodes=") for word in change.overrides) else ["nodes=2"]
        found = planned(*kept, *of_nodes, *change.overrides)[1].prediction
        assert found is not None
        assert found.step_time_s == pytest.approx(change.step_time_s)


def test_nvme_is_offered_where_its_folder_is_stated() -> None:
    words = ("model=llama3_405b", "nodes=2", "parallelism=zero3_offload", "hardware=dgx_h100")
    with_folder = {kind for change in changes_of(*words).changes for kind in change.kinds}
    without = changes_of(*words, "hardware.nvme_path=null").changes
    assert any("NVMe" in kind for kind in with_folder)
    assert not any("NVMe" in kind for change in without for kind in change.kinds)


def test_without_a_prediction_the_least_invasive_comes_first() -> None:
    changes = changes_of(*REFUSED["loss"], "hardware.gpu_memory_gb_per_s=null").changes
    assert [change.gpu_hours_factor for change in changes] == [None] * 3
    assert [change.kinds for change in changes[:2]] == [("loss chunks",), ("micro batch",)], (
        "before degrees and offload"
    )
    assert all("does not state hardware.gpu_memory_gb_per_s" in change_text(change) for change in changes)


def test_a_change_needs_no_rate_that_nobody_states() -> None:
    words = ("model=28b", "nodes=1", "parallelism=zero3", "hardware=hccpnv4h", "training.seq_len=1024")
    offered = {kind for change in changes_of(*words).changes for kind in change.kinds}
    assert "optimizer on the host" in offered
    without = changes_of(*words, "hardware.host_memory_gb_per_s=null").changes
    assert not any("optimizer on the host" in change.kinds for change in without)


def test_ranks_on_a_processor_can_be_fewer() -> None:
    words = ("model=350m", "cluster=local", "hardware=cpu", "parallelism=ddp", "training.micro_batch_size=1")
    _, plan = planned(*words, "hardware.gpus_per_node=4")
    half = plan.memory.host_bytes_per_node / GIB / 2
    changes = changes_of(*words, "hardware.gpus_per_node=4", f"hardware.host_memory_gib={half:.2f}").changes
    kinds = {kind for change in changes for kind in change.kinds}
    assert kinds & {"fewer ranks", "ZeRO stage"}
    assert not any("nodes" in word for change in changes for word in change.overrides), "cluster=local is one machine"


def test_where_nothing_helps_it_says_so() -> None:
    found = changes_of(
        "model=6.7b", "cluster=local", "hardware=cpu", "hardware.host_memory_gib=20", "parallelism=zero3"
    )
    assert found.changes == ()
    assert f"makes it fit, alone or with others ({found.num_looks} estimates); a smaller model" in render_changes(found)


def test_a_plan_with_other_problems_gets_none() -> None:
    point, plan = planned(*REFUSED["states"], "parallelism.tensor_parallel_size=3")
    assert {problem.kind for problem in plan.problems} > {"config"} or not is_short_of_memory(plan)
    assert with_changes(point.config, plan) == (plan, None)
    assert "changes" not in str(refusal(point.config, plan))


def test_beside_a_broken_rule_the_memory_points_to_nothing_that_is_not_there() -> None:
    point, plan = planned(*REFUSED["states"], "training.min_learning_rate=1")
    assert {problem.kind for problem in plan.problems} == {"config", "memory"}
    told, changes = with_changes(point.config, plan)
    assert changes is None
    (memory,) = (problem for problem in told.problems if problem.kind == "memory")
    assert memory.fix == "what makes it fit is named once no other rule is broken"


def test_what_a_rehearsal_found_beyond_the_rules_counts_in_every_change() -> None:
    point, plan = planned("model=175b", "nodes=8", "parallelism=zero3", A100, "training.micro_batch_size=4")
    assert plan.problems == ()
    more = MemoryTerm("other", 40 * GIB, "gpu", "rehearsal of rank 0")
    memory = dataclasses.replace(plan.memory, terms=(*plan.memory.terms, more), found_by="rehearsal")
    rehearsed = dataclasses.replace(plan, memory=memory, problems=memory.problems())
    found = cheapest_changes(point.config, rehearsed)
    assert found.changes
    for change in found.changes:
        words = (*point.overrides, *change.overrides)
        _, changed = planned(*(word.lstrip("+") for word in words))
        capacity = changed.memory.gpu_capacity_bytes
        assert capacity is not None
        assert change.gpu_free_bytes == capacity - changed.memory.gpu_bytes - 40 * GIB >= 0
    assert "what the rehearsal found beyond them, not rehearsed" in render_changes(found)


def test_what_was_chosen_of_the_batch_may_be_chosen_anew() -> None:
    """The frozen choice of parallelism=auto: one that fits nowhere has the smallest batch, which more nodes need not keep."""
    words = ("model=530b", "nodes=8", "parallelism=zero3", A100)
    stated = ("training.micro_batch_size=1", "training.activation_checkpointing=full")
    point, plan = planned(*words, *stated)
    keys = tuple(word.partition("=")[0] for word in stated)
    config = dataclasses.replace(point.config, run=dataclasses.replace(point.config.run, chosen=keys))
    found = cheapest_changes(config, plan)
    assert found == changes_of(*words)
    assert "chosen anew" not in render_changes(found)
    of_form = dataclasses.replace(config.run, chosen=(*keys, "parallelism.zero_stage"))
    with_form = cheapest_changes(dataclasses.replace(config, run=of_form), plan)
    assert with_form == found, "a frozen form stays"


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("model=175b", "nodes=1"), id="nothing-stated"),
        pytest.param(("model=175b", "nodes=1", "training.global_batch_size=48"), id="stated-batch"),
        pytest.param(
            ("model=13b", "training.micro_batch_size=128", "training.activation_checkpointing=none"), id="stated-micro"
        ),
    ],
)
def test_with_a_form_just_chosen_each_change_is_told_as_its_words_would_plan_it(words: tuple[str, ...]) -> None:
    def auto(*more: str) -> tuple[Point, RunPlan]:
        (planned,) = plan_points(compose_points([*words, A100, *more], multirun=False))
        return planned

    point, plan = auto()
    assert plan.choice is not None
    found = cheapest_changes(point.config, plan)
    assert found.changes
    assert "predicted; with each the form is chosen anew)" in render_changes(found)
    for change in found.changes:
        _, changed = auto(*change.overrides)
        assert not changed.problems, change
        assert changed.prediction is not None
        assert changed.memory.gpu_capacity_bytes is not None
        assert change.gpu_free_bytes == changed.memory.gpu_capacity_bytes - changed.memory.gpu_bytes
        assert change.tokens_per_s == pytest.approx(changed.prediction.tokens_per_s)
        assert change.global_batch_size == changed.batch.global_batch_size


def test_with_a_form_just_chosen_the_fewest_nodes_are_those_of_the_question() -> None:
    """175B needs three nodes with the form that is nearest to fitting on one, and two with another."""
    (planned,) = plan_points(compose_points(["model=175b", "nodes=1", A100], multirun=False))
    found = cheapest_changes(planned[0].config, planned[1])
    assert ("nodes=2",) in [change.overrides for change in found.changes]
    hours = [change.gpu_hours_factor for change in found.changes]
    assert hours == sorted(hours, key=lambda each: each or 0.0), "four nodes cost fewer GPU-hours"


def test_the_words_of_a_refusal() -> None:
    point, plan = planned(*REFUSED["few-nodes"])
    assert plan.problems[0].fix == ASK_THE_PLAN, "in a table of many"
    text = str(refusal(point.config, plan))
    lines = text.splitlines()
    assert "short by" in lines[0]
    assert lines[0].endswith("; --force submits all the same")
    assert lines[1].startswith(
        "changes that make it fit, the cheapest first (speed against this plan as it stands, predicted"
    )
    assert len(lines) == 5
    (nodes,) = (line for line in lines if line.startswith("  nodes="))
    for part in ("(fits with ", " GiB a GPU free; ", " times as fast, ", " GPU-hours; global batch then "):
        assert part in nodes
    assert refusal(point.config, plan).exit_code == 3


def test_no_more_nodes_are_offered_than_a_partition_has() -> None:
    point, plan = planned(*REFUSED["few-nodes"])
    few = site(partition("gpu", NodeGroup(NODE, 4), is_default=True))
    found = cheapest_changes(point.config, plan, few)
    nodes = [
        int(word.removeprefix("nodes=")) for change in found.changes for word in change.overrides if "nodes=" in word
    ]
    assert nodes
    assert max(nodes) <= 4 < 6, "six are the fewest by memory alone"


@pytest.mark.parametrize(
    ("num_nodes", "expected"), [(8, {"nodes=8", "nodes=6"}), (7, {"nodes=7", "nodes=6"}), (5, set())]
)
def test_with_a_form_just_chosen_too_no_more_nodes_than_a_partition_has(num_nodes: int, expected: set[str]) -> None:
    """530B takes six."""
    ((point, plan),) = plan_points(compose_points(["model=530b", "nodes=3", A100], multirun=False))
    few = site(partition("gpu", NodeGroup(NODE, num_nodes), is_default=True))
    offered = {word for change in cheapest_changes(point.config, plan, few).changes for word in change.overrides}
    assert offered <= expected
    assert ("nodes=6" in offered) == (num_nodes >= 6)
