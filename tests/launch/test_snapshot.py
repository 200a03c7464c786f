"""The copy of the code that a run executes (cases 13, 14)."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hpctrain.launch.submitted_code
from hpctrain.errors import LaunchError
from hpctrain.launch.snapshot import damage_of, snapshot_of, take_snapshot
from hpctrain.launch.submitted_code import submitted_code
from hpctrain.record.code_version import package_folder
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import search_runs

SOURCE = Path(__file__).parents[2]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A small package of the name, with what a copy must leave out."""
    folder = tmp_path / "source" / "hpctrain"
    for name in ("worker", "analysis", "__pycache__", "_conf"):
        (folder / name).mkdir(parents=True)
        (folder / name / "module.py").write_text("VALUE = 1\n")
    (folder / "__init__.py").write_text('__version__ = "0"\n')
    (folder / "notes.txt").write_text("no code")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "a b'c $d"
    folder.mkdir()
    return folder


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}


def imported_value(folder: Path, cwd: Path, module: str = "hpctrain.worker.module") -> str:
    """What a Python of this environment, started in ``cwd``, imports."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", f"import {module} as m; print(m.__file__, getattr(m, 'VALUE', ''))"]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=True).stdout.strip()


def test_a_copy_holds_what_jobs_import_and_is_found_again(package: Path, root: Path) -> None:
    first = take_snapshot(root, package)
    assert files_of(first.folder) == {"hpctrain/__init__.py", "hpctrain/worker/module.py"}
    assert first.folder.parent == root / ".code"
    assert set(first.sources) == {"__init__.py", "worker/module.py"}
    before = first.folder.stat().st_mtime_ns
    assert take_snapshot(root, package) == first
    assert first.folder.stat().st_mtime_ns == before
    assert [path.name for path in (root / ".code").iterdir()] == [first.folder.name]


def test_other_code_is_another_copy_and_the_first_stays(package: Path, root: Path) -> None:
    first = take_snapshot(root, package)
    (package / "analysis" / "module.py").write_text("VALUE = 3\n")
    assert take_snapshot(root, package) == first
    (package / "worker" / "module.py").write_text("VALUE = 2\n")
    second = take_snapshot(root, package)
    assert second.folder != first.folder
    assert imported_value(first.folder, package.parent).endswith(" 1")
    assert imported_value(second.folder, package.parent).endswith(" 2")


def test_the_copy_is_imported_from_any_folder(package: Path, root: Path) -> None:
    """Also from the one that holds the edited package, and below an installed one."""
    snapshot = take_snapshot(root, package)
    (package / "worker" / "module.py").write_text("VALUE = 2\n")
    for cwd in (Path("/"), package.parent, package):
        assert imported_value(snapshot.folder, cwd).startswith(str(snapshot.folder))


def test_a_copy_is_read_only_and_compiled(package: Path, root: Path) -> None:
    folder = take_snapshot(root, package).folder
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()} == {0o444}
    assert {stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")] if path.is_dir()} == {0o555}
    assert len(list(folder.rglob("*.pyc"))) == 2


def test_a_group_that_shares_the_root_shares_the_copies(package: Path, root: Path) -> None:
    root.chmod(0o2775)
    take_snapshot(root, package)
    assert stat.S_IMODE((root / ".code").stat().st_mode) == 0o2775


def edited(folder: Path) -> None:
    path = folder / "hpctrain" / "worker" / "module.py"
    path.chmod(0o644)
    path.write_text("VALUE = 9\n")


def emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def with_another_module(folder: Path) -> None:
    (folder / "hpctrain").chmod(0o755)
    (folder / "hpctrain" / "more.py").touch()


def with_other_bytecode(folder: Path) -> None:
    (path,) = (folder / "hpctrain" / "worker").rglob("*.pyc")
    path.parent.chmod(0o755)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("damage", [edited, emptied, with_another_module, with_other_bytecode])
def test_a_damaged_copy_is_told_and_another_made_beside(
    damage: Callable[[Path], None], package: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = take_snapshot(root, package)
    damage(first.folder)
    second = take_snapshot(root, package)
    assert second.folder.name == f"{first.folder.name}-2"
    assert not damage_of(second.folder, second.sources)
    assert f"{first.folder}: damaged (" in capsys.readouterr().err
    assert take_snapshot(root, package) == second


def test_five_starts_in_the_same_second_make_one_copy(package: Path, root: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from hpctrain.launch.snapshot import take_snapshot;"
        "print(take_snapshot(Path(sys.argv[1]), Path(sys.argv[2])).folder)"
    )
    command = [sys.executable, "-c", script, str(root), str(package)]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)}
    starts = [subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True) for _ in range(5)]
    answers = {start.communicate()[0].strip() for start in starts}
    assert [start.returncode for start in starts] == [0] * 5
    (folder,) = answers
    assert [str(path) for path in (root / ".code").iterdir()] == [folder]


def test_a_full_device_leaves_no_half_made_copy(package: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(py_compile, "compile", full)
    with pytest.raises(OSError, match="No space left"):
        take_snapshot(root, package)
    assert list((root / ".code").iterdir()) == []


def test_code_json_names_the_copy_and_its_files(root: Path) -> None:
    snapshot, record = submitted_code(root, sys.executable)
    assert record["snapshot"] == str(snapshot.folder)
    assert record["package"] == str(package_folder())
    assert record["sources"] == dict(snapshot.sources)
    assert "worker/job.py" in record["sources"]
    assert not any(name.startswith("analysis/") for name in record["sources"])
    assert {"commit", "dirty", "diff", "installed_commit", "interpreter", "versions"} <= record.keys()
    assert imported_value(snapshot.folder, SOURCE, "hpctrain.worker.nodelist").startswith(str(snapshot.folder))


def test_code_json_has_the_difference_of_the_packages_own_repository(
    package: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of another project's, inside which the package is installed."""

    def git(folder: Path, *words: str) -> str:
        identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        return subprocess.run(
            ["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    def record(run_root: Path) -> tuple[str, bool, str]:
        run_root.mkdir()
        _, found = submitted_code(run_root, sys.executable)
        return found["commit"], found["dirty"], found["diff"]

    monkeypatch.setattr(hpctrain.launch.submitted_code, "package_folder", lambda: package)
    git(package.parents[1], "init", "-q")
    assert record(root / "a") == ("", False, "")
    git(package.parent, "init", "-q")
    git(package.parent, "add", ".")
    git(package.parent, "commit", "-qm", "first")
    commit = git(package.parent, "rev-parse", "HEAD")
    assert record(root / "b") == (commit, False, "")
    (package / "worker" / "module.py").write_text("VALUE = 2\n")
    committed, is_dirty, difference = record(root / "c")
    assert (committed, is_dirty) == (commit, True)
    assert "+VALUE = 2" in difference


def test_the_copy_of_a_run_is_found_or_missed(package: Path, root: Path) -> None:
    snapshot = take_snapshot(root, package)
    run = RunPaths(root / "run")
    run.root.mkdir()
    run.code.write_text(json.dumps({"snapshot": str(snapshot.folder)}))
    assert snapshot_of(run) == str(snapshot.folder)
    run.code.write_text(json.dumps({"snapshot": str(root / "gone")}))
    with pytest.raises(LaunchError, match=r"the code that .*run was submitted with is gone; submit the run anew"):
        snapshot_of(run)
    run.code.write_text("{}")
    with pytest.raises(LaunchError, match="names no copy of the code"):
        snapshot_of(run)
    run.code.unlink()
    os.mkfifo(run.code)
    with pytest.raises(LaunchError, match="no regular file: names no copy of the code"):
        snapshot_of(run)


def test_copies_are_no_runs(package: Path, root: Path) -> None:
    take_snapshot(root, package)
    (root / ".code" / "plan.json").write_text("{}")
    assert search_runs(root) == ([], [])
