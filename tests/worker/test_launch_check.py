from __future__ import annotations

import dataclasses
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpctrain.record.launch_check import NodeCheck, summary_text
from hpctrain.record.paths import RunPaths
from hpctrain.worker.launch_check_result import findings
from hpctrain.worker.node_facts import fabric_ports, interfaces_up
from tests.worker.check_ranks import Check

SHORT_MIN = 0.1  # 6 s


@pytest.fixture
def make_check(tmp_path: Path) -> Iterator[Callable[[int, int], Check]]:
    made: list[Check] = []

    def make(num_nodes: int, gpus_per_node: int) -> Check:
        made.append(Check(RunPaths(tmp_path / "a run's $folder"), num_nodes, gpus_per_node))
        return made[-1]

    yield make
    for check in made:
        check.end()


@pytest.fixture
def two_by_three(make_check: Callable[[int, int], Check]) -> Check:
    return make_check(2, 3)


@pytest.mark.parametrize(("num_nodes", "tasks"), [(2, 3), (1, 1), (1, 2), (3, 1)])
def test_all_ranks_meet_and_are_measured(make_check: Callable[[int, int], Check], num_nodes: int, tasks: int) -> None:
    check = make_check(num_nodes, tasks)
    check.plan()
    began = time.time()
    check.open_attempt(began)
    check.start()
    logs = {rank: check.log(rank) for rank in check.processes}
    assert set(check.codes().values()) == {0}, logs
    result, attempt = check.result(), check.attempt()
    assert (attempt.state, attempt.end_reason, attempt.exit_code) == ("completed", "completed", 0)
    assert (attempt.started_at_s, attempt.host) == (began, "n1")
    assert attempt.world_size == result.world_size == num_nodes * tasks
    ranks = [tuple(range(node * tasks, (node + 1) * tasks)) for node in range(num_nodes)]
    assert [node.ranks for node in attempt.nodes] == [node.ranks for node in result.nodes] == ranks
    assert [node.name for node in result.nodes] == [f"n{node + 1}" for node in range(num_nodes)]
    assert result.findings == ()
    assert attempt.setup_time_s == pytest.approx(result.met_s)
    for node in result.nodes:
        assert 0 < node.first_rank_s <= node.last_rank_s <= result.met_s < 60
        # One machine, one clock.
        assert abs(node.clock_ahead_s) <= node.clock_error_s + 1e-3
        assert node.host_memory_bytes > 2**28
        assert node.cpus >= 1
    assert 0 <= result.barrier_s < 5
    assert summary_text(result) in logs[0]


def test_ranks_need_neither_torch_nor_the_readers_of_every_field() -> None:
    code = "import hpctrain.worker.launch_check, sys; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"torch", "deepspeed", "numpy", "pydantic", "pydantic_core", "yaml", "submitit", "subprocess", "asyncio"}
    assert not heavy & {name.split(".")[0] for name in modules}


def test_ranks_that_do_not_come_are_named_with_their_nodes(two_by_three: Check) -> None:
    two_by_three.plan(start_timeout_min=SHORT_MIN)
    _start_others_first(two_by_three, [1, 2, 3, 5])
    assert two_by_three.codes()[0] == 11
    attempt = two_by_three.attempt()
    assert (attempt.state, attempt.end_reason, attempt.failed_rank, attempt.failed_node) == (
        "failed",
        "bad_environment",
        0,
        "n1",
    )
    assert "1 of 6 ranks did not arrive: 4; nodes with ranks missing: n2 (2 of 3 came)" in attempt.message
    assert all(code != 0 for code in two_by_three.codes().values())


def test_a_node_that_does_not_come_is_named(two_by_three: Check) -> None:
    two_by_three.plan(start_timeout_min=SHORT_MIN)
    _start_others_first(two_by_three, [1, 2])
    assert two_by_three.codes()[0] == 11
    assert (
        "3 of 6 ranks did not arrive: 3, 4, 5; nodes with ranks missing: n2 (none came)"
        in two_by_three.attempt().message
    )


def test_rank_0_that_does_not_come_is_missed_by_those_who_speak_for_their_nodes(two_by_three: Check) -> None:
    two_by_three.plan(start_timeout_min=-0.1)  # with the grace: 4 s
    two_by_three.start(ranks=[1, 3, 4])
    assert set(two_by_three.codes().values()) <= {11, 17}
    message = two_by_three.attempt().message
    assert f"cannot reach rank 0 at 127.0.0.1:{two_by_three.port}" in message
    assert "did rank 0 start?" in message


