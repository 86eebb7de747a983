"""The counter role: windows close by public facts, each outcome is in one block ever, epsilon is paid once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.records import InputRange, InputSlice, ReplayMismatch
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.pdap.counter.machine import BlockCounterMachine
from hushstream.systems.pdap.records import parse_part

CASES = settings(max_examples=12, deadline=None)
PUBLIC = ("counter", "window", "part", "parts", "epoch", "closed_by", "outcomes", "cells", "arms", "counts")


@pytest.fixture
def rig(shops):
    return shops.BlockCounterRig()


def decoded(step, topic, schema):
    found = [codec.decode(output.value) for output in step.releases if output.topic == topic]
    return [fields for name, fields in found if name == schema]


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


def test_an_outcome_is_known_again_however_many_others_came_since(shops, rig):
    rows = shops.some_rewards(4, 10)
    rig.outcomes(0, rows)
    rig.fold()
    for other in range(150_000):
        rig.machine.known.add((other + 1).to_bytes(16, "little"))
    rig.outcomes(0, rows)
    assert rig.fold().counts["repeated_rewards"] == 10
    assert rig.machine.counter.taken == 10


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"counter": 1}, "other_counter"),
        ({"config_digest": bytes(16)}, "other_configuration"),
        ({"names": b""}, "malformed_outcomes"),
        ({"arms": np.array([7] * 3, "<i4").tobytes()}, "malformed_outcomes"),
        ({"arms": bytes(11)}, "malformed_outcomes"),
        ({"rewards": np.array([2] * 3, "<i4").tobytes()}, "malformed_outcomes"),
        ({"rewards": np.array([-1] * 3, "<i4").tobytes()}, "malformed_outcomes"),
        ({"cells": np.array([9 << 57] * 3, "<i8").tobytes()}, "malformed_outcomes"),
        ({"cells": np.array([1 << 57] * 3, "<i8").tobytes()}, "malformed_outcomes"),
        ({"arrivals": np.array([2 << 57] * 3, "<i8").tobytes()}, "malformed_outcomes"),
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


def test_no_byte_of_a_refused_record_is_in_its_letter(shops, rig):
    secret = b"\x99" * 48
    rig.outcomes(0, [(0, 1, 1)] * 3, names=secret, arms=bytes(3))
    (step,) = [step for step in rig.fold().steps if step.dead_letters]
    assert secret[:8] not in step.dead_letters[0].value


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


def script(shops, rig, seed):
    """Outcomes, repeats, phase ends and bad records, drawn from a seed."""
    draw, first = np.random.default_rng(seed), 0
    for number in range(14):
        way = draw.integers(9)
        if way < 6:
            rows = shops.some_rewards(seed + number, int(draw.integers(5, 30)))
            rig.outcomes(first, rows)
            first += len(rows)
        elif way == 6:
            rig.outcomes(max(0, first - 3), shops.some_rewards(seed + number, 3))
        elif way == 7:
            rig.end_phase(number)
            rig.change(int(draw.integers(-1, 8)), offered=bool(draw.integers(2)))
        else:
            rig.put("outcomes", b"no record")
        rig.wait(float(draw.choice([0.0, 0.2])))


def pieces(rig, sizes):
    """The log in slices of these sizes, the last one repeated."""
    (whole,) = rig.arrived()
    low = 0
    for size in [*sizes, *[sizes[-1]] * whole.high]:
        high = min(low + size, whole.high)
        if low < high:
            yield [whole._replace(low=low, high=high, records=whole.records[low:high])]
        low = high


def by_topic(outputs):
    topics = {}
    for output in outputs:
        topics.setdefault((output.topic, output.partition), []).append(output.value)
    return topics


@CASES
@given(seed=st.integers(0, 10**6), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_where_a_batch_was_cut_changes_no_byte(shops, seed, sizes):
    whole, cut = shops.BlockCounterRig(), shops.BlockCounterRig()
    for rig in (whole, cut):
        script(shops, rig, seed)
    for part in pieces(cut, sizes):
        cut.take(part)
    whole.fold()
    assert cut.journal == whole.journal
    assert by_topic(cut.seen.outputs) == by_topic(whole.seen.outputs)
    assert cut.seen.counts == whole.seen.counts
    assert cut.machine.snapshot() == whole.machine.snapshot()


@CASES
@given(seed=st.integers(0, 10**6))
def test_restored_after_every_record_it_goes_on_byte_for_byte(shops, seed):
    system = shops.make_system(release={"seconds": 0.5})
    straight, broken = shops.BlockCounterRig(system), shops.BlockCounterRig(system)
    for rig in (straight, broken):
        script(shops, rig, seed)
    straight.fold()
    for part in pieces(broken, [1]):
        broken.take(part)
        state = broken.machine.snapshot()
        broken.machine = broken.fresh()
        broken.machine.start(broken.genesis)
        broken.machine.restore(state)
        assert broken.machine.snapshot() == state
    assert broken.journal == straight.journal
    assert by_topic(broken.seen.outputs) == by_topic(straight.seen.outputs)


@CASES
@given(seed=st.integers(0, 10**6), cut=st.integers(1, 12))
def test_its_journal_replayed_gives_the_same_outputs_also_from_within_a_window(shops, seed, cut):
    rig = shops.BlockCounterRig(shops.make_system(release={"seconds": 0.5}))
    script(shops, rig, seed)
    rig.end_phase(99)
    first, *rest = list(pieces(rig, [cut, 100]))
    rig.take(first)
    state, done = rig.machine.snapshot(), len(rig.journal)
    for part in rest:
        rig.take(part)
    fresh = rig.fresh()
    again = rig.replayed(fresh)
    assert [step.releases for step in again.steps] == [step.releases for step in rig.seen.steps if step.journal]
    resumed = rig.fresh()
    resumed.start(rig.genesis)
    resumed.restore(state)
    steps = shops.recover(rig, resumed, rig.journal[done:])
    assert [step.releases for step in steps] == [step.releases for step in again.steps[done:]]
    for machine in (fresh, resumed):
        (source,) = machine.inputs
        left = rig.logs[source][machine.position :]
        machine.fold([InputSlice(*source, machine.position, len(rig.logs[source]), left)])
        assert machine.snapshot() == rig.machine.snapshot()


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


def test_a_journal_that_was_rolled_back_meets_other_noise_on_other_outcomes(shops):
    """What both branches released must not be subtracted out: one click differs, and no block keeps its noise."""
    rows = shops.some_rewards(3, 60)
    other = [(*rows[0][:2], 1 - rows[0][2]), *rows[1:]]
    sums = []
    for branch in (rows, other):
        rig = shops.BlockCounterRig(shops.make_system(release={"epsilon": 0.05, "kappa": 0.1}), shops.SECRET)
        rig.outcomes(0, branch)
        (fields,) = rig.released(rig.fold())
        sums.append(shops.blocks_of(fields).sums)
    # A fixed key: the outcome is fixed. Of random keys one in 2,000 would let three of seven agree (each at 2.5 %).
    assert len(sums[0]) == 7
    assert (sums[0] != sums[1]).sum() >= 5


@pytest.mark.parametrize("what", ["damaged", "short", "other deployment", "other vendor", "other journal", "text"])
def test_a_state_that_is_not_its_own_is_refused(shops, rig, what):
    rig.outcomes(0, shops.some_rewards(1, 3))
    rig.fold()
    state = rig.machine.snapshot()
    other = {
        "damaged": lambda: rig.machine.restore(state[:40] + bytes([state[40] ^ 1]) + state[41:]),
        "short": lambda: rig.machine.restore(state[:-1]),
        "other deployment": lambda: shops.BlockCounterRig(shops.make_system(deployment="other")).machine.restore(state),
        "other vendor": lambda: BlockCounterMachine(rig.system, rig.key, vendor="two").restore(state),
        "other journal": lambda: shops.BlockCounterRig(rig.system, shops.SECRET).machine.restore(state),
        "text": lambda: rig.machine.restore(b"no state"),
    }[what]
    with pytest.raises(HushstreamError, match=r"snapshot"):
        other()
