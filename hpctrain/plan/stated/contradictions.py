"""Statements of a row that go against each other: each is told, and where one can be taken all the same, which."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hpctrain.errors import Problem
from hpctrain.plan.devices import FAMILIES, Device, find_device
from hpctrain.plan.stated.known_shapes import KnownShape, known_shape, longest_sequence
from hpctrain.plan.stated.remarks import checkpoints_on_host, positions_stated
from hpctrain.plan.stated.run import StatedRun, count_of, number_of, text_of
from hpctrain.plan.stated.trainer import find_trainer
from hpctrain.units import counted

Values = Mapping[str, str | float | None]

_OTHER_MEMORY = 0.15
"""Of a GPU's memory: beyond rounding, and what the driver keeps."""
_OTHER_MODEL = 1.5
"""Times the parameters of the shape: beyond what tables, norms and another count of them explain (1.15 in published rows)."""
MOST_GPUS_PER_NODE = 16
"""Of a server that is sold (DGX-2, and MI250X by its halves). Source: NVIDIA DGX-2 data sheet."""
_MOST_OF_RACK = 72
"""GB200 NVL72 and GB300 NVL72, whose rack some call a node. Source: NVIDIA GB200 NVL72 data sheet."""
_RACKS = ("GB200", "GB300")
_SEVERAL = re.compile(r"/|,|;|\+|\bor\b|\band\b|\bvs\b", re.IGNORECASE)
_ZERO_PLUS = re.compile(r"zero\+\+|\bhpz\b|\bqwz\b|\bqgz\b", re.IGNORECASE)
_CUT = re.compile(r"\blayers?\b|\bblocks?\b", re.IGNORECASE)
_SIDES = ("hidden", "heads", "ffn_hidden")


def reconciled(values: Values) -> tuple[dict[str, str | float | None], list[Problem]]:
    """The row without statements that its software or its machine cannot follow, and what is to be said of them.

    Args:
        values: typed cells; a GPU that nobody knows is left out of them.

    Raises:
        ConfigError: what is named is no GPU.
    """
    kept, problems = dict(values), list[Problem]()
    gpu = text_of(values, "gpu")
    device = find_device(gpu, number_of(values, "gpu_mem_gb")) if gpu else None
    for key, value, rule in (*_not_offloaded(values), *_odd_nodes(values, device)):
        kept[key] = value
        problems.append(Problem(key, _shown(values[key]), rule, ""))
    return kept, [*problems, *_of_device(values, device)]


def contradictions(row: Values, run: StatedRun) -> list[Problem]:
    """What of the row goes against the rest of it; the plan is that of the row as it stands.

    Args:
        row: typed cells, of ``reconciled``.
        run: the row, resolved.
    """
    found = (_batch(row, run), _positions(row, run), _parameters(row, run), _model(row))
    return [*filter(None, found), *_divisions(row, run), *_remarks(row), *_measured(row, run)]


def _not_offloaded(values: Values) -> Iterator[tuple[str, str | None, str]]:
    """Offload that DeepSpeed does not do in the stated stage; FSDP moves parameters however it shards them.

    Source: DeepSpeed 0.19.8, runtime/zero/offload_config.py (parameters in stage 3, the optimizer in stages 1 to 3) and
    runtime/engine.py (zero_cpu_offload: stages 1 and 2 know no NVMe).
    """
    stage = count_of(values, "zero_stage")
    places = {name: text_of(values, name) for name in ("offload_optimizer", "offload_param")}
    moved = [name for name, place in places.items() if place in ("cpu", "nvme")]
    if stage in (None, 3) or not moved:
        return
    source, notes, precision = (text_of(values, name) for name in ("source", "notes", "precision"))
    trainer = find_trainer(source, notes, precision, stage, has_offload=True, ref=text_of(values, "ref"))
    if trainer.habits.sharded_master_only:
        return
    if "offload_param" in moved:
        yield "offload_param", "none", f"needs ZeRO stage 3, and zero_stage={stage}; parameters are taken to stay"
    if "offload_optimizer" in moved and not stage:
        yield "offload_optimizer", "none", "needs a ZeRO stage, and zero_stage=0; the optimizer is taken to stay"
    elif places["offload_optimizer"] == "nvme":
        yield "offload_optimizer", "cpu", f"NVMe needs ZeRO stage 3, and zero_stage={stage}; host memory is taken"


