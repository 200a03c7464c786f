"""Two depths to many: exact where things are linear, and told where they are not."""

from __future__ import annotations

import dataclasses

import pytest

from hpctrain.rehearse.depths import quick_depths
from hpctrain.rehearse.extrapolate import extrapolated, linearity
from tests.rehearse.make_rehearsal import make_rehearsal, tier_phase
from tests.rehearse.rehearsals import GPT, NO_WINDOWS, make_plan


def test_linear_numbers_are_exact() -> None:
    found = extrapolated(make_rehearsal(2), make_rehearsal(4), make_rehearsal(6), 105, 105_000, 580.0)
    whole = make_rehearsal(105)
    assert found.memory == whole.memory
    assert found.collectives == whole.collectives
    assert found.flops == whole.flops
    assert (found.num_layers, found.num_parameters, found.way) == (105, 105_000, "quick")
    assert [(group.count, group.num_bytes) for group in found.largest] == [(105, 90 * 105)]
    assert found.timeline.num_layers == 6
    assert found.linearity is not None
    assert found.linearity.worst_deviation == found.linearity.largest_peak_deviation == 0


def test_what_is_not_linear_is_told() -> None:
    deep = make_rehearsal(6)
    bent = tuple(
        tier_phase({"activations": 2 * row.peak_bytes}, row.resting_by_owner, 2, "backward")
        if (row.step, row.phase) == (2, "backward")
        else row
        for row in deep.memory
    )
    check = linearity(make_rehearsal(2), make_rehearsal(4), dataclasses.replace(deep, memory=bent))
    assert check.worst_deviation == check.largest_peak_deviation == pytest.approx(0.5)
    assert check.worst_quantity == "gpu peak, backward of step 2"
    assert (check.depths, check.checked_depth) == ((2, 4), 6)


def test_numbers_that_shrink_do_not_go_below_zero() -> None:
    shrinking = {
        layers: make_rehearsal(layers, memory=(tier_phase({"buffers": 1000 - 100 * layers}, {}, 2, "backward"),))
        for layers in (2, 4, 6)
    }
    found = extrapolated(shrinking[2], shrinking[4], shrinking[6], 105, 1, 1.0)
    assert found.memory[0].peak_bytes == 0


LARGE_LAYER = GPT | {"num_layers": 40, "hidden_size": 4096}  # 201 M elements a layer


@pytest.mark.parametrize(
    ("parallelism", "depths"),
    [
        (NO_WINDOWS, (2, 4, 6)),
        ({}, (6, 8, 10)),  # 1e9 elements are kept: five layers
        (NO_WINDOWS | {"max_live_parameters": 2_000_000_000}, (10, 12, 14)),
        (NO_WINDOWS | {"sub_group_size": 100_000_000}, (8, 10, 12)),  # 16 ranks x 1e8: eight layers
    ],
    ids=["no windows", "defaults", "larger window", "sub-groups"],
)
def test_depths_lie_beyond_the_engines_windows(parallelism: dict[str, int], depths: tuple[int, int, int]) -> None:
    found = quick_depths(
        make_plan(3, model=LARGE_LAYER, parallelism=parallelism, micro_batch_size=1, activation_checkpointing="full")
    )
    assert found is not None
    assert found.all == depths


def test_a_model_that_is_hardly_deeper_is_rehearsed_whole() -> None:
    assert quick_depths(make_plan(3, model=GPT | {"num_layers": 6}, parallelism=NO_WINDOWS)) is None
    assert quick_depths(make_plan(3, model=GPT | {"num_layers": 8})) is None  # the windows are wider than the model
