"""Which member of Megatron's family wrote a log, from the words that only it uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class SystemEvidence:
    """What has been seen so far.

    BigScience and NVIDIA printed the same line in 2021; then one-line timers with pipeline sends and receives under Slurm
    speak for BigScience's public experiments, and a log without them is called Megatron-LM's.
    Source: the training_log of each project; see ``megatron_fields``.
    """

    MARKERS: ClassVar[tuple[str, ...]] = (" iter time (s): ", "slurmstepd: ", ", skipped=")

    keys: set[str] = field(default_factory=set)
    """Squeezed keys of the iteration lines."""
    signs: set[str] = field(default_factory=set)
    """Outside of keys: ``hyphen``, ``averages``, ``stamp``, ``step time``, ``timers 2021``, ``slurm``, ``engine``,
    ``pipeline engine``, ``zeros counted``, ``effective``."""

    def look_at(self, text: str) -> None:
        """Signs in lines that are no records."""
        if " iter time (s): " in text:
            self.signs.add("pipeline engine")
        elif ", skipped=" in text:
            self.signs.add("engine")
        elif "Effective Tera Flops per GPU: " in text:
            self.signs.add("effective")
        elif text.startswith("slurmstepd: "):
            self.signs.add("slurm")

    def conclude(self) -> tuple[str, str]:
        """The system, and what its TFLOP/s count.

        Megatron-LM since 2023 counts model FLOPs; the forks of 2021 count a full recomputation, if it is switched on, as
        equation 3 of Narayanan et al. does (see ``plan/flops``); GPT-NeoX's formula changed with its versions.
        """
        keys, signs = self.keys, self.signs
        if "samples/sec" in keys or "approxflopspergpu" in keys:
            return "gpt-neox", "unknown"
        if "step time" in signs:
            return "megatron-bridge", "model"
        if (
            "averages" in signs
            or "hipmemusage/free/total/usageratio" in keys
            or "rocmmemusage/free/total/usageratio" in keys
        ):
            return "primus", "model"
        if keys & {"actualseqlen", "tokenspergpupersecond(tgs)", "tokenspergpupersecondtgs"}:
            return "megatron-deepspeed", "megatron"
        if "stamp" in signs or "throughputpergpu(tflop/s/gpu)" in keys:
            return "megatron-lm", "model"
        if self._is_bigscience():
            return "bigscience", "megatron"
        with_deepspeed = keys & {"consumedtokens", "samplespersecond", "tflops"} or signs & {"engine", "effective"}
        return ("megatron-deepspeed", "megatron") if with_deepspeed else ("megatron-lm", "model")

    def _is_bigscience(self) -> bool:
        """Its fork counts zeros of the gradient on paper only: DeepSpeed does not tell them, so that 0.0 is printed."""
        keys, signs = self.keys, self.signs
        zeros_on_paper = "numzeros" in keys and "zeros counted" not in signs
        in_seconds = "elapsedtimeperiteration(s)" in keys
        of_2019 = bool(keys) and "consumedsamples" not in keys and "pipeline engine" in signs
        of_2021 = {"timers 2021", "slurm"} <= signs
        return "hyphen" in signs or zeros_on_paper or in_seconds or of_2019 or of_2021
