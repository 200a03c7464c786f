"""Which code a run will execute: a copy of it, and ``code.json`` about it."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import hpctrain
from hpctrain.launch.snapshot import Snapshot, take_snapshot
from hpctrain.record.code_version import package_folder
from hpctrain.secret_text import redact_code

_RECORDED_PACKAGES = ("torch", "deepspeed", "hydra-core", "submitit", "numpy")


@functools.cache
def submitted_code(run_root: Path, python: str) -> tuple[Snapshot, dict[str, Any]]:
    """The copy below ``run_root`` and the contents of ``code.json``; the same for all runs that this process submits.

    Raises:
        OSError: ``run_root`` cannot be written.
    """
    snapshot = take_snapshot(run_root)
    return snapshot, _code_record(python, snapshot)


def _code_record(python: str, snapshot: Snapshot) -> dict[str, Any]:
    """Interpreter, versions, digests of the source, and git's commit and difference where there is git."""
    source = package_folder()
    versions = {"python": ".".join(map(str, sys.version_info[:3])), "hpctrain": hpctrain.__version__}
    versions |= {package: _version_of(package) for package in _RECORDED_PACKAGES}
    return {
        "schema_version": 1,
        "interpreter": python,
        "package": str(source),
        "snapshot": str(snapshot.folder),
        "versions": versions,
        **_git_record(source),
        "installed_commit": _installed_commit(),
        "sources": dict(snapshot.sources),
    }


def _version_of(package: str) -> str:
    """By the name of its ``.dist-info``: reading what is in it costs a submission 20 ms for five packages."""
    if found := _dist_infos().get(re.sub(r"[-_.]+", "_", package).lower()):
        return found
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed where the run was submitted"


@functools.cache
def _dist_infos() -> dict[str, str]:
    """Version by name of what is installed as wheels are. Source: the specification of recorded installed projects (PyPA)."""
    versions: dict[str, str] = {}
    for folder in filter(os.path.isdir, sys.path):
        for entry in os.listdir(folder):
            name, dash, version = entry.removesuffix(".dist-info").partition("-")
            if dash and entry.endswith(".dist-info"):
                versions.setdefault(re.sub(r"[-_.]+", "_", name).lower(), version)
    return versions


def _git_record(source: Path) -> dict[str, Any]:
    """Commit, whether the working tree differs from it, and how; empty where the package is not its repository's own."""
    # An installed package may lie inside another project's repository, whose commit says nothing about it.
    top, commit = [*_git(source, "rev-parse", "--show-toplevel", "HEAD").splitlines(), "", ""][:2]
    if top != str(source.parent):
        return {"commit": "", "dirty": False, "diff": ""}
    is_dirty = bool(_git(source, "status", "--porcelain").strip())
    diff = _git(source, "diff", "HEAD") if is_dirty else ""
    return {"commit": commit, "dirty": is_dirty, "diff": redact_code(diff)}


def _installed_commit() -> str:
    """The commit that pip installed from, where it was told one (PEP 610); else empty."""
    try:
        text = importlib.metadata.distribution("hpctrain").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return ""
    return str(json.loads(text).get("vcs_info", {}).get("commit_id", "")) if text else ""


def _git(folder: Path, *arguments: str) -> str:
    """git's answer about the tree that holds ``folder``; empty where it is not in git, or git is not there."""
    if shutil.which("git") is None:
        return ""
    answer = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, errors="replace", check=False
    )
    return answer.stdout if answer.returncode == 0 else ""
