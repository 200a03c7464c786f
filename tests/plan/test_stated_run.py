"""Rows that leave things out: what is derived, what is chosen, what is refused."""

from __future__ import annotations

import pytest

from hpctrain.errors import ConfigError
from hpctrain.plan.speed.step_parts import step_parts
from hpctrain.plan.stated.memory_choice import choose_memory
from hpctrain.plan.stated.run import ASSUMED_VOCAB, derive, row_shape, stated_run
from hpctrain.plan.stated.trainer import find_trainer

Row = dict[str, str | float | None]
ROW: Row = {
    "source": "somebody",
    "model": "Llama-3-8B",
    "params_b": 8.03,
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "ffn_hidden": 14336,
    "vocab": 128256,
    "seq_len": 8192,
    "gpu": "H100-SXM-80GB",
    "num_gpus": 64,
    "tp": 2,
    "pp": 1,
    "zero_stage": 3,
    "activation_ckpt": "full",
    "offload_optimizer": "none",
    "offload_param": "none",
    "micro_batch_per_gpu": 1,
    "global_batch": 128,
    "precision": "bf16",
}


def without(*names: str) -> Row:
    return {name: None if name in names else value for name, value in ROW.items()}


def test_what_is_derived_is_no_choice() -> None:
    run = stated_run(ROW)
    # 64 GPUs over two tensor ranks; 128 sequences over 32 replicas of one.
    assert (run.setup.data_degree, run.setup.num_micro_steps) == (32, 4)
    assert run.assumptions == ("network 3200 Gb/s a node",)
    shape = run.setup.shape
    assert (shape.head_dim, shape.architecture, shape.tie_embeddings) == (128, "llama", False)


@pytest.mark.parametrize(
    ("missing", "chosen", "values"),
    [
        (("seq_len",), "sequence 2048", {"seq_len": 2048}),
        (("global_batch",), "no accumulation", {"global_batch": 32}),
        (("num_gpus",), "2 GPUs from the degrees", {"num_gpus": 2}),
        # 8.03e9 = 12·h²·h/128 and h in steps of 128: 4,352 (the root is 4,407); 28 blocks of 4·h² + 3·h·14336 and a table.
        (("layers", "hidden"), "layers 28 and hidden 4352 from params_b", {"hidden": 4352, "layers": 28}),
        # Blocks of 4·4096² + 3·4096·14336 = 243e6 beside a table of 525e6.
        (("layers",), "layers 31 from params_b", {"layers": 31}),
    ],
    ids=["sequence", "global-batch", "gpus", "shape", "layers"],
)
def test_what_is_chosen_is_told(missing: tuple[str, ...], chosen: str, values: dict[str, int]) -> None:
    full, told = derive(without(*missing) | {"model": "Llama-like 8B"})
    assert told == (chosen,)
    assert {name: full[name] for name in values} == values


def test_a_width_of_ours_is_one_that_the_heads_divide() -> None:
    # 4,407 for 8.03e9 parameters: 4,352 is no multiple of 40 heads, and 640 = 16 x 40 seven times is the nearest.
    row = without("layers", "hidden") | {"model": "Llama-like 8B", "heads": 40, "kv_heads": 8}
    assert derive(row)[0]["hidden"] == 4480
    assert stated_run(row).setup.shape.head_dim == 112


def test_a_batch_that_micro_steps_do_not_divide() -> None:
    run = stated_run(ROW | {"global_batch": 130})
    assert run.setup.num_micro_steps == 4
    assert "micro steps rounded to 4, since 1 x 32 does not divide 130" in run.assumptions


