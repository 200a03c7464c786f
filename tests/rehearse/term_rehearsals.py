"""Rehearses a few plans in which each term of the memory is most of what one owner holds, and stores whose the bytes are.

python -m tests.rehearse.term_rehearsals                 what analysis/rehearsal_terms.csv does not have yet
python -m tests.rehearse.term_rehearsals --again WORD    cases whose name has the word, once more
"""

from __future__ import annotations

import csv
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hpctrain.plan.memory.estimate import rank_memory
from hpctrain.plan.memory.terms import MEMORY_PHASES, Amounts, MemoryPhase
from hpctrain.rehearse.compare import OWNER_OF_TERM
from hpctrain.rehearse.result import Rehearsal, read_rehearsal
from tests.plan.works import work_of
from tests.rehearse.memory_grid import run_rehearsal

STORED = Path(__file__).parents[2] / "analysis" / "rehearsal_terms.csv"
COLUMNS = ["case", "overrides", "rank", "tier", "phase", "owner", "bytes", "rehearsed_on", "torch", "deepspeed"]
_SMALL_BYTES = 2**16
"""Less is left out: tensors of a few numbers, which the planner does not count."""


@dataclass(frozen=True)
class TermCase:
    """One plan, and the rank that is rehearsed."""

    name: str
    words: tuple[str, ...]
    rank: int = 0

    @property
    def phases(self) -> tuple[MemoryPhase, ...]:
        """Below stage 3 the planner has one sum for construction and start, and does not say whose it is."""
        is_stage3 = "parallelism=zero3" in " ".join(self.words)
        return MEMORY_PHASES if is_stage3 else ("forward", "backward", "optimizer")


_BASE = "hardware=ndm_a100_v4 training.seq_len=1024 training.micro_batch_size=1 model=1.3b model.num_layers=4"
_FULL, _NONE = "training.activation_checkpointing=full", "training.activation_checkpointing=none"
_CASES = {
    "zero3": f"nodes=1 parallelism=zero3 {_NONE} training.micro_batch_size=2",
    "zero3, small vocabulary": f"nodes=1 parallelism=zero3 {_NONE} model.vocab_size=4096",
    "zero3, one block, recomputed": f"nodes=1 parallelism=zero3 {_FULL} model.vocab_size=4096 model.num_layers=1"
    " training.micro_batch_size=4",
    "zero3, many ranks": f"nodes=8 parallelism=zero3 {_FULL}",
    "zero3, second partition": f"nodes=8 parallelism=zero3 {_FULL} parallelism.hpz_partition_size=8"
    " training.gradient_accumulation_steps=2",
    "zero3, all on the host": f"nodes=1 parallelism=zero3_offload {_FULL} training.offload_activations=true",
    "zero3, on NVMe": f"nodes=1 parallelism=zero3_nvme parallelism.nvme_path=/nvme {_FULL}",
    "zero2": f"nodes=1 parallelism=zero2 {_FULL} parallelism.reduce_bucket_size=2000000",
    "zero2, optimizer on the host": f"nodes=1 parallelism=zero2 parallelism.offload_optimizer=cpu {_FULL}"
    " training.gradient_accumulation_steps=2",
    "zero2, rank of the output matrix": f"nodes=1 parallelism=zero2 {_NONE}"
    " model.tie_embeddings=false model.vocab_size=262144",
    "zero2, optimizer on the host, rank of the output matrix": f"nodes=1 parallelism=zero2 {_NONE}"
    " parallelism.offload_optimizer=cpu model.tie_embeddings=false model.vocab_size=262144",
    "ddp": f"nodes=1 parallelism=ddp {_FULL}",
    "zero1, last stage of four": f"nodes=1 parallelism=zero1 parallelism.pipeline_parallel_size=4 {_NONE}"
    " training.gradient_accumulation_steps=8",
}
_RANKS = {
    "zero2, rank of the output matrix": 7,
    "zero2, optimizer on the host, rank of the output matrix": 7,
    "zero1, last stage of four": 6,
}


def term_cases() -> Iterator[TermCase]:
    """Every plan of the file."""
    for name, words in _CASES.items():
        yield TermCase(name, tuple(f"{_BASE} {words}".split()), _RANKS.get(name, 0))


class OwnerRow(NamedTuple):
    """What one owner holds at the height of one phase of one tier, in bytes."""

    case: str
    tier: str
    phase: str
    owner: str
    rehearsed: int
    planned: Amounts
    """By term."""
    phase_bytes: int
    """Of all owners, rehearsed."""

    @property
    def planned_bytes(self) -> int:
        return sum(self.planned.values())


def rehearse_case(case: TermCase) -> list[dict[str, str]]:
    """The rows of one case.

    Raises:
        subprocess.CalledProcessError: the rehearsal failed; its text is in ``stderr``.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_rehearsal([*case.words, "--rank", str(case.rank)], Path(folder))
        return list(_rows(case, read_rehearsal(Path(folder))))


def _rows(case: TermCase, found: Rehearsal) -> Iterator[dict[str, str]]:
    same = {"case": case.name, "overrides": " ".join(case.words), "rank": str(case.rank)}
    same |= {
        "rehearsed_on": time.strftime("%Y-%m-%d"),
        **{name: found.versions[name] for name in ("torch", "deepspeed")},
    }
    for tier in ("gpu", "host"):
        for row in found.rows(tier):
            if row.phase not in case.phases:
                continue
            for owner, num_bytes in row.peak_by_owner.items():
                if num_bytes >= _SMALL_BYTES:
                    yield same | {"tier": tier, "phase": row.phase, "owner": owner, "bytes": str(num_bytes)}


def read_rows() -> dict[str, list[dict[str, str]]]:
    """Stored rows by case."""
    rows: dict[str, list[dict[str, str]]] = {}
    if STORED.exists():
        with STORED.open(newline="", encoding="utf-8") as stream:
            for row in csv.DictReader(stream):
                rows.setdefault(row["case"], []).append(row)
    return rows


def owner_rows(case: TermCase, stored: list[dict[str, str]]) -> Iterator[OwnerRow]:
    """Owners of a case, as rehearsed and as the plan's terms of the same rank, tier and phase."""
    memory = rank_memory(work_of(*case.words), case.rank)
    for tier, phases in (("gpu", memory.gpu), ("host", memory.host)):
        for phase in case.phases:
            rows = {row["owner"]: int(row["bytes"]) for row in stored if (row["tier"], row["phase"]) == (tier, phase)}
            planned: dict[str, Amounts] = {}
            for term, num_bytes in phases[phase].items():
                planned.setdefault(OWNER_OF_TERM[term], {})[term] = num_bytes
            for owner in sorted({*rows, *planned}):
                amounts = planned.get(owner, {})
                if rows.get(owner, 0) or sum(amounts.values()) >= _SMALL_BYTES:
                    yield OwnerRow(case.name, tier, phase, owner, rows.get(owner, 0), amounts, sum(rows.values()))


def main(words: list[str]) -> None:
    """Fills the file."""
    again = words[1:] if words[:1] == ["--again"] else []
    for case in term_cases():
        rows = read_rows()
        if case.name in rows and not any(word in case.name for word in again):
            continue
        started_s = time.time()
        rows[case.name] = rehearse_case(case)
        with STORED.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(row for each in term_cases() for row in rows.get(each.name, []))
        print(f"{time.time() - started_s:6.1f} s  {case.name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
