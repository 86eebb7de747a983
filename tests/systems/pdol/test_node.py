"""A domain's sums: exact but for the counter's noise, the same after any interruption, closed on a count of slots."""

from __future__ import annotations

import numpy as np
import pytest
from tests.systems.pdol.conftest import (
    DIMENSION,
    HORIZON,
    SLOTS,
    config_of,
    counters_of,
    node_of,
    random_model,
    records,
)

from hushstream.counting.errors import BadState
from hushstream.systems.pdol.algorithm.gradient import add_gradients
from hushstream.systems.pdol.algorithm.node import NodeRelease
from hushstream.systems.pdol.algorithm.rows import null_rows
from hushstream.systems.pdol.configuration import PdolConfig
from hushstream.systems.pdol.errors import LeafFull, PdolError


def releases(config: PdolConfig, count: int, seed: int = 0) -> list[NodeRelease]:
    node, found = node_of(config), []
    rows = records(count * SLOTS, seed)
    for step in range(count):
        node.fold(rows.part(step * SLOTS, (step + 1) * SLOTS), random_model(step))
        found.append(node.release())
    return found


def test_a_release_is_that_of_the_counter_over_the_sums_of_gradients(config: PdolConfig) -> None:
    rows, exact = records(HORIZON * SLOTS), np.zeros(DIMENSION, dtype=np.int64)
    counter = counters_of(config).open(0)
    for step, release in enumerate(releases(config, HORIZON)):
        leaf = np.zeros(DIMENSION, dtype=np.int64)
        add_gradients(leaf, rows.part(step * SLOTS, (step + 1) * SLOTS), random_model(step))
        counter.add(leaf[None])
        exact += leaf
        assert release.values.tolist() == counter.release().values.tolist()
        assert (release.leaves, release.slots) == (step + 1, (step + 1) * SLOTS)
        assert (release.values.tolist() == exact.tolist()) == (config.sharing.counter == "exact")


def test_slots_may_come_one_by_one_or_all_at_once(config: PdolConfig) -> None:
    rows, together, apart = records(SLOTS), node_of(config), node_of(config)
    together.fold(rows, random_model())
    for place in range(SLOTS):
        assert apart.capacity_left == SLOTS - place
        apart.fold(rows.part(place, place + 1), random_model())
    assert together.release().values.tolist() == apart.release().values.tolist()


def test_at_the_horizon_the_sum_stands_and_a_new_counter_has_noise_of_its_own() -> None:
    found = releases(config_of(), HORIZON + 2)
    assert [release.last for release in found] == [False] * (HORIZON - 1) + [True, False, False]
    assert [(release.generation, release.leaves) for release in found[-2:]] == [(1, 1), (1, 2)]
    node = node_of(config_of())
    quiet = []
    for _ in range(HORIZON + 1):
        node.fold(null_rows(SLOTS), random_model())
        quiet.append(node.release().values)
    assert quiet[0].tolist() != quiet[HORIZON].tolist()


def test_domains_and_epochs_have_unrelated_noise() -> None:
    found = []
    for domain, seed in ((0, 1), (1, 1), (0, 2)):
        node = node_of(config_of(), domain, seed)
        node.fold(null_rows(SLOTS), random_model())
        found.append(node.release().values.tolist())
    assert found[0] != found[1] != found[2] != found[0]


@pytest.mark.parametrize("stop", [0, 1, SLOTS, SLOTS + 1, HORIZON * SLOTS - 1, HORIZON * SLOTS, HORIZON * SLOTS + 2])
def test_a_restored_domain_goes_on_as_if_it_had_never_stopped(config: PdolConfig, stop: int) -> None:
    total = (HORIZON + 2) * SLOTS
    rows, node, found = records(total), node_of(config), []
    for place in range(total):
        if place == stop:
            kept, node = node.dump(), node_of(config)
            node.load(kept)
            assert node.dump() == kept
        node.fold(rows.part(place, place + 1), random_model(place // SLOTS))
        if not node.capacity_left:
            found.append(node.release().values.tolist())
    assert found == [release.values.tolist() for release in releases(config, HORIZON + 2)]


def test_a_leaf_closes_on_its_count_and_on_nothing_else() -> None:
    node = node_of(config_of())
    with pytest.raises(LeafFull, match=f"full leaf of {SLOTS} slots, got 0"):
        node.release()
    node.fold(records(SLOTS - 1), random_model())
    with pytest.raises(LeafFull, match=f"got {SLOTS - 1}"):
        node.release()
    with pytest.raises(LeafFull, match="at most 1 slots, got 2"):
        node.fold(records(2), random_model())
    assert node.capacity_left == 1


def test_refused_records_take_their_slots() -> None:
    node, quiet = node_of(config_of()), node_of(config_of())
    rows = records(SLOTS)
    bad = rows.values.copy()
    bad[:] = 1 << 33
    object.__setattr__(rows, "values", bad)
    assert node.fold(rows, random_model()).all()
    quiet.fold(null_rows(SLOTS), random_model())
    assert node.release().values.tolist() == quiet.release().values.tolist()


@pytest.mark.parametrize("model", [np.zeros(DIMENSION), np.zeros(DIMENSION, dtype=np.int64), np.zeros(3, np.int32)])
def test_only_a_published_model_is_taken(model: np.ndarray) -> None:
    with pytest.raises(PdolError, match="expected int32 of shape"):
        node_of(config_of()).fold(records(1), model)


def test_damaged_states_are_refused() -> None:
    node = node_of(config_of())
    node.fold(records(2), random_model())
    state = node.dump()
    for damaged in (b"", state[:-1], state[:-20], state + b"\0", state[:40] + state[41:]):
        with pytest.raises(BadState):
            node_of(config_of()).load(damaged)
    with pytest.raises(BadState):
        node_of(config_of(), seed=2).load(state)
    with pytest.raises(BadState, match="at most 3 slots"):
        node_of(config_of()).load(state[:8] + (9).to_bytes(8, "little") + state[16:])
