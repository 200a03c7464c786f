"""What is open is chosen, named and told; what is stated stays."""

from __future__ import annotations

import dataclasses
import json

import pytest

from hpctrain.config.compose import compose_points, group_choices
from hpctrain.config.open_keys import AUTO, NEUTRAL, value_at
from hpctrain.config.schema import TrainingConfig
from hpctrain.errors import ConfigError
from hpctrain.launch.point_plans import plan_points
from hpctrain.plan.auto.alternatives import Alternative, AutoChoice
from hpctrain.plan.auto.choice import search_subject
from hpctrain.plan.auto.form_name import form_name, form_words
from hpctrain.plan.render.choice import render_choice
from hpctrain.plan.render.plan import render_plan
from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.record.frozen_config import config_text, parse_config

TINY = ("model=tiny", "cluster=local", "parallelism=auto")


def planned(*words: str) -> RunPlan:
    """The plan of one point, held against the plan of its frozen configuration."""
    ((point, plan),) = plan_points(compose_points(words, multirun=False))
    assert not point.is_open
    frozen = parse_config(config_text(point.config))
    assert frozen == point.config
    again = build_run_plan(frozen, point.assumptions)
    assert dataclasses.replace(again, choice=plan.choice) == plan
    return plan


@pytest.mark.parametrize("group", [name for name in group_choices("parallelism") if name != AUTO])
def test_a_form_is_named_after_the_shipped_group_that_it_equals(group: str) -> None:
    (point,) = compose_points(["model=530b", f"parallelism={group}"], multirun=False)
    parallelism = dataclasses.replace(point.config.parallelism, name=AUTO)
    assert form_name(parallelism, point.config.hardware.gpus_per_node) == group
    assert form_words(parallelism, point.config.hardware.gpus_per_node) == (f"parallelism={group}",)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"zero_stage": 1, "tensor_parallel_size": 8, "pipeline_parallel_size": 5}, "tp8-pp5-zero1"),
        ({"zero_stage": 0, "tensor_parallel_size": 2}, "tp2-ddp"),
        ({"zero_stage": 3, "sequence_parallel_size": 4, "hpz_partition_size": 8}, "sp4-zero3-hpz8"),
        ({"zero_stage": 2, "offload_optimizer": "cpu"}, "zero2-cpu_optimizer"),
        ({"zero_stage": 3, "offload_optimizer": "cpu", "offload_ratio": 0.35}, "zero3-cpu_optimizer_35"),
        ({"zero_stage": 3, "offload_param": "cpu"}, "zero3-cpu_param"),
    ],
)
def test_other_forms_have_names_and_words_of_their_own(changes: dict[str, object], name: str) -> None:
    (point,) = compose_points(["model=530b", "parallelism=ddp"], multirun=False)
    parallelism = dataclasses.replace(point.config.parallelism, **changes)  # type: ignore[arg-type]
    assert form_name(parallelism, 8) == name
    (again,) = compose_points(["model=530b", *form_words(parallelism, 8)], multirun=False)
    assert dataclasses.replace(again.config.parallelism, name="") == dataclasses.replace(parallelism, name="")


def test_tiny_on_this_machine_is_something_small_and_plain() -> None:
    plan = planned(*TINY)
    assert (plan.name, plan.zero_stage, plan.problems) == ("tiny-1n-ddp", 0, ())
    assert any(
        text.startswith("parallelism chosen: parallelism=ddp training.micro_batch_size=") for text in plan.assumptions
    )


@pytest.mark.parametrize(
    "words",
    [("model=tiny", "nodes=8", "hardware=hccpnv4h"), ("model=350m", "nodes=7", "hardware=dgx_h100")],
    ids=["tiny", "350m"],
)
def test_a_model_that_every_gpu_holds_is_not_cut_up(words: tuple[str, ...]) -> None:
    # Below stage 3 all gradients of such a model go out in one collective, stage 3 has three for each block.
    assert planned(*words, "parallelism=auto").zero_stage == 0


