"""Submission to AzureML, and its jobs as real processes on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpctrain.record.files import read_record
from hpctrain.record.launch_check import LaunchCheck
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import StepsFile, read_attempts, read_submission
from tests.token_files import write_tokens
from tests.worker.check_ranks import free_port

WORDS = (
    "model=tiny",
    "nodes=2",
    "hardware=cpu",
    "training=launch_check",
    "cluster=azureml",
    "cluster.azureml.compute=c",
    "cluster.azureml.image=i",
)
WORKSPACE = tuple(f"cluster.azureml.{key}=x" for key in ("subscription_id", "resource_group", "workspace_name"))
_SDK = {
    "azure/__init__.py": "",
    "azure/ai/__init__.py": "",
    "azure/core/__init__.py": "",
    "azure/core/exceptions.py": "class AzureError(Exception): pass\nclass ClientAuthenticationError(AzureError): pass\n",
    "azure/identity/__init__.py": "class DefaultAzureCredential: pass\n",
    "azure/ai/ml/__init__.py": """
import os, types
from azure.core.exceptions import AzureError, ClientAuthenticationError

def load_job(path):
    return types.SimpleNamespace(path=path)

class MLClient:
    def __init__(self, credential, *workspace):
        self.workspace, self.jobs = workspace, self

    @classmethod
    def from_config(cls, credential, path):
        return cls(credential, path)

    def create_or_update(self, job):
        if "FAIL" in os.environ:
            raise {"auth": ClientAuthenticationError, "refused": AzureError}[os.environ["FAIL"]]("what Azure says\\nat length")
        with open(os.environ["SENT"], "w") as stream:
            print(job.path, *self.workspace, file=stream)
        return types.SimpleNamespace(name="taken-name")
