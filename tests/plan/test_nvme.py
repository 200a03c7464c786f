"""The third tier in the plan: what is there, the rules, the room, and the time that it takes."""

from __future__ import annotations

import math

import pytest

from hpctrain.config.aio import AioConfig
from hpctrain.config.schema import ParallelismConfig
from hpctrain.errors import EXIT_DOES_NOT_FIT, ConfigError
from hpctrain.plan.nvme.need import NvmeNeed, room_problem
from hpctrain.plan.nvme.tier import PIPELINED_BUFFERS, PLAIN_BUFFERS, NvmeTier, tiered_sub_groups
from hpctrain.plan.rank_parameters import RankParameters
from hpctrain.plan.render.plan import render_plan
from hpctrain.plan.run_plan import RunPlan
from hpctrain.plan.speed.nvme_parts import NvmeTraffic, nvme_parts
from hpctrain.units import GIB
from tests.plan.test_run_plan import plan_of

ON_DGX = ("model=175b", "nodes=1", "hardware=dgx_h100", "parallelism=zero3_nvme")
RATES = ("hardware.nvme_read_gb_per_s=40", "hardware.nvme_write_gb_per_s=20")
# Two blocks; with one rank shares are whole. In fp32 1 MiB is 262,144 elements.
PARAMETERS = RankParameters(2, (300_000, 100_000, 400_100, 400_000), (600,), 500_000, 0, 0, (600,), is_tied=True)


def tier_of(width: int = 2, **changes: object) -> NvmeTier:
    parallelism = ParallelismConfig(
        **{  # type: ignore[arg-type]
            "name": "nvme",
            "zero_stage": 3,
            "offload_optimizer": "nvme",
            "offload_param": "nvme",
            "sub_group_size": 700_000,
            "param_persistence_threshold": 1000,
            "max_reuse_distance": 1,
            "prefetch_bucket_size": 0,
            **changes,
        }
    )
    return NvmeTier(parallelism, PARAMETERS, 1, width)


def test_sub_groups_become_files_of_whole_kibibytes() -> None:
    tier = tier_of()
    # The table and queries; the rest of a block; the next block but for its last matrix; that; vectors, which are too small.
    assert [(group.elements, group.tier) for group in tier.sub_groups] == [
        (800_000, "nvme"),
        (900_100, "nvme"),
        (800_100, "nvme"),
        (400_000, "nvme"),
        (1_800, "host"),
    ]
    aligned = [800_000, 900_352, 800_256, 400_128]
    assert all(size % 256 == 0 for size in aligned)
    assert tier.state_bytes == 3 * 4 * sum(aligned)


