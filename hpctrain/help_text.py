"""What ``--help`` prints."""

from __future__ import annotations

import re

from hpctrain.config.compose import config_dir, group_choices
from hpctrain.plan.cost.options import COST_HELP

_HELP = """\
python -m hpctrain [VERB] [GROUP=NAME] [KEY=VALUE] ...

Plans, launches and measures large-model training. The verb comes first; without one it is submit.

  submit   plan, check, hand the run to Slurm (or to this machine) and return its job id and run folder
  plan     print the plan, the batch script and the DeepSpeed JSON; needs no Slurm, no GPU, no torch   [--json]
           or plan each row of a table of runs of any trainer     --table ROWS.csv -o OUT.csv
           or learn from past runs how their step times differ    --calibrate RUNS ... [-o FILE]
           or answer one question, instead of printing a plan     --largest | --fewest-nodes | --best-micro-batch
  rehearse one rank of the run under the real engine on a simulated cluster: memory, collectives, FLOPs
                                                     [--quick | --device cuda|cpu] [--rank N] [--steps 2] [--out FOLDER]
                                                     [--json]
  prepare  text, JSON lines, Parquet to token files  FILES ... --out PREFIX (--tokenizer FILE|bytes | --train-bpe N)
                                                     [--check PREFIX]; prepare --help tells the rest
  status   state of runs: step, loss, step time      [FOLDER ...] [--watch] [--state STATE] [--last N] [--json]
  logs     what a run printed                        RUN [--rank N|all] [--attempt N] [--follow] [--tail N] [--grep REGEX]
  report   measured numbers of runs and logs         [FOLDER ...] [-o FILE.html|.csv|.parquet|.tex|.md] [--json]
                                                     [--against BASE [--tolerance 0.05]]
  read-log a training log of another system          FILE ... [--json]
  cancel   end the jobs of runs, sweeps and chains   RUN ...
  resume   the same run again, from its checkpoint   RUN ... [KEY=VALUE ...] [--from-step N] [--current-code] [--state STATE]
  rerun    a new run with an old one's configuration RUN ... [KEY=VALUE ...] [--state STATE]
  export   a checkpoint as a Hugging Face folder     RUN --out FOLDER [--step N] [--dtype bf16|fp32|fp16] [--shard-size 5GB]
                                                     [--tokenizer FILE] [--no-check]
  diff     what differs between two runs, by key     RUN RUN [--json]     exit code 0 nothing, 1 something
  doctor   what this cluster and this machine have, and what to do where something is missing
                                                     [run.root=FOLDER] [cluster=local] [--json]

Options of submit and plan:
  -m, --multirun      a sweep: comma lists, range(), choice() and glob() give one run for each combination
  --config-dir DIR    a site's own group files, beside the shipped ones
  --cfg job           print the whole configuration and do nothing
  --force             submit although the memory estimate, or what the site told, says that it cannot run, or a bandwidth
                      lacks that its predicted time needs
  --calibration FILE  correct the predicted step by what past runs took (plan --calibrate); without it
                      calibration.json in run.root is taken, where there is one; --no-calibration: none
  --info, --shell-completion, --hydra-help   answered by Hydra
  --version

Options of plan:
  --rehearse          rehearse it (as rehearse --quick), and let that decide whether it fits
  --largest           the largest model of this width that fits: model.num_layers is looked for
  --trainer NAME      --largest by the memory of another trainer, such as megatron_deepspeed_2022
  --fewest-nodes      the fewest nodes on which the model fits with a tenth of each tier free, and what more would bring
  --max-nodes N       --fewest-nodes looks at no more than these (1024)
  --best-micro-batch  the micro batches that fit, with their predicted speeds
  --picture FILE      draw where the bytes of each tier go (.png or .svg); of a sweep a bar a point
  --site              hold the plan against what Slurm says of this cluster, and print that; submit always does
{costs}
Groups (GROUP=NAME; any key below them: GROUP.KEY=VALUE):
{groups}

Examples:
  python -m hpctrain model=tiny cluster=local                      train on this machine
  python -m hpctrain plan model=530b nodes=128                     look before you leap
  python -m hpctrain model=530b nodes=128                          submit to Slurm
  python -m hpctrain model=530b nodes=128 parallelism=zero3        state the form; left out, the plan chooses it
  python -m hpctrain -m model=175b nodes=16,32,64,128              a sweep
  python -m hpctrain -m experiment=azure_fig5b                     a published figure as a sweep

Exit codes: 0 done, 1 failed without a code of its own, 2 configuration or nothing to read, 3 does not fit, 4 launch,
5 slower than the baseline, stopped working, or more runs failed; a followed run that failed: that of its end reason.
"""


def help_text() -> str:
    """Verbs, options, and the groups with their files as they are shipped."""
    groups = sorted(path.name for path in config_dir().iterdir() if path.is_dir())
    return _HELP.format(
        costs=COST_HELP, groups="\n".join(f"  {group:<12} {', '.join(group_choices(group))}" for group in groups)
    )


def option_names() -> list[str]:
    """Every long option that ``--help`` names, of all verbs."""
    return sorted(set(re.findall(r"--[a-z][a-z-]*[a-z]", _HELP + COST_HELP)))
