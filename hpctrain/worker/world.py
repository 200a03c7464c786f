"""The ranks that met, held against the plan. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpctrain.record.schema import NodeRecord
from hpctrain.units import counted
from hpctrain.worker.end_reasons import WorldSizeError

if TYPE_CHECKING:
    from hpctrain.plan.layout import Layout


@dataclass(frozen=True)
class World:
    """The ranks that met, as measured."""

    size: int
    nodes: tuple[NodeRecord, ...]


def check_world(world: World, layout: Layout) -> None:
    """Raises WorldSizeError unless the ranks are those of the plan: a run on fewer GPUs than labelled is worth nothing."""
    if world.size != layout.world_size:
        raise WorldSizeError(
            f"world size: {world.size} ranks met, the plan has {counted(layout.num_nodes)} x {layout.gpus_per_node} ="
            f" {layout.world_size}"
        )
    if len(world.nodes) != layout.num_nodes:
        names = ", ".join(node.name for node in world.nodes)
        raise WorldSizeError(
            f"nodes: the {world.size} ranks run on {len(world.nodes)} nodes ({names}), the plan has {layout.num_nodes}"
        )
