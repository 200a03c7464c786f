"""Every private name of torch and DeepSpeed that the rehearsal uses, in one table.

A new version may rename or drop any of them: then the error says which one, what is installed, and what still works without it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass
from typing import Any

from hpctrain.errors import HpctrainError

TORCH_SEEN, DEEPSPEED_SEEN = "2.13.0", "0.19.8"

_CPU_WAY = "rehearsing plans of hardware=cpu"
_NOTHING = "plan, which estimates by closed rules"


@dataclass(frozen=True)
class PrivateName:
    """One name, what it is for, and what can be done without it."""

    purpose: str
    still_works: str

    @staticmethod
    def package(name: str) -> str:
        """``torch`` or ``deepspeed``."""
        return name.partition(".")[0]


_SAME_ON_ALL_RANKS = PrivateName("ranks compare lists; of other ranks there is nothing to compare", _NOTHING)

_NVME = PrivateName("reads and writes of NVMe without files", "rehearsing plans that move nothing to NVMe")

NAMES: dict[str, PrivateName] = {
    "torch._subclasses.fake_tensor.FakeTensorMode": PrivateName("tensors without contents", "rehearse --device cuda"),
    "torch.utils._python_dispatch.TorchDispatchMode": PrivateName("sees every operator and its storages", _NOTHING),
    "torch.testing._internal.distributed.fake_pg.FakeStore": PrivateName("a process group of one process", _NOTHING),
    "torch.testing._internal.distributed.fake_pg._create_fake_pg": PrivateName(
        "the same for the simulated GPU", _CPU_WAY
    ),
    "torch.utils.backend_registration._setup_privateuseone_for_python_backend": PrivateName(
        "the simulated GPU", _CPU_WAY
    ),
    "torch.utils.backend_registration._DummyBackendModule": PrivateName("the simulated GPU's module", _CPU_WAY),
    "torch._C._acc.DeviceGuard": PrivateName("lets autograd run on the simulated GPU", _CPU_WAY),
    "torch._C._autograd.DeviceType": PrivateName("names the simulated GPU's kind of device", _CPU_WAY),
    "torch._dynamo": PrivateName("imported before zero.Init, which trips over its lazy import", _NOTHING),
    "torch.ops.aten._local_scalar_dense": PrivateName("values that the engine branches on", "rehearse --device cuda"),
    "torch.ops.aten._fused_rms_norm": PrivateName("a Llama's norms as a GPU does them", _CPU_WAY),
    "torch.ops.aten._scaled_dot_product_flash_attention": PrivateName("attention as a GPU does it", _CPU_WAY),
    "torch.ops.aten._scaled_dot_product_efficient_attention": PrivateName("the same in fp32", _CPU_WAY),
    "deepspeed.accelerator.cuda_accelerator.CUDA_Accelerator": PrivateName("DeepSpeed's view of a GPU", _CPU_WAY),
    "deepspeed.accelerator.real_accelerator.set_accelerator": PrivateName(
        "puts the simulated GPU in its place", _CPU_WAY
    ),
    "deepspeed.ops.op_builder.builder.OpBuilder.load": PrivateName("native optimizers without their kernels", _NOTHING),
    "deepspeed.ops.op_builder.async_io.AsyncIOBuilder.load": _NVME,
    "deepspeed.ops.op_builder.cpu.async_io.AsyncIOBuilder.load": _NVME,
    "deepspeed.runtime.pipe.engine.PipelineEngine._INSTRUCTION_MAP": PrivateName(
        "tells the phases of a pipeline's step apart", "rehearsing plans without pipeline parallelism"
    ),
    "deepspeed.runtime.utils.PartitionedTensor.from_meta": PrivateName(
        "activations that stages hand on in parts are put together on the simulated GPU",
        "rehearsing plans without tensor parallelism in a pipeline",
    ),
    "deepspeed.runtime.zero.utils.assert_ints_same_as_other_ranks": _SAME_ON_ALL_RANKS,
    "deepspeed.runtime.zero.partition_parameters.assert_ints_same_as_other_ranks": _SAME_ON_ALL_RANKS,
    "deepspeed.runtime.zero.partitioned_param_coordinator.assert_ints_same_as_other_ranks": _SAME_ON_ALL_RANKS,
    "deepspeed.runtime.zero.stage3.assert_ints_same_as_other_ranks": _SAME_ON_ALL_RANKS,
}


ATTRIBUTES: dict[str, PrivateName] = {
    "ds_tensor": PrivateName("a ZeRO-3 parameter's partition", "owners told by the place that made a storage"),
    "ds_secondary_tensor": PrivateName("its second partition (hpZ)", "owners told by the place that made a storage"),
    "ds_persist": PrivateName("whether it stays whole", "owners told by the place that made a storage"),
    "ds_shape": PrivateName("its whole shape", "owners told by the place that made a storage"),
    "basic_optimizer": PrivateName(
        "the optimizer that holds the states", "owners told by the place that made a storage"
    ),
}
"""Attributes of DeepSpeed's parameters and engine; without them a storage's owner is told from the place that made it."""


class MissingNameError(HpctrainError):
    """The installed version has not what the rehearsal was built upon."""


def private(name: str) -> Any:
    """What a name of the table stands for in the installed version.

    Raises:
        MissingNameError: it is gone; the text says which version was seen to have it and what still works.
    """
    entry = NAMES[name]
    try:
        return _resolved(name)
    except (ImportError, AttributeError):
        pass
    package = entry.package(name)
    seen = TORCH_SEEN if package == "torch" else DEEPSPEED_SEEN
    raise MissingNameError(
        f"{name}: {package} {_installed(package)} has no such name; it was there in {package} {seen}, and the rehearsal needs it"
        f" for this: {entry.purpose}; without it this still works: {entry.still_works}; nearest: pip install {package}=={seen}"
    )


def replace_private(name: str, stand_in: Any) -> None:
    """Puts a stand-in in the place of a name of the table.

    Raises:
        MissingNameError: there is no such place.
    """
    private(name)
    owner, _, attribute = name.rpartition(".")
    setattr(_resolved(owner), attribute, stand_in)


def _resolved(name: str) -> Any:
    parts = name.split(".")
    found: Any = importlib.import_module(parts[0])
    for number, part in enumerate(parts[1:], start=2):
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(".".join(parts[:number]))
    return found


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