def test_of_a_gradient_the_aligned_part_is_written() -> None:
    # 100,000 elements are below 1 MiB; of 400,100 the last 228 wait, of the others what is beyond 256.
    moved = [500_000, 300_000, 400_100, 400_000, 300_000, 400_100, 400_000]
    assert tier_of().gradient_bytes == 4 * sum(size // 256 * 256 for size in moved)
    assert tier_of().unswapped_gradient_bytes == 4 * 2_900_200 - tier_of().gradient_bytes


@pytest.mark.parametrize(("width", "moved"), [(2, []), (4, [500_000, *[300_000, 400_100, 400_000] * 2])])
def test_shares_below_a_mebibyte_stay_in_memory(width: int, moved: list[int]) -> None:
    tier = tier_of(width)
    step = 1024 // width
    assert tier.parameter_bytes == width * sum(math.ceil(size / step) * step for size in moved)
    on_gpu, on_host = tier.resident_parameters
    # Vectors stay whole on the GPU anyway, below the threshold of 1,000.
    assert on_gpu == 1_800
    assert on_host == PARAMETERS.total - 1_800 - sum(moved)


def test_requests_larger_than_a_tensor_keep_it_in_memory() -> None:
    # 1,700,000 bytes are more than the 400,100 elements of the largest of a block.
    tier = tier_of(4, aio=AioConfig(block_size=1_700_000))
    assert tier.parameter_bytes == 4 * 500_224


def test_buffers() -> None:
    assert tier_of().state_buffer_bytes == PIPELINED_BUFFERS * 4 * 900_352
    assert tier_of(pipeline_swaps=False).state_buffer_bytes == PLAIN_BUFFERS * 4 * 900_352
    tier = tier_of(4)
    # One block is gathered at a time, three of its matrices from NVMe; the next block is read meanwhile.
    assert tier.num_parameter_buffers == 6
    assert tier.parameter_buffer_elements == 500_000
    of_the_largest_group = 100_096 + 400_128 + 400_128
    assert tier.parameter_buffer_bytes == 4 * (6 * 500_224 + of_the_largest_group)


def test_three_tiers_in_the_engines_order() -> None:
    parallelism = ParallelismConfig(
        name="three", zero_stage=3, offload_optimizer="nvme", offload_ratio=0.5, nvme_ratio=0.5, sub_group_size=300_000
    )
    tiers = [group.tier for group in tiered_sub_groups(parallelism, PARAMETERS, 1)]
    # Of eight int(0.5 x 8) stay on the GPU and int(0.5 x 4) in host memory; the last one, of vectors, is too small for NVMe.
    assert tiers == ["gpu"] * 4 + ["host"] * 2 + ["nvme", "host"]


def need_of(plan: RunPlan) -> NvmeNeed:
    assert plan.nvme is not None
    return plan.nvme


def test_a_plan_tells_the_third_tier() -> None:
    plan = plan_of(*ON_DGX)
    need = need_of(plan)
    per_rank = plan.num_parameters / 8
    assert need.state_bytes == pytest.approx(12 * per_rank, rel=2e-3)
    assert need.gradient_bytes == pytest.approx(4 * per_rank, rel=2e-3)
    assert need.parameter_bytes == pytest.approx(2 * per_rank, rel=2e-3)
    text = render_plan(plan, "python")
    assert "  a node's NVMe                   2,926.96 GiB  of 28,610.00 GiB, 25,683.04 GiB free; below /raid" in text
    assert "note: on NVMe of each node 2,926.96 GiB at the height (optimizer states 1,951.36 GiB" in text
    section = plan.ds_config["zero_optimization"]["offload_optimizer"]
    assert section["buffer_count"] == PIPELINED_BUFFERS
    assert section["nvme_path"] == "/raid"
    assert plan.ds_config["aio"]["queue_depth"] == 32
    assert not plan.problems


def test_host_memory_is_that_of_the_buffers_and_not_of_the_states() -> None:
    on_host = {term.name: term.num_bytes for term in plan_of(*ON_DGX, "parallelism=zero3_offload").memory.terms}
    on_nvme = {term.name: term.num_bytes for term in plan_of(*ON_DGX).memory.terms}
    assert "fp32 master" in on_host
    # Vectors stay, whose sub-group is large enough, and those of less than 1 MiB a rank of the parameters.
    small = plan_of(*ON_DGX).num_parameters * 1e-3
    assert sum(on_nvme.get(name, 0) for name in ("fp32 master", "Adam moments", "parameters")) < small
    assert on_nvme["swap buffers"] == need_of(plan_of(*ON_DGX)).locked_bytes


@pytest.mark.parametrize(
    ("words", "text"),
    [
        pytest.param(
            ("hardware=ndm_a100_v4",),
            "parallelism.nvme_path=null: offload_optimizer=nvme and offload_param=nvme needs a folder on each node's own NVMe,"
            " and hardware=ndm_a100_v4 states none; set parallelism.nvme_path=/FOLDER",
            id="no-path",
        ),
        pytest.param(
            ("parallelism.nvme_path=nvme",),
            "must be absolute: each node looks for it; set parallelism.nvme_path=/nvme",
            id="rel",
        ),
        pytest.param(
            ("parallelism.zero_stage=2", "parallelism.offload_param=none"),
            "parallelism.offload_optimizer=nvme: needs ZeRO stage 3, here it is 2",
            id="stage",
        ),
        pytest.param(
            ("parallelism.offload_ratio=0.5",),
            "parallelism.offload_param=nvme: keeps no optimizer state on the GPU",
            id="ratio",
        ),
        pytest.param(
            ("parallelism.hpz_partition_size=2",),
            "parallelism.offload_param=nvme: does not go with hpz_partition_size=2",
            id="hpz",
        ),
        pytest.param(
            ("parallelism.offload_optimizer=cpu", "parallelism.nvme_ratio=0.5"),
            "parallelism.nvme_ratio=0.5: is a share of what offload_optimizer=nvme moves, and that is cpu",
            id="nvme-ratio",
        ),
    ],
)
def test_rules(words: tuple[str, ...], text: str) -> None:
    problems = [str(problem) for problem in plan_of(*ON_DGX, *words).problems]
    assert any(text in problem for problem in problems), problems


def test_too_little_room_does_not_fit() -> None:
    plan = plan_of(*ON_DGX, "hardware.nvme_gib_per_node=2000")
    (problem,) = plan.problems
    assert str(problem).startswith(
        "memory.nvme=2,926.96 GiB: estimated need of 8 ranks (optimizer states 1,951.36 GiB, gradients 650.40 GiB, parameters"
        " 325.20 GiB); a node's NVMe (hardware=dgx_h100) has 2,000.00 GiB, short by 926.96 GiB; more nodes"
    )
    assert ConfigError(plan.problems).exit_code == EXIT_DOES_NOT_FIT
    assert plan.blocking_problems(force=True) == ()
    need = need_of(plan)
    assert room_problem(need, need.bytes_per_node, "here") is None
    assert room_problem(need, need.bytes_per_node - 1, "here") is not None


def test_nothing_large_enough_is_told() -> None:
    plan = plan_of("model=tiny", "nodes=1", "hardware=dgx_h100", "parallelism=zero3_nvme")
    assert (
        "parallelism.offload_param=nvme moves nothing: no piece of a rank has 1,048,576 bytes, below which"
        in " ".join(plan.warnings)
    )


@pytest.mark.parametrize("key", ["nvme_path=/local", "aio.threads=2"])
def test_a_key_of_nvme_without_nvme_is_warned_of(key: str) -> None:
    words = ["model=tiny", "cluster=local", f"parallelism.{key}"]
    plain = plan_of(*words, "parallelism=zero3_offload")
    assert any("has no effect: nothing is on NVMe (offload_optimizer=cpu" in warning for warning in plain.warnings)
    moved = plan_of(*words, "parallelism=zero3_nvme", "parallelism.nvme_path=/local")
    assert not any("has no effect" in warning for warning in moved.warnings)


def test_speed_needs_rates() -> None:
    gap = plan_of(*ON_DGX).prediction_gap
    assert gap == "hardware=dgx_h100 does not state hardware.nvme_read_gb_per_s, hardware.nvme_write_gb_per_s"
    plan = plan_of(*ON_DGX, *RATES)
    assert plan.prediction is not None
    need, parts = need_of(plan), plan.prediction.parts_s
    # Writes of a pipelined step: states and parameters of eight ranks at 20 GB/s; Adam's own time is beside them.
    writing = 8 * (need.state_bytes + need.parameter_bytes) / 20e9
    assert parts["NVMe in the optimizer"] + parts["optimizer on the CPU"] == pytest.approx(writing)
    slower = plan_of(*ON_DGX, *RATES, "parallelism.pipeline_swaps=false").prediction
    assert slower is not None
    reading = 8 * (need.state_bytes + need.gradient_bytes) / 40e9
    assert slower.parts_s["NVMe in the optimizer"] == pytest.approx(reading + writing)


def test_what_the_passes_hide_costs_nothing() -> None:
    traffic = NvmeTraffic(0, 10**9, 10**9, is_pipelined=True)
    # Of 4 ranks at 8 and 4 GB/s a node: 2 x 3 reads of 0.5 s, one write of 1 s.
    assert nvme_parts(traffic, 4, (8.0, 4.0), 3, 0.0, 0.0)["NVMe in the passes"] == pytest.approx(4.0)
    assert nvme_parts(traffic, 4, (8.0, 4.0), 3, 2.5, 0.0)["NVMe in the passes"] == pytest.approx(1.5)
    assert nvme_parts(traffic, 4, (8.0, 4.0), 3, 9.0, 0.0)["NVMe in the passes"] == 0.0


ON_FULL_GPU = ("hardware.host_memory_gib=130", "training.micro_batch_size=8")


def test_zero_cache_is_fitted_by_the_gpu_where_host_memory_is_small() -> None:
    plan = plan_of("model=175b", "nodes=16", "parallelism=zero_cache", *ON_FULL_GPU)
    assert not plan.problems
    assert any("fit_offload_ratio: 0.25" in note for note in plan.assumptions)


def test_zero_cache_is_fitted_with_the_recomputation_that_leaves_the_host_room() -> None:
    """Without recomputation the GPU would have room only if all were moved, and then the host has none."""
    words = ("model=175b", "model.num_layers=49", "nodes=1", "training.micro_batch_size=1")
    plan = plan_of(*words, "parallelism=zero_cache")
    assert not plan.problems
    assert plan.activation_checkpointing == "full"
    assert any("fit_offload_ratio: 0.8" in note for note in plan.assumptions)
    assert "memory.host" in {problem.key for problem in plan_of(*words, "parallelism=zero3_offload").problems}


def test_zero_cache_fits_no_ratio_below_stage_3() -> None:
    (problem,) = plan_of("model=tiny", "nodes=1", "parallelism=zero_cache", "parallelism.zero_stage=2").problems
    assert str(problem).startswith("parallelism.fit_offload_ratio=true: needs ZeRO stage 3, here it is 2")


def test_zero_cache_on_a_processor_moves_all() -> None:
    plan = plan_of("model=tiny", "nodes=1", "hardware=cpu", "parallelism=zero_cache")
    assert "1, all of the optimizer's state is moved: the hardware states no GPU memory" in " ".join(plan.assumptions)
    assert plan.ds_config["zero_optimization"]["offload_optimizer"]["ratio"] == 1.0


@pytest.mark.parametrize(
    ("words", "note", "moved"),
    [
        pytest.param(("model=1.3b",), "all of the optimizer's state fits on the GPU", "none", id="all-fits"),
        pytest.param(
            ("model=28b",), "the smallest with which a GPU keeps a tenth of its memory free", "cpu", id="some"
        ),
        pytest.param(("model=175b",), "1, with less than all of the optimizer's state moved", "cpu", id="none-fits"),
    ],
)
def test_zero_cache_moves_as_little_as_fits(words: tuple[str, ...], note: str, moved: str) -> None:
    hardware = ("nodes=1", "hardware=hccpnv4h", "training.micro_batch_size=1", "training.activation_checkpointing=full")
    plan = plan_of(*words, *hardware, "parallelism=zero_cache")
    assert note in " ".join(plan.assumptions)
    section = plan.ds_config["zero_optimization"].get("offload_optimizer", {"device": "none"})
    assert section["device"] == moved
    if "28b" in words[0]:
        ratio = section["ratio"]
        assert 0.05 <= ratio < 1
        less = (*words, *hardware, "parallelism=zero_cache", "parallelism.fit_offload_ratio=false")
        assert plan.memory.gpu_bytes <= 0.9 * 39.59 * GIB
        with_less = plan_of(*less, f"parallelism.offload_ratio={ratio - 0.05:.2f}") if ratio > 0.05 else None
        assert with_less is None or with_less.memory.gpu_bytes > 0.9 * 39.59 * GIB
