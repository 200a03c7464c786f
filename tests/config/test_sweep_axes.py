"""Points of a sweep are what Hydra composes for each of them alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.config.compose import compose_points

SWEEPS = [
    ["model=tiny,125m", "nodes=1,2", "training.micro_batch_size=4,8"],
    ["model=tiny", "training.seed=range(0,7,2)", "training.learning_rate=1e-4,0.1,3"],
    ["model=tiny", "training.learning_rate=range(0.1,0.5,0.1)"],
    ["model=tiny", "cluster.exclusive=true,False", "training.micro_batch_size=null,2"],
    ["model=tiny", "run.name=a,'b c','d\\'e','f$g',h.i,'12','true','null'"],
    ["model=tiny", "env.A=1,x,true,1.5", "env.B=y"],
    ["model=tiny", "nodes=1,2", "nodes=4"],
    ["model=tiny", "cluster.extra={nice:1}", "cluster.extra.nice=2,3"],
    ["model=tiny", "cluster.extra.nice=2,3", "cluster.extra={nice:1}"],
    ["model=tiny", "cluster.setup=[a],[b,c]", "cluster.srun_args=[],[-v]"],
    ["model=tiny", "cluster=sandbox,slurm", "cluster.time='4:00:00','1-0'"],
    ["model=tiny", "run.note=plain,'${nodes} nodes'", "nodes=1,2"],
    ["model=tiny", "run.note='${nodes} nodes'", "nodes=1,2"],
    ["model=tiny", "cluster.account=012,3_4,5"],
    ["model=tiny", "cluster.extra.nice=5,7", "cluster.extra.hold=true,false"],
    ["model=tiny", "hardware.peak_tflops.bf16=100,200", "hardware=cpu"],
    ["model=tiny", "model.num_layers=2,3", "parallelism=zero1,zero3"],
    ["model=tiny", "launch.max_running=null,4", "launch.sweep_name=x"],
    ["experiment=azure_fig5a"],
    ["experiment=azure_fig3a", "data=synthetic,stdlib"],
]


@pytest.mark.parametrize("words", SWEEPS, ids=[" ".join(words) for words in SWEEPS])
def test_a_point_of_a_sweep_is_what_hydra_composes_for_it_alone(words: list[str]) -> None:
    try:
        points = compose_points(words, multirun=True)
    except Exception as error:
        pytest.fail(f"{words}: {error}")
    assert len(points) > 1
    for point in points:
        (alone,) = compose_points(point.overrides, multirun=False)
        assert (point.config, point.assumptions) == (alone.config, alone.assumptions), point.overrides


def test_a_reference_to_a_swept_value_follows_it(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    text = "name: ours\nnum_steps: 10\nwarmup_steps: ${.num_steps}\n"
    (tmp_path / "training" / "ours.yaml").write_text(text, encoding="utf-8")
    words = ["model=tiny", "training=ours", "training.num_steps=20,30"]
    points = compose_points(words, multirun=True, extra_dirs=[tmp_path])
    assert [point.config.training.warmup_steps for point in points] == [20, 30]
