"""Pieces of a pipeline rank: as a row says, as its source is known to do, or one."""

from __future__ import annotations

import pytest

from hpctrain.plan.speed.step_parts import step_parts
from hpctrain.plan.stated.known_pipelines import pieces_of_rank
from hpctrain.plan.stated.run import stated_run
from hpctrain.plan.stated.trainer import find_trainer
from tests.plan.test_stated_run import LARGE


@pytest.mark.parametrize(
    ("notes", "pieces"),
    [
        ("6 virtual stages", 6),
        ("interleaved 1F1B with 6 interleaved stages", 6),
        ("6 interleaving stages", 6),
        ("interleaved, 4 model chunks", 4),
        ("VP 3", 3),
        ("vpp=2", 2),
        ("virtual pipeline size: 4", 4),
        ("2 layers per virtual stage", 6),
        ("interleaved", 2),
        ("loss in 8 chunks", 1),
        ("", 1),
    ],
)
def test_pieces_that_remarks_state(notes: str, pieces: int) -> None:
    assert pieces_of_rank("somebody", notes, 96, 8) == pieces


@pytest.mark.parametrize(
    ("source", "layers", "ranks", "pieces"),
    [
        ("Llama 3 (arXiv 2407.21783, 2024-07) Table 4", 126, 16, 8),
        ("Meta Llama 3 paper", 126, 16, 8),
        ("The Llama 3 Herd of Models", 126, 16, 8),
        ("Llama 3 on our cluster", 126, 16, 1),
        ("DGX Cloud recipes, Llama 3.1 405B", 126, 8, 1),
        ("MegaScale (arXiv 2402.15627)", 96, 8, 6),
        ("MegaScale (arXiv 2402.15627)", 105, 35, 3),
        ("MegaScale (arXiv 2402.15627)", 40, 4, 1),
        ("Llama 3 (arXiv 2407.21783)", 126, 1, 1),
    ],
)
def test_pieces_of_runs_that_are_known(source: str, layers: int, ranks: int, pieces: int) -> None:
    assert pieces_of_rank(source, "", layers, ranks) == pieces


def test_the_bubble_of_a_known_run() -> None:
    # 16 ranks with 8 pieces each and 32 micro batches: 15/(8 x 32) of the busy time, in one piece 15/32.
    row = LARGE | {
        "gpu": "H100",
        "gpu_mem_gb": None,
        "model": "Llama-3.1-405B",
        "layers": 126,
        "hidden": 16384,
        "heads": 128,
        "kv_heads": 8,
        "ffn_hidden": 53248,
        "vocab": 128256,
        "seq_len": 8192,
        "num_gpus": 8192,
        "nodes": 1024,
        "tp": 8,
        "pp": 16,
        "dp": 64,
        "micro_batch_per_gpu": 1,
        "global_batch": 2048,
        "zero_stage": 1,
        "notes": "",
    }
    bubbles = []
    for source in ("Llama 3 (arXiv 2407.21783, 2024-07)", "somebody (2024-07)"):
        run = stated_run(row | {"source": source})
        assert run.machine is not None
        bubbles.append(step_parts(run.setup, run.machine, find_trainer("somebody", "FSDP", "bf16", 1).software))
    known, plain = (parts["pipeline bubble"] for parts in bubbles)
    assert known == pytest.approx(plain / 8)


@pytest.mark.parametrize(
    ("notes", "overlap"), [("", 1.0), ("MegaScale", 1.0), ("Megatron-LM", 0.0), ("baseline Megatron-LM 285068c8", 0.0)]
)
def test_megascale_hides_what_its_baseline_does_not(notes: str, overlap: float) -> None:
    software = find_trainer("MegaScale (arXiv 2402.15627, 2024-02)", notes, "bf16", 1, gpu="A100").software
    assert software.model_parallel_overlap == overlap
