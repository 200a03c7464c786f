"""Logs of other systems: MB/s of ``read_log`` on one core, by format, and the memory of all that is made of a log.

``python tests/bench/log_bench.py [MB]`` writes a composed log of that size (default 32) for each format, one record in twenty
lines, and two of Megatron's records only, in one of which the width of numbers changes; beside it stands a loop of
``re.search`` over ``open()``. The aim is 50 MB/s.
``--big`` reads a 2 GB log in a process of its own and prints its peak memory, and that of reading and then finding conditions,
making runs of it, and writing its JSON; the aim is 500 MB. ``--dense`` makes that log of records only: 5 million in 2 GB.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

MEGA = 1e6
NUM_NOISE_LINES = 19
NUM_DIFFERENT_NOISE_LINES = 20_000
NUM_WRITTEN_AT_ONCE = 2000
NOISE = (
    "node{a:02d}:{b}:{c} [{d}] NCCL INFO Channel {a:02d} : {d}[88000] -> 7[88000] [send] via NET/IB/3",
    "[2021-05-27 19:54:20,{c}] [INFO] [state.py:60:show] [Rank {a}] gathered {b} pieces of shard {d}",
    "/opt/env/lib/python3.10/site-packages/torch/nn/modules/module.py:{b}: UserWarning: non-full backward hooks are used",
    "  warnings.warn('the current process just got forked after parallelism has been used, {c}')",
    "[W socket.cpp:{b}] [c10d] The client socket cannot be initialized to connect to [node{a:02d}]:29500 (errno: 97).",
    "> rank {a} builds dataset index {d} with {c} documents in {b} blocks",
    "Killing subprocess {c}",
)
RECORDS = {
    "megatron": " iteration {i:8d}/  999999 | consumed samples: {samples:12d} | consumed tokens: {tokens:14d} "
    "| elapsed time per iteration (ms): {ms:.1f} | learning rate: 5.279E-05 | global batch size:  2048 "
    "| lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {norm:.3f} | num zeros: 0.0 "
    "| number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: {rate:.3f} "
    "| TFLOPs: {tflops:.2f} |",
    "torchtitan": "[rank0]:2025-11-02 08:00:09,200 - root - INFO - step: {i:2d}  loss: {loss:7.4f}  grad_norm: {norm:7.4f}  "
    "memory: 40.12GiB(50.66%)  tps: 5,204  tflops: {tflops:.2f}  mfu: 30.48%",
    "nanotron": "09/04/2025 05:21:56 [INFO|DP=0|PP=1|TP=0]: iteration: {i} / 999999 | consumed_tokens: 55.2G "
    "| elapsed_time_per_iteration_ms: 12.5K | tokens_per_sec: 41.9K | tokens_per_sec_per_gpu: 20.9K | global_batch_size: 64 "
    "| lm_loss: {loss:.3f} | lr: 1e-05 | model_tflops_per_gpu: {tflops:.3f} | hardware_tflops_per_gpu: 59.5 "
    "| grad_norm: {norm:.3f}",
    "hf-trainer": "{{'loss': {loss:.4f}, 'grad_norm': {norm:.6f}, 'learning_rate': 4.9e-05, 'epoch': {epoch:.2f}}}",
    "nanogpt": "iter {i}: loss {loss:.4f}, time {ms:.2f}ms, mfu 31.20%",
    "maxtext": "completed step: {i}, seconds: {norm:.3f}, TFLOP/s/device: {tflops:.3f}, Tokens/s/device: 9806.310, "
    "total_weights: 131072, loss: {loss:.3f}",
    "deepspeed engine": "[2022-11-26 03:07:16,494] [INFO] [logging.py:69:log_dist] [Rank 0] step={i}, skipped=5, "
    "lr=[0.001, 0.001], mom=[[0.9, 0.999], [0.9, 0.999]]\n"
    "[2022-11-26 03:07:16,494] [INFO] [timer.py:193:stop] epoch=0/micro_step={i}/global_step={i}, "
    "RunningAvgSamplesPerSec={rate:.4f}, CurrSamplesPerSec={rate:.4f}, MemAllocated=6.01GB, MaxMemAllocated=19.52GB\n"
    "[2022-11-26 03:07:16,494] [INFO] [logging.py:69:log_dist] [Rank 0] rank=0 time (ms) | forward: {ms:.2f} "
    "| backward: {ms:.2f} | backward_inner: {ms:.2f} | backward_allreduce: 0.00 | step: {norm:.2f}",
    "nemo bars": "\rEpoch 0:   8%|8         | {i}/999999 [2:01:44<23:00:12,  6.08s/it, v_num=1, reduced_train_loss={loss:.3f}, "
    "global_step=1200.0, consumed_samples=1.54e+5, train_step_timing in s={norm:.3f}]",
    "nemo lines": "0: Training epoch 0, iteration {i}/999999 | lr: 2.7e-06 | global_batch_size: 512 | global_step: {i} "
    "| max_memory_reserved: 96636764160 | max_memory_allocated: 85899345920 | reduced_train_loss: {loss:.2f} "
    "| train_step_timing in s: {norm:.3f} | TFLOPS_per_GPU: {tflops:.2f} | consumed_samples: {samples}",
}
RECORDS_OF_CHANGING_WIDTH = (
    RECORDS["megatron"]
    .replace("{ms:.1f}", "{near_ms:.1f}")
    .replace("{rate:.3f}", "{near_rate:.3f}")
    .replace("{norm:.3f}", "{near_norm:.3f}")
)
"""Megatron's, where two numbers now and then get one digit more."""
PLAIN = re.compile(
    r"iteration\s+(\d+)/.*?elapsed time per iteration \(ms\): ([\d.]+).*?learning rate: (\S+).*?lm loss: (\S+)"
    r".*?grad norm: (\S+).*?TFLOPs: ([\d.]+)"
)


