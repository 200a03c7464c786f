"""Conditions of whole logs: a sample has its flags and no others, and no number of a log stops the rules."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hpctrain.analysis.logs.conditions import Conditions, find_conditions
from hpctrain.analysis.logs.events import FIELDS
from hpctrain.analysis.logs.log_runs import log_runs
from hpctrain.analysis.logs.reading import read_log
from tests.analysis.logs.format_driver import OWN_SAMPLES
from tests.analysis.logs.make_readings import attempts, flags_of, make_reading

SHARED_SAMPLES = Path(__file__).parents[4] / "shared" / "logs"
NOT_LISTED_BUT_THERE = {
    "bloom176b_hang_in_evaluation": {"torchrun_label"},
    "bloom176b_same_iterations_six_topologies": {"torchrun_label"},
    "bloom176b_wrapped_lines_slowdown": {"torchrun_label"},
    "tqdm_scientific_and_rates": {"torchrun_label"},
    "tqdm_carriage_returns_four_ranks": {"glued_lines"},
}
"""The samples name a label and glued lines in some of their files only; they stand in these too."""


def samples_with_flags(*patterns: str) -> list[Any]:
    own = [path for pattern in patterns for path in OWN_SAMPLES.glob(f"{pattern}.json")]
    assert own, f"no sample {patterns} in {OWN_SAMPLES}"
    paths = sorted([*own, *SHARED_SAMPLES.glob("*/*.json")])
    return [pytest.param(path, id=path.stem) for path in paths if "flags" in json.loads(path.read_text())["expected"]]


@cache
def conditions_of(json_path: Path) -> Conditions:
    return find_conditions(read_log(json_path.with_suffix(".log")))


@pytest.mark.parametrize("json_path", samples_with_flags("deepspeed_*", "scheduler_*"))
def test_a_sample_has_its_flags_and_no_others(json_path: Path) -> None:
    flags = set(conditions_of(json_path).flags)
    expected = set(json.loads(json_path.read_text())["expected"]["flags"])
    assert flags == expected | NOT_LISTED_BUT_THERE.get(json_path.stem, set())


@pytest.mark.parametrize("json_path", samples_with_flags("*"))
def test_a_sample_has_the_flags_that_its_format_gives(json_path: Path) -> None:
    flags = set(conditions_of(json_path).flags)
    assert flags >= set(json.loads(json_path.read_text())["expected"]["flags"])


@pytest.mark.parametrize("json_path", samples_with_flags("deepspeed_*", "scheduler_*"))
def test_a_sample_has_its_derived_values(json_path: Path) -> None:
    summary = conditions_of(json_path).summary
    for name, value in json.loads(json_path.read_text())["expected"].get("summary", {}).items():
        assert name in summary, f"{name} is not derived"
        if isinstance(value, list) and all(isinstance(item, float | int) for item in value):
            assert summary[name] == pytest.approx(value, rel=5e-4), name
        elif isinstance(value, float):
            assert summary[name] == pytest.approx(value, rel=1e-3), name
        else:
            assert summary[name] == value, name


def test_flags_are_sorted_and_a_log_without_records_has_none() -> None:
    assert find_conditions(make_reading()).flags == ()
    flags = find_conditions(make_reading(traits=("wrapped_lines", "ansi"))).flags
    assert flags == ("ansi", "wrapped_lines")


@pytest.mark.parametrize(
    ("traits", "label", "flags"),
    [
        (["process_label", "torchrun_label"], "default7", {"torchrun_label"}),
        (["process_label", "torchrun_label"], "rank0", set()),
        (["process_label", "srun_label"], "0", {"srun_label"}),
        (["process_label"], "worker-0", {"process_label"}),
    ],
    ids=["torchrun", "rank-is-a-field", "srun", "other"],
)
def test_a_label_has_its_most_special_name(traits: list[str], label: str, flags: set[str]) -> None:
    assert flags_of([{"iteration": 1001, "loss": 3.0, "rank_label": label}], traits=traits) == flags


def test_wasted_steps_count_the_whole_interval() -> None:
    records = attempts((0, 0, [10, 20, 30]), (0, 1, [20, 30, 40]))
    summary = find_conditions(make_reading(records)).summary
    assert summary["wasted_iterations_total"] == 20
    assert summary["attempts"] == 2


WILD = (0, -5, -0.0, 1e308, -1e308, 1e-308, 2**70, 3, 0.5, None)


@pytest.mark.parametrize("seed", range(30))
def test_no_number_of_a_log_stops_the_rules(seed: int) -> None:
    chance = random.Random(seed)
    texts = {"timestamp": ("2024-05-01 10:00:00", "noon"), "rank_label": ("default3", "rank0")}
    names = chance.sample(sorted(FIELDS), 20)
    records = [
        {name: chance.choice(texts.get(name, WILD)) for name in names if name not in ("segment", "attempt")}
        | {"attempt": chance.randint(0, 1)}
        for _ in range(8)
    ]
    row = {name: chance.choice(WILD) for name in ("total_ms", "avg_ms", "count", "iteration", "skipped_total")}
    facts: Any = {
        kind: [(chance.randint(0, 40), row)] for kind in ("comm_row", "bar", "checkpoint_saved", "preemption")
    }
    settings = {
        name: chance.choice(WILD) for name in ("world_size", "seq_len", "num_layers", "hidden_size", "vocab_size")
    }
    reading = make_reading(records, facts=facts, engine=[row], incomplete=[{"iteration": 2**70}], settings=settings)
    conditions = find_conditions(reading)
    (run,) = log_runs(reading, Path("some.log"))
    assert list(conditions.flags) == sorted(set(conditions.flags))
    assert len(run.steps) == 8
    assert run.summary.valid == (run.summary.reason == "")
