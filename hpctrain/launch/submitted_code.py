"""Which code a run will execute: a copy of it, and ``code.json`` about it."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import hpctrain
from hpctrain.launch.snapshot import Snapshot, take_snapshot
from hpctrain.launch.working_tree import ask_git
from hpctrain.record.code_version import package_folder
from hpctrain.record.submission_schema import SCHEMA_VERSION
from hpctrain.secret_text import redact_code

_RECORDED_PACKAGES = ("torch", "deepspeed", "hydra-core", "submitit", "numpy")


@functools.cache
def submitted_code(run_root: Path, python: str) -> tuple[Snapshot, dict[str, Any]]:
    """The copy below ``run_root`` and the contents of ``code.json``; the same for all runs that this process submits.

    Raises:
        OSError: ``run_root`` cannot be written.
    """
    source = package_folder()
    tree = ask_git(source.parent)
    snapshot = take_snapshot(run_root)
    tree.wait()
    versions = {"python": ".".join(map(str, sys.version_info[:3])), "hpctrain": hpctrain.__version__}
    versions |= {package: _version_of(package) for package in _RECORDED_PACKAGES}
    return snapshot, {
        "schema_version": SCHEMA_VERSION,
        "interpreter": python,
        "package": str(source),
        "snapshot": str(snapshot.folder),
        "versions": versions,
        "commit": tree.commit,
        "dirty": bool(tree.status),
        "diff": redact_code(tree.diff),
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


def _installed_commit() -> str:
    """The commit that pip installed from, where it was told one (PEP 610); else empty."""
    try:
        text = importlib.metadata.distribution("hpctrain").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return ""
    return str(json.loads(text).get("vcs_info", {}).get("commit_id", "")) if text else ""
