"""``plan --largest``, ``plan --fewest-nodes`` and ``plan --best-micro-batch``: one question each, of one configuration."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from hpctrain.cli_compose import ComposeWords, parse_compose_words
from hpctrain.cli_runs import terminal_width
from hpctrain.config.compose import Point, compose_points
from hpctrain.config.schema import Config
from hpctrain.errors import EXIT_DOES_NOT_FIT, EXIT_OK, ConfigError, Problem, known_names_hint
from hpctrain.launch.calibrations import CalibrationWords, with_calibrations
from hpctrain.launch.point_plans import closed_points, plan_points
from hpctrain.launch.submitting_shell import as_submitted_here
from hpctrain.plan.cost.options import COST_OPTIONS
from hpctrain.plan.questions.fewest_nodes import MOST_NODES, FewestNodes, fewest_nodes
from hpctrain.plan.questions.largest import FitsOf, LargestModel, largest_model
from hpctrain.plan.questions.micro_batch import BestMicroBatch, best_micro_batch
from hpctrain.plan.questions.other_trainer import TRAINERS, largest_of_trainer
from hpctrain.plan.questions.outcome import Outcome, PlanOf
from hpctrain.plan.questions.render import render_largest, render_micro_batches, render_nodes
from hpctrain.plan.run_plan import RunPlan
from hpctrain.plan.speed.calibration import used_calibration

_LARGEST, _FEWEST, _BEST = "--largest", "--fewest-nodes", "--best-micro-batch"
_SOUGHT = {_LARGEST: "model.num_layers", _FEWEST: "nodes", _BEST: "training.micro_batch_size"}
"""What each question looks for, and what therefore cannot be stated with it."""
_MOST_NODES_TYPED = 1_000_000


class _Question(NamedTuple):
    option: str
    max_nodes: int
    trainer: str
    words: ComposeWords


def answer_question(words: Sequence[str]) -> int:
    """Answers the question among the words after ``plan``.

    Returns:
        The exit code: 3 where nothing fits.

    Raises:
        ConfigError: two questions, an option that does not go with the question, what is looked for is stated, or the
            configuration breaks a rule other than that of memory.
    """
    question = _take_question(words)
    (composed,) = compose_points(question.words.overrides, False, question.words.config_dirs)
    point, calibration = as_submitted_here(composed, os.environ), _calibration_words(question)
    if point.config.training.payload != "train":
        rule = f"builds no model, so {question.option} has nothing to fit"
        raise ConfigError([Problem("training", point.config.training.name, rule, "leave it out")])
    point = _freed(_calibrated(point, calibration), question.option)
    plan_of = _planner(point, calibration)
    answer, text, is_found = _answer(question, point, plan_of)
    if question.words.as_json:
        asked = {"question": question.option.removeprefix("--"), "trainer": question.trainer or None}
        told = {**asked, **_as_json(answer), "notes": list(point.assumptions)}
        print(json.dumps(told, indent=2))
    else:
        notes = "".join(f"note: {note}\n" for note in point.assumptions)
        print(f"{notes}\n{text}" if notes else text, end="")
    return EXIT_OK if is_found else EXIT_DOES_NOT_FIT


def _calibration_words(question: _Question) -> CalibrationWords:
    """The rules of another trainer's memory tell no speeds that could be calibrated."""
    return CalibrationWords(question.words.calibration, question.words.no_calibration or bool(question.trainer))


def _calibrated(point: Point, words: CalibrationWords) -> Point:
    """With its calibration, by which a form is chosen too, and a note that says which it is or why a file gives none."""
    (found,) = with_calibrations([point], words)
    if found.config.calibration is None:
        return found
    note = f"speeds are calibrated, {used_calibration(found.config.calibration).text}"
    return dataclasses.replace(found, assumptions=(*found.assumptions, note))


def _answer(
    question: _Question, point: Point, plan_of: PlanOf
) -> tuple[LargestModel | FewestNodes | BestMicroBatch, str, bool]:
    """The answer, its text, and whether anything fits."""
    config, width = point.config, terminal_width()
    if question.option == _FEWEST:
        nodes = fewest_nodes(config, plan_of, question.max_nodes, point.open_keys)
        return nodes, render_nodes(nodes, config, width), nodes.fewest is not None
    if question.option == _BEST:
        best = best_micro_batch(config, plan_of)
        return best, render_micro_batches(best, config, width), best.best is not None
    if question.trainer and point.is_open:
        rule = f"--trainer {question.trainer} chooses no parallelism"
        raise ConfigError([Problem("parallelism", config.parallelism.name, rule, "state one, such as zero3_offload")])
    if question.trainer:
        largest = largest_of_trainer(config, question.trainer)
    else:
        largest = largest_model(config, plan_of, _any_form_fits(point) if point.is_open else None)
    return largest, render_largest(largest, config, question.trainer, width), largest.largest is not None


