"""``python -m hpctrain.launch.rank_entry RUN_DIR``: what every rank runs; a path is all that it is given, nothing is pickled."""

from __future__ import annotations

import json
import sys


def run_rank(run_dir: str) -> None:
    """Runs this rank of the job in ``run_dir``; torch is imported in here and not where runs are submitted."""
    if _payload(run_dir) == "launch_check":
        from hpctrain.worker.launch_check import run as check

        check(run_dir)
    from hpctrain.worker.job import run

    run(run_dir)


def _payload(run_dir: str) -> str:
    """Looked up without the schema's readers, which take longer than a whole launch check.

    Empty if the plan cannot be read: ``worker.job`` waits for it, or says why and leaves it in the record.
    """
    try:
        with open(f"{run_dir}/plan.json", encoding="utf-8") as stream:
            return str(json.load(stream).get("payload", ""))
    except (OSError, ValueError, AttributeError):
        return ""


if __name__ == "__main__":
    run_rank(sys.argv[1])
