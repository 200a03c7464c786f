"""What ``plan`` prints is what is submitted, letter by letter, but for the names that are made at submission."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hpctrain.cli import run
from tests.launch.fake_slurm import FakeSlurm
from tests.launch.fake_slurm import slurm as slurm  # the fixture

WORDS = (
    "model=tiny",
    "cluster=sandbox",
    "cluster.time=1:00:00",
    "cluster.partition=main",
    "cluster.setup=['module load x']",
    "env.TEXT='a b$c'",
    "env.HF_TOKEN=hunter22",
)


def with_planned_names(script: str, folder: Path, name: str) -> str:
    """The submitted script with the plan's names for the folder, the code and the key."""
    script = re.sub(r"[^ '\"=]*/\.code/[0-9a-f]{16}", "CODE_SNAPSHOT", script)
    return re.sub(r"hpctrain-[0-9a-f]{16}", "hpctrain-KEY", script.replace(str(folder), name))


def printed_scripts(text: str, indent: str) -> list[str]:
    """All batch scripts in the output of ``plan``."""
    lines = [line.removeprefix(indent) for line in text.splitlines()]
    starts = [number for number, line in enumerate(lines) if line.startswith("#!/bin/bash")]
    ends = [next(n for n in range(start, len(lines)) if "rank_entry" in lines[n]) for start in starts]
    return ["\n".join(lines[start : end + 1]) + "\n" for start, end in zip(starts, ends, strict=True)]


@pytest.mark.parametrize(
    "words", [(), ("launch.comment_key=false",), ("cluster.comment=ours",), ("launch.chain=requeue",)]
)
def test_of_one_run(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    run(["plan", *WORDS, *words])
    (planned,) = printed_scripts(capsys.readouterr().out, "  ")
    assert run([*WORDS, *words, f"run.root={slurm.root}"]) == 0
    (folder,) = slurm.root.glob("tiny-*")
    script = (folder / "submission.sh").read_text(encoding="utf-8")
    assert with_planned_names(script, folder, "RUN_DIR") == planned
    assert "hunter22" not in script


def test_of_a_sweep_with_two_arrays_and_a_run_alone(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = ("-m", *WORDS, "nodes=1,2", "training.micro_batch_size=1,2", "launch.max_running=1")
    run(["plan", *sweep])
    planned = printed_scripts(capsys.readouterr().out, "")
    assert run([*sweep, f"run.root={slurm.root}"]) == 0
    (manifest,) = slurm.root.glob("*/sweep.json")
    assert len(json.loads(manifest.read_text(encoding="utf-8"))["groups"]) == 2
    scripts = sorted((manifest.parent / "arrays").glob("*.sh"))
    texts = [path.read_text(encoding="utf-8") for path in scripts]
    assert [with_planned_names(text, manifest.parent, "SWEEP_DIR") for text in texts] == planned
    assert all("#SBATCH --array=0-1%1\n" in text for text in texts)
