"""Which of two configurations is the plainer, by hand."""

from __future__ import annotations

import pytest

from hpctrain.plan.search.candidate import Candidate, Degrees, Passes, Spread, States
from hpctrain.plan.search.plainness import plainness
from hpctrain.plan.search.ranking import rank_choices
from tests.plan.search.spaces import open_config

PLAIN = Candidate(Degrees(1, 1, 1), States(3, "none", "none", 1), 1.0, Passes("full", False), Spread(1, 8))
HOST_INPUTS = PLAIN._replace(passes=Passes("full", True))
IDLE = PLAIN._replace(degrees=Degrees(4, 8, 1), states=States(1, "none", "none", 1), spread=Spread(8, 1))


@pytest.mark.parametrize(
    ("plainer", "other"),
    [
        pytest.param(PLAIN, HOST_INPUTS, id="nothing-leaves"),
        # Of one offload each, a ratio of an optimizer that stays is none.
        pytest.param(
            HOST_INPUTS,
            PLAIN._replace(states=States(3, "cpu", "none", 1), offload_ratio=0.25),
            id="inputs-before-a-quarter-of-the-optimizer",
        ),
        pytest.param(
            PLAIN._replace(states=States(3, "cpu", "none", 1), offload_ratio=0.25),
            PLAIN._replace(states=States(3, "cpu", "none", 1)),
            id="less-of-the-optimizer",
        ),
        # The one in stage 3 keeps all its ranks at work, with one micro batch that the other's eight stages pass on.
        pytest.param(PLAIN._replace(degrees=Degrees(4, 1, 2)), IDLE, id="no-idle-stages"),
        pytest.param(IDLE._replace(spread=Spread(1, 8)), PLAIN._replace(degrees=Degrees(4, 1, 2)), id="busy-stages"),
    ],
)
def test_the_plainer(plainer: Candidate, other: Candidate) -> None:
    assert plainness(plainer) < plainness(other)


def test_of_one_sequence_no_pipeline_is_made() -> None:
    """Its stages would work one after the other: at any time half of the GPUs, or more, would wait."""
    best = rank_choices(*open_config("model=1.3b", "training.global_batch_size=1"), limit=1).choices[0]
    assert best.config.parallelism.pipeline_parallel_size == 1
