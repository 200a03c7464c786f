"""A run as a row of numbers states it, resolved to what the planner's core takes; what is not stated is derived or chosen.

Rows have the columns of ``analysis/published``; a missing value is None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from hpctrain.errors import ConfigError, Problem
from hpctrain.plan.devices import ALLOCATABLE_SHARE, Device, find_device
from hpctrain.plan.flop_conventions import FlopConvention, published_convention
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.speed.software import (
    FP8_OVER_16_BIT,
    FP8_SHARE,
    HOST_ADAM,
    UNMEASURED_SHARE,
    Software,
    sustained_rates,
)
from hpctrain.plan.speed.step_parts import Machine, Recomputation, Setup
from hpctrain.plan.stated.known_hosts import host_memory_gb_per_s
from hpctrain.plan.stated.known_networks import network_of
from hpctrain.plan.stated.known_pipelines import pieces_of_rank
from hpctrain.plan.stated.known_shapes import longest_sequence, named_columns
from hpctrain.plan.stated.known_vocabularies import known_vocabulary
from hpctrain.plan.stated.left_out import gpus_of_row, stage_of_offload, usual_gpus_per_node
from hpctrain.plan.stated.plain_shape import plain_shape
from hpctrain.plan.stated.remarks import checkpoints_on_host, checkpoints_split
from hpctrain.plan.stated.trainer import Trainer, find_trainer
from hpctrain.plan.stated.unknown_kinds import unknown_kind
from hpctrain.plan.stated.zero_variants import Stage3Variants, stage_3_variants
from hpctrain.units import GIB

StatedRow = Mapping[str, str | float | None]

ASSUMED_VOCAB = 50304
"""Where a row states none and its model is not a known one: the vocabulary of GPT-2, padded. It changes FLOPs of large models
by less than 0.3 %."""
ASSUMED_SEQ_LEN = 2048
AZURE_LIVE_PARAMETERS = 3e9
"""max_live_parameters of the recipes published with the Azure results (deepspeedai/Megatron-DeepSpeed@4efb479d)."""
WIDTH_OVER_DEPTH = 128
"""Hidden size over layers of a model of which only the parameters are stated; GPT-3's and Llama's are 96 to 128."""
_GATE_SHARE = 0.15
"""Parameters that two matrices leave unexplained before a third is taken; a gate is a fifth to a third of a block."""
_GATED = re.compile(r"llama|qwen|mistral|gemma|olmo", re.IGNORECASE)
_IN_NODE = re.compile(r"\bHSDP\b(?! =)|\bzero1=[48]\b")
"""The second as InternEvo's settings say it: optimizer states are sharded over that many ranks."""
_RECOMPUTATION: dict[str, Recomputation] = {"none": "none", "selective": "selective", "full": "full"}
_find_device = lru_cache(maxsize=256)(find_device)


@dataclass(frozen=True)
class StatedRun:
    """A row, resolved."""

    setup: Setup
    machine: Machine | None
    """None: the row names no GPU, so neither a time nor a fit can be told."""
    trainer: Trainer
    device: Device | None
    global_batch: int
    num_parameters: float
    """As the row states them, for the FLOP conventions with N."""
    convention: FlopConvention | None
    assumptions: tuple[str, ...]
    """What the row does not state and was taken, a few words each."""
    stated_memory_gb: float | None = None
    """Of one GPU, as the row says; it counts where the row names none that is known."""

    @property
    def capacity_bytes(self) -> float | None:
        """What a process can allocate on one GPU; None: the row names none, and no memory."""
        memory_gb = self.stated_memory_gb if self.device is None else self.device.memory_gb
        return None if memory_gb is None else ALLOCATABLE_SHARE * memory_gb * GIB


