"""What a run that does not fit is answered, and the picture of what fits: on the command line, exit codes included."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from hpctrain.cli import run
from hpctrain.config.compose import compose_points
from hpctrain.errors import ConfigError
from hpctrain.plan.run_plan import build_run_plan

REFUSED = ("model=175b", "nodes=2", "parallelism=zero3", "hardware=ndm_a100_v4")
FITS = ("model=530b", "nodes=128", "parallelism=zero3", "hardware=ndm_a100_v4")
HEADING = "changes that make it fit, the cheapest first (speed against this plan as it stands, predicted)"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def offered(text: str) -> list[list[str]]:
    """Overrides of each change in a text."""
    lines = text.partition(HEADING)[2].splitlines()[1:]
    return [line.partition(" (fits with ")[0].split() for line in lines if " (fits with " in line]


def refused(words: list[str], exit_code: int = 3) -> str:
    with pytest.raises(ConfigError) as caught:
        run(words)
    assert caught.value.exit_code == exit_code
    return str(caught.value)


def test_a_submission_is_refused_with_changes_that_can_be_pasted(tmp_path: Path) -> None:
    told = refused(list(REFUSED))
    assert told.startswith("memory.gpu=")
    assert "; --force submits all the same\n" in told
    changes = offered(told)
    assert len(changes) == 3
    for overrides in changes:
        (point,) = compose_points([*REFUSED, *overrides], multirun=False)
        assert build_run_plan(point.config).problems == ()
    assert list(tmp_path.iterdir()) == []


def test_a_plan_ends_with_them_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *REFUSED]) == 3
    text = capsys.readouterr().out
    assert text.index("\nproblems\n") < text.index(HEADING)
    assert run(["plan", *REFUSED, "--json"]) == 3
    plan = json.loads(capsys.readouterr().out)
    assert [change["overrides"] for change in plan["changes"]] == offered(text)
    assert all(change["gpu_free_bytes"] > 0 for change in plan["changes"])


def test_a_plan_that_fits_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *FITS, "--json"]) == 0
    assert "changes" not in json.loads(capsys.readouterr().out)


def test_points_of_a_sweep_name_the_way_to_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "-m", *REFUSED[:1], "nodes=2,8", *REFUSED[2:]]) == 3
    text = capsys.readouterr().out
    assert HEADING not in text
    assert "the plan of this run alone names the cheapest changes that make it fit" in text


def test_this_machine_offers_what_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("model=125m", "cluster=local", "hardware=cpu", "parallelism=ddp", "training.micro_batch_size=8")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"total": 12 * 2**30})())
    told = refused(list(words))
    assert "this machine has 12.00 GiB, short by" in told
    assert "--force runs all the same" in told
    for overrides in offered(told):
        (point,) = compose_points([*words, *overrides], multirun=False)
        assert build_run_plan(point.config).memory.host_bytes_per_node <= 12 * 2**30
    assert offered(told)


@pytest.mark.parametrize("name", ["plan.png", "plan.SVG"])
def test_a_picture_is_drawn_beside_the_plan(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *FITS, "--picture", name]) == 0
    assert capsys.readouterr().out.endswith(f"\npicture {name}\n")
    content = (tmp_path / name).read_bytes()
    assert content.startswith(b"\x89PNG") if name.endswith("png") else b"<svg" in content


def test_a_picture_of_a_sweep_and_one_beside_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "-m", *FITS[:1], "nodes=8,128", *FITS[2:], "--picture=a.svg"]) == 3
    drawn = (tmp_path / "a.svg").read_text()
    assert "Planned memory of 2 points" in drawn or "<svg" in drawn
    assert run(["plan", *FITS, "--json", "--picture=b.png"]) == 0
    told = capsys.readouterr()
    assert told.err.endswith("picture b.png\n")
    json.loads(told.out.partition("\npicture a.svg\n")[2])


@pytest.mark.parametrize(("word", "code"), [("parallelism.tensor_parallel_size=3", 2), ("training=launch_check", 0)])
def test_of_what_has_no_memory_there_is_no_picture(
    word: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", *FITS, word, "--picture", "plan.png"]) == code
    assert capsys.readouterr().out.endswith("\nno picture plan.png: there is no plan to draw\n")
    assert list(tmp_path.iterdir()) == []


def test_beside_a_point_that_can_be_an_impossible_one_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "-m", *FITS, "parallelism.tensor_parallel_size=1,3", "--picture", "plan.svg"]) == 2
    assert capsys.readouterr().out.endswith("\npicture plan.svg\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--picture"], "--picture: must be followed by a file; for example --picture plan.png"),
        (["--picture", "plan.jpg"], "--picture plan.jpg: must end in .png or .svg"),
        (["--picture", "no/plan.png"], "no is no folder that you may write"),
        (["--picture=a.png", "--picture=b.png"], "--picture b.png: is given 2 times; leave one"),
    ],
    ids=["nothing", "suffix", "folder", "twice"],
)
def test_a_picture_that_cannot_be_is_refused_before_anything(
    words: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in refused(["plan", *FITS, *words], exit_code=2)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []
