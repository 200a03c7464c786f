"""Handing a run to Azure Machine Learning: by azure-ai-ml where it is installed and finds credentials; nothing is ever faked."""

from __future__ import annotations

import dataclasses
import importlib.util
import shlex
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.errors import PreparedRunError
from hpctrain.launch.run_folder import absolute_path
from hpctrain.launch.snapshot import snapshot_of
from hpctrain.plan.job.azureml import AzureMlTarget, azureml_job_name, azureml_job_text
from hpctrain.record.files import write_text
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import SCHEMA_VERSION, SubmissionRecord

if TYPE_CHECKING:
    from hpctrain.plan.job.azureml import AzureMlRequest

_WORKSPACE = ("subscription_id", "resource_group", "workspace_name")
_FIRST_ATTEMPT = 1


def submit_azureml(run: RunPaths, request: AzureMlRequest) -> SubmissionRecord:
    """Writes ``job.yml`` and sends it.

    Raises:
        PreparedRunError: it was not sent, with the reason and the command that does so by hand.
    """
    target = AzureMlTarget(str(run.root), run.root.name, snapshot_of(run), _FIRST_ATTEMPT)
    # A relative path would be looked for beside job.yml.
    request = dataclasses.replace(request, data_path=absolute_path(request.data_path))
    write_text(run.azureml_job, azureml_job_text(request, target))
    command = create_command(run, request.settings)
    if importlib.util.find_spec("azure") is None or importlib.util.find_spec("azure.ai.ml") is None:
        raise _not_sent(run, command, "azure-ai-ml is not installed here (pip install 'hpctrain[azureml]')")
    return SubmissionRecord(
        schema_version=SCHEMA_VERSION,
        cluster_kind="azureml",
        job_id=_send(run, request.settings, command),
        submitted_at_s=time.time(),
        host=socket.gethostname(),
        command=command,
        first_attempt=_FIRST_ATTEMPT,
    )


def create_command(run: RunPaths, settings: dict[str, str]) -> tuple[str, ...]:
    """What sends ``job.yml`` by hand."""
    names = {
        "subscription_id": "--subscription",
        "resource_group": "--resource-group",
        "workspace_name": "--workspace-name",
    }
    options = [word for name in _WORKSPACE if name in settings for word in (names[name], settings[name])]
    return ("az", "ml", "job", "create", "--file", str(run.azureml_job), *options)


def _send(run: RunPaths, settings: dict[str, str], command: tuple[str, ...]) -> str:
    """The job's name, after AzureML has taken it."""
    config = None if all(name in settings for name in _WORKSPACE) else workspace_file(Path.cwd())
    if config is None and "workspace_name" not in settings:
        rule = "no workspace is known: cluster.azureml names none, and there is no config.json here or above"
        raise _not_sent(run, command, rule)
    from azure.ai.ml import MLClient, load_job
    from azure.core.exceptions import AzureError, ClientAuthenticationError
    from azure.identity import DefaultAzureCredential

    job: Any = load_job(str(run.azureml_job))
    credential = DefaultAzureCredential()
    if config is None:
        client = MLClient(credential, *(settings[name] for name in _WORKSPACE))
    else:
        client = MLClient.from_config(credential, path=str(config))
    try:
        created = client.jobs.create_or_update(job)
    except ClientAuthenticationError as error:
        raise _not_sent(run, command, f"no credentials ({_first_line(error)})") from error
    except AzureError as error:
        raise _not_sent(run, command, f"AzureML refused it ({_first_line(error)})") from error
    return str(created.name)


def workspace_file(folder: Path) -> Path | None:
    """The workspace's ``config.json`` as azure-ai-ml looks for it: here, in ``.azureml`` or ``aml_config``, or above."""
    for place in (folder, *folder.parents):
        for name in ("config.json", ".azureml/config.json", "aml_config/config.json"):
            if (place / name).is_file():
                return place / name
    return None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _not_sent(run: RunPaths, command: tuple[str, ...], reason: str) -> PreparedRunError:
    return PreparedRunError(
        f"not submitted: {reason}\nthe job {azureml_job_name(run.root.name)} is written to {run.azureml_job}; send it with\n"
        f"  {shlex.join(command)}"
    )
