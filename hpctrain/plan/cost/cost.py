"""What a run costs for a number of tokens: time, GPU-hours, money and energy, each with the range of the predicted step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpctrain.config.schema import DeviceKind, HardwareConfig
from hpctrain.plan.batch_ramp import steps_for_samples
from hpctrain.plan.cost.goodput import HOUR_S, PUBLISHED_NODE_MTBF_HOURS, Failures, Goodput, planned_goodput
from hpctrain.plan.cost.options import CostOptions
from hpctrain.plan.layout import Batch
from hpctrain.plan.run_plan import RunPlan

LEAST_GOODPUT = 0.001
"""Below this share no time is given: the run does not get on."""


@dataclass(frozen=True)
class Estimate:
    """A quantity with the range that it takes from the step time; equal ends: the step time was stated, not predicted."""

    low: float
    value: float
    high: float

    def times(self, factor: float) -> Estimate:
        """All three multiplied.

        >>> Estimate(1.0, 2.0, 3.0).times(10)
        Estimate(low=10.0, value=20.0, high=30.0)
        """
        return Estimate(self.low * factor, self.value * factor, self.high * factor)


@dataclass(frozen=True)
class RunCost:
    """The cost of one plan. GPU-hours, money and energy are those of ``elapsed_s`` where it is known, else of ``compute_s``."""

    tokens: int
    """Of whole steps, so at least what was asked."""
    num_steps: int
    step_time_s: Estimate
    is_predicted: bool
    """False: the step time was stated."""
    compute_s: Estimate
    """The steps alone."""
    elapsed_s: Estimate | None
    """With saving, lost work and restarts; None: failures are not known, ``gaps`` says what lacks."""
    gpu_hours: Estimate
    device: DeviceKind
    """cpu: hours of ranks, not of GPUs."""
    money: Estimate | None
    price_per_gpu_hour: float | None
    price_currency: str | None
    gpu_energy_kwh: Estimate | None
    """Board power limit x GPUs x time: an upper bound, not measured; host, network and cooling are not in it."""
    gpu_power_w: float | None
    node_energy_kwh: Estimate | None
    """Greatest power of a node x nodes x time: an upper bound; switches and cooling of the hall are not in it."""
    node_power_w: float | None
    goodput: Goodput | None
    """At the middle of ``step_time_s``; it hardly depends on the step."""
    node_mtbf_hours: float | None
    gaps: tuple[str, ...]
    """What could not be told, and which option or key states it."""


def run_cost(
    plan: RunPlan, hardware: HardwareConfig, options: CostOptions, force: bool = False
) -> tuple[RunCost | None, str]:
    """The cost of a plan, or None and why there is none.

    Args:
        plan: with its prediction.
        hardware: price, power and mean time between failures, where the options do not state them.
        options: from the command line.
        force: a plan that is short of memory by the estimate only is costed all the same.
    """
    # What only the prediction lacks is told below, since a measured step takes its place.
    if problems := [each for each in plan.blocking_problems(force) if each.kind != "rate"]:
        keys = ", ".join(dict.fromkeys(problem.key for problem in problems))
        return None, f"the plan cannot run as it is ({keys})"
    if plan.payload != "train":
        return None, f"{plan.prediction_gap}, so that there are no steps to be paid"
    step_time_s = _step_time_s(plan, options)
    if step_time_s is None:
        return None, f"no predicted step time, {plan.prediction_gap}; for one plan --step-time-s states a measured one"
    num_steps = plan.num_steps if options.tokens is None else steps_for_tokens(options.tokens, plan.batch)
    compute_s = step_time_s.times(full_steps(plan, num_steps))
    mtbf_hours = options.node_mtbf_hours or hardware.node_mtbf_hours
    goodput, failure_gap = _goodput(plan, hardware, options, mtbf_hours, step_time_s.value)
    elapsed_s = compute_s.times(1 / goodput.training) if goodput and not failure_gap else None
    hours = (elapsed_s or compute_s).times(1 / HOUR_S)
    gpu_hours = hours.times(plan.layout.world_size)
    price = options.price_per_gpu_hour or hardware.price_per_gpu_hour
    currency = options.price_currency or (None if options.price_per_gpu_hour else hardware.price_currency)
    gpu_power_w, node_power_w = hardware.gpu_power_w, hardware.node_power_w
    gaps = [failure_gap] if failure_gap else []
    if price is None:
        gaps.append(f"money: hardware={hardware.name} states no price_per_gpu_hour; --price 2.10USD states it")
    if gpu_power_w is None and node_power_w is None:
        gaps.append(f"energy: hardware={hardware.name} states no power; hardware.gpu_power_w=WATTS states it")
    cost = RunCost(
        tokens=plan.batch.tokens_before(num_steps + 1),
        num_steps=num_steps,
        step_time_s=step_time_s,
        is_predicted=options.step_time_s is None,
        compute_s=compute_s,
        elapsed_s=elapsed_s,
        gpu_hours=gpu_hours,
        device=plan.device,
        money=None if price is None else gpu_hours.times(price),
        price_per_gpu_hour=price,
        price_currency=None if price is None else currency,
        gpu_energy_kwh=None if gpu_power_w is None else gpu_hours.times(gpu_power_w / 1000),
        gpu_power_w=gpu_power_w,
        node_energy_kwh=None if node_power_w is None else hours.times(plan.layout.num_nodes * node_power_w / 1000),
        node_power_w=node_power_w,
        goodput=goodput,
        node_mtbf_hours=mtbf_hours,
        gaps=tuple(gaps),
    )
    return cost, ""


def steps_for_tokens(tokens: float, batch: Batch) -> int:
    """Whole optimizer steps that see at least ``tokens`` tokens, those of a batch ramp included.

    The 530B point of DeepSpeed on Azure, 8,192 x 1,024 tokens in 204.1 s, takes 84.5 days for 300e9 tokens:

    >>> steps_for_tokens(300e9, Batch(8, 1, 8192, 1024)), round(35763 * 204.1 / 86400, 1)
    (35763, 84.5)
    """
    if batch.ramp:
        return steps_for_samples(batch.ramp, tokens / batch.seq_len)
    return math.ceil(tokens / batch.tokens_per_step)


def full_steps(plan: RunPlan, num_steps: int) -> float:
    """The time of the first ``num_steps`` steps in steps with the full batch; with a ramp a fraction.

    Steps of a ramp count by their predicted time over that of a full one; without a prediction by their share of the batch,
    which leaves out that optimizer and communication take as long with a small one.
    """
    batch, speed = plan.batch, plan.prediction
    total = float(num_steps)
    for number, stage in enumerate(batch.ramp[:-1]):
        steps = min(num_steps + 1, batch.ramp[number + 1].first_step) - stage.first_step
        share = stage.global_batch_size / batch.global_batch_size
        if speed is not None and speed.ramp_times_s:
            share = speed.ramp_times_s[number] / speed.step_time_s
        total -= max(0, steps) * (1 - share)
    return total


def _step_time_s(plan: RunPlan, options: CostOptions) -> Estimate | None:
    if (stated := options.step_time_s) is not None:
        return Estimate(stated, stated, stated)
    speed = plan.prediction
    return None if speed is None else Estimate(speed.low_s, speed.step_time_s, speed.high_s)


def _goodput(
    plan: RunPlan, hardware: HardwareConfig, options: CostOptions, mtbf_hours: float | None, step_time_s: float
) -> tuple[Goodput | None, str]:
    """The goodput where all of it is known, and what keeps failures from being counted."""
    write_s, restart_s = options.checkpoint_write_s, options.restart_s
    if mtbf_hours is None or write_s is None or restart_s is None:
        return None, _failure_gap(hardware, options, mtbf_hours)
    goodput = planned_goodput(
        Failures(mtbf_hours, write_s, restart_s), plan.layout.num_nodes, step_time_s, options.checkpoint_interval_s
    )
    if goodput.training >= LEAST_GOODPUT:
        return goodput, ""
    return goodput, (
        f"failures: the job fails every {goodput.job_mtbf_s:.3g} s, and {goodput.interval_s:.3g} s of steps,"
        f" {write_s:.3g} s of saving and {restart_s:.3g} s of restart do not fit between: it does not get on;"
        " hours, money and energy are of the steps alone"
    )


def _failure_gap(hardware: HardwareConfig, options: CostOptions, mtbf_hours: float | None) -> str:
    """Which options lack; for the mean time between failures with published ones, since few know their own."""
    lacking = [
        name
        for name, value in (("--checkpoint-write-s", options.checkpoint_write_s), ("--restart-s", options.restart_s))
        if value is None
    ]
    text = "failures are not counted: "
    if mtbf_hours is None:
        known = "; ".join(f"{hours:,.0f} {where}" for where, (hours, _) in PUBLISHED_NODE_MTBF_HOURS.items())
        text += f"hardware={hardware.name} states no node_mtbf_hours, --mtbf-hours states it (published: {known})"
        return text + (f"; not stated either: {', '.join(lacking)}" if lacking else "")
    return text + f"not stated: {', '.join(lacking)}"
