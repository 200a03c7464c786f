"""The recorded runs that travel with the project: whole, small, and without traces of the machine they were made on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts, read_config, read_plan, read_submission, search_runs
from hpctrain.record.schema import AttemptRecord
from tests.worker.run_folder import read_samples, read_steps

ROOT = Path(__file__).parents[1] / "data" / "runs"
RUNS = search_runs(ROOT)[0]
LARGEST_BYTES = 60_000
NEUTRAL_HOME = "/home/user/"


def name_of(run: RunPaths) -> str:
    """The part before date and number."""
    return run.root.name.rsplit("-", 3)[0]


def texts(run: RunPaths) -> Iterator[str]:
    for path in run.root.rglob("*"):
        if path.is_file():
            yield path.read_text(encoding="utf-8")


def test_which_runs_there_are() -> None:
    assert {name_of(run) for run in RUNS} == {
        *(f"{stage}-n{num_nodes}" for stage in ("zero1", "zero3") for num_nodes in (1, 2, 4)),
        "weak-n2",
        "weak-n4",
        "diverged",
        "requeued",
    }


@pytest.mark.parametrize("run", RUNS, ids=name_of)
def test_a_recorded_run_is_whole(run: RunPaths) -> None:
    config, plan, attempts = read_config(run), read_plan(run), read_attempts(run)
    assert read_submission(run).cluster_kind == "slurm"
    assert config.training.num_steps == plan.num_steps
    steps = read_steps(run.steps)
    last = attempts[-1]
    of_last = [record for record in steps if record.attempt == last.attempt]
    if name_of(run) == "diverged":
        assert (last.state, last.end_reason) == ("failed", "non_finite_loss")
        assert len(of_last) < plan.num_steps
    else:
        assert last.state == "completed"
        assert [record.step for record in of_last] == list(range(1, plan.num_steps + 1))
    assert [attempt.end_reason for attempt in attempts[:-1]] == (["signal"] if name_of(run) == "requeued" else [])
    assert sorted(run.nodes.iterdir()) == sorted(run.node_samples(node.name) for node in last.nodes)
    for path in run.nodes.iterdir():
        check_samples(path, attempts, plan.num_steps)


def check_samples(path: Path, attempts: list[AttemptRecord], num_steps: int) -> None:
    samples = read_samples(path)
    assert len(samples) >= 20
    assert {sample.attempt for sample in samples} == {attempt.attempt for attempt in attempts}
    by_number = {attempt.attempt: attempt for attempt in attempts}
    for sample in samples:
        attempt = by_number[sample.attempt]
        assert attempt.ended_at_s is not None
        assert attempt.started_at_s < sample.time_s <= attempt.ended_at_s
        assert 0 <= sample.step <= num_steps
        assert 100e6 < sample.ranks_rss_bytes < sample.host_used_bytes < sample.host_total_bytes


@pytest.mark.parametrize("run", RUNS, ids=name_of)
def test_a_recorded_run_is_small_and_names_no_machine(run: RunPaths) -> None:
    assert sum(len(text) for text in texts(run)) < LARGEST_BYTES
    for text in texts(run):
        for folder in ("/root/", "/work/", "/tmp/", "/home/"):
            assert text.count(folder) == (text.count(NEUTRAL_HOME) if folder == "/home/" else 0)
    assert not run.logs.exists()
