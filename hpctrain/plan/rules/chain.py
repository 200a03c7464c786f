"""Chains: runs longer than one job's time limit; what must hold for one, and how many jobs it takes. Pure."""

from __future__ import annotations

import math

from hpctrain.config.schema import Config
from hpctrain.errors import Problem
from hpctrain.units import counted, duration_in_words, stated_limit_s


def chain_problems(config: Config) -> tuple[Problem, ...]:
    """What makes ``launch.chain`` impossible."""
    chain = config.launch.chain
    if chain == "none":
        return ()
    problems = []
    if config.cluster.kind != "slurm":
        rule = f"a chain is made of Slurm's jobs, and this is cluster={config.cluster.name}"
        problems.append(Problem("launch.chain", chain, rule, "set launch.chain=none; resume RUN goes on by hand"))
    if config.launch.mode == "here":
        rule = "launch.mode=here uses an allocation that is there, and cannot ask for the next one"
        problems.append(Problem("launch.chain", chain, rule, "set launch.chain=none, or launch.mode=batch"))
    training = config.training
    if training.payload != "train":
        rule = f"training.payload={training.payload} keeps no checkpoints, so there is nothing to go on from"
        problems.append(Problem("launch.chain", chain, rule, "set launch.chain=none"))
    elif training.checkpoint_interval is None and not training.checkpoint_at_stop:
        rule = "training.checkpoint_interval=null and training.checkpoint_at_stop=false: there is nothing to go on from"
        problems.append(Problem("launch.chain", chain, rule, "set training.checkpoint_interval to a number of steps"))
    if config.launch.max_attempts < 2:
        rule = "a chain needs at least two starts"
        problems.append(Problem("launch.max_attempts", str(config.launch.max_attempts), rule, "nearest: 2"))
    return tuple(problems)


def chain_warnings(config: Config) -> tuple[str, ...]:
    """What is allowed in a chain and often not meant."""
    launch, training, warnings = config.launch, config.training, []
    if launch.chain == "none" or training.payload != "train":
        return ()
    if training.checkpoint_interval is None and training.checkpoint_at_stop:
        lead = duration_in_words(config.cluster.signal_lead_s)
        warnings.append(
            f"launch.chain={launch.chain} with training.checkpoint_interval=null: the only checkpoint is the one at Slurm's"
            f" warning, {lead} before the limit (cluster.signal_lead_s); a node failure loses the whole attempt"
        )
    if launch.chain == "requeue" and config.cluster.requeue is None:
        warnings.append(
            "launch.chain=requeue with cluster.requeue=null: whether a job may be requeued is the site's JobRequeue"
        )
    return tuple(warnings)


def job_seconds(config: Config) -> int | None:
    """Seconds of training that one job's time limit leaves before Slurm's warning; None: there is no limit, or none stated."""
    limit_s = stated_limit_s(config.cluster.time)
    return None if limit_s is None else max(1, limit_s - config.cluster.signal_lead_s)


def num_links(config: Config, step_time_s: float | None, done_steps: int = 0) -> int:
    """How many dependent jobs follow the first: as many as the steps fill, or all that are allowed if nobody knows.

    The first job is not counted, so that there is room for set-up, checkpoints and a job that ends early; links that are not
    needed are cancelled when the run completes.

    Args:
        config: of the run.
        step_time_s: predicted or measured; None: not known.
        done_steps: steps that are in a checkpoint already.
    """
    most = config.launch.max_attempts - 1
    usable_s = job_seconds(config)
    if step_time_s is None or usable_s is None:
        return most
    work_s = (config.training.num_steps - done_steps) * step_time_s
    return min(most, max(1, math.ceil(work_s / usable_s)))


def chain_notes(config: Config, step_time_s: float | None) -> tuple[str, ...]:
    """How many jobs a chain takes, for the plan."""
    launch = config.launch
    if launch.chain == "none" or config.cluster.kind != "slurm":
        return ()
    if launch.chain == "requeue":
        return (
            f"launch.chain=requeue: the job requeues itself at its time limit while there is progress, up to"
            f" {launch.max_attempts} starts",
        )
    count = num_links(config, step_time_s)
    why = f"launch.max_attempts={launch.max_attempts}"
    usable_s = job_seconds(config)
    if step_time_s is not None and usable_s is not None:
        work_s = config.training.num_steps * step_time_s
        why = f"{duration_in_words(work_s)} of steps as predicted, in jobs of {duration_in_words(usable_s)}; {why}"
    return (
        f"launch.chain=dependency: {counted(count, 'more job')} of this script {'is' if count == 1 else 'are'}"
        f" submitted, each after the one before ({why})",
    )
