"""Prints how long DeepSpeed's stage 3 keeps the host busy for one pass through a block, without a GPU.

    python tests/bench/host_work.py [PORT]

One process, blocks too small for their arithmetic to count, each recomputed; CPU time of the thread, so that other work on the
machine counts little. Between two depths the difference is that of the blocks. What ``plan/speed/software.py`` has as
``host_s_per_block_pass`` of ``deepspeed_leaf_blocks`` was held against it: 2026-12-01, two busy cores, DeepSpeed 0.19.8: 1.0 ms
with each block as a leaf module, 2.0 ms gathered piece by piece, 0.3 ms without DeepSpeed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import Any

WIDTH, DEPTHS, PASSES = 16, (4, 20), 4
"""Forward, the same again, and a backward that counts as two."""
MODES = ("plain", "leaf", "pieces")
_WARM_UP, _STEPS = 8, 25


def main() -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 29611
    for mode in MODES:
        seconds = []
        for depth in DEPTHS:
            port += 1
            command = [sys.executable, __file__, "one", mode, str(depth), str(port)]
            answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            seconds.append(float(answer.splitlines()[-1]))
        each = (seconds[1] - seconds[0]) / (DEPTHS[1] - DEPTHS[0]) / PASSES
        print(f"{mode:<8}{1e3 * each:>6.2f} ms a pass through a block")


def one(mode: str, depth: int, port: str) -> None:
    """Prints the median CPU seconds of forward and backward pass."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ["DS_ACCELERATOR"] = "cpu"
    import torch
    from torch.utils.checkpoint import checkpoint

    torch.set_num_threads(1)
    block = _block_class()
    blocks = torch.nn.ModuleList(block() for _ in range(depth))
    engine: Any = None
    if mode != "plain":
        import deepspeed
        from deepspeed.utils import set_z3_leaf_modules

        if mode == "leaf":
            set_z3_leaf_modules(blocks, [block])
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
            "steps_per_print": 10**9,
        }
        engine, *_ = deepspeed.initialize(model=blocks, config=config)
    seconds = []
    for _ in range(_STEPS):
        start = time.thread_time()
        x = torch.randn(1, 8, WIDTH, requires_grad=True)
        for layer in blocks:
            x = checkpoint(layer, x, use_reentrant=False)
        loss = x.square().mean()
        if engine is None:
            torch.autograd.backward(loss)
        else:
            engine.backward(loss)
        seconds.append(time.thread_time() - start)
        if engine is not None:
            engine.step()
    print(statistics.median(seconds[_WARM_UP:]))


def _block_class() -> Any:
    """A decoder block of six modules with parameters and one head."""
    from torch import Tensor, nn
    from torch.nn.functional import gelu, scaled_dot_product_attention

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first_norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            queries, keys, values = self.qkv(self.first_norm(x)).chunk(3, -1)
            x = x + self.projection(scaled_dot_product_attention(queries, keys, values, is_causal=True))
            widened: Tensor = self.up(self.second_norm(x))
            return x.add(self.down(gelu(widened)))

    return Block


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main()
