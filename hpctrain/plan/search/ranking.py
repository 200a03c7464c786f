"""The best configurations of a run that leaves keys open, best first.

All candidates are scored at once (``scores``); down the list of their times the exact rules decide which one fits (``picking``).
The order is that of an exhaustive search by ``build_run_plan``, held in tests/plan/search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hpctrain.config.schema import Config
from hpctrain.plan.model_shape import resolve_model_shape
from hpctrain.plan.search.candidate import OpenKeys
from hpctrain.plan.search.held_batch import Held, held_batches
from hpctrain.plan.search.picking import Picking, nearest_kinds
from hpctrain.plan.search.reasons import best_reason, place_reason, shortage_reason
from hpctrain.plan.search.scores import Scores
from hpctrain.plan.search.space import search_space
from hpctrain.plan.search.verdict import Verdict
from hpctrain.plan.speed.step_time import StepPrediction

__all__ = ["Choice", "OpenKeys", "Ranking", "any_fits", "rank_choices"]


@dataclass(frozen=True)
class Choice:
    """One configuration with nothing open, and what the planner says of it."""

    config: Config
    """With all open keys set; ``parallelism.name`` is left as it was."""
    fits: bool
    """Breaks no rule, and every tier holds it."""
    reason: str
    """Against the best, in a phrase: «8 % slower: parameter gathers», «does not fit: 12.0 GiB short on a GPU»."""
    step_time_s: float | None
    """Predicted. None, as the next two: the hardware states too little for it."""
    tokens_per_s: float | None
    tflops_per_gpu: float | None
    """1e12 model FLOP/s."""
    gpu_free_bytes: int | None
    """Of the fullest GPU; negative: short by so much. None: the hardware states no such memory."""
    host_free_bytes: int | None
    """Of a node's memory."""
    num_micro_steps: int
    """Accumulation of the step, or micro batches of the pipeline."""


@dataclass(frozen=True)
class Ranking:
    """What was found."""

    choices: tuple[Choice, ...]
    """Best first; those that do not fit come last. Each is the best of its kind. Empty: every form breaks a rule."""
    num_considered: int
    """Configurations that were scored."""
    held_equal: str
    """What all of them have in common, in a phrase: the sequences of a step."""


def rank_choices(config: Config, open_keys: OpenKeys, limit: int = 5) -> Ranking:
    """The fastest configurations that fit, by the planner's own prediction.

    What is compared takes the same sequences in a step, see ``held_batch``. A tenth of each tier stays free, unless
    nothing fits so. NVMe is taken where its folder is stated and nothing fits without it. Of times within 5 % the plainest
    configuration is taken: fewer offloads, fewer kinds of model parallelism, a lower stage, less recomputation. Where no time is
    predicted the plainest one that fits is the best.

    Args:
        config: typed; the values of open keys are not looked at.
        open_keys: what may be chosen.
        limit: choices at most.
    """
    considered, refused = 0, list[_Trial]()
    for trial in _trials(config, open_keys):
        considered += len(trial.picking) if trial.is_new else 0
        numbers = trial.picking.best(trial.has_headroom, limit)
        if numbers:
            rows = _choices(trial, numbers, limit)
            return Ranking(tuple(rows), considered, trial.held.text)
        refused += [trial] if trial.is_new else []
    if not refused:
        return Ranking((), considered, "")
    held = refused[0].held
    nearest = nearest_kinds([trial.picking for trial in refused if trial.held == held], limit)
    rows = (_choice(verdict, verdict.prediction(), shortage_reason(verdict)) for verdict in nearest)
    return Ranking(tuple(rows), considered, held.text)


def any_fits(config: Config, open_keys: OpenKeys, has_headroom: bool) -> bool:
    """Whether the first of ``rank_choices`` would fit, for a part of what it takes to find which one that is.

    Args:
        config: typed; the values of open keys are not looked at.
        open_keys: what may be chosen.
        has_headroom: a tenth of each tier must stay free.
    """
    trials = (trial for trial in _trials(config, open_keys) if trial.has_headroom == has_headroom)
    return any(trial.picking.fits_any(has_headroom) for trial in trials)


class _Trial(NamedTuple):
    """One space, and what is asked of it."""

    held: Held
    picking: Picking
    has_headroom: bool
    takes_nvme: bool
    is_new: bool
    """Its candidates have not been scored in a trial before."""


def _trials(config: Config, open_keys: OpenKeys) -> Iterator[_Trial]:
    """What is tried one after the other until something fits."""
    seq_len = config.training.seq_len or resolve_model_shape(config.model)[0].max_seq_len
    has_folder = config.parallelism.nvme_path is not None or config.hardware.nvme_path is not None
    for held in held_batches(config, open_keys, seq_len):
        found = []
        for takes_nvme in (False, True) if has_folder else (False,):
            space = search_space(config, open_keys, held.num_sequences, takes_nvme)
            if space.kept:
                found.append(_Trial(held, Picking(config, Scores(config, space)), True, takes_nvme, True))
                yield found[-1]
        for trial in found:
            yield trial._replace(has_headroom=False, is_new=False)


def _choices(trial: _Trial, numbers: list[int], limit: int) -> Iterator[Choice]:
    """The best and its runner-ups, and last the nearest plainer form that does not fit."""
    picking = trial.picking
    verdicts = [picking.verdict(number) for number in numbers]
    predictions = [verdict.prediction() for verdict in verdicts]
    refused = picking.nearest_plainer(numbers[0], trial.has_headroom) if limit > 1 else None
    first, *others = predictions
    knows_memory = (verdicts[0].gpu_free_bytes, verdicts[0].host_free_bytes) != (None, None)
    of_best = best_reason(first, others[0] if others else None, trial.has_headroom, knows_memory)
    yield _choice(verdicts[0], first, of_best)
    shown = limit - 1 - (refused is not None)
    for verdict, prediction in list(zip(verdicts, predictions, strict=True))[1 : 1 + shown]:
        yield _choice(verdict, prediction, place_reason(first, prediction))
    if refused is not None:
        yield _choice(refused, refused.prediction(), shortage_reason(refused))


def _choice(verdict: Verdict, prediction: StepPrediction | None, reason: str) -> Choice:
    return Choice(
        config=verdict.config,
        fits=verdict.fits(has_headroom=False),
        reason=reason,
        step_time_s=None if prediction is None else prediction.step_time_s,
        tokens_per_s=None if prediction is None else prediction.tokens_per_s,
        tflops_per_gpu=None if prediction is None else prediction.tflops_per_gpu["model"],
        gpu_free_bytes=verdict.gpu_free_bytes,
        host_free_bytes=verdict.host_free_bytes,
        num_micro_steps=verdict.work.batch.gradient_accumulation_steps,
    )
