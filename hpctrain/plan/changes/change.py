"""One change of a refused plan: the words that make it, what then stays free, what it costs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hpctrain.config.schema import Config
from hpctrain.plan.auto.form_name import form_words
from hpctrain.plan.changes.levers import STAGE, Values, with_values
from hpctrain.plan.run_plan import RunPlan

_BESIDE_THE_FORM = ("parallelism.pin_memory", "parallelism.sub_group_size")
"""Keys of ``parallelism`` that no shipped form states."""


@dataclass(frozen=True)
class Change:
    """Values with which the plan has no problem any more."""

    overrides: tuple[str, ...]
    """As they are typed."""
    kinds: tuple[str, ...]
    """What is changed, in words."""
    gpu_free_bytes: int | None
    """Of a GPU; None: not stated by the hardware, or there is none."""
    host_free_bytes_per_node: int | None
    host_bytes_per_node: int
    """What the run takes of it."""
    has_headroom: bool
    """A tenth of each tier stays free."""
    step_time_s: float | None
    tokens_per_s: float | None
    gpu_hours_factor: float | None
    """GPU-hours for the same tokens over those of the refused plan, both predicted; None: one of them is not, see ``gap``."""
    speed_factor: float | None
    """Tokens/s over those of the refused plan."""
    gap: str
    """Why there is no price."""
    num_nodes: int
    micro_batch_size: int
    global_batch_size: int
    holds_global_batch: bool


@dataclass(frozen=True)
class Changes:
    """The answer to a refusal."""

    changes: tuple[Change, ...]
    """The cheapest first; empty: none of those that were looked at makes it fit."""
    num_looks: int
    """Estimates and plans that were made."""
    after_rehearsal: bool = False
    """The refusal is a rehearsal's, the changes are the rules', with what the rehearsal found beyond them added."""
    is_form_open: bool = False
    """``parallelism=auto`` chose the form for this plan; what is told of a change is of the form that it chooses with it."""


def overrides(config: Config, values: Values, typed: Collection[str] = ()) -> tuple[str, ...]:
    """The values as they are typed behind what states the configuration; a shipped form of parallelism by its name.

    Args:
        config: of the refused plan.
        values: what is changed, by dotted key.
        typed: keys that the command line states one by one: there they stand behind the name of a form, too.
    """
    words = tuple(f"{key}={_text(value)}" for key, value in values.items())
    per_node, before = config.hardware.gpus_per_node, config.parallelism
    after = form_words(with_values(config, values).parallelism, per_node)
    if (len(after) > 1 and STAGE not in values) or form_words(before, per_node) != (f"parallelism={before.name}",):
        return words
    of_form = [word for word in words if word.startswith("parallelism.") and not word.startswith(_BESIDE_THE_FORM)]
    if not of_form:
        return words
    of_form = [word for word in of_form if word.partition("=")[0] not in typed]
    return (*after, *(word for word in words if word not in of_form))


def change_of(words: tuple[str, ...], kinds: tuple[str, ...], refused: RunPlan, plan: RunPlan, unpriced: str) -> Change:
    """What is told of a changed plan.

    Args:
        words: as they are typed.
        kinds: what is changed.
        refused: before the change, by the rules alone.
        plan: with it; without a problem.
        unpriced: why the predicted step does not know what the change costs; empty: it does.
    """
    before, after = refused.prediction, plan.prediction
    hours = speed = None
    gap = unpriced
    if before is None or after is None:
        why = (plan if after is None else refused).prediction_gap
        gap = "; ".join(filter(None, (gap, f"no predicted speed, {why}")))
    elif not unpriced:
        speed = after.tokens_per_s / before.tokens_per_s
        hours = plan.layout.world_size / refused.layout.world_size / speed
    memory = plan.memory
    gpu, host = memory.gpu_capacity_bytes, memory.host_capacity_bytes
    return Change(
        overrides=words,
        kinds=kinds,
        gpu_free_bytes=None if gpu is None else gpu - memory.gpu_bytes,
        host_free_bytes_per_node=None if host is None else host - memory.host_bytes_per_node,
        host_bytes_per_node=memory.host_bytes_per_node,
        has_headroom=memory.fits_with_headroom,
        step_time_s=None if after is None else after.step_time_s,
        tokens_per_s=None if after is None else after.tokens_per_s,
        gpu_hours_factor=hours,
        speed_factor=speed,
        gap=gap,
        num_nodes=plan.layout.num_nodes,
        micro_batch_size=plan.batch.micro_batch_size,
        global_batch_size=plan.batch.global_batch_size,
        holds_global_batch=plan.batch.global_batch_size == refused.batch.global_batch_size,
    )


def _text(value: object) -> str:
    """As Hydra reads it.

    >>> _text(True), _text(None), _text(1.0), _text("cpu")
    ('true', 'null', '1.0', 'cpu')
    """
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else "null" if value is None else str(value)
