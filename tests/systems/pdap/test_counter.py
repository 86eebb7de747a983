"""The counter and its role: each outcome in one block, noise by content, what closes a window, what is paid."""

import numpy as np
import pytest

from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.records import InputRange, ReplayMismatch
from hushstream.schemas import codec
from hushstream.systems.pdap.algorithm.aggregate import Outcomes
from hushstream.systems.pdap.algorithm.blocks import Blocks, block_variances
from hushstream.systems.pdap.cells import ROOT, PdapError
from hushstream.systems.pdap.counter import Counter
from hushstream.systems.pdap.records import parse_part

NONE = bytes(32)


def outcomes(count=20, arm=0, reward=0, cell=ROOT, arrival=1 << 57, name=0):
    whole = [np.full(count, value, dtype=np.int64) for value in (cell, arrival, arm, reward)]
    return Outcomes(*whole, np.full((count, 16), name, dtype=np.uint8))


class TestNoise:
    @pytest.mark.parametrize(("levels", "growth"), [(1, 0.0), (5, 0.0), (1, 0.5)])
    def test_its_size_is_that_of_each_levels_epsilon(self, pdap, levels, growth):
        # 20,000 draws: the standard error of the variance of Laplace noise is sqrt(5 / n) of it, 1.6 %; the bound is
        # six of them (false alarm 2e-9). Half the noise is off by 75 %.
        settings = pdap.config(epsilon=0.2, reward_levels=levels, level_growth=growth)
        for level, variance in enumerate(block_variances(settings)):
            cells = np.full(20_000, level << 57)
            blocks = Blocks(cells, np.arange(20_000), np.ones(20_000, dtype=np.int64), np.zeros(20_000, dtype=np.int64))
            seen = pdap.keyed(settings)(0, blocks, NONE)
            assert np.mean(seen.astype(float) ** 2) / levels**2 == pytest.approx(variance, rel=0.095)


class TestCoupling:
    """Flip one reward, take it back from its block's noise: the transcripts are one, but for the noise."""

    @pytest.mark.parametrize("window", [0, 2, 5])
    def test_one_flipped_reward_is_one_block_by_one(self, pdap, window):
        settings = pdap.config(epsilon=0.5, first_window=150)
        drawn = {}

        def recorded(number, blocks, history):
            noise = pdap.keyed(settings)(number, blocks, history)
            drawn[number] = (blocks, noise)
            return noise

        def flip(clicks):
            return np.concatenate([1 - clicks[:1], clicks[1:]])

        plain = pdap.Deployment(settings, recorded)
        for _ in range(8):
            plain.window()
        moved = []

        def taken_back(number, blocks, history):
            exact, noise = drawn[number]
            difference = blocks.sums - exact.sums
            assert all(
                np.array_equal(getattr(blocks, name), getattr(exact, name)) for name in ("cells", "arms", "counts")
            )
            moved.extend(difference[difference != 0].tolist())
            return noise - difference

        flipped = pdap.Deployment(settings, taken_back)
        for number in range(8):
            flipped.window(flip if number == window else None)
        assert sum(map(abs, moved)) <= 1
        for one, other in zip(plain.releases, flipped.releases, strict=True):
            assert one.blocks.canonical() == other.blocks.canonical()
            assert np.array_equal(one.arrived, other.arrived)
            assert np.array_equal(one.arrivals, other.arrivals)
        for one, other in zip(plain.updates, flipped.updates, strict=True):
            assert np.array_equal(one.tickets, other.tickets)
            assert np.array_equal(one.opened, other.opened)
        for one, other in zip(plain.answers, flipped.answers, strict=True):
            assert np.array_equal(one.arms, other.arms)

    def test_the_flip_did_reach_a_block(self, pdap):
        # Else the test above would hold for a counter that drops what it is given.
        settings = pdap.config(epsilon=0.5, first_window=150)
        sums = []
        for reward in (0, 1):
            counter = Counter(settings, lambda window, blocks, history: np.zeros(len(blocks), dtype=np.int64))
            counter.take(outcomes(19))
            counter.take(outcomes(1, reward=reward))
            sums.append(counter.close(0).blocks.sums)
        assert (sums[1] - sums[0]).tolist() == [1]


