"""The all-gather of CPU ranks, through DeepSpeed's communication, between three real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fork_server import ENGINE, fork_server

pytestmark = pytest.mark.train

NUM_RANKS = 3
DTYPES = ("float32", "bfloat16", "float16", "int8")
GATHERING = """
import json, os, sys
from pathlib import Path
import deepspeed, torch
import torch.distributed as dist
from deepspeed import comm
from hpctrain.worker.gloo_gather import gather_in_place
store, rank, num_ranks, dtypes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks)
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # as build_engine has it: nothing is compiled
deepspeed.init_distributed()
pair = dist.new_group([1, 2])
gather_in_place()
found = {}
def gather(name, group, place, members, asynchronous):
    for dtype in dtypes:
        share = torch.arange(5).add(10 * rank + 1).to(getattr(torch, dtype))
        whole = torch.zeros(members, 5, dtype=share.dtype)
        if "in place" in name:
            whole[place] = share
            share = whole[place]
        handle = comm.allgather_fn(whole.view(-1), share, group=group, async_op=asynchronous)
        if asynchronous:
            handle.wait()
        found[f"{name}, {dtype}"] = whole.tolist()
gather("all", None, rank, num_ranks, False)
gather("all, in place", None, rank, num_ranks, False)
gather("all, asynchronous", None, rank, num_ranks, True)
if rank:
    gather("pair, in place, asynchronous", pair, rank - 1, 2, True)
Path(f"{store}.{rank}").write_text(json.dumps(found))
os._exit(0)
"""


def shares_of(*ranks: int) -> list[list[float]]:
    return [[10 * rank + 1 + element for element in range(5)] for rank in ranks]


def test_every_rank_gets_the_shares_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    server, store = fork_server(ENGINE), tmp_path / "store"
    ranks = []
    for rank in range(NUM_RANKS):
        with (tmp_path / f"{rank}.log").open("wb") as log:
            words = [str(store), str(rank), str(NUM_RANKS), json.dumps(DTYPES)]
            ranks.append(server.start(GATHERING, words, server.environment, log))
    codes = [process.wait(timeout=60) for process in ranks]
    assert codes == [0] * NUM_RANKS, [log.read_text(encoding="utf-8") for log in sorted(tmp_path.glob("*.log"))]
    answers = [json.loads((tmp_path / f"store.{rank}").read_text(encoding="utf-8")) for rank in range(NUM_RANKS)]
    whole = {
        f"{name}, {dtype}": shares_of(0, 1, 2)
        for name in ("all", "all, in place", "all, asynchronous")
        for dtype in DTYPES
    }
    of_pair = {f"pair, in place, asynchronous, {dtype}": shares_of(1, 2) for dtype in DTYPES}
    assert answers == [whole, whole | of_pair, whole | of_pair]
