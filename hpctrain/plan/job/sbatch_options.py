"""``cluster.extra``: which options sbatch knows, which are ours, and which contradict each other."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hpctrain.config.schema import ClusterConfig
from hpctrain.errors import Problem, nearest_names
from hpctrain.units import parse_slurm_time

Extra = Mapping[str, str | int | bool | None]

_FLAGS = frozenset(
    "consolidate-segments contiguous hold ignore-pbs overcommit oversubscribe reboot spread-job spread-segments stepmgr"
    " use-min-nodes".split()
)
_WITH_OPTIONAL_VALUE = frozenset("exclusive nice no-kill oom-kill-step propagate resv-ports x11".split())
_WITH_VALUE = frozenset(
    "acctg-freq batch bb bbf begin cluster-constraint clusters container container-id core-spec cores-per-socket cpu-freq"
    " cpus-per-gpu deadline delay-boot dependency distribution extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-socket"
    " gpus-per-task gres gres-flags hint kill-on-invalid-dep licenses mail-type mail-user mcs-label mem-bind mem-per-cpu"
    " mem-per-gpu mincpus network nodefile ntasks-per-core ntasks-per-socket power prefer priority profile resources segment"
    " sockets-per-node switches thread-spec threads-per-core time-min tmp tres-bind tres-per-task uid wait-all-nodes"
    " wckey".split()
)
EXTRA_OPTIONS = _FLAGS | _WITH_OPTIONAL_VALUE | _WITH_VALUE
"""Long options of sbatch(1) that a site may need. Source: the manual pages of Slurm 19.05 to 25.05; tried on 22.05."""

OWN_KEYS = {
    "account": "cluster.account",
    "array": "-m with lists of values makes arrays",
    "chdir": "leave it out: jobs work in their run folder",
    "comment": "cluster.comment",
    "constraint": "cluster.constraint",
    "cpus-per-task": "cluster.cpus_per_task",
    "error": "leave it out: logs are in the run folder",
    "exclude": "cluster.exclude",
    "export": "env.NAME=VALUE, env_from_shell or cluster.inherit_env",
    "export-file": "env.NAME=VALUE, env_from_shell or cluster.inherit_env",
    "get-user-env": "cluster.inherit_env or cluster.setup",
    "gpus-per-node": "hardware.gpus_per_node, cluster.gpu_request and cluster.gpu_type",
    "help": "leave it out",
    "input": "leave it out: ranks read no standard input",
    "job-name": "run.name",
    "mem": "cluster.memory_per_node",
    "no-requeue": "cluster.requeue=false",
    "nodelist": "cluster.nodelist",
    "nodes": "nodes",
    "ntasks": "nodes and hardware.gpus_per_node",
    "ntasks-per-gpu": "leave it out: one task a GPU is what is asked for",
    "ntasks-per-node": "hardware.gpus_per_node",
    "open-mode": "leave it out: logs are appended to",
    "output": "leave it out: logs are in the run folder",
    "parsable": "leave it out",
    "partition": "cluster.partition",
    "qos": "cluster.qos",
    "quiet": "leave it out",
    "requeue": "cluster.requeue",
    "reservation": "cluster.reservation",
    "signal": "cluster.signal_lead_s",
    "test-only": "the word plan first",
    "time": "cluster.time",
    "usage": "leave it out",
    "verbose": "leave it out",
    "version": "leave it out",
    "wait": "cluster.wait",
    "wrap": "cluster.setup",
}
"""Options that hpctrain sets itself, each with the key that says it."""
_SHORT_NAMES = {
    "A": "account", "a": "array", "b": "begin", "C": "constraint", "c": "cpus-per-task", "D": "chdir", "d": "dependency",
    "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses",
    "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks", "o": "output", "O": "overcommit", "p": "partition",
    "q": "qos", "S": "core-spec", "s": "oversubscribe", "t": "time", "W": "wait", "w": "nodelist", "x": "exclude",
}  # fmt: skip
_GPU_FORMS = ("gpus", "gpus-per-task", "gpus-per-socket")
_MEMORY_FORMS = ("mem-per-cpu", "mem-per-gpu")
TIME_FORMS = "minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes[:seconds]"
MEMORY_FORM = re.compile(r"[0-9]+([KMGT]B?)?", re.IGNORECASE)
MEMORY_RULE = (
    "is no size in Slurm's form",
    "write a whole number with K, M, G or T, such as 480G; MiB without a letter",
)
"""Source: sbatch(1), option --mem; tried on Slurm 22.05."""
_MAIL_TYPES = frozenset(
    "NONE BEGIN END FAIL REQUEUE ALL INVALID_DEPEND STAGE_OUT TIME_LIMIT TIME_LIMIT_90 TIME_LIMIT_80 TIME_LIMIT_50"
    " ARRAY_TASKS".split()
)


def option_name(key: str) -> str:
    """The option that a key of ``cluster.extra`` stands for.

    >>> option_name("gpu_bind")
    'gpu-bind'
    """
    return key.replace("_", "-")


def extra_options(extra: Extra) -> dict[str, str | bool]:
    """The options of ``cluster.extra`` in sbatch's spelling, without those that null or false takes out."""
    return {
        option_name(key): value if value is True else str(value)
        for key, value in extra.items()
        if value is not None and value is not False
    }


