"""The plan as an Azure Machine Learning command job (CLI and SDK v2); pure text, of azure-ai-ml's own schema.

Source: Azure Machine Learning, «CLI (v2) command job YAML schema».
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Any

from hpctrain.config.schema import Config
from hpctrain.errors import Problem, known_names_hint
from hpctrain.plan.job.own_variables import ATTEMPT_VARIABLE
from hpctrain.plan.layout import Layout
from hpctrain.plan.rules.data import mounted_folder
from hpctrain.units import stated_limit_s

SCHEMA_URL = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"
KEYS = (
    "compute environment image experiment_name subscription_id resource_group workspace_name output_path instance_type"
    " shm_size docker_args job_tier data_type"
).split()
"""What ``cluster.azureml`` may hold; all are text."""
_DEFAULT_OUTPUT = "azureml://datastores/workspaceblobstore/paths/hpctrain"
_SHM_SIZE = re.compile(r"[1-9][0-9]*[bkmg]")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//)?[^/\\].*")


@dataclass(frozen=True)
class AzureMlRequest:
    """What is asked of AzureML: one process per GPU, started by its PyTorch launcher."""

    instance_count: int
    process_count_per_instance: int
    timeout_s: int | None
    """None: no limit."""
    settings: dict[str, str] = field(default_factory=dict)
    """``cluster.azureml`` of the configuration."""
    environment: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    description: str = ""
    data_path: str | None = None
    """Text that the ranks read, or the folder of token files: a URI, or a local path that is uploaded."""
    data_name: str = ""
    """Of the token files in that folder."""


@dataclass(frozen=True)
class AzureMlTarget:
    """Which run a job starts, and with which code."""

    run_dir: str
    """Absolute path of the run folder; it is uploaded as the job's input."""
    run_name: str
    snapshot: str
    """Absolute path of the folder that holds the package as it was at submission."""
    attempt: int = 1


def build_azureml_request(config: Config, layout: Layout, env: dict[str, str]) -> AzureMlRequest:
    """The request for one run; see ``azureml_problems`` for what is wrong with it."""
    data_path, data_name = config.data.path, ""
    if config.data.kind == "tokens" and data_path is not None:
        data_path, data_name = mounted_folder(data_path)
    return AzureMlRequest(
        instance_count=layout.num_nodes,
        process_count_per_instance=layout.gpus_per_node,
        timeout_s=stated_limit_s(config.cluster.time),
        settings={name: str(value) for name, value in config.cluster.azureml.items()},
        environment=env,
        tags={
            "hpctrain.model": config.model.name,
            "hpctrain.parallelism": config.parallelism.name,
            "hpctrain.hardware": config.hardware.name,
            "hpctrain.training": config.training.name,
        },
        description=config.run.note,
        data_path=data_path,
        data_name=data_name,
    )


def azureml_job_text(request: AzureMlRequest, target: AzureMlTarget) -> str:
    """``job.yml``, whole."""
    settings = request.settings
    words = ['python -u -m hpctrain.launch.azureml_entry "${{inputs.submitted}}" "${{outputs.run}}"']
    inputs: dict[str, Any] = {"submitted": {"type": "uri_folder", "path": target.run_dir, "mode": "download"}}
    if request.data_path is not None:
        words.append('"${{inputs.data}}"' + (f"/{shlex.quote(request.data_name)}" if request.data_name else ""))
        kind = "uri_folder" if request.data_name else settings.get("data_type") or _data_type(request.data_path)
        inputs["data"] = {"type": kind, "path": request.data_path, "mode": "ro_mount"}
    output = settings.get("output_path", _DEFAULT_OUTPUT).rstrip("/")
    image = settings.get("image")
    optional = {
        "instance_type": settings.get("instance_type"),
        "shm_size": settings.get("shm_size"),
        "docker_args": settings.get("docker_args"),
    }
    job: dict[str, Any] = {
        "$schema": SCHEMA_URL,
        "type": "command",
        "name": azureml_job_name(target.run_name),
        "display_name": target.run_name,
        "experiment_name": settings.get("experiment_name", "hpctrain"),
        "description": request.description,
        "code": target.snapshot,
        "command": " ".join(words),
        "environment": {"image": image} if image else settings.get("environment", ""),
        "compute": _azureml_name(settings.get("compute", "")),
        "distribution": {"type": "pytorch", "process_count_per_instance": request.process_count_per_instance},
        "resources": {
            "instance_count": request.instance_count,
            **{name: value for name, value in optional.items() if value is not None},
        },
        "environment_variables": {
            "PYTHONUTF8": "1",
            "PYTHONUNBUFFERED": "1",
            ATTEMPT_VARIABLE: str(target.attempt),
            **request.environment,
        },
        "inputs": inputs,
        "outputs": {"run": {"type": "uri_folder", "path": f"{output}/{target.run_name}", "mode": "rw_mount"}},
        "tags": {"hpctrain.run": target.run_name, **request.tags},
    }
    if request.timeout_s is not None:
        job["limits"] = {"timeout": request.timeout_s}
    if "job_tier" in settings:
        job["queue_settings"] = {"job_tier": settings["job_tier"]}
    if not request.description:
        del job["description"]
    import yaml  # of use for this kind of cluster alone

    return yaml.safe_dump(job, sort_keys=False, allow_unicode=True, width=1000)


