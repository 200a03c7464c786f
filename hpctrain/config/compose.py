"""Hydra's grammar and composition: overrides to typed configurations, with short messages for every mistake."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, Transformer
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from hpctrain.config.build import build_config, config_fields, takes_text
from hpctrain.config.experiments import GROUP, SWEEP_KEY, experiment_file, stated_groups, sweep_blocks
from hpctrain.config.hydra_text import hydra_text, quoted_word
from hpctrain.config.open_keys import AUTO, close_open_keys
from hpctrain.config.schema import Config
from hpctrain.config.shell_hint import shell_variable_hint
from hpctrain.config.site_files import check_site_files
from hpctrain.config.sweep_axes import Axis, can_be_set, plain_values, refers_to_others, settable_axes, with_value
from hpctrain.errors import ConfigError, Problem, known_names_hint
from hpctrain.secret_text import redact_override

CONFIG_NAME = "config"
_OPEN_MAPPINGS = (
    *("env.", "cluster.extra.", "cluster.azureml."),
    *("hardware.peak_tflops.", "hardware.achievable_tflops.", "hardware.sources."),
)
"""Below these, names are the user's own."""
_MOST_VALUES = 10_000
"""Of one key in a sweep; beyond it a number of a range is a slip."""
_PLAIN_NUMBER = re.compile(r"[+-]?[\d_]+(\.[\d_]*)?([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Point:
    """One composed configuration: a single run, or one point of a sweep."""

    overrides: tuple[str, ...]
    """Hydra's own spelling of what was chosen, quoted so that Hydra reads it back; secrets are left out."""
    config: Config
    """Complete in type; what is open has its plainest value until it is chosen."""
    assumptions: tuple[str, ...]
    open_keys: tuple[str, ...] = ()
    """Keys that nobody stated and that ``plan/search`` chooses; a point of which some are open is not planned as it is."""
    rerun_of: str = ""
    """Folder of the run that the configuration was taken from; empty: it was composed."""

    @property
    def is_open(self) -> bool:
        """Whether something is to be chosen, if only a name for what is stated in ``parallelism=auto``."""
        return bool(self.open_keys) or self.config.parallelism.name == AUTO


def config_dir() -> Path:
    """The folder of the shipped configuration groups: inside the wheel, else beside the package's source."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / "_conf"
    return shipped if shipped.is_dir() else package.parent / "conf"


def group_choices(group: str, extra_dirs: Sequence[Path] = ()) -> list[str]:
    """Names of the files of one group, the site's own included."""
    return sorted({path.stem for root in (config_dir(), *extra_dirs) for path in (root / group).glob("*.yaml")})


def compose_points(words: Sequence[str], multirun: bool, extra_dirs: Sequence[Path] = ()) -> list[Point]:
    """The configurations that Hydra overrides stand for, one without ``multirun``.

    Args:
        words: Hydra overrides as typed, one a word.
        multirun: take comma lists, ``range()``, ``choice()`` and ``glob()`` as a sweep; the points are all combinations,
            the last override changing fastest. The axes of an experiment come before what is typed.
        extra_dirs: a site's own folders with groups, searched beside the shipped ones.

    Raises:
        ConfigError: the message names key, value, rule and the nearest fix.
    """
    for folder in extra_dirs:
        check_site_files(folder, config_dir())
    words = [word for word in words if word.lstrip("+") != f"{GROUP}=null"]  # the default, which Hydra cannot be told
    typed = [parse_override(word) for word in words]
    check_overrides(typed, words, multirun, extra_dirs)
    search_path = ",".join(hydra_text(f"file://{path.resolve()}") for path in extra_dirs)
    fixed = (f"hydra.searchpath=[{search_path}]",) if extra_dirs else ()
    points: list[Point] = []
    problems: list[Problem] = []
    with initialize_config_dir(config_dir=str(config_dir()), version_base="1.3"):
        for grid in _grids(typed, multirun, extra_dirs):
            of_other_grids = {frozenset(point.overrides) for point in points}
            axes = [_axis(override, extra_dirs) for override in grid.overrides]
            composer = _Composer(axes, fixed, grid.stated_groups, extra_dirs)
            for combination in itertools.product(*(range(len(axis.texts)) for axis in axes)):
                try:
                    point = composer.point(combination)
                except ConfigError as error:
                    if not multirun or not error.problems:
                        raise
                    problems += error.problems
                    continue
                if frozenset(point.overrides) not in of_other_grids:
                    points.append(point)
    if problems:
        # Values of a sweep that several points share are named once.
        raise ConfigError(dict.fromkeys(problems))
    return points


class _Grid(NamedTuple):
    """Overrides whose product is (a part of) the sweep."""

    overrides: tuple[Override, ...]
    stated_groups: frozenset[str]


def _grids(typed: Sequence[Override], multirun: bool, extra_dirs: Sequence[Path]) -> list[_Grid]:
    """One, or with experiments those of each; what is typed replaces an axis of the same key."""
    chosen = [override for override in typed if override.key_or_group == GROUP]
    stated = {override.key_or_group for override in typed}
    if not chosen:
        return [_Grid(tuple(typed), frozenset(stated))]
    others = [override for override in typed if override.key_or_group != GROUP]
    grids = []
    for name in _choice_names(chosen[-1], group_choices(GROUP, extra_dirs)):
        path = experiment_file(name, [config_dir(), *extra_dirs])
        groups = frozenset(stated | stated_groups(path))
        for words in sweep_blocks(path):
            open_words = [word for word in words if word.partition("=")[0] not in stated]
            axes = [parse_override(word) for word in open_words]
            check_overrides(axes, open_words, True, extra_dirs)
            if axes and not multirun:
                keys = ", ".join(override.key_or_group for override in axes)
                fix = "put -m first, or give each of them one value"
                raise ConfigError((Problem(GROUP, name, f"is a sweep over {keys}", fix),))
            grids.append(_Grid((parse_override(f"{GROUP}={name}"), *axes, *others), groups))
    return grids


def parse_override(word: str) -> Override:
    """One word in Hydra's grammar.

    Raises:
        ConfigError: Hydra cannot read it; says how to quote it.
    """
    parser = OverridesParser.create()
    key, _, value = word.partition("=")
    key = key.lstrip("+")
    if (takes_text(key) or key.startswith("env.")) and not any(sign in value for sign in "\"'([{"):
        # An account 012 or a name 2024_11_29 is text, whatever number Hydra would make of it.
        values = [hydra_text(part) if _PLAIN_NUMBER.fullmatch(part) else part for part in value.split(",")]
        word = f"{word.partition('=')[0]}={','.join(values)}" if "=" in word else word
    try:
        return parser.parse_override(word)
    except (OverrideParseException, HydraException) as error:
        # Hydra's grammar knows ASCII letters only; a value that is plain but for others means itself.
        if key.isascii() and not value.isascii() and _parses("".join(sign if sign.isascii() else "x" for sign in word)):
            return parser.parse_override(_quoted(word))
        raise ConfigError(_quoting_advice(word, str(error))) from None


def _parses(word: str) -> bool:
    try:
        OverridesParser.create().parse_override(word)
    except (OverrideParseException, HydraException):
        return False
    return True


def _quoted(word: str) -> str:
    """The override with its value in Hydra's double quotes."""
    key, _, value = word.partition("=")
    return f"{key}={hydra_text(value)}"


def _quoting_advice(word: str, reason: str) -> str:
    key, separator, value = word.partition("=")
    if not separator or not key:
        return f"{word}: is no override; write key=value, or one of the verbs first (see --help)"
    if not _parses(f"{key}=x"):
        return f"{key}: is not how a key is written; parts of letters, digits and _ with dots between them"
    first = next((line for line in reason.splitlines() if line.strip()), reason)
    return f"{key}: {value!r} has characters that Hydra reads as grammar ({first}); type {quoted_word(_quoted(word))}"


def check_overrides(
    overrides: Sequence[Override], words: Sequence[str], multirun: bool, extra_dirs: Sequence[Path]
) -> None:
    """Raises ConfigError for unknown groups, choices and keys, and for values in forms that are read as others."""
    groups = [path.name for path in config_dir().iterdir() if path.is_dir()]
    problems = []
    for override, word in zip(overrides, words, strict=True):
        key = override.key_or_group
        if key.startswith("hydra"):
            problems.append(_hydra_key_problem(word, key))
        elif override.is_sweep_override() and not multirun:
            problems.append(Problem(key, word.partition("=")[2], "is a list of values", "for a sweep put -m first"))
        elif key in groups:
            problems += _choice_problems(override, key, group_choices(key, extra_dirs))
        elif "." not in key and key not in config_fields() and "@" not in word:
            problems.append(
                Problem(key, word.partition("=")[2], "is no key of hpctrain", known_names_hint(key, config_fields()))
            )
        else:
            problems += _unknown_key_problems(key, word) or _number_form_problems(key, word)
    if problems:
        raise ConfigError(problems)


def _hydra_key_problem(word: str, key: str) -> Problem:
    rule = (
        "hpctrain submits by itself and keeps its own run folders; Hydra's launchers, sweepers and folders are not used"
    )
    fix = "use cluster=..., -m and run.root; a site's own files: --config-dir DIR"
    return Problem(key, word.partition("=")[2], rule, fix)


def _choice_problems(override: Override, group: str, known: list[str]) -> list[Problem]:
    if override.is_delete() or override.value() is None:
        return [Problem(group, "null", "a choice is needed", known_names_hint("", known))]
    names = _choice_names(override, known)
    if not names:
        return [Problem(group, _value_text(override), f"matches no {group}", known_names_hint("", known))]
    return [
        Problem(group, name, f"there is no such {group}", known_names_hint(name, known))
        for name in names
        if name not in known
    ]


def _choice_names(override: Override, known: list[str]) -> list[str]:
    """The files of a group that an override chooses; ``known`` are the names that ``glob()`` picks from."""
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    value = override.value()
    return value.filter(known) if isinstance(value, Glob) else [str(name) for name in override.sweep_string_iterator()]


def _value_text(override: Override) -> str:
    return (override.input_line or "").partition("=")[2]


def _unknown_key_problems(key: str, word: str) -> list[Problem]:
    """A dotted key that the schema does not have."""
    if key.startswith(_OPEN_MAPPINGS):
        return []
    parts = key.split(".")
    for depth, part in enumerate(parts):
        known = config_fields(tuple(parts[:depth]))
        if part not in known:
            hint = known_names_hint(part, known) if known else "it has no keys below it"
            return [Problem(key, word.partition("=")[2], "is no key of hpctrain", hint)]
    return []


def _number_form_problems(key: str, word: str) -> list[Problem]:
    """Hydra reads ``1_28`` as 128; a count that does not look like one is refused as it was typed."""
    if takes_text(key) or key.startswith("env."):
        return []
    text = word.partition("=")[2]
    values = [text] if any(sign in text for sign in "\"'([{") else text.split(",")
    return [
        Problem(key, value, "is not how a number is written", f"write {key}={value.replace('_', '')}")
        for value in values
        if "_" in value and value.replace("_", "").lstrip("+-").isdigit()
    ]


def _axis(override: Override, extra_dirs: Sequence[Path]) -> Axis:
    """The override texts that one typed override stands for: one, or in a sweep one for each value.

    The schema has judged dotted keys already, so ``++`` sets those that no file mentions, too.
    """
    key = override.key_or_group
    prefix = "++" if "." in key and not override.is_delete() else ""
    if not override.is_sweep_override():
        line = override.input_line or ""
        return Axis(key, (line if line.startswith("~") else prefix + line.lstrip("+"),))
    if not override.is_discrete_sweep():
        raise ConfigError(f"{key}: interval() has no points; use a comma list, choice() or range()")
    value = override.value()
    if isinstance(value, Glob):
        return Axis(key, tuple(f"{key}={name}" for name in value.filter(group_choices(key, extra_dirs))))
    elements = _elements(override)
    texts = tuple(f"{prefix}{key}={Transformer.encode(element)}" for element in elements)
    return Axis(key, texts, plain_values(elements))


def _elements(override: Override) -> list[Any]:
    """The values of a sweep over one key."""
    line = override.input_line
    try:
        elements = list(itertools.islice(override.sweep_iterator(), _MOST_VALUES + 1))
    except ValueError as error:
        raise ConfigError(f"{line}: {error}; write range(FIRST, END, STEP) with a step that leads to END") from None
    if not elements:
        raise ConfigError(f"{line}: has no values; range(FIRST, END) ends before END")
    if len(elements) > _MOST_VALUES:
        raise ConfigError(f"{line}: has more than {_MOST_VALUES:,} values, and each is a run; give fewer")
    return elements


class _Composer:
    """Composes the points of one grid: what differs in plain values only is composed once."""

    def __init__(
        self, axes: Sequence[Axis], fixed: Sequence[str], stated: frozenset[str], extra_dirs: Sequence[Path]
    ) -> None:
        self._axes = axes
        self._fixed = fixed
        self._shown = [tuple(map(redact_override, axis.texts)) for axis in axes]
        self._stated = stated
        self._extra_dirs = extra_dirs
        groups = {path.name for path in config_dir().iterdir() if path.is_dir()}
        self._settable = settable_axes(axes, groups)
        self._composed: dict[tuple[int, ...], _Composed] = {}

    def point(self, combination: Sequence[int]) -> Point:
        """The point with these values of the axes.

        Raises:
            ConfigError: Hydra cannot compose it, or values are wrong.
        """
        overrides = tuple(texts[index] for texts, index in zip(self._shown, combination, strict=True))
        first = tuple(0 if place in self._settable else index for place, index in enumerate(combination))
        composed = self._compose(first)
        changed = [place for place in self._settable if combination[place] != 0]
        if composed.refers_to_others or not all(
            can_be_set(composed.values, self._axes[place].key) for place in changed
        ):
            composed, changed = self._compose(tuple(combination)), []
        values = composed.values
        for place in changed:
            axis = self._axes[place]
            values = with_value(values, axis.key, axis.values[combination[place]].value)
        closed, open_keys = close_open_keys(values)
        assumptions = _assumptions(composed.choices, values, self._stated)
        return Point(overrides, build_config(closed), assumptions, open_keys)

    def _compose(self, combination: tuple[int, ...]) -> _Composed:
        if combination not in self._composed:
            overrides = [axis.texts[index] for axis, index in zip(self._axes, combination, strict=True)]
            self._composed[combination] = _compose_one([*overrides, *self._fixed], self._extra_dirs)
        return self._composed[combination]


class _Composed(NamedTuple):
    """What Hydra made of a list of overrides."""

    values: dict[str, Any]
    choices: dict[str, str]
    refers_to_others: bool


def _compose_one(overrides: Sequence[str], extra_dirs: Sequence[Path]) -> _Composed:
    try:
        composed = compose(CONFIG_NAME, overrides=list(overrides), return_hydra_config=True)
        choices = dict(composed.hydra.runtime.choices)
        ours = OmegaConf.masked_copy(composed, [str(key) for key in composed if key not in ("hydra", SWEEP_KEY)])
        unresolved = OmegaConf.to_container(ours, resolve=False)
        values: Any = OmegaConf.to_container(ours, resolve=True, throw_on_missing=True)
    except MissingConfigException as error:
        raise ConfigError(f"{error.missing_cfg_file}: no such configuration file") from None
    except (ConfigCompositionException, OmegaConfBaseException) as error:
        raise ConfigError(_composition_message(error, extra_dirs)) from None
    return _Composed(values, choices, refers_to_others(unresolved))


def _assumptions(choices: Mapping[str, str], values: Mapping[str, Any], stated: Collection[str]) -> tuple[str, ...]:
    """The groups that the shipped defaults chose, hardware first."""
    assumptions = []
    if "hardware" not in stated and choices["hardware"] == "ndm_a100_v4":
        gpus = values["hardware"]["gpus_per_node"]
        assumptions.append(f"hardware not stated: ndm_a100_v4 ({gpus} x {values['hardware']['gpu']} a node)")
    left_out = [f"{group}={choices[group]}" for group in ("parallelism", "training", "data") if group not in stated]
    if left_out:
        assumptions.append(f"not stated: {', '.join(left_out)}")
    return tuple(assumptions)


def _composition_message(error: Exception, extra_dirs: Sequence[Path]) -> str:
    text = str(error.__cause__ or error).strip().splitlines()
    if any("You must specify 'model'" in line for line in text):
        return f"model: must be given; {known_names_hint('', group_choices('model', extra_dirs))}"
    key = error.full_key if isinstance(error, OmegaConfBaseException) else None
    if isinstance(error, MissingMandatoryValue):
        return f"{key}=???: must be given"
    return f"{key}: {text[0]}{shell_variable_hint(key)}" if key else text[0]
