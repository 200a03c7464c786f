"""The table of memory by tier: its lines add up to the plan's totals, and shares are of what there is."""

from __future__ import annotations

import functools
import re

import pytest

from hpctrain.config.compose import Point, compose_points
from hpctrain.plan.checkpoint_size import saved_bytes
from hpctrain.plan.memory.phases import gpu_phases
from hpctrain.plan.memory.terms import MEMORY_PHASES
from hpctrain.plan.render.memory import render_memory
from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.units import GIB, gib

CASES = {
    "stage-3": ("model=530b", "nodes=128", "parallelism=zero3", "hardware=ndm_a100_v4"),
    "nvme": ("model=28b", "nodes=1", "parallelism=zero3_nvme", "hardware=dgx_h100"),
    "short": ("model=175b", "nodes=2", "parallelism=zero3_offload", "hardware=ndm_a100_v4"),
    "pipeline": ("model=530b", "nodes=35", "parallelism=megatron_3d", "hardware=ndm_a100_v4"),
    "cpu": ("model=tiny", "cluster=local", "parallelism=zero3", "hardware=cpu"),
}
SIZE = r"([\d,]+\.\d+ (?:GiB|MiB))"


@functools.cache
def planned(*words: str) -> tuple[Point, RunPlan]:
    (point,) = compose_points(words, multirun=False)
    return point, build_run_plan(point.config)


def tier_lines(text: str) -> dict[str, tuple[str, list[str]]]:
    """Of each tier its own line, and those of its terms."""
    found: dict[str, tuple[str, list[str]]] = {}
    for line in text.splitlines()[1:]:
        if line.startswith("    "):
            found[list(found)[-1]][1].append(line)
        else:
            found[line.split("  ")[1].strip()] = (line, [])
    return found


def gibs(line: str) -> float:
    size, unit = re.findall(SIZE, line)[0].split()
    return float(size.replace(",", "")) / (1 if unit == "GiB" else 1024)


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_the_terms_of_a_tier_add_up_to_it(words: tuple[str, ...]) -> None:
    _, plan = planned(*words)
    tiers = tier_lines(render_memory(plan))
    wanted = {"a node's memory": plan.memory.host_bytes_per_node}
    if plan.device == "cuda":
        wanted["a GPU"] = plan.memory.gpu_bytes
    if plan.nvme is not None:
        wanted["a node's NVMe"] = plan.nvme.bytes_per_node
    for name, num_bytes in wanted.items():
        line, terms = next(found for tier, found in tiers.items() if tier.startswith(name))
        assert gib(num_bytes) in line
        assert sum(map(gibs, terms)) == pytest.approx(num_bytes / GIB, abs=0.01 * len(terms))
        shown = [gibs(term) for term in terms if "all else" not in term]
        assert shown == sorted(shown, reverse=True), "the largest first"
    assert gib(saved_bytes(plan)) in tiers["a checkpoint on disk"][0]


def test_what_is_free_or_short_is_told_with_its_share() -> None:
    _, plan = planned(*CASES["stage-3"])
    (line, terms) = tier_lines(render_memory(plan))["a GPU"]
    capacity = plan.memory.gpu_capacity_bytes
    assert capacity is not None
    assert line.endswith(f"of {gib(capacity)}, {gib(capacity - plan.memory.gpu_bytes)} free")
    inputs = next(term.num_bytes for term in plan.memory.terms if term.name == "block inputs")
    assert f"    {'block inputs':<28}{gib(inputs):>14}  {inputs / capacity:>4.0%}" in terms


def test_a_short_host_tells_what_of_it_is_pinned() -> None:
    _, plan = planned(*CASES["short"])
    memory = plan.memory
    assert memory.host_capacity_bytes is not None
    text = render_memory(plan)
    pinned = 8 * sum(term.pinned_bytes for term in memory.terms)
    rounded = 8 * sum(term.pinned_rounded_bytes for term in memory.terms)
    assert f"short by {gib(memory.host_bytes_per_node - memory.host_capacity_bytes)}; pinned {gib(pinned)}" in text
    assert f"rounded up {gib(rounded)}" in text
    assert rounded > pinned > 0


def test_a_capacity_that_nobody_states_is_not_made_up() -> None:
    _, plan = planned(*CASES["cpu"])
    assert "capacity not stated" in render_memory(plan)
    assert "a GPU" not in render_memory(plan)


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_phases_term_by_term_are_those_of_the_estimate(words: tuple[str, ...]) -> None:
    point, plan = planned(*words)
    found = gpu_phases(point.config, plan)
    if plan.device == "cpu":
        assert found == {}
        return
    assert list(found) == list(MEMORY_PHASES)
    context = plan.memory.gpu_bytes - plan.memory.allocator_bytes
    assert {phase: sum(amounts.values()) - context for phase, amounts in found.items()} == {
        each.phase: each.gpu_bytes for each in plan.memory.phases
    }
    assert max(sum(amounts.values()) for amounts in found.values()) == plan.memory.gpu_bytes
    (peaks,) = (line for line in render_memory(plan).splitlines() if line.startswith("    GPU, of torch's allocator"))
    assert re.findall(SIZE, peaks) == [gib(each.gpu_bytes) for each in plan.memory.phases]
