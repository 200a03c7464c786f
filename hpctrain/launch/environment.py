"""The environment a job is submitted from: defined, not inherited."""

from __future__ import annotations

from collections.abc import Mapping

from hpctrain.plan.run_plan import RANK_IDENTITY

KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "TZ")
CLUSTER_SELECTION = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER")
"""These say which cluster sbatch talks to, so they stay when the rest of an outer job's variables goes."""

_MODULE_PREFIXES = ("BASH_FUNC_module", "BASH_FUNC_ml", "BASH_FUNC__module", "LMOD_", "__LMOD_", "MODULE", "__MODULES_")
_MODULE_NAMES = ("BASH_ENV", "LOADEDMODULES", "_LMFILES_")
"""What ``module load`` in cluster.setup needs: the batch script is no login shell that would define it."""

_OUTER_JOB_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SLURMD_", "PMI", "OMPI_", "SUBMITIT_")
_RANK_VARIABLES = (*RANK_IDENTITY, "MASTER_ADDR", "MASTER_PORT")


def job_environment(shell: Mapping[str, str], inherit: bool) -> dict[str, str]:
    """Variables that sbatch (or a local run) gets, and with it the job.

    Args:
        shell: the submitting process's variables.
        inherit: keep them all (cluster.inherit_env=true), but for those that belong to an outer job.
    """
    if not inherit:
        named = {*KEPT, *CLUSTER_SELECTION, *_MODULE_NAMES}
        return {name: value for name, value in shell.items() if name in named or name.startswith(_MODULE_PREFIXES)}
    return {
        name: value
        for name, value in shell.items()
        if name in CLUSTER_SELECTION or not (name.startswith(_OUTER_JOB_PREFIXES) or name in _RANK_VARIABLES)
    }
