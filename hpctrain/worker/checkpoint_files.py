"""One rank's files of a checkpoint: DeepSpeed's plain format, written and read through us.

DeepSpeed's own writer raises on the rank whose disk is full, and the others then wait for that rank in the next collective. This
one keeps the error until all ranks can talk about it, and gives back only what was read and checked beforehand.
"""

from __future__ import annotations

import os
import re
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo, CheckpointEngine

from hpctrain.errors import RecordError
from hpctrain.record.schema import CheckpointFile

LATE_FILE_LIMIT_S = 60.0
"""How long another node's file may stay out of sight: NFS keeps what it knows of a folder for up to 60 s (acdirmax, nfs(5))."""

SWAPPED = "swapped"
"""First word of the names of files that hold states on NVMe: read one at a time, when they are loaded."""


class RankFiles(CheckpointEngine):  # type: ignore[misc]
    """DeepSpeed's checkpoint engine of this rank."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "hpctrain"
        self.written: dict[str, int] = {}
        """Bytes of the files written since ``begin``, by name."""
        self.error = ""
        """What kept a file from being written since ``begin``; empty: nothing."""
        self._read: dict[str, Any] = {}
        self._checked: dict[str, Path] = {}

    def begin(self) -> None:
        """Forgets the files of the last checkpoint."""
        self.written, self.error = {}, ""

    def create(self, info: CheckpointCommitInfo) -> None:
        del info

    def commit(self, info: CheckpointCommitInfo) -> bool:
        del info
        return True

    def save(self, state_dict: Any, path: str) -> None:
        """Writes one file to the disk; a failure stays in ``error``, and no further file is tried."""
        if self.error:
            return
        try:
            with open(path, "wb") as stream:
                torch.save(state_dict, stream)
                stream.flush()
                os.fsync(stream.fileno())
                size = stream.tell()
        # torch turns the writer's error into a RuntimeError of its own.
        except (OSError, RuntimeError, MemoryError) as error:
            self.error = f"{path}: {_root_message(error)}"
        else:
            self.written[os.path.basename(path)] = size

    def read(self, folder: Path, files: Iterable[CheckpointFile]) -> str:
        """Reads files and checks their checksums; returns what is wrong, or an empty text.

        Of states on NVMe, for which there need be no memory, checksums alone.
        """
        self._read, self._checked = {}, {}
        for file in files:
            path = folder / file.name
            try:
                wait_for_sizes(folder, [file])
                with zipfile.ZipFile(path) as archive:
                    damaged = archive.testzip()
                if damaged is not None:
                    return f"{path}: {damaged} has another checksum than when it was saved"
                if file.name.startswith(SWAPPED):
                    self._checked[file.name] = path
                    continue
                # The file is the run's own; it holds DeepSpeed's configuration objects beside tensors.
                self._read[_without_model_rank(file.name)] = torch.load(path, map_location="cpu", weights_only=False)
            # A damaged pickle can raise anything.
            except Exception as error:
                return f"{path}: {_root_message(error)}"
        return ""

    def load(self, path: str, map_location: Any = None) -> Any:
        """What ``read`` has read; the engine asks for the same file twice.

        This rank's own, whichever model-parallel rank's file the engine names: it first looks into that of rank 0, and then
        takes its own by place in the sorted names, where 100 comes before 11.
        """
        del map_location
        return self._read[_without_model_rank(os.path.basename(path))]

    def load_swapped(self, name: str) -> dict[str, torch.Tensor]:
        """Tensors of one file that ``read`` has checked, mapped into memory page by page."""
        tensors: dict[str, torch.Tensor] = torch.load(self._checked[name], map_location="cpu", mmap=True)
        return tensors

    def forget(self) -> None:
        """Drops what was read."""
        self._read, self._checked = {}, {}


def _without_model_rank(name: str) -> str:
    """A file's name without the number of the model-parallel rank that wrote it.

    >>> _without_model_rank("zero_pp_rank_3_mp_rank_07_optim_states.pt")
    'zero_pp_rank_3_mp_rank_optim_states.pt'
    >>> _without_model_rank("layer_02-model_01-model_states.pt")
    'layer_02-model-model_states.pt'
    """
    return re.sub(r"(mp_rank|-model)_\d+", r"\1", name)


def wait_for_sizes(folder: Path, files: Iterable[CheckpointFile], sleep: Callable[[float], None] = time.sleep) -> None:
    """Returns when every file is seen with its size.

    Raises:
        RecordError: one is still missing, or of another size, after ``LATE_FILE_LIMIT_S``.
    """
    deadline = time.monotonic() + LATE_FILE_LIMIT_S
    for file in files:
        path = folder / file.name
        while (found := _size(path)) != file.num_bytes:
            if time.monotonic() > deadline:
                seen = "is not there" if found is None else f"has {found} of {file.num_bytes} bytes"
                raise RecordError(f"{path}: {seen} after {LATE_FILE_LIMIT_S:g} s")
            sleep(0.5)


def _size(path: Path) -> int | None:
    try:
        # Opening asks the server, where a stat may be answered from a cache.
        with path.open("rb") as stream:
            return os.fstat(stream.fileno()).st_size
    except FileNotFoundError:
        return None


def _root_message(error: BaseException) -> str:
    """The system's words where they are behind the error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error).split("\n")[0] or type(error).__name__
