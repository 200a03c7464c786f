"""Seconds of one step that data-parallel ranks spend on gathers and sums which compute does not hide.

What a search passes as arrays goes through ``elementwise``, as in ``step_parts``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.plan.elementwise import chosen, everywhere, larger, smaller, somewhere
from hpctrain.plan.speed.network import Group, Links, all_reduce_time_s, gather_time_s, group_of, links_of
from hpctrain.plan.speed.software import Software

if TYPE_CHECKING:
    from hpctrain.plan.speed.step_parts import Machine, Setup

_QUANTIZED_WEIGHT_BYTES, _QUANTIZED_GRADIENT_BYTES = 1, 0.5
"""Of one element in a collective of ZeRO++: 8 bit, and 4 bit. Source: arXiv 2306.10209, section 3. Left out: scales."""


def zero_parts(setup: Setup, machine: Machine, software: Software, micro_step_s: float) -> dict[str, float]:
    """Gathers and reduce-scatters of ZeRO, or the all-reduce of plain data parallelism, as far as compute does not hide them.

    Stage 3 gathers all parameters for the forward and again for the backward pass and reduces gradients in each micro step.
    Below it parameters are gathered once a step (or are the second half of an all-reduce) and gradients reduced once, in stage 2
    once a micro step; nothing is left that could hide the last bucket.
    In a pipeline, which DeepSpeed has for stage 1 alone, parameters stay gathered and gradients whole over all micro steps.
    From a second partition all gathers of stage 3 come but those of the forward pass that follows an update, which makes it.
    Quantized, fewer bytes travel; what the GPU computes for it is left out.
    Source: Rajbhandari et al. 2020 (arXiv 1910.02054), section 7; DeepSpeed 0.19.8, runtime/zero/partition_parameters.py and
    stage_1_and_2.py (average_tensor, gradient_reduction_w_predivide); Wang et
    al. 2023 (ZeRO++, arXiv 2306.10209), section 3; torchtitan, models/llama3/infra/parallelize.py (reshard_after_forward).
    """
    if everywhere(setup.zero_ranks == 1):
        return {}
    links = links_of(machine, software)
    if setup.zero_stage < 3:
        return {"gradient reduction": _reduction_s(setup, machine, software, links, micro_step_s)}
    forward, backward, reduce_s = _stage_3_passes_s(setup, machine, software, links)
    # Where a block is larger than what may stay gathered, nothing can be fetched ahead of its use.
    too_large = setup.live_parameters is not None and setup.shape.block_parameters > setup.live_parameters
    total = forward + backward + reduce_s
    hidden = 0.0 if too_large else smaller(total, micro_step_s) * software.zero_overlap
    share = (total - hidden) / chosen(total > 0, total, 1.0) * _times(setup)
    return {"parameter gathers": (forward + backward) * share, "gradient reduce-scatter": reduce_s * share}


def _reduction_s(setup: Setup, machine: Machine, software: Software, links: Links, micro_step_s: float) -> float:
    """Of one step below stage 3, with the gather of what was updated.

    Where states are sharded in a node alone, each rank sums its share with its peers on the other nodes.
    """
    shard, in_pipeline = _shard(setup), setup.pipeline_degree > 1
    group = group_of(setup.zero_ranks, setup.tensor_degree, machine.gpus_per_node)
    count = _blocks(setup) * software.collectives_per_block
    pieces = _pieces(shard, setup.reduce_bucket, count)
    sums, across_s = shard * software.gradient_bytes, 0.0
    if setup.shard_within_node:
        group = _within_node(setup, machine)
        across_s = all_reduce_time_s(sums / group.num_members, _over_nodes(setup, machine), links, pieces)
    send = all_reduce_time_s if setup.zero_stage > 0 and setup.sums_on_all_ranks else gather_time_s
    reduce_s = send(sums, group, links, pieces) + across_s
    gather_s = gather_time_s(shard * setup.bytes_per_element, group, links, _pieces(shard, setup.gather_bucket, count))
    passes = _times(setup) if setup.zero_stage == 2 else 1
    hidden_s = software.gradient_overlap * micro_step_s * 2 / 3 * passes
    if setup.zero_stage > 0 and setup.overlaps_reduction:
        # DeepSpeed's pipeline does without.
        beside_s = smaller(micro_step_s * 2 / 3, reduce_s * (1 - 1 / pieces))
        hidden_s = chosen(in_pipeline, 0.0, passes * beside_s)
    return larger(0.0, passes * reduce_s - hidden_s) + gather_s


def _stage_3_passes_s(setup: Setup, machine: Machine, software: Software, links: Links) -> tuple[float, float, float]:
    """Gathers of a forward and of a backward pass, and the reduction of its gradients, before anything hides them."""
    shard, layers = _shard(setup), _blocks(setup)
    size = shard * setup.bytes_per_element
    group = group_of(setup.zero_ranks, setup.tensor_degree, machine.gpus_per_node)
    again = 0.0
    if setup.shard_within_node:
        again = all_reduce_time_s(size / machine.gpus_per_node, _over_nodes(setup, machine), links, layers)
        group = group_of(smaller(setup.zero_ranks, machine.gpus_per_node), setup.tensor_degree, machine.gpus_per_node)
    count = layers * software.collectives_per_block
    gathered = shard * _QUANTIZED_WEIGHT_BYTES if setup.quantized_weights else size
    forward = backward = gather_time_s(gathered, group, links, count)
    if somewhere(setup.second_partition_ranks > 1):
        near = group_of(setup.second_partition_ranks, setup.tensor_degree, machine.gpus_per_node)
        backward = gather_time_s(size, near, links, count)
        forward = (forward + (setup.num_micro_steps - 1) * backward) / setup.num_micro_steps
    backward = chosen(setup.pipeline_degree > 1, 0.0, backward)
    # Gathers need no arithmetic; sums are formed in the wider type where the software says so.
    sent = _QUANTIZED_GRADIENT_BYTES if setup.quantized_gradients else software.gradient_bytes
    return forward, backward, gather_time_s(shard * sent, group, links, count) + again


def _shard(setup: Setup) -> float:
    """Parameters of the layers that one rank works on."""
    return setup.shape.num_parameters / (setup.tensor_degree * setup.pipeline_degree)


def _blocks(setup: Setup) -> float:
    return setup.shape.num_layers / setup.pipeline_degree


def _times(setup: Setup) -> float:
    """Passes of a step that gather and reduce anew: those of a pipeline share one."""
    return chosen(setup.pipeline_degree > 1, 1, setup.num_micro_steps)


def _over_nodes(setup: Setup, machine: Machine) -> Group:
    """Ranks at the same place of each node."""
    nodes = -(-setup.zero_ranks // machine.gpus_per_node)
    return group_of(nodes, machine.gpus_per_node, machine.gpus_per_node)


def _within_node(setup: Setup, machine: Machine) -> Group:
    """Data-parallel peers of one rank on its node."""
    peers = larger(1, machine.gpus_per_node // setup.tensor_degree)
    return group_of(smaller(setup.zero_ranks, peers), setup.tensor_degree, machine.gpus_per_node)


def _pieces(elements: float, bucket: float | None, count: float) -> float:
    """Collectives in which so many elements travel; as many as ``count`` without a bucket.

    >>> _pieces(1.3e9, 5e8, 24), _pieces(1.3e9, None, 24)
    (3.0, 24)
    """
    return count if bucket is None else -(-elements // bucket)
