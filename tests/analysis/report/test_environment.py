"""What runs were executed with, and where it differs."""

from __future__ import annotations

import os
from pathlib import Path

from hpctrain.analysis.report.environment import Environment, environment_keys, read_environment
from tests.analysis.make_runs import Attempt, make_run
from tests.analysis.report.report_runs import write_code

DIFF = "diff --git a/hpctrain/cli.py b/hpctrain/cli.py\n-a\n+b\ndiff --git a/x b/docs/x\n"


def test_an_environment_is_flat_and_ranks_count_before_the_submission(tmp_path: Path) -> None:
    nodes = ({"name": "n2", "ranks": (1,), "cpus": 4}, {"name": "n1", "ranks": (0,), "cpus": 4})
    end = {"versions": {"torch": "2.7.1"}, "nodes": nodes}
    run = make_run(tmp_path / "run", attempts=[Attempt([1.0], end=end)])
    write_code(run.root, diff=DIFF)
    environment = read_environment(run.root, "run")
    assert environment.problem == ""
    values = dict(environment.values)
    assert values.pop("working tree").endswith(": hpctrain/cli.py, docs/x")
    assert len(values.pop("source of hpctrain")) == 12
    assert values == {
        "python": "3.11.2",
        "torch": "2.7.1",
        "interpreter": "/venv/bin/python",
        "commit": "0123456789ab",
        "node names": "n1, n2",
        "CPUs of a rank": "4",
    }


def test_an_unchanged_tree_and_no_repository(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write_code(run.root)
    assert read_environment(run.root, "run").values["working tree"] == "as committed"
    write_code(run.root, commit="")
    assert "commit" not in read_environment(run.root, "run").values


def test_each_file_is_read_by_itself(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.attempt(1).write_text("{")
    write_code(run.root)
    environment = read_environment(run.root, "run")
    assert environment.values["torch"] == "2.6.0"
    assert environment.problem.startswith(f"{run.attempt(1)}: ")
    run.code.write_text("[1]")
    environment = read_environment(run.root, "run")
    assert environment.values == {}
    assert f"{run.code}: must hold a JSON object, holds list; {run.attempt(1)}: " in environment.problem
    run.code.unlink()
    os.mkfifo(run.code)
    assert f"{run.code}: no regular file; " in read_environment(run.root, "run").problem
    run.code.unlink()
    assert f"{run.code}: no such file, so neither versions nor commit" in read_environment(run.root, "run").problem


def test_keys_are_grouped_by_value_the_most_frequent_first() -> None:
    environments = [
        Environment("a", {"torch": "2.7", "host": "x"}),
        Environment("b", {"torch": "2.6", "host": "x"}),
        Environment("c", {"torch": "2.6", "host": "x", "extra": "1"}),
    ]
    torch, host, extra = environment_keys(environments)
    assert torch.groups == (("2.6", ("b", "c")), ("2.7", ("a",)))
    assert torch.differs
    assert not host.differs
    assert extra.groups == (("not recorded", ("a", "b")), ("1", ("c",)))
