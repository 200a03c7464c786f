"""A calibration in a prediction: factors by kind of parts, range, what lies outside; and which calibration is for a plan."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from hpctrain.config.calibration import Calibration, Seen
from hpctrain.config.schema import Config, ParallelismConfig
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.plan.search.ranking import OpenKeys, rank_choices
from hpctrain.plan.speed import calibration_choice, step_parts
from hpctrain.plan.speed.calibration import KIND_OF_PART, seconds_by_kind
from hpctrain.plan.speed.calibration_choice import (
    calibration_for,
    prediction_of_run,
    rates_of,
    stated_rates,
    step_model_mark,
)
from hpctrain.plan.speed.nvme_parts import NvmeTraffic
from hpctrain.plan.speed.software import HALF_RATE_DEPTH, SOFTWARE
from hpctrain.plan.speed.step_parts import Machine, Setup
from hpctrain.plan.speed.step_time import OWN_SOFTWARE, StepPrediction, time_range_s
from hpctrain.plan.stated.plain_shape import plain_shape
from hpctrain.rehearse.measured import compute_parts
from tests.analysis.make_calibration_runs import COMPOSED_NODE, OFFLOAD, composed_config

SEEN = Seen((1, 16), (10**9, 10**10), (1, 3), ("tensor",), {"compute": (0.4, 1.0), "communication": (0.0, 0.6)})
CALIBRATION = Calibration(
    hardware="composed_gpu", precision="bf16", compiled=False, rates=stated_rates(rates_of(COMPOSED_NODE, "bf16"), ["compute"]),
    factors={"compute": 1.1, "communication": 2.0}, errors=(-0.05, 0.06), num_runs=12, num_configurations=5,
    fitted_on="2026-11-29", seen=SEEN, runs=("a", "b"), source="runs/calibration.json",
)  # fmt: skip
CONFIG = composed_config(nodes=2)


def prediction(config: Config) -> StepPrediction:
    found = build_run_plan(config).prediction
    assert found is not None
    return found


def calibrated(config: Config = CONFIG, **changes: object) -> StepPrediction:
    return prediction(replace(config, calibration=replace(CALIBRATION, **changes)))  # type: ignore[arg-type]


def test_each_part_has_the_factor_of_its_kind() -> None:
    plain, found = prediction(CONFIG), calibrated()
    assert found.parts_s["matrix work"] == pytest.approx(1.1 * plain.parts_s["matrix work"])
    assert found.parts_s["parameter gathers"] == pytest.approx(2 * plain.parts_s["parameter gathers"])
    kinds = seconds_by_kind(plain.parts_s)
    step_s = 1.1 * kinds["compute"] + 2 * kinds["communication"]
    assert found.step_time_s == pytest.approx(step_s)
    assert sum(found.parts_s.values()) == pytest.approx(step_s)
    assert found.tokens_per_s == pytest.approx(plain.tokens_per_s * plain.step_time_s / step_s)
    assert found.tflops_per_gpu["model"] == pytest.approx(plain.tflops_per_gpu["model"] * plain.step_time_s / step_s)


def test_the_range_is_that_of_the_runs_and_the_text_names_them() -> None:
    """-5 % to +6 % off: measured between 1/1.06 and 1/0.95 of the predicted."""
    found = calibrated()
    assert found.low_s == pytest.approx(found.step_time_s / 1.06)
    assert found.high_s == pytest.approx(found.step_time_s / 0.95)
    assert found.uncertainty == (
        "calibrated, compute x 1.1, communication x 2 by 12 runs in 5 configurations on composed_gpu, 2026-11-29,"
        " runs/calibration.json; -5% to +6% off in 95 % of further configurations"
    )
    assert found.calibration is not None
    assert (found.calibration.outside, found.calibration.factors) == ((), CALIBRATION.factors)


def test_what_no_run_had_stays_as_it_is_predicted_and_counts_as_outside() -> None:
    config = composed_config(nodes=2, parallelism=OFFLOAD)
    plain, found = prediction(config), calibrated(config)
    assert found.parts_s["optimizer on the CPU"] == plain.parts_s["optimizer on the CPU"]
    assert found.calibration is not None
    assert re.fullmatch(r"\d+% of the step in host, the runs had none", found.calibration.outside[0])


@pytest.mark.parametrize(
    ("config", "told"),
    [
        pytest.param(composed_config(nodes=17), "17 nodes, the runs had 1 to 16", id="nodes"),
        pytest.param(composed_config(layers=6, width=1024), "0.129 B parameters, the runs had 1 to 10 B", id="size"),
        pytest.param(
            composed_config(parallelism=ParallelismConfig("zero2", zero_stage=2)),
            "ZeRO stage 2, the runs had 1, 3",
            id="stage",
        ),
        pytest.param(
            composed_config(parallelism=ParallelismConfig("ulysses", zero_stage=3, sequence_parallel_size=2)),
            "sequence parallelism, which no run had",
            id="form",
        ),
    ],
)
def test_beyond_what_the_runs_were_the_range_is_also_that_of_the_constants(config: Config, told: str) -> None:
    found = calibrated(config)
    assert found.calibration is not None
    assert told in found.calibration.outside
    assert told in found.uncertainty
    low_s, high_s = time_range_s(found.step_time_s, SOFTWARE[OWN_SOFTWARE])
    assert (found.low_s, found.high_s) == pytest.approx((low_s, high_s)), "the constants' range is the wider one"
    wide = calibrated(config, errors=(-0.5, 0.9))
    assert wide.low_s == pytest.approx(wide.step_time_s / 1.9)
    assert wide.high_s == pytest.approx(wide.step_time_s / 0.5)


def test_a_share_beyond_those_that_were_seen_is_outside() -> None:
    shares = seconds_by_kind(prediction(CONFIG).parts_s)
    share = shares["communication"] / sum(shares.values())
    inside = replace(SEEN, shares={"communication": (share - 0.3, share - 0.049)})
    outside = replace(SEEN, shares={"communication": (share - 0.3, share - 0.051)})
    for seen, count in ((inside, 0), (outside, 1)):
        used = calibrated(seen=seen).calibration
        assert used is not None
        assert len(used.outside) == count


def test_too_few_configurations_leave_the_range_of_the_constants() -> None:
    found = calibrated(errors=None, num_runs=1, num_configurations=1)
    assert (found.low_s, found.high_s) == time_range_s(found.step_time_s, SOFTWARE[OWN_SOFTWARE])
    assert "by 1 run on composed_gpu" in found.uncertainty
    assert "from 1 configuration no spread is known" in found.uncertainty


def test_every_part_of_a_step_has_a_kind_here_and_in_the_rehearsals_table() -> None:
    """A part without a kind would end every calibrated plan."""
    machine = Machine(8, 270.0, 2000.0, 300.0, 200.0, 25.0, 400.0, 16.0, 8.0)
    traffic = NvmeTraffic(12 * 10**9, 4 * 10**9, 10**9, is_pipelined=False)
    names: set[str] = set()
    for software, stage, (tp, pp, sp), on_host, nvme in itertools.product(
        SOFTWARE.values(), range(4), ((1, 1, 1), (2, 4, 1), (1, 1, 2)), (False, True), (None, traffic)
    ):
        setup = Setup(
            plain_shape(24, 2048, 50304), 2048, 1, 4, 64, tensor_degree=tp, pipeline_degree=pp, sequence_degree=sp,
            zero_stage=stage, offload_optimizer=on_host or nvme is not None, offload_ratio=0.5, offload_param=on_host,
            offload_activations=on_host, recomputation="full", nvme=nvme,
        )  # fmt: skip
        names |= step_parts.step_parts(setup, machine, software).keys()
    assert names == KIND_OF_PART.keys()
    compute_parts(
        {name: 1.0 for name in names if not name.startswith("NVMe")}
    )  # no device is asked for plans with NVMe


def test_the_mark_is_of_steps_that_wait_for_everything() -> None:
    """But for what our own software has none of."""
    names = {name for parts in calibration_choice.reference_parts() for name in parts}
    assert KIND_OF_PART.keys() - names <= {"blocking launches", "host behind the GPU"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hardware": "other"}, "has no calibration for hardware=composed_gpu in bf16, only for hardware=other in bf16"),
        ({"precision": "fp32"}, "has no calibration for hardware=composed_gpu in bf16, only for hardware=composed_gpu in fp32"),
        ({"compiled": True}, "only for hardware=composed_gpu in bf16, compiled"),
        (
            {"rates": CALIBRATION.rates | {"hardware.inter_node_gb_per_s": 25.0}},
            "was fitted to other values of hardware=composed_gpu in bf16: hardware.inter_node_gb_per_s=50 now, 25 in its runs",
        ),
    ],
    ids=["hardware", "precision", "compiled", "rates"],
)  # fmt: skip
def test_a_calibration_of_something_else_is_not_taken(changes: dict[str, object], told: str) -> None:
    found, why = calibration_for([replace(CALIBRATION, **changes)], CONFIG)  # type: ignore[arg-type]
    assert found is None
    assert told in why


def test_of_several_calibrations_that_for_the_plan_is_taken() -> None:
    others = [replace(CALIBRATION, hardware="other"), replace(CALIBRATION, rates={"hardware.gpu_memory_gb_per_s": 1.0})]
    assert calibration_for([*others, CALIBRATION], CONFIG) == (CALIBRATION, "")


def test_rates_of_the_host_matter_where_some_run_used_it() -> None:
    rates = rates_of(COMPOSED_NODE, "bf16")
    assert not any("host" in key for key in stated_rates(rates, ["compute", "communication"]))
    assert stated_rates(rates, ["compute", "host"])["hardware.host_link_gb_per_s"] == 25
    assert "hardware.nvme_read_gb_per_s" not in stated_rates(rates, ["host"]), "not stated"


def test_the_mark_of_the_step_changes_with_its_constants_and_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = step_model_mark()
    assert re.fullmatch(r"[0-9a-f]{8}", mark)
    assert step_model_mark() == mark
    with monkeypatch.context() as patch:
        patch.setattr(step_parts, "HALF_RATE_DEPTH", 1.001 * HALF_RATE_DEPTH)
        assert step_model_mark() != mark
    with monkeypatch.context() as patch:
        slower = replace(SOFTWARE[OWN_SOFTWARE], network_share=0.9 * SOFTWARE[OWN_SOFTWARE].network_share)
        patch.setitem(SOFTWARE, OWN_SOFTWARE, slower)
        assert step_model_mark() != mark
    assert step_model_mark() == mark


@pytest.mark.parametrize("parallelism", [ParallelismConfig("zero3", zero_stage=3), OFFLOAD], ids=["gpu", "host"])
def test_todays_prediction_of_a_run_is_that_of_its_plan_without_its_calibration(
    parallelism: ParallelismConfig,
) -> None:
    config = composed_config(nodes=2, parallelism=parallelism)
    plan = build_run_plan(replace(config, calibration=CALIBRATION))
    assert plan.prediction != prediction(config)
    assert prediction_of_run(plan, config) == (prediction(config), "")


def test_a_run_that_moved_a_share_of_its_states_is_predicted_with_that_share() -> None:
    """The planner chose it by the memory rules of its day; today's may choose another."""
    fitting = replace(OFFLOAD, fit_offload_ratio=True)
    config = composed_config(layers=48, width=4096, parallelism=fitting, micro_batch_size=1)
    plan = build_run_plan(config)
    section = plan.ds_config["zero_optimization"].get("offload_optimizer")
    chosen = section["ratio"] if section else 0.0
    for ratio in (0.25, 0.75):
        zero = plan.ds_config["zero_optimization"] | {"offload_optimizer": {"device": "cpu", "ratio": ratio}}
        run = replace(plan, ds_config=plan.ds_config | {"zero_optimization": zero})
        found, _ = prediction_of_run(run, config)
        stated = replace(config, parallelism=replace(OFFLOAD, offload_ratio=ratio))
        assert found == prediction(stated)
    found, _ = prediction_of_run(plan, config)
    assert found == plan.prediction, f"the share that was chosen, {chosen}"


def test_a_search_ranks_by_calibrated_times() -> None:
    """A network of a fifth of its rate: every choice has the time of its plan, and the fastest is the first."""
    slow = replace(CALIBRATION, factors={"compute": 1.1, "communication": 5.0})
    open_keys = OpenKeys(frozenset({"parallelism.zero_stage", "parallelism.tensor_parallel_size"}))
    config = composed_config(nodes=2, width=4096)
    ranking = rank_choices(replace(config, calibration=slow), open_keys)
    times_s = [choice.step_time_s for choice in ranking.choices]
    assert len(times_s) > 1
    assert times_s == pytest.approx([prediction(choice.config).step_time_s for choice in ranking.choices])
    plain = [prediction(replace(choice.config, calibration=None)).step_time_s for choice in ranking.choices]
    assert all(slower > 1.1 * faster for slower, faster in zip(times_s, plain, strict=True) if slower is not None)
