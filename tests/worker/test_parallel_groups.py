"""Who shares what, in a made-up world of many ranks; and the model on such a rank, with tensors that hold no values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from hpctrain.config.schema import ModelConfig
from hpctrain.plan.layout import Layout
from hpctrain.plan.model_shape import ModelShape, resolve_model_shape
from hpctrain.worker.model.decoder import Decoder
from hpctrain.worker.parallel_groups import ParallelGroups, RankGroup, TensorParallelUnit, build_parallel_groups
from tests.worker.run_folder import GPT, LLAMA


@pytest.fixture
def groups_of() -> Iterator[Callable[[Layout, int], ParallelGroups]]:
    def build(layout: Layout, rank: int) -> ParallelGroups:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
        return build_parallel_groups(layout, rank)

    yield build
    dist.destroy_process_group()


def ranks_of(group: RankGroup | None) -> list[int]:
    assert group is not None
    assert group.group is not None
    ranks = dist.get_process_group_ranks(group.group)
    assert (len(ranks), ranks[group.rank]) == (group.size, dist.get_rank())
    return ranks


def test_ranks_of_every_group(groups_of: Callable[[Layout, int], ParallelGroups]) -> None:
    # Tensor ranks change fastest, then sequence, then data ones: rank 13 is (data 1, sequence 2, tensor 1).
    groups = groups_of(Layout(2, 8, tensor_parallel_size=2, sequence_parallel_size=4), 13)
    assert ranks_of(groups.tensor) == [12, 13]
    assert ranks_of(groups.sequence) == [9, 11, 13, 15]
    assert ranks_of(groups.zero) == [1, 3, 5, 7, 9, 11, 13, 15]


def test_beside_a_pipeline_there_is_the_tensor_group_alone(groups_of: Callable[[Layout, int], ParallelGroups]) -> None:
    groups = groups_of(Layout(2, 8, tensor_parallel_size=2, pipeline_parallel_size=2), 5)
    assert ranks_of(groups.tensor) == [4, 5]
    assert (groups.sequence, groups.zero) == (RankGroup(), None)


def test_data_parallelism_alone_makes_no_groups(groups_of: Callable[[Layout, int], ParallelGroups]) -> None:
    assert groups_of(Layout(2, 8), 5) == ParallelGroups()


def test_all_ranks_as_one_sequence_group(groups_of: Callable[[Layout, int], ParallelGroups]) -> None:
    groups = groups_of(Layout(1, 4, sequence_parallel_size=4), 2)
    assert groups.sequence.group is dist.group.WORLD
    assert ranks_of(groups.sequence) == [0, 1, 2, 3]


def test_what_deepspeed_is_told(groups_of: Callable[[Layout, int], ParallelGroups]) -> None:
    groups = groups_of(Layout(2, 4, tensor_parallel_size=2, sequence_parallel_size=2), 6)
    assert groups.zero is not None
    unit = TensorParallelUnit(groups.tensor, groups.zero)
    assert (unit.get_model_parallel_rank(), unit.get_model_parallel_world_size()) == (0, 2)
    assert (unit.get_data_parallel_rank(), unit.get_data_parallel_world_size()) == (3, 4)
    assert dist.get_process_group_ranks(unit.get_model_parallel_group()) == [6, 7]
    assert dist.get_process_group_ranks(unit.get_data_parallel_group()) == [0, 2, 4, 6]


def test_a_world_of_tensor_ranks_has_a_group_for_each_ones_states(
    groups_of: Callable[[Layout, int], ParallelGroups],
) -> None:
    groups = groups_of(Layout(1, 4, tensor_parallel_size=4), 2)
    assert ranks_of(groups.tensor) == [0, 1, 2, 3]
    assert ranks_of(groups.zero) == [2]


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_the_split_model_runs_on_tensors_without_values(
    model: dict[str, Any], checkpointing: Any, groups_of: Callable[[Layout, int], ParallelGroups]
) -> None:
    shape = shape_of(model | {"num_heads": 8, "num_kv_heads": 4})
    groups = groups_of(Layout(2, 4, tensor_parallel_size=2, sequence_parallel_size=2), 5)
    with FakeTensorMode(allow_non_fake_inputs=True):
        decoder = Decoder(shape, checkpointing, 1, groups)
        ids = torch.randint(shape.vocab_size, (3, 24))
        assert decoder.logits(ids).shape == (3, 12, shape.vocab_size // 2)
        decoder(ids, ids).backward()
        assert all(
            parameter.grad is not None and parameter.grad.shape == parameter.shape for parameter in decoder.parameters()
        )


def shape_of(model: dict[str, Any]) -> ModelShape:
    shape, problems = resolve_model_shape(ModelConfig(**model))
    assert not problems
    return shape
