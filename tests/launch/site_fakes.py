"""Fakes of scontrol and sacctmgr that print the samples in tests/data/site."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[1] / "data" / "site"
VERSIONS = sorted(path.name for path in SAMPLES.iterdir())

_SCONTROL = """#!/bin/sh
echo "scontrol $*" >> "{folder}/calls"
case "$*" in
*config*) cat "{sample}/config.txt" ;;
*partition*) cat "{sample}/partitions.txt" ;;
*reservation*) cat "{sample}/reservations.txt" ;;
*node*) cat "{sample}/nodes.txt" ;;
esac
"""
_SACCTMGR = """#!/bin/sh
echo "sacctmgr $*" >> "{folder}/calls"
case "$*" in
*withassoc*) cat "{sample}/users.txt" ;;
*user=*) cat "{sample}/accounts.txt" ;;
*qos*) cat "{sample}/qos.txt" ;;
esac
"""


def program(folder: Path, name: str, text: str) -> None:
    """A program of this name, first in a PATH that begins with ``folder``."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def fake_site(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts fakes of one version first on PATH; returns their folder, in which ``calls`` lists the commands."""
    words = {"folder": folder / "bin", "sample": SAMPLES / version}
    program(folder / "bin", "scontrol", _SCONTROL.format(**words))
    program(folder / "bin", "sacctmgr", _SACCTMGR.format(**words))
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return folder / "bin"
