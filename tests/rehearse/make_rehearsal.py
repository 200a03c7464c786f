"""Rehearsals written down by hand, for tests of what is made of them."""

from __future__ import annotations

import dataclasses
from typing import Any

from hpctrain.record.schema import SCHEMA_VERSION
from hpctrain.rehearse.result import (
    Collective,
    CountedFlops,
    LiveTensors,
    Rehearsal,
    Tier,
    TierPhase,
    Timeline,
)


def tier_phase(
    peak: dict[str, int], resting: dict[str, int], step: int = 2, phase: Any = "backward", tier: Tier = "gpu"
) -> TierPhase:
    return TierPhase(step, phase, tier, sum(peak.values()), peak, sum(resting.values()), resting)


def make_rehearsal(num_layers: int = 4, **changes: Any) -> Rehearsal:
    """One whose numbers are linear in its layers: 1,000 + 100 a layer at the peak, 500 + 50 at rest."""
    peak = {"parameters": 200 + 10 * num_layers, "activations": 800 + 90 * num_layers}
    found = Rehearsal(
        schema_version=SCHEMA_VERSION,
        plan_name="tiny-2n",
        model_name="tiny",
        num_layers=num_layers,
        num_parameters=1000 * num_layers,
        world_size=16,
        rank=0,
        zero_stage=3,
        device_way="simulated_gpu",
        way="whole",
        steps=2,
        reported_step=2,
        simulated=("the GPU",),
        versions={"hpctrain": "0", "torch": "2"},
        memory=(
            tier_phase({"temporary": 300}, {"parameters": 100}, 0, "model"),
            tier_phase({"parameters": 200}, {"parameters": 200}, 1, "forward"),
            tier_phase({"parameters": 500 + 50 * num_layers}, {"parameters": 500 + 50 * num_layers}, 2, "forward"),
            tier_phase(peak, {"parameters": 500 + 50 * num_layers}, 2, "backward"),
            tier_phase({"optimizer": 400}, {"optimizer": 300}, 2, "optimizer"),
        ),
        collectives=(
            Collective(2, "forward", "all_gather", 16, True, 3 + num_layers, 64 * num_layers),
            Collective(2, "optimizer", "all_reduce", 16, True, 2, 8),
        ),
        flops=CountedFlops(
            600 * num_layers, {"aten::mm": 500 * num_layers, "aten::flash_attention_backward": 100 * num_layers}, 580.0
        ),
        largest=(
            LiveTensors("activations", "decoder.forward", "bfloat16", (2, 64), num_layers, 90 * num_layers, "gpu"),
        ),
        timeline=Timeline((1, 2), (0, 2), (0, 3), (10, 20), (0, 0), (0, 0), num_layers),
        late_free_margin_bytes=7,
        wall_s=1.5,
        process_peak_bytes=100,
        planned_memory=(("parameters", "gpu", 200),),
    )
    return dataclasses.replace(found, **changes)
