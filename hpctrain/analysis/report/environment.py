"""What runs were executed with and on, as their folders tell it, and where that differs between them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.errors import RecordError
from hpctrain.record.files import read_json
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts

NOT_RECORDED = "not recorded"

_CHANGED_FILE = re.compile(r"^diff --git .* b/(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Environment:
    """One run's environment, flat: ``torch``, ``commit``, ``nodes``, ...; and what could not be read."""

    run: str
    values: Mapping[str, str]
    problem: str = ""


@dataclass(frozen=True)
class EnvironmentKey:
    """One key over all runs: each value with the runs that have it, most frequent first."""

    key: str
    groups: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def differs(self) -> bool:
        return len(self.groups) > 1


def read_environment(folder: Path, run: str) -> Environment:
    """The environment of one run folder, from ``code.json`` and the last attempt; each file is read by itself.

    Versions that ranks reported count before those of the submission.
    """
    paths = RunPaths(folder)
    values: dict[str, str] = {}
    problems = []
    try:
        values |= _code_values(_read_json(paths.code))
    except FileNotFoundError:
        problems.append(f"{paths.code}: no such file, so neither versions nor commit")
    except OSError as error:
        problems.append(f"{paths.code}: {error.strerror}")
    except (ValueError, RecursionError) as error:
        problems.append(f"{paths.code}: {error}")
    try:
        attempts = read_attempts(paths)
    except RecordError as error:
        attempts = []
        problems.append(str(error))
    if attempts:
        last = attempts[-1]
        values |= last.versions
        if last.nodes:
            values["node names"] = ", ".join(sorted(node.name for node in last.nodes))
            values["CPUs of a rank"] = ", ".join(sorted({str(node.cpus) for node in last.nodes}))
    return Environment(run, values, "; ".join(problems))


def _read_json(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"must hold a JSON object, holds {type(content).__name__}")
    return content


def _code_values(code: Mapping[str, Any]) -> dict[str, str]:
    """``code.json`` flat: long values as a short digest, so that they can be told apart at sight."""
    versions, sources = code.get("versions"), code.get("sources")
    values = {str(name): str(version) for name, version in versions.items()} if isinstance(versions, dict) else {}
    values["interpreter"] = str(code.get("interpreter", NOT_RECORDED))
    if commit := code.get("commit"):
        difference = str(code.get("diff") or "")
        files = ", ".join(_CHANGED_FILE.findall(difference))
        values["commit"] = str(commit)[:12]
        values["working tree"] = f"changed ({_digest(difference)}): {files}" if difference else "as committed"
    if isinstance(sources, dict):
        values["source of hpctrain"] = _digest(json.dumps(sources, sort_keys=True))
    return values


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()[:12]


def environment_keys(environments: Sequence[Environment]) -> list[EnvironmentKey]:
    """Each key over all runs; keys in the order in which they are first met.

    >>> a, b = Environment("a", {"torch": "2.6"}), Environment("b", {"torch": "2.7"})
    >>> environment_keys([a, b])
    [EnvironmentKey(key='torch', groups=(('2.6', ('a',)), ('2.7', ('b',))))]
    """
    keys = dict.fromkeys(key for environment in environments for key in environment.values)
    result = []
    for key in keys:
        runs: dict[str, list[str]] = {}
        for environment in environments:
            runs.setdefault(environment.values.get(key, NOT_RECORDED), []).append(environment.run)
        groups = sorted(runs.items(), key=lambda group: -len(group[1]))
        result.append(EnvironmentKey(key, tuple((value, tuple(names)) for value, names in groups)))
    return result
