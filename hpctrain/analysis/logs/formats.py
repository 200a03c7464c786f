"""All ways of writing training logs that are known."""

from __future__ import annotations

from collections.abc import Callable

from hpctrain.analysis.logs.composer import ComposerFormat
from hpctrain.analysis.logs.deepspeed_engine import DeepspeedEngineFormat
from hpctrain.analysis.logs.deepspeed_tables import DeepspeedTablesFormat
from hpctrain.analysis.logs.events import LogFormat
from hpctrain.analysis.logs.hf_trainer import HfTrainerFormat
from hpctrain.analysis.logs.lightning import LightningFormat
from hpctrain.analysis.logs.maxtext import MaxtextFormat
from hpctrain.analysis.logs.megatron import MegatronFormat
from hpctrain.analysis.logs.metaseq import MetaseqFormat
from hpctrain.analysis.logs.nanogpt import NanogptFormat
from hpctrain.analysis.logs.nanotron import NanotronFormat
from hpctrain.analysis.logs.olmo import OlmoFormat
from hpctrain.analysis.logs.picotron import PicotronFormat
from hpctrain.analysis.logs.scheduler import SchedulerFormat
from hpctrain.analysis.logs.torchtitan import TorchtitanFormat

FORMATS: tuple[Callable[[], LogFormat], ...] = (
    MegatronFormat,
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
    DeepspeedEngineFormat,
    DeepspeedTablesFormat,
    SchedulerFormat,
)
"""Each is made anew for a file; where two tell of the same steps, the first one names the system."""

KNOWN_SYSTEMS = (
    "bigscience",
    "deepspeed",
    "gpt-neox",
    "hf-trainer",
    "llm-foundry",
    "maxtext",
    "megatron-bridge",
    "megatron-deepspeed",
    "megatron-lm",
    "metaseq",
    "nanogpt",
    "nanotron",
    "nemo",
    "olmo",
    "picotron",
    "primus",
    "torchtitan",
)
