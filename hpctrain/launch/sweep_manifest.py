"""``sweep.json``: which points a sweep has and what became of each; written before and after every call of sbatch."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpctrain.config.schema import Config, LaunchConfig
from hpctrain.errors import LaunchError, RecordError
from hpctrain.launch.slurm.job_search import FoundJob
from hpctrain.plan.job.batch_script import TaskArray
from hpctrain.record.files import read_record, write_text
from hpctrain.record.paths import SWEEP_MANIFEST
from hpctrain.record.schema import SCHEMA_VERSION

GroupState = Literal["not reached", "submitting", "submitted", "refused", "unclear"]
HAS_A_JOB: tuple[GroupState, ...] = ("submitted",)
MAY_HAVE_A_JOB: tuple[GroupState, ...] = ("submitting", "unclear")


@dataclass(frozen=True)
class SweepPoint:
    """One point of a sweep."""

    identity: str
    """Digest of its configuration, without what says how it is handed over; a number follows where points are equal."""
    overrides: tuple[str, ...]
    group: int
    run: str
    """Name of the run folder inside the sweep folder."""
    state: GroupState
    job_id: str = ""
    reason: str = ""


@dataclass(frozen=True)
class SweepGroup:
    """Points that are one job: the tasks of an array, one alone, or those of one allocation."""

    number: int
    num_points: int
    kind: Literal["array", "allocation"] = "array"
    state: GroupState = "not reached"
    key: str = ""
    """By which its job is found again."""
    submitting_at_s: float = 0.0
    """Unix time of the call of sbatch."""
    job_id: str = ""
    slurm_cluster: str = ""
    reason: str = ""

    def run_name(self, task: int) -> str:
        return Path(TaskArray("", self.number, "").run_dir(task)).name

    def job_of(self, task: int) -> str:
        """Slurm's id of one point's job."""
        return f"{self.job_id}_{task}" if self.kind == "array" and self.num_points > 1 else self.job_id


@dataclass(frozen=True)
class LeftOut:
    """A point of the last command that does not fit, and was not submitted."""

    overrides: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class SweepManifest:
    """``sweep.json`` in the sweep folder."""

    schema_version: int
    groups: tuple[SweepGroup, ...]
    points: tuple[SweepPoint, ...]
    left_out: tuple[LeftOut, ...] = ()

    def with_group(self, group: SweepGroup) -> SweepManifest:
        """The manifest with a group, and its points, changed."""
        groups = tuple(group if former.number == group.number else former for former in self.groups)
        points = list(self.points)
        for task, index in enumerate(self.members(group.number)):
            job_id = group.job_of(task) if group.job_id else ""
            points[index] = dataclasses.replace(points[index], state=group.state, job_id=job_id, reason=group.reason)
        return dataclasses.replace(self, groups=groups, points=tuple(points))

    def members(self, number: int) -> list[int]:
        """Indices of the points of a group, in the order of its tasks."""
        return [index for index, point in enumerate(self.points) if point.group == number]

    def write(self, folder: Path) -> None:
        """Replaces the file; a line for each group and point.

        Raises:
            OSError: it cannot be written; the former one stays.
        """
        parts = [
            f'"{name}": [\n' + ",\n".join(json.dumps(vars(item), ensure_ascii=False) for item in items) + "\n]"
            for name, items in (("groups", self.groups), ("points", self.points), ("left_out", self.left_out))
        ]
        text = f'{{\n"schema_version": {self.schema_version},\n' + ",\n".join(parts) + "\n}\n"
        write_text(manifest_file(folder), text)


def manifest_file(folder: Path) -> Path:
    return folder / SWEEP_MANIFEST


def read_manifest(folder: Path) -> SweepManifest:
    """The manifest of a sweep folder; an empty one where it has none yet.

    Raises:
        LaunchError: the folder holds something else, or the manifest is damaged.
    """
    path = manifest_file(folder)
    if not path.exists():
        if strange := sorted(name for name in os.listdir(folder) if not name.startswith(".")):
            raise LaunchError(
                f"{folder}: is there and is no sweep of hpctrain (it holds {strange[0]}); take another name"
            )
        return SweepManifest(SCHEMA_VERSION, (), ())
    try:
        manifest = read_record(path, SweepManifest)
    except RecordError as error:
        raise LaunchError(f"the sweep's manifest cannot be read: {error}") from None
    if flaw := _flaw(manifest):
        raise LaunchError(f"the sweep's manifest contradicts itself: {path}: {flaw}; nothing was submitted")
    return manifest


def _flaw(manifest: SweepManifest) -> str:
    """Where groups and points do not go together, as after an edit by hand; a point might be submitted twice."""
    groups = {group.number: group for group in manifest.groups}
    if len(groups) != len(manifest.groups):
        return "two groups have the same number"
    if strange := [point.run for point in manifest.points if point.group not in groups]:
        return f"{strange[0]} belongs to no group"
    for group in manifest.groups:
        runs = [manifest.points[index].run for index in manifest.members(group.number)]
        if runs != [group.run_name(task) for task in range(group.num_points)]:
            return f"group {group.number} has {group.num_points} points, and its runs are {', '.join(runs) or 'none'}"
        if group.state in HAS_A_JOB and not group.job_id:
            return f"group {group.number} is {group.state} and has no job_id"
    return ""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps others from submitting the same sweep; the lock goes with this process, however it ends.

    Raises:
        LaunchError: another process has it.
    """
    with (folder / ".lock").open("wb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LaunchError(f"{folder}: another hpctrain is submitting this sweep right now") from None
        yield


def identities(configs: Sequence[Config]) -> list[str]:
    """What tells the points of a sweep apart; equal ones are numbered."""
    seen: Counter[str] = Counter()
    names = []
    for config in configs:
        cluster = dataclasses.replace(config.cluster, wait=False)
        bare = dataclasses.replace(config, launch=LaunchConfig(), cluster=cluster)
        text = json.dumps(dataclasses.asdict(bare), sort_keys=True)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        seen[digest] += 1
        names.append(digest if seen[digest] == 1 else f"{digest}-{seen[digest]}")
    return names


def submitted(group: SweepGroup, job: FoundJob) -> SweepGroup:
    return dataclasses.replace(group, state="submitted", job_id=job.job_id, slurm_cluster=job.slurm_cluster, reason="")
