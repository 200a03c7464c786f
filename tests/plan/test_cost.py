"""Cost of a run: by hand, against published days and energy, what is missing, and what was typed wrongly."""

from __future__ import annotations

import dataclasses
import json
from functools import cache

import pytest

from hpctrain.config.compose import Point, compose_points
from hpctrain.errors import EXIT_CONFIG, ConfigError
from hpctrain.plan.cost.cost import Estimate, RunCost, run_cost, steps_for_tokens
from hpctrain.plan.cost.options import COST_HELP, COST_OPTIONS, CostOptions, take_cost_options
from hpctrain.plan.layout import Batch
from hpctrain.plan.render.cost import render_cost
from hpctrain.plan.run_plan import RunPlan, build_run_plan

AZURE_530B = "model=530b nodes=128 training.seq_len=1024 training.micro_batch_size=8"


@cache
def planned(words: str) -> tuple[Point, RunPlan]:
    (point,) = compose_points(["parallelism=zero3", *words.split()], multirun=False)
    return point, build_run_plan(point.config, point.assumptions)


def answer_to(words: str, asked: str, force: bool = False) -> tuple[RunCost | None, str]:
    point, plan = planned(words)
    options, rest = take_cost_options(asked.split())
    assert rest == ()
    return run_cost(plan, point.config.hardware, options, force)


def cost_of(words: str, asked: str, force: bool = False) -> RunCost:
    cost, gap = answer_to(words, asked, force)
    assert cost is not None, gap
    return cost


def same(value: float) -> Estimate:
    return Estimate(value, value, value)


def test_time_gpu_hours_money_and_energy_by_hand() -> None:
    # Steps of 8,192 x 1,024 tokens: 300e9 / 8,388,608 = 35,762.8, so 35,763 steps; of 100 s: 3,576,300 s = 993.4167 h;
    # on 1,024 GPUs 1,017,258.67 GPU-hours; at 2.10 each 2,136,243.2; at 400 W 406,903.47 kWh.
    cost = cost_of(AZURE_530B, "--tokens 300B --price 2.10USD --step-time-s 100")
    assert (cost.num_steps, cost.tokens) == (35_763, 35_763 * 8_388_608)
    assert cost.compute_s == same(3_576_300.0)
    assert cost.gpu_hours.value == pytest.approx(1_017_258.6667)
    assert cost.money is not None
    assert cost.money.value == pytest.approx(2_136_243.2)
    assert (cost.price_currency, cost.is_predicted) == ("USD", False)
    assert cost.gpu_energy_kwh is not None
    assert cost.gpu_energy_kwh.value == pytest.approx(406_903.4667)
    assert cost.node_energy_kwh is None


AZURE = [
    pytest.param("model=175b nodes=32", 512, 32, 112.6, 93, id="175b-256-gpus"),
    pytest.param("model=175b nodes=128", 1024, 8, 69.8, 29, id="175b-1024-gpus"),
    pytest.param("model=175b nodes=128", 1024, 16, 120.7, 25, id="175b-1024-gpus-mb16"),
    pytest.param("model=530b nodes=64", 1024, 8, 205.2, 170, id="530b-512-gpus"),
    pytest.param("model=530b nodes=128", 1024, 8, 204.1, 85, id="530b-1024-gpus"),
    pytest.param("model=1t nodes=128", 1024, 8, 402.0, 166, id="1t-1024-gpus"),
    pytest.param("model=2t nodes=128", 1024, 8, 865.6, 358, id="2t-1024-gpus"),
]
"""Step time implied by the published TFLOP/s, and days for 300e9 tokens (DeepSpeed on Azure, 2022-07-26)."""


@pytest.mark.parametrize(("words", "seq_len", "micro", "step_time_s", "days"), AZURE)
def test_published_days_for_300_billion_tokens(
    words: str, seq_len: int, micro: int, step_time_s: float, days: int
) -> None:
    words += f" training.seq_len={seq_len} training.micro_batch_size={micro}"
    cost = cost_of(words, f"--tokens 300B --step-time-s {step_time_s}", force=True)
    assert cost.compute_s.value / 86_400 == pytest.approx(days, abs=0.6)
    predicted = cost_of(words, "--tokens 300B", force=True).compute_s
    assert predicted.low < days * 86_400 < predicted.high


def test_bloom_energy_is_board_power_times_gpu_hours() -> None:
    # Luccioni et al. 2022 (arXiv 2211.02001): 1,082,990 hours of A100 at 400 W, 433,196 kWh.
    cost = cost_of(AZURE_530B, "--tokens 1B")
    assert cost.gpu_energy_kwh is not None
    assert cost.gpu_energy_kwh.value / cost.gpu_hours.value * 1_082_990 == pytest.approx(433_196)


