"""In how many pieces a pipeline rank is cut: as the row says, as its source does, or in one."""

from __future__ import annotations

import re

from hpctrain.plan.stated.remarks import virtual_stages, virtual_stages_stated

_LLAMA_3_WORDS = re.compile(
    r"2407\.21783|herd of models|^(?:meta,? )?llama[- ]?3(?:\.1)?(?: \(|:| paper| report|$)", re.IGNORECASE
)
"""A piece is one block: the first piece of the first rank has the embedding alone, the last one of the last rank the loss, so
that 126 blocks stand on 128 places. Source: arXiv 2407.21783, section 3.3.2."""
_MEGASCALE_WORDS = re.compile(r"megascale|2402\.15627", re.IGNORECASE)
_OF_MEGASCALE = {(96, 8): 6, (105, 35): 3}
"""By blocks and pipeline ranks, of 175B and 530B, and of its baseline as well. Source: arXiv 2402.15627, section 6.1."""


def pieces_of_rank(source: str, notes: str, layers: int, pipeline_degree: int) -> int:
    """Virtual stages of a pipeline rank.

    Args:
        source: who published the row, and where.
        notes: its remarks, which come first.
        layers: blocks of the model.
        pipeline_degree: ranks of its pipeline.

    >>> pieces_of_rank("Llama 3 (arXiv 2407.21783)", "", 126, 16), pieces_of_rank("MegaScale", "", 96, 8)
    (8, 6)
    >>> pieces_of_rank("MegaScale", "VP 3", 96, 8), pieces_of_rank("somebody", "", 96, 8)
    (3, 1)
    """
    said = virtual_stages(notes, layers // pipeline_degree)
    if virtual_stages_stated(notes) or pipeline_degree == 1:
        return said
    if _LLAMA_3_WORDS.search(source):
        return -(-layers // pipeline_degree)
    if _MEGASCALE_WORDS.search(source):
        return _OF_MEGASCALE.get((layers, pipeline_degree), said)
    return said