class TestWindows:
    def test_a_window_closes_once(self, pdap):
        counter = Counter(pdap.config(), pdap.keyed(pdap.config()))
        counter.take(outcomes())
        counter.close(0)
        with pytest.raises(PdapError, match="expected 1 to close, got 0"):
            counter.close(0)
        with pytest.raises(PdapError, match="expected 1 to close, got 2"):
            counter.close(2)

    def test_what_was_released_is_forgotten_and_what_is_too_small_waits(self, pdap):
        settings = pdap.config(epsilon=0.1)
        counter = Counter(settings, lambda window, blocks, history: np.zeros(len(blocks), dtype=np.int64))
        counter.take(outcomes(29, arm=1, reward=1))
        counter.take(outcomes(40, arm=2, reward=1))
        first = counter.close(0).blocks
        assert (first.arms.tolist(), first.counts.tolist(), first.sums.tolist()) == ([2], [40], [40])
        assert counter.pending.counts.tolist() == [29]
        counter.take(outcomes(1, arm=1))
        second = counter.close(1).blocks
        assert (second.arms.tolist(), second.counts.tolist(), second.sums.tolist()) == ([1], [30], [29])
        assert len(counter.pending) == 0
        assert len(counter.close(2).blocks) == 0

    def test_arrivals_are_published_as_they_were(self, pdap):
        counter = Counter(pdap.config(), pdap.keyed(pdap.config()))
        counter.take(outcomes(7, arrival=(1 << 57) | 2))
        counter.take(outcomes(4))
        release = counter.close(0)
        assert release.arrived.tolist() == [1 << 57, (1 << 57) | 2]
        assert release.arrivals.tolist() == [4, 7]
        assert release.outcomes == 11


PUBLIC = ("counter", "window", "part", "parts", "epoch", "closed_by", "outcomes", "cells", "arms", "counts")


@pytest.fixture
def rig(shops):
    return shops.BlockCounterRig()


# Windows.


def test_a_window_closes_when_so_many_outcomes_are_in_and_takes_whole_records(shops, rig):
    rig.outcomes(0, shops.some_rewards(1, 39))
    assert not rig.fold().journals
    rig.outcomes(39, shops.some_rewards(2, 5))
    (record,) = rig.fold().journals
    assert (record["window"], record["outcomes"], record["taken"], record["closed_by"]) == (0, 44, 44, "count")
    rig.outcomes(44, shops.some_rewards(3, 15))
    assert not rig.fold().journals, "the second closes at 60"
    rig.outcomes(59, shops.some_rewards(3, 1))
    (record,) = rig.fold().journals
    assert (record["window"], record["outcomes"], record["taken"]) == (1, 16, 60)


def test_log_time_closes_a_window_and_ticks_carry_it_on(shops):
    rig = shops.BlockCounterRig(shops.make_system(release={"seconds": 60.0}))
    assert rig.machine.tick(10**9) is None, "nothing is in the window"
    rig.outcomes(0, shops.some_rewards(1, 9))
    rig.fold()
    tick = rig.machine.tick(60_000)
    assert (tick.topic, tick.partition) == ("outcomes", 0)
    assert rig.machine.tick(59_999) is None
    rig.wait(59.999)
    rig.put(tick.topic, tick.value)
    assert not rig.fold().journals
    rig.wait(0.001)
    for _ in range(3):
        rig.put(tick.topic, tick.value)
    seen = rig.fold()
    assert [(record["closed_by"], record["outcomes"]) for record in seen.journals] == [("count", 9)]
    assert [fields["closed_by"] for fields in rig.released(seen)] == ["count"]
    assert rig.machine.tick(10**9) is None
    # The clock of the next window begins with its own first outcome.
    rig.wait(3600.0)
    rig.outcomes(9, shops.some_rewards(2, 1))
    assert not rig.fold().journals


def test_without_a_time_limit_log_time_closes_nothing(shops, rig):
    rig.outcomes(0, shops.some_rewards(1, 9))
    rig.fold()
    assert rig.machine.tick(10**9) is None
    rig.wait(10**6)
    rig.put("outcomes", codec.encode("Tick", {"config_digest": rig.system.digest}))
    assert not rig.fold().journals


def test_what_else_closes_a_window_moves_no_total(shops, rig):
    for phase in range(5):
        rig.outcomes(7 * phase, shops.some_rewards(phase, 7))
        rig.end_phase(phase)
    rig.outcomes(35, shops.some_rewards(9, 5))
    assert [record["closed_by"] for record in rig.fold().journals] == ["seal"] * 5 + ["count"]
    rig.outcomes(40, shops.some_rewards(9, 19))
    assert not rig.fold().journals, "the next total is 60"
    rig.outcomes(59, shops.some_rewards(9, 1))
    assert [record["taken"] for record in rig.fold().journals] == [60]


