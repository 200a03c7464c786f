"""The counter of real ranks against torch's own allocator, as its profiler tells each allocation and each free."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.train


def test_the_counter_sees_what_the_allocator_gives_out() -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    from hpctrain.plan.run_plan import build_run_plan
    from hpctrain.worker.model.decoder import Decoder
    from tests.rehearse.storage_counter import StorageCounter
    from tests.rehearse.truth_cases import CASES

    plan = build_run_plan(CASES["zero1"].config())
    counter = StorageCounter()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled, counter:
        counter.begin("step")
        model = Decoder(plan.model, "none", 1)
        optimizer = torch.optim.AdamW(model.parameters())
        ids = torch.zeros(2, plan.batch.seq_len, dtype=torch.int64)
        for _ in range(2):
            model(ids, ids).backward()
            optimizer.step()
            optimizer.zero_grad()
        counter.end()
    live, peak = 0, 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    counted_peak, counted_rest = counter.rows["step"]
    assert counted_rest > 12 * plan.num_parameters, "fp32 weights and two moments"
    # Scalars inside an operator, a few bytes each, are never seen outside of it.
    assert 0 <= peak - counted_peak < 1000
    assert abs(live - counted_rest) < 100