def stated_run(row: StatedRow) -> StatedRun:
    """The run that a row describes.

    Args:
        row: columns of the published files; missing values are None or absent.

    Raises:
        ConfigError: the row leaves out what cannot be chosen, its numbers contradict each other, or it is a run of a kind
            that the planner has no rules for.
    """
    full, derived = derive(row)
    device = _device(row)
    shape, parameters = row_shape(full)
    trainer = find_trainer(
        text_of(row, "source"),
        text_of(row, "notes"),
        text_of(row, "precision"),
        count_of(row, "zero_stage"),
        has_offload=any(text_of(row, name) in ("cpu", "nvme") for name in ("offload_optimizer", "offload_param")),
        ref=text_of(row, "ref"),
        gpu=text_of(row, "gpu"),
        model=text_of(row, "model"),
    )
    setup, setup_assumptions = _setup(full, shape)
    setup = _in_micro_batches(setup, trainer)
    machine, machine_assumptions = (None, ()) if device is None else _machine(full, device, trainer.software)
    if machine and _variants(row).has_second_partition:
        of_a_node = max(1, machine.gpus_per_node // setup.tensor_degree)
        setup = replace(setup, second_partition_ranks=min(of_a_node, setup.zero_ranks))
    return StatedRun(
        setup,
        machine,
        trainer,
        device,
        needed_count(full, "global_batch"),
        parameters,
        published_convention(text_of(row, "tflops_convention") or None, text_of(row, "source")),
        derived + setup_assumptions + machine_assumptions,
        number_of(row, "gpu_mem_gb"),
    )


def _device(row: StatedRow) -> Device | None:
    gpu = text_of(row, "gpu")
    return _find_device(gpu, number_of(row, "gpu_mem_gb")) if gpu else None


def derive(row: StatedRow) -> tuple[dict[str, str | float | None], tuple[str, ...]]:
    """The row with layers, sequence, GPUs and batch filled in, and what was chosen rather than computed.

    A micro batch that is not stated is 1 here, and told by who chooses it (``choose_memory``).

    Raises:
        ConfigError: neither layers and hidden size nor the parameters are stated, or neither GPUs, nodes nor degrees.
    """
    full, chosen = dict(row), []
    if kind := unknown_kind(*(text_of(row, name) for name in ("model", "source", "notes", "precision"))):
        raise _refusal(kind)
    if named := named_columns(row):
        full |= named
        row = full
        chosen.append(f"{', '.join(named)} of the public model")
    missing = [name for name in ("layers", "hidden") if count_of(row, name) is None]
    unknown = [] if number_of(row, "params_b") else missing
    gpus = None if count_of(row, "num_gpus") else gpus_of_row(row, _device(row))
    if gpus is not None:
        full["num_gpus"], words = gpus
        chosen.append(words)
    elif count_of(row, "num_gpus") is None:
        unknown.append("num_gpus")
    if unknown:
        raise _refusal(f"does not state {', '.join(unknown)}")
    if (stage := stage_of_offload(row)) is not None:
        full["zero_stage"] = stage
        chosen.append(f"ZeRO stage {stage}, since states are offloaded")
    if missing:
        full |= _shape_of_parameters(row)
        chosen.append(f"{' and '.join(f'{name} {full[name]:g}' for name in missing)} from params_b")
    if count_of(row, "seq_len") is None:
        full["seq_len"] = longest_sequence(text_of(row, "model")) or ASSUMED_SEQ_LEN
        chosen.append(f"sequence {full['seq_len']}")
    model_parallel = math.prod(count_of(row, name) or 1 for name in ("tp", "pp", "cp_sp"))
    data = count_of(row, "dp") or max(1, needed_count(full, "num_gpus") // model_parallel)
    micro, total = count_of(row, "micro_batch_per_gpu"), count_of(row, "global_batch")
    if micro is None:
        micro = 1
        full["micro_batch_per_gpu"] = micro
    if total is None:
        full["global_batch"] = micro * data
        chosen.append("no accumulation")
    return full, tuple(chosen)


def _shape_of_parameters(row: StatedRow) -> dict[str, float]:
    """Layers and hidden size where only one of them, or neither, is stated.

    N = 12·L·h² and the tables; without h, h = 128·L, rounded to 128 elements, or to 16 a head where those do not divide. Layers
    are whole pipeline ranks.
    """
    parameters = (number_of(row, "params_b") or 0.0) * 1e9
    layers, hidden = count_of(row, "layers"), count_of(row, "hidden")
    if hidden is None:
        of_depth = math.sqrt(parameters / 12 / layers) if layers else (parameters * WIDTH_OVER_DEPTH / 12) ** (1 / 3)
        hidden = max(128, round(of_depth / 128) * 128)
        if (heads := count_of(row, "heads")) and hidden % heads:
            hidden = max(1, round(of_depth / (16 * heads))) * 16 * heads
    if layers is None:
        pipeline = count_of(row, "pp") or 1
        tables = _vocabulary(row) * hidden
        block = 12 * hidden**2
        if ffn := count_of(row, "ffn_hidden"):
            block = 4 * hidden**2 + (3 if _GATED.search(text_of(row, "model")) else 2) * hidden * ffn
        layers = max(1, round(max(0.0, parameters - tables) / block / pipeline)) * pipeline
    return {"layers": layers, "hidden": hidden}


def row_shape(row: StatedRow) -> tuple[ModelShape, float]:
    """Shape of a row, and its parameters as stated (those of the shape, where nothing is stated).

    Whether the output matrix is the token table is seldom said: that one is taken which comes nearer to the parameters. The
    feed-forward is gated where the model's name says so, or where two matrices of the stated width leave too many unexplained.

    Raises:
        ConfigError: layers or hidden size are missing, or the heads do not divide.
    """
    stated = number_of(row, "params_b")
    is_gated = bool(_GATED.search(text_of(row, "model")))
    shape = _shape(row, is_gated)
    if stated is None:
        # Models with a gate have two tables from some 7B on (Llama 2 and 3, Mistral, Qwen); below, and without a gate, one.
        shape = replace(shape, tie_embeddings=not is_gated)
        return shape, shape.num_parameters
    candidates = [shape, replace(shape, tie_embeddings=False)]
    is_short = shape.num_parameters < (1 - _GATE_SHARE) * stated * 1e9
    if is_short and not is_gated and count_of(row, "ffn_hidden"):
        gated = _shape(row, True)
        candidates += [gated, replace(gated, tie_embeddings=False)]
    return min(candidates, key=lambda candidate: abs(candidate.num_parameters - stated * 1e9)), stated * 1e9


def _shape(row: StatedRow, gated: bool) -> ModelShape:
    """The shape with the token table as output matrix."""
    heads = count_of(row, "heads")
    width = re.search(r"attention width (\d+)", text_of(row, "notes"))
    return plain_shape(
        num_layers=needed_count(row, "layers"),
        hidden_size=needed_count(row, "hidden"),
        vocab_size=_vocabulary(row),
        num_heads=heads,
        num_kv_heads=count_of(row, "kv_heads"),
        head_dim=int(width[1]) // heads if width and heads else None,
        ffn_hidden_size=count_of(row, "ffn_hidden"),
        gated=gated,
        max_seq_len=count_of(row, "seq_len") or ASSUMED_SEQ_LEN,
        name=text_of(row, "model") or "row",
    )


def _vocabulary(row: StatedRow) -> int:
    known = known_vocabulary(text_of(row, "model"), text_of(row, "source"))
    return count_of(row, "vocab") or known or ASSUMED_VOCAB


def gpu_memory_gib(row: StatedRow) -> float:
    """What a process can allocate on one GPU of the row, GiB.

    Raises:
        ConfigError: the row names no GPU of the device table.
    """
    return _find_device(text_of(row, "gpu"), number_of(row, "gpu_mem_gb")).allocatable_gib


def _machine(row: StatedRow, device: Device, software: Software) -> tuple[Machine, tuple[str, ...]]:
    assumptions = []
    data_type = _data_type(text_of(row, "precision").lower(), device)
    achievable = device.achievable_tflops.get(data_type)
    if achievable is None:
        achievable = UNMEASURED_SHARE * device.peak_tflops[data_type]
        assumptions.append(f"matmul rate of {UNMEASURED_SHARE:.0%} of the peak")
    family = device.family
    num_gpus, nodes = needed_count(row, "num_gpus"), count_of(row, "nodes")
    gpus_per_node = math.ceil(num_gpus / nodes) if nodes else min(usual_gpus_per_node(device), num_gpus)
    words = "; ".join(text_of(row, name) for name in ("notes", "gpu", "source"))
    network = network_of(words, family, device.link_gb_per_s is not None, gpus_per_node, usual_gpus_per_node(device))
    if not network.is_stated and num_gpus > gpus_per_node:
        assumptions.append(f"network {network.gb_per_s * 8:g} Gb/s a node")
    sustained = sustained_rates(family, software.own_kernels, device.name)
    fp8 = FP8_SHARE * device.achievable_tflops.get("fp8", FP8_OVER_16_BIT * achievable) * sustained.fp8
    machine = Machine(
        gpus_per_node=gpus_per_node,
        achievable_tflops=achievable,
        memory_gb_per_s=device.memory_gb_per_s,
        link_gb_per_s=device.link_gb_per_s or device.host_link_gb_per_s,
        network_gb_per_s=network.gb_per_s,
        host_link_gb_per_s=device.host_link_gb_per_s,
        host_memory_gb_per_s=host_memory_gb_per_s(family),
        sustained_matrix=sustained.matrix,
        sustained_attention=sustained.attention,
        half_rate_outputs=sustained.half_rate_outputs,
        host_adam=HOST_ADAM.get(family, 1.0),
        block_tflops=fp8 if "fp8" in text_of(row, "precision").lower() and "fp8" in device.peak_tflops else None,
    )
    return machine, tuple(assumptions)


def _data_type(precision: str, device: Device) -> str:
    """Of the matrix products, as the device's table of peaks names it; 16 bit where the row states none."""
    if precision in ("fp32", "float32") or (precision == "tf32" and "tf32" not in device.peak_tflops):
        return "fp32"
    if precision == "tf32":
        return "tf32"
    return "bf16" if "bf16" in precision and "bf16" in device.peak_tflops else "fp16"


def _setup(row: StatedRow, shape: ModelShape) -> tuple[Setup, tuple[str, ...]]:
    notes, num_gpus = text_of(row, "notes"), needed_count(row, "num_gpus")
    tp, pp, sp = (count_of(row, name) or 1 for name in ("tp", "pp", "cp_sp"))
    dp = count_of(row, "dp") or num_gpus // (tp * pp * sp)
    if dp * tp * pp * sp != num_gpus:
        raise _refusal(f"tp x pp x sp x dp = {tp} x {pp} x {sp} x {dp} is not num_gpus={num_gpus}")
    if needed_count(row, "global_batch") < needed_count(row, "micro_batch_per_gpu") * dp:
        micro, total = (needed_count(row, name) for name in ("micro_batch_per_gpu", "global_batch"))
        raise _refusal(f"global_batch={total} is less than micro_batch_per_gpu x dp = {micro} x {dp}")
    if (count_of(row, "nodes") or 1) > num_gpus:
        raise _refusal(f"nodes={count_of(row, 'nodes')} is more than num_gpus={num_gpus}")
    if pp > shape.num_layers:
        raise _refusal(f"pp={pp} is more than layers={shape.num_layers}")
    recomputation = _RECOMPUTATION.get(text_of(row, "activation_ckpt"))
    on_host = recomputation == "full" and checkpoints_on_host(notes)
    variants = _variants(row)
    micro, total, seq_len = (needed_count(row, name) for name in ("micro_batch_per_gpu", "global_batch", "seq_len"))
    setup = Setup(
        shape=shape,
        seq_len=seq_len,
        micro_batch_size=micro,
        num_micro_steps=max(1, round(total / (micro * dp))),
        num_gpus=num_gpus,
        tensor_degree=tp,
        pipeline_degree=pp,
        sequence_degree=sp,
        zero_stage=count_of(row, "zero_stage") or 0,
        shard_within_node=bool(_IN_NODE.search(notes)),
        quantized_weights=variants.narrow_gathers,
        quantized_gradients=variants.narrow_sums,
        virtual_stages=pieces_of_rank(f"{text_of(row, 'source')} {text_of(row, 'ref')}", notes, shape.num_layers, pp),
        recomputation=recomputation or "none",
        offload_optimizer=text_of(row, "offload_optimizer") in ("cpu", "nvme"),
        offload_param=text_of(row, "offload_param") in ("cpu", "nvme"),
        offload_activations=on_host,
        split_block_inputs=tp > 1 and (on_host or (recomputation == "full" and checkpoints_split(notes))),
        live_parameters=AZURE_LIVE_PARAMETERS if "on Azure" in text_of(row, "source") else None,
        bytes_per_element=4 if text_of(row, "precision").lower() in ("fp32", "tf32", "float32") else 2,
    )
    assumptions = [] if recomputation else ["recomputation none"]
    if total % (micro * dp):
        assumptions.append(
            f"micro steps rounded to {setup.num_micro_steps}, since {micro} x {dp} does not divide {total}"
        )
    return setup, tuple(assumptions)


def _variants(row: StatedRow) -> Stage3Variants:
    source = f"{text_of(row, 'source')} {text_of(row, 'ref')}"
    return stage_3_variants(count_of(row, "zero_stage"), source, text_of(row, "notes"), text_of(row, "precision"))


def _in_micro_batches(setup: Setup, trainer: Trainer) -> Setup:
    """FSDP's trainers state the batch of a step, which a pipeline cuts into as many micro batches as it has ranks.

    Source: torchtitan, distributed/pipeline.py (pipeline_parallel_microbatch_size, before it pipeline_parallel_microbatches).
    """
    p = setup.pipeline_degree
    if not trainer.habits.keeps_gathered or p == 1 or setup.num_micro_steps > 1 or setup.micro_batch_size % p:
        return setup
    return replace(setup, micro_batch_size=setup.micro_batch_size // p, num_micro_steps=p)


def text_of(row: StatedRow, name: str) -> str:
    """A text column, empty where it is missing."""
    value = row.get(name)
    return "" if value is None else str(value)


def number_of(row: StatedRow, name: str) -> float | None:
    """A number column."""
    value = row.get(name)
    return None if value is None else float(value)


def count_of(row: StatedRow, name: str) -> int | None:
    """A column of whole numbers."""
    value = row.get(name)
    return None if value is None else int(value)


def needed_count(row: StatedRow, name: str) -> int:
    """A column of whole numbers that must be there.

    Raises:
        ConfigError: it is missing.
    """
    value = count_of(row, name)
    if value is None:
        raise _refusal(f"does not state {name}")
    return value


def _refusal(rule: str) -> ConfigError:
    return ConfigError([Problem("row", "", rule, "")])
