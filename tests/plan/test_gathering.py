"""What repeats from block to block is replayed once: against a replay of every block."""

from __future__ import annotations

import random

import pytest

from hpctrain.plan.memory.gathering import GatherRules, Int8, Replay
from hpctrain.plan.memory.gradient_buckets import BlockGradients, _Bucket, _leaf_block, _plain_block, gradient_flow
from hpctrain.plan.memory.module_order import Module
from hpctrain.plan.rank_parameters import RankParameters


def decoder(dice: random.Random, num_blocks: int) -> RankParameters:
    """Of sizes that have little to do with one another, as the engine's look-ahead meets them."""
    unit, is_tied = dice.choice([1, 10, 1000]), dice.random() < 0.4
    head = 0 if is_tied else dice.choice([0, unit * dice.randint(1, 300)])
    matrices = tuple(unit * dice.randint(1, 60) for _ in range(4))
    vectors = tuple(dice.randint(1, 3) for _ in range(dice.randint(1, 4)))
    tables = dice.choice([0, unit * dice.randint(1, 300)]), dice.choice([0, unit * dice.randint(1, 80)])
    return RankParameters(num_blocks, matrices, vectors, *tables, head, (dice.randint(1, 3),), is_tied)


def rules(dice: random.Random) -> GatherRules:
    unit = dice.choice([1, 10, 1000])
    return GatherRules(
        num_ranks=dice.choice([1, 2, 3, 8]),
        prefetch_bucket_size=dice.choice([0, 1, unit * dice.randint(1, 800)]),
        max_live_parameters=dice.choice([1, unit * dice.randint(1, 3000)]),
        max_reuse_distance=dice.choice([0, 1, unit * dice.randint(1, 4000)]),
        persistence_threshold=dice.choice([0, 1, 5, unit * dice.randint(0, 50)]),
        int8=dice.choice([None, None, Int8(2, True), Int8(2, False)]),
    )


@pytest.mark.parametrize("is_recomputed", [False, True])
def test_skipped_blocks_are_what_a_replay_of_each_says(is_recomputed: bool) -> None:
    dice = random.Random(1)
    for _ in range(80):
        parameters, engine = decoder(dice, dice.choice([1, 2, 3, 40, dice.randint(50, 300)])), rules(dice)
        replays = [Replay(parameters, engine, is_recomputed, skips) for skips in (True, False)]
        for replay in replays:
            replay.smallest_watched = max(parameters.block_matrices) // 2
        quick, slow = (replay.run() for replay in replays)
        assert quick == slow, (parameters, engine)
        assert replays[0].most_gathered == replays[1].most_gathered, (parameters, engine)


def test_of_a_deep_decoder_few_blocks_are_looked_at() -> None:
    """1.3B's blocks, 4,000 of them: each of the two passes repeats itself after what the engine keeps at once, 1e9 elements."""
    parameters = RankParameters(
        4000, (12582912, 4194304, 16777216, 16777216), (2048,) * 8, 103022592, 4194304, 0, (2048, 2048), True
    )
    engine = GatherRules(8, 50_000_000, 10**9, 10**9, 100_000)
    steps = list[int]()

    class Counted(Replay):
        def _fetch(self, module: Module, step: int) -> int:
            steps.append(step)
            return super()._fetch(module, step)

    visits = Counted(parameters, engine, True).run()
    assert len(visits) == 3 * 4000 + 2 * 5, "two tables, norm, output matrix and the decoder itself, twice each"
    assert len(steps) < 500
    assert [visit.block for visit in visits if visit.block is not None and not visit.is_backward] == list(range(4000))


def every_block(parameters: RankParameters, size: int, num_ranks: int, zero_stage: int) -> tuple[BlockGradients, ...]:
    """One after the other, none taken from another with the same bucket."""
    bucket, of_block = _Bucket(size, num_ranks, zero_stage), _leaf_block if zero_stage == 3 else _plain_block
    for numel in (parameters.head, *parameters.final_norm):
        bucket.hand_over(numel)
    return tuple(of_block(parameters, bucket) for _ in range(parameters.num_blocks))


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_gradients_of_many_blocks_repeat_with_what_is_in_the_bucket(zero_stage: int) -> None:
    """In stage 3 the blocks of a shallow decoder are also the last ones of a deep one, whose beginning no block knows of."""
    dice = random.Random(2)
    for _ in range(50):
        deep = decoder(dice, 120)
        bucket, ranks = dice.randint(1, 2000), dice.choice([1, 2, 8])
        flow = gradient_flow(deep, bucket, ranks, zero_stage)
        assert flow.blocks == every_block(deep, bucket, ranks, zero_stage)
        if zero_stage == 3:
            for depth in (1, 7, 40):
                shallow = RankParameters(depth, *list(vars(deep).values())[1:])
                assert gradient_flow(shallow, bucket, ranks, 3).blocks == flow.blocks[:depth]
