"""Sub-groups of the optimizer: how many elements each has, and which share of them a ratio moves."""

from __future__ import annotations

import pytest

from hpctrain.plan.memory.sub_groups import choose_sub_group_size, host_share, num_kept_on_gpu, sub_groups
from hpctrain.plan.rank_parameters import RankParameters, rank_parameters
from tests.plan.test_run_plan import plan_of

# 10 blocks of matrices of 30, 10, 40 and 40 and of vectors of 6; a table of 100.
PARAMETERS = RankParameters(10, (30, 10, 40, 40), (6,), 100, 0, 0, (4,), is_tied=True)
PARTLY = ("parallelism.offload_optimizer=cpu", "hardware=ndm_a100_v4", "training.micro_batch_size=1")


@pytest.mark.parametrize(
    ("size", "degree", "wanted"),
    [
        pytest.param(10**9, 1, [1300, 64], id="one-of-each-kind"),
        pytest.param(1300, 1, [1300, 64], id="just-one"),
        pytest.param(650, 1, [660, 640, 64], id="whole-parameters"),
        pytest.param(100, 1, [100, *[120] * 10, 64], id="a-block-each"),
        # Of 3 ranks: 34, then 10, 4, 14, 14 a block; 42 a block or more fills one of 40.
        pytest.param(10**9, 3, [454, 22], id="rounded-up"),
        pytest.param(400, 3, [412, 42, 22], id="rounded-up-and-cut"),
    ],
)
def test_sub_groups(size: int, degree: int, wanted: list[int]) -> None:
    assert sub_groups(PARAMETERS, degree, size) == wanted


def test_the_engine_rounds_down_what_stays() -> None:
    # 0.1 x 10 is 0.9999999999999998 to the engine, when it is 1 - 0.9.
    assert [num_kept_on_gpu(10, ratio) for ratio in (1.0, 0.95, 0.9, 0.5, 0.05)] == [0, 0, 0, 5, 9]
    assert host_share(PARAMETERS, 1, 650, 0.5) == (640 + 64) / 1364
    assert host_share(PARAMETERS, 1, 10**9, 0.5) == 64 / 1364
    assert host_share(PARAMETERS, 1, 10**9, 0.51) == 1.0


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.5, 0.75, 0.9])
@pytest.mark.parametrize(
    ("model", "nodes"), [("530b", 16), ("175b", 128), ("13b", 2), ("llama3_8b", 1), ("llama3_70b", 8)]
)
def test_a_size_of_its_own_hits_every_ratio(model: str, nodes: int, ratio: float) -> None:
    plan = plan_of(f"model={model}", f"nodes={nodes}", f"parallelism.offload_ratio={ratio}", *PARTLY)
    assert [problem for problem in plan.problems if problem.kind != "memory"] == []
    size = plan.ds_config["zero_optimization"]["sub_group_size"]
    parameters, degree = rank_parameters(plan.model, plan.layout), plan.layout.zero_degree
    share = host_share(parameters, degree, size, ratio)
    assert share == pytest.approx(ratio, abs=0.02)
    assert size == choose_sub_group_size(parameters, degree, ratio)
    (note,) = [text for text in plan.assumptions if "sub_group_size" in text]
    assert note.startswith(f"parallelism.sub_group_size not stated: {size:,}; of ")
    assert note.endswith(f" on the host, {share:.1%} of the optimizer's state")


def test_the_default_is_the_engines() -> None:
    assert plan_of("model=13b", "nodes=2").ds_config["zero_optimization"]["sub_group_size"] == 10**9
    whole = plan_of("model=13b", "nodes=2", *PARTLY)
    assert whole.ds_config["zero_optimization"]["sub_group_size"] == 10**9
    assert not [text for text in whole.assumptions if "sub_group_size" in text]


def test_a_stated_size_that_misses_the_ratio_is_refused() -> None:
    words = ("model=llama3_8b", "nodes=1", "parallelism.offload_ratio=0.5", *PARTLY)
    plan = plan_of(*words, "parallelism.sub_group_size=1000000000")
    (problem,) = [problem for problem in plan.problems if problem.kind != "memory"]
    # 8 ranks share 8,030,261,248 elements, of which 266,240 are norms; the last matrix of the others is what fills 1e9.
    assert str(problem).startswith(
        "parallelism.offload_ratio=0.5: keeps int((1 - 0.5) x 2) = 1 of 2 sub-groups of 33,280 to 1,003,749,376 elements"
    )
    assert "with parallelism.sub_group_size=1000000000, so 0.0% of the optimizer's state leave it" in str(problem)
    chosen = plan_of(*words).ds_config["zero_optimization"]["sub_group_size"]
    assert f"leave parallelism.sub_group_size out, or set parallelism.sub_group_size={chosen}: " in str(problem)
    stated = plan_of(*words, f"parallelism.sub_group_size={chosen}")
    assert [problem for problem in stated.problems if problem.kind != "memory"] == []


def test_a_ratio_that_whole_matrices_cannot_hit() -> None:
    # The token table is three quarters of this model.
    shape = ("model=tiny", "model.num_layers=1", "model.vocab_size=4096", "model.hidden_size=128", "model.num_heads=4")
    plan = plan_of(*shape, "nodes=1", "parallelism.offload_ratio=0.6", *PARTLY)
    (problem,) = [problem for problem in plan.problems if problem.kind != "memory"]
    assert "whole matrices are moved: nearest " in str(problem)
