"""How far a rehearsal is, in blocks: counted as they are built and run, with torch's own global hooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook, register_module_module_registration_hook

_SECONDS_BETWEEN = 1.0


@contextmanager
def count_blocks(num_layers: int, where: Callable[[], tuple[int, str]], say: Callable[[str], None]) -> Iterator[None]:
    """Says about once a second which block is being built or run.

    Args:
        num_layers: of the model, or of the stage.
        where: step and phase at this moment.
        say: gets the line.
    """
    from hpctrain.worker.model.decoder import Block

    counts: dict[tuple[int, str], int] = {}
    last_s = time.monotonic()

    def seen(module: Any) -> None:
        nonlocal last_s
        if not isinstance(module, Block):
            return
        step, phase = where()
        counts[step, phase] = counts.get((step, phase), 0) + 1
        if time.monotonic() - last_s >= _SECONDS_BETWEEN:
            last_s = time.monotonic()
            passes, place = divmod(counts[step, phase] - 1, num_layers)
            block = f"block {place + 1} of {num_layers}" + (f", micro batch {passes + 1}" if passes else "")
            say(f"{phase}, {block}" if step == 0 else f"step {step}, {phase}, {block}")

    def registered(parent: nn.Module, name: str, module: nn.Module | None) -> None:
        seen(module)

    def runs(module: nn.Module, inputs: Any) -> None:
        seen(module)

    handles = [register_module_module_registration_hook(registered), register_module_forward_pre_hook(runs)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
