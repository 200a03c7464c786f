"""Tables of rows: the columns stay, predictions stand beside them, every slip is told with row, column and value."""

from __future__ import annotations

import random

import pytest

from hpctrain.errors import ConfigError
from hpctrain.plan.devices import DEVICES
from hpctrain.plan.stated.cells import COLUMNS, check_header, read_cells
from hpctrain.plan.stated.table import ADDED, plan_row, plan_rows

BLOOM = {
    "source": "BigScience (BLOOM tuning)",
    "model": "GPT 181B",
    "params_b": "181",
    "layers": "72",
    "hidden": "14336",
    "heads": "64",
    "ffn_hidden": "57344",
    "vocab": "250880",
    "seq_len": "2048",
    "gpu": "A100-SXM-80GB",
    "gpu_mem_gb": "80",
    "num_gpus": "384",
    "nodes": "48",
    "tp": "8",
    "pp": "12",
    "cp_sp": "1",
    "dp": "4",
    "zero_stage": "1",
    "offload_optimizer": "none",
    "offload_param": "none",
    "activation_ckpt": "full",
    "micro_batch_per_gpu": "4",
    "global_batch": "2048",
    "precision": "fp16",
    "tflops_convention": "hardware incl. recompute",
    "notes": "network 84 Gb/s a node",
}


def cells_of(**changes: str) -> dict[str, str]:
    return dict.fromkeys(COLUMNS, "") | BLOOM | changes


def answer_of(**changes: str) -> dict[str, str]:
    _, row = plan_rows(COLUMNS, [list(cells_of(**changes).values())], "rows.csv")
    return dict(zip([*COLUMNS, *ADDED], row, strict=True))


def test_a_published_row_of_many_degrees() -> None:
    answer = answer_of()
    # 120.4 s, 49 GB and 140 TFLOP/s were measured.
    assert float(answer["pred_step_time_s"]) > 0
    assert float(answer["pred_peak_mem_gb"]) == pytest.approx(49, rel=0.1)
    assert (answer["pred_fits"], answer["problem"], answer["pred_assumptions"]) == ("true", "", "")
    # 96·B·s·l·h²·(1 + s/6h + V/16lh) over the time and GPUs.
    flops = 96 * 2048 * 2048 * 72 * 14336**2 * (1 + 2048 / (6 * 14336) + 250880 / (16 * 72 * 14336))
    rate = flops / float(answer["pred_step_time_s"]) / 384 / 1e12
    assert float(answer["pred_tflops_per_gpu"]) == pytest.approx(rate, rel=1e-4)


def test_out_of_memory_is_foreseen_and_says_what_is_short() -> None:
    # With one pipeline rank each GPU holds an eighth of the model: 16 bytes of 23e9 parameters are 6 bytes and more too many.
    answer = answer_of(pp="1", dp="48", micro_batch_per_gpu="1", global_batch="2016")
    assert answer["pred_fits"] == "false"
    assert answer["problem"].startswith("rows.csv row 1: memory.gpu=")
    assert "a GPU has 79.20 GiB, short by" in answer["problem"]


