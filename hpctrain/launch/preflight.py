"""What is asked of this machine before anything is written or submitted."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain.config.schema import Config, DataConfig, TrainingConfig
from hpctrain.errors import ConfigError, LaunchError, Problem
from hpctrain.plan.checkpoint_size import room_problem
from hpctrain.plan.job.azureml import is_uri
from hpctrain.plan.rules.data import named_paths
from hpctrain.plan.run_plan import RunPlan
from hpctrain.text_files import text_files
from hpctrain.units import GIB, gib
from hpctrain.user_path import user_path

if TYPE_CHECKING:
    from hpctrain.config.compose import Point


def check_slurm_is_here() -> None:
    """Asked before anything is written.

    Raises:
        LaunchError: there is no sbatch on PATH, or no file of the name that SLURM_CONF has.
    """
    missing = [name for name in ("sbatch", "srun") if shutil.which(name) is None]
    if missing:
        raise LaunchError(
            f"there is no {missing[0]} on this machine's PATH; add cluster=local to run here,"
            " or put the word plan first to look at the plan"
        )
    conf = os.environ.get("SLURM_CONF")
    if conf is not None and not os.path.exists(conf):
        raise LaunchError(
            f"SLURM_CONF={conf}: there is no such file, for which Slurm's commands wait a minute; correct it, or unset it"
        )


def check_setup(setup: Sequence[str]) -> None:
    """Whether bash can read each line by itself, as the batch script has it.

    Raises:
        ConfigError: what bash says of those that it cannot.
    """
    problems = []
    for line in setup:
        text = f"{{ {line}\n}}\n"
        answer = subprocess.run(
            ["bash", "-n"], input=text, capture_output=True, text=True, errors="replace", check=False
        )
        if answer.returncode != 0:
            told = answer.stderr.strip().splitlines()[0].removeprefix("bash: ") if answer.stderr.strip() else "refused"
            fix = "each entry is a whole command: close quotes, and join lines of one command with ;"
            problems.append(Problem("cluster.setup", line, f"bash cannot read it ({told})", fix))
    if problems:
        raise ConfigError(problems)


def check_data(points: Sequence[tuple[DataConfig, RunPlan]]) -> None:
    """Whether what is to be read is there and fits the model, as far as it can be told without reading all of it.

    A text must not be too large; token files must be whole, long enough and of the model's vocabulary. The ranks judge the
    contents, before the first step.

    Args:
        points: data and plan of each run; what several share is looked at once.

    Raises:
        ConfigError: what is wrong, of all of them.
    """
    problems: list[Problem] = []
    asked: list[tuple[DataConfig, int, int]] = []
    for data, plan in points:
        question = (data, plan.model.vocab_size, plan.batch.seq_len)
        if question in asked or any(is_uri(path) for _, path in named_paths(data)):
            continue
        asked.append(question)
        try:
            if data.kind == "text":
                for key, _ in named_paths(data):
                    text_files(data, key)
            elif data.kind == "tokens":
                from hpctrain.token_corpora import token_corpora  # of use for this kind alone

                token_corpora(*question)
        except ConfigError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise ConfigError(problems)


def check_packages(plan: RunPlan) -> None:
    """The ranks use this interpreter, so what they import must be in its environment.

    Raises:
        LaunchError: a package is missing; names the extras to install.
    """
    if plan.payload == "launch_check" or plan.cluster_kind == "azureml":
        return  # nothing is needed, or it is asked of another machine's environment
    needed = {"torch": "train", "deepspeed": "train"}
    if plan.cluster_kind == "local":
        needed |= {"pandas": "analysis", "matplotlib": "analysis"}
    needed |= dict.fromkeys(plan.trackers, "track")
    require_packages(needed, "whose Python the ranks use")


def require_packages(needed: Mapping[str, str], why: str) -> None:
    """Asks this environment, without importing anything.

    Args:
        needed: package to the extra of hpctrain that brings it.
        why: what this environment is for.

    Raises:
        LaunchError: a package is missing; names the extras to install.
    """
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        extras = ",".join(dict.fromkeys(needed[name] for name in missing))
        raise LaunchError(f"{', '.join(missing)}: missing in {sys.prefix}, {why}; pip install 'hpctrain[{extras}]'")


def check_this_machine(config: Config, plan: RunPlan, force: bool) -> None:
    """Before a local run: GPUs and memory for its ranks.

    Args:
        config: of the run.
        plan: of the run.
        force: see ``--force``.

    Raises:
        LaunchError: fewer GPUs than asked for.
        ConfigError: the estimate is above this machine's memory and nobody forces it (exit code 3).
    """
    num_gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if plan.device == "cuda" and num_gpus < plan.layout.gpus_per_node:
        raise LaunchError(
            f"hardware={plan.hardware_name}: asks for {plan.layout.gpus_per_node} GPUs, this machine shows {num_gpus};"
            " hardware=cpu trains on its processor, hardware.gpus_per_node=N on fewer GPUs"
        )
    problem = _memory_problem(plan)
    if problem is not None and not force:
        from hpctrain.plan.changes.cheapest import cheapest_changes
        from hpctrain.plan.changes.render import render_changes

        there = _memory_bytes()
        memory = dataclasses.replace(plan.memory, host_capacity_bytes=there)
        refused = dataclasses.replace(plan, memory=memory, problems=(problem,))
        changes = cheapest_changes(_with_memory_of_this_machine(config, plan, there), refused)
        raise ConfigError((problem,), f"{problem}\n{render_changes(changes)}")


def held_on_this_machine(planned: Sequence[tuple[Point, RunPlan]], force: bool) -> list[tuple[Point, RunPlan]]:
    """The plans as they are kept: in a local run's is what this machine is short of, where ``--force`` let it pass.

    Args:
        planned: with the memory that counts, the rehearsed one where there is any.
        force: see ``--force``.

    Raises:
        ConfigError: as ``check_this_machine``.
    """
    held = []
    for point, plan in planned:
        problem = None
        if plan.cluster_kind == "local":
            check_this_machine(point.config, plan, force)
            problem = _memory_problem(plan)
        held.append((point, dataclasses.replace(plan, problems=(*plan.problems, problem)) if problem else plan))
    return held


def _memory_problem(plan: RunPlan) -> Problem | None:
    """What this machine is short of for a run that trains here."""
    needed, there = plan.memory.host_bytes_per_node, _memory_bytes()
    if needed <= there or plan.payload != "train":
        return None
    ranks = plan.layout.gpus_per_node
    rule = f"estimated need of {ranks} ranks; this machine has {gib(there)}, short by {gib(needed - there)}"
    return Problem("memory.host", gib(needed), rule, "--force runs all the same", kind="memory")


def _memory_bytes() -> int:
    import psutil  # slow to import, and of use for runs of this machine alone

    return int(psutil.virtual_memory().total)


def _with_memory_of_this_machine(config: Config, plan: RunPlan, num_bytes: int) -> Config:
    """The same with what the plan chose stated: the next plan will not know this machine's memory either."""
    training = dataclasses.replace(
        config.training,
        micro_batch_size=plan.batch.micro_batch_size,
        activation_checkpointing=plan.activation_checkpointing,
    )
    hardware = dataclasses.replace(config.hardware, host_memory_gib=num_bytes / GIB)
    run = dataclasses.replace(config.run, chosen=())
    return dataclasses.replace(config, training=training, hardware=hardware, run=run)


