"""Logs of other systems: MB/s of ``read_log`` on one core beside a loop of ``re.search`` over ``open()``, and memory.

``python tests/bench/log_bench.py [MB]`` writes two composed logs of that size (default 64): one record in twenty lines, and
records only. ``--big`` reads a 2 GB log of the first kind in a process of its own and prints its peak memory; the aims are at
least 50 MB/s and under 500 MB.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

MEGA = 1e6
NUM_NOISE_LINES = 19
NOISE = (
    "node{a:02d}:{b}:{c} [{d}] NCCL INFO Channel {a:02d} : {d}[88000] -> 7[88000] [send] via NET/IB/3",
    "[2021-05-27 19:54:20,{c}] [INFO] [state.py:60:show] [Rank {a}] gathered {b} pieces of shard {d}",
    "/opt/env/lib/python3.10/site-packages/torch/nn/modules/module.py:{b}: UserWarning: non-full backward hooks are used",
    "  warnings.warn('the current process just got forked after parallelism has been used, {c}')",
    "[W socket.cpp:{b}] [c10d] The client socket cannot be initialized to connect to [node{a:02d}]:29500 (errno: 97).",
    "> rank {a} builds dataset index {d} with {c} documents in {b} blocks",
    "Killing subprocess {c}",
)
RECORD = (
    " iteration {i:8d}/  999999 | consumed samples: {samples:12d} | consumed tokens: {tokens:14d} "
    "| elapsed time per iteration (ms): {ms:.1f} | learning rate: 5.279E-05 | global batch size:  2048 "
    "| lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {norm:.3f} | num zeros: 0.0 "
    "| number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: {rate:.3f} "
    "| TFLOPs: {tflops:.2f} |"
)
PLAIN = re.compile(
    r"iteration\s+(\d+)/.*?elapsed time per iteration \(ms\): ([\d.]+).*?learning rate: (\S+).*?lm loss: (\S+)"
    r".*?grad norm: (\S+).*?TFLOPs: ([\d.]+)"
)


def write_log(path: Path, num_bytes: int, num_noise_lines: int) -> int:
    """A log of at least ``num_bytes``; gives the number of records. One block is varied by the iteration numbers only."""
    draw = random.Random(1)
    num_records = written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < num_bytes:
            lines = []
            for _ in range(200):
                num_records += 1
                ms = draw.uniform(104_000, 112_000)
                for _ in range(num_noise_lines):
                    lines.append(
                        draw.choice(NOISE).format(
                            a=draw.randrange(64), b=draw.randrange(9999), c=draw.randrange(99999), d=1
                        )
                    )
                lines.append(
                    RECORD.format(
                        i=num_records,
                        samples=2048 * num_records,
                        tokens=2048**2 * num_records,
                        ms=ms,
                        loss=draw.uniform(2, 3),
                        norm=draw.random(),
                        rate=2048e3 / ms,
                        tflops=draw.uniform(140, 150),
                    )
                )
            text = "\n".join(lines) + "\n"
            written += file.write(text)
    return num_records


def write_big_log(path: Path, num_bytes: int) -> int:
    """The first megabytes written once, and again with other iteration numbers: drawing 2 GB of lines takes minutes."""
    num_in_piece = write_log(path, 32_000_000, NUM_NOISE_LINES)
    piece = path.read_bytes()
    num_records = 0
    with path.open("wb") as file:
        while file.tell() < num_bytes:
            file.write(re.sub(rb"iteration +(\d+)/", partial(_shifted, num_records), piece))
            num_records += num_in_piece
    return num_records


def _shifted(by: int, match: re.Match[bytes]) -> bytes:
    return b"iteration %8d/" % (int(match[1]) + by)


def plain_reader(path: Path) -> int:
    """What people write: a loop over the lines with one pattern."""
    rows = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            match = PLAIN.search(line)
            if match:
                rows.append([float(value) for value in match.groups()])
    return len(rows)


def our_reader(path: Path) -> int:
    from hpctrain.analysis.logs.reading import read_log

    return len(read_log(path).records)


def mb_per_s(read: object, path: Path, num_records: int) -> float:
    """Best of three: the machine has other work."""
    best = 0.0
    for _ in range(3):
        started = time.process_time()
        assert callable(read)
        found = read(path)
        assert found == num_records, f"{found} records, written were {num_records}"
        best = max(best, path.stat().st_size / MEGA / (time.process_time() - started))
    return best


def measure_mix(folder: Path, name: str, num_mb: int, num_noise_lines: int) -> None:
    path = folder / "log.txt"
    num_records = write_log(path, num_mb * 1_000_000, num_noise_lines)
    ours, plain = mb_per_s(our_reader, path, num_records), mb_per_s(plain_reader, path, num_records)
    print(
        f"{name:<24} {num_records:8d} records  ours {ours:6.1f} MB/s  plain loop {plain:6.1f} MB/s  ratio {ours / plain:.2f}"
    )


def measure_big(folder: Path, num_mb: int) -> None:
    path = folder / "big.log"
    num_records = write_big_log(path, num_mb * 1_000_000)
    command = [sys.executable, __file__, "--read", str(path)]
    found, peak_mb, seconds = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    size_mb = path.stat().st_size / MEGA
    print(
        f"{size_mb:.0f} MB: {found} of {num_records} records in {float(seconds):.0f} s of one core "
        f"({size_mb / float(seconds):.0f} MB/s), peak {peak_mb} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("megabytes", nargs="?", type=int, default=64)
    parser.add_argument("--big", action="store_true", help="2 GB in a process of its own, with its peak memory")
    parser.add_argument(
        "--read", metavar="FILE", help="read one file and print records, peak memory and seconds (used by --big)"
    )
    options = parser.parse_args()
    if options.read:
        found = our_reader(Path(options.read))
        usage = resource.getrusage(resource.RUSAGE_SELF)
        print(found, usage.ru_maxrss // 1000, usage.ru_utime + usage.ru_stime)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.big:
            measure_big(folder, 2000)
        else:
            measure_mix(folder, "1 record in 20 lines", options.megabytes, NUM_NOISE_LINES)
            measure_mix(folder, "records only", options.megabytes, 0)


if __name__ == "__main__":
    main()
