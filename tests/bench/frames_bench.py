"""Run folders to the scaling table, beside the plain way: ``pandas.read_json(lines=True)`` over each file, same summaries.

``python tests/bench/frames_bench.py [--runs 1000] [--steps 10000] [--plain-runs 100]`` makes the runs in a temporary folder
(2.9 GB at full size, removed afterwards), reads them in a process of its own in either way, and prints seconds, peak memory
and the ratio. The aim at full size is at most 25 s and 4 GB, and at least 5 times the plain way. The plain way reads
``--plain-runs`` of the runs; both are counted by the run, without the second that importing pandas takes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

NODES = (1, 2, 4, 8, 16, 32, 64, 128)
WAYS = ("hpctrain", "plain")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--plain-runs", type=int, default=None, help="default: a tenth of the runs, at least 8")
    arguments = parser.parse_args()
    plain_runs = arguments.plain_runs or max(len(NODES), arguments.runs // 10)
    with tempfile.TemporaryDirectory(prefix="frames-bench-") as folder:
        root = Path(folder)
        num_bytes = make_runs(root, arguments.runs, arguments.steps)
        print(f"{arguments.runs:,} runs x {arguments.steps:,} steps, {num_bytes / 1e9:.2f} GB of steps.jsonl")
        per_run_s, tables = {}, {}
        for way, num_runs in (("hpctrain", arguments.runs), ("plain", min(plain_runs, arguments.runs))):
            command = [sys.executable, __file__, "--read", way, str(num_runs), folder]
            answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            per_run_s[way], tables[way] = answer["reading_s"] / num_runs, answer["table"]
            print(
                f"{way:<9} {num_runs:5,} runs {answer['seconds']:7.2f} s with imports  {answer['cpu_s']:7.2f} s of CPU"
                f"  {1e3 * per_run_s[way]:6.1f} ms a run"
                f"  peak {answer['peak_bytes'] / 1e9:.2f} GB"
            )
    print(f"ratio {per_run_s['plain'] / per_run_s['hpctrain']:.1f}, aim at least 5")
    # The plain way reads numbers to 14 digits.
    off = max(abs(ours / plain - 1) for ours, plain in zip(tables["hpctrain"], tables["plain"], strict=True))
    print(f"efficiencies of both ways differ by {off:.0e} at most")


def make_runs(root: Path, num_runs: int, num_steps: int) -> int:
    """Runs of one model on 1 to 128 nodes, those of one size with the same steps; returns the bytes of their step files."""
    from hpctrain.record.paths import RunPaths
    from tests.analysis.make_runs import Attempt, make_run, toy_config

    noise = random.Random(5)
    first: dict[int, Path] = {}
    num_bytes = 0
    for number, nodes in zip(range(num_runs), itertools.cycle(NODES), strict=False):
        folder = root / f"run-{number:05d}"
        if nodes in first:
            shutil.copytree(first[nodes], folder)
        else:
            times_s = [1 + 0.01 * nodes**0.5 + abs(noise.gauss(0, 0.01)) for _ in range(num_steps)]
            make_run(folder, toy_config(nodes=nodes, num_steps=num_steps), [Attempt(times_s)])
            first[nodes] = folder
        num_bytes += RunPaths(folder).steps.stat().st_size
    return num_bytes


def read_runs(way: str, num_runs: int, root: Path) -> None:
    """Reads the first runs and prints what it took and what it found, as JSON."""
    started = time.perf_counter()
    from hpctrain.analysis.frames import load_frames
    from hpctrain.analysis.scaling import scaling_efficiency

    imported = time.perf_counter()
    runs = load_frames([root], steps=False, samples=False).runs if way == "hpctrain" else plain_frame(root, num_runs)
    points = scaling_efficiency(runs, "weak").points
    uses = own, children = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    answer = {
        "seconds": time.perf_counter() - started,
        "reading_s": time.perf_counter() - imported,
        "cpu_s": sum(use.ru_utime + use.ru_stime for use in uses),
        # Of this process, and as much for each process that it may have started.
        "peak_bytes": (own.ru_maxrss + len(os.sched_getaffinity(0)) * children.ru_maxrss) * 1024,
        "table": points["efficiency"].tolist(),
    }
    print(json.dumps(answer))


def plain_frame(root: Path, num_runs: int) -> pd.DataFrame:
    """The frame ``runs`` with one ``read_json`` a run."""
    import pandas as pd  # inside, as importing it is measured in both ways

    from hpctrain.analysis.frames import runs_frame
    from hpctrain.analysis.run_row import RunData
    from hpctrain.analysis.steady import mark_steps
    from hpctrain.analysis.summary import summarise
    from hpctrain.record.reader import read_attempts, read_plan, search_runs

    rows = []
    for run in search_runs(root)[0][:num_runs]:
        steps = mark_steps(pd.read_json(run.steps, lines=True))
        columns = {str(name): steps[name].to_numpy() for name in steps}
        data = RunData(str(run.root), read_plan(run), tuple(read_attempts(run)), columns, 0, "", len(steps))
        rows.append(summarise(data))
    return runs_frame(rows)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--read":
        read_runs(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    else:
        main()
