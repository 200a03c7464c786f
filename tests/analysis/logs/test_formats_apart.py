"""No format makes a record of another system's log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpctrain.analysis.logs.composer import ComposerFormat
from hpctrain.analysis.logs.events import LogFormat
from hpctrain.analysis.logs.hf_trainer import HfTrainerFormat
from hpctrain.analysis.logs.lightning import LightningFormat
from hpctrain.analysis.logs.maxtext import MaxtextFormat
from hpctrain.analysis.logs.metaseq import MetaseqFormat
from hpctrain.analysis.logs.nanogpt import NanogptFormat
from hpctrain.analysis.logs.nanotron import NanotronFormat
from hpctrain.analysis.logs.olmo import OlmoFormat
from hpctrain.analysis.logs.picotron import PicotronFormat
from hpctrain.analysis.logs.torchtitan import TorchtitanFormat
from tests.analysis.logs.format_driver import events_of, incomplete, samples, steps

FORMATS: tuple[type[LogFormat], ...] = (
    TorchtitanFormat,
    NanotronFormat,
    ComposerFormat,
    HfTrainerFormat,
    LightningFormat,
    OlmoFormat,
    MaxtextFormat,
    MetaseqFormat,
    NanogptFormat,
    PicotronFormat,
)


@pytest.mark.parametrize("json_path", samples("*"))
def test_records_only_by_its_own_format(json_path: Path) -> None:
    system = json.loads(json_path.read_text())["system"]
    for log_format in (format_class() for format_class in FORMATS):
        if log_format.system == system:
            continue
        events = events_of(log_format, json_path.with_suffix(".log"))
        assert steps(events) + incomplete(events) == [], log_format.system


@pytest.mark.parametrize("format_class", FORMATS, ids=[format_class.__name__ for format_class in FORMATS])
def test_states_a_convention_and_rare_markers(format_class: type[LogFormat]) -> None:
    log_format = format_class()
    assert log_format.tflops_convention in ("model", "hardware", "megatron", "unknown")
    assert min(len(marker) for marker in log_format.markers) >= 5
    assert not log_format.wants_next
    assert list(log_format.end()) == []
