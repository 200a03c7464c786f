"""Runs cases for real and in rehearsal: ``python -m tests.rehearse.truth_runs FOLDER``, a process of its own.

It imports torch once and forks: each rank and each rehearsal still begins in a process that has built nothing. Of a case with
number n there are in the folder ``n-rehearsal.json``, and of each real run r and rank k ``n-r-k.json``.
"""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.rehearse.truth_cases import CASES, STEPS, Case
from tests.worker.run_folder import SOURCE

DEADLINE_S = 240.0
"""Long enough for DeepSpeed to compile its CPU Adam, which one case needs: killed meanwhile, it would leave a lock for ever."""


def rehearsal_file(folder: Path, name: str) -> Path:
    return folder / f"{list(CASES).index(name)}-rehearsal.json"


def real_file(folder: Path, name: str, repeat: int, rank: int) -> Path:
    return folder / f"{list(CASES).index(name)}-{repeat}-{rank}.json"


def rehearse(case: Case, answer: Path) -> None:
    """In this process; never returns."""
    from hpctrain.plan.run_plan import build_run_plan
    from hpctrain.record.files import write_json
    from hpctrain.rehearse import child
    from hpctrain.rehearse.request import Request

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
        answer=str(answer),
    )
    name_device(case)
    path = answer.with_suffix(".request")
    write_json(path, request.raw())
    sys.argv = ["child", str(path)]
    child.main()


def name_device(case: Case) -> None:
    if case.device_apart:
        from deepspeed.accelerator import get_accelerator

        get_accelerator()._name = "cpu:0"


def train(case: Case, rank: int, port: int, result: Path) -> None:
    """As one rank, in this process."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(case.ranks),
        "LOCAL_WORLD_SIZE": str(case.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    from tests.rehearse.real_rank import measure

    name_device(case)
    result.write_text(json.dumps(measure(case)))


def fork(work: Callable[[], None], log: Path) -> int:
    """The id of a child that does the work and exits; what it prints goes to the log."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with log.open("w") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        # Where it hangs is told before its parent ends it.
        faulthandler.dump_traceback_later(DEADLINE_S - 10, file=2)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # gloo's threads, dropping tensors while the interpreter ends, would abort the process now and then.
        os._exit(code)


def wait(children: dict[int, Path]) -> None:
    """Until all are over.

    Args:
        children: process ids, and each one's log.

    Raises:
        RuntimeError: one failed or took too long; the text is its log.
    """
    deadline = time.monotonic() + DEADLINE_S
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        log = children.pop(pid) if pid else None
        if (log and status) or time.monotonic() > deadline:
            for other in children:
                os.kill(other, 9)
                os.waitpid(other, 0)
            failed = log or next(iter(children.values()))
            raise RuntimeError(f"{failed}:\n{failed.read_text()}")
        if not pid:
            time.sleep(0.02)


def run(name: str, folder: Path, repeats: range) -> None:
    """Real runs of a case with these numbers; beside the first one, the rehearsal."""
    case = CASES[name]
    answer = rehearsal_file(folder, name)
    for repeat in repeats:
        children = {}
        if repeat == 0:
            log = answer.with_suffix(".log")
            children[fork(partial(rehearse, case, answer), log)] = log
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        for rank in range(case.ranks):
            result = real_file(folder, name, repeat, rank)
            log = result.with_suffix(".log")
            children[fork(partial(train, case, rank, port, result), log)] = log
        wait(children)


def main(folder: Path) -> None:
    """Answers each line of standard input, ``[case, from, to]``, when these runs are over: null, or what went wrong."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(SOURCE / ".cache" / "torch_extensions"))
    import torch
    import torch._dynamo  # under zero.Init its import, which a dispatch mode asks for, would trip over the patched tensors

    torch.set_num_threads(1)
    for line in sys.stdin:
        name, first, end = json.loads(line)
        answer = None
        try:
            run(name, folder, range(first, end))
        except RuntimeError as error:
            answer = str(error)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
