"""What differs between two runs, key by key: configuration, code, versions, nodes, environment, batch script, plan."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hpctrain.errors import RecordError
from hpctrain.record.files import checked_json, open_regular, path_text
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts, read_submission
from hpctrain.text_table import printable

_KEY = re.compile(r"hpctrain-[0-9a-f]{16}\b")
_SHOWN_LETTERS = 60
_ABSENT = "none"


@dataclass(frozen=True)
class Difference:
    """One key; None: the run has no such key."""

    section: str
    key: str
    a: Any
    b: Any


@dataclass(frozen=True)
class RunDiff:
    """All differences, and what could not be compared because a run lacks it."""

    a: str
    b: str
    differences: tuple[Difference, ...]
    not_compared: tuple[str, ...]


def diff_runs(a: RunPaths, b: RunPaths) -> RunDiff:
    """The differences of two runs.

    Raises:
        RecordError: a run's configuration or plan cannot be read.
    """
    sections: dict[str, Callable[[RunPaths], dict[str, Any] | None]] = {
        "config": _config,
        "code": _code,
        "versions": _versions,
        "nodes": _nodes,
        "environment": _environment,
        "plan": _plan,
    }
    differences: list[Difference] = []
    not_compared: list[str] = []
    for section, read in sections.items():
        values = read(a), read(b)
        lacking = [run for run, value in zip((a, b), values, strict=True) if value is None]
        if lacking:
            not_compared.append(f"{section}: nothing recorded in {' and '.join(run.root.name for run in lacking)}")
            continue
        left, right = values[0] or {}, values[1] or {}
        keys = [key for key in dict.fromkeys([*left, *right]) if not _is_filled_in_one(key, left, right)]
        differences += [
            Difference(section, key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)
        ]
    differences += _script_differences(a, b, not_compared)
    return RunDiff(path_text(a.root), path_text(b.root), tuple(differences), tuple(not_compared))


def _is_filled_in_one(key: str, left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Whether the key is an empty mapping in one run and a filled one in the other, whose keys are told."""
    empty, other = (left, right) if key in left else (right, left)
    return empty[key] == {} and key not in other and any(not key or name.startswith(f"{key}.") for name in other)


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values; a list is one value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def _read_text(path: Path) -> str:
    try:
        with open_regular(path) as stream:
            return stream.read().decode("utf-8", "replace")
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from error


def _config(run: RunPaths) -> dict[str, Any]:
    try:
        return dict(_flat(yaml.safe_load(_read_text(run.config))))
    except yaml.YAMLError as error:
        raise RecordError(f"{run.config}: {error}") from error


def _plan(run: RunPaths) -> dict[str, Any]:
    return dict(_flat(checked_json(run.plan)))


def _code_file(run: RunPaths) -> dict[str, Any] | None:
    raw = checked_json(run.code) if run.code.exists() else None
    return raw if isinstance(raw, dict) else None


def _code(run: RunPaths) -> dict[str, Any] | None:
    """All but versions; the source files with their digests, so that each that differs is named."""
    raw = _code_file(run)
    if raw is None:
        return None
    plain = {key: value for key, value in raw.items() if key not in ("schema_version", "versions", "sources")}
    sources = raw.get("sources")
    return dict(_flat(plain)) | {f"sources {name}": digest for name, digest in (sources or {}).items()}


def _versions(run: RunPaths) -> dict[str, Any] | None:
    """Those of the submission, and those that the ranks of the last attempt saw."""
    raw = _code_file(run)
    attempts = [attempt for attempt in read_attempts(run) if attempt.versions]
    measured = {f"{name} (ranks)": version for name, version in attempts[-1].versions.items()} if attempts else {}
    submitted = dict(raw.get("versions") or {}) if raw is not None else {}
    return submitted | measured or None


def _nodes(run: RunPaths) -> dict[str, Any] | None:
    """Of the last attempt whose ranks met."""
    attempts = [attempt for attempt in read_attempts(run) if attempt.nodes]
    if not attempts:
        return None
    last = attempts[-1]
    return {
        "world_size": last.world_size,
        "names": [node.name for node in last.nodes],
        "cpus": [node.cpus for node in last.nodes],
    }


def _environment(run: RunPaths) -> dict[str, Any] | None:
    return dict(_flat(checked_json(run.environment))) if run.environment.exists() else None


def _script(run: RunPaths) -> list[str] | None:
    """Lines of the batch script but for what no two runs share: folder and key. A point of a sweep has its array's script."""
    path = run.submission_script
    if not path.exists():
        try:
            command = read_submission(run).command
        except RecordError:
            return None
        path = Path(command[-1]) if command else path
    if not path.is_file():
        return None
    text = _read_text(path)
    for root in (str(run.root), shlex.quote(str(run.root))[1:-1]):
        text = text.replace(root, "RUN")
    return _KEY.sub("KEY", text).splitlines()


def _script_differences(a: RunPaths, b: RunPaths, not_compared: list[str]) -> list[Difference]:
    left, right = _script(a), _script(b)
    if left is None or right is None:
        lacking = [run.root.name for run, lines in ((a, left), (b, right)) if lines is None]
        not_compared.append(f"script: no batch script in {' and '.join(lacking)}")
        return []
    matcher = difflib.SequenceMatcher(a=left, b=right, autojunk=False)
    return [
        Difference("script", f"line {a0 + 1}", "\n".join(left[a0:a1]) or None, "\n".join(right[b0:b1]) or None)
        for kind, a0, a1, b0, b1 in matcher.get_opcodes()
        if kind != "equal"
    ]


def render_diff(diff: RunDiff) -> str:
    """One line a key, grouped by section; long values are cut, ``--json`` has them whole."""
    lines = [f"a  {printable(diff.a)}", f"b  {printable(diff.b)}"]
    for section in dict.fromkeys(difference.section for difference in diff.differences):
        members = [difference for difference in diff.differences if difference.section == section]
        lines += ["", section]
        if section == "script":
            lines += [line for member in members for line in _script_lines(member)]
            continue
        width = max(len(member.key) for member in members)
        lines += [f"  {member.key:<{width}}  {_shown(member.a)} | {_shown(member.b)}" for member in members]
    lines += ["", *(f"not compared: {text}" for text in diff.not_compared)] if diff.not_compared else []
    if not diff.differences:
        lines.append("no difference")
    return "\n".join(lines)


def _script_lines(difference: Difference) -> list[str]:
    return [
        f"  {mark} {printable(line)}"
        for mark, text in (("-", difference.a), ("+", difference.b))
        for line in (text or "").splitlines()
    ]


def _shown(value: Any) -> str:
    if value is None:
        return _ABSENT
    text = str(value)
    if text.count("\n") > 1:
        return f"({text.count(chr(10))} lines)"
    text = printable(text, kept="")
    return text if len(text) <= _SHOWN_LETTERS else f"{text[: _SHOWN_LETTERS - 2]}.."
