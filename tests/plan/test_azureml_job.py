"""The command job of AzureML: whole, by azure-ai-ml's own schema, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpctrain.errors import ConfigError
from hpctrain.plan.job.azureml import AzureMlTarget, azureml_job_name, azureml_job_text
from hpctrain.plan.render.plan import render_plan
from tests.plan.test_run_plan import plan_of

GOLDEN = Path(__file__).parents[1] / "golden"
TARGET = AzureMlTarget(
    "/home/u/runs/a run", "530b-2n-zero3-20261130-081500-ab12", "/home/u/runs/.code/0123456789abcdef"
)
AZUREML = ("cluster=azureml", "cluster.azureml.compute=nd96")
IMAGE = "cluster.azureml.image=team.azurecr.io/train:7"
GOLDEN_JOBS = {
    "azureml.yml": ("model=530b", "nodes=128", *AZUREML, "cluster.azureml.environment='azureml:train:3'"),
    "azureml_everything.yml": (
        "model=6.7b",
        "nodes=2",
        "cluster=azureml",
        "cluster.azureml.compute='azureml:nd96'",
        IMAGE,
        "cluster.azureml.experiment_name=scaling",
        "cluster.azureml.subscription_id=00000000-0000-0000-0000-000000000000",
        "cluster.azureml.resource_group=group",
        "cluster.azureml.workspace_name=workspace",
        "cluster.azureml.output_path='azureml://datastores/fast/paths/runs/'",
        "cluster.azureml.shm_size=64g",
        "cluster.azureml.docker_args='--ulimit memlock=-1'",
        "cluster.azureml.instance_type=Standard_ND96amsr_A100_v4",
        "cluster.azureml.job_tier=spot",
        "cluster.time=1-12",
        "data=text",
        "data.path='azureml://datastores/texts/paths/corpus.txt'",
        "env.NCCL_DEBUG=INFO",
        "run.note='a note: with a colon'",
    ),
}


def job_text(*words: str) -> str:
    plan = plan_of(*words)
    assert plan.problems == ()
    assert plan.azureml is not None
    return azureml_job_text(plan.azureml, TARGET)


def job(*words: str) -> dict[str, Any]:
    loaded = yaml.safe_load(job_text("model=tiny", *words))
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.parametrize("name", GOLDEN_JOBS)
def test_the_job_as_it_was_read_and_approved(name: str) -> None:
    path = GOLDEN / name
    text = job_text(*GOLDEN_JOBS[name])
    if os.environ.get("HPCTRAIN_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


_LOAD = """
import sys, warnings
warnings.simplefilter("ignore")  # of azure-ai-ml about its own dependencies
from azure.ai.ml import load_job
for path in sys.argv[1:]:
    job = load_job(path)
    print(job.name, job.resources.instance_count, job.distribution.process_count_per_instance, job.limits and job.limits.timeout)
