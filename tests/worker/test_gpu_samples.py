"""GPUs through NVIDIA's binding, over a driver library of ours (tests/fakes/nvml.c): there is no GPU here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.worker.gpu_samples import gpu_names

SOURCE = Path(__file__).parents[2]
LOOK = """
import dataclasses, json, sys
from hpctrain.worker.gpu_samples import NodeGpus
gpus = NodeGpus([tuple(names) for names in json.loads(sys.argv[1])])
print(json.dumps([gpus.unseen, [dataclasses.asdict(sample) for sample in gpus.samples()]]))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the made-up driver library."""
    folder = tmp_path_factory.mktemp("driver")
    source = SOURCE / "tests" / "fakes" / "nvml.c"
    command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", str(source), "-o", str(folder / "libnvidia-ml.so.1")]
    subprocess.run(command, check=True)
    return folder


def look(driver: Path, names: list[tuple[str, ...]], **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "LD_LIBRARY_PATH": str(driver), **variables}
    command = [sys.executable, "-c", LOOK, json.dumps(names)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_samples_in_the_order_of_local_ranks(driver: Path) -> None:
    """The UUIDs decide, not the driver's own order; a slice says nothing of its use and power."""
    answer = look(driver, [("GPU-bbbb", "MIG-bbbb"), ("GPU-aaaa", "MIG-aaaa"), ("GPU-cccc", "MIG-cccc")])
    assert answer.returncode == 0, answer.stderr
    unseen, samples = json.loads(answer.stdout)
    keys = ("index", "used_bytes", "total_bytes", "utilisation", "power_w")
    assert unseen == []
    assert [tuple(sample[key] for key in keys) for sample in samples] == [
        (0, 1_000_000_000, 80_000_000_000, 0.0, 71.0),
        (1, 60_000_000_000, 80_000_000_000, 0.97, 412.345),
        (2, 9_000_000_000, 10_000_000_000, None, None),
    ]


def test_gpus_that_the_driver_does_not_show_are_named(driver: Path) -> None:
    answer = look(driver, [("GPU-zzzz", "MIG-zzzz"), ("GPU-aaaa", "MIG-aaaa"), ("GPU-forbidden",)])
    unseen, samples = json.loads(answer.stdout)
    assert unseen == [0, 2]
    assert [(sample["index"], sample["used_bytes"]) for sample in samples] == [(1, 60_000_000_000)]


@pytest.mark.parametrize(
    ("variable", "status", "error"),
    [("FAKE_NVML_INIT", 9, "NVMLError_DriverNotLoaded"), ("FAKE_NVML_MEMORY", 15, "NVMLError_GpuIsLost")],
    ids=["no driver", "lost gpu"],
)
def test_what_the_driver_refuses(variable: str, status: int, error: str, driver: Path) -> None:
    answer = look(driver, [("GPU-aaaa",)], **{variable: str(status)})
    assert answer.returncode == 1
    assert error in answer.stderr


@pytest.mark.parametrize(
    ("index", "visible", "expected"),
    [
        (0, None, ("GPU-u", "MIG-u")),
        (1, "3,1", ("GPU-u", "MIG-u")),
        (0, "GPU-8932f937", ("GPU-u", "MIG-u")),
        (0, "MIG-1234", ("MIG-1234",)),
        (1, "MIG-1234, MIG-GPU-5678/1/0", ("MIG-GPU-5678/1/0",)),
        (2, "MIG-1234", ("GPU-u", "MIG-u")),
    ],
    ids=["not set", "indices", "prefix of a uuid", "slice", "older name of a slice", "beyond the list"],
)
def test_names_of_a_gpu(index: int, visible: str | None, expected: tuple[str, ...]) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpu_names("u", index, environment) == expected
