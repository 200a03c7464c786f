"""DeepSpeed's reads and writes of NVMe in Python: the files are there, libaio is not, so that no test waits for its compiler."""

from __future__ import annotations

from pathlib import Path

import torch
from deepspeed.ops import op_builder
from deepspeed.ops.op_builder import cpu

from hpctrain.rehearse.async_io import Handle


class FileHandle(Handle):
    """Moves nothing before ``wait``: who reads a buffer earlier finds what was there before."""

    def __init__(self, *arguments: int, **named: int) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self._reads: list[tuple[torch.Tensor, str]] = []
        self._writes: list[tuple[torch.Tensor, str]] = []

    def async_pread(self, buffer: torch.Tensor, path: str, offset: int) -> int:
        assert offset == 0
        self._reads.append((buffer, path))
        return super().async_pread(buffer, path, offset)

    def async_pwrite(self, buffer: torch.Tensor, path: str, offset: int) -> int:
        assert offset == 0
        self._writes.append((buffer, path))
        return super().async_pwrite(buffer, path, offset)

    def wait(self) -> int:
        for buffer, path in self._writes:
            Path(path).write_bytes(_as_bytes(buffer).numpy().tobytes())
        for buffer, path in self._reads:
            content = Path(path).read_bytes()
            assert len(content) >= buffer.nbytes, f"{path}: {len(content)} bytes, {buffer.nbytes} are read"
            _as_bytes(buffer).copy_(torch.frombuffer(bytearray(content[: buffer.nbytes]), dtype=torch.uint8))
        self._writes, self._reads = [], []
        return super().wait()


def _as_bytes(buffer: torch.Tensor) -> torch.Tensor:
    return buffer.detach().view(-1).view(torch.uint8)


class AsyncIoInPython:
    """What ``AsyncIOBuilder().load()`` returns."""

    aio_handle = FileHandle


def install() -> None:
    """For this process: it stands where the compiled library would, and nothing is asked of libaio."""
    for builder in (op_builder.AsyncIOBuilder, cpu.AsyncIOBuilder):
        builder.load = lambda *_, **__: AsyncIoInPython
        builder.is_compatible = lambda *_, **__: True
