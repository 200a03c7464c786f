"""The notebooks run on recorded folders and on none, and are stored as their rules say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.analysis.make_runs import Attempt, make_run, toy_config

REPOSITORY = Path(__file__).parents[2]
NOTEBOOKS = sorted((REPOSITORY / "analysis").glob("*.ipynb"))


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> Any:
    return nbformat.read(request.param, as_version=4)


def execute(notebook: Any, runs: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """Text and number of figures that the notebook puts out."""
    monkeypatch.setenv("HPCTRAIN_RUNS", str(runs))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    where = {"metadata": {"path": str(REPOSITORY / "analysis")}}
    NotebookClient(notebook, timeout=120, resources=where).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    return "".join(output.get("text", "") for output in outputs), sum(
        "image/png" in output.get("data", {}) for output in outputs
    )


def test_stored_without_outputs_functions_and_formulas(notebook: Any) -> None:
    assert notebook.cells[0].cell_type == "markdown"
    assert "HPCTRAIN_RUNS" in notebook.cells[0].source
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
            assert not re.search(r"^\s*(def|class) |lambda|\s[*/]+\s", cell.source, re.MULTILINE)


@pytest.mark.notebook
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_runs_on_recorded_folders(notebook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for nodes in (1, 2, 4):
        make_run(tmp_path / f"toy {nodes}", toy_config(nodes=nodes), [Attempt([0.5] * 10)])
    make_run(tmp_path / "waiting", attempts=[])
    text, num_figures = execute(notebook, tmp_path, monkeypatch)
    assert "4 runs, 3 of them valid" in text
    assert num_figures == 2


@pytest.mark.notebook
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["empty", "missing"])
def test_says_so_where_there_is_no_run(
    notebook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "empty").mkdir()
    text, _ = execute(notebook, tmp_path / name, monkeypatch)
    message = {"empty": "no run here; a run folder holds plan.json", "missing": "no such folder"}[name]
    assert f"{tmp_path}/{name}: {message}" in text
