"""Real rehearsals of every form of parallelism together, of many micro batches, and of quantized gathers, counted by hand."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hpctrain.rehearse.render import render_rehearsal
from hpctrain.rehearse.result import Rehearsal, read_rehearsal, write_rehearsal
from tests.rehearse.rehearsals import GPT, NO_WINDOWS, WORLD_SIZE, conduct, make_plan, make_request, rehearse

pytestmark = pytest.mark.train

HIDDEN, VOCAB, SEQ, MICRO = GPT["hidden_size"], GPT["vocab_size"], GPT["max_seq_len"], 2
MANY: dict[str, Any] = {"gradient_accumulation_steps": 20}
THREE_D = make_plan(
    1, model=GPT | {"num_layers": 4}, parallelism={"tensor_parallel_size": 2, "pipeline_parallel_size": 4}, **MANY
)
"""16 ranks: 2 x 4 x 2 replicas; four ranks a stage."""
SMALL = 8 * 1024


@cache
def three_d() -> Rehearsal:
    return conduct([make_request(THREE_D, rank=rank) for rank in (0, 4, 12)])


def resting(found: Rehearsal, owner: str) -> int:
    (row,) = (row for row in found.rows("gpu", found.reported_step) if row.phase == "optimizer")
    return row.resting_by_owner.get(owner, 0)


def sent(found: Rehearsal) -> dict[tuple[str, str, int], tuple[int, int]]:
    """Count and bytes by kind, phase and ranks."""
    return {
        (row.kind, row.phase, row.group_size): (row.count, row.num_bytes)
        for row in found.step_collectives()
        if row.num_bytes > 64
    }


def test_the_fullest_stage_is_reported_and_the_others_are_in_it() -> None:
    found = three_d()
    stages = found.of_all_stages()
    assert [(each.stage, each.rank) for each in stages] == [(0, 0), (1, 4), (3, 12)]
    assert {each.num_stages for each in stages} == {4}
    peaks = {}
    for each in stages:
        peak = each.peak("gpu")
        assert peak is not None
        peaks[each.stage] = peak.peak_bytes
    assert peaks[found.stage] == max(peaks.values())
    text = render_rehearsal(found)
    for each in stages:
        assert f"{each.stage + 1} of 4" in text
    assert f"(stage {found.stage + 1} of 4, the fullest of those below)" in text


def test_each_stage_holds_its_layers_and_its_share_of_them() -> None:
    first, second, last = three_d().of_all_stages()
    # Of a block each tensor-parallel rank has half of four matrices and of the biases that go with their columns.
    matrices = (3 * HIDDEN * HIDDEN + HIDDEN * HIDDEN + 2 * HIDDEN * 4 * HIDDEN) // 2
    vectors = (3 * HIDDEN + 4 * HIDDEN) // 2 + (HIDDEN + HIDDEN) + 4 * HIDDEN
    block, table = matrices + vectors, VOCAB * HIDDEN // 2
    expected = {0: block + table + SEQ * HIDDEN, 1: block, 3: block + table + 2 * HIDDEN}
    for each in (first, second, last):
        own = expected[each.stage]
        assert resting(each, "parameters") == pytest.approx(2 * own, abs=SMALL)
        assert resting(each, "optimizer") == pytest.approx(12 * own / 2, abs=SMALL)  # two replicas share the states


def test_stages_hand_on_half_of_the_activations_each_and_gather_the_rest() -> None:
    first, second, last = three_d().of_all_stages()
    activations = 2 * MICRO * SEQ * HIDDEN
    meta = 8 * (1 + 3 + 1 + 1 + 3)  # dimensions, sizes, parts, own part, where parts begin and end: int64
    for each, kinds in (
        (first, {("send", "forward"), ("recv", "backward")}),
        (second, {("send", "forward"), ("recv", "backward"), ("recv", "forward"), ("send", "backward")}),
        (last, {("recv", "forward"), ("send", "backward")}),
    ):
        found = sent(each)
        assert {(kind, phase) for kind, phase, _ in found if kind in ("send", "recv")} == kinds
        for kind, phase in kinds:
            assert found[kind, phase, 2] == (2 * 20, 20 * (activations // 2 + meta))
    assert sent(second)["all_gather", "forward", 2] == (20, 20 * activations)


def test_a_rehearsal_with_others_is_read_back(tmp_path: Path) -> None:
    found = three_d()
    assert read_rehearsal(write_rehearsal(tmp_path, found)) == found
    assert len(found.others) == 2


ACCUMULATING = {
    "zero2, offload": (make_plan(2, parallelism={"offload_optimizer": "cpu"}, **MANY), 15),
    "zero3": (make_plan(3, **MANY), 0),
    "second stage of four": (THREE_D, 4),
}


@pytest.mark.parametrize("case", ACCUMULATING)
def test_a_few_micro_batches_say_what_all_of_them_do(case: str) -> None:
    plan, rank = ACCUMULATING[case]
    request = make_request(plan, rank=rank)
    few = conduct([request])
    whole = conduct([dataclasses.replace(request, all_micro_batches=True)])
    assert whole.accumulation is None
    assert few.accumulation is not None
    assert few.accumulation.micro_batches == 20
    assert few.accumulation.rehearsed[0] < 6
    assert few.accumulation.counts_deviation == few.accumulation.memory_deviation == 0
    assert few.rows("gpu") == whole.rows("gpu")
    assert few.rows("host") == whole.rows("host")
    assert sorted(few.step_collectives(), key=repr) == sorted(whole.step_collectives(), key=repr)
    assert few.flops == whole.flops


def test_the_last_stage_keeps_one_number_of_each_micro_batch() -> None:
    plan = make_plan(1, parallelism={"pipeline_parallel_size": 2}, **MANY)
    found = rehearse(plan, rank=WORLD_SIZE - 1)
    assert found.accumulation is not None
    assert found.accumulation.counts_deviation == 0
    peak = found.peak("gpu")
    assert peak is not None
    # The losses, 512 bytes each on a GPU, of the two steps that have one and two micro batches more.
    assert found.accumulation.memory_deviation == pytest.approx(2 * 512 / peak.peak_bytes, rel=1e-6)


WIDE: dict[str, Any] = GPT | {"hidden_size": 512, "vocab_size": 2048}
"""Groups of the quantizer are about 8,000 elements, so that their scales are few."""


@cache
def wide(**parallelism: Any) -> Rehearsal:
    return rehearse(make_plan(3, model=WIDE, parallelism=NO_WINDOWS | parallelism))


def bytes_of(found: Rehearsal, kind: str, phase: str, group_size: int = WORLD_SIZE) -> int:
    return sum(
        row.num_bytes
        for row in found.step_collectives()
        if (row.kind, row.phase, row.group_size) == (kind, phase, group_size)
    )


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_quantized_weights_are_gathered_in_half_of_the_bytes(phase: str) -> None:
    plain, quantized = (bytes_of(wide(**keys), "all_gather", phase) for keys in ({}, {"quantized_weights": True}))
    # One byte an element instead of two, and a scale of four bytes for 4,000 to 16,000 elements.
    assert 0.5 * plain < quantized < (0.5 + 4 / 4000 / 2 + 0.001) * plain


def test_quick_takes_depths_of_each_stage() -> None:
    plan = make_plan(
        1,
        nodes=1,
        model=GPT | {"num_layers": 20},
        parallelism={"pipeline_parallel_size": 2, "reduce_bucket_size": 200_000},
        activation_checkpointing="full",
        gradient_accumulation_steps=2,
    )
    quick, whole = rehearse(plan, "quick", rank=4), rehearse(plan, rank=4)
    assert quick.linearity is not None
    assert (quick.linearity.depths, quick.linearity.checked_depth) == ((4, 6), 8)
    assert (quick.way, quick.num_layers, quick.stage) == ("quick", 20, 1)
    assert quick.flops == whole.flops
    for row in quick.rows("gpu", 2):
        (same,) = (other for other in whole.rows("gpu", 2) if other.phase == row.phase)
        assert row.resting_bytes == pytest.approx(same.resting_bytes, rel=0.001, abs=SMALL)
        assert row.peak_bytes == pytest.approx(same.peak_bytes, rel=0.05 if row.phase == "optimizer" else 0.002)
