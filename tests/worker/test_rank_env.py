"""Ranks from the variables of a task (cases 41, 46, 49, 50, 53, 58)."""

from __future__ import annotations

import pytest

from hpctrain.worker.end_reasons import RankEnvironmentError
from hpctrain.worker.rank_env import (
    FIRST_PORT,
    LAST_PORT,
    RankEnv,
    cache_dir,
    local_rank_env,
    slurm_rank_env,
    step_nodelist,
    variables_to_set,
    variables_to_unset,
)

# The second of three nodes with 4 + 4 + 2 tasks, its task 3; values as srun 22.05 sets them.
SLURM = {
    "SLURM_PROCID": "7",
    "SLURM_STEP_NUM_TASKS": "10",
    "SLURM_LOCALID": "3",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),2",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURMD_NODENAME": "n2",
    "SLURM_JOB_ID": "123",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.99",
    "SLURM_CPUS_PER_TASK": "6",
    "HOME": "/home/someone",
    "USER": "someone",
}
FIRST_TASK = SLURM | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURMD_NODENAME": "n1"}
LOCAL = {
    "SUBMITIT_LOCAL_GLOBALID": "1",
    "SUBMITIT_LOCAL_NTASKS": "2",
    "SUBMITIT_LOCAL_LOCALID": "1",
    "SUBMITIT_LOCAL_NODEID": "0",
    "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
    "SUBMITIT_LOCAL_JOB_ID": "4711",
    "HOME": "/home/someone",
}
REQUIRED_BY_SLURM = [name for name in SLURM if name.startswith("SLURM")]
REQUIRED_BY_SLURM.remove("SLURM_LAUNCH_NODE_IPADDR")
REQUIRED_BY_SLURM.remove("SLURM_CPUS_PER_TASK")


def slurm(environment: dict[str, str], user_env: dict[str, str] | None = None) -> RankEnv:
    return slurm_rank_env(environment, user_env or {}, "a-run", first_host="n1")


def local(environment: dict[str, str], user_env: dict[str, str] | None = None) -> RankEnv:
    return local_rank_env(environment, user_env or {}, "a-run", host_name="laptop")


def variables(rank_env: RankEnv, environment: dict[str, str], **changes: object) -> dict[str, str]:
    arguments = {"user_env": {}, "device": "cpu", "affinity_cpus": 8, "collective_timeout_min": 30} | changes
    return variables_to_set(rank_env, environment, **arguments)  # type: ignore[arg-type]


def test_a_slurm_rank() -> None:
    rank_env = slurm(SLURM)
    assert rank_env == RankEnv(
        rank=7,
        world_size=10,
        local_rank=3,
        local_world_size=4,
        node_rank=1,
        num_nodes=3,
        node_name="n2",
        master_addr="n1",
        master_addr_source="first node of SLURM_STEP_NODELIST",
        master_port=rank_env.master_port,
        master_port_source="run folder, job id and attempt",
        attempt=1,
        job_id="123",
    )


def test_a_local_rank() -> None:
    rank_env = local(LOCAL)
    assert (rank_env.rank, rank_env.world_size, rank_env.local_rank, rank_env.local_world_size) == (1, 2, 1, 2)
    assert (rank_env.node_rank, rank_env.num_nodes, rank_env.node_name) == (0, 1, "laptop")
    assert (rank_env.master_addr, rank_env.job_id, rank_env.attempt) == ("127.0.0.1", "4711", 1)


@pytest.mark.parametrize("name", REQUIRED_BY_SLURM)
@pytest.mark.parametrize("empty", [True, False], ids=["empty", "unset"])
def test_every_missing_slurm_variable_is_named(name: str, empty: bool) -> None:
    environment = {key: value for key, value in SLURM.items() if key != name} | ({name: ""} if empty else {})
    with pytest.raises(RankEnvironmentError, match=rf"^{name}: missing .* srun, one task per GPU"):
        slurm(environment)


@pytest.mark.parametrize("name", [name for name in LOCAL if name.startswith("SUBMITIT")])
def test_every_missing_local_variable_is_named(name: str) -> None:
    with pytest.raises(RankEnvironmentError, match=rf"^{name}: missing .* submitit's local executor"):
        local({key: value for key, value in LOCAL.items() if key != name})