def test_530b_on_128_nodes_is_no_slower_than_the_published_form() -> None:
    plan = planned("model=530b", "nodes=128", "parallelism=auto", "training.seq_len=1024")
    words = "model=530b nodes=128 parallelism=zero3 training.seq_len=1024 training.micro_batch_size=8".split()
    (published,) = compose_points([*words, "training.activation_checkpointing=full"], multirun=False)
    known = build_run_plan(published.config)
    assert plan.problems == known.problems == ()
    assert plan.prediction is not None
    assert known.prediction is not None
    assert plan.prediction.tokens_per_s >= known.prediction.tokens_per_s
    assert plan.memory.fits_with_headroom


def test_a_pipeline_of_one_micro_step_is_typed_with_it() -> None:
    """Where it is left out a pipeline takes as many as fill it; one of 16 sequences is faster where each has 16 tokens."""
    words = ("model=125m", "nodes=1", "parallelism.pipeline_parallel_size=2", "training.seq_len=16")
    plan = planned(*words, "parallelism=auto")
    assert plan.choice is not None
    chosen = plan.choice.alternatives[0]
    assert (plan.batch.gradient_accumulation_steps, chosen.gradient_accumulation_steps) == (1, 1)
    assert "training.gradient_accumulation_steps=1" in chosen.overrides
    (point,) = compose_points([*words, *chosen.overrides], multirun=False)
    assert build_run_plan(point.config).batch == plan.batch


def test_the_first_alternative_is_the_plan_and_typing_another_gives_it() -> None:
    words = ("model=1.3b", "nodes=2")
    plan = planned(*words, "parallelism=auto")
    assert plan.choice is not None
    chosen, *others = plan.choice.alternatives
    assert others
    for found in (chosen, others[0]):
        (point,) = compose_points([*words, *found.overrides], multirun=False)
        typed = build_run_plan(point.config)
        assert typed.prediction is not None
        assert (typed.parallelism_name, typed.batch.global_batch_size) == (found.parallelism, found.global_batch_size)
        assert typed.batch.micro_batch_size == found.micro_batch_size
        assert typed.activation_checkpointing == found.activation_checkpointing
        assert typed.prediction.step_time_s == pytest.approx(found.step_time_s)
        assert typed.memory.gpu_capacity_bytes is not None
        assert typed.memory.gpu_capacity_bytes - typed.memory.gpu_bytes == found.gpu_free_bytes
    assert plan.prediction is not None
    assert plan.prediction.step_time_s == chosen.step_time_s


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("parallelism.zero_stage=2", "parallelism.zero_stage", 2),
        ("parallelism.tensor_parallel_size=4", "parallelism.tensor_parallel_size", 4),
        ("parallelism.offload_ratio=0.5", "parallelism.offload_ratio", 0.5),
        ("training.micro_batch_size=3", "training.micro_batch_size", 3),
        ("training.activation_checkpointing=full", "training.activation_checkpointing", "full"),
    ],
)
def test_an_explicit_value_stands(word: str, key: str, value: object) -> None:
    ((point, plan),) = plan_points(compose_points(["model=1.3b", "parallelism=auto", word], multirun=False))
    assert value_at(point.config, key) == value
    assert key not in point.config.run.chosen
    assert set(point.config.run.chosen) == NEUTRAL.keys() - {key}
    assert plan.problems == ()


def test_of_a_stated_place_on_nvme_only_the_missing_folder_is_told_and_no_stage_that_nobody_stated() -> None:
    plan = planned("model=6.7b", "parallelism=auto", "parallelism.offload_optimizer=nvme")
    assert [problem.key for problem in plan.problems] == ["parallelism.nvme_path"]
    assert plan.zero_stage == 3