def _odd_nodes(values: Values, device: Device | None) -> Iterator[tuple[str, None, str]]:
    """Fewer nodes than can hold the GPUs."""
    num_gpus, nodes = number_of(values, "num_gpus"), number_of(values, "nodes")
    most = _MOST_OF_RACK if device and device.family in _RACKS else MOST_GPUS_PER_NODE
    if num_gpus and nodes and num_gpus / nodes > most:
        rule = f"leaves {num_gpus / nodes:g} of num_gpus={num_gpus:g} to a node, and none has more than {most}"
        yield "nodes", None, f"{rule}; the usual ones are taken"


def _of_device(values: Values, device: Device | None) -> list[Problem]:
    problems = list[Problem]()
    gpu, memory_gb, precision = text_of(values, "gpu"), number_of(values, "gpu_mem_gb"), text_of(values, "precision")
    names = dict.fromkeys(re.findall(r"[A-Z0-9]+", re.sub(r"\(.*?\)", " ", gpu).upper()))
    families = [name for name in names if name in FAMILIES]
    if device and len(families) > 1 and _SEVERAL.search(gpu):
        rule = f"names {len(families)} GPUs, and {device.name} is taken"
        problems.append(Problem("gpu", gpu, rule, "a row for each"))
    if device and memory_gb and abs(memory_gb / device.memory_gb - 1) > _OTHER_MEMORY:
        rule = f"gpu={gpu} has {device.memory_gb:g} GB, and that is taken"
        problems.append(Problem("gpu_mem_gb", f"{memory_gb:g}", rule, "leave out the wrong one"))
    for data_type, taken in (("fp8", "16 bit"), ("bf16", "fp16"), ("tf32", "fp32")):
        if device and data_type in precision.lower() and data_type not in device.peak_tflops:
            problems.append(
                Problem("precision", precision, f"{device.name} has no {data_type}, and {taken} is taken", "")
            )
    num_gpus, nodes = number_of(values, "num_gpus"), number_of(values, "nodes")
    if num_gpus and nodes and num_gpus > nodes and num_gpus % nodes:
        rule = f"does not divide num_gpus={num_gpus:g}; all nodes are taken to be as full as the fullest"
        problems.append(Problem("nodes", f"{nodes:g}", rule, ""))
    return problems


def _batch(row: Values, run: StatedRun) -> Problem | None:
    """A global batch that its ranks do not share evenly, where it is known how many ranks there are."""
    total, micro, ranks = count_of(row, "global_batch"), count_of(row, "micro_batch_per_gpu"), run.setup.data_degree
    is_known = count_of(row, "dp") is not None or count_of(row, "zero_stage") == 3
    if total is None or total % ((micro or 1) * ranks) == 0 or (micro is None and not is_known):
        return None
    share = f"micro_batch_per_gpu x dp = {micro} x {ranks}" if micro else f"dp={ranks}"
    steps = run.setup.num_micro_steps
    taken = f"{counted(steps, 'micro step')} of {run.setup.micro_batch_size} x {ranks}"
    return Problem("global_batch", str(total), f"is no multiple of {share}; taken: {taken}", "")


def _positions(row: Values, run: StatedRun) -> Problem | None:
    """A sequence beyond a table of learned positions; rotary ones have no table."""
    seq_len, notes, model = count_of(row, "seq_len"), text_of(row, "notes"), text_of(row, "model")
    longest, whose = positions_stated(notes), "the notes"
    if run.setup.shape.architecture != "gpt" or longest is None:
        longest, whose = longest_sequence(model), f"model={model}"
    if seq_len is None or longest is None or seq_len <= longest:
        return None
    rule = f"is longer than the {longest:,} positions of {whose}; the plan is of a model with {seq_len:,}"
    return Problem("seq_len", str(seq_len), rule, "")


