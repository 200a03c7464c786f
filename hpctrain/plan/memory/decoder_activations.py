"""Bytes of activations of our decoder on one rank: what is kept, and the heights of a block's passes and of the loss.

Counted from hpctrain/worker/model/decoder.py operator by operator: what torch's autograd saves, and what its backward functions
hold at once. Fused attention and fused norms keep no score matrix and no copy. Left out: scratch inside of the kernels.
On a CPU torch 2.13 composes RMSNorm of plain operators: these keep its input and the scaled input, both in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hpctrain.plan.elementwise import chosen
from hpctrain.plan.rank_work import RankWork

_FP32 = 4


@dataclass(frozen=True)
class BlockHeight:
    """One moment in a block's backward pass."""

    num_bytes: int
    """Without the block's input."""
    matrix: int
    """Which of the block's matrices has got its gradient last, counted from the end of the block."""


class DecoderActivations:
    """Bytes for one micro batch.

    Widths are elements a token: ``hidden`` of the residual stream; on tensor-parallel ranks a part of each other one.
    """

    def __init__(self, work: RankWork) -> None:
        shape, tp = work.shape, work.layout.tensor_parallel_size
        self._tokens, self._width = work.tokens, work.bytes_per_element
        self._is_llama = shape.architecture == "llama"
        self._hidden = shape.hidden_size
        self._query, self._key = shape.attention_width // tp, shape.kv_width // tp
        self._inner = shape.ffn_hidden_size // tp
        self._heads = shape.num_heads // tp
        self._vocab = shape.vocab_size // tp
        self._chunk = work.loss_chunk_size
        self._keeps_block_output = work.parallelism.zero_stage == 3
        self._is_recomputed = work.checkpointing == "full"
        self._is_selective = work.checkpointing == "selective"
        # Outputs of norms that are kept: one before attention, one before the feed-forward.
        self._norm = 0 if self._is_selective else shape.hidden_size
        self._has_fused_norm = not self._is_llama or work.hardware.device == "cuda"
        self._is_offloaded = work.offload_activations
        self._last_block = shape.num_layers // work.layout.pipeline_parallel_size - 1
        self._is_split = tp > 1
        self._is_exchanged = work.layout.sequence_parallel_size > 1

    def _bytes(self, elements: int) -> int:
        return self._tokens * elements * self._width

    @cached_property
    def block_input(self) -> int:
        """What recomputation keeps of a block."""
        return self._bytes(self._hidden)

    @cached_property
    def _attention_side(self) -> int:
        """Elements: queries, keys and values, in a Llama rotated and copied, and attention's result.

        The result is sent on where sequence-parallel ranks exchange it, so that the projection reads another tensor.
        """
        results = chosen(self._is_exchanged, 2, 1)
        return self._query + 2 * self._key + results * self._query

    @cached_property
    def _statistics(self) -> int:
        """Bytes: the sum of exponentials of each head, and of each norm one or two numbers a token, in fp32."""
        return self._tokens * _FP32 * (self._heads + (2 if self._is_llama else 4))

    def _of_norms(self, number: int, input_is_kept: bool) -> int:
        """Bytes that so many norms keep beyond fused ones.

        Args:
            number: of norms.
            input_is_kept: by others, in the training type; a fused norm keeps it itself.
        """
        if self._has_fused_norm:
            return 0
        in_fp32 = _FP32 if self._width == _FP32 else 2 * _FP32 - (0 if input_is_kept else self._width)
        return number * self._tokens * self._hidden * in_fp32

    @cached_property
    def _kept_inner(self) -> int:
        """Elements of the feed-forward: what the activation function reads, in a Llama gate and up; and what it gives out, in a
        Llama with the gate's own result. Selective recomputation keeps what it reads."""
        read = (2 if self._is_llama else 1) * self._inner
        return read if self._is_selective else 2 * read

    @cached_property
    def block(self) -> int:
        """What a block keeps without full recomputation, its input included."""
        outside = 2 * self._hidden + 2 * self._norm
        norms = self._of_norms(2, input_is_kept=self._is_selective)
        return self._bytes(outside + self._attention_side + self._kept_inner) + self._statistics + norms

    def kept_before(self, block: int) -> int:
        """What the backward pass of a block finds: all that is kept of the blocks before it, and its own input."""
        if not self._is_recomputed:
            return block * self.block + self.block_input
        if self._is_offloaded:
            # Its own input is back, and the one before it on its way; the last block's never left.
            is_alone = block in (0, self._last_block)
            return self.block_input * (1 if is_alone else 2)
        return self.block_input * (block + 1)

    def kept_with(self, block: int) -> int:
        """What is kept of the blocks up to one when its forward pass is over."""
        if not self._is_recomputed:
            return (block + 1) * self.block
        return self.block_input * (1 if self._is_offloaded else block + 1)

    @property
    def recomputed_forward_height(self) -> int:
        """Beyond its input, in the first forward pass of a block of which nothing else is kept: the feed-forward's tensors."""
        inner = (4 if self._is_llama else 2) * self._inner
        return self._bytes(2 * self._hidden + inner)

    @property
    def forward_height(self) -> int:
        """Beyond what it keeps, at the end of a block's forward pass: its output and the product before the addition.

        With selective recomputation the feed-forward's inner tensors before that may be more.
        """
        h, f = self._hidden, self._inner
        inner = max(h + f, 2 * f if self._is_llama else f) if self._is_selective else 0
        return self._bytes(max(2 * h, inner))

    @property
    def ends(self) -> int:
        """The last block's output and the final norm's, which the output matrix reads."""
        return self._bytes(2 * self._hidden) + self._of_norms(1, input_is_kept=False)

    def block_heights(self) -> list[BlockHeight]:
        """Moments in the backward pass of a block whose own activations are there, kept or recomputed.

        In the order of the pass. The gradient of the block's output is there throughout in stage 3, whose hooks keep it.
        """
        h, q, kv, f = self._hidden, self._query, self._key, self._inner
        out_gradient = h
        second = h if self._keeps_block_output else 0
        attention_side = self._attention_side
        split = q + 2 * kv
        norm = self._norm
        before_ffn = h + 2 * norm + attention_side  # norms' outputs, and the attention's part of the residual stream
        into_ffn = 2 * f if self._is_llama else f
        moments = [
            # The product's gradient is there, all of the feed-forward's tensors still are.
            (before_ffn + self._kept_inner + out_gradient + f, 0),
            # The activation function's backward: what it gave out is gone, one or two gradients are new.
            (before_ffn + out_gradient + (6 if self._is_llama else 3) * f, 0),
            # In a Llama gate and up are put together again.
            (before_ffn + (2 * into_ffn if self._is_llama else into_ffn) + out_gradient, 0),
            (before_ffn + out_gradient + into_ffn + h, 1),
            # Attention: gradients of its result and of queries, keys and values, which are then put together.
            (norm + attention_side + second + out_gradient + q, 2),
            (norm + attention_side + second + out_gradient + q + split, 2),
            (norm + second + out_gradient + 2 * split, 2),
            # Selective recomputation makes the norm's output again, and gives it up before the product's gradient is there.
            (norm + second + out_gradient + split + h, 3),
        ]
        return [
            BlockHeight(self._bytes(elements) + self._statistics + self._norms_left(matrix), matrix)
            for elements, matrix in moments
        ]

    def _norms_left(self, matrix: int) -> int:
        """Bytes of norms beyond fused ones until the backward pass is through them; the first one's input is the block's."""
        first = self._of_norms(1, input_is_kept=self._is_selective or self._is_recomputed)
        return first + (self._of_norms(1, input_is_kept=self._is_selective) if matrix < 2 else 0)

    def arrival_heights(self) -> tuple[int, ...]:
        """Bytes when the gradient of each matrix is handed over, in the order of the backward pass, without the block's input.

        What the product's backward function read is gone by then; its gradient for the layer before is there.
        """
        h, q, f = self._hidden, self._query, self._inner
        norm = self._norm
        left_inner = f if not self._is_llama else 2 * f if self._is_selective else 3 * f
        elements = (
            h + 2 * norm + self._attention_side + left_inner + h + f,
            h + norm + self._attention_side + h + h,
            norm + self._attention_side + h + q,
            2 * h,
        )
        return tuple(
            self._bytes(number) + self._statistics + self._norms_left(matrix) for matrix, number in enumerate(elements)
        )

    @property
    def loss_forward(self) -> int:
        """Scores, in fp32 where they are not, and their log-softmax.

        In chunks: gradients of the norm's output and, in fp32, of the matrix; and of one chunk the scores, in both types, or
        their gradient beside its product with the norm's output.
        """
        if not self._chunk:
            copies = 2 if self._width != _FP32 else 1
            return self._tokens * self._vocab * (self._width + copies * _FP32)
        scores, is_short = self._chunk * self._vocab, self._width != _FP32
        in_both = scores * (self._width + (_FP32 if is_short else 0))
        product = scores * self._width + (self._width * self._vocab * self._hidden if is_short else 0)
        return self._bytes(self._hidden) + self._matrix_gradient + max(in_both, product)

    @property
    def loss_backward(self) -> int:
        """The log-softmax, the gradient of the picked scores and that of the log-softmax, all in fp32.

        Where the vocabulary is split over ranks: the probabilities, and their gradient. In chunks: what the forward pass left.
        """
        if self._chunk:
            return self._matrix_gradient
        return self._tokens * self._vocab * (2 if self._is_split else 3) * _FP32

    @property
    def head_backward(self) -> int:
        """Gradient of the scores, in fp32 and in the training type, or in the training type with that of the norm's output.

        In chunks: that of the matrix in fp32, from which the one in the training type is made.
        """
        if self._chunk:
            return self._matrix_gradient if self._width != _FP32 else 0
        return self._tokens * self._vocab * self._width + self._bytes(self._hidden)

    @property
    def _matrix_gradient(self) -> int:
        """That of the output matrix in fp32."""
        return _FP32 * self._vocab * self._hidden
