"""What is told of runs: the summary of one, the table of several, the files in the run folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpctrain.analysis.frames import RUN_DTYPES, load_frames, read_run
from hpctrain.analysis.report.terminal import render_summary, render_text, summary_table, write_summary
from hpctrain.analysis.run_row import FLOP_CONVENTIONS, RunSummary
from hpctrain.analysis.summary import summarise
from hpctrain.record.paths import RunPaths
from hpctrain.units import gib
from tests.analysis.make_runs import CPU_NODE, Attempt, make_run, toy_config


def predicted(run: RunPaths) -> str:
    """The estimate of one rank as the plan's JSON holds it; what it is, is the business of the plan's tests."""
    return gib(predicted_bytes(run))


def predicted_bytes(run: RunPaths) -> float:
    plan = json.loads(run.plan.read_text())
    memory, per_node = plan["memory"], plan["layout"]["gpus_per_node"]
    return float(memory["allocator_bytes"] if plan["device"] == "cuda" else memory["host_bytes_per_node"] / per_node)


def beside_a_gib(run: RunPaths) -> str:
    """The same with how far it is off a measured GiB."""
    return f"{predicted(run)}, {100 * (predicted_bytes(run) / 2**30 - 1):+.1f} % off"


def test_summary_of_a_good_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert summary_table(summarise(read_run(run))) == [
        ("run", f"{tmp_path}/run"),
        ("state", "completed, 10 of 10 steps recorded"),
        ("model", "toy on 8 GPUs of test_gpu, bf16"),
        ("final loss", "0.4000 nats per token"),
        ("median step time", "0.5 s (95 % interval 0.5 to 0.5 s; 8 steady step(s))"),
        (
            "predicted step time",
            "none: hardware=test_gpu does not state hardware.achievable_tflops.bf16, hardware.gpu_memory_gb_per_s,"
            " hardware.intra_node_gb_per_s, hardware.inter_node_gb_per_s",
        ),
        ("parts of a step", "forward 25.0%, backward 50.0%, optimizer 12.5%, waiting for data 10.0%"),
        ("throughput", "2,048 tokens/s, 256 per GPU"),
        # 10 steps of 1,024 tokens; 10 s before the first step, 2 + 1 + 8 x 0.5 s in steps
        ("by the wall clock", "602 tokens/s over all attempts; 58.8% of the time was not spent in steps of the curve"),
        ("TFLOP/s per GPU, model", "0.0001734 (forward and backward once, dense attention)"),
        ("TFLOP/s per GPU, hardware", "0.0001734 (what is executed: the model count and recomputation)"),
        (
            "TFLOP/s per GPU, megatron",
            "0.0002279 (96·B·s·l·h²·(1 + s/6h + V/16lh): full recomputation always counted)",
        ),
        ("MFU, HFU", "17.3%, 17.3% of 0.001 TFLOP/s"),
        ("peak memory", "1.00 GiB (rank 0's GPU allocator); the plan predicted " + beside_a_gib(run)),
        ("cost", "0.03778 GPU-hours in 1 attempt(s)"),
    ]


def test_summary_says_why_there_is_no_mfu(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", toy_config(nodes=1, hardware=CPU_NODE), [Attempt([1.0] * 4)])
    table = dict(summary_table(summarise(read_run(run))))
    assert table["MFU, HFU"] == "none: hardware=test_cpu states no peak for fp32"
    assert table["median step time"] == "1 s (too few steady steps for a 95 % interval; 2 steady step(s))"
    told = "1.00 GiB (resident size of rank 0's process); the plan predicted "
    assert table["peak memory"] == told + beside_a_gib(run)
    gap = "hardware=test_cpu has device=cpu: step times are predicted for GPUs"
    assert table["predicted step time"] == f"none: {gap}"
    assert table["throughput"] == "256 tokens/s, 128 per rank"


def test_summary_of_a_run_that_has_not_started(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", attempts=[])
    table = dict(summary_table(summarise(read_run(run))))
    assert table["final loss"] == "none recorded"
    assert table["median step time"] == "not measured: no steady step"
    assert table["throughput"] == table["TFLOP/s per GPU, model"] == table["MFU, HFU"] == "not measured"
    assert table["peak memory"] == "not measured; the plan predicted " + predicted(run)
    assert table["not for comparison"] == "not started, 0 of 10 steps recorded"


def test_summary_of_rejected_rates_and_damage(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", attempts=[Attempt([0.001] * 10)])
    with run.steps.open("a") as stream:
        stream.write("half a li\n")
    table = dict(summary_table(summarise(read_run(run))))
    assert table["state"] == "completed, 10 of 10 steps recorded, 1 damaged line(s) in steps.jsonl"
    assert table["TFLOP/s per GPU, hardware"] == table["MFU, HFU"] == "none, see «not for comparison»"
    assert "above the peak of 0.001" in table["not for comparison"]


def test_summary_holds_the_prediction_against_the_measurement(tmp_path: Path) -> None:
    summary = replace(
        summarise(read_run(make_run(tmp_path / "run"))),
        predicted_step_time_s=0.4,
        predicted_step_time_low_s=0.35,
        predicted_step_time_high_s=0.45,
        prediction_error=-0.2,
        in_predicted_range=False,
        calibration="x 1.08 by 12 runs on here, 2026-11-29, calibration.json",
    )
    assert dict(summary_table(summary))["predicted step time"] == (
        "0.4 s, between 0.35 and 0.45 s; -20.0 % off, the measured one is outside the range;"
        " calibrated, x 1.08 by 12 runs on here, 2026-11-29, calibration.json"
    )


def test_summary_of_an_unreadable_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.plan.write_text("{")
    text = render_summary(summarise(read_run(run)))
    assert text.splitlines()[1] == "state    unreadable, 0 of unknown steps recorded"
    assert text.splitlines()[2].startswith(f"problem  {run.plan}: Expecting property name")


LOG = RunSummary("/x/train.log", "train.log", source="megatron-lm", state="unknown", num_recorded_steps=12, valid=True)


def test_summary_of_a_log_says_what_is_known_of_it() -> None:
    """A log without a model is valid all the same; only a run folder without a plan has a problem."""
    row = replace(
        LOG, num_parameters=7 * 10**9, gpus=64, parallelism="tp8", precision="bf16", num_steps=500, final_loss=2.125,
        num_steady_steps=9, step_time_s=1.5, step_time_low_s=1.25, step_time_high_s=1.75, tokens_per_s=65536.0,
        tokens_per_s_per_gpu=1024.0, wall_tokens_per_s=50000.0, lost_time_share=0.25, printed_tflops_per_gpu=142.25,
        printed_convention="hardware", mfu=0.41, peak_memory_bytes=3 * 2**30, damaged_lines=2,
    )  # fmt: skip
    assert summary_table(row) == [
        ("log", "/x/train.log"),
        ("system", "megatron-lm"),
        ("state", "unknown, 12 of 500 steps recorded, 2 damaged line(s)"),
        ("model", "model not stated, 7 B parameters, 64 GPUs, tp8, bf16"),
        ("final loss", "2.125, as the log tells it"),
        ("median step time", "1.5 s (95 % interval 1.25 to 1.75 s; 9 steady step(s))"),
        ("throughput", "65,536 tokens/s, 1,024 per GPU"),
        (
            "by the wall clock",
            "50,000 tokens/s over all attempts; 25.0% of the time was not spent in steps of the curve",
        ),
        ("TFLOP/s per GPU, printed", f"142.2 (FLOP count: hardware, {FLOP_CONVENTIONS['hardware']})"),
        ("MFU", "41.0%"),
        ("peak memory", "3.00 GiB, as the log tells it"),
    ]


@pytest.mark.parametrize(
    ("known", "told"),
    [
        pytest.param({}, {"throughput": "not measured"}, id="nothing"),
        pytest.param(
            {"num_steady_steps": 9},
            {"throughput": "not known: the log tells neither tokens/s nor batch and sequence"},
            id="step time",
        ),
        pytest.param(
            {"num_steady_steps": 9, "tokens_per_s_per_gpu": 512.0},
            {"throughput": "512 tokens/s per GPU"},
            id="rate of a GPU",
        ),
        pytest.param(
            {"printed_tflops_per_gpu": 16.4, "printed_convention": "unknown"},
            {"TFLOP/s per GPU, printed": "16.4 (FLOP count: unknown)"},
            id="convention not stated",
        ),
        pytest.param({"model": "gpt2", "gpus": 1, "hardware": "A100"}, {"model": "gpt2, 1 GPU, A100"}, id="model"),
        pytest.param(
            {"valid": False, "reason": "no steady record among 12"},
            {"not for comparison": "no steady record among 12"},
            id="not valid",
        ),
    ],
)
def test_summary_of_a_log_that_tells_little(known: dict[str, Any], told: dict[str, str]) -> None:
    table = dict(summary_table(replace(LOG, **known)))
    assert "problem" not in table
    assert table["state"] == "unknown, 12 steps recorded"
    assert table.items() >= told.items()
    assert all(table.values()), "no line without a text"


def test_dozens_of_logs_are_counted_not_named() -> None:
    names = [f"{number:02}.log" for number in range(30)]
    rows = [replace(LOG, folder=f"/x/{name}", run=name, tokens_per_s=9.0) for name in names]
    runs = pd.DataFrame([asdict(row) for row in rows], columns=list(RUN_DTYPES)).astype(RUN_DTYPES)
    text = render_text(replace(load_frames([]), runs=runs))
    messages = " ".join(text.split("No scaling efficiency:")[1].split())
    assert messages.count("00.log, 01.log, 02.log, 03.log and 26 more") == 2
    assert "04.log" not in messages
    assert messages.endswith("each run by name: -o report.html")


def test_several_runs_as_one_text(tmp_path: Path) -> None:
    make_run(tmp_path / "small", toy_config(nodes=1))
    make_run(tmp_path / "wide", toy_config(nodes=2), [Attempt([0.625] * 10)])
    make_run(tmp_path / "zfailed", attempts=[Attempt([1] * 3, end={"state": "failed", "end_reason": "killed"})])
    frames = load_frames([tmp_path, tmp_path / "nosuch"])
    plans: dict[str, list[Any]] = {  # what the planner says of the toy is no business of this test
        "predicted_step_time_s": [0.55, 0.55, None],
        "predicted_step_time_low_s": [0.4, 0.4, None],
        "predicted_step_time_high_s": [0.6, 0.6, None],
        "prediction_error": [0.1, -0.12, None],
        "in_predicted_range": [True, False, None],
        "prediction_gap": [None, None, "hardware=test_gpu does not state what is needed"],
        "calibration": ["x 1.08 by 12 runs on here, 2026-11-29, calibration.json", None, None],
        "predicted_memory_bytes": [2**30, 1.5 * 2**30, 0.75 * 2**30],
        "memory_error": [0.0, 0.5, -0.25],
    }
    text = render_text(replace(frames, runs=frames.runs.assign(**plans).astype(frames.runs.dtypes)))
    assert text == (Path(__file__).parent / "golden_report.txt").read_text(encoding="utf-8").replace(
        "ROOT", str(tmp_path)
    )


def test_runs_of_one_size_say_why_there_is_no_efficiency(tmp_path: Path) -> None:
    for name in ("first", "second"):
        make_run(tmp_path / name, toy_config(nodes=1))
    text = render_text(load_frames([tmp_path]))
    assert "No scaling efficiency:\n  strong: " in text
    assert "  weak: " in text
    assert "all runs have one size (4 GPUs), so no efficiency; add a run on another number of nodes" in text


def test_several_runs_with_nothing_in_them(tmp_path: Path) -> None:
    assert render_text(load_frames([tmp_path])).startswith(f"{tmp_path}: no run here; a run folder holds plan.json")


def test_write_summary_leaves_a_figure_and_numbers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    before = set(run.root.iterdir())
    text = write_summary(run)
    assert text == f"{render_summary(summarise(read_run(run)))}\n\npicture {run.root}/summary.png"
    assert {path.name for path in set(run.root.iterdir()) - before} == {"summary.json", "summary.png"}
    assert (run.root / "summary.png").read_bytes().startswith(b"\x89PNG")
    values = json.loads((run.root / "summary.json").read_text())
    assert values["schema_version"] == 1
    assert values["step_time_s"] == 0.5
    assert values["mfu"] == pytest.approx(0.173408256)
    assert set(values["flop_conventions"]) == {"model", "hardware", "megatron"}
    assert str(tmp_path) not in (run.root / "summary.json").read_text(), "a run folder may be moved"


def test_a_failed_run_without_a_step_gets_a_sentence_instead_of_a_picture(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", attempts=[Attempt([], end={"state": "failed", "end_reason": "launch_failed"})])
    text = write_summary(run)
    assert "not for comparison         failed (launch_failed), 0 of 10 steps recorded" in text
    assert text.splitlines()[-1] == "no picture: no step was recorded"
    assert not run.summary_figure.exists()
    assert json.loads((run.root / "summary.json").read_text())["step_time_s"] is None


@pytest.mark.parametrize("blocked", ["summary.json", "summary.png"])
def test_a_folder_that_cannot_be_written_is_read_all_the_same(tmp_path: Path, blocked: str) -> None:
    run = make_run(tmp_path / "run")
    (run.root / blocked).mkdir()
    text = write_summary(run)
    assert text.startswith(render_summary(summarise(read_run(run))))
    assert text.splitlines()[-1] == (
        f"picture not saved, {tmp_path}/run: Is a directory; -o FILE.html writes a report elsewhere"
    )
    assert not list(run.root.glob(".summary*")), "no temporary file stays"


@pytest.mark.parametrize("num_runs", [1, 5])
def test_the_table_fits_a_terminal(tmp_path: Path, num_runs: int) -> None:
    for number in range(num_runs):
        config = toy_config(nodes=2**number, micro_batch_size=1 + number, seq_len=16 if number % 2 else None)
        make_run(tmp_path / f"toy-{2**number}n-zero3-20261129-22354{number}-72a{number}", config)
    lines = render_text(load_frames([tmp_path])).splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("All columns: -o runs.csv or -o report.html; not shown: ") for line in lines)


def test_equal_values_stand_once_above_the_table(tmp_path: Path) -> None:
    for number, nodes in enumerate((1, 2)):
        make_run(tmp_path / f"run{number}", toy_config(nodes=nodes))
    first, second, header = render_text(load_frames([tmp_path])).splitlines()[:3]
    common = "toy, test_gpu, zero3, bf16, micro batch 4, 32 tokens a sequence, completed, 10/10 steps"
    assert f"{first} {second.strip()}" == f"Equal in all: {common}"
    assert header.split() == "RUN GPUS NODES GLOBAL STEP S 95 % TOKENS/S TFLOP/S MFU % GIB LOSS".split()


def test_a_printed_rate_that_cannot_be_true_is_told(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    frames = load_frames([tmp_path])
    runs = frames.runs.assign(printed_tflops_per_gpu=pd.array([125.0], dtype="Float64"))
    text = render_text(replace(frames, runs=runs))
    assert "Contradictions between printed TFLOP/s and tokens/s:\n  run: 125 TFLOP/s a GPU printed" in text


def test_names_cannot_command_the_terminal(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a\x1b[2J\nb 漢")
    make_run(tmp_path / os.fsdecode(b"c\xff"))
    for text in (render_text(load_frames([tmp_path])), write_summary(run), write_summary(RunPaths(run.root))):
        assert "\x1b" not in text
        assert text.encode("utf-8")
    lines = render_text(load_frames([tmp_path])).splitlines()
    assert any(line.startswith(r"a\x1b[2J\nb 漢") for line in lines)


def test_a_long_name_keeps_its_ends(tmp_path: Path) -> None:
    make_run(tmp_path / f"a{'b' * 60}c")
    text = render_text(load_frames([tmp_path]))
    assert f"a{'b' * 19}…{'b' * 18}c" in text


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for place in ("deep/old/run0", "deep/new/run0", "run1"):
        make_run(tmp_path / place, attempts=[Attempt([0.5] * 3, end={"state": "failed", "end_reason": "killed"})])
    text = render_text(load_frames([tmp_path]))
    rows = [line.split(" !")[0] for line in text.splitlines() if " ! " in line]
    assert sorted(rows[:3]) == sorted(rows[3:]) == ["new/run0", "old/run0", "run1"], "in both tables"
    assert "  old/run0: failed (killed), 3 of 10 steps recorded" in text.splitlines()


@pytest.mark.parametrize(
    ("ranks_per_node", "text"), [pytest.param(1, "1 rank", id="one"), pytest.param(2, "2 ranks", id="two")]
)
def test_ranks_on_cpus_are_no_gpus(tmp_path: Path, ranks_per_node: int, text: str) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / name, toy_config(nodes=1, hardware=replace(CPU_NODE, gpus_per_node=ranks_per_node)))
    words = " ".join(render_text(load_frames([tmp_path])).split())
    assert f", {text}, 1 node(s), " in words.split("RUN")[0]
    assert f"all runs have one size ({text}), so no efficiency" in words
    assert f"on {text} of test_cpu, fp32" in render_summary(summarise(read_run(RunPaths(tmp_path / "a"))))
