"""Which degrees of parallelism go together: with each other, with the model's shape, with the ranks and with ZeRO's stage."""

from __future__ import annotations

import dataclasses
import math

from hpctrain.config.schema import Config, ParallelismConfig
from hpctrain.errors import Problem
from hpctrain.plan.divisors import divisors, nearest_where
from hpctrain.plan.layout import Layout
from hpctrain.plan.memory.sub_groups import sub_group_problems
from hpctrain.plan.model_shape import ModelShape, resolve_model_shape
from hpctrain.plan.rank_parameters import rank_parameters
from hpctrain.plan.rules.quantized_gradients import quantized_gradient_problems, quantized_gradient_warnings

_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "sequence_parallel_size")
PIPELINE_STAGE = 1
"""The stage of ZeRO that a pipeline goes with."""


def resolve_layout(config: Config) -> tuple[Layout, tuple[Problem, ...]]:
    """The layout of all ranks; where the degrees do not divide them, one of data parallelism alone and the problem."""
    parallelism = config.parallelism
    layout = Layout(
        config.nodes,
        config.hardware.gpus_per_node,
        parallelism.tensor_parallel_size,
        parallelism.pipeline_parallel_size,
        parallelism.sequence_parallel_size,
    )
    if layout.world_size % layout.ranks_per_replica == 0:
        return layout, ()
    sizes = [name for name in _SIZES if getattr(parallelism, name) > 1]
    product = " x ".join(f"{name} {getattr(parallelism, name)}" for name in sizes)
    step = math.lcm(layout.ranks_per_replica, layout.gpus_per_node) // layout.gpus_per_node
    below = layout.num_nodes // step * step
    nodes = [str(value) for value in (below, below + step) if value]
    others: list[str] = []
    for name in sizes:  # the first of which a change alone is enough
        fits = _fitting(parallelism, name, layout.world_size, _degrees_of_model(config, name))
        others = others or [f"parallelism.{name}={value}" for value in _around(getattr(parallelism, name), fits)]
    # More nodes do not help where the model cannot be cut like this.
    is_cut = all(getattr(parallelism, name) in _degrees_of_model(config, name) for name in sizes)
    is_fixed = config.cluster.kind == "local" or not is_cut
    nearest = [*([] if is_fixed else [f"nodes={' or '.join(nodes)}"]), *others]
    told = product if len(sizes) == 1 else f"{product} = {layout.ranks_per_replica}"
    problem = Problem(
        f"parallelism.{sizes[0]}",
        str(getattr(parallelism, sizes[0])),
        f"{told} must divide the {layout.world_size} ranks of {layout.num_nodes} x {layout.gpus_per_node}",
        f"nearest: {', '.join(nearest) or 'parallelism=auto, which chooses degrees that go together'}",
    )
    return Layout(config.nodes, config.hardware.gpus_per_node), (problem,)


def _degrees_of_model(config: Config, name: str) -> list[int]:
    """What one degree may be as far as the model goes."""
    shape, _ = resolve_model_shape(config.model)
    tensor, seq_len = config.parallelism.tensor_parallel_size, config.training.seq_len or shape.max_seq_len
    wholes = {
        "tensor_parallel_size": tensor_wholes(shape, config.hardware.gpus_per_node),
        "pipeline_parallel_size": {"blocks": shape.num_layers},
        "sequence_parallel_size": sequence_wholes(shape, tensor, seq_len),
    }
    return divisors(math.gcd(*wholes[name].values()))


def parallelism_problems(config: Config, shape: ModelShape, layout: Layout, seq_len: int) -> list[Problem]:
    """Every rule that the degrees and the places of the states break."""
    parallelism = config.parallelism
    return [
        *stage_problems(parallelism, config.hardware.device == "cuda"),
        *quantized_gradient_problems(config, shape, layout),
        *_quantized_weight_problems(parallelism, shape, layout),
        *_tensor_problems(parallelism, shape, layout, seq_len),
        *_sequence_problems(parallelism, shape, layout, seq_len),
        *_pipeline_problems(parallelism, shape, layout),
        *_secondary_partition_problems(parallelism, layout),
        *sub_group_problems(parallelism, shape, layout),
        *_activation_problems(config),
    ]


