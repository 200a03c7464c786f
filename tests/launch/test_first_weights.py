"""The folder of training.init_from, looked at before anything is submitted."""

from __future__ import annotations

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import hpctrain
from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError
from hpctrain.huggingface.folder import read_folder
from hpctrain.huggingface.model_config import config_values, model_values
from hpctrain.huggingface.tensor_names import file_tensors
from hpctrain.launch.first_weights import check_first_weights
from hpctrain.launch.run_folder import _with_absolute_paths
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.parameters import decoder_parameters
from hpctrain.plan.run_plan import build_run_plan
from tests.worker.run_folder import GPT, LLAMA, make_config


def make_folder(folder: Path, shape: ModelShape) -> Path:
    """A Hugging Face folder of zeros."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_values(shape, "float32", None)))
    tensors = {
        tensor.name: np.zeros(tensor.shape(parameter), dtype=np.float32)
        for parameter in decoder_parameters(shape)
        for tensor in file_tensors(shape, parameter)
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


def shape_of(model: dict[str, Any]) -> ModelShape:
    return build_run_plan(make_config(model=model)).model


def config_of(model: dict[str, Any], folder: Path) -> Config:
    return make_config(model=model, init_from=str(folder))


def check(*configs: Config) -> list[str]:
    return check_first_weights([(config, build_run_plan(config)) for config in configs])


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
def test_a_folder_that_fits(model: dict[str, Any], tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "hf", shape_of(model))
    assert check(config_of(model, folder), make_config(model=model)) == []
    values = model_values(json.loads((folder / "config.json").read_text()), "config.json")
    own = dataclasses.asdict(shape_of(model))
    assert {name: own[name] for name in values} == values
    larger = config_of(model | {"vocab_size": 272}, folder)
    assert check(larger, larger) == [
        "model.vocab_size=272 is 12 above the folder's 260: the further 12 rows of the token table and the output matrix become"
        " the mean of the folder's"
    ]


def test_every_mismatch_is_told_with_its_key(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "hf", shape_of(LLAMA))
    with pytest.raises(ConfigError) as refused:
        check(config_of(LLAMA | {"num_layers": 4, "num_kv_heads": 4, "vocab_size": 256}, folder))
    assert str(refused.value).splitlines() == [
        f"training.init_from={folder}: model.num_layers=4: the folder has 2; set model.num_layers=2",
        f"training.init_from={folder}: model.num_kv_heads=4: the folder has 2; set model.num_kv_heads=2",
        f"training.init_from={folder}: model.vocab_size=256: the folder has 260; set model.vocab_size=260",
    ]
    with pytest.raises(ConfigError, match=r"model.architecture=gpt: the folder has llama"):
        check(config_of(GPT, folder))


def test_rope_of_another_base_and_longer_sequences(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "hf", shape_of(LLAMA | {"rope_theta": 5e5}))
    with pytest.raises(ConfigError, match=r"model.rope_theta=10000.0: the folder has 500000.0"):
        check(config_of(LLAMA, folder))
    longer = config_of(LLAMA | {"rope_theta": 5e5, "max_seq_len": 64}, folder)
    assert check(longer) == ["model.max_seq_len=64 is above the 32 positions that the folder states"]


def test_files_that_are_not_what_config_json_says(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "hf", shape_of(GPT))
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    with pytest.raises(ConfigError, match=r"training.init_from=.*: model.safetensors: "):
        check(config_of(GPT, folder))
    index = folder / "model.safetensors.index.json"
    for odd in ('{"weight_map": []}', '{"weight_map": {"x": 1}}', "{}"):
        index.write_text(odd)
        with pytest.raises(ConfigError, match="weight_map: must be an object with a file's name for each tensor"):
            check(config_of(GPT, folder))
    index.write_text('{"weight_map": {"x": "a.safetensors"}}')
    assert check(config_of(GPT, folder)) == []
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"n_inner": 64}))
    with pytest.raises(
        ConfigError, match=r"mlp.c_fc.weight has shape \(32, 128\), its config.json makes it \(32, 64\)"
    ):
        check(config_of(GPT | {"ffn_hidden_size": 64}, folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config.json: Expecting"):
        check(config_of(GPT, folder))


def test_one_file_goes_before_an_index_as_in_transformers(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "hf", shape_of(GPT))
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "gone.safetensors"}}')
    assert {tensor.path.name for tensor in read_folder(folder).tensors.values()} == {"model.safetensors"}


ODD_VALUES = {
    "rope": ({"rope_parameters": [1]}, r"rope_parameters=\[1\]: must be an object or null"),
    "theta": ({"rope_theta": "x"}, "rope_theta=x: must be a number above 0"),
    "eps": ({"rms_norm_eps": "1e-6"}, "rms_norm_eps=1e-6: must be a number above 0"),
    "heads": ({"num_key_value_heads": "2"}, "num_key_value_heads=2: must be a whole number above 0"),
    "quantized": ({"quantization_config": {"quant_method": "fp8"}}, "quant_method=fp8: the weights are quantized"),
}


@pytest.mark.parametrize("case", ODD_VALUES)
def test_odd_values_of_config_json(case: str, tmp_path: Path) -> None:
    changes, text = ODD_VALUES[case]
    folder = make_folder(tmp_path / "hf", shape_of(LLAMA))
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | changes))
    with pytest.raises(ConfigError, match=text):
        check(config_of(LLAMA, folder))


def test_codes_of_a_quantization_and_tensors_without_a_place(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "hf", shape_of(GPT))
    tensors = load_file(folder / "model.safetensors")
    name = "transformer.h.0.mlp.c_fc.weight"
    save_file(tensors | {"transformer.h.0.mlp.c_fc.scale": np.ones(1, np.float32)}, folder / "model.safetensors")
    assert check(config_of(GPT, folder)) == [f"1 tensor of {folder} not taken, such as transformer.h.0.mlp.c_fc.scale"]
    save_file(tensors | {name: tensors[name].astype(np.int8)}, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=f"{name} is I8, a quantized type; save it as F64, F32, BF16, F16"):
        check(config_of(GPT, folder))


def test_weights_in_another_form(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "hf", shape_of(GPT))
    weights = folder / "model.safetensors"
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ConfigError, match="it is a pointer of Git LFS: git lfs pull fetches the file"):
        check(config_of(GPT, folder))
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"its weights are pytorch_model\*.bin: load it with transformers"):
        check(config_of(GPT, folder))


def test_names_of_a_bare_gpt2_model(tmp_path: Path) -> None:
    shape = shape_of(GPT)
    folder = make_folder(tmp_path / "hf", shape)
    tensors = {
        tensor.name.removeprefix("transformer."): np.ones(tensor.shape(parameter), dtype=np.float32)
        for parameter in decoder_parameters(shape)
        for tensor in file_tensors(shape, parameter)
    }
    save_file(tensors | {"h.0.attn.bias": np.ones((1, 1), dtype=np.float32)}, folder / "model.safetensors")
    assert check(config_of(GPT, folder)) == []


def test_what_no_rank_could_read(tmp_path: Path) -> None:
    def told(config: Config) -> str:
        return "\n".join(map(str, build_run_plan(config).problems))

    url = make_config(init_from="hf://gpt2")
    assert "training.init_from=hf://gpt2: is read as a folder that all nodes see; download it" in told(url)
    azure = dataclasses.replace(
        config_of(GPT, tmp_path), cluster=dataclasses.replace(url.cluster, kind="azureml", name="azureml")
    )
    assert "is a folder of this machine, and cluster=azureml has another one" in told(azure)


def test_only_what_reads_or_writes_such_folders_needs_safetensors() -> None:
    package = Path(hpctrain.__file__).parent
    needing = {"worker/state/folder_source.py", "worker/export.py"}
    at_import = set()
    for path in package.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                name = node.module
                assert name not in ("hpctrain.worker.state.folder_source", "hpctrain.worker.export"), path
                at_import |= {path.relative_to(package).as_posix()} if name.startswith("safetensors") else set()
    assert at_import == needing


def test_a_relative_folder_is_that_of_the_submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _with_absolute_paths(make_config(init_from="hf")).training.init_from == str(tmp_path / "hf")
