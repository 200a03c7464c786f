"""Megatron's line: values by name, wrapped, glued and cut lines, and the lines around it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain.analysis.logs.events import Event, FactEvent, IncompleteEvent, Line, StepEvent
from hpctrain.analysis.logs.megatron import MegatronFormat
from hpctrain.analysis.logs.megatron_fields import begins_a_key, find_key, put_value
from hpctrain.analysis.logs.reading import read_log

BODY = "| consumed samples:          160 | elapsed time per iteration (ms): 2100.5 | learning rate: 1.500E-04 "
TAIL = "| number of skipped iterations:   0 | number of nan iterations:   0 |"


def line_of(iteration: int, middle: str = "| lm loss: 2.500000E+00 | loss scale: 1.0 ", tail: str = TAIL) -> str:
    return f" iteration {iteration:8d}/     100 {BODY}{middle}{tail}"


def events_of(*texts: str, whole: bool = True) -> list[Event]:
    """What a fresh format says; ``whole`` is of the last line."""
    return list(_events(MegatronFormat(), texts, whole))


def _events(log_format: MegatronFormat, texts: tuple[str, ...], whole: bool) -> Iterator[Event]:
    for number, text in enumerate(texts, 1):
        yield from log_format.read(Line(number, text, whole=whole or number < len(texts)))
    yield from log_format.end()


def steps_of(*texts: str) -> list[dict[str, object]]:
    return [dict(event.fields) for event in events_of(*texts) if isinstance(event, StepEvent)]


def facts_of(kind: str, *texts: str) -> list[dict[str, object]]:
    return [dict(event.fields) for event in events_of(*texts) if isinstance(event, FactEvent) and event.kind == kind]


@pytest.mark.parametrize(
    ("part", "fields"),
    [
        ("elapsed time per iteration (ms): 107532.4", {"time_per_iteration_s": 107.5324}),
        ("elapsed time per iteration (s): 106.40", {"time_per_iteration_s": 106.4}),
        ("elapsed_time_per_iteration_in_ms=2502.7", {"time_per_iteration_s": 2.5027}),
        ("elapsed time per iteration (ms): 2701.3/2712.7", {"time_per_iteration_s": 2.7013}),
        ("time per iteration: 2.5 s", {"time_per_iteration_s": 2.5}),
        ("time per iteration: 250 ms", {"time_per_iteration_s": 0.25}),
        ("time per iteration: 2.5", {}),
        ("lm-loss: 1.244238E+01", {"loss": 12.44238}),
        ("lm loss: nan", {"loss": None, "loss_is_nan": True}),
        ("lm loss: inf", {"loss": None}),
        ("grad norm: NaN", {"grad_norm": None, "grad_norm_is_nan": True}),
        ("mtp_2 loss: 7.9", {"mtp_2_loss": 7.9}),
        ("throughput per GPU (TFLOP/s/GPU): 0.0", {"tflops_per_gpu": None}),
        ("compute per GPU (TFLOP/s/GPU): 615.5 (avg 615.4)", {"tflops_per_gpu": 615.5}),
        ("approx flops per GPU: 0.2PFLOPS", {"tflops_per_gpu": 200.0}),
        ("approx flops per GPU: 950.0GFLOPS", {"tflops_per_gpu": 0.95}),
        ("tokens/s/GPU inst/harmonic mean: 11941.8/11900.1", {"tokens_per_s_per_gpu": 11941.8}),
        ("hip mem usage/free/total/usage_ratio: 1.5GB/2GB/3.5GB/42.9%", {"mem_gib": 1.5, "mem_percent": 42.9}),
        ("mem usages: 0.8881", {"mem_percent": 88.81}),
        ("curriculum seqlen:   512", {"seq_len": 512}),
        ("num zeros: 256053424.0", {"num_zeros": 256053424.0}),
        ("[DS]TFLOPs=26.18", {}),
    ],
)
def test_a_part_goes_to_its_field_in_its_unit(part: str, fields: dict[str, object]) -> None:
    name, _, value = part.replace("=", ": ", 1).partition(":")
    key = find_key(name)
    assert key is not None
    found: dict[str, object] = {}
    assert put_value(found, key, value)  # type: ignore[arg-type]  # a wider type of values
    assert found == fields


@pytest.mark.parametrize("value", ["", "abc", "2.1[Rank 3] x", "1.2.3x", "12 apples"])
def test_what_is_no_number_sets_nothing(value: str) -> None:
    key = find_key("lm loss")
    assert key is not None
    assert not put_value({}, key, value)


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("learning", True),
        ("lm loss: 2.1", True),
        ("lm loss:", True),
        ("Killing subprocess 12", False),
        ("", False),
        ("[Rank", False),
    ],
)
def test_the_start_of_a_key_is_known(text: str, begins: bool) -> None:
    assert begins_a_key(text) is begins


def test_the_same_line_is_read_at_known_places_and_gives_the_same() -> None:
    lines = [line_of(number).replace("2100.5", f"{2100 + number}.5") for number in range(1, 6)]
    quick = steps_of(*lines)
    slow = [steps_of(line)[0] for line in lines]
    assert quick == slow
    assert [step["time_per_iteration_s"] for step in quick] == [2.1015, 2.1025, 2.1035, 2.1045, 2.1055]


@pytest.mark.parametrize("value", ["1.0E+999", "9" * 290, "1.0E-400"])
def test_numbers_beyond_a_float_are_missing_or_zero_and_stop_nothing(value: str) -> None:
    lines = [
        line_of(n, middle=f"| lm loss: {loss} | loss scale: 1.0 ")
        for n, loss in enumerate(["1.0E+100", "1.0E+000", value], 1)
    ]
    steps = steps_of(*lines)
    assert len(steps) == 3
    assert steps[2]["loss"] in (None, 0.0, float("9" * 290))


def test_a_line_without_a_loss_has_none_and_no_zero() -> None:
    assert steps_of(line_of(1, middle="| loss scale: 8.0 "))[0]["loss"] is None


def test_a_record_without_the_end_that_all_others_have_is_incomplete() -> None:
    end = " samples per second: 7.6 | TFLOPs: 9.1 |"
    events = events_of(line_of(1, tail=TAIL + end), line_of(2, tail=TAIL + "[rank1] torn"), line_of(3, tail=TAIL + end))
    kinds = [type(event) for event in events if not isinstance(event, FactEvent)]
    assert kinds == [StepEvent, IncompleteEvent, StepEvent]


def test_another_generation_after_an_upgrade_is_read_as_well() -> None:
    end = " samples per second: 7.6 | TFLOPs: 9.1 |"
    steps = steps_of(line_of(1), line_of(2), line_of(3, tail=TAIL + end), line_of(4, tail=TAIL + end), line_of(5))
    assert [(step["iteration"], step.get("tflops_per_gpu")) for step in steps] == [
        (1, None),
        (2, None),
        (3, 9.1),
        (4, 9.1),
        (5, None),
    ]


def test_a_metric_of_somebodys_own_is_passed_over() -> None:
    step = steps_of(line_of(1, middle="| my metric: 3.5 | lm loss: 2.5 | run name: alpha | grad norm: 1.5 "))[0]
    assert (step["loss"], step["grad_norm"]) == (2.5, 1.5)


def test_parts_behind_the_last_key_are_no_other_message() -> None:
    assert facts_of("trait", line_of(1), line_of(2) + " ETA: 1:02:03 |") == []
    assert facts_of("trait", line_of(1), line_of(2) + "time (ms) | optimizer: 1.50") == [{"name": "glued_lines"}]


def test_the_second_of_two_keys_of_one_name_belongs_to_another_line() -> None:
    steps = steps_of(line_of(1) + " lm loss: 9.9 |")
    assert [step["loss"] for step in steps] == [2.5]


@pytest.mark.parametrize("width", [23, 40, 61, 80, 86, 132])
def test_a_line_wrapped_at_any_width_is_one_record(width: int) -> None:
    lines = [line_of(number) for number in (1, 2)]
    pieces = [line[start : start + width] for line in lines for start in range(0, len(line), width)]
    if "|" not in pieces[0]:
        pieces = [piece for line in lines for piece in (line[:35], line[35:])]  # The head itself must stay whole.
    assert steps_of(*pieces) == steps_of(*lines)


@pytest.mark.parametrize(
    "text",
    [
        "node01:5808:6247 [1] NCCL INFO Channel 01 | x",
        "time (ms) | optimizer: 1.5",
        "[Rank 1] memory (MB) | allocated: 1.5",
        "",
    ],
)
def test_another_message_does_not_continue_a_cut_line(text: str) -> None:
    cut = line_of(1)[:90]
    events = [event for event in events_of(cut, text, line_of(2)) if not isinstance(event, FactEvent)]
    assert [type(event) for event in events] == [IncompleteEvent, StepEvent]
    assert events[0].fields == {"iteration": 1, "total_iterations": 100, "consumed_samples": 160}
    assert events[1].fields["iteration"] == 2


@pytest.mark.parametrize("end", range(30, len(line_of(1)) - 1, 7))
def test_a_line_cut_at_the_end_of_the_file_is_incomplete(end: int) -> None:
    whole = steps_of(line_of(1), line_of(2))[1]
    events = events_of(line_of(1), line_of(2)[:end], whole=False)
    left = [event for event in events if isinstance(event, IncompleteEvent)]
    assert len(left) == 1 and len([event for event in events if isinstance(event, StepEvent)]) == 1
    assert dict(left[0].fields).items() <= whole.items()


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("valid loss at iteration 45000 | lm loss value: 2.3E+00 | lm loss PPL: 9.97E+00 |", (45000, 2.3, 9.97)),
        (" validation loss at iteration 7 on validation set | lm loss value: 2.0 | lm loss PPL: 7.4 | ", (7, 2.0, 7.4)),
        (" validation results at iteration 1 | lm_loss value: 6.9 | lm_loss_ppl value: 1.0E+03 | ", (1, 6.9, 1000)),
        (
            "validation loss at the end of training for val data | lm loss value: 2.0 | lm loss PPL: 7.4 |",
            (None, 2.0, 7.4),
        ),
        ("validation loss at iteration 9 | lm loss value: nan | lm loss PPL: nan |", (9, None, None)),
    ],
)
def test_validation_is_never_a_record(text: str, fields: tuple[object, ...]) -> None:
    iteration, loss, ppl = fields
    assert facts_of("validation", text) == [{"iteration": iteration, "lm_loss": loss, "ppl": ppl}]
    assert steps_of(text) == []


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        ("  successfully saved checkpoint at iteration     100 to /x", "checkpoint_saved", {"iteration": 100}),
        (
            "successfully saved checkpoint from iteration 50 to /x [ t 1/1, p 1/1 ] (min, max) time across ranks (ms): "
            "save-checkpoint ......: (24895.07, 24895.13)",
            "timers",
            {"save-checkpoint": 24895.13},
        ),
        (" loading checkpoint from /a b/c at iteration 100", "checkpoint_loaded", {"iteration": 100}),
        (
            "successfully loaded checkpoint from /x [ t 1/2, p 1/1 ] at iteration 130",
            "checkpoint_loaded",
            {"iteration": 130},
        ),
        ("after restart", "restart", {}),
        ("TP=4/PP=12/MBS=2/Nodes=24", "segment", {"tp": 4, "pp": 12, "micro_batch_size": 2, "nodes": 24}),
        ("time (ms) | forward: 0.00 | backward: 3.50", "timers", {"backward": 3.5}),
        (
            "using world size: 64, data-parallel-size: 1, tensor-model-parallel size: 4, pipeline-model-parallel size: 16",
            "setting",
            {"world_size": 64, "dp": 1, "tp": 4, "pp": 16},
        ),
        (
            "[Rank 9] (after 2 iterations) memory (MB) | allocated: 1.5 | max allocated: 2.5 | reserved: 3.0 | max reserved: 3.0",
            "setting",
            {"world_size_at_least": 10, "max_mem_allocated_mb": 2.5},
        ),
    ],
)
def test_lines_around_the_record(text: str, kind: str, fields: dict[str, object]) -> None:
    assert facts_of(kind, text) == [fields]


@pytest.mark.parametrize(
    "text", ["time (ms) | forward: 0.00", "time (ms)", "TP=4", "[INFO|DP=0|PP=0|TP=0]: x", "TP=4/PP=2 is best"]
)
def test_lines_that_say_nothing(text: str) -> None:
    assert events_of(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "Training epoch 0, iteration 5/9 | lr: 1e-05 | global_batch_size: 32 | reduced_train_loss: 11.0",
        "node [INFO]: iteration: 991 / 1000 | consumed_tokens: 634K | lm_loss: 10.6",
        "saving checkpoint at iteration 5 to /x",
        "[Rank 3] (after 20 iterations) memory (MB) | allocated: 15.4 | max allocated: 18.0 | max reserved: 22.0",
        "resuming from iteration 5/10",
        "iteration 5/10 | loss: 2.5 | lr: 0.1 |",
    ],
)
def test_lines_of_others_are_no_records(text: str) -> None:
    assert not [event for event in events_of(text) if isinstance(event, StepEvent | IncompleteEvent)]


@pytest.mark.parametrize(
    ("dump", "settings"),
    [
        (
            [
                "------ arguments ------",
                "  seq_length ...... 2048",
                "  world_size ...... 64",
                "  fp16 ............ True",
                "--- end of arguments ---",
            ],
            {"seq_len": 2048, "world_size": 64, "precision": "fp16"},
        ),
        (
            [
                "----- arguments -----",
                "  pipe_parallel_size .... 2...........updated",
                "  num_gpus ....... 8.....updated",
                "end of arguments",
            ],
            {"pp": 2, "world_size": 8},
        ),
    ],
    ids=["megatron", "neox"],
)
def test_arguments_are_settings_of_another_start(dump: list[str], settings: dict[str, object]) -> None:
    assert facts_of("setting", *dump) == [settings]
    assert facts_of("restart", *dump) == [{}]


def test_timers_of_all_ranks_stand_below_their_record() -> None:
    block = [
        "(min, max) time across ranks (ms):",
        "    forward-backward ....: (10.00, 12.50)",
        "    optimizer ....: (1.00, 2.00)",
    ]
    events = events_of(line_of(1), *block, line_of(2))
    names = [event.kind if isinstance(event, FactEvent) else event.fields["iteration"] for event in events]
    assert names == [1, "timers", 2]
    assert facts_of("timers", *block) == [{"forward-backward": 12.5, "optimizer": 2.0}]


SYSTEMS = {
    "megatron-lm": [line_of(1, "| global batch size: 16 | lm loss: 2.5 ")],
    "bigscience": [
        line_of(
            1,
            "| consumed tokens: 99 | lm loss: 2.5 | num zeros: 0.0 ",
            TAIL + " samples per second: 7.6 | TFLOPs: 9.1 |",
        )
    ],
    "megatron-deepspeed": [
        line_of(1, "| lm loss: 2.5 | actual seqlen:  2048 ", TAIL + " samples per second: 7.6 | TFLOPs: 9.1 |")
    ],
    "gpt-neox": [" samples/sec: 7.6 | " + line_of(1, "| approx flops per GPU: 9.8TFLOPS | lm_loss: 2.5 ")],
    "primus": [line_of(1, "| throughput per GPU (TFLOP/s/GPU): 9.1/8.8 | lm loss: 2.5 ")],
    "megatron-bridge": ["Step Time : 2.10s GPU utilization: 9.1MODEL_TFLOP/s/GPU", line_of(1)],
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_line_tells_who_wrote_it(system: str, tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("\n".join(SYSTEMS[system]) + "\n")
    reading = read_log(path)
    assert reading.system == system
    assert len(reading.records) == 1
    assert reading.records[0]["loss"] == 2.5


@pytest.mark.parametrize("width", [90, 100, 104, 120, 132])
def test_a_value_with_its_unit_or_average_may_be_wrapped(width: int) -> None:
    head = (
        "[20251121 12:10:12][rank-31/32][INFO ] [trainer.py:2488] :  iteration {:8d}/   36000 | consumed samples: 512 "
    )
    middle = (
        "| elapsed time per iteration (ms): 2712.9/25712.6 | hip mem usage/free/total/usage_ratio: "
        "226.80GB/29.18GB/255.98GB/88.60% | compute per GPU (TFLOP/s/GPU): 210.5 (avg 210.6) | lm loss: 1.171020E+01 "
    )
    texts = [head.format(step) + middle + TAIL for step in (2, 3)]
    pieces = [text[start : start + width] for text in texts for start in range(0, len(text), width)]
    events = events_of(*pieces)
    steps = [event.fields for event in events if isinstance(event, StepEvent)]
    whole = [event.fields for event in events_of(*texts) if isinstance(event, StepEvent)]
    assert steps == whole
    assert [fields["mem_gib"] for fields in steps] == [226.8, 226.8]
