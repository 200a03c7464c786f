"""What export writes, held against transformers; and what keeps it from being written."""

from __future__ import annotations

import dataclasses
import json
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig

from hpctrain.cli import run as run_words
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.huggingface.folder import folder_problems, read_folder
from hpctrain.record.files import write_text
from hpctrain.record.frozen_config import config_text
from hpctrain.record.paths import RunPaths
from hpctrain.worker.model.decoder import Decoder
from hpctrain.worker.state.folder_source import FolderSource
from hpctrain.worker.state.source import TensorPlace, own_piece
from tests.worker.run_folder import GPT, LLAMA, make_config, make_run
from tests.worker.saved_states import compose_checkpoint, decoder_of, shape_of, state_of

MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "llama, grouped heads of another width, untied": (LLAMA | {"head_dim": 16, "rope_theta": 5e5}, "LlamaForCausalLM"),
    "llama, tied": (LLAMA | {"tie_embeddings": True, "norm_eps": 1e-6}, "LlamaForCausalLM"),
    "gpt, tied": (GPT, "GPT2LMHeadModel"),
    "gpt, untied, narrow": (GPT | {"tie_embeddings": False, "ffn_hidden_size": 72}, "GPT2LMHeadModel"),
}
SHARED_HEADS = (2, 1)
"""Key and value heads of a GPT with four query heads."""
FORMS = [(3, 2, 1), (1, 1, 2), (2, 3, 1), (0, 1, 1)]


def composed_run(folder: Path, model: dict[str, Any], form: tuple[int, int, int]) -> tuple[RunPaths, Decoder]:
    """A run with a composed checkpoint of step 7, and the decoder that is in it."""
    run = make_run(folder, make_config(model=model))
    decoder = decoder_of(shape_of(model))
    compose_checkpoint(run.checkpoints, shape_of(model), state_of(decoder), *form)
    return run, decoder


def random_ids() -> Tensor:
    return torch.randint(260, (3, 32), generator=torch.Generator().manual_seed(5))


def exported(run: RunPaths, out: Path, *options: str) -> dict[str, Tensor]:
    """All tensors of what was written."""
    assert run_words(["export", str(run.root), "--out", str(out), *options]) == 0
    assert not out.with_name(f"{out.name}.partial").exists()
    return {name: tensor for path in out.glob("*.safetensors") for name, tensor in load_file(path).items()}


@pytest.mark.parametrize(("case", "form"), list(zip(MODELS, FORMS, strict=True)), ids=list(MODELS))
def test_transformers_gives_the_same_logits(case: str, form: tuple[int, int, int], tmp_path: Path) -> None:
    model, name = MODELS[case]
    run, decoder = composed_run(tmp_path, model, form)
    tensors = exported(run, tmp_path / "out", "--shard-size", "40KB")
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert sum(tensor.numel() * 4 for tensor in tensors.values()) == index["metadata"]["total_size"]
    assert set(index["weight_map"]) == set(tensors)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto", local_files_only=True)
    assert type(theirs).__name__ == name
    with torch.no_grad():
        difference = (theirs(random_ids()).logits - decoder.logits(random_ids())).abs().max()
    assert difference < 1e-5


@pytest.mark.parametrize("num_kv_heads", SHARED_HEADS)
def test_heads_that_share_keys_and_values_get_copies(
    num_kv_heads: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = GPT | {"num_kv_heads": num_kv_heads}
    run, decoder = composed_run(tmp_path, model, (3, 2, 1))
    exported(run, tmp_path / "out")
    said = capsys.readouterr().out
    assert (
        f"note: model.num_kv_heads={num_kv_heads}: GPT2LMHeadModel has a key and value head for each of the 4" in said
    )
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto", local_files_only=True)
    with torch.no_grad():
        difference = (theirs(random_ids()).logits - decoder.logits(random_ids())).abs().max()
    assert difference < 1e-5
    folder = read_folder(tmp_path / "out")
    problems, _ = folder_problems(folder, shape_of(model))
    assert problems == [f"model.num_kv_heads={num_kv_heads}: the folder has 4; set model.num_kv_heads=4"]
    assert folder_problems(folder, shape_of(GPT)) == ([], [])


def test_the_override_that_is_told_can_be_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = composed_run(tmp_path, GPT, (3, 1, 1))
    exported(run, tmp_path / "h f=x")
    assert f"""begin a run with 'training.init_from="{tmp_path}/h f=x"'""" in capsys.readouterr().out


def test_one_file_in_another_type(tmp_path: Path) -> None:
    run, decoder = composed_run(tmp_path, LLAMA, (3, 2, 1))
    tensors = exported(run, tmp_path / "out", "--dtype", "bf16", "--step", "7")
    assert [path.name for path in (tmp_path / "out").glob("*.safetensors*")] == ["model.safetensors"]
    modes = {path.stat().st_mode for path in (tmp_path / "out").iterdir()}
    assert len(modes) == 1
    weights = dict(decoder.named_parameters())
    assert torch.equal(
        tensors["model.layers.1.self_attn.k_proj.weight"], weights["blocks.1.qkv.weight"][32:48].bfloat16()
    )
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["torch_dtype"], config["eos_token_id"]) == ("bfloat16", None)  # made-up tokens have no end


