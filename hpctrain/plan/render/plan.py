"""The plan as text for people."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hpctrain.plan.job.azureml import AzureMlTarget, azureml_job_text
from hpctrain.plan.layout import Batch
from hpctrain.plan.render.memory import render_memory
from hpctrain.plan.render.scripts import UNNAMED_RUN_DIR, UNNAMED_SNAPSHOT, planned_script
from hpctrain.plan.rules.precision import loss_scale_text
from hpctrain.plan.run_plan import RunPlan
from hpctrain.units import counted, duration_in_words, parse_slurm_time, short_count


def render_plan(plan: RunPlan, python: str, width: int | None = None) -> str:
    """All of the plan: assumptions first, then shapes, memory, speed, runner-ups, batch script, DeepSpeed JSON, problems last.

    Of an impossible plan its problems alone, of a launch check what it asks for.

    Args:
        plan: to be shown.
        python: interpreter for the batch script.
        width: columns of the terminal, to which the table of runner-ups is folded; None: a file or pipe.
    """
    if plan.is_impossible:
        return _impossible(plan)
    trains = plan.payload == "train"
    parts = ["\n".join(render_notes(plan)), _facts(plan) if trains else _check_facts(plan)]
    if trains:
        parts += [render_memory(plan), _speed(plan), _choice(plan, width)]
    if plan.cluster_kind == "slurm":
        parts.append("batch script\n" + _indented(planned_script(plan.slurm, python)))
    if plan.azureml is not None:
        target = AzureMlTarget(UNNAMED_RUN_DIR, UNNAMED_RUN_DIR, UNNAMED_SNAPSHOT)
        parts.append("AzureML command job\n" + _indented(azureml_job_text(plan.azureml, target)))
    if trains:
        parts.append("DeepSpeed configuration\n" + _indented(json.dumps(plan.ds_config, indent=2)))
    if plan.problems:
        parts.append(_problems(plan))
    return "\n\n".join(part for part in parts if part) + "\n"


def _impossible(plan: RunPlan) -> str:
    told = "the problem" if len(plan.problems) == 1 else f"the {len(plan.problems)} problems"
    parts = [
        "\n".join(render_notes(plan)),
        _problems(plan),
        f"nothing can run like this: mend {told} above first; layout, batch, memory, speed and batch script are told then",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _problems(plan: RunPlan) -> str:
    return "problems\n" + _indented("\n".join(map(str, plan.problems)))


def _choice(plan: RunPlan, width: int | None) -> str:
    if plan.choice is None:
        return ""
    from hpctrain.plan.render.choice import render_choice

    return render_choice(plan.choice, width)


def render_notes(plan: RunPlan) -> list[str]:
    """Assumptions and warnings, a line each; the first says which hardware was assumed, if it was."""
    return [f"note: {text}" for text in plan.assumptions] + [f"warning: {text}" for text in plan.warnings]


def _facts(plan: RunPlan) -> str:
    model, layout, batch, flops = plan.model, plan.layout, plan.batch, plan.flops_per_step
    place = "GPUs" if plan.device == "cuda" else "CPU ranks"
    on_host = " with its inputs in host memory" if plan.offload_activations else ""
    in_chunks = f", loss in chunks of {plan.loss_chunk_size:,} tokens" if plan.loss_chunk_size else ""
    heads = f"{model.num_heads} heads of {model.head_dim}"
    if model.num_kv_heads != model.num_heads:
        heads += f" ({model.num_kv_heads} for keys and values)"
    rows = [
        ("run", plan.name),
        (
            "model",
            f"{model.name} ({model.architecture}): {model.num_layers} layers, hidden {model.hidden_size}, {heads},"
            f" feed-forward {model.ffn_hidden_size}, vocabulary {model.vocab_size}",
        ),
        ("parameters", f"{plan.num_parameters:,} ({short_count(plan.num_parameters)})"),
        (
            "layout",
            f"{counted(layout.num_nodes)} x {layout.gpus_per_node} = {layout.world_size:,} {place} ({plan.hardware_name}),"
            f" {layout.degrees_text}, {plan.parallelism_name}",
        ),
        (
            "batch",
            f"micro {batch.micro_batch_size} x data parallel {layout.data_parallel_degree:,} x accumulation"
            f" {batch.gradient_accumulation_steps} = {batch.global_batch_size:,} sequences of {batch.seq_len:,} tokens ="
            f" {batch.tokens_per_step:,} tokens a step",
        ),
        (
            "training",
            f"{plan.num_steps:,} steps, {short_count(batch.tokens_before(plan.num_steps + 1))} tokens,"
            f" {plan.precision}{loss_scale_text(plan.ds_config)},"
            f" activation checkpointing {plan.activation_checkpointing}{on_host}{in_chunks}",
        ),
        *_ramp_rows(batch),
        ("data", plan.data_name),
        ("model FLOPs", f"{flops.model_flops:.4e} a step (forward and backward once, dense attention)"),
        ("hardware FLOPs", f"{flops.hardware_flops:.4e} a step (recomputation included)"),
        ("Megatron FLOPs", f"{flops.megatron_flops:.4e} a step (96·B·s·l·h²·(1 + s/6h + V/16lh))"),
    ]
    return _fact_lines([*rows, *_limit_rows(plan)])


def _check_facts(plan: RunPlan) -> str:
    layout, place = plan.layout, "GPUs" if plan.device == "cuda" else "CPU ranks"
    rows = [
        ("run", plan.name),
        (
            "launch check",
            "ranks meet, count and measure themselves, and leave; no model is built",
        ),
        (
            "ranks",
            f"{counted(layout.num_nodes)} x {layout.gpus_per_node} = {layout.world_size:,} {place} ({plan.hardware_name})",
        ),
        ("time to meet", f"at most {plan.start_timeout_min} min (training.start_timeout_min)"),
    ]
    return _fact_lines([*rows, *_limit_rows(plan)])


def _limit_rows(plan: RunPlan) -> list[tuple[str, str]]:
    if not plan.slurm.options.get("time"):
        return []
    seconds = _seconds(plan.slurm.options["time"])
    return [("time limit", "none" if seconds is None else duration_in_words(seconds))]


def _fact_lines(rows: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def _ramp_rows(batch: Batch) -> list[tuple[str, str]]:
    if not batch.ramp:
        return []
    sizes = [stage.global_batch_size for stage in batch.ramp]
    shown = [f"{size:,}" for size in sizes]
    if len(shown) > _SHOWN_SIZES:
        shown[2:-1] = ["..."]
    last = batch.ramp[-1]
    text = (
        f"{', '.join(shown)} sequences a step in {len(sizes)} stages; the full batch from step {last.first_step:,} on, after"
        f" {last.first_sample:,} sequences"
    )
    return [("batch ramp", text)]


_SHOWN_SIZES = 8


def _seconds(time: str) -> float | None:
    try:
        return parse_slurm_time(time)
    except ValueError:  # told among the problems
        return None


_SMALL_SHARE = 0.01
"""Parts below this share of the step are summed up in one line."""


def _speed(plan: RunPlan) -> str:
    if plan.prediction is None:
        return f"speed of one step: no prediction, {plan.prediction_gap}"
    speed, rates = plan.prediction, plan.prediction.tflops_per_gpu
    lines = ["speed of one step (a prediction, not measured)"]
    shown = {name: seconds for name, seconds in speed.parts_s.items() if seconds >= _SMALL_SHARE * speed.step_time_s}
    rest = speed.step_time_s - sum(shown.values())
    rows = [
        *sorted(shown.items(), key=lambda part: -part[1]),
        *([("all else", rest)] if len(shown) < len(speed.parts_s) else []),
    ]
    lines += [
        f"  {name:<28}{seconds:>10.3g} s  {seconds / speed.step_time_s:>4.0%}  {speed.rate_of_part.get(name, '')}".rstrip()
        for name, seconds in rows
    ]
    waits_for = speed.rate_of_part.get(speed.bound_by)
    mfu = "" if speed.mfu is None else f", MFU {speed.mfu:.1%}"
    return "\n".join(
        [
            *lines,
            f"  step      {speed.step_time_s:.3g} s, between {speed.low_s:.3g} and {speed.high_s:.3g} s; {speed.bound_by} binds"
            + (f" ({waits_for})" if waits_for else ""),
            f"  rate      {speed.tokens_per_s:,.0f} tokens/s; TFLOP/s a GPU: model {rates['model']:.1f},"
            f" hardware {rates['hardware']:.1f}, Megatron {rates['megatron']:.1f}{mfu}",
            f"  from      {speed.uncertainty}",
        ]
    )


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.rstrip("\n").split("\n"))
