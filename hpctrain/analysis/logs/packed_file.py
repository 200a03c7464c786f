"""The bytes of a file that may be packed by gzip, piece by piece, as far as an undamaged start reaches."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import TracebackType

_MAGIC = b"\x1f\x8b"
_GZIP = 16 + zlib.MAX_WBITS


class PackedFile:
    """Reads pieces of bounded size; ``damaged`` tells that the packed data broke off or are broken."""

    def __init__(self, path: Path) -> None:
        self.damaged = False
        self._file = path.open("rb")
        self._unpacker = zlib.decompressobj(_GZIP) if self._file.peek(2)[:2] == _MAGIC else None
        self._packed = b""

    def __enter__(self) -> PackedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def read(self, max_bytes: int) -> bytes:
        """The next bytes, none at the end; unpacked data come as far as they are whole."""
        if self._unpacker is None:
            return self._file.read(max_bytes)
        while not self.damaged:
            if self._unpacker.eof and not self._next_member():
                return b""
            self._packed = self._packed or self._file.read(max_bytes)
            try:
                data = self._unpacker.decompress(self._packed, max_bytes)
            except zlib.error:
                self.damaged = True
                return b""
            ended = not self._packed and not data
            self._packed = self._unpacker.unconsumed_tail
            if data:
                return data
            if ended and not self._unpacker.eof:
                self.damaged = True
        return b""

    def _next_member(self) -> bool:
        """Logs that were appended while packed are several packed files in a row."""
        assert self._unpacker is not None
        rest = self._unpacker.unused_data or self._file.read(len(_MAGIC))
        self._packed = rest
        self._unpacker = zlib.decompressobj(_GZIP)
        return bool(rest)
