"""Hydra's grammar and composition: overrides to typed configurations, with short messages for every mistake."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpctrain.config.build import build_config, config_fields, takes_text
from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError, Problem, known_names_hint

CONFIG_NAME = "config"
_OPEN_MAPPINGS = ("env.", "cluster.extra.", "hardware.peak_tflops.", "hardware.sources.")
"""Below these, names are the user's own."""


_PLAIN_NUMBER = re.compile(r"[+-]?[\d_]+(\.[\d_]*)?([eE][+-]?\d+)?")
_YAML_TRAP = re.compile(r"\s*(-\s+)?(?P<key>[\w.-]+):\s+(?P<value>0\d+|\d[\d_]*_[\d_]*|\d+(:\d+)+)\s*(#.*)?$")


@dataclass(frozen=True)
class Point:
    """One composed configuration: a single run, or one point of a sweep."""

    overrides: tuple[str, ...]
    """Hydra's own spelling of what was chosen, quoted so that Hydra reads it back."""
    config: Config
    assumptions: tuple[str, ...]


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
            the last override changing fastest.
        extra_dirs: a site's own folders with groups, searched beside the shipped ones.

    Raises:
        ConfigError: the message names key, value, rule and the nearest fix.
    """
    for folder in extra_dirs:
        check_site_files(folder)
    overrides = [_parse(word) for word in words]
    _check_overrides(overrides, words, multirun, extra_dirs)
    axes = [_axis(override, extra_dirs) for override in overrides]
    search_path = ",".join(_hydra_text(f"file://{path.resolve()}") for path in extra_dirs)
    fixed = [f"hydra.searchpath=[{search_path}]"] if extra_dirs else []
    stated = {override.key_or_group for override in overrides}
    points = []
    with initialize_config_dir(config_dir=str(config_dir()), version_base="1.3"):
        problems: list[Problem] = []
        for combination in itertools.product(*axes):
            try:
                points.append(_compose_one(combination, fixed, stated, extra_dirs))
            except ConfigError as error:
                if not multirun or not error.problems:
                    raise
                problems += error.problems
    if problems:
        # Values of a sweep that several points share are named once.
        raise ConfigError(dict.fromkeys(problems))
    return points


def _parse(word: str) -> Override:
    parser = OverridesParser.create()
    key, _, value = word.partition("=")
    key = key.lstrip("+")
    if _PLAIN_NUMBER.fullmatch(value) and (takes_text(key) or key.startswith("env.")):
        # An account 012 or a name 2024_11_29 is text, whatever number Hydra would make of it.
        return parser.parse_override(_quoted(word))
    try:
        return parser.parse_override(word)
    except (OverrideParseException, HydraException) as error:
        # Hydra's grammar knows ASCII letters only; a value that is plain but for others means itself.
        if not word.isascii() and _parses("".join(sign if sign.isascii() else "x" for sign in word)):
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
    return f"{key}={_hydra_text(value)}"


def _hydra_text(value: str) -> str:
    """The value in Hydra's double quotes."""
    inner = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{inner}"'


def _quoting_advice(word: str, reason: str) -> str:
    key, separator, value = word.partition("=")
    if not separator or not key:
        return f"{word}: is no override; write key=value, or one of the verbs first (see --help)"
    # Single quotes for the shell around Hydra's double quotes.
    quoted = _quoted(word).replace("'", "'\\''")
    first = next((line for line in reason.splitlines() if line.strip()), reason)
    return f"{key}: {value!r} has characters that Hydra reads as grammar ({first}); type '{quoted}'"


def _check_overrides(
    overrides: Sequence[Override], words: Sequence[str], multirun: bool, extra_dirs: Sequence[Path]
) -> None:
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
    names = _sweep_values(override, known) if override.is_sweep_override() else [override.get_value_element_as_str()]
    if not names:
        return [Problem(group, _value_text(override), f"matches no {group}", known_names_hint("", known))]
    return [
        Problem(group, name, f"there is no such {group}", known_names_hint(name, known))
        for name in names
        if name not in known
    ]


def _sweep_values(override: Override, known: list[str]) -> list[str]:
    """The values of a sweep as Hydra spells them; ``known`` are the names that ``glob()`` picks from."""
    value = override.value()
    if isinstance(value, Glob):
        return value.filter(known)
    return list(override.sweep_string_iterator())


def _value_text(override: Override) -> str:
    return (override.input_line or "").partition("=")[2]


def _unknown_key_problems(key: str, word: str) -> list[Problem]:
    """A dotted key that the schema does not have."""
    if key.startswith(_OPEN_MAPPINGS):
        return []
    parts = key.split(".")
    for depth, part in enumerate(parts):
        known = config_fields(tuple(parts[:depth])) if depth < 2 else {}
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


def check_site_files(folder: Path) -> None:
    """Refuses what would silently be something else.

    Raises:
        ConfigError: a file has the name of a shipped one, which Hydra would take instead, or a number in a form that YAML 1.1
            reads as another (017 is 15, 1_28 is 128, 4:00:00 is 14400).
    """
    for path in sorted(folder.rglob("*.yaml")):
        name = path.relative_to(folder)
        if (config_dir() / name).is_file():
            raise ConfigError(f"{path}: hpctrain ships a file of this name, which wins; give yours another name")
        try:
            text = path.read_text(encoding="utf-8")
            OmegaConf.create(text)
        except (OSError, UnicodeError, yaml.YAMLError, OmegaConfBaseException) as error:
            raise ConfigError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from None
        for number, line in enumerate(text.splitlines(), start=1):
            if match := _YAML_TRAP.match(line):
                raise ConfigError(
                    f"{path}:{number}: {match['key']}: {match['value']}: YAML reads it as another number;"
                    f' write {match["key"]}: "{match["value"]}" for text, or the plain number'
                )


def _axis(override: Override, extra_dirs: Sequence[Path]) -> list[str]:
    """The override texts that one typed override stands for: one, or in a sweep one for each value.

    The schema has judged dotted keys already, so ``++`` sets those that no file mentions, too.
    """
    prefix = "++" if "." in override.key_or_group and not override.is_delete() else ""
    if not override.is_sweep_override():
        line = override.input_line or ""
        return [line if line.startswith("~") else prefix + line.lstrip("+")]
    if not override.is_discrete_sweep():
        raise ConfigError(f"{override.key_or_group}: interval() has no points; use a comma list, choice() or range()")
    key = override.key_or_group
    return [f"{prefix}{key}={value}" for value in _sweep_values(override, group_choices(key, extra_dirs))]


def _compose_one(overrides: Sequence[str], fixed: Sequence[str], stated: set[str], extra_dirs: Sequence[Path]) -> Point:
    try:
        composed = compose(CONFIG_NAME, overrides=[*overrides, *fixed], return_hydra_config=True)
        choices = dict(composed.hydra.runtime.choices)
        values: Any = OmegaConf.to_container(
            OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"]),
            resolve=True,
            throw_on_missing=True,
        )
    except MissingConfigException as error:
        raise ConfigError(f"{error.missing_cfg_file}: no such configuration file") from None
    except (ConfigCompositionException, OmegaConfBaseException) as error:
        raise ConfigError(_composition_message(error, extra_dirs)) from None
    return Point(tuple(overrides), build_config(values), _assumptions(choices, values, stated))


def _assumptions(choices: Mapping[str, str], values: Mapping[str, Any], stated: set[str]) -> tuple[str, ...]:
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
    return text[0]
