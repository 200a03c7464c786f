"""``rehearse`` as it is typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.errors import EXIT_CONFIG, EXIT_OK

SOURCE = Path(__file__).parents[2]
TINY = ("model=tiny", "parallelism=zero3", "nodes=2", "cluster=slurm", "hardware=ndm_a100_v4")


def type_words(*words: str, folder: Path, code: str = "") -> subprocess.CompletedProcess[str]:
    """Runs ``python -m hpctrain`` in a folder; ``code`` runs behind it in the same process."""
    command = ["-m", "hpctrain", *words]
    if code:
        text = f"import sys\nfrom hpctrain.cli import run\ncode = run({list(words)!r})\n{code}\nsys.exit(code)"
        command = ["-c", text]
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((*TINY, "--rank", "16"), "--rank 16: the plan has ranks 0 to 15; nearest: 15"),
        ((*TINY, "--steps", "1"), "--steps 1: the first step records the order of the parameters"),
        ((*TINY, "--quik"), "--quik: is no option of rehearse"),
        ((*TINY, "training=launch_check"), "training.payload=launch_check: builds no model"),
        ((*TINY, "model.num_heads=3"), "model.num_heads"),
        ((*TINY, "--out", "/dev/null/x"), "--out /dev/null/x: /dev/null is no folder that you may write"),
    ],
    ids=["rank", "steps", "option", "launch check", "plan with problems", "out"],
)
def test_mistakes(words: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    found = type_words("rehearse", *words, folder=tmp_path)
    assert found.returncode == EXIT_CONFIG
    assert expected in found.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.train
def test_what_is_printed_and_written(tmp_path: Path) -> None:
    heavy = "print(sorted({'torch', 'deepspeed'} & sys.modules.keys()), file=sys.stderr)"
    found = type_words("rehearse", *TINY, folder=tmp_path, code=heavy)
    assert found.returncode == EXIT_OK, found.stderr
    (folder,) = (tmp_path / "rehearsals").iterdir()
    assert folder.name.startswith("tiny-2n-zero3-")
    assert sorted(path.name for path in folder.iterdir()) == ["rehearsal.json", "rehearsal.png"]
    assert (folder / "rehearsal.png").read_bytes().startswith(b"\x89PNG")
    assert found.stdout.endswith(f"picture {Path('rehearsals') / folder.name / 'rehearsal.png'}\n")
    raw = json.loads((folder / "rehearsal.json").read_text())
    assert (raw["world_size"], raw["num_layers"], raw["way"]) == (16, 4, "whole")
    assert "rank 0 of 16, tiny-2n-zero3: all 4 layers" in found.stdout
    assert str(Path("rehearsals") / folder.name / "rehearsal.json") in found.stdout
    # The rehearsal runs in a process of its own: this one stays light.
    assert found.stderr.splitlines()[-1] == "[]"


@pytest.mark.train
def test_json_goes_to_standard_output_alone(tmp_path: Path) -> None:
    found = type_words("rehearse", *TINY, "--json", "--out", "here $x", folder=tmp_path)
    assert found.returncode == EXIT_OK, found.stderr
    assert json.loads(found.stdout) == json.loads((tmp_path / "here $x" / "rehearsal.json").read_text())
