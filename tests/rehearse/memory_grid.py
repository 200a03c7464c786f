"""Rehearses a grid of plans and writes ``analysis/rehearsal_grid.csv``, against which the planner's memory is held.

    python -m tests.rehearse.memory_grid                 what the file does not have yet
    python -m tests.rehearse.memory_grid --again WORD    cases whose name has the word, once more
    python -m tests.rehearse.memory_grid --table         prints the table of analysis/REHEARSAL_GRID.md, and writes it

A case is rehearsed in a process of its own. Most models are cut to a few layers of their full width and rehearsed whole; some
have all their layers, and are rehearsed at depths from which the rehearsal extends (``--quick``).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctrain.plan.memory.terms import MEMORY_PHASES
from hpctrain.rehearse.result import Rehearsal, Tier, read_rehearsal
from tests.stored_table import Row, read_table, write_table

GRID = Path(__file__).parents[2] / "analysis" / "rehearsal_grid.csv"
DOCUMENT = GRID.with_name("REHEARSAL_GRID.md")
COLUMNS = [
    *("case", "overrides", "world_size", "parameters", "rehearsed_on", "torch", "deepspeed"),
    *(f"{tier}_{phase}_bytes" for tier in ("gpu", "host") for phase in MEMORY_PHASES),
    "pinned_bytes",
    "pinned_rounded_bytes",
]


@dataclass(frozen=True)
class Case:
    """One plan of the grid."""

    name: str
    words: tuple[str, ...]
    is_deep: bool = False
    """With all its layers."""


_MODELS = {
    "tiny gpt": "model=125m training.seq_len=256",
    "tiny llama": "model=125m model.architecture=llama model.num_kv_heads=4 model.ffn_hidden_size=2048"
    " model.tie_embeddings=false training.seq_len=256",
    "1.3b": "model=1.3b model.num_layers=8",
    "llama3 8b": "model=llama3_8b model.num_layers=4 training.seq_len=2048",
    "13b": "model=13b model.num_layers=4",
    "175b": "model=175b model.num_layers=4 training.seq_len=1024",
    "530b": "model=530b model.num_layers=3 training.seq_len=1024",
}
_STATES = {
    "ddp": "parallelism=ddp",
    "ddp fp32": "parallelism=ddp training.precision=fp32",
    "ddp fp16, tensor 8": "parallelism=ddp parallelism.tensor_parallel_size=8 training.precision=fp16",
    "zero1 fp16": "parallelism=zero1 training.precision=fp16",
    "zero3 fp16": "parallelism=zero3 training.precision=fp16",
    "zero1": "parallelism=zero1",
    "zero1 behind": "parallelism=zero1 parallelism.overlap_comm=false",
    "zero1 behind, small bucket": "parallelism=zero1 parallelism.overlap_comm=false"
    " parallelism.reduce_bucket_size=20000000",
    "zero2": "parallelism=zero2",
    "zero3": "parallelism=zero3",
    "zero1 offload": "parallelism=zero1 parallelism.offload_optimizer=cpu",
    "zero2 offload": "parallelism=zero2 parallelism.offload_optimizer=cpu",
    "zero3 offload": "parallelism=zero3_offload parallelism.offload_param=none",
    "zero3 offload all": "parallelism=zero3_offload",
    "zero3 half offload": "parallelism=zero3_offload parallelism.offload_param=none parallelism.offload_ratio=0.5",
    "zero2 small bucket": "parallelism=zero2 parallelism.reduce_bucket_size=100000000",
    "zero3 int8": "parallelism=zeropp parallelism.hpz_partition_size=8 parallelism.quantized_weights=true",
    "zero3 hpz": "parallelism=zero3 parallelism.hpz_partition_size=8",
    "tensor 8": "parallelism=tensor",
    "ulysses 8": "parallelism=ulysses",
    "pipeline 4": "parallelism=zero1 parallelism.pipeline_parallel_size=4",
}
_RECOMPUTATION = {
    "none": "training.activation_checkpointing=none",
    "selective": "training.activation_checkpointing=selective",
    "full": "training.activation_checkpointing=full",
    "full on host": "training.activation_checkpointing=full training.offload_activations=true",
}
_CHOSEN = """
tiny gpt | ddp fp32 | none | 1 | 4 | 2
1.3b | ddp | none | 1 | 2 | 1
llama3 8b | ddp | full | 1 | 1 | 1
13b | ddp fp16, tensor 8 | full | 1 | 2 | 2
1.3b | zero1 fp16 | full | 8 | 4 | 1
1.3b | zero3 fp16 | none | 1 | 2 | 2
tiny gpt | zero1 | none | 1 | 4 | 1
tiny gpt | zero1 behind | full | 1 | 1 | 1
tiny llama | zero1 behind, small bucket | full | 1 | 1 | 1
1.3b | zero1 behind | none | 8 | 2 | 1
tiny gpt | zero2 | none | 8 | 2 | 1
tiny gpt | zero3 | full | 1 | 2 | 1
tiny gpt | zero3 offload all | full on host | 1 | 1 | 2
tiny llama | zero1 | full | 1 | 2 | 1
tiny llama | zero2 offload | none | 1 | 2 | 2
tiny llama | zero3 | none | 8 | 2 | 2
1.3b | zero1 | none | 1 | 2 | 2
1.3b | zero1 | full | 8 | 4 | 1
1.3b | zero2 | none | 1 | 2 | 1
1.3b | zero2 | full | 8 | 2 | 4
1.3b | zero1 offload | full | 1 | 2 | 1
1.3b | zero2 offload | none | 8 | 2 | 2
1.3b | zero3 | none | 1 | 2 | 1
1.3b | zero3 | full | 8 | 4 | 4
1.3b | zero3 hpz | full | 8 | 2 | 1
1.3b | zero3 offload | none | 1 | 2 | 2
1.3b | zero3 half offload | full | 1 | 2 | 1
1.3b | zero3 offload all | full on host | 8 | 4 | 1
llama3 8b | zero1 | full | 8 | 1 | 1
llama3 8b | zero2 | none | 8 | 1 | 2
llama3 8b | zero3 | none | 8 | 1 | 1
llama3 8b | zero3 | full | 1 | 1 | 2
llama3 8b | zero3 offload | full on host | 8 | 2 | 1
llama3 8b | zero3 offload all | none | 8 | 1 | 2
13b | zero1 | full | 8 | 2 | 1
13b | zero2 | full | 8 | 2 | 2
13b | zero2 offload | full | 8 | 2 | 1
13b | zero3 | none | 8 | 2 | 1
13b | zero3 | full | 128 | 4 | 1
13b | zero3 half offload | full | 8 | 2 | 2
13b | zero3 offload all | full on host | 8 | 4 | 1
13b | zero3 hpz | none | 8 | 2 | 2
175b | zero2 | full | 128 | 4 | 1
175b | zero2 small bucket | full | 8 | 1 | 1
175b | zero3 int8 | full | 8 | 4 | 1
13b | zero3 int8 | none | 8 | 1 | 2
175b | zero3 | full | 128 | 16 | 1
175b | zero3 | none | 8 | 1 | 1
175b | zero3 offload | full | 8 | 8 | 2
175b | zero3 offload all | full on host | 128 | 16 | 1
530b | zero3 | full | 128 | 8 | 1
530b | zero3 | none | 128 | 2 | 2
530b | zero3 offload | full | 8 | 8 | 1
530b | zero3 offload all | full on host | 128 | 8 | 2
13b | tensor 8 | full | 8 | 2 | 1
llama3 8b | tensor 8 | none | 1 | 2 | 2
13b | ulysses 8 | full | 8 | 8 | 1
llama3 8b | ulysses 8 | none | 1 | 8 | 1
13b | pipeline 4 | none | 1 | 1 | 8
tiny gpt | zero2 | selective | 1 | 2 | 1
1.3b | zero1 | selective | 1 | 2 | 2
13b | zero3 | selective | 8 | 2 | 1
llama3 8b | zero2 | selective | 8 | 1 | 2
llama3 8b | tensor 8 | selective | 1 | 2 | 2
llama3 8b | ulysses 8 | selective | 1 | 8 | 1
"""
"""Model, places of the states, recomputation, nodes of 8 GPUs, micro batch, micro steps."""
_DEEP = """
6.7b | zero3 | none | 4 | 4 | 1
175b | zero3 | full | 128 | 16 | 1
530b | zero3 | full | 128 | 8 | 1
2t | zero3 offload all | full on host | 128 | 8 | 1
"""


def grid_cases() -> Iterator[Case]:
    """Every plan of the grid."""
    yield from _cases(_CHOSEN, is_deep=False)
    yield from _cases(_DEEP, is_deep=True)


def _cases(lines: str, is_deep: bool) -> Iterator[Case]:
    for line in lines.strip().splitlines():
        model, states, recomputation, nodes, micro, steps = (part.strip() for part in line.split("|"))
        shape = f"model={model} training.seq_len={2048 if model == '6.7b' else 1024}" if is_deep else _MODELS[model]
        words = (
            f"{shape} {_STATES[states]} {_RECOMPUTATION[recomputation]} hardware=ndm_a100_v4 nodes={nodes}"
            f" training.micro_batch_size={micro} training.gradient_accumulation_steps={steps}"
        )
        world = 8 * int(nodes)
        name = f"{model}{' deep' if is_deep else ''}, {states}, {recomputation}, {world:,} ranks, {steps} x {micro}"
        yield Case(name, tuple(words.split()), is_deep)


def rehearse_case(case: Case) -> dict[str, str]:
    """One row of the file.

    Raises:
        subprocess.CalledProcessError: the rehearsal failed; its text is in ``stderr``.
    """
    with tempfile.TemporaryDirectory() as folder:
        # The first rank, whichever needs most: so a rule for that is not held against itself.
        run_rehearsal([*case.words, "--rank", "0", *(["--quick"] if case.is_deep else [])], Path(folder))
        return _row(case, read_rehearsal(Path(folder)))


def run_rehearsal(words: Sequence[str], folder: Path) -> None:
    """``rehearse`` with these words in a process of its own, which leaves its result in the folder.

    Raises:
        subprocess.CalledProcessError: it failed; its text is in ``stderr``.
    """
    command = [sys.executable, "-m", "hpctrain", "rehearse", *words, "--out", str(folder)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)


def _row(case: Case, found: Rehearsal) -> dict[str, str]:
    row: dict[str, object] = {
        "case": case.name,
        "overrides": " ".join(case.words),
        "world_size": found.world_size,
        "parameters": found.num_parameters,
        "rehearsed_on": time.strftime("%Y-%m-%d"),
        "torch": found.versions["torch"],
        "deepspeed": found.versions["deepspeed"],
        "pinned_bytes": _highest(found, "pinned"),
        "pinned_rounded_bytes": _highest(found, "pinned_rounded"),
    }
    tiers: tuple[Tier, Tier] = ("gpu", "host")
    for tier in tiers:
        peaks = {phase.phase: phase.peak_bytes for phase in found.rows(tier)}
        row |= {f"{tier}_{phase}_bytes": peaks.get(phase, 0) for phase in MEMORY_PHASES}
    return {name: str(value) for name, value in row.items()}


def _highest(found: Rehearsal, tier: Tier) -> int:
    return max((row.peak_bytes for row in found.rows(tier)), default=0)


def read_grid() -> dict[str, Row]:
    """Stored rows by case."""
    return read_table(GRID)


def main(words: list[str]) -> None:
    """Fills the file; a failing case is named and left out."""
    if "--table" in words:
        from tests.rehearse.grid_table import write_document

        print(write_document(DOCUMENT), end="")
        return
    again = words[1:] if words[:1] == ["--again"] else []
    for case in grid_cases():
        is_stored = case.name in read_grid()
        if is_stored and not any(word in case.name for word in again):
            continue
        started_s = time.time()
        try:
            row = rehearse_case(case)
        except subprocess.CalledProcessError as error:
            print(f"FAILED {case.name}\n{error.stderr[-2000:]}", flush=True)
            continue
        write_table(GRID, COLUMNS, read_grid() | {case.name: row}, [each.name for each in grid_cases()])
        print(f"{time.time() - started_s:6.1f} s  {case.name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
