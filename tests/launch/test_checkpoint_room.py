"""A run whose checkpoints cannot fit is refused before it is submitted (case 97)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config.compose import compose_points
from hpctrain.errors import EXIT_CONFIG, ConfigError
from hpctrain.launch.preflight import check_checkpoint_room
from hpctrain.launch.submitting_shell import as_submitted_here
from hpctrain.plan.run_plan import build_run_plan
from tests.worker.run_folder import make_config

NUM_STEPS = 2**40


def check(folder: Path, plan_changes: dict[str, Any] | None = None, **training: Any) -> str:
    training = {"check_checkpoint_room": True} | training
    config = make_config(num_steps=NUM_STEPS, keep_checkpoints=NUM_STEPS, **training)
    return check_checkpoint_room(
        dataclasses.replace(build_run_plan(config), **plan_changes or {}), config.training, folder
    )


def test_more_than_any_disk_holds_is_refused_with_the_numbers(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"training\.keep_checkpoints=1099511627776: 1099511627776 checkpoints of"
    ) as caught:
        check(tmp_path, checkpoint_interval=1)
    assert caught.value.exit_code == EXIT_CONFIG
    assert f"; {tmp_path} has " in str(caught.value)
    assert "short by " in str(caught.value)


@pytest.mark.parametrize(
    ("plan_changes", "training"),
    [
        ({}, {}),
        ({}, {"checkpoint_at_end": True}),
        ({"payload": "launch_check"}, {"checkpoint_interval": 1}),
        ({"cluster_kind": "azureml"}, {"checkpoint_interval": 1}),
    ],
    ids=["none saved", "one", "a launch check", "another machine"],
)
def test_what_fits_or_is_saved_elsewhere(
    plan_changes: dict[str, Any], training: dict[str, Any], tmp_path: Path
) -> None:
    assert check(tmp_path, plan_changes, **training) == ""


def test_what_a_preset_saves_is_warned_of(tmp_path: Path) -> None:
    told = check(tmp_path, checkpoint_interval=1, check_checkpoint_room=False)
    assert told.startswith("checkpoints will fail, which costs them and not the run: training.keep_checkpoints=")


@pytest.mark.parametrize(
    ("words", "is_checked"),
    [
        ((), False),
        (("training.num_steps=5",), False),
        (("training.checkpoint_interval=5",), True),
        (("training.keep_checkpoints=5",), True),
        (("launch.chain=requeue",), True),
        (("launch.chain=requeue", "training.check_checkpoint_room=false"), False),
        (("training.check_checkpoint_room=true",), True),
    ],
)
@pytest.mark.parametrize("cluster", ["slurm", "local"])
def test_room_is_needed_by_who_states_checkpoints_or_chains_jobs(
    words: tuple[str, ...], is_checked: bool, cluster: str
) -> None:
    (point,) = compose_points(["model=tiny", f"cluster={cluster}", *words], multirun=False)
    assert as_submitted_here(point, {}).config.training.check_checkpoint_room is is_checked
