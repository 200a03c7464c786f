"""Going on from a checkpoint: every start looks into the run folder first."""

from __future__ import annotations

import glob
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hpctrain.errors import HpctrainError, RecordError
from hpctrain.plan.checkpoint_size import room_problem
from hpctrain.plan.layout import Layout
from hpctrain.record.checkpoints import Checkpoint, Checkpoints, read_checkpoints, remove_unfinished, told
from hpctrain.record.resume_check import is_cut_alike, resume_problems
from hpctrain.record.schema import CheckpointFile, CheckpointRecord
from hpctrain.units import counted
from hpctrain.worker.agreement import first_error
from hpctrain.worker.checkpoint_files import RankFiles, wait_for_sizes
from hpctrain.worker.end_reasons import CheckpointError
from hpctrain.worker.loss_scale import install_loss_scale, scale_rule
from hpctrain.worker.partial_offload import join_optimizers
from hpctrain.worker.rank_start import Rank
from hpctrain.worker.state.live_state import live_state, take_counts
from hpctrain.worker.state.saved_state import SavedState, damage


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
        is_alike = is_cut_alike(checkpoint.record, rank.plan)
        error = _load(engine, rank, checkpoint, files) if is_alike else _load_cut_anew(engine, rank, checkpoint)
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
    if not (wrong := first_error(error)):
        # The engine looks for files by a pattern, in which a bracket of the run folder's name would be a sign.
        folder = glob.escape(str(checkpoint.folder.parent))
        engine.checkpoint_engine = files
        # What fails now fails on all ranks alike: each has its own part in memory, whole.
        try:
            engine.load_checkpoint(folder, tag=checkpoint.folder.name)
            join_optimizers(engine)
            install_loss_scale(engine, scale_rule(rank.plan.ds_config))
        except (RuntimeError, ValueError, KeyError, AssertionError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        else:
            if engine.global_steps != checkpoint.step:
                error = f"its files are of step {engine.global_steps}, its complete.json says {checkpoint.step}"
        wrong = first_error(error)
    files.forget()
    return wrong


def _load_cut_anew(engine: Any, rank: Rank, checkpoint: Checkpoint) -> str:
    """As ``_load``, of a checkpoint that other ranks or another parallelism have cut; each file is checked by one rank."""
    folder, record = checkpoint.folder, checkpoint.record
    _tell(rank, f"{folder.name} is of {counted(record.world_size, 'rank')}, ZeRO {record.zero_stage}: it is cut anew")
    own_share = record.files[rank.env.rank :: rank.env.world_size]
    try:
        wait_for_sizes(folder, own_share)
        error = next(filter(None, (damage(folder / file.name) for file in own_share)), "")
    except RecordError as failure:
        error = str(failure)
    if wrong := first_error(error):
        return wrong
    saved = SavedState(folder, record)
    live = live_state(engine, rank.plan, rank.env.rank)
    try:
        own = live.read(saved, saved.adam_step, saved.scaling)
    # What is in the files decides what is raised.
    except (HpctrainError, RuntimeError, ValueError, KeyError, IndexError, OSError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    if wrong := first_error(error):
        return wrong
    live.fill(own)
    install_loss_scale(engine, scale_rule(rank.plan.ds_config))
    take_counts(engine, rank.plan, saved)
    if engine.global_steps != checkpoint.step:
        error = f"its files are of step {engine.global_steps}, its complete.json says {checkpoint.step}"
    return first_error(error)


def own_files(record: CheckpointRecord, layout: Layout, rank: int) -> list[CheckpointFile]:
    """What ``rank`` reads: its own, and in ZeRO 0 to 2 the parameters, which one of those that hold the same ones wrote."""
    return [
        file
        for file in record.files
        if file.rank == rank
        or (record.zero_stage < 3 and "model_states" in file.name and layout.holds_same_parameters(file.rank, rank))
    ]


def _tell(rank: Rank, text: str) -> None:
    if rank.env.rank == 0:
        print(f"hpctrain: {text}", flush=True)
