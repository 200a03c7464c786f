"""``parallelism=auto``: a configuration of which nothing is open any more, and why it is the one.

The search itself is ``plan/search``; it is imported only where something is open, since it may take numpy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpctrain.config.open_keys import AUTO, NEUTRAL, value_at
from hpctrain.config.schema import ClusterConfig, Config, DataConfig, LaunchConfig, RunConfig, TrainingConfig
from hpctrain.plan.auto.alternatives import CHOICE_NOTE, Alternative, AutoChoice
from hpctrain.plan.auto.form_name import form_name, form_words
from hpctrain.plan.layout import Layout
from hpctrain.plan.rules.capacity import may_use_host
from hpctrain.plan.run_plan import build_run_plan

if TYPE_CHECKING:
    from hpctrain.plan.search.ranking import Choice, Ranking

_SUBJECT_NAME = "searched"
_ACCUMULATION = "training.gradient_accumulation_steps"
_SEARCHED_OF_TRAINING = (
    *("payload", "seq_len", "micro_batch_size", "global_batch_size", "gradient_accumulation_steps", "batch_ramp"),
    *("precision", "activation_checkpointing", "loss_chunk_size", "offload_activations", "compile"),
)
"""What of ``training`` a step's time and memory depend on."""


@dataclass(frozen=True)
class Found:
    """What is chosen for all configurations of one subject."""

    values: Mapping[str, Any]
    """Each open key with its value."""
    notes: tuple[str, ...]
    """What was chosen and why, a sentence each."""
    choice: AutoChoice | None
    """None: nothing was compared, since nothing depends on it or what is stated allows no form."""


def search_subject(config: Config) -> Config:
    """The configuration with all that no choice depends on left out: equal subjects get equal choices."""
    searched = {name: getattr(config.training, name) for name in _SEARCHED_OF_TRAINING}
    return dataclasses.replace(
        config,
        training=TrainingConfig(_SUBJECT_NAME, 1, **searched),
        cluster=ClusterConfig(_SUBJECT_NAME, "slurm", memory_per_node=_asked_memory(config)),
        data=DataConfig(_SUBJECT_NAME, "synthetic"),
        run=RunConfig(),
        launch=LaunchConfig(),
        track=type(config.track)(),
        env={},
        env_from_shell=(),
    )


def _asked_memory(config: Config) -> str | None:
    """What the job asks Slurm for of a node's memory, into which a choice has to fit."""
    return config.cluster.memory_per_node if config.cluster.kind == "slurm" else None


def find_values(subject: Config, open_keys: Sequence[str]) -> Found:
    """Values for the open keys.

    Args:
        subject: of ``search_subject``.
        open_keys: of ``hpctrain.config.open_keys.NEUTRAL``; the values that they have in ``subject`` do not count.
    """
    if not open_keys or subject.training.payload != "train":
        values = {key: NEUTRAL[key] for key in open_keys}
        name = form_name(_with(subject, values).parallelism, subject.hardware.gpus_per_node)
        why = "a launch check builds no model, so there is nothing to spread" if open_keys else "all of it is stated"
        return Found(values, (f"{CHOICE_NOTE} {name}, {why}",), None)
    from hpctrain.plan.search.ranking import OpenKeys, rank_choices

    ranking = rank_choices(subject, OpenKeys(frozenset(open_keys)))
    if not ranking.choices:
        note = f"{CHOICE_NOTE} none, since what is stated breaks a rule in every form"
        return Found(_least_wrong(subject, open_keys), (note,), None)
    best = ranking.choices[0]
    alternatives = tuple(_alternative(each, open_keys) for each in ranking.choices)
    choice = AutoChoice(ranking.num_considered, alternatives, ranking.held_equal)
    note = f"{CHOICE_NOTE} {' '.join(alternatives[0].overrides)}: {_why(ranking)}"
    return Found(
        {key: value_at(best.config, key) for key in open_keys}, (note, *_host_notes(subject, open_keys)), choice
    )


def _host_notes(subject: Config, open_keys: Sequence[str]) -> tuple[str, ...]:
    """Of open keys that would move something to a node's memory, where its size is not known."""
    moved = [key for key in open_keys if ".offload_" in key]
    if may_use_host(subject) or not moved:
        return ()
    return ("hardware.host_memory_gib is not stated: nothing is moved to the host that nobody stated",)


