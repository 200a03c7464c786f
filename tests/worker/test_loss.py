"""The loss in chunks of tokens against torch's own cross entropy of whole scores, in values, gradients, memory and FLOPs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from hpctrain.worker.model.head import Head
from hpctrain.worker.model.layers import ParameterSeed
from hpctrain.worker.model.loss import head_loss
from hpctrain.worker.parallel_groups import ALONE
from tests.rehearse.storage_counter import StorageCounter

BATCH, SEQ, HIDDEN, VOCAB = 4, 48, 32, 300
TOKENS = BATCH * SEQ
CHUNKS = pytest.mark.parametrize("chunk_size", [1, 48, 100, TOKENS - 1], ids="{} tokens".format)


def tensors(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """What the output matrix reads, the matrix, and labels."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(BATCH, SEQ, HIDDEN, generator=generator).to(dtype)
    weight = (0.3 * torch.randn(VOCAB, HIDDEN, generator=generator)).to(dtype)
    return x, weight, torch.randint(VOCAB, (BATCH, SEQ), generator=generator)


def whole(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Torch's loss."""
    return functional.cross_entropy((x @ weight.t()).float().flatten(0, 1), labels.flatten())


def gradients(
    loss_of: Callable[[Tensor, Tensor, Tensor], Tensor], dtype: torch.dtype, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, and the gradients by x and by the matrix of ``scale`` times the loss, in fp64 and without the scale."""
    x, weight, labels = tensors(dtype)
    x.requires_grad_()
    weight.requires_grad_()
    loss = loss_of(x, weight, labels)
    torch.autograd.backward(scale * loss)
    assert x.grad is not None
    assert weight.grad is not None
    assert x.grad.dtype == weight.grad.dtype == dtype
    return loss.detach().double(), x.grad.double() / scale, weight.grad.double() / scale


def chunked(chunk_size: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda x, weight, labels: head_loss(x, weight, labels, ALONE, chunk_size)


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@CHUNKS
def test_fp32_is_torchs_loss_within_rounding(chunk_size: int) -> None:
    found, wanted = gradients(chunked(chunk_size), torch.float32), gradients(whole, torch.float32)
    assert float(found[0]) == pytest.approx(float(wanted[0]), rel=1e-6)
    assert max(distance(one, other) for one, other in zip(found[1:], wanted[1:], strict=True)) < 1e-6


@CHUNKS
@pytest.mark.parametrize(
    ("dtype", "rounding"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)], ids=["bf16", "fp16"]
)
def test_16_bit_gradients_are_as_near_the_truth_as_those_of_whole_scores(
    chunk_size: int, dtype: torch.dtype, rounding: float
) -> None:
    """The truth: fp64 from the same 16-bit values. A sum over 192 chunks is rounded no more than that over one."""
    x, weight, labels = (each.double() if each.is_floating_point() else each for each in tensors(dtype))
    x.requires_grad_()
    weight.requires_grad_()
    torch.autograd.backward(functional.cross_entropy((x @ weight.t()).flatten(0, 1), labels.flatten()))
    assert x.grad is not None
    assert weight.grad is not None
    # The loss scale that DeepSpeed starts with: without one fp16 has no numbers for gradients of a mean over many tokens.
    for scale in (1.0, 2.0**16):
        _, of_x, of_weight = gradients(chunked(chunk_size), dtype, scale)
        _, whole_x, whole_weight = gradients(whole, dtype, scale)
        assert distance(of_x, x.grad) < max(1.05 * distance(whole_x, x.grad), rounding)
        assert distance(of_weight, weight.grad) < max(1.3 * distance(whole_weight, weight.grad), rounding)


@pytest.mark.parametrize("scale", [1.0, 5.0], ids=str)
def test_a_scale_that_16_bits_cannot_hold_is_not_rounded(scale: float) -> None:
    """1/192 and 5/192 are 0.2 % off in bf16; with TOKENS as the scale nothing is left to scale."""
    found, wanted = (gradients(chunked(48), torch.bfloat16, factor)[1:] for factor in (scale, float(TOKENS)))
    for one, other in zip(found, wanted, strict=True):
        assert float((one * other).sum() / other.square().sum()) == pytest.approx(1.0, abs=2e-4)


def test_a_label_that_everything_wants_overflows_nothing_in_fp16() -> None:
    x = torch.full((1, 8192, 8), 30.0, dtype=torch.float16, requires_grad=True)
    weight = torch.zeros(16, 8, dtype=torch.float16, requires_grad=True)
    torch.autograd.backward(head_loss(x, weight, torch.zeros(1, 8192, dtype=torch.int64), ALONE, 4096))
    assert weight.grad is not None
    # Each of 8,192 tokens pulls with (1/16 - 1) x 30: their sum is 230,400, their mean 28.125.
    torch.testing.assert_close(weight.grad[0], torch.full((8,), -28.125, dtype=torch.float16))


@pytest.mark.parametrize("chunk_size", [0, TOKENS, TOKENS + 1])
def test_no_chunk_is_the_whole_loss_to_the_bit(chunk_size: int) -> None:
    for one, other in zip(gradients(chunked(chunk_size), torch.float32), gradients(whole, torch.float32), strict=True):
        assert torch.equal(one, other)


def test_large_scores_neither_overflow_nor_lose_the_label() -> None:
    x = torch.tensor([[[1000.0], [-1000.0]]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0], [0.0]], requires_grad=True)
    labels = torch.tensor([[1, 1]])
    loss = head_loss(x, weight, labels, ALONE, 1)
    # The first token is certain of word 0 (loss 2,000), the second of word 1, which is right (loss 0).
    assert float(loss.detach()) == 1000.0
    torch.autograd.backward(loss)
    assert torch.equal(weight.grad, torch.tensor([[500.0], [-500.0], [0.0]]))  # type: ignore[arg-type]


def test_a_token_beyond_the_vocabulary_is_no_silent_loss() -> None:
    x, weight, labels = tensors()
    labels[2, 5] = VOCAB
    with pytest.raises(RuntimeError, match="index 300 is out of bounds"):
        head_loss(x, weight, labels, ALONE, 48)


def test_one_backward_pass_and_no_second() -> None:
    x, weight, labels = tensors()
    loss = head_loss(x.requires_grad_(), weight, labels, ALONE, 48)
    torch.autograd.backward(loss, retain_graph=True)
    with pytest.raises(RuntimeError, match="has one backward pass"):
        torch.autograd.backward(loss)


def test_validation_makes_no_gradients() -> None:
    x, weight, labels = tensors()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        loss = head_loss(x, weight.requires_grad_(), labels, ALONE, 48)
    assert not loss.requires_grad
    assert float(loss) == pytest.approx(float(whole(x, weight, labels).detach()), rel=1e-6)
    assert counter.get_total_flops() == 2 * TOKENS * HIDDEN * VOCAB


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_no_flops_are_added(dtype: torch.dtype) -> None:
    counts = []
    for chunk_size in (0, 50):
        with FlopCounterMode(display=False) as counter:
            gradients(chunked(chunk_size), dtype)
        counts.append(counter.get_total_flops())
    assert counts == [3 * 2 * TOKENS * HIDDEN * VOCAB] * 2


def peak_bytes(dtype: torch.dtype, chunk_size: int) -> int:
    """Of storages made on the way to the loss."""
    x, weight, labels = tensors(dtype)
    head = Head(
        VOCAB, HIDDEN, 0.1, ParameterSeed(1), loss_chunk_size=chunk_size, token_table=torch.nn.Parameter(weight)
    )
    counter: Any = StorageCounter()
    counter.begin("loss")
    with counter:
        head(x.requires_grad_(), labels)
    counter.end()
    peak: int = counter.rows["loss"][0]
    # The counter sees what it is given, too, in views of it.
    return peak - sum(given.untyped_storage().nbytes() for given in (x, weight, labels))


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 4), (torch.bfloat16, 2)], ids=["fp32", "bf16"])
def test_scores_of_one_chunk_are_there_at_a_time(dtype: torch.dtype, width: int) -> None:
    chunk = 48
    # The gradients, and of one chunk the scores, in 16 bits and in fp32; beside them a few numbers a token.
    kept = TOKENS * HIDDEN * width + 4 * VOCAB * HIDDEN
    scores = chunk * VOCAB * (4 if width == 4 else 6)
    found = peak_bytes(dtype, chunk)
    assert kept + scores <= found <= kept + scores + 64 * chunk
    assert found < 0.65 * peak_bytes(dtype, 0)
