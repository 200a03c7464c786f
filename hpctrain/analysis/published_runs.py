"""What a row of the published files describes, resolved to what the planner's core takes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from hpctrain.errors import ConfigError, Problem
from hpctrain.plan.devices import Device, find_device
from hpctrain.plan.flop_conventions import FlopConvention, published_convention
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.plain_shape import plain_shape
from hpctrain.plan.software import SOFTWARE, SUSTAINED, UNMEASURED_SHARE, Software
from hpctrain.plan.step_parts import Machine, Recomputation, Setup
from hpctrain.units import GIB

ASSUMED_VOCAB = 50304
"""Where a row states none: the vocabulary of GPT-2, padded. It changes FLOPs of large models by less than 0.3 %."""
AZURE_LIVE_PARAMETERS = 3e9
"""max_live_parameters of the recipes published with the Azure results (deepspeedai/Megatron-DeepSpeed@4efb479d)."""
_GATED = re.compile(r"llama|qwen|mistral|gemma|olmo", re.IGNORECASE)
_SPARSE = re.compile(r"mixtral|moe|\dx\d", re.IGNORECASE)
_NEEDED = ("layers", "hidden", "seq_len", "num_gpus", "micro_batch_per_gpu", "global_batch")
_USUAL_NETWORK_GB_PER_S = {"V100": 50.0, "A100": 200.0}
_USUAL_FAST_NETWORK_GB_PER_S = 400.0
"""Of one node: four adapters of 100 Gb/s, eight of 200 Gb/s, and eight of 400 Gb/s beside GPUs that came later."""
_USUAL_HOST_MEMORY_GB_PER_S = {"V100": 256.0, "A100": 409.0, "H100": 614.0, "H200": 614.0}
"""Two sockets: six channels of DDR4-2666, eight of DDR4-3200, eight of DDR5-4800."""
_GENERATIONS = (
    ("on Azure", "deepspeed_2022"),
    ("llm-foundry", "fsdp"),
    ("fms-fsdp", "fsdp"),
    ("BigScience", "megatron_deepspeed_2022"),
    ("Megatron-DeepSpeed", "megatron_deepspeed_2022"),
    ("SC21", "megatron_2021"),
    ("Megatron-LM README", "megatron_2021"),
    ("MT-NLG", "megatron_2021"),
    ("Nanotron", "nanotron"),
)
"""Words of ``source`` and the software generation that they stand for; the first that fits."""
_ZERO_3_OF_2021 = ("SC21", "BigScience (V100")
_RECOMPUTATION: dict[str, Recomputation] = {"none": "none", "selective": "selective", "full": "full"}


@dataclass(frozen=True)
class PublishedRun:
    """A row, resolved."""

    setup: Setup
    machine: Machine
    software: Software
    num_parameters: float
    """As the row states them, for the FLOP conventions with N."""
    convention: FlopConvention | None
    assumptions: tuple[str, ...]
    """What the row does not state and was taken, a few words each."""


def published_run(row: Mapping[Any, Any]) -> PublishedRun:
    """The run that a row of the published files describes.

    Args:
        row: columns of the published files; missing values are None or pandas' NA.

    Raises:
        ConfigError: the row leaves out what cannot be assumed, its numbers contradict each other, or it is a run of a kind
            that the planner has no rules for.
    """
    missing = [name for name in _NEEDED if _number(row, name) is None] + ([] if text_of(row, "gpu") else ["gpu"])
    if missing:
        raise _refusal(f"does not state {', '.join(missing)}")
    if _SPARSE.search(text_of(row, "model")):
        raise _refusal(f"model={text_of(row, 'model')} is sparse, the planner knows dense decoders")
    device = find_device(text_of(row, "gpu"), _number(row, "gpu_mem_gb"))
    shape, parameters = row_shape(row)
    setup, setup_assumptions = _setup(row, shape)
    machine, machine_assumptions = _machine(row, device)
    convention = published_convention(text_of(row, "tflops_convention") or None, text_of(row, "source"))
    software = SOFTWARE[_generation(row)]
    return PublishedRun(setup, machine, software, parameters, convention, setup_assumptions + machine_assumptions)


def row_shape(row: Mapping[Any, Any]) -> tuple[ModelShape, float]:
    """Shape of a row, and its parameters as stated (those of the shape, where nothing is stated).

    Whether the output matrix is the token table is seldom said: that one is taken which comes nearer to the parameters.

    Raises:
        ConfigError: layers or hidden size are missing, or the heads do not divide.
    """
    heads = _count(row, "heads")
    width = re.search(r"attention width (\d+)", text_of(row, "notes"))
    stated = _number(row, "params_b")

    def shape_of(tie: bool) -> ModelShape:
        return plain_shape(
            num_layers=_needed_count(row, "layers"),
            hidden_size=_needed_count(row, "hidden"),
            vocab_size=_count(row, "vocab") or ASSUMED_VOCAB,
            num_heads=heads,
            num_kv_heads=_count(row, "kv_heads"),
            head_dim=int(width[1]) // heads if width and heads else None,
            ffn_hidden_size=_count(row, "ffn_hidden"),
            gated=bool(_GATED.search(text_of(row, "model"))),
            tie_embeddings=tie,
            max_seq_len=_count(row, "seq_len") or 2048,
            name=text_of(row, "model"),
        )

    tied = shape_of(True)
    if stated is None:
        return tied, tied.num_parameters
    return min((tied, shape_of(False)), key=lambda shape: abs(shape.num_parameters - stated * 1e9)), stated * 1e9


def gpu_memory_gib(row: Mapping[Any, Any]) -> float:
    """What a process can allocate on one GPU of the row; 1 % less than the name says, by public out-of-memory reports."""
    return 0.99 * find_device(text_of(row, "gpu"), _number(row, "gpu_mem_gb")).memory_gb


def _machine(row: Mapping[Any, Any], device: Device) -> tuple[Machine, tuple[str, ...]]:
    assumptions = []
    data_type = "bf16" if "bf16" in text_of(row, "precision") and "bf16" in device.peak_tflops else "fp16"
    achievable = device.achievable_tflops.get(data_type)
    if achievable is None:
        achievable = UNMEASURED_SHARE * device.peak_tflops[data_type]
        assumptions.append(f"matmul rate of {UNMEASURED_SHARE:.0%} of the peak")
    family = device.name.split("-")[0]
    stated = re.search(r"network (\d+) Gb/s a node", text_of(row, "notes"))
    network = float(stated[1]) / 8 if stated else _USUAL_NETWORK_GB_PER_S.get(family, _USUAL_FAST_NETWORK_GB_PER_S)
    num_gpus, nodes = _needed_count(row, "num_gpus"), _count(row, "nodes")
    gpus_per_node = math.ceil(num_gpus / nodes) if nodes else min(8, num_gpus)
    if not stated and num_gpus > gpus_per_node:
        assumptions.append(f"network {network * 8:g} Gb/s a node")
    matrix, attention = SUSTAINED.get(family, (1.0, 1.0))
    machine = Machine(
        gpus_per_node=gpus_per_node,
        achievable_tflops=achievable,
        memory_gb_per_s=device.memory_gb_per_s,
        link_gb_per_s=device.link_gb_per_s or device.host_link_gb_per_s,
        network_gb_per_s=network,
        host_link_gb_per_s=device.host_link_gb_per_s,
        host_memory_gb_per_s=_USUAL_HOST_MEMORY_GB_PER_S.get(family, 409.0),
        sustained_matrix=matrix,
        sustained_attention=attention,
    )
    return machine, tuple(assumptions)


def _setup(row: Mapping[Any, Any], shape: ModelShape) -> tuple[Setup, tuple[str, ...]]:
    if _count(row, "tp") is None and _count(row, "dp") is None:
        raise _refusal("does not state tp, pp, dp")
    notes, num_gpus = text_of(row, "notes"), _needed_count(row, "num_gpus")
    tp, pp, sp = (_count(row, name) or 1 for name in ("tp", "pp", "cp_sp"))
    dp = _count(row, "dp") or num_gpus // (tp * pp * sp)
    if dp * tp * pp * sp != num_gpus:
        raise _refusal(f"tp x pp x sp x dp = {tp} x {pp} x {sp} x {dp} is not num_gpus={num_gpus}")
    recomputation = _RECOMPUTATION.get(text_of(row, "activation_ckpt"))
    micro, total, seq_len = (_needed_count(row, name) for name in ("micro_batch_per_gpu", "global_batch", "seq_len"))
    block_inputs_gib = shape.num_layers / pp * micro * seq_len * shape.hidden_size * 2 / GIB
    setup = Setup(
        shape=shape,
        seq_len=seq_len,
        micro_batch_size=micro,
        num_micro_steps=max(1, math.ceil(total / (micro * dp))),
        num_gpus=num_gpus,
        tensor_degree=tp,
        pipeline_degree=pp,
        sequence_degree=sp,
        zero_stage=_count(row, "zero_stage") or 0,
        shard_within_node="HSDP" in notes,
        virtual_stages=_virtual_stages(notes, shape.num_layers // pp),
        recomputation=recomputation or "none",
        offload_optimizer=text_of(row, "offload_optimizer") == "cpu",
        offload_param=text_of(row, "offload_param") == "cpu",
        offload_activations=recomputation == "full" and block_inputs_gib > gpu_memory_gib(row),
        live_parameters=AZURE_LIVE_PARAMETERS if "on Azure" in text_of(row, "source") else None,
    )
    assumptions = [] if recomputation else ["recomputation none"]
    if setup.offload_activations:
        assumptions.append("block inputs on the host, since they exceed the GPU")
    return setup, tuple(assumptions)


def _virtual_stages(notes: str, layers_per_rank: int) -> int:
    if match := re.search(r"(\d+) virtual stages", notes):
        return int(match[1])
    if match := re.search(r"(\d+) layers? a virtual stage", notes):
        return max(1, layers_per_rank // int(match[1]))
    return 1


def _generation(row: Mapping[Any, Any]) -> str:
    source, notes = text_of(row, "source"), text_of(row, "notes")
    if "fms-fsdp" in source and "no torch.compile" not in notes:
        return "fsdp_compiled"
    if _count(row, "zero_stage") == 3 and any(words in source for words in _ZERO_3_OF_2021):
        return "deepspeed_2021"
    for words, name in _GENERATIONS:
        if words in source:
            return name
    return "deepspeed" if _count(row, "zero_stage") == 3 else "megatron"


def text_of(row: Mapping[Any, Any], name: str) -> str:
    """A text column, empty where it is missing."""
    value = row.get(name)
    return "" if value is None or pd.isna(value) else str(value)


def _number(row: Mapping[Any, Any], name: str) -> float | None:
    value = row.get(name)
    return None if value is None or pd.isna(value) else float(value)


def _count(row: Mapping[Any, Any], name: str) -> int | None:
    value = _number(row, name)
    return None if value is None else int(value)


def _needed_count(row: Mapping[Any, Any], name: str) -> int:
    value = _count(row, name)
    if value is None:
        raise _refusal(f"does not state {name}")
    return value


def _refusal(rule: str) -> ConfigError:
    return ConfigError([Problem("row", "", rule, "")])
