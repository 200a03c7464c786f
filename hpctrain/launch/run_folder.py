"""Making a run folder: everything frozen before anything is submitted."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import overload

from hpctrain.config.compose import Point
from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError, Problem
from hpctrain.launch.submitted_code import submitted_code
from hpctrain.plan.job.azureml import is_uri
from hpctrain.plan.job.slurm_request import slurm_safe_name
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.files import json_text, write_json, write_text
from hpctrain.record.frozen_config import config_text
from hpctrain.record.paths import RunPaths
from hpctrain.user_path import user_path

_LONGEST_SLUG = 60


def create_run_folder(parent: Path, point: Point, plan: RunPlan, python: str) -> RunPaths:
    """A new folder below ``parent`` with configuration, plan and code version in it.

    See ``dated_name``.
    """
    run = _new_folder(parent, plan.name)
    try:
        _fill_run_folder(run, point, plan, python)
    except OSError as error:
        shutil.rmtree(run.root, ignore_errors=True)
        raise _not_writable(parent, error) from None
    except KeyboardInterrupt:
        shutil.rmtree(run.root, ignore_errors=True)
        raise
    return run


def dated_name(plan_name: str) -> str:
    """A slug with the second and four random hex digits: starts in the same second do not meet."""
    slug = slurm_safe_name(plan_name)[:_LONGEST_SLUG]
    return f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _new_folder(parent: Path, plan_name: str) -> RunPaths:
    """A folder that was not there before; a name that is taken, by chance or by a start in the same second, is left alone."""
    while True:
        run = RunPaths(parent / dated_name(plan_name))
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


def create_point_folder(folder: Path, point: Point, plan: RunPlan, code_file: Path) -> RunPaths:
    """The run folder of a sweep's point; a half-made one of an earlier call is replaced.

    Args:
        folder: in the sweep folder.
        point: what it is.
        plan: what it will be.
        code_file: ``code.json`` of the sweep; all points are names of this one file where the file system can do so.

    Raises:
        OSError: it cannot be written.
    """
    run = RunPaths(folder)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    _write_run(run, point, plan)
    try:
        os.link(code_file, run.code)
    except OSError:  # a file system without hard links
        write_text(run.code, code_file.read_text(encoding="utf-8"))
    return run


def code_text(root: Path, python: str) -> str:
    """What ``code.json`` holds for runs that are submitted now.

    Raises:
        OSError: the copy of the code cannot be written.
    """
    return json_text(submitted_code(root, python)[1])


def _fill_run_folder(run: RunPaths, point: Point, plan: RunPlan, python: str) -> None:
    _write_run(run, point, plan)
    code = code_text(user_path(point.config.run.root), python)
    if point.rerun_of:
        code = json_text(json.loads(code) | {"rerun_of": point.rerun_of})
    write_text(run.code, code)


def _write_run(run: RunPaths, point: Point, plan: RunPlan) -> None:
    assert not point.is_open, "plan_points closes a point before anything is frozen"
    for folder in (run.attempts, run.submitit if plan.cluster_kind == "local" else run.logs):
        folder.mkdir(parents=True)
    write_text(run.config, config_text(_with_absolute_paths(point.config)))
    write_json(run.overrides, point.overrides)
    write_text(run.plan, plan.to_json())
    write_text(run.token, secrets.token_hex(8) + "\n")


def _with_absolute_paths(config: Config) -> Config:
    """A relative path means the folder that the run was submitted from, wherever its ranks start."""
    data = config.data
    absolute = dataclasses.replace(
        data,
        path=absolute_path(data.path),
        blend={absolute_path(prefix): weight for prefix, weight in data.blend.items()},
        validation_path=absolute_path(data.validation_path),
    )
    training = dataclasses.replace(config.training, init_from=absolute_path(config.training.init_from))
    return dataclasses.replace(config, data=absolute, training=training)


@overload
def absolute_path(path: str) -> str: ...
@overload
def absolute_path(path: str | None) -> str | None: ...
def absolute_path(path: str | None) -> str | None:
    """The path from the root of the file system, ``~`` put in; a URI as it is."""
    return path if path is None or is_uri(path) else str(user_path(path))


def remove_run_folder(run: RunPaths) -> None:
    """Takes back a folder whose submission was refused."""
    shutil.rmtree(run.root)