def test_a_stated_global_batch_is_met_and_its_accumulation_follows_from_it() -> None:
    ((point, plan),) = plan_points(
        compose_points(["model=1.3b", "parallelism=auto", "training.global_batch_size=96"], multirun=False)
    )
    assert plan.batch.global_batch_size == 96
    assert point.config.training.gradient_accumulation_steps is None
    assert plan.problems == ()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["parallelism.tensor_parallel_size=3"], "parallelism.tensor_parallel_size=3"),
        (["parallelism.pipeline_parallel_size=4", "parallelism.zero_stage=3"], "goes with ZeRO stage 1, here it is 3"),
        (["parallelism.offload_optimizer=cpu", "parallelism.zero_stage=0"], "needs a stage of ZeRO, here it is 0"),
        (["parallelism.pipeline_parallel_size=5"], "must divide: blocks 24 (24 mod 5 = 4)"),
        (["training.global_batch_size=7", "training.micro_batch_size=2"], "training.global_batch_size=7"),
        (["model.num_heads=7"], "model.num_heads=7"),
        (
            ["training.offload_activations=true", "training.activation_checkpointing=selective"],
            "keeps the inputs of recomputed blocks on the host, and training.activation_checkpointing is selective",
        ),
        (
            ["training.compile=true", "training.activation_checkpointing=selective"],
            "with training.compile=true torch's compiler decides that",
        ),
    ],
)
def test_contradictions_are_told_by_the_rules_themselves(words: list[str], expected: str) -> None:
    ((_, plan),) = plan_points(compose_points(["model=1.3b", "parallelism=auto", *words], multirun=False))
    told = [problem for problem in plan.problems if problem.kind == "config"]
    assert any(expected in str(problem) for problem in told)
    assert ConfigError(plan.problems).exit_code == 2
    stated = {word.partition("=")[0] for word in words}
    assert {problem.key for problem in told} <= stated, "nothing is told of what nobody stated"


def test_where_nothing_fits_the_plan_is_refused_and_says_so() -> None:
    ((_, plan),) = plan_points(compose_points(["model=2t", "nodes=1", "parallelism=auto"], multirun=False))
    assert {problem.kind for problem in plan.problems} == {"memory"}
    assert ConfigError(plan.problems).exit_code == 3
    assert any("configurations fits; this one is the nearest" in text for text in plan.assumptions)


def test_a_launch_check_chooses_nothing_and_is_not_refused_for_memory() -> None:
    words = ["model=2t", "nodes=1", "training=launch_check", "parallelism=auto"]
    ((point, plan),) = plan_points(compose_points(words, multirun=False))
    assert (plan.problems, plan.choice, point.open_keys) == ((), None, ())
    assert any("a launch check builds no model" in text for text in plan.assumptions)


def test_what_is_all_stated_gets_a_name_and_no_search() -> None:
    words = [f"{key}={str(value).lower()}" for key, value in NEUTRAL.items() if key.startswith("parallelism.")]
    of_training = ["training.micro_batch_size=1", "training.gradient_accumulation_steps=1"]
    more = ["training.activation_checkpointing=none", "training.offload_activations=true"]
    plan = planned("model=tiny", "cluster=local", "parallelism=auto", *words, *of_training, *more)
    assert (plan.parallelism_name, plan.choice) == ("ddp", None)


@pytest.mark.parametrize(
    "word",
    [
        "training.seed=7",
        "training.learning_rate=1e-3",
        "training.num_steps=9",
        "run.note=x",
        "env.A=1",
        "data=synthetic",
    ],
)
def test_what_no_choice_depends_on_is_left_out_of_the_subject(word: str) -> None:
    (point,) = compose_points([*TINY], multirun=False)
    (other,) = compose_points([*TINY, word], multirun=False)
    assert point.config != other.config
    assert search_subject(point.config) == search_subject(other.config)


def test_points_that_differ_in_nothing_of_the_subject_share_one_search() -> None:
    composed = compose_points(["model=1.3b", "parallelism=auto", "training.seed=1,2", "nodes=1,2"], multirun=True)
    one, two, one_again, two_again = (plan.choice for _, plan in plan_points(composed))
    assert one is one_again
    assert two is two_again
    assert one is not two


