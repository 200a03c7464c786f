"""Rehearsals on a real device: real tensors and kernels, here the CPU's, beside simulated ones of the same plan.

Of the GPU's way only what needs no GPU is tested here; ``tests/bench/gpu_bench.py`` is for a machine that has one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from hpctrain.config.compose import compose_points
from hpctrain.errors import EXIT_CONFIG, EXIT_DOES_NOT_FIT, EXIT_OK
from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.rehearse import local_collectives
from hpctrain.rehearse.conduct import conduct
from hpctrain.rehearse.measured import BETWEEN_RANKS, compute_parts, correction, render_measured
from hpctrain.rehearse.render import render_rehearsal
from hpctrain.rehearse.request import Request
from hpctrain.rehearse.result import DevicePhase, DeviceWay, Measured, Rehearsal, read_rehearsal
from hpctrain.units import GIB
from tests.rehearse.make_rehearsal import make_rehearsal
from tests.rehearse.rehearsals import forked_children
from tests.rehearse.truth_cases import CASES
from tests.worker.run_folder import SOURCE

PEAK_TOLERANCE = 0.01
TINY_CPU = ("model=tiny", "hardware=cpu", "cluster=local", "parallelism=zero3", "training.micro_batch_size=1")
TINY_GPU = ("model=tiny", "parallelism=zero3", "hardware=ndm_a100_v4", "cluster=slurm", "nodes=2")


def both_ways(name: str) -> tuple[Rehearsal, Rehearsal]:
    """A case on fake and on real tensors, side by side."""
    case = CASES[name]
    config = case.config()
    plan = build_run_plan(config)

    def rehearse(way: DeviceWay) -> Rehearsal:
        request = Request(
            plan=plan,
            num_layers=plan.model.num_layers,
            weight_decay=config.training.weight_decay,
            seed=config.training.seed,
            rank=case.rank,
            steps=2,
            device_way=way,
            num_largest=0,
            answer="",
        )
        return conduct([request], "whole", lambda line: None)

    with forked_children(), ThreadPoolExecutor() as pool:
        simulated, real = pool.map(rehearse, ("cpu", "real_cpu"))
    return simulated, real


@pytest.mark.train
@pytest.mark.parametrize(
    "name",
    [
        "zero1",
        "zero2, accumulation 2, recomputed",
        "zero3, 3 ranks, the last one",
        "zero3, secondary partition of 2, 4 ranks",
        "zero2, tensor parallel",
        "zero3, sequence parallel, recomputed",
        "zero1, last stage of 2, tensor parallel, llama",
    ],
)
def test_real_tensors_take_what_fake_ones_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Memory that nobody has written yet holds 3e38 in bf16 and in fp32: where it gets into a sum, a step is skipped.
    monkeypatch.setenv("MALLOC_PERTURB_", "128")
    simulated, real = both_ways(name)
    assert [(row.step, row.phase, row.tier) for row in real.memory] == [
        (row.step, row.phase, row.tier) for row in simulated.memory
    ]
    for fake, true in zip(simulated.memory, real.memory, strict=True):
        assert true.resting_bytes == fake.resting_bytes, true
        assert true.peak_bytes == pytest.approx(fake.peak_bytes, rel=PEAK_TOLERANCE), true
    assert real.collectives == simulated.collectives
    assert real.flops == simulated.flops


@pytest.mark.train
def test_time_is_told_for_all_micro_batches(tmp_path: Path) -> None:
    found = type_words(*TINY_CPU, "training.gradient_accumulation_steps=20", "--device", "cpu", "--out", tmp_path / "x")
    assert found.returncode == EXIT_OK, found.stderr
    rehearsal = read_rehearsal(tmp_path / "x")
    measured = rehearsal.measured
    assert measured is not None
    assert (rehearsal.device_way, rehearsal.main_tier) == ("real_cpu", "host")
    assert (measured.phases, rehearsal.reserved_bytes) == ((), None), "the CPU has no allocator that counts"
    assert measured.num_steps == 5
    # Three micro batches a step, then steps of four and of five to count, see accumulation.
    assert (measured.micro_batches, measured.planned_micro_batches) == (5, 20)
    assert set(rehearsal.phase_times_s) == {"forward", "backward", "optimizer"}
    assert all(seconds > 0 for seconds in rehearsal.phase_times_s.values())
    assert "5 micro batches were run, their time is told for all 20" in found.stdout
    assert "no prediction: hardware=cpu has device=cpu: step times are predicted for GPUs" in found.stdout
    assert json.loads((tmp_path / "x" / "rehearsal.json").read_text())["simulated"] == list(rehearsal.simulated)
    assert "the other ranks" in rehearsal.simulated[0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            (*TINY_GPU, "--device", "cuda"),
            "--device cuda: torch sees no CUDA device here; leave --device out to rehearse on simulated tensors",
        ),
        (
            (*TINY_CPU, "--device", "cuda"),
            "--device=cuda: hardware=cpu trains on cpu, whose engine takes other memory and other kernels; nearest: --device cpu",
        ),
        (
            (*TINY_GPU, "--device", "cpu"),
            "--device=cpu: hardware=ndm_a100_v4 trains on cuda, whose engine takes other memory and other kernels; nearest:"
            " --device cuda, or hardware=cpu",
        ),
        ((*TINY_CPU, "--device", "cpu", "--quick"), "--quick --device cpu: a quick rehearsal runs three depths"),
        ((*TINY_CPU, "--device", "gpu"), "--device: invalid choice: 'gpu' (choose from 'cuda', 'cpu')"),
    ],
    ids=["no GPU", "plan of CPUs", "plan of GPUs", "quick", "no such device"],
)
def test_mistakes(words: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    found = type_words(*words, folder=tmp_path)
    assert found.returncode == EXIT_CONFIG
    assert expected in found.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.train
def test_a_device_that_is_too_small_is_told_with_phase_and_numbers(tmp_path: Path) -> None:
    words = (*TINY_CPU, "parallelism=zero1", "model.vocab_size=10000000", "model.hidden_size=1024", "--device", "cpu")
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (20 * GIB, 20 * GIB))
    found = type_words(*words, folder=tmp_path, before=limit)
    assert found.returncode == EXIT_DOES_NOT_FIT, found.stderr
    assert (
        "--device=cpu: rank 0 of 2 ran out of memory while the model is built with 0.0 MiB in live tensors"
        in found.stderr
    )
    assert "you tried to allocate 40960000000 bytes" in found.stderr
    assert "leave --device out to rehearse on simulated tensors" in found.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.train
def test_skipped_steps_are_not_taken_for_the_jobs(tmp_path: Path) -> None:
    found = type_words(*TINY_CPU, "training.learning_rate=1e30", "--device", "cpu", folder=tmp_path)
    assert found.returncode == EXIT_CONFIG, found.stderr
    assert "--rank 0: DeepSpeed skipped" in found.stderr
    assert not list(tmp_path.iterdir())


class Group(NamedTuple):
    """As much of a process group as a collective asks for."""

    num_ranks: int
    own: int

    def size(self) -> int:
        return self.num_ranks

    def rank(self) -> int:
        return self.own


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("is_part", [True, False])
def test_a_gather_repeats_the_own_share(rank: int, is_part: bool) -> None:
    out = torch.full((6,), torch.nan)
    own = out[2 * rank : 2 * rank + 2] if is_part else torch.empty(2)
    own.copy_(torch.tensor([1.0, 2.0]))
    local_collectives.gather(out, own, Group(3, rank))
    assert out.tolist() == [1.0, 2.0] * 3


@pytest.mark.parametrize("is_part", [True, False])
def test_a_reduction_gives_the_own_part(is_part: bool) -> None:
    whole = torch.arange(6.0)
    out = whole[2:4] if is_part else torch.full((2,), torch.nan)
    local_collectives.reduce_scatter(out, whole, Group(3, 1))
    assert out.tolist() == [2.0, 3.0]


def test_what_is_received_is_finite_and_tells_of_no_parts() -> None:
    exchanged, numbers, parts = torch.full((2, 2), torch.nan), torch.full((4,), torch.nan), torch.arange(3)
    local_collectives.exchange(exchanged, torch.arange(4.0), Group(2, 0))
    local_collectives.receive([numbers, parts], Group(2, 0))
    assert exchanged.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert torch.isfinite(numbers).all()
    assert parts.tolist() == [0, 1, 2]


def plan_of(*words: str) -> RunPlan:
    (point,) = compose_points(["parallelism=zero3", *words], multirun=False)
    return build_run_plan(point.config)


FORMS = {
    "zero3": ("model=13b", "nodes=4", "parallelism=zero3"),
    "offload": ("model=13b", "nodes=1", "parallelism=zero3_offload"),
    "ulysses": ("model=13b", "nodes=4", "parallelism=ulysses"),
    "3d": (
        *("model=530b", "nodes=420", "parallelism=megatron_3d"),
        *("training.micro_batch_size=1", "training.global_batch_size=1920"),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_predicted_parts_are_a_ranks_own_or_between_ranks(form: str) -> None:
    prediction = plan_of(*FORMS[form], "hardware=ndm_a100_v4", "cluster=slurm").prediction
    assert prediction is not None
    own = compute_parts(prediction.parts_s)
    assert "matrix work" in own
    between = prediction.parts_s.keys() - own.keys()
    assert between
    assert between <= set(BETWEEN_RANKS)


def test_every_part_between_ranks_is_in_some_prediction() -> None:
    forms = [*FORMS.values(), ("model=13b", "nodes=4", "parallelism=zero1")]
    plans = [plan_of(*words, "hardware=ndm_a100_v4", "cluster=slurm") for words in forms]
    assert {name for plan in plans if plan.prediction for name in plan.prediction.parts_s} >= set(BETWEEN_RANKS)


def test_a_new_part_of_the_step_is_noticed() -> None:
    with pytest.raises(AssertionError, match="teleportation"):
        compute_parts({"teleportation": 1.0})


@pytest.mark.parametrize("ratio", [0.9, 1.3])
def test_the_correction_makes_the_plan_predict_what_was_measured(ratio: float) -> None:
    words = ("model=13b", "nodes=4", "parallelism=zero3", "hardware=ndm_a100_v4", "cluster=slurm")
    plan = plan_of(*words)
    assert plan.prediction is not None
    own = compute_parts(plan.prediction.parts_s)
    override = correction(plan, own, ratio * sum(own.values()))
    assert override.startswith("hardware.achievable_tflops={bf16:")
    corrected = plan_of(*words, override).prediction
    assert corrected is not None
    assert sum(compute_parts(corrected.parts_s).values()) == pytest.approx(ratio * sum(own.values()), rel=5e-3)


def test_there_is_no_correction_where_the_rate_cannot_be_the_reason() -> None:
    plan = plan_of("model=13b", "nodes=4", "hardware=ndm_a100_v4", "cluster=slurm")
    assert correction(plan, {"matrix work": 1.0, "optimizer": 2.0}, 1.9) == ""
    assert correction(plan, {}, 1.9) == ""
    peak_ratio = 271.2 / 312
    assert correction(plan, {"matrix work": 1.0}, 1.01 * peak_ratio) != ""
    assert correction(plan, {"matrix work": 1.0}, 0.99 * peak_ratio) == ""  # above the peak of an A100


def on_a_gpu(**changes: Any) -> Rehearsal:
    """Written down by hand."""
    measured = Measured(
        device_name="GPU",
        device_bytes=80 * GIB,
        phases=(DevicePhase("forward", 10 * GIB, 9 * GIB, 12 * GIB), DevicePhase("backward", 20 * GIB, GIB, 25 * GIB)),
        num_steps=5,
        micro_batches=1,
        planned_micro_batches=1,
        planned_phases=(("forward", 11 * GIB, 0), ("backward", 19 * GIB, 0)),
        predicted_s={"matrix work": 2.0, "optimizer": 1.0},
        prediction_gap="",
        time_ratio=1.1,
        correction="hardware.achievable_tflops={bf16:200.0}",
    )
    times_s = {"forward": 1.0, "backward": 2.0, "optimizer": 0.3}
    return make_rehearsal(
        device_way="real_gpu", phase_times_s=times_s, measured=dataclasses.replace(measured, **changes)
    )


def test_what_was_measured_stands_beside_the_plan() -> None:
    text = render_measured(on_a_gpu())
    lines = [line.split() for line in text.splitlines()]
    # The hand-made rehearsal counted 700 bytes in the forward pass.
    assert ["forward", "11.00", "GiB", "0.0", "MiB", "10.00", "GiB", "12.00", "GiB", "+10.0%", "-100.0%"] in lines
    assert ["backward", "19.00", "GiB", "0.0", "MiB", "20.00", "GiB", "25.00", "GiB", "-5.0%", "-100.0%"] in lines
    assert ["in", "all", "3.3", "s", "3", "s"] in lines
    assert "measured 1.100 of the predicted time of a rank's own work" in text
    assert "to plan with what was measured here: hardware.achievable_tflops={bf16:200.0}" in text
    assert text in render_rehearsal(on_a_gpu())
    assert render_measured(make_rehearsal()) == ""


def test_measurements_survive_their_file(tmp_path: Path) -> None:
    from hpctrain.rehearse.result import write_rehearsal

    assert read_rehearsal(write_rehearsal(tmp_path, on_a_gpu())) == on_a_gpu()


def type_words(*words: str | Path, folder: Path = SOURCE, before: Any = None) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m hpctrain rehearse`` in a folder, on a machine whose GPUs nobody sees."""
    return run_here(["-m", "hpctrain", "rehearse", *map(str, words)], folder, before)


def run_here(words: list[str], folder: Path, before: Any = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=before,
    )
