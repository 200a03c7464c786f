"""DeepSpeed's engine lines of all generations, one by one and in composed files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpctrain.analysis.logs.deepspeed_engine import DeepspeedEngineFormat
from hpctrain.analysis.logs.events import IncompleteEvent, Line, StepEvent
from tests.analysis.logs.format_driver import OWN_SAMPLES, assert_fields, events_of, facts, steps


def read(text: str, whole: bool = True) -> list[Any]:
    return list(DeepspeedEngineFormat().read(Line(1, text, whole=whole)))


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        pytest.param(
            "[2021-05-27 19:54:20,386] [INFO] [logging.py:60:log_dist] [Rank 0] step=2, skipped=0, lr=[3.75e-05, 3.75e-05],"
            " mom=[(0.9, 0.999), (0.9, 0.999)]",
            "engine_step",
            {"iteration": 2, "skipped_total": 0, "learning_rate": 3.75e-05, "timestamp": "2021-05-27 19:54:20,386"},
            id="step-2021",
        ),
        pytest.param(
            "  8%|8 | 1999/24128 [1:52:09<20:27:23,  3.33s/it][2021-11-26 03:07:16,494] [INFO] [logging.py:69:log_dist]"
            " [Rank 0] step=2000, skipped=1995, lr=[0.001, 0.001], mom=[0.0, 0.0]",
            "engine_step",
            {"iteration": 2000, "skipped_total": 1995, "learning_rate": 0.001, "timestamp": "2021-11-26 03:07:16,494"},
            id="step-glued-to-a-bar",
        ),
        pytest.param(
            "[Rank 0] step=5, skipped=1, lr=[], mom=[]",
            "engine_step",
            {"iteration": 5, "skipped_total": 1, "learning_rate": None},
            id="step-without-a-rate",
        ),
        pytest.param(
            "[2021-11-26 03:07:16,494] [INFO] [timer.py:181:stop] 0/2000, SamplesPerSec=9.52, MemAllocated=0.26GB",
            "engine_speed",
            {"iteration": 2000, "samples_per_s_running_avg": 9.52, "mem_allocated_gb": 0.26},
            id="speed-2021-epoch-and-step",
        ),
        pytest.param(
            "[timer.py:260:stop] epoch=0/micro_step=796/global_step=199, RunningAvgSamplesPerSec=58.73,"
            " CurrSamplesPerSec=61.35, MemAllocated=6.01GB, MaxMemAllocated=19.52GB",
            "engine_speed",
            {
                "iteration": 199,
                "samples_per_s_running_avg": 58.73,
                "ds_curr_samples_per_s": 61.35,
                "mem_allocated_gb": 6.01,
                "max_mem_allocated_gb": 19.52,
            },
            id="speed-2022-named-steps",
        ),
        pytest.param(
            "[timer.py:260:stop] 0/10, SamplesPerSec=nan",
            "engine_speed",
            {"iteration": 10, "samples_per_s_running_avg": None},
            id="speed-nan",
        ),
        pytest.param(
            "[Rank 0] rank=0 time (ms) | forward_microstep: 435.69 | backward_inner_microstep: 513.94 | step_microstep: 1.00",
            "microstep",
            {"forward_ms": 435.69, "backward_inner_ms": 513.94, "step_ms": 1.0},
            id="microstep-long-names",
        ),
        pytest.param(
            "[Rank 0] time (ms) | fwd_microstep: 12.50 | bwd_allreduce_microstep: 3.25",
            "microstep",
            {"forward_ms": 12.5, "backward_allreduce_ms": 3.25},
            id="microstep-short-names",
        ),
        pytest.param(
            "[Rank 0] rank=0 time (ms) | forward: 12.50 | backward: 30.00 | allreduce: 0.00",
            "timers",
            {"forward": 12.5, "backward": 30.0},
            id="timers-zeros-left-out",
        ),
        pytest.param(
            "[INFO] [stage_1_and_2.py:1644:step] [deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 131072.0,"
            " reducing to 65536.0",
            "overflow",
            {"loss_scale_before": 131072.0, "loss_scale_after": 65536.0},
            id="overflow-zero",
        ),
        pytest.param(
            "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, but hysteresis is 2. Reducing"
            " hysteresis to 1",
            "overflow",
            {"loss_scale_before": 65536.0, "loss_scale_after": 65536.0},
            id="overflow-hysteresis-keeps-the-scale",
        ),
        pytest.param(
            "[deepspeed] fp16 dynamic loss scale overflow! Skipping step. Attempted loss scale: 4096.0, reducing to 2048.0",
            "overflow",
            {"loss_scale_before": 4096.0, "loss_scale_after": 2048.0},
            id="overflow-fused-optimizer",
        ),
        pytest.param(
            "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
            "overflow",
            {"loss_scale_before": None, "loss_scale_after": 32768.0},
            id="overflow-apex",
        ),
        pytest.param(
            "[deepspeed] OVERFLOW! Skipping step. Gradients are non-finite, weights were not updated.",
            "overflow",
            {"loss_scale_before": None, "loss_scale_after": None},
            id="overflow-bf16",
        ),
        pytest.param(
            "[2023-06-14 10:00:01,112] [INFO] [config.py:964:print]   train_batch_size ............. 512",
            "setting",
            {"global_batch_size": 512},
            id="configuration",
        ),
    ],
)
def test_one_line_gives_one_fact(text: str, kind: str, fields: dict[str, Any]) -> None:
    (event,) = read(text)
    assert event.kind == kind
    found = dict(event.fields)
    assert {name: found[name] for name in fields} == fields
    assert set(found) - set(fields) <= {"timestamp"}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "[deepscale] OVERFLOW! Rank 3 Skipping step. Attempted loss scale: 8.0, reducing to 4.0", id="rank-3"
        ),
        pytest.param("a tutorial says that SamplesPerSec=fast", id="prose"),
        pytest.param("steps: many loss: 1 iter time (s): 2 samples/sec: 3", id="no-step"),
        pytest.param("[INFO] [config.py:964:print]   steps_per_print .............. 10", id="another-key"),
        pytest.param("time (ms) | rank=0 time (ms)", id="no-timers"),
        pytest.param("step=x, skipped=1, lr=[]", id="no-number"),
    ],
)
def test_other_lines_give_nothing(text: str) -> None:
    assert read(text) == []


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        pytest.param(
            "0/20, SamplesPerSec=83.48, MemAllocated=0.2",
            {"iteration": 20, "samples_per_s_running_avg": 83.48},
            id="memory",
        ),
        pytest.param("0/20, SamplesPerSec=83.4", {"iteration": 20}, id="speed"),
        pytest.param(
            "step=20, skipped=2, lr=[1.2", {"iteration": 20, "skipped_total": 2, "learning_rate": None}, id="rate"
        ),
    ],
)
def test_a_number_at_the_cut_end_of_a_file_is_no_number(text: str, fields: dict[str, Any]) -> None:
    (event,) = read(text, whole=False)
    assert dict(event.fields) == fields


@pytest.mark.parametrize(
    ("end", "event"),
    [
        pytest.param("30.114 samples/sec: 17.002", StepEvent, id="three-decimals"),
        pytest.param("30.114 samples/sec: 17.0", IncompleteEvent, id="cut-in-the-rate"),
        pytest.param("30.1", IncompleteEvent, id="cut-in-the-time"),
    ],
)
def test_the_last_pipeline_line_needs_all_its_decimals(end: str, event: type) -> None:
    (told,) = read(f"steps: 10 loss: 8.4512 iter time (s): {end}", whole=False)
    assert isinstance(told, StepEvent | IncompleteEvent)
    assert type(told) is event
    assert told.fields.get("time_per_iteration_s") == (30.114 if "samples" in end else None)
    assert told.fields.get("samples_per_s") == (17.002 if event is StepEvent else None)


def test_a_pipeline_loss_that_is_nan_is_marked() -> None:
    (event,) = read("steps: 10 loss: nan iter time (s): 30.114 samples/sec: 17.002")
    assert event.fields["loss"] is None
    assert event.fields["loss_is_nan"] is True


def test_one_checkpoint_of_several_ranks_is_told_once() -> None:
    log_format = DeepspeedEngineFormat()
    texts = [
        f"Saving model checkpoint: out/global_step{step}/mp_rank_0{rank}.pt" for step in (5, 10) for rank in (0, 1)
    ]
    events = [event for text in texts for event in log_format.read(Line(1, text))]
    assert [event.fields for event in events] == [{"iteration": 5}, {"iteration": 10}]


def test_the_composed_pipeline_sample() -> None:
    path = OWN_SAMPLES / "deepspeed_pipeline_engine_out_of_memory.json"
    expected = json.loads(path.read_text())["expected"]
    events = events_of(DeepspeedEngineFormat(), path.with_suffix(".log"))
    assert_fields(steps(events), expected["records"])
    settings = {name: value for fact in facts(events, "setting") for name, value in fact.items()}
    assert settings == expected["settings"]
    scales = [(fact["loss_scale_before"], fact["loss_scale_after"]) for fact in facts(events, "overflow")]
    assert scales == [(65536, 65536), (65536, 32768)]


def test_the_composed_engine_sample() -> None:
    path = OWN_SAMPLES / "deepspeed_engine_2024_without_a_trainer.json"
    events = events_of(DeepspeedEngineFormat(), path.with_suffix(".log"))
    assert steps(events) == []
    assert_fields(facts(events, "microstep"), json.loads(path.read_text())["expected"]["microsteps"])
    assert [fact["fwd"] for fact in facts(events, "timers")] == [1250.0] * 4


def test_the_format_sees_only_lines_with_its_markers(tmp_path: Path) -> None:
    log = tmp_path / "some.log"
    log.write_text("loss 3\nstep=1, skipped=0, lr=[0.1], mom=[]\nnothing\n")
    (event,) = events_of(DeepspeedEngineFormat(), log)
    assert event.line_number == 2
