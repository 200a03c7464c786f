"""Which changes are offered: no cheaper ones are missed, none is needless, and what is told of them."""

from __future__ import annotations

import itertools

import pytest

from hpctrain.plan.changes.levers import levers, with_values
from hpctrain.plan.changes.render import change_text
from hpctrain.plan.run_plan import build_run_plan
from tests.plan.test_changes import A100, REFUSED, changes_of, planned


def test_more_nodes_are_looked_at_where_all_else_is_dear() -> None:
    """Offload of 70B parameters on one node takes 14 times the GPU-hours; recomputation beside more nodes less than twice."""
    first, *_, last = changes_of(*REFUSED["one-node"]).changes
    assert first.kinds == ("recomputation", "more nodes")
    assert first.gpu_hours_factor is not None
    assert first.gpu_hours_factor < 2
    assert first.num_nodes <= 8
    assert last.num_nodes == 1, "not everybody gets more"


@pytest.mark.parametrize("name", ["two-at-once", "milder-together", "accumulation", "ratio"])
def test_no_two_settings_on_as_many_nodes_are_cheaper_than_the_first(name: str) -> None:
    """By more than what predictions tell apart; held against every pair of settings, planned one by one."""
    point, plan = planned(*REFUSED[name])
    assert plan.prediction is not None
    of_kinds = [lever.settings for lever in levers(point.config, plan)]
    alone = [values for settings in of_kinds for values in settings]
    pairs = [
        first | second
        for one, other in itertools.combinations(of_kinds, 2)
        for first, second in itertools.product(one, other)
        if not first.keys() & second.keys()
    ]
    fastest = 0.0
    for values in (*alone, *pairs):
        changed = build_run_plan(with_values(point.config, values))
        if not changed.problems and changed.memory.fits_with_headroom and changed.prediction is not None:
            fastest = max(fastest, changed.prediction.tokens_per_s)
    first = changes_of(*REFUSED[name]).changes[0]
    assert first.gpu_hours_factor is not None
    assert first.gpu_hours_factor <= 1.1 * plan.prediction.tokens_per_s / fastest


@pytest.mark.parametrize("name", REFUSED)
def test_one_change_at_least_needs_no_more_nodes(name: str) -> None:
    """Where there is any; 530B parameters on 64 GPUs and 175B on 16 need more, or the optimizer on the host."""
    nodes = planned(*REFUSED[name])[1].layout.num_nodes
    changes = changes_of(*REFUSED[name]).changes
    assert any(change.num_nodes == nodes for change in changes) or name in ("states", "host")


def test_what_takes_a_part_of_another_and_costs_as_little_stands_alone() -> None:
    """Stage 3 on fewer nodes has what the parameters on the host have, at the same price."""
    words = ("model=llama3_405b", "nodes=16", "hardware=dgx_h100", "parallelism=tensor")
    kinds = [change.kinds for change in changes_of(*words).changes]
    assert ("ZeRO stage", "more nodes") in kinds
    assert not any("parameters on the host" in of_change for of_change in kinds)


def test_what_barely_fits_is_no_change() -> None:
    """All inputs on the host leave 15 MiB of a GPU here."""
    words = (
        "model=llama3_8b",
        "nodes=1",
        "parallelism=zero2",
        A100,
        "training.seq_len=131072",
        "training.micro_batch_size=2",
    )
    barely = ("parallelism=zero3", "training.activation_checkpointing=full", "training.offload_activations=true")
    _, plan = planned(*words, *barely)
    assert not plan.problems
    assert plan.memory.gpu_capacity_bytes is not None
    assert plan.memory.gpu_bytes > 0.98 * plan.memory.gpu_capacity_bytes, "the case shows nothing"
    changes = changes_of(*words).changes
    assert changes
    for change in changes:
        assert set(change.overrides) != set(barely)
        assert change.gpu_free_bytes is not None
        assert change.gpu_free_bytes >= 0.02 * plan.memory.gpu_capacity_bytes


def test_less_than_a_tenth_free_is_told() -> None:
    changes = changes_of(
        "model=llama3_70b", "nodes=3", "parallelism=zero3", A100, "training.micro_batch_size=6"
    ).changes
    assert {change.has_headroom for change in changes} == {True, False}
    for change in changes:
        assert ("free, less than a tenth" in change_text(change)) == (not change.has_headroom)
