"""The Slurm request of a run: what is asked for, and what is wrong with it; ``batch_script`` writes it down."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field

from hpctrain.config.schema import ClusterConfig, Config, ContainerConfig, HardwareConfig
from hpctrain.errors import Problem
from hpctrain.plan.job.container import container_problems, container_warnings
from hpctrain.plan.job.sbatch_options import (
    MEMORY_FORM,
    MEMORY_RULE,
    TIME_FORMS,
    asks_for_cpus,
    extra_options,
    extra_problems,
)
from hpctrain.plan.job.variables import rank_environment, secret_variables, variable_problems
from hpctrain.plan.layout import Layout
from hpctrain.plan.rules.data import named_paths
from hpctrain.secret_text import holds_secret, redact_text
from hpctrain.units import duration_in_words, parse_slurm_time, stated_limit_s

_SHORT_LIMIT_S = 600
_SIGNAL_MAY_BE_EARLY_S = 60
"""Source: sbatch(1), --signal: Slurm looks at times now and then, so that the signal may come up to 60 s before its time."""
_SRUN_OWN = frozenset(
    "output error input export nodes ntasks ntasks-per-node cpus-per-task open-mode jobid multi-prog pty container-image"
    " container-mounts".split()
)
"""Options of srun that the batch script sets, or that would start something else than one task a GPU."""
_SRUN_OWN_SHORT = tuple("-o -e -i -N -n -c".split())


@dataclass(frozen=True)
class SlurmRequest:
    """What is asked of Slurm: one task per GPU, GPUs per node so that peers see each other."""

    job_name: str
    num_nodes: int
    tasks_per_node: int
    cpus_per_task: int | None
    options: dict[str, str] = field(default_factory=dict)
    """Long sbatch option to value; an empty value is a flag."""
    requeue: bool | None = True
    """None: as the site has it."""
    setup: tuple[str, ...] = ()
    srun_args: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that the script sets; none of them is secret."""
    secret_names: tuple[str, ...] = ()
    """Variables that the job must get from what sbatch is called with; their values are in no file."""
    inherit_env: bool = False
    takes_key: bool = True
    """Its comment is free for the text by which the job is found again."""
    container: ContainerConfig = field(default_factory=ContainerConfig)
    has_gpus: bool = False
    is_chain: bool = False
    """At its end the script requeues its job, or cancels the later jobs of the chain that are not needed."""