def azureml_job_name(run_name: str) -> str:
    """The job's name in the workspace, which takes letters, digits, ``-`` and ``_``.

    >>> azureml_job_name("1.3b-2n-zero3-20261130-081500-ab12")
    '1-3b-2n-zero3-20261130-081500-ab12'
    """
    return re.sub(r"[^A-Za-z0-9_-]+", "-", run_name).strip("-_")[-255:] or "hpctrain"


def _data_type(path: str) -> str:
    """A last part with an ending is a file; ``cluster.azureml.data_type`` wins.

    >>> _data_type("azureml://datastores/d/paths/corpus.txt"), _data_type("azureml:corpus:3"), _data_type("/data/texts")
    ('uri_file', 'uri_folder', 'uri_folder')
    """
    return "uri_file" if "." in path.rpartition("/")[2] else "uri_folder"


def is_uri(path: str) -> bool:
    """Whether a path names something outside this machine's file system.

    >>> is_uri("azureml:corpus:3"), is_uri("wasbs://c@a.blob.core.windows.net/x"), is_uri("./a:b"), is_uri("corpus.txt")
    (True, True, False, False)
    """
    return _URI.fullmatch(path) is not None


def azureml_problems(config: Config, secret_names: tuple[str, ...]) -> list[Problem]:
    """What a command job lacks or cannot carry, and keys of AzureML where the job goes elsewhere.

    Args:
        config: the configuration.
        secret_names: variables of ``env`` whose values are written to no file.
    """
    cluster, settings = config.cluster, config.cluster.azureml
    if cluster.kind != "azureml":
        rule = f"is asked of AzureML, and this is cluster={cluster.name} (cluster.kind={cluster.kind})"
        return [
            Problem(f"cluster.azureml.{name}", str(value), rule, "leave it out") for name, value in settings.items()
        ]
    problems = [
        Problem(f"cluster.azureml.{name}", str(value), "is no key of cluster.azureml", known_names_hint(name, KEYS))
        for name, value in settings.items()
        if name not in KEYS
    ]
    problems += [
        Problem(f"cluster.azureml.{name}", repr(value), "must be printable text on one line", "write the name or path")
        for name, value in settings.items()
        if name in KEYS and not (isinstance(value, str) and value.strip() and value.isprintable())
    ]
    problems += _missing_settings(settings)
    if "shm_size" in settings and not _SHM_SIZE.fullmatch(str(settings["shm_size"])):
        rule = "must be a number and one of the units b, k, m, g"
        problems.append(Problem("cluster.azureml.shm_size", str(settings["shm_size"]), rule, "for example 64g"))
    choices = {"data_type": ("uri_file", "uri_folder"), "job_tier": ("spot", "basic", "standard", "premium", "null")}
    problems += [
        Problem(
            f"cluster.azureml.{name}", str(settings[name]), "is not one of the choices", f"known: {', '.join(known)}"
        )
        for name, known in choices.items()
        if name in settings and settings[name] not in known
    ]
    problems += _unsupported(config)
    fix = "keep it in the workspace's key vault and read it there; job.yml would show it to everybody who sees the job"
    problems += [
        Problem(f"env.{name}", "", "is a secret, and AzureML is given variables in job.yml only", fix)
        for name in secret_names
    ]
    return problems


def _missing_settings(settings: dict[str, str | int | bool]) -> list[Problem]:
    problems = []
    if "compute" not in settings:
        fix = "set cluster.azureml.compute=NAME, the compute cluster of the workspace"
        problems.append(Problem("cluster.azureml.compute", "", "must be given: the job runs on it", fix))
    environments = [name for name in ("environment", "image") if name in settings]
    if len(environments) != 1:
        stated = ", ".join(f"{name}={settings[name]}" for name in environments) or "neither"
        problems.append(
            Problem(
                "cluster.azureml.environment",
                "",
                f"exactly one of environment and image must be given, here: {stated}",
                "set cluster.azureml.environment=azureml:NAME:VERSION, or cluster.azureml.image=REGISTRY/IMAGE, with Python"
                " 3.11 or newer and hpctrain's packages in it",
            )
        )
    workspace = ("subscription_id", "resource_group", "workspace_name")
    stated_parts = [name for name in workspace if name in settings]
    if stated_parts and len(stated_parts) < len(workspace):
        missing = [name for name in workspace if name not in settings]
        rule = f"names a part of the workspace; {', '.join(missing)} must be given too"
        problems.append(
            Problem(
                f"cluster.azureml.{stated_parts[0]}",
                str(settings[stated_parts[0]]),
                rule,
                "or leave all out: config.json",
            )
        )
    return problems


def _unsupported(config: Config) -> list[Problem]:
    """Ways of launching that AzureML has not."""
    launch, cluster = config.launch, config.cluster
    found = []
    if cluster.wait:
        found.append(
            (
                "cluster.wait",
                "true",
                "the records are written to the job's output, which is not here",
                "follow it with az ml job stream --name JOB",
            )
        )
    if cluster.container.runtime != "none":
        found.append(
            (
                "cluster.container.runtime",
                cluster.container.runtime,
                "AzureML starts the container itself",
                "set cluster.azureml.image=REGISTRY/IMAGE",
            )
        )
    if launch.mode != "batch":
        found.append(("launch.mode", launch.mode, "is for an allocation of Slurm", "leave it out"))
    return [Problem(*words) for words in found]


def _azureml_name(name: str) -> str:
    """``azureml:NAME``, as a job names what is in its workspace."""
    return name if name.startswith("azureml:") else f"azureml:{name}"
