"""Who a process of an AzureML command job is, from the variables of AzureML's PyTorch launcher."""

from __future__ import annotations

import pytest

from hpctrain.worker.end_reasons import RankEnvironmentError, WorldSizeError
from hpctrain.worker.rank_env import azureml_rank_env

VARIABLES = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "NODE_RANK": "1",
    "MASTER_ADDR": "10.0.0.4",
    "MASTER_PORT": "6105",
    "AZUREML_RUN_ID": "tiny-2n",
    "HPCTRAIN_ATTEMPT": "1",
}


def test_a_rank_is_what_the_launcher_says() -> None:
    env = azureml_rank_env(VARIABLES, {}, (2, 4), "host-b")
    assert (env.rank, env.world_size, env.local_rank, env.local_world_size) == (5, 8, 1, 4)
    assert (env.node_rank, env.num_nodes, env.node_name) == (1, 2, "host-b")
    assert (env.master_addr, env.master_port, env.job_id, env.attempt) == ("10.0.0.4", 6105, "tiny-2n", 1)
    assert (env.master_addr_source, env.master_port_source) == ("AzureML", "AzureML")


def test_the_users_address_and_port_win() -> None:
    env = azureml_rank_env(VARIABLES, {"MASTER_ADDR": "10.1.1.1", "MASTER_PORT": "7000"}, (2, 4), "h")
    assert (env.master_addr, env.master_port) == ("10.1.1.1", 7000)
    assert (env.master_addr_source, env.master_port_source) == ("env.MASTER_ADDR", "env.MASTER_PORT")


@pytest.mark.parametrize("name", [name for name in VARIABLES if name != "HPCTRAIN_ATTEMPT"])
def test_nothing_has_a_default_that_would_train_alone(name: str) -> None:
    variables = {key: value for key, value in VARIABLES.items() if key != name}
    with pytest.raises(RankEnvironmentError, match=f"{name}: missing.*AzureML with distribution.type=pytorch"):
        azureml_rank_env(variables, {}, (2, 4), "h")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"RANK": "4"}, "RANK=4: NODE_RANK=1 x 4 .* is 5"),
        ({"RANK": "x"}, "RANK=x: must be a whole number"),
        ({"NODE_RANK": "2", "RANK": "9"}, "rank 9 must be below the world size, 8"),
        ({"LOCAL_RANK": "4", "RANK": "4", "NODE_RANK": "0"}, "local rank 4 must be below"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT=0: must be from 1 to 65535"),
    ],
)
def test_variables_that_do_not_fit(changes: dict[str, str], text: str) -> None:
    with pytest.raises(RankEnvironmentError, match=text):
        azureml_rank_env(VARIABLES | changes, {}, (2, 4), "h")


def test_a_job_of_another_size_than_the_plan() -> None:
    with pytest.raises(WorldSizeError, match="AzureML started 8 ranks, the plan has 2 nodes x 8 = 16"):
        azureml_rank_env(VARIABLES, {}, (2, 8), "h")