def test_a_world_of_another_size_than_the_plan_fails(make_check: Callable[[int, int], Check]) -> None:
    check = make_check(2, 4)
    check.plan()
    check.start(num_nodes=2, tasks=3)
    assert check.codes()[0] == 12, check.log(0)
    attempt = check.attempt()
    assert attempt.end_reason == "world_size_mismatch"
    assert "world size: 6 ranks met, the plan has 2 nodes x 4 = 8" in attempt.message
    assert check.result().world_size == 6  # what was measured stays


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_node_that_shows_other_gpus_is_named(two_by_three: Check, device: str) -> None:
    two_by_three.plan(device=device)
    visible = {rank: {"CUDA_VISIBLE_DEVICES": "0,1,2"} for rank in range(3)}
    visible |= {rank: {"CUDA_VISIBLE_DEVICES": "0,1"} for rank in (3, 4, 5)}
    if device == "cuda":
        # Rank 5 would fail by itself, which has a GPU of its own number no more.
        visible[5] = {"CUDA_VISIBLE_DEVICES": "0"}
    two_by_three.start(env=visible)
    codes = two_by_three.codes()
    assert "node n2: GPUs shown to its ranks: 2; the other 1 has: 3" in two_by_three.result().findings
    attempt = two_by_three.attempt()
    if device == "cpu":
        assert (set(codes.values()), attempt.state) == ({0}, "completed")
        assert "n2" in attempt.message
    else:
        assert (codes[0], attempt.end_reason) == (11, "bad_environment")
        assert "hardware.gpus_per_node=3: node n2 shows 2 GPUs" in attempt.message


def test_a_rank_without_a_gpu_of_its_own_is_the_one_that_fails(two_by_three: Check) -> None:
    two_by_three.plan(device="cuda")
    two_by_three.start(env={rank: {"CUDA_VISIBLE_DEVICES": "0,1" if rank == 5 else "0,1,2"} for rank in range(6)})
    codes = two_by_three.codes()
    assert codes[5] == 11
    assert all(codes.values())
    attempt = two_by_three.attempt()
    assert (attempt.failed_rank, attempt.failed_node) == (5, "n2")
    assert "node n2 shows 2 GPUs to local rank 2 of 3" in attempt.message


def test_a_killed_rank_ends_the_others_and_leaves_a_reason(two_by_three: Check) -> None:
    two_by_three.plan()
    two_by_three.start(ranks=[0, 1, 2, 3, 4])
    _wait_for_line(two_by_three, [0, 1, 2, 3, 4])
    time.sleep(0.5)
    two_by_three.processes[4].kill()
    codes = two_by_three.codes()
    assert codes.pop(4) == -signal.SIGKILL
    assert all(codes.values())
    attempt = two_by_three.attempt()
    assert (attempt.state, attempt.end_reason) == ("failed", "killed")
    assert "went away" in attempt.message


def test_a_signal_ends_all_ranks_and_rank_0_records_it(two_by_three: Check) -> None:
    two_by_three.plan()
    two_by_three.start(ranks=[0, 1, 2, 3, 4])
    _wait_for_line(two_by_three, [0, 1, 2, 3, 4])
    began = time.monotonic()
    for process in two_by_three.processes.values():
        process.terminate()
    codes = two_by_three.codes()
    assert time.monotonic() - began < 10
    assert codes[0] == 16
    assert all(codes.values())
    assert two_by_three.attempt().end_reason == "signal"


def test_a_second_process_of_the_same_rank_is_an_error(two_by_three: Check) -> None:
    two_by_three.plan()
    two_by_three.start(ranks=[0, 1, 2, 3, 4], env={4: {"SLURM_PROCID": "3"}})
    assert two_by_three.codes()[0] == 11
    assert "rank 3 came twice: from node n2 and from node n2" in two_by_three.attempt().message


def test_strangers_at_the_port_do_not_disturb(two_by_three: Check) -> None:
    two_by_three.plan()
    two_by_three.start(ranks=[0, 1, 2])
    deadline = time.monotonic() + 30
    while True:
        try:
            strangers = [socket.create_connection(("127.0.0.1", two_by_three.port)) for _ in range(3)]
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    strangers[1].sendall(b'{"run": "another", "node": "x"}\n')
    strangers[2].close()
    two_by_three.start(ranks=[3, 4, 5])
    assert set(two_by_three.codes().values()) == {0}
    for stranger in strangers:
        stranger.close()


def test_a_taken_port_is_named(two_by_three: Check) -> None:
    two_by_three.plan()
    with socket.create_server(("", two_by_three.port)):
        two_by_three.start(ranks=[0])
        assert two_by_three.codes()[0] == 11
    text = f"MASTER_PORT={two_by_three.port} (from env.MASTER_PORT): rank 0 cannot listen on it on node n1"
    assert text in two_by_three.attempt().message


def test_an_address_that_nobody_knows_is_named(two_by_three: Check) -> None:
    environment = {"MASTER_ADDR": "no-such-host.invalid", "MASTER_PORT": str(two_by_three.port)}
    two_by_three.plan(slurm={"environment": environment})
    two_by_three.start(ranks=[3])
    assert two_by_three.codes()[3] == 11
    assert "MASTER_ADDR=no-such-host.invalid (from env.MASTER_ADDR): rank 3 on node n2 cannot resolve it" in (
        two_by_three.attempt().message
    )