def parallelism_warnings(parallelism: ParallelismConfig, layout: Layout, num_micro_steps: int) -> list[str]:
    """What is allowed and slow."""
    warnings = []
    pipeline = parallelism.pipeline_parallel_size
    if num_micro_steps < pipeline:
        warnings.append(
            f"training.gradient_accumulation_steps={num_micro_steps} is below parallelism.pipeline_parallel_size={pipeline}:"
            f" {pipeline - 1} of {num_micro_steps + pipeline - 1} turns of every stage are idle"
        )
    per_node = layout.gpus_per_node
    for name in ("sequence_parallel_size", "hpz_partition_size"):
        size = getattr(parallelism, name)
        # Neighbouring ranks: tensor-parallel ones stand between those that split a sequence.
        tensor = layout.tensor_parallel_size if name == "sequence_parallel_size" else 1
        span = size * tensor
        if size == 1 or layout.num_nodes == 1 or per_node % span == 0:
            continue
        beside = f" x tensor_parallel_size {tensor} = {span}" if tensor > 1 else ""
        relation = "is above" if span > per_node else "does not divide"
        warnings.append(
            f"parallelism.{name}={size}{beside} {relation} the {per_node} GPUs of a node: its collectives cross the network"
        )
    warnings += quantized_gradient_warnings(parallelism, layout)
    if parallelism.hpz_partition_size == layout.zero_degree > 1:
        warnings.append(
            f"parallelism.hpz_partition_size={parallelism.hpz_partition_size} is all ranks: the second partition is a copy of the"
            " first and spares no gather"
        )
    return warnings


def stage_problems(parallelism: ParallelismConfig, has_cuda: bool) -> list[Problem]:
    """What only one stage of ZeRO can do, or only a GPU."""
    stage = parallelism.zero_stage
    wanted = {
        "offload_param": parallelism.offload_param != "none",
        "offload_ratio": parallelism.offload_ratio < 1,
        "fit_offload_ratio": parallelism.fit_offload_ratio,
        "hpz_partition_size": parallelism.hpz_partition_size > 1,
        "quantized_weights": parallelism.quantized_weights,
        "quantized_gradients": parallelism.quantized_gradients,
    }
    problems = [
        _problem(parallelism, name, f"needs ZeRO stage 3, here it is {stage}", "set parallelism.zero_stage=3")
        for name, is_set in wanted.items()
        if is_set and stage != 3
    ]
    if stage == 0 and parallelism.offload_optimizer != "none":
        rule = "needs a stage of ZeRO, here it is 0: plain data parallelism keeps all states on every GPU"
        problems.append(_problem(parallelism, "offload_optimizer", rule, "set parallelism.zero_stage=1, 2 or 3"))
    if 0 < stage < 3 and parallelism.allgather_bucket_size % 2:
        rule = "must be even in ZeRO stages 1 and 2: DeepSpeed aligns each rank's share to 2 elements"
        problems.append(
            _problem(parallelism, "allgather_bucket_size", rule, f"nearest: {parallelism.allgather_bucket_size + 1}")
        )
    if parallelism.offload_ratio < 1 and parallelism.offload_optimizer == "none":
        rule = "is a share of what offload_optimizer moves, and that is none"
        problems.append(_problem(parallelism, "offload_ratio", rule, "add parallelism.offload_optimizer=cpu"))
    if not has_cuda:
        rule = "runs on CUDA alone: DeepSpeed 0.19 has no other kernel for it"
        problems += [
            _problem(parallelism, name, rule, "leave it out")
            for name in ("quantized_weights", "quantized_gradients")
            if getattr(parallelism, name)
        ]
    return problems


