"""Memory terms by hand. Against the engine itself they are held by tests/rehearse/test_memory_grid.py, over a grid."""

from __future__ import annotations

import pytest

from hpctrain.plan.memory.gathering import GatherRules, gathered_visits
from hpctrain.plan.memory.gradient_buckets import gradient_flow
from hpctrain.plan.memory.stage12_moments import Arrivals, block_moments, reductions_before
from hpctrain.plan.memory.terms import CONTEXT_TERM, MEMORY_PHASES, PROCESS_TERM, ROUNDING_TERM, SOURCES
from hpctrain.plan.rank_parameters import RankParameters, rank_parameters
from hpctrain.plan.run_plan import RunPlan
from hpctrain.units import GIB
from tests.plan.test_run_plan import plan_of


def terms_of(*words: str) -> dict[str, int]:
    return {term.name: term.num_bytes for term in plan_of(*words).memory.terms}


def host_terms(plan: RunPlan) -> dict[str, int]:
    return {term.name: term.num_bytes for term in plan.memory.terms if term.tier == "host"}


def test_states_by_hand() -> None:
    # tiny has 858,880 parameters; on 2 ranks a share is 429,440. fp32: parameters and gradients 4 B each.
    share = 429_440
    stage3 = terms_of("model=tiny", "cluster=local", "parallelism=zero3")
    assert (stage3["parameters"], stage3["gradients"]) == (4 * share, 4 * share)
    assert (stage3["fp32 master"], stage3["Adam moments"]) == (4 * share, 8 * share)
    # Below stage 3 the parameters are whole; a bucket has room for all gradients, and a CPU has no second for an overlap.
    for stage in ("zero1", "zero2"):
        terms = terms_of("model=tiny", "cluster=local", f"parallelism={stage}")
        assert terms["parameters"] == 8 * share
        assert (terms["fp32 master"], terms["Adam moments"]) == (4 * share, 8 * share)
        assert terms["reduce buckets"] == 4 * 858_880


@pytest.mark.parametrize(
    ("words", "num_buckets"),
    [
        pytest.param("", 2, id="overlapping"),
        pytest.param("parallelism.overlap_comm=false", 1, id="behind the backward pass"),
        pytest.param("parallelism.pipeline_parallel_size=2 training.gradient_accumulation_steps=4", 1, id="pipeline"),
    ],
)
def test_a_second_bucket_fills_while_the_first_is_reduced(words: str, num_buckets: int) -> None:
    words_of_plan = ("model=1.3b", "nodes=1", "hardware=ndm_a100_v4", "parallelism=zero1", *words.split())
    terms, plan = terms_of(*words_of_plan), plan_of(*words_of_plan)
    assert terms["reduce buckets"] == num_buckets * 2 * min(500_000_000, plan.num_parameters)


def test_sixteen_bytes_a_parameter_without_offload_eighteen_on_the_host_with() -> None:
    # Source: Rajbhandari et al. 2020; with offload DeepSpeed keeps an fp32 gradient on the host beside the 16-bit one.
    names = ("parameters", "gradients", "fp32 master", "Adam moments", "fp32 gradients")
    plan = plan_of("model=13b", "nodes=4")
    share = rank_parameters(plan.model, plan.layout).partition(32)
    # Each parameter's share is rounded up: at most 31 elements of each of 40 x 12 + 4 parameters.
    assert 0 <= 32 * share - plan.num_parameters < 31 * 484
    whole = terms_of("model=13b", "nodes=4")
    assert sum(whole.get(name, 0) for name in names) == 16 * share
    plan = plan_of("model=13b", "nodes=4", "parallelism=zero3_offload", "parallelism.offload_param=none")
    assert sum(host_terms(plan)[name] for name in names[1:]) == 18 * share


def test_pinned_memory_is_rounded_up_to_powers_of_two() -> None:
    plan = plan_of("model=13b", "nodes=4", "parallelism=zero3_offload")
    share = rank_parameters(plan.model, plan.layout).partition(32)
    pinned = {term.name: term for term in plan.memory.terms if term.pinned_bytes}
    assert pinned["gradients"].pinned_bytes == 2 * share
    # 2 x 402 million bytes lie between 2^29 and 2^30.
    assert pinned["gradients"].pinned_rounded_bytes == 2**30
    rounding = sum(term.pinned_rounded_bytes - term.pinned_bytes for term in pinned.values())
    assert host_terms(plan)[ROUNDING_TERM] == rounding > 0
    assert "fp32 master" not in pinned
    without = plan_of("model=13b", "nodes=4", "parallelism=zero3_offload", "parallelism.pin_memory=false")
    assert not [term for term in without.memory.terms if term.pinned_bytes]


