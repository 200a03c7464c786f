"""Imports go one way; what is light stays light."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "hpctrain"

ALLOWED = {
    "secret_text": set(),
    "errors": {"secret_text"},
    "units": set(),
    "user_path": set(),
    "text_table": set(),
    "text_files": {"errors", "config.schema"},
    "token_corpora": {"errors", "config.schema", "plan.rules.data", "tokens"},
    "tokens": {"errors", "units", "text_table", "config.strict_values", "record.files", "tokens"},
    "huggingface": {"errors", "units", "config.schema", "plan", "record.files", "tokens", "huggingface"},
    "config": {"errors", "secret_text", "config"},
    "plan": {
        "errors",
        "secret_text",
        "units",
        "text_table",
        "config.schema",
        "config.ranges",
        "config.open_keys",
        "config.calibration",
        "plan",
    },
    "record": {
        *("errors", "secret_text", "units", "config.schema", "config.build", "config.strict_values"),
        *("config.calibration", "plan", "record"),
    },
    "launch": {
        *("errors", "secret_text", "units", "text_files", "user_path", "huggingface", "token_corpora", "text_table"),
        *("config", "plan", "record", "launch"),
    },
    "analysis": {
        *("errors", "units", "text_table", "config.schema", "config.calibration"),
        *("plan", "record", "rehearse.result", "rehearse.compare", "analysis"),
    },
    "track": {"errors", "secret_text", "units", "config.schema", "config.trackers", "plan", "record", "track"},
    "worker": {
        *("errors", "units", "text_files", "token_corpora", "tokens", "huggingface"),
        *("config.schema", "plan", "record", "worker"),
    },
    "rehearse": {"errors", "units", "text_table", "config.schema", "plan", "record", "worker", "rehearse"},
}
"""Each room and the rooms it may import from; cli and help_text stand above all."""

HEAVY = {"torch", "deepspeed", "pandas", "matplotlib"}
IMPURE_IN_PLAN = {
    *("os", "pathlib", "io", "shutil", "tempfile", "glob", "fcntl", "time", "datetime", "random", "secrets", "uuid"),
    *("logging", "warnings", "subprocess", "socket", "signal", "threading", "getpass", "pwd", "platform", "sys"),
}


def imported_modules(path: Path) -> list[str]:
    """Names of all modules that a file imports anywhere in it."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return names


ABOVE_ALL = {"cli", "help_text", "__init__", "__main__"}


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0].removesuffix(".py")


ALL_MODULES = sorted(PACKAGE.rglob("*.py"))
MODULES = [path for path in ALL_MODULES if room_of(path) in ALLOWED]


def test_every_module_is_in_a_room_that_has_its_rules() -> None:
    strangers = {room_of(path) for path in ALL_MODULES} - ALLOWED.keys() - ABOVE_ALL
    assert not {name for name in strangers if not name.startswith("cli_")}


@pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(PACKAGE)) for path in MODULES])
def test_a_module_imports_only_from_the_rooms_below(path: Path) -> None:
    allowed = ALLOWED[room_of(path)]
    for name in imported_modules(path):
        if not name.startswith("hpctrain."):
            continue
        inside = name.removeprefix("hpctrain.")
        if path.name == "rank_entry.py" and inside in ("worker.job", "worker.launch_check"):
            continue  # the one door to the worker, opened when a rank starts
        assert any(inside == room or inside.startswith(f"{room}.") for room in allowed), f"{path} imports {name}"


@pytest.mark.parametrize(
    ("inner", "outer"), [("", ("figures", "report")), ("logs", ("figures", "report")), ("figures", ("report",))]
)
def test_numbers_of_analysis_know_nothing_of_how_they_are_shown(inner: str, outer: tuple[str, ...]) -> None:
    found = list((PACKAGE / "analysis" / inner).glob("*.py"))
    assert found
    for path in found:
        names = imported_modules(path)
        assert not [name for name in names for room in outer if name.startswith(f"hpctrain.analysis.{room}")], path


def test_torch_is_the_workers_and_pandas_the_analysis_own() -> None:
    for path in ALL_MODULES:
        heavy = {name.split(".")[0] for name in imported_modules(path)} & HEAVY
        own = {
            "worker": {"torch", "deepspeed"},
            "rehearse": {"torch", "deepspeed"},
            "analysis": {"pandas", "matplotlib"},
        }.get(room_of(path), set())
        assert heavy <= own, path


def test_the_plan_is_pure() -> None:
    for path in (PACKAGE / "plan").rglob("*.py"):
        assert not {name.split(".")[0] for name in imported_modules(path)} & IMPURE_IN_PLAN, path


def test_numpy_is_only_for_the_search_in_the_plan() -> None:
    """A plan of what is stated starts without it; ``elementwise`` imports it where an array is given."""
    for path in (PACKAGE / "plan").rglob("*.py"):
        takes_numpy = any(name.split(".")[0] == "numpy" for name in imported_modules(path))
        assert not takes_numpy or path.parent.name == "search" or path.name == "elementwise.py", path
