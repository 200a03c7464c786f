"""Changes beyond the reach of percentages, in text and in JSON."""

from __future__ import annotations

import json

import pytest

from hpctrain.analysis.comparison import Change, Comparison, Pair
from hpctrain.analysis.report.comparison_text import comparison_json, render_comparison


@pytest.mark.parametrize(
    ("ratio", "text", "number"),
    [
        pytest.param(999.0, "+99800.0 %", 999.0, id="percent"),
        pytest.param(1000.0, "x 1e+03", 1000.0, id="times"),
        pytest.param(1e307, "x 1e+307", 1e307, id="percent would overflow"),
        pytest.param(float("inf"), "above x 1.8e+308", None, id="no number"),
    ],
)
def test_a_huge_change_is_told_as_a_factor(ratio: float, text: str, number: float | None) -> None:
    change = Change("step_time_s", "s", 1e-300, 1.0, ratio, None, None, "not judged", "not judged", "one run a side")
    comparison = Comparison(0.05, (Pair("toy", ("a",), ("b",), (change,)),), (), ())
    [row] = [line for line in render_comparison(comparison).splitlines() if line.startswith("step time")]
    assert text in row
    assert json.loads(comparison_json(comparison))["pairs"][0]["changes"][0]["ratio"] == number