def check_run_root(root: str) -> Path:
    """The absolute folder that holds the runs, made if it is not there.

    Raises:
        ConfigError: it has a ``%`` or a line break (sbatch expands or splits them in output paths), or is not writable.
    """
    path = user_path(root)
    if any(sign in "%\\" or not sign.isprintable() for sign in str(path)):
        rule = "sbatch expands % and \\ in output paths, and a line break ends a directive"
        raise ConfigError((Problem("run.root", root, rule, "choose a folder without them"),))
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".hpctrain-{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        rule = f"the run folder cannot be written ({error.strerror}: {error.filename})"
        raise ConfigError((Problem("run.root", root, rule, "set run.root=FOLDER to one that you may write"),)) from None
    return path


def check_checkpoint_room(plan: RunPlan, training: TrainingConfig, root: Path) -> str:
    """Whether the file system of the runs holds the checkpoints that a new run keeps; what is short where that is allowed.

    Raises:
        ConfigError: it is short of room, by the numbers, and training.check_checkpoint_room is true.
    """
    if plan.payload != "train" or plan.cluster_kind == "azureml":
        return ""  # nothing is saved, or elsewhere
    problem = room_problem(plan, training, str(root), shutil.disk_usage(root).free)
    if problem is None:
        return ""
    if training.check_checkpoint_room:
        raise ConfigError((problem,))
    return f"checkpoints will fail, which costs them and not the run: {problem}"
