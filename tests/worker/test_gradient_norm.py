"""The joint norm of ZeRO-1 and 2 beside the one that DeepSpeed 0.19.8 takes, and its sum beside fp64."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.runtime.utils import is_invalid_grad_norm
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch import Tensor

from hpctrain.worker.gradient_norm import install_joint_norm, sum_of_squares

DATA, MODEL = object(), object()
"""Stand for the groups over which DeepSpeed sums: 3 data-parallel and 2 model-parallel ranks that all hold the same."""
_SIZES = {DATA: 3, MODEL: 2}


@pytest.fixture(autouse=True)
def sums(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The groups of all sums, in order."""
    groups: list[object] = []

    def sums_over(tensor: Tensor, op: Any = None, group: object = None) -> None:
        del op
        groups.append(group)
        tensor.mul_(_SIZES[group])

    monkeypatch.setattr("torch.distributed.all_reduce", sums_over)
    monkeypatch.setattr("deepspeed.comm.all_reduce", sums_over)
    monkeypatch.setattr("deepspeed.runtime.zero.stage_1_and_2.pg_utils.is_parallel", lambda group: group is MODEL)
    return groups


def optimizer_with(gradients: list[list[Tensor]], rank: int = 0, cpu_offload: bool = False) -> DeepSpeedZeroOptimizer:
    """DeepSpeed's, of two groups, with what its norm looks at: pieces of a split matrix, a replica and a table of two stages."""
    optimizer = DeepSpeedZeroOptimizer.__new__(DeepSpeedZeroOptimizer)
    matrix, table, vector = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
    matrix.tensor_model_parallel = True  # type: ignore[attr-defined]
    table.ds_pipe_replicated = True  # type: ignore[attr-defined]
    values = {
        "averaged_gradients": dict(enumerate(gradients)),
        "params_in_partition": [[matrix, table], [vector, matrix]],
        "bit16_groups": [[], []],
        "device": torch.device("cpu"),
        "cpu_offload": cpu_offload,
        "has_moe_layers": False,
        "groups_lacking_loss_scale": set(),
        "loss_scaler": SimpleNamespace(cur_scale=1.0),
        "custom_loss_scaler": False,
        "dp_process_group": DATA,
        "model_parallel_group": MODEL,
        "model_parallel_rank": rank,
    }
    for name, value in values.items():
        setattr(optimizer, name, value)
    return optimizer


def padding(length: int) -> Tensor:
    pad = torch.full((length,), 7.0)  # zeros would not show whether they are counted
    pad._zero_padding = True  # type: ignore[attr-defined]
    return pad


def drawn(dtype: torch.dtype, change: float | None = None) -> list[list[Tensor]]:
    """A share that begins with padding, and one that ends with it."""
    generator = torch.Generator().manual_seed(1)
    first, second, third, fourth = ((torch.randn(90_000, generator=generator)).to(dtype) for _ in range(4))
    if change is not None:
        third[5] = change
    return [[padding(3), first, second], [third, fourth, padding(2)]]


@pytest.mark.parametrize("rank", [0, 1], ids="model-parallel rank {}".format)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_it_is_deepspeeds_norm_with_half_of_the_sums(dtype: torch.dtype, rank: int, sums: list[object]) -> None:
    optimizer = optimizer_with(drawn(dtype), rank)
    theirs = optimizer.scaled_global_norm()
    assert sums == [DATA, MODEL] * 2
    engine = SimpleNamespace(optimizer=optimizer)
    install_joint_norm(engine)
    ours = optimizer.scaled_global_norm()
    assert sums[4:] == [DATA, MODEL]
    assert ours.dtype == torch.float32
    assert ours.shape == ()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)
    # The first group's matrix, the second's, and the vector on one of the tensor-parallel ranks; 3 x 2 ranks have it.
    assert float(ours) == pytest.approx((6 * 90_000 * (3 if rank == 0 else 2)) ** 0.5, rel=1e-2)


@pytest.mark.parametrize("change", [float("inf"), float("-inf"), float("nan")], ids=str)
def test_a_gradient_that_is_not_finite_makes_no_number_of_the_norm(change: float) -> None:
    """In bf16 the engine records it as the step's norm."""
    optimizer = optimizer_with(drawn(torch.bfloat16, change))
    assert not math.isfinite(optimizer.scaled_global_norm())
    install_joint_norm(SimpleNamespace(optimizer=optimizer))
    norm = optimizer.scaled_global_norm()
    assert not math.isfinite(norm)
    assert is_invalid_grad_norm(norm)  # by which fp16 skips the step


def test_a_share_of_padding_alone_is_nothing() -> None:
    optimizer = optimizer_with([[padding(4)], [padding(4)]])
    optimizer.params_in_partition = [[], []]
    install_joint_norm(SimpleNamespace(optimizer=optimizer))
    assert float(optimizer.scaled_global_norm()) == 0.0


def test_offloaded_gradients_keep_deepspeeds_norm() -> None:
    optimizer = optimizer_with(drawn(torch.float32), cpu_offload=True)
    install_joint_norm(SimpleNamespace(optimizer=optimizer))
    assert "scaled_global_norm" not in vars(optimizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_many_elements_lose_nothing(dtype: torch.dtype) -> None:
    gradients = [torch.randn(2, 2**22, generator=torch.Generator().manual_seed(2)).to(dtype).t(), torch.ones(3)]
    wanted = sum(float(gradient.double().square().sum()) for gradient in gradients)
    assert float(sum_of_squares(gradients, "cpu")) == pytest.approx(wanted, rel=2e-5)
