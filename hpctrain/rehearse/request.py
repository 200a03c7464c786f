"""What a rehearsing process is asked to do, and how it answers. Imports no torch: both sides read it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from hpctrain.plan.flops import step_flops
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.files import parse_record
from hpctrain.record.schema import SCHEMA_VERSION
from hpctrain.rehearse.result import DeviceWay

EXIT_REFUSED = 2
"""Of the child: the engine refused the configuration, or the rehearsal cannot carry it; the answer says why."""
OUT_OF_MEMORY = "out of memory"
"""``Refusal.kind`` of a real device that is too small."""
PROGRESS_MARK = "@rehearsal "
"""Begins each line of the child's standard output that tells how far it is."""


@dataclass(frozen=True)
class Request:
    """One rank of one plan, at one depth."""

    plan: RunPlan
    num_layers: int
    """Of the model that is rehearsed; the batch and DeepSpeed's configuration stay those of the plan."""
    weight_decay: float
    seed: int
    rank: int
    steps: int
    device_way: DeviceWay
    num_largest: int
    answer: str
    """Path of the file that gets the Rehearsal, or of ``Refusal`` where the engine refused."""
    all_micro_batches: bool = False
    """Run every micro batch of a step, however many; else a few may stand for all."""

    def raw(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_raw(raw: dict[str, Any]) -> Request:
        """The request in decoded JSON.

        Raises:
            RecordError: its plan is none.
        """
        return Request(**raw | {"plan": parse_record(raw["plan"], RunPlan, "plan of the rehearsal")})


def plan_of_depth(plan: RunPlan, num_layers: int) -> RunPlan:
    """The plan with fewer layers, and all else, DeepSpeed's configuration and the batch, as it is."""
    if num_layers == plan.model.num_layers:
        return plan
    shape, batch = dataclasses.replace(plan.model, num_layers=num_layers), plan.batch
    flops = step_flops(shape, batch.seq_len, batch.global_batch_size, plan.activation_checkpointing, plan.zero_stage)
    return dataclasses.replace(plan, model=shape, num_parameters=shape.num_parameters, flops_per_step=flops)


@dataclass(frozen=True)
class Refusal:
    """The engine ended the rehearsal."""

    schema_version: int
    phase: str
    kind: str
    """Name of the exception's class, or ``OUT_OF_MEMORY``."""
    sentence: str
    """The engine's own."""
    place: str
    """File and function of the engine that raised it; empty: the rehearsal itself cannot go on, and ``sentence`` is ours."""


def refusal(phase: str, kind: str, sentence: str, place: str) -> Refusal:
    return Refusal(SCHEMA_VERSION, phase, kind, sentence, place)
