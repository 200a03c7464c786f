"""Copies of states in host memory under DeepSpeed's offload, by hand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from hpctrain.plan.memory.estimate import CPU_PROCESS_BYTES
from hpctrain.plan.memory.terms import PROCESS_TERM, ROUNDING_TERM
from hpctrain.plan.speed.software import SOFTWARE
from hpctrain.plan.speed.step_parts import Setup
from hpctrain.plan.stated.host_copies import FIRST_COPIES_TERM, FORKED_TERM, with_host_copies
from hpctrain.plan.stated.memory_habits import HABITS
from hpctrain.plan.stated.plain_shape import plain_shape
from hpctrain.plan.stated.tier_memory import tier_memory

SHAPE = plain_shape(2, 1024, 1000, num_heads=8, max_seq_len=512)
SETUP = Setup(SHAPE, 512, 1, 1, 8, zero_stage=3, recomputation="full", offload_optimizer=True, offload_param=True)


def host_of(trainer: str, setup: Setup) -> dict[str, int]:
    memory = tier_memory(setup, SOFTWARE[trainer], HABITS[trainer])
    found = with_host_copies(memory, setup, HABITS[trainer])
    assert found.terms[: len(memory.terms)] == memory.terms
    return {term.name: term.num_bytes for term in found.terms if term.tier == "host"}


def test_by_hand() -> None:
    share = SHAPE.num_parameters / 8
    found = host_of("megatron_deepspeed_2022", SETUP)
    assert found[FORKED_TERM] == pytest.approx(12 * share, abs=4)
    assert found[PROCESS_TERM] == CPU_PROCESS_BYTES
    # A block's matrices have 3, 1, 4 and 4 times 2^20 elements; an eighth in 16 bit is 3, 1, 4 and 4 times 2^18 bytes.
    matrices = 2 * (2**20 + 2**18 + 2**20 + 2**20)
    # Token table 1,000 x 1,024 and positions 512 x 1,024, in 16 bit over eight ranks: 256,000 and 131,072 bytes.
    tables = 2**18 + 2**17
    # Vectors: four norms' 1,024, biases of 3,072, 1,024, 4,096, 1,024 a block, two of the last norm.
    vectors = 2 * (6 * 256 + 1024 + 1024) + 2 * 256
    assert found[FIRST_COPIES_TERM] == matrices + tables + vectors
    # 26.8 million parameters: 6.7e6 bytes in 16 bit are pinned as 2^23, twice; 13.4e6 in fp32 as 2^24.
    bytes_16 = 2 * share
    assert found[ROUNDING_TERM] == pytest.approx(2 * (2**23 - bytes_16) + 2**24 - 2 * bytes_16, abs=8)


@pytest.mark.parametrize(
    ("trainer", "changes", "missing"),
    [
        ("deepspeed", {}, {FORKED_TERM}),
        ("megatron_deepspeed_2022", {"offload_param": False}, {FIRST_COPIES_TERM}),
        ("megatron_deepspeed_2022", {"zero_stage": 2, "offload_param": False}, {FIRST_COPIES_TERM, ROUNDING_TERM}),
        (
            "megatron_deepspeed_2022",
            {"offload_param": False, "offload_optimizer": False},
            {FIRST_COPIES_TERM, ROUNDING_TERM, FORKED_TERM},
        ),
    ],
    ids=["nothing-forked", "parameters-on-gpu", "stage-2", "nothing-offloaded"],
)
def test_what_is_not_there_is_no_term(trainer: str, changes: dict[str, object], missing: set[str]) -> None:
    every = {FORKED_TERM, FIRST_COPIES_TERM, ROUNDING_TERM, PROCESS_TERM}
    found = host_of(trainer, replace(SETUP, **changes))  # type: ignore[arg-type]
    assert every & set(found) == every - missing


def test_a_waiting_fork_keeps_the_pages_that_its_parent_writes() -> None:
    """The mechanism itself, on this machine: 64 MiB in two processes count once, and twice after the parent has written them."""
    code = (
        "import os, re, signal\n"
        "def held(pids):\n"
        "    texts = [open(f'/proc/{pid}/smaps_rollup').read() for pid in pids]\n"
        "    return sum(int(re.search(r'^Pss:\\s+(\\d+)', text, re.M)[1]) for text in texts) // 1024\n"
        "states = bytearray(os.urandom(64 * 2**20))\n"
        "child = os.fork()\n"
        "if child == 0: signal.pause()\n"
        "before = held((os.getpid(), child))\n"
        "for page in range(0, len(states), 4096): states[page] ^= 1\n"
        "print(held((os.getpid(), child)) - before)\n"
        "os.kill(child, signal.SIGKILL); os.waitpid(child, 0)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 60 <= int(answer.stdout) <= 68
