"""Where rank 0 listens: the address looked at before the ranks meet, and the port. Free of torch."""

from __future__ import annotations

import socket

from hpctrain.worker.end_reasons import RankEnvironmentError
from hpctrain.worker.rank_env import RankEnv


def check_address(rank_env: RankEnv) -> None:
    """Raises RankEnvironmentError if this node cannot resolve MASTER_ADDR."""
    try:
        socket.getaddrinfo(rank_env.master_addr, rank_env.master_port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise RankEnvironmentError(
            f"MASTER_ADDR={rank_env.master_addr} (from {rank_env.master_addr_source}): node {rank_env.node_name} cannot"
            f" resolve it ({error}); set env.MASTER_ADDR to an address that all nodes know"
        ) from error


def listen(rank_env: RankEnv) -> socket.socket:
    """Rank 0's socket at MASTER_PORT, on all addresses of its node.

    Raises:
        RankEnvironmentError: the port is taken.
    """
    has_ipv6 = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if has_ipv6 else socket.AF_INET
    try:
        return socket.create_server(
            ("", rank_env.master_port), family=family, dualstack_ipv6=has_ipv6, backlog=socket.SOMAXCONN
        )
    except OSError as error:
        raise RankEnvironmentError(
            f"MASTER_PORT={rank_env.master_port} (from {rank_env.master_port_source}): rank 0 cannot listen on it on node"
            f" {rank_env.node_name} ({error}); set env.MASTER_PORT to a free port"
        ) from error
