"""resume and rerun as typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.cli_life import _named_and_overrides
from hpctrain.errors import ConfigError
from tests.cli.test_cli import hpctrain


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("resume", "nosuch"), "nosuch: no such folder"),
        (("resume", "runs", "--from-step", "15"), "--from-step 15: there is no complete checkpoint of this step"),
        (("resume", "nodes=4"), "name a run folder first"),
        (("resume", "runs", "=3"), "=3: is no run folder that is there, and no key=value"),
        (("resume", "runs", "--from-step=-1"), "--from-step -1: must be 0 or above"),
        (("rerun", "runs", "--state", "finished"), "--state=finished: is no state"),
        (("resume", "--current-code"), "required: RUN|KEY=VALUE"),
    ],
)
def test_mistakes_are_told_and_nothing_is_submitted(words: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "plan.json").write_text("{}", encoding="utf-8")
    answer = hpctrain(*words, cwd=tmp_path)
    assert (answer.returncode, expected in answer.stderr) == (2, True), answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_folder_that_is_there_is_a_run_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=0.1").mkdir()
    words = ("lr=0.1", "nodes=4", "123_4", "~env.A", "cluster.exclude='a,b'")
    assert _named_and_overrides(words) == (["lr=0.1", "123_4"], ("nodes=4", "~env.A", "cluster.exclude='a,b'"))
    with pytest.raises(ConfigError, match="name a run folder first"):
        _named_and_overrides(("nodes=4",))
