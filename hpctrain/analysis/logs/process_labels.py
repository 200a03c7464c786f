"""Labels that launchers put before each line: which process printed it."""

from __future__ import annotations

import re

_LABEL = re.compile(
    r"""
      \[(?P<torchrun>[A-Za-z_]+\d+)\]:                                  # torchrun --tee, c10d: [default7]: [rank0]:
    | [ ]*(?P<srun>\d{1,6}):(?=\ |$)                                    # srun -l, right-aligned
    | (?P<procid>slurm_procid\ \d+)\ ?:(?=\ )                            # metaseq's own launcher
    | \[(?P<mpirun>(?:[\w.@-]+@)?\d+,\d+)\]<(?:stdout|stderr|stddiag)>: # mpirun --tag-output
    | (?P<torchx>[\w.-]+/\d+)\ (?=\[[A-Za-z_]+\d+\]:)                   # torchx, NeMo-Run: role/replica
    | \[(?P<kubectl>pod/[\w./-]+)\]                                     # kubectl logs --prefix
    | \((?P<ray>[\w.]+\ pid=\d+(?:,\ ip=[\d.]+)?)\)                     # Ray
    | (?P<host>(?!step|iter|epoch|batch)(?:\d+\.\d+\.\d+\.\d+|(?=[\w.-]*\d)[A-Za-z][\w.-]*)):(?=\ )   # pdsh, DeepSpeed
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""A label ends in a sign that data and time stamps lack: ``12: `` is a label, ``12:30:01`` and ``12.5: `` are not."""

_WITH_BLANK = frozenset({"srun", "procid", "host", "kubectl", "ray"})
"""Kinds whose blank before the text is the label's."""
TRAIT_OF_KIND = {"torchrun": "torchrun_label", "srun": "srun_label"}
"""Kinds with a trait of their own; all have ``process_label``."""


def split_label(text: str) -> tuple[str, str, str]:
    """The label next to the text, the text behind all labels, and the kinds of labels found, joined by blanks.

    >>> split_label("12: [default7]: iteration 5")
    ('default7', ' iteration 5', 'srun torchrun')
    >>> split_label("12:30:01 step 3"), split_label("[1,0]<stdout>:loss 2")
    (('', '12:30:01 step 3', ''), ('1,0', 'loss 2', 'mpirun'))
    """
    label, kinds = "", ""
    while match := _LABEL.match(text):
        kind = str(match.lastgroup)
        label = match[kind]
        kinds = f"{kinds} {kind}" if kinds else kind
        text = text[match.end() :]
        if kind in _WITH_BLANK:
            text = text.removeprefix(" ")
    return label, text, kinds
