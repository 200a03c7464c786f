"""The rehearsal's owners and the planner's terms, joined."""

from __future__ import annotations

from hpctrain.plan.memory.terms import OUTSIDE_OF_TORCH, SOURCES
from hpctrain.rehearse.compare import OWNER_OF_TERM, compare, render_comparison
from hpctrain.rehearse.result import OWNERS, CountedFlops, Phase, Rehearsal, Tier, TierPhase, Timeline
from hpctrain.units import GIB


def row(step: int, phase: Phase, tier: Tier, **owners: int) -> TierPhase:
    return TierPhase(step, phase, tier, sum(owners.values()), owners, 0, {})


def rehearsal(*memory: TierPhase, planned: tuple[tuple[str, str, int], ...]) -> Rehearsal:
    return Rehearsal(
        schema_version=1,
        plan_name="x",
        model_name="x",
        num_layers=1,
        num_parameters=1,
        world_size=8,
        rank=0,
        zero_stage=3,
        device_way="simulated_gpu",
        way="whole",
        steps=2,
        reported_step=2,
        simulated=(),
        versions={},
        memory=memory,
        collectives=(),
        flops=CountedFlops(counted=0, by_operator={}, planned=0.0),
        largest=(),
        timeline=Timeline(),
        late_free_margin_bytes=0,
        wall_s=0.0,
        process_peak_bytes=0,
        planned_memory=planned,
    )


PLANNED = (
    ("parameters", "gpu", 2 * GIB),
    ("fp32 master", "gpu", 3 * GIB),
    ("Adam moments", "gpu", 6 * GIB),
    ("activations", "gpu", 4 * GIB),
    ("context and NCCL", "gpu", GIB),
    ("fp32 gradients", "host", 5 * GIB),
    ("rounding of pinned memory", "host", 3 * GIB),
    ("Python and torch", "host", GIB),
)
FOUND = rehearsal(
    row(0, "engine", "gpu", parameters=2 * GIB, optimizer=3 * GIB),
    row(2, "forward", "gpu", parameters=2 * GIB, optimizer=9 * GIB, activations=3 * GIB),
    row(2, "backward", "gpu", parameters=2 * GIB, optimizer=9 * GIB, activations=3 * GIB, other=2 * GIB),
    row(2, "optimizer", "host", gradients=4 * GIB),
    planned=PLANNED,
)


def test_every_term_of_the_planner_has_one_owner() -> None:
    assert OWNER_OF_TERM.keys() == SOURCES.keys() - set(OUTSIDE_OF_TORCH)
    assert set(OWNER_OF_TERM.values()) <= set(OWNERS)


def test_owners_stand_beside_their_terms_at_the_height_of_each_tier() -> None:
    gpu, host = compare(FOUND)
    assert (gpu.tier, gpu.phase, gpu.rehearsed_bytes, gpu.planned_bytes) == ("gpu", "backward", 16 * GIB, 15 * GIB)
    by_owner = {owner.owner: owner for owner in gpu.owners}
    assert by_owner["optimizer"].terms == ("fp32 master", "Adam moments")
    assert by_owner["optimizer"].difference_bytes == 0
    assert by_owner["activations"].difference_bytes == GIB
    # What nobody planned is shown, and lacks a term.
    assert by_owner["other"].difference_bytes == -2 * GIB
    assert by_owner["other"].terms == ()
    # What no storage of torch holds is left out.
    assert (host.rehearsed_bytes, host.planned_bytes) == (4 * GIB, 5 * GIB)
    assert host.error == 0.25


def test_a_term_of_an_older_plan_is_shown_as_other() -> None:
    (gpu,) = compare(rehearsal(row(2, "forward", "gpu", other=GIB), planned=(("reduce bucket", "gpu", 3 * GIB),)))
    assert [(owner.owner, owner.planned_bytes, owner.terms) for owner in gpu.owners] == [
        ("other", 3 * GIB, ("reduce bucket",))
    ]


def test_text() -> None:
    lines = render_comparison(FOUND).splitlines()
    assert lines[0].startswith("AGAINST THE PLAN")
    assert any(line.startswith("gpu other") and "-2.00 GiB" in line for line in lines)
    (in_all,) = (line for line in lines if line.startswith("gpu in all"))
    assert "-6.2%, fullest in backward" in in_all
    assert render_comparison(rehearsal(planned=())) == ""
