"""What autograd keeps of our blocks on a CPU, counted by its own hooks, against the planner's terms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hpctrain.config.schema import ActivationCheckpointing, HardwareConfig, ParallelismConfig, Precision
from hpctrain.plan.layout import Batch, Layout
from hpctrain.plan.memory.decoder_activations import DecoderActivations
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.stated.plain_shape import plain_shape
from hpctrain.worker.model.decoder import Blocks
from hpctrain.worker.model.layers import ParameterSeed

BATCH, SEQ, LAYERS = 2, 64, 3
SHAPES = {
    "gpt": plain_shape(LAYERS, 64, 96, num_heads=4),
    "llama": plain_shape(LAYERS, 64, 96, num_heads=4, num_kv_heads=2, ffn_hidden_size=160, gated=True),
}
TYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def kept_bytes(shape: ModelShape, checkpointing: ActivationCheckpointing, dtype: torch.dtype) -> int:
    """Of all storages that autograd saves in a forward pass through the blocks, parameters apart."""
    blocks = Blocks(shape, range(shape.num_layers), checkpointing, ParameterSeed(1)).to(dtype)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in blocks.parameters()}
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = torch.randn(BATCH, SEQ, shape.hidden_size, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = blocks(x)
    del out
    return sum(sizes.values())


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_blocks_keep_what_is_planned(name: str, precision: Precision, checkpointing: ActivationCheckpointing) -> None:
    shape = SHAPES[name]
    hardware = HardwareConfig("cpu", "cpu", "none", 1, "any", None, None, precision)
    work = RankWork(
        shape,
        Layout(1, 1),
        Batch(BATCH, 1, BATCH, SEQ),
        ParallelismConfig("zero1", 1),
        hardware,
        precision,
        checkpointing,
    )
    planned = DecoderActivations(work).kept_with(LAYERS - 1)
    assert kept_bytes(shape, checkpointing, TYPES[precision]) == pytest.approx(planned, rel=0.02)
