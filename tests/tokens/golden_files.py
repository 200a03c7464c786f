"""Token files in Megatron's form, written by ``struct`` alone: the second source of the format."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

LETTER_OF_CODE = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H"}


def write_golden(
    prefix: Path, documents: Sequence[Sequence[Sequence[int]]], code: int = 8, modes: bytes = b""
) -> tuple[bytes, bytes]:
    """Writes both files, a document being a list of sequences of ids; returns the contents of .bin and .idx."""
    letter = LETTER_OF_CODE[code]
    sequences = [sequence for document in documents for sequence in document]
    tokens = b"".join(struct.pack(f"<{len(sequence)}{letter}", *sequence) for sequence in sequences)
    pointers, ends = [], [0]
    place = 0
    for sequence in sequences:
        pointers.append(place)
        place += struct.calcsize(f"<{letter}") * len(sequence)
    for document in documents:
        ends.append(ends[-1] + len(document))
    index = b"MMIDIDX\0\0" + struct.pack("<Q", 1) + struct.pack("<B", code)
    index += struct.pack("<Q", len(sequences)) + struct.pack("<Q", len(ends))
    index += struct.pack(f"<{len(sequences)}i", *map(len, sequences))
    index += struct.pack(f"<{len(sequences)}q", *pointers)
    index += struct.pack(f"<{len(ends)}q", *ends) + modes
    Path(f"{prefix}.bin").write_bytes(tokens)
    Path(f"{prefix}.idx").write_bytes(index)
    return tokens, index
