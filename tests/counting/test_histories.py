"""Counters whose noise follows their leaves: what a node is drawn over, and what two branches share."""

from dataclasses import replace

import numpy as np
import pytest
from tests.counting.conftest import released

from hushstream.counting import (
    BadLeaves,
    BinaryTree,
    BufferedToeplitz,
    Concentrated,
    HorizonReached,
    NegativeDigitTree,
    Plan,
    PureEpsilon,
    PureLength,
)
from hushstream.counting.counter import DrawingCounter, add_together
from hushstream.counting.nodes import NO_HISTORY, KeyedNodes
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import NoiseAddress

PURE, ZCDP = PureEpsilon(1), Concentrated(0.5, 1e-6)
FOLLOWING: dict[str, Plan] = {
    "binary": BinaryTree(budget=PURE, dimension=40, horizon=100),
    "binary-k-norm": BinaryTree(budget=PureLength(1), dimension=40, sensitivity=5, horizon=100),
    "binary-gaussian": BinaryTree(budget=ZCDP, dimension=40, sensitivity=5, horizon=100),
    "blt": BufferedToeplitz(budget=ZCDP, dimension=40, sensitivity=5, horizon=100),
}
LEAVES, FORK = 41, 21
Drawn = list[tuple[tuple[int, ...], bytes]]


@pytest.fixture(params=list(FOLLOWING))
def plan(request: pytest.FixtureRequest) -> Plan:
    return FOLLOWING[request.param]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """Every draw over a history, in order."""
    seen: Drawn = []
    honest = KeyedNodes.streams

    def streams(self, places, histories):
        seen.extend(zip(places, histories, strict=True))
        return honest(self, places, histories)

    monkeypatch.setattr(KeyedNodes, "streams", streams)
    return seen


def leaves_of(plan: Plan, seed: int, count: int = LEAVES) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1000, 1000, (count, plan.dimension))


def last_leaf(plan: Plan, place: tuple[int, ...]) -> int:
    """The last leaf of a node, from 1; of a Toeplitz step its own."""
    if isinstance(plan, BufferedToeplitz):
        return place[0] + 1
    level, index = place
    return (index + 1) << level


def histories_of(plan: Plan, key: Key, address: NoiseAddress, leaves: np.ndarray) -> list[bytes]:
    """The running keyed digest, by hand."""
    found, before = [], NO_HISTORY
    for leaf in leaves:
        before = key.digest("leaf", before, b"", leaf.astype("<i8").tobytes())
        found.append(before)
    return found


def test_only_trees_with_negative_digits_reach_ahead():
    assert NegativeDigitTree(budget=PURE).draws_ahead
    assert not any(plan.draws_ahead for plan in FOLLOWING.values())


def test_a_node_is_drawn_once_and_when_its_last_leaf_is_there(plan, key, address, drawn):
    counter, leaves = plan.open(key, address), leaves_of(plan, 1)
    histories = histories_of(plan, key, address, leaves)
    for time, leaf in enumerate(leaves, 1):
        before = len(drawn)
        counter.add(leaf[None])
        counter.release()
        for place, history in drawn[before:]:
            assert last_leaf(plan, place) == time, "not before, and not later"
            assert history == histories[time - 1]
    places = [place for place, _ in drawn]
    assert len(set(places)) == len(places) > LEAVES - 1


@pytest.mark.parametrize("at_once", [False, True])
def test_branches_share_what_was_complete_and_nothing_after(plan, key, address, drawn, at_once):
    """One coordinate of one leaf differs, by one."""
    leaves = leaves_of(plan, 1)
    other = leaves.copy()
    other[FORK, 0] += 1
    branches = []
    for taken in (leaves, other):
        drawn.clear()
        counter = plan.open(key, address)
        for part in [taken] if at_once else np.split(taken, LEAVES):
            counter.add(part)
        branches.append(dict(drawn))
    assert branches[0].keys() == branches[1].keys()
    for place, history in branches[0].items():
        shared = last_leaf(plan, place) <= FORK
        assert (branches[1][place] == history) == shared


def test_noise_after_a_fork_has_nothing_in_common(plan, key, address):
    """Of 40 coordinates with a deviation above 2, fewer than one in six agree by chance: half do with p < 1e-6."""
    leaves = leaves_of(plan, 1)
    kept = plan.open(key, address)
    kept.add(leaves[:FORK])
    state = plan.save(key, address, kept)
    lost = plan.restore(key, address, state)
    after = leaves[FORK:].copy()
    one = released(lost, after)
    after[0, 0] += 1
    two = released(kept, after)
    exact = np.cumsum(leaves[FORK:] - after, axis=0)
    # A Toeplitz step adds to noise that both have; what is shared by a tree is what was complete at the fork.
    assert np.mean((one - two)[0] == exact[0]) < 0.5
    assert np.mean((one - two)[-1] == exact[-1]) < 0.5


def test_equal_leaves_of_other_events_have_other_noise(plan, key, address):
    leaves = leaves_of(plan, 1, 3)
    named, again, others = plan.open(key, address), plan.open(key, address), plan.open(key, address)
    releases = [
        released(counter, leaves, origin) for counter, origin in ((named, b"e1"), (again, b"e1"), (others, b"e2"))
    ]
    assert np.array_equal(releases[0], releases[1])
    assert np.mean(releases[0] == releases[2]) < 0.4


def test_many_counters_in_one_draw_are_as_if_each_took_its_leaf_alone(plan, key, address):
    alone = [plan.open(key, replace(address, cell=cell)) for cell in range(5)]
    together = [plan.open(key, replace(address, cell=cell)) for cell in range(5)]
    held = [counter for counter in together if isinstance(counter, DrawingCounter)]
    draw = np.random.default_rng(3)
    for step in range(30):
        chosen = np.flatnonzero(draw.random(5) < 0.6)
        if not len(chosen):
            continue
        leaves = draw.integers(-9, 9, (len(chosen), plan.dimension))
        origins = [b"step %d" % step] * len(chosen)
        add_together([held[cell] for cell in chosen], leaves, origins)
        for row, cell in enumerate(chosen):
            alone[cell].add(leaves[row : row + 1], origins[row])
    assert [counter.dump() for counter in together] == [counter.dump() for counter in alone]
    assert [c.release().values.tolist() for c in together] == [c.release().values.tolist() for c in alone]


def test_of_leaves_that_are_taken_together_all_are_or_none(plan, key, address):
    counters = [plan.open(key, replace(address, cell=cell)) for cell in range(2)]
    held = [counter for counter in counters if isinstance(counter, DrawingCounter)]
    held[1].add(np.zeros((100, plan.dimension), dtype=np.int64))
    before = [counter.dump() for counter in held]
    with pytest.raises(HorizonReached):
        add_together(held, np.zeros((2, plan.dimension), dtype=np.int64), [b"", b""])
    with pytest.raises(BadLeaves):
        add_together(held, np.zeros((2, plan.dimension + 1), dtype=np.int64), [b"", b""])
    assert [counter.dump() for counter in held] == before
