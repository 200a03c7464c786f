"""``status`` over many runs, beside a script that only decodes the same files; and how often a watcher asks Slurm.

``python tests/bench/status_bench.py [RUNS [ROUNDS]]`` prints medians of whole processes; the aims are at most 1 s for 1,000 runs
of which half run, and at most 5 calls for 50 jobs in two minutes.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hpctrain.launch.status.rows import StatusBoard
from hpctrain.record.paths import RunPaths
from tests.analysis.make_runs import Attempt, make_run
from tests.launch.status_runs import FakeSlurm, queue_line, start_attempt, submit_record

PLAIN = """
import json, sys
from pathlib import Path
rows = 0
for plan in Path(sys.argv[1]).glob("*/plan.json"):
    run = plan.parent
    for path in (plan, run / "submission.json", *(run / "attempts").glob("*.json")):
        json.loads(path.read_text())
    with (run / "steps.jsonl").open("rb") as stream:
        stream.seek(max(0, stream.seek(0, 2) - 8192))
        rows += len([json.loads(line) for line in stream.read().split(b"\\n")[1:-1]])
print(rows)
"""
_AIM_S, _AIM_CALLS = 1.0, 5


def make_runs(root: Path, count: int, slurm: FakeSlurm) -> list[RunPaths]:
    """Half of them run in their second attempt, half have ended; each with 2,000 steps."""
    model = make_run(root / "model", attempts=[Attempt([1.0] * 2000)])
    runs = []
    for number in range(count):
        run = RunPaths(root / f"tiny-1n-zero3-20261130-{number:06d}-abcd")
        shutil.copytree(model.root, run.root)
        submit_record(run, str(number + 1), time.time() - 5000)
        if number % 2:
            start_attempt(run, 2, str(number + 1), time.time() - 1000)
        runs.append(run)
    shutil.rmtree(model.root)
    slurm.answer(
        "squeue", *(queue_line(run, str(number + 1), "RUNNING") for number, run in enumerate(runs) if number % 2)
    )
    return runs


def time_processes(commands: dict[str, list[str]], rounds: int) -> dict[str, tuple[float, float]]:
    """Median seconds of each, run in turn: on the clock, and of the processor, which a busy machine lengthens less."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            clock_s, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
            processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            seconds[name].append((clock_s, processor_s))
    return {
        name: (statistics.median(clock for clock, _ in values), statistics.median(processor for _, processor in values))
        for name, values in seconds.items()
    }


def main() -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users' Python compiles a module once
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    with tempfile.TemporaryDirectory() as folder:
        root, programs = Path(folder) / "runs", Path(folder) / "bin"
        programs.mkdir()
        os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
        slurm = FakeSlurm(programs)
        runs = make_runs(root, count, slurm)
        commands = {
            "only decoding": [sys.executable, "-c", PLAIN, str(root)],
            "hpctrain status": [sys.executable, "-m", "hpctrain", "status", str(root)],
        }
        medians = time_processes(commands, rounds)
        for name, (clock_s, processor_s) in medians.items():
            told = f"{clock_s * 1e3:8.0f} ms, of the processor {processor_s * 1e3:6.0f} ms"
            print(f"{name:<16} {told}  {count} runs (median of {rounds})")
        ratio = medians["hpctrain status"][0] / medians["only decoding"][0]
        print(f"ratio {ratio:.2f}; aim at most {_AIM_S * 1e3:.0f} ms for 1,000 runs")
        (programs / "calls").unlink()
        board = StatusBoard(runs[:100])  # of which 50 run
        now_s = time.time()
        for second in range(0, 120, 2):
            board.look(now_s + second)
        print(
            f"50 running jobs followed for 120 s: {len(slurm.calls)} calls of Slurm's commands; aim at most {_AIM_CALLS}"
        )


if __name__ == "__main__":
    main()