@pytest.mark.parametrize(
    ("precision", "rate", "num_bytes"),
    # Peaks of the H100 without tensor cores and with TF32, of which 85 % are taken.
    [("fp32", 0.85 * 67.0, 4), ("tf32", 0.85 * 494.5, 4), ("bf16", 794.5, 2)],
)
def test_32_bit_has_its_own_rate_and_width(precision: str, rate: float, num_bytes: int) -> None:
    run = stated_run(ROW | {"precision": precision})
    assert run.machine is not None
    assert run.machine.achievable_tflops == pytest.approx(rate)
    assert run.setup.bytes_per_element == num_bytes


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (without("layers", "params_b") | {"model": "Llama-like"}, "does not state layers"),
        (without("num_gpus", "tp", "pp", "dp"), "does not state num_gpus"),
        (ROW | {"dp": 16}, r"tp x pp x sp x dp = 2 x 1 x 1 x 16 is not num_gpus=64"),
        (ROW | {"tp": 3}, r"tp x pp x sp x dp = 3 x 1 x 1 x 21 is not num_gpus=64"),
        (ROW | {"pp": 32, "tp": 1, "layers": 16}, "pp=32 is more than layers=16"),
        (ROW | {"global_batch": 16}, "global_batch=16 is less than micro_batch_per_gpu x dp = 1 x 32"),
        (ROW | {"notes": "QLoRA on one GPU"}, "trains adapters; the planner knows runs that train all parameters"),
        (ROW | {"gpu": "H9000"}, "gpu=H9000: is not in the device table"),
    ],
    ids=["shape", "gpus", "degrees", "tensor", "pipeline", "batch", "adapters", "gpu"],
)
def test_what_cannot_be_planned(row: Row, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        stated_run(row)


def test_a_gate_that_the_name_does_not_tell() -> None:
    # 32 blocks of 2·(4096² + 4096·1024) + 3·4096·14336, two tables of 128,256: 8.03e9.
    shape, _ = row_shape(ROW | {"model": "house model"})
    assert (shape.architecture, shape.tie_embeddings) == ("llama", False)
    assert shape.num_parameters == pytest.approx(8.03e9, rel=1e-3)
    plain, _ = row_shape({"model": "GPT", "layers": 32, "hidden": 4096, "ffn_hidden": 16384, "params_b": 6.65})
    assert plain.architecture == "gpt"


def test_without_a_gpu_there_is_memory_and_nothing_else() -> None:
    row = without("gpu")
    run = stated_run(row)
    assert (run.machine, run.device, run.capacity_bytes) == (None, None, None)
    choice = choose_memory(run, row)
    assert choice.fits is None
    assert choice.peak_bytes == choose_memory(stated_run(ROW), ROW).peak_bytes


@pytest.mark.parametrize("words", ["FPDT (AC, OC, ZeRO-3)", "ALST on 8 GPUs", "tiled MLP"])
def test_a_sequence_in_pieces_is_refused(words: str) -> None:
    with pytest.raises(ConfigError, match="computes a sequence in pieces, one after the other"):
        stated_run(ROW | {"notes": words})


@pytest.mark.parametrize("changes", [{"model": "GPT 22B single layer"}, {"notes": "PER-LAYER time: forward 7.7 ms"}])
def test_a_layer_alone_is_refused(changes: Row) -> None:
    with pytest.raises(ConfigError, match="is the time of a layer alone; the planner knows whole steps"):
        stated_run(ROW | changes)


def test_a_pipeline_of_fsdp_cuts_the_batch_of_a_step() -> None:
    row = ROW | {"source": "torchtitan", "pp": 4, "num_gpus": 32, "micro_batch_per_gpu": 8, "global_batch": None}
    setup = stated_run(row).setup
    assert (setup.micro_batch_size, setup.num_micro_steps) == (2, 4)
    megatron = stated_run(row | {"source": "Megatron-Core"}).setup
    assert (megatron.micro_batch_size, megatron.num_micro_steps) == (8, 1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": "Llama-2-7B"}, 32000),
        ({"model": "Llama-3.1-405B"}, 128256),
        ({"model": "GPT 200B", "source": "BigScience (BLOOM tuning)"}, 250880),
        ({"model": "GPT 200B"}, ASSUMED_VOCAB),
        ({"model": "Llama-3-8B", "source": "Ulysses-Offload / FPDT blog"}, ASSUMED_VOCAB),
        ({"model": "Llama-2-7B", "vocab": 50000}, 50000),
    ],
)
def test_the_vocabulary_of_a_known_model(changes: Row, expected: int) -> None:
    row = {"layers": 32, "hidden": 4096, "heads": 32} | changes
    assert row_shape(row)[0].vocab_size == expected


