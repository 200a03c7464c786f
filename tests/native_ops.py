"""DeepSpeed's native libraries that tests need, compiled once for all of them."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1]
COMPILED = os.environ.get("TORCH_EXTENSIONS_DIR", str(SOURCE / ".cache" / "torch_extensions"))
"""Where they are kept; with g++ and ninja, of one core: CPU Adam takes one minute, reads and writes of NVMe three."""
ASYNC_IO = "AsyncIOBuilder"
_BUILD = "import sys; from deepspeed.ops.op_builder import cpu; getattr(cpu, sys.argv[1])().load(verbose=False)"
_LONGEST_S = 900.0


def build_once(builder: str) -> None:
    """Returns when it is there; beside the tests' ranks, which would be ended while they wait for it.

    Args:
        builder: a class of deepspeed.ops.op_builder.cpu.
    """
    Path(COMPILED).mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": COMPILED}
    with (Path(COMPILED) / f"{builder}.lock").open("w") as lock:
        # Of two test processes the second waits here, and then finds it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([sys.executable, "-c", _BUILD, builder], env=environment, check=True, timeout=_LONGEST_S)


if __name__ == "__main__":
    # Before the tests, of which each has five minutes.
    build_once(ASYNC_IO)
