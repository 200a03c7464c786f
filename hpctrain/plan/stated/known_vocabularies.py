"""Vocabularies of published models, by words of a row: where it states none, the model's own is nearer than any usual one.

Sources: config.json of the models on Hugging Face; BLOOM's tuning runs had its vocabulary from the first table on (bigscience,
train/tr11-176B-ml/chronicles-prequel.md, "VOCAB_LENGTH=250k").
"""

from __future__ import annotations

import re

_VOCABULARIES = (
    (re.compile(r"\bbloom\b", re.IGNORECASE), 250880),
    (re.compile(r"llama-?3", re.IGNORECASE), 128256),
    (re.compile(r"llama|mistral", re.IGNORECASE), 32000),
    (re.compile(r"qwen-?[23]", re.IGNORECASE), 151936),
    (re.compile(r"falcon", re.IGNORECASE), 65024),
    (re.compile(r"gemma", re.IGNORECASE), 256000),
    (re.compile(r"\bopt\b", re.IGNORECASE), 50272),
)
"""The first that fits. Llama 1 and 2 have the same; Qwen's largest pad theirs to 152,064."""
_OTHER_TOKENIZER = re.compile(r"ulysses|megatron-deepspeed", re.IGNORECASE)
"""Sources that train any architecture with GPT-2's tokenizer."""
_LOOK_ALIKES = re.compile(r"\blike\b|-like\b|class\b", re.IGNORECASE)


def known_vocabulary(model: str, source: str) -> int | None:
    """Rows of the token table of the model that the words name; None: none that is known, or only one of its kind.

    Args:
        model: name of the model.
        source: who published the run.

    >>> known_vocabulary("Llama-3-8B", ""), known_vocabulary("GPT 200B", "BigScience (BLOOM tuning)")
    (128256, 250880)
    >>> known_vocabulary("Llama-like 8B", "") is None
    True
    """
    if is_look_alike(model) or _OTHER_TOKENIZER.search(source):
        return None
    for words in (model, source):
        for pattern, vocabulary in _VOCABULARIES:
            if pattern.search(words):
                return vocabulary
    return None


def is_look_alike(model: str) -> bool:
    """Whether a name means a model of a kind, and not that model.

    >>> is_look_alike("Llama-like 8B"), is_look_alike("Llama-3-8B")
    (True, False)
    """
    return bool(_LOOK_ALIKES.search(model))