LARGE: Row = ROW | {
    "model": "Llama-3-70B",
    "params_b": 70.6,
    "layers": 80,
    "hidden": 8192,
    "heads": 64,
    "ffn_hidden": 28672,
}


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({}, ()),
        ({"activation_ckpt": None}, ("selective recomputation",)),
        ({"activation_ckpt": None, "cp_sp": 1, "micro_batch_per_gpu": 2}, ("full recomputation",)),
        ({"zero_stage": None, "tp": 8}, ("states sharded in stage 1",)),
        ({"zero_stage": None, "tp": 1}, ("states sharded in stage 3",)),
        # Tensor ranks do not keep states from being sharded, and ranks of a sequence share them too.
        ({"zero_stage": None, "num_gpus": 128}, ("states sharded in stage 3",)),
        ({"zero_stage": None, "tp": 1, "num_gpus": 64, "cp_sp": 64, "seq_len": 65536}, ("states sharded in stage 3",)),
        (
            {"offload_optimizer": None, "num_gpus": 8},
            ("block inputs split over tensor ranks", "optimizer on the host"),
        ),
        ({"offload_optimizer": None, "tp": 1, "num_gpus": 8}, ("optimizer on the host",)),
        (
            {"offload_optimizer": None, "offload_param": None, "tp": 1, "num_gpus": 8, "micro_batch_per_gpu": 3},
            ("optimizer on the host", "block inputs on the host"),
        ),
    ],
)
def test_the_least_change_that_fits(changes: Row, chosen: tuple[str, ...]) -> None:
    row = LARGE | {"global_batch": None} | changes
    choice = choose_memory(stated_run(row), row)
    assert (choice.chosen, choice.fits) == (chosen, True)


def test_the_fastest_micro_batch_that_fits() -> None:
    """Of all micro batches tried one by one. Megatron-LM (arXiv 2104.04473, table 1) ran this model with 8."""
    row: Row = {
        "source": "Megatron-LM SC21",
        "model": "GPT 18.4B",
        "layers": 40,
        "hidden": 6144,
        "heads": 48,
        "vocab": 51200,
        "seq_len": 2048,
        "gpu": "A100-SXM-80GB",
        "num_gpus": 256,
        "tp": 8,
        "pp": 1,
        "zero_stage": 0,
        "activation_ckpt": "full",
        "global_batch": 1024,
        "precision": "fp16",
    }
    choice = choose_memory(stated_run(row), row)
    times_s = {}
    for size in (1, 2, 4, 8, 16, 32):
        run = stated_run(row | {"micro_batch_per_gpu": size})
        stated_choice = choose_memory(run, row | {"micro_batch_per_gpu": size})
        if stated_choice.fits and not stated_choice.too_near and run.machine is not None:
            times_s[size] = sum(step_parts(run.setup, run.machine, run.trainer.software).values())
    assert set(times_s) == {1, 2, 4, 8, 16}
    fastest = min(times_s, key=lambda size: times_s[size])
    assert choice.setup.micro_batch_size == fastest >= 8
    assert choice.setup.num_micro_steps == 32 // fastest
    assert (choice.micro_batch_chosen, choice.fits) == (True, True)
    without_total = row | {"global_batch": None}
    assert choose_memory(stated_run(without_total), without_total).setup.micro_batch_size == 1
    without_gpu = row | {"gpu": None}
    assert choose_memory(stated_run(without_gpu), without_gpu).setup.micro_batch_size == 1
    stated = row | {"micro_batch_per_gpu": 2}
    assert not choose_memory(stated_run(stated), stated).micro_batch_chosen


@pytest.mark.parametrize(
    ("notes", "gb_per_s"),
    [
        ("network 84 Gb/s a node by a measured all-reduce", 10.5),
        ("HSDP; 400 Gbps interconnect per node (the same scripts)", 50),
        ("Selene DGX A100, 8x 200 Gb/s HDR per node", 200),
        ("1.7 TB host RAM, 200 Gb/s HDR InfiniBand per GPU", 200),
        ("about 660 Gbps measured", 400),
        ("network 0 Gb/s a node", 400),
        ("12.5 Gb/s a node", 1.5625),
        ("1,600 Gb/s per node", 200),
        ("EFA, 3.2 Tbps per instance", 400),
        ("8x200 Gb/s/node", 200),
    ],
)
def test_the_network_that_remarks_tell(notes: str, gb_per_s: float) -> None:
    machine = stated_run(ROW | {"notes": notes}).machine
    assert machine is not None
    assert machine.network_gb_per_s == gb_per_s


