"""Names of network interfaces, held against those of a node (case 52)."""

from __future__ import annotations

import pytest

from hpctrain.worker.socket_names import check_socket_names, interfaces_up, nccl_matches

INTERFACES = {"docker0": ("172.17.0.1",), "eth0": ("10.0.0.1", "fe80::1"), "eth01": ("10.0.1.1",), "lo": ("127.0.0.1",)}


@pytest.mark.parametrize(
    ("choice", "matches"),
    [
        ("eth0", ["eth0", "eth01"]),
        ("=eth0", ["eth0"]),
        ("eth,lo", ["eth0", "eth01", "lo"]),
        ("=eth01,lo", ["eth01", "lo"]),
        ("^docker,lo", ["eth0", "eth01"]),
        ("^=eth0", ["docker0", "eth01", "lo"]),
        ("=eth", []),
        ("^docker,eth,lo", []),
        ("doesnotexist0", []),
        ("eth0:1", ["eth0", "eth01"]),
        ("^", []),
        ("=", list(INTERFACES)),
    ],
)
def test_what_nccl_would_take(choice: str, matches: list[str]) -> None:
    assert nccl_matches(choice, list(INTERFACES)) == matches
    problem = check_socket_names({"NCCL_SOCKET_IFNAME": choice}, INTERFACES, "n1")
    assert bool(problem) is not bool(matches)


def test_a_name_that_fits_nothing_names_node_choices_and_rules() -> None:
    problem = check_socket_names({"NCCL_SOCKET_IFNAME": "ib"}, INTERFACES, "n7")
    assert problem.startswith(
        "NCCL_SOCKET_IFNAME=ib: matches no interface of node n7 that is up; up are: docker0 (172.17.0.1), "
    )
    for part in ("eth0 (10.0.0.1, fe80::1)", "=eth0 for that name alone", "^docker for all but those"):
        assert part in problem


def test_gloo_takes_whole_names() -> None:
    assert check_socket_names({"GLOO_SOCKET_IFNAME": "eth0,lo"}, INTERFACES, "n1") == ""
    problem = check_socket_names({"GLOO_SOCKET_IFNAME": "eth,lo"}, INTERFACES, "n1")
    assert problem.startswith("GLOO_SOCKET_IFNAME=eth,lo: node n1 has no interface eth that is up")
    both = check_socket_names({"GLOO_SOCKET_IFNAME": "x", "NCCL_SOCKET_IFNAME": "y"}, INTERFACES, "n1")
    assert "NCCL_SOCKET_IFNAME=y" in both
    assert "GLOO_SOCKET_IFNAME=x" in both


def test_nothing_set_is_nothing_asked() -> None:
    assert check_socket_names({}, {}, "n1") == ""


def test_interfaces_of_this_machine() -> None:
    assert "127.0.0.1" in interfaces_up()["lo"]
