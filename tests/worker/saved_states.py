"""Checkpoints composed without an engine, in DeepSpeed's form, from tensors that are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hpctrain.config.schema import ModelConfig
from hpctrain.plan.model_shape import ModelShape, resolve_model_shape
from hpctrain.record.checkpoints import checkpoint_name
from hpctrain.record.files import write_record
from hpctrain.record.resume_check import shape_values
from hpctrain.record.schema import CheckpointFile, CheckpointRecord
from hpctrain.worker.model.decoder import Decoder
from hpctrain.worker.state.source import StateKind
from tests.record.checkpoint_folder import make_record

STEP = 7
State = dict[StateKind, dict[str, Tensor]]


def shape_of(model: Mapping[str, Any]) -> ModelShape:
    shape, problems = resolve_model_shape(ModelConfig(**model))
    assert not problems
    return shape


def decoder_of(shape: ModelShape, seed: int = 3) -> Decoder:
    """A decoder none of whose parameters has its first values: norms and biases are drawn, too."""
    decoder = Decoder(shape, "none", seed)
    generator = torch.Generator().manual_seed(seed)
    for parameter in decoder.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return decoder


def state_of(decoder: Decoder) -> State:
    """Its weights, and made-up moments."""
    weights = {name: parameter.detach().clone() for name, parameter in decoder.named_parameters()}
    return {
        "fp32": weights,
        "exp_avg": {name: -0.5 * weight for name, weight in weights.items()},
        "exp_avg_sq": {name: weight.square() for name, weight in weights.items()},
    }


@dataclass
class Composer:
    """Writes the files of one checkpoint."""

    folder: Path
    zero_stage: int
    num_zero_ranks: int
    num_tensor_ranks: int
    files: list[CheckpointFile] = field(default_factory=list)

    def write(self, name: str, content: dict[str, Any], zero_rank: int, tensor_rank: int) -> None:
        path = self.folder / name
        torch.save(content, path)
        number = zero_rank * self.num_tensor_ranks + tensor_rank
        self.files.append(CheckpointFile(name, path.stat().st_size, number))

    def write_rank(self, zero_rank: int, tensor_rank: int, state: State) -> None:
        """A rank's files; ``state`` of its tensor-parallel place."""
        groups = groups_of(state["fp32"])
        counts = {"global_steps": STEP, "global_samples": 8 * STEP, "skipped_steps": 1}
        shapes = [{name: state["fp32"][name].shape for name in group} for group in groups]
        mp = f"mp_rank_{tensor_rank:02d}"
        if self.zero_stage == 0:
            if zero_rank == 0:
                names = [name for group in groups for name in group]
                moments = {
                    number: {"step": torch.tensor(6.0)}
                    | {kind: state[kind][name] for kind in ("exp_avg", "exp_avg_sq")}
                    for number, name in enumerate(names)
                }
                plain: dict[str, Any] = {"optimizer": {"state": moments}, "fp32_copies": [], "loss_scaler": None}
                content = {"module": state["fp32"], "optimizer": plain, "param_shapes": None, **counts}
                self.write(f"{mp}_model_states.pt", content, zero_rank, tensor_rank)
            return
        flats = {kind: [self.share(state[kind], group, zero_rank) for group in groups] for kind in state}
        moments = {
            number: {"step": torch.tensor(6.0)} | {kind: flats[kind][number] for kind in ("exp_avg", "exp_avg_sq")}
            for number in range(len(groups))
        }
        zero = f"zero_pp_rank_{zero_rank}_{mp}"
        if self.zero_stage == 3:
            optimizer = {"optimizer_state_dict": {"state": moments}, "fp32_flat_groups": flats["fp32"]}
            self.write(f"{zero}_model_states.pt", {"param_shapes": shapes, **counts}, zero_rank, tensor_rank)
        else:
            # DeepSpeed takes the padding off the weights of the ranks that have some, and leaves it on their moments.
            without = [
                self.without_padding(flat, state, group, zero_rank)
                for flat, group in zip(flats["fp32"], groups, strict=True)
            ]
            optimizer = {"base_optimizer_state": {"state": moments}, "single_partition_of_fp32_groups": without}
            if zero_rank == 0:
                self.write(f"{mp}_model_states.pt", {"param_shapes": shapes, **counts}, zero_rank, tensor_rank)
        self.write(f"{zero}_optim_states.pt", {"optimizer_state_dict": optimizer}, zero_rank, tensor_rank)

    def share(self, tensors: dict[str, Tensor], group: list[str], zero_rank: int) -> Tensor:
        """Of one group, flat, padded."""
        if self.zero_stage == 3:
            return torch.cat([padded(tensors[name].flatten(), self.num_zero_ranks)[zero_rank] for name in group])
        return padded(torch.cat([tensors[name].flatten() for name in group]), self.num_zero_ranks, 2)[zero_rank]

    def without_padding(self, flat: Tensor, state: State, group: list[str], zero_rank: int) -> Tensor:
        left = sum(state["fp32"][name].numel() for name in group) - zero_rank * flat.numel()
        return flat[: max(0, left)].clone()


def groups_of(weights: dict[str, Tensor]) -> list[list[str]]:
    """DeepSpeed's parameter groups: matrices, then vectors."""
    return [
        [name for name, weight in weights.items() if (weight.dim() > 1) == is_matrix] for is_matrix in (True, False)
    ]


def padded(flat: Tensor, num_ranks: int, alignment: int = 1) -> tuple[Tensor, ...]:
    return functional.pad(flat, (0, -flat.numel() % (num_ranks * alignment))).chunk(num_ranks)


def tensor_piece(shape: ModelShape, name: str, whole: Tensor, rank: int, num_ranks: int) -> Tensor:
    """What a tensor-parallel rank holds."""
    if "qkv" in name:
        parts = torch.split(whole, [shape.attention_width, shape.kv_width, shape.kv_width])
    elif "ffn_in" in name:
        parts = torch.split(whole, shape.ffn_hidden_size)
    elif name in ("token_table.weight", "head.weight"):
        parts = (whole,)
    elif name.endswith(("projection.weight", "ffn_out.weight")):
        return whole.chunk(num_ranks, dim=1)[rank].contiguous()
    else:
        return whole
    return torch.cat([part.chunk(num_ranks)[rank] for part in parts])


def compose_checkpoint(
    checkpoints: Path,
    shape: ModelShape,
    state: State,
    zero_stage: int,
    num_zero_ranks: int = 2,
    num_tensor_ranks: int = 1,
) -> tuple[Path, CheckpointRecord]:
    """A complete checkpoint of step 7, whose optimizer has skipped one; its folder and record."""
    folder = checkpoints / checkpoint_name(STEP)
    folder.mkdir(parents=True)
    composer = Composer(folder, zero_stage, num_zero_ranks, num_tensor_ranks)
    for zero_rank in range(num_zero_ranks):
        for tensor_rank in range(num_tensor_ranks):
            own: State = {
                kind: {
                    name: tensor_piece(shape, name, whole, tensor_rank, num_tensor_ranks)
                    for name, whole in tensors.items()
                }
                for kind, tensors in state.items()
            }
            composer.write_rank(zero_rank, tensor_rank, own)
    record = dataclasses.replace(
        make_record(STEP),
        world_size=num_zero_ranks * num_tensor_ranks,
        zero_stage=zero_stage,
        tensor_parallel_size=num_tensor_ranks,
        precision="fp32",
        model=shape_values(shape),
        num_parameters=shape.num_parameters,
        files=tuple(composer.files),
        num_bytes=sum(file.num_bytes for file in composer.files),
    )
    write_record(folder / "complete.json", record)
    return folder, record