def test_all_missing_variables_are_named_at_once() -> None:
    with pytest.raises(RankEnvironmentError, match=r"^SLURM_PROCID, SLURM_STEP_NUM_TASKS, .*SLURM_JOB_ID: missing"):
        slurm({})
    with pytest.raises(RankEnvironmentError, match="SLURM_STEP_NODELIST: missing"):
        step_nodelist({"SLURM_JOB_NODELIST": "n[1-3]"})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID=x: must be a whole number"),
        ({"SLURM_PROCID": "-1"}, "SLURM_PROCID=-1: must be a whole number"),
        ({"SLURM_PROCID": "10"}, "rank 10 must be below the world size, 10"),
        ({"SLURM_LOCALID": "4"}, "local rank 4 must be below the tasks of the node, 4"),
        ({"SLURM_NODEID": "3"}, r"SLURM_NODEID=3: SLURM_STEP_TASKS_PER_NODE=4\(x2\),2 has 3 nodes"),
        ({"SLURM_STEP_NUM_NODES": "1"}, "node rank 1 must be below the number of nodes, 1"),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(y2)"}, r"'4\(y2\)' is not in Slurm's form"),
    ],
)
def test_variables_that_make_no_sense(changes: dict[str, str], text: str) -> None:
    with pytest.raises(RankEnvironmentError, match=text):
        slurm(SLURM | changes)


def test_task_0_must_be_where_the_others_look_for_it() -> None:
    assert slurm(FIRST_TASK).master_addr == "n1"
    elsewhere = FIRST_TASK | {"SLURMD_NODENAME": "n3"}
    with pytest.raises(RankEnvironmentError, match=r"task 0 runs on n3, .* is n1; .* env.MASTER_ADDR=n3"):
        slurm(elsewhere)
    assert slurm(elsewhere, {"MASTER_ADDR": "n3"}).master_addr == "n3"


def test_the_users_address_and_port_win() -> None:
    rank_env = slurm(SLURM, {"MASTER_ADDR": "10.1.1.1", "MASTER_PORT": "23456"})
    assert (rank_env.master_addr, rank_env.master_addr_source) == ("10.1.1.1", "env.MASTER_ADDR")
    assert (rank_env.master_port, rank_env.master_port_source) == (23456, "env.MASTER_PORT")
    assert local(LOCAL, {"MASTER_ADDR": "::1"}).master_addr == "::1"


