"""picotron's step line: ``[rank 0] Step: 5 | Loss: 10.1 | Global batch size: 1.05M | Tokens/s: 18.2K | ... | MFU: 39.1%``.

"Global batch size" is in tokens, not in sequences; the reserved memory is in 1e9 bytes. Source: picotron's train.py and
to_readable_format of picotron/utils.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpctrain.analysis.logs.events import Event, IncompleteEvent, Line, StepEvent, Value
from hpctrain.analysis.logs.printed import (
    certain_text,
    gib,
    glued,
    is_nan,
    parts_from,
    put_rank,
    put_timestamp,
    si_number,
)

_STEP = re.compile(r"(?:\[rank (\d+)\] )?\bStep: (\d+)(?:/(\d+))? *\|")
_NAMES = {
    "Loss": "loss",
    "LR": "learning_rate",
    "GradNorm": "grad_norm",
    "Grad norm": "grad_norm",
    "Global batch size": "global_batch_tokens",
    "Tokens/s": "tokens_per_s",
    "Tok/s": "tokens_per_s",
    "Tokens/s/GPU": "tokens_per_s_per_gpu",
    "Tok/s/GPU": "tokens_per_s_per_gpu",
}


class PicotronFormat:
    """Reads picotron's console log."""

    system = "picotron"
    markers: tuple[str, ...] = ("Global batch size: ",)
    tflops_convention = "model"
    """It prints no TFLOP/s; its MFU is from 6 FLOPs a parameter and token plus 12·l·h·s. Source: get_mfu of picotron/utils.py."""
    wants_next = False

    def read(self, line: Line) -> Iterable[Event]:
        text, _ = certain_text(line, ("|", "%", "GB"))
        parts = parts_from(_STEP, text)
        yield from glued(line, parts)
        for match, rest in parts:
            fields: dict[str, Value] = {"iteration": int(match[2])}
            if match[3]:
                fields["total_iterations"] = int(match[3])
            put_rank(fields, f"rank {match[1]}" if match[1] else line.label)
            put_timestamp(fields, line.text)
            for pair in rest.split("|"):
                key, _, value = pair.partition(":")
                _put(fields, key.strip(), value.strip())
            complete = "loss" in fields and "tokens_per_s" in fields and ("mfu_percent" in fields or line.whole)
            if "loss" in fields or not line.whole:
                yield (StepEvent if complete else IncompleteEvent)(line.number, fields)

    def end(self) -> Iterable[Event]:
        return ()


def _put(fields: dict[str, Value], key: str, text: str) -> None:
    if key == "MFU" and text.endswith("%"):
        fields["mfu_percent"] = si_number(text[:-1])
    elif key == "Memory usage" and text.endswith("GB"):
        reserved = si_number(text[:-1])
        fields["mem_reserved_gb"] = si_number(text[:-2])
        fields["mem_gib"] = gib(reserved)
    elif key == "Tokens":
        trained, _, total = text.partition("/")
        fields["consumed_tokens"] = si_number(trained)
        if total:
            fields["total_tokens"] = si_number(total)
    elif key in _NAMES:
        value = si_number(text)
        if value is not None or is_nan(text):
            fields[_NAMES[key]] = value
        if is_nan(text):
            fields[f"{_NAMES[key]}_is_nan"] = True
