"""Published results (``analysis/published/*.csv``) as a frame, and in the columns of our own runs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pandas as pd

from hpctrain.errors import RecordError, known_names_hint
from hpctrain.plan.flop_conventions import HARDWARE_SPELLING

_PACKAGE = Path(__file__).resolve().parents[1]
_SHIPPED = _PACKAGE / "_published"
PUBLISHED_DIR = _SHIPPED if _SHIPPED.is_dir() else _PACKAGE.parent / "analysis" / "published"
"""In an installed package inside it, in a source checkout beside the notebooks."""

_TEXT = "source ref model gpu offload_optimizer offload_param activation_ckpt precision tflops_convention notes".split()
_COUNTS = (
    "layers hidden heads kv_heads ffn_hidden vocab seq_len num_gpus nodes tp pp cp_sp dp zero_stage"
    " micro_batch_per_gpu global_batch".split()
)
_NUMBERS = "params_b gpu_mem_gb tflops_per_gpu mfu hfu tokens_per_s_per_gpu step_time_s peak_mem_gb max_model_b".split()
EVIDENCE = ("EXACT", "DIGITISED", "DERIVED", "RELATIVE", "QUOTED")
"""First word of ``notes``: how the figure of a row came about."""
FLAGS = {"STATUS=OOM": "out of memory", "CHECK": "the source contradicts itself"}
"""Words in ``notes`` of rows that are no result of a run, or none to rely on."""


def load_published(folder: Path = PUBLISHED_DIR, files: Collection[str] | None = None) -> pd.DataFrame:
    """All rows of the folder's files, with ``file``, ``evidence``, ``flag`` and ``tflops_error`` (of digitised values) added.

    Args:
        folder: the CSV files.
        files: names of those that are wanted; None: all.

    Raises:
        RecordError: there is no file, a wanted one is missing, a column is missing or unknown, a number is none, or a row has
            no evidence.
    """
    paths = sorted(folder.glob("*.csv"))
    if not paths:
        raise RecordError(f"{folder}: no published results here; a source checkout keeps them in analysis/published")
    for name in sorted(set(files or ()) - {path.name for path in paths}):
        raise RecordError(f"{folder / name}: is not there; {known_names_hint(name, [path.name for path in paths])}")
    table = pd.concat([_read(path) for path in paths if files is None or path.name in files], ignore_index=True)
    table["evidence"] = table["notes"].str.extract(rf"^({'|'.join(EVIDENCE)})\b", expand=False)
    unmarked = table[table["evidence"].isna()]
    if len(unmarked):
        first = unmarked.iloc[0]
        raise RecordError(f"{first['file']}: notes={first['notes']}: must start with one of {', '.join(EVIDENCE)}")
    table["flag"] = table["notes"].str.extract(rf"\b({'|'.join(FLAGS)})", expand=False)
    table["tflops_error"] = table["notes"].str.extract(r"^DIGITISED \+/-([\d.]+)", expand=False).astype("Float64")
    return table


def _read(path: Path) -> pd.DataFrame:
    expected = {
        **dict.fromkeys(_TEXT, "string"),
        **dict.fromkeys(_COUNTS, "Int64"),
        **dict.fromkeys(_NUMBERS, "Float64"),
    }
    table = pd.read_csv(path, dtype="string")
    different = sorted(set(table.columns) ^ set(expected))
    if different:
        raise RecordError(f"{path.name}: the header must be that of the other files; different: {', '.join(different)}")
    try:
        return table.astype(expected).assign(file=path.name)
    except (ValueError, TypeError) as error:
        raise RecordError(f"{path.name}: {error}") from error


def as_runs(published: pd.DataFrame) -> pd.DataFrame:
    """The published rows in those columns of the frame ``runs`` that scaling and figures use.

    Tokens per second are the tokens of a step over its time, so they carry no rounding of the printed per-GPU value.
    Accumulation is what is left of the global batch after micro batch and data-parallel degree.
    """
    per_micro_step = published["micro_batch_per_gpu"] * published["dp"]
    tokens_per_s = published["global_batch"] * published["seq_len"] / published["step_time_s"]
    is_megatron = published["tflops_convention"] == HARDWARE_SPELLING
    text = published[["num_gpus", "micro_batch_per_gpu"]].astype("string").fillna("?")
    reason = published["flag"].map(FLAGS).astype("string")
    reason = reason.fillna("no step time published").where(reason.notna() | tokens_per_s.isna(), "")
    name = published["model"] + ", " + text["num_gpus"] + " GPUs, micro batch " + text["micro_batch_per_gpu"]
    return pd.DataFrame(
        {
            "run": name,
            "source": published["source"],
            "evidence": published["evidence"],
            "model": published["model"],
            "num_parameters": (published["params_b"] * 1e9).round().astype("Int64"),
            "seq_len": published["seq_len"],
            "precision": published["precision"],
            "hardware": published["gpu"],
            "cluster": pd.Series(pd.NA, index=published.index, dtype="string"),  # what the hardware does not say
            "device": "cuda",
            "activation_checkpointing": published["activation_ckpt"],
            "parallelism": _parallelism(published),
            "zero_stage": published["zero_stage"],
            "zero_settings": "{}",
            "nodes": published["nodes"],
            "gpus": published["num_gpus"],
            "micro_batch_size": published["micro_batch_per_gpu"],
            "gradient_accumulation_steps": published["global_batch"] // per_micro_step,
            "global_batch_size": published["global_batch"],
            "tokens_per_s": tokens_per_s,
            "megatron_tflops_per_gpu": published["tflops_per_gpu"].where(is_megatron),
            "tflops_error": published["tflops_error"],
            "valid": reason == "",
            "reason": reason,
            "file": published["file"],
        }
    )


def _parallelism(published: pd.DataFrame) -> pd.Series:
    """``zero3``, or with further degrees ``zero1 tp8 pp4``."""
    text = "zero" + published["zero_stage"].astype("string")
    for column, word in (("tp", " tp"), ("pp", " pp"), ("cp_sp", " sp")):
        text = text + (word + published[column].astype("string")).where(published[column] > 1, "").fillna("")
    return text