def test_part_of_the_optimizer_stays_on_the_gpu() -> None:
    half = plan_of(
        *("model=13b", "nodes=4", "parallelism=zero3_offload", "parallelism.offload_param=none"),
        "parallelism.offload_ratio=0.5",
    )
    share = rank_parameters(half.model, half.layout).partition(32)
    on_gpu = {term.name: term.num_bytes for term in half.memory.terms if term.tier == "gpu"}
    assert on_gpu["fp32 master"] / (4 * share) == pytest.approx(0.5, abs=0.05)
    assert on_gpu["fp32 master"] + host_terms(half)["fp32 master"] == 4 * share
    assert on_gpu["Adam moments"] == 2 * on_gpu["fp32 master"] == 2 * on_gpu["fp32 gradients"]


def test_second_partition_of_a_node() -> None:
    # Every parameter once more over the 8 ranks of a node, 2 B each.
    words = ("model=13b", "nodes=4", "parallelism=zero3", "parallelism.hpz_partition_size=8")
    terms = terms_of(*words, "training.gradient_accumulation_steps=2")
    whole = 2 * plan_of("model=13b", "nodes=4").num_parameters / 8
    assert terms["secondary partition"] == pytest.approx(whole, rel=1e-5)


def test_what_is_gathered_right_after_a_step_has_no_second_partition_yet() -> None:
    def forward_bytes(*more: str) -> int:
        phases = plan_of("model=13b", "nodes=4", "parallelism=zero3", *more).memory.phases
        return next(peak.gpu_bytes for peak in phases if peak.phase == "forward")

    second, twice = "parallelism.hpz_partition_size=8", "training.gradient_accumulation_steps=2"
    whole = 2 * plan_of("model=13b", "nodes=4").num_parameters / 8
    assert forward_bytes(second, twice) - forward_bytes(twice) == pytest.approx(whole, rel=1e-5)
    assert 0 < forward_bytes(second) - forward_bytes() < 0.95 * whole


def test_offloaded_block_inputs_are_on_the_host_but_for_two() -> None:
    words = ("model=13b", "nodes=4", "training.micro_batch_size=4", "training.activation_checkpointing=full")
    one = 4 * 2048 * 5120 * 2
    assert terms_of(*words)["block inputs"] == 40 * one
    plan = plan_of(*words, "training.offload_activations=true")
    on_gpu = {term.name: term.num_bytes for term in plan.memory.terms if term.tier == "gpu"}
    assert on_gpu["block inputs"] <= 2 * one
    assert host_terms(plan)["block inputs"] == 39 * one


def test_a_leaf_block_is_fetched_whole_and_copied_out() -> None:
    # 530b: a block's matrices are 12 h² elements, more than max_live_parameters, so nothing is prefetched; the table stays.
    plan = plan_of("model=530b", "nodes=128", "model.num_layers=3")
    rules = GatherRules(1024, 50_000_000, 10**9, 10**9, 100_000)
    visits = gathered_visits(rank_parameters(plan.model, plan.layout), rules, True)
    block, table = 12 * 20480**2, 50304 * 20480
    of_blocks = [visit for visit in visits if visit.block is not None]
    assert len(of_blocks) == 3 + 2 * 3
    assert {visit.held for visit in of_blocks} == {block + table}
    assert max(visit.fetching for visit in of_blocks) == 2 * block + table


SMALL = RankParameters(3, (40, 10, 40, 40), (2, 2), 100, 0, 100, (2,), False)
"""Blocks of 134, a table and an output matrix of 100 each."""


def test_prefetching_overshoots_and_what_comes_again_soon_stays() -> None:
    # Two ranks; up to 41 elements are prefetched: after 40 another parameter is taken.
    rules = GatherRules(2, 41, 1000, 150, 5)
    visits = gathered_visits(SMALL, rules, False)
    forward = {visit.block: visit for visit in visits if not visit.is_backward and visit.block is not None}
    # Between the table and its turn in the backward pass the norm and twice the output matrix pass by: 2 + 100 + 100 is beyond
    # the reuse distance of 150, so it goes. Of block 0, 40 + 10 were prefetched; the rest, 80, comes in a buffer of its own.
    assert forward[0].fetching == (50 + 50) + (80 + 80)
    # In use 130, and for block 1 the next two parameters in a buffer of their own.
    assert forward[0].held == 130 + 50
    # Behind the last block comes the output matrix: it is prefetched in its turn.
    assert forward[2].held == 130 + 100
    backward = [visit for visit in visits if visit.is_backward]
    # The last block comes again after 102 elements, within the distance, and so waits for the backward pass. Each of the three
    # visits in between prefetches: two parameters of block 1, its other two, two of block 0.
    assert backward[0].held == 130 + 100 + (50 + 80 + 50)


