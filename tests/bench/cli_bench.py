"""``plan model=530b nodes=128`` as a process, beside a bare script that imports Hydra and composes the same configuration.

``python tests/bench/cli_bench.py [ROUNDS]`` alternates the two and prints the medians and their ratio; the aim is at most 1.8.
The plan holds the search of ``parallelism=auto``.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

CONF = Path(__file__).resolve().parents[2] / "conf"
BARE = f"""
from hydra import compose, initialize_config_dir
with initialize_config_dir(config_dir={str(CONF)!r}, version_base="1.3"):
    print(compose("config", overrides=["model=530b", "nodes=128"]))
"""
COMMANDS = {
    "bare Hydra compose": [sys.executable, "-c", BARE],
    "hpctrain plan": [sys.executable, "-m", "hpctrain", "plan", "model=530b", "nodes=128"],
}


def main() -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users' Python compiles a module once
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, median in medians.items():
        print(f"{name:<20} {median * 1e3:7.1f} ms  (median of {rounds}, least {min(seconds[name]) * 1e3:.1f} ms)")
    print(f"ratio {medians['hpctrain plan'] / medians['bare Hydra compose']:.2f}, aim at most 1.8")


if __name__ == "__main__":
    main()
