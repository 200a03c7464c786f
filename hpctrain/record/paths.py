"""Every path of a run folder, in one place."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass
from pathlib import Path

SWEEP_MANIFEST = "sweep.json"
"""In the folder of a sweep, whose points are run folders in it."""
SNAPSHOTS = ".code"
"""In the folder that holds the runs: copies of the code that they run, see ``launch.snapshot``."""


@dataclass(frozen=True)
class RunPaths:
    """The run folder: the only thing that launch, worker and analysis share."""

    root: Path

    @property
    def sweep_manifest(self) -> Path:
        """There if the run is a point of a sweep."""
        return self.root.parent / SWEEP_MANIFEST

    @property
    def config(self) -> Path:
        """The resolved configuration, YAML without any ``${``."""
        return self.root / "config.yaml"

    @property
    def overrides(self) -> Path:
        """The overrides in Hydra's spelling, JSON."""
        return self.root / "overrides.json"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def code(self) -> Path:
        """Commit, difference of the working tree, versions, interpreter."""
        return self.root / "code.json"

    @property
    def token(self) -> Path:
        """Written at submission and looked for by the ranks of each node: do they see the same folder?"""
        return self.root / "token"

    @property
    def environment(self) -> Path:
        """What sbatch (or the local controller) was called with, JSON: names and values, secrets left out."""
        return self.root / "environment.json"

    @property
    def submission_script(self) -> Path:
        return self.root / "submission.sh"

    @property
    def submission(self) -> Path:
        """Job id and where it was submitted."""
        return self.root / "submission.json"

    @property
    def cancelled(self) -> Path:
        """Which jobs a user cancelled; Slurm keeps no trace of a task that leaves its array before it starts."""
        return self.root / "cancelled.json"

    @property
    def earlier_submissions(self) -> Path:
        """``submission.json`` of each earlier submission as ``<first attempt>.json``: the run was resumed."""
        return self.root / "submissions"

    @property
    def checkpoints(self) -> Path:
        """A folder a checkpoint, see ``record.checkpoints``."""
        return self.root / "checkpoints"

    @property
    def steps(self) -> Path:
        return self.root / "steps.jsonl"

    @property
    def validations(self) -> Path:
        """Losses on held-out data, a line each."""
        return self.root / "validation.jsonl"

    @property
    def tensorboard(self) -> Path:
        """Event files of ``track.tensorboard``."""
        return self.root / "tensorboard"

    @property
    def trackers(self) -> Path:
        """Under which ids trackers know the run, so that its next attempt goes on there, JSON."""
        return self.root / "trackers.json"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    def attempt(self, number: int) -> Path:
        return self.attempts / f"{number}.json"

    def failure(self, number: int) -> Path:
        """Written by the first rank that fails in attempt ``number``; created exclusively."""
        return self.attempts / f"{number}.failure.json"

    def log_sizes(self, number: int) -> Path:
        """Sizes of the logs when attempt ``number`` began, see ``record.log_sizes``."""
        return self.attempts / f"{number}.logs.json"

    @property
    def nodes(self) -> Path:
        """Telemetry, a file a node."""
        return self.root / "nodes"

    def node_samples(self, node: str) -> Path:
        """The node's name is percent-encoded; ``urllib.parse.unquote`` gives it back.

        >>> RunPaths(Path("run")).node_samples("rack a/n1").name
        'rack%20a%2Fn1.jsonl'
        """
        return self.nodes / f"{urllib.parse.quote(node, safe='')}.jsonl"

    @property
    def summary_figure(self) -> Path:
        return self.root / "summary.png"

    @property
    def summary(self) -> Path:
        """The measured numbers of a report, JSON."""
        return self.root / "summary.json"

    @property
    def launch_check(self) -> Path:
        """What ``training=launch_check`` measured, JSON."""
        return self.root / "launch_check.json"

    @property
    def azureml_job(self) -> Path:
        """The command job that AzureML is given, YAML."""
        return self.root / "job.yml"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def batch_log(self) -> Path:
        """Output of the batch script of all attempts, with what Slurm says of the job's end."""
        return self.logs / "batch.log"

    @property
    def controller_log(self) -> Path:
        """Output of the controller of a local run."""
        return self.logs / "controller.log"

    def hang_word(self, attempt: int, rank: int) -> Path:
        """Where a rank stood when no step ended for too long; there until rank 0 has read it."""
        return self.logs / f"hang-{attempt}-{rank}.json"

    @property
    def submitit(self) -> Path:
        """submitit's pickles and, for local runs, the ranks' output."""
        return self.logs / "submitit"
