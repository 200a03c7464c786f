"""What the losses, gradients and skipped steps of a log say of the training itself."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hpctrain.analysis.logs.log_reading import LogReading
from hpctrain.analysis.logs.record_columns import FloatArray, IntArray, RecordColumns

SPIKE_RATIO = 1.3
"""Over the median of the records before. Losses of a healthy run differ by some percent from record to record; a rise by 30 %
is a third of what the whole training gains after its first hours."""
SPIKE_DEVIATIONS = 4.0
"""And so many standard deviations of the records before, so that small batches with noisy losses give no alarm."""
BASELINE_RECORDS = 20
"""Records that make the baseline of a spike or a drop; two at least."""
DIVERGENCE_RATIO = 1.5
"""Of the last loss over the lowest: half as much again is worse than the start of most pre-training after its warm-up. The
median of the last three must be a spike's height above it, so that one bad record is none."""
DIVERGENCE_STILL_HIGH = 0.95
"""Share of the highest loss that the last one still has; a loss that falls back is a spike."""
DIVERGENCE_MIN_RECORDS = 5
"""Three records for the last losses and two before them."""
OVERFLOW_SKIP_SHARE = 0.1
"""Of all steps. The search for a loss scale costs about 20 steps and later one in 1,000; a tenth is another thing."""
MAX_PLACES = 20
"""Places of one condition that are named; a log with more is told by the first ones."""

_SYSTEMS_WITHOUT_LOSS = frozenset({"deepspeed"})
"""DeepSpeed's engine lines never hold a loss, so that its absence says nothing."""
_SYSTEMS_WITH_LOSS_AT_TIMES = frozenset({"nanogpt"})
"""Successors of nanoGPT print the training loss at some steps only, and NaN as such."""

_SYSTEMS_WITH_PLACEHOLDER = frozenset({"torchtitan"})
"""Print a loss of -1 where the process has none: steps are taken, and the log holds no loss."""


def loss_flags(columns: RecordColumns) -> list[str]:
    """Missing, NaN and zero losses, spikes and divergence; skipped and overflowed steps."""
    return [
        *_missing_losses(columns),
        *_bad_numbers(columns),
        *(f"loss_spike_at_{columns.place_name(place)}" for place in _spikes(columns)),
        *(["divergence"] if _diverged(columns) else []),
        *_skips(columns),
    ]


def skipped_everything(columns: RecordColumns) -> bool:
    """Every record says that all steps since the last one were skipped."""
    skipped = columns.numbers("skipped_iterations")
    if _loss_in_cut_record(columns.reading):
        return False
    return bool(len(skipped)) and bool((skipped >= columns.log_interval).all())


def _loss_in_cut_record(reading: LogReading) -> bool:
    """The step after the last whole record had a loss, so that the optimizer took it."""
    return any(row.get("loss") is not None for row in reading.incomplete_records)


def no_loss_expected(reading: LogReading) -> bool:
    """The lines of this kind of log hold no loss even in the best run."""
    return reading.system in _SYSTEMS_WITHOUT_LOSS


def _missing_losses(columns: RecordColumns) -> list[str]:
    """Megatron leaves the loss out when it is NaN or all steps of the interval were skipped."""
    steps = np.isfinite(columns.iteration)
    missing = steps & ~np.isfinite(columns.loss) & ~columns.true("loss_is_nan")
    system = columns.reading.system
    if not steps.any() or system in _SYSTEMS_WITHOUT_LOSS | _SYSTEMS_WITH_LOSS_AT_TIMES:
        return []
    if missing[steps].all() and not _loss_in_cut_record(columns.reading):
        if system in _SYSTEMS_WITH_PLACEHOLDER:
            return ["loss_missing_everywhere", "no_loss_in_log"]
        return ["loss_missing_everywhere" if _took_steps_without_loss(columns) else "no_loss_in_log"]
    if missing.any():
        return [f"loss_missing_at_{columns.place_name(int(np.argmax(missing)))}"]
    for row in columns.reading.incomplete_records:
        # A cut-off record tells the absence only where the loss's place in the line came before the cut.
        if "loss" in row and row["loss"] is None and row.get("iteration") is not None:
            return [f"loss_missing_at_{row['iteration']}"]
    return []


def _took_steps_without_loss(columns: RecordColumns) -> bool:
    """Gradients or counters tell NaN, or the optimizer took each step: then only NaN makes Megatron leave the loss out."""
    if skipped_everything(columns):
        return False
    skipped = columns.numbers("skipped_iterations")
    return bool(
        columns.true("grad_norm_is_nan").any()
        or np.nansum(columns.numbers("nan_iterations")) > 0
        or (skipped[np.isfinite(columns.iteration)] == 0).all()
    )