@pytest.mark.parametrize(
    ("notes", "in_node", "on_host"),
    [
        ("HSDP; 8 ranks", True, False),
        ("FSDP; HSDP = sharded in node", False, False),
        ("--checkpoint-in-cpu on (IDs 1-11)", False, True),
        ("activation checkpoints on the host", False, True),
        ("--checkpoint-in-cpu off", False, False),
        ("DeepSpeed, cpu_checkpointing: true", False, True),
        ("cpu_checkpointing = false", False, False),
        ("with activation offloading", False, True),
        ("no activation offload", False, False),
    ],
)
def test_remarks_on_sharding_and_block_inputs(notes: str, in_node: bool, on_host: bool) -> None:
    setup = stated_run(ROW | {"notes": notes}).setup
    assert (setup.shard_within_node, setup.offload_activations) == (in_node, on_host)


@pytest.mark.parametrize(
    ("notes", "stage", "near", "weights", "gradients"),
    [
        ("ZeRO-3 baseline", 3, 1, False, False),
        ("ZeRO++", 3, 4, True, True),
        ("ZeRO++ (qwZ+hpZ)", 3, 4, True, False),
        ("hpZ alone", 3, 4, False, False),
        ("against ZeRO++", 2, 1, False, False),
    ],
)
def test_parts_of_zero_plus_plus(notes: str, stage: int, near: int, weights: bool, gradients: bool) -> None:
    setup = stated_run(ROW | {"notes": notes, "zero_stage": stage}).setup
    # Of a node's 8 GPUs every second holds the same half of a tensor-parallel pair.
    assert (setup.second_partition_ranks, setup.quantized_weights, setup.quantized_gradients) == (
        near,
        weights,
        gradients,
    )


def test_what_is_stated_is_not_changed() -> None:
    row = LARGE | {"num_gpus": 8, "global_batch": None}
    run = stated_run(row)
    choice = choose_memory(run, row)
    assert (choice.fits, choice.chosen, choice.setup) == (False, (), run.setup)


def test_a_flag_that_names_transformers_is_not_hugging_face() -> None:
    flag, library = (
        find_trainer("DeepSpeed", words, "fp16", 3).habits for words in ("--split-transformers", "transformers")
    )
    assert (flag.bucket_elements, library.bucket_elements) == (5e8, None)


def test_shards_of_fsdp_can_wait_on_the_host() -> None:
    """16 bytes of 70e9 parameters over 8 GPUs are 140 GB: it fits only with the host, and only where the row leaves that open."""
    row = LARGE | {
        "source": "FSDP",
        "num_gpus": 8,
        "global_batch": None,
        "offload_optimizer": None,
        "offload_param": None,
    }
    choice = choose_memory(stated_run(row), row)
    assert (choice.fits, choice.chosen) == (True, ("parameters and optimizer on the host",))
    # 80 blocks of 2·8192·8192 bytes over two tensor ranks are 5.4 GB a sequence.
    many = choose_memory(stated_run(row | {"micro_batch_per_gpu": 7}), row | {"micro_batch_per_gpu": 7})
    assert (many.fits, many.chosen) == (True, ("parameters and optimizer on the host", "block inputs on the host"))
    stated = row | {"offload_optimizer": "none", "offload_param": "none"}
    assert choose_memory(stated_run(stated), stated).fits is False


def test_an_interleaved_schedule_without_a_number_is_no_ground_to_refuse() -> None:
    """With two pieces a rank of 16 the first holds 23.5 micro batches, with many pieces hardly more than 16."""
    row = LARGE | {
        "source": "Megatron-LM",
        "zero_stage": 1,
        "num_gpus": 256,
        "tp": 4,
        "pp": 16,
        "activation_ckpt": "none",
    }
    row |= {"seq_len": 10240, "micro_batch_per_gpu": 1, "global_batch": 256}
    one_piece, open_number, two_pieces = (
        choose_memory(stated_run(row | {"notes": notes}), row | {"notes": notes})
        for notes in ("", "interleaved", "interleaved, 2 virtual stages")
    )
    assert (one_piece.fits, one_piece.chosen) == (True, ())
    assert (open_number.fits, open_number.chosen) == (True, ("more virtual stages",))
    assert (two_pieces.fits, two_pieces.too_near) == (False, False)


def test_half_of_the_products_or_all_of_the_block() -> None:
    """Which blocks are recomputed may be chosen, but torchtitan's two kinds are what they are."""
    row = LARGE | {"source": "FSDP", "activation_ckpt": "selective", "global_batch": None, "micro_batch_per_gpu": 3}
    assert choose_memory(stated_run(row), row).chosen == ("full recomputation",)
    fixed = row | {"source": "torchtitan"}
    assert (choose_memory(stated_run(fixed), fixed).fits, choose_memory(stated_run(fixed), fixed).chosen) == (False, ())


