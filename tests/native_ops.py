"""DeepSpeed's native libraries that tests need, compiled once for all of them."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1]
COMPILED = os.environ.get("TORCH_EXTENSIONS_DIR", str(SOURCE / ".cache" / "torch_extensions"))
"""Where they are kept; with g++ and ninja, of one core: CPU Adam takes one minute, reads and writes of NVMe three."""
ASYNC_IO, CPU_ADAM = "AsyncIOBuilder", "CPUAdamBuilder"
_BUILD = """
import sys
from pathlib import Path
from deepspeed.ops.op_builder import cpu
builder = getattr(cpu, sys.argv[1])()
folder = Path(sys.argv[2], builder.NAME)
if not (folder / f"{builder.NAME}.so").exists():
    # torch's own lock, which a killed build leaves and the next one would wait for without end.
    (folder / "lock").unlink(missing_ok=True)
builder.load(verbose=False)
"""
_LONGEST_S = 900.0


@cache
def build_once(builder: str) -> None:
    """Returns when it is there; beside the tests' ranks, which would be ended while they wait for it.

    A killed process of tests does no harm: the next one builds.

    Args:
        builder: a class of deepspeed.ops.op_builder.cpu.
    """
    Path(COMPILED).mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": COMPILED}
    with (Path(COMPILED) / f"{builder}.lock").open("w") as lock:
        # Of two test processes the second waits here, and then finds it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(
            [sys.executable, "-c", _BUILD, builder, COMPILED], env=environment, check=True, timeout=_LONGEST_S
        )


if __name__ == "__main__":
    # Before the tests, of which each has five minutes.
    build_once(ASYNC_IO)