def extra_problems(cluster: ClusterConfig, gpu_option: Mapping[str, str], chain: str) -> list[Problem]:
    """What is wrong with ``cluster.extra``.

    Args:
        cluster: with the keys that may say the opposite.
        gpu_option: the option by which GPUs are asked for; empty: none are.
        chain: launch.chain.
    """
    problems = []
    seen: dict[str, str] = {}
    for key, value in cluster.extra.items():
        rule, fix = _name_rule(key) or _value_rule(option_name(key), value) or ("", "")
        if not rule and option_name(key) in seen:
            rule, fix = f"is cluster.extra.{seen[option_name(key)]} again", "leave one out"
        seen[option_name(key)] = key
        if rule:
            problems.append(Problem(f"cluster.extra.{key}", _shown(value), rule, fix))
    if problems:
        return problems
    options = extra_options(cluster.extra)
    contradictions = [
        *_gpu_contradictions(options, gpu_option),
        *_resource_contradictions(cluster, options),
        *_time_contradictions(cluster, options),
    ]
    if "dependency" in options and chain == "dependency":
        contradictions.append(
            ("dependency", "contradicts launch.chain=dependency, which makes dependencies of its own")
        )
    return [
        Problem(f"cluster.extra.{seen[name]}", _shown(cluster.extra[seen[name]]), rule, "leave one of them out")
        for name, rule in contradictions
    ]


def _shown(value: str | int | bool | None) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if value == "" or not str(value).isprintable() else str(value)


def _name_rule(key: str) -> tuple[str, str] | None:
    """What is wrong with an option's name, and the fix."""
    name = option_name(key)
    if name in OWN_KEYS:
        return f"--{name} is set by hpctrain itself", _instead(OWN_KEYS[name])
    if name in EXTRA_OPTIONS:
        return None
    bare = option_name(key.strip().lstrip("-_").partition("=")[0])
    if bare in _SHORT_NAMES:
        return "is a short option", f"write its long name, {_SHORT_NAMES[bare]}"
    if bare.lower() in EXTRA_OPTIONS | OWN_KEYS.keys():
        fix = OWN_KEYS.get(bare.lower()) or f"cluster.extra.{bare.lower()}=VALUE"
        return "must be the option's name alone, in small letters without dashes, blanks and =", f"write {fix}"
    close = nearest_names(bare, EXTRA_OPTIONS | OWN_KEYS.keys())
    return "is no long option of sbatch", f"nearest: {', '.join(close)}" if close else "see sbatch(1)"


def _instead(own_key: str) -> str:
    return own_key if own_key.startswith("leave it out") else f"use {own_key}"


