"""Pinned memory of construction goes back to the system, by torch's own call where this torch has it."""

from __future__ import annotations

import pytest
import torch

from hpctrain.worker.engine import give_back_first_copies


def test_torch_is_asked_to_give_back_what_is_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(torch.accelerator, "empty_host_cache", lambda: asked.append("now"))
    give_back_first_copies()
    assert asked == ["now"]


def test_the_installed_torch_has_the_call_and_an_older_one_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(torch.accelerator.empty_host_cache), "constraints.txt names a torch that has it"
    monkeypatch.delattr(torch.accelerator, "empty_host_cache")
    give_back_first_copies()
