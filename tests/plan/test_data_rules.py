"""What the keys of ``data`` say together."""

from __future__ import annotations

import pytest

from hpctrain.config.compose import compose_points
from hpctrain.config.schema import Config
from hpctrain.plan.rules.data import data_problems, mounted_folder, training_windows
from hpctrain.plan.run_plan import build_run_plan

TOKENS = ["data=tokens", "data.path=/d/a"]
AZUREML = ["cluster=azureml", "cluster.azureml.compute=c", "cluster.azureml.image=i"]


def config_of(*words: str) -> Config:
    (point,) = compose_points(["model=tiny", *words], multirun=False)
    return point.config


PROBLEMS = [
    pytest.param(["data=tokens"], ["data.path=null", "PREFIX.bin and PREFIX.idx", "data.blend={"], id="no-prefix"),
    pytest.param(
        [*TOKENS, "data.blend={/d/b: 1}"], ["data.path=/d/a", "beside data.blend of 1", "data.path=null"], id="both"
    ),
    pytest.param(["data.path=/x"], ["data.path=/x", "add data=text or data=tokens"], id="path-that-nobody-reads"),
    pytest.param(
        ["data.blend={/d/b: 1}"], ["data.blend=/d/b", "this is data=stdlib", "add data=tokens"], id="blend-of-no-tokens"
    ),
    pytest.param(
        [*TOKENS, "data.validation_path=/d/v", "data.validation_fraction=0.1"],
        ["data.validation_path=/d/v", "validation_fraction=0.1", "leave one"],
        id="two-validation-sets",
    ),
    pytest.param(
        ["data.validation_path=/d/v"],
        ["data.validation_path=/d/v", "data=stdlib", "validation_fraction=0.01"],
        id="validation-path-that-nobody-reads",
    ),
    pytest.param(
        [*TOKENS, "data.validation_path=/d/a"],
        ["data.validation_path=/d/a", "is trained on", "name another"],
        id="validation-on-training-data",
    ),
    pytest.param(
        ["data=tokens", "data.blend={/d/a: 1, /d/b: 2}", "data.validation_path=/d/b"],
        ["data.validation_path=/d/b", "is trained on"],
        id="validation-on-a-part-of-the-blend",
    ),
    pytest.param(
        ["data.tokenizer_digest=abcdef12"], ["tokenizer_digest=abcdef12", "data=stdlib"], id="digest-of-no-tokens"
    ),
    pytest.param(
        [*TOKENS, "data.tokenizer_digest=abcdefg"], ["tokenizer_digest=abcdefg", "first 8 or more"], id="no-digest"
    ),
    pytest.param(
        [*AZUREML, "data=tokens", "data.path='azureml:corpus:3'"],
        ["data.path=azureml:corpus:3", "names none", "paths/FOLDER/PREFIX"],
        id="azureml-without-folder",
    ),
    pytest.param(
        [*AZUREML, "data=tokens", "data.blend={/d/b: 1}"],
        ["data.blend=/d/b", "mounts data.path alone", "one corpus"],
        id="azureml-blend",
    ),
    pytest.param(
        [*AZUREML, "data=text", "data.path=/d/a", "data.validation_path=/d/v"],
        ["data.validation_path=/d/v", "mounts data.path alone"],
        id="azureml-validation",
    ),
    pytest.param(
        [*AZUREML, *TOKENS, "cluster.azureml.data_type=uri_file"],
        ["data_type=uri_file", "mounts their folder", "leave it out"],
        id="azureml-data-type",
    ),
]


@pytest.mark.parametrize(("words", "expected"), PROBLEMS)
def test_problems_name_key_rule_and_fix(words: list[str], expected: list[str]) -> None:
    (problem,) = data_problems(config_of(*words))
    for part in expected:
        assert part in str(problem)
    assert str(problem) in map(str, build_run_plan(config_of(*words)).problems)


@pytest.mark.parametrize(
    "words",
    [
        [],
        TOKENS,
        ["data=tokens", "data.blend={/d/a: 0.7, ./b-1_c.x: 0.3}", "data.validation_path=/d/v"],
        [*TOKENS, "data.validation_fraction=0.01", f"data.tokenizer_digest='{'0123456789abcdef' * 4}'"],
        ["data.validation_fraction=0.1"],
        [*AZUREML, *TOKENS],
    ],
    ids=" ".join,
)
def test_what_is_allowed(words: list[str]) -> None:
    assert data_problems(config_of(*words)) == []


def test_weights_are_above_zero() -> None:
    with pytest.raises(Exception, match=r"data.blend./d/a=0: must be greater than 0"):
        config_of("data=tokens", "data.blend={/d/a: 0}")


@pytest.mark.parametrize("fraction", [0.0, 1e-9, 0.001, 0.1, 0.5, 0.999])
def test_every_sequence_is_trained_on_or_kept(fraction: float) -> None:
    for count in range(200):
        trained = training_windows(count, fraction)
        kept = count - trained
        assert kept == 0 if fraction == 0 else kept >= 1
        assert abs(kept - fraction * count) <= (1 if fraction * count < 0.5 else 0.5)


def test_a_prefix_in_the_root_folder() -> None:
    assert mounted_folder("/web") == ("/", "web")
