"""Saving checkpoints: all ranks write, rank 0 makes it count, and a failed save costs a checkpoint and never the run."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hpctrain.errors import HpctrainError
from hpctrain.record.checkpoints import (
    COMPLETE_FILE,
    PARTIAL,
    free_name,
    remove_old,
)
from hpctrain.record.files import write_record
from hpctrain.record.resume_check import parallelism_values, shape_values
from hpctrain.record.schema import SCHEMA_VERSION, CheckpointFile, CheckpointRecord
from hpctrain.units import duration_in_words, gib
from hpctrain.worker.checkpoint_files import RankFiles, wait_for_sizes
from hpctrain.worker.nvme_states import save_swapped
from hpctrain.worker.rank_start import Rank
from hpctrain.worker.stop_signal import StopSignal


@dataclass(frozen=True)
class SaveTotals:
    """What an attempt has saved so far."""

    num_saved: int = 0
    num_failed: int = 0
    time_s: float = 0.0


@dataclass(frozen=True)
class SaveOutcome:
    """The same on all ranks."""

    text: str
    """Whether there is a checkpoint now, for a message."""
    stop_requested: bool
    """Some rank got a signal before or during the save."""


@dataclass(frozen=True)
class _RankPart:
    """What one rank tells the others about its part."""

    written: dict[str, int]
    error: str
    stop_requested: bool


class CheckpointSaver:
    """Saves the engine's state for one rank; every method is a collective of all ranks."""

    def __init__(
        self,
        engine: Any,
        rank: Rank,
        corpus_digest: str,
        files: RankFiles,
        rejected: Collection[Path],
        note: Callable[[SaveTotals], None],
    ) -> None:
        """Saves nothing yet.

        Args:
            engine: DeepSpeed's.
            rank: this rank.
            corpus_digest: of the tokens that are trained on.
            files: this rank's files.
            rejected: older checkpoints that could not be loaded.
            note: gets the totals after each save, on every rank.
        """
        self._engine = engine
        self._rank = rank
        self._corpus_digest = corpus_digest
        self._files = files
        self._rejected = rejected
        self._note = note
        self.totals = SaveTotals()
        """What this attempt has saved so far; the same on all ranks."""
        engine.checkpoint_engine = files
        # It would be written past our error handling; `python -m deepspeed.utils.zero_to_fp32` is the same script.
        engine._copy_recovery_script = lambda save_path: None

    def is_due(self, step: int) -> bool:
        """Whether the interval or the end asks for a checkpoint after this step."""
        training = self._rank.config.training
        at_end = training.checkpoint_at_end and step == self._rank.plan.num_steps
        return at_end or (training.checkpoint_interval is not None and step % training.checkpoint_interval == 0)

    def save(self, step: int, loss: float | None, stop: StopSignal) -> SaveOutcome:
        """Saves the state after ``step``; returns when the checkpoint is complete, or given up.

        Args:
            step: the last finished one.
            loss: of that step over all ranks; None, not finite: nothing is saved, since the weights may be lost.
            stop: looked at after this rank's files are written.
        """
        started_s = time.monotonic()
        requested = stop.received
        name, error = self._shared(lambda: self._make_folder(step, loss))
        if not error:
            self._files.begin()
            self._engine.save_checkpoint(str(self._rank.paths.checkpoints), tag=name + PARTIAL, save_latest=False)
            save_swapped(self._engine, self._files, self._rank.paths.checkpoints / (name + PARTIAL))
            found: list[_RankPart | None] = [None] * dist.get_world_size()
            dist.all_gather_object(found, _RankPart(self._files.written, self._files.error, stop.received))
            parts = [part for part in found if part is not None]
            requested = any(part.stop_requested for part in parts)
            size, error = self._shared(lambda: self._complete(name, step, parts, started_s))
        time_s = time.monotonic() - started_s
        before = self.totals
        self.totals = SaveTotals(
            before.num_saved + (not error), before.num_failed + bool(error), before.time_s + time_s
        )
        self._note(self.totals)
        if error:
            text = f"no checkpoint of step {step}: {error}"
            self._give_up(name, text)
        else:
            text = f"checkpoint of step {step} saved"
            self._tidy_up(f"{text}: {name}, {size} in {duration_in_words(time_s)}", time_s)
        return SaveOutcome(text, requested)

    def _shared(self, action: Callable[[], str]) -> tuple[str, str]:
        """Rank 0's answer and error on all ranks; one of the two is empty."""
        answer: list[tuple[str, str]] = [("", "")]
        if self._rank.env.rank == 0:
            try:
                answer = [(action(), "")]
            except OSError as error:
                answer = [("", f"{error.filename or self._rank.paths.checkpoints}: {error.strerror}")]
            except HpctrainError as error:
                answer = [("", str(error))]
        dist.broadcast_object_list(answer, src=0)
        return answer[0]

    def _make_folder(self, step: int, loss: float | None) -> str:
        if loss is None:
            raise SaveError("the loss is not finite, and an older checkpoint is worth more than such weights")
        paths = self._rank.paths
        name = free_name(paths, step, self._rank.env.attempt)
        partial = paths.checkpoints / (name + PARTIAL)
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        return name

    def _complete(self, name: str, step: int, parts: list[_RankPart], started_s: float) -> str:
        """Makes the ranks' files a checkpoint; returns its size as text.

        Raises:
            OSError, RecordError, SaveError: it is none.
        """
        failed = [(number, part.error) for number, part in enumerate(parts) if part.error]
        if failed:
            number, error = failed[0]
            raise SaveError(f"rank {number}: {error}" + (f" ({len(failed)} ranks failed)" if len(failed) > 1 else ""))
        files = tuple(
            CheckpointFile(file, num_bytes, number)
            for number, part in enumerate(parts)
            for file, num_bytes in part.written.items()
        )
        checkpoints = self._rank.paths.checkpoints
        partial = checkpoints / (name + PARTIAL)
        wait_for_sizes(partial, files)
        record = self._record(step, files, time.monotonic() - started_s)
        write_record(partial / COMPLETE_FILE, record)
        _sync(partial / COMPLETE_FILE)
        _sync(partial)
        # From here on it counts.
        os.rename(partial, checkpoints / name)
        _sync(checkpoints)
        return gib(record.num_bytes)

    def _record(self, step: int, files: tuple[CheckpointFile, ...], save_time_s: float) -> CheckpointRecord:
        rank, plan = self._rank, self._rank.plan
        return CheckpointRecord(
            schema_version=SCHEMA_VERSION,
            step=step,
            attempt=rank.env.attempt,
            job_id=rank.env.job_id,
            saved_at_s=time.time(),
            save_time_s=save_time_s,
            num_bytes=sum(file.num_bytes for file in files),
            world_size=rank.env.world_size,
            **parallelism_values(plan),
            precision=plan.precision,
            model=shape_values(plan.model),
            num_parameters=plan.num_parameters,
            global_batch_size=plan.batch.global_batch_size,
            seq_len=plan.batch.seq_len,
            num_sequences=plan.batch.samples_before(step + 1),
            seed=rank.config.training.seed,
            corpus_digest=self._corpus_digest,
            files=files,
            versions=rank.versions,
        )

    def _give_up(self, name: str, text: str) -> None:
        """Rank 0 takes back what was written; the older checkpoints are as they were."""
        if self._rank.env.rank != 0:
            return
        self._tell(f"warning: {text} ({self.totals.num_failed} saves failed so far)")
        partial = self._rank.paths.checkpoints / (name + PARTIAL)
        if name and partial.exists():
            try:
                shutil.rmtree(partial)
            except OSError as error:
                self._tell(f"warning: {partial}: not removed: {error.strerror}")

    def _tidy_up(self, text: str, time_s: float) -> None:
        """Rank 0 removes checkpoints beyond ``training.keep_checkpoints``, now that a newer one is complete."""
        if self._rank.env.rank != 0:
            return
        try:
            removed = remove_old(self._rank.paths, self._rank.config.training.keep_checkpoints, self._rejected)
        except (OSError, HpctrainError) as error:
            self._tell(f"warning: an old checkpoint cannot be removed: {error}")
        else:
            text += f"; {', '.join(folder.name for folder in removed)} removed" if removed else ""
        self._tell(text)
        self._warn_of_slow_saves(time_s)

    def _warn_of_slow_saves(self, time_s: float) -> None:
        """Where a limit would end the run during a save like this one."""
        config = self._rank.config
        lead_s, watchdog_min = config.cluster.signal_lead_s, config.launch.watchdog_min
        if time_s > lead_s:
            self._tell(
                f"warning: cluster.signal_lead_s={lead_s}: a save takes {time_s:.0f} s, so the warning before the time limit"
                f" comes too late for one; set it to {2 * time_s:.0f} or more"
            )
        if watchdog_min is not None and 2 * time_s > 60 * watchdog_min:
            self._tell(
                f"warning: launch.watchdog_min={watchdog_min}: a save takes {time_s:.0f} s, in which no step ends; set it to"
                f" {4 * time_s / 60:.1f} or more"
            )

    def _tell(self, text: str) -> None:
        print(f"hpctrain: {text}", flush=True)


class SaveError(HpctrainError):
    """Some rank could not write its part."""


def _sync(path: Path) -> None:
    """Puts a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems sync no folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