def test_the_energy_of_nodes_is_their_greatest_power() -> None:
    cost = cost_of("model=175b nodes=16 hardware=dgx_h100", "--tokens 1B")
    assert cost.node_energy_kwh is not None
    assert cost.node_energy_kwh.value == pytest.approx(cost.compute_s.value / 3600 * 16 * 10.2)


def test_the_range_of_the_step_time_is_carried_through() -> None:
    _, plan = planned(AZURE_530B)
    cost = cost_of(AZURE_530B, "--tokens 300B --price 2 --mtbf-hours 20000 --checkpoint-write-s 60 --restart-s 600")
    assert plan.prediction is not None
    speed = plan.prediction
    assert cost.step_time_s == Estimate(speed.low_s, speed.step_time_s, speed.high_s)
    assert cost.is_predicted
    for estimate in (cost.compute_s, cost.elapsed_s, cost.gpu_hours, cost.money, cost.gpu_energy_kwh):
        assert estimate is not None
        assert estimate.low / estimate.value == pytest.approx(speed.low_s / speed.step_time_s)
        assert estimate.high / estimate.value == pytest.approx(speed.high_s / speed.step_time_s)


def test_lost_time_is_paid_for() -> None:
    failures = "--mtbf-hours 500 --checkpoint-write-s 60 --restart-s 600"
    calm = cost_of(AZURE_530B, "--tokens 300B --price 2 --step-time-s 200")
    stormy = cost_of(AZURE_530B, f"--tokens 300B --price 2 --step-time-s 200 {failures}")
    assert stormy.goodput is not None
    assert stormy.elapsed_s is not None
    # 500 h on 128 nodes: a failure each 3.9 h.
    assert 0.8 < stormy.goodput.training < 0.95
    assert stormy.compute_s == calm.compute_s
    for paid, alone in (
        (stormy.elapsed_s, calm.compute_s),
        (stormy.gpu_hours, calm.gpu_hours),
        (stormy.money, calm.money),
        (stormy.gpu_energy_kwh, calm.gpu_energy_kwh),
    ):
        assert paid is not None
        assert alone is not None
        assert paid.value == pytest.approx(alone.value / stormy.goodput.training)


def test_without_tokens_it_is_the_runs_own_steps() -> None:
    cost = cost_of(f"{AZURE_530B} training.num_steps=70", "--price 2")
    assert (cost.num_steps, cost.tokens) == (70, 70 * 8_388_608)


@pytest.mark.parametrize(
    ("tokens", "per_step", "steps"), [(1, 1000, 1), (1000, 1000, 1), (1001, 1000, 2), (3e12, 8_388_608, 357_628)]
)
def test_steps_are_whole(tokens: float, per_step: int, steps: int) -> None:
    assert steps_for_tokens(tokens, Batch(1, 1, per_step, 1)) == steps


STATED = f"{AZURE_530B} hardware.price_per_gpu_hour=3.5 hardware.price_currency=EUR hardware.node_mtbf_hours=9000"


@pytest.mark.parametrize(
    ("asked", "price", "currency", "mtbf_hours"),
    [
        ("--tokens 1B", 3.5, "EUR", 9000),
        ("--tokens 1B --price 2.5", 2.5, None, 9000),
        ("--tokens 1B --price 2.5CNY --mtbf-hours 1K", 2.5, "CNY", 1000),
    ],
    ids=["hardware", "price-of-unknown-currency", "options-win"],
)
def test_options_win_over_the_hardware_file(asked: str, price: float, currency: str | None, mtbf_hours: float) -> None:
    cost = cost_of(STATED, asked)
    assert (cost.price_per_gpu_hour, cost.price_currency, cost.node_mtbf_hours) == (price, currency, mtbf_hours)


@pytest.mark.parametrize(
    ("words", "asked", "expected"),
    [
        pytest.param(AZURE_530B, "--tokens 1B", ["states no price_per_gpu_hour", "--price 2.10USD"], id="price"),
        pytest.param(
            AZURE_530B,
            "--tokens 1B",
            [
                "no node_mtbf_hours, --mtbf-hours",
                "6,335 Llama 3 (8 H100 a node); 3,692 RSC-1",
                "--checkpoint-write-s, --restart-s",
            ],
            id="failures",
        ),
        pytest.param(STATED, "--tokens 1B --restart-s 9", ["not stated: --checkpoint-write-s"], id="save"),
        pytest.param(STATED, "--tokens 1B --checkpoint-write-s 9", ["not stated: --restart-s"], id="restart"),
        pytest.param(
            f"{AZURE_530B} hardware.gpu_power_w=null",
            "--tokens 1B",
            ["energy: hardware=ndm_a100_v4 states no power", "hardware.gpu_power_w=WATTS"],
            id="power",
        ),
    ],
)
def test_what_is_missing_is_told_with_the_option_that_states_it(words: str, asked: str, expected: list[str]) -> None:
    gaps = "\n".join(cost_of(words, asked).gaps)
    assert all(text in gaps for text in expected), gaps


