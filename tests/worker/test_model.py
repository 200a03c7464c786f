"""The decoder against its counts, its definitions, and itself."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from deepspeed.runtime.zero.linear import zero3_linear_wrap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from hpctrain.config.schema import ActivationCheckpointing, ModelConfig
from hpctrain.plan.flops import step_flops
from hpctrain.plan.model_shape import ModelShape, resolve_model_shape
from hpctrain.worker.model.decoder import Block, Decoder
from hpctrain.worker.model.layers import ParameterSeed, rotary_table, rotate
from hpctrain.worker.parallel_groups import ParallelGroups, RankGroup
from tests.worker.run_folder import GPT, LLAMA

PRESETS = sorted((Path(__file__).parents[2] / "conf" / "model").glob("*.yaml"))
ARCHITECTURES = pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
SEQ_LEN, BATCH = 24, 3


def shape_of(model: dict[str, Any]) -> ModelShape:
    shape, problems = resolve_model_shape(ModelConfig(**model))
    assert not problems
    return shape


def random_ids(shape: ModelShape) -> torch.Tensor:
    return torch.randint(shape.vocab_size, (BATCH, SEQ_LEN), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("preset", PRESETS, ids=[path.stem for path in PRESETS])
def test_every_preset_has_as_many_parameters_as_its_plan_says(preset: Path) -> None:
    shape = shape_of(yaml.safe_load(preset.read_text()))
    with torch.device("meta"):
        model = Decoder(shape, "none", seed=1)
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.num_parameters


@ARCHITECTURES
@pytest.mark.parametrize("tied", [True, False])
def test_num_parameters_with_and_without_tied_tables(model: dict[str, Any], tied: bool) -> None:
    shape = shape_of(model | {"tie_embeddings": tied})
    decoder = Decoder(shape, "none", seed=1)
    assert sum(parameter.numel() for parameter in decoder.parameters()) == shape.num_parameters
    assert (decoder.head.weight is decoder.token_table.weight) == tied


@ARCHITECTURES
@pytest.mark.parametrize("loss_chunk_size", [0, 30])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_flops_are_those_of_torchs_counter(
    model: dict[str, Any], checkpointing: ActivationCheckpointing, loss_chunk_size: int
) -> None:
    shape = shape_of(model)
    decoder = Decoder(shape, checkpointing, seed=1, loss_chunk_size=loss_chunk_size)
    ids = random_ids(shape)
    # The counter has no formula for the CPU's fused attention; the unfused one does the same products.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        decoder(ids, ids).backward()
    # Without DeepSpeed the recomputation is that of the stages below 3 (test_training.py counts on real ranks).
    flops = step_flops(shape, SEQ_LEN, BATCH, checkpointing, zero_stage=1)
    assert counter.get_total_flops() == flops.hardware_flops
    assert (flops.hardware_flops == flops.model_flops) == (checkpointing != "full")


@ARCHITECTURES
def test_a_later_token_does_not_change_earlier_logits(model: dict[str, Any]) -> None:
    shape = shape_of(model)
    decoder = Decoder(shape, "none", seed=1)
    ids = random_ids(shape)
    changed = ids.clone()
    changed[:, 10] = (changed[:, 10] + 1) % shape.vocab_size
    before, after = decoder.logits(ids), decoder.logits(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10], rtol=0, atol=1e-6)
    assert (before[:, 10:] - after[:, 10:]).abs().amax(dim=-1).min() > 1e-5


def test_the_loss_is_the_mean_of_minus_log_probability() -> None:
    shape = shape_of(GPT)
    decoder = Decoder(shape, "none", seed=1)
    ids = random_ids(shape)
    labels = ids.roll(-1, dims=1)
    probabilities = decoder.logits(ids).softmax(dim=-1).gather(-1, labels[..., None])
    torch.testing.assert_close(decoder(ids, labels), -probabilities.log().mean())
    assert abs(float(decoder(ids, labels).detach()) - math.log(shape.vocab_size)) < 0.1


def test_grouped_queries_equal_repeated_keys_and_values() -> None:
    grouped_shape = shape_of(LLAMA)
    repeated_shape = shape_of(LLAMA | {"num_kv_heads": 4})
    grouped = Block(grouped_shape, ParameterSeed(1))
    repeated = Block(repeated_shape, ParameterSeed(1))
    repeated.load_state_dict(grouped.state_dict() | {"qkv.weight": _repeat_kv_heads(grouped, grouped_shape)})
    x = torch.randn(BATCH, SEQ_LEN, grouped_shape.hidden_size, generator=torch.Generator().manual_seed(1))
    rotary = rotary_table(SEQ_LEN, grouped_shape.head_dim, grouped_shape.rope_theta, x)
    torch.testing.assert_close(grouped(x, rotary), repeated(x, rotary))


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that run while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_attention_is_one_fused_operator_that_repeats_no_keys(dtype: torch.dtype) -> None:
    shape = shape_of(LLAMA)
    assert shape.num_kv_heads < shape.num_heads
    block = Block(shape, ParameterSeed(1)).to(dtype)
    x = torch.randn(BATCH, SEQ_LEN, shape.hidden_size, dtype=dtype)
    with Operators() as seen:
        block(x, rotary_table(SEQ_LEN, shape.head_dim, shape.rope_theta, x)).sum().backward()
    names = [name.partition("::")[2].partition(".")[0] for name in seen.names]
    assert [name for name in names if "attention" in name] == [
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    ]
    assert not {name for name in names if "repeat" in name or "softmax" in name}


def _repeat_kv_heads(block: Block, shape: ModelShape) -> torch.Tensor:
    """The block's qkv matrix with every key and value head written out for each of its query heads."""
    query, keys_and_values = block.qkv.weight.tensor_split([shape.attention_width])
    groups = shape.num_heads // shape.num_kv_heads
    heads = [part.view(shape.num_kv_heads, shape.head_dim, -1) for part in keys_and_values.chunk(2)]
    return torch.cat([query, *(head.repeat_interleave(groups, dim=0).flatten(0, 1) for head in heads)])