def composed_records(wording: str, draw: random.Random) -> Iterator[str]:
    """The lines of one record after the other."""
    for i in count(1):
        ms = draw.uniform(104_000, 112_000)
        near_ms = draw.uniform(980, 1020)
        yield wording.format(
            i=i,
            samples=2048 * i,
            tokens=2048**2 * i,
            ms=ms,
            loss=draw.uniform(2, 3),
            norm=draw.uniform(0.1, 1),
            rate=2048e3 / ms,
            tflops=draw.uniform(140, 150),
            epoch=i / 100,
            near_ms=near_ms,
            near_rate=2048e3 / near_ms,
            near_norm=draw.uniform(9, 11),
        )


def write_log(path: Path, num_bytes: int, wording: str, num_noise_lines: int) -> int:
    """A log of at least ``num_bytes``; gives the number of records. Noise lines are drawn once and come again.

    ``num_noise_lines`` is for each line of a record.
    """
    draw = random.Random(1)
    num_noise_lines *= 1 + wording.count("\n")
    noise = [
        draw.choice(NOISE).format(a=draw.randrange(64), b=draw.randrange(9999), c=draw.randrange(99999), d=1)
        for _ in range(NUM_DIFFERENT_NOISE_LINES)
    ]
    records = composed_records(wording, draw)
    num_records = written = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        while written < num_bytes:
            lines = []
            for _ in range(NUM_WRITTEN_AT_ONCE):
                start = draw.randrange(len(noise) - num_noise_lines)
                lines += noise[start : start + num_noise_lines]
                lines.append(next(records))
            num_records += NUM_WRITTEN_AT_ONCE
            written += file.write("\n".join(lines) + "\n")
    return num_records


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


def reader_with_conditions(path: Path) -> int:
    from hpctrain.analysis.logs.conditions import find_conditions
    from hpctrain.analysis.logs.reading import read_log

    reading = read_log(path)
    find_conditions(reading)
    return len(reading.records)


def reader_with_runs(path: Path) -> int:
    from hpctrain.analysis.logs.log_runs import log_runs
    from hpctrain.analysis.logs.reading import read_log

    return sum(len(run.steps) for run in log_runs(read_log(path), path))


def json_writer(path: Path) -> int:
    from hpctrain.analysis.logs.log_json import write_log_json
    from hpctrain.analysis.logs.reading import read_log

    reading = read_log(path)
    with open(os.devnull, "w", encoding="utf-8") as file:
        write_log_json(reading, file)
    return len(reading.records)


READERS: dict[str, Callable[[Path], int]] = {
    "read": our_reader,
    "conditions": reader_with_conditions,
    "runs": reader_with_runs,
    "json": json_writer,
}


def mb_per_s(read: Callable[[Path], int], path: Path, num_records: int) -> float:
    """Best of three: the machine has other work."""
    best = 0.0
    for _ in range(3):
        started = time.process_time()
        found = read(path)
        assert found == num_records, f"{found} records, written were {num_records}"
        best = max(best, path.stat().st_size / MEGA / (time.process_time() - started))
    return best


def measure_formats(folder: Path, num_mb: int) -> None:
    print(f"{'format':<18} {'mix':<9} {'records':>8} {'MB/s':>6}   of one core, {num_mb} MB")
    mixes = [(name, wording, NUM_NOISE_LINES) for name, wording in RECORDS.items()]
    mixes += [("megatron", RECORDS["megatron"], 0), ("megatron widths", RECORDS_OF_CHANGING_WIDTH, 0)]
    for name, wording, num_noise_lines in mixes:
        path = folder / "log.txt"
        num_records = write_log(path, num_mb * 1_000_000, wording, num_noise_lines)
        mix = f"1 in {num_noise_lines + 1}" if num_noise_lines else "all"
        print(f"{name:<18} {mix:<9} {num_records:8d} {mb_per_s(our_reader, path, num_records):6.0f}", end="")
        if name == "megatron":
            print(f"   a loop of re.search: {mb_per_s(plain_reader, path, num_records):.0f}", end="")
        print(flush=True)


def measure_big(folder: Path, num_mb: int, num_noise_lines: int) -> None:
    path = folder / "big.log"
    num_records = write_log(path, num_mb * 1_000_000, RECORDS["megatron"], num_noise_lines)
    size_mb = path.stat().st_size / MEGA
    for work in READERS:
        command = [sys.executable, __file__, "--work", work, "--file", str(path)]
        found, peak_mb, seconds = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        print(
            f"{work:<20} {size_mb:.0f} MB: {found} of {num_records} records in {float(seconds):.0f} s of one core "
            f"({size_mb / float(seconds):.0f} MB/s), peak {peak_mb} MB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("megabytes", nargs="?", type=int, help="size of each log (32; with --big 2000)")
    parser.add_argument(
        "--big", action="store_true", help="a long log in processes of their own, with their peak memory"
    )
    parser.add_argument("--dense", action="store_true", help="with --big: records only")
    parser.add_argument(
        "--work", choices=READERS, help="with --file: print records, peak MB and seconds (used by --big)"
    )
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    if options.work:
        found = READERS[options.work](options.file)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        print(found, usage.ru_maxrss // 1000, usage.ru_utime + usage.ru_stime)
        return
    with tempfile.TemporaryDirectory() as name:
        if options.big:
            measure_big(Path(name), options.megabytes or 2000, 0 if options.dense else NUM_NOISE_LINES)
        else:
            measure_formats(Path(name), options.megabytes or 32)


if __name__ == "__main__":
    main()
