"""Running a client of Slurm: its output, or in words why there is none."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from hpctrain.errors import LaunchError


def call_slurm(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None, own_session: bool = False
) -> subprocess.CompletedProcess[str]:
    """What the command answered, whatever its exit code.

    Args:
        command: program and words.
        timeout_s: how long it may take.
        environment: its variables; None: those of this process.
        own_session: a signal to this process's group does not end it.

    Raises:
        LaunchError: the program is not there, or gave no answer.
    """
    try:
        return subprocess.run(
            command,
            env=None if environment is None else dict(environment),
            capture_output=True,
            # Not the locale's: paths and names are UTF-8 under a C locale too.
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=timeout_s,
            start_new_session=own_session,
        )
    except FileNotFoundError:
        raise LaunchError(f"there is no {command[0]} on this machine's PATH") from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{command[0]} gave no answer in {timeout_s:g} s") from None
    except OSError as error:
        raise LaunchError(f"{command[0]}: {error.strerror}") from None


def ask_slurm(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None, own_session: bool = False
) -> tuple[str, str]:
    """Output, and what went wrong (empty if nothing): a question that failed says nothing about a job.

    Args: see ``call_slurm``.
    """
    try:
        answer = call_slurm(command, timeout_s, environment, own_session)
    except LaunchError as error:
        return "", str(error)
    if answer.returncode == 0:
        return answer.stdout, ""
    last_line = next(reversed(answer.stdout.splitlines()), "").strip()  # where sacctmgr says some of its errors
    told = " ".join(answer.stderr.split()) or last_line or f"exit code {answer.returncode}"
    return answer.stdout, f"{command[0]}: {told}"
