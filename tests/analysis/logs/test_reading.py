"""One file, one reading: what cannot be read, which lines are one step, which are another start."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from hpctrain.analysis.logs import record_table
from hpctrain.analysis.logs.events import Event, Line, StepEvent
from hpctrain.analysis.logs.reading import LogReading, read_log
from hpctrain.analysis.logs.record_table import RecordTable
from hpctrain.analysis.logs.step_joiner import NUM_RECENT_STEPS
from hpctrain.errors import RecordError
from tests.analysis.logs.sample_files import log_json


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.log"


def step(iteration: int, ms: float = 2000.0, loss: str = "2.500000E+00", total: int = 100, more: str = "") -> str:
    return (
        f" iteration {iteration:8d}/{total:8d} | consumed samples: {16 * iteration:12d} "
        f"| elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.500E-04 | global batch size:    16 "
        f"| lm loss: {loss} | loss scale: 1.0 "
        f"| number of skipped iterations:   0 | number of nan iterations:   0 |{more}"
    )


def read(file: Path, *lines: str) -> LogReading:
    file.write_text("\n".join(lines) + "\n")
    return read_log(file)


def places(reading: LogReading, *names: str) -> list[tuple[object, ...]]:
    return [tuple(row.get(name) for name in names) for row in reading.records]


def test_a_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.log").mkdir()
    with pytest.raises(RecordError, match=r"x\.log: is a directory; expected a log file"):
        read_log(tmp_path / "x.log")


def test_an_empty_file_is_told(file: Path) -> None:
    file.touch()
    with pytest.raises(RecordError, match=r"x\.log: is empty \(0 bytes\)"):
        read_log(file)


def test_a_missing_file_is_told(file: Path) -> None:
    with pytest.raises(RecordError, match=r"x\.log: cannot be read: No such file"):
        read_log(file)


def test_a_file_without_permission_is_told(file: Path) -> None:
    if os.geteuid() == 0:
        # Root may read everything; a file whose parent is a file cannot be read by anybody.
        file.write_text("x")
        with pytest.raises(RecordError, match=r"inner: cannot be read: Not a directory"):
            read_log(file / "inner")
        return
    file.write_text(step(1))
    file.chmod(0)
    with pytest.raises(RecordError, match=r"x\.log: cannot be read: Permission denied"):
        read_log(file)


def test_an_unknown_format_names_the_known_ones(file: Path) -> None:
    with pytest.raises(
        RecordError, match=r"x\.log: 2 lines, none of a known system; known: .*megatron-lm, .*torchtitan"
    ):
        read(file, "hello", "world")


class Stumbling:
    """A format that takes a word for a number."""

    system = "stumbling"
    markers = ("count ",)
    tflops_convention = "unknown"
    wants_next = False

    def read(self, line: Line) -> Iterable[Event]:
        return (StepEvent(line.number, {"iteration": int(line.text.removeprefix("count "))}),)

    def end(self) -> Iterable[Event]:
        return ()


def test_a_line_that_is_no_number_is_damage_and_stops_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpctrain.analysis.logs.reading.FORMATS", (Stumbling,))
    reading = read(file, "count 1", "count two", "count 3")
    assert places(reading, "iteration") == [(1,), (3,)]
    assert reading.damaged_lines == 1


def test_ranks_that_print_the_same_step_are_one_row_and_no_sum(file: Path) -> None:
    lines = [f"[rank{rank}]:{step(number, 2000 + rank)}" for number in (1, 2, 3) for rank in range(4)]
    reading = read(file, *lines)
    assert places(reading, "iteration", "time_per_iteration_s", "rank_label") == [(n, 2.0, "rank0") for n in (1, 2, 3)]
    assert reading.copies_per_step == 4
    assert "duplicate_ranks" in reading.traits


def test_a_rank_that_lags_behind_is_no_restart(file: Path) -> None:
    lines = [f"[rank0]:{step(number)}" for number in range(1, 11)] + [
        f"[rank1]:{step(number)}" for number in range(1, 11)
    ]
    reading = read(file, *lines)
    assert places(reading, "iteration", "attempt") == [(number, 0) for number in range(1, 11)]


def test_a_restart_without_a_word_is_told_by_the_time_of_its_first_step(file: Path) -> None:
    reading = read(file, step(1), step(2), step(3), step(2, 5000.0), step(3), step(4))
    assert places(reading, "iteration", "attempt") == [(1, 0), (2, 0), (3, 0), (2, 1), (3, 1), (4, 1)]
    assert json.loads(log_json(reading))["effective_records_last_attempt_wins"] == [[1, 0], [2, 1], [3, 1], [4, 1]]


def test_a_line_that_was_written_twice_is_one_step(file: Path) -> None:
    reading = read(file, step(1), step(2), step(2), step(3))
    assert places(reading, "iteration", "attempt") == [(1, 0), (2, 0), (3, 0)]


@pytest.mark.parametrize(
    ("word", "attempts"),
    [
        ("after restart", [0, 0, 1]),
        (" loading checkpoint from /x at iteration 2", [0, 0, 1]),
        ("------------------------ arguments ------------------------\n--- end of arguments ---", [0, 0, 1]),
        ("slurmstepd: error: *** JOB 7 ON node04 CANCELLED AT 2024-05-01T12:31:55 DUE TO JOB REQUEUE ***", [0, 0, 1]),
        ("saving checkpoint at iteration 2 to /x", [0, 0, 0]),
    ],
    ids=["words", "load", "arguments", "requeue", "save"],
)
def test_messages_of_another_start(file: Path, word: str, attempts: list[int]) -> None:
    reading = read(file, step(1), step(2), word, word, step(3))
    assert [row["attempt"] for row in reading.records] == attempts


def test_a_message_before_the_first_step_is_the_first_start(file: Path) -> None:
    assert [row["attempt"] for row in read(file, "after restart", step(1), step(2)).records] == [0, 0]


def test_an_epoch_that_counts_anew_is_no_restart(file: Path) -> None:
    line = "Training epoch {}, iteration {}/2 | lr: 1.0e-05 | global_batch_size: 8 | global_step: {} | reduced_train_loss: 2.5"
    reading = read(file, *(line.format(epoch, number, 3 * epoch + number) for epoch in (0, 1) for number in (0, 1, 2)))
    assert [row["attempt"] for row in reading.records] == [0] * 6


def test_other_totals_after_going_back_are_another_run(file: Path) -> None:
    reading = read(file, step(50), step(51), step(1, total=500), step(2, total=500))
    assert places(reading, "iteration", "segment", "attempt") == [(50, 0, 0), (51, 0, 0), (1, 1, 0), (2, 1, 0)]


def test_a_topology_line_is_another_run_and_its_settings_are_in_each_row(file: Path) -> None:
    reading = read(file, "TP=4/PP=2/MBS=1/Nodes=8", step(1), step(2), "TP=2/PP=4/MBS=2/Nodes=8", step(1), step(2))
    assert places(reading, "iteration", "segment", "tp", "micro_batch_size") == [
        (1, 0, 4, 1),
        (2, 0, 4, 1),
        (1, 1, 2, 2),
        (2, 1, 2, 2),
    ]
    assert reading.settings == {"tp": 2, "pp": 4, "micro_batch_size": 2, "nodes": 8}


def test_an_overflow_belongs_to_the_step_after_it(file: Path) -> None:
    overflow = "[2022-01-19 13:09:13,305] [INFO] [x] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 8.0, reducing to 4.0"
    reading = read(file, step(1), overflow, step(2), step(3))
    assert places(reading, "iteration", "overflow_line_before") == [(1, False), (2, True), (3, False)]
    assert "overflow_line_before" not in read(file, step(1)).records[0]


def test_the_engines_lines_go_to_their_step_before_and_after_it(file: Path) -> None:
    engine = "[2024-03-07 15:27:15,063] [INFO] [logging.py:96:log_dist] [Rank 0] step={}, skipped={}, lr=[0.1], mom=[(0.9, 0.9)]"
    reading = read(file, engine.format(1, 0), step(1), step(2), engine.format(2, 4))
    assert places(reading, "iteration", "ds_skipped_total") == [(1, 0), (2, 4)]
    assert len(reading.engine) == 2
    only = read(file, engine.format(1, 0), engine.format(2, 4))
    assert only.system == "deepspeed"
    assert places(only, "iteration", "skipped_total", "loss") == [(1, 0, None), (2, 4, None)]


def test_two_wordings_of_a_step_are_one_row_and_the_richer_one_wins(file: Path) -> None:
    reading = read(file, "steps: 1 loss: 2.4999 iter time (s): 2.001 samples/sec: 7.996", step(1))
    assert places(reading, "loss", "time_per_iteration_s", "samples_per_s") == [(2.5, 2.0, 7.996)]
    assert (reading.formats_per_step, reading.copies_per_step) == (2, 1)
    assert "multiple_formats_same_step" in reading.traits


def test_a_rate_that_contradicts_batch_and_time_is_kept_beside_the_right_one(file: Path) -> None:
    reading = read(file, step(1, more=" samples per second: 0.008 | TFLOPs: 9.1 |"))
    assert places(reading, "samples_per_s", "samples_per_s_printed") == [(8.0, 0.008)]


def test_a_step_time_of_another_step_is_a_row_of_its_own(file: Path) -> None:
    speed = "Step Time : {}s GPU utilization: 9.5TFLOP/s/GPU"
    same = read(file, speed.format("2.00"), step(1))
    assert places(same, "iteration", "time_per_iteration_s", "tflops_per_gpu") == [(1, 2.0, 9.5)]
    other = read(file, speed.format("2.50"), step(1))
    assert places(other, "iteration", "time_per_iteration_s", "tflops_per_gpu") == [(None, 2.5, 9.5), (1, 2.0, None)]


def test_noise_between_records_is_noticed(file: Path) -> None:
    noise = ["node01:1:2 [0] NCCL INFO Channel 01"] * 20
    assert "interleaved_noise" in read(file, step(1), *noise, step(2)).traits
    assert "interleaved_noise" not in read(file, step(1), step(2), *noise).traits


def test_old_rows_are_packed_and_give_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        step(number, 2000.0 + number % 7, more=" samples per second: 0.008 |" if number % 100 == 0 else "")
        for number in range(1, 3000)
    ]
    plain = list(read(file, *lines).records)
    monkeypatch.setattr(record_table, "NUM_NEW_ROWS", NUM_RECENT_STEPS + 1)
    assert list(read(file, *lines).records) == plain
    assert len(plain) == 2999


def test_a_table_gives_back_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_table, "NUM_NEW_ROWS", 4)
    rows: list[dict[str, object]] = [
        {"int": 1, "float": 0.5},
        {"int": 2**60, "float": None},
        {"text": "a", "flag": True},
        {"text": "a", "flag": False, "int": -3},
        {"float": float("inf"), "list": [1, 2]},
        {},
    ] * 5
    table = RecordTable()
    for number, row in enumerate(rows):
        table.append(number, dict(row))
    assert list(table) == rows
    assert [type(value) for value in table.column("int")[:4]] == [int, int, type(None), int]
    assert table[3:5] == rows[3:5] and table[-1] == rows[-1]
    assert list(table.line_numbers) == list(range(30))
    assert sorted(table.names) == ["flag", "float", "int", "list", "text"]
    assert table.numbers("int")[0] == 1.0 and table.numbers("text")[2] != table.numbers("text")[2]
    table.fill("flag", False)
    assert [row["flag"] for row in table][:4] == [False, False, True, False]
    with pytest.raises(IndexError):
        table[30]


def titan(step: int, loss: float, end: str = "  tps: 5,219  tflops: 302.25  mfu: 30.48%") -> str:
    head = f"[titan] 2025-11-02 08:00:{step:02d},400 - root - INFO - step: {step:2d}"
    return f"{head}  loss: {loss:.5f}  memory: 40.12GiB(50.66%){end}"


@pytest.mark.parametrize(
    ("last", "num_records", "num_incomplete", "flags"),
    [
        pytest.param(titan(3, 7.5), 3, 0, set(), id="only-the-line-end-is-missing"),
        pytest.param(
            titan(3, 7.5, "  tps: 5,219  tflops: 302.25  mf"), 2, 1, {"truncated_last_line"}, id="after-the-speed"
        ),
        pytest.param(titan(3, 7.5, "  tp"), 2, 1, {"truncated_last_line"}, id="before-the-speed"),
        pytest.param("[titan] 2025-11-02 08:00:1", 2, 0, {"truncated_last_line"}, id="before-the-marker"),
        pytest.param("[titan] 2025-11-02 08:00:14,100 - root - INFO - saved", 2, 0, set(), id="another-line"),
    ],
)
def test_the_start_of_a_line_that_stood_before_is_cut(
    last: str, num_records: int, num_incomplete: int, flags: set[str], file: Path
) -> None:
    file.write_text(f"{titan(1, 9.25)}\n{titan(2, 8.75)}\n{last}")
    reading = read_log(file)
    assert (len(reading.records), len(reading.incomplete_records)) == (num_records, num_incomplete)
    assert {trait for trait in reading.traits if trait.startswith("truncated")} == flags


@pytest.mark.parametrize(("last", "count"), [("10.412", 3), ("10.4", 2)], ids=["all-decimals", "cut-in-the-loss"])
def test_a_number_of_fixed_format_is_certain_without_a_line_end(last: str, count: int, file: Path) -> None:
    losses = ("10.902", "10.551", last)
    file.write_text(
        "\n".join(f"completed step: {i}, seconds: 2.305, TFLOP/s: 41.262, loss: {x}" for i, x in enumerate(losses))
    )
    reading = read_log(file)
    assert (len(reading.records), len(reading.incomplete_records)) == (count, 3 - count)


def test_a_line_before_glued_ones_is_no_start_of_them(file: Path) -> None:
    file.write_text(f"{titan(1, 9.25)}\n{titan(2, 8.75)}{titan(3, 8.5)}\n{titan(4, 8.25)}")
    reading = read_log(file)
    assert [row["iteration"] for row in reading.records] == [1, 2, 3, 4]
    assert [str(row["timestamp"])[-6:] for row in reading.records] == ["01,400", "02,400", "03,400", "04,400"]
    assert reading.traits == {"glued_lines", "thousands_separator"}


def test_tera_flops_of_2021_stand_behind_their_step(file: Path) -> None:
    line = (
        " iteration {:8d}/    1000 | elapsed time per iteration (ms): 121899.8 | learning rate: 1.875E-05 | lm loss: 9.25E+00 "
        "| loss scale: 1024.0 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        "time (ms) | forward: 35650.91 | optimizer: 386.53 | batch generator: 13.17\n"
        "Effective Tera Flops per GPU: {} and total parameters 52.005 B\n"
    )
    file.write_text(line.format(1, 41.94) + line.format(2, 40.6))
    reading = read_log(file)
    assert [row["tflops_per_gpu"] for row in reading.records] == [41.94, 40.6]
    assert reading.system == "megatron-deepspeed"
    assert reading.fact_rows("timers")[0] == {
        "iteration": 1,
        "forward": 35650.91,
        "optimizer": 386.53,
        "batch generator": 13.17,
    }


ITER = "iter {}: loss 4.2210, time 487.31ms, mfu 31.25%"
METASEQ = (
    '2022-12-02 21:07:1{0} | INFO | train_inner | {{"epoch": 1, "loss": "15.25", "ppl": "38967.9", "wps": "692060", '
    '"ups": "0.66", "num_updates": "{0}", "lr": "3.75e-07"}}'
)
NEMO = (
    "Training epoch 0, iteration {0}/9 | lr: 1e-06 | reduced_train_loss: 11.0 | train_step_timing in s: 2.5 "
    "| consumed_samples: {0}728"
)
BIGSCIENCE = (
    "[default7]: iteration {:8d}/  115311 | consumed samples:     47772592 | elapsed time per iteration (s): 106.40 "
    "| learning rate: 5.279E-05 | global batch size:  2048 | lm loss: 2.595213E+00 | grad norm: 2.390 | num zeros: 0.0 "
    "| number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: 19.248 | TFLOPs: 147.37 |"
)


@pytest.mark.parametrize("line", [ITER, METASEQ, NEMO, BIGSCIENCE], ids=["nanogpt", "metaseq", "nemo-2", "bigscience"])
def test_two_records_that_lost_the_line_end_between_them(line: str, file: Path) -> None:
    lines = [line.format(step) for step in (1, 2, 3, 4)]
    file.write_text("\n".join(lines) + "\n")
    apart = [dict(row) for row in read_log(file).records]
    file.write_text(f"{lines[0]}{lines[1]}\n{lines[2]}{lines[3]}\n")
    reading = read_log(file)
    assert [dict(row) for row in reading.records] == apart
    assert [row["iteration"] for row in apart] == [1, 2, 3, 4]
    assert "glued_lines" in reading.traits
    assert not len(reading.incomplete_records)


def test_step_times_of_a_bridge_in_one_line_with_others(file: Path) -> None:
    speed = "Step Time : {}s GPU utilization: {}MODEL_TFLOP/s/GPU"
    file.write_text(
        f"{speed.format(2.01, 574.0)}{step(1, 2010.0)}\n{speed.format(8.6, 571.0)}{speed.format(8.63, 570.0)}\n"
    )
    reading = read_log(file)
    told = [(row["iteration"], row["time_per_iteration_s"], row["tflops_per_gpu"]) for row in reading.records]
    assert told == [(1, 2.01, 574.0), (None, 8.6, 571.0), (None, 8.63, 570.0)]
    assert (reading.system, "glued_lines" in reading.traits) == ("megatron-bridge", True)
