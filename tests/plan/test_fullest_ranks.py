"""The rank that an estimate looks at, against all ranks looked at one after another."""

from __future__ import annotations

import pytest

from hpctrain.config.compose import compose_points
from hpctrain.plan.memory.stage12_shares import fullest_data_ranks, rank_share
from hpctrain.plan.rank_parameters import RankParameters
from hpctrain.plan.run_plan import build_run_plan, with_memory_of

FEW_BLOCKS = "training.micro_batch_size=1 training.activation_checkpointing=full training.seq_len=1024"
CASES = {
    "stage 2, two nodes": f"model=llama3_8b nodes=2 parallelism=zero2 {FEW_BLOCKS}",
    "stage 1, more ranks than matrices": f"model=1.3b model.num_layers=4 nodes=8 parallelism=zero1 {FEW_BLOCKS}",
    "stage 2, fp32, accumulation": f"model=1.3b nodes=2 parallelism=zero2 training.precision=fp32 {FEW_BLOCKS}"
    " training.gradient_accumulation_steps=2",
    "stage 1, pipeline": f"model=1.3b nodes=2 parallelism=zero1 parallelism.pipeline_parallel_size=4 {FEW_BLOCKS}"
    " training.gradient_accumulation_steps=4",
    "stage 2, tensor and sequence": f"model=llama3_8b nodes=2 parallelism=zero2 {FEW_BLOCKS}"
    " parallelism.tensor_parallel_size=2 parallelism.sequence_parallel_size=2",
    "stage 2, gradients on the host": f"model=llama3_8b nodes=2 parallelism=zero2 {FEW_BLOCKS}"
    " parallelism.offload_optimizer=cpu training.gradient_accumulation_steps=2",
    "stage 1, CPU ranks": "model=tiny cluster=local hardware.gpus_per_node=8 parallelism=zero1",
}


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_no_rank_and_no_node_needs_more(words: str) -> None:
    (point,) = compose_points(words.split(), multirun=False)
    plan = build_run_plan(point.config)
    each = [with_memory_of(rank, plan, point.config).memory for rank in range(plan.layout.world_size)]
    assert plan.memory.gpu_bytes == max(memory.gpu_bytes for memory in each)
    per_node = plan.layout.gpus_per_node
    of_ranks = [memory.host_bytes_per_node // per_node for memory in each]
    nodes = [sum(of_ranks[first : first + per_node]) for first in range(0, len(each), per_node)]
    # A rank's share of its node is rounded up, term by term.
    assert plan.memory.host_bytes_per_node == pytest.approx(max(nodes), abs=20 * per_node)


def test_the_first_and_the_last_rank_are_not_always_the_fullest() -> None:
    (point,) = compose_points(CASES["stage 2, gradients on the host"].split(), multirun=False)
    plan = build_run_plan(point.config)
    first, last = (with_memory_of(rank, plan, point.config).memory for rank in (0, plan.layout.world_size - 1))
    assert plan.memory.host_bytes_per_node > 1.05 * max(first.host_bytes_per_node, last.host_bytes_per_node)


def test_shares_by_hand() -> None:
    # Matrices of 40, then twice 48, 16, 128, 64: 552 elements, 138 a rank. Rank 1 begins 98 in, inside of the 128 of the first
    # block (which begins at 104 = 40 + 48 + 16), so it has none of 98 to 104 but the last 6 of the 16 before it.
    parameters = RankParameters(2, (48, 16, 128, 64), (4, 4), 40, 0, 0, (4,), True)
    first, second, third, last = (rank_share(parameters, rank, 4).groups[0] for rank in range(4))
    assert (first.numel, first.whole, first.last_block) == (138, 40 + 48 + 16 + 128, 0)
    assert (second.whole, second.last_block) == (128 + 64, 0)
    assert (third.whole, third.last_block) == (64 + 48 + 16 + 128, 1)
    assert last.whole == 128 + 64
    assert [share.is_one_piece for share in (first, second, third, last)] == [False] * 4
    # Behind the blocks is the final norm: the last rank's vectors end with it, and no matrix of its own comes as early.
    assert rank_share(parameters, 3, 4).last_matrix == (2, -1)
    # Of 16 ranks the first has 36 of the 40 of the table, and the second the other 4 and what follows.
    assert [rank_share(parameters, rank, 16).groups[0].is_one_piece for rank in range(4)] == [True, False, False, True]
    assert set(fullest_data_ranks(parameters, 4)) <= set(range(4))