def test_attention_is_that_of_its_definition() -> None:
    shape = shape_of(GPT)
    block = Block(shape, ParameterSeed(1))
    x = torch.randn(BATCH, SEQ_LEN, shape.hidden_size, generator=torch.Generator().manual_seed(1))
    normed = functional.layer_norm(x, (shape.hidden_size,), eps=shape.norm_eps)
    query, key, value = (
        part.view(BATCH, SEQ_LEN, shape.num_heads, shape.head_dim).transpose(1, 2)
        for part in (normed @ block.qkv.weight.T).chunk(3, dim=-1)
    )
    scores = query @ key.transpose(-1, -2) / shape.head_dim**0.5
    scores = scores.masked_fill(torch.ones(SEQ_LEN, SEQ_LEN).triu(1).bool(), -math.inf)
    mixed = (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(x.shape)
    hidden = x + mixed @ block.projection.weight.T
    inner = functional.layer_norm(hidden, (shape.hidden_size,), eps=shape.norm_eps) @ block.ffn_in.weight.T
    gelu = 0.5 * inner * (1 + torch.tanh((2 / math.pi) ** 0.5 * (inner + 0.044715 * inner**3)))
    torch.testing.assert_close(block(x, None), hidden + gelu @ block.ffn_out.weight.T)


def test_rotary_turns_by_position_times_frequency() -> None:
    # head_dim 4: pairs (0, 2) and (1, 3) turn by position and by position / 100^(1/2).
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(1, 3, 1, 4)
    turned = rotate(x, *rotary_table(3, 4, theta=100.0, like=x))[0, :, 0]
    torch.testing.assert_close(turned[0], x[0, 0, 0])
    fast, slow = 2.0, 2.0 / 10.0
    expected = [
        math.cos(fast) - 3 * math.sin(fast),
        2 * math.cos(slow) - 4 * math.sin(slow),
        3 * math.cos(fast) + math.sin(fast),
        4 * math.cos(slow) + 2 * math.sin(slow),
    ]
    torch.testing.assert_close(turned[2], torch.tensor(expected))


def test_rotary_scores_depend_on_the_distance_only() -> None:
    query, key = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(1)).expand(2, 1, 9, 1, 8)
    table = rotary_table(9, 8, theta=10000.0, like=query)
    scores = rotate(query, *table)[0, :, 0] @ rotate(key, *table)[0, :, 0].T
    torch.testing.assert_close(scores.diagonal(offset=2), scores[0, 2].expand(7))


