"""What is asked of this machine before anything is written or submitted."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from hpctrain.config.schema import DataConfig
from hpctrain.errors import ConfigError, LaunchError, Problem


def check_slurm_is_here() -> None:
    """Asked before anything is written.

    Raises:
        LaunchError: there is no sbatch on PATH.
    """
    if shutil.which("sbatch") is None:
        raise LaunchError(
            "there is no sbatch on this machine's PATH; add cluster=local to run here,"
            " or put the word plan first to look at the plan"
        )


def check_data(data: DataConfig) -> None:
    """Whether the text is there; its contents are judged by the ranks, before the first step.

    Raises:
        ConfigError: there is no such file or folder, or nothing to read in it.
    """
    if data.kind != "text" or data.path is None:
        return
    path = Path(data.path).expanduser()
    if not path.exists():
        nearest = next(parent for parent in path.absolute().parents if parent.exists())
        raise ConfigError((Problem("data.path", data.path, "there is no such file or folder", f"{nearest} is there"),))
    if path.is_dir() and not any(path.rglob("*.txt")):
        raise ConfigError(
            (Problem("data.path", data.path, "the folder holds no *.txt", "name a file or another folder"),)
        )


def check_run_root(root: str) -> Path:
    """The absolute folder that holds the runs, made if it is not there.

    Raises:
        ConfigError: it has a ``%`` or a line break (sbatch expands or splits them in output paths), or is not writable.
    """
    path = Path(root).expanduser().absolute()
    if "%" in str(path) or "\n" in str(path):
        rule = "sbatch expands % in output paths, and a line break ends a directive"
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
