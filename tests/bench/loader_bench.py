"""Tokens a second of the loader beside bare copies out of the same memory map and beside torch's DataLoader, in turns.

``python -m tests.bench.loader_bench [ROUNDS]`` makes a token file of 2**27 tokens (256 MiB, uint16), reads it once, so that it is
in the page cache, and prints medians. The aims: at least 20 million tokens a second in one process, and at most 1 % of a step of
the 1.3B model spent on reading, where the step is the planner's prediction.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from hpctrain.config.compose import compose_points
from hpctrain.config.schema import DataConfig
from hpctrain.plan.layout import Batch
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.worker.data.batches import TokenBatches
from hpctrain.worker.data.corpus import load_corpus
from hpctrain.worker.data.micro_batches import MicroBatchStream
from hpctrain.worker.data.sequences import Sequences, Tokens
from tests.token_files import write_tokens

NUM_TOKENS, SEQ_LEN, MICRO, VOCAB = 2**27, 2048, 8, 50304
WIDTH = SEQ_LEN + 1
BATCHES_A_ROUND = 400
HARDWARE = ("hgx_h200", "dgx_h100", "ndm_a100_v4")
AIM_TOKENS_PER_S, AIM_SHARE = 20e6, 0.01


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """What one writes by hand for a DataLoader: item i is window i."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens) // WIDTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = torch.from_numpy(self.tokens[index * WIDTH : (index + 1) * WIDTH].astype(np.int64))
        return window[:-1], window[1:]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        random = np.random.default_rng(1)
        prefix = write_tokens(
            Path(folder, "tokens"), random.integers(0, VOCAB, NUM_TOKENS, np.uint16), tokenizer="t", vocab_size=VOCAB
        )
        started_s = time.perf_counter()
        training = load_corpus(DataConfig("x", "tokens", str(prefix)), VOCAB, SEQ_LEN, seed=1).training
        print(f"open and check a file of {NUM_TOKENS:,} tokens: {(time.perf_counter() - started_s) * 1e3:.1f} ms")
        int(training.parts[0].tokens.max())  # into the page cache
        report(compare(training, rounds))


def compare(training: Sequences, rounds: int) -> dict[str, list[float]]:
    """Tokens a second of each way of reading, by round."""
    batch = Batch(MICRO, 1, MICRO * 8, SEQ_LEN)
    ways: dict[str, Callable[[int], int]] = {
        "bare copies": lambda start: bare(training.parts[0].tokens, start),
        "loader": lambda start: ours(TokenBatches(training, batch, 3, 8), start),
        "loader, in its thread": lambda start: in_thread(TokenBatches(training, batch, 3, 8), start),
        "DataLoader, 0 workers": lambda start: dataloader(training.parts[0].tokens, 0),
        "DataLoader, 1 worker": lambda start: dataloader(training.parts[0].tokens, 1),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, read in ways.items():
            started_s = time.perf_counter()
            tokens = read(1 + number * BATCHES_A_ROUND)
            if number:  # the first round warms up
                found[name].append(tokens / (time.perf_counter() - started_s))
    return found


def bare(tokens: Tokens, start: int) -> int:
    """Copies of windows in an order that is known before; no check, no shuffle."""
    windows = np.random.default_rng(start).integers(0, len(tokens) // WIDTH, BATCHES_A_ROUND * MICRO).tolist()
    for first in range(0, len(windows), MICRO):
        ids, labels = np.empty((MICRO, SEQ_LEN), np.int64), np.empty((MICRO, SEQ_LEN), np.int64)
        for row, window in enumerate(windows[first : first + MICRO]):
            ids[row] = tokens[window * WIDTH : window * WIDTH + SEQ_LEN]
            labels[row] = tokens[window * WIDTH + 1 : (window + 1) * WIDTH]
    return BATCHES_A_ROUND * MICRO * SEQ_LEN


def ours(batches: TokenBatches, start: int) -> int:
    for step in range(start, start + BATCHES_A_ROUND):
        batches.micro_batch(step, 0)
    return BATCHES_A_ROUND * MICRO * SEQ_LEN


def in_thread(batches: TokenBatches, start: int) -> int:
    """As the training loop takes them, with nothing to do in between."""
    with MicroBatchStream(batches, start, start + BATCHES_A_ROUND, torch.device("cpu")) as stream:
        for step in range(start, start + BATCHES_A_ROUND):
            next(stream.step(step))
    return BATCHES_A_ROUND * MICRO * SEQ_LEN


def dataloader(tokens: Tokens, num_workers: int) -> int:
    loader = DataLoader(Windows(tokens), batch_size=MICRO, shuffle=True, num_workers=num_workers)
    taken: Iterator[list[torch.Tensor]] = iter(loader)
    for _ in range(BATCHES_A_ROUND):
        next(taken)
    return BATCHES_A_ROUND * MICRO * SEQ_LEN


def report(found: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(values) for name, values in found.items()}
    for name, median in medians.items():
        ratio = statistics.median(mine / base for mine, base in zip(found[name], found["bare copies"], strict=True))
        print(f"{name:<24} {median / 1e6:7.1f} million tokens/s  {ratio:5.2f} x bare copies")
    ours = medians["loader"]
    print(
        f"aim: at least {AIM_TOKENS_PER_S / 1e6:.0f} million tokens/s: {'reached' if ours >= AIM_TOKENS_PER_S else 'MISSED'}"
    )
    print(
        "share of a step of the 1.3B model that reading takes, without the thread that hides it (step time: prediction):"
    )
    for hardware in HARDWARE:
        (point,) = compose_points(["model=1.3b", "parallelism=zero3", f"hardware={hardware}"], multirun=False)
        plan = build_run_plan(point.config)
        assert plan.prediction is not None
        tokens = plan.batch.tokens_per_step / plan.layout.data_parallel_degree
        share = tokens / ours / plan.prediction.step_time_s
        verdict = "reached" if share <= AIM_SHARE else "MISSED"
        work = f"{tokens:,.0f} tokens a rank in {plan.prediction.step_time_s * 1e3:.0f} ms"
        print(f"  {hardware:<12} {work}: {share:.3%}, aim at most {AIM_SHARE:.0%}: {verdict}")


if __name__ == "__main__":
    main()
