"""Weights & Biases: one run of theirs for all attempts of ours."""

from __future__ import annotations

from collections.abc import Sequence

import wandb

from hpctrain.config.trackers import WandbConfig
from hpctrain.track.points import Point
from hpctrain.track.tracker import Ending, RunFacts


class WandbRun:
    """Online, or offline into ``wandb/`` of the run folder: a folder an attempt, all of one id, which ``wandb sync`` joins."""

    def __init__(self, config: WandbConfig, facts: RunFacts, run_id: str) -> None:
        """Begins the run, or goes on with it.

        Args:
            config: of ``track.wandb``.
            facts: of the run.
            run_id: the same for all attempts.

        Raises:
            Exception: wandb's own, such as that there is no key.
        """
        settings = wandb.Settings(
            console="off",  # the rank's output is not wandb's
            silent=True,
            disable_git=True,
            disable_code=True,
            # Telemetry of the nodes is in the run folder; user, host and command stay there.
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
        )
        self._run = wandb.init(
            project=config.project,
            entity=config.entity,
            mode=config.mode,
            id=run_id,
            resume="allow",
            name=facts.name,
            dir=str(facts.paths.root),
            config={**facts.config, "plan": facts.sizes},
            settings=settings,
        )
        # wandb's own step only goes up; after a restart from a checkpoint ours goes back.
        self._run.define_metric("*", step_metric="step")

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            self._run.log({"step": point.step, "time": point.time_s, **point.values})

    def close(self, ending: Ending) -> None:
        if ending == "stopped":
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if ending == "completed" else 1)
        wandb.teardown()
