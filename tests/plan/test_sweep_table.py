"""The table of a sweep: rows, scaling efficiency, what is compared with what, text and JSON."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from functools import cache

import pytest

from hpctrain.config.compose import compose_points
from hpctrain.config.schema import RunConfig
from hpctrain.launch.point_plans import plan_points
from hpctrain.plan.cost.cost import run_cost
from hpctrain.plan.cost.options import CostOptions, take_cost_options
from hpctrain.plan.render.sweep import render_sweep
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.plan.sweep.table import PlannedPoint, SweepTable, sweep_table, tokens_per_s_per_gpu
from hpctrain.units import gib

WEAK = "model=175b nodes=16,32,64,128 training.micro_batch_size=8"


@cache
def points_of(words: str) -> tuple[PlannedPoint, ...]:
    """The points of a sweep of ZeRO-3; ``nodes``, the last axis, is put into what was composed, which Hydra need not do again."""
    sizes = [word.removeprefix("nodes=") for word in words.split() if word.startswith("nodes=")]
    points = []
    others = [word for word in words.split() if not word.startswith("nodes=")]
    for point in compose_points(["parallelism=zero3", *others], multirun=True):
        for nodes in sizes[0].split(",") if sizes else ["1"]:
            config = dataclasses.replace(point.config, nodes=int(nodes))
            plan = build_run_plan(config, point.assumptions)
            points.append(PlannedPoint((*point.overrides[1:], *([f"nodes={nodes}"] if sizes else [])), config, plan))
    return tuple(points)


def test_the_points_are_those_that_hydra_composes() -> None:
    composed = compose_points(["parallelism=zero3", *WEAK.split()], multirun=True)
    assert [point.config for point in composed] == [point.config for point in points_of(WEAK)]
    overrides = [tuple(text.lstrip("+") for text in point.overrides[1:]) for point in composed]
    table = sweep_table(
        [PlannedPoint(p.overrides[1:], p.config, build_run_plan(p.config)) for p in composed], CostOptions()
    )
    assert [row.overrides for row in table.rows] == overrides
    assert table.fixed == ("model=175b", "training.micro_batch_size=8")


def table_of(words: str, asked: str = "", force: bool = False) -> SweepTable:
    options, _ = take_cost_options(["-m", *asked.split()])
    return sweep_table(points_of(words), options, force)


def test_a_row_says_what_its_plan_says() -> None:
    table = table_of(WEAK)
    for row, point in zip(table.rows, points_of(WEAK), strict=True):
        speed, batch = point.plan.prediction, point.plan.batch
        assert speed is not None
        assert (row.nodes, row.gpus) == (point.config.nodes, 8 * point.config.nodes)
        assert (row.micro_batch_size, row.gradient_accumulation_steps) == (8, 1)
        assert row.global_batch_size == batch.global_batch_size == 8 * row.gpus
        assert (row.step_time_s, row.step_time_low_s, row.step_time_high_s) == (
            speed.step_time_s,
            speed.low_s,
            speed.high_s,
        )
        assert (row.tokens_per_s, row.mfu, row.fits) == (speed.tokens_per_s, speed.mfu, True)
        assert row.tflops_per_gpu == pytest.approx(speed.tflops_per_gpu["model"])
        assert row.cost is None
    assert table.fixed == ("model=175b", "training.micro_batch_size=8")
    assert [row.swept for row in table.rows] == [{}] * 4


def test_weak_scaling_is_tokens_per_second_a_gpu_over_the_smallest_size() -> None:
    rows = table_of(WEAK).rows
    assert [row.scaling for row in rows] == ["weak"] * 4
    assert [row.base_nodes for row in rows] == [16] * 4
    first = rows[0]
    assert first.tokens_per_s is not None
    for row in rows:
        assert row.tokens_per_s is not None
        assert row.efficiency == pytest.approx(row.tokens_per_s / first.tokens_per_s * first.gpus / row.gpus)
    efficiencies = [row.efficiency or 0 for row in rows]
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert efficiencies[0] == 1.0
    assert 0.9 < efficiencies[-1] < 1.0


def test_strong_scaling_keeps_the_global_batch_whatever_the_split() -> None:
    rows = table_of("model=175b nodes=32,16,64 training.global_batch_size=4096").rows
    assert [row.scaling for row in rows] == ["strong"] * 3
    assert {row.global_batch_size for row in rows} == {4096}
    assert [row.base_nodes for row in rows] == [16] * 3
    assert rows[1].efficiency == 1.0
    # Equal work: the efficiency is the speed-up over the growth, t16 x 16 / (t32 x 32).
    assert rows[0].step_time_s is not None
    assert rows[1].step_time_s is not None
    assert rows[0].efficiency == pytest.approx(rows[1].step_time_s * 16 / (rows[0].step_time_s * 32))


@pytest.mark.parametrize(
    "other",
    [
        "hardware.inter_node_gb_per_s=100,200",
        "training.micro_batch_size=4,8",
        "training.seq_len=1024,2048",
        "model=175b,530b",
        "parallelism=zero3,zero3_offload",
        "training.global_batch_size=512,1024",
    ],
)
def test_points_that_differ_in_anything_else_are_not_compared(other: str) -> None:
    model = "" if other.startswith("model=") else "model=175b "
    batch = "" if "batch_size" in other else "training.micro_batch_size=2 "
    # Stated, since the points would choose different ones.
    rows = table_of(f"{model}{batch}{other} training.activation_checkpointing=full nodes=32,64").rows
    assert len(rows) == 4
    assert [(row.nodes, row.base_nodes) for row in rows] == [(32, 32), (64, 32)] * 2
    assert [row.efficiency for row in rows[::2]] == [1.0, 1.0]
    assert rows[1].efficiency != rows[3].efficiency
    assert [len(row.swept) for row in rows] == [1] * 4


def test_points_for_which_the_plan_chose_differently_are_not_compared_and_that_is_told() -> None:
    table = table_of("model=175b nodes=16,32,64")
    assert [row.micro_batch_size for row in table.rows] == [6, 8, 8]
    assert [row.base_nodes for row in table.rows] == [None, 32, 32]
    (note,) = [note for note in table.notes if note.startswith("not compared")]
    assert "nodes=16 with micro batch 6, checkpointing full; nodes=32,64 with micro batch 8" in note
    assert "state training.micro_batch_size" in note


@cache
def chosen_points(words: str) -> tuple[PlannedPoint, ...]:
    composed = compose_points(["parallelism=auto", *words.split()], multirun=True)
    return tuple(PlannedPoint(point.overrides, point.config, plan) for point, plan in plan_points(composed))


def test_chosen_forms_are_named_and_points_of_different_ones_are_not_compared() -> None:
    """On one node 13B takes another form than on eight and sixteen, which take the same."""
    points = chosen_points("model=13b nodes=1,8,16")
    forms = [(point.plan.parallelism_name, point.plan.batch.micro_batch_size) for point in points]
    assert forms[0] != forms[1] == forms[2], "the case shows nothing: choose other nodes"
    table = sweep_table(points, CostOptions())
    assert [row.base_nodes for row in table.rows] == [None, 8, 8]
    (note,) = [note for note in table.notes if note.startswith("not compared")]
    assert f"nodes=1 with {forms[0][0]}, micro batch {forms[0][1]}" in note
    assert f"nodes=8,16 with {forms[1][0]}, micro batch {forms[1][1]}" in note
    assert not any("parallelism chosen" in note for note in table.notes), "a row shows it"
    header, *lines = render_sweep(table).split("\n\n")[1].split("\n")
    assert header.split()[:4] == ["nodes", "GPUs", "form", "recompute"]
    assert [line.split()[2] for line in lines] == [form for form, _ in forms]


def test_neither_the_runs_name_nor_its_folder_keeps_points_apart() -> None:
    named = [
        dataclasses.replace(
            point, config=dataclasses.replace(point.config, run=RunConfig(root=str(number), name=str(number)))
        )
        for number, point in enumerate(points_of(WEAK))
    ]
    assert [row.base_nodes for row in sweep_table(named, CostOptions()).rows] == [16] * 4


def test_points_with_other_checkpointing_are_not_compared() -> None:
    first, *others = points_of(WEAK)
    changed = dataclasses.replace(first, plan=dataclasses.replace(first.plan, activation_checkpointing="none"))
    table = sweep_table([changed, *others], CostOptions())
    assert [row.base_nodes for row in table.rows] == [None, 32, 32, 32]
    assert "nodes=16 with micro batch 8, checkpointing none; nodes=32,64,128 with" in "\n".join(table.notes)


@pytest.mark.parametrize("words", ["model=175b nodes=16", "model=175b nodes=16 training.seed=1,2"])
def test_one_size_alone_has_no_efficiency(words: str) -> None:
    assert {(row.efficiency, row.base_nodes) for row in table_of(words).rows} == {(None, None)}


def test_what_does_not_fit_has_a_speed_but_neither_efficiency_nor_cost() -> None:
    words = "model=530b nodes=4,64,128 training.micro_batch_size=4"
    table = table_of(words, "--tokens 1B")
    short, *others = table.rows
    assert not short.fits
    assert short.memory.startswith("GPU ")
    assert short.memory.endswith(" GiB short")
    assert short.step_time_s is not None
    assert (short.efficiency, short.cost, short.cost_gap) == (
        None,
        None,
        "the plan cannot run as it is (memory.gpu)",
    )
    assert [row.base_nodes for row in others] == [64, 64]
    assert all(row.cost for row in others)
    forced = table_of(words, "--tokens 1B", force=True).rows
    assert [row.base_nodes for row in forced] == [4] * 3
    assert all(row.cost for row in forced)


def test_a_point_that_breaks_a_rule_has_no_speed() -> None:
    table = table_of("model=175b nodes=16,32 training.micro_batch_size=1 training.global_batch_size=128")
    assert [row.step_time_s is None for row in table.rows] == [False, True]
    derived = (
        "fits",
        "tflops_per_gpu",
        "parallelism",
        "micro_batch_size",
        "global_batch_size",
        "activation_checkpointing",
    )
    assert [name for name in derived if getattr(table.rows[1], name) is not None] == []
    text = render_sweep(table)
    assert "  refused\n" in text
    assert (
        "problems\n  model=175b training.micro_batch_size=1 training.global_batch_size=128 nodes=32: training" in text
    )


def test_rates_count_in_the_convention_that_was_asked_for() -> None:
    megatron, palm = table_of(WEAK, "--convention megatron").rows[0], table_of(WEAK, "--convention palm").rows[0]
    (first, *_) = points_of(WEAK)
    assert first.plan.prediction is not None
    assert megatron.tflops_per_gpu == pytest.approx(first.plan.prediction.tflops_per_gpu["megatron"])
    # 6N + 12 L h s FLOPs a token.
    per_token = 6 * first.plan.num_parameters + 12 * 96 * 12288 * 2048
    assert palm.tflops_per_gpu == pytest.approx(per_token * tokens_per_s_per_gpu(first.plan) / 1e12)
    assert (megatron.convention, palm.convention) == ("megatron", "palm")


def test_processors_have_no_speed_and_the_note_says_why() -> None:
    table = table_of("model=tiny cluster=local training.seq_len=64,128", "--tokens 1B")
    assert [row.step_time_s for row in table.rows] == [None, None]
    assert [row.swept for row in table.rows] == [{"training.seq_len": "64"}, {"training.seq_len": "128"}]
    assert [row.memory for row in table.rows] == ["capacity not stated"] * 2
    assert any(note.startswith("no prediction: hardware=cpu") for note in table.notes)
    with pytest.raises(ValueError, match="has no prediction"):
        tokens_per_s_per_gpu(points_of("model=tiny cluster=local training.seq_len=64,128")[0].plan)


@pytest.mark.parametrize(("host_gib", "expected"), [(100, "fits, {free} free"), (0.5, "host {short} short")])
def test_memory_of_ranks_on_processors_is_the_hosts(host_gib: float, expected: str) -> None:
    words = f"model=tiny cluster=local training.micro_batch_size=1 hardware.host_memory_gib={host_gib}"
    (row,) = table_of(words).rows
    needed = points_of(words)[0].plan.memory.host_bytes_per_node
    assert row.memory == expected.format(free=gib(host_gib * 2**30 - needed), short=gib(needed - host_gib * 2**30))
    assert row.fits == expected.startswith("fits")


COSTED = "--tokens 300B --price 2.10USD --mtbf-hours 20000 --checkpoint-write-s 60 --restart-s 600"


def test_the_cost_of_a_row_is_that_of_its_plan_and_more_nodes_cost_more() -> None:
    table = table_of(WEAK, COSTED)
    options, _ = take_cost_options(COSTED.split())
    for row, point in zip(table.rows, points_of(WEAK), strict=True):
        assert row.cost == run_cost(point.plan, point.config.hardware, options)[0]
    hours = [row.cost.gpu_hours.value for row in table.rows if row.cost]
    seconds = [row.cost.elapsed_s.value for row in table.rows if row.cost and row.cost.elapsed_s]
    assert len(hours) == len(seconds) == 4
    assert hours == sorted(hours)
    assert seconds == sorted(seconds, reverse=True)


def test_the_text_is_aligned_and_says_how_to_read_it() -> None:
    text = render_sweep(table_of(WEAK, COSTED))
    title, table, legend = text.rstrip("\n").split("\n\n")
    assert title == "sweep of 4 points: model=175b training.micro_batch_size=8"
    header, *lines = table.split("\n")
    assert (
        header.split()
        == (
            "nodes GPUs batch = micro x data parallel x accum. step s between tokens/s TFLOP/s/GPU MFU scaling efficiency time"
            " GPU-hours money memory"
        ).split()
    )
    for column in ("nodes", "accum.", "between", "tokens/s", "TFLOP/s/GPU", "efficiency", "GPU-hours", "money"):
        end = header.index(column) + len(column)
        assert all(line[end - 1] != " " and line[end : end + 2] == "  " for line in lines), column
    assert "8,192 = 8 x 1,024 x 1" in lines[3]
    assert "% of 16" in lines[3]
    assert " M USD  fits, " in lines[3]
    assert "in the convention model (forward and backward once, dense attention); all speeds are predictions" in legend
    assert "weak scaling: each GPU keeps its batch" in legend
    assert "strong scaling" not in legend
    assert "for 300 B tokens in whole steps, with saving, lost work and restarts" in legend
    assert "fitted on" in legend


def test_the_text_of_strong_scaling_explains_more_than_a_hundred_percent() -> None:
    text = render_sweep(table_of("model=175b nodes=8,32 training.global_batch_size=2048", "--tokens 1B"))
    assert "strong scaling: the global batch stays" in text
    assert "above 100 %" in text
    assert "tokens in whole steps, of the steps alone" in text
    assert "note: cost: money: hardware=ndm_a100_v4 states no price_per_gpu_hour" in text


def test_the_text_says_where_only_some_points_get_on_between_failures() -> None:
    asked = "--tokens 1B --mtbf-hours 2 --checkpoint-write-s 60 --restart-s 600"
    table = table_of("model=175b nodes=8,128 training.micro_batch_size=1", asked)
    assert [row.cost is not None and row.cost.elapsed_s is not None for row in table.rows] == [True, False]
    assert "where a point gets on between failures, else of the steps alone" in render_sweep(table)


def test_long_times_have_no_powers_of_ten() -> None:
    lines = render_sweep(table_of("model=2t nodes=8 training.global_batch_size=2048")).split("\n")
    assert "e+0" not in lines[3]
    assert "7,7" in lines[3]


def test_columns_of_swept_keys_are_short_where_that_is_clear() -> None:
    clear = render_sweep(table_of("model=tiny cluster=local training.seq_len=64,128"))
    assert clear.split("\n")[2].split()[0] == "seq_len"
    alike = render_sweep(table_of("model=tiny cluster=local training.name=a,b data.name=c,d"))
    assert alike.split("\n")[2].split()[:2] == ["training.name", "data.name"]


def test_the_table_is_json() -> None:
    text = json.dumps(dataclasses.asdict(table_of(WEAK, COSTED)), allow_nan=False)
    rows = json.loads(text)["rows"]
    assert [row["nodes"] for row in rows] == [16, 32, 64, 128]
    assert rows[0]["cost"]["money"]["low"] < rows[0]["cost"]["money"]["value"] < rows[0]["cost"]["money"]["high"]
    assert rows[0]["overrides"] == ["model=175b", "training.micro_batch_size=8", "nodes=16"]


def test_an_unasked_cost_is_not_computed() -> None:
    assert sweep_table(points_of(WEAK), CostOptions(convention="megatron")).rows[0].cost is None


def test_the_table_loads_nothing_heavy() -> None:
    code = (
        "import sys, hpctrain.plan.render.sweep, hpctrain.plan.render.cost;"
        "print([name for name in ('numpy', 'pandas', 'torch', 'deepspeed', 'hydra', 'yaml') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


def test_a_launch_check_has_neither_speed_nor_memory_nor_cost() -> None:
    (row,) = table_of("model=13b nodes=4 training=launch_check", "--tokens 1B").rows
    assert (row.step_time_s, row.fits, row.global_batch_size, row.cost) == (None, None, None, None)
    assert row.memory == "no model"
    assert row.cost_gap == "training=launch_check trains nothing, so that there are no steps to be paid"


def test_a_narrow_terminal_has_the_table_in_pieces() -> None:
    table = table_of(WEAK, COSTED)
    wide, narrow = render_sweep(table), render_sweep(table, 80)
    assert render_sweep(table, 300) == wide
    (whole,) = (part for part in wide.split("\n\n") if "step s" in part)
    pieces = [part for part in narrow.split("\n\n") if part.lstrip().startswith("nodes")]
    assert len(pieces) > 1
    assert max(len(line) for piece in pieces for line in piece.split("\n")) <= 80
    # Nothing is lost, and each line says which point it is of.
    for number, line in enumerate(whole.split("\n")):
        own = [piece.split("\n")[number].split() for piece in pieces]
        assert len({tuple(words[:2]) for words in own}) == 1
        assert [*own[0][:2], *(word for words in own for word in words[2:])] == line.split()
