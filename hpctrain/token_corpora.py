"""Which token files ``data=tokens`` means, held against the model; asked at submission and again by every rank. Free of numpy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from hpctrain.config.schema import DataConfig
from hpctrain.errors import ConfigError, HpctrainError, Problem
from hpctrain.plan.rules.data import length_problem, named_paths
from hpctrain.tokens.header import IndexHeader, bin_path, read_header, token_prefix
from hpctrain.tokens.manifest import Manifest, read_manifest


class TokenCorpus(NamedTuple):
    """A pair of token files that a run reads."""

    key: str
    """Dotted, by which it is named: data.path, data.blend or data.validation_path."""
    named: str
    """As it is named."""
    prefix: Path
    header: IndexHeader
    manifest: Manifest | None
    """None: the files are another program's."""
    weight: float
    """In a blend; else 1."""

    @property
    def is_validation(self) -> bool:
        """Read for validation alone."""
        return self.key == "data.validation_path"

    @property
    def description(self) -> str:
        """For messages about tokens in it."""
        return f"{self.key}={self.named} ({bin_path(self.prefix)})"


def token_corpora(data: DataConfig, vocab_size: int, seq_len: int) -> list[TokenCorpus]:
    """The corpora of a run in the order they are named, those of validation last.

    The files' heads, sizes and manifests are read, which takes as long for terabytes as for kilobytes.

    Args:
        data: of kind tokens, without problems of the plan.
        vocab_size: of the model.
        seq_len: tokens of a sequence.

    Raises:
        ConfigError: missing, truncated or foreign files, too few tokens for a sequence, ids or a tokenizer beyond the model's
            vocabulary, tokenizers that differ, the same files by two names; all of them at once.
    """
    corpora, problems = [], []
    for key, named in named_paths(data):
        try:
            prefix = token_prefix(Path(os.path.expanduser(named)))
            header, manifest = read_header(prefix), read_manifest(prefix)
            if manifest is not None:
                manifest.check_fits(header)
        except HpctrainError as error:
            problems.append(Problem(key, named, str(error), ""))
        except OSError as error:
            problems.append(Problem(key, named, f"{error.filename}: {error.strerror}", ""))
        else:
            corpora.append(TokenCorpus(key, named, prefix, header, manifest, data.blend.get(named, 1.0)))
    for corpus in corpora:
        problems += _length_problems(corpus, data, seq_len)
        problems += _vocabulary_problems(corpus, vocab_size)
    problems += _tokenizer_problems(corpora, data.tokenizer_digest)
    problems += _named_twice(corpora)
    if problems:
        raise ConfigError(problems)
    return corpora


def _length_problems(corpus: TokenCorpus, data: DataConfig, seq_len: int) -> list[Problem]:
    header = corpus.header
    if header.num_tokens == 0:
        rule = f"has no tokens ({header.num_documents:,} documents)"
        return [Problem(corpus.key, corpus.named, rule, "prepare it from files that hold text")]
    fraction = 0.0 if corpus.is_validation else data.validation_fraction
    problem = length_problem(f"{corpus.key}={corpus.named}", header.num_tokens, seq_len, fraction)
    return [] if problem is None else [problem]


def _vocabulary_problems(corpus: TokenCorpus, vocab_size: int) -> list[Problem]:
    """By the manifest; without one the ranks look into the tokens."""
    manifest = corpus.manifest
    if manifest is None:
        return []
    tokenizer = manifest.tokenizer
    if tokenizer.vocab_size > vocab_size:
        rule = (
            f"the tokenizer of {corpus.key}={corpus.named}, {tokenizer.name}, gives ids up to {tokenizer.vocab_size - 1:,},"
            f" the highest in the file is {manifest.max_token_id:,}, and the model has 0 to {vocab_size - 1:,}"
        )
        return [Problem("model.vocab_size", str(vocab_size), rule, f"nearest: {tokenizer.vocab_size}")]
    if manifest.max_token_id >= vocab_size:
        rule = (
            f"{corpus.key}={corpus.named} has token {manifest.max_token_id:,}, the model 0 to {vocab_size - 1:,}, and its"
            f" manifest says that the tokenizer {tokenizer.name} ends at {tokenizer.vocab_size - 1:,}"
        )
        return [Problem("model.vocab_size", str(vocab_size), rule, "prepare it again with its own tokenizer")]
    return []


def _named_twice(corpora: list[TokenCorpus]) -> list[Problem]:
    """``PREFIX`` and ``PREFIX.bin``, a link, a path with dots: other words than the plan compares, the same files."""
    problems = []
    first: dict[str, TokenCorpus] = {}
    for corpus in corpora:
        other = first.setdefault(os.path.realpath(bin_path(corpus.prefix)), corpus)
        if other is corpus:
            continue
        rule = f"is {other.key}={other.named} by another name"
        if corpus.is_validation:
            fix = "name another, or set data.validation_fraction=0.01 in its place"
            problems.append(Problem(corpus.key, corpus.named, f"{rule}, so that its loss validates nothing", fix))
        else:
            problems.append(Problem(corpus.key, corpus.named, rule, "name it once, with the sum of both weights"))
    return problems


def _tokenizer_problems(corpora: list[TokenCorpus], wanted: str | None) -> list[Problem]:
    """The same id must mean the same text in all of them."""
    if wanted is not None:
        problems = []
        for corpus in corpora:
            if corpus.manifest is None:
                rule = f"{corpus.key}={corpus.named} has no manifest that names its tokenizer"
            elif not corpus.manifest.tokenizer.digest.startswith(wanted):
                tokenizer = corpus.manifest.tokenizer
                rule = f"{corpus.key}={corpus.named} was made by {tokenizer.name} of digest {tokenizer.digest[:16]}"
            else:
                continue
            fix = "name a corpus of the wanted tokenizer, or leave the digest out"
            problems.append(Problem("data.tokenizer_digest", wanted, rule, fix))
        return problems
    first: TokenCorpus | None = None
    problems = []
    for corpus in corpora:
        if corpus.manifest is None:
            continue
        first = first or corpus
        assert first.manifest is not None
        own, other = corpus.manifest.tokenizer, first.manifest.tokenizer
        if own.digest != other.digest:
            rule = (
                f"was made by the tokenizer {own.name} of digest {own.digest[:16]}, and {first.key}={first.named} by {other.name}"
                f" of digest {other.digest[:16]}: the same id means another text"
            )
            problems.append(Problem(corpus.key, corpus.named, rule, "prepare both with the same --tokenizer"))
    return problems
