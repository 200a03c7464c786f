"""What is secret, by its name or by its form, and text without it. Pure; for all rooms."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable

REDACTED = "<redacted>"

_SECRET_WORDS = frozenset(
    "TOKEN KEY KEYS SECRET SECRETS PASSWORD PASSWORDS PASSWD PASSPHRASE PASS PWD CREDENTIAL CREDENTIALS AUTH AUTHORIZATION"
    " COOKIE COOKIES SAS DSN CONNSTR SIG SIGNATURE BEARER JWT PAT APIKEY APIKEYS".split()
)
_SECRET_PAIRS = frozenset({("CONNECTION", "STRING"), ("CONN", "STR")})
_SECRET_ENDINGS = (
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "TOKEN",
    "SECRET",
    "APIKEY",
    "ACCESSKEY",
    "SECRETKEY",
    "PRIVATEKEY",
)
"""Of a name without separators, such as PGPASSWORD."""
_DESCRIBING_WORDS = frozenset(
    "FILE FILES PATH DIR SOCK SOCKET NAME ID IDX INDEX TYPE SIZE LEN LENGTH COUNT NUM URL URI ENDPOINT TTL TIMEOUT EXPIRY"
    " EXPIRES VERSION ALGORITHM MODE METHOD HELPER PROVIDER PLUGIN DIM HEADS".split()
)
"""At a name's end they say that the value tells about a secret: SSH_AUTH_SOCK, AWS_ACCESS_KEY_ID."""
_SHORTEST_KNOWN = 4
"""Characters; a shorter secret would take half of every message with it."""
_NO_SECRETS = frozenset({"PWD", "OLDPWD"})
_PLAIN_WORDS = frozenset(
    {"key", "keys", "token", "auth", "pass", "pat", "sig", "signature", "sas", "secret", "password"}
)
"""Words of any text: «write key=value» names no secret, ``?key=`` and ``--key=`` do."""
_ALWAYS_SECRET = frozenset({"PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE"})
_TELLING_NOTHING = re.compile(
    r"|[+-]?\d{1,4}|true|false|yes|no|on|off|none|null|auto|default|basic|munge", re.IGNORECASE
)
"""Values that no secret has: MASTER_AUTH=1."""
_WORDS_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_PREFIXED = "|".join(
    (
        r"hf_[A-Za-z0-9]{16,}",
        r"gh[oprsu]_[A-Za-z0-9]{16,}",
        r"github_pat_\w{16,}",
        r"glpat-[\w-]{16,}",
        r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])",
        r"sk-(?=[\w-]*\d)[\w-]{16,}",
        r"xox[a-z]-[\w-]{10,}",
        r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
        r"AIza[\w-]{30,}",
        r"ya29\.[\w-]{16,}",
        r"nvapi-[\w-]{16,}",
        r"npm_[A-Za-z0-9]{30,}",
        r"pypi-[\w-]{40,}",
        r"wandb_v\d+_\w{16,}",
    )
)
"""Sources: the issuers' own prefixes (Hugging Face, GitHub, GitLab, AWS, OpenAI and Anthropic, Slack, Google, NVIDIA NGC, npm,
PyPI, Weights & Biases), RFC 7519 (JWT: the base64 of ``{"``)."""
_FORMS = (
    # Whole matches are replaced but for the first group.
    rf"()(?<![A-Za-z0-9])(?:{_PREFIXED})",
    r"()-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"(://[^\s/:@'\"]*:)[^\s/'\"]+(?=@)",
    r"(?i:(\bwandb\W+(?:\w+\W+){0,3}?)[0-9a-f]{40}\b)",
    r"(\bhooks\.slack\.com/services/)[\w/]+",
    r"(?i:(\bauthorization\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+)[^\s\"']+)",
    r"(?i:(\bbearer\s+)(?=[\w.~+/=-]*\d)[\w.~+/=-]{16,})",
)
"""Sources: RFC 7468 (PEM), RFC 3986 (user:password in URLs), RFC 7235 (Authorization)."""

_QUOTED = r"""(?:"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
_VALUE = rf"""(?P<value>{_QUOTED}(?:{_QUOTED}|[^\s"';&|<>,)\]}}:])*|[^\s"';&|<>](?:{_QUOTED}|[^\s"';&|<>])*)"""
"""A word of a shell: plain and quoted pieces without a blank between them."""
_ASSIGNMENT = r"(?P<name>[A-Za-z_][\w.-]*)(?P<sign>['\"]?\s?[=:]\s?)" + _VALUE
_OPTION = r"(?P<name>--[A-Za-z][\w-]*)(?P<sign>\s+)(?!-)" + _VALUE
_QUOTED_IN_CODE = (
    r"""(?P<name>[A-Za-z_]\w*)(?P<sign>['"]?\]?\s*(?::\s*\w+\s*)?[=:]\s*[bfru]{0,2})"""
    r"""(?P<value>"[^"\n]{6,}"|'[^'\n]{6,}')"""
)
_SUSPICIOUS = r"[=:]|--|[\w./+-]{16}"
"""Text without any of these holds no form of a secret and assigns nothing."""


@functools.cache
def is_secret_name(name: str) -> bool:
    """Whether a variable or key of this name holds a secret.

    >>> [is_secret_name(name) for name in ("WANDB_API_KEY", "hf_token", "PGPASSWORD", "accountKey", "AZURE_SAS")]
    [True, True, True, True, True]
    >>> [is_secret_name(name) for name in ("MONKEY", "KEYBOARD", "TOKENIZERS_PARALLELISM", "SSH_AUTH_SOCK", "NCCL_IB_PKEY")]
    [False, False, False, False, False]
    """
    words = [word.upper() for word in _WORDS_OF_NAME.findall(name)]
    if not words or words[-1] in _DESCRIBING_WORDS or name.upper() in _NO_SECRETS:
        return False
    if _SECRET_PAIRS.intersection(itertools.pairwise(words)):
        return True
    return any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDINGS) for word in words)


