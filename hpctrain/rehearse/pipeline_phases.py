"""The phases of a pipeline's step: DeepSpeed runs a schedule of instructions, which are told apart by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from hpctrain.rehearse.private_names import MissingNameError, private
from hpctrain.rehearse.result import Phase
from hpctrain.worker import pipeline

_PHASE_OF: dict[str, Phase] = {
    "LoadMicroBatch": "forward",
    "RecvActivation": "forward",
    "ForwardPass": "forward",
    "SendActivation": "forward",
    "RecvGrad": "backward",
    "BackwardPass": "backward",
    "SendGrad": "backward",
    "ReduceTiedGrads": "optimizer",
    "ReduceGrads": "optimizer",
    "OptimizerStep": "optimizer",
}
"""Source: DeepSpeed 0.19.8, runtime/pipe/schedule.py."""


def train_batch(
    engine: Any, micro_batches: Iterator[tuple[torch.Tensor, torch.Tensor]], begin: Callable[[Phase], None]
) -> None:
    """One optimizer step of this stage; ``begin`` is told of each phase as it begins."""
    instructions = private("deepspeed.runtime.pipe.engine.PipelineEngine._INSTRUCTION_MAP")
    unknown = sorted({each.__name__ for each in instructions} - set(_PHASE_OF))
    if unknown:
        raise MissingNameError(
            f"DeepSpeed's pipeline has instructions of which no phase is known: {', '.join(unknown)}; plan works all the same"
        )
    engine._INSTRUCTION_MAP = {
        instruction: _told(function, _PHASE_OF[instruction.__name__], begin)
        for instruction, function in instructions.items()
    }
    pipeline.train_batch(engine, micro_batches)  # type: ignore[arg-type]  # it asks an iterator of pairs


def _told(function: Callable[..., Any], phase: Phase, begin: Callable[[Phase], None]) -> Callable[..., Any]:
    def instruction(engine: Any, **named: Any) -> Any:
        begin(phase)
        return function(engine, **named)

    return instruction
