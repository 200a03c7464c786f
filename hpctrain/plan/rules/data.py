"""Which tokens a run reads: what the keys of ``data`` say together, and how a corpus is divided."""

from __future__ import annotations

from hpctrain.config.schema import ClusterConfig, Config, DataConfig
from hpctrain.errors import Problem

_SHORTEST_DIGEST = 8


def named_paths(data: DataConfig) -> list[tuple[str, str]]:
    """All files, folders and prefixes that are named, each behind its dotted key.

    >>> named_paths(DataConfig("x", "tokens", blend={"/d/a": 2.0}, validation_path="/d/v"))
    [('data.blend', '/d/a'), ('data.validation_path', '/d/v')]
    """
    # A path is no part of the key: one such as /d/tokens/a would make the value that of a secret, by its name.
    found = [] if data.path is None else [("data.path", data.path)]
    found += [("data.blend", prefix) for prefix in data.blend]
    return found if data.validation_path is None else [*found, ("data.validation_path", data.validation_path)]


def training_windows(num_windows: int, validation_fraction: float) -> int:
    """How many of a corpus's sequences are trained on; the others, at its end, are for validation.

    Args:
        num_windows: sequences of ``seq_len + 1`` tokens in the corpus.
        validation_fraction: ``data.validation_fraction``; above 0 it keeps at least one.

    >>> training_windows(1000, 0.05), training_windows(10, 0.01), training_windows(10, 0.0)
    (950, 9, 10)
    """
    kept = max(1, round(num_windows * validation_fraction)) if validation_fraction > 0 else 0
    return num_windows - kept


def length_problem(described: str, num_tokens: int, seq_len: int, validation_fraction: float) -> Problem | None:
    """Why a corpus has no sequence to train on; None if it has.

    Args:
        described: the corpus, for the message.
        num_tokens: in all of it.
        seq_len: tokens of a sequence.
        validation_fraction: of it that is held out, see ``training_windows``.
    """
    num_windows = num_tokens // (seq_len + 1)
    if training_windows(num_windows, validation_fraction) > 0:
        return None
    needed = 2 if validation_fraction > 0 else 1
    if num_windows >= needed:
        rule = (
            f"keeps all {num_windows:,} sequences of {seq_len + 1:,} tokens in {described} for validation, so that none is"
            " trained on"
        )
        return Problem(
            "data.validation_fraction", str(validation_fraction), rule, "set data.validation_fraction=0.5 or less"
        )
    halves = " for training and one for validation (data.validation_fraction)" if needed == 2 else ""
    longest = num_tokens // needed - 1
    rule = (
        f"one sequence with its labels takes {seq_len + 1:,} tokens, and {described} has {num_tokens:,}: not"
        f" {needed}{halves}"
    )
    fix = f"set training.seq_len={longest} or less, or give more text" if longest > 0 else "give more text"
    return Problem("training.seq_len", str(seq_len), rule, fix)


def data_problems(config: Config) -> list[Problem]:
    """Rules that join keys of ``data``; of what the files hold nothing is known here."""
    data = config.data
    problems = [*_source_problems(data), *_validation_problems(data), *_tokenizer_problems(data)]
    return problems + (_azureml_problems(data, config.cluster) if config.cluster.kind == "azureml" else [])


def _source_problems(data: DataConfig) -> list[Problem]:
    if data.kind == "text" and data.path is None:
        return [Problem("data.path", "null", "data=text reads a file or folder", "set data.path=FILE")]
    if data.kind == "tokens" and data.path is None and not data.blend:
        fix = "set data.path=PREFIX, or data.blend={PREFIX_A: 0.7, PREFIX_B: 0.3}"
        return [Problem("data.path", "null", "data=tokens reads PREFIX.bin and PREFIX.idx", fix)]
    if data.kind == "tokens" and data.path is not None and data.blend:
        rule = f"stands beside data.blend of {len(data.blend)}, and a run reads one or the other"
        return [Problem("data.path", data.path, rule, f"set data.path=null, or add {data.path} to data.blend")]
    problems = []
    if data.kind not in ("text", "tokens") and data.path is not None:
        rule = f"is read by data=text and data=tokens, and this is data={data.name}"
        problems.append(Problem("data.path", data.path, rule, "add data=text or data=tokens"))
    if data.kind != "tokens" and data.blend:
        rule = f"is of token files, and this is data={data.name}"
        problems.append(Problem("data.blend", ", ".join(data.blend), rule, "add data=tokens, see prepare"))
    return problems


def _validation_problems(data: DataConfig) -> list[Problem]:
    path, fraction = data.validation_path, data.validation_fraction
    if path is None:
        return []
    if fraction > 0:
        rule = f"stands beside data.validation_fraction={fraction}, and there is one set of validation data"
        return [Problem("data.validation_path", path, rule, "leave one of them out")]
    if data.kind not in ("text", "tokens"):
        rule = f"is read by data=text and data=tokens, and this is data={data.name}"
        return [Problem("data.validation_path", path, rule, "set data.validation_fraction=0.01")]
    if path == data.path or path in data.blend:
        fix = "name another, or set data.validation_fraction=0.01 in its place"
        return [Problem("data.validation_path", path, "is trained on, so that its loss validates nothing", fix)]
    return []


def _tokenizer_problems(data: DataConfig) -> list[Problem]:
    digest = data.tokenizer_digest
    if digest is None:
        return []
    if data.kind != "tokens":
        rule = f"is held against the manifests of token files, and this is data={data.name}"
        return [Problem("data.tokenizer_digest", digest, rule, "leave it out, or add data=tokens")]
    if len(digest) < _SHORTEST_DIGEST or not set(digest) <= set("0123456789abcdef"):
        rule = f"must be the first {_SHORTEST_DIGEST} or more hexadecimal digits of a SHA-256"
        return [Problem("data.tokenizer_digest", digest, rule, "copy it from tokenizer.digest in PREFIX.json")]
    return []


def _azureml_problems(data: DataConfig, cluster: ClusterConfig) -> list[Problem]:
    """A job mounts ``data.path`` as its one input of data; of token files the folder that they are in."""
    problems = [
        Problem(key, path, "AzureML mounts data.path alone", "put all into one corpus, data.path=FOLDER/PREFIX")
        for key, path in named_paths(data)
        if key != "data.path"
    ]
    if data.kind == "tokens" and data.path is not None and not all(mounted_folder(data.path)):
        rule = "AzureML mounts the folder of PREFIX.bin and PREFIX.idx, and this names none"
        fix = "for example azureml://datastores/NAME/paths/FOLDER/PREFIX"
        problems.append(Problem("data.path", data.path, rule, fix))
    data_type = cluster.azureml.get("data_type", "uri_folder")
    if data.kind == "tokens" and data_type != "uri_folder":
        rule = "token files are two and their manifest, so that AzureML mounts their folder"
        problems.append(Problem("cluster.azureml.data_type", str(data_type), rule, "leave it out"))
    return problems


def mounted_folder(prefix: str) -> tuple[str, str]:
    """The folder of token files, and their name in it; one is empty where the prefix names none.

    >>> mounted_folder("azureml://datastores/d/paths/corpora/web"), mounted_folder("azureml:corpus:3"), mounted_folder("web")
    (('azureml://datastores/d/paths/corpora', 'web'), ('', 'azureml:corpus:3'), ('.', 'web'))
    """
    folder, slash, name = prefix.rpartition("/")
    if not slash:
        return "" if name.startswith("azureml:") else ".", name
    return folder or "/", name
