"""The sequences that a run trains on and validates with, checked against the model."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass

from hpctrain.config.schema import DataConfig
from hpctrain.plan.rules.data import length_problem, training_windows
from hpctrain.worker.data.mapped_corpus import expect_random_reads, mapped_corpora, mapped_digest, note
from hpctrain.worker.data.memory_corpus import stdlib_corpus, synthetic_corpus, text_corpus
from hpctrain.worker.data.sequences import Part, Sequences, unknown_token
from hpctrain.worker.end_reasons import DataError

_ORDER = "2"
"""Of the shuffle: in another order, a run that goes on would see some sequences twice and others not at all."""


@dataclass(frozen=True)
class Corpus:
    """What a run reads."""

    training: Sequences
    validation: Sequences | None
    """Never trained on; None: neither data.validation_path nor data.validation_fraction is set."""
    digest: str
    """Equal if what is trained on, and its order, is."""
    validation_digest: str
    """Empty: there is none."""
    notes: tuple[str, ...]
    """Lines for the log."""


@dataclass(frozen=True)
class _Source:
    """One corpus before it is divided."""

    part: Part
    digest: str
    is_validation: bool = False


def load_corpus(data: DataConfig, vocab_size: int, seq_len: int, seed: int) -> Corpus:
    """The corpus of the configuration, checked against the model.

    Args:
        data: which text or token files.
        vocab_size: of the model.
        seq_len: tokens of one sequence.
        seed: of the order, and of made-up tokens.

    Raises:
        DataError: no text, too much of it, not UTF-8, token files that are missing, truncated or of another tokenizer, too few
            tokens for one sequence, or a token the model does not have.
    """
    sources, notes = _sources(data, vocab_size, seq_len, seed)
    training, validation = [], []
    for source in sources:
        if source.is_validation:
            _check_length(source.part, seq_len, 0.0)
            validation.append(source)
            continue
        _check_length(source.part, seq_len, data.validation_fraction)
        kept, held_out = _divided(source, seq_len, data.validation_fraction)
        training.append(kept)
        validation += [held_out] if held_out is not None else []

    def sequences(chosen: list[_Source]) -> Sequences:
        return Sequences([source.part for source in chosen], seq_len, vocab_size, seed)

    return Corpus(
        training=sequences(training),
        validation=sequences(validation) if validation else None,
        digest=_joint_digest(training),
        validation_digest=_joint_digest(validation) if validation else "",
        notes=notes,
    )


def _sources(data: DataConfig, vocab_size: int, seq_len: int, seed: int) -> tuple[list[_Source], tuple[str, ...]]:
    if data.kind == "tokens":
        mapped = mapped_corpora(data, vocab_size, seq_len)
        found = [_Source(part, mapped_digest(corpus, part.tokens), corpus.is_validation) for corpus, part in mapped]
        for _, part in mapped:
            expect_random_reads(part)
        return found, tuple(note(corpus, vocab_size) for corpus, _ in mapped)
    if data.kind == "synthetic":
        parts = [synthetic_corpus(vocab_size, seq_len, seed)]
    elif data.kind == "stdlib":
        parts = [stdlib_corpus(data.max_bytes)]
    else:
        parts = [text_corpus(data)]
        if data.validation_path is not None:
            parts.append(text_corpus(data, "data.validation_path"))
    for part in parts:
        highest = int(part.tokens.argmax())
        if part.tokens[highest] >= vocab_size:
            raise unknown_token(vocab_size, part, highest)
    digests = [hashlib.sha256(part.tokens.tobytes()).hexdigest() for part in parts]
    return [_Source(part, digest, part is not parts[0]) for part, digest in zip(parts, digests, strict=True)], ()


def _check_length(part: Part, seq_len: int, validation_fraction: float) -> None:
    if problem := length_problem(part.description, len(part.tokens), seq_len, validation_fraction):
        raise DataError(str(problem))


def _divided(source: _Source, seq_len: int, fraction: float) -> tuple[_Source, _Source | None]:
    """What is trained on, and the end of the corpus, which is not."""
    if fraction == 0:
        return source, None
    part, width = source.part, seq_len + 1
    cut = training_windows(len(part.tokens) // width, fraction) * width
    kept = dataclasses.replace(part, tokens=part.tokens[:cut])
    held_out = dataclasses.replace(part, tokens=part.tokens[cut:], first_token=cut)
    return dataclasses.replace(source, part=kept), dataclasses.replace(source, part=held_out)


def _joint_digest(sources: list[_Source]) -> str:
    """Of contents, stretches and weights, in their order."""
    words = [
        f"{source.digest} {source.part.first_token} {len(source.part.tokens)} {source.part.weight!r}"
        for source in sources
    ]
    return hashlib.sha256("\n".join((_ORDER, *words)).encode()).hexdigest()[:16]
