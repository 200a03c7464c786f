"""What running blocks keeps for the backward pass, in one process."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpctrain.plan.model_shape import ModelShape
from hpctrain.worker.model.decoder import Decoder
from hpctrain.worker.model.host_inputs import HostInputs
from hpctrain.worker.model.recomputation import run_blocks

SHAPE = ModelShape("test", "llama", 4, 16, 2, 2, 8, 40, 64, 32, False, 1e-5, 1e4, 0.05)


class Watched(nn.Module):
    """A layer that notes its input, how often it ran, and how many earlier inputs are still in memory."""

    def __init__(self, inputs: list[weakref.ref[Tensor]]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.inputs = inputs
        self.num_runs = 0

    def forward(self, x: Tensor, rotary: None) -> Tensor:
        del rotary
        self.num_runs += 1
        self.inputs.append(weakref.ref(x))
        out: Tensor = torch.tanh(self.layer(x))
        return out


@pytest.mark.parametrize(("offload", "num_kept"), [(False, 4), (True, 1)])
def test_inputs_put_away_are_gone_from_the_device(offload: bool, num_kept: int) -> None:
    inputs: list[weakref.ref[Tensor]] = []
    blocks = nn.ModuleList(Watched(inputs) for _ in range(4))
    x = torch.randn(2, 8).requires_grad_() * 1.0
    out = run_blocks(blocks, x, None, "full", offload)
    del x
    gc.collect()
    assert sum(ref() is not None for ref in inputs) == num_kept
    torch.autograd.backward(out.sum())
    assert [block.num_runs for block in blocks] == [2] * 4


def gradients(offload: bool, checkpointing: Any = "full") -> tuple[Tensor, list[Tensor]]:
    model = Decoder(SHAPE, checkpointing, seed=3, offload_activations=offload)
    tokens = torch.arange(2 * 9).reshape(2, 9) % SHAPE.vocab_size
    loss = model(tokens[:, :-1], tokens[:, 1:])
    torch.autograd.backward(loss)
    return loss.detach(), [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_gradients_are_the_same_to_the_bit() -> None:
    (loss, found), (other_loss, other), (plain_loss, plain) = (
        gradients(True),
        gradients(False),
        gradients(False, "none"),
    )
    assert loss == other_loss == plain_loss
    assert len(found) == len(other) == len(plain) == len(list(Decoder(SHAPE, "none", 3).parameters()))
    for one, two, three in zip(found, other, plain, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_forward_passes_between_each_other_keep_their_own_inputs() -> None:
    """As micro batches of a pipeline do."""
    blocks = nn.ModuleList(Watched([]) for _ in range(3))
    first, second = (torch.full((2, 8), value).requires_grad_() for value in (0.5, -0.25))
    outs = [run_blocks(blocks, x, None, "full", True) for x in (first, second)]
    for out in outs:
        torch.autograd.backward(out.sum())
    found = [first.grad, second.grad]
    for x, grad in zip((first, second), found, strict=True):
        (wanted,) = torch.autograd.grad(run_blocks(blocks, x, None, "none", False).sum(), x)
        assert grad is not None
        assert torch.equal(grad, wanted)


def test_a_strided_input_comes_back_whole() -> None:
    x = torch.randn(3, 5).t().requires_grad_()
    with HostInputs().hooks():
        squares = x**2
    torch.autograd.backward(squares.sum())
    assert x.grad is not None
    assert torch.equal(x.grad, 2 * x)
