"""A node that does not see the run folder, or sees it late (cases 82, 83)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hpctrain.record.paths import RunPaths
from hpctrain.worker.end_reasons import RankEnvironmentError
from hpctrain.worker.run_view import wait_for_run_folder


def test_a_folder_that_is_not_there_names_node_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    with pytest.raises(RankEnvironmentError, match=r"run.root: node n7 does not see .*/runs/a/token, .* within 0.1 s"):
        wait_for_run_folder(RunPaths(tmp_path / "runs" / "a"), wait_s=0.1)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    with pytest.raises(RankEnvironmentError, match=r"set run\.root=FOLDER"):
        wait_for_run_folder(RunPaths(tmp_path / "runs" / "a"), wait_s=0.1)


def test_a_folder_that_comes_late_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunPaths(tmp_path / "a")

    def appear() -> None:
        run.root.mkdir()
        run.token.write_text("x")

    timer = threading.Timer(1.5, appear)
    timer.start()
    wait_for_run_folder(run, wait_s=20)
    timer.join()
    assert "saw " in capsys.readouterr().out
