"""What a chosen form of parallelism is called: the shipped group that it equals, else its parts; and the words that state it."""

from __future__ import annotations

from hpctrain.config.schema import ParallelismConfig

_MEGATRON_3D_STAGES = 35
_STAGES = ("ddp", "zero1", "zero2", "zero3")
_DEFAULTS = ParallelismConfig("", 0)
_FORM_KEYS = (
    *("tensor_parallel_size", "sequence_parallel_size", "pipeline_parallel_size", "hpz_partition_size"),
    *("offload_optimizer", "offload_param", "offload_ratio", "fit_offload_ratio"),
)


def form_name(parallelism: ParallelismConfig, gpus_per_node: int) -> str:
    """The file of ``conf/parallelism`` with these values, else a name made of the degrees, the stage and what is offloaded.

    Args:
        parallelism: with nothing open; its own ``name`` is not looked at.
        gpus_per_node: of the hardware, whose number the shipped groups with degrees take.

    >>> form_name(ParallelismConfig("auto", 3), 8), form_name(ParallelismConfig("auto", 1, tensor_parallel_size=8), 8)
    ('zero3', 'tensor')
    >>> form_name(ParallelismConfig("auto", 1, tensor_parallel_size=4, pipeline_parallel_size=5), 8)
    'tp4-pp5-zero1'
    >>> form_name(ParallelismConfig("auto", 3, offload_optimizer="cpu", offload_ratio=0.4), 8)
    'zero3-cpu_optimizer_40'
    """
    split, moved = _split(parallelism), _moved(parallelism)
    known = _shipped_group(parallelism, gpus_per_node)
    if known is not None:
        return known
    before = [f"{name}{size}" for name, size in split.items() if name != "hpz"]
    after = [f"hpz{split['hpz']}"] if "hpz" in split else []
    return "-".join([*before, _STAGES[parallelism.zero_stage], *after, *([moved] if moved else [])])


def form_words(parallelism: ParallelismConfig, gpus_per_node: int) -> tuple[str, ...]:
    """Overrides that state the form: the group it equals, else the group of its stage and every value beside it.

    >>> form_words(ParallelismConfig("auto", 1, tensor_parallel_size=4), 8)
    ('parallelism=zero1', 'parallelism.tensor_parallel_size=4')
    """
    known = _shipped_group(parallelism, gpus_per_node)
    if known is not None:
        return (f"parallelism={known}",)
    values = {name: getattr(parallelism, name) for name in _FORM_KEYS}
    beside = [
        f"parallelism.{name}={str(value).lower()}"
        for name, value in values.items()
        if value != getattr(_DEFAULTS, name)
    ]
    return (f"parallelism={_STAGES[parallelism.zero_stage]}", *beside)


def _shipped_group(parallelism: ParallelismConfig, gpus_per_node: int) -> str | None:
    """A test holds that these are the files of ``conf/parallelism``."""
    tensor, stages = ("tp", gpus_per_node), ("pp", _MEGATRON_3D_STAGES)
    shipped: dict[tuple[int, str, tuple[tuple[str, int], ...]], str] = {
        **{(stage, "", ()): name for stage, name in enumerate(_STAGES)},
        (1, "", (tensor,)): "tensor",
        (1, "", (tensor, stages)): "megatron_3d",
        (3, "", (("sp", gpus_per_node),)): "ulysses",
        (3, "", (("hpz", gpus_per_node),)): "zeropp",
        (3, "cpu_optimizer_fitted", ()): "zero_cache",
        (3, "cpu_optimizer-cpu_param", ()): "zero3_offload",
        (3, "nvme_optimizer-nvme_param", ()): "zero3_nvme",
    }
    return shipped.get((parallelism.zero_stage, _moved(parallelism), tuple(_split(parallelism).items())))


def _split(parallelism: ParallelismConfig) -> dict[str, int]:
    """The degrees above 1, in the order of the shipped groups."""
    degrees = {
        "tp": parallelism.tensor_parallel_size,
        "sp": parallelism.sequence_parallel_size,
        "pp": parallelism.pipeline_parallel_size,
        "hpz": parallelism.hpz_partition_size,
    }
    return {name: size for name, size in degrees.items() if size > 1}


def _moved(parallelism: ParallelismConfig) -> str:
    """What leaves the GPU, and of the optimizer the percentage where it is not all."""
    share = "" if parallelism.offload_ratio == 1 else f"_{parallelism.offload_ratio * 100:.3g}"
    share = "_fitted" if parallelism.fit_offload_ratio else share
    parts = []
    if parallelism.offload_optimizer != "none":
        parts.append(f"{parallelism.offload_optimizer}_optimizer{share}")
    if parallelism.offload_param != "none":
        parts.append(f"{parallelism.offload_param}_param")
    return "-".join(parts)
