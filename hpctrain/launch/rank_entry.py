"""What submitit calls in every rank: a named function with a path, so that nothing of the user's is pickled."""

from __future__ import annotations


def run_rank(run_dir: str) -> None:
    """Runs this rank of the job in ``run_dir``; torch is imported in here and not where runs are submitted."""
    from hpctrain.worker.job import run

    run(run_dir)
