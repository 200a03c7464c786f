"""Owners that are known for certain: storages that the engine's own objects hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from hpctrain.rehearse.ledger import Ledger
from hpctrain.rehearse.result import Owner

# Attributes that ZeRO-3 puts on each parameter (see private_names.ATTRIBUTES). Without them, in stages 1 and 2, the
# parameter's own storage is meant.
_PARTITION, _STAYS_WHOLE, _WHOLE_SHAPE = "ds_tensor", "ds_persist", "ds_shape"


def adopt_engine(engine: Any, ledger: Ledger) -> None:
    """Tells the ledger which storages are parameters' and which the optimizer's."""
    for parameter in engine.module.parameters():
        partition = getattr(parameter, _PARTITION, None)
        if partition is None:
            _assign(ledger, parameter.data, "parameters")
            continue
        _assign(ledger, partition, "parameters")
        second = getattr(parameter, "ds_secondary_tensor", None)
        if second is not None:
            _assign(ledger, second, "parameters")
        if getattr(parameter, _STAYS_WHOLE, False):
            _assign(ledger, parameter.data, "persistent_parameters")
    state = getattr(getattr(engine, "basic_optimizer", None), "state", {})
    for master, moments in state.items():
        # Without ZeRO an fp32 parameter is its own master copy.
        if isinstance(master, torch.Tensor) and not isinstance(master, torch.nn.Parameter):
            _assign(ledger, master, "optimizer")
        for moment in moments.values():
            if isinstance(moment, torch.Tensor):
                _assign(ledger, moment, "optimizer")


def follow_gradients(parameters: Iterable[torch.nn.Parameter], ledger: Ledger) -> list[RemovableHandle]:
    """Hooks that tell the ledger of each gradient, at the moment when autograd hands it over."""

    def tell(gradient: torch.Tensor) -> None:
        _assign(ledger, gradient, "gradients")

    hooks: list[RemovableHandle] = []
    for parameter in parameters:
        if parameter.requires_grad:
            hooks.append(parameter.register_hook(tell))  # type: ignore[no-untyped-call]
    return hooks


def matrix_shapes(parameters: Iterable[torch.nn.Parameter]) -> set[tuple[int, ...]]:
    """Whole shapes of the parameters that have two dimensions."""
    shapes = {tuple(getattr(parameter, _WHOLE_SHAPE, parameter.shape)) for parameter in parameters}
    return {shape for shape in shapes if len(shape) == 2}


def largest_gathered_bytes(parameters: Iterable[torch.nn.Parameter]) -> int:
    """Of the parameter that is largest when it is whole; 0: none is gathered (stages 1 and 2)."""
    sizes = [
        torch.Size(getattr(parameter, _WHOLE_SHAPE)).numel() * parameter.element_size()
        for parameter in parameters
        if hasattr(parameter, _PARTITION) and not getattr(parameter, _STAYS_WHOLE, False)
    ]
    return max(sizes, default=0)


def _assign(ledger: Ledger, tensor: torch.Tensor, owner: Owner) -> None:
    ledger.assign(id(tensor.untyped_storage()), owner)