def test_input_stays_as_it_is_with_further_columns_in_any_order() -> None:
    header = ["mine", *reversed(COLUMNS)]
    cells = cells_of(notes='a "quoted" remark, with a comma\nand a line') | {"mine": " kept "}
    first, row = plan_rows(header, [[cells[name] for name in header]], "rows.csv")
    assert first == [*header, *ADDED]
    assert row[: len(header)] == [cells[name] for name in header]
    assert row[len(header)] == answer_of(notes="")["pred_step_time_s"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": "many"}, "layers=many: is no number; a plain number such as 8, or an empty cell"),
        ({"layers": "inf"}, "layers=inf: is no finite number"),
        ({"params_b": "1e999"}, "params_b=1e999: is no finite number"),
        ({"hidden": "-5"}, "hidden=-5: must be a whole number from 1 to 1000000"),
        ({"num_gpus": "0"}, "num_gpus=0: must be a whole number from 1 to 10000000"),
        ({"dp": "3.5"}, "dp=3.5: must be a whole number from 1"),
        ({"seq_len": "1e30"}, "seq_len=1e30: must be a whole number from 1"),
        ({"params_b": "0"}, "params_b=0: must be above 0"),
        ({"peak_mem_gb": "-1"}, "peak_mem_gb=-1: must be above 0"),
        ({"zero_stage": "4"}, "zero_stage=4: is no ZeRO stage; one of 0, 1, 2, 3"),
        (
            {"activation_ckpt": "some"},
            "activation_ckpt=some: is no choice of this column; one of none, selective, full",
        ),
        ({"offload_param": "tape"}, "offload_param=tape: is no choice of this column; one of none, cpu, nvme"),
        ({"gpu": "TPU v5p"}, "gpu=TPU v5p with 80 GB: is not in the device table"),
        ({"nodes": "385"}, "nodes=385 is more than num_gpus=384"),
        ({"dp": "5"}, "tp x pp x sp x dp = 8 x 12 x 1 x 5 is not num_gpus=384"),
        ({"heads": "9"}, "model.num_heads=9: must divide model.hidden_size=14336"),
        ({"kv_heads": "48"}, "model.num_kv_heads=48: must divide model.num_heads=64"),
        ({"global_batch": "8"}, "global_batch=8 is less than micro_batch_per_gpu x dp = 4 x 4"),
        ({"model": "Mixtral-8x7B"}, "model=Mixtral-8x7B is sparse, the planner knows dense decoders"),
        ({"layers": "", "params_b": ""}, "does not state layers"),
        ({"model": "Grok-1 314B"}, "model=Grok-1 314B is sparse"),
        ({"model": "Qwen3-30B-A3B"}, "model=Qwen3-30B-A3B is sparse"),
        ({"seq_len": "2,048 or so"}, "seq_len=2,048 or so: is no number; a plain number such as 2048"),
    ],
)
def test_a_row_that_cannot_be_planned_says_why(changes: dict[str, str], message: str) -> None:
    answer = answer_of(**changes)
    assert answer["problem"].startswith(f"rows.csv row 1: {message}")
    assert [answer[name] for name in ADDED if name != "problem"] == [""] * 5


def test_what_an_unknown_gpu_leaves_to_be_told() -> None:
    """Its memory and, where the row states how much it has, the fit; a GPU that nobody knows has no speed."""
    known, unknown = answer_of(gpu=""), answer_of(gpu="H9000")
    assert unknown["problem"].startswith(
        "rows.csv row 1: gpu=H9000 with 80 GB: is not in the device table; known: A10-24GB"
    )
    assert (unknown["pred_peak_mem_gb"], unknown["pred_step_time_s"]) == (known["pred_peak_mem_gb"], "")
    assert (known["pred_fits"], unknown["pred_fits"]) == ("true", "true")
    assert known["problem"] == "rows.csv row 1: gpu: is not stated, so no step time can be told"
    small = answer_of(gpu="TITAN RTX", gpu_mem_gb="24")
    assert small["pred_fits"] == "false"
    assert "a GPU has 23.76 GiB, short by" in small["problem"]
    silent = answer_of(gpu="H9000", gpu_mem_gb="")
    assert (silent["pred_fits"], float(silent["pred_peak_mem_gb"]) > 40) == ("", True)


def test_an_unknown_convention_costs_the_rate_alone() -> None:
    answer = answer_of(tflops_convention="guessed")
    assert answer["problem"].startswith(
        "rows.csv row 1: tflops_convention=guessed: is no convention of the published files"
    )
    sure = answer_of()
    assert answer["pred_tflops_per_gpu"] == ""
    same = ("pred_step_time_s", "pred_peak_mem_gb", "pred_fits")
    assert [answer[name] for name in same] == [sure[name] for name in same]


@pytest.mark.parametrize("notes", ["0 virtual stages", "0 layers a virtual stage", "99999 virtual stages"])
def test_remarks_that_cannot_be_do_not_stop_a_table(notes: str) -> None:
    assert float(answer_of(notes=notes)["pred_step_time_s"]) > 0


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param(
            {"params_b": "18"},
            "params_b=18: layers=72 of hidden=14336 have 181 billion parameters; one of them is wrong, or the model is sparse",
            id="another-model",
        ),
        pytest.param({"precision": "int4"}, "precision=int4: is no data type of training; 16 bit is taken", id="type"),
        pytest.param({"precision": "fp8"}, "precision=fp8: A100-SXM-80GB has no fp8, and 16 bit is taken", id="no-fp8"),
        pytest.param(
            {"gpu_mem_gb": "40"},
            "gpu_mem_gb=40: gpu=A100-SXM-80GB has 80 GB, and that is taken; leave out the wrong one",
            id="memory",
        ),
        pytest.param(
            {"nodes": "36"},
            "nodes=36: does not divide num_gpus=384; all nodes are taken to be as full as the fullest",
            id="nodes",
        ),
    ],
)
def test_cells_that_go_against_each_other_are_told_beside_the_answer(changes: dict[str, str], told: str) -> None:
    answer = answer_of(**changes)
    assert answer["problem"] == f"rows.csv row 1: {told}"
    assert answer["pred_step_time_s"] and answer["pred_fits"] == "true"


