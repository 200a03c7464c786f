"""Token files as they are mapped into a rank's memory: of terabytes nothing is read before it is trained on, but samples."""

from __future__ import annotations

import hashlib
import mmap

import numpy as np

from hpctrain.config.schema import DataConfig
from hpctrain.errors import ConfigError
from hpctrain.token_corpora import TokenCorpus, token_corpora
from hpctrain.tokens.header import TokenFileError
from hpctrain.tokens.indexed import open_tokens
from hpctrain.worker.data.sequences import Part, Tokens, unknown_token
from hpctrain.worker.end_reasons import DataError

_SAMPLES, _SAMPLE_TOKENS = 256, 2**16
"""Stretches of a file without manifest in which ids are looked at: 2**24 tokens, 32 MiB of uint16."""
_DIGEST_SAMPLES, _DIGEST_TOKENS = 64, 2**11


def mapped_corpora(data: DataConfig, vocab_size: int, seq_len: int) -> list[tuple[TokenCorpus, Part]]:
    """All corpora of ``data=tokens``, those of validation last.

    Raises:
        DataError: see ``token_corpora``; or an id that the model does not have, in the samples of a file without manifest.
    """
    try:
        corpora = token_corpora(data, vocab_size, seq_len)
        found = [(corpus, _part(corpus)) for corpus in corpora]
    except (ConfigError, TokenFileError) as error:
        raise DataError(str(error)) from None
    for corpus, part in found:
        if corpus.manifest is None:
            check_sampled_ids(part, vocab_size)
    return found


def _part(corpus: TokenCorpus) -> Part:
    tokens = open_tokens(corpus.prefix).tokens
    return Part(tokens, corpus.description, corpus.weight, mapping=_mapping(tokens))


def _mapping(tokens: Tokens) -> mmap.mmap:
    """What the array is a view of."""
    base: object = tokens
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, mmap.mmap), "tokens of a file are mapped"
    return base


def check_sampled_ids(part: Part, vocab_size: int) -> None:
    """Looks at the ids of at most 256 stretches of 65,536 tokens, from the first to the last; all of them are in smaller files.

    Raises:
        DataError: some are not of the model's vocabulary; names a negative one, else the highest of all, which says how large the
            vocabulary must be.
    """
    if np.iinfo(part.tokens.dtype).min == 0 and np.iinfo(part.tokens.dtype).max < vocab_size:
        return
    highest = 0
    for start in _sample_starts(len(part.tokens), _SAMPLES, _SAMPLE_TOKENS):
        tokens = part.tokens[start : start + _SAMPLE_TOKENS]
        if tokens.min() < 0:
            raise unknown_token(vocab_size, part, start + int(tokens.argmin()))
        place = start + int(tokens.argmax())
        if part.tokens[place] > part.tokens[highest]:
            highest = place
    if part.tokens[highest] >= vocab_size:
        raise unknown_token(vocab_size, part, highest)


def mapped_digest(corpus: TokenCorpus, tokens: Tokens) -> str:
    """What tells the files from others without reading them: size, type, 64 samples of 2,048 tokens, and the manifest's checksum.

    Files of the same size that differ between the samples alone have the same digest where there is no manifest.
    """
    header, digest = corpus.header, hashlib.sha256()
    checksum = corpus.manifest.bin.sha256 if corpus.manifest is not None else ""
    digest.update(f"{header.dtype} {header.num_tokens} {checksum} ".encode())
    for start in _sample_starts(len(tokens), _DIGEST_SAMPLES, _DIGEST_TOKENS):
        digest.update(tokens[start : start + _DIGEST_TOKENS].tobytes())
    return digest.hexdigest()


def expect_random_reads(part: Part) -> None:
    """Tells the kernel not to read on behind what is asked for: the next sequence is somewhere else.

    Measured with a file of 256 MiB on a local disk, nothing of it in the page cache: for 800 sequences of 4 KiB the disk read
    263 MB in 0.50 s, with this 6 MB in 0.31 s.
    """
    assert part.mapping is not None
    part.mapping.madvise(mmap.MADV_RANDOM)


def note(corpus: TokenCorpus, vocab_size: int) -> str:
    """A line for the log: what is read, and how far its ids were looked at."""
    header = corpus.header
    size = f"{header.num_documents:,} documents, {header.num_tokens:,} tokens of {header.dtype}"
    if corpus.manifest is not None:
        tokenizer = corpus.manifest.tokenizer
        ids = f"tokenizer {tokenizer.name} ({tokenizer.digest[:16]}), ids up to {corpus.manifest.max_token_id:,}"
    else:
        looked_at = min(header.num_tokens, _SAMPLES * _SAMPLE_TOKENS)
        ids = (
            f"no manifest: ids of {looked_at:,} tokens are below {vocab_size:,}, the others are looked at as they come"
        )
    return f"{corpus.description}: {size}; {ids}"


def _sample_starts(num_tokens: int, most: int, length: int) -> list[int]:
    """Where stretches of ``length`` begin, evenly spaced, the last at the end; without gaps where that takes no more of them.

    >>> _sample_starts(10, 3, 4), _sample_starts(100, 3, 4), _sample_starts(3, 3, 4)
    ([0, 4, 6], [0, 48, 96], [0])
    """
    last = max(0, num_tokens - length)
    count = min(most, -(num_tokens // -length))
    if count * length >= num_tokens:
        return [min(number * length, last) for number in range(count)]
    return [number * last // (count - 1) for number in range(count)]
