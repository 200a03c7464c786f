"""What a submission asks of the data, and how it freezes where they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpctrain.config.compose import Point, compose_points
from hpctrain.config.schema import DataConfig
from hpctrain.errors import ConfigError
from hpctrain.launch.preflight import check_data
from hpctrain.launch.run_folder import create_point_folder
from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.record.reader import read_config
from tests.token_files import write_tokens


def points(*words: str) -> list[tuple[Point, RunPlan]]:
    found = compose_points(["model=tiny", "parallelism=zero3", "cluster=local", *words], multirun=True)
    return [(point, build_run_plan(point.config)) for point in found]


def check(*words: str) -> None:
    check_data([(point.config.data, plan) for point, plan in points(*words)])


def test_points_of_a_sweep_are_held_against_their_own_models(tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "a", np.arange(200) % 250, tokenizer="t", vocab_size=300)
    check("data=tokens", f"data.path={prefix}", "training.seq_len=16,32", "model.vocab_size=300,384")
    with pytest.raises(ConfigError) as caught:
        check("data=tokens", f"data.path={prefix}", "training.seq_len=64,250", "model.vocab_size=256,384", "nodes=1,1")
    # Each of the two once, though each is a mistake of four points.
    assert [problem.key for problem in caught.value.problems] == ["model.vocab_size", "training.seq_len"]


def test_texts_of_all_points_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ConfigError) as caught:
        check("data=text", f"data.path={tmp_path}/a.txt,{tmp_path}/b.txt", f"data.validation_path={tmp_path}/c.txt")
    assert [(problem.key, Path(problem.value).name) for problem in caught.value.problems] == [
        ("data.validation_path", "c.txt"),
        ("data.path", "b.txt"),
    ]


def test_what_is_elsewhere_is_not_looked_for() -> None:
    data = DataConfig("tokens", "tokens", "azureml://datastores/d/paths/x/y")
    (_, plan), *_ = points()
    check_data([(data, plan)])


def test_relative_prefixes_mean_the_folder_of_the_submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    ((point, plan),) = points("data=tokens", "data.blend={x/a: 1, /d/b: 2}", "data.validation_path=v")
    data = read_config(create_point_folder(tmp_path / "run", point, plan, tmp_path / "code.json")).data
    assert list(data.blend.items()) == [(f"{tmp_path}/x/a", 1.0), ("/d/b", 2.0)]
    assert data.validation_path == f"{tmp_path}/v"
    assert data.path is None
