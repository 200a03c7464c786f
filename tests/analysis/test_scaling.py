"""Efficiencies worked out by hand, groups of unlike runs kept apart (case 106), and every message."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpctrain.analysis.frames import load_frames, runs_frame
from hpctrain.analysis.run_row import RunSummary
from hpctrain.analysis.scaling import Scaling, ScalingKind, scaling_efficiency
from hpctrain.config.schema import ParallelismConfig
from tests.analysis.make_runs import CPU_NODE, GPU_NODE, TOY, Attempt, make_run, toy_config


def make_runs(root: Path, *points: tuple[dict[str, Any], float]) -> pd.DataFrame:
    """One run a point: fields of the configuration and the time of a step."""
    for number, (fields, step_time_s) in enumerate(points):
        make_run(root / f"run-{number}", toy_config(**fields), [Attempt([step_time_s] * 10)])
    return load_frames([root]).runs


def efficiencies(scaling: Scaling) -> dict[tuple[str, int], float | None]:
    rows = scaling.points[["group", "gpus", "efficiency"]].itertuples(index=False)
    return {(group, gpus): None if pd.isna(value) else round(value, 6) for group, gpus, value in rows}


def test_weak_scaling_by_hand(tmp_path: Path) -> None:
    """Each GPU keeps 4 sequences, so equal step times would be ideal: 0.5 s over 0.625 s is 0.8, over 1 s 0.5."""
    runs = make_runs(tmp_path, ({"nodes": 1}, 0.5), ({"nodes": 2}, 0.625), ({"nodes": 4}, 1.0))
    scaling = scaling_efficiency(runs, "weak")
    assert efficiencies(scaling) == {("toy", 4): 1, ("toy", 8): 0.8, ("toy", 16): 0.5}
    assert scaling.points["tokens_per_s"].tolist() == [512 / 0.5, 1024 / 0.625, 2048 / 1.0]
    assert scaling.points["base_gpus"].tolist() == [4, 4, 4]
    assert scaling.messages == ()
    assert scaling.common == (
        "toy, 32 tokens a sequence, bf16, test_gpu, cluster test, checkpointing none, zero3, micro batch 4, accumulation 1"
    )


def test_strong_scaling_by_hand(tmp_path: Path) -> None:
    """64 sequences a step: 1.2 s on 4 GPUs would be 0.6 s on 8; 0.8 s is an efficiency of 0.75."""
    runs = make_runs(
        tmp_path,
        ({"nodes": 1, "gradient_accumulation_steps": 4}, 1.2),
        ({"nodes": 2, "gradient_accumulation_steps": 2}, 0.8),
    )
    assert efficiencies(scaling_efficiency(runs, "strong")) == {("toy", 4): 1, ("toy", 8): 0.75}


def test_in_strong_scaling_the_fastest_split_counts(tmp_path: Path) -> None:
    runs = make_runs(
        tmp_path,
        ({"nodes": 1, "micro_batch_size": 8}, 1.0),
        ({"nodes": 2, "micro_batch_size": 4}, 0.5),
        ({"nodes": 2, "micro_batch_size": 2, "gradient_accumulation_steps": 2}, 0.625),
    )
    scaling = scaling_efficiency(runs, "strong")
    assert efficiencies(scaling) == {("toy", 4): 1, ("toy", 8): 1}
    assert scaling.messages == ("toy: on 8 GPUs the split micro batch 2 x accumulation 2 is slower and left out",)


def test_repeated_points_count_as_their_median(tmp_path: Path) -> None:
    runs = make_runs(tmp_path, ({"nodes": 1}, 0.5), ({"nodes": 2}, 0.5), ({"nodes": 2}, 0.625), ({"nodes": 2}, 5.0))
    scaling = scaling_efficiency(runs, "weak")
    assert efficiencies(scaling) == {("toy", 4): 1, ("toy", 8): 0.8}
    assert scaling.points["num_runs"].tolist() == [1, 3]


def test_a_stated_base(tmp_path: Path) -> None:
    runs = make_runs(tmp_path, ({"nodes": 1}, 0.5), ({"nodes": 2}, 1.0))
    assert efficiencies(scaling_efficiency(runs, "weak", base_gpus=8)) == {("toy", 4): 2, ("toy", 8): 1}


def test_without_the_base_there_is_no_efficiency_but_a_message(tmp_path: Path) -> None:
    runs = make_runs(tmp_path, ({"nodes": 2}, 0.5), ({"nodes": 4}, 0.5))
    scaling = scaling_efficiency(runs, "weak", base_gpus=4)
    assert efficiencies(scaling) == {("toy", 8): None, ("toy", 16): None}
    assert scaling.messages == ("toy: no valid run on the base of 4 GPUs, so no efficiency; there are runs on 8, 16",)


def test_one_size_has_no_efficiency_but_a_message(tmp_path: Path) -> None:
    scaling = scaling_efficiency(make_runs(tmp_path, ({"nodes": 2}, 0.5)), "weak")
    assert efficiencies(scaling) == {("toy", 8): None}
    assert scaling.messages == (
        "toy: all runs have one size (8 GPUs), so no efficiency; add a run on another number of nodes",
    )


def test_a_run_that_is_not_valid_is_left_out_and_named(tmp_path: Path) -> None:
    make_run(tmp_path / "short", toy_config(nodes=4, num_steps=1), [Attempt([1.0])])
    runs = make_runs(tmp_path, ({"nodes": 1}, 0.5), ({"nodes": 2}, 0.5))
    scaling = scaling_efficiency(runs, "weak")
    assert scaling.points["gpus"].tolist() == [4, 8]
    assert scaling.left_out == ("short: no steady step among 1 recorded",)
    assert scaling.messages == ()


LESS_OVERLAP = ParallelismConfig("zero3", zero_stage=3, overlap_comm=False)


@pytest.mark.parametrize(
    ("kind", "other", "labels"),
    [
        pytest.param("weak", {"model": replace(TOY, name="toy2")}, ["toy", "toy2"], id="model"),
        pytest.param(
            "weak",
            {"model": replace(TOY, num_layers=3)},
            ["toy, 108.5 K parameters", "toy, 158.5 K parameters"],
            id="same name, other shape",
        ),
        pytest.param("weak", {"seq_len": 16}, ["16 tokens a sequence", "32 tokens a sequence"], id="sequence"),
        pytest.param(
            "weak", {"hardware": replace(GPU_NODE, default_precision="fp32")}, ["bf16", "fp32"], id="precision"
        ),
        pytest.param("weak", {"hardware": replace(GPU_NODE, name="other")}, ["other", "test_gpu"], id="hardware"),
        pytest.param(
            "weak",
            {"activation_checkpointing": "full"},
            ["checkpointing full", "checkpointing none"],
            id="checkpointing",
        ),
        pytest.param(
            "weak", {"parallelism": ParallelismConfig("zero1", zero_stage=1)}, ["zero1", "zero3"], id="parallelism"
        ),
        pytest.param(
            "weak",
            {"parallelism": LESS_OVERLAP},
            ["toy, overlap_comm=False", "toy, overlap_comm=True"],
            id="same name, other ZeRO settings",
        ),
        pytest.param("weak", {"micro_batch_size": 8}, ["micro batch 4", "micro batch 8"], id="weak: micro batch"),
        pytest.param(
            "weak", {"gradient_accumulation_steps": 2}, ["accumulation 1", "accumulation 2"], id="weak: accumulation"
        ),
        pytest.param(
            "strong", {"micro_batch_size": 1}, ["global batch 8", "global batch 32"], id="strong: global batch"
        ),
    ],
)
def test_unlike_runs_are_never_compared(
    tmp_path: Path, kind: ScalingKind, other: dict[str, Any], labels: list[str]
) -> None:
    """Case 106: the same two sizes, but the second run differs in one thing."""
    first = {"nodes": 1, "gradient_accumulation_steps": 2} if kind == "strong" else {"nodes": 1}
    scaling = scaling_efficiency(make_runs(tmp_path, (first, 0.5), ({"nodes": 2, **other}, 0.5)), kind)
    assert sorted(scaling.points["group"]) == sorted(labels)
    assert scaling.points["efficiency"].isna().all()
    assert len(scaling.messages) == 2
    assert all("all runs have one size" in message for message in scaling.messages)


def test_three_batches_and_a_missing_base(tmp_path: Path) -> None:
    """Case 106 as reported: three global batches, of which one lacks nodes=1."""
    runs = make_runs(
        tmp_path,
        *(({"nodes": nodes, "micro_batch_size": micro}, 0.5) for micro in (1, 2) for nodes in (1, 2)),
        *(({"nodes": nodes, "micro_batch_size": 4}, 0.5) for nodes in (2, 4)),
    )
    scaling = scaling_efficiency(runs, "weak", base_gpus=4)
    assert efficiencies(scaling) == {
        ("micro batch 1", 4): 1,
        ("micro batch 1", 8): 1,
        ("micro batch 2", 4): 1,
        ("micro batch 2", 8): 1,
        ("micro batch 4", 8): None,
        ("micro batch 4", 16): None,
    }
    assert scaling.messages == (
        "micro batch 4: no valid run on the base of 4 GPUs, so no efficiency; there are runs on 8, 16",
    )


def test_efficiency_is_blind_to_flops(tmp_path: Path) -> None:
    runs = make_runs(tmp_path, ({"nodes": 1}, 0.5), ({"nodes": 2}, 0.625))
    columns = [column for column in runs if "tflops" in str(column) or column in ("mfu", "hfu")]
    assert efficiencies(scaling_efficiency(runs.drop(columns=columns), "weak")) == {("toy", 4): 1, ("toy", 8): 0.8}


# Rows of foreign logs, of which much is not known.


def foreign(number: int, **fields: Any) -> RunSummary:
    """A run of another system: 7 G parameters, 2,048 tokens a sequence, 4 sequences a GPU and step of 1 s."""
    row = RunSummary(
        folder=f"logs/{number}.log",
        run=f"{number}.log",
        source="megatron-lm",
        num_parameters=7 * 10**9,
        seq_len=2048,
        gpus=8 * number,
        nodes=number,
        micro_batch_size=4,
        gradient_accumulation_steps=1,
        global_batch_size=32 * number,
        tokens_per_s=65536.0 * number,
        tokens_per_s_per_gpu=8192.0,
        valid=True,
    )
    return replace(row, **fields)


def test_foreign_runs_scale_among_themselves() -> None:
    """Half the tokens a second a GPU on twice the GPUs; the model has no name, its size is its name."""
    runs = runs_frame([foreign(1), foreign(2, tokens_per_s=65536.0)])
    scaling = scaling_efficiency(runs, "weak")
    assert efficiencies(scaling) == {("7 B parameters", 8): 1, ("7 B parameters", 16): 0.5}
    assert scaling.messages == scaling.contradictions == ()


def test_systems_are_kept_apart(tmp_path: Path) -> None:
    """All that is known of them is equal."""
    runs = runs_frame([foreign(1, model="m"), foreign(2, model="m", source="torchtitan")])
    scaling = scaling_efficiency(runs, "weak")
    assert efficiencies(scaling) == {("m, megatron-lm", 8): None, ("m, torchtitan", 16): None}


def test_short_messages_name_four_runs_and_count_the_rest() -> None:
    """Five runs without GPUs, two without a sequence length; one of the five lacks both."""
    rows = [foreign(number, gpus=None, seq_len=None if number == 1 else 2048) for number in range(1, 6)]
    scaling = scaling_efficiency(runs_frame([*rows, foreign(6, seq_len=None)]), "weak")
    assert scaling.messages == (
        "seq_len, gpus not known, so compared with no other run: 1.log",
        "gpus not known, so compared with no other run: 2.log, 3.log, 4.log, 5.log",
        "seq_len not known, so compared with no other run: 6.log",
    )
    assert scaling.short_messages == (
        "gpus (of 5 runs), seq_len (of 2 runs) not known, so compared with no other run:"
        " 1.log, 2.log, 3.log, 4.log and 2 more",
    )


@pytest.mark.parametrize(
    ("kind", "unknown", "lacking"),
    [
        pytest.param("weak", ["num_parameters"], "model and num_parameters", id="model"),
        pytest.param("weak", ["seq_len"], "seq_len", id="sequence"),
        pytest.param("strong", ["global_batch_size"], "global_batch_size", id="batch"),
        pytest.param("weak", ["micro_batch_size"], "micro_batch_size", id="batch of a GPU"),
        pytest.param("weak", ["gpus"], "gpus", id="GPUs"),
        pytest.param("weak", ["num_parameters", "gpus"], "model and num_parameters, gpus", id="two things"),
    ],
)
def test_what_is_not_known_is_equal_to_nothing(kind: ScalingKind, unknown: list[str], lacking: str) -> None:
    nothing = dict.fromkeys(unknown)
    runs = runs_frame([foreign(1, **nothing), foreign(2, **nothing), foreign(4, global_batch_size=32)])
    scaling = scaling_efficiency(runs, kind)
    assert scaling.points["gpus"].tolist() == [32]
    assert scaling.messages[0] == f"{lacking} not known, so compared with no other run: 1.log, 2.log"
    assert scaling.short_messages == scaling.messages
    assert scaling.left_out == ()


def test_groups_of_which_one_value_is_not_known() -> None:
    runs = runs_frame([foreign(1, precision="bf16"), foreign(2), foreign(4, zero_stage=1), foreign(8, zero_stage=1)])
    scaling = scaling_efficiency(runs, "weak")
    assert sorted(set(scaling.points["group"])) == [
        "bf16",
        "precision not known, ZeRO 1",
        "precision not known, ZeRO not known",
    ]
    assert efficiencies(scaling)["precision not known, ZeRO 1", 64] == 1


# Printed TFLOP/s against tokens/s: 6 · 7e9 · 8,192 = 3.44e14 FLOP/s a GPU.


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param({"printed_tflops_per_gpu": 344.0, "printed_convention": "unknown"}, "", id="rough: agrees"),
        pytest.param({"printed_tflops_per_gpu": 458.7, "printed_convention": "hardware"}, "", id="rough: recomputed"),
        pytest.param(
            {"printed_tflops_per_gpu": 35.8, "printed_convention": "megatron"},
            "1.log: 35.8 TFLOP/s a GPU printed (megatron), but tokens/s x 6 FLOPs a parameter give 344.1; both cannot be"
            " true, and an efficiency is taken from tokens/s",
            id="rough: a tenth",
        ),
        pytest.param(
            {"printed_tflops_per_gpu": 2752.0, "printed_convention": "unknown"},
            "1.log: 2,752 TFLOP/s a GPU printed (convention not stated), but tokens/s x 6 FLOPs a parameter give 344.1;"
            " both cannot be true, and an efficiency is taken from tokens/s",
            id="rough: eight times",
        ),
        pytest.param(
            {"printed_tflops_per_gpu": 13.0, "printed_convention": "megatron", "megatron_tflops_per_gpu": 125.0},
            "1.log: 13 TFLOP/s a GPU printed (megatron), but tokens/s x megatron FLOPs a token give 125; both cannot be"
            " true, and an efficiency is taken from tokens/s",
            id="in its own convention",
        ),
        pytest.param(
            {"printed_tflops_per_gpu": 137.0, "printed_convention": "megatron", "megatron_tflops_per_gpu": 125.0},
            "",
            id="in its own convention: within a tenth",
        ),
        pytest.param(
            {
                "printed_tflops_per_gpu": 111.0,
                "printed_convention": "unknown",
                "model_tflops_per_gpu": 100.0,
                "hardware_tflops_per_gpu": 133.0,
            },
            "",
            id="between two conventions",
        ),
        pytest.param(
            {
                "printed_tflops_per_gpu": 150.0,
                "printed_convention": "unknown",
                "model_tflops_per_gpu": 100.0,
                "hardware_tflops_per_gpu": 133.0,
            },
            "1.log: 150 TFLOP/s a GPU printed (convention not stated), but tokens/s x any FLOPs a token give 100 to 133;"
            " both cannot be true, and an efficiency is taken from tokens/s",
            id="above all conventions",
        ),
        pytest.param({"printed_tflops_per_gpu": 35.8, "num_parameters": None, "model": "m"}, "", id="nothing known"),
        pytest.param({"printed_tflops_per_gpu": None}, "", id="nothing printed"),
    ],
)
def test_printed_rates_that_contradict_tokens_per_second(fields: dict[str, Any], text: str) -> None:
    scaling = scaling_efficiency(runs_frame([foreign(1, **fields)]), "weak")
    assert scaling.contradictions == ((text,) if text else ())


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_no_runs(kind: ScalingKind) -> None:
    scaling = scaling_efficiency(load_frames([]).runs, kind)
    assert scaling.points.empty
    assert scaling.messages == ()


def test_ranks_on_cpu_scale_like_gpus(tmp_path: Path) -> None:
    two, four = replace(CPU_NODE, gpus_per_node=2), replace(CPU_NODE, gpus_per_node=4)
    runs = make_runs(tmp_path, ({"nodes": 1, "hardware": two}, 0.5), ({"nodes": 1, "hardware": four}, 1.0))
    assert efficiencies(scaling_efficiency(runs, "weak")) == {("toy", 2): 1, ("toy", 4): 0.5}


def test_sizes_on_cpu_are_ranks(tmp_path: Path) -> None:
    scaling = scaling_efficiency(make_runs(tmp_path, ({"nodes": 1, "hardware": CPU_NODE}, 0.5)), "weak")
    assert "all runs have one size (2 ranks)" in scaling.messages[0]
