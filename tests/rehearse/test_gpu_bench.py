"""The bench for a machine with a GPU, as far as one without can show it: its tables, its choices, and tiny cases on the CPU."""

from __future__ import annotations

import pytest

from hpctrain.errors import EXIT_LAUNCH, EXIT_OK, LaunchError
from hpctrain.units import GIB
from tests.bench.gpu_bench import Compared, table
from tests.bench.gpu_training import Case, Trained, deepest
from tests.bench.gpu_training import table as training_table
from tests.bench.matmul_rate import MatmulRate
from tests.rehearse.test_real_device import run_here
from tests.worker.run_folder import SOURCE


def test_the_bench_marks_a_peak_beyond_the_bar() -> None:
    near = Compared("near", 96 * GIB, 96 * GIB, 96 * GIB, 100 * GIB, 1.0, 1.0)
    far = near._replace(case="far", simulated_bytes=94 * GIB)
    text = table([near, far], 0.05)
    assert [line.split()[0] for line in text.splitlines() if " !" in line and "bar" not in line] == ["far"]


@pytest.mark.train
def test_the_bench_on_the_cpu() -> None:
    found = run_here(["-m", "tests.bench.gpu_bench", "--device", "cpu"], SOURCE)
    assert found.returncode == EXIT_OK, found.stdout + found.stderr
    lines = found.stdout.splitlines()
    assert lines[0].startswith("matmul of this machine's CPU: ")
    trained = [line for line in lines if line.startswith("model=tiny parallelism=")]
    assert [line.split()[1] for line in trained] == ["parallelism=ddp", "parallelism=zero3"]
    peaks = [line for line in lines if line.startswith("parallelism=")]
    assert len(peaks) == 2
    assert found.stdout.count("beyond it has a !") == 2
    assert not [line for line in (*trained, *peaks) if "!" in line]


def test_the_bench_trains_as_many_layers_as_fit() -> None:
    case = Case("model=13b parallelism=zero1 training.micro_batch_size=4", 12)
    depths = {}
    for gib in (80, 140):
        _, plan = deepest(case, "cuda", "hgx_h200", gib * GIB)
        depths[gib] = plan.model.num_layers
        assert plan.memory.gpu_bytes <= 0.9 * gib * GIB
        assert plan.layout.world_size == 1
        assert plan.activation_checkpointing == "none"
    assert 1 <= depths[80] < depths[140] <= 12
    with pytest.raises(LaunchError, match="short by"):
        deepest(case, "cuda", "hgx_h200", 4 * GIB)


def test_the_bench_names_rate_share_and_plan() -> None:
    ceiling = MatmulRate(800.0, (8192, 8192, 4096), "bfloat16", "a GPU", 140 * GIB)
    row = Trained("a case", 8, 2_000_000_000, 16384, 0.5, 500.0, 989.0, 800.0, 100 * GIB, 104 * GIB, 20.0)
    text = training_table([row, row._replace(case="far", planned_bytes=94 * GIB)], ceiling)
    assert "matmul of a GPU: 800 TFLOP/s in bfloat16 at 8,192 x 8,192 x 4,096" in text
    near, far = (line for line in text.splitlines() if line.startswith(("a case", "far")))
    # 500 of 989 and of 800.
    assert "50.6%" in near
    assert "62.5%" in near
    assert "+4.0% " in near
    assert "!" not in near
    assert "-6.0% !" in far


def test_the_bench_ends_where_there_is_no_gpu() -> None:
    found = run_here(["-m", "tests.bench.gpu_bench"], SOURCE)
    assert found.returncode == EXIT_LAUNCH
    assert "torch sees no CUDA device here; nearest: --device cpu" in found.stderr
