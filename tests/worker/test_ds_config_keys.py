"""Every key that a plan writes for DeepSpeed is one that DeepSpeed reads: it ignores unknown ones at the top without a word."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from deepspeed.runtime.config import DeepSpeedConfig

from tests.plan.test_run_plan import plan_of

GPUS = "hardware=ndm_a100_v4"
FORMS: dict[str, tuple[str, ...]] = {
    "ddp, fp32": (GPUS, "parallelism=ddp", "training.precision=fp32"),
    "zero1, bf16": (GPUS, "parallelism=zero1"),
    "zero2, fp16": (GPUS, "parallelism=zero2", "training.precision=fp16"),
    "zero2, fp16, fixed scale": (GPUS, "parallelism=zero2", "training.precision=fp16", "training.loss_scale=8"),
    "zero3": (GPUS, "parallelism=zero3"),
    "zero3, offloaded": (GPUS, "parallelism=zero3_offload"),
    "zero3, partly offloaded": (
        *(GPUS, "parallelism=zero3_offload"),
        *("parallelism.offload_param=none", "parallelism.offload_ratio=0.5"),
    ),
    "zero3, on NVMe": (
        *(GPUS, "parallelism=zero3", "parallelism.nvme_path=/scratch"),
        *("parallelism.offload_optimizer=nvme", "parallelism.offload_param=nvme"),
    ),
    "zero++": (GPUS, "parallelism=zeropp", "training.precision=fp16", "parallelism.quantized_gradients=true"),
    "tensor": (GPUS, "parallelism=tensor"),
    "ulysses": (GPUS, "parallelism=ulysses"),
    "3d": (GPUS, "parallelism=zero1", "parallelism.pipeline_parallel_size=4", "parallelism.tensor_parallel_size=2"),
    "cpu": ("cluster=local", "parallelism=zero3"),
}
CHECKED_BY_MODELS = {"zero_optimization", "fp16", "bf16"}
"""Sections that DeepSpeed reads into classes which refuse keys that they do not have."""


class SeenKeys(dict[str, Any]):
    """A configuration that notes which of its keys are looked up, in itself and in the sections of it."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__({key: SeenKeys(value) if isinstance(value, dict) else value for key, value in values.items()})
        self.seen: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.seen.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        return super().get(key, default)

    def __copy__(self) -> SeenKeys:
        return self

    def never_seen(self) -> set[str]:
        return set(self) - self.seen


def config_of(form: str) -> dict[str, Any]:
    (words, model) = (FORMS[form], "model=tiny" if form == "cpu" else "model=1.3b")
    config = copy.deepcopy(plan_of(model, *words).ds_config)
    # DeepSpeed counts the ranks of its own process, here one.
    config["train_batch_size"] = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
    return config


@pytest.mark.parametrize("form", FORMS)
def test_deepspeed_looks_every_key_up(form: str) -> None:
    config = SeenKeys(config_of(form))
    DeepSpeedConfig(config)
    assert config.never_seen() == set()
    for name, section in config.items():
        # The optimizer's parameters are those of its constructor, which refuses others.
        if isinstance(section, SeenKeys) and name not in CHECKED_BY_MODELS:
            assert section.never_seen() == set(), name


def sections() -> Iterator[tuple[str, str]]:
    for form in FORMS:
        for name, section in config_of(form).items():
            if isinstance(section, dict) and name in CHECKED_BY_MODELS:
                yield form, name


@pytest.mark.parametrize("name", sorted(CHECKED_BY_MODELS))
def test_these_sections_refuse_keys_that_they_do_not_have(name: str) -> None:
    forms = [form for form, section in sections() if section == name]
    assert forms
    config = config_of(forms[0])
    DeepSpeedConfig(config)
    config[name]["no_such_key"] = 1
    with pytest.raises(Exception, match="no_such_key"):
        DeepSpeedConfig(config)


def test_an_unknown_key_would_be_found() -> None:
    config = SeenKeys(config_of("zero3") | {"no_such_key": 1})
    DeepSpeedConfig(config)
    assert config.never_seen() == {"no_such_key"}


@pytest.mark.parametrize("form", ["zero3", "cpu"])
def test_the_optimizer_takes_its_parameters(form: str) -> None:
    given = config_of(form)["optimizer"]["params"]
    # DeepSpeed takes this one for itself: runtime/engine.py get_optimizer_configuration.
    parameters = {name: value for name, value in given.items() if name != "torch_adam"}
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.AdamW([weight], **parameters)
    assert {name: optimizer.defaults[name] for name in ("lr", "eps", "weight_decay")} == {
        name: given[name] for name in ("lr", "eps", "weight_decay")
    }