def _quantized_weight_problems(parallelism: ParallelismConfig, shape: ModelShape, layout: Layout) -> list[Problem]:
    """DeepSpeed quantizes what it gathers together, in groups of eight elements of a rank's share.

    Source: DeepSpeed 0.19.8, runtime/zero/partition_parameters.py CUDAQuantizer.quantize.
    """
    if not parallelism.quantized_weights:
        return []
    ranks, shares = layout.zero_degree, _gathered_shares(shape, layout)
    bad = [f"{name} {share:,} ({share:,} mod 8 = {share % 8})" for name, share in shares.items() if share % 8]
    if not bad:
        return []
    rule = f"needs shares in groups of 8 elements, of what is gathered together; over {ranks:,} ranks: {', '.join(bad)}"

    def is_right(num_nodes: int) -> bool:
        other = dataclasses.replace(layout, num_nodes=num_nodes)
        is_whole = other.world_size % other.ranks_per_replica == 0
        return is_whole and not any(share % 8 for share in _gathered_shares(shape, other).values())

    nodes = " or ".join(map(str, nearest_where(layout.num_nodes, is_right)))
    fix = f"nearest: nodes={nodes}, or leave it out" if nodes else "leave it out"
    return [_problem(parallelism, "quantized_weights", rule, fix)]


def _gathered_shares(shape: ModelShape, layout: Layout) -> dict[str, int]:
    """Elements of one rank of what is gathered together."""
    ranks, own = layout.zero_degree, rank_parameters(shape, layout)
    units = {
        "a block": (*own.block_matrices, *own.block_vectors),
        "the token table": (own.token_table,),
        "the position table": (own.position_table,),
        "the output matrix": (own.head,),
    }
    return {name: sum(math.ceil(size / ranks) for size in sizes) for name, sizes in units.items()}


def tensor_wholes(shape: ModelShape, gpus_per_node: int) -> dict[str, int]:
    """What a tensor-parallel degree must divide."""
    return {
        "heads": shape.num_heads,
        "key and value heads": shape.num_kv_heads,
        "feed-forward width": shape.ffn_hidden_size,
        "vocabulary": shape.vocab_size,
        "GPUs of a node": gpus_per_node,
    }


def sequence_wholes(shape: ModelShape, tensor_parallel_size: int, seq_len: int) -> dict[str, int]:
    """What a sequence-parallel degree must divide."""
    of_rank = "" if tensor_parallel_size == 1 else " of a tensor-parallel rank"
    return {
        f"heads{of_rank}": shape.num_heads // tensor_parallel_size,
        f"key and value heads{of_rank}": shape.num_kv_heads // tensor_parallel_size,
        "sequence length": seq_len,
    }


def _tensor_problems(parallelism: ParallelismConfig, shape: ModelShape, layout: Layout, seq_len: int) -> list[Problem]:
    wholes = tensor_wholes(shape, layout.gpus_per_node)
    if parallelism.pipeline_parallel_size > 1:
        # Stages hand activations on in as many parts as there are tensor-parallel ranks.
        wholes["activations between two stages"] = seq_len * shape.hidden_size
    return _divides(parallelism, "tensor_parallel_size", wholes, layout)


def _sequence_problems(
    parallelism: ParallelismConfig, shape: ModelShape, layout: Layout, seq_len: int
) -> list[Problem]:
    tensor, stages = parallelism.tensor_parallel_size, parallelism.pipeline_parallel_size
    problems = _divides(parallelism, "sequence_parallel_size", sequence_wholes(shape, tensor, seq_len), layout)
    if parallelism.sequence_parallel_size > 1 and stages > 1:
        rule = f"does not go with pipeline_parallel_size={stages}: its stages hand whole sequences on"
        problems.append(
            _problem(parallelism, "sequence_parallel_size", rule, "set parallelism.pipeline_parallel_size=1")
        )
    return problems


