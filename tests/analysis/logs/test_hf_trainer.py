from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpctrain.analysis.logs.hf_trainer import HfTrainerFormat
from tests.analysis.logs.format_driver import (
    assert_fields,
    assert_sample,
    events_of_text,
    facts,
    incomplete,
    samples,
    steps,
)


@pytest.mark.parametrize("json_path", samples("hf-trainer_*"))
def test_composed_sample(json_path: Path) -> None:
    assert_sample(HfTrainerFormat(), json_path)


def test_facts_of_the_sample() -> None:
    (parameter,) = samples("hf-trainer_*")
    path: Path = parameter.values[0]
    events = assert_sample(HfTrainerFormat(), path)
    assert_fields(facts(events, "final"), [json.loads(path.read_text())["expected"]["final"]])
    assert facts(events, "validation") == [{"val_loss": 1.875, "epoch": 0.2}]
    assert facts(events, "setting") == [
        {"micro_batch_size": 4},
        {"global_batch_size": 128},
        {"gradient_accumulation_steps": 4},
        {"total_iterations": 1000},
    ]
    assert facts(events, "bar") == [{"step": 1000, "total": 1000, "elapsed_s": 87319, "time_per_step_s": 2.0}]


def test_two_runs_have_two_results(tmp_path: Path) -> None:
    runs = ((100.0, 1.0), (100.5, 1.0), (250.0, 3.0))
    text = "".join(f"{{'train_runtime': {runtime}, 'epoch': {epoch}}}\n" for runtime, epoch in runs)
    events = events_of_text(HfTrainerFormat(), text, tmp_path)
    assert facts(events, "final") == [
        {"train_runtime_s": 100.0, "epoch": 1.0, "copies_of_final_dict": 2},
        {"train_runtime_s": 250.0, "epoch": 3.0, "copies_of_final_dict": 1},
    ]


def test_table_of_older_versions(tmp_path: Path) -> None:
    rows = ("***** train metrics *****", "  epoch = 3.0", "  train_runtime = 50.25", "  train_samples = 640")
    text = "".join(f"03/25/2021 01:31:34 - INFO - __main__ -   {row}\n" for row in rows) + "epoch = 9\n"
    (final,) = facts(events_of_text(HfTrainerFormat(), text, tmp_path), "final")
    assert final == {"epoch": 3.0, "train_runtime_s_from_table": 50.25, "train_samples": 640}


def test_only_the_last_bar_of_a_loop_is_told(tmp_path: Path) -> None:
    bars = "".join(
        f"\r {i}%| | {i}/{n} [00:0{i}<00:09,  1.25s/it]" for n, i in ((9, 1), (9, 2), (9, 3), (9, 1), (5, 2))
    )
    events = events_of_text(HfTrainerFormat(), bars + "\n", tmp_path)
    assert [(bar["step"], bar["total"]) for bar in facts(events, "bar")] == [(3, 9), (1, 9), (2, 5)]
    assert [bar["time_per_step_s"] for bar in facts(events, "bar")] == [1.25] * 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "{'loss': 1.5, 'learning_rate': 2e-05, 'epo", {"loss": 1.5, "learning_rate": 2e-05}, id="in-a-key"
        ),
        pytest.param("{'loss': 1.5, 'learning_rate': 2", {"loss": 1.5}, id="in-a-number"),
    ],
)
def test_cut_dict(text: str, expected: dict[str, float], tmp_path: Path) -> None:
    events = events_of_text(HfTrainerFormat(), text, tmp_path)
    assert incomplete(events) == [expected]
    assert steps(events) == []