def test_a_phase_end_of_all_learners_closes_a_window_and_is_passed_on_behind_its_release(shops):
    rig = shops.BlockCounterRig(shops.make_system(partitions={"learner": 2}))
    rig.outcomes(0, shops.some_rewards(1, 9))
    for origin in range(3):
        rig.end_phase(0, origin)
        assert not rig.fold().journals, "two partitions of each of two vendors"
    rig.end_phase(0, 3)
    seen = rig.fold()
    assert [record["closed_by"] for record in seen.journals] == ["seal"]
    kinds = [codec.decode(output.value)[0] for output in seen.releases("releases")]
    assert kinds == ["BlockRelease", "Seal"]
    assert seen.records("releases", "Seal")[0]["origin"] == 0


def test_a_change_of_the_catalogue_closes_the_window_and_is_passed_on_behind_its_release(shops, rig):
    rig.outcomes(0, shops.some_rewards(1, 30))
    rig.change(5, offered=False)
    seen = rig.fold()
    assert [(record["closed_by"], record["outcomes"]) for record in seen.journals] == [("count", 30)]
    kinds = [codec.decode(output.value)[0] for output in seen.releases("releases")]
    assert kinds == ["BlockRelease", "ArmChange"]
    assert seen.counts["arm_changed"] == 1
    # What was shown before enters its block; the arm's outcomes are those of any other arm.
    rig.outcomes(30, [(0, 5, 1)] * 9)
    rig.change(5, offered=True)
    (later,) = rig.released(rig.fold())
    blocks = shops.blocks_of(later)
    assert int(blocks.counts[blocks.arms == 5].sum()) >= 9


@pytest.mark.parametrize(("vendor", "arm", "reason"), [("", 7, "unknown_arm"), ("two", 0, "arm_of_another_vendor")])
def test_a_change_that_cannot_be_closes_nothing(shops, vendor, arm, reason):
    placement = "home" if vendor else "serving"
    rig = shops.BlockCounterRig(shops.make_system(release={"placement": placement}), vendor=vendor)
    rig.change(arm, offered=False)
    seen = rig.fold()
    assert (seen.reasons, seen.journals) == ([reason], [])


def test_where_nothing_may_be_released_a_change_is_passed_on_all_the_same(shops):
    rig = shops.BlockCounterRig(shops.make_system())
    rig.outcomes(0, shops.some_rewards(1, 60))
    rig.fold()
    rig.machine.request_epoch(b"\x05" * 16, True)
    rig.change(5, offered=False)
    seen = rig.fold()
    assert seen.counts["release_withheld"] == 1
    assert [codec.decode(output.value)[0] for output in seen.releases("releases")] == ["ArmChange"]


def test_every_outcome_is_in_one_block_or_waits(shops, rig):
    first = 0
    for number in range(6):
        count = 25 + 7 * number
        rig.outcomes(first, shops.some_rewards(number, count))
        first += count
    rig.fold()
    released = [shops.blocks_of(fields) for fields in rig.released()]
    counted = sum(int(blocks.counts.sum()) for blocks in released)
    assert len(released) >= 3
    assert counted + int(rig.machine.counter.pending.counts.sum()) == first
    least = rig.system.config.least_counts[0]
    assert all((blocks.counts >= least).all() for blocks in released)
    arrivals = sum(int(parse_part(fields).arrivals.sum()) for fields in rig.released())
    assert arrivals + rig.machine.counter.open_outcomes == first


def test_sums_are_those_of_their_outcomes_under_noise_of_the_stated_size(shops):
    # 600 blocks at epsilon 2: the standard error of the mean square of Laplace noise is sqrt(5 / 600) of it, 9.1 %;
    # the bound is six of them (false alarm 2e-9). Without noise it is 0; with half the noise a quarter.
    system = shops.make_system(
        vendors=(shops.VendorConfig("one", 300), shops.VendorConfig("two", 300)), release={"epsilon": 2.0, "kappa": 2.0}
    )
    rig = shops.BlockCounterRig(system)
    exact = np.random.default_rng(0).integers(0, 6, 600)
    rows = [(0, arm, int(click < exact[arm])) for arm in range(600) for click in range(5)]
    rig.outcomes(0, rows)
    (fields,) = rig.released(rig.fold())
    blocks = shops.blocks_of(fields)
    assert blocks.arms.tolist() == list(range(600))
    noise = blocks.sums - np.minimum(exact, 5)
    variance = 2 * np.exp(-2.0) / (1 - np.exp(-2.0)) ** 2
    assert np.mean(noise.astype(float) ** 2) == pytest.approx(variance, rel=0.55)


