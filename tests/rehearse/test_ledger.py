"""The book of storages, entry by entry, by hand."""

from __future__ import annotations

from hpctrain.rehearse.ledger import Ledger, entry_for
from hpctrain.rehearse.result import Owner, Phase, Tier, TierPhase

KIB = 1024


def add(
    ledger: Ledger, key: str, kib: int, owner: Owner = "activations", on_gpu: bool = True, place: str = "x.y"
) -> None:
    ledger.operators += 1
    ledger.add(key, entry_for(kib * KIB, on_gpu, owner, place, "bfloat16", (kib,)))


def row(ledger: Ledger, step: int, phase: Phase, tier: Tier = "gpu") -> TierPhase:
    (found,) = (row for row in ledger.memory() if (row.step, row.phase, row.tier) == (step, phase, tier))
    return found


def test_peak_with_its_owners_and_what_rests() -> None:
    ledger = Ledger("gpu", reported_step=1)
    add(ledger, "weights", 10, "parameters")
    ledger.begin(1, "forward")
    add(ledger, "a", 5)
    add(ledger, "b", 7, "buffers")
    ledger.remove("a")
    add(ledger, "c", 2)
    ledger.begin(1, "backward")
    ledger.remove("b")
    ledger.end_phase()
    forward, backward = row(ledger, 1, "forward"), row(ledger, 1, "backward")
    assert forward.peak_by_owner == {"parameters": 10 * KIB, "activations": 5 * KIB, "buffers": 7 * KIB}
    assert forward.resting_by_owner == {"parameters": 10 * KIB, "activations": 2 * KIB, "buffers": 7 * KIB}
    # What is there when a phase begins is its first peak.
    assert (backward.peak_bytes, backward.resting_bytes) == (19 * KIB, 12 * KIB)


def test_a_gpu_gives_out_multiples_of_512_bytes_and_the_host_does_not() -> None:
    ledger = Ledger("gpu", reported_step=1)
    ledger.add("gpu", entry_for(513, True, "other", "", "uint8", (513,)))
    ledger.add("host", entry_for(513, False, "other", "", "uint8", (513,)))
    assert (ledger.live_bytes("gpu"), ledger.live_bytes("host")) == (1024, 513)


def test_pinned_memory_is_host_memory_and_is_rounded_for_the_cache() -> None:
    ledger = Ledger("gpu", reported_step=1)
    add(ledger, "buffer", 3, "optimizer", on_gpu=False)
    entry = ledger.get("buffer")
    assert entry is not None
    ledger.pin(entry)
    ledger.pin(entry)
    assert [ledger.live_bytes(tier) // KIB for tier in ("host", "pinned", "pinned_rounded")] == [3, 3, 4]
    ledger.remove("buffer")
    assert ledger.live_bytes("host") == ledger.live_bytes("pinned") == ledger.live_bytes("pinned_rounded") == 0


def test_an_owner_that_turns_out_later() -> None:
    ledger = Ledger("gpu", reported_step=1)
    ledger.begin(1, "backward")
    add(ledger, "gradient", 4)
    ledger.assign("gradient", "gradients")
    ledger.assign("unknown", "gradients")
    ledger.end_phase()
    assert row(ledger, 1, "backward").resting_by_owner == {"gradients": 4 * KIB}


def test_a_storage_that_the_engine_resizes() -> None:
    ledger = Ledger("gpu", reported_step=1)
    add(ledger, "a", 4)
    entry = ledger.get("a")
    assert entry is not None
    ledger.resize(entry, 0)
    assert ledger.live_bytes("gpu") == 0
    ledger.resize(entry, 8 * KIB)
    ledger.end_phase()
    assert row(ledger, 0, "model").peak_bytes == 8 * KIB


def test_accumulation_visits_a_phase_again() -> None:
    ledger = Ledger("gpu", reported_step=1)
    for kib in (6, 3):
        ledger.begin(1, "forward")
        add(ledger, f"a{kib}", kib)
        ledger.begin(1, "backward")
        ledger.remove(f"a{kib}")
    ledger.end_phase()
    forward = row(ledger, 1, "forward")
    assert (forward.peak_bytes, forward.resting_bytes) == (6 * KIB, 3 * KIB)


def test_the_largest_are_those_of_the_reported_steps_peak() -> None:
    ledger = Ledger("gpu", reported_step=2)
    ledger.begin(1, "forward")
    add(ledger, "first step", 100)
    ledger.remove("first step")
    ledger.begin(2, "forward")
    for key in "abc":
        add(ledger, key, 5, place="decoder.forward")
    add(ledger, "d", 9, "buffers", place="stage3.f")
    add(ledger, "host", 50, on_gpu=False)
    ledger.remove("a")
    ledger.end_phase()
    found = ledger.largest(10)
    assert [(group.place, group.count, group.num_bytes // KIB) for group in found] == [
        ("decoder.forward", 3, 15),
        ("stage3.f", 1, 9),
    ]
    assert len(ledger.largest(1)) == 1


def test_the_time_line_is_thinned_and_keeps_the_peaks() -> None:
    ledger = Ledger("gpu", reported_step=1)
    ledger.begin(1, "forward")
    for number in range(20_000):
        add(ledger, "steady", 10 + number % 7)
        if number == 12_345:
            add(ledger, "spike", 1000)
            ledger.remove("spike")
        ledger.remove("steady")
    ledger.end_phase()
    line = ledger.track.timeline(ledger.marked_peaks(), num_layers=3)
    assert 100 < len(line.operator) <= 2_100
    assert max(line.gpu_bytes) == row(ledger, 1, "forward").peak_bytes == (1000 + 10 + 12_345 % 7) * KIB
    assert line.num_layers == 3
