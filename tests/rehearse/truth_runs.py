"""Runs cases for real and in rehearsal, each rank and each rehearsal in a forked process that has built nothing.

Of a case with number n there are in the folder ``n-rehearsal.json``, and of each real run r and rank k ``n-r-k.json``.
"""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import sys
import time
from pathlib import Path

from tests.fork_server import ENGINE, TORCH, ForkedProcess, fork_server
from tests.native_ops import ASYNC_IO, COMPILED, CPU_ADAM, build_once
from tests.rehearse.truth_cases import CASES, STEPS, Case

DEADLINE_S = 240.0
"""Long enough for DeepSpeed to compile its CPU Adam, which one case needs: killed meanwhile, it would leave a lock for ever."""


def rehearsal_file(folder: Path, name: str) -> Path:
    return folder / f"{list(CASES).index(name)}-rehearsal.json"


def real_file(folder: Path, name: str, repeat: int, rank: int) -> Path:
    return folder / f"{list(CASES).index(name)}-{repeat}-{rank}.json"


def rehearse(name: str, answer: str) -> None:
    """In this process; never returns."""
    from hpctrain.plan.run_plan import build_run_plan
    from hpctrain.record.files import write_json
    from hpctrain.rehearse import child
    from hpctrain.rehearse.request import Request

    watch()
    case = CASES[name]
    config = case.config()
    plan = build_run_plan(config)
    assert not plan.problems, plan.problems
    request = Request(
        plan=plan,
        num_layers=plan.model.num_layers,
        weight_decay=config.training.weight_decay,
        seed=config.training.seed,
        rank=case.rank,
        steps=STEPS,
        device_way="cpu",
        num_largest=10,
        answer=answer,
    )
    name_device(case)
    path = Path(answer).with_suffix(".request")
    write_json(path, request.raw())
    sys.argv = ["child", str(path)]
    child.main()


def name_device(case: Case) -> None:
    if case.device_apart:
        from deepspeed.accelerator import get_accelerator

        get_accelerator()._name = "cpu:0"


def train(name: str, result: str) -> None:
    """As the rank that the environment names, in this process."""
    from tests.rehearse.real_rank import measure

    watch()
    name_device(CASES[name])
    Path(result).write_text(json.dumps(measure(CASES[name])))
    sys.stdout.flush()
    # gloo's threads, dropping tensors while the interpreter ends, would abort the process now and then.
    os._exit(0)


def watch() -> None:
    """Where it hangs is told before its parent ends it."""
    faulthandler.dump_traceback_later(DEADLINE_S - 10, file=2)


def start(function: str, name: str, result: Path, modules: tuple[str, ...], **variables: str) -> ForkedProcess:
    """One of the two functions above in a process of its own, which prints into a file beside its result."""
    command = f"import sys; from tests.rehearse.truth_runs import {function}; {function}(*sys.argv[1:])"
    environment = {"TORCH_EXTENSIONS_DIR": COMPILED, **os.environ, "DS_ACCELERATOR": "cpu", **variables}
    with result.with_suffix(".log").open("wb") as log:
        return fork_server(modules).start(command, [name, str(result)], environment, log)


def wait(running: dict[Path, ForkedProcess]) -> None:
    """Until all are over.

    Args:
        running: by the file of the result.

    Raises:
        RuntimeError: one failed or took too long; the text is its log.
    """
    deadline = time.monotonic() + DEADLINE_S
    try:
        while running:
            for result, process in list(running.items()):
                if process.poll() is not None or time.monotonic() > deadline:
                    if process.poll() != 0:
                        raise RuntimeError(f"{result}:\n{result.with_suffix('.log').read_text()}")
                    del running[result]
            time.sleep(0.02)
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def run(name: str, folder: Path, repeats: range) -> None:
    """Real runs of a case with these numbers; beside the first one, the rehearsal."""
    case = CASES[name]
    if "nvme" in case.parallelism.values():
        build_once(ASYNC_IO)
    if "cpu" in case.parallelism.values():
        build_once(CPU_ADAM)
    for repeat in repeats:
        running = {}
        if repeat == 0:
            answer = rehearsal_file(folder, name)
            running[answer] = start("rehearse", name, answer, TORCH)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        for rank in range(case.ranks):
            result = real_file(folder, name, repeat, rank)
            variables = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(case.ranks),
                "LOCAL_WORLD_SIZE": str(case.ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            running[result] = start("train", name, result, ENGINE, **variables)
        wait(running)
