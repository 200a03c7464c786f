"""Going on from a checkpoint: every start looks into the run folder first."""

from __future__ import annotations

import glob
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hpctrain.plan.checkpoint_size import room_problem
from hpctrain.plan.layout import Layout
from hpctrain.record.checkpoints import Checkpoint, Checkpoints, read_checkpoints, remove_unfinished, told
from hpctrain.record.resume_check import resume_problems
from hpctrain.record.schema import CheckpointFile, CheckpointRecord
from hpctrain.worker.checkpoint_files import RankFiles
from hpctrain.worker.end_reasons import CheckpointError
from hpctrain.worker.partial_offload import join_optimizers
from hpctrain.worker.rank_start import Rank


@dataclass(frozen=True)
class Loaded:
    """Where the run goes on."""

    step: int
    """Of the checkpoint; 0: there was none."""
    rejected: tuple[Path, ...]
    """Newer ones that look complete and could not be loaded."""


def load_newest(engine: Any, rank: Rank, corpus_digest: str, files: RankFiles) -> Loaded:
    """Loads the newest checkpoint that can be loaded; a collective of all ranks.

    Raises:
        CheckpointError: the newest belongs to another plan or text, or there are some and none can be loaded.
        RecordError: rank 0 cannot look into the folder.
    """
    found = _found_by_rank_0(rank)
    errors: list[str] = []
    rejected: list[Path] = []
    for checkpoint in reversed(found.complete):
        if problems := resume_problems(checkpoint, rank.plan, rank.config.training.seed, corpus_digest):
            raise CheckpointError("\n".join(map(str, problems)))
        error = _load(engine, rank, checkpoint, files)
        if not error:
            _tell(rank, f"goes on after step {checkpoint.step} of {rank.plan.num_steps} ({checkpoint.folder.name})")
            return Loaded(checkpoint.step, tuple(rejected))
        rejected.append(checkpoint.folder)
        errors.append(f"{checkpoint.folder.name}: {error}")
        _tell(rank, f"warning: {checkpoint.folder.name} cannot be loaded: {error}; the next older one is tried")
    errors += [f"{unusable.folder.name}: {unusable.reason}" for unusable in found.unusable if unusable.was_complete]
    if errors:
        raise CheckpointError(
            f"none of the checkpoints in {rank.paths.checkpoints} can be loaded, and the run does not begin at step 1 again"
            f" unasked; resume RUN --from-step 0 sets them aside. {'; '.join(errors)}"
        )
    return Loaded(0, ())


def check_room(rank: Rank) -> None:
    """Raises CheckpointError on rank 0 where there is no room for the run's checkpoints."""
    if rank.env.rank != 0 or not rank.config.training.check_checkpoint_room:
        return
    complete = read_checkpoints(rank.paths).complete
    after_step = complete[-1].step if complete else 0
    free_bytes = shutil.disk_usage(rank.paths.root).free
    problem = room_problem(rank.plan, rank.config.training, str(rank.paths.root), free_bytes, len(complete), after_step)
    if problem is not None:
        raise CheckpointError(str(problem))


def _found_by_rank_0(rank: Rank) -> Checkpoints:
    """What rank 0 sees, on all ranks: a shared file system may show others less for a while."""
    answer: list[Checkpoints | None] = [None]
    if rank.env.rank == 0:
        try:
            removed = remove_unfinished(rank.paths)
        except OSError as error:
            _tell(rank, f"warning: {error.filename}: {error.strerror}; unfinished checkpoints stay")
        else:
            if removed:
                _tell(rank, f"removed unfinished {', '.join(folder.name for folder in removed)}")
        found = read_checkpoints(rank.paths)
        if found.unusable:
            reasons = "; ".join(checkpoint.reason for checkpoint in found.unusable)
            _tell(rank, f"warning: not usable: {told(found.unusable)}: {reasons}")
        answer = [found]
    dist.broadcast_object_list(answer, src=0)
    (found_by_0,) = answer
    assert found_by_0 is not None
    return found_by_0


def _load(engine: Any, rank: Rank, checkpoint: Checkpoint, files: RankFiles) -> str:
    """Loads it on all ranks, or on none; returns what is wrong with it, or an empty text."""
    error = files.read(checkpoint.folder, own_files(checkpoint.record, rank.plan.layout, rank.env.rank))
    if not (wrong := _first_error(error)):
        # The engine looks for files by a pattern, in which a bracket of the run folder's name would be a sign.
        folder = glob.escape(str(checkpoint.folder.parent))
        engine.checkpoint_engine = files
        # What fails now fails on all ranks alike: each has its own part in memory, whole.
        try:
            engine.load_checkpoint(folder, tag=checkpoint.folder.name)
            join_optimizers(engine)
        except (RuntimeError, ValueError, KeyError, AssertionError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        else:
            if engine.global_steps != checkpoint.step:
                error = f"its files are of step {engine.global_steps}, its complete.json says {checkpoint.step}"
        wrong = _first_error(error)
    files.forget()
    return wrong


def own_files(record: CheckpointRecord, layout: Layout, rank: int) -> list[CheckpointFile]:
    """What ``rank`` reads: its own, and in ZeRO 1 and 2 the parameters, which one of those that hold the same ones wrote."""
    return [
        file
        for file in record.files
        if file.rank == rank
        or (record.zero_stage < 3 and "model_states" in file.name and layout.holds_same_parameters(file.rank, rank))
    ]


def _first_error(error: str) -> str:
    """The first rank's error on all ranks; empty if none has one."""
    errors: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(errors, error)
    return next((f"rank {number}: {text}" for number, text in enumerate(errors) if text), "")


def _tell(rank: Rank, text: str) -> None:
    if rank.env.rank == 0:
        print(f"hpctrain: {text}", flush=True)
