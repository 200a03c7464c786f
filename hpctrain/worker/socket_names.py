"""The variables that name network interfaces, held against the interfaces of a node. Pure but for ``interfaces_up``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SOCKET_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")

_PREFIX_RULE = (
    "a list of prefixes (eth matches eth0 and eth1), =eth0 for that name alone, ^docker for all but those; NCCL takes the"
    " choice on each node by itself"
)
_EXACT_RULE = "a list of whole names, no prefixes"


def interfaces_up() -> dict[str, tuple[str, ...]]:
    """Name and addresses of each interface of this node that is up and has an address."""
    import socket

    import psutil

    is_up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    families = (socket.AF_INET, socket.AF_INET6)
    addresses = {
        name: tuple(entry.address for entry in entries if entry.family in families)
        for name, entries in psutil.net_if_addrs().items()
    }
    return {name: found for name, found in sorted(addresses.items()) if name in is_up and found}


def check_socket_names(environment: Mapping[str, str], interfaces: Mapping[str, Sequence[str]], node: str) -> str:
    """What is wrong with NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME on this node; empty if nothing is.

    >>> check_socket_names({"NCCL_SOCKET_IFNAME": "^docker,lo"}, {"eth0": ["10.0.0.1"], "lo": ["127.0.0.1"]}, "n1")
    ''
    """
    problems = []
    nccl, gloo = environment.get("NCCL_SOCKET_IFNAME"), environment.get("GLOO_SOCKET_IFNAME")
    told = ", ".join(f"{name} ({', '.join(addresses)})" for name, addresses in interfaces.items()) or "none"
    if nccl and not nccl_matches(nccl, list(interfaces)):
        problems.append(
            f"NCCL_SOCKET_IFNAME={nccl}: matches no interface of node {node} that is up; up are: {told}; it is {_PREFIX_RULE}"
        )
    missing = [name for name in _names(gloo or "") if name not in interfaces]
    if missing:
        problems.append(
            f"GLOO_SOCKET_IFNAME={gloo}: node {node} has no interface {', '.join(missing)} that is up; up are: {told}; it is"
            f" {_EXACT_RULE}"
        )
    return "; ".join(problems)


def nccl_matches(choice: str, interfaces: Sequence[str]) -> list[str]:
    """The interfaces that NCCL would use.

    Source: NCCL's parseStringList and matchIfList in misc/utils.cc, which also cuts ``:port`` off a name.

    >>> interfaces = ["docker0", "eth0", "eth01", "ib0"]
    >>> nccl_matches("eth", interfaces), nccl_matches("=eth0,ib0", interfaces), nccl_matches("^docker,eth", interfaces)
    (['eth0', 'eth01'], ['eth0', 'ib0'], ['ib0'])
    >>> nccl_matches("^=eth0", interfaces)
    ['docker0', 'eth01', 'ib0']
    """
    is_excluding = choice.startswith("^")
    text = choice.removeprefix("^")
    is_exact = text.startswith("=")
    names = [name.partition(":")[0] for name in _names(text.removeprefix("="))]

    def is_named(interface: str) -> bool:
        # NCCL takes an empty list for all of them.
        return not names or any(interface == name if is_exact else interface.startswith(name) for name in names)

    return [interface for interface in interfaces if is_named(interface) != is_excluding]


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]
