"""What a rank of a launch check needs of its plan, read without the schema's readers, which take longer than the check itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpctrain.worker.end_reasons import RankEnvironmentError


@dataclass(frozen=True)
class CheckPlan:
    """What a rank needs of ``plan.json``."""

    cluster_kind: str
    device: str
    num_nodes: int
    gpus_per_node: int
    environment: Mapping[str, str]
    start_timeout_min: int


def read_check_plan(run_dir: str) -> CheckPlan:
    """The plan's part in ``plan.json``.

    Raises:
        RankEnvironmentError: it cannot be read.
    """
    path = f"{run_dir}/plan.json"
    try:
        with open(path, encoding="utf-8") as stream:
            plan: dict[str, Any] = json.load(stream)
        return CheckPlan(
            plan["cluster_kind"],
            plan["device"],
            plan["layout"]["num_nodes"],
            plan["layout"]["gpus_per_node"],
            plan["slurm"]["environment"],
            plan["start_timeout_min"],
        )
    except (OSError, ValueError, KeyError) as error:
        raise RankEnvironmentError(f"{path}: {error}; is its folder a run folder of this version?") from error