def redact_value(name: str, value: str) -> str:
    """The value of a variable or key as it may be written or shown.

    >>> redact_value("HF_TOKEN", "abc"), redact_value("USE_AUTH", "1"), redact_value("URL", "https://me:pw@host/x")
    ('<redacted>', '1', 'https://me:<redacted>@host/x')
    """
    if is_secret_name(name) and not _tells_nothing(name, value):
        return REDACTED
    if "WANDB" in name.upper() and re.fullmatch(r"[0-9a-f]{40}", value, re.IGNORECASE):
        return REDACTED
    return redact_text(value)


def holds_secret(name: str, value: str) -> bool:
    """Whether ``redact_value`` would change the value; one that is redacted already has lost its secret, and counts."""
    return REDACTED in value or redact_value(name, value) != value


def redact_text(text: str, values: Iterable[str] = ()) -> str:
    """Text of a shell, a command line or a message, without secrets.

    Args:
        text: any text.
        values: secrets that are known, removed wherever they stand.

    >>> redact_text("export WANDB_API_KEY=0123ab && login --password hunter2; x.blob.net/c?sv=1&sig=ab%3D")
    'export WANDB_API_KEY=<redacted> && login --password <redacted>; x.blob.net/c?sv=1&sig=<redacted>'
    >>> redact_text("export KEY=$(cat key); hugging face: hf_abcdefghijklmnop1234")
    'export KEY=$(cat key); hugging face: <redacted>'
    """
    # The longest first: one may be a part of another.
    for value in sorted(filter(None, values), key=len, reverse=True):
        text = text.replace(value, REDACTED)
    if not re.search(_SUSPICIOUS, text):
        return text
    text = _without_forms(text)
    return re.sub(_OPTION, _redacted_assignment, re.sub(_ASSIGNMENT, _redacted_assignment, text))


def redact_override(word: str) -> str:
    """An override as it may be written or shown.

    >>> redact_override("++env.HF_TOKEN=abcd"), redact_override("nodes=2")
    ('++env.HF_TOKEN=<redacted>', 'nodes=2')
    """
    key, sign, value = word.partition("=")
    return f"{key}{sign}{redact_value(key.rpartition('.')[2], value)}"


def secrets_in(words: Iterable[str]) -> list[str]:
    """The secrets that were typed as values of overrides, plain and without their quotes.

    >>> secrets_in(["nodes=2", "env.HF_TOKEN='ab=cd'"])
    ["'ab=cd'", 'ab=cd']
    """
    values = []
    for word in words:
        key, _, value = word.partition("=")
        if len(value) >= _SHORTEST_KNOWN and redact_value(key.rpartition(".")[2], value) == REDACTED:
            values += [value, value.strip("\"'")]
    return values


def redact_code(text: str) -> str:
    """Source text without secrets: as ``redact_text``, but by name only where a quoted text is assigned.

    >>> redact_code('api_key = "0123456789"; best = max(runs, key=str); token = next(tokens)')
    'api_key = "<redacted>"; best = max(runs, key=str); token = next(tokens)'
    """
    return re.sub(_QUOTED_IN_CODE, _redacted_literal, _without_forms(text))


def _without_forms(text: str) -> str:
    """The text without what is secret by its form, whatever its name."""
    for form in _FORMS:
        text = re.sub(form, rf"\g<1>{REDACTED}", text)
    return text


def _tells_nothing(name: str, value: str) -> bool:
    """Empty, a small number, a word for yes or no, or a reference of a shell to where the value is kept."""
    if not value or value.startswith("$"):
        return True
    words = {word.upper() for word in _WORDS_OF_NAME.findall(name)}
    return not words & _ALWAYS_SECRET and _TELLING_NOTHING.fullmatch(value) is not None


def _redacted_assignment(match: re.Match[str]) -> str:
    name, sign, value = match["name"], match["sign"], match["value"]
    quote = value[0] if value[0] in "\"'" else ""
    inner = value.strip("\"'")
    is_parameter = match.string[max(0, match.start() - 1) : match.start()] in ("?", "&", "-")
    is_prose = (name in _PLAIN_WORDS and not is_parameter and len(inner) < 16) or (
        # What a message says of a key, such as «env.MY_KEY: must be text».
        "." in name and sign == ": " and not quote
    )
    if is_prose or REDACTED in inner or inner == "<redacted" or not is_secret_name(name) or _tells_nothing(name, inner):
        return match[0]
    return f"{name}{sign}{quote}{REDACTED}{quote}"


def _redacted_literal(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    inner = value[1:-1]
    looks_secret = len(inner) >= 16 and " " not in inner and re.search(r"\d", inner) is not None
    is_prose = name.isalpha() and name.islower() and not looks_secret
    if is_prose or not is_secret_name(name) or REDACTED in inner or _tells_nothing(name, inner):
        return match[0]
    return f"{name}{match['sign']}{value[0]}{REDACTED}{value[0]}"
