"""Asking a site: old and new formats of Slurm's answers, and every way in which an answer can be missing."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hpctrain.cli import run
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.launch.site.formats import nodes, partitions
from hpctrain.launch.site.question import SiteQuestion, ask_site
from hpctrain.launch.slurm.states import SlurmCluster
from hpctrain.plan.site.limits import Gres, Site
from tests.launch.site_fakes import SAMPLES, VERSIONS, fake_site, program

CLUSTER = SlurmCluster()


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    def of_version(version: str, always_accounting: bool = False) -> Site:
        fake_site(tmp_path, version, monkeypatch)
        return ask_site(CLUSTER, always_accounting)

    return of_version


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_read_whole(ask, version: str) -> None:  # type: ignore[no-untyped-def]
    site = ask(version)
    assert site.version.startswith(version)
    assert site.gaps == ()
    text = (SAMPLES / version / "partitions.txt").read_text(encoding="utf-8")
    assert len(site.partitions) == text.count("PartitionName=")
    for partition in site.partitions.values():
        assert sum(group.total for group in partition.groups) == partition.total_nodes, partition.name
    assert site.max_array_size is not None
    assert site.gres_types is not None
    assert "gpu" in site.gres_types


def test_a_site_of_2017_without_accounting(ask) -> None:  # type: ignore[no-untyped-def]
    site = ask("17.11", always_accounting=True)
    assert (site.has_accounting, site.accounting, site.enforce) == (False, None, frozenset())
    batch, debug = site.partitions["batch"], site.partitions["debug"]
    assert site.default_partition is batch
    assert (batch.max_time_s, batch.default_time_s, batch.max_nodes) == (2 * 86400, 3600, 16)
    assert (debug.max_time_s, debug.default_time_s, debug.state) == (None, None, "DOWN")
    # The reason of node02 holds «State=IDLE»; what counts comes first.
    assert not site.nodes["node02"].is_usable
    assert batch.usable_nodes == 2
    assert site.nodes["node01"].shape.gres == (Gres("gpu", "", 4),)
    assert site.nodes["node03"].shape.gres == ()
    assert site.reservations == {}


def test_types_sockets_specialised_memory_and_limits_of_accounting(ask) -> None:  # type: ignore[no-untyped-def]
    site = ask("19.05")
    gpu, staff = site.partitions["gpu"], site.partitions["staff"]
    assert gpu.allow_accounts == ("physics", "chem")
    assert (gpu.qos, gpu.no_root_jobs, gpu.max_cpus_per_node, gpu.def_mem_per_cpu_mib) == ("part_gpu", True, 36, 4000)
    assert (staff.allow_groups, staff.deny_accounts, staff.deny_qos) == (("admins",), ("chem",), ("low",))
    assert (staff.state, staff.needs_reservation, staff.max_nodes) == ("DRAIN", True, 1)
    shape = site.nodes["v001"].shape
    assert shape.gres == (Gres("gpu", "v100", 4), Gres("nvme", "", 1))
    assert (shape.memory_mib, shape.features) == (385000 - 8192, ("volta", "ib"))
    assert gpu.groups[1].unusable == (("DRAIN", 1),)
    assert (site.licenses, site.job_submit_plugins, site.job_requeue) == (("matlab:10", "ansys:4"), ("lua",), False)
    course = site.reservations["course"]
    assert (course.num_nodes, course.users, course.state) == (2, ("alice", "bob"), "INACTIVE")
    accounting = site.accounting
    assert accounting.default_account == "physics"
    physics, bio = accounting.associations  # not the one of another cluster
    assert (physics.qos, physics.default_qos, bio.partition) == (("high", "normal"), "normal", "staff")
    assert (physics.limits.max_wall_s, physics.limits.max_submit) == (12 * 3600, 20)
    assert physics.limits.max_tres == {"cpu": 400, "node": 3}
    assert accounting.accounts["science"].limits.group_tres == {"gres/gpu": 10, "mem": 2 * 1024**2}
    assert accounting.accounts["physics"].limits.group_submit == 100
    assert accounting.qos["part_gpu"].limits.max_tres_per_user == {"gres/gpu": 8}
    assert accounting.qos["part_gpu"].limits.min_tres == {"gres/gpu": 1}
    assert accounting.qos["high"].flags == ("DenyOnLimit",)


def test_cpus_that_the_site_keeps_and_whole_nodes(ask) -> None:  # type: ignore[no-untyped-def]
    site = ask("21.08")
    a100 = site.partitions["a100"]
    assert a100.gives_whole_nodes
    assert (a100.default_time_s, a100.min_nodes, a100.def_mem_per_gpu_mib) == (31 * 60, 2, 120000)
    (group,) = a100.groups
    assert (group.shape.cpus, group.shape.threads_per_core, group.total, group.usable) == (252, 2, 2, 2)
    assert site.default_partition is None
    assert site.enforce_part_limits == "ALL"
    # Nothing of accounting binds, so the database is not asked.
    assert (site.has_accounting, site.accounting) == (True, None)


def test_cloud_nodes_that_are_switched_off_take_jobs(ask) -> None:  # type: ignore[no-untyped-def]
    site = ask("23.11")
    assert [node.is_usable for node in site.nodes.values()] == [True, True, True, False]
    assert site.partitions["cloud"].gpu_types == ("nvidia_a100-sxm4-80gb", "nvidia_h100_80gb_hbm3")
    assert site.accounting.associations == ()
    assert site.enforce >= {"associations", "limits", "qos"}


def test_new_fields_names_with_blanks_and_free_text(ask) -> None:  # type: ignore[no-untyped-def]
    site = ask("24.11")
    assert set(site.partitions) == {"big", "small (test)"}
    assert site.partitions["big"].max_mem_per_node_mib == 515 * 1024
    node = site.nodes["h1"]
    assert node.is_usable
    assert node.shape.gres == (Gres("gpu", "h100", 7), Gres("gpu", "h100_1g.10gb", 7))
    assert not site.nodes["h2"].is_usable
    limits = site.accounting.qos["big"].limits
    assert (limits.max_wall_s, limits.max_tres, limits.max_jobs, limits.max_submit) == (14 * 86400, {"node": 8}, 2, 5)


def test_the_database_is_asked_where_its_rules_bind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fake_site(tmp_path, "21.08", monkeypatch)
    ask_site(CLUSTER)
    assert "sacctmgr" not in (folder / "calls").read_text(encoding="utf-8")
    fake_site(tmp_path, "19.05", monkeypatch)
    ask_site(CLUSTER)
    calls = (folder / "calls").read_text(encoding="utf-8").splitlines()
    assert len([call for call in calls if call.startswith("sacctmgr")]) == 3


@pytest.mark.parametrize(
    ("name", "script", "words"),
    [
        (
            "scontrol",
            "echo 'slurm_load_ctl_conf error: Unable to contact slurm controller' >&2; exit 1",
            "Unable to contact",
        ),
        ("scontrol", "exit 3", "exit code 3"),
        ("sacctmgr", "echo 'sacctmgr: error: slurm_persist_conn_open: no' >&2; exit 1", "slurm_persist_conn_open"),
    ],
    ids=["controller-away", "silent", "database-away"],
)
def test_a_failing_query_is_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str, words: str
) -> None:
    folder = fake_site(tmp_path, "19.05", monkeypatch)
    program(folder, name, f"#!/bin/sh\n{script}\n")
    site = ask_site(CLUSTER)
    (gap,) = site.gaps  # the same trouble of several queries is told once
    assert words in gap
    assert (site.partitions is None) == (name == "scontrol")
    assert site.accounting is None


def test_no_slurm_and_hidden_nodes_are_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (gap,) = ask_site(CLUSTER).gaps
    assert "no scontrol on this machine's PATH" in gap
    monkeypatch.undo()
    folder = fake_site(tmp_path, "17.11", monkeypatch)
    program(folder, "empty", "")
    scontrol = (folder / "scontrol").read_text(encoding="utf-8").replace(f"{SAMPLES}/17.11/nodes.txt", "/dev/null")
    program(folder, "scontrol", scontrol)
    site = ask_site(CLUSTER)
    assert site.partitions is not None
    assert (site.nodes, site.partitions["batch"].groups) == (None, ())
    assert "may hide them" in site.gaps[0]


def test_a_slow_answer_ends_in_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fake_site(tmp_path, "17.11", monkeypatch)
    program(folder, "scontrol", "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr("hpctrain.launch.site.question._TIMEOUT_S", 0.3)
    started = time.monotonic()
    (gap,) = ask_site(CLUSTER).gaps
    assert "no answer" in gap
    assert time.monotonic() - started < 10


def test_another_cluster_is_asked_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fake_site(tmp_path, "19.05", monkeypatch)
    SiteQuestion(SlurmCluster(name="c2")).site()
    calls = (folder / "calls").read_text(encoding="utf-8").splitlines()
    assert all(call.startswith("scontrol -M c2 ") for call in calls if call.startswith("scontrol"))
    assert not [call for call in calls if call.startswith("sacctmgr") and "-M" in call]


def test_five_thousand_nodes_are_read_in_well_under_a_second() -> None:
    line = (SAMPLES / "21.08" / "nodes.txt").read_text(encoding="utf-8").splitlines()[0]
    text = "\n".join(line.replace("=g1 ", f"=g{index} ") for index in range(5000))
    started = time.perf_counter()
    found = nodes(text)
    parsed = partitions((SAMPLES / "21.08" / "partitions.txt").read_text(encoding="utf-8"), found, {})
    assert time.perf_counter() - started < 1.0
    assert parsed["a100"].groups[0].total == 5000


@pytest.fixture
def site_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    folder = fake_site(tmp_path, "17.11", monkeypatch)
    program(folder, "srun", "#!/bin/sh\nexit 0\n")
    program(folder, "sbatch", "#!/bin/sh\necho 7\n")
    return [
        "model=tiny",
        "cluster=sandbox",
        "hardware.gpus_per_node=4",
        "cluster.gpu_request=gres",
        f"run.root={tmp_path}/runs",
    ]


def test_an_impossible_request_is_refused_before_anything_is_written(site_words: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nodes=128: partition batch allows at most 16") as caught:
        run([*site_words, "nodes=128", "cluster.time=3-00:00:00"])
    assert "cluster.time=3-00:00:00: 3 d, and partition batch allows 2 d (MaxTime); nearest: 2-00:00:00" in str(
        caught.value
    )
    assert not (tmp_path / "runs").exists()


def test_force_leaves_the_judgement_to_slurm(site_words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*site_words, "nodes=3", "--force"]) == 0
    assert "job 7" in capsys.readouterr().out


def test_all_points_of_a_sweep_are_held_against_one_answer(site_words: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="1 of 3 points") as caught:
        run(["-m", *site_words, "nodes=1,2,40"])
    assert "nodes=40" in str(caught.value)
    calls = (tmp_path / "bin" / "calls").read_text(encoding="utf-8").splitlines()
    assert len(calls) == 4


def test_what_the_site_decides_is_told(site_words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*site_words, "nodes=1"]) == 0
    out = capsys.readouterr().out
    assert "cluster.partition not stated: batch, this site's default" in out
    assert "cluster.time not stated: 1 h, partition batch's DefaultTime" in out


def test_a_site_that_cannot_be_asked_is_submitted_to_with_a_note(
    site_words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(tmp_path / "bin", "scontrol", "#!/bin/sh\nexit 1\n")
    assert run([*site_words, "nodes=4000"]) == 0
    assert "warning: the site could not be asked for everything" in capsys.readouterr().out


def test_plan_asks_only_where_it_is_told_to(
    site_words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", *site_words, "nodes=128"]) == 0
    assert not (tmp_path / "bin" / "calls").exists()
    assert run(["plan", *site_words, "nodes=128", "--site"]) == 2
    out = capsys.readouterr().out
    assert "nodes=128: partition batch allows at most 16 nodes a job (MaxNodes); nearest: 16" in out
    assert "batch*" in out
    assert run(["plan", *site_words, "nodes=128", "--site", "--json"]) == 2
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [problem["key"] for problem in problems if problem["kind"] == "site"] == ["nodes"]


@pytest.mark.parametrize(
    ("version", "words", "expected"),
    [
        (
            "19.05",
            "Invalid account or account/partition combination specified",
            "your accounts (cluster.account=NAME): known: bio, physics",
        ),
        ("19.05", "Invalid qos specification", "QOS of your account (cluster.qos=NAME): known: high, normal"),
        ("19.05", "Invalid generic resource (gres) specification", "gpu has gpu:v100:4, nvme:1 a node"),
        ("21.08", "invalid partition specified", "partitions (cluster.partition=NAME): known: a100"),
    ],
)
def test_sbatchs_refusal_is_shown_with_the_sites_names(
    site_words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, words: str, expected: str
) -> None:
    fake_site(tmp_path, version, monkeypatch)
    program(tmp_path / "bin", "sbatch", f"#!/bin/sh\necho 'sbatch: error: {words}' >&2; exit 1\n")
    with pytest.raises(LaunchError, match="Slurm refused the job") as caught:
        run([*site_words, "--force"])
    assert words in str(caught.value)
    assert expected in str(caught.value)
    assert "$ sbatch --parsable" in str(caught.value)
