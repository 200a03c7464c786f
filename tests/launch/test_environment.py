"""What of the submitting shell reaches a job, and what of that is written down."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpctrain.config.compose import Point, compose_points
from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError
from hpctrain.launch.container_check import check_container
from hpctrain.launch.environment import job_environment, secret_values, write_environment
from hpctrain.launch.preflight import check_setup
from hpctrain.launch.submitting_shell import as_submitted_here
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.record.files import read_json
from hpctrain.record.frozen_config import config_text, parse_config
from hpctrain.record.paths import RunPaths

PROBE = """
import json, os
if "SUBMITIT_LOCAL_GLOBALID" in os.environ:
    path = os.path.join(os.path.dirname(__file__), os.environ["SUBMITIT_LOCAL_GLOBALID"] + ".json")
    with open(path, "w") as stream:
        json.dump(dict(os.environ), stream)
"""
OF_AN_OUTER_JOB = {
    "SLURM_JOB_ID": "12",
    "SLURM_MEM_PER_CPU": "100",
    "SRUN_CPUS_PER_TASK": "2",
    "SBATCH_EXPORT": "NONE",
    "SALLOC_PARTITION": "x",
    "SQUEUE_STATES": "failed",
    "PMI_RANK": "1",
    "PMIX_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "TORCHELASTIC_RUN_ID": "1",
    "GROUP_RANK": "0",
    "RANK": "3",
    "MASTER_ADDR": "login",
    "CUDA_VISIBLE_DEVICES": "2,3",
    "ROCR_VISIBLE_DEVICES": "2,3",
    "HPCTRAIN_ATTEMPT": "7",
    "PYTHONHOME": "/other",
    "PYTHONSTARTUP": "/other",
}
NAMED = {
    "PATH": "/bin",
    "HOME": "/home/u",
    "SLURM_CONF": "/etc/slurm.conf",
    "SLURM_CLUSTERS": "c2",
    "SLURM_CONF_SERVER": "ctl:6817",
    "SLURM_JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "BASH_FUNC_module%%": "() { eval x; }",
    "MODULEPATH": "/modules",
}
OTHERS = {"LEAK": "1", "PYTHONPATH": "/bogus", "VIRTUAL_ENV": "/venv", "CONDA_PREFIX": "/conda", "SECRET_TOKEN": "x"}
SHELL = OF_AN_OUTER_JOB | NAMED | OTHERS


def point_of(*words: str) -> Point:
    (point,) = compose_points(["model=tiny", "nodes=1", *words], multirun=False)
    return point


def config_of(*words: str) -> Config:
    return point_of(*words).config


def test_by_default_only_the_named_variables() -> None:
    assert job_environment(SHELL, inherit=False) == NAMED


def test_inherited_but_for_an_outer_jobs_variables() -> None:
    assert job_environment(SHELL, inherit=True) == NAMED | OTHERS


def test_secret_values_come_from_the_configuration_or_the_shell() -> None:
    config = config_of("env.HF_TOKEN=abcdef", "env.PLAIN=1", "env_from_shell=[NCCL_TOPO]")
    assert secret_values(config, {"NCCL_TOPO": "x", "HF_TOKEN": "of the shell"}) == {
        "HF_TOKEN": "abcdef",
        "NCCL_TOPO": "x",
    }
    with pytest.raises(
        ConfigError, match=r"env_from_shell=NCCL_TOPO: its value .* is not in this shell; export NCCL_TOPO in"
    ):
        secret_values(config, {})


def test_a_frozen_configuration_has_lost_its_secrets_and_takes_them_from_the_shell() -> None:
    url = "https://me:hunter22@host/x"
    frozen = config_text(config_of("env.HF_TOKEN=abcdef", f"env.URL='{url}'", "env.PLAIN=1"))
    assert "abcdef" not in frozen
    assert "hunter22" not in frozen
    config = parse_config(frozen)
    assert build_run_plan(config).slurm.environment == {"PLAIN": "1"}
    assert secret_values(config, {"HF_TOKEN": "abcdef", "URL": url}) == {"HF_TOKEN": "abcdef", "URL": url}
    with pytest.raises(ConfigError, match=r"env.HF_TOKEN=<redacted>: .*\n.*env.URL=<redacted>: "):
        secret_values(config, {})


def test_the_record_of_the_environment_holds_no_secret(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write_environment(paths, {"PATH": "/bin", "HF_TOKEN": "abcdef", "TOPO": "kept back", **NAMED}, ["TOPO"])
    found = json.loads(paths.environment.read_text(encoding="utf-8"))["variables"]
    assert found["HF_TOKEN"] == found["TOPO"] == found["SLURM_JWT"] == "<redacted>"
    assert found["PATH"] == "/bin"
    assert found["MODULEPATH"] == "/modules"
    assert list(found) == sorted(found)


@pytest.mark.parametrize("words", [(), ("cluster.inherit_env=true",)])
def test_secrets_reach_the_ranks_of_a_local_run(tmp_path: Path, words: tuple[str, ...]) -> None:
    # Made here: a difference of this file from its commit is kept in code.json.
    ours, shells = secrets.token_hex(8), secrets.token_hex(8)
    probe = tmp_path / "probe"
    probe.mkdir()
    (probe / "sitecustomize.py").write_text(PROBE, encoding="utf-8")
    local = ("cluster=local", "cluster.wait=false", "training=launch_check", "model=tiny", f"run.root={tmp_path}/runs")
    variables = (f"env.HF_TOKEN={ours}", "env_from_shell=[TOPOLOGY]", f"env.PYTHONPATH={probe}")
    command = [sys.executable, "-m", "hpctrain", *local, *variables, *words]
    subprocess.run(command, env=os.environ | {"TOPOLOGY": shells, "LEAK": "1", "RANK": "7"}, check=True)
    (folder,) = (tmp_path / "runs").glob("[!.]*")
    attempt = RunPaths(folder).attempt(1)
    deadline = time.monotonic() + 60
    while '"completed"' not in attempt.read_text(encoding="utf-8"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    ranks = [json.loads(path.read_text(encoding="utf-8")) for path in probe.glob("*.json")]
    assert len(ranks) == 2
    for rank in ranks:
        assert (rank["HF_TOKEN"], rank["TOPOLOGY"]) == (ours, shells)
        assert ("LEAK" in rank) == bool(words)
        assert rank.get("RANK") != "7"
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert ours.encode() not in content
        assert shells.encode() not in content


def test_overrides_of_a_point_hold_no_secret() -> None:
    assert point_of("env.HF_TOKEN=abcdef").overrides[-1] == "++env.HF_TOKEN=<redacted>"


def test_sbatch_variables_of_the_shell_become_defaults_that_are_told() -> None:
    shell = {"SBATCH_ACCOUNT": "acc", "SBATCH_QOS": "high", "SBATCH_TIMELIMIT": "4:00", "SBATCH_EXPORT": "NONE"}
    shell |= {"SBATCH_PARTITION": "gpu", "SBATCH_CPU_BIND": "quiet"}
    point = as_submitted_here(point_of("cluster=slurm", "cluster.qos=low", "cluster.partition=null"), shell)
    cluster = point.config.cluster
    assert (cluster.account, cluster.qos, cluster.time, cluster.partition) == ("acc", "low", "4:00", None)
    told = "\n".join(point.assumptions)
    assert "cluster.account not stated: acc (the shell's SBATCH_ACCOUNT)" in told
    assert "cluster.time not stated: 4:00 (the shell's SBATCH_TIMELIMIT)" in told
    assert "the shell's SBATCH_EXPORT, SBATCH_PARTITION, SBATCH_QOS: not used" in told
    assert "SBATCH_CPU_BIND" not in told
    local = point_of("cluster=local")
    assert as_submitted_here(local, shell).config.cluster == local.config.cluster


def test_setup_lines_must_be_whole_commands() -> None:
    check_setup(["module load cuda", "x=1 # comment", "if true; then y=2; fi", "cat <<'END'\ntext\nEND"])
    with pytest.raises(
        ConfigError, match=r'cluster.setup=echo "a: bash cannot read it \(.*\); each entry is a whole command'
    ):
        check_setup(['echo "a'])
    with pytest.raises(ConfigError, match=r"cluster.setup=if true; then: bash cannot read it"):
        check_setup(["if true; then", "fi"])


PYXIS = ("cluster=slurm", "hardware=cpu", "cluster.container.runtime=pyxis")


def test_an_image_file_is_absolute_and_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = (*PYXIS, "cluster.container.image=./img.sqsh", "cluster.container.python=/usr/bin/python3")
    config = as_submitted_here(point_of(*words), {}).config
    image = tmp_path / "img.sqsh"
    assert config.cluster.container.image == str(image)
    with pytest.raises(ConfigError, match=rf"cluster.container.image={image}: there is no such file"):
        check_container(config, "/opt/bin/python")
    image.touch()
    check_container(config, "/opt/bin/python")


def test_an_image_of_a_registry_is_left_as_it_is() -> None:
    words = (
        *PYXIS,
        "cluster.container.image='nvcr.io#nvidia/pytorch:25.01-py3'",
        "cluster.container.python=/usr/bin/python3",
    )
    config = as_submitted_here(point_of(*words), {}).config
    assert config.cluster.container.image == "nvcr.io#nvidia/pytorch:25.01-py3"
    check_container(config, "/opt/bin/python")


def test_what_ranks_need_must_be_mounted() -> None:
    config = config_of(
        *PYXIS, "cluster.container.image=ubuntu:24.04", "run.root='/a,b'", "data=text", "data.path=/data/x"
    )
    with pytest.raises(ConfigError) as caught:
        check_container(config, "/opt/env/bin/python")
    text = str(caught.value)
    assert "run.root=/a,b: a container's mounts are parted by commas" in text
    assert "cluster.container.python=null: the ranks would use /opt/env/bin/python, which is not mounted" in text
    assert "data.path=/data/x: is not mounted in the container; add '/data/x:/data/x:ro'" in text
    container = dataclasses.replace(config.cluster.container, mounts=("/opt/env", "/data:/data:ro"))
    mounted = dataclasses.replace(
        config,
        cluster=dataclasses.replace(config.cluster, container=container),
        run=dataclasses.replace(config.run, root="/a"),
    )
    check_container(mounted, "/opt/env/bin/python")


def test_the_folders_of_token_files_must_be_mounted() -> None:
    config = config_of(
        *PYXIS,
        "cluster.container.image=ubuntu:24.04",
        "cluster.container.mounts=[/opt/env,/data/in]",
        "data=tokens",
        "data.blend={/data/a: 1, /data/in/b: 2}",
        "data.validation_path=/held/out",
    )
    with pytest.raises(ConfigError) as caught:
        check_container(config, "/opt/env/bin/python")
    assert str(caught.value).splitlines() == [
        f"data.{key}: is not mounted in the container; add '{folder}:{folder}:ro' to cluster.container.mounts"
        for key, folder in (("blend=/data/a", "/data"), ("validation_path=/held/out", "/held"))
    ]


def test_a_variable_that_is_no_utf_8_is_recorded_and_stops_nothing(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    write_environment(run, {"TITLE": os.fsdecode(b"caf\xe9 \xc3\xa9")}, ())
    assert read_json(run.environment)["variables"] == {"TITLE": "caf\\xe9 é"}
