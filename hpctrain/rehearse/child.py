"""The process that rehearses: ``python -m hpctrain.rehearse.child REQUEST.json [PID]``. Its own: torch is changed for good."""

from __future__ import annotations

import linecache
import os
import signal
import sys
import traceback
from pathlib import Path

from hpctrain.errors import HpctrainError
from hpctrain.record.files import read_json, write_record
from hpctrain.rehearse.rank_environment import rank_environment
from hpctrain.rehearse.request import EXIT_REFUSED, OUT_OF_MEMORY, PROGRESS_MARK, Request, refusal
from hpctrain.worker.linux import signal_at_parents_death

_ENGINE = f"{os.sep}deepspeed{os.sep}"
_VALIDATOR = "pydantic"
"""The package in which the engine checks its configuration."""


def main() -> None:
    """Rehearses, writes the answer and leaves with 0, ``EXIT_REFUSED``, or 1 after a traceback."""
    _end_with(*map(int, sys.argv[2:]))
    request = Request.from_raw(read_json(Path(sys.argv[1])))
    os.environ.update(rank_environment(request.plan, request.rank, request.device_way))
    from hpctrain.rehearse.session import Session  # imports torch, which reads the environment

    session = Session(request)
    try:
        found = session.run(_say)
    except HpctrainError as error:
        write_record(Path(request.answer), refusal(session.phase, type(error).__name__, str(error), ""))
        _leave(f"{error}\n", EXIT_REFUSED)
    except Exception as error:
        if sentence := session.shortage(error):
            write_record(Path(request.answer), refusal(session.phase, OUT_OF_MEMORY, sentence, ""))
            _leave(f"{sentence}\n", EXIT_REFUSED)
        place = _refused_in(error)
        if not place:
            traceback.print_exc()
            _leave("", 1)
        refused = refusal(session.phase, type(error).__name__, str(error), place)
        write_record(Path(request.answer), refused)
        _leave(traceback.format_exc(), EXIT_REFUSED)
    write_record(Path(request.answer), found)
    _leave("", 0)


def _end_with(asker: int | None = None) -> None:
    """Whatever ends the process that asks, and at whatever moment, ends this one: nobody else waits for the answer."""
    signal_at_parents_death(signal.SIGKILL)
    if asker is not None and os.getppid() != asker:  # it ended before it could be known
        _leave("", 1)


def _say(line: str) -> None:
    print(f"{PROGRESS_MARK}{line}", flush=True)


def _refused_in(error: BaseException) -> str:
    """File and function of the engine that raised it by a statement of its own; empty: something else went wrong."""
    place, is_raised = "", False
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if _ENGINE in code.co_filename:
            place = f"{code.co_filename.rpartition(_ENGINE)[2]} {code.co_name}"
            statement = linecache.getline(code.co_filename, trace.tb_lineno).strip()
            is_raised = statement.startswith(("raise ", "assert "))
        else:
            is_raised = False
        trace = trace.tb_next
    return place if is_raised or type(error).__module__.startswith(_VALIDATOR) else ""


def _leave(last_words: str, exit_code: int) -> None:
    """Ends the process without torch's tear-down, which takes a second and may trip over what was changed."""
    sys.stderr.write(last_words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    main()