def test_a_shape_from_the_parameters_is_not_held_against_them() -> None:
    assert answer_of(layers="", params_b="18")["problem"].count("params_b") == 0


def test_all_slips_of_a_row_at_once_and_no_other_row_suffers() -> None:
    bad, good = cells_of(layers="x", tp="0"), cells_of()
    _, first, second = plan_rows(COLUMNS, [list(bad.values()), list(good.values())], "rows.csv")
    problem = first[-2]
    assert problem.startswith("rows.csv row 1: layers=x: is no number")
    assert " | tp=0: must be a whole number" in problem
    assert second[-3:-1] == ["true", ""]


@pytest.mark.parametrize(
    ("cells", "told"), [(["a", "b"], 2), ([*cells_of().values(), "more"], 36)], ids=["short", "long"]
)
def test_rows_of_another_width(cells: list[str], told: int) -> None:
    _, row = plan_rows(COLUMNS, [cells], "rows.csv")
    assert len(row) == len(COLUMNS) + len(ADDED)
    assert row[:2] == cells[:2]
    assert row[-2] == f"rows.csv row 1: has {told} cells, the header has 35; what is too much is left out"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            [name for name in COLUMNS if name not in ("gpu", "gpu_mem_gb")],
            "2 columns are missing: gpu, gpu_mem_gb; needed are gpu or gpu_mem_gb; the header may have",
        ),
        (["hiden" if name == "hidden" else name for name in COLUMNS], "header=hidden: .*; nearest: hiden"),
        ([*COLUMNS, "tp"], "rows.csv header=tp: stands there more than once"),
        ([*COLUMNS, "pred_fits"], "rows.csv header=pred_fits: is a column that the plan writes"),
        (
            [name.upper() for name in COLUMNS],
            "35 columns are missing: .*; they stand there in capitals or between blanks",
        ),
        (
            [f" {name}" for name in COLUMNS],
            "35 columns are missing: .*; they stand there in capitals or between blanks",
        ),
        (
            ["a"],
            "^rows.csv header: the first line is no header, it has no column of a table: a; needed are layers or params_b"
            r" or model; gpu[^\n]*$",
        ),
    ],
    ids=["missing", "misspelt", "twice", "planned", "capitals", "blanks", "other"],
)
def test_another_header_is_refused(header: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(plan_rows(header, [], "rows.csv"))
    check_header(COLUMNS, "rows.csv", ADDED)


@pytest.mark.parametrize(
    ("changes", "fits", "doubt"),
    [
        ({"micro_batch_per_gpu": ""}, "", "fits with what was taken for micro_batch_per_gpu"),
        ({"seq_len": ""}, "", "fits with what was taken for seq_len"),
        ({"seq_len": "", "pp": "1", "dp": "48"}, "", "does not fit with what was taken for seq_len"),
        ({"micro_batch_per_gpu": "", "pp": "1", "dp": "48"}, "false", "memory.gpu="),
        (
            {"tp": "", "pp": "", "dp": "", "cp_sp": ""},
            "",
            "does not fit as data parallel; tp, pp and dp are not stated",
        ),
        (
            {"tp": "1", "pp": "1", "dp": "384", "zero_stage": "", "micro_batch_per_gpu": "1"},
            "",
            "fits with states sharded in stage 3, which the row does not state",
        ),
        (
            {"pp": "1", "dp": "48", "micro_batch_per_gpu": "1", "notes": "full fine-tuning"},
            "",
            "does not fit with Adam's states in fp32, and the row may have others",
        ),
        ({"pp": "1", "dp": "48", "micro_batch_per_gpu": "1", "notes": "fine-tuning, AdamW"}, "false", "memory.gpu="),
        ({"gpu": "", "gpu_mem_gb": ""}, "", "gpu: is not stated, so neither a step time nor a fit can be told"),
    ],
)
def test_a_fit_that_rests_on_a_choice_of_ours_is_left_open(changes: dict[str, str], fits: str, doubt: str) -> None:
    answer = answer_of(**changes)
    assert answer["pred_fits"] == fits
    assert doubt in answer["problem"]
    assert float(answer["pred_peak_mem_gb"]) > 0


def test_what_is_not_stated_is_chosen_and_told() -> None:
    answer = answer_of(tflops_convention="", activation_ckpt="", notes="")
    assert answer["pred_assumptions"].split("; ") == [
        "recomputation none",
        "network 84 Gb/s a node",
        "full recomputation, since it does not fit otherwise",
        "TFLOP/s as model flops, 6N + 12Lhs",
    ]
    assert float(answer["pred_tflops_per_gpu"]) > 0
    assert answer_of(source="somebody", tflops_convention="unknown")["pred_tflops_per_gpu"] == ""


@pytest.mark.parametrize("gpu", list(DEVICES))
def test_every_gpu_of_the_list_is_planned(gpu: str) -> None:
    answer = answer_of(gpu=gpu, gpu_mem_gb="", nodes="")
    assert float(answer["pred_step_time_s"]) > 0
    # The run took 49 GB on A100, a part of which its allocator could have given back.
    expected = {True: "true", False: "false"}[DEVICES[gpu].memory_gb >= 48] if DEVICES[gpu].memory_gb != 40 else ""
    assert answer["pred_fits"] == expected
    assert ("too near to the limit to be told" in answer["problem"]) == (expected == "")


def test_more_pieces_of_a_pipeline_rank_shorten_its_bubble() -> None:
    """They are chosen where the run does not fit otherwise; the bubble is 15 of 32 micro steps over the blocks of a rank."""
    row = {
        "model": "Llama-3.1-405B",
        "params_b": "",
        "layers": "128",
        "hidden": "16384",
        "heads": "128",
        "kv_heads": "8",
    }
    row |= {"ffn_hidden": "53248", "vocab": "128256", "seq_len": "8192", "gpu": "H100-SXM-80GB", "num_gpus": "8192"}
    row |= {"nodes": "1024", "tp": "8", "pp": "16", "dp": "64", "micro_batch_per_gpu": "1", "global_batch": "2048"}
    row |= {"activation_ckpt": "none", "precision": "bf16", "source": "somebody", "tflops_convention": "model flops"}
    stated, interleaved, plain = (
        float(answer_of(**row, notes=notes)["pred_step_time_s"]) for notes in ("8 virtual stages", "interleaved", "")
    )
    assert stated == pytest.approx(interleaved, rel=0.02)
    assert plain > 1.2 * interleaved


def test_nvme_counts_as_host_memory_and_says_so() -> None:
    row = {"pp": "1", "tp": "1", "dp": "384", "zero_stage": "3", "offload_optimizer": "nvme", "offload_param": "nvme"}
    nvme = answer_of(source="DeepSpeed", global_batch="1536", **row)
    assert "NVMe as fast as host memory" in nvme["pred_assumptions"]
    cpu = answer_of(
        source="DeepSpeed", global_batch="1536", **(row | {"offload_optimizer": "cpu", "offload_param": "cpu"})
    )
    assert nvme["pred_peak_mem_gb"] == cpu["pred_peak_mem_gb"]


def test_cells_are_read_with_their_types() -> None:
    values = read_cells({"layers": " 32 ", "gpu": "H100", "dp": "", "activation_ckpt": "Full", "mine": "x"})
    assert values == {"layers": 32.0, "gpu": "H100", "dp": None, "activation_ckpt": "full", "mine": "x"}


def test_no_cell_makes_it_stumble() -> None:
    """Random rows of plausible and odd cells: each is planned or says why."""
    odd = [
        "",
        "",
        "",
        "0",
        "1",
        "2",
        "3",
        "8",
        "64",
        "-1",
        "x",
        "1e9",
        "0.5",
        "none",
        "cpu",
        "full",
        "H100",
        "V100-32GB",
        "Llama",
    ]
    generator = random.Random(5)
    for number in range(1500):
        changes = {name: generator.choice(odd) for name in generator.sample(COLUMNS, generator.randint(1, 6))}
        answer = plan_row(cells_of(**changes), f"rows.csv row {number}")
        assert answer.problem or answer.step_time_s, changes
        assert answer.step_time_s is None or answer.step_time_s > 0, changes
        assert answer.peak_mem_gib is None or answer.peak_mem_gib > 0, changes
