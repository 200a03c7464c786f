"""The environment a job is submitted from: defined, not inherited, and recorded without its secrets."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError, Problem
from hpctrain.plan.job.own_variables import OWN_VARIABLES
from hpctrain.plan.job.variables import RANK_IDENTITY, secret_variables, stated_variables
from hpctrain.record.files import write_json
from hpctrain.record.paths import RunPaths
from hpctrain.record.submission_schema import SCHEMA_VERSION
from hpctrain.secret_text import REDACTED, redact_value

KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TMPDIR", "TZ")
CLUSTER_SELECTION = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER", "SLURM_JWT")
"""These say which cluster sbatch talks to and as whom, so they stay when the rest of an outer job's variables goes."""

_MODULE_PREFIXES = ("BASH_FUNC_module", "BASH_FUNC_ml", "BASH_FUNC__module", "LMOD_", "__LMOD_", "MODULE", "__MODULES_")
_MODULE_NAMES = ("BASH_ENV", "LOADEDMODULES", "_LMFILES_")
"""What ``module load`` in cluster.setup needs: the batch script is no login shell that would define it."""

_OUTER_JOB_PREFIXES = (
    *("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_"),
    *("PMI", "OMPI_", "PRTE_", "PRRTE_", "MV2_COMM_", "SUBMITIT_", "TORCHELASTIC_", "GROUP_", "ROLE_"),
)
"""Of Slurm's jobs and clients, MPI's launchers, submitit and torchrun."""
_OUTER_JOB_NAMES = frozenset(
    (
        *RANK_IDENTITY,
        *OWN_VARIABLES,
        *("MASTER_ADDR", "MASTER_PORT"),
        # Which devices an outer allocation has; the job gets its own list from Slurm.
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        *("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
        # Another interpreter's home and start-up code; the ranks' interpreter is named by its path.
        *("PYTHONHOME", "PYTHONSTARTUP", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__"),
    )
)


def job_environment(shell: Mapping[str, str], inherit: bool) -> dict[str, str]:
    """Variables that sbatch (or a local run) gets, and with it the job.

    PYTHONPATH, VIRTUAL_ENV and CONDA_* are not among them: the interpreter is named by its absolute path, and finds its
    packages by that.

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
        if name in CLUSTER_SELECTION or not (name.startswith(_OUTER_JOB_PREFIXES) or name in _OUTER_JOB_NAMES)
    }


def secret_values(config: Config, shell: Mapping[str, str]) -> dict[str, str]:
    """The variables that reach a job by its environment only, with their values.

    A value of ``env`` is in the configuration where it was typed; a configuration read from a run folder has lost it, and the
    shell's variable of the same name takes its place.

    Raises:
        ConfigError: the shell lacks some of them; all are named.
    """
    stated = stated_variables(config)
    values, problems = {}, []
    for name in secret_variables(config):
        if name in stated and REDACTED not in stated[name]:
            values[name] = stated[name]
        elif name in shell:
            values[name] = shell[name]
        else:
            key, value = (f"env.{name}", REDACTED) if name in stated else ("env_from_shell", name)
            rule = "its value is written to no file and is not in this shell"
            problems.append(Problem(key, value, rule, f"export {name} in this shell and try again"))
    if problems:
        raise ConfigError(problems)
    return values


def write_environment(run: RunPaths, variables: Mapping[str, str], secret_names: Collection[str]) -> None:
    """Keeps what sbatch (or the local controller) was called with in ``environment.json``, secrets left out."""
    shown = {
        name: REDACTED if name in secret_names else redact_value(name, variables[name]) for name in sorted(variables)
    }
    write_json(run.environment, {"schema_version": SCHEMA_VERSION, "variables": shown})
