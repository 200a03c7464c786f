"""Times of collectives, worked by hand."""

from __future__ import annotations

import pytest

from hpctrain.plan.speed.network import Group, Links, all_reduce_time_s, all_to_all_time_s, gather_time_s, group_of

LINKS = Links(gpus_per_node=8, link_gb_per_s=200, network_gb_per_s=100, hop_latency_s=1e-5)


@pytest.mark.parametrize(
    ("group", "num_bytes", "expected_s"),
    [
        pytest.param(Group(1, 1), 8e9, 0.0, id="alone"),
        # 7/8 of 8 GB over the links at 200 GB/s, and 7 hops.
        pytest.param(Group(8, 8), 8e9, 0.035 + 7e-5, id="one-node"),
        # 3/4 of 8 GB through the adapters of a node at 100 GB/s; 31/32 over the links take less. 31 hops.
        pytest.param(Group(32, 8), 8e9, 0.06 + 31e-5, id="four-nodes"),
        # One member a node of four has an eighth of the adapters: 3/4 of 8 GB at 12.5 GB/s. 3 hops.
        pytest.param(Group(4, 1), 8e9, 0.48 + 3e-5, id="one-member-a-node"),
    ],
)
def test_gather(group: Group, num_bytes: float, expected_s: float) -> None:
    assert gather_time_s(num_bytes, group, LINKS) == pytest.approx(expected_s)
    assert all_reduce_time_s(num_bytes, group, LINKS) == pytest.approx(2 * expected_s)


def test_many_small_collectives_cost_hops() -> None:
    one, hundred = (gather_time_s(8e9, Group(32, 8), LINKS, count) for count in (1, 100))
    assert hundred - one == pytest.approx(99 * 31e-5)


@pytest.mark.parametrize(
    ("members", "stride", "expected"),
    [
        pytest.param(16, 1, Group(16, 8), id="data-parallel-alone"),
        pytest.param(16, 2, Group(16, 4), id="beside-two-tensor-ranks"),
        pytest.param(16, 8, Group(16, 1), id="beside-a-node-of-tensor-ranks"),
        pytest.param(16, 16, Group(16, 1), id="beside-two-nodes"),
        pytest.param(4, 1, Group(4, 4), id="part-of-a-node"),
    ],
)
def test_groups(members: int, stride: int, expected: Group) -> None:
    assert group_of(members, stride, gpus_per_node=8) == expected
    assert expected.num_nodes == -(-members // expected.members_per_node)


@pytest.mark.parametrize(
    ("group", "expected_s"),
    [
        # 7/8 of 8 GB over the links at 200 GB/s.
        pytest.param(Group(8, 8), 0.035 + 7e-5, id="one-node"),
        # 3/4 of 8 GB through an eighth of 100 GB/s.
        pytest.param(Group(32, 8), 0.48 + 31e-5, id="four-nodes"),
    ],
)
def test_all_to_all(group: Group, expected_s: float) -> None:
    assert all_to_all_time_s(8e9, group, LINKS) == pytest.approx(expected_s)
