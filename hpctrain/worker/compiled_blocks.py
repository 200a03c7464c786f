"""The decoder's blocks, each compiled whole by torch.compile (``training.compile``)."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config as compiler_settings
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from hpctrain.worker.end_reasons import CompileError
from hpctrain.worker.model.decoder import Block

_QUOTE_LENGTH = 300


def compile_blocks(model: nn.Module) -> int:
    """Compiles the forward pass of every block, with its backward pass; returns how many blocks there are.

    The forward function, not the module: what DeepSpeed hangs on the module (gathering, releasing, its order of fetches) stays
    outside and runs as before. Alike blocks share one graph, which is made in the first step; it is the whole block or an error.
    Shapes are constants of a graph: a run has one micro batch, and validation, without gradients, has a graph of its own.

    Args:
        model: the decoder or a stage of it, in the engine already.
    """
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        # Else each rank starts a process for every core of its node, of which it has a share.
        compiler_settings.compile_threads = torch.get_num_threads()
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    for block in blocks:
        compiled = torch.compile(block.forward, fullgraph=True, dynamic=False)
        block.forward = _told_by_its_key(compiled)  # type: ignore[method-assign]
    return len(blocks)


def _told_by_its_key(compiled: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function, whose failures to compile name the key that asked for it.

    Raises:
        CompileError: torch cannot trace the block, or its compiler failed.
    """

    @functools.wraps(compiled)
    def forward(*arguments: Any) -> Tensor:
        try:
            return compiled(*arguments)
        except TorchDynamoException as error:
            raise CompileError(f"training.compile=true: {_why(error)}; leave it out, and blocks run eagerly") from error

    return forward


def _why(error: TorchDynamoException) -> str:
    """The error's first lines in one; torch appends its whole command and advice."""
    text = " ".join(str(error).split())
    return f"torch.compile failed: {text if len(text) <= _QUOTE_LENGTH else text[:_QUOTE_LENGTH] + '...'}"
