"""Rehearsals of plain data parallelism and of fp16's quantized gradients, counted by hand."""

from __future__ import annotations

import pytest

from hpctrain.rehearse.result import Rehearsal
from tests.rehearse.rehearsals import GPT, NO_WINDOWS, WORLD_SIZE, make_plan, rehearse

pytestmark = pytest.mark.train


def sent(found: Rehearsal) -> dict[tuple[str, str, int], int]:
    """Bytes by kind, phase and ranks; flags and norms left out."""
    return {
        (row.kind, row.phase, row.group_size): row.num_bytes for row in found.step_collectives() if row.num_bytes > 64
    }


def test_plain_data_parallelism_averages_all_gradients_once_and_holds_all_states() -> None:
    plan = make_plan(0, precision="bf16", gradient_accumulation_steps=2)
    found, count = rehearse(plan), plan.num_parameters
    assert sent(found) == {("all_reduce", "backward", WORLD_SIZE): 2 * count}
    (row,) = (row for row in found.rows("gpu", found.reported_step) if row.phase == "optimizer")
    # A block of CUDA's allocator is a multiple of 512 bytes: 28 parameters, with a copy and two moments each.
    assert row.resting_by_owner["parameters"] == pytest.approx(2 * count, abs=28 * 512)
    assert row.resting_by_owner["optimizer"] == pytest.approx(12 * count, abs=28 * 4 * 512)
    assert row.resting_by_owner.get("gradients", 0) == 0


def test_quantized_gradients_go_over_both_networks_in_four_bits() -> None:
    hidden, layers, vocab, seq = (GPT[name] for name in ("hidden_size", "num_layers", "vocab_size", "max_seq_len"))
    plan = make_plan(
        3, precision="fp16", parallelism={"quantized_gradients": True, "param_persistence_threshold": 0} | NO_WINDOWS
    )
    found = sent(rehearse(plan))
    matrices = layers * 12 * hidden * hidden + (vocab + seq) * hidden
    # Half a byte an element, and a scale of 4 bytes for each row or column, whichever are more.
    scales = layers * (3 + 1 + 4 + 4) * hidden + vocab + hidden
    assert found["all_to_all", "backward", 8] == matrices // 2 + 4 * scales
    # What is left of it after the sum over the node's 8 GPUs.
    assert found["all_to_all", "backward", 2] == (matrices // 2 + 4 * scales) // 8
    vectors = plan.num_parameters - matrices
    assert found["reduce_scatter", "backward", WORLD_SIZE] == 2 * vectors
