"""Times of collectives: a term by size over bandwidth, and a term by latency that grows with the group.

Bandwidths are GB/s in one direction. A ring moves (n - 1)/n of the whole to each of n members; a group over several nodes is
bound by the adapters of a node, through which the parts of all other nodes must come in once.
Source: NCCL's performance notes (doc/PERFORMANCE.md of nccl-tests), "bus bandwidth".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpctrain.plan.elementwise import chosen, everywhere, larger, smaller
from hpctrain.units import GIGA

if TYPE_CHECKING:
    from hpctrain.plan.speed.software import Software
    from hpctrain.plan.speed.step_parts import Machine


class Links(NamedTuple):
    """What connects the GPUs, as far as it can be used."""

    gpus_per_node: int
    link_gb_per_s: float
    """GPU to GPU inside a node."""
    network_gb_per_s: float | None
    """All adapters of a node together; None: there is one node."""
    hop_latency_s: float
    """Time a message of no size takes from one member of a ring to the next."""


class Group(NamedTuple):
    """Members of one collective."""

    num_members: int
    members_per_node: int
    """1 where each member sits on another node."""

    @property
    def num_nodes(self) -> int:
        return -(-self.num_members // self.members_per_node)


def links_of(machine: Machine, software: Software) -> Links:
    """The links of a machine as far as a generation of software can use them."""
    network = machine.network_gb_per_s
    return Links(
        machine.gpus_per_node,
        machine.link_gb_per_s * software.link_share,
        None if network is None else network * software.network_share,
        software.hop_latency_s,
    )


def group_of(num_members: int, stride: int, gpus_per_node: int) -> Group:
    """Members whose ranks are ``stride`` apart: with tensor parallelism innermost, data-parallel peers are that far apart.

    >>> group_of(8, 1, 8)
    Group(num_members=8, members_per_node=8)
    >>> group_of(16, 8, 8), group_of(4, 4, 8)
    (Group(num_members=16, members_per_node=1), Group(num_members=4, members_per_node=2))
    """
    return Group(num_members, larger(1, smaller(num_members, gpus_per_node // stride)))


def gather_time_s(num_bytes: float, group: Group, links: Links, num_collectives: float = 1.0) -> float:
    """Seconds of an all-gather or a reduce-scatter of ``num_bytes`` in all, sent in ``num_collectives`` pieces.

    Other groups of the same kind use the same adapters at the same time, so a group has the share of its members on a node.

    A gather of 16 GB over two nodes of 8 with 100 GB/s: half of it comes in through the adapters.

    >>> gather_time_s(16e9, Group(16, 8), Links(8, 300, 100, 0.0))
    0.08
    """
    members, nodes = group.num_members, group.num_nodes
    time_s = num_bytes * (members - 1) / members / (links.link_gb_per_s * GIGA)
    if links.network_gb_per_s is not None:
        share = group.members_per_node / links.gpus_per_node
        over_network = num_bytes * (nodes - 1) / nodes / (links.network_gb_per_s * share * GIGA)
        # Stages run side by side, piece by piece: the slower one counts, not the sum.
        time_s = chosen(group.members_per_node == 1, over_network, larger(time_s, over_network))
    else:
        assert everywhere(nodes == 1), "callers check that several nodes have a network"
    return time_s + num_collectives * (members - 1) * links.hop_latency_s


def all_reduce_time_s(num_bytes: float, group: Group, links: Links, num_collectives: float = 1.0) -> float:
    """Seconds of an all-reduce: a reduce-scatter and an all-gather."""
    return 2 * gather_time_s(num_bytes, group, links, num_collectives)


def all_to_all_time_s(num_bytes: float, group: Group, links: Links) -> float:
    """Seconds in which each member sends its ``num_bytes`` away, an equal piece to every other member.

    8 GB of each of 16 members on two nodes of 8 at 100 GB/s: half of a node's 64 GB crosses.

    >>> all_to_all_time_s(8e9, Group(16, 8), Links(8, 300, 100, 0.0))
    0.32
    """
    members, nodes = group.num_members, group.num_nodes
    inside = num_bytes * (members - 1) / members / (links.link_gb_per_s * GIGA)
    if links.network_gb_per_s is not None:
        per_member = links.network_gb_per_s / links.gpus_per_node
        inside = larger(inside, num_bytes * (nodes - 1) / nodes / (per_member * GIGA))
    else:
        assert everywhere(nodes == 1), "callers check that several nodes have a network"
    return inside + (members - 1) * links.hop_latency_s
