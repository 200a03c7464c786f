"""Checkpoint folders made from code, with dummy files."""

from __future__ import annotations

from pathlib import Path

from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.checkpoints import checkpoint_name
from hpctrain.record.files import write_record
from hpctrain.record.paths import RunPaths
from hpctrain.record.resume_check import parallelism_values, shape_values
from hpctrain.record.schema import SCHEMA_VERSION, CheckpointFile, CheckpointRecord

FILE_BYTES = 100


def make_record(step: int, attempt: int = 1, plan: RunPlan | None = None) -> CheckpointRecord:
    """The record of a checkpoint with a dummy file a rank; of a plan's run, or of one with two ranks."""
    world_size = plan.layout.world_size if plan else 2
    parallelism = (
        parallelism_values(plan)
        if plan
        else {"zero_stage": 3, "offload_optimizer": "none", "offload_param": "none", "sub_group_size": 10**9}
    )
    return CheckpointRecord(
        schema_version=SCHEMA_VERSION,
        step=step,
        attempt=attempt,
        job_id="7",
        saved_at_s=1.7e9,
        save_time_s=0.5,
        num_bytes=world_size * FILE_BYTES,
        world_size=world_size,
        **parallelism,
        precision=plan.precision if plan else "bf16",
        model=shape_values(plan.model) if plan else {"num_layers": 2, "tie_embeddings": True, "norm_eps": 1e-5},
        num_parameters=plan.num_parameters if plan else 1000,
        global_batch_size=plan.batch.global_batch_size if plan else 8,
        seq_len=plan.batch.seq_len if plan else 32,
        seed=1234,
        corpus_digest="abc",
        files=tuple(CheckpointFile(f"rank-{rank}.pt", FILE_BYTES, rank) for rank in range(world_size)),
        versions={"deepspeed": "0.19.8"},
    )


def make_checkpoint(
    run: RunPaths, step: int, name: str | None = None, attempt: int = 1, plan: RunPlan | None = None
) -> Path:
    """A complete checkpoint in the run folder; returns its folder."""
    folder = run.checkpoints / (name or checkpoint_name(step))
    folder.mkdir(parents=True)
    record = make_record(step, attempt, plan)
    for file in record.files:
        (folder / file.name).write_bytes(b"x" * file.num_bytes)
    write_record(folder / "complete.json", record)
    return folder
