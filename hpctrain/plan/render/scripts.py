"""The batch scripts that a submission would hand to Slurm, with names in place of what is made then."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.config.schema import Config
from hpctrain.plan.job.batch_script import ScriptTarget, TaskArray, sbatch_script
from hpctrain.plan.job.slurm_request import SlurmRequest
from hpctrain.plan.run_plan import RunPlan
from hpctrain.plan.site.limits import Site
from hpctrain.plan.sweep.groups import array_request, array_spec, group_points, largest_array, point_shape

UNNAMED_RUN_DIR = "RUN_DIR"
"""Stands for the run folder, which gets its name at submission."""
UNNAMED_SWEEP_DIR = "SWEEP_DIR"
UNNAMED_SNAPSHOT = "CODE_SNAPSHOT"
UNNAMED_KEY = "hpctrain-KEY"


def planned_script(request: SlurmRequest, python: str, runs: str | TaskArray = UNNAMED_RUN_DIR) -> str:
    """The script of one run, or of an array, as it would be submitted."""
    key = UNNAMED_KEY if request.takes_key else ""
    return sbatch_script(request, ScriptTarget(runs, python, UNNAMED_SNAPSHOT, key))


def planned_sweep_scripts(points: Sequence[tuple[Config, RunPlan]], python: str, site: Site | None) -> list[str]:
    """One script for each group of points that share an array, in the order of their submission.

    Args:
        points: of the sweep; those that would be refused are left out.
        python: interpreter of the ranks.
        site: bounds the arrays; None: not asked.
    """
    good = [(config, plan) for config, plan in points if plan.cluster_kind == "slurm" and not plan.problems]
    shapes = [point_shape(config, plan.slurm) for config, plan in good]
    sizes = {shape: largest_array(site, plan.slurm) for shape, (_, plan) in zip(shapes, good, strict=True)}
    scripts = []
    for number, members in enumerate(group_points(shapes, sizes)):
        requests = [good[index][1].slurm for index in members]
        spec = array_spec(len(members), good[members[0]][0].launch.max_running)
        array = TaskArray(UNNAMED_SWEEP_DIR, number, spec)
        runs = array if len(members) > 1 else array.run_dir(0)
        scripts.append(planned_script(array_request(requests, UNNAMED_SWEEP_DIR), python, runs))
    return scripts