def any_form_fits(config: Config, open_keys: Sequence[str], has_headroom: bool) -> bool:
    """Whether the values that would be found fit, for a part of what it takes to find them.

    Args:
        config: as of ``find_values``, or the whole one.
        open_keys: the same.
        has_headroom: a tenth of each tier must stay free.
    """
    from hpctrain.plan.search.ranking import OpenKeys, any_fits

    return any_fits(config, OpenKeys(frozenset(open_keys)), has_headroom)


def closed_config(config: Config, found: Found) -> Config:
    """The configuration with the values that were found, named after its form, and the keys in ``run.chosen``.

    Where the global batch is stated, the accumulation stays open: it follows from the batch on any number of ranks.
    """
    values = dict(found.values)
    if config.training.global_batch_size is not None and _ACCUMULATION in values:
        values[_ACCUMULATION] = None
    closed = _with(config, values)
    parallelism = closed.parallelism
    if parallelism.name == AUTO:
        name = form_name(parallelism, config.hardware.gpus_per_node)
        parallelism = dataclasses.replace(parallelism, name=name)
    run = dataclasses.replace(config.run, chosen=tuple(values))
    return dataclasses.replace(closed, parallelism=parallelism, run=run)


def _with(config: Config, values: Mapping[str, Any]) -> Config:
    """With some of the searched keys set."""
    sections: dict[str, dict[str, Any]] = {"parallelism": {}, "training": {}}
    for key, value in values.items():
        section, _, name = key.partition(".")
        sections[section][name] = value
    return dataclasses.replace(
        config,
        parallelism=dataclasses.replace(config.parallelism, **sections["parallelism"]),
        training=dataclasses.replace(config.training, **sections["training"]),
    )


def _why(ranking: Ranking) -> str:
    """Why the first of a ranking is the one."""
    best, considered = ranking.choices[0], f"{ranking.num_considered:,} configurations"
    if not best.fits:
        return f"none of {considered} fits; this one is the nearest ({best.reason})"
    if best.tokens_per_s is None:
        return f"{best.reason}, of {considered}; no step time is predicted for it"
    return f"{best.reason}, of {considered}; {best.tokens_per_s:,.0f} tokens/s predicted"


def _least_wrong(subject: Config, open_keys: Sequence[str]) -> dict[str, Any]:
    """Plain values with which the plan tells the broken rules of what is stated, and not those of a stage that nobody chose."""
    stages = (0, 1, 2, 3) if "parallelism.zero_stage" in open_keys else (subject.parallelism.zero_stage,)
    plain = {key: NEUTRAL[key] for key in open_keys}

    def num_problems(stage: int) -> int:
        values = plain | {"parallelism.zero_stage": stage}
        return sum(problem.kind == "config" for problem in build_run_plan(_with(subject, values)).problems)

    stage = min(stages, key=num_problems)
    return plain | {key: stage for key in open_keys if key == "parallelism.zero_stage"}


def _alternative(choice: Choice, open_keys: Sequence[str]) -> Alternative:
    config, parallelism, training = choice.config, choice.config.parallelism, choice.config.training
    degrees = (parallelism.tensor_parallel_size, parallelism.pipeline_parallel_size, parallelism.sequence_parallel_size)
    layout = Layout(config.nodes, config.hardware.gpus_per_node, *degrees)
    micro = training.micro_batch_size or 1
    told = {key: value_at(config, key) for key in open_keys if key.startswith("training.")}
    left_out = (_ACCUMULATION, 1 if parallelism.pipeline_parallel_size == 1 else None)  # what follows without it
    return Alternative(
        parallelism=form_name(parallelism, config.hardware.gpus_per_node),
        overrides=(
            *form_words(parallelism, config.hardware.gpus_per_node),
            *(
                f"{key}={str(value).lower()}"
                for key, value in told.items()
                if value != NEUTRAL[key] and (key, value) != left_out
            ),
        ),
        micro_batch_size=micro,
        gradient_accumulation_steps=choice.num_micro_steps,
        global_batch_size=micro * layout.data_parallel_degree * choice.num_micro_steps,
        activation_checkpointing=training.activation_checkpointing or "none",
        offload_activations=training.offload_activations,
        step_time_s=choice.step_time_s,
        tokens_per_s=choice.tokens_per_s,
        gpu_free_bytes=choice.gpu_free_bytes,
        host_free_bytes=choice.host_free_bytes,
        fits=choice.fits,
        reason=choice.reason,
    )
