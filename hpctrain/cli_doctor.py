"""The verb ``doctor``: what this cluster has, what this machine has, and what to do where something is missing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from hpctrain.errors import EXIT_LAUNCH, EXIT_OK, ConfigError, known_names_hint
from hpctrain.launch.machine import Finding, TorchProbe, machine_findings, missing_for_submission
from hpctrain.launch.site.question import start_asking
from hpctrain.launch.site.render import render_site
from hpctrain.plan.site.limits import Site
from hpctrain.text_table import printable, wrapped
from hpctrain.user_path import user_path

_KEYS = ("run.root", "cluster")
_USAGE = """\
usage: python -m hpctrain doctor [run.root=FOLDER] [cluster=local] [--json]

What this cluster and this machine have, each with ok, note or trouble and what to do.

  run.root=FOLDER   where runs will go (runs)
  cluster=local     runs of this machine: Slurm is not looked at
  --json            for machines

Exit code 0, or 4 where a submission would lack something."""


def doctor(words: Sequence[str]) -> int:
    """Looks at everything, prints it, and returns 4 where a submission would lack something.

    Raises:
        ConfigError: a word that is none of ``--json``, ``run.root=FOLDER``, ``cluster=local``.
    """
    if any(word in ("--help", "-h") for word in words):
        print(_USAGE)
        return EXIT_OK
    values, as_json = _words(words)
    needs_slurm = values.get("cluster") != "local"
    probe = TorchProbe()
    question = start_asking(always_accounting=True) if needs_slurm else None
    root = user_path(values.get("run.root", "runs"))
    findings = machine_findings(root, needs_slurm)
    site = question.site() if question else None
    if site is not None:
        findings.append(_slurm_finding(site))
    findings.append(probe.finding())
    missing = missing_for_submission(findings)
    if as_json:
        print(json.dumps(_json(site, findings), indent=2))
    else:
        print(printable(_text(site, findings)), end="")
    return EXIT_LAUNCH if missing else EXIT_OK


def _words(words: Sequence[str]) -> tuple[dict[str, str], bool]:
    values, as_json = {}, False
    for word in words:
        key, equals, value = word.partition("=")
        if word == "--json":
            as_json = True
        elif equals and key in _KEYS and value:
            values[key] = value
        else:
            raise ConfigError(
                f"doctor {word}: is nothing that doctor takes; {known_names_hint(key, ['--json', *_KEYS])}"
            )
    return values, as_json


def _slurm_finding(site: Site) -> Finding:
    if not site.version and site.partitions is None:
        fix = "is this a node of the cluster, and is SLURM_CONF right? cluster=local trains on this machine"
        return Finding("Slurm answers", "trouble", "; ".join(site.gaps), fix, is_needed=True)
    up = [partition for partition in (site.partitions or {}).values() if partition.state == "UP"]
    if site.partitions is not None and not up:
        return Finding("Slurm answers", "trouble", "no partition is UP", "jobs wait; ask the site", is_needed=True)
    if site.gaps:
        return Finding("Slurm answers", "note", f"not to everything: {'; '.join(site.gaps)}")
    return Finding("Slurm answers", "ok", f"{site.cluster}, {len(up)} partitions UP")


def _text(site: Site | None, findings: Sequence[Finding]) -> str:
    lines = ["this machine"]
    for finding in findings:
        lines.append(wrapped(f"{finding.state:<7}  {finding.name}: {finding.told}", "  "))
        if finding.fix:
            lines.append(wrapped(f"to do: {finding.fix}", " " * 11))
    parts = ["\n".join(lines) + "\n"]
    if site is not None and (site.version or site.partitions):
        parts.insert(0, f"this cluster\n\n{render_site(site)}")
    return "\n".join(parts)


def _json(site: Site | None, findings: Sequence[Finding]) -> dict[str, Any]:
    machine = [dataclasses.asdict(finding) for finding in findings]
    if site is None:
        return {"site": None, "machine": machine}
    # One line for each of thousands of nodes helps nobody; partitions have their shapes and counts.
    found = dataclasses.asdict(dataclasses.replace(site, nodes=None))
    del found["nodes"]
    return {"site": found | {"enforce": sorted(site.enforce)}, "machine": machine}
