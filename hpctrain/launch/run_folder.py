"""Making a run folder: everything frozen before anything is submitted."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import hpctrain
from hpctrain.config.compose import Point
from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError, Problem
from hpctrain.plan.run_plan import RunPlan
from hpctrain.plan.slurm_request import sbatch_script, slurm_safe_name
from hpctrain.record.code_version import source_digests
from hpctrain.record.files import write_text
from hpctrain.record.frozen_config import config_text
from hpctrain.record.paths import RunPaths

_RECORDED_PACKAGES = ("torch", "deepspeed", "hydra-core", "submitit", "numpy")
_LONGEST_SLUG = 60


def create_run_folder(parent: Path, point: Point, plan: RunPlan, python: str) -> RunPaths:
    """A new folder below ``parent`` with configuration, plan, code version and batch script in it.

    The name is a slug with the second and four random hex digits: starts in the same second do not meet.
    """
    slug = slurm_safe_name(plan.name)[:_LONGEST_SLUG]
    run = _new_folder(parent, slug)
    try:
        _fill_run_folder(run, point, plan, python)
    except OSError as error:
        shutil.rmtree(run.root, ignore_errors=True)
        raise _not_writable(parent, error) from None
    return run


def _new_folder(parent: Path, slug: str) -> RunPaths:
    """A folder that was not there before; a name that is taken, by chance or by a start in the same second, is left alone."""
    while True:
        run = RunPaths(parent / f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
        try:
            run.root.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise _not_writable(parent, error) from None
        return run


def _not_writable(parent: Path, error: OSError) -> ConfigError:
    rule = f"the run folder cannot be written ({error.strerror}: {error.filename})"
    return ConfigError((Problem("run.root", str(parent), rule, "set run.root=FOLDER to another one"),))


def _fill_run_folder(run: RunPaths, point: Point, plan: RunPlan, python: str) -> None:
    for folder in (run.attempts, run.submitit):
        folder.mkdir(parents=True)
    write_text(run.config, config_text(_with_absolute_paths(point.config)))
    write_text(run.overrides, json.dumps(list(point.overrides), ensure_ascii=False, indent=2) + "\n")
    write_text(run.plan, plan.to_json())
    write_text(run.code, json.dumps(code_record(python), indent=2) + "\n")
    if plan.cluster_kind == "slurm":
        write_text(run.submission_script, sbatch_script(plan.slurm, str(run.root), python))


def _with_absolute_paths(config: Config) -> Config:
    """A relative path means the folder that the run was submitted from, wherever its ranks start."""
    if config.data.path is None:
        return config
    path = str(Path(config.data.path).expanduser().absolute())
    return dataclasses.replace(config, data=dataclasses.replace(config.data, path=path))


def remove_run_folder(run: RunPaths) -> None:
    """Takes back a folder whose submission was refused."""
    shutil.rmtree(run.root)


def code_record(python: str) -> dict[str, Any]:
    """Which code will run: interpreter, versions, digests of the source, and git's commit and difference where there is git."""
    source = Path(hpctrain.__file__).resolve().parent
    versions = {"python": ".".join(map(str, sys.version_info[:3])), "hpctrain": hpctrain.__version__}
    for package in _RECORDED_PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed where the run was submitted"
    # An installed package may lie inside another project's repository, whose commit says nothing about it.
    is_own_repository = _git(source, "rev-parse", "--show-toplevel").strip() == str(source.parent)
    return {
        "schema_version": 1,
        "interpreter": python,
        "package": str(source),
        "versions": versions,
        "commit": _git(source, "rev-parse", "HEAD").strip() if is_own_repository else "",
        "diff": _git(source, "diff", "HEAD") if is_own_repository else "",
        "sources": source_digests(),
    }


def _git(folder: Path, *arguments: str) -> str:
    """git's answer about the tree that holds ``folder``; empty where it is not in git, or git is not there."""
    if shutil.which("git") is None:
        return ""
    answer = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, errors="replace", check=False
    )
    return answer.stdout if answer.returncode == 0 else ""
