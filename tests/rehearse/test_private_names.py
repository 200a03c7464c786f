"""Private names of torch and DeepSpeed: all are there, and a missing one is named with what still works."""

from __future__ import annotations

import ast
from importlib.metadata import version
from pathlib import Path

import deepspeed
import pytest
import torch.utils.backend_registration

from hpctrain.rehearse import owners
from hpctrain.rehearse.private_names import NAMES, MissingNameError, private
from hpctrain.worker import plain_optimizer

ROOM = Path(owners.__file__).parent


@pytest.mark.parametrize("name", NAMES)
def test_it_is_there(name: str) -> None:
    assert private(name) is not None


def test_a_missing_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.utils.backend_registration, "_DummyBackendModule")
    name = "torch.utils.backend_registration._DummyBackendModule"
    with pytest.raises(MissingNameError) as caught:
        private(name)
    text = str(caught.value)
    assert text.startswith(f"{name}: torch {version('torch')} has no such name; it was there in torch 2.13.0")
    assert "this still works: rehearsing plans of hardware=cpu" in text
    assert "pip install torch==2.13.0" in text


def test_none_is_used_past_the_table() -> None:
    for path in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                foreign = module.startswith(("torch", "deepspeed"))
                assert not (foreign and any(part.startswith("_") for part in module.split("."))), f"{path}: {module}"


def test_the_places_that_tell_owners_are_in_the_installed_engine() -> None:
    engine = Path(deepspeed.__file__).parent
    optimizers = Path(torch.__file__).parent / "optim"
    files = [*engine.rglob("*.py"), *optimizers.glob("*.py"), Path(plain_optimizer.__file__)]
    functions: dict[str, set[str]] = {}
    for path in files:
        wanted = {file for file, _ in owners.known_places()}
        if path.stem in wanted:
            found = {
                node.name
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, ast.FunctionDef)
            }
            functions.setdefault(path.stem, set()).update(found)
    missing = [f"{file}.{function}" for file, function in owners.known_places() if function not in functions[file]]
    assert not missing