def _value_rule(name: str, value: str | int | bool | None) -> tuple[str, str] | None:
    """What is wrong with an option's value, and the fix."""
    if value is None:
        return None
    if name in _FLAGS:
        return None if isinstance(value, bool) else ("takes no value", "write true, or false to leave it out")
    if isinstance(value, bool):
        if name in _WITH_OPTIONAL_VALUE:
            return None
        return "needs a value", "write it, or null to leave the option out"
    text = str(value)
    if not text.strip():
        return "needs a value", "write it, or null to leave the option out"
    if not text.isprintable():
        return "must be printable and on one line, or it ends the directives", "take the sign out"
    if text.startswith(("--", f"{name}=")):
        return "must be the value alone", f"write {text.lstrip('-').partition('=')[2] or 'the value'}"
    if name == "time-min":
        try:
            parse_slurm_time(text)
        except ValueError as error:
            return str(error), f"write it as {TIME_FORMS}"
    if name in (*_MEMORY_FORMS, "tmp") and not MEMORY_FORM.fullmatch(text):
        return MEMORY_RULE
    if name == "mail-type" and (unknown := [word for word in text.split(",") if word.upper() not in _MAIL_TYPES]):
        return f"{unknown[0]!r} is no mail type", f"known: {', '.join(sorted(_MAIL_TYPES))}"
    return None


def _gpu_contradictions(options: Mapping[str, str | bool], gpu_option: Mapping[str, str]) -> list[tuple[str, str]]:
    """A second way to ask for GPUs contradicts the first, and what counts by GPU needs one."""
    asks_in_text = [
        name for name in ("gres", "tres-per-task") if re.search(r"(^|[,/:=])gpu\b", str(options.get(name, "")))
    ]
    asks = [*(name for name in _GPU_FORMS if name in options), *asks_in_text]
    if gpu_option:
        asked = next(f"--{name}={value}" for name, value in gpu_option.items())
        return [(name, f"contradicts {asked}, or set cluster.gpu_request=none") for name in asks]
    if asks:
        return [(name, f"contradicts --{asks[0]}") for name in asks[1:] if name != "gpus-per-task" or asks[0] != "gpus"]
    return [
        (name, "counts by GPU, and none is asked for (cluster.gpu_request)")
        for name in ("cpus-per-gpu", "mem-per-gpu")
        if name in options
    ]


def _resource_contradictions(cluster: ClusterConfig, options: Mapping[str, str | bool]) -> list[tuple[str, str]]:
    found = []
    memory = [name for name in _MEMORY_FORMS if name in options]
    if memory and cluster.memory_per_node is not None:
        rule = f"contradicts cluster.memory_per_node={cluster.memory_per_node}: Slurm takes one form of memory"
        found.append((memory[0], rule))
    elif len(memory) > 1:
        found.append((memory[1], f"contradicts --{memory[0]}: Slurm takes one form of memory"))
    if "cpus-per-gpu" in options and cluster.cpus_per_task is not None:
        found.append(("cpus-per-gpu", f"contradicts cluster.cpus_per_task={cluster.cpus_per_task}"))
    if asks_for_cpus(options) and "tres-per-task" in options and cluster.cpus_per_task is not None:
        found.append(("tres-per-task", f"contradicts cluster.cpus_per_task={cluster.cpus_per_task}"))
    if "exclusive" in options and cluster.exclusive:
        found.append(("exclusive", "contradicts cluster.exclusive=true"))
    if "oversubscribe" in options and (cluster.exclusive or "exclusive" in options):
        found.append(("oversubscribe", "contradicts --exclusive: a node is shared or it is not"))
    if "nodefile" in options and cluster.nodelist is not None:
        found.append(("nodefile", f"contradicts cluster.nodelist={cluster.nodelist}"))
    if "core-spec" in options and "thread-spec" in options:
        found.append(("thread-spec", "contradicts --core-spec"))
    return found


def asks_for_cpus(options: Mapping[str, str | bool]) -> bool:
    """Whether CPUs are asked for by GPU or by a task's trackable resources, so that --cpus-per-task would contradict it."""
    return "cpus-per-gpu" in options or "cpu" in str(options.get("tres-per-task", ""))


def _time_contradictions(cluster: ClusterConfig, options: Mapping[str, str | bool]) -> list[tuple[str, str]]:
    if "time-min" not in options or cluster.time is None:
        return []
    try:
        least_s, limit_s = parse_slurm_time(str(options["time-min"])), parse_slurm_time(cluster.time)
    except ValueError:  # told for cluster.time
        return []
    if limit_s is not None and (least_s is None or least_s > limit_s):
        return [("time-min", f"is longer than cluster.time={cluster.time}")]
    return []