"""


def load_by_azure(*paths: Path) -> subprocess.CompletedProcess[str]:
    """By azure-ai-ml in a process of its own: it changes the warnings and the logging of the one that imports it."""
    return subprocess.run([sys.executable, "-c", _LOAD, *map(str, paths)], capture_output=True, text=True, check=False)


def test_azure_ai_ml_accepts_it_offline(tmp_path: Path) -> None:
    target = AzureMlTarget(str(tmp_path), TARGET.run_name, str(tmp_path))
    paths = []
    for name, words in GOLDEN_JOBS.items():
        request = plan_of(*words).azureml
        assert request is not None
        paths.append(tmp_path / name)
        paths[-1].write_text(azureml_job_text(request, target), encoding="utf-8")
    answer = load_by_azure(*paths)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == [f"{TARGET.run_name} 128 8 None", f"{TARGET.run_name} 2 8 129600"]


@pytest.mark.parametrize(
    ("old", "new"),
    [("instance_count: 128", "instance_count: many"), ("type: pytorch", "type: torch"), ("command: ", "cmd: ")],
)
def test_azure_ai_ml_would_not_accept_another_form(tmp_path: Path, old: str, new: str) -> None:
    text = (GOLDEN / "azureml.yml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "job.yml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    answer = load_by_azure(path)
    assert answer.returncode != 0
    assert "Validation" in answer.stderr


def test_the_plan_shows_the_job_and_no_batch_script() -> None:
    text = render_plan(plan_of("model=tiny", *AZUREML, IMAGE), "/usr/bin/python3")
    assert "AzureML command job\n  $schema: " in text
    assert "#SBATCH" not in text


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("azureml://datastores/d/paths/corpus.txt", "uri_file"),
        ("azureml:corpus:3", "uri_folder"),
        ("wasbs://c@a.blob.core.windows.net/texts/", "uri_folder"),
    ],
)
def test_text_is_an_input(path: str, kind: str) -> None:
    made = job(*AZUREML, IMAGE, "data=text", f"data.path='{path}'")
    assert made["inputs"]["data"] == {"type": kind, "path": path, "mode": "ro_mount"}
    assert made["command"].endswith(' "${{inputs.data}}"')
    stated = job(*AZUREML, IMAGE, "data=text", f"data.path='{path}'", "cluster.azureml.data_type=uri_file")
    assert stated["inputs"]["data"]["type"] == "uri_file"


@pytest.mark.parametrize(
    ("path", "folder", "word"),
    [
        ("azureml://datastores/d/paths/corpora/web", "azureml://datastores/d/paths/corpora", '"${{inputs.data}}"/web'),
        ("/data/corpora/v1.2 $x", "/data/corpora", "\"${{inputs.data}}\"/'v1.2 $x'"),
    ],
)
def test_the_folder_of_token_files_is_an_input(path: str, folder: str, word: str) -> None:
    made = job(*AZUREML, IMAGE, "data=tokens", f"data.path='{path}'")
    assert made["inputs"]["data"] == {"type": "uri_folder", "path": folder, "mode": "ro_mount"}
    assert made["command"].endswith(f" {word}")


def test_a_time_without_limit_gives_none() -> None:
    assert "limits" not in job(*AZUREML, IMAGE, "cluster.time=UNLIMITED")
    assert job(*AZUREML, IMAGE, "cluster.time=30")["limits"] == {"timeout": 1800}


@pytest.mark.parametrize(
    ("name", "found"), [("1.3b-2n", "1-3b-2n"), ("_a", "a"), ("ä b", "b"), ("...", "hpctrain"), ("x" * 300, "x" * 255)]
)
def test_names_that_a_workspace_takes(name: str, found: str) -> None:
    assert azureml_job_name(name) == found


PROBLEMS = [
    ([], ["cluster.azureml.compute: must be given", "cluster.azureml.compute=NAME"], "no-compute"),
    (
        ["cluster.azureml.compute=c"],
        ["cluster.azureml.environment: exactly one of environment and image must be given, here: neither"],
        "no-environment",
    ),
    (
        [*AZUREML, IMAGE, "cluster.azureml.environment=e"],
        ["here: environment=e, image=team.azurecr.io/train:7"],
        "environment-and-image",
    ),
    (
        [*AZUREML, IMAGE, "cluster.azureml.shm_sise=1g"],
        ["cluster.azureml.shm_sise=1g", "nearest: shm_size"],
        "unknown-key",
    ),
    (
        [*AZUREML, IMAGE, "cluster.azureml.shm_size=64gb"],
        ["cluster.azureml.shm_size=64gb", "for example 64g"],
        "shm-size",
    ),
    (
        [*AZUREML, IMAGE, "cluster.azureml.job_tier=cheap"],
        ["cluster.azureml.job_tier=cheap", "known: spot"],
        "job-tier",
    ),
    (
        [*AZUREML, IMAGE, "cluster.azureml.experiment_name=3"],
        ["cluster.azureml.experiment_name=3", "must be printable text"],
        "number",
    ),
    (
        [*AZUREML, IMAGE, "cluster.azureml.workspace_name=w"],
        ["cluster.azureml.workspace_name=w", "subscription_id, resource_group must be given too"],
        "half-a-workspace",
    ),
    (
        [*AZUREML, IMAGE, "cluster.partition=gpu"],
        ["cluster.partition=gpu: is asked of Slurm, and cluster=azureml has none"],
        "slurm",
    ),
    ([*AZUREML, IMAGE, "cluster.setup=['module load x']"], ["cluster.setup", "is asked of Slurm"], "setup"),
    ([*AZUREML, IMAGE, "cluster.wait=true"], ["cluster.wait=true", "az ml job stream"], "wait"),
    ([*AZUREML, IMAGE, "launch.mode=here"], ["launch.mode=here"], "mode"),
    ([*AZUREML, IMAGE, "launch.chain=requeue"], ["launch.chain=requeue"], "chain"),
    (
        [*AZUREML, IMAGE, "cluster.container.runtime=apptainer", "cluster.container.image=x.sif"],
        ["cluster.container.runtime=apptainer: AzureML starts the container itself"],
        "container",
    ),
    ([*AZUREML, IMAGE, "cluster.time=soon"], ["cluster.time=soon"], "time"),
    ([*AZUREML, IMAGE, "env.HF_TOKEN=hf_0123456789abcdef01"], ["env.HF_TOKEN: is a secret", "key vault"], "secret"),
    ([*AZUREML, IMAGE, "env.RANK=0"], ["env.RANK=0"], "rank"),
]


@pytest.mark.parametrize(
    ("words", "texts"), [entry[:2] for entry in PROBLEMS], ids=[str(entry[2]) for entry in PROBLEMS]
)
def test_what_is_refused(words: list[str], texts: list[str]) -> None:
    words = words if "cluster=azureml" in words else ["cluster=azureml", *words]
    problems = plan_of("model=tiny", *words).problems
    assert problems
    assert ConfigError(problems).exit_code == 2
    told = "\n".join(map(str, problems))
    for text in texts:
        assert text in told
    assert "hf_0123456789abcdef01" not in told


@pytest.mark.parametrize("cluster", ["slurm", "sandbox", "local"])
def test_keys_of_azureml_are_refused_elsewhere(cluster: str) -> None:
    (problem,) = plan_of("model=tiny", f"cluster={cluster}", "cluster.azureml.compute=c").problems
    assert str(problem).startswith(f"cluster.azureml.compute=c: is asked of AzureML, and this is cluster={cluster}")
