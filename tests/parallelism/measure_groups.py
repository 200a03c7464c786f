"""Trains every row of analysis/PARALLELISM.md and stores what was measured in ``analysis/parallelism.csv``.

python -m tests.parallelism.measure_groups                what the file does not have yet, and the table
python -m tests.parallelism.measure_groups --again WORD   rows whose name has the word, once more; all: every row
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from hpctrain.config.schema import Config
from hpctrain.plan.run_plan import RunPlan, build_run_plan, with_memory_of
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import StepRecord
from tests.native_ops import ASYNC_IO, CPU_ADAM, build_once
from tests.parallelism.group_cases import CASES, NUM_SEQUENCES, REFERENCE, GroupCase
from tests.parallelism.group_rank import GRADIENTS
from tests.rehearse.rehearsals import rehearse
from tests.stored_table import Row, read_table, write_table
from tests.worker.reference import ReferenceStep, reference_gradients, reference_steps
from tests.worker.run_folder import make_run, start_ranks, step_records

STORED = Path(__file__).parents[2] / "analysis" / "parallelism.csv"
DOCUMENT = STORED.with_name("PARALLELISM.md")
COLUMNS = [
    *("case", "overrides", "ranks", "precision", "gpu_only", "steps"),
    *("loss_difference", "norm_difference", "gradient_difference"),
    *("parameters", "planned_parameters", "flops", "planned_flops"),
    *("rank", "measured_bytes", "planned_bytes", "measured_on", "torch", "deepspeed"),
]
_RANK = "import sys; from tests.parallelism.group_rank import run; run(sys.argv[1])"


def measure(case: GroupCase) -> dict[str, str]:
    """One row of the file.

    Raises:
        AssertionError: the plan refuses it, or its ranks did not run to their end; the text has their logs.
    """
    found = _rehearsed(case) if case.is_gpu_only else _trained(case)
    found |= {"case": case.name, "overrides": " ".join(case.words(case.is_gpu_only))}
    found |= {name: version(name) for name in ("torch", "deepspeed")} | {"measured_on": time.strftime("%Y-%m-%d")}
    return {name: str(found.get(name, "")) for name in COLUMNS}


def _trained(case: GroupCase) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="hpctrain-test-") as name:
        folder = Path(name)
        config = case.config(folder)
        if "nvme" in (config.parallelism.offload_optimizer, config.parallelism.offload_param):
            build_once(ASYNC_IO)
        if config.parallelism.offload_optimizer == "cpu":
            build_once(CPU_ADAM)
        plan = _plan(config)
        run = make_run(folder, config)
        torch.save(_reference()[1], run.root / GRADIENTS)
        with start_ranks(run, case.ranks, command=_RANK) as ranks:
            assert ranks.wait() == [0] * case.ranks, ranks.logs()
        return _compared(run, plan, config, case.ranks)


def _compared(run: RunPaths, plan: RunPlan, config: Config, num_ranks: int) -> dict[str, object]:
    records, reference = step_records(run), _reference()[0]
    found = [json.loads((run.root / f"found-{rank}.json").read_text()) for rank in range(num_ranks)]
    memory = [(rank, found[rank]["bytes"], planned_bytes(rank, plan, config)) for rank in range(num_ranks)]
    rank, measured, planned = max(memory, key=lambda each: abs(each[2] / each[1] - 1))
    sizes = {name: size for each in found for name, size in each["parameters"].items()}
    return {
        "ranks": num_ranks,
        "precision": plan.precision,
        "steps": len(records),
        "loss_difference": _largest(records, reference, "loss"),
        "norm_difference": _largest(records, reference, "grad_norm"),
        "gradient_difference": f"{max(each['gradients'] for each in found):.2e}",
        "parameters": sum(sizes.values()),
        "planned_parameters": plan.num_parameters,
        "flops": sum(each["flops"] for each in found),
        "planned_flops": int(plan.flops_per_step.hardware_flops),
        "rank": rank,
        "measured_bytes": measured,
        "planned_bytes": planned,
    }


def planned_bytes(rank: int, plan: RunPlan, config: Config) -> int:
    """Of one CPU rank at its height."""
    return max(peak.host_bytes for peak in with_memory_of(rank, plan, config).memory.phases)


def _largest(records: list[StepRecord], reference: list[ReferenceStep], field: str) -> str:
    """Difference over all steps, as a share of the reference's value."""
    pairs = [(getattr(ours, field), getattr(theirs, field)) for ours, theirs in zip(records, reference, strict=True)]
    return f"{max(abs(ours / theirs - 1) for ours, theirs in pairs):.2e}"


def _rehearsed(case: GroupCase) -> dict[str, object]:
    """Of rank 0 on simulated GPUs, with the reason why no CPU rank trains it, which is what the plan says of CPU ranks."""
    reasons = [problem.rule for problem in build_run_plan(case.config()).problems]
    assert len(reasons) == 1, reasons
    config = case.config(on_gpus=True)
    plan = _plan(config)
    found = rehearse(plan)
    peak = found.peak("gpu")
    assert peak is not None
    planned = max(phase.gpu_bytes for phase in with_memory_of(0, plan, config).memory.phases)
    return {
        "ranks": plan.layout.world_size,
        "precision": plan.precision,
        "gpu_only": reasons[0],
        "parameters": found.num_parameters,
        "planned_parameters": plan.num_parameters,
        "flops": found.flops.counted - found.flops.scores_again,
        "planned_flops": int(found.flops.planned),
        "rank": 0,
        "measured_bytes": peak.peak_bytes,
        "planned_bytes": planned,
    }


def _plan(config: Config) -> RunPlan:
    plan = build_run_plan(config)
    assert not plan.problems, plan.problems
    return plan


@cache
def _reference() -> tuple[list[ReferenceStep], dict[str, torch.Tensor]]:
    """Steps and first gradients of one process."""
    config = REFERENCE.config()
    plan = _plan(config)
    assert plan.batch.global_batch_size == NUM_SEQUENCES
    return reference_steps(config), reference_gradients(config)


def read_rows() -> dict[str, Row]:
    """Stored rows by name."""
    return read_table(STORED)


def main(words: list[str]) -> None:
    """Fills the file and writes the table; a row that fails is named and left out."""
    from tests.parallelism.group_table import document

    again = words[1:] if words[:1] == ["--again"] else []
    for name, case in CASES.items():
        if name in read_rows() and not any(word == "all" or word in name for word in again):
            continue
        started_s = time.time()
        try:
            row = measure(case)
        except AssertionError as error:
            print(f"FAILED {name}\n{str(error)[-3000:]}", flush=True)
            continue
        write_table(STORED, COLUMNS, read_rows() | {name: row}, CASES)
        print(f"{time.time() - started_s:6.1f} s  {name}", flush=True)
    DOCUMENT.write_text(document(read_rows()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