def test_bucket_is_emptied_when_the_next_gradient_does_not_fit() -> None:
    # Bucket of 60, two ranks, stage 3.
    flow = gradient_flow(SMALL, 60, 2, 3)
    # The norm comes while the output matrix waits in its own storage; of one member whose size 2 divides no copy is made.
    assert (flow.before.whole, flow.before.flattened) == (100 + 2, 0)
    last = flow.blocks[0]
    # All gradients of a block are there when its hook runs; then 2 (norm) + 40 do fit, and 10, and the next 40 do not.
    assert [at.whole for at in last.at_matrix] == [40, 80, 90, 130]
    assert last.waiting == 0
    # While 2 + 40 + 10 are flattened, two matrices and two vectors are still in storages of their own.
    assert (last.behind.whole, last.behind.flattened) == (40 + 40 + 2 + 2, 52)


def test_stages_1_and_2_reduce_a_bucket_where_it_is() -> None:
    flow = gradient_flow(SMALL, 60, 2, 2)
    assert flow.before.total == 100 + 2
    # The norm's gradient reduces the output matrix's. From the end of the block: 2 (norm) + 40 fit, the next 40 do not; then
    # 40 + 10 do, and the first 40 does not.
    first = flow.blocks[0]
    assert first.reductions == 1
    assert [(at.whole, at.flattened, at.reductions) for at in first.at_matrix] == [
        *((40, 0, 0), (40, 0, 1), (10, 0, 1), (40, 0, 2))
    ]


def test_the_first_gradient_of_a_share_comes_with_the_collective_behind_it() -> None:
    flow = gradient_flow(SMALL, 60, 2, 2)
    # Of the last block's matrices, from the last to the first: a collective beyond this count brings what they joined.
    assert [reductions_before(flow, (2, matrix)) for matrix in (3, 2, 1, 0)] == [1, 2, 2, 3]
    # Behind the blocks come the output matrix, before all collectives, and the norm, which made room for itself with the first.
    assert [reductions_before(flow, (3, matrix)) for matrix in (0, -1)] == [0, 1]
    # The tables come last, that of tokens behind what one of positions would be: with the second the first block's last vector.
    assert [reductions_before(flow, (-1, table)) for table in (1, 0)] == [end.reductions for end in flow.ends[:2]]
    moments = block_moments(SMALL, 60, 2, 2, Arrivals(2 + 1, 0, True))
    assert moments[0].has_arrived == (False, False, False, False, True)
    assert moments[1].has_arrived == (True,) * 5


def test_what_goes_to_the_host_is_there_while_a_collective_brings_it() -> None:
    # Of the last block's four matrices the third and the second, from the end on, joined what the second and third collective
    # bring: these are made when the third, and when the fourth matrix is handed over.
    arrivals = Arrivals(2, 3, False)
    assert arrivals.are_there(1, 1, 1, 2, 2, 3) == (False, False, True, False, True)
    moments = block_moments(SMALL, 60, 2, 2, arrivals)
    assert moments[0].gradients.counts == (1, 1, 2, 2, 3)
    assert moments[0].has_arrived == (False, False, True, False, True)
    assert not any(moments[1].has_arrived)
    # One that is larger than the bucket is copied when it is handed over.
    assert gradient_flow(SMALL, 60, 2, 2, is_cloned=True).starts[0].whole == 2 * 100
    assert gradient_flow(SMALL, 60, 2, 2).starts[0].whole == 100


def test_gradients_of_earlier_micro_steps() -> None:
    words = ("model=1.3b", "nodes=1", "training.micro_batch_size=1", "training.activation_checkpointing=full")
    of_all = 2 * plan_of(*words).num_parameters
    four = "training.gradient_accumulation_steps=4"
    assert terms_of(*words, "parallelism=zero1", four)["gradients"] == of_all
    stage2 = terms_of(*words, "parallelism=zero2", four)["gradients"]
    # A share and the parameters that cross its ends.
    assert of_all / 8 <= stage2 < 0.5 * of_all


def test_construction_in_fp32_can_be_the_height_below_stage_3() -> None:
    # 13b on 64 ranks: 4 B a parameter, and the first to be cast is the table, against 2 B and two buckets in the step.
    plan = plan_of(
        *("model=13b", "nodes=8", "parallelism=zero1", "training.activation_checkpointing=full"),
        *("training.micro_batch_size=1", "training.seq_len=512"),
    )
    heights = {peak.phase: peak.gpu_bytes for peak in plan.memory.phases}
    assert heights["model"] == 4 * plan.num_parameters
    assert heights["engine"] == 4 * plan.num_parameters + 2 * 50304 * 5120
    assert plan.memory.allocator_bytes == heights["engine"] > heights["backward"]


