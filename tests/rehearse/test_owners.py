"""Whose a storage is, told from the stack of functions that made it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hpctrain.rehearse.owners import PlaceFinder
from hpctrain.rehearse.result import Phase

ENGINE = "/site-packages/deepspeed/runtime/zero"


def called_from(frames: list[tuple[str, str]], call: Callable[[], Any]) -> Any:
    """What ``call`` returns under functions of these files and names, the outermost first."""
    if not frames:
        return call()
    path, name = frames[0]
    scope: dict[str, Any] = {"call": lambda: called_from(frames[1:], call)}
    exec(compile(f"def {name}():\n    return call()\n", path, "exec"), scope)
    return scope[name]()


@pytest.mark.parametrize(
    ("frames", "operator", "phase", "expected"),
    [
        ([], "mm", "forward", ("activations", "autograd")),
        ([("/x/hpctrain/worker/model/decoder.py", "forward")], "mm", "forward", ("activations", "decoder.forward")),
        (
            [(f"{ENGINE}/stage3.py", "step"), ("/site-packages/torch/optim/adam.py", "_init_group")],
            "zeros_like",
            "optimizer",
            ("optimizer", "adam._init_group"),
        ),
        (
            [(f"{ENGINE}/stage3.py", "_setup_for_real_optimizer")],
            "empty",
            "engine",
            ("buffers", "stage3._setup_for_real_optimizer"),
        ),
        (
            [(f"{ENGINE}/stage3.py", "_setup_for_real_optimizer")],
            "zeros",
            "engine",
            ("gradients", "stage3._setup_for_real_optimizer"),
        ),
        (
            [
                ("/x/hpctrain/worker/model/decoder.py", "forward"),
                (f"{ENGINE}/partition_parameters.py", "_all_gather_dtype"),
                ("/site-packages/deepspeed/utils/nvtx.py", "wrapped_fn"),
                (f"{ENGINE}/partition_parameters.py", "unknown_of_a_later_version"),
            ],
            "empty",
            "forward",
            ("gathered_parameters", "partition_parameters.unknown_of_a_later_version"),
        ),
        ([(f"{ENGINE}/stage3.py", "unknown")], "empty", "optimizer", ("other", "stage3.unknown")),
        ([("/x/elsewhere/stage3.py", "step")], "empty", "forward", ("activations", "autograd")),
    ],
    ids=["autograd", "model", "moments", "bucket", "gradients", "gathered", "unknown", "foreign file"],
)
def test_the_innermost_function_that_is_known_decides(
    frames: list[tuple[str, str]], operator: str, phase: Phase, expected: tuple[str, str]
) -> None:
    finder = PlaceFinder(zero_stage=3)
    assert called_from(frames, lambda: finder.find(operator, phase)) == expected


def test_below_stage_3_the_model_stays_as_it_is_made() -> None:
    assert PlaceFinder(zero_stage=1).find("empty", "model")[0] == "parameters"
    assert PlaceFinder(zero_stage=3).find("empty", "model")[0] == "temporary"
