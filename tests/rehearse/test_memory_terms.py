"""Each term of the planner's memory against a second source, next to the cases worked by hand in tests/plan.

Almost all are held against what the real engine allocates in a rehearsal, owner by owner, in plans in which the term is most of
what its owner holds. Terms that no storage of torch holds, and a few more, are counted by a road of their own.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import pytest
import torch

from hpctrain.plan.memory.estimate import CPU_PROCESS_BYTES, DEVICE_CONTEXT_BYTES, rank_memory
from hpctrain.plan.memory.terms import CONTEXT_TERM, PROCESS_TERM, ROUNDING_TERM, SOURCES
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.stated.memory_habits import FAMILY_CONTEXT_GIB
from hpctrain.units import GIB
from hpctrain.worker.model.decoder import Decoder
from tests.plan.works import work_of
from tests.rehearse.grid_table import grid_rows
from tests.rehearse.term_rehearsals import COLUMNS, OwnerRow, owner_rows, read_rows, rehearse_case, term_cases

PHASE_BAR, OWNER_BAR = 0.02, 0.05
"""Of the height of a phase over all owners; of what one owner holds there, in a row that a term is held by."""
MOST = 0.5
"""Share of its owner's planned bytes from which a term is held by the row: were it a fifth higher, the row would be off."""
STEP_PHASES = ("forward", "backward", "optimizer")

ROADS = {
    **dict.fromkeys(SOURCES, "rehearsal"),
    "parameters": "meta model and rehearsal",
    "persistent parameters": "meta model and rehearsal",
    "secondary partition": "meta model and rehearsal",
    CONTEXT_TERM: "published reading of nvidia-smi",
    ROUNDING_TERM: "rehearsal's own rounding of each pinned storage",
    PROCESS_TERM: "resident size of a process here",
}


@cache
def rows() -> tuple[OwnerRow, ...]:
    stored = read_rows()
    return tuple(row for case in term_cases() for row in owner_rows(case, stored[case.name]))


def holding(term: str) -> list[OwnerRow]:
    """Rows in which the term is most of what its owner is planned to hold, and the owner holds that."""
    return [
        row
        for row in rows()
        if row.planned.get(term, 0) >= MOST * row.planned_bytes > 0 and _difference(row) <= OWNER_BAR
    ]


def _difference(row: OwnerRow, planned_bytes: int | None = None) -> float:
    """Planned against rehearsed, as a share of what was rehearsed; infinite: there was nothing."""
    planned = row.planned_bytes if planned_bytes is None else planned_bytes
    return abs(planned / row.rehearsed - 1) if row.rehearsed else math.inf


def test_every_case_is_stored_and_no_other() -> None:
    assert list(read_rows()) == [case.name for case in term_cases()]
    for case in term_cases():
        assert {row["overrides"] for row in read_rows()[case.name]} == {" ".join(case.words)}
        assert {row["rank"] for row in read_rows()[case.name]} == {str(case.rank)}


@pytest.mark.parametrize(
    "term", [term for term, road in ROADS.items() if "rehearsal" in road and term != ROUNDING_TERM]
)
def test_the_engine_holds_what_the_term_says(term: str) -> None:
    held = holding(term)
    assert held, f"no rehearsal in which {term} is most of what its owner holds"
    for row in held:
        higher = row.planned_bytes + row.planned[term] // 5
        assert _difference(row, higher) > OWNER_BAR, "a rule that is off would be seen"


def test_heights_of_the_step_are_those_of_the_engine() -> None:
    """All owners of a phase together: where two moments are equally high, whose the bytes are may differ."""
    heights: dict[tuple[str, str, str], list[int]] = {}
    for row in rows():
        if row.phase in STEP_PHASES:
            planned = heights.setdefault((row.case, row.tier, row.phase), [0, row.phase_bytes])
            planned[0] += row.planned_bytes
    off = {key: planned / real - 1 for key, (planned, real) in heights.items() if abs(planned / real - 1) > PHASE_BAR}
    assert off == {}
    assert len(heights) >= 3 * len(read_rows())


def _meta_numels(work: RankWork) -> Iterator[int]:
    """Elements of every parameter of the worker's own decoder, built without memory."""
    with torch.device("meta"):
        model = Decoder(work.shape, "none", 1)
    yield from (parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("ranks", [8, 24])
@pytest.mark.parametrize("model", ["model=125m", "model=llama3_8b model.num_layers=2"])
def test_partitions_are_those_of_the_real_parameters(model: str, ranks: int) -> None:
    words = f"{model} parallelism=zero3 hardware=ndm_a100_v4 nodes={ranks // 8} parallelism.hpz_partition_size=8"
    work = work_of(*words.split(), "training.gradient_accumulation_steps=2", "training.micro_batch_size=1")
    resting = rank_memory(work, 0).gpu["optimizer"]
    numels = list(_meta_numels(work))
    threshold = work.parallelism.param_persistence_threshold
    whole = rank_memory(work, 0).gpu["forward"]["persistent parameters"]
    assert whole == 2 * sum(numel for numel in numels if numel <= threshold)
    assert resting["parameters"] == 2 * sum(math.ceil(numel / ranks) for numel in numels)
    assert resting["secondary partition"] == 2 * sum(math.ceil(numel / 8) for numel in numels)
    assert resting["fp32 master"] == 4 * sum(math.ceil(numel / ranks) for numel in numels)


def test_rounding_of_pinned_memory_is_that_of_the_rehearsed_storages() -> None:
    """The rehearsal rounds every storage up as it is pinned; the planner rounds the pieces that it knows of.

    Deep models are rehearsed at a few depths and extended on a line, which powers of two do not follow.
    """
    whole = [row for row in grid_rows("offload") if "deep" not in row.case]
    pinned = [row.pinned_rounded for row in whole if row.pinned_rounded[0] > 2**26]
    assert len(pinned) >= 10
    assert all(abs(planned / rehearsed - 1) < 0.01 for rehearsed, planned in pinned)


def test_context_and_nccl_are_near_what_was_read_on_an_a100() -> None:
    assert pytest.approx(FAMILY_CONTEXT_GIB["A100"] * GIB, rel=0.1) == DEVICE_CONTEXT_BYTES


@pytest.mark.train
def test_a_process_with_torch_and_the_engine_is_as_large_as_assumed() -> None:
    """Before it trains anything: what a rank of a small model is measured to need more is its own."""
    code = "import torch, deepspeed, psutil; print(psutil.Process().memory_info().rss)"
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert 0.6 * CPU_PROCESS_BYTES < int(answer.splitlines()[-1]) < 1.1 * CPU_PROCESS_BYTES


def test_every_term_has_a_road() -> None:
    assert ROADS.keys() == SOURCES.keys()


@pytest.mark.train
def test_the_engine_says_today_what_is_stored() -> None:
    name = "zero2, optimizer on the host"
    (case,) = (case for case in term_cases() if case.name == name)
    stored = {tuple(row[key] for key in COLUMNS[:6]): int(row["bytes"]) for row in read_rows()[name]}
    today = {tuple(row[key] for key in COLUMNS[:6]): int(row["bytes"]) for row in rehearse_case(case)}
    assert today.keys() == stored.keys()
    for key, num_bytes in stored.items():
        assert today[key] == pytest.approx(num_bytes, rel=1e-2), key
