"""Every exception has an end reason with its own exit code and a short text."""

from __future__ import annotations

import pytest
import torch

from hpctrain.errors import RecordError
from hpctrain.record.schema import EndReason
from hpctrain.worker.end_reasons import (
    EXIT_CODES,
    CheckpointError,
    DataError,
    HangError,
    LostRankError,
    NonFiniteLossError,
    RankEnvironmentError,
    StoppedBySignalError,
    WorldSizeError,
    end_reason_of,
    failure_message,
)

ERRORS: list[tuple[BaseException, EndReason, str]] = [
    (RankEnvironmentError("x: missing"), "bad_environment", "x: missing"),
    (RecordError("plan.json: no such file"), "bad_environment", "plan.json: no such file"),
    (WorldSizeError("1 of 2"), "world_size_mismatch", "1 of 2"),
    (DataError("data.path=x: empty"), "bad_data", "data.path=x: empty"),
    (CheckpointError("cut for 2 ranks"), "bad_checkpoint", "cut for 2 ranks"),
    (NonFiniteLossError("step 7"), "non_finite_loss", "step 7"),
    (StoppedBySignalError("stopped", "SIGTERM"), "signal", "stopped"),
    (StoppedBySignalError("stopped", "SIGUSR1"), "time_limit", "stopped"),
    (HangError("no step for 60 s", 1), "hang", "no step for 60 s"),
    (LostRankError("see 1.failure.json"), "killed", "see 1.failure.json"),
    (KeyboardInterrupt(), "signal", "KeyboardInterrupt"),
    (MemoryError(), "out_of_memory", "MemoryError"),
    (torch.OutOfMemoryError("CUDA out of memory."), "out_of_memory", "OutOfMemoryError: CUDA out of memory."),
    (
        RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:7321\nmore"),
        "killed",
        "another rank went away without a record: killed, probably out of host memory, or its node failed"
        " ([pair.cc:553] Connection closed by peer [127.0.0.1]:7321)",
    ),
    (ZeroDivisionError("division by zero"), "exception", "ZeroDivisionError: division by zero"),
    (SystemExit(3), "exception", "SystemExit: 3"),
]


@pytest.mark.parametrize(("error", "reason", "message"), ERRORS, ids=[type(error).__name__ for error, _, _ in ERRORS])
def test_reason_and_message(error: BaseException, reason: EndReason, message: str) -> None:
    assert end_reason_of(error) == reason
    assert failure_message(error) == message


def test_torchs_own_words_on_the_cpu() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60, dtype=torch.uint8)
    assert end_reason_of(error.value) == "out_of_memory"


def test_long_messages_are_cut() -> None:
    message = failure_message(ValueError("x" * 10_000))
    assert len(message) == 500
    assert message.endswith("xxx...")


def test_exit_codes_tell_reasons_apart() -> None:
    codes = list(EXIT_CODES.values())
    assert len(set(codes)) == len(codes)
    # 2 to 4 are the command line's, 126 and up the shell's and signals'.
    assert all(code in (0, 1) or 10 < code < 126 for code in codes)
    assert {reason for _, reason, _ in ERRORS} | {"completed"} == set(EXIT_CODES)
