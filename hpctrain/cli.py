"""The command line: a verb first (without one: submit), then Hydra's own grammar. Parses, calls, prints."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import hpctrain
from hpctrain.errors import (
    EXIT_FAILED,
    EXIT_OK,
    ConfigError,
    HpctrainError,
    known_names_hint,
)
from hpctrain.launch.termination import Terminated
from hpctrain.secret_text import redact_text, secrets_in
from hpctrain.text_table import printable

_VERB = re.compile(r"[A-Za-z_][\w-]*")


def main() -> None:
    """Entry point; leaves the process with the documented exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A C locale must not stop a name with an umlaut from being printed.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        # Under a C locale the words come with escapes for what is not ASCII; they are UTF-8 all the same.
        code = run([os.fsencode(word).decode("utf-8", "surrogateescape") for word in sys.argv[1:]])
        sys.stdout.flush()
    except HpctrainError as error:
        text = redact_text(str(error), secrets_in(sys.argv[1:]))
        print(printable(f"hpctrain: {text}"), file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt as interrupt:
        code = 143 if isinstance(interrupt, Terminated) else 130
    except BrokenPipeError:
        # `plan | head`: the reader has what it wanted; without this Python complains once more at its end.
        _silence_stdout()
        code = EXIT_OK
    except UnicodeEncodeError as error:
        if sys.getfilesystemencoding() == "utf-8":
            raise
        print(
            f"hpctrain: {error.object}: this shell's file names are {error.encoding}; set LC_ALL=C.UTF-8",
            file=sys.stderr,
        )
        code = ConfigError.exit_code
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _silence_stdout()
        print(f"hpctrain: {error.filename or 'the output'} cannot be written: {error.strerror}", file=sys.stderr)
        code = EXIT_FAILED
    gc.freeze()  # at its end Python would look for garbage again, a fifth of the time of plan
    sys.exit(code)


def _silence_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _verb_of(module: str, name: str) -> Callable[..., int]:
    """A verb of another module, which is imported when the verb is called."""

    def call(*arguments: Any) -> int:
        code: int = getattr(importlib.import_module(f"hpctrain.{module}"), name)(*arguments)
        return code

    return call


def run(words: Sequence[str]) -> int:
    """Runs one command line and returns its exit code."""
    submit = _verb_of("cli_submit", "submit_words")
    verbs: dict[str, Callable[[Sequence[str]], int]] = {
        "submit": submit,
        "plan": _verb_of("cli_plan", "plan"),
        "status": _verb_of("cli_runs", "status"),
        "logs": _verb_of("cli_runs", "logs"),
        "cancel": _verb_of("cli_runs", "cancel"),
        "diff": _verb_of("cli_runs", "diff"),
        "resume": _verb_of("cli_life", "resume"),
        "rerun": _verb_of("cli_life", "rerun"),
        "report": _verb_of("cli_records", "report"),
        "read-log": _verb_of("cli_records", "read_log"),
        "export": _verb_of("cli_export", "export"),
        "doctor": _verb_of("cli_doctor", "doctor"),
        "rehearse": _verb_of("cli_rehearse", "rehearse"),
        "prepare": _verb_of("cli_prepare", "prepare"),
    }
    if words and words[0] in verbs:
        return verbs[words[0]](words[1:])
    if words and words[0] == "--version":
        print(f"hpctrain {hpctrain.__version__}")
        return EXIT_OK
    if words and _VERB.fullmatch(words[0]):
        raise ConfigError(f"{words[0]}: is no verb; {known_names_hint(words[0], verbs)}")
    return submit(words)
