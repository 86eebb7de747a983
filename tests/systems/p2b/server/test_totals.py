"""Totals are whole numbers: any order and grouping gives the same bytes, and nothing overflows silently."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.systems.p2b.machines.aggregator import CrowdTotals
from hushstream.systems.p2b.server.errors import AggregationError
from hushstream.systems.p2b.server.exact import LARGEST_ENTRY, STEPS, ExactSums


def interactions(n, arms=3, dimension=4, seed=1):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(dimension), n).astype(np.float32), rng.integers(0, arms, n), rng.random(n)


def test_raw_sums_are_the_same_in_any_order_and_any_partition():
    contexts, arms, rewards = interactions(9000)
    whole = ExactSums(3, 4)
    whole.add(contexts, arms, rewards)
    order = np.random.default_rng(2).permutation(9000)
    parts = [ExactSums(3, 4) for _ in range(3)]
    for number, rows in enumerate(np.array_split(order, 40)):
        parts[number % 3].add(contexts[rows], arms[rows], rewards[rows])
    merged = ExactSums(3, 4)
    for part in reversed(parts):
        merged.merge(part)
    assert merged.dump() == whole.dump()
    assert ExactSums.load(whole.dump()).dump() == whole.dump()


def test_raw_sums_are_those_of_unlimited_integers():
    contexts, arms, rewards = interactions(200)
    contexts[:50] *= np.float32(-LARGEST_ENTRY)
    sums = ExactSums(3, 4)
    sums.add(contexts, arms, rewards)
    gram, moment = np.zeros((3, 4, 4), object), np.zeros((3, 4), object)
    for x, arm, reward in zip(contexts, arms, rewards, strict=True):
        point = np.array([round(float(entry) * STEPS) for entry in x], dtype=object)
        gram[arm] += np.outer(point, point)
        moment[arm] += int(reward * STEPS) * point
    assert sums.gram.tolist() == gram.tolist()
    assert sums.moment.tolist() == moment.tolist()


def test_sums_at_the_largest_entries_stay_exact():
    rows = 10_000
    sums = ExactSums(1, 2)
    contexts = np.full((rows, 2), LARGEST_ENTRY, np.float32)
    contexts[:, 1] -= np.float32(1 / STEPS)
    sums.add(contexts, np.zeros(rows, np.int64), np.ones(rows))
    top = int(LARGEST_ENTRY) * STEPS
    mixed = rows * top * (top - 1)
    assert sums.gram[0].tolist() == [[rows * top * top, mixed], [mixed, rows * (top - 1) ** 2]]


def test_the_raw_model_is_linucb_to_the_lattice():
    contexts, arms, rewards = interactions(500)
    sums = ExactSums(3, 4)
    sums.add(contexts, arms, rewards)
    model = sums.model(ridge=2.0)
    for arm in range(3):
        points = contexts[arms == arm].astype(np.float64)
        assert np.allclose(model.gram[arm], 2 * np.eye(4) + points.T @ points, atol=500 / STEPS)
        assert np.allclose(model.moment[arm], rewards[arms == arm] @ points, atol=1000 / STEPS)
    assert model.observations == 500


def test_sums_that_could_overflow_are_refused_and_unchanged():
    sums = ExactSums(1, 1)
    sums.add(np.ones((1, 1)), np.zeros(1, np.int64), np.ones(1))
    sums.gram[:] = (1 << 61) + 1
    before = sums.dump()
    with pytest.raises(AggregationError, match="at most"):
        sums.add(np.ones((1, 1)), np.zeros(1, np.int64), np.ones(1))
    assert sums.dump() == before


@pytest.mark.parametrize(
    ("contexts", "arms", "rewards"),
    [
        (np.ones((1, 3)), np.zeros(1, np.int64), np.ones(1)),
        (np.ones((1, 2)), np.zeros(2, np.int64), np.ones(1)),
        (np.ones((1, 2)), np.full(1, 2), np.ones(1)),
        (np.ones((1, 2)), np.full(1, -1), np.ones(1)),
        (np.full((1, 2), np.nan), np.zeros(1, np.int64), np.ones(1)),
        (np.ones((1, 2)), np.zeros(1, np.int64), np.full(1, np.inf)),
        (np.full((1, 2), 17.0), np.zeros(1, np.int64), np.ones(1)),
    ],
)
def test_bad_interactions_are_refused(contexts, arms, rewards):
    with pytest.raises(AggregationError):
        ExactSums(2, 2).add(contexts, arms, rewards)


def test_crowds_add_up_with_their_variances():
    totals = CrowdTotals(2, 3)
    rng = np.random.default_rng(3)
    crowds = [rng.integers(-5, 50, (2, 2, 3)) for _ in range(4)]
    for ones, zeros in crowds:
        totals.add(ones, zeros, 1.5, 100)
    assert np.array_equal(totals.ones, sum(crowd[0] for crowd in crowds))
    assert np.array_equal(totals.zeros, sum(crowd[1] for crowd in crowds))
    assert (totals.variance, totals.crowds, totals.slots) == (6.0, 4, 400)
    assert CrowdTotals.load(totals.dump()).dump() == totals.dump()


@pytest.mark.parametrize(
    ("ones", "variance", "slots"),
    [
        (np.zeros((3, 2), np.int64), 1.0, 1),
        (np.zeros((2, 3)), 1.0, 1),
        (np.zeros((2, 3), np.int64), -1.0, 1),
        (np.zeros((2, 3), np.int64), float("nan"), 1),
        (np.zeros((2, 3), np.int64), 1.0, -1),
        (np.full((2, 3), np.iinfo(np.int64).min), 1.0, 1),
    ],
)
def test_crowds_that_do_not_fit_are_refused_and_change_nothing(ones, variance, slots):
    totals = CrowdTotals(2, 3)
    before = totals.dump()
    with pytest.raises(AggregationError):
        totals.add(ones, np.zeros((2, 3), np.int64), variance, slots)
    assert totals.dump() == before


@pytest.mark.parametrize("kind", [CrowdTotals, ExactSums])
def test_damaged_dumps_are_refused(kind):
    good = kind(2, 3).dump()
    for broken in (b"", good[:-1], good + b"\0", b"X" + good[1:]):
        with pytest.raises(AggregationError):
            kind.load(broken)
