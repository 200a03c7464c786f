"""A new run that begins with the weights of a Hugging Face folder: each rank reads what it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist

from hpctrain.errors import HpctrainError
from hpctrain.huggingface.folder import WeightsFolder, folder_problems, read_folder
from hpctrain.plan.rules.first_weights import KEY
from hpctrain.worker.agreement import first_error
from hpctrain.worker.end_reasons import CheckpointError
from hpctrain.worker.rank_start import Rank
from hpctrain.worker.state.live_state import live_state


def take_first_weights(engine: Any, rank: Rank) -> None:
    """Fills master weights and parameters, where ``training.init_from`` names a folder; a collective of all ranks.

    Raises:
        CheckpointError: the folder cannot be read, or is not of the model's shape.
    """
    named = rank.config.training.init_from
    if named is None:
        return
    folder, error = _read_by_rank_0(Path(named), rank)
    if folder is None:
        raise CheckpointError(f"{KEY}={named}: {error}")
    from hpctrain.worker.state.folder_source import FolderSource  # needs safetensors, which other runs do not

    live = live_state(engine, rank.plan, rank.env.rank)
    try:
        own = live.read(FolderSource(folder, rank.plan.model), None, {})
    # safetensors has errors of its own; a file may be cut off on one node alone.
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    if wrong := first_error(error):
        raise CheckpointError(f"{KEY}={named}: {wrong}")
    live.fill(own)
    if rank.env.rank == 0:
        print(f"hpctrain: begins with the weights in {named}", flush=True)


def _read_by_rank_0(path: Path, rank: Rank) -> tuple[WeightsFolder | None, str]:
    """What the headers say, on all ranks, or why there is none: no file is asked by thousands of ranks for its header."""
    answer: list[tuple[WeightsFolder | None, str]] = [(None, "")]
    if rank.env.rank == 0:
        try:
            folder = read_folder(path)
            problems, _ = folder_problems(folder, rank.plan.model)
            answer = [(None, "\n".join(problems)) if problems else (folder, "")]
        except HpctrainError as error:
            answer = [(None, str(error))]
    dist.broadcast_object_list(answer, src=0)
    return answer[0]