""",
}
"""azure-ai-ml as far as it is called; the real one needs an account."""


@pytest.fixture
def sdk(tmp_path: Path) -> Path:
    folder = tmp_path / "sdk"
    for name, text in _SDK.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def submit(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    root = f'run.root="{folder / "my runs"}"'
    return subprocess.run(
        [sys.executable, "-m", "hpctrain", *WORDS, *words, root],
        env={**os.environ, **env},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def the_run(folder: Path) -> RunPaths:
    (root,) = (folder / "my runs").glob("tiny-*")
    return RunPaths(root)


def test_without_the_sdk_the_file_and_the_command_are_what_is_left(tmp_path: Path, sdk: Path) -> None:
    shutil.rmtree(sdk / "azure" / "ai" / "ml")  # a namespace without it
    answer = submit(tmp_path, *WORKSPACE, PYTHONPATH=str(sdk))
    run = the_run(tmp_path)
    assert answer.returncode == 4
    assert "not submitted: azure-ai-ml is not installed here (pip install 'hpctrain[azureml]')" in answer.stderr
    command = "--subscription x --resource-group x --workspace-name x"
    assert f"az ml job create --file '{run.azureml_job}' {command}" in answer.stderr
    assert "job " not in answer.stdout.replace("note", "")
    assert not run.submission.exists()
    assert run.azureml_job.read_text(encoding="utf-8").startswith("$schema: ")
    for path in (run.config, run.plan, run.code, run.overrides):
        assert path.exists()


def test_with_the_real_sdk_and_no_workspace_it_is_not_sent(tmp_path: Path) -> None:
    answer = submit(tmp_path)
    assert answer.returncode == 4
    assert (
        "not submitted: no workspace is known: cluster.azureml names none, and there is no config.json" in answer.stderr
    )
    assert not the_run(tmp_path).submission.exists()


@pytest.mark.parametrize("stated", [True, False], ids=["stated", "config.json"])
def test_what_is_sent_is_recorded(tmp_path: Path, sdk: Path, stated: bool) -> None:
    config = tmp_path / ".azureml" / "config.json"
    config.parent.mkdir()
    config.write_text("{}", encoding="utf-8")
    sent = tmp_path / "sent"
    answer = submit(tmp_path, *(WORKSPACE if stated else ()), PYTHONPATH=str(sdk), SENT=str(sent))
    assert answer.returncode == 0, answer.stderr
    run = the_run(tmp_path)
    assert "job taken-name" in answer.stdout
    submission = read_submission(run)
    assert (submission.cluster_kind, submission.job_id) == ("azureml", "taken-name")
    workspace = "x x x" if stated else str(config)
    assert sent.read_text(encoding="utf-8").strip() == f"{run.azureml_job} {workspace}"


@pytest.mark.parametrize(
    ("fail", "text"),
    [("auth", "no credentials (what Azure says)"), ("refused", "AzureML refused it (what Azure says)")],
)
def test_a_refusal_is_told_and_nothing_is_recorded(tmp_path: Path, sdk: Path, fail: str, text: str) -> None:
    answer = submit(tmp_path, *WORKSPACE, PYTHONPATH=str(sdk), FAIL=fail)
    assert answer.returncode == 4
    assert f"not submitted: {text}\n" in answer.stderr
    assert "az ml job create --file" in answer.stderr
    assert not the_run(tmp_path).submission.exists()


class Job:
    """The processes that AzureML would start for ``job.yml``, with its variables."""

    def __init__(
        self, submitted: RunPaths, output: RunPaths, num_nodes: int, ranks_per_node: int, data: str = ""
    ) -> None:
        self.output = output
        port = free_port()
        self.job_id = f"the-job-{port}"
        self.processes = []
        for rank in range(num_nodes * ranks_per_node):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": str(num_nodes * ranks_per_node),
                "LOCAL_RANK": str(rank % ranks_per_node),
                "NODE_RANK": str(rank // ranks_per_node),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "AZUREML_RUN_ID": self.job_id,
                "AZUREML_EXPERIMENT_ID": "e",
                "HPCTRAIN_ATTEMPT": "1",
            }
            words = ["-u", "-m", "hpctrain.launch.azureml_entry", str(submitted.root), str(output.root), data]
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, *words],
                    env={**os.environ, **variables},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )

    def logs(self) -> list[str]:
        return [process.communicate(timeout=60)[0] for process in self.processes]

    def codes(self) -> list[int]:
        return [process.returncode for process in self.processes]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


StartJob = Callable[..., Job]


@pytest.fixture
def start_job() -> Iterator[StartJob]:
    started: list[Job] = []

    def start(submitted: RunPaths, output: RunPaths, num_nodes: int, ranks_per_node: int, data: str = "") -> Job:
        started.append(Job(submitted, output, num_nodes, ranks_per_node, data))
        return started[-1]

    yield start
    for job in started:
        job.end()


@pytest.fixture
def submitted(tmp_path: Path) -> RunPaths:
    assert submit(tmp_path, "hardware.gpus_per_node=2").returncode == 4
    return the_run(tmp_path)


def test_four_processes_on_two_nodes_meet_and_leave_a_run_folder(
    tmp_path: Path, submitted: RunPaths, start_job: StartJob
) -> None:
    output = RunPaths(tmp_path / "the output")
    job = start_job(submitted, output, 2, 2)
    logs = job.logs()
    assert job.codes() == [0, 0, 0, 0], logs
    (attempt,) = read_attempts(output)
    assert (attempt.state, attempt.job_id, attempt.world_size) == ("completed", job.job_id, 4)
    result = read_record(output.launch_check, LaunchCheck)
    assert [node.ranks for node in result.nodes] == [(0, 1), (2, 3)]
    assert result.findings == (f"2 nodes say that they are {os.uname().nodename}: training tells nodes by their names",)
    assert "MASTER_ADDR=127.0.0.1 (from AzureML)" in logs[3]
    assert read_submission(output).job_id == job.job_id
    status = [sys.executable, "-m", "hpctrain", "status", str(output.root), "--json"]
    (row,) = json.loads(subprocess.run(status, capture_output=True, text=True, check=True).stdout)
    assert row["state"] == "COMPLETED"


def test_a_job_of_another_size_than_the_plan_is_recorded(
    tmp_path: Path, submitted: RunPaths, start_job: StartJob
) -> None:
    output = RunPaths(tmp_path / "out")
    job = start_job(submitted, output, 1, 2)
    logs = job.logs()
    assert all(job.codes()), logs
    (attempt,) = read_attempts(output)
    assert (attempt.state, attempt.end_reason) == ("failed", "world_size_mismatch")
    assert "AzureML started 2 ranks, the plan has 2 nodes x 2 = 4" in attempt.message


def test_a_killed_rank_0_gets_its_end_marker_from_its_parent(
    tmp_path: Path, submitted: RunPaths, start_job: StartJob
) -> None:
    output = RunPaths(tmp_path / "out")
    job = start_job(submitted, output, 2, 2)
    job.processes[3].kill()  # so that the others wait
    child = _wait_for_child(job.processes[0].pid)
    os.kill(child, signal.SIGKILL)
    job.logs()
    assert job.codes()[0] == 128 + signal.SIGKILL
    (attempt,) = read_attempts(output)
    assert (attempt.state, attempt.end_reason) == ("failed", "killed")


def test_a_cancelled_job_passes_the_signal_on(tmp_path: Path, submitted: RunPaths, start_job: StartJob) -> None:
    output = RunPaths(tmp_path / "out")
    job = start_job(submitted, output, 2, 2)
    job.processes[3].kill()
    child = _wait_for_child(job.processes[0].pid)
    _wait_until(lambda: "hpctrain.launch.rank_entry" in _command(child) and _handles_term(child))
    job.processes[0].terminate()
    job.logs()
    (attempt,) = read_attempts(output)
    assert (attempt.state, attempt.end_reason) == ("failed", "signal")


def test_a_process_that_no_launcher_started_says_so(tmp_path: Path, submitted: RunPaths) -> None:
    words = ["-m", "hpctrain.launch.azureml_entry", str(submitted.root), str(tmp_path / "out")]
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK")}
    answer = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=False)
    assert answer.returncode == 4
    assert "RANK, LOCAL_RANK: missing; AzureML must start this with distribution.type=pytorch" in answer.stderr


def test_a_relative_prefix_is_one_of_the_submitting_folder(tmp_path: Path) -> None:
    (tmp_path / "corpora").mkdir()
    write_tokens(tmp_path / "corpora" / "web", range(2000))
    answer = submit(tmp_path, "data=tokens", "data.path=corpora/web", "model.vocab_size=2048")
    assert answer.returncode == 4, answer.stderr
    job = yaml.safe_load(the_run(tmp_path).azureml_job.read_text(encoding="utf-8"))
    assert job["inputs"]["data"]["path"] == str(tmp_path / "corpora")
    assert job["command"].endswith('"${{inputs.data}}"/web')


@pytest.mark.train
def test_ranks_train_on_text_where_azureml_has_put_it(tmp_path: Path, start_job: StartJob) -> None:
    words = ["training=benchmark", "training.num_steps=3", "data=text", "data.path='azureml:corpus:1'"]
    # One node, since a machine has one name and training counts names.
    assert submit(tmp_path, *words, "nodes=1").returncode == 4
    text = tmp_path / "mounted" / "corpus.txt"
    text.parent.mkdir()
    text.write_text("a text that is long enough for a few sequences of the tiny model\n" * 200, encoding="utf-8")
    output = RunPaths(tmp_path / "out")
    job = start_job(the_run(tmp_path), output, 1, 2, str(text))
    logs = job.logs()
    assert job.codes() == [0, 0], logs
    (attempt,) = read_attempts(output)
    assert (attempt.state, attempt.world_size) == ("completed", 2)
    assert [record.step for record in StepsFile(output.steps).new_records()] == [1, 2, 3]


def _wait_until(condition: Any) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def _wait_for_child(pid: int) -> int:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return int(_wait_until(lambda: path.read_text(encoding="ascii").split())[0])


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")


def _handles_term(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
