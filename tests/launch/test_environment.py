"""What of the submitting shell reaches a job."""

from __future__ import annotations

from hpctrain.launch.environment import job_environment

SHELL = {
    "PATH": "/bin",
    "HOME": "/home/u",
    "LEAK": "1",
    "PYTHONPATH": "/bogus",
    "SLURM_CONF": "/etc/slurm.conf",
    "SLURM_JOB_ID": "12",
    "SLURM_MEM_PER_CPU": "100",
    "SRUN_CPUS_PER_TASK": "2",
    "SBATCH_EXPORT": "NONE",
    "RANK": "3",
    "SECRET_TOKEN": "x",
    "BASH_FUNC_module%%": "() { eval x; }",
    "MODULEPATH": "/modules",
}


def test_by_default_only_the_named_variables() -> None:
    kept = {"PATH", "HOME", "SLURM_CONF", "BASH_FUNC_module%%", "MODULEPATH"}
    assert job_environment(SHELL, inherit=False) == {name: SHELL[name] for name in kept}


def test_inherited_but_for_an_outer_jobs_variables() -> None:
    kept = job_environment(SHELL, inherit=True)
    assert set(SHELL) - set(kept) == {
        "SLURM_JOB_ID",
        "SLURM_MEM_PER_CPU",
        "SRUN_CPUS_PER_TASK",
        "SBATCH_EXPORT",
        "RANK",
    }