def test_the_token_that_ends_a_document_is_told(tmp_path: Path) -> None:
    run, _ = composed_run(tmp_path, GPT, (3, 1, 1))
    config = make_config(data={"name": "s", "kind": "stdlib"})
    write_text(run.config, config_text(config))
    exported(run, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == {"eos_token_id": 256}


@pytest.mark.parametrize("case", ["llama, tied", "gpt, tied"])
def test_transformers_finds_the_tokenizer_and_its_end(case: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 50)
    words = ["prepare", str(text), "--out", str(tmp_path / "bpe"), "--workers", "1", "--train-bpe", "260"]
    assert run_words(words) == 0
    model = MODELS[case][0]
    run, _ = composed_run(tmp_path, model, (3, 1, 1))
    data = {"name": "tokens", "kind": "tokens", "path": str(tmp_path / "bpe")}
    write_text(run.config, config_text(make_config(model=model, data=data)))
    exported(run, tmp_path / "out")
    ours = Tokenizer.from_file(str(tmp_path / "bpe.tokenizer.json"))
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    sentence = "the fox  jumps é\n over"
    assert theirs(sentence)["input_ids"] == ours.encode(sentence).ids
    assert (theirs.eos_token, theirs.eos_token_id, len(theirs)) == ("<|endoftext|>", 0, ours.get_vocab_size())
    assert theirs.model_max_length == shape_of(model).max_seq_len
    # What release 4 of transformers goes by, which is not installed.
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["tokenizer_class"] == (
        "PreTrainedTokenizerFast"
    )


REFUSED = {
    "wide heads": (
        GPT | {"head_dim": 16},
        (),
        r"model.head_dim=16: GPT2LMHeadModel has heads of hidden_size / num_heads = 32 / 4",
    ),
    "step": (GPT, ("--step", "9"), "--step 9: .* there are: 7"),
    "size": (GPT, ("--shard-size", "5"), "--shard-size 5: is a number above 0 with its unit"),
    "tokenizer": (GPT, ("--tokenizer", "/no/such.json"), "no/such.json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    model, options, text = REFUSED[case]
    run, _ = composed_run(tmp_path, model, (3, 1, 1))
    with pytest.raises(ConfigError, match=text):
        run_words(["export", str(run.root), "--out", str(tmp_path / "out"), *options])
    assert not list(tmp_path.glob("out*"))


def test_a_weight_that_fp16_cannot_hold(tmp_path: Path) -> None:
    run = make_run(tmp_path, make_config(model=LLAMA))
    state = state_of(decoder_of(shape_of(LLAMA)))
    state["fp32"]["blocks.1.ffn_out.weight"][3, 4] = 7e4
    compose_checkpoint(run.checkpoints, shape_of(LLAMA), state, 3)
    words = ["export", str(run.root), "--out", str(tmp_path / "out"), "--dtype", "fp16"]
    with pytest.raises(
        ConfigError, match=r"blocks.1.ffn_out.weight has a weight of 7e\+04, and fp16 ends at 6.55e\+04"
    ):
        run_words(words)
    assert not list(tmp_path.glob("out*"))


def test_a_folder_that_is_there_a_damaged_file_and_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = composed_run(tmp_path, GPT, (3, 2, 1))
    out = tmp_path / "out"
    words = ["export", str(run.root), "--out", str(out)]
    out.mkdir()
    with pytest.raises(ConfigError, match="out: is there already"):
        run_words(words)
    out.rmdir()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100_000))
    with pytest.raises(ConfigError, match=r"needs 1.1 MiB; .* has 0.1 MiB free, short by 1.0 MiB"):
        run_words(words)
    monkeypatch.undo()
    path = next(run.checkpoints.glob("*/zero_pp_rank_1_*optim_states.pt"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="has another checksum than when it was saved"):
        run_words(words)
    assert not list(tmp_path.glob("out*"))
    (tmp_path / "out.partial").mkdir()
    with pytest.raises(
        ConfigError, match=r"out.partial is there already, from an export that is under way or was killed"
    ):
        run_words([*words, "--no-check"])
    (tmp_path / "out.partial").rmdir()
    out.symlink_to("nowhere")
    with pytest.raises(ConfigError, match="out: is there already"):
        run_words([*words, "--no-check"])
    out.unlink()
    exported(run, out, "--no-check")


def test_a_disk_that_fills_up_while_it_is_written(tmp_path: Path) -> None:
    run, _ = composed_run(tmp_path, GPT, (3, 2, 1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(LaunchError, match=r"model.safetensors: .*File too large"):
            run_words(["export", str(run.root), "--out", str(tmp_path / "out")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.glob("out*"))


def test_a_checkpoint_that_the_run_removes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = composed_run(tmp_path, GPT, (3, 2, 1))
    (folder,) = run.checkpoints.iterdir()
    monkeypatch.setattr("hpctrain.worker.export.check_expressible", lambda saved: shutil.rmtree(folder))
    with pytest.raises(
        LaunchError, match=r"step-00000007: is not there any more: a run keeps training.keep_checkpoints"
    ):
        run_words(["export", str(run.root), "--out", str(tmp_path / "out")])


def test_a_newer_checkpoint_that_cannot_be_used_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = composed_run(tmp_path, GPT, (3, 2, 1))
    (folder,) = run.checkpoints.iterdir()
    shutil.copytree(folder, run.checkpoints / "step-00000008")
    next((run.checkpoints / "step-00000008").glob("*.pt")).unlink()
    exported(run, tmp_path / "out")
    assert "note: step-00000008 cannot be used: " in capsys.readouterr().out


def test_weights_that_are_no_numbers(tmp_path: Path) -> None:
    run = make_run(tmp_path, make_config(model=LLAMA))
    state = state_of(decoder_of(shape_of(LLAMA)))
    state["fp32"]["blocks.1.ffn_out.weight"][3, 4] = float("nan")
    compose_checkpoint(run.checkpoints, shape_of(LLAMA), state, 3)
    with pytest.raises(
        ConfigError, match=r"step-00000007: blocks.1.ffn_out.weight has weights that are no numbers; --step"
    ):
        run_words(["export", str(run.root), "--out", str(tmp_path / "out")])


@pytest.mark.parametrize("model", [MODELS[name][0] for name in MODELS], ids=list(MODELS))
def test_a_folder_is_read_in_every_cut(model: dict[str, Any], tmp_path: Path) -> None:
    run, decoder = composed_run(tmp_path, model, (3, 1, 1))
    exported(run, tmp_path / "out", "--shard-size", "40KB")
    shape = shape_of(model)
    folder = read_folder(tmp_path / "out")
    assert folder_problems(folder, shape) == ([], [])
    source = FolderSource(folder, shape)
    weights = dict(decoder.named_parameters())
    for parameter in run_parameters(model):
        for num_ranks in (1, 2):
            for rank in range(num_ranks):
                place = TensorPlace(rank, num_ranks)
                piece = own_piece(weights[parameter.name], parameter, place).flatten()
                for start, stop in ((0, piece.numel()), (piece.numel() // 3, piece.numel() - 1), (1, 2)):
                    found = source.piece("fp32", parameter, place, start, stop)
                    assert found is not None
                    assert torch.equal(found, piece[start:stop])
                assert source.piece("exp_avg", parameter, place, 0, 1) is None


THEIRS = {
    "llama": (
        LLAMA | {"rope_theta": 5e5, "norm_eps": 1e-6},
        LlamaConfig(
            vocab_size=260,
            hidden_size=32,
            intermediate_size=88,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 5e5},
        ),
    ),
    "gpt": (GPT, GPT2Config(vocab_size=260, n_embd=32, n_layer=2, n_head=4, n_positions=32, eos_token_id=0)),
}


@pytest.mark.parametrize("case", THEIRS)
def test_a_folder_that_transformers_wrote_gives_its_logits(case: str, tmp_path: Path) -> None:
    model, config = THEIRS[case]
    theirs = AutoModelForCausalLM.from_config(config).eval()  # type: ignore[no-untyped-call]
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="40KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    folder = read_folder(tmp_path / "theirs")
    assert folder_problems(folder, shape_of(model)) == ([], [])
    source, decoder = FolderSource(folder, shape_of(model)), decoder_of(shape_of(model))
    weights = dict(decoder.named_parameters())
    with torch.no_grad():
        for parameter in run_parameters(model):
            whole = source.piece("fp32", parameter, TensorPlace(0, 1), 0, parameter.num_elements)
            assert whole is not None
            weights[parameter.name].copy_(whole.view(parameter.shape))
        difference = (theirs(random_ids()).logits - decoder.logits(random_ids())).abs().max()
    assert difference < 1e-5


def run_parameters(model: dict[str, Any]) -> tuple[Any, ...]:
    from hpctrain.plan.parameters import decoder_parameters

    return decoder_parameters(shape_of(model))


def test_a_larger_vocabulary_is_padded_with_the_mean(tmp_path: Path) -> None:
    run, decoder = composed_run(tmp_path, GPT, (3, 1, 1))
    exported(run, tmp_path / "out")
    shape = dataclasses.replace(shape_of(GPT), vocab_size=264)
    folder = read_folder(tmp_path / "out")
    problems, notes = folder_problems(folder, shape)
    assert not problems
    assert "model.vocab_size=264 is 4 above the folder's 260: the further 4 rows" in notes[0]
    (table, *_) = run_parameters(GPT | {"vocab_size": 264})
    source = FolderSource(folder, shape)
    whole = decoder.token_table.weight.detach()
    halves = [source.piece("fp32", table, TensorPlace(rank, 2), 0, 132 * 32) for rank in range(2)]
    found = torch.cat([half for half in halves if half is not None]).view(264, 32)
    assert torch.equal(found[:260], whole)
    assert found[260:] == pytest.approx(whole.mean(0).expand(4, -1).numpy(), abs=1e-6)


def test_all_mismatches_are_told_at_once(tmp_path: Path) -> None:
    run, _ = composed_run(tmp_path, GPT, (3, 1, 1))
    exported(run, tmp_path / "out")
    folder = read_folder(tmp_path / "out")
    other = dataclasses.replace(shape_of(GPT), num_layers=3, hidden_size=64, vocab_size=256, tie_embeddings=False)
    problems, _ = folder_problems(folder, other)
    assert problems == [
        "model.num_layers=3: the folder has 2; set model.num_layers=2",
        "model.hidden_size=64: the folder has 32; set model.hidden_size=32",
        "model.vocab_size=256: the folder has 260; set model.vocab_size=260",
        "model.tie_embeddings=False: the folder has True; set model.tie_embeddings=true",
    ]


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training.init_from=.*nowhere: config.json: No such file"):
        read_folder(tmp_path / "nowhere")
    run, _ = composed_run(tmp_path, LLAMA, (3, 1, 1))
    exported(run, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    wrong = {
        "model_type=mistral: hpctrain knows llama and gpt2": {"model_type": "mistral"},
        "hidden_act=gelu: hpctrain's model is that of hidden_act=silu": {"hidden_act": "gelu"},
        "rope_type=llama3: hpctrain turns by": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        "hidden_size=None: must be a whole number": {"hidden_size": None},
    }
    for text, changes in wrong.items():
        write_json_text(tmp_path / "out", config | changes)
        with pytest.raises(ConfigError, match=text):
            read_folder(tmp_path / "out")
    write_json_text(tmp_path / "out", config | {"num_hidden_layers": 3})
    problems, _ = folder_problems(read_folder(tmp_path / "out"), shape_of(LLAMA | {"num_layers": 3}))
    assert problems[0].endswith("has no tensor model.layers.2.input_layernorm.weight")
    weights = tmp_path / "out" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ConfigError, match="it is no whole safetensors file"):
        read_folder(tmp_path / "out")


def write_json_text(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config))
