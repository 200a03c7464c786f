"""Scaling efficiency over nodes, from tokens per second, among runs that may be compared."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from hpctrain.analysis.name_lists import joined_names
from hpctrain.analysis.printed_rates import tflops_contradictions
from hpctrain.analysis.run_row import counted_ranks
from hpctrain.units import short_count

ScalingKind = Literal["strong", "weak"]

COMPARABLE = (
    "num_parameters",
    "model",
    "seq_len",
    "precision",
    "hardware",
    "cluster",
    "device",
    "activation_checkpointing",
    "parallelism",
    "zero_stage",
    "zero_settings",
)
"""Equal in all runs of a group, whichever scaling is asked for."""

KIND_KEYS: dict[ScalingKind, tuple[str, ...]] = {
    "strong": ("global_batch_size",),
    "weak": ("micro_batch_size", "gradient_accumulation_steps"),
}
"""What else stays equal: strong scaling keeps the whole batch, weak scaling the batch of each GPU."""

IDENTITY = ("model", "num_parameters")
"""One of them must be known."""

MUST_BE_KNOWN: dict[ScalingKind, tuple[str, ...]] = {
    kind: ("seq_len", "gpus", "tokens_per_s", *keys) for kind, keys in KIND_KEYS.items()
}
"""A run of which one of these is not known is compared with none: two unknown models or batches are not equal."""

MAX_NAMES = 4
"""Runs named in a short message; folders of logs hold dozens of which little is known."""

SYSTEM = "source"
"""Who wrote the records. Other unknown values are equal only where this is the same too."""

_SPLIT = ["micro_batch_size", "gradient_accumulation_steps"]
_POINT_COLUMNS = ["gpus", "nodes", *_SPLIT, "global_batch_size", "num_runs", "tokens_per_s", "tokens_per_s_per_gpu"]


@dataclass(frozen=True)
class NotCompared:
    """Runs of which the same is not known."""

    unknown: tuple[str, ...]
    """Columns, of ``MUST_BE_KNOWN`` and ``IDENTITY``."""
    runs: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"{', '.join(self.unknown)} not known, so compared with no other run: {', '.join(self.runs)}"


@dataclass(frozen=True)
class Scaling:
    """Points of all groups of one kind, and what was left out."""

    kind: ScalingKind
    points: pd.DataFrame
    """One row a group and size: ``group`` (its label), the keys, ``gpus``, ``nodes``, ``num_runs``, ``tokens_per_s``,
    ``base_gpus`` and ``efficiency`` (NA without a base)."""
    common: str
    """What all groups share, for titles."""
    left_out: tuple[str, ...]
    """Runs that are not valid, each with its reason."""
    group_messages: tuple[str, ...] = ()
    """Groups without an efficiency, and batch splits that do not count."""
    not_compared: tuple[NotCompared, ...] = ()
    """Runs of which too little is known, by what it is."""
    contradictions: tuple[str, ...] = ()
    """Valid runs whose printed TFLOP/s and whose tokens/s cannot both be true, see ``tflops_contradictions``."""

    @property
    def messages(self) -> tuple[str, ...]:
        """Everything to be said, each run by its name."""
        return (*(part.text for part in self.not_compared), *self.group_messages)

    @property
    def short_messages(self) -> tuple[str, ...]:
        """The same, with one text for all runs of which too little is known, and the first ``MAX_NAMES`` of them named."""
        return (*filter(None, [_not_compared_text(self.not_compared)]), *self.group_messages)


def scaling_efficiency(runs: pd.DataFrame, kind: ScalingKind, base_gpus: int | None = None) -> Scaling:
    """Efficiency of each size: tokens/s a GPU over tokens/s a GPU of the base.

    Several runs of one point count as their median. In strong scaling a size may split the batch in several ways; the
    fastest counts and the others are named.

    Args:
        runs: frame ``runs``, or published results in its columns; rows that are not ``valid`` are left out and named.
        kind: which batch stays equal.
        base_gpus: size that all others are held against; None: the smallest of each group.
    """
    left_out = [
        f"{run}: {reason}" for run, reason in runs.loc[~runs["valid"], ["run", "reason"]].itertuples(index=False)
    ]
    valid = runs[runs["valid"]]
    known, not_compared = _known(valid, kind)
    keys = [*([SYSTEM] if SYSTEM in runs else []), *COMPARABLE, *KIND_KEYS[kind]]
    members = [group for _, group in known.groupby(keys, dropna=False)]
    groups = pd.concat([group[keys].head(1) for group in members]) if members else known[keys]
    tables, messages = [], []
    for label, group in zip(group_labels(groups), members, strict=True):
        device = group["device"].iloc[0]
        points, slower = _points(group, device)
        efficiencies, message = _efficiency(points, base_gpus, device)
        messages += [f"{label}: {text}" for text in (*slower, message) if text]
        shared = {key: group[key].iloc[0] for key in COMPARABLE}
        tables.append(points.assign(group=label, **shared, **efficiencies))
    columns = ["group", *COMPARABLE, *_POINT_COLUMNS, "base_gpus", "efficiency"]
    table = pd.concat(tables, ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns)
    table = table.astype({"base_gpus": "Int64", "efficiency": "Float64"})
    return Scaling(
        kind,
        table,
        common_text(groups),
        tuple(left_out),
        tuple(messages),
        tuple(not_compared),
        tflops_contradictions(valid),
    )


def _known(runs: pd.DataFrame, kind: ScalingKind) -> tuple[pd.DataFrame, list[NotCompared]]:
    """The runs of which enough is known to be compared, and the others by what is not known."""
    lacking = runs[list(MUST_BE_KNOWN[kind])].isna()
    lacking.insert(0, " and ".join(IDENTITY), runs[list(IDENTITY)].isna().all(axis=1))
    names: dict[tuple[str, ...], list[str]] = {}
    for run, flags in zip(runs["run"], lacking.to_numpy(dtype=bool), strict=True):
        if flags.any():
            names.setdefault(tuple(lacking.columns[flags]), []).append(str(run))
    return runs[~lacking.any(axis=1)], [NotCompared(what, tuple(which)) for what, which in names.items()]


def _not_compared_text(parts: tuple[NotCompared, ...]) -> str:
    """One text for all runs of which too little is known; empty if there is none."""
    names = [run for part in parts for run in part.runs]
    if not names:
        return ""
    counts = Counter({column: 0 for part in parts for column in part.unknown})
    for part in parts:
        counts.update(dict.fromkeys(part.unknown, len(part.runs)))
    if len(parts) == 1:
        what = ", ".join(parts[0].unknown)
    else:
        what = ", ".join(f"{column} (of {count} runs)" for column, count in counts.most_common())
    return f"{what} not known, so compared with no other run: {joined_names(names, MAX_NAMES)}"


def _points(runs: pd.DataFrame, device: str) -> tuple[pd.DataFrame, list[str]]:
    """Sizes of one group, smallest first, and the slower splits that were left out."""
    points = (
        runs.groupby(["gpus", "nodes", *_SPLIT, "global_batch_size"], dropna=False)["tokens_per_s"]
        .agg(tokens_per_s="median", num_runs="size")
        .reset_index()
        .sort_values(["gpus", "nodes", "tokens_per_s"], ascending=[True, True, False], kind="stable")
    )
    slower = points.duplicated(["gpus", "nodes"])
    left_out = [
        f"on {counted_ranks(gpus, device)} the split micro batch {micro} x accumulation {accumulation} is slower and left out"
        for gpus, micro, accumulation in points.loc[slower, ["gpus", *_SPLIT]].itertuples(index=False)
    ]
    points = points[~slower].reset_index(drop=True)
    points["tokens_per_s_per_gpu"] = points["tokens_per_s"] / points["gpus"]
    return points, left_out


def _efficiency(points: pd.DataFrame, base_gpus: int | None, device: str) -> tuple[dict[str, Any], str]:
    """Columns ``base_gpus`` and ``efficiency`` of one group, or a message why there are none."""
    sizes = points["gpus"].tolist()
    listing = ", ".join(map(str, sizes))
    none = {"base_gpus": pd.NA, "efficiency": pd.NA}
    if base_gpus is not None and base_gpus not in sizes:
        base_size = counted_ranks(base_gpus, device)
        return none, f"no valid run on the base of {base_size}, so no efficiency; there are runs on {listing}"
    if len(points) == 1:
        return (
            none,
            f"all runs have one size ({counted_ranks(sizes[0], device)}), so no efficiency; add a run on another number of nodes",
        )
    base = points[points["gpus"] == (base_gpus or sizes[0])].iloc[0]
    return {
        "base_gpus": base["gpus"],
        "efficiency": points["tokens_per_s_per_gpu"] / base["tokens_per_s_per_gpu"],
    }, ""


_WORDS = {
    "model": "{}",
    "seq_len": "{} tokens a sequence",
    "precision": "{}",
    "hardware": "{}",
    "cluster": "cluster {}",
    "activation_checkpointing": "checkpointing {}",
    "parallelism": "{}",
    "global_batch_size": "global batch {}",
    "micro_batch_size": "micro batch {}",
    "gradient_accumulation_steps": "accumulation {}",
}
_DETAILS = (SYSTEM, "num_parameters", "zero_stage", "zero_settings")
"""Told only where two groups would read the same without."""


def group_labels(groups: pd.DataFrame) -> list[str]:
    """A name for each row: the values in which the rows differ, or the model where there is one row only."""
    differing = [column for column in _WORDS if column in groups and groups[column].nunique(dropna=False) > 1]
    texts = [
        [f"{column} not known" if pd.isna(row[column]) else _WORDS[column].format(row[column]) for column in differing]
        or [_model_name(row)]
        for row in groups.to_dict("records")
    ]
    for column in (detail for detail in _DETAILS if detail in groups):
        details = _detail_texts(groups[column].tolist(), column)
        names = [", ".join(parts) for parts in texts]
        ambiguous = {name for name in names if len({d for n, d in zip(names, details, strict=True) if n == name}) > 1}
        for parts, name, detail in zip(texts, names, details, strict=True):
            if name in ambiguous:
                parts.append(detail)
    return [", ".join(parts) for parts in texts]


def _model_name(row: dict[Any, Any]) -> str:
    return f"{short_count(row['num_parameters'])} parameters" if pd.isna(row["model"]) else str(row["model"])


def _detail_texts(values: list[Any], column: str) -> list[str]:
    if column == SYSTEM:
        return [str(value) for value in values]
    if column == "num_parameters":
        return ["parameters not known" if pd.isna(value) else f"{short_count(value)} parameters" for value in values]
    if column == "zero_stage":
        return ["ZeRO not known" if pd.isna(value) else f"ZeRO {value}" for value in values]
    settings = [{} if pd.isna(value) else json.loads(value) for value in values]
    names = sorted({name for setting in settings for name in setting})
    differing = [name for name in names if len({str(setting.get(name)) for setting in settings}) > 1]
    return [" ".join(f"{name}={setting.get(name)}" for name in differing) for setting in settings]


def common_text(groups: pd.DataFrame) -> str:
    """The values that all rows share, in words."""
    common = [column for column in _WORDS if column in groups and groups[column].nunique(dropna=False) == 1]
    common = [column for column in common if groups[column].notna().all()]
    return ", ".join(_WORDS[column].format(groups[column].iloc[0]) for column in common)
