"""How much of a run's time is training when nodes fail: checkpoint interval, goodput, and where the rest goes.

The model is Daly's: failures come at a constant rate, the job stands still while it saves, and after a failure it starts again
from its last checkpoint. A failure may hit saving and restarting too. It leaves out planned stops, queueing beyond the restart
time, failures that come in groups, and spare nodes that would be brought in without a restart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HOUR_S = 3600.0

PUBLISHED_NODE_MTBF_HOURS: dict[str, tuple[float, str]] = {
    "Llama 3 (8 H100 a node)": (
        54 * 24 / 419 * 2048,
        "arXiv 2407.21783, section 3.3.4: 419 unexpected stops of 2,048 nodes in 54 days",
    ),
    "RSC-1 (8 A100 a node)": (1000 * 24 / 6.50, "arXiv 2410.21680: 6.50 failures per thousand node-days"),
    "BLOOM (8 A100 a node)": (
        7 * 24 / 1.5 * 48,
        "The Technology Behind BLOOM Training (2022-07-14): 1 to 2 a week on 48 nodes, taken as 1.5",
    ),
}
"""Hours of one node between failures that ended a job, with the source: what to hold an own figure against."""

FIRST_ORDER_LIMIT = 0.1
"""The first-order form is taken as valid while saving is at most this share of the interval, and interval and restart together
at most this share of the mean time between failures: it is then off by at most 1.5 % of the run's time (the tests measure it)."""

_OVERFLOW = 700.0
"""exp() of more than this leaves the range of a float; the goodput is then zero in every digit."""


@dataclass(frozen=True)
class Failures:
    """What must be known of a machine and a checkpoint, all above zero."""

    node_mtbf_hours: float
    write_s: float
    """Seconds that training stands still for one checkpoint; of an asynchronous save only this part."""
    restart_s: float
    """Seconds from the failure to the first new step: noticing, queueing, starting, loading."""


@dataclass(frozen=True)
class Goodput:
    """Where the time goes, as shares of the wall clock that sum to one, and the interval they hold for."""

    training: float
    """The goodput: steps that count."""
    saving: float
    repeating: float
    """Work since the last checkpoint that a failure threw away."""
    restarting: float
    interval_s: float
    """Training between the end of one checkpoint and the start of the next, a whole number of steps."""
    interval_steps: int
    job_mtbf_s: float
    young_interval_s: float
    daly_interval_s: float
    first_order_training: float | None
    """Goodput by the first-order form; None: outside of its range."""


def job_mtbf_s(node_mtbf_hours: float, num_nodes: int) -> float:
    """Seconds between failures of a job that any of its nodes ends.

    Rates of independent nodes add up. Source: Kokolis et al. 2024 (arXiv 2410.21680), which projects 1.8 h for 16,384 GPUs
    (2,048 nodes) from 6.50 failures per thousand node-days; its small jobs fail more often than the law says.

    >>> round(job_mtbf_s(1000 * 24 / 6.50, 2048) / 3600, 2)
    1.8
    """
    return node_mtbf_hours * HOUR_S / num_nodes


def young_interval_s(write_s: float, mtbf_s: float) -> float:
    """Interval that minimises the first-order waste, sqrt(2 δ M).

    Source: Young 1974 (Communications of the ACM 17, 530). Valid for δ much smaller than M: up to δ = M/200 it is at most 4 %
    longer than ``best_interval_s``.

    Args:
        write_s: δ, seconds of one save.
        mtbf_s: M, seconds between failures of the job.

    >>> young_interval_s(50.0, 10_000.0)
    1000.0
    """
    return math.sqrt(2 * write_s * mtbf_s)