def test_a_damaged_plan_is_named(two_by_three: Check) -> None:
    two_by_three.plan(layout={})
    two_by_three.start(ranks=[0])
    assert two_by_three.codes()[0] == 11
    assert "plan.json: 'num_nodes'" in two_by_three.attempt().message


def _start_others_first(check: Check, others: list[int]) -> None:
    """Rank 0 waits for a short time only, and a busy machine starts a process in any time."""
    check.start(ranks=others)
    _wait_for_line(check, others)
    check.start(ranks=[0])


def _wait_for_line(check: Check, ranks: list[int]) -> None:
    """Until each rank has said who it is."""
    for rank in ranks:
        stream = check.processes[rank].stdout
        assert stream is not None
        assert stream.readline().startswith(f"launch check: rank {rank} of")


NODE = NodeCheck(
    name="n1",
    node_rank=0,
    ranks=(0, 1),
    cpus=8,
    node_cpus=16,
    host_memory_bytes=64 * 2**30,
    gpus_visible=2,
    gpus=("A 80.0 GiB", "A 80.0 GiB"),
    interfaces=("eth0", "ib0"),
    fabric=("mlx5_0/1 ACTIVE 200 Gb/sec (4X HDR)",),
    python="/usr/bin/python3 3.12.1",
    package="/code/hpctrain 1.0",
    clock_ahead_s=0.0,
    clock_error_s=0.001,
    first_rank_s=1.0,
    last_rank_s=2.0,
    barrier_s=0.001,
)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"gpus_visible": 1}, "node n4: GPUs shown to its ranks: 1; the other 3 have: 2"),
        ({"gpus_visible": None}, "node n4: GPUs shown to its ranks: none said; the other 3 have: 2"),
        (
            {"gpus": ("A 80.0 GiB",)},
            "node n4: GPUs by the driver: 1 x A 80.0 GiB; the other 3 have: 2 x A 80.0 GiB",
        ),
        ({"cpus": 1}, "node n4: CPUs of a rank: 1; the other 3 have: 8"),
        ({"host_memory_bytes": 32 * 2**30}, "node n4: host memory: 32.00 GiB; usual here: 64.00 GiB"),
        ({"interfaces": ("eth0",)}, "node n4: network interfaces: eth0; the other 3 have: eth0, ib0"),
        (
            {"fabric": ("mlx5_0/1 DOWN 40 Gb/sec (4X QDR)",)},
            "node n4: fabric ports: mlx5_0/1 DOWN 40 Gb/sec (4X QDR); the other 3 have: mlx5_0/1 ACTIVE 200 Gb/sec (4X HDR)",
        ),
        ({"python": "/usr/bin/python3 3.11"}, "node n4: interpreter: /usr/bin/python3 3.11; the other 3 have:"),
        ({"clock_ahead_s": 3.24}, "node n4: clock is 3.2 s ahead of rank 0's"),
        ({"clock_ahead_s": -61.0}, "node n4: clock is 61.0 s behind rank 0's"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_odd_node_is_named(changes: dict[str, object], text: str) -> None:
    nodes = [dataclasses.replace(NODE, name=f"n{number}", node_rank=number - 1) for number in range(1, 4)]
    assert findings(nodes) == ()
    odd = dataclasses.replace(NODE, name="n4", node_rank=3, **changes)  # type: ignore[arg-type]
    (found,) = findings([*nodes, odd])
    assert found.startswith(text)


def test_memory_that_firmware_takes_is_no_finding() -> None:
    other = dataclasses.replace(NODE, name="n2", host_memory_bytes=int(63.5 * 2**30))
    assert findings([NODE, other]) == ()


def test_fabric_ports_are_read_from_the_kernel(tmp_path: Path) -> None:
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n", encoding="ascii")
    (port / "rate").write_text("200 Gb/sec (4X HDR)\n", encoding="ascii")
    assert fabric_ports(str(tmp_path)) == ["mlx5_0/1 ACTIVE 200 Gb/sec (4X HDR)"]
    assert fabric_ports(str(tmp_path / "none")) == []


def test_the_loopback_is_no_interface() -> None:
    assert "lo" not in interfaces_up()


def test_the_summary_tells_the_slowest_node_and_the_findings(make_check: Callable[[int, int], Check]) -> None:
    check = make_check(1, 1)
    check.plan()
    check.start()
    assert check.codes() == {0: 0}
    slow = dataclasses.replace(NODE, name="n9", last_rank_s=40.0, clock_ahead_s=-0.5)
    result = dataclasses.replace(check.result(), nodes=(NODE, slow), findings=("node n9: odd",))
    text = summary_text(result)
    assert "ranks started 1.0 s to 40.0 s after the job began, the last on n9" in text
    assert re.search(r"clocks within 500\.0 ms of rank 0's, the farthest on n9", text)
    assert "finding: node n9: odd" in text
    assert "4 GPUs shown" in text
