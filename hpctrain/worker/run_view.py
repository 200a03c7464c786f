"""What a rank sees of its run: the folder, which another file system may hide or show late, and the code that was submitted."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from hpctrain.record.code_version import changed_sources, package_folder, source_digests
from hpctrain.record.identity import node_name
from hpctrain.record.paths import RunPaths
from hpctrain.worker.end_reasons import RankEnvironmentError

_WAIT_S = 90.0
"""NFS clients keep what they know of a folder for up to a minute (acdirmax in nfs(5))."""
_PAUSE_S = 1.0


def wait_for_run_folder(paths: RunPaths, wait_s: float = _WAIT_S) -> None:
    """Returns when this node sees what was written at submission.

    Raises:
        RankEnvironmentError: it does not within ``wait_s``.
    """
    started = time.monotonic()
    while not paths.token.exists():
        if time.monotonic() - started > wait_s:
            raise RankEnvironmentError(
                f"run.root: node {node_name(os.environ)} does not see {paths.token}, which was written at submission, within"
                f" {wait_s:g} s: the folder is not on a file system that this node shares, or was removed; set run.root=FOLDER"
                " to one that all nodes see"
            )
        _list(paths.root.parent)
        _list(paths.root)
        time.sleep(_PAUSE_S)
    waited_s = time.monotonic() - started
    if waited_s > _PAUSE_S:
        print(f"hpctrain: node {node_name(os.environ)} saw {paths.root} after {waited_s:.0f} s", flush=True)


def _list(folder: Path) -> None:
    """Reading a folder makes an NFS client ask for it anew."""
    if folder.is_dir():
        os.listdir(folder)


def check_code(paths: RunPaths, versions: dict[str, str], is_first_of_node: bool) -> None:
    """Prints what this rank runs, and holds it against ``code.json``; other versions than at submission are warnings.

    Args:
        paths: the run.
        versions: what is here.
        is_first_of_node: this rank reads all source files; one a node is enough.

    Raises:
        RankEnvironmentError: the code is not the copy that was submitted.
    """
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    print(f"hpctrain rank: {sys.executable}, {told}, code {package_folder().parent}", flush=True)
    if not paths.code.exists():
        return
    recorded: dict[str, Any] = json.loads(paths.code.read_text(encoding="utf-8"))
    here = {"interpreter": sys.executable, **versions}
    there = {"interpreter": recorded["interpreter"], **recorded["versions"]}
    for name, value in here.items():
        if there.get(name) != value:
            print(f"hpctrain: warning: {name} is {value} here, {there.get(name)} at submission", flush=True)
    snapshot = recorded.get("snapshot", "")
    is_elsewhere = bool(snapshot) and package_folder().parent != Path(snapshot).resolve()
    # Elsewhere (a container's mount, AzureML's upload) it may still be the same code.
    changed = changed_sources(recorded["sources"], source_digests()) if is_first_of_node or is_elsewhere else []
    if changed and snapshot:
        place = f"{package_folder()} instead of the copy that was submitted, {snapshot}" if is_elsewhere else snapshot
        raise RankEnvironmentError(
            f"code: this rank would run {place}, and {len(changed)} files differ from those of the submission"
            f" ({', '.join(changed[:5])}): the copy was changed, removed or is hidden on this node, or PYTHONPATH was set anew"
            " (cluster.setup, a module); submit the run again"
        )
    if changed:
        print(f"hpctrain: warning: source changed since submission: {', '.join(changed)}", flush=True)
