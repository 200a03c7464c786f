"""What counts as a secret, and texts without them."""

from __future__ import annotations

import pytest

from hpctrain.errors import ConfigError, Problem
from hpctrain.secret_text import (
    REDACTED,
    holds_secret,
    is_secret_name,
    redact_code,
    redact_override,
    redact_text,
    redact_value,
    secrets_in,
)

SECRET_NAMES = """
WANDB_API_KEY HF_TOKEN HUGGING_FACE_HUB_TOKEN AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN GITHUB_PAT DB_PASS PGPASSWORD MYSQL_PWD
AZURE_STORAGE_CONNECTION_STRING AZURE_SAS_TOKEN SENTRY_DSN SESSION_COOKIE NPM_AUTH GOOGLE_CREDENTIALS SSH_PASSPHRASE
accountKey apiKey clientSecret hf_token my-secret NGC_APIKEY SLURM_JWT DB_CONN_STR URL_SIGNATURE
""".split()
OPEN_NAMES = """
MONKEY KEYBOARD TOKENIZER TOKENIZERS_PARALLELISM MAX_TOKENS NCCL_IB_PKEY UCX_IB_PKEY SSH_AUTH_SOCK XAUTHORITY AUTHOR PWD OLDPWD
AWS_ACCESS_KEY_ID AWS_SHARED_CREDENTIALS_FILE KEY_NAME PATH BYPASS COMPASS PASSENGER PATTERN WCKEY SASHIMI TURKEY GIT_ASKPASS
NUM_KEY_VALUE_HEADS TOKEN_DIM OMP_NUM_THREADS SECRETARY
""".split()


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)
    assert redact_value(name, "hunter22") == REDACTED


@pytest.mark.parametrize("name", OPEN_NAMES)
def test_names_that_only_look_like_it(name: str) -> None:
    assert not is_secret_name(name)
    assert redact_value(name, "hunter22") == "hunter22"


@pytest.mark.parametrize("value", ["", "0", "1", "true", "none", "1234", "$OTHER", "$(cat key)"])
def test_values_that_tell_nothing(value: str) -> None:
    assert redact_value("MY_TOKEN", value) == value


def test_a_short_password_is_one() -> None:
    assert redact_value("DB_PASSWORD", "1234") == REDACTED


FORMS = {
    "hugging_face": "hf_" + "a1B2" * 8,
    "github": "ghp_" + "a1B2" * 9,
    "github_app": "ghs_" + "a1B2" * 9,
    "github_pat": "github_pat_" + "a1B2_" * 9,
    "gitlab": "glpat-" + "a1B2" * 5,
    "aws": "AKIA" + "A1B2" * 4,
    "openai": "sk-proj-" + "a1B2" * 9,
    "slack": "xoxb-123456789012-abcdef",
    "google": "AIza" + "a1B2-" * 7,
    "nvidia": "nvapi-" + "a1B2_" * 9,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "pem": "-----BEGIN RSA PRIVATE KEY-----\nMIIB\nAAAA\n-----END RSA PRIVATE KEY-----",
    "cut_pem": "-----BEGIN OPENSSH PRIVATE KEY-----\nMIIB\nAAAA",
}


@pytest.mark.parametrize("name", FORMS)
def test_secrets_by_their_form(name: str) -> None:
    secret = FORMS[name]
    for redact in (redact_text, redact_code):
        shown = redact(f"use {secret}")
        assert shown == f"use {REDACTED}"
    assert holds_secret("PLAIN", f"x {secret}")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:p@ss/w@host/x", "https://me:<redacted>@ss/w@host/x"),
        ("https://me:hunter2@host:80/x", "https://me:<redacted>@host:80/x"),
        ("postgresql://me:pw@db/x?sslmode=on", "postgresql://me:<redacted>@db/x?sslmode=on"),
        ("https://x.blob.core.windows.net/c?sv=2024&sig=a%2Bb%3D&se=1", None),
        ("AccountName=me;AccountKey=abc+/==;EndpointSuffix=x", "AccountName=me;AccountKey=<redacted>;EndpointSuffix=x"),
        ("curl -H 'Authorization: Bearer abc.def'", None),
        ("wandb login 0123456789abcdef0123456789abcdef01234567", "wandb login <redacted>"),
        ("export A_TOKEN='it'\"'\"'s x' B=2", "export A_TOKEN='<redacted>' B=2"),
        ('export A_TOKEN="a b" B=2', 'export A_TOKEN="<redacted>" B=2'),
        ("login --password hunter2 --user me", "login --password <redacted> --user me"),
        ("login --password=hunter2", "login --password=<redacted>"),
        ('{"HF_TOKEN": "abcd", "x": 1}', '{"HF_TOKEN": "<redacted>", "x": 1}'),
        ("HF_TOKEN: abcd", "HF_TOKEN: <redacted>"),
        ("?key=abcd&v=1", "?key=<redacted>&v=1"),
    ],
)
def test_secrets_in_text(text: str, shown: str | None) -> None:
    found = redact_text(text)
    assert REDACTED in found
    if shown is not None:
        assert found == shown
    assert redact_text(found) == found


@pytest.mark.parametrize(
    "text",
    [
        "write key=value, or one of the verbs first",
        "env.MY_TOKEN: must be text",
        "ssh://git@host/x",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "/data/sk-experiments-with-long-names/x task-1234567890123456",
        "max_tokens=12345678 tokenizer=abcdefgh sort_keys=True monkey=abcdefgh",
        "--comment=hpctrain-0123456789abcdef --wckey=project",
        "srun --kill-on-bad-exit=1 --output=/runs/run-1/logs/rank-%t.log",
    ],
)
def test_text_that_holds_none(text: str) -> None:
    assert redact_text(text) == text


def test_known_values_go_wherever_they_stand() -> None:
    words = ["env.HF_TOKEN='ab=cd'", "nodes=2"]
    assert redact_text("sbatch: ab=cd is odd", secrets_in(words)) == "sbatch: <redacted> is odd"


def test_code_keeps_its_words() -> None:
    code = 'key = "a short text of words"\ntoken = tokens["x"]\nbest = sorted(xs, key=str)\nassert password == other\n'
    assert redact_code(code) == code
    assert redact_code('+API_KEY = "0123456789"') == '+API_KEY = "<redacted>"'
    assert redact_code("+    token: str = 'abcdef0123456789'") == "+    token: str = '<redacted>'"


def test_overrides() -> None:
    assert redact_override("++env.HF_TOKEN=abcd,efgh") == "++env.HF_TOKEN=<redacted>"
    assert redact_override("env={A_TOKEN:abcd}") == "env={A_TOKEN:<redacted>"
    assert redact_override("model=530b") == "model=530b"


def test_a_problem_tells_no_secret() -> None:
    problem = Problem("env.HF_TOKEN", "abcdef", "must not be HF_TOKEN=abcdef", "export HF_TOKEN=abcdef")
    assert "abcdef" not in repr(problem)
    assert "abcdef" not in str(ConfigError([problem]))
