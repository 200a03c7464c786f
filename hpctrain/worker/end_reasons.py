"""Why a rank ends, and with which exit code. Free of torch: it is needed where the import of torch itself fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.errors import HpctrainError, RecordError

if TYPE_CHECKING:
    from hpctrain.record.schema import EndReason

EXIT_CODES: dict[EndReason, int] = {
    "completed": 0,
    "exception": 1,
    "bad_environment": 11,
    "world_size_mismatch": 12,
    "bad_data": 13,
    "non_finite_loss": 14,
    "out_of_memory": 15,
    "signal": 16,
    "killed": 17,
    "bad_checkpoint": 18,
    "hang": 19,
    "time_limit": 20,
}
"""End reasons that a rank itself can record; the others are found from outside."""

_OUT_OF_MEMORY_TEXTS = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")
# gloo's, NCCL's and TCPStore's words for a peer whose sockets closed.
_LOST_PEER_TEXTS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited or there was a network error",
    "Did the remote server shutdown or crash?",
)
_MESSAGE_LENGTH, _QUOTE_LENGTH = 500, 150


class WorkerError(HpctrainError):
    """Base of what ends a rank on purpose; shown and recorded with its reason."""

    reason: EndReason = "exception"


class RankEnvironmentError(WorkerError):
    """The rank cannot tell who it is, or cannot reach the others."""

    reason: EndReason = "bad_environment"


class WorldSizeError(WorkerError):
    """The ranks that met are not those of the plan."""

    reason: EndReason = "world_size_mismatch"


class DataError(WorkerError):
    """The tokens do not fit the model or the run, or differ between nodes."""

    reason: EndReason = "bad_data"


class NonFiniteLossError(WorkerError):
    """The loss has been infinite or not a number for several steps."""

    reason: EndReason = "non_finite_loss"


class LossScaleError(WorkerError):
    """Gradients overflow fp16 at every loss scale that the run may take."""

    reason: EndReason = "non_finite_loss"


class CheckpointError(WorkerError):
    """The run has checkpoints and can take none of them, or has no room for one."""

    reason: EndReason = "bad_checkpoint"


class CompileError(WorkerError):
    """A block of the model cannot be compiled."""


class StoppedBySignalError(WorkerError):
    """A signal asked for the end, and all ranks agreed on the step after which they left."""

    def __init__(self, text: str, signal_name: str = "") -> None:
        super().__init__(text)
        # Slurm's warning before the time limit, see cluster.signal_lead_s.
        self.reason: EndReason = "time_limit" if signal_name == "SIGUSR1" else "signal"


class HangError(WorkerError):
    """No step has ended for too long."""

    reason: EndReason = "hang"

    def __init__(self, text: str, rank: int | None, node: str | None = None) -> None:
        """Names the one rank that kept the others, and its node, where that is clear."""
        super().__init__(text)
        self.rank = rank
        self.node = node


class LostRankError(WorkerError):
    """Another rank went away."""

    reason: EndReason = "killed"


def end_reason_of(error: BaseException) -> EndReason:
    """The end reason of an exception.

    A rank that fails by itself leaves its record before its sockets close. Where the first record is that of a lost peer, the
    peer therefore was killed.

    >>> end_reason_of(MemoryError()), end_reason_of(ValueError("x")), end_reason_of(KeyboardInterrupt())
    ('out_of_memory', 'exception', 'signal')
    """
    text = str(error)
    if isinstance(error, WorkerError):
        return error.reason
    if isinstance(error, RecordError):
        return "bad_environment"
    if isinstance(error, KeyboardInterrupt):
        return "signal"
    # torch.OutOfMemoryError by name, since this module does not import torch.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out_of_memory"
    if any(part in text for part in _OUT_OF_MEMORY_TEXTS):
        return "out_of_memory"
    if any(part in text for part in _LOST_PEER_TEXTS):
        return "killed"
    return "exception"


def failure_message(error: BaseException) -> str:
    """A short text for the record; the traceback is in the rank's log.

    >>> failure_message(ValueError("too small"))
    'ValueError: too small'
    >>> failure_message(DataError("data.path=x: empty"))
    'data.path=x: empty'
    """
    text = str(error).strip()
    if end_reason_of(error) == "killed" and not isinstance(error, WorkerError):
        text = (
            "another rank went away without a record: killed, probably out of host memory, or its node failed"
            f" ({text.splitlines()[0][:_QUOTE_LENGTH]})"
        )
    elif not isinstance(error, HpctrainError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= _MESSAGE_LENGTH else text[: _MESSAGE_LENGTH - 3] + "..."
