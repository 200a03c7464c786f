"""Real ranks on token files: a blend, held-out data, and a run that goes on with another number of ranks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain.config.schema import Config
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.record.checkpoints import complete_checkpoints
from hpctrain.record.files import write_text
from hpctrain.record.frozen_config import config_text
from tests.token_files import write_tokens
from tests.worker.reference import LOSS_TOLERANCE, reference_losses
from tests.worker.run_folder import failure_of, make_config, make_run, start_ranks, step_records

pytestmark = pytest.mark.train


def test_a_run_on_token_files_goes_on_with_fewer_ranks_at_the_exact_sample(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    prefixes = [
        write_tokens(tmp_path / name, random.integers(0, 200, 33 * count), tokenizer="t")
        for name, count in (("a", 20), ("b", 100))
    ]
    # Of the 15 sequences of the first that are trained on each step takes four: its epoch ends within step 4.
    data: dict[str, Any] = {
        "name": "tokens",
        "kind": "tokens",
        "blend": {str(prefix): 2.0 for prefix in prefixes},
        "validation_fraction": 0.25,
    }

    def config(num_ranks: int) -> Config:
        return make_config(num_ranks, zero_stage=1, data=data, num_steps=6, checkpoint_interval=3)

    run = make_run(tmp_path, config(2))
    with start_ranks(run) as ranks:
        assert ranks.wait() == [0, 0], ranks.logs()
        assert "3,300 tokens of uint16; tokenizer t" in ranks.log()
    expected = pytest.approx(reference_losses(config(1)), rel=LOSS_TOLERANCE["fp32"])
    assert [record.loss for record in step_records(run)] == expected
    assert all(0 < record.data_time_s < record.step_time_s for record in step_records(run))

    newest = complete_checkpoints(run)[-1]
    assert newest.step == 6
    shutil.rmtree(newest.folder)
    write_text(run.config, config_text(config(1)))
    write_text(run.plan, build_run_plan(config(1)).to_json())
    with start_ranks(run, 1, {0: {"HPCTRAIN_ATTEMPT": "2"}}) as ranks:
        assert ranks.wait() == [0], ranks.logs()
    records = [record for record in step_records(run) if record.attempt == 2]
    assert [record.step for record in records] == [4, 5, 6]
    assert [record.loss for record in step_records(run)[:3] + records] == expected


def test_nodes_with_other_token_files_are_told_before_the_first_step(tmp_path: Path) -> None:
    """Each rank sees a file of its own under the same name, as on nodes whose copies differ."""
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        write_tokens(tmp_path / str(rank) / "a", np.arange(330) % (200 + rank))
    run = make_run(tmp_path, make_config(data={"name": "tokens", "kind": "tokens", "path": str(tmp_path / "0" / "a")}))
    changes = {rank: {"HPCTRAIN_DATA_PATH": str(tmp_path / str(rank) / "a")} for rank in range(2)}
    with start_ranks(run, changes=changes) as ranks:
        assert set(ranks.wait()) == {13}, ranks.logs()
    assert "has tokens of digest" in failure_of(run).message
    assert step_records(run) == [] if run.steps.exists() else True