@ARCHITECTURES
@pytest.mark.parametrize("linear", ["torch's", "ZeRO-3's"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_activation_checkpointing_gives_the_same_bits(
    checkpointing: ActivationCheckpointing,
    dtype: torch.dtype,
    linear: str,
    model: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With torch's linear layer, and with that which DeepSpeed puts in its place in stage 3."""
    if linear == "ZeRO-3's":
        monkeypatch.setattr(functional, "linear", zero3_linear_wrap)
    shape = shape_of(model)
    ids = random_ids(shape)
    plain, recomputed = (Decoder(shape, kind, seed=1).to(dtype) for kind in ("none", checkpointing))
    loss, other_loss = plain(ids, ids), recomputed(ids, ids)
    assert torch.equal(loss, other_loss)
    loss.backward()
    other_loss.backward()
    for (name, one), two in zip(plain.named_parameters(), recomputed.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=0, atol=0, msg=name)


def kept_bytes(shape: ModelShape, checkpointing: ActivationCheckpointing) -> int:
    """Of storages that are there between the two passes, beside the parameters: what the simulated GPU would hold."""
    decoder = Decoder(shape, checkpointing, seed=1)
    ids = random_ids(shape)
    kept: dict[int, int] = {}
    known = {parameter.untyped_storage().data_ptr() for parameter in decoder.parameters()}

    def note(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        loss = decoder.blocks(decoder.token_table(ids))
    del loss
    return sum(num_bytes for pointer, num_bytes in kept.items() if pointer not in known)


def test_selective_keeps_neither_outputs_of_norms_nor_of_activation_functions() -> None:
    shape = shape_of(GPT)
    tokens, width = BATCH * SEQ_LEN, 4
    spared = kept_bytes(shape, "none") - kept_bytes(shape, "selective")
    assert spared == shape.num_layers * tokens * width * (2 * shape.hidden_size + shape.ffn_hidden_size)


def test_a_llama_keeps_queries_and_keys_once() -> None:
    """Rotated; values are copied out of the tensor in which they lay together."""
    shape = shape_of(LLAMA)
    tokens, width = BATCH * SEQ_LEN, 4
    # On a CPU a norm is several operators, which keep its input times its statistic beside its output.
    norms = 2 * (3 * shape.hidden_size + 1)
    attention = 2 * shape.attention_width + 2 * shape.kv_width + shape.num_heads
    block = norms + attention + 4 * shape.ffn_hidden_size
    # The token vectors are the first block's input; the last block's output nobody keeps. Cosine and sine are of all blocks.
    rotary = 2 * SEQ_LEN * shape.head_dim // 2 * width
    assert kept_bytes(shape, "none") == shape.num_layers * tokens * width * block + rotary + tokens * 8


@ARCHITECTURES
def test_first_weights(model: dict[str, Any]) -> None:
    shape = shape_of(model | {"hidden_size": 128, "num_heads": 8, "init_std": 0.02})
    decoder = Decoder(shape, "none", seed=1)
    residual_std = 0.02 / (2 * shape.num_layers) ** 0.5
    for name, parameter in decoder.named_parameters():
        if parameter.ndim == 1:
            assert torch.all(parameter == (0.0 if name.endswith("bias") else 1.0)), name
        else:
            std = residual_std if "projection" in name or "ffn_out" in name else 0.02
            assert float(parameter.detach().std()) == pytest.approx(std, rel=0.05), name
            assert abs(float(parameter.detach().mean())) < 0.1 * std, name


def test_first_weights_depend_on_name_and_seed_only() -> None:
    shape = shape_of(GPT)
    torch.manual_seed(5)
    one = Decoder(shape, "none", seed=1)
    torch.manual_seed(6)
    same = Decoder(shape, "full", seed=1)
    other = Decoder(shape, "none", seed=2)
    deeper = Decoder(shape_of(GPT | {"num_layers": 3}), "none", seed=1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.token_table.weight, other.token_table.weight)
    assert torch.equal(one.get_parameter("blocks.1.qkv.weight"), deeper.get_parameter("blocks.1.qkv.weight"))
    assert not torch.equal(one.get_parameter("blocks.0.qkv.weight"), one.get_parameter("blocks.1.qkv.weight"))


@ARCHITECTURES
@pytest.mark.parametrize("tied", [True, False])
def test_tensor_parallel_pieces_are_those_of_the_whole_model(model: dict[str, Any], tied: bool) -> None:
    shape = shape_of(model | {"tie_embeddings": tied})
    whole = Decoder(shape, "none", seed=1)
    pieces = [Decoder(shape, "none", 1, ParallelGroups(tensor=RankGroup(rank, 2))).state_dict() for rank in range(2)]
    for name, parameter in whole.state_dict().items():
        both = [piece[name] for piece in pieces]
        if name in ("token_table.weight", "head.weight"):
            torch.testing.assert_close(torch.cat(both), parameter, rtol=0, atol=0)
        elif "qkv" in name or "ffn_in" in name:
            parts = (
                [shape.attention_width, shape.kv_width, shape.kv_width]
                if "qkv" in name
                else [len(parameter) // 2] * 2
                if shape.architecture == "llama"
                else [len(parameter)]
            )
            halves = [piece.split([part // 2 for part in parts]) for piece in both]
            joined = torch.cat([torch.cat(pair) for pair in zip(*halves, strict=True)])
            torch.testing.assert_close(joined, parameter, rtol=0, atol=0, msg=name)
        elif name.endswith(("projection.weight", "ffn_out.weight")):
            torch.testing.assert_close(torch.cat(both, dim=1), parameter, rtol=0, atol=0, msg=name)
        else:
            assert all(torch.equal(piece, parameter) for piece in both), name


def test_what_is_split_is_marked_for_the_gradient_norm() -> None:
    decoder = Decoder(shape_of(GPT), "none", 1, ParallelGroups(tensor=RankGroup(0, 2)))
    replicated = {
        name for name, parameter in decoder.named_parameters() if not hasattr(parameter, "tensor_model_parallel")
    }
    in_a_block = {"attention_norm.weight", "attention_norm.bias", "ffn_norm.weight", "ffn_norm.bias", "projection.bias"}
    in_a_block.add("ffn_out.bias")
    assert replicated == {
        "position_table.weight",
        "final_norm.weight",
        "final_norm.bias",
        *(f"blocks.{index}.{name}" for index in range(2) for name in in_a_block),
    }
