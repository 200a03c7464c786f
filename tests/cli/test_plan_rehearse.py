"""``plan --rehearse`` and ``launch.rehearse``: the rehearsal decides whether a run fits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.rehearse.result import read_rehearsal

pytestmark = pytest.mark.train
SMALL = (
    *("model=tiny", "parallelism=zero3", "cluster=local", "hardware=cpu"),
    *("training.micro_batch_size=2", "training.num_steps=2"),
)


def hpctrain(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hpctrain", *words], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_the_plan_has_the_rehearsed_memory(tmp_path: Path) -> None:
    answer = hpctrain("plan", *SMALL, "--rehearse", "--json", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    plan = json.loads(answer.stdout)
    assert plan["memory"]["found_by"] == "rehearsal"
    terms = {(term["name"], term["tier"]): term["num_bytes"] for term in plan["memory"]["terms"]}
    # fp32 on two ranks: master copy and two moments, 12 bytes each for half of the parameters.
    assert terms["optimizer", "host"] == pytest.approx(12 * plan["num_parameters"] / 2, rel=0.01)
    assert terms["Python and torch", "host"] > 0
    told = hpctrain("plan", *SMALL, "--rehearse", cwd=tmp_path).stdout
    assert "found by the real engine on a simulated cluster" in told
    assert "AGAINST THE PLAN" in told


def test_what_the_rehearsal_finds_too_large_is_refused(tmp_path: Path) -> None:
    # By the rules it is short as well; what counts is that the words are those of the rehearsal, and that nothing is left.
    words = (*SMALL, "hardware.host_memory_gib=0.5", "launch.rehearse=true")
    answer = hpctrain(*words, cwd=tmp_path)
    assert answer.returncode == 3, answer.stderr
    assert "rehearsed need; a node has 0.50 GiB" in answer.stderr
    assert "by the planner's rules with what the rehearsal found beyond them, not rehearsed" in answer.stderr
    assert "  hardware.gpus_per_node=1 training.gradient_accumulation_steps=2 (fits with " in answer.stderr
    assert list(tmp_path.rglob("rehearsal.json")) == []


def test_a_submission_rehearses_first_and_keeps_it(tmp_path: Path) -> None:
    answer = hpctrain(*SMALL, "launch.rehearse=true", "data=synthetic", "cluster.wait=true", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    (path,) = tmp_path.rglob("rehearsal.json")
    found = read_rehearsal(path)
    assert (found.world_size, found.device_way) == (2, "cpu")
    plan = json.loads((path.parent / "plan.json").read_text())
    assert plan["memory"]["found_by"] == "rehearsal"
