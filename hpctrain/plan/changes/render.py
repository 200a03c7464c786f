"""Changes as text: overrides that can be pasted, each with what stays free and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError
from hpctrain.plan.changes.change import Change, Changes
from hpctrain.plan.changes.cheapest import cheapest_changes, is_short_of_memory
from hpctrain.plan.memory.estimate import ASK_THE_PLAN
from hpctrain.plan.run_plan import RunPlan
from hpctrain.plan.site.limits import Site
from hpctrain.units import counted, gib

_FORCE = "--force submits all the same"
_AFTER_THE_OTHERS = "what makes it fit is named once no other rule is broken"
_NOTED_SHARE = 0.25
"""Of a node's memory: where a run takes more, what is free there is told too."""


def with_changes(
    config: Config, plan: RunPlan, site: Site | None = None, words: Sequence[str] = ()
) -> tuple[RunPlan, Changes | None]:
    """A plan as it is told alone: short of memory it comes with its changes, and its problems leave the fix to them.

    Args:
        config: what the plan was built from.
        plan: with or without problems.
        site: bounds the number of nodes; None: not asked.
        words: overrides of the command line, behind which those of the changes are typed.

    Returns:
        The plan, and the changes; None: it is not short of memory, or other problems come first.
    """
    is_short = is_short_of_memory(plan)
    fix = _FORCE if is_short else _AFTER_THE_OTHERS
    problems = tuple(
        replace(each, fix=fix) if each.kind == "memory" and each.fix == ASK_THE_PLAN else each for each in plan.problems
    )
    typed = {word.lstrip("+~").partition("=")[0] for word in words}
    changes = cheapest_changes(config, plan, site, typed=typed) if is_short else None
    return replace(plan, problems=problems), changes


def refusal(
    config: Config, plan: RunPlan, force: bool = False, site: Site | None = None, words: Sequence[str] = ()
) -> ConfigError:
    """What is raised for a plan with problems: all of them, and the changes that make it fit.

    Args:
        config: what the plan was built from.
        plan: with problems.
        force: see ``--force``.
        site: bounds the number of nodes; None: not asked.
        words: overrides of the command line.
    """
    told, changes = with_changes(config, plan, site, words)
    problems = told.blocking_problems(force)
    if changes is None:
        return ConfigError(problems)
    return ConfigError(problems, "\n".join([*map(str, problems), render_changes(changes)]))


def render_changes(found: Changes) -> str:
    """The changes, the cheapest first; or that none was found."""
    if not found.changes:
        looks = counted(found.num_looks, "estimate")
        return (
            f"changes: none of those that were looked at makes it fit, alone or with others ({looks}); a smaller model or"
            " another hardware remains"
        )
    speed = "speed against this plan as it stands, predicted"
    by = (
        ", by the planner's rules with what the rehearsal found beyond them, not rehearsed"
        if found.after_rehearsal
        else ""
    )
    form = "; with each the form is chosen anew" if found.is_form_open else ""
    lines = [f"changes that make it fit, the cheapest first ({speed}{by}{form})"]
    return "\n".join([*lines, *(f"  {change_text(change)}" for change in found.changes)])


def change_text(change: Change) -> str:
    """One line, such as ``training.micro_batch_size=2 (fits with 9.10 GiB a GPU free; 4 % slower)``."""
    room = "" if change.has_headroom else ", less than a tenth"
    parts = [f"fits with {_free(change)} free{room}", _price(change)]
    if not change.holds_global_batch:
        parts.append(f"global batch then {change.global_batch_size:,}")
    return f"{' '.join(change.overrides)} ({'; '.join(part for part in parts if part)})"


def _free(change: Change) -> str:
    gpu, host = change.gpu_free_bytes, change.host_free_bytes_per_node
    parts = [] if gpu is None else [f"{gib(gpu)} a GPU"]
    if host is not None and (
        gpu is None or change.host_bytes_per_node > _NOTED_SHARE * (host + change.host_bytes_per_node)
    ):
        parts.append(f"{gib(host)} a node")
    return " and ".join(parts)


def _price(change: Change) -> str:
    """The speed, and where the number of GPUs is another one the GPU-hours for the same tokens."""
    hours, speed = change.gpu_hours_factor, change.speed_factor
    if hours is None or speed is None:
        return change.gap if change.gap else ""
    if "nodes" not in {override.partition("=")[0] for override in change.overrides}:
        return speed_text(speed)
    return f"{speed_text(speed)}, {_hours_text(hours)}"


def speed_text(factor: float) -> str:
    """Tokens/s against others.

    >>> speed_text(0.96), speed_text(1.0), speed_text(1.25), speed_text(0.2), speed_text(3.36)
    ('4 % slower', 'as fast', '25 % faster', '5.0 times slower', '3.4 times as fast')
    """
    if factor >= 2:
        return f"{factor:.1f} times as fast"
    if factor < 0.5:
        return f"{1 / factor:.1f} times slower"
    per_cent = round(100 * (factor - 1))
    return "as fast" if not per_cent else f"{abs(per_cent)} % {'faster' if per_cent > 0 else 'slower'}"


def _hours_text(factor: float) -> str:
    if factor >= 2:
        return f"{factor:.1f} times the GPU-hours"
    per_cent = round(100 * (factor - 1))
    return "as many GPU-hours" if not per_cent else f"{abs(per_cent)} % {'more' if per_cent > 0 else 'fewer'} GPU-hours"
