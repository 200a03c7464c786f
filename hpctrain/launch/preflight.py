"""What is asked of this machine before anything is written or submitted."""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import sys
from pathlib import Path

import psutil

from hpctrain.config.schema import DataConfig
from hpctrain.errors import ConfigError, LaunchError, Problem
from hpctrain.plan.run_plan import RunPlan
from hpctrain.text_files import text_files
from hpctrain.units import gib


def check_slurm_is_here() -> None:
    """Asked before anything is written.

    Raises:
        LaunchError: there is no sbatch on PATH.
    """
    missing = [name for name in ("sbatch", "srun") if shutil.which(name) is None]
    if missing:
        raise LaunchError(
            f"there is no {missing[0]} on this machine's PATH; add cluster=local to run here,"
            " or put the word plan first to look at the plan"
        )


def check_data(data: DataConfig) -> None:
    """Whether the text is there and small enough; its contents are judged by the ranks, before the first step.

    Raises:
        ConfigError: there is no such file or folder, nothing to read in it, or too much.
    """
    if data.kind == "text" and data.path is not None:
        text_files(data)


def check_packages(plan: RunPlan) -> None:
    """The ranks use this interpreter, so what they import must be in its environment.

    Raises:
        LaunchError: a package is missing; names the extras to install.
    """
    needed = {"torch": "train", "deepspeed": "train"}
    if plan.cluster_kind == "local":
        needed |= {"pandas": "analysis", "matplotlib": "analysis"}
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        extras = ",".join(dict.fromkeys(needed[name] for name in missing))
        raise LaunchError(
            f"{', '.join(missing)}: missing in {sys.prefix}, whose Python the ranks use; pip install 'hpctrain[{extras}]'"
        )


def check_this_machine(plan: RunPlan, force: bool) -> None:
    """Before a local run: GPUs and memory for its ranks.

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
    needed, there = plan.memory.host_bytes_per_node, psutil.virtual_memory().total
    if needed > there and not force:
        ranks = plan.layout.gpus_per_node
        rule = f"estimated need of {ranks} ranks; this machine has {gib(there)}, short by {gib(needed - there)}"
        fix = "a smaller model or training.micro_batch_size, or fewer ranks (hardware.gpus_per_node); --force runs all the same"
        raise ConfigError((Problem("memory.host", gib(needed), rule, fix, kind="memory"),))


def check_run_root(root: str) -> Path:
    """The absolute folder that holds the runs, made if it is not there.

    Raises:
        ConfigError: it has a ``%`` or a line break (sbatch expands or splits them in output paths), or is not writable.
    """
    path = Path(root).expanduser().absolute()
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