def test_how_senders_raced_and_cut_their_records_changes_no_byte(shops):
    rows = shops.some_rewards(4, 30)
    one, other = shops.BlockCounterRig(), shops.BlockCounterRig()
    one.outcomes(0, rows[:20])
    one.outcomes(20, rows[20:])
    for first, last in ((10, 30), (0, 5), (5, 10)):
        other.outcomes(first, rows[first:last])
    for rig in (one, other):
        rig.end_phase()
        rig.fold()
    assert one.seen.releases("releases") == other.seen.releases("releases")


def test_a_reward_moves_sums_and_nothing_else(shops):
    """Everything but sums, and what is keyed by them, is the same for any rewards: the rule that the proof rests on."""
    rows = shops.some_rewards(4, 200)
    # So few outcomes of an arm come in a window that a rule which looked at rewards would form other blocks.
    system = shops.make_system(release={"kappa": 9.0, "seconds": 1.0})
    rigs = [shops.BlockCounterRig(system, shops.SECRET) for _ in range(2)]
    for flip, rig in enumerate(rigs):
        for first in range(0, 200, 20):
            some = [(cell, arm, abs(reward - flip)) for cell, arm, reward in rows[first : first + 20]]
            rig.outcomes(first, some)
            rig.wait(3.0)
        rig.fold()
    ours, theirs = (rig.released() for rig in rigs)
    assert len(ours) == len(theirs) >= 3
    for one, other in zip(ours, theirs, strict=True):
        assert all(one[name] == other[name] for name in (*PUBLIC, "arrived", "arrivals", "release_id"))
    assert [one["sums"] for one in ours] != [other["sums"] for other in theirs]
    records = [[record["head"]["inputs"] for record in rig.seen.journals] for rig in rigs]
    assert records[0] == records[1]


# What is refused.


def test_an_outcome_counts_once_whatever_record_it_comes_in(shops, rig):
    rows = shops.some_rewards(4, 10)
    rig.outcomes(0, rows)
    rig.outcomes(5, rows)
    rig.outcomes(0, rows)
    seen = rig.fold()
    assert seen.counts["repeated_rewards"] == 15
    assert rig.machine.counter.taken == 15


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"counter": 1}, "other_counter"),
        ({"config_digest": bytes(16)}, "other_configuration"),
        ({"names": b""}, "malformed_outcomes"),
        ({"arms": np.array([7] * 3, "<i4").tobytes()}, "malformed_outcomes"),
        ({"arms": np.array([-1] * 3, "<i4").tobytes()}, "malformed_outcomes"),
        ({"arms": bytes(11)}, "malformed_outcomes"),
        ({"rewards": np.array([2] * 3, "<i4").tobytes()}, "malformed_outcomes"),
        ({"rewards": np.array([-1] * 3, "<i4").tobytes()}, "malformed_outcomes"),
        ({"cells": np.array([9 << 57] * 3, "<i8").tobytes()}, "malformed_outcomes"),
        ({"cells": np.array([1 << 57] * 3, "<i8").tobytes()}, "malformed_outcomes"),
        ({"arrivals": np.array([2 << 57] * 3, "<i8").tobytes()}, "malformed_outcomes"),
        ({"arrivals": np.array([ROOT] * 3, "<i8").tobytes()}, "malformed_outcomes"),
    ],
)
def test_outcomes_that_cannot_be_are_a_dead_letter_and_change_nothing(shops, rig, changes, reason):
    rig.outcomes(0, [(0, 1, 1)] * 3, **changes)
    seen = rig.fold()
    assert seen.reasons == [reason]
    assert rig.machine.counter.taken == 0
    rig.outcomes(0, [(0, 1, 1)] * 3)
    assert rig.fold().counts["reward_taken"] == 3, "a refused record has used no name up"


def test_beyond_the_horizon_outcomes_are_counted_and_not_taken(shops):
    rig = shops.BlockCounterRig(shops.make_system(release={"horizon": 12}))
    rig.outcomes(0, shops.some_rewards(1, 10))
    rig.outcomes(10, shops.some_rewards(1, 5))
    assert rig.fold().counts["beyond_horizon"] == 3
    assert rig.machine.counter.taken == 12


def test_a_phase_end_of_nobody_ends_no_phase(shops, rig):
    rig.end_phase(0, origin=5)
    assert rig.fold().reasons == ["unknown_origin"]


# What is paid.


