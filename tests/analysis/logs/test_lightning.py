from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpctrain.analysis.logs.lightning import LightningFormat
from hpctrain.analysis.logs.reading import read_log
from tests.analysis.logs.format_driver import assert_sample, events_of_text, facts, incomplete, samples, steps
from tests.analysis.logs.sample_files import log_json


@pytest.mark.parametrize("json_path", samples("nemo_*"))
def test_composed_sample(json_path: Path) -> None:
    assert_sample(LightningFormat(), json_path)


def test_bar_without_a_rate(tmp_path: Path) -> None:
    text = (
        "\rEpoch 0: :   0%|   | 2/500000 [00:48<3333:20:00, v_num=, train_loss=11.00, train_step_timing in s=25.20]\n"
    )
    events = events_of_text(LightningFormat(), text, tmp_path)
    (record,) = steps(events)
    assert (record["iteration"], record["total_iterations"], record["loss"]) == (2, 500000, 11.0)
    assert record["time_per_iteration_s"] == 25.2
    assert facts(events, "bar") == [
        {"step": 2, "total": 500000, "elapsed_s": 48, "time_per_step_s": None, "loss": 11.0}
    ]


def test_rounded_counters_do_not_become_exact_ones(tmp_path: Path) -> None:
    text = "\rEpoch 0: 3%|▎| 4210/99999 [1:10:02<26:35:10, 1.00it/s, loss=2.5, global_step=4.2e+3, consumed_samples=2.69e+6]\n"
    (record,) = steps(events_of_text(LightningFormat(), text, tmp_path))
    assert "consumed_samples" not in record
    assert (record["global_step_rounded"], record["consumed_samples_rounded"]) == (4200, 2690000)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(
            "Epoch 0:  10%|█ | 10/100 [00:05<00:45,  2.00it/s, v_num=7, val_loss=2.5]", id="validation-loss-only"
        ),
        pytest.param("Validation DataLoader 0:  33%|███▎ | 1/3 [00:00<00:01,  1.50it/s]", id="validation"),
        pytest.param("Steps:  10%|█ | 10/100 [00:05<00:45,  2.00it/s, loss=2.5]", id="loop-of-another-program"),
        pytest.param("Training epoch 1, Iteration 30, Loss: 5.5", id="line-of-another-program"),
        pytest.param("Epoch 3: reducing learning rate of group 0 to 1/10", id="scheduler"),
    ],
)
def test_other_lines_are_no_records(line: str, tmp_path: Path) -> None:
    assert events_of_text(LightningFormat(), f"{line}\n", tmp_path) == []


def test_cut_bar_keeps_its_position(tmp_path: Path) -> None:
    events = events_of_text(LightningFormat(), "\rEpoch 2:   0%| | 33/238 [01:01<1230", tmp_path)
    assert incomplete(events) == [{"iteration": 33, "total_iterations": 238, "epoch": 2}]
    assert events_of_text(LightningFormat(), "\rEpoch 2:   0%| | 33/23", tmp_path) == []


def test_keys_in_any_order_and_other_names_of_memory(tmp_path: Path) -> None:
    text = (
        "Training epoch 0, iteration 9/9 | lr: 4.5e-06 | consumed_samples: 2560 | global_step: 9 | "
        "peak_memory_usage: 85899345920 | tokens_per_sec_per_gpu: 6.5e+03 | reduced_train_loss: 11.75 | "
        "val_loss: 11.5 | train_step_timing in s: 2.5\n"
    )
    (record,) = steps(events_of_text(LightningFormat(), text, tmp_path))
    assert (record["mem_gib"], record["tokens_per_s_per_gpu"], record["consumed_samples"]) == (80.0, 6500.0, 2560)
    assert (record["loss"], record["time_per_iteration_s"], record["global_step"]) == (11.75, 2.5, 9)


def test_the_last_drawing_of_a_bar_is_the_step(tmp_path: Path) -> None:
    bars = (
        "5/18 [00:20<00:53,  4.14s/it, loss=9.947, v_num=1]",
        "5/18 [00:20<00:53,  4.14s/it, loss=9.850, v_num=1]",
        "6/18 [00:23<00:47,  3.95s/it, loss=9.850, v_num=1]",
        "6/18 [00:24<00:47,  3.95s/it, loss=9.700, v_num=1]",
        "5/18 [00:19<00:50,  3.90s/it, loss=9.900, v_num=1]",  # After a restart.
    )
    path = tmp_path / "x.log"
    path.write_text("".join(f"\rEpoch 0:  28%|##8       | {bar}" for bar in bars) + "\n")
    records = read_log(path).records
    assert [(row["iteration"], row["loss"], row["attempt"]) for row in records] == [
        (5, 9.85, 0),
        (6, 9.7, 0),
        (5, 9.9, 1),
    ]


def test_a_restart_in_a_later_epoch_wastes_no_earlier_one(tmp_path: Path) -> None:
    steps = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 1), (1, 2))
    path = tmp_path / "x.log"
    path.write_text(
        "".join(
            f"Training epoch {epoch}, iteration {step}/3 | lr: 1e-06 | global_batch_size: 8 | "
            f"reduced_train_loss: {9 - 0.125 * place} | train_step_timing in s: 2.5\n"
            for place, (epoch, step) in enumerate(steps)
        )
    )
    told = json.loads(log_json(read_log(path)))
    assert (told["summary"]["attempts"], told["summary"]["wasted_iterations_total"]) == (2, 2)
    assert told["effective_records_last_attempt_wins"] == [[0, 0], [1, 0], [2, 0], [0, 0], [1, 1], [2, 1]]
    assert {"restart", "iteration_repeated", "iteration_repeats_per_epoch"} <= set(told["flags"])
