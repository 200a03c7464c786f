"""The shuffle is a bijection of any size, and blends keep to their weights at every sample."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from hpctrain.worker.data.blend import Blend
from hpctrain.worker.data.permutation import permuted

SIZES = [*range(1, 300), 1000, 1023, 1024, 1025, 9999, 10_000, 10_001, 65_537, 300_007]


def test_the_shuffle_of_any_size_is_a_bijection() -> None:
    for size in SIZES:
        found = permuted(np.arange(size), size, (7, size))
        assert (np.sort(found) == np.arange(size)).all(), size


@pytest.mark.parametrize("size", [2**31 + 11, 10**12 + 39], ids=["2e9", "1e12"])
def test_of_a_huge_corpus_a_few_places_are_asked_for(size: int) -> None:
    places = np.concatenate([np.arange(50_000), np.arange(size - 50_000, size)])
    found = permuted(places, size, (1,))
    assert found.min() >= 0
    assert found.max() < size
    assert len(np.unique(found)) == len(places)
    # One at a time gives the same as many at once.
    assert [int(permuted(places[[place]], size, (1,))[0]) for place in (0, 99_999)] == found[[0, -1]].tolist()
    # Neighbours are spread evenly over 20 equal parts: 19 degrees of freedom, beyond 54.6 once in 30,000 keys.
    counts = np.histogram(found, bins=20, range=(0, size))[0]
    assert ((counts - 5000) ** 2 / 5000).sum() < 54.6


def test_small_shuffles_are_as_even_as_chance() -> None:
    """Each of the 24 orders of four, over 24,000 keys; 23 degrees of freedom, beyond 60.1 once in 30,000 such tests."""
    counts = Counter(tuple(permuted(np.arange(4), 4, (key,)).tolist()) for key in range(24_000))
    assert set(counts) == set(itertools.permutations(range(4)))
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 60.1


def test_where_a_sequence_goes_is_no_matter_of_where_its_neighbour_went() -> None:
    """Steps from one place to the next would show a pattern: of 10,000 sequences each distance is about as frequent."""
    size = 10_007
    found = permuted(np.arange(size), size, (3, 0))
    distances = np.mod(np.diff(found), size)
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.04  # four standard deviations of chance
    assert Counter(distances.tolist()).most_common(1)[0][1] < 9  # Poisson of mean 1


def test_keys_give_other_orders() -> None:
    orders = {tuple(permuted(np.arange(50), 50, key).tolist()) for key in [(1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0)]}
    assert len(orders) == 4


WEIGHTS = {
    "two": [0.7, 0.3],
    "one": [5.0],
    "three equal": [1.0, 1.0, 1.0],
    "far apart": [1.0, 1e-3, 1e-6, 10.0],
    "a chain": [2.0**-number for number in range(12)],
    "many equal": [1.0] * 37,
    "chance": np.random.default_rng(1).exponential(size=23).tolist(),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_every_prefix_of_a_blend_is_within_two_samples_of_the_weights(name: str) -> None:
    weights = WEIGHTS[name]
    count = 20_000
    corpora, places = Blend(weights).split(np.arange(count))
    for corpus, weight in enumerate(weights):
        chosen = corpora == corpus
        assert (places[chosen] == np.arange(chosen.sum())).all()  # each sample of a corpus once, in its order
        share = weight / sum(weights) * np.arange(1, count + 1)
        assert np.abs(np.cumsum(chosen) - share).max() < 2, (corpus, weight)


@pytest.mark.parametrize("scale", [1e308, 1e-308])
def test_the_size_of_weights_does_not_matter(scale: float) -> None:
    samples = np.arange(1000)
    found, expected = Blend([scale, scale, 0.5 * scale]).split(samples), Blend([1.0, 1.0, 0.5]).split(samples)
    assert [part.tolist() for part in found] == [part.tolist() for part in expected]
    # So light that it is nothing beside the others: as little as there is, which is one of 2**30.
    assert Blend([1e308, 5e-324, 5e-324]).split(samples)[0].max() == 0


def test_a_blend_is_known_by_the_sample_alone() -> None:
    blend = Blend([0.5, 0.3, 0.2])
    corpora, places = blend.split(np.arange(1000))
    for sample in (0, 1, 500, 999):
        assert [part[0] for part in blend.split(np.array([sample]))] == [corpora[sample], places[sample]]
    far = 10**15
    _, places = blend.split(np.arange(far, far + 10))
    assert places.max() / far == pytest.approx(0.5, rel=1e-6)
    assert Blend([5.0, 3.0, 2.0]).split(np.arange(1000))[0].tolist() == corpora.tolist()
