"""The process group, and what the ranks find out about each other before the first step."""

from __future__ import annotations

import os
from collections import defaultdict
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hpctrain.config.schema import DeviceKind
from hpctrain.record.schema import NodeRecord
from hpctrain.worker.end_reasons import DataError
from hpctrain.worker.rank_env import RankEnv
from hpctrain.worker.world import World

_BACKENDS: dict[DeviceKind, str] = {"cuda": "nccl", "cpu": "gloo"}


def rank_device(kind: DeviceKind) -> torch.device:
    """This rank's device, after LOCAL_RANK has been set."""
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def start_process_group(store: TCPStore, rank_env: RankEnv, device: torch.device, timeout_s: float) -> None:
    """torch's process group over the store at which all ranks have met; DeepSpeed takes it over."""
    dist.init_process_group(
        _BACKENDS["cuda" if device.type == "cuda" else "cpu"],
        store=store,
        rank=rank_env.rank,
        world_size=rank_env.world_size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )


def measure_world(rank_env: RankEnv, device: torch.device) -> World:
    """Counts the ranks by a collective, and asks each for its node."""
    ones = torch.ones(1, device=device)
    dist.all_reduce(ones)
    found: list[tuple[int, str, int] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (rank_env.rank, rank_env.node_name, len(os.sched_getaffinity(0))))
    ranks: dict[str, list[int]] = defaultdict(list)
    cpus: dict[str, int] = {}
    for answer in found:
        assert answer is not None
        rank, name, num_cpus = answer
        ranks[name].append(rank)
        cpus.setdefault(name, num_cpus)
    return World(size=int(ones.item()), nodes=tuple(NodeRecord(name, tuple(ranks[name]), cpus[name]) for name in ranks))


def check_same_corpus(digest: str, node_name: str) -> None:
    """Raises DataError, naming nodes, unless all ranks hold the same tokens."""
    found: list[tuple[str, str] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (digest, node_name))
    answers = [answer for answer in found if answer is not None]
    reference = answers[0][0]
    others = sorted({name for other, name in answers if other != reference})
    if others:
        raise DataError(
            f"data: rank 0 on {answers[0][1]} has tokens of digest {reference}, but {', '.join(others)}"
            f" {'has' if len(others) == 1 else 'have'} others; all nodes must read the same text"
        )
