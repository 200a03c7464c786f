"""The learned plan of a line gives what the close look at each line gives, for all formats that learn."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from hpctrain.analysis.logs import line_plan
from hpctrain.analysis.logs.deepspeed_engine import DeepspeedEngineFormat
from hpctrain.analysis.logs.events import Event, Line, LogFormat
from hpctrain.analysis.logs.lightning import LightningFormat
from hpctrain.analysis.logs.line_plan import LinePlan, LinePlans, Place, number_reader
from hpctrain.analysis.logs.megatron import MegatronFormat
from hpctrain.analysis.logs.nanotron import NanotronFormat

MEGATRON = (
    " [2025-01-02 03:04:05] iteration      123/  500000 | consumed samples:       251904 "
    "| elapsed time per iteration (ms): 1234.5 | learning rate: 1.234E-04 | global batch size:  2048 "
    "| lm loss: 2.345678E+00 | loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 "
    "| number of nan iterations:   0 |"
)
NANOTRON = (
    "01/17/2024 13:47:27 [INFO|DP=1|PP=2|TP=3|node-0]: iteration: 991 / 1000 | consumed_tokens: 634K "
    "| elapsed_time_per_iteration_ms: 12.5K | tokens_per_sec: 14.2K | lm_loss: 6.11 | lr: 7.12e-05 "
    "| model_tflops_per_gpu: 0.021 | cuda_max_memory_reserved: 12.3G | grad_norm: nan"
)
BAR = (
    "Epoch 0:  12%|█▏        | 120/999 [1:02:03<2:03:04,  6.08s/it, v_num=1, reduced_train_loss=2.345, "
    "global_step=119.0, consumed_samples=1540.0, train_step_timing in s=6.123, lr=1.5e-5]"
)
NEMO = (
    "Training epoch 1, iteration 45/99 | lr: 6.9e-06 | global_batch_size: 128 | global_step: 145 "
    "| max_memory_reserved: 96636764160 | reduced_train_loss: 2.345 | train_step_timing in s: 6.08 "
    "| TFLOPS_per_GPU: 123.4 | consumed_samples: 18560 | grad_norm: nan"
)
ENGINE_STEP = "[2022-11-26 03:07:16,494] [INFO] [Rank 0] step=120, skipped=15, lr=[0.001, 0.002], mom=[[0.9, 0.999]]"
ENGINE_SPEED = (
    "[2022-11-26 03:07:16,494] [INFO] [timer.py:193:stop] epoch=0/micro_step=240/global_step=120, "
    "RunningAvgSamplesPerSec=19.1234, CurrSamplesPerSec=20.1234, MemAllocated=6.01GB, MaxMemAllocated=19.52GB"
)
TIMERS = (
    "[2022-11-26 03:07:16,494] rank=0 time (ms) | forward: 123.45 | backward: 234.56 | allreduce: 0.00 | step: 1.25"
)
MICRO = "[2022-11-26 03:07:16,494] rank=0 time (ms) | fwd_microstep: 123.45 | bwd_allreduce_microstep: 0.00"


def with_other_digits(text: str, draw: random.Random) -> str:
    """The same shape; time stamps and clocks stay as they are."""
    kept = re.compile(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)?|\d\d/\d\d/\d{4} \d\d:\d\d:\d\d|\d+:\d\d:\d\d|E[+-]\d\d|e-\d+"
    )
    parts = re.split(f"({kept.pattern})", text)
    return "".join(
        part if place % 2 else re.sub(r"\d", lambda _: str(draw.randint(1, 9)), part)
        for place, part in enumerate(parts)
    )


def look_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_plan, "MAX_PLANS", 0)


def read(make: Callable[[], LogFormat], texts: list[str]) -> list[Event]:
    log_format = make()
    return [event for number, text in enumerate(texts, 1) for event in log_format.read(Line(number, text, "rank3"))]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        pytest.param(MegatronFormat, MEGATRON, id="megatron"),
        pytest.param(MegatronFormat, MEGATRON.replace("lm loss: 2.345678E+00 | ", ""), id="megatron-without-loss"),
        pytest.param(
            MegatronFormat, MEGATRON.replace("iterations:   0", "iterations: 0.0"), id="megatron-count-with-point"
        ),
        pytest.param(MegatronFormat, MEGATRON.replace("1234.5", "1.5E+03"), id="megatron-time-with-exponent"),
        pytest.param(NanotronFormat, NANOTRON, id="nanotron"),
        pytest.param(LightningFormat, BAR, id="nemo-bar"),
        pytest.param(LightningFormat, BAR.replace("s/it", "it/s"), id="nemo-bar-by-rate"),
        pytest.param(LightningFormat, BAR.replace(",  6.08s/it", ""), id="nemo-bar-without-rate"),
        pytest.param(LightningFormat, BAR.replace("/999 ", "/? "), id="nemo-bar-without-length"),
        pytest.param(LightningFormat, NEMO, id="nemo-line"),
        pytest.param(DeepspeedEngineFormat, ENGINE_STEP, id="engine-step"),
        pytest.param(DeepspeedEngineFormat, ENGINE_STEP.replace("[0.001, 0.002]", "[]"), id="engine-step-without-rate"),
        pytest.param(DeepspeedEngineFormat, ENGINE_SPEED, id="engine-speed"),
        pytest.param(DeepspeedEngineFormat, TIMERS, id="engine-timers"),
        pytest.param(DeepspeedEngineFormat, MICRO, id="engine-microsteps"),
    ],
)
def test_learned_lines_give_what_a_close_look_gives(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], LogFormat], text: str
) -> None:
    draw = random.Random(7)
    texts = [text, *(with_other_digits(text, draw) for _ in range(20))]
    learned = read(make, texts)
    with monkeypatch.context() as patch:
        look_closely(patch)
        assert read(make, texts) == learned
    assert len({event.line_number for event in learned}) >= 20


def test_a_known_shape_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log_format = NanotronFormat()
    list(log_format.read(Line(1, NANOTRON)))
    monkeypatch.setattr("hpctrain.analysis.logs.nanotron._plan", None)  # would be called for another shape
    (event,) = log_format.read(Line(2, NANOTRON.replace("6.11", "5.99")))
    assert event.fields["loss"] == 5.99


def test_timers_that_never_ran_depend_on_the_line_not_on_its_shape() -> None:
    zeros = re.sub(r"\d+\.\d\d", lambda match: re.sub(r"\d", "0", match[0]), TIMERS)
    events = read(DeepspeedEngineFormat, [TIMERS, zeros, TIMERS])
    assert [event.line_number for event in events] == [1, 3]
    assert set(events[0].fields) == {"forward", "backward", "step", "timestamp"}


def test_a_cut_off_line_is_never_read_by_a_plan() -> None:
    log_format = NanotronFormat()
    list(log_format.read(Line(1, NANOTRON.replace("nan", "1.25"))))
    (event,) = log_format.read(Line(2, NANOTRON.replace("nan", "1.25"), whole=False))
    assert "grad_norm" not in event.fields


def test_the_same_bar_drawn_twice_is_one_record() -> None:
    events = read(LightningFormat, [BAR, BAR.replace("1:02:03", "1:02:09"), BAR.replace(" 120/", " 130/")])
    assert [event.line_number for event in events] == [1, 1, 3, 3]


@pytest.mark.parametrize(
    ("text", "reader"),
    [
        ("12", int),
        ("-5", int),
        ("1.5", float),
        ("2.", float),
        ("1E-05", float),
        ("nan", None),
        ("1e999", None),
        ("9" * 16, None),
    ],
)
def test_readers_of_plain_numbers(text: str, reader: object) -> None:
    assert number_reader(text) is reader


def test_shapes_beyond_the_limit_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_plan, "MAX_PLANS", 1)
    plans = LinePlans()
    plan = LinePlan([Place("loss", 5, 8, float)])
    plans.add("loss 2.5", plan)
    plans.add("norm 2.5", plan)
    assert (plans.fields("loss 1.5"), plans.fields("norm 1.5")) == ({"loss": 1.5}, None)
