"""How much room the checkpoints of a run take; real files are held against it in tests/worker/test_checkpoint.py."""

from __future__ import annotations

from typing import Any

import pytest

from hpctrain.plan.checkpoint_size import checkpoint_bytes, num_regular_saves, room_problem
from hpctrain.plan.run_plan import build_run_plan
from tests.worker.run_folder import make_config

NUM_STEPS = 20


def test_a_large_model_in_bf16() -> None:
    # 14 bytes a parameter, the rule of thumb of CASES 97; ZeRO 3 needs no second copy of the weights.
    assert checkpoint_bytes(530_000_000_000, 1, "bf16") == 7_420_000_000_000
    assert checkpoint_bytes(530_000_000_000, 3, "bf16") == 6_360_000_000_000


@pytest.mark.parametrize(
    ("interval", "at_end", "after_step", "expected"),
    [
        (None, False, 0, 0),
        (None, True, 0, 1),
        (None, True, 20, 0),
        (5, False, 0, 4),
        (5, True, 0, 4),
        (6, False, 0, 3),
        (6, True, 0, 4),
        (6, True, 12, 2),
        (50, True, 0, 1),
        (50, False, 0, 0),
    ],
)
def test_how_often_a_run_saves(interval: int | None, at_end: bool, after_step: int, expected: int) -> None:
    training = make_config(num_steps=NUM_STEPS, checkpoint_interval=interval, checkpoint_at_end=at_end).training
    assert num_regular_saves(NUM_STEPS, training, after_step) == expected


def room(free: int, num_there: int = 0, after_step: int = 0, **training: Any) -> str:
    """``free`` counts checkpoints, and one byte less."""
    config = make_config(zero_stage=2, num_steps=NUM_STEPS, **training)
    plan = build_run_plan(config)
    size = checkpoint_bytes(plan.num_parameters, 2, "fp32")
    problem = room_problem(plan, config.training, "/runs", free * size - 1, num_there, after_step)
    return "" if problem is None else str(problem)


@pytest.mark.parametrize(
    ("free", "num_there", "after_step", "training", "fits"),
    [
        (1, 0, 0, {}, True),  # nothing is saved
        (3, 0, 0, {"checkpoint_interval": 5}, False),  # two kept, and the next beside them
        (4, 0, 0, {"checkpoint_interval": 5}, True),
        (2, 0, 0, {"checkpoint_interval": 5, "keep_checkpoints": 1}, False),
        (3, 0, 0, {"checkpoint_interval": 5, "keep_checkpoints": 1}, True),
        (2, 0, 0, {"checkpoint_interval": 20}, True),  # only one is ever saved
        (1, 0, 0, {"checkpoint_interval": 20}, False),
        (1, 0, 0, {"checkpoint_at_end": True}, False),
        (2, 2, 10, {"checkpoint_interval": 5}, True),  # two are there already
        (1, 2, 10, {"checkpoint_interval": 5}, False),
    ],
)
def test_the_room_for_what_is_kept_and_the_next(
    free: int, num_there: int, after_step: int, training: dict[str, Any], fits: bool
) -> None:
    assert (room(free, num_there, after_step, **training) == "") == fits


def test_the_message_has_the_numbers_and_the_ways_out() -> None:
    text = room(2, checkpoint_interval=5)
    assert text.startswith(
        "training.keep_checkpoints=2: 3 checkpoints of 0.5 MiB (34,816 parameters, ZeRO 2, fp32) need 1.6 MiB; /runs has 1.1 MiB"
        " free, short by 0.5 MiB; "
    )
    assert "training.check_checkpoint_room=false" in text
