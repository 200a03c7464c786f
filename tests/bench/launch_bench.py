"""A launch check of 1,024 ranks on the 128-node sandbox Slurm, beside a bare ``srun`` of as many processes with the same imports.

``python tests/bench/launch_bench.py [ROUNDS]`` starts a sandbox of its own and alternates the two. Ours is timed from the start
of ``python -m hpctrain``, which composes, plans and calls sbatch, to the end marker in the run folder. The aim is at most 1.5.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SANDBOX = Path(__file__).resolve().parents[2] / "slurm" / "sandbox" / "sandbox.py"
NODES, GPUS = 128, 8
TIMEOUT_S = 600
BARE = [
    *("srun", f"--nodes={NODES}", f"--ntasks-per-node={GPUS}", f"--gpus-per-node={GPUS}", "--cpus-per-task=12"),
    *("--output=/dev/null", sys.executable, "-u", "-c"),
    "import hpctrain.launch.rank_entry, hpctrain.worker.launch_check",
]


def bare(env: dict[str, str], folder: Path) -> float:
    del folder
    started = time.perf_counter()
    subprocess.run(BARE, env=env, check=True, timeout=TIMEOUT_S)
    return time.perf_counter() - started


def ours(env: dict[str, str], folder: Path) -> float:
    started = time.perf_counter()
    words = ["model=530b", f"nodes={NODES}", "training=launch_check", f"run.root={folder}"]
    subprocess.run([sys.executable, "-m", "hpctrain", *words], env=env, check=True, capture_output=True)
    while time.perf_counter() - started < TIMEOUT_S:
        for path in folder.glob("*/attempts/1.json"):
            state = json.loads(path.read_text(encoding="utf-8"))["state"]
            if state != "running":
                assert state == "completed", path
                return time.perf_counter() - started
        time.sleep(0.1)
    raise TimeoutError(f"no end marker below {folder}")


def wait_until_empty(env: dict[str, str]) -> None:
    """The next one must not wait for the nodes of the last."""
    while subprocess.run(["squeue", "-h"], env=env, check=True, capture_output=True).stdout:
        time.sleep(0.5)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    seconds: dict[str, list[float]] = {"bare srun": [], "hpctrain, whole job": []}
    with tempfile.TemporaryDirectory() as folder:
        sandbox = Path(folder) / "sandbox"
        options = ["--nodes", NODES, "--gpus", GPUS, "--cpus", 96, "--memory-mib", 1_700_000, "--no-accounting"]
        try:
            up = subprocess.run(
                [sys.executable, SANDBOX, "up", "--dir", sandbox, "--name", f"b{os.getpid()}", *map(str, options)],
                check=True,
                capture_output=True,
                text=True,
            )
            (assignment,) = shlex.split(up.stdout)[1:]
            env = {**os.environ, "SLURM_CONF": assignment.removeprefix("SLURM_CONF=")}
            for number in range(rounds):
                for name, run in zip(seconds, (bare, ours), strict=True):
                    seconds[name].append(run(env, Path(folder) / f"runs-{number}"))
                    wait_until_empty(env)
        finally:
            subprocess.run([sys.executable, SANDBOX, "down", "--dir", sandbox], check=True)
    for name, values in seconds.items():
        print(f"{name:<20} {statistics.median(values):6.1f} s  (median of {rounds}, least {min(values):.1f} s)")
    first, second = seconds.values()
    ratio = statistics.median(mine / theirs for mine, theirs in zip(second, first, strict=True))
    print(f"ratio {ratio:.2f} (median over neighbouring rounds), aim at most 1.5")


if __name__ == "__main__":
    main()