def test_an_epoch_is_paid_once_with_its_first_window(shops, rig):
    for number in range(4):
        rig.outcomes(60 * number, shops.some_rewards(number, 60))
    records = rig.fold().journals
    assert [record["debit"]["epsilon_micro"] for record in records] == [1_000_000, 0, 0, 0][: len(records)]
    entries = rig.seen.records("ledger", "LedgerEntry")
    assert [entry["debit"] for entry in entries] == [records[0]["debit"]]
    assert entries[0]["debit"]["scope"] == "epoch/0/0"


def room_for(epochs):
    return BudgetConfig(1.5 * epochs, 1e-6)


def test_a_suspected_rollback_opens_an_epoch_with_other_noise_that_pays_again(shops):
    rows, rigs = shops.some_rewards(3, 60), []
    for forked in (False, True):
        rig = shops.BlockCounterRig(shops.make_system(budget=room_for(3)), shops.SECRET)
        assert rig.machine.request_epoch(b"\x05" * 16, forked) is forked
        rig.outcomes(0, rows)
        rig.fold()
        rigs.append(rig)
    ours, theirs = (rig.released()[0] for rig in rigs)
    assert (ours["epoch"], theirs["epoch"]) == (0, 1)
    assert ours["sums"] != theirs["sums"]
    assert ours["counts"] == theirs["counts"]
    assert "/renewal/1/" in rigs[1].seen.journals[0]["debit"]["scope"]


def test_where_the_budget_has_no_room_all_outcomes_go_on_waiting(shops):
    rig = shops.BlockCounterRig(shops.make_system())
    rig.outcomes(0, shops.some_rewards(1, 60))
    rig.fold()
    waiting = int(rig.machine.counter.pending.counts.sum())
    rig.machine.request_epoch(b"\x05" * 16, True)
    assert rig.machine.refused is not None
    rig.outcomes(60, shops.some_rewards(2, 60))
    seen = rig.fold()
    assert seen.counts["release_withheld"] == 1
    assert not rig.released(seen)
    assert seen.journals[0]["debit"]["epsilon_micro"] == 0
    assert int(rig.machine.counter.pending.counts.sum()) == waiting + 60


# Cuts, restores, replays, and journals that were rolled back.


def recorded(shops, **changes):
    """A counter with three windows behind it, under a key that is not seeded."""
    rig = shops.BlockCounterRig(shops.make_system(**{"budget": room_for(4), **changes}), shops.SECRET)
    for number in range(3):
        rig.outcomes(60 * number, shops.some_rewards(number, 60))
        rig.end_phase(number)
    rig.fold()
    return rig


def started(rig):
    machine = rig.fresh()
    machine.start(rig.genesis)
    return machine


def test_a_changed_input_gives_nothing_again_and_leaves_the_state_alone(shops):
    rig = recorded(shops)
    rewards = np.frombuffer(codec.decode(rig.logs["outcomes", 0][0].value)[1]["rewards"], "<i4").copy()
    rewards[0] ^= 1
    rig.altered(0, rewards=rewards.tobytes())
    machine = started(rig)
    before = machine.snapshot()
    slices = [rig.slice(part) for part in machine.recovery_ranges(rig.journal[0])]
    for _ in range(2):
        with pytest.raises(ReplayMismatch, match=r"record 1: its inputs give another record .*; nothing is sent"):
            machine.replay(rig.journal[0], slices)
        assert machine.snapshot() == before
    step = machine.reopen(rig.journal[0], slices)
    assert (step.journal, step.releases, step.dead_letters) == (None, (), ())
    assert step.counts["diverged"] == 1
    assert int(machine.counter.pending.counts.sum()) == 60, "all of it may be released again, at a price"


def test_after_a_changed_input_the_next_window_is_under_new_noise_and_pays_its_price_once(shops):
    rig = recorded(shops)
    rig.altered(3, rewards=np.zeros(60, "<i4").tobytes())
    machine = started(rig)
    steps = shops.recover(rig, machine)
    assert [step.counts.get("diverged", 0) for step in steps].count(1) >= 1
    rig.outcomes(500, shops.some_rewards(9, 60))
    position, log = machine.position, rig.logs["outcomes", 0]
    rig.end_phase(50)
    found = machine.fold([rig.slice(InputRange("outcomes", 0, position, len(log)))])
    first = codec.decode(found[0].journal)[1]
    assert first["head"]["epoch"] == 1
    assert first["debit"]["epsilon_micro"] == 1_000_000
    assert first["debit"]["scope"] == "epoch/0/1/renewal/1"
    assert machine.spending.redraws == 2
    later = [codec.decode(step.journal)[1]["debit"]["epsilon_micro"] for step in found[1:] if step.journal]
    assert set(later) <= {0}
