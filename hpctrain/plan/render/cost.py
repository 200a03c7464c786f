"""The cost of a plan as text for people."""

from __future__ import annotations

from collections.abc import Callable

from hpctrain.plan.cost.cost import Estimate, RunCost
from hpctrain.plan.cost.goodput import Goodput
from hpctrain.units import counted, duration_in_words, short_count


def render_cost(cost: RunCost | None, gap: str) -> str:
    """The block that ``plan`` prints below a plan when a cost was asked for.

    Args:
        cost: of ``run_cost``.
        gap: why there is none.
    """
    if cost is None:
        return f"cost: none, {gap}\n"
    origin = "a prediction, not measured" if cost.is_predicted else "from the stated step time"
    lines = [f"cost of {short_count(cost.tokens)} tokens in {counted(cost.num_steps, 'step')} ({origin})"]
    rows = [("steps alone", _ranged(cost.compute_s, duration_in_words))]
    if cost.goodput is not None:
        rows += _failure_rows(cost, cost.goodput)
    if cost.elapsed_s is not None:
        rows.append(("elapsed", _ranged(cost.elapsed_s, duration_in_words)))
    rows.append((hours_word(cost), _ranged(cost.gpu_hours, amount_text)))
    if cost.money is not None:
        rows.append(("money", f"{_ranged(cost.money, lambda value: money_text(value, cost))} ({price_text(cost)})"))
    if cost.gpu_energy_kwh is not None:
        bound = (
            f"every GPU at its board limit of {cost.gpu_power_w:,.0f} W all the time; hosts, network, cooling not in it"
        )
        rows.append(("energy, GPUs", f"{_ranged(cost.gpu_energy_kwh, energy_text)} (upper bound: {bound})"))
    if cost.node_energy_kwh is not None:
        bound = (
            f"every node at its greatest power of {cost.node_power_w:,.0f} W all the time; switches, cooling not in it"
        )
        rows.append(("energy, nodes", f"{_ranged(cost.node_energy_kwh, energy_text)} (upper bound: {bound})"))
    if cost.is_predicted:
        rows.append(("range", "is that of the predicted step time; price, power and failures are taken as stated"))
    rows += [("not told", gap) for gap in cost.gaps]
    width = max(len(name) for name, _ in rows)
    return "\n".join([*lines, *(f"  {name:<{width}}  {text}" for name, text in rows)]) + "\n"


def _failure_rows(cost: RunCost, goodput: Goodput) -> list[tuple[str, str]]:
    mtbf_hours = cost.node_mtbf_hours or 0.0
    hours = f"{mtbf_hours:,.0f}" if mtbf_hours >= 100 else f"{mtbf_hours:.3g}"
    first_order = goodput.first_order_training
    check = "outside of its range" if first_order is None else f"{first_order:.1%}"
    return [
        (
            "failures",
            f"one each {hours} h of a node, so of the job each {duration_in_words(goodput.job_mtbf_s)}",
        ),
        (
            "checkpoint",
            f"every {counted(goodput.interval_steps, 'step')}, {duration_in_words(goodput.interval_s)} (by Daly"
            f" {duration_in_words(goodput.daly_interval_s)}, by Young {duration_in_words(goodput.young_interval_s)})",
        ),
        (
            "goodput",
            f"{goodput.training:.1%} training, {goodput.saving:.1%} saving, {goodput.repeating:.1%} repeating lost work,"
            f" {goodput.restarting:.1%} restarting (first-order form: {check})",
        ),
    ]


def _ranged(estimate: Estimate, text: Callable[[float], str]) -> str:
    """``2 d 1 h, between 1 d 22 h and 2 d 12 h``; without a range only the value."""
    if estimate.low == estimate.high:
        return text(estimate.value)
    return f"{text(estimate.value)}, between {text(estimate.low)} and {text(estimate.high)}"


def hours_word(cost: RunCost) -> str:
    """``GPU-hours``, or ``rank-hours`` where ranks are processes on CPUs."""
    return "GPU-hours" if cost.device == "cuda" else "rank-hours"


def price_text(cost: RunCost) -> str:
    """``2.1 USD a GPU-hour``."""
    currency = cost.price_currency or "(currency not stated)"
    return f"{cost.price_per_gpu_hour:g} {currency} a {hours_word(cost).removesuffix('s')}"


def money_text(value: float, cost: RunCost) -> str:
    """``4.118 M USD``, without a currency where none is stated."""
    return f"{amount_text(value)} {cost.price_currency or ''}".rstrip()


def amount_text(value: float) -> str:
    """Hours or money in four digits.

    >>> amount_text(54.2536), amount_text(1_910_000.0)
    ('54.25', '1.91 M')
    """
    return short_count(value) if value >= 1000 else f"{value:.4g}"


def energy_text(kilowatt_hours: float) -> str:
    """Energy for people.

    >>> energy_text(433196.0), energy_text(12.5), energy_text(2_500_000.0)
    ('433.2 MWh', '12.5 kWh', '2.5 GWh')
    """
    for size, unit in ((1e6, "GWh"), (1e3, "MWh")):
        if kilowatt_hours >= size:
            return f"{kilowatt_hours / size:.4g} {unit}"
    return f"{kilowatt_hours:.4g} kWh"
