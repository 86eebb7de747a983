"""Windows that run through a counter: the shuffler publishes differences that add up to the counter's total."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.counting import choose_release
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.amounts import delta_from_bytes
from hushstream.systems.p2b.contribution.slots import Report

WINDOWS = 9
RUNNING = {"window_slots": 4, "sums": "counter", "windows": 64}


@pytest.fixture
def rig(rigs):
    return rigs.ShufflerRig(rigs.make_system(release=RUNNING))


def play(rigs, rig, windows=WINDOWS):
    for number in range(4 * windows):
        rig.slot(number, Report(number % rigs.CODES, number % rigs.ARMS, number % 2))
    return rig.fold()


def totals(rigs, crowds):
    shape = (rigs.CODES, rigs.ARMS)
    stacked = [[np.frombuffer(crowd[name], "<i8").reshape(shape) for name in ("ones", "zeros")] for crowd in crowds]
    return np.cumsum(np.array(stacked), axis=0)


def exact_totals(rigs, windows=WINDOWS):
    sums = np.zeros((windows, 2, rigs.CODES, rigs.ARMS), dtype=np.int64)
    for number in range(4 * windows):
        sums[number // 4 :, 1 - number % 2, number % rigs.CODES, number % rigs.ARMS] += 1
    return sums


def test_what_is_published_adds_up_to_the_counters_noised_total(rigs, rig):
    crowds = rig.crowds(play(rigs, rig))
    noise = totals(rigs, crowds) - exact_totals(rigs)
    tree = rig.system.window_tree
    # The noise of a total is a signed sum of whole nodes, never of all windows: its spread is the tree's.
    spread = np.sqrt((noise.astype(float) ** 2).mean())
    # 360 draws of known variance: a factor of two either way has a chance below 1e-9.
    assert 0.5 < spread / tree.rmse(WINDOWS) < 2
    assert len(crowds) == WINDOWS


def test_the_variances_add_up_to_that_of_the_total(rigs, rig):
    crowds = rig.crowds(play(rigs, rig))
    tree = rig.system.window_tree
    summed = np.cumsum([crowd["variance"] for crowd in crowds])
    means = np.cumsum(summed) / np.arange(1, WINDOWS + 1)
    assert means == pytest.approx([tree.mean_square(t) for t in range(1, WINDOWS + 1)])


def test_an_aggregator_adds_crowds_without_knowing_of_the_counter(rigs, rig):
    seen = play(rigs, rig)
    aggregator = rigs.AggregatorRig(rig.system)
    aggregator.give([output.value for output in seen.releases("crowds")])
    held = aggregator.machine.totals._totals
    np.testing.assert_array_equal(np.stack([held.ones, held.zeros]), totals(rigs, rig.crowds())[-1])
    assert held.variance == pytest.approx(sum(crowd["variance"] for crowd in rig.crowds()))
    assert aggregator.machine.version == WINDOWS


def test_a_counter_is_paid_for_once_with_its_first_window(rigs, rig):
    seen = play(rigs, rig)
    debits = [record["debit"] for record in seen.journals]
    price = rig.system.guarantee()
    assert [debit["epsilon_micro"] for debit in debits] == [price.epsilon_micro] + [0] * (WINDOWS - 1)
    assert [delta_from_bytes(debit["delta_units"]) for debit in debits] == [price.delta_units] + [0] * (WINDOWS - 1)
    assert {debit["scope"] for debit in debits} == {"epoch/0/0"}
    assert [entry["debit"] for entry in seen.records("ledger", "LedgerEntry")] == debits


def test_a_restart_between_windows_changes_no_byte(rigs, rig):
    whole = play(rigs, rig)
    other = rigs.ShufflerRig(rig.system)
    for number in range(4 * WINDOWS):
        other.slot(number, Report(number % rigs.CODES, number % rigs.ARMS, number % 2))
        other.fold()
        state = other.machine.snapshot()
        fresh = rigs.ShufflerMachine(rig.system, 0, other.key)
        fresh.start(other.genesis)
        fresh.restore(state)
        other.machine = fresh
    assert other.journal == [step.journal for step in whole.steps if step.journal is not None]
    assert other.seen.releases("crowds") == whole.releases("crowds")


def test_the_journal_gives_the_same_releases_again(rigs, rig):
    seen = play(rigs, rig)
    again = rig.replayed(rigs.ShufflerMachine(rig.system, 0, rig.key))
    assert again.releases("crowds") == seen.releases("crowds")


def test_beyond_the_horizon_windows_are_closed_and_nothing_leaves(rigs):
    rig = rigs.ShufflerRig(rigs.make_system(release={**RUNNING, "windows": 3}))
    seen = play(rigs, rig, windows=5)
    assert len(seen.journals) == 5
    assert len(rig.crowds(seen)) == 3
    assert seen.counts["release_withheld"] == 2
    assert [record["debit"]["epsilon_micro"] for record in seen.journals[3:]] == [0, 0]
    again = rig.replayed(rigs.ShufflerMachine(rig.system, 0, rig.key))
    assert len(again.releases("crowds")) == 3


def test_auto_takes_the_counter_exactly_where_its_total_is_the_more_exact_one(rigs):
    chosen = {}
    for slots in (40, 400, 4_000):
        system = rigs.make_system(expected_slots=slots)
        expected = choose_release(1, slots // 4, max(1024, slots // 4))
        chosen[slots] = "fresh" if system.window_tree is None else "counter"
        assert chosen[slots] == expected
    assert set(chosen.values()) == {"fresh", "counter"}


def test_where_time_closes_windows_auto_expects_as_many_as_a_counter_is_to_serve(rigs):
    few_by_slots = {"window_slots": 100, "window_seconds": 60.0}
    assert rigs.make_system(expected_slots=40, release={**few_by_slots, "windows": 2}).window_tree is None
    assert rigs.make_system(expected_slots=40, release={**few_by_slots, "windows": 5_000}).window_tree.horizon == 5_000


def test_the_guarantee_of_running_sums_is_that_of_one_window(rigs, rig):
    fresh = rigs.make_system(release={**RUNNING, "sums": "fresh"}).guarantee()
    running = rig.system.guarantee()
    assert running.epsilon_micro == fresh.epsilon_micro
    assert "counter over windows" in running.mechanism
    assert running.delta_units < 2**80 / 10**10


def test_other_modes_have_no_counter(rigs):
    with pytest.raises(ConfigurationError, match=r"release\.sums: expected auto or fresh for mechanism tuples"):
        rigs.make_system(release={"mode": "tuples", "sampling": 0.5, "sums": "counter"})
