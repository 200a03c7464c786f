"""The notebooks run on recorded folders, on none and on logs of other systems, and are stored as their rules say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from tests.analysis.make_runs import Attempt, make_run, toy_config
from tests.analysis.make_samples import make_samples

REPOSITORY = Path(__file__).parents[2]
NOTEBOOKS = sorted((REPOSITORY / "analysis").glob("*.ipynb"))
NUM_FIGURES = {
    "01_throughput": 3,
    "02_scaling": 2,
    "03_memory": 2,
    "04_goodput": 2,
    "05_telemetry": 2,
    "angelptm_figures": 1,
    "azure_figures": 6,
}
"""On the runs of ``recorded``."""
LOGS = REPOSITORY / "tests" / "data" / "logs"


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs, one of them not started, one with a restart and telemetry."""
    root = tmp_path_factory.mktemp("recorded runs")
    for nodes in (1, 2):
        make_run(root / f"toy {nodes}", toy_config(nodes=nodes), [Attempt([0.5] * 10)])
    killed = {"state": "failed", "end_reason": "killed"}
    attempts = [Attempt([0.5] * 8, end=killed), Attempt([0.5] * 10, 5)]
    make_samples(make_run(root / "toy 4", toy_config(nodes=4), attempts))
    make_run(root / "waiting", attempts=[])
    return root


@pytest.fixture(scope="module")
def kernel() -> Iterator[KernelManager]:
    """One kernel for all notebooks: starting it and loading pandas takes longer than any of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        manager = KernelManager()
        manager.start_kernel(cwd=str(REPOSITORY / "analysis"))
    yield manager
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


def execute(kernel: KernelManager, path: Path, runs: Path | None) -> tuple[str, int]:
    """Text and number of figures that the notebook puts out with ``HPCTRAIN_RUNS=runs``; None: not set."""
    notebook = nbformat.read(path, as_version=4)
    stated = {} if runs is None else {"HPCTRAIN_RUNS": str(runs)}
    clean = (
        "%reset -f\nimport os, warnings\nwarnings.simplefilter('error')\nos.environ.pop('HPCTRAIN_RUNS', None)\n"
        f"os.environ.update({stated!r})"
    )
    notebook.cells.insert(0, nbformat.v4.new_code_cell(clean))
    client = NotebookClient(notebook, km=kernel, timeout=120)
    try:
        client.execute()
    finally:
        client.kc.stop_channels()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    return "".join(output.get("text", "") for output in outputs), sum(
        "image/png" in output.get("data", {}) for output in outputs
    )


def test_every_notebook_is_known() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(NUM_FIGURES)


def test_stored_without_outputs_functions_and_formulas(path: Path) -> None:
    notebook: Any = nbformat.read(path, as_version=4)
    first, second, *_ = notebook.cells
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    for word in ("HPCTRAIN_RUNS", "../runs", "../tests/data/runs", "The next cell is the only one to change."):
        assert word in first.source
    assert "RUNS = [runs_folder(os.environ)]" in second.source
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
            assert not re.search(r"^\s*(def|class) |lambda|\s[*/+-]+\s|\*\*", cell.source, re.MULTILINE)


@pytest.mark.notebook
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_runs_on_recorded_folders(kernel: KernelManager, path: Path, recorded: Path) -> None:
    text, num_figures = execute(kernel, path, recorded)
    assert f"{recorded}, from HPCTRAIN_RUNS\n4 runs, 3 of them valid" in text
    assert num_figures == NUM_FIGURES[path.stem]


@pytest.mark.notebook
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_runs_in_a_fresh_checkout(kernel: KernelManager, path: Path) -> None:
    """Without the variable the runs that come with the project are shown, unless this checkout has own ones."""
    text, num_figures = execute(kernel, path, None)
    own = (REPOSITORY / "runs").is_dir()
    assert (
        "../runs, since HPCTRAIN_RUNS is not set" if own else "../tests/data/runs: recorded runs of the project"
    ) in text
    assert num_figures >= 1


@pytest.mark.notebook
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_runs_on_logs_of_other_systems(kernel: KernelManager, path: Path) -> None:
    text, _ = execute(kernel, path, LOGS)
    assert re.search(
        rf"^{re.escape(str(LOGS))}, from HPCTRAIN_RUNS\n[1-9]\d+ runs, [1-9]\d* of them valid$", text, re.MULTILINE
    )


@pytest.mark.notebook
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_says_so_where_there_is_no_run(kernel: KernelManager, path: Path, tmp_path: Path) -> None:
    text, _ = execute(kernel, path, tmp_path)
    assert f"0 runs, 0 of them valid\n{tmp_path}: no run here" in text


@pytest.mark.notebook
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_says_so_where_there_is_no_folder(kernel: KernelManager, tmp_path: Path) -> None:
    """Of the words of one function, which all notebooks call."""
    text, _ = execute(kernel, NOTEBOOKS[0], tmp_path / "missing")
    assert f"0 runs, 0 of them valid\n{tmp_path}/missing: no such folder" in text
