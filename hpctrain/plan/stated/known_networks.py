"""Bandwidth between the nodes of a row: what its remarks state, what its cluster is known to have, what its GPUs usually have.

All of one node's adapters together, in one direction.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_STATED = re.compile(
    r"(?:(?P<count>\d+) ?[x*] ?)?(?<![\d.,])(?P<rate>\d[\d,]*(?:\.\d+)?) ?(?P<unit>[GT])b(?:/s|ps|it/s)\b"
    r"[^;()]{0,30}(?:\b(?:per|a|each) |/)(?P<place>node|GPU|VM|host|server|machine|instance)\b"
)
_CLUSTERS = (
    (r"\bbigscience\b.*\bv100|\bv100.*\bbigscience\b", 25.0),  # see below
    (r"\bbigscience\b|\bjean[- ]zay\b", 10.5),  # measured on 4 nodes
    (r"\bp4de?\b", 50.0),
    (r"\bp3dn\b|\bndv2\b|\bnd40rs", 12.5),
    (r"\bp5e?n?\.48xlarge\b|\bgrand teton\b", 400.0),
    (r"\ba2-(?:high|mega|ultra)gpu\b", 12.5),
    (r"\ba3-highgpu\b", 100.0),
    (r"\ba3-megagpu\b", 200.0),
    (r"\bnda?m?_?a100_?v4\b|\bnd ?a100 v4\b|\bnd96a\w*", 200.0),
    (r"\bdgx-?1\b", 50.0),
    (r"\bdgx-?2\b", 100.0),
    (r"\bdgx[- ]?a100\b|\bselene\b", 200.0),
    (r"\bdgx[- ]?[hb][12]00\b|\beos\b", 400.0),
    (r"\bfrontier\b|\blumi\b|\bperlmutter\b|\balps\b|\bclariden\b|\bisambard", 100.0),
    (r"\bjuwels booster\b|\bjupiter\b|\bmarenostrum ?5\b", 100.0),
    (r"\baurora\b", 200.0),
    (r"\bpolaris\b|\bleonardo\b", 50.0),
    (r"\bsummit\b", 25.0),
)
"""Words of a row and the bandwidth behind them, GB/s a node; the first that fits.

Sources: bigscience, experiments/bandwidth (84 Gb/s); the clouds' pages on p4d, p3dn, p5, NDv2, ND A100 v4, A2 and A3; data sheets
of the DGX systems; user guides of OLCF (Frontier, Summit), CSC, NERSC, CSCS, ALCF (Aurora, Polaris), JSC, BSC, CINECA.
BigScience's V100 nodes have 50 by their data sheet; 11 were measured between 4 of them, 7 between 16. Half of the data sheet is
fitted to its 99 step times on V100 (off by 17 % in the median; 19 % with 11 or 50), which no validation judges.
"""
_COMPILED = tuple((re.compile(words, re.IGNORECASE), rate) for words, rate in _CLUSTERS)
_USUAL = {"V100": 50.0, "A100": 200.0, "A800": 200.0, "MI250X": 100.0, "MI250": 100.0, "GH200": 100.0, "MAX": 200.0}
"""By family, of a whole node: four adapters of 100 Gb/s; eight of 200 Gb/s; four (MI250X, four GH200) or eight (Max) of
200 Gb/s."""
_USUAL_OF_LATER_GPUS = 400.0
"""Eight adapters of 400 Gb/s, one beside each GPU."""
_USUAL_OF_CARDS = 12.5
"""One adapter of 100 Gb/s beside GPUs without NVLink."""


class Network(NamedTuple):
    """Of one node."""

    gb_per_s: float
    is_stated: bool
    """The row says it; else it is its cluster's or a usual one."""


def network_of(words: str, family: str, has_links: bool, gpus_per_node: int, usual_gpus_per_node: int = 8) -> Network:
    """The network of a row.

    Each GPU with links has a share of the adapters beside it, so a node of half as many GPUs has half as many.

    Args:
        words: source, GPU and remarks of the row.
        family: of the GPU, as the device table names it.
        has_links: its GPUs are connected by more than PCIe.
        gpus_per_node: for remarks on one GPU's share, and for usual adapters.
        usual_gpus_per_node: of the family.

    >>> network_of("network 84 Gb/s a node", "A100", True, 8), network_of("AWS p4d.24xlarge", "A100", True, 8)
    (Network(gb_per_s=10.5, is_stated=True), Network(gb_per_s=50.0, is_stated=False))
    >>> network_of("", "H200", True, 4).gb_per_s, network_of("", "GH200", True, 4, 4).gb_per_s
    (200.0, 100.0)
    """
    stated = stated_network_gb_per_s(words, gpus_per_node)
    if stated:
        return Network(stated, True)
    for cluster, rate in _COMPILED:
        if cluster.search(words):
            return Network(rate, False)
    if not has_links and family not in _USUAL:
        return Network(_USUAL_OF_CARDS, False)
    share = min(1.0, gpus_per_node / usual_gpus_per_node)
    return Network(_USUAL.get(family, _USUAL_OF_LATER_GPUS) * share, False)


def stated_network_gb_per_s(words: str, gpus_per_node: int) -> float | None:
    """Bandwidth of all adapters of a node as remarks tell it, GB/s; None: they do not.

    >>> stated_network_gb_per_s("network 84 Gb/s a node", 8), stated_network_gb_per_s("8x 200 Gb/s HDR per node", 8)
    (10.5, 200.0)
    >>> stated_network_gb_per_s("200 Gb/s HDR InfiniBand per GPU", 8)
    200.0
    """
    match = _STATED.search(words)
    if match is None:
        return None
    gigabit = float(match["count"] or 1) * float(match["rate"].replace(",", "")) * (1000 if match["unit"] == "T" else 1)
    return gigabit / 8 * (gpus_per_node if match["place"] == "GPU" else 1) or None
