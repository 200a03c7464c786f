"""The verb export: a checkpoint of a run as a Hugging Face folder."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from hpctrain.config.hydra_text import typed_override
from hpctrain.config.schema import Precision
from hpctrain.errors import EXIT_OK, ConfigError, HpctrainError, LaunchError
from hpctrain.text_table import printable

if TYPE_CHECKING:
    from hpctrain.record.checkpoints import Checkpoint
    from hpctrain.record.paths import RunPaths

_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]?B)", re.IGNORECASE)
_PRECISIONS: tuple[Precision, ...] = get_args(Precision)
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def export(words: Sequence[str]) -> int:
    """Writes one checkpoint of one run."""
    known = _parser().parse_args(list(words))
    shard_bytes = size_in_bytes(known.shard_size)
    _check_out(known.out)
    from hpctrain.huggingface.folder import require_safetensors
    from hpctrain.huggingface.model_config import copied_heads
    from hpctrain.huggingface.run_tokenizer import run_tokenizer
    from hpctrain.launch.preflight import require_packages
    from hpctrain.launch.run_names import find_run
    from hpctrain.launch.termination import terminable
    from hpctrain.record.reader import read_config

    require_packages({"torch": "train", "deepspeed": "train"}, "which reads the checkpoint")
    require_safetensors("export")
    run = find_run(known.run)
    checkpoint = _checkpoint(run, known.step)
    tokenizer = run_tokenizer(read_config(run).data, known.tokenizer)
    if tokenizer.note:
        _tell(f"note: {tokenizer.note}")
    # Slow to import, so everything that can be refused without it comes first. DeepSpeed would look for a GPU, and tell.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from hpctrain.worker.export import ExportRequest, check_expressible, check_files, write_folder
    from hpctrain.worker.state.saved_state import SavedState

    saved = SavedState(checkpoint.folder, checkpoint.record)
    check_expressible(saved)
    if copied := copied_heads(saved.shape):
        _tell(f"note: {copied}")
    precision = next(name for name in _PRECISIONS if name == (known.dtype or checkpoint.record.precision))
    metadata = {"hpctrain_run": printable(run.root.name), "hpctrain_step": str(checkpoint.step)}
    request = ExportRequest(known.out, precision, shard_bytes, tokenizer, metadata)
    _tell(
        f"{checkpoint.folder}: step {checkpoint.step}, {checkpoint.record.num_parameters:,} parameters, as {precision}"
    )
    try:
        with terminable():  # what is written so far is taken back
            if not known.no_check:
                check_files(saved, _tell)
            write_folder(saved, request, _tell)
    except (HpctrainError, OSError) as error:
        if not checkpoint.folder.exists():
            rule = "is not there any more: a run keeps training.keep_checkpoints of them; export again for the newest"
            raise LaunchError(f"{checkpoint.folder}: {rule}") from error
        if isinstance(error, OSError):
            raise LaunchError(f"{error.filename or known.out}: {error.strerror or error}") from error
        raise
    typed = typed_override("training.init_from", str(known.out))
    _tell(f"{known.out}: load it with transformers, or begin a run with {typed}")
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hpctrain export",
        description="Writes a complete checkpoint, from its fp32 master weights, as a folder that transformers loads:"
        " LlamaForCausalLM or GPT2LMHeadModel. Needs memory for one file of weights (--shard-size).",
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", help="run folder, name in ./runs, job id")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="the new folder")
    parser.add_argument("--step", type=int, metavar="N", help="of the checkpoint; without it the newest complete one")
    parser.add_argument("--dtype", choices=_PRECISIONS, help="of the weights; without it the type that was trained in")
    parser.add_argument(
        "--shard-size", default="5GB", metavar="SIZE", help="largest file of weights, such as 5GB or 500MB"
    )
    parser.add_argument(
        "--tokenizer", type=Path, metavar="FILE", help="tokenizer.json, where the run's data has none beside it"
    )
    parser.add_argument("--no-check", action="store_true", help="do not compare the checkpoint's checksums first")
    return parser


def size_in_bytes(text: str) -> int:
    """Bytes of a size in decimal units.

    Raises:
        ConfigError: it is none, or zero.

    >>> size_in_bytes("5GB"), size_in_bytes("0.5 MB")
    (5000000000, 500000)
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match["number"]) * _UNITS[match["unit"].upper()]) if match else 0
    if size < 1:
        raise ConfigError(f"--shard-size {text}: is a number above 0 with its unit, such as 5GB or 500MB")
    return size


def _check_out(out: Path) -> None:
    """Raises ConfigError where something of the new folder's name, or of that which it has till then, is there."""
    from hpctrain.huggingface.folder import partial_folder

    if os.path.lexists(out):
        raise ConfigError(f"--out {out}: is there already; name a new folder, or remove it")
    if os.path.lexists(partial := partial_folder(out)):
        raise ConfigError(
            f"--out {out}: {partial} is there already, from an export that is under way or was killed; name another folder, or"
            " remove it"
        )


def _checkpoint(run: RunPaths, step: int | None) -> Checkpoint:
    """The newest complete checkpoint, or that of a step.

    Raises:
        ConfigError: there is none.
    """
    from hpctrain.record.checkpoints import read_checkpoints

    found = read_checkpoints(run)
    wanted = [each for each in found.complete if step is None or each.step == step]
    if wanted:
        newest = wanted[-1]
        for each in found.unusable:
            if step is None and each.was_complete and each.folder.name > newest.folder.name:
                _tell(f"note: {each.folder.name} cannot be used: {each.reason}; the next older one is taken")
        return newest
    damaged = "; ".join(f"{each.folder.name}: {each.reason}" for each in found.unusable)
    if step is None:
        raise ConfigError(f"{run.root}: has no complete checkpoint" + (f"; {damaged}" if damaged else ""))
    listed = ", ".join(str(each.step) for each in found.complete) or "none"
    raise ConfigError(
        f"--step {step}: {run.root} has no complete checkpoint of this step; there are: {listed}"
        + (f"; {damaged}" if damaged else "")
    )


def _tell(text: str) -> None:
    print(printable(text), flush=True)
