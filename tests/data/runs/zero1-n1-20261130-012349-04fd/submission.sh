#!/bin/bash
#SBATCH --job-name=zero1-n1
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --gpus-per-node=1
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/home/user/runs/zero1-n1-20261130-012349-04fd/logs/batch.log
#SBATCH --export=ALL

unset SLURM_EXPORT_ENV SRUN_CPUS_PER_TASK SLURM_TRES_PER_TASK
export PYTHONUTF8=1 PYTHONUNBUFFERED=1 SUBMITIT_EXECUTOR=slurm
run_dir=/home/user/runs/zero1-n1-20261130-012349-04fd
python=/home/user/venv/bin/python

srun --export=ALL --kill-on-bad-exit=1 --wait=60 --unbuffered --open-mode=append --output=/home/user/runs/zero1-n1-20261130-012349-04fd/logs/rank-%t.log --cpus-per-task=1 \
    "$python" -u -m submitit.core._submit "$run_dir/logs/submitit"
code=$?
"$python" -m hpctrain.record.close_attempt "$run_dir" "$code"
exit "$code"
