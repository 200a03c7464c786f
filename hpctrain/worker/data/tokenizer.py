"""Byte-level tokens: the 256 bytes, and one token that ends a document."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

END_OF_DOCUMENT = 256
VOCAB_SIZE = 257


def encode_document(text: bytes) -> NDArray[np.uint16]:
    """The document's bytes and the end token.

    >>> encode_document(b"ab").tolist()
    [97, 98, 256]
    """
    tokens = np.empty(len(text) + 1, dtype=np.uint16)
    tokens[:-1] = np.frombuffer(text, dtype=np.uint8)
    tokens[-1] = END_OF_DOCUMENT
    return tokens
