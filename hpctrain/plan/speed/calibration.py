"""What past runs of a cluster make of the predicted step: a factor on each kind of its parts, with its spread and origin.

Pure: who has read the file of a calibration puts it into the configuration (``Config.calibration``). How the factors are found is
in ``hpctrain.analysis.calibration_fit``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpctrain.config.calibration import Calibration, PartKind, Seen

CALIBRATION_FILE = "calibration.json"
"""Its name in ``run.root``, where ``plan`` and ``submit`` look for it."""
KINDS: tuple[PartKind, ...] = ("compute", "communication", "host")
KIND_OF_PART: dict[str, PartKind] = {
    "matrix work": "compute",
    "attention": "compute",
    "element-wise work": "compute",
    "blocking launches": "compute",
    "host behind the GPU": "compute",
    "optimizer": "compute",
    "pipeline bubble": "compute",
    "tensor-parallel all-reduce": "communication",
    "sequence-parallel exchange": "communication",
    "pipeline sends": "communication",
    "gradient reduction": "communication",
    "parameter gathers": "communication",
    "gradient reduce-scatter": "communication",
    "host link": "host",
    "optimizer on the CPU": "host",
    "NVMe in the passes": "host",
    "NVMe in the optimizer": "host",
}
"""What a part waits for: a GPU's own rates, the links between GPUs, or the host (its link, memory, processors and NVMe). These
are what differs from cluster to cluster. A bubble is idle time as long as other ranks' work, so it goes with that."""

SMALLEST_FACTOR, LARGEST_FACTOR = 0.2, 5.0
"""Beyond these something is wrong that no factor mends: a unit in the hardware file, or runs that are not what they say."""
SHARE_MARGIN = 0.05
"""How far a kind's share of the step may lie outside the shares that were seen and still count as seen."""


@dataclass(frozen=True)
class UsedCalibration:
    """What a prediction keeps of the calibration that it was made with."""

    hardware: str
    source: str
    fitted_on: str
    factors: dict[PartKind, float]
    num_runs: int
    num_configurations: int
    outside: tuple[str, ...]
    """What of the plan lies outside what the runs were, in words; such a prediction has the wider range."""

    @property
    def text(self) -> str:
        """Such as ``x 1.08 by 12 runs in 5 configurations on ndm_a100_v4, 2026-11-29, runs/calibration.json``."""
        runs = f"{self.num_runs} run{'s' if self.num_runs > 1 else ''}"
        if self.num_configurations != self.num_runs:
            runs += f" in {self.num_configurations} configuration{'s' if self.num_configurations > 1 else ''}"
        return f"{factors_text(self.factors)} by {runs} on {self.hardware}, {self.fitted_on}, {self.source}"


def used_calibration(calibration: Calibration, outside: tuple[str, ...] = ()) -> UsedCalibration:
    """What a prediction keeps of it.

    Args:
        calibration: for its hardware.
        outside: of ``outside_texts``.
    """
    return UsedCalibration(
        hardware=calibration.hardware,
        source=calibration.source,
        fitted_on=calibration.fitted_on,
        factors=calibration.factors,
        num_runs=calibration.num_runs,
        num_configurations=calibration.num_configurations,
        outside=outside,
    )


def factors_text(factors: Mapping[PartKind, float]) -> str:
    """The factors in words; what all kinds share is said once.

    >>> factors_text({"compute": 1.08, "communication": 1.08})
    'x 1.08'
    >>> factors_text({"compute": 1.05, "communication": 1.316})
    'compute x 1.05, communication x 1.32'
    """
    if len(set(factors.values())) == 1:
        return f"x {next(iter(factors.values())):.3g}"
    return ", ".join(f"{kind} x {factors[kind]:.3g}" for kind in KINDS if kind in factors)


def seconds_by_kind(parts_s: Mapping[str, float]) -> dict[PartKind, float]:
    """Seconds of a step by kind of parts; kinds that it has none of are left out.

    >>> seconds_by_kind({"matrix work": 2.0, "optimizer": 1.0, "host link": 0.5})
    {'compute': 3.0, 'host': 0.5}
    """
    found: dict[PartKind, float] = {}
    for name, seconds in parts_s.items():
        kind = KIND_OF_PART[name]
        found[kind] = found.get(kind, 0.0) + seconds
    return {kind: found[kind] for kind in KINDS if found.get(kind, 0.0) > 0}


def calibrated_parts(parts_s: Mapping[str, float], calibration: Calibration | None) -> dict[str, float]:
    """Seconds by part, each with the factor of its kind; without a calibration as they are.

    Args:
        parts_s: of ``step_parts``: seconds, or arrays of them.
        calibration: for this hardware, see ``calibration_choice``.
    """
    if calibration is None:
        return dict(parts_s)
    factors = calibration.factors
    return {name: seconds * factors.get(KIND_OF_PART[name], 1.0) for name, seconds in parts_s.items()}


def outside_texts(
    seen: Seen,
    *,
    nodes: int,
    parameters: int,
    zero_stage: int,
    model_parallel: Iterable[str],
    parts_s: Mapping[str, float],
) -> tuple[str, ...]:
    """What of a plan lies outside what the runs of a calibration were, in words.

    Args:
        seen: of the calibration.
        nodes: of the plan, as the next two.
        parameters: of the model.
        zero_stage: of ZeRO.
        model_parallel: ways in which the model is spread, of ``Layout.model_parallel_degrees``.
        parts_s: predicted without a calibration.
    """
    texts = []
    low, high = seen.nodes
    if not low <= nodes <= high:
        texts.append(f"{nodes:,} nodes, the runs had {_between(f'{low:,}', f'{high:,}')}")
    low, high = seen.parameters
    if not low <= parameters <= high:
        texts.append(
            f"{parameters / 1e9:.3g} B parameters, the runs had {_between(f'{low / 1e9:.3g}', f'{high / 1e9:.3g}')} B"
        )
    if zero_stage not in seen.zero_stages:
        texts.append(f"ZeRO stage {zero_stage}, the runs had {', '.join(map(str, seen.zero_stages))}")
    texts += [f"{way} parallelism, which no run had" for way in model_parallel if way not in seen.model_parallel]
    step_s = sum(parts_s.values())
    for kind, seconds in seconds_by_kind(parts_s).items():
        if kind == "compute":  # the rest of the others
            continue
        least, greatest = seen.shares.get(kind, (0.0, 0.0))
        if not least - SHARE_MARGIN <= seconds / step_s <= greatest + SHARE_MARGIN:
            had = _between(f"{least:.0%}", f"{greatest:.0%}") if kind in seen.shares else "none"
            texts.append(f"{seconds / step_s:.0%} of the step in {kind}, the runs had {had}")
    return tuple(texts)


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"