def test_every_key_of_training_is_in_the_subject_or_known_to_be_none_of_memorys_and_times() -> None:
    """A new key must be put into one of the two."""
    others = (
        "name num_steps loss_scale initial_scale_power loss_scale_window min_loss_scale hysteresis learning_rate"
        " min_learning_rate warmup_steps decay weight_decay beta1 beta2 eps gradient_clipping seed init_from log_interval"
        " validation_interval validation_batches start_timeout_min collective_timeout_min checkpoint_interval"
        " checkpoint_at_end checkpoint_at_stop check_checkpoint_room keep_checkpoints telemetry_interval_s"
    ).split()
    (point,) = compose_points([*TINY], multirun=False)
    searched = dataclasses.replace(
        point.config.training, seq_len=64, micro_batch_size=2, compile=True, precision="bf16"
    )
    subject = search_subject(dataclasses.replace(point.config, training=searched)).training
    assert {"seq_len": 64, "micro_batch_size": 2, "compile": True, "precision": "bf16"}.items() <= vars(subject).items()
    names = {field.name for field in dataclasses.fields(TrainingConfig)}
    assert names - set(others) == {
        *("payload", "seq_len", "micro_batch_size", "global_batch_size", "gradient_accumulation_steps", "batch_ramp"),
        *("precision", "activation_checkpointing", "loss_chunk_size", "offload_activations", "compile"),
    }


def test_the_plan_shows_what_came_next_as_text_and_json() -> None:
    plan = planned("model=1.3b", "nodes=2", "parallelism=auto")
    assert plan.choice is not None
    text = render_plan(plan, "python")
    assert render_choice(plan.choice) in text
    for found in plan.choice.alternatives:
        assert f"  {found.parallelism} " in text
    told = json.loads(plan.to_json())["choice"]
    assert told["num_considered"] == plan.choice.num_considered
    assert [each["parallelism"] for each in told["alternatives"]] == [
        each.parallelism for each in plan.choice.alternatives
    ]


def test_the_table_names_what_is_short_and_leaves_out_what_is_not_known() -> None:
    first = Alternative(
        "zero3", ("parallelism=zero3",), 4, 2, 64, "full", True, 1.234, 56789.0, 2**30, None, True, "chosen"
    )
    second = dataclasses.replace(
        first, parallelism="ddp", offload_activations=False, gpu_free_bytes=-(2**31), reason="does not fit"
    )
    third = dataclasses.replace(second, step_time_s=None, tokens_per_s=None, gpu_free_bytes=None)
    text = render_choice(AutoChoice(1234, (first, second, third), "8 sequences a step"))
    assert "among 1,234 (predictions, not measured)" in text
    assert "full, inputs on host    1.23    56,789  1.00 GiB        chosen" in text
    assert "2.00 GiB short  does not fit" in text
    assert "held equal: 8 sequences a step" in text
    assert text.splitlines()[4].split()[-6:] == ["-", "-", "-", "does", "not", "fit"]


def test_what_does_not_fit_is_not_offered_as_the_second() -> None:
    first = Alternative("zero3", ("parallelism=zero3",), 4, 2, 64, "full", False, 1.0, 1.0, 2**30, None, True, "chosen")
    short = dataclasses.replace(first, overrides=("parallelism=ddp",), gpu_free_bytes=-(2**31), fits=False)
    other = dataclasses.replace(first, overrides=("parallelism=zero2",))
    assert "the second: " not in render_choice(AutoChoice(12, (first, short), ""))
    assert render_choice(AutoChoice(12, (first, short, other), "")).endswith("the second: parallelism=zero2")


def test_the_runner_ups_are_folded_to_the_terminal() -> None:
    plan = planned("model=175b", "nodes=16", "parallelism=auto")
    assert plan.choice is not None
    whole, narrow = render_plan(plan, "python").splitlines(), render_plan(plan, "python", 90).splitlines()
    (header,) = (line for line in whole if line.startswith("  form "))
    first, second = (line for line in narrow if line.startswith("  form "))
    assert header.split() == [*first.split(), "why"]
    assert second.split() == ["form", "why"]
    assert all(len(line) <= 90 for line in narrow[narrow.index(first) : narrow.index(second) + 6])
