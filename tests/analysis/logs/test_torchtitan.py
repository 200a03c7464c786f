from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.analysis.logs.torchtitan import TorchtitanFormat
from tests.analysis.logs.format_driver import assert_sample, events_of_text, facts, incomplete, samples, steps


@pytest.mark.parametrize("json_path", samples("torchtitan_*"))
def test_composed_sample(json_path: Path) -> None:
    assert_sample(TorchtitanFormat(), json_path)


STEP = "2025-01-02 03:04:05,678 - root - INFO - step: {step}  loss: {loss}  memory:  6.02GiB(7.53%)  tps: {tps}\n"


def test_loss_of_minus_one_is_a_stage_without_the_loss(tmp_path: Path) -> None:
    text = (
        "[rank0]:"
        + STEP.format(step=" 1", loss="-1.0000", tps="8")
        + "[rank15]:"
        + STEP.format(step=" 1", loss=" 7.4310", tps="8")
    )
    first, last = steps(events_of_text(TorchtitanFormat(), text, tmp_path))
    assert (first["rank"], first["loss"]) == (0, None)
    assert (last["rank"], last["loss"]) == (15, 7.431)
    assert "loss_is_nan" not in first


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "Training starts at step 101, with local batch size 5, global batch size 20, sequence length 8192, "
            "total steps 400 (warmup 9)",
            {"micro_batch_size": 5, "global_batch_size": 20, "seq_len": 8192, "total_iterations": 400},
            id="2024",
        ),
        pytest.param(
            "Trainer is initialized with local batch size 2, global batch size 64, gradient accumulation steps 4, "
            "sequence length 4096, total steps 10 (warmup 2).",
            {"micro_batch_size": 2, "global_batch_size": 64, "seq_len": 4096, "total_iterations": 10},
            id="2025",
        ),
        pytest.param(
            "Building 3-D device mesh with ['pp', 'dp_shard', 'tp'], [2, 4, 8]",
            {"world_size": 64, "tp": 8, "pp": 2},
            id="mesh",
        ),
    ],
)
def test_settings(line: str, expected: dict[str, int], tmp_path: Path) -> None:
    events = events_of_text(TorchtitanFormat(), f"[rank0]:[titan] - root - INFO - {line}\n", tmp_path)
    assert facts(events, "setting") == [expected]
    assert len(events) == 1


def test_loaded_checkpoint(tmp_path: Path) -> None:
    events = events_of_text(
        TorchtitanFormat(),
        "[titan] - root - INFO - Loading the checkpoint from outputs/checkpoint/step-500.\n",
        tmp_path,
    )
    assert facts(events, "checkpoint_loaded") == [{"iteration": 500}]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(
            "01:02:03 [INFO] [Rank 0] step: 12, loss: 2.5, tokens_per_second: 5000.0, mfu: 40.0",
            id="other-trainer",
        ),
        pytest.param("step: 12  loss: 2.5", id="no-rate"),
        pytest.param("completed step: 12  loss: 2.5  memory: 6.02GiB(7.53%)  tps: 28", id="maxtext-like"),
        pytest.param("validate step: 12  loss: 2.5  memory: 6.02GiB(7.53%)  tps: 28", id="validation"),
        pytest.param("global_step: 12", id="other-key"),
    ],
)
def test_other_lines_are_no_records(line: str, tmp_path: Path) -> None:
    assert events_of_text(TorchtitanFormat(), f"{line}\n", tmp_path) == []


def test_file_that_ends_in_the_last_percentage_is_whole(tmp_path: Path) -> None:
    text = "step:  7  loss:  7.4310  memory:  6.02GiB(7.53%)  tps: 28  mfu: 13.99%"
    (record,) = steps(events_of_text(TorchtitanFormat(), text, tmp_path))
    assert (record["iteration"], record["mfu_percent"]) == (7, 13.99)
    cut = events_of_text(TorchtitanFormat(), text.removesuffix("99%"), tmp_path)
    assert "mfu_percent" not in steps(cut)[0]
    cut = events_of_text(TorchtitanFormat(), text[: text.index("28") + 1], tmp_path)
    assert incomplete(cut) == [{"iteration": 7, "loss": 7.431, "mem_gib": 6.02, "mem_percent": 7.53}]