def daly_interval_s(write_s: float, mtbf_s: float) -> float:
    """Daly's higher-order interval, sqrt(2 δ M)·(1 + sqrt(δ/2M)/3 + δ/18M) - δ for δ < 2M, else M.

    Source: Daly 2006 (Future Generation Computer Systems 22, 303), equation 37. Within 2 % of ``best_interval_s`` up to δ = M
    and within 7 % everywhere.

    By hand, δ = 50 and M = 10,000: 1000·(1 + 0.05/3 + 0.0025/9) - 50 = 966.944:

    >>> round(daly_interval_s(50.0, 10_000.0), 3)
    966.944
    """
    if write_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = write_s / (2 * mtbf_s)
    return math.sqrt(2 * write_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s


def best_interval_s(write_s: float, mtbf_s: float) -> float:
    """The interval with the greatest goodput in Daly's model, to which Young's and Daly's forms are approximations.

    Setting the derivative of ``goodput_shares`` to zero gives exp((τ + δ)/M)·(1 - τ/M) = 1, solved here by bisection; the
    restart time drops out.

    >>> round(best_interval_s(50.0, 10_000.0), 1)
    966.9
    """
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        if middle + math.log1p(-middle) + write_s / mtbf_s > 0:
            low = middle
        else:
            high = middle
    return low * mtbf_s


def first_order_goodput(interval_s: float, write_s: float, mtbf_s: float, restart_s: float) -> float:
    """1 / (1 + δ/τ + (τ/2 + R)/M): a failure costs half an interval and the restart.

    Source: Young 1974, with the restart added. Valid while δ ≪ τ and τ + R ≪ M, see ``FIRST_ORDER_LIMIT``.

    By hand, 1 / (1 + 0.05 + (500 + 100)/10,000) = 1 / 1.11:

    >>> round(first_order_goodput(1000.0, 50.0, 10_000.0, 100.0), 4)
    0.9009
    """
    return 1 / (1 + write_s / interval_s + (interval_s / 2 + restart_s) / mtbf_s)


def goodput_shares(
    interval_s: float, write_s: float, mtbf_s: float, restart_s: float
) -> tuple[float, float, float, float]:
    """Shares of the wall clock: training, saving, repeating lost work, restarting.

    One interval takes W = M·exp(R/M)·(exp((τ + δ)/M) - 1) on average. Source: Daly 2006, equation 20. The shares follow from
    its parts: attempts of τ + δ take M·(exp((τ + δ)/M) - 1) in all, so restarts are 1 - exp(-R/M) of the time whatever the
    interval, and of the attempts τ is training, δ saving, and the rest was lost.

    Args:
        interval_s: τ, training between two saves, above zero.
        write_s: δ, one save.
        mtbf_s: M, between failures of the job.
        restart_s: R, from a failure to the next step.

    By hand, τ = 1000, δ = 50, M = 10,000, R = 100: W = 10,000 · 1.010050 · 0.110711 = 1118.23:

    >>> [round(share, 4) for share in goodput_shares(1000.0, 50.0, 10_000.0, 100.0)]
    [0.8943, 0.0447, 0.0511, 0.01]
    """
    restarting = -math.expm1(-restart_s / mtbf_s)
    if (interval_s + write_s + restart_s) / mtbf_s > _OVERFLOW:
        return 0.0, 0.0, 1 - restarting, restarting
    wall_s = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + write_s) / mtbf_s)
    training, saving = interval_s / wall_s, write_s / wall_s
    return training, saving, max(0.0, 1 - restarting - training - saving), restarting


def planned_goodput(failures: Failures, num_nodes: int, step_time_s: float, interval_s: float | None = None) -> Goodput:
    """The goodput of a run that saves every so many steps.

    Args:
        failures: of a node, a save and a restart.
        num_nodes: of the job.
        step_time_s: of one step; a checkpoint comes after whole steps, at least one.
        interval_s: a stated interval, brought to whole steps; None: the best one.
    """
    mtbf_s = job_mtbf_s(failures.node_mtbf_hours, num_nodes)
    wanted_s = best_interval_s(failures.write_s, mtbf_s) if interval_s is None else interval_s
    below = max(1, math.floor(wanted_s / step_time_s))
    candidates = (below, below + 1) if interval_s is None else (max(1, round(wanted_s / step_time_s)),)

    def shares(steps: int) -> tuple[float, float, float, float]:
        return goodput_shares(steps * step_time_s, failures.write_s, mtbf_s, failures.restart_s)

    steps = max(candidates, key=lambda count: shares(count)[0])
    chosen_s = steps * step_time_s
    is_small = max(failures.write_s / chosen_s, (chosen_s + failures.restart_s) / mtbf_s) <= FIRST_ORDER_LIMIT
    training, saving, repeating, restarting = shares(steps)
    return Goodput(
        training=training,
        saving=saving,
        repeating=repeating,
        restarting=restarting,
        interval_s=chosen_s,
        interval_steps=steps,
        job_mtbf_s=mtbf_s,
        young_interval_s=young_interval_s(failures.write_s, mtbf_s),
        daly_interval_s=daly_interval_s(failures.write_s, mtbf_s),
        first_order_training=first_order_goodput(chosen_s, failures.write_s, mtbf_s, failures.restart_s)
        if is_small
        else None,
    )