def _bad_numbers(columns: RecordColumns) -> list[str]:
    flags = []
    if columns.true("loss_is_nan").any():
        flags.append("nan_loss")
    if columns.true("grad_norm_is_nan").any():
        flags.append("nan_grad_norm")
    # A mean loss of exactly zero is what is left when every step of the interval was skipped (huggingface/transformers#14531).
    if (columns.loss == 0).any():
        flags.append("loss_zero_suspicious")
    return flags


def _spikes(columns: RecordColumns) -> list[int]:
    """Places where the loss first exceeds what it was before; a rise that became a divergence is told as that."""
    found: list[int] = []
    for places in columns.groups():
        with_loss = _with_loss(columns, places)
        losses = columns.loss[with_loss]
        high = exceeding(losses, SPIKE_RATIO, SPIKE_DEVIATIONS)
        if _is_peak(losses):
            high = np.array([1])
        if _diverges(losses):
            high = np.array(
                [place for place in high if losses[place + 1 :].min(initial=np.inf) * SPIKE_RATIO < losses[place]], int
            )
        found += first_places(with_loss[high], with_loss)
    return found[:MAX_PLACES]


def _is_peak(losses: FloatArray) -> bool:
    """Of three records, too few for a baseline, the middle one stands out from both others."""
    return len(losses) == 3 and bool(losses[1] > SPIKE_RATIO * max(losses[0], losses[2]))


def _with_loss(columns: RecordColumns, places: IntArray) -> IntArray:
    losses = columns.loss[places]
    return places[np.isfinite(losses) & (losses > 0)]


def exceeding(values: FloatArray, ratio: float, deviations: float) -> IntArray:
    """Places of the values above both thresholds over the up to ``BASELINE_RECORDS`` values before them."""
    before = pd.Series(values).rolling(BASELINE_RECORDS, min_periods=2)
    median, deviation = before.median().shift(1).to_numpy(), before.std().shift(1).to_numpy()
    with np.errstate(invalid="ignore"):
        return np.flatnonzero((values > ratio * median) & (values > median + deviations * deviation))


def first_places(high: IntArray, all_places: IntArray) -> list[int]:
    """The first of each series of places; a new series begins more than ``BASELINE_RECORDS`` records after the last one."""
    if not len(high):
        return []
    positions = np.searchsorted(all_places, high)
    starts = np.concatenate(([True], np.diff(positions) > BASELINE_RECORDS))
    return [int(place) for place in high[starts]]


def _diverged(columns: RecordColumns) -> bool:
    return any(_diverges(columns.loss[_with_loss(columns, places)]) for places in columns.groups())


def _diverges(losses: FloatArray) -> bool:
    """The last losses of a start are far above its lowest before and have not begun to fall back."""
    if len(losses) < DIVERGENCE_MIN_RECORDS:
        return False
    lowest = int(np.argmin(losses[:-3]))
    return bool(
        losses[-1] >= DIVERGENCE_RATIO * losses[lowest]
        and np.median(losses[-3:]) >= SPIKE_RATIO * losses[lowest]
        and losses[-1] >= DIVERGENCE_STILL_HIGH * losses[lowest:].max()
    )


def _skips(columns: RecordColumns) -> list[str]:
    """Steps that the optimizer skipped, by the counter, by DeepSpeed's total and by its overflow lines."""
    flags = []
    skipped = columns.numbers("skipped_iterations")
    counted = skipped[np.isfinite(skipped)]
    if skipped_everything(columns):
        flags.append("all_steps_skipped")
    elif len(counted) and _skips_after_clean_record(counted):
        flags.append("skipped_iterations")
    engine = columns.reading.engine
    totals, steps = np.array(engine.numbers("skipped_total")), np.array(engine.numbers("iteration"))
    known = np.isfinite(totals) & (steps > 0)
    if known.any() and totals[known][-1] >= OVERFLOW_SKIP_SHARE * steps[known][-1]:
        flags.append("overflow_skips")
    if len(columns.reading.fact_rows("overflow")):
        silent = len(counted) > 0 and not counted.any()
        flags.append("overflow_lines_without_skip_counter" if silent else "overflow_lines")
    return flags


def _skips_after_clean_record(skipped: FloatArray) -> bool:
    """Skips before the first record without any are the search for a loss scale, which every fp16 run begins with."""
    clean = np.flatnonzero(skipped == 0)
    return len(clean) > 0 and bool((skipped[clean[0] :] > 0).any())