def test_block_inputs_of_the_first_zero_3_wait_on_the_host() -> None:
    """BigScience's 52B: its columns say that nothing is offloaded, which means states; the scripts of that software offload block
    inputs."""
    row: Row = {"source": "DeepSpeed", "layers": 64, "hidden": 8192, "heads": 32, "vocab": 50257, "seq_len": 1024}
    row |= {"gpu": "V100-SXM2-32GB", "num_gpus": 64, "tp": 1, "pp": 1, "zero_stage": 3, "activation_ckpt": "full"}
    row |= {"micro_batch_per_gpu": 16, "precision": "fp16", "offload_optimizer": "none", "offload_param": "none"}
    assert choose_memory(stated_run(row), row).fits is False
    named = row | {"notes": "Megatron v1.1.5-ZeRO3 (TP only)"}
    choice = choose_memory(stated_run(named), named)
    assert (choice.fits, choice.chosen, choice.setup.offload_activations) == (True, (), True)
    # With tensor ranks they may leave the GPU without a word of it, unless they are said not to.
    split = row | {"tp": 4, "micro_batch_per_gpu": 64, "dp": 16}
    assert "block inputs on the host" in choose_memory(stated_run(split), split).chosen
    denied = split | {"notes": "without activation offload"}
    assert "block inputs on the host" not in choose_memory(stated_run(denied), denied).chosen


def test_block_inputs_split_over_tensor_ranks_as_remarks_say() -> None:
    """ZeRO-100B (arXiv 1910.02054), 60B: 132·64·1,024·6,144·2 bytes of block inputs are 106 GB, over 16 tensor ranks 6.6."""
    row: Row = {
        "source": "ZeRO (arXiv 1910.02054)",
        "layers": 132,
        "hidden": 6144,
        "heads": 32,
        "vocab": 50304,
        "seq_len": 1024,
    }
    row |= {"gpu": "V100-SXM3-32GB", "num_gpus": 400, "tp": 16, "pp": 1, "dp": 25, "zero_stage": 2, "precision": "fp16"}
    row |= {"micro_batch_per_gpu": 64, "activation_ckpt": "full", "offload_optimizer": "none"}
    said = row | {"notes": "partitioned activations"}
    assert stated_run(said).setup.split_block_inputs
    assert not stated_run(row).setup.split_block_inputs
    assert "block inputs split over tensor ranks" in choose_memory(stated_run(row), row).chosen


def test_software_that_nobody_counted_may_keep_less() -> None:
    """Llama 3 405B (arXiv 2407.21783): 16 pipeline ranks, 8 blocks of 126 in each, no recomputation; it ran."""
    row: Row = {"source": "Llama 3 paper", "model": "Llama-3-405B", "seq_len": 8192, "gpu": "H100-SXM-80GB"}
    row |= {
        "num_gpus": 8192,
        "tp": 8,
        "pp": 16,
        "dp": 64,
        "zero_stage": 2,
        "activation_ckpt": "none",
        "precision": "bf16",
    }
    row |= {"micro_batch_per_gpu": 1, "global_batch": 2048, "notes": "FSDP, interleaved, 2 virtual stages"}
    choice = choose_memory(stated_run(row), row)
    assert (choice.fits, choice.chosen) == (True, ("kernels and units that keep less",))
    counted = row | {"source": "torchtitan", "offload_optimizer": "none", "offload_param": "none"}
    assert choose_memory(stated_run(counted), counted).fits is False


def test_fsdp_of_matrices_is_no_ground_to_refuse() -> None:
    """GPT-3 with 1T parameters on 128 A100-40GB ran (pytorch.org, FSDP on AWS, 2022): 16 bytes of 1e12 over 128 are 116 GiB, on
    the host; units of a block of 7.9e9 parameters do not fit, a matrix of 25,600 by 102,400 does."""
    row: Row = {"source": "PyTorch on AWS", "layers": 128, "hidden": 25600, "heads": 160, "vocab": 50257}
    row |= {"seq_len": 512, "gpu": "A100-SXM-40GB", "num_gpus": 128, "tp": 1, "pp": 1, "dp": 128, "zero_stage": 3}
    row |= {"activation_ckpt": "full", "micro_batch_per_gpu": 4, "precision": "fp16", "notes": "FSDP"}
    choice = choose_memory(stated_run(row), row)
    assert (choice.fits, choice.chosen[-1]) == (True, "kernels and units that keep less")
    assert choice.chosen[0] == "parameters and optimizer on the host"


