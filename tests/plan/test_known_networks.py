"""The network of a row: stated, that of a known cluster, or a usual one, in this order."""

from __future__ import annotations

import pytest

from hpctrain.plan.stated.known_networks import network_of
from hpctrain.plan.stated.run import stated_run
from tests.plan.test_stated_run import ROW


@pytest.mark.parametrize(
    ("words", "family", "has_links", "expected"),
    [
        ("network 84 Gb/s a node; Selene", "A100", True, (10.5, True)),
        ("4x 100 Gb/s RoCE per node", "A100", True, (50.0, True)),
        ("Selene DGX A100", "A100", True, (200.0, False)),
        ("AWS p4d.24xlarge", "A100", True, (50.0, False)),
        ("on Frontier", "MI250X", True, (100.0, False)),
        ("BigScience (BLOOM tuning)", "A100", True, (10.5, False)),
        ("V100-SXM2-32GB; BigScience (V100 experiments)", "V100", True, (25.0, False)),
        ("somewhere", "V100", True, (50.0, False)),
        ("somewhere", "H100", True, (400.0, False)),
        ("somewhere", "L40S", False, (12.5, False)),
    ],
)
def test_the_network_of_a_row(words: str, family: str, has_links: bool, expected: tuple[float, bool]) -> None:
    assert network_of(words, family, has_links, 8) == expected


@pytest.mark.parametrize(
    ("words", "family", "gpus", "usual", "expected"),
    [
        ("", "H100", 4, 8, 200.0),
        ("", "A100", 16, 8, 200.0),
        ("", "GH200", 4, 4, 100.0),
        ("network 84 Gb/s a node", "H100", 4, 8, 10.5),
    ],
)
def test_usual_adapters_stand_beside_gpus(words: str, family: str, gpus: int, usual: int, expected: float) -> None:
    assert network_of(words, family, True, gpus, usual).gb_per_s == expected


@pytest.mark.parametrize(
    ("gpu", "gpus_per_node"), [("H100", 8), ("GH200", 4), ("MI250X", 4), ("MI250X GCD", 8), ("Max 1550 tile", 12)]
)
def test_gpus_of_a_node_that_a_row_does_not_state(gpu: str, gpus_per_node: int) -> None:
    machine = stated_run(ROW | {"gpu": gpu, "gpu_mem_gb": None, "nodes": None}).machine
    assert machine is not None
    assert machine.gpus_per_node == gpus_per_node