def _pipeline_problems(parallelism: ParallelismConfig, shape: ModelShape, layout: Layout) -> list[Problem]:
    size = parallelism.pipeline_parallel_size
    problems = _divides(parallelism, "pipeline_parallel_size", {"blocks": shape.num_layers}, layout)
    if size > 1 and parallelism.zero_stage != PIPELINE_STAGE:
        reason = "gradients of a pipeline are kept over its micro batches"
        if parallelism.zero_stage == 0:
            # Source: DeepSpeed 0.19.8, runtime/engine.py _do_optimizer_sanity_check, BFLOAT16.
            reason = (
                "it sends as much as stage 0 and keeps less, and in bf16 DeepSpeed's pipeline cuts states up in both"
            )
        rule = f"goes with ZeRO stage 1, here it is {parallelism.zero_stage}: {reason}"
        problems.append(_problem(parallelism, "pipeline_parallel_size", rule, _back_to_stage_1(parallelism)))
    return problems


def _secondary_partition_problems(parallelism: ParallelismConfig, layout: Layout) -> list[Problem]:
    size, tensor = parallelism.hpz_partition_size, parallelism.tensor_parallel_size
    if size == 1:
        return []
    if tensor > 1:
        rule = (
            f"shares parameters among neighbouring ranks, which with tensor_parallel_size={tensor} hold different ones"
        )
        return [_problem(parallelism, "hpz_partition_size", rule, "set parallelism.hpz_partition_size=1")]
    return _divides(parallelism, "hpz_partition_size", {"ranks": layout.zero_degree}, layout)


def _activation_problems(config: Config) -> list[Problem]:
    training = config.training
    if not training.offload_activations or training.activation_checkpointing == "full":
        return []
    stated = training.activation_checkpointing or "not stated"
    rule = f"keeps the inputs of recomputed blocks on the host, and training.activation_checkpointing is {stated}"
    fix = "add training.activation_checkpointing=full"
    return [Problem("training.offload_activations", "true", rule, fix)]


def _back_to_stage_1(parallelism: ParallelismConfig) -> str:
    """The override, and those of what stage 3 alone can do."""
    plain = {
        "offload_optimizer": "cpu" if parallelism.offload_optimizer == "nvme" else parallelism.offload_optimizer,
        "offload_param": "none",
        "offload_ratio": 1.0,
        "nvme_ratio": 1.0,
        "fit_offload_ratio": False,
        "hpz_partition_size": 1,
        "quantized_weights": False,
        "quantized_gradients": False,
    }
    more = [
        f"parallelism.{name}={str(value).lower()}"
        for name, value in plain.items()
        if getattr(parallelism, name) != value
    ]
    return "set " + " ".join([f"parallelism.zero_stage={PIPELINE_STAGE}", *more])


def _divides(parallelism: ParallelismConfig, name: str, wholes: dict[str, int], layout: Layout) -> list[Problem]:
    """One problem for all that a degree does not divide, with the nearest degrees that divide all, and the ranks too."""
    size = getattr(parallelism, name)
    bad = {what: whole for what, whole in wholes.items() if whole % size}
    if not bad:
        return []
    good = divisors(math.gcd(*wholes.values()))
    if name in _SIZES:
        good = _fitting(parallelism, name, layout.world_size, good) or good
    told = ", ".join(f"{what} {whole} ({whole} mod {size} = {whole % size})" for what, whole in bad.items())
    fix = " or ".join(map(str, _around(size, good)))
    return [_problem(parallelism, name, f"must divide: {told}", f"nearest: {fix}")]


def _fitting(parallelism: ParallelismConfig, name: str, world_size: int, sizes: list[int]) -> list[int]:
    """Those sizes of one degree with which all degrees together divide the ranks."""
    others = math.prod(getattr(parallelism, other) for other in _SIZES if other != name)
    return [size for size in sizes if world_size % (size * others) == 0]


def _around(wanted: int, sizes: list[int]) -> list[int]:
    """The nearest of some sizes in order, at or below and at or above what was wanted; one where there is no other."""
    below, above = [size for size in sizes if size <= wanted], [size for size in sizes if size >= wanted]
    return list(dict.fromkeys([*below[-1:], *above[:1]]))


def _problem(parallelism: ParallelismConfig, name: str, rule: str, fix: str) -> Problem:
    value = getattr(parallelism, name)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return Problem(f"parallelism.{name}", text, rule, fix)