def build_slurm_request(job_name: str, config: Config, layout: Layout) -> tuple[SlurmRequest, tuple[Problem, ...]]:
    """The request for one run, and what is wrong with it."""
    cluster, hardware = config.cluster, config.hardware
    gpus = gpu_option(cluster, hardware)
    extra = extra_options(cluster.extra)
    cpus_per_task = cluster.cpus_per_task
    if cpus_per_task is None and hardware.cpu_cores_per_node is not None and not asks_for_cpus(extra):
        cpus_per_task = max(1, hardware.cpu_cores_per_node // layout.gpus_per_node)
    # A gres of another kind stands beside ours in one option.
    if "gres" in gpus and "gres" in extra:
        extra["gres"] = f"{gpus['gres']},{extra['gres']}"
    options: dict[str, str | bool | None] = {
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
        "exclusive": cluster.exclusive,
        **gpus,
        "signal": f"{cluster.signal}@{cluster.signal_lead_s}" if cluster.signal else None,
        **extra,
    }
    request = SlurmRequest(
        job_name=slurm_safe_name(job_name),
        num_nodes=layout.num_nodes,
        tasks_per_node=layout.gpus_per_node,
        cpus_per_task=cpus_per_task,
        options={
            name: "" if value is True else redact_text(str(value))
            for name, value in options.items()
            if value is not None and value is not False
        },
        requeue=cluster.requeue,
        setup=tuple(map(redact_text, cluster.setup)),
        srun_args=tuple(map(redact_text, cluster.srun_args)),
        environment=rank_environment(config),
        secret_names=secret_variables(config),
        inherit_env=cluster.inherit_env,
        takes_key=config.launch.comment_key and cluster.comment is None,
        container=_without_secrets(cluster.container),
        has_gpus=hardware.device == "cuda",
        is_chain=config.launch.chain != "none",
    )
    return request, _problems(config, gpus)


def _problems(config: Config, gpus: dict[str, str]) -> tuple[Problem, ...]:
    cluster = config.cluster
    problems = [
        *_time_problems(cluster),
        *extra_problems(cluster, gpus, config.launch.chain),
        *_text_problems(cluster),
        *_srun_problems(cluster),
        *_secret_problems(config),
        *variable_problems(config),
        *container_problems(cluster.container),
    ]
    if cluster.container.runtime != "none" and cluster.kind != "slurm":
        rule = f"is started by srun, and cluster={cluster.name} has none"
        problems.append(Problem("cluster.container.runtime", cluster.container.runtime, rule, "leave it out"))
    if config.launch.chain == "requeue" and cluster.requeue is False:
        rule = "launch.chain=requeue starts the same job again, which this forbids"
        problems.append(Problem("cluster.requeue", "false", rule, "set it to true, or launch.chain=dependency"))
    return tuple(problems)


def _without_secrets(container: ContainerConfig) -> ContainerConfig:
    """The same, unless it holds a secret: such a request is refused, and must not be shown with it either."""
    return dataclasses.replace(
        container,
        image=None if container.image is None else redact_text(container.image),
        mounts=tuple(map(redact_text, container.mounts)),
        args=tuple(map(redact_text, container.args)),
    )


def slurm_safe_name(name: str) -> str:
    """A job or folder name that survives sbatch's directives, squeue's tables and a C locale, and is not hidden.

    >>> slurm_safe_name("my run (1) x|y")
    'my-run-1-x-y'
    """
    return re.sub(r"[^\w.=+-]+", "-", name, flags=re.ASCII).strip("-").lstrip("-.") or "hpctrain"


def gpu_option(cluster: ClusterConfig, hardware: HardwareConfig) -> dict[str, str]:
    """The sbatch option that asks for a node's GPUs; empty: none are asked for."""
    form = cluster.gpu_request
    if form == "auto":
        form = "gpus_per_node" if hardware.device == "cuda" else "none"
    if form == "none":
        return {}
    count = f"{cluster.gpu_type}:{hardware.gpus_per_node}" if cluster.gpu_type else str(hardware.gpus_per_node)
    return {"gres": f"gpu:{count}"} if form == "gres" else {"gpus-per-node": count}


def request_warnings(cluster: ClusterConfig, hardware: HardwareConfig, layout: Layout) -> tuple[str, ...]:
    """What is allowed and often not meant."""
    warnings = []
    bound = [f"cluster.extra.{key}" for key in cluster.extra if key.replace("_", "-") == "gpu-bind"]
    bound += [f"cluster.srun_args={word}" for word in cluster.srun_args if word.startswith("--gpu-bind")]
    if bound:
        option = bound[0].replace("_", "-") if bound[0].startswith("cluster.extra") else bound[0]
        warnings.append(f"{option} hides a node's GPUs from each other: NCCL then goes through host memory")
    if cluster.gpu_type is not None and not gpu_option(cluster, hardware):
        warnings.append(f"cluster.gpu_type={cluster.gpu_type} is not used: no GPU is asked for (cluster.gpu_request)")
    limit_s = stated_limit_s(cluster.time)
    if limit_s is not None and limit_s < _SHORT_LIMIT_S and layout.num_nodes > 1:
        words = duration_in_words(limit_s)
        warnings.append(
            f"cluster.time={cluster.time} is {words}: short for {layout.num_nodes} nodes; hours are H:MM:SS"
        )
    lead_s = cluster.signal_lead_s
    if limit_s is not None and cluster.signal and lead_s < limit_s <= lead_s + _SIGNAL_MAY_BE_EARLY_S:
        warnings.append(
            f"cluster.signal_lead_s={lead_s}: Slurm may send {cluster.signal} up to {_SIGNAL_MAY_BE_EARLY_S} s earlier, and"
            f" cluster.time={cluster.time} is {limit_s} s: the run may be told to stop as soon as it starts; ask for more"
            " time or a shorter lead"
        )
    return (*warnings, *container_warnings(cluster.container, layout))


def _time_problems(cluster: ClusterConfig) -> list[Problem]:
    if cluster.time is None:
        return []
    try:
        limit_s = parse_slurm_time(cluster.time)
    except ValueError as error:
        return [Problem("cluster.time", cluster.time, str(error), f"write it as {TIME_FORMS}")]
    if limit_s is not None and cluster.signal and cluster.signal_lead_s >= limit_s:
        rule = f"the warning must come after the start and before cluster.time={cluster.time} ({limit_s} s)"
        return [Problem("cluster.signal_lead_s", str(cluster.signal_lead_s), rule, f"nearest: {max(1, limit_s // 2)}")]
    return []


def _text_problems(cluster: ClusterConfig) -> list[Problem]:
    """What a shell script or its directives cannot carry."""
    texts = {f"cluster.{key}": value for key, value in vars(cluster).items() if isinstance(value, str)}
    problems = [
        Problem(key, repr(value), "must be printable and on one line, or it ends the directives", "take the sign out")
        for key, value in texts.items()
        if not value.isprintable()
    ]
    problems += [
        Problem(key, value, "must be the value alone", f"write {value.lstrip('-').partition('=')[2] or 'the value'}")
        for key, value in texts.items()
        if value.startswith("--")
    ]
    if cluster.memory_per_node is not None and not MEMORY_FORM.fullmatch(cluster.memory_per_node):
        problems.append(Problem("cluster.memory_per_node", cluster.memory_per_node, *MEMORY_RULE))
    if cluster.gpu_type is not None and not re.fullmatch(r"[\w.-]+", cluster.gpu_type):
        rule = "must be the name alone of a GPU type in the site's gres.conf"
        problems.append(Problem("cluster.gpu_type", cluster.gpu_type, rule, "such as a100; sinfo -o %G lists them"))
    problems += [
        Problem("cluster.setup", repr(line), "holds a sign that a script cannot", "take the sign out")
        for line in cluster.setup
        if "\0" in line
    ]
    return problems


def _srun_problems(cluster: ClusterConfig) -> list[Problem]:
    """Words that srun would take for the program, or options that the script sets."""
    problems = []
    for word in cluster.srun_args:
        name = word.lstrip("-").partition("=")[0]
        if not word.startswith("-") or word in ("-", "--"):
            rule, fix = (
                "srun would take this word for the program to start",
                "write an option and its value as one word",
            )
        elif not word.isprintable():
            rule, fix = "must be printable and on one line", "take the sign out"
        elif (word.startswith("--") and name in _SRUN_OWN) or word.startswith(_SRUN_OWN_SHORT):
            rule, fix = "is set by the batch script itself", "leave it out"
        else:
            continue
        problems.append(Problem("cluster.srun_args", word, rule, fix))
    return problems


def _secret_problems(config: Config) -> list[Problem]:
    """Secrets in what is written to the batch script or the records."""
    cluster, container = config.cluster, config.cluster.container
    texts = [(f"cluster.{key}", value) for key, value in vars(cluster).items() if isinstance(value, str)]
    texts += [(f"cluster.extra.{key}", str(value)) for key, value in cluster.extra.items()]
    texts += [(f"cluster.azureml.{key}", str(value)) for key, value in cluster.azureml.items()]
    texts += [("cluster.setup", line) for line in cluster.setup]
    texts += [("cluster.srun_args", word) for word in cluster.srun_args]
    texts += [("cluster.container.image", container.image or "")]
    texts += [("cluster.container.mounts", word) for word in container.mounts]
    texts += [("cluster.container.args", word) for word in container.args]
    texts += [*named_paths(config.data), ("run.root", config.run.root), ("run.note", config.run.note)]
    texts += [("run.name", config.run.name or "")]
    rule = "holds a secret, which would be written to the run folder"
    advice = "export it in your shell and name it in env_from_shell=[NAME]"
    return [
        Problem(key, text, rule, f"{advice}; write $NAME here" if key == "cluster.setup" else f"leave it out; {advice}")
        for key, text in texts
        if holds_secret(key.rpartition(".")[2], text)
    ]
