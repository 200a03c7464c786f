"""GPUs that are not free when a rank starts (case 69), over a driver library of ours: there is no GPU here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.test_gpu_samples import driver as driver  # the fixture

SOURCE = Path(__file__).parents[2]
LOOK = """
import json, os
from hpctrain.worker.gpu_tenants import foreign_tenants
print(json.dumps(foreign_tenants(os.environ, "n1")))
"""


def look(driver: Path, **variables: str) -> list[str]:
    env = {
        **os.environ,
        "PYTHONPATH": str(SOURCE),
        "LD_LIBRARY_PATH": str(driver),
        "HPCTRAIN_RUN": "/runs/a",
        **variables,
    }
    answer = subprocess.run([sys.executable, "-c", LOOK], env=env, capture_output=True, text=True, check=True)
    found = json.loads(answer.stdout)
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("visible", [{}, {"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}])
def test_a_process_that_holds_memory_is_named(driver: Path, visible: dict[str, str]) -> None:
    holder = subprocess.Popen(["sleep", "60"], env={"HPCTRAIN_RUN": "/runs/another"})
    try:
        found = look(driver, FAKE_NVML_TENANT=str(holder.pid), **visible)
    finally:
        holder.kill()
        holder.wait()
    (text,) = found
    assert text.startswith("node n1: GPU ")
    assert f"is not free: process {holder.pid} (sleep, of user " in text
    assert text.endswith("holds 55.88 GiB of its memory")


def test_other_ranks_of_this_run_are_no_strangers(driver: Path) -> None:
    sibling = subprocess.Popen(["sleep", "60"], env={"HPCTRAIN_RUN": "/runs/a"})
    try:
        assert look(driver, FAKE_NVML_TENANT=str(sibling.pid)) == []
    finally:
        sibling.kill()
        sibling.wait()


def test_memory_that_nobody_seen_holds(driver: Path) -> None:
    """In another container, or of a process that died badly."""
    assert look(driver) == [
        "node n1: GPU 0 is not free: 55.88 GiB of its memory are held by no process that is seen from here"
    ]


def test_gpus_of_others_are_not_looked_at(driver: Path) -> None:
    assert look(driver, CUDA_VISIBLE_DEVICES="1") == []
    assert look(driver, CUDA_VISIBLE_DEVICES="") == []


def test_no_driver_is_a_word_and_no_error(driver: Path) -> None:
    (text,) = look(driver, FAKE_NVML_INIT="9")
    assert text.startswith("node n1: whether its GPUs are free is not known (")
    (text,) = look(driver, CUDA_VISIBLE_DEVICES="GPU-zzzz")
    assert "is not known" in text
