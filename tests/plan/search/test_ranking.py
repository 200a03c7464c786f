"""The ranking: against an exhaustive search by whole plans, against what was published, and where little or nothing fits."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest

from hpctrain.config.compose import compose_points
from hpctrain.config.schema import Config
from hpctrain.plan.model_shape import resolve_model_shape
from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.plan.search import picking
from hpctrain.plan.search.candidate import Candidate, OpenKeys
from hpctrain.plan.search.held_batch import held_batches
from hpctrain.plan.search.plainness import NOISE, plainness
from hpctrain.plan.search.ranking import Choice, Ranking, any_fits, rank_choices
from hpctrain.plan.search.scores import Scores
from hpctrain.plan.search.verdict import Verdict, verdict_of
from tests.plan.search.spaces import open_config, space_of


def ranking_of(*words: str, limit: int = 5) -> Ranking:
    return rank_choices(*open_config(*words), limit)


def plan_of(choice: Choice) -> RunPlan:
    return build_run_plan(choice.config)


def candidates_of(config: Config, open_keys: OpenKeys, uses_nvme: bool = False) -> Iterator[Candidate]:
    space = space_of(config, open_keys, uses_nvme)
    for kept, row, passes in itertools.product(space.kept, space.rows, space.passes):
        if row.layout in kept.layouts:
            for ratio in kept.offload_ratios:
                yield Candidate(row.degrees, kept.states, ratio, passes, row.spread)


SMALL = ("training.global_batch_size=4", "training.seq_len=512", "parallelism.offload_ratio=1")
NOT_CUT = ("parallelism.sequence_parallel_size=1", "parallelism.pipeline_parallel_size=1")
CASES = [
    pytest.param(("model=350m", "hardware.gpus_per_node=2", "hardware.gpu_memory_gib=8", *SMALL), id="tight"),
    pytest.param(("model=350m", "hardware.gpus_per_node=2", "training.micro_batch_size=2", *SMALL), id="roomy"),
    pytest.param(("model=125m", "hardware.gpus_per_node=2", "hardware.gpu_memory_gib=4", *NOT_CUT, *SMALL), id="hardly-anything"),
    pytest.param(("model=2.7b", "nodes=2", "hardware.gpus_per_node=2", "hardware.gpu_memory_gib=24", *NOT_CUT, *SMALL),
                 id="two-nodes"),
    pytest.param(("model=tiny", "cluster=local", "hardware.host_memory_gib=0.93", *NOT_CUT, *SMALL[::2]), id="cpu"),
    pytest.param(("model=350m", "hardware.gpus_per_node=2", "hardware.gpu_memory_gib=4.6", "parallelism.zero_stage=3", *NOT_CUT,
                  "parallelism.tensor_parallel_size=1", "training.micro_batch_size=1", *SMALL[:2]), id="partly-offloaded"),
]  # fmt: skip


def exhaustive_best(config: Config, open_keys: OpenKeys, uses_nvme: bool = False) -> Candidate | None:
    fitting = []
    for candidate in candidates_of(config, open_keys, uses_nvme):
        plan = build_run_plan(candidate.applied(config))
        if not plan.problems and plan.memory.fits_with_headroom:
            step_time_s = plan.prediction.step_time_s if plan.prediction else 0.0
            fitting.append((step_time_s, plainness(candidate), candidate))
    fastest_s = min((step_time_s for step_time_s, _, _ in fitting), default=0.0)
    as_fast = [each for each in fitting if each[0] <= (1 + NOISE) * fastest_s]
    return min(as_fast, key=lambda each: (each[1], each[0]))[2] if as_fast else None


@pytest.mark.parametrize("words", CASES)
def test_the_best_is_that_of_an_exhaustive_search_by_whole_plans(words: tuple[str, ...]) -> None:
    config, open_keys = open_config(*words)
    best = exhaustive_best(config, open_keys)
    assert best is not None
    assert rank_choices(config, open_keys).choices[0].config == best.applied(config)


PUBLISHED = ("parallelism=zero3", "training.micro_batch_size=8", "training.activation_checkpointing=full")


def test_530b_on_1024_gpus_is_no_slower_than_what_was_published() -> None:
    """Source: DeepSpeed on Azure (2022-07-26), figure 6: ZeRO-3, micro batch 8 of 1,024 tokens, recomputed."""
    run = ("model=530b", "nodes=128", "training.seq_len=1024")
    config, _ = open_config(*run, *PUBLISHED)
    published = build_run_plan(config)
    best = ranking_of(*run).choices[0]
    plan = plan_of(best)
    assert published.prediction is not None
    assert plan.prediction is not None
    assert plan.batch.global_batch_size == published.batch.global_batch_size == 8192
    assert plan.prediction.step_time_s <= published.prediction.step_time_s
    assert plan.problems == ()
    assert plan.memory.fits_with_headroom


def test_tiny_on_this_machine_is_plain() -> None:
    best = ranking_of("model=tiny", "cluster=local").choices[0]
    parallelism, training = best.config.parallelism, best.config.training
    assert (parallelism.zero_stage, parallelism.offload_optimizer, parallelism.tensor_parallel_size) == (0, "none", 1)
    assert (training.micro_batch_size, training.gradient_accumulation_steps) == (8, 1)
    assert training.activation_checkpointing == "none"
    assert best.step_time_s is None


@pytest.mark.parametrize("run", [("model=530b", "nodes=128"), ("model=175b", "nodes=32"), ("model=llama3_8b",)])
def test_choices_are_what_their_plans_say(run: tuple[str, ...]) -> None:
    ranking = ranking_of(*run)
    fitting = [choice for choice in ranking.choices if choice.fits]
    assert len(fitting) >= 3
    for choice in ranking.choices:
        plan = plan_of(choice)
        assert plan.memory.gpu_capacity_bytes is not None
        assert choice.gpu_free_bytes == plan.memory.gpu_capacity_bytes - plan.memory.gpu_bytes
        assert choice.fits == (not plan.problems)
        assert plan.prediction is not None
        assert choice.step_time_s == plan.prediction.step_time_s
        assert choice.tokens_per_s == plan.prediction.tokens_per_s
        assert choice.num_micro_steps == plan.batch.gradient_accumulation_steps
    assert len({plan_of(choice).batch.global_batch_size for choice in ranking.choices}) == 1
    times = [choice.step_time_s for choice in fitting[1:]]
    assert times == sorted(times, key=lambda time_s: time_s or 0.0)
    assert ranking.choices[-1].reason.startswith("does not fit: ")
    assert "GiB short on a GPU" in ranking.choices[-1].reason


def test_what_is_stated_stands() -> None:
    words = (
        "parallelism.tensor_parallel_size=4",
        "training.micro_batch_size=2",
        "training.activation_checkpointing=full",
    )
    for choice in ranking_of("model=13b", "nodes=2", *words).choices:
        assert choice.config.parallelism.tensor_parallel_size == 4
        assert choice.config.training.micro_batch_size == 2
        assert choice.config.training.activation_checkpointing == "full"


def test_contradictions_leave_no_choice() -> None:
    ranking = ranking_of("model=13b", "nodes=2", "parallelism.pipeline_parallel_size=4", "parallelism.zero_stage=3")
    assert ranking.choices == ()


def test_a_pipeline_is_given_the_stage_that_it_goes_with() -> None:
    best = ranking_of("model=13b", "nodes=2", "parallelism.pipeline_parallel_size=4").choices[0]
    assert best.config.parallelism.zero_stage == 1
    assert best.fits


def test_where_nothing_fits_the_nearest_comes_first() -> None:
    ranking = ranking_of("model=2t", "nodes=1")
    assert ranking.choices
    assert not any(choice.fits for choice in ranking.choices)
    assert all("short" in choice.reason for choice in ranking.choices)
    assert all(plan_of(choice).problems for choice in ranking.choices)


def test_a_tenth_is_given_up_before_the_run_is() -> None:
    """A GPU that has a twentieth more than the leanest choice needs."""
    on_gpu = (
        "parallelism.offload_optimizer=none",
        "parallelism.offload_param=none",
        "training.offload_activations=false",
    )
    config, open_keys = open_config("model=125m", "hardware.gpus_per_node=1", "training.global_batch_size=1", *on_gpu)
    needed = min(build_run_plan(each.applied(config)).memory.gpu_bytes for each in candidates_of(config, open_keys))
    hardware = dataclasses.replace(config.hardware, gpu_memory_gib=1.05 * needed / 2**30)
    best = rank_choices(dataclasses.replace(config, hardware=hardware), open_keys).choices[0]
    assert best.fits
    assert "less than a tenth of the memory free" in best.reason


NVME = (
    "hardware.host_memory_gib=200",
    "hardware.gpu_memory_gib=40",
    "hardware.gpus_per_node=2",
    "nodes=1",
    "model=28b",
)


def test_nvme_is_the_last_resort() -> None:
    assert not ranking_of(*NVME).choices[0].fits
    rates = ("hardware.nvme_read_gb_per_s=20", "hardware.nvme_write_gb_per_s=10")
    best = ranking_of(*NVME, "parallelism.nvme_path=/nvme", *rates).choices[0]
    assert best.fits
    assert best.config.parallelism.offload_optimizer == "nvme"
    roomy = ranking_of("model=1.3b", "parallelism.nvme_path=/nvme", *rates).choices
    assert all("nvme" not in (each.config.parallelism.offload_optimizer,) for each in roomy)


ONLY_NVME = (
    *("model=1.3b", "hardware.gpus_per_node=2", "parallelism.nvme_path=/nvme", "parallelism.sub_group_size=10000000"),
    *("parallelism.pipeline_parallel_size=1", "parallelism.offload_ratio=1", "training.global_batch_size=2"),
    *("training.offload_activations=false", "hardware.host_memory_gib=14"),
)
RATES = ("hardware.nvme_read_gb_per_s=20", "hardware.nvme_write_gb_per_s=10")
CUT = [
    pytest.param(("training.seq_len=2048", "hardware.gpu_memory_gib=7.6"), (2, 1), id="by-tensor"),
    pytest.param(("training.seq_len=16384", "model.max_seq_len=16384", "hardware.gpu_memory_gib=9.1",
                  "parallelism.tensor_parallel_size=1"), (1, 2), id="by-sequence"),
    pytest.param(("training.seq_len=2048", "hardware.gpu_memory_gib=9"), (1, 1), id="not"),
]  # fmt: skip


@pytest.mark.parametrize("rates", [RATES, ()], ids=["rates-stated", "no-rates"])
@pytest.mark.parametrize(("words", "degrees"), CUT)
def test_on_nvme_too_the_best_is_that_of_an_exhaustive_search(
    words: tuple[str, ...], degrees: tuple[int, int], rates: tuple[str, ...]
) -> None:
    """Where nothing fits without NVMe, and with it only what is cut as well."""
    config, open_keys = open_config(*ONLY_NVME, *words, *rates)
    assert exhaustive_best(config, open_keys) is None
    best = exhaustive_best(config, open_keys, uses_nvme=True)
    assert best is not None
    assert (best.degrees.tensor, best.degrees.sequence) == degrees
    found = rank_choices(config, open_keys).choices[0]
    assert found.config == best.applied(config)
    assert (found.step_time_s is None) == (not rates)


def test_where_not_even_nvme_is_enough_the_nearest_is_on_it() -> None:
    """The engine makes gradients of the whole model in host memory; on GPUs with states in host memory far more is short."""
    best = ranking_of("model=2t", "hardware=dgx_h100").choices[0]
    assert not best.fits
    assert best.config.parallelism.offload_param == "nvme"
    # On NVMe are 18 bytes of each of 2e12 parameters, two of itself, four of its gradient and twelve of its states.
    of_host, _, of_nvme = best.reason.rpartition("GiB short in a node's memory, ")
    assert of_host
    lacking, _, place = of_nvme.partition(" GiB short ")
    assert place == "on a node's NVMe"
    needed = 18 * plan_of(best).num_parameters / 2**30
    assert float(lacking.replace(",", "")) == pytest.approx(needed - 28610, rel=2e-3)
    assert plan_of(best).memory.host_bytes_per_node > 2 * 1862 * 2**30
    elsewhere = plan_of(ranking_of("model=2t", "hardware=dgx_h100", "hardware.nvme_path=null").choices[0])
    assert elsewhere.memory.host_bytes_per_node > 2 * plan_of(best).memory.host_bytes_per_node


@pytest.mark.parametrize(
    "run",
    [
        ("model=530b", "nodes=4"), ("model=530b", "nodes=8"), ("model=55b", "hardware=hccpnv4h"), ("model=28b", "nodes=1"),
        ("model=1t", "nodes=2", "hardware=dgx_h100"), ("model=llama3_70b", "model.num_layers=400", "hardware=dgx_h100"),
        ("model=llama3_70b", "training.gradient_accumulation_steps=1", "nodes=2"), ("model=tiny", "cluster=local"),
    ],
)  # fmt: skip
def test_whether_anything_fits_is_what_the_best_choice_says(run: tuple[str, ...]) -> None:
    config, open_keys = open_config(*run)
    best = rank_choices(config, open_keys, limit=1).choices[0]
    memory = plan_of(best).memory
    assert any_fits(config, open_keys, has_headroom=False) == best.fits
    assert any_fits(config, open_keys, has_headroom=True) == (best.fits and memory.fits_with_headroom)


@pytest.mark.parametrize(
    ("run", "most"),
    [(("model=2t", "nodes=20"), 15), (("model=1.3b", "model.num_layers=2086"), 25)],
    ids=["fits", "does-not-fit"],
)
def test_few_whole_memories_are_asked_for(run: tuple[str, ...], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near the edge hundreds of bounds are below what there is; what one candidate tells of its states refuses most of them."""
    asked = list[Config]()

    def counted(config: Config) -> Verdict:
        asked.append(config)
        return verdict_of(config)

    monkeypatch.setattr(picking, "verdict_of", counted)
    config, open_keys = open_config(*run)
    rank_choices(config, open_keys)
    scores = Scores(config, space_of(config, open_keys))
    assert scores.may_fit(1.0).sum() > 8 * most
    assert len(asked) <= most


