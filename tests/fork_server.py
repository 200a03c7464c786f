"""Processes that need torch, forked from one that has imported it: an import takes seconds, a fork milliseconds.

A server is started at first use, imports its modules, builds nothing, starts no thread, and ends with the process that asked
for it. What it forks runs a Python text from its first line, as ``python -c`` does, with an environment, folder and output of
its own. Tests that are about the process itself, such as its imports, start true ones.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol

SOURCE = Path(__file__).parents[1]
TORCH = (
    "hpctrain.worker",  # first: it keeps MLflow out, with which come pandas and a thread of pyarrow's
    *("torch", "torch._dynamo", "torch._dynamo.repro.after_dynamo", "torch._subclasses.fake_tensor"),
    *("torch._inductor.compile_fx", "torch.utils.flop_counter"),
    *("einops", "hjson", "msgpack", "pydantic", "tqdm", "hpctrain.plan.run_plan", "hpctrain.rehearse.child"),
)
"""For what chooses DeepSpeed's accelerator itself: torch, and what DeepSpeed imports of others."""
ENGINE = (
    *(*TORCH, "deepspeed", "deepspeed.ops.adam", "deepspeed.runtime.pipe.engine"),
    "deepspeed.runtime.zero.muon.muon_optimizer",  # which every engine imports
    *("hpctrain.worker.job", "hpctrain.worker.training"),
)
"""For ranks."""
_AT_IMPORT = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "DEEPSPEED_TIMEOUT": "30", "OMP_NUM_THREADS": "1"}
"""What a CPU rank sets before it imports torch and DeepSpeed; its threads it sets by torch's own function."""
_READ_AT_IMPORT = (
    *("TORCH", "PYTORCH_", "DS_", "DEEPSPEED_", "OMP_", "MKL_", "KMP_", "GOMP_", "CUDA_"),
    *("MALLOC_", "LD_", "PYTHON"),  # and what is read before the first import
)
_READ_LATER = {
    *("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"),  # see above
    *("TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "PYTHONPATH"),  # when something is compiled or started
    "PYTORCH_NVML_BASED_CUDA_CHECK",  # DeepSpeed's import sets it, in the test process too
}
"""Variables that must be the server's, by their beginnings, and those of them that need not."""
_HERE = dict(os.environ)
"""Before any test has changed it."""
_MOST_BYTES = 2**17
"""Of a message: an environment and a Python text."""


class Process(Protocol):
    """A forked or a true process."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...
    def send_signal(self, sig: int) -> None: ...


class ForkedProcess:
    """A child of a server, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.stdout: IO[str] | None = None
        self.returncode: int | None = None
        self._server = server
        # The server reaps it when it is asked: till then the id is this process's.
        self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Its exit code, minus the number of the signal that ended it, or None: it runs."""
        return self._wait_ms(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait_ms(None if timeout is None else 1000 * timeout)
        if code is None:
            raise subprocess.TimeoutExpired(["forked process", str(self.pid)], timeout or 0.0)
        return code

    def _wait_ms(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._handle, select.POLLIN)
            if waiting.poll(timeout):
                self.returncode = self._server.reap(self.pid)
                os.close(self._handle)
        return self.returncode

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, sig: int) -> None:
        """Does nothing where it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, sig)


