"""Each type that the configuration uses: what is taken, and the words for what is not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from hpctrain.config.limits import Limits
from hpctrain.config.strict_values import read_strictly
from hpctrain.errors import ConfigError

Share = Annotated[float, Limits(ge=0.1)]


@dataclass(frozen=True)
class Part:
    """A section with a key that must be given."""

    name: Annotated[str, Limits(min_length=1)]
    sizes: tuple[Annotated[int, Limits(gt=0, le=9)], ...] = ()


@dataclass(frozen=True)
class Whole:
    """One field of each kind."""

    part: Part
    share: Share | None = None
    watts: Annotated[float, Limits(gt=0, between=(5, 20_000), unit="W")] = 400.0
    switch: bool = False
    stage: Literal[1, 2, 3] = 1
    rates: dict[Literal["bf16", "fp32"], Share] = field(default_factory=dict)
    free: dict[str, str | int | bool | None] = field(default_factory=dict)


def whole(**values: Any) -> Whole:
    return read_strictly(Whole, {"part": {"name": "x"}} | values)


def test_values_of_their_types_are_taken_and_defaults_filled_in() -> None:
    found = whole(
        share=1, stage=3, rates={"bf16": 2}, free={"a": None, 1: True, None: 2}, part={"name": "y", "sizes": [1, 9]}
    )
    assert found == Whole(Part("y", (1, 9)), 1.0, 400.0, False, 3, {"bf16": 2.0}, {"a": None, "1": True, "null": 2})
    # 1 == True == 1.0, so types are looked at apart.
    assert [type(value) for value in (found.share, found.rates["bf16"], found.free["1"])] == [float, float, bool]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"share": "1"}, "share='1': must be a number; it is text: write 1 without quotes"),
        ({"share": "much"}, "share='much': must be a number; write it in digits, for example 1.5"),
        ({"share": True}, "share=true: must be a number"),
        ({"share": 0}, "share=0: must be greater than or equal to 0.1; nearest: 0.1"),
        ({"share": math.nan}, "share=nan: must be a finite number"),
        ({"share": 10**400}, "must be a finite number"),
        ({"watts": -1}, "watts=-1: must be greater than 0; it is in W"),
        ({"watts": math.inf}, "watts=inf: must be a finite number; it is in W"),
        ({"watts": [400]}, "watts=[400]: must be a number; it is in W"),
        ({"watts": "400 W"}, "watts='400 W': must be a number; it is in W"),
        ({"watts": "400"}, "watts='400': must be a number; it is text: write 400 without quotes"),
        ({"watts": 400_000}, "watts=400000: must be from 5 to 20,000; it is in W"),
        ({"switch": 1}, "switch=1: must be true or false"),
        ({"stage": 4}, "stage=4: is not one of the choices; known: 1, 2 or 3"),
        ({"stage": True}, "stage=true: is not one of the choices"),
        ({"stage": None}, "stage=null: is not one of the choices"),
        ({"stage": ""}, "stage='': is not one of the choices"),
        ({"rates": [1]}, "rates=[1]: must be a mapping of names to values"),
        ({"rates": {"fp8": 1}}, "rates.fp8=fp8: is not one of the choices; known: "),
        ({"free": {"a": 1.5}}, "free.a=1.5: must be text"),
        ({"free": {"a": "\udc80"}}, "free.a='\\udc80': must be text"),
        ({"part": None}, "part=null: must stay a mapping; choose a group file or set one of its keys: name, sizes"),
        ({"part": {}}, "part.name: must be given"),
        ({"part": {"name": ""}}, "part.name='': must not be empty"),
        ({"part": {"name": "x", "sizes": "12"}}, "part.sizes='12': must be a list"),
        ({"part": {"name": "x", "size": 1}}, "part.size=1: is no key of hpctrain; nearest: sizes; known: name, sizes"),
        (
            {"part": {"name": "x", "sizes": [1, 2.0]}},
            "part.sizes.1=2.0: must be a whole number; nearest: 2",
        ),
        ({"part": {"name": "x", "sizes": [0]}}, "part.sizes.0=0: must be greater than 0; nearest: 1"),
        ({"part": {"name": "x", "sizes": [10]}}, "part.sizes.0=10: must be less than or equal to 9; nearest: 9"),
    ],
    ids=str,
)
def test_what_is_wrong_is_told_with_key_value_and_rule(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        whole(**values)
    assert expected in str(caught.value)
    assert len(caught.value.problems) == 1


def test_all_problems_are_told_at_once_in_the_order_of_the_fields() -> None:
    with pytest.raises(ConfigError) as caught:
        whole(zz=1, stage=0, part={"sizes": [0, "a"], "q": 2}, rates={"bf16": 0, "x": 0})
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["part.name", "part.sizes.0", "part.sizes.1", "part.q", "stage", "rates.bf16", "rates.x", "zz"]
