"""Choices between numbers, and the same element by element; one step's time both ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from hpctrain.plan.elementwise import chosen, everywhere, larger, smaller, somewhere
from hpctrain.plan.speed.software import SOFTWARE
from hpctrain.plan.speed.step_parts import Machine, Setup, step_parts
from hpctrain.plan.stated.plain_shape import plain_shape

COLUMN = cast(Any, np.array([1.0, 5.0]))


def test_plain_numbers_stay_plain() -> None:
    assert (larger(2, 3), smaller(2, 3), chosen(True, 2, 3)) == (3, 2, 2)
    assert (everywhere(False), somewhere(True)) == (False, True)
    assert isinstance(larger(2, 3), int)


def test_columns_are_chosen_from_element_by_element() -> None:
    assert np.array_equal(larger(3.0, COLUMN), [3.0, 5.0])
    assert np.array_equal(smaller(COLUMN, 3.0), [1.0, 3.0])
    assert np.array_equal(chosen(COLUMN > 3, COLUMN, -1.0), [-1.0, 5.0])
    assert (everywhere(COLUMN > 3), everywhere(COLUMN > 0)) == (False, True)
    assert (somewhere(COLUMN > 3), somewhere(COLUMN > 9)) == (True, False)


@pytest.mark.parametrize("software", SOFTWARE)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_column_of_setups_takes_the_times_of_its_setups(software: str, stage: int) -> None:
    """Degrees with and without each kind of parallelism, on both sides of a node; in no generation of software it matters."""
    machine = Machine(8, 271.2, 2039, 300, 200, 25, 409)
    degrees = [(1, 1, 1, 4), (8, 1, 1, 2), (1, 4, 1, 16), (2, 2, 4, 1), (1, 1, 64, 1), (16, 1, 1, 1)]
    setup = Setup(
        plain_shape(24, 2048, 50304), 2048, 2, 1, 64, zero_stage=stage, recomputation="full", offload_param=True
    )
    setup = replace(setup, offload_activations=True, offload_optimizer=stage > 0)
    tensor, pipeline, sequence, steps = (
        cast(Any, np.array(column, dtype=float)) for column in zip(*degrees, strict=True)
    )
    columns = replace(
        setup, tensor_degree=tensor, pipeline_degree=pipeline, sequence_degree=sequence, num_micro_steps=steps
    )
    together = sum(step_parts(columns, machine, SOFTWARE[software]).values())
    each = [
        sum(
            step_parts(
                replace(setup, tensor_degree=t, pipeline_degree=p, sequence_degree=s, num_micro_steps=m),
                machine,
                SOFTWARE[software],
            ).values()
        )
        for t, p, s, m in degrees
    ]
    assert together == pytest.approx(each, rel=1e-12)