class ForkServer:
    """The asking side; its methods may be called from several threads."""

    def __init__(self, modules: Sequence[str], variables: Mapping[str, str]) -> None:
        self.environment = {**_HERE, **_AT_IMPORT, **variables, "PYTHONPATH": str(SOURCE)}
        self._lock = threading.Lock()
        self._control, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Warnings of torch about names that DeepSpeed calls are nobody's matter here.
        command = [sys.executable, "-W", "ignore", "-m", "tests.fork_server", str(far_end.fileno()), *modules]
        with far_end:
            self._process = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, pass_fds=[far_end.fileno()], cwd=SOURCE
            )
        self.pid = self._process.pid
        atexit.register(self.close)

    def close(self) -> None:
        """Ends the server; what it forked lives on as another's orphans do."""
        self._control.close()
        self._process.wait()

    def start(
        self,
        command: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        output: int | IO[Any],
        errors: int | IO[Any] | None = None,
        folder: Path | None = None,
    ) -> ForkedProcess:
        """Forks a process that runs a Python text.

        Args:
            command: the text; it finds its arguments in ``sys.argv[1:]``.
            arguments: these.
            environment: all its variables.
            output: a file, or ``subprocess.PIPE`` for text that is read from the result's ``stdout``.
            errors: a file; None: where the output goes.
            folder: to start in; None: that of this process.

        Raises:
            ValueError: a variable differs from the server's which torch or DeepSpeed may have read when it was imported.
        """
        different = {name for name, _ in environment.items() ^ self.environment.items() if _is_read_early(name)}
        early = different - (_AT_IMPORT.keys() - environment.keys())  # those that a rank will set as they are here
        if early:
            raise ValueError(f"{sorted(early)}: may be read at the import of torch; start a true process")
        request = {
            "command": command,
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(folder or Path.cwd()),
        }
        with contextlib.ExitStack() as stack:
            stdout: IO[str] | None = None
            if output == subprocess.PIPE:
                read_end, output = os.pipe()
                stack.callback(os.close, output)
                stdout = os.fdopen(read_end, encoding="utf-8")
            out = output if isinstance(output, int) else output.fileno()
            err = out if errors is None else errors if isinstance(errors, int) else errors.fileno()
            process = ForkedProcess(self, self._ask(request, [out, err]))
        process.stdout = stdout
        return process

    def reap(self, pid: int) -> int:
        """The exit code of a process that has ended."""
        return self._ask({"reap": pid}, [])

    def _ask(self, request: Mapping[str, Any], files: Sequence[int]) -> int:
        message = json.dumps(request).encode()
        assert len(message) < _MOST_BYTES, len(message)
        with self._lock:
            socket.send_fds(self._control, [message], files)
            answer = self._control.recv(64)
        assert answer, f"the fork server ended with {self._process.wait()}"
        return int(answer)


@cache
def fork_server(modules: tuple[str, ...], **variables: str) -> ForkServer:
    """The server of this process with these modules, which were imported with these variables."""
    return ForkServer(modules, variables)


def _is_read_early(name: str) -> bool:
    return name.startswith(_READ_AT_IMPORT) and name not in _READ_LATER


def serve(control: socket.socket) -> None:
    """The forking side: until the asking process is gone."""
    while True:
        try:
            message, files, _, _ = socket.recv_fds(control, _MOST_BYTES, 2)
        except ConnectionResetError:  # it was killed before it had read its last answer
            return
        if not message:
            return
        request = json.loads(message)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            threads = os.listdir("/proc/self/task")
            assert len(threads) == 1, f"an import has started threads: {threads}"
            answer = os.fork()
            if answer == 0:
                control.close()
                _become(request, files)
        for descriptor in files:
            os.close(descriptor)
        control.send(str(answer).encode())


def _become(request: Mapping[str, Any], files: Sequence[int]) -> NoReturn:
    """In the forked process: runs the text, and ends as a rank does, without finalizing Python."""
    code = 1
    try:
        for number, descriptor in enumerate(files, start=1):
            os.dup2(descriptor, number)
        for descriptor in files:
            os.close(descriptor)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.argv = ["-c", *request["arguments"]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(request["command"], "<string>", "exec"), main.__dict__)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(control: str, *modules: str) -> None:
    for name in modules:
        import_module(name)
    gc.freeze()  # or the first collection of each process would copy all pages of the imports
    with socket.socket(fileno=int(control)) as connection:
        serve(connection)


if __name__ == "__main__":
    main(*sys.argv[1:])
