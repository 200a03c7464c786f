"""Run folders for the tests of the report: a small sweep with what goes wrong in a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.analysis.make_runs import Attempt, make_run, toy_config

HOSTILE_NAME = """<script>alert('x')</script> "Größe" & <img src=x onerror=alert(1)>""".replace("/", "\u2215")
"""A run folder may have any name but a slash."""


def write_code(folder: Path, **values: Any) -> None:
    """``code.json`` as a submission writes it; ``values`` replace its keys."""
    code = {
        "schema_version": 1,
        "interpreter": "/venv/bin/python",
        "versions": {"python": "3.11.2", "torch": "2.6.0"},
        "commit": "0123456789abcdef0123",
        "diff": "",
        "sources": {"cli.py": "00"},
        **values,
    }
    (folder / "code.json").write_text(json.dumps(code), encoding="utf-8")


def make_sweep(root: Path) -> Path:
    """Four valid runs on 1, 2, 4 and 8 nodes, one that failed at once, one killed on the way, one with a hostile name."""
    for nodes, seconds in ((1, 0.5), (2, 0.55), (4, 0.6), (8, 0.625)):
        folder = root / f"toy-{nodes}n"
        make_run(folder, toy_config(nodes=nodes), [Attempt([2 * seconds] * 2 + [seconds] * 8)])
        write_code(folder, versions={"python": "3.11.2", "torch": "2.7.1" if nodes == 8 else "2.6.0"})
    make_run(root / "at-once", attempts=[Attempt([], end={"state": "failed", "end_reason": "launch_failed"})])
    killed = {"state": "failed", "end_reason": "killed", "exit_code": 137, "message": "a rank <b>died</b>"}
    make_run(root / "killed", attempts=[Attempt([0.7] * 5, end=killed)])
    make_run(root / HOSTILE_NAME, toy_config(nodes=2), [Attempt([0.56] * 10)])
    with (root / "killed" / "steps.jsonl").open("a", encoding="utf-8") as stream:
        stream.write("half a li\n")
    return root