def test_tensor_ranks_split_matrices_and_logits() -> None:
    words = ("model=13b", "nodes=1", "parallelism=zero1", "training.micro_batch_size=1")
    whole, split = plan_of(*words), plan_of(*words, "parallelism.tensor_parallel_size=4")
    parts = rank_parameters(split.model, split.layout)
    # Norms, positions and the biases behind a sum over ranks stay whole: 6 h a block, 2 h at the end, 2048 h.
    kept = (40 * 6 + 2 + 2048) * 5120
    assert parts.total == kept + (whole.num_parameters - kept) // 4
    on_rank = terms_of(*words, "parallelism.tensor_parallel_size=4")
    # Two ranks share the states; each group of parameters is filled up to a multiple of 4 elements.
    assert on_rank["parameters"] == pytest.approx(2 * parts.total, abs=2 * 8)
    assert on_rank["Adam moments"] == pytest.approx(8 * parts.total / 2, abs=8 * 8)


def test_the_last_stage_of_a_pipeline_holds_the_loss_the_first_the_micro_batches() -> None:
    words = ("model=13b", "nodes=1", "parallelism=zero1", "parallelism.pipeline_parallel_size=4")
    plan = plan_of(*words, "training.micro_batch_size=1", "training.gradient_accumulation_steps=8")
    first, last = (rank_parameters(plan.model, plan.layout, stage) for stage in (0, 3))
    assert first.num_blocks == last.num_blocks == 10
    assert first.position_table and not last.position_table
    assert last.final_norm and not first.final_norm
    assert "logits and loss" not in {term.name for term in plan.memory.terms}, (
        "four micro batches take more than the loss"
    )


def test_sequence_ranks_share_the_tokens_and_the_states() -> None:
    words = ("model=13b", "nodes=1", "training.micro_batch_size=32", "training.activation_checkpointing=full")
    alone = terms_of(*words)
    shared = terms_of(*words, "parallelism.sequence_parallel_size=4")
    assert shared["block inputs"] == alone["block inputs"] // 4
    assert shared["fp32 master"] == alone["fp32 master"]


def test_every_term_has_a_source_and_a_phase_has_its_height() -> None:
    plan = plan_of("model=13b", "nodes=4", "parallelism=zero3_offload")
    assert [peak.phase for peak in plan.memory.phases] == list(MEMORY_PHASES)
    assert plan.memory.allocator_bytes == max(peak.gpu_bytes for peak in plan.memory.phases)
    outside = (PROCESS_TERM, ROUNDING_TERM, CONTEXT_TERM)
    on_host = sum(term.num_bytes for term in plan.memory.terms if term.tier == "host" and term.name not in outside)
    assert on_host == max(peak.host_bytes for peak in plan.memory.phases)
    assert all(term.source == SOURCES[term.name] for term in plan.memory.terms)


def test_on_cpu_ranks_all_is_host_memory() -> None:
    plan = plan_of("model=tiny", "cluster=local", "parallelism=zero3")
    assert {term.tier for term in plan.memory.terms} == {"host"}
    assert {peak.gpu_bytes for peak in plan.memory.phases} == {0}
    assert plan.memory.gpu_bytes == 0


def test_published_runs_fit_as_they_did() -> None:
    # 1,024 x 80 GB, sequence 1024, full recomputation: 530b ran without offload, 1t and 2t did not.
    published = ("nodes=128", "training.seq_len=1024", "training.activation_checkpointing=full")
    need = {
        name: plan_of(f"model={name}", f"training.micro_batch_size={micro}", *published).memory.allocator_bytes / GIB
        for name, micro in (("175b", 16), ("530b", 8), ("2t", 8))
    }
    assert need["175b"] < need["530b"] < 75 < 80 < need["2t"]


@pytest.mark.parametrize(
    ("host_gib", "is_told"),
    [
        pytest.param("1583", True, id="more than half"),
        pytest.param("2000", False, id="less than half"),
        pytest.param("null", False, id="not known"),
    ],
)
def test_pinned_memory_above_half_of_a_node_is_told(host_gib: str, is_told: bool) -> None:
    """962 GiB: the inputs of 104 blocks and, rounded up, the offloaded states."""
    words = "model=530b nodes=32 parallelism=zero3_offload training.micro_batch_size=8"
    recomputed = "training.activation_checkpointing=full training.offload_activations=true"
    plan = plan_of(*words.split(), *recomputed.split(), f"hardware.host_memory_gib={host_gib}")
    assert 962 * GIB < plan.memory.pinned_bytes_per_node < 963 * GIB
    assert any("page-locked" in warning for warning in plan.warnings) == is_told
