"""Compressed node lists by Slurm's own client."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.worker.nodelist import first_host
from tests.worker.test_nodelist import VALID

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize("text", VALID)
def test_first_host_by_scontrol(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    assert first_host(text) == VALID[text][0]
