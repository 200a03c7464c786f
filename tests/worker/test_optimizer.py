"""The optimizer that the engine is given: AdamW as published, with decay on matrices alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from hpctrain.plan.run_plan import build_run_plan
from hpctrain.worker.engine import parameter_groups
from hpctrain.worker.model.decoder import Decoder
from tests.worker.run_folder import GPT, LLAMA, make_config


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
def test_matrices_decay_and_norms_and_biases_do_not(model: Mapping[str, Any]) -> None:
    decoder = Decoder(build_run_plan(make_config(model=model)).model, "none", 1)
    decaying, others = parameter_groups(decoder, 0.1)
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    names = {id(parameter): name for name, parameter in decoder.named_parameters()}
    in_groups = [id(parameter) for group in (decaying, others) for parameter in group["params"]]
    assert sorted(in_groups) == sorted(names)  # each once
    assert all("norm" in names[id(p)] or names[id(p)].endswith("bias") for p in others["params"])
    assert not any("norm" in names[id(p)] or names[id(p)].endswith("bias") for p in decaying["params"])


def test_the_engine_is_told_the_published_constants() -> None:
    """Brown et al. 2020 (arXiv 2005.14165), appendix B: betas 0.9 and 0.95, epsilon 1e-8, clipping at 1, decay 0.1."""
    ds_config = build_run_plan(make_config()).ds_config
    params = ds_config["optimizer"]["params"]
    assert ds_config["optimizer"]["type"] == "AdamW"
    assert (params["betas"], params["eps"], params["weight_decay"]) == ([0.9, 0.95], 1e-8, 0.1)
    assert ds_config["gradient_clipping"] == 1.0


def test_torch_s_adamw_is_the_paper_s() -> None:
    """Three steps by hand, algorithm 2 of Loshchilov and Hutter 2019 (arXiv 1711.05101): decay beside the update, not in it."""
    rate, beta1, beta2, eps, decay = 0.01, 0.9, 0.95, 1e-8, 0.1
    parameter = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([parameter], lr=rate, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    weight, first, second = 2.0, 0.0, 0.0
    for step, gradient in enumerate((0.5, -3.0, 0.125), start=1):
        first, second = beta1 * first + (1 - beta1) * gradient, beta2 * second + (1 - beta2) * gradient**2
        update = (first / (1 - beta1**step)) / (math.sqrt(second / (1 - beta2**step)) + eps)
        weight -= rate * (update + decay * weight)
        parameter.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        assert parameter.item() == pytest.approx(weight, rel=1e-12)