def test_nothing_is_missing_where_all_is_stated() -> None:
    assert cost_of(STATED, "--tokens 1B --checkpoint-write-s 60 --restart-s 600").gaps == ()


def test_a_job_that_does_not_get_on_has_no_elapsed_time() -> None:
    cost = cost_of(AZURE_530B, "--tokens 1B --mtbf-hours 0.01 --checkpoint-write-s 60 --restart-s 600")
    assert cost.elapsed_s is None
    # 0.01 h on 128 nodes: 0.281 s.
    assert "fails every 0.281 s" in cost.gaps[0]
    assert "does not get on; hours, money and energy are of the steps alone" in cost.gaps[0]
    assert cost.gpu_hours.value == pytest.approx(cost.compute_s.value * 1024 / 3600)
    text = render_cost(cost, "")
    assert "one each 0.01 h of a node, so of the job each 0.281 s" in text
    assert "in 1 step (" in render_cost(cost_of(AZURE_530B, "--tokens 1 --step-time-s 200"), "")
    json.dumps(dataclasses.asdict(cost), allow_nan=False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("model=2t nodes=4", "the plan cannot run as it is (memory.gpu)"),
        ("model=tiny cluster=local", "no predicted step time, hardware=cpu has device=cpu"),
        ("model=tiny cluster=local", "for one plan --step-time-s states a measured one"),
        ("model=tiny cluster=local nodes=2", "(nodes)"),
    ],
)
def test_no_cost_and_why(words: str, expected: str) -> None:
    cost, gap = answer_to(words, "--tokens 1B")
    assert cost is None
    assert expected in gap
    assert render_cost(cost, gap) == f"cost: none, {gap}\n"


def test_forced_plans_that_are_short_of_memory_have_a_cost() -> None:
    assert answer_to("model=2t nodes=4", "--tokens 1B")[0] is None
    assert cost_of("model=2t nodes=4", "--tokens 1B", force=True).gpu_hours.value > 0


def test_the_text() -> None:
    # 20,000 h on 128 nodes: 562,500 s = 6 d 12 h; best interval 8,176 s, so 41 steps of 200 s = 2 h 16 min.
    asked = "--tokens 300B --price 2.10USD --step-time-s 200 --mtbf-hours 20000 --checkpoint-write-s 60 --restart-s 600"
    assert render_cost(cost_of(AZURE_530B, asked), "") == (
        "cost of 300 B tokens in 35,763 steps (from the stated step time)\n"
        "  steps alone   82 d 18 h\n"
        "  failures      one each 20,000 h of a node, so of the job each 6 d 12 h\n"
        "  checkpoint    every 41 steps, 2 h 16 min (by Daly 2 h 16 min, by Young 2 h 16 min)\n"
        "  goodput       98.4% training, 0.7% saving, 0.7% repeating lost work, 0.1% restarting (first-order form: 98.5%)\n"
        "  elapsed       84 d 2 h\n"
        "  GPU-hours     2.067 M\n"
        "  money         4.34 M USD (2.1 USD a GPU-hour)\n"
        "  energy, GPUs  826.7 MWh (upper bound: every GPU at its board limit of 400 W all the time; hosts, network,"
        " cooling not in it)\n"
    )


def test_the_text_tells_range_and_gaps() -> None:
    text = render_cost(cost_of("model=175b nodes=16 hardware=dgx_h100", "--tokens 1B"), "")
    assert "(a prediction, not measured)" in text
    assert ", between " in text
    assert "every node at its greatest power of 10,200 W" in text
    assert text.count("  not told  ") == 2


def test_ranks_on_processors_cost_rank_hours() -> None:
    text = render_cost(cost_of("model=tiny cluster=local", "--tokens 1B --step-time-s 0.2 --price 1"), "")
    assert "rank-hours" in text
    assert "GPU-hours" not in text
    assert "(1 (currency not stated) a rank-hour)" in text


@pytest.mark.parametrize(
    ("typed", "tokens"),
    [
        ("300B", 3e11),
        ("300b", 3e11),
        ("1.5T", 1.5e12),
        ("2M", 2e6),
        ("7K", 7e3),
        ("3e11", 3e11),
        ("1_000", 1e3),
        ("1", 1),
    ],
)
def test_numbers_as_people_type_them(typed: str, tokens: float) -> None:
    for words in (["--tokens", typed], [f"--tokens={typed}"]):
        options, rest = take_cost_options([*words, "model=tiny"])
        assert (options.tokens, rest) == (tokens, ("model=tiny",))


