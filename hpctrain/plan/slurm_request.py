"""The Slurm request of a run and the batch script that carries it; pure text, tested without Slurm."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from hpctrain.config.schema import ClusterConfig, HardwareConfig
from hpctrain.errors import Problem, nearest_names
from hpctrain.plan.layout import Layout
from hpctrain.units import duration_in_words, parse_slurm_time

_EXTRA_OPTIONS = frozenset(
    "acctg-freq batch bb bbf begin clusters cluster-constraint container contiguous core-spec cores-per-socket"
    " cpu-freq cpus-per-gpu deadline delay-boot dependency distribution extra-node-info gid"
    " gpu-bind gpu-freq gpus gpus-per-socket gpus-per-task gres-flags hint hold ignore-pbs kill-on-invalid-dep"
    " licenses mail-type mail-user mcs-label mem-bind mem-per-cpu mem-per-gpu mincpus network nice no-kill"
    " ntasks-per-core ntasks-per-socket overcommit oversubscribe power prefer priority profile propagate reboot"
    " segment sockets-per-node spread-job switches thread-spec threads-per-core time-min tmp tres-per-task uid"
    " use-min-nodes wait-all-nodes wckey x11".split()
)
"""Long options of sbatch(1) that a site may need. Source: the manual pages of Slurm 22.05 to 24.11."""
_SHORT_LIMIT_S = 600
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN_OPTIONS = frozenset(
    "nodes ntasks ntasks-per-node job-name output error open-mode time partition account qos constraint reservation"
    " nodelist exclude comment exclusive mem cpus-per-task gpus-per-node gres signal requeue no-requeue export"
    " chdir array".split()
)


@dataclass(frozen=True)
class SlurmRequest:
    """What is asked of Slurm: one task per GPU, GPUs per node so that peers see each other."""

    job_name: str
    num_nodes: int
    tasks_per_node: int
    cpus_per_task: int | None
    options: dict[str, str] = field(default_factory=dict)
    """Long sbatch option to value; an empty value is a flag."""
    requeue: bool = True
    setup: tuple[str, ...] = ()
    srun_args: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def build_slurm_request(
    job_name: str, cluster: ClusterConfig, hardware: HardwareConfig, layout: Layout, env: dict[str, str]
) -> tuple[SlurmRequest, tuple[Problem, ...]]:
    """The request for one run, and what is wrong with it."""
    gpu_option = _gpu_option(cluster, hardware)
    problems = [
        *_time_problems(cluster),
        *_extra_problems(cluster),
        *_gpu_problems(cluster, gpu_option),
        *_text_problems(cluster, env),
    ]
    cpus_per_task = cluster.cpus_per_task
    if cpus_per_task is None and hardware.cpu_cores_per_node is not None:
        cpus_per_task = max(1, hardware.cpu_cores_per_node // layout.gpus_per_node)
    options = {
        "time": cluster.time,
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
        "reservation": cluster.reservation,
        "nodelist": cluster.nodelist,
        "exclude": cluster.exclude,
        "comment": cluster.comment,
        "mem": cluster.memory_per_node,
        "exclusive": True if cluster.exclusive else None,
        **gpu_option,
        "signal": f"USR1@{cluster.signal_lead_s}",
        **{key.replace("_", "-"): value for key, value in cluster.extra.items()},
    }
    request = SlurmRequest(
        job_name=slurm_safe_name(job_name),
        num_nodes=layout.num_nodes,
        tasks_per_node=layout.gpus_per_node,
        cpus_per_task=cpus_per_task,
        options={
            name: "" if value is True else str(value)
            for name, value in options.items()
            if value is not None and value is not False
        },
        requeue=cluster.requeue,
        setup=cluster.setup,
        srun_args=cluster.srun_args,
        environment=env,
    )
    return request, tuple(problems)


def slurm_safe_name(name: str) -> str:
    """A job or folder name that survives sbatch's directives, squeue's tables and a C locale.

    >>> slurm_safe_name("my run (1) x|y")
    'my-run-1-x-y'
    """
    return re.sub(r"[^\w.=+-]+", "-", name, flags=re.ASCII).strip("-") or "hpctrain"


def _gpu_option(cluster: ClusterConfig, hardware: HardwareConfig) -> dict[str, str]:
    form = cluster.gpu_request
    if form == "auto":
        form = "gpus_per_node" if hardware.device == "cuda" else "none"
    if form == "none":
        return {}
    count = f"{cluster.gpu_type}:{hardware.gpus_per_node}" if cluster.gpu_type else str(hardware.gpus_per_node)
    return {"gres": f"gpu:{count}"} if form == "gres" else {"gpus-per-node": count}


def _gpu_problems(cluster: ClusterConfig, gpu_option: dict[str, str]) -> list[Problem]:
    """A second way to ask for GPUs contradicts the first."""
    names = {key.replace("_", "-"): key for key in cluster.extra}
    return [
        Problem(
            f"cluster.extra.{names[name]}",
            str(cluster.extra[names[name]]),
            f"--{name} contradicts --{next(iter(gpu_option))}={next(iter(gpu_option.values()))}",
            "leave it out, or set cluster.gpu_request=none",
        )
        for name in ("gpus", "gpus-per-task", "gpus-per-socket")
        if name in names and gpu_option
    ]


def request_warnings(cluster: ClusterConfig, layout: Layout) -> tuple[str, ...]:
    """What is allowed and often not meant."""
    warnings = []
    if any(key.replace("_", "-") == "gpu-bind" for key in cluster.extra):
        warnings.append(
            "cluster.extra.gpu-bind hides a node's GPUs from each other: NCCL then goes through host memory"
        )
    try:
        limit_s = None if cluster.time is None else parse_slurm_time(cluster.time)
    except ValueError:  # told among the problems
        limit_s = None
    if limit_s is not None and limit_s < _SHORT_LIMIT_S and layout.num_nodes > 1:
        words = duration_in_words(limit_s)
        warnings.append(
            f"cluster.time={cluster.time} is {words}: short for {layout.num_nodes} nodes; hours are H:MM:SS"
        )
    return tuple(warnings)


def _time_problems(cluster: ClusterConfig) -> list[Problem]:
    if cluster.time is None:
        return []
    try:
        limit_s = parse_slurm_time(cluster.time)
    except ValueError as error:
        forms = "minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes[:seconds]"
        return [Problem("cluster.time", cluster.time, str(error), f"write it as {forms}")]
    if limit_s is not None and cluster.signal_lead_s >= limit_s:
        rule = f"the warning must come after the start and before cluster.time={cluster.time} ({limit_s} s)"
        return [Problem("cluster.signal_lead_s", str(cluster.signal_lead_s), rule, f"nearest: {max(1, limit_s // 2)}")]
    return []


def _text_problems(cluster: ClusterConfig, env: dict[str, str]) -> list[Problem]:
    """What a shell script or its directives cannot carry."""
    texts = {f"cluster.{key}": value for key, value in vars(cluster).items() if isinstance(value, str)}
    texts |= {f"cluster.extra.{key}": str(value) for key, value in cluster.extra.items()}
    problems = [
        Problem(key, repr(value), "must be printable and on one line, or it ends the directives", "take the sign out")
        for key, value in texts.items()
        if not value.isprintable()
    ]
    problems += [
        Problem(f"env.{name}", value, "is no name of an environment variable", "letters, digits and _, no digit first")
        for name, value in env.items()
        if not _VARIABLE_NAME.fullmatch(name)
    ]
    memory_forms = [key for key in cluster.extra if key.replace("_", "-") in ("mem-per-cpu", "mem-per-gpu")]
    if cluster.memory_per_node is not None and memory_forms:
        rule = f"contradicts cluster.memory_per_node={cluster.memory_per_node}: Slurm takes one of them"
        key = memory_forms[0]
        problems.append(Problem(f"cluster.extra.{key}", str(cluster.extra[key]), rule, "leave one out"))
    return problems


def _extra_problems(cluster: ClusterConfig) -> list[Problem]:
    problems = []
    for key in cluster.extra:
        name = key.replace("_", "-")
        if name in _OWN_OPTIONS:
            problems.append(
                Problem(
                    f"cluster.extra.{key}",
                    str(cluster.extra[key]),
                    f"--{name} is set by hpctrain itself",
                    "use the key of the group cluster (or nodes, hardware.gpus_per_node, run.name)",
                )
            )
        elif name not in _EXTRA_OPTIONS:
            close = nearest_names(name, _EXTRA_OPTIONS | _OWN_OPTIONS)
            fix = f"nearest: {', '.join(close)}" if close else "see sbatch(1)"
            problems.append(
                Problem(f"cluster.extra.{key}", str(cluster.extra[key]), "is no long option of sbatch", fix)
            )
    return problems


def sbatch_script(request: SlurmRequest, run_dir: str, python: str) -> str:
    """The batch script, whole.

    Args:
        request: what is asked for.
        run_dir: absolute path of the run folder, without ``%`` (sbatch expands it in output paths).
        python: absolute path of the interpreter on the nodes.

    ``--export=ALL`` is safe since ``hpctrain.launch.environment`` defines what sbatch is called with. Variables of an outer
    job that would contradict the request are removed once more, for a script that is submitted by hand.

    The script keeps the first failing code of the step and hands it to ``close_attempt``, which writes the end marker where
    the ranks could not (killed, out of memory, srun refused).
    """
    directives = [
        f"--job-name={request.job_name}",
        f"--nodes={request.num_nodes}",
        f"--ntasks-per-node={request.tasks_per_node}",
        *([f"--cpus-per-task={request.cpus_per_task}"] if request.cpus_per_task else []),
        *(f"--{name}={value}" if value else f"--{name}" for name, value in request.options.items()),
        "--requeue" if request.requeue else "--no-requeue",
        "--open-mode=append",
        f"--output={run_dir}/logs/batch.log",
        "--export=ALL",
    ]
    srun = [
        "srun",
        "--export=ALL",
        "--kill-on-bad-exit=1",
        "--wait=60",
        "--unbuffered",
        "--open-mode=append",
        f"--output={run_dir}/logs/rank-%t.log",
        *([f"--cpus-per-task={request.cpus_per_task}"] if request.cpus_per_task else []),
        *request.srun_args,
    ]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {_directive(option)}" for option in directives),
        "",
        "unset SLURM_EXPORT_ENV SRUN_CPUS_PER_TASK SLURM_TRES_PER_TASK",
        "export PYTHONUTF8=1 PYTHONUNBUFFERED=1 SUBMITIT_EXECUTOR=slurm",
        *(f"export {name}={shlex.quote(value)}" for name, value in request.environment.items()),
        f"run_dir={shlex.quote(run_dir)}",
        f"python={shlex.quote(python)}",
        *_setup_lines(request.setup),
        "",
        shlex.join(srun) + " \\",
        '    "$python" -u -m submitit.core._submit "$run_dir/logs/submitit"',
        "code=$?",
        '"$python" -m hpctrain.record.close_attempt "$run_dir" "$code"',
        'exit "$code"',
        "",
    ]
    return "\n".join(lines)


def _setup_lines(setup: tuple[str, ...]) -> list[str]:
    """Each line of the user's, and the end of the job where it fails: ranks must not start without their modules."""
    if not setup:
        return []
    close = '"$python" -m hpctrain.record.close_attempt "$run_dir" "$1" "cluster.setup: $2"'
    lines = ["setup_failed() {", f"    {close}", '    exit "$1"', "}"]
    for line in setup:
        lines += [f"{{ {line}", f"}} || setup_failed $? {shlex.quote(line)}"]
    return lines


def _directive(option: str) -> str:
    """sbatch splits directives at blanks and honours quotes."""
    return option if re.fullmatch(r"[\w@%+=:,./\[\]-]*", option) else shlex.quote(option)
