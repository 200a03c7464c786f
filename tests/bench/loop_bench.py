"""The worker's loop beside a bare DeepSpeed loop: same ranks, engine and data, in alternating blocks of steps.

``python tests/bench/loop_bench.py [BLOCKS]`` trains model=tiny with ZeRO-3 on two CPU ranks and prints the medians of a step and
their ratio; the aim is at most 1.03.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hpctrain.config.compose import compose_points
from hpctrain.plan.run_plan import build_run_plan

STEPS_A_BLOCK = 20
NUM_RANKS = 2
OVERRIDES = ["model=tiny", "cluster=local", "parallelism=zero3", "data=synthetic"]


def main() -> None:
    blocks = sys.argv[1] if len(sys.argv) > 1 else "10"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(NUM_RANKS):
        env = {
            **os.environ,
            **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
            **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"), str(NUM_RANKS)),
            "CROSS_RANK": "0",
            "CROSS_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "PYTHONWARNINGS": "ignore",
        }
        ranks.append(subprocess.Popen([sys.executable, __file__, "--rank", blocks], env=env))
    sys.exit(max(abs(rank.wait()) for rank in ranks))


def bench_rank(num_blocks: int) -> None:
    """Alternates the two loops; rank 0 prints."""
    import torch
    import torch.distributed as dist

    from hpctrain.record.writer import StepWriter
    from hpctrain.worker.data.batches import TokenBatches
    from hpctrain.worker.data.corpus import load_corpus
    from hpctrain.worker.data.micro_batches import MicroBatchStream
    from hpctrain.worker.engine import build_engine
    from hpctrain.worker.loop import train
    from hpctrain.worker.step_log import StepLog
    from hpctrain.worker.stop_signal import StopSignal

    torch.set_num_threads(1)
    (point,) = compose_points(OVERRIDES, multirun=False)
    plan = dataclasses.replace(build_run_plan(point.config), num_steps=STEPS_A_BLOCK)
    training = point.config.training
    dist.init_process_group("gloo")
    rank, device = dist.get_rank(), torch.device("cpu")
    corpus = load_corpus(point.config.data, plan.model.vocab_size, plan.batch.seq_len, training.seed)
    engine = build_engine(plan, training.weight_decay, training.seed, device)
    batches = TokenBatches(corpus.training, plan.batch, rank, NUM_RANKS)
    stop = StopSignal()

    def bare() -> None:
        for step in range(1, STEPS_A_BLOCK + 1):
            ids, labels = (torch.from_numpy(part) for part in batches.micro_batch(step, 0))
            engine.backward(engine(ids, labels))
            engine.step()

    def ours() -> None:
        writer = StepWriter(Path(folder) / "steps.jsonl") if rank == 0 else None
        with MicroBatchStream(batches, 1, STEPS_A_BLOCK, device) as data:
            train(engine, plan, training, data, StepLog(writer, 1, device), stop)

    loops = {"bare DeepSpeed loop": bare, "hpctrain's loop": ours}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w", encoding="utf-8") as nowhere:
        for block in range(num_blocks + 1):
            for name, loop in loops.items():
                seconds_of_block = _timed(loop, nowhere)
                if block:  # the first of each warms up
                    seconds[name].append(seconds_of_block / STEPS_A_BLOCK)
    if rank == 0:
        _report(seconds, num_blocks)
    sys.stdout.flush()
    os._exit(0)  # see hpctrain.worker.job._leave


def _timed(loop: Any, nowhere: Any) -> float:
    import torch.distributed as dist

    dist.barrier()
    printed, sys.stdout = sys.stdout, nowhere
    started = time.perf_counter()
    loop()
    dist.barrier()
    elapsed = time.perf_counter() - started
    sys.stdout = printed
    return elapsed


def _report(seconds: dict[str, list[float]], num_blocks: int) -> None:
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, median in medians.items():
        print(f"{name:<20} {median * 1e3:7.2f} ms a step  (median of {num_blocks} blocks of {STEPS_A_BLOCK} steps)")
    bare, ours = seconds.values()
    ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, bare, strict=True))
    print(f"ratio {ratio:.3f} (median over neighbouring blocks), aim at most 1.03")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        bench_rank(int(sys.argv[2]))
    else:
        main()
