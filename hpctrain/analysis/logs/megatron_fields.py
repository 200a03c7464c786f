"""The ``key: value`` parts of Megatron's iteration line, of all generations and forks: by name, never by position.

Source: training_log of NVIDIA/Megatron-LM (v1 of 2019 to core 0.15), bigscience-workshop and deepspeedai Megatron-DeepSpeed,
argonne-lcf/Megatron-DeepSpeed (``key=value``), EleutherAI/gpt-neox, AMD Primus, NVIDIA-NeMo/Megatron-Bridge.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from hpctrain.analysis.logs.events import Value
from hpctrain.analysis.logs.printed import number

Kind = Literal["int", "float", "ms", "s", "rate", "flops", "loss", "memory", "share", "other"]


@dataclass(frozen=True, slots=True)
class Key:
    """Where the value of a key goes and how it is read."""

    field: str
    """Name of ``FIELDS``; empty: known, and not used."""
    kind: Kind
    squeezed: str
    """Lower case, without blanks, hyphens and underscores: ``lm loss``, ``lm-loss`` and ``lm_loss`` are one key."""


_KEYS: dict[str, tuple[str, Kind]] = {
    "consumedsamples": ("consumed_samples", "int"),
    "consumedtokens": ("consumed_tokens", "int"),
    "elapsedtimeperiteration(ms)": ("time_per_iteration_s", "ms"),
    "elapsedtimeperiteration(s)": ("time_per_iteration_s", "s"),
    "elapsedtimeperiterationinms": ("time_per_iteration_s", "ms"),
    "elapsedtimeperiterationins": ("time_per_iteration_s", "s"),
    "timeperiteration(ms)": ("time_per_iteration_s", "ms"),
    "timeperiteration(s)": ("time_per_iteration_s", "s"),
    "timeperiteration": ("time_per_iteration_s", "other"),
    "elapsedtimeperiteration": ("time_per_iteration_s", "other"),
    "throughputpergpu(tflop/s/gpu)": ("tflops_per_gpu", "rate"),
    "computepergpu(tflop/s/gpu)": ("tflops_per_gpu", "rate"),
    "throughput(tflop/s/gpu)": ("tflops_per_gpu", "rate"),
    "modeltflop/s/gpu": ("tflops_per_gpu", "rate"),
    "tflop/s/gpu": ("tflops_per_gpu", "rate"),
    "tflops": ("tflops_per_gpu", "rate"),
    "tflopspergpu": ("tflops_per_gpu", "rate"),
    "modeltflops": ("tflops_per_gpu", "rate"),
    "[lm]tflops": ("tflops_per_gpu", "rate"),
    "[ds]tflops": ("", "rate"),
    "hardwaretflops": ("hardware_tflops_per_gpu", "rate"),
    "approxflopspergpu": ("tflops_per_gpu", "flops"),
    "tokenspergpu(tokens/s/gpu)": ("tokens_per_s_per_gpu", "rate"),
    "tokens/s/gpu": ("tokens_per_s_per_gpu", "rate"),
    "tokens/s/gpuinst/harmonicmean": ("tokens_per_s_per_gpu", "rate"),
    "tokenspergpupersecond(tgs)": ("tokens_per_s_per_gpu", "rate"),
    "tokenspergpupersecondtgs": ("tokens_per_s_per_gpu", "rate"),
    "tokenspersecondpergpu": ("tokens_per_s_per_gpu", "rate"),
    "tokenspersecond": ("tokens_per_s", "rate"),
    "samplespersecond": ("samples_per_s", "rate"),
    "samples/sec": ("samples_per_s", "rate"),
    "learningrate": ("learning_rate", "float"),
    "decoupledlearningrate": ("", "float"),
    "globalbatchsize": ("global_batch_size", "int"),
    "gloablbatchsize": ("global_batch_size", "int"),
    "batchsize": ("", "int"),
    "batchsize(tokens)": ("", "other"),
    "lmloss": ("loss", "loss"),
    "loss": ("loss", "loss"),
    "totalloss": ("", "float"),
    "loadbalancingloss": ("load_balancing_loss", "float"),
    "mtp1loss": ("mtp_1_loss", "float"),
    "lossscale": ("loss_scale", "float"),
    "gradnorm": ("grad_norm", "loss"),
    "paramsnorm": ("", "float"),
    "numzeros": ("num_zeros", "float"),
    "numberofskippediterations": ("skipped_iterations", "int"),
    "numberofnaniterations": ("nan_iterations", "int"),
    "actualseqlen": ("seq_len", "int"),
    "curriculumseqlen": ("seq_len", "int"),
    "seqlen": ("seq_len", "int"),
    "sequencelength": ("seq_len", "int"),
    "hipmemusage/free/total/usageratio": ("mem_gib", "memory"),
    "rocmmemusage/free/total/usageratio": ("mem_gib", "memory"),
    "memusages": ("mem_percent", "share"),
}
"""Squeezed key, field, kind. ``rate``: a rounded zero is missing, and a running average may follow (``210.5/217.3``)."""

SAMPLES_PER_SEC = Key("samples_per_s", "rate", "samples/sec")
TFLOPS = Key("tflops_per_gpu", "rate", "tflops")
TIME_WITH_UNIT = Key("time_per_iteration_s", "other", "timeperiteration")

MAX_COUNT = 2**53
"""Of tokens and the like; beyond it a count is damage."""

_OF_NUMBERS, _OF_UNITS = " \n0123456789.eE+-naif", "/()%vgmsBKMGTPEFLOS"
"""Characters of values; those of units and of averages stand beside numbers of some kinds only."""
_MTP_LOSS = re.compile(r"mtp(\d+)loss")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf)", re.IGNORECASE)
_AVERAGE = re.compile(r"\s*(?:/\s*[\d.]+|\(avg [\d.]+\))?\s*")
_TIME = re.compile(r"(\d+\.?\d*)\s*(ms|s)")
_FLOPS = re.compile(r"([\d.]+(?:[eE][-+]?\d+)?)\s*([KMGTPE]?)FLOPS?(?:/s)?", re.IGNORECASE)
_TERA_OF_PREFIX = {"": 1e-12, "K": 1e-9, "M": 1e-6, "G": 1e-3, "T": 1.0, "P": 1e3, "E": 1e6}
_MEMORY = re.compile(r"([\d.]+)G(?:i)?B/.*?(?:/([\d.]+)%)?")
_PART_WITHOUT_SIGN = re.compile(rf"\s*([A-Za-z][A-Za-z_ -]*?)\s+({_NUMBER.pattern})\s*", re.IGNORECASE)


def squeeze(text: str) -> str:
    """A key without what differs between versions and without the places where a terminal broke it.

    >>> squeeze(" lm-loss"), squeeze("number of s\\nkipped iterations")
    ('lmloss', 'numberofskippediterations')
    """
    return "".join(text.split()).replace("-", "").replace("_", "").lower()


def find_key(text: str) -> Key | None:
    """The key that ``text`` spells; None for one that this line has never had."""
    squeezed = squeeze(text)
    known = _KEYS.get(squeezed)
    if known is None and (match := _MTP_LOSS.fullmatch(squeezed)):
        known = (f"mtp_{match[1]}_loss", "float")
    return Key(*known, squeezed) if known else None


def begins_a_key(text: str) -> bool:
    """True if ``text`` is the first part of a known key, or a known key with the first part of its number."""
    key, sign, value = text.replace("=", ":").partition(":")
    if sign:
        known = find_key(key)
        units = "" if known is None or known.kind in ("int", "float", "loss") else _OF_UNITS
        return known is not None and not value.strip(_OF_NUMBERS + units)
    squeezed = squeeze(key)
    return bool(squeezed) and any(name.startswith(squeezed) for name in _KEYS)


def split_part(part: str) -> tuple[str, str] | None:
    """Key and value of the text between two bars; of 2019 there is no colon between them."""
    key, sign, value = part.partition(":")
    if not sign:
        key, sign, value = part.partition("=")
    if sign:
        return key, value.replace("\n", "")
    match = _PART_WITHOUT_SIGN.fullmatch(part.replace("\n", ""))
    return (match[1], match[2]) if match and find_key(match[1]) else None


def is_number(text: str) -> bool:
    """True if ``text`` starts with a number and holds little else."""
    return _NUMBER.match(text.strip()) is not None


def put_value(fields: dict[str, Value], key: Key, text: str) -> bool:
    """Set the field of ``key``; False where ``text`` is no value of that kind, and nothing is set.

    >>> fields = {}
    >>> put_value(fields, find_key("elapsed time per iteration (ms)"), " 2701.3/2712.7 "), fields
    (True, {'time_per_iteration_s': 2.7013})
    >>> put_value(fields, find_key("grad norm"), " nan "), put_value(fields, find_key("lm loss"), " 2.1[Rank 3]")
    (True, False)
    >>> fields
    {'time_per_iteration_s': 2.7013, 'grad_norm': None, 'grad_norm_is_nan': True}
    """
    text = text.strip()
    if not key.field:
        return is_number(text)
    if key.kind in ("flops", "memory", "other"):
        return _put_with_unit(fields, key, text)
    match = _NUMBER.match(text)
    if match is None or not _AVERAGE.fullmatch(text, match.end()):
        return False
    value = number(match[0], -3 if key.kind == "ms" else 0)
    if key.kind == "int":
        fields[key.field] = int(value) if value is not None and abs(value) <= MAX_COUNT else None
    elif value is None:
        fields[key.field] = None
        if key.kind == "loss" and match[0].lower().lstrip("+-") == "nan":
            fields[f"{key.field}_is_nan"] = True
    elif key.kind == "share":
        fields[key.field] = round(100 * value, 4)
    else:
        fields[key.field] = None if key.kind in ("rate", "ms", "s") and value == 0 else float(value)
    return True


def _put_with_unit(fields: dict[str, Value], key: Key, text: str) -> bool:
    """Values that carry their unit: ``9.8TFLOPS``, ``153.81GB/102.17GB/255.98GB/60.09%``, ``12.5 s``."""
    if key.kind == "flops":
        match = _FLOPS.fullmatch(text)
        if match is None:
            return False
        value = float(match[1]) * _TERA_OF_PREFIX[match[2].upper()]
        fields[key.field] = round(value, 6) if value > 0 and math.isfinite(value) else None
    elif key.kind == "memory":
        match = _MEMORY.fullmatch(text)
        if match is None:
            return False
        fields[key.field] = float(match[1])
        if match[2]:
            fields["mem_percent"] = float(match[2])
    else:
        match = _TIME.fullmatch(text)
        if match is None:
            return is_number(text)  # A time without a unit is not guessed.
        fields[key.field] = number(match[1], -3 if match[2] == "ms" else 0)
    return True