def _parameters(row: Values, run: StatedRun) -> Problem | None:
    """A stated shape of another model than the stated parameters, which the FLOP conventions with N take."""
    counted = run.setup.shape.num_parameters
    is_alike = 1 / _OTHER_MODEL <= run.num_parameters / counted <= _OTHER_MODEL
    layers, hidden = count_of(row, "layers"), count_of(row, "hidden")
    if is_alike or layers is None or hidden is None:
        return None
    rule = f"layers={layers} of hidden={hidden} have {counted / 1e9:.3g} billion parameters"
    return Problem("params_b", f"{run.num_parameters / 1e9:g}", rule, "one of them is wrong, or the model is sparse")


def _model(row: Values) -> Problem | None:
    """A public model's name over another one's sides. Its depth alone is often cut, and then the name mostly says so."""
    model = text_of(row, "model")
    shape = known_shape(model, number_of(row, "params_b"))
    if shape is None:
        return None
    names = _SIDES if _CUT.search(model) else ("layers", *_SIDES)
    other = [name for name in names if count_of(row, name) not in (None, getattr(shape, name))]
    if not other:
        return None
    own = ", ".join(f"{name}={_of_shape(shape, name)}" for name in other)
    stated = ", ".join(f"{name}={count_of(row, name)}" for name in other)
    return Problem("model", model, f"has {own}; {stated} of the row is taken", "")


def _of_shape(shape: KnownShape, name: str) -> int:
    value = getattr(shape, name)
    assert isinstance(value, int)
    return value


def _divisions(row: Values, run: StatedRun) -> Iterator[Problem]:
    """Degrees that do not divide what they split. Layers may be split unevenly: trainers count tables as layers, or pad."""
    setup = run.setup
    heads, tensor, sequence = count_of(row, "heads"), setup.tensor_degree, setup.sequence_degree
    if heads and heads % tensor:
        yield Problem(
            "tp", str(tensor), f"does not divide heads={heads}; shares of {heads / tensor:.3g} heads are taken", ""
        )
    if setup.seq_len % sequence:
        yield Problem("cp_sp", str(sequence), f"does not divide seq_len={setup.seq_len}; equal shares are taken", "")
    stage, is_deepspeed = count_of(row, "zero_stage"), "deepspeed" in run.trainer.habits.name
    if setup.pipeline_degree > 1 and stage in (2, 3) and is_deepspeed:
        # Source: DeepSpeed 0.19.8, runtime/pipe/engine.py asserts stages below 2.
        rule = f"DeepSpeed's pipeline takes ZeRO stages 0 and 1, and zero_stage={stage}; both are taken as stated"
        yield Problem("pp", str(setup.pipeline_degree), rule, "")


def _remarks(row: Values) -> Iterator[Problem]:
    """Remarks that the columns deny."""
    notes, stage, mode = text_of(row, "notes"), count_of(row, "zero_stage"), text_of(row, "activation_ckpt")
    if checkpoints_on_host(notes) and mode in ("none", "selective"):
        rule = "the notes have block inputs of recomputation in host memory; the column is taken"
        yield Problem("activation_ckpt", mode, rule, "")
    if stage in (0, 1, 2) and (match := _ZERO_PLUS.search(notes)):
        rule = f"the notes name {match[0]}, which works in stage 3; the column is taken"
        yield Problem("zero_stage", str(stage), rule, "")


def _measured(row: Values, run: StatedRun) -> Iterator[Problem]:
    """Measured figures that nothing reaches; they decide nothing in the plan."""
    for name in ("mfu", "hfu"):
        share = number_of(row, name)
        if share is not None and share > 1:
            yield Problem(
                name, f"{share:g}", "is a share of the peak, at most 1", f"if it is in per cent: {share / 100:g}"
            )
    device = run.device
    if device is None:
        return
    rate, peak_gb = number_of(row, "tflops_per_gpu"), number_of(row, "peak_mem_gb")
    is_fp8 = "fp8" in text_of(row, "precision").lower()
    peak = max(value for name, value in device.peak_tflops.items() if is_fp8 or name != "fp8")
    if rate is not None and rate > peak:
        yield Problem("tflops_per_gpu", f"{rate:g}", f"is above the peak of {device.name}, {peak:g}", "")
    if peak_gb is not None and peak_gb > (1 + _OTHER_MEMORY) * device.memory_gb:
        yield Problem("peak_mem_gb", f"{peak_gb:g}", f"is more than {device.name} has, {device.memory_gb:g} GB", "")


def _shown(value: str | float | None) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
