"""``prepare`` beside the bare tokenizer: MB of text a second of one core, from the same file, in one run.

``python tests/bench/prepare_bench.py [--mb 24] [--bytes-mb 240] [--rounds 3]`` writes JSON lines of the standard library's
source, trains a BPE of 8,192 on a part of it, and times in turn: the bare tokenizer (``encode_batch_fast`` over the same texts,
read before, one thread, one process) and the whole command ``prepare --workers 1`` (start, reading, checks, checksums, files).
Of bytes the other side is a plain loop that reads the lines, converts them with numpy and writes the ids, without checks and
checksums. What is compared is processor time of all processes together, so that other work on the machine counts for neither;
wall-clock time is printed beside it. The aim is at least 0.9 of the bare tokenizer.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

VOCAB_SIZE = 8192
BARE = """
import json, os, sys, time
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
texts = [json.loads(line)["text"] for line in open(sys.argv[2], encoding="utf-8")]
start_s, cpu_s = time.perf_counter(), time.process_time()
for first in range(0, len(texts), 64):
    tokenizer.encode_batch_fast(texts[first : first + 64], add_special_tokens=False)
print(json.dumps([time.perf_counter() - start_s, time.process_time() - cpu_s]))
"""
BARE_BYTES = """
import json, sys, time
import numpy as np
start_s, cpu_s = time.perf_counter(), time.process_time()
with open(sys.argv[2], encoding="utf-8") as lines, open(sys.argv[2] + ".ids", "wb") as ids:
    for line in lines:
        ids.write(np.frombuffer(json.loads(line)["text"].encode(), np.uint8).astype(np.uint16).tobytes())
print(json.dumps([time.perf_counter() - start_s, time.process_time() - cpu_s]))
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=float, default=24)
    parser.add_argument("--bytes-mb", type=float, default=240)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="prepare-bench-") as folder:
        root = Path(folder)
        corpus, large, tokenizer = root / "corpus.jsonl", root / "large.jsonl", root / "tokenizer.json"
        sizes_mb = {
            path: make_corpus(path, mb * 1e6) / 1e6
            for path, mb in ((corpus, arguments.mb), (large, arguments.bytes_mb))
        }
        train(corpus, tokenizer)
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; MB of text a second")
        for name, path, bare, words in (
            (f"BPE of {VOCAB_SIZE:,}", corpus, BARE, ["--tokenizer", str(tokenizer)]),
            ("bytes", large, BARE_BYTES, ["--tokenizer", "bytes"]),
        ):
            of_bare, of_prepare = [], []
            for number in range(arguments.rounds):
                of_bare.append(run_bare(bare, tokenizer, path))
                of_prepare.append(run_prepare(path, root / f"{name.split()[0]}{number}", words))
            show(name, sizes_mb[path], of_bare, of_prepare)


def make_corpus(path: Path, num_bytes: float) -> int:
    """JSON lines of source files, again and again till there is enough; returns the bytes of the texts."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [file.read_text(encoding="utf-8") for file in files]
    done = 0
    with path.open("w", encoding="utf-8") as stream:
        while done < num_bytes:
            for text in texts:
                stream.write(json.dumps({"text": text}) + "\n")
                done += len(text.encode())
                if done >= num_bytes:
                    break
    return done


def train(corpus: Path, tokenizer: Path) -> None:
    from hpctrain.tokens.tokenizer import train_bpe

    with corpus.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line, _ in zip(lines, range(60), strict=False)]
    tokenizer.write_text(train_bpe(texts, VOCAB_SIZE), encoding="utf-8")


def run_bare(code: str, tokenizer: Path, corpus: Path) -> tuple[float, float]:
    """Wall-clock and processor seconds of the conversion alone, by the process itself."""
    command = [sys.executable, "-c", code, str(tokenizer), str(corpus)]
    wall_s, cpu_s = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return wall_s, cpu_s


def run_prepare(corpus: Path, prefix: Path, words: list[str]) -> tuple[float, float]:
    """Wall-clock and processor seconds of the whole command, its worker included."""
    command = [sys.executable, "-m", "hpctrain", "prepare", str(corpus), "--out", str(prefix), "--workers", "1", *words]
    before, start_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).resolve().parents[2])
    wall_s, after = time.perf_counter() - start_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def show(name: str, text_mb: float, bare: list[tuple[float, float]], ours: list[tuple[float, float]]) -> None:
    for side, seconds in (("bare", bare), ("prepare", ours)):
        wall_s, cpu_s = (statistics.median(times) for times in zip(*seconds, strict=True))
        print(
            f"{name:<13} {side:<8} {text_mb / cpu_s:8.2f} MB/s of processor time, {text_mb / wall_s:8.2f} by the clock"
        )
    ratios = [plain[1] / own[1] for plain, own in zip(bare, ours, strict=True)]
    aim = "" if name == "bytes" else ", aim at least 0.9"
    print(f"{name:<13} ratio    {statistics.median(ratios):8.2f} (median of {len(ratios)} pairs){aim}")


if __name__ == "__main__":
    main()
