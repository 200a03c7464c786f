"""The decoder as DeepSpeed's pipeline: which stage holds what, and one optimizer step through all stages."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.engine import TRAIN_BATCH_TIMER
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor

from hpctrain.config.schema import Precision
from hpctrain.plan.run_plan import RunPlan
from hpctrain.worker.data.micro_batches import MicroBatches
from hpctrain.worker.model.decoder import Blocks
from hpctrain.worker.model.head import Head
from hpctrain.worker.model.layers import ParameterSeed, VocabParallelEmbedding
from hpctrain.worker.model.loss import head_loss
from hpctrain.worker.model.stages import FinalNorm, PositionTable
from hpctrain.worker.parallel_groups import ParallelGroups, RankGroup

_TIED = "token_table"
"""DeepSpeed's key of the layers that share the token table."""
_DTYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class _Parts:
    """How activations are cut into parts, read by the engine as if it were a tensor; it is known on the host."""

    numbers: tuple[int, ...]
    """Dimensions, size along each, number of parts, own part, where each part starts and the last ends."""
    dtype: torch.dtype = torch.long

    def tolist(self) -> list[int]:
        return list(self.numbers)


def build_pipeline(plan: RunPlan, seed: int, groups: ParallelGroups) -> PipelineModule:
    """This rank's stage of the decoder; a collective of all ranks.

    Every stage has num_layers / pipeline_parallel_size blocks; the first has the tables too, the last the final norm and the
    output matrix. Ranks stand as ``Layout.place`` says.

    Args:
        plan: shape and layout.
        seed: of the first weights.
        groups: with the tensor-parallel ranks of a stage.
    """
    layout = plan.layout
    topology = PipeModelDataParallelTopology(
        num_pp=layout.pipeline_parallel_size, num_mp=layout.tensor_parallel_size, num_dp=layout.data_parallel_degree
    )
    # DeepSpeed prints the place of every rank and the name of every layer.
    with contextlib.redirect_stdout(io.StringIO()):
        module = PipelineModule(
            _layers(plan, ParameterSeed(seed), groups),
            topology=topology,
            partition_method=f"type:^{Blocks.__name__}$",
        )
    if layout.place(dist.get_rank()).pipeline == layout.pipeline_parallel_size - 1:
        head = module.tied_modules[_TIED] if plan.model.tie_embeddings else module.forward_funcs[-1]
        module.loss_fn = partial(_loss, head.weight, groups.tensor, plan.loss_chunk_size)
    return module


def tell_shapes(engine: Any, plan: RunPlan) -> None:
    """Tells the engine what its stages hand on, which it would ask the stage before for in the first step.

    So the host waits for no answer, and a rehearsal of one stage, whose neighbours are not there, needs none. Tensor-parallel
    ranks each hand on a part of the activations, flat, behind the description of the parts; the receivers gather them.
    Source: DeepSpeed 0.19.8, runtime/pipe/engine.py _recv_tensor_meta, runtime/utils.py PartitionedTensor.
    """
    size = (plan.batch.micro_batch_size, plan.batch.seq_len, plan.model.hidden_size)
    num_parts, own_part = plan.layout.tensor_parallel_size, engine.grid.get_tensor_model_parallel_rank()
    dtype = _DTYPES[plan.precision]
    handed_on: list[tuple[tuple[int, ...], torch.dtype]] = [(size, dtype)]
    if engine.is_pipe_partitioned:
        num_elements = math.prod(size)
        starts = range(0, num_elements + 1, num_elements // num_parts)
        parts = _Parts((len(size), *size, num_parts, own_part, *starts))
        engine.pipe_partition_input_meta_cache = parts
        engine.pipe_partition_output_meta_cache = parts
        engine.grad_partition_grad_layer_meta_cache = parts
        handed_on = [((len(parts.numbers),), parts.dtype), ((num_elements // num_parts,), dtype)]
    engine.first_output_send = False
    if not engine.is_first_stage():
        buffers = tuple(
            engine._allocate_or_extend_buffers(index, list(shape), kind)
            for index, (shape, kind) in enumerate(handed_on)
        )
        engine.pipe_recv_buf = buffers if engine.is_pipe_partitioned else buffers[0]


def train_batch(engine: Any, micro_batches: MicroBatches) -> Tensor:
    """One optimizer step through the pipeline; returns the mean loss of the global batch, on every rank.

    Only the first and the last stage take anything from ``micro_batches``.
    """
    loss: Tensor = engine.train_batch(micro_batches)
    # Nobody reads this clock of the engine's, and it would keep two events of every step.
    engine.timers(TRAIN_BATCH_TIMER).reset()
    return loss


def evaluate_batch(engine: Any, micro_batches: Iterator[tuple[Tensor, Tensor]], num_micro_batches: int) -> Tensor:
    """Mean loss of a global batch through the pipeline without gradients, on every rank; the engine is left evaluating.

    Args:
        engine: DeepSpeed's, between two steps.
        micro_batches: ids and labels; only the first and the last stage take any.
        num_micro_batches: of this data-parallel rank.
    """
    loss: Tensor = engine.eval_batch(micro_batches, num_micro_batches=num_micro_batches)
    return loss


def _layers(plan: RunPlan, seed: ParameterSeed, groups: ParallelGroups) -> list[LayerSpec]:
    """The decoder in the order of the forward pass, one ``Blocks`` a stage; nothing is made yet."""
    shape, num_stages = plan.model, plan.layout.pipeline_parallel_size
    hidden, vocab, std = shape.hidden_size, shape.vocab_size, shape.init_std
    table = (VocabParallelEmbedding, vocab, hidden, std, seed.child("token_table"), groups.tensor)
    per_stage = shape.num_layers // num_stages
    stages = [
        LayerSpec(
            Blocks,
            shape,
            range(first, first + per_stage),
            plan.activation_checkpointing,
            seed,
            groups,
            plan.offload_activations,
        )
        for first in range(0, shape.num_layers, per_stage)
    ]
    positions = [LayerSpec(PositionTable, shape, seed.child("position_table"))] if shape.architecture == "gpt" else []
    norm = LayerSpec(FinalNorm, shape)
    if not shape.tie_embeddings:
        head = LayerSpec(_LastLayer, vocab, hidden, std, seed.child("head"), groups.tensor)
        return [LayerSpec(*table), *positions, *stages, norm, head]
    # The last stage holds a table of its own, whose gradients DeepSpeed adds to those of the first. Only a layer without
    # forward_fn is written into checkpoints: the first.
    return [
        TiedLayerSpec(_TIED, *table),
        *positions,
        *stages,
        norm,
        TiedLayerSpec(_TIED, *table, forward_fn=_unchanged),
    ]


class _LastLayer(Head):
    """Holds the output matrix. The loss uses it, since the engine gives labels to the loss alone."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """``x`` itself."""
        del labels
        return x


def _unchanged(table: VocabParallelEmbedding, x: Tensor) -> Tensor:
    """``x`` itself: the last layer of a stage whose output matrix is the token table; the loss uses it."""
    del table
    return x


def _loss(weight: Tensor, tensor: RankGroup, chunk_size: int, x: Tensor, labels: Tensor) -> Tensor:
    """Of the last stage, see ``head_loss``; ``x`` (batch, seq, hidden) is what its layers give out."""
    return head_loss(x, weight, labels, tensor, chunk_size)
