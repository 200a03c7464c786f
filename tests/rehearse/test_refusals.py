"""What the engine refuses, and what a rehearsal cannot carry, is said; nothing is written."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from hpctrain.errors import EXIT_CONFIG, ConfigError
from tests.rehearse.rehearsals import make_plan, rehearse, with_ds_config

pytestmark = pytest.mark.train


def test_the_engines_sentence_and_ours() -> None:
    plan = with_ds_config(make_plan(3), mics_shard_size=4)
    with pytest.raises(ConfigError) as caught:
        rehearse(plan)
    (problem,) = caught.value.problems
    assert caught.value.exit_code == EXIT_CONFIG
    text = str(problem)
    assert text.startswith(
        "parallelism=zero3: DeepSpeed " + version("deepspeed") + " refuses this configuration while the "
    )
    assert "mics_shard_size" in text
    assert "DeepSpeedConfigError in runtime/config.py" in text


def test_a_native_library_that_gives_out_tensors_is_named() -> None:
    plan = make_plan(3, parallelism={"quantized_weights": True})
    with pytest.raises(ConfigError, match=r"quantizer: DeepSpeed asks its native library .*quantized_weights=false"):
        rehearse(plan)