HELD = [
    pytest.param((), 64, id="eight-a-gpu"),
    pytest.param(("training.seq_len=8192",), 16, id="long-sequences"),
    pytest.param(("training.seq_len=65536",), 8, id="one-a-gpu-at-least"),
    pytest.param(("training.global_batch_size=24",), 24, id="stated"),
    pytest.param(("training.micro_batch_size=2",), 16, id="micro-batch-stated"),
    pytest.param(("training.micro_batch_size=2", "training.gradient_accumulation_steps=3"), 48, id="both-stated"),
]


@pytest.mark.parametrize(("words", "sequences"), HELD)
def test_the_sequences_of_a_step_are_held_equal(words: tuple[str, ...], sequences: int) -> None:
    """On eight GPUs; by hand."""
    config, open_keys = open_config("model=llama3_8b", *words)
    seq_len = config.training.seq_len or resolve_model_shape(config.model)[0].max_seq_len
    if not words:
        seq_len = 2048
    assert [held.num_sequences for held in held_batches(config, open_keys, seq_len)] == [sequences]


def test_a_stated_pipeline_takes_the_batch_that_the_search_holds() -> None:
    """2 sequences of 8,192 tokens for each of 64 GPUs; without a pipeline a step is one micro batch a rank."""
    words = ("model=llama3_70b", "nodes=8", "parallelism.tensor_parallel_size=8")
    config, open_keys = open_config(*words)
    (held,) = held_batches(config, open_keys, 8192)
    for stages, sequences in ((4, 128), (1, 8)):
        typed = (*words, "parallelism=zero1", f"parallelism.pipeline_parallel_size={stages}", "hardware=ndm_a100_v4")
        (point,) = compose_points([*typed, "training.micro_batch_size=1"], multirun=False)
        assert build_run_plan(point.config).batch.global_batch_size == sequences
    assert held.num_sequences == 128


def test_a_stated_accumulation_takes_a_smaller_batch_where_the_large_one_does_not_fit() -> None:
    config, open_keys = open_config("model=llama3_70b", "nodes=4", "training.gradient_accumulation_steps=1")
    assert [held.num_sequences for held in held_batches(config, open_keys, 2048)] == [256, 128, 64, 32]
    best = rank_choices(config, open_keys).choices[0]
    assert best.fits
    assert best.config.training.gradient_accumulation_steps == 1


def test_limits_are_kept() -> None:
    for limit in (1, 2, 3):
        assert len(ranking_of("model=13b", limit=limit).choices) == limit