def test_a_model_of_normed_queries_against_its_log() -> None:
    """open-sci-ref 1.7B on 252 A100 of 64 GB (Megatron-LM's log of 2025-03-31): at most 53,386 MiB reserved."""
    row: Row = {"source": "Megatron-LM (open-sci-ref)", "layers": 24, "hidden": 2048, "heads": 32, "kv_heads": 32}
    row |= {"ffn_hidden": 8192, "vocab": 50304, "params_b": 1.714, "seq_len": 4096, "gpu": "A100-SXM-80GB"}
    row |= {"num_gpus": 252, "tp": 1, "pp": 1, "dp": 252, "zero_stage": 1, "offload_optimizer": "none"}
    row |= {"activation_ckpt": "selective", "micro_batch_per_gpu": 4, "global_batch": 1008, "precision": "bf16"}
    row |= {"notes": "2025-03-31; max reserved; flash attention, SwiGLU"}
    plain, normed = (
        choose_memory(stated_run(row | {"notes": f"{row['notes']}{words}"}), row).peak_bytes / 2**30
        for words in ("", ", qk-layernorm")
    )
    assert normed == pytest.approx(53386 / 1024, rel=0.03)
    # 4,096 elements of 16,384 tokens in 24 blocks.
    assert normed - plain == pytest.approx(4096 * 16384 * 24 * 2 / 2**30, rel=0.05)


def test_a_head_of_an_odd_size_is_no_gated_model() -> None:
    """BigScience's 104B (tr8-104B-wide): 80 heads of 145; its plain shape has enough parameters, so none with rotary positions is
    tried."""
    row: Row = {"model": "GPT 104B", "params_b": 104, "layers": 64, "hidden": 11600, "heads": 80, "vocab": 50257}
    shape, _ = row_shape(row | {"seq_len": 2048, "ffn_hidden": 46400})
    assert (shape.architecture, shape.head_dim) == ("gpt", 145)
    assert shape.num_parameters == pytest.approx(104e9, rel=0.01)


def test_software_that_nobody_counted_needs_more_room() -> None:
    """GPT 30B that takes 72 of 79 GiB: told where the software is one that was counted."""
    row: Row = {"layers": 48, "hidden": 7168, "heads": 56, "vocab": 50368, "seq_len": 2048, "gpu": "A100-SXM-80GB"}
    row |= {"num_gpus": 16, "tp": 1, "pp": 1, "zero_stage": 3, "activation_ckpt": "full", "precision": "bf16"}
    row |= {"micro_batch_per_gpu": 13, "offload_optimizer": "none", "offload_param": "none"}
    counted, unknown = (
        choose_memory(stated_run(row | {"source": source}), row) for source in ("DeepSpeed", "somebody")
    )
    assert (counted.fits, counted.too_near, counted.doubt_share) == (True, False, 0.06)
    assert (unknown.fits, unknown.too_near, unknown.doubt_share) == (True, True, 0.15)


def test_what_is_near_may_be_another_choice_than_the_row() -> None:
    """14B whole in 16 bit are 27 GiB: out of reach with their states, and near the limit with the optimizer on the host."""
    row: Row = {"source": "ZeRO", "layers": 70, "hidden": 4096, "heads": 32, "vocab": 50304, "seq_len": 1024}
    row |= {"gpu": "V100-SXM3-32GB", "num_gpus": 128, "tp": 1, "pp": 1, "zero_stage": 2, "activation_ckpt": "full"}
    row |= {"micro_batch_per_gpu": 1, "precision": "fp16"}
    choice = choose_memory(stated_run(row), row)
    assert choice.too_near and choice.near is not None and choice.chosen == ()
    assert choice.near.memory.needed_bytes < choice.memory.needed_bytes
    assert "optimizer on the host" in choice.near.chosen


def test_a_long_sequence_is_split_where_its_degree_is_open() -> None:
    row = ROW | {"seq_len": 524288, "tp": 1, "global_batch": None}
    choice = choose_memory(stated_run(row), row)
    assert choice.setup.sequence_degree > 1
    assert choice.chosen == (f"sequence split over {choice.setup.sequence_degree} GPUs",)
    stated = row | {"cp_sp": 1}
    assert choose_memory(stated_run(stated), stated).fits is False