def _take_question(words: Sequence[str]) -> _Question:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in _SOUGHT:
        parser.add_argument(option, action="store_true")
    parser.add_argument("--max-nodes")
    parser.add_argument("--trainer")
    try:
        known, rest = parser.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from None
    asked = [option for option in _SOUGHT if getattr(known, option.removeprefix("--").replace("-", "_"))]
    if len(asked) > 1:
        raise ConfigError(f"{' and '.join(asked)}: are {len(asked)} questions; ask one at a time")
    option = asked[0]
    if known.max_nodes is not None and option != _FEWEST:
        raise ConfigError(f"--max-nodes {known.max_nodes}: goes with {_FEWEST}, not with {option}")
    if known.trainer is not None and option != _LARGEST:
        raise ConfigError(f"--trainer {known.trainer}: goes with {_LARGEST}, not with {option}")
    if known.trainer is not None and known.trainer not in TRAINERS:
        raise ConfigError(
            [Problem("--trainer", known.trainer, "is not known", known_names_hint(known.trainer, TRAINERS))]
        )
    for word in rest:
        if (name := word.partition("=")[0]) in ("--table", "--calibrate"):
            raise ConfigError(f"{name} and {option}: are 2 questions; ask one at a time")
        if word.partition("=")[0] in COST_OPTIONS:
            raise ConfigError(f"{word}: asks what a run costs; ask it of the answer, without {option}")
    parsed = parse_compose_words(rest)
    _refuse_flags(parsed, option)
    _refuse_stated(parsed.overrides, option)
    return _Question(option, _max_nodes(known.max_nodes), known.trainer or "", parsed)


def _max_nodes(text: str | None) -> int:
    if text is None:
        return MOST_NODES
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= _MOST_NODES_TYPED:
        rule = f"must be a whole number from 1 to {_MOST_NODES_TYPED:,}"
        raise ConfigError([Problem("--max-nodes", text, rule, "for example --max-nodes 64")])
    return int(text)


def _refuse_flags(parsed: ComposeWords, option: str) -> None:
    flags = {
        "--multirun": parsed.multirun,
        "--force": parsed.force,
        "--site": parsed.site,
        "--rehearse": parsed.rehearse,
        "--cfg": bool(parsed.shown_config),
    }
    given = [flag for flag, is_given in flags.items() if is_given]
    if given:
        raise ConfigError(
            f"{' '.join(given)}: does not go with {option}, which plans many runs and prints none of them"
        )


def _refuse_stated(overrides: Sequence[str], option: str) -> None:
    key = _SOUGHT[option]
    for word in overrides:
        name, _, value = word.lstrip("+~").partition("=")
        if name == key:
            raise ConfigError([Problem(key, value, f"is what {option} looks for", "leave it out")])


def _freed(point: Point, option: str) -> Point:
    """What a file states of the value that is looked for does not count.

    Of a form that is open, ``--best-micro-batch`` chooses one first, and then varies the micro batch in it.
    """
    config = point.config
    if option != _BEST:
        return point
    open_keys = point.open_keys
    freed = dataclasses.replace(config, training=dataclasses.replace(config.training, micro_batch_size=None))
    point = dataclasses.replace(point, config=freed)
    if not point.is_open:
        return point
    (closed,) = closed_points([point])
    training = closed.config.training
    changes: dict[str, Any] = {"micro_batch_size": None}
    if "training.activation_checkpointing" in open_keys and not training.offload_activations:
        changes["activation_checkpointing"] = None
    config = dataclasses.replace(closed.config, training=dataclasses.replace(training, **changes))
    return dataclasses.replace(closed, config=config)


def _planner(point: Point, calibration: CalibrationWords) -> PlanOf:
    def plan_of(config: Config) -> RunPlan:
        ((_, plan),) = plan_points([dataclasses.replace(point, config=config)], calibration)
        return plan

    return plan_of


def _any_form_fits(point: Point) -> FitsOf:
    from hpctrain.plan.auto.choice import any_form_fits

    return lambda config, has_headroom: any_form_fits(config, point.open_keys, has_headroom)


def _as_json(answer: Any) -> dict[str, Any]:
    """The answer's fields, each outcome with what is derived of it."""
    found = {field.name: _value(getattr(answer, field.name)) for field in dataclasses.fields(answer)}
    if isinstance(answer, LargestModel):
        found["binds"] = list(answer.binds)
    return found


def _value(value: Any) -> Any:
    if isinstance(value, Outcome):
        return dataclasses.asdict(value) | {"gpu_hours_per_billion_tokens": value.gpu_hours_per_billion_tokens}
    if isinstance(value, tuple):
        return [_value(each) for each in value]
    return value
