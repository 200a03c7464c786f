"""Lower bounds of a candidate's memory: what one rank holds at once at one moment, the end of the last block's backward pass.

They hold for candidates that break no rule, and are no estimate: the exact rules (``plan/memory/estimate``) decide on all that is
below them, and what they say of the states of one is known of all that have the same. Held against these in tests/plan/search.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from hpctrain.config.schema import Config
from hpctrain.plan.ds_config import reduce_bucket_elements
from hpctrain.plan.memory.decoder_activations import DecoderActivations
from hpctrain.plan.memory.estimate import CPU_PROCESS_BYTES, DEVICE_CONTEXT_BYTES
from hpctrain.plan.rank_work import BYTES_PER_ELEMENT
from hpctrain.plan.search.candidate import Passes, States
from hpctrain.plan.search.columns import Columns, Floats, Numbers

_FP32 = 4
_ADAM = 12
"""Bytes of a parameter in the optimizer: the fp32 copy and two moments."""
_MISSED_SHARE = 0.05
"""By which whole sub-groups may miss an offload ratio. Source: hpctrain/plan/memory/sub_groups.py."""


class Floors(NamedTuple):
    """Bytes, a row each."""

    gpu: Floats
    host: Floats


def activation_floors(columns: Columns, rows: Numbers, passes: Passes, zero_stage: Literal[0, 3]) -> Floors:
    """Activations and gradients of one rank of the first pipeline stage.

    Args:
        columns: of a space.
        rows: of these.
        passes: what is kept between the passes.
        zero_stage: 3, in which a block hands its gradients over together, or 0 for all others.
    """
    width = BYTES_PER_ELEMENT[columns.precision]
    activations = DecoderActivations(columns.work(rows, passes, States(zero_stage, "none", "none", 1), 1.0))
    last = columns.shape.num_layers // columns.pipeline[rows] - 1
    # Offloaded, its own input is there; else that of the blocks before it too.
    kept = activations.block_input if passes.offload_activations else activations.kept_before(last)
    # The first stage of a pipeline has begun further micro batches.
    in_flight = np.minimum(columns.accumulations[rows], columns.pipeline[rows])
    begun = (in_flight - 1) * activations.kept_with(last)
    heights, arrived = [], np.zeros(len(rows))
    for place, matrix in enumerate(columns.matrices):
        arrived = matrix[rows] + (arrived if zero_stage == 3 else 0.0)
        heights += [each.num_bytes + width * arrived for each in activations.block_heights() if each.matrix == place]
    on_host = last * _rounded(activations.block_input) if passes.offload_activations else np.zeros(len(rows))
    return Floors(kept + begun + np.maximum.reduce(heights), on_host)


def _rounded(piece_bytes: Floats | float) -> Floats:
    """Pinned memory of a piece, see ``memory.terms.Pinned``."""
    return np.asarray(np.exp2(np.ceil(np.log2(piece_bytes))))


def state_floors(columns: Columns, rows: Numbers, states: States, offload_ratios: Floats) -> Floors:
    """Parameters, gradients and optimizer states of one rank that are there throughout.

    Args:
        columns: of a space.
        rows: of these.
        states: where they are kept.
        offload_ratios: of the optimizer's states, a row each.
    """
    width, whole = BYTES_PER_ELEMENT[columns.precision], columns.parameters[rows]
    ranks = columns.zero_ranks[rows]
    share, of_any = whole / ranks, columns.fewest_matrices[rows] / ranks
    accumulates = columns.accumulations[rows] > 1

    def pinned(piece_bytes: Floats) -> Floats:
        return _rounded(piece_bytes) if columns.is_pinned else piece_bytes

    if states.zero_stage == 0:
        kept = (width + _ADAM - (_FP32 if width == _FP32 else 0)) * whole
        return Floors(kept + width * whole * accumulates, np.zeros(len(rows)))
    is_moved = states.offload_optimizer != "none"
    is_in_host = states.offload_optimizer == "cpu"
    bucket = width * reduce_bucket_elements(columns.parallelism, columns.shape.num_parameters)
    if states.zero_stage < 3:
        # In stage 1 gradients wait whole for the last micro step, in stage 2 those of the rank's share.
        waits = accumulates | (columns.pipeline[rows] > 1)
        waiting = width * (whole if states.zero_stage == 1 else 0.0 if is_moved else share) * waits
        gpu = width * whole + waiting + bucket + (0.0 if is_moved else _ADAM * share)
        # Copies, gradients and a buffer for them are pinned, the moments are not.
        host = 2 * _FP32 * of_any + 2 * pinned(_FP32 * of_any) + pinned(width * of_any)
        return Floors(gpu, host * is_in_host)
    moved = np.where(offload_ratios == 1, 1.0, np.maximum(0.0, offload_ratios - _MISSED_SHARE))
    kept = np.where(offload_ratios == 1, 0.0, np.maximum(0.0, 1 - offload_ratios - _MISSED_SHARE))
    gpu = bucket + ((_ADAM + _FP32) * kept if is_moved else _ADAM + width) * share
    host = (_ADAM + _FP32) * moved * of_any * is_in_host + pinned(width * of_any) * is_moved
    if states.offload_param == "none":
        gpu += width * share
    elif states.offload_param == "cpu":
        host += pinned(width * of_any)
    return Floors(gpu, host)


def gathered_floors(columns: Columns, rows: Numbers, states: States) -> Floats:
    """Stage 3: a gathered block and the second partition.

    Args:
        columns: of a space.
        rows: of these.
        states: where they are kept.
    """
    width, second = BYTES_PER_ELEMENT[columns.precision], states.hpz_partition_size
    found = np.zeros(len(rows))
    if states.zero_stage < 3:
        return found
    if second > 1:
        found += width * columns.parameters[rows] / second
    # Of one rank nothing is gathered; the second partition may be smaller by its share of what is.
    gathers = (columns.zero_ranks[rows] > 1) | (states.offload_param != "none")
    return found + np.where(gathers, width * columns.gathered[rows] * (1 - (second > 1) / second), 0.0)


def node_floors(config: Config, rank: Floors, is_cut: npt.NDArray[np.bool_]) -> Floors:
    """Of a GPU, and of a node's memory with all of its ranks; ranks on CPUs hold everything there.

    Args:
        config: of the run.
        rank: of one of the first pipeline stage, in host memory of any.
        is_cut: in pipeline stages; a node may then have ranks of several.
    """
    ranks = config.hardware.gpus_per_node
    if config.hardware.device == "cpu":
        full = np.where(is_cut, 1, ranks)
        return Floors(np.zeros(len(rank.gpu)), full * rank.gpu + ranks * (rank.host + CPU_PROCESS_BYTES))
    return Floors(rank.gpu + DEVICE_CONTEXT_BYTES, ranks * (rank.host + CPU_PROCESS_BYTES))