@pytest.mark.parametrize(
    ("typed", "price", "currency"), [("2.10", 2.1, None), ("2.10USD", 2.1, "USD"), ("2.10 EUR", 2.1, "EUR")]
)
def test_a_price_may_name_its_currency(typed: str, price: float, currency: str | None) -> None:
    options, _ = take_cost_options(["--price", typed])
    assert (options.price_per_gpu_hour, options.price_currency) == (price, currency)


NUMERIC = [option for option in COST_OPTIONS if option != "--convention"]
BAD_NUMBERS = [
    pytest.param("-5", "must be above zero", id="negative"),
    pytest.param("0", "must be above zero", id="zero"),
    pytest.param("0.0B", "must be above zero", id="zero-billion"),
    pytest.param("1e-400", "must be above zero", id="rounds-to-zero"),
    pytest.param("nan", "must be a number above zero", id="nan"),
    pytest.param("inf", "must be a number above zero", id="inf"),
    pytest.param("1e400", "must be between 1e-09 and 1e+", id="overflow"),
    pytest.param("9e20", "must be between 1e-09 and 1e+", id="too-much"),
    pytest.param("1e-10", "must be between 1e-09 and 1e+", id="too-little"),
    pytest.param("many", "must be a number above zero; K, M, B and T stand for 1e3, 1e6, 1e9 and 1e12", id="word"),
    pytest.param("3X", "must be a number above zero", id="unknown-multiple"),
    pytest.param("1,000", "must be a number above zero", id="comma"),
    pytest.param("B", "must be a number above zero", id="multiple-alone"),
    pytest.param("--5", "must be a number above zero", id="two-signs"),
    pytest.param("٣", "must be a number above zero", id="digit-of-another-script"),
    pytest.param("", "must be followed by a number above zero", id="empty"),
]


@pytest.mark.parametrize("option", NUMERIC)
@pytest.mark.parametrize(("typed", "expected"), BAD_NUMBERS)
def test_bad_numbers_are_one_message_each(option: str, typed: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        take_cost_options([option, typed])
    (problem,) = caught.value.problems
    assert caught.value.exit_code == EXIT_CONFIG
    assert (problem.key, problem.value) == (option, typed)
    assert expected in problem.rule
    assert f"for example {option} " in problem.fix


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["--tokens"], "--tokens: must be followed by a number", id="last-word"),
        pytest.param(["--tokens", "-m"], "--tokens=-m: must be a number", id="another-option"),
        pytest.param(["--tokens", "1B", "--tokens=2B"], "--tokens: is given twice", id="twice"),
        pytest.param(["--price", "2 US"], "--price=2 US: must be a number", id="half-a-currency"),
        pytest.param(["--price", "USD"], "--price: must be followed by a number", id="currency-alone"),
        pytest.param(["-m", "--convention", "megtron"], "nearest: megatron", id="unknown-convention"),
        pytest.param(["--convention", "megatron"], "--convention: is for the table of a sweep", id="convention-of-one"),
        pytest.param(
            ["-m", "--step-time-s", "3"], "--step-time-s: is the measured time of one plan", id="one-time-for-all"
        ),
        pytest.param(["--multirun", "--step-time-s=3"], "leave out -m", id="one-time-for-all-long"),
    ],
)
def test_wrong_words(words: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        take_cost_options(words)
    assert expected in str(caught.value)
    assert caught.value.exit_code == EXIT_CONFIG


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("hardware.price_per_gpu_hour=-1", "hardware.price_per_gpu_hour=-1: must be greater than 0"),
        ("hardware.gpu_power_w=0", "hardware.gpu_power_w=0: must be greater than 0"),
        ("hardware.node_mtbf_hours=soon", "hardware.node_mtbf_hours='soon': must be a number"),
        ("hardware.price_currency=''", "hardware.price_currency='': must not be empty"),
    ],
)
def test_keys_of_the_hardware_file_are_checked(word: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_points(["model=tiny", word], multirun=False)
    assert expected in str(caught.value)


def test_words_without_cost_options_are_left_alone() -> None:
    words = ["model=530b", "--json", "-m", "nodes=1,2", "--tokensX=3"]
    options, rest = take_cost_options(words)
    assert rest == tuple(words)
    assert options == CostOptions()
    assert not options.is_asked


def test_a_convention_alone_asks_no_cost_and_any_number_does() -> None:
    assert not take_cost_options(["-m", "--convention", "palm"])[0].is_asked
    for option in set(NUMERIC) - {"--step-time-s"}:
        assert take_cost_options([option, "5"])[0].is_asked, option


def test_the_help_names_every_option() -> None:
    assert [line.split()[0] for line in COST_HELP.splitlines()] == list(COST_OPTIONS)
