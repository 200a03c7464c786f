"""A plan with states on NVMe, rehearsed on the simulated GPU: what each tier holds is what the closed rules say."""

from __future__ import annotations

from typing import Any

import pytest

from hpctrain.rehearse.compare import compare
from tests.rehearse.rehearsals import GPT, NO_WINDOWS, make_plan, rehearse

pytestmark = pytest.mark.train

WIDE = GPT | {"hidden_size": 1024, "num_layers": 4}
FORMS: dict[str, dict[str, Any]] = {
    "optimizer and parameters": {"offload_optimizer": "nvme", "offload_param": "nvme"},
    "GPU, host and NVMe": {"offload_optimizer": "nvme", "offload_ratio": 0.7, "nvme_ratio": 0.5},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_tier_is_within_five_percent(form: str) -> None:
    sizes = {"sub_group_size": 2_000_000, "reduce_bucket_size": 30_000_000, "nvme_path": "/on-each-node"}
    plan = make_plan(
        nodes=1,
        gpus_per_node=2,
        model=WIDE,
        parallelism={**NO_WINDOWS, **sizes, **FORMS[form]},
        activation_checkpointing="full",
    )
    gpu, host = compare(rehearse(plan))
    assert abs(gpu.error) < 0.05, gpu
    assert abs(host.error) < 0.005, host
    assert plan.nvme is not None
    swapping = next(term.num_bytes for term in plan.memory.terms if term.name == "swap buffers")
    assert swapping == plan.nvme.locked_bytes
    assert swapping > 0.3 * host.planned_bytes