def test_json_lines_of_llamafactory(tmp_path: Path) -> None:
    text = (
        '{"current_steps": 10, "total_steps": 100, "loss": 1.25, "lr": 5e-05, "epoch": 0.1, "elapsed_time": "0:00:10", '
        '"total_tokens": 4096}\n'
        '{"current_steps": 10, "total_steps": 100, "eval_loss": 1.5, "epoch": 0.1}\n'
    )
    events = events_of_text(HfTrainerFormat(), text, tmp_path)
    expected = {
        "iteration": 10,
        "total_iterations": 100,
        "loss": 1.25,
        "learning_rate": 5e-05,
        "epoch": 0.1,
        "consumed_tokens": 4096,
    }
    assert steps(events) == [expected]
    assert facts(events, "validation") == [{"val_loss": 1.5, "epoch": 0.1}]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("{'loss': 1.5, 'accuracy': 0.5}", id="dict-of-another-program"),
        pytest.param("{'eval_loss': nan", id="cut-evaluation"),
        pytest.param("{'loss': 1.5, 'epoch': 3, 'scheduler': {'kind': 'cosine'}}", id="configuration"),
        pytest.param("{'learning_rate': 0.1, 'epoch': 3, 'na", id="cut-dict-without-loss"),
    ],
)
def test_other_lines_are_no_records(line: str, tmp_path: Path) -> None:
    assert events_of_text(HfTrainerFormat(), f"{line}\n", tmp_path) == []


@pytest.mark.parametrize(
    "bar",
    [
        pytest.param("Map (num_proc=8):  33%|███▎      | 1/3 [00:00<00:01,  1.50it/s]", id="data-set"),
        pytest.param("Validation DataLoader 0: 100%|██████████| 3/3 [00:01<00:00,  1.50it/s]", id="other-trainer"),
        pytest.param("  5%|▌         | 5/100 [00:02<00:47,  2.00it/s, loss=7.1]", id="with-metrics"),
    ],
)
def test_bars_of_other_loops_are_left_out(bar: str, tmp_path: Path) -> None:
    assert events_of_text(HfTrainerFormat(), f"\r{bar}\n", tmp_path) == []


@pytest.mark.parametrize(
    ("first", "name"),
    [pytest.param("", "truncated_first_line", id="first"), pytest.param("x\n", "orphan_fragment", id="later")],
)
def test_tail_of_a_dict(first: str, name: str, tmp_path: Path) -> None:
    events = events_of_text(HfTrainerFormat(), first + "ng_rate': 5.26e-06, 'epoch': 0.02}\n", tmp_path)
    assert facts(events, "trait") == [{"name": name}]
    assert len(events) == 1


def test_numbers_in_quotes_are_told_once(tmp_path: Path) -> None:
    text = "{'loss': '1.5', 'epoch': '0.1'}\n{'loss': '1.4', 'epoch': '0.2'}\n"
    events = events_of_text(HfTrainerFormat(), text, tmp_path)
    assert facts(events, "trait") == [{"name": "numbers_as_strings"}]
    assert [record["loss"] for record in steps(events)] == [1.5, 1.4]


def test_position_of_ms_swift_is_no_number_in_quotes(tmp_path: Path) -> None:
    text = (
        "{'loss': 1.5, 'grad_norm': 2.25, 'learning_rate': 1e-05, 'memory(GiB)': 66.5, 'epoch': 0.01, "
        "'global_step/max_steps': '5/1000', 'percentage': '0.50%', 'elapsed_time': '42s'}\n"
    )
    events = events_of_text(HfTrainerFormat(), text, tmp_path)
    assert facts(events, "trait") == []
    wanted = {"iteration": 5, "total_iterations": 1000, "loss": 1.5, "mem_gib": 66.5, "epoch": 0.01}
    assert_fields(steps(events), [wanted])


def test_flops_of_the_table_are_in_units_of_a_power_of_two(tmp_path: Path) -> None:
    text = (
        "***** train metrics *****\n  total_flos               =        3GF\n  train_loss               =     2.125\n"
    )
    (final,) = facts(events_of_text(HfTrainerFormat(), text, tmp_path), "final")
    assert final == {"total_flos": 3 * 2**30, "train_loss": 2.125}