@pytest.mark.parametrize(
    ("user_env", "text"),
    [
        ({"MASTER_ADDR": " "}, "env.MASTER_ADDR: must not be empty"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT=http: must be a whole number"),
        ({"MASTER_PORT": "0"}, "env.MASTER_PORT=0: must be from 1 to 65535"),
        ({"MASTER_PORT": "70000"}, "env.MASTER_PORT=70000: must be from 1 to 65535"),
    ],
)
def test_bad_addresses_and_ports_of_the_user(user_env: dict[str, str], text: str) -> None:
    with pytest.raises(RankEnvironmentError, match=text):
        slurm(SLURM, user_env)


def test_attempt_job_id_and_port() -> None:
    ports = {
        slurm(SLURM | changes).master_port
        for changes in (
            {},
            {"SLURM_JOB_ID": "124"},
            {"HPCTRAIN_ATTEMPT": "2"},
            {"SLURM_ARRAY_JOB_ID": "120", "SLURM_ARRAY_TASK_ID": "2"},
        )
    }
    ports.add(slurm_rank_env(SLURM, {}, "another-run", "n1").master_port)
    assert len(ports) == 5
    assert all(FIRST_PORT <= port < LAST_PORT for port in ports)
    others = SLURM | {"SLURM_PROCID": "2", "SLURM_LOCALID": "2", "SLURM_NODEID": "0", "SLURMD_NODENAME": "n1"}
    assert slurm(others).master_port == slurm(SLURM).master_port
    assert slurm(SLURM | {"HPCTRAIN_ATTEMPT": "3"}).attempt == 3
    assert slurm(SLURM | {"SLURM_ARRAY_JOB_ID": "120", "SLURM_ARRAY_TASK_ID": "2"}).job_id == "120_2"


def test_variables_of_a_rank() -> None:
    rank_env = slurm(SLURM)
    found = variables(rank_env, SLURM)
    assert found == {
        "RANK": "7",
        "WORLD_SIZE": "10",
        "LOCAL_RANK": "3",
        "LOCAL_WORLD_SIZE": "4",
        "LOCAL_SIZE": "4",
        "NODE_RANK": "1",
        "CROSS_RANK": "1",
        "CROSS_SIZE": "3",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": str(rank_env.master_port),
        "OMP_NUM_THREADS": "6",
        "DS_ACCELERATOR": "cpu",
        "DEEPSPEED_TIMEOUT": "30",
        "TORCH_EXTENSIONS_DIR": "/tmp/hpctrain-someone-123-1/torch_extensions",
        "TRITON_CACHE_DIR": "/tmp/hpctrain-someone-123-1/triton",
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/hpctrain-someone-123-1/inductor",
    }


def test_the_users_variables_win_but_for_the_ranks_identity() -> None:
    found = variables(slurm(SLURM), SLURM, user_env={"OMP_NUM_THREADS": "2", "NCCL_DEBUG": "INFO"})
    assert (found["OMP_NUM_THREADS"], found["NCCL_DEBUG"]) == ("2", "INFO")
    with pytest.raises(RankEnvironmentError, match=r"env.WORLD_SIZE=1: every rank has its own value"):
        variables(slurm(SLURM), SLURM, user_env={"WORLD_SIZE": "1"})


@pytest.mark.parametrize(
    ("visible", "index"),
    [(None, 3), ("0,1,2,3", 3), ("4,5,6,7", 3), ("6", 0), ("GPU-8f2c", 0)],
    ids=["unset", "all", "shared node", "one per task", "one per task by uuid"],
)
def test_device_index_is_relative_to_what_the_task_sees(visible: str | None, index: int) -> None:
    environment = SLURM | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert variables(slurm(SLURM), environment, device="cuda")["LOCAL_RANK"] == str(index)


@pytest.mark.parametrize(("visible", "count"), [("", 0), ("0,1", 2)])
def test_a_task_without_a_gpu_of_its_own(visible: str, count: int) -> None:
    environment = SLURM | {"CUDA_VISIBLE_DEVICES": visible}
    with pytest.raises(
        RankEnvironmentError, match=f"CUDA_VISIBLE_DEVICES={visible}: .* {count} GPUs to local rank 3 of 4"
    ):
        variables(slurm(SLURM), environment, device="cuda")
    assert variables(slurm(SLURM), environment, device="cpu")["LOCAL_RANK"] == "3"


@pytest.mark.parametrize(
    ("cpus_per_task", "affinity", "threads"),
    [("6", 8, "6"), ("6", 4, "4"), (None, 8, "2"), (None, 3, "1")],
    ids=["as asked for", "fewer than asked for", "share of the node", "at least one"],
)
def test_threads(cpus_per_task: str | None, affinity: int, threads: str) -> None:
    environment = {key: value for key, value in SLURM.items() if key != "SLURM_CPUS_PER_TASK"}
    if cpus_per_task is not None:
        environment["SLURM_CPUS_PER_TASK"] = cpus_per_task
    assert variables(slurm(SLURM), environment, affinity_cpus=affinity)["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize(
    ("environment", "parent"),
    [
        ({"TMPDIR": "/local/scratch"}, "/local/scratch"),
        ({"TMPDIR": "/home/someone/tmp"}, "/tmp"),
        ({"TMPDIR": "relative"}, "/tmp"),
        ({"HOME": "/tmp"}, "/var/tmp"),
        ({"HOME": "/"}, "/tmp"),
    ],
)
def test_caches_are_never_below_home(environment: dict[str, str], parent: str) -> None:
    folder = cache_dir(slurm(SLURM), {"HOME": "/home/someone", "USER": "someone"} | environment)
    assert folder == f"{parent}/hpctrain-someone-123-1"


def test_left_overs_of_other_launchers_go() -> None:
    left_overs = ["AZUREML_EXPERIMENT_ID", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_RANK", "PMI_RANK", "TORCHELASTIC_RUN_ID"]
    assert variables_to_unset(dict.fromkeys(left_overs, "1") | SLURM) == left_overs
