"""The resolved shape of a decoder and its parameter count, term by term."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.config.schema import Architecture, ModelConfig
from hpctrain.errors import Problem
from hpctrain.plan.divisors import nearest_divisors


@dataclass(frozen=True)
class ModelShape:
    """A decoder with nothing left to derive; the worker builds exactly this."""

    name: str
    architecture: Architecture
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_hidden_size: int
    vocab_size: int
    max_seq_len: int
    tie_embeddings: bool
    norm_eps: float
    rope_theta: float
    init_std: float

    @property
    def attention_width(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key heads together (the same for values)."""
        return self.num_kv_heads * self.head_dim

    @property
    def block_matmul_parameters(self) -> int:
        """Elements of the weight matrices of one block."""
        attention = self.hidden_size * (2 * self.attention_width + 2 * self.kv_width)
        num_ffn_matrices = 3 if self.architecture == "llama" else 2
        return attention + num_ffn_matrices * self.hidden_size * self.ffn_hidden_size

    @property
    def block_vector_parameters(self) -> int:
        """Elements of the biases and norms of one block."""
        if self.architecture == "llama":
            return 2 * self.hidden_size
        biases = self.attention_width + 2 * self.kv_width + self.ffn_hidden_size + 2 * self.hidden_size
        return biases + 4 * self.hidden_size

    @property
    def block_parameters(self) -> int:
        return self.block_matmul_parameters + self.block_vector_parameters

    @property
    def embedding_parameters(self) -> int:
        """Token table, position table (GPT) and output matrix where it is not the token table."""
        tables = 1 if self.tie_embeddings else 2
        positions = self.max_seq_len if self.architecture == "gpt" else 0
        return (tables * self.vocab_size + positions) * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All parameters; a tied table counts once. Held against the built model in the tests."""
        final_norm = (1 if self.architecture == "llama" else 2) * self.hidden_size
        return self.num_layers * self.block_parameters + self.embedding_parameters + final_norm


def resolve_model_shape(model: ModelConfig) -> tuple[ModelShape, tuple[Problem, ...]]:
    """The shape with derived values filled in, and the rules it breaks."""
    head_dim = model.head_dim or max(1, model.hidden_size // model.num_heads)
    num_kv_heads = model.num_kv_heads or model.num_heads
    shape = ModelShape(
        name=model.name,
        architecture=model.architecture,
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn_hidden_size=model.ffn_hidden_size or 4 * model.hidden_size,
        vocab_size=model.vocab_size,
        max_seq_len=model.max_seq_len,
        tie_embeddings=model.tie_embeddings,
        norm_eps=model.norm_eps,
        rope_theta=model.rope_theta,
        init_std=model.init_std,
    )
    problems = []
    if model.head_dim is None and model.hidden_size % model.num_heads:
        problems.append(
            Problem(
                "model.num_heads",
                str(model.num_heads),
                f"must divide model.hidden_size={model.hidden_size} ({model.hidden_size} mod {model.num_heads} ="
                f" {model.hidden_size % model.num_heads})",
                f"nearest: {_join(nearest_divisors(model.hidden_size, model.num_heads))}, or set model.head_dim",
            )
        )
    if model.num_heads % num_kv_heads:
        problems.append(
            Problem(
                "model.num_kv_heads",
                str(num_kv_heads),
                f"must divide model.num_heads={model.num_heads}",
                f"nearest: {_join(nearest_divisors(model.num_heads, num_kv_heads))}",
            )
        )
    if model.architecture == "llama" and head_dim % 2:
        problems.append(
            Problem(
                "model.head_dim",
                str(head_dim),
                "rotary positions turn pairs, so it must be even",
                f"nearest: {head_dim + 1}",
            )
        )
    return shape, tuple(problems)


def _join(values: list[int]) -> str:
    return ", ".join(map(str, values))
