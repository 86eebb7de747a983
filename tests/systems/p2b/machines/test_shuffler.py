"""Windows, releases and debits of the shuffler machine, with fresh noise and through a counter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hushstream.counting import choose_release
from hushstream.privacy.amounts import delta_from_bytes
from hushstream.schemas import codec
from hushstream.systems.p2b.machines import shuffler as p2b_release
from hushstream.systems.p2b.slots import Report

REPORT = Report(1, 2, 1)


@pytest.fixture
def rig(rigs):
    return rigs.ShufflerRig()


def sums(window, rigs):
    shape = (rigs.CODES, rigs.ARMS)
    return [np.frombuffer(window[name], "<i8").reshape(shape) for name in ("ones", "zeros")]


def test_a_window_closes_at_its_count_of_slots_nulls_included(rig):
    for number in range(9):
        rig.slot(number, REPORT if number % 2 else None)
    seen = rig.fold()
    assert [record["slots"] for record in seen.journals] == [4, 4]
    assert [record["closed_by"] for record in seen.journals] == ["slots", "slots"]
    assert [record["window"] for record in seen.journals] == [0, 1]
    assert [window["slots"] for window in rig.sums_of(seen)] == [4, 4]


def test_a_phase_end_closes_the_window_once_all_learner_partitions_have_sent_it(rigs):
    rig = rigs.ShufflerRig(rigs.make_system(partitions={"learner": 3}))
    rig.slot(0, REPORT)
    rig.end_phase(0, origin=0)
    rig.end_phase(0, origin=0)
    rig.end_phase(0, origin=2)
    assert not rig.fold().journals
    rig.end_phase(0, origin=1)
    (record,) = rig.fold().journals
    assert (record["closed_by"], record["slots"]) == ("seal", 1)
    rig.end_phase(0, origin=1)
    assert not rig.fold().journals


def test_a_window_closes_by_log_time_and_the_late_record_joins_the_next(rigs):
    rig = rigs.ShufflerRig(rigs.make_system(release={"window_slots": 100, "window_seconds": 60.0}))
    rig.slot(0, REPORT)
    rig.wait(59.999)
    rig.slot(1, REPORT)
    assert not rig.fold().journals
    rig.wait(0.001)
    rig.slot(2, REPORT)
    (record,) = rig.fold().journals
    assert (record["closed_by"], record["slots"]) == ("time", 2)
    rig.end_phase(0)
    assert rig.fold().journals[0]["slots"] == 1


def test_ticks_carry_log_time_on_where_nothing_else_comes(rigs):
    rig = rigs.ShufflerRig(rigs.make_system(release={"window_slots": 100, "window_seconds": 60.0}))
    assert rig.machine.tick(10**9) is None, "no window is open"
    rig.slot(0, REPORT)
    rig.fold()
    assert rig.machine.tick(59_999) is None
    tick = rig.machine.tick(60_000)
    rig.wait(60)
    for _ in range(3):
        rig.put(tick.topic, tick.value, tick.partition)
    seen = rig.fold()
    assert [record["closed_by"] for record in seen.journals] == ["time"]
    assert seen.counts["tick"] == 3
    assert rig.machine.tick(10**9) is None


def test_without_a_time_limit_no_tick_is_asked_for(rig):
    rig.slot(0, REPORT)
    rig.fold()
    assert rig.machine.tick(10**9) is None


def test_a_report_of_the_previous_period_counts_and_an_older_one_does_not(rig):
    day = 86_400
    rig.slot(0, REPORT)
    old = rig.now_ms // (day * 1000)
    rig.wait(day)
    rig.slot(1, REPORT, period=old.to_bytes(8, "little"))
    rig.slot(0, REPORT, period=old.to_bytes(8, "little"))
    rig.wait(day)
    rig.slot(2, REPORT, period=old.to_bytes(8, "little"))
    seen = rig.fold()
    assert seen.counts == {"slot": 2, "repeated_slot": 1, "rejected": 1}
    assert seen.reasons == ["stale_period"]


def released(rigs, key=None, nonce=None, contents=(REPORT,) * 4, **changes):
    rig = rigs.ShufflerRig(rigs.make_system(**changes), key or rigs.Key(b"\x07" * 31 + b"\x01"), nonce or rigs.NONCE)
    for number, report in enumerate(contents):
        rig.slot(number, report)
    return rig.fold().releases("window-sums")


def test_one_log_and_one_key_give_one_release(rigs):
    assert released(rigs) == released(rigs)


def noise_of(outputs, rigs):
    (output,) = outputs
    return np.stack(sums(codec.decode(output.value)[1], rigs))


@pytest.mark.parametrize("change", ["key", "nonce", "epsilon", "deployment", "levels"])
def test_another_key_life_or_parameter_draws_other_noise(rigs, change):
    base = released(rigs, contents=(None,) * 4)
    other = {
        "key": lambda: released(rigs, key=rigs.Key(b"\x08" * 31 + b"\x01"), contents=(None,) * 4),
        "nonce": lambda: released(rigs, nonce=bytes(32), contents=(None,) * 4),
        "epsilon": lambda: released(rigs, release={"window_slots": 4, "epsilon": 0.999}, contents=(None,) * 4),
        "deployment": lambda: released(rigs, deployment="other", contents=(None,) * 4),
        "levels": lambda: released(rigs, release={"window_slots": 4, "levels": 2}, contents=(None,) * 4),
    }[change]()
    one, two = noise_of(base, rigs), noise_of(other, rigs)
    assert one.any()
    assert (one != two).sum() > one.size / 4
    assert codec.decode(base[0].value)[1]["window_id"] != codec.decode(other[0].value)[1]["window_id"] or change in (
        "epsilon",
        "deployment",
        "levels",
    )


def test_the_noise_of_a_window_is_as_large_as_its_record_says(rigs):
    """2,400 draws at epsilon 1: a mean size of 2q / (1 - q^2), within 6 deviations (1e-9); half of it is 28 away.

    The rig's key is seeded, so the draws are always the same.
    """
    rig = rigs.ShufflerRig()
    for number in range(240):
        rig.slot(number, None)
    windows = rig.sums_of(rig.fold())
    drawn = np.abs([sums(window, rigs) for window in windows])
    ratio = np.exp(-1.0)
    assert drawn.size == 2_400
    mean, square = 2 * ratio / (1 - ratio**2), 2 * ratio / (1 - ratio) ** 2
    assert all(window["variance"] == pytest.approx(square) for window in windows)
    assert abs(drawn.mean() - mean) < 6 * np.sqrt((square - mean**2) / drawn.size)


def blind(address):
    """A window's address without its content, as noise was named before."""
    return lambda *given, **named: replace(address(*given, **named), content=b"")


def test_a_report_moves_only_its_own_cell_and_only_by_the_sensitivity(rigs, monkeypatch):
    """Under one draw of noise, which the product gives no two contents."""
    monkeypatch.setattr(p2b_release, "window_address", blind(p2b_release.window_address))
    one = noise_of(released(rigs, contents=(REPORT, None, None, None)), rigs)
    two = noise_of(released(rigs, contents=(None,) * 4), rigs)
    difference = one - two
    assert np.abs(difference).sum() == 1
    assert difference[0, REPORT.code, REPORT.arm] == 1


def test_nothing_but_contents_moves_a_release(rigs):
    """Neighbours differ in one slot's content: count, window, size, place and price of the release stay."""
    records = []
    for contents in ((REPORT,) * 4, (None,) * 4):
        rig = rigs.ShufflerRig()
        for number, report in enumerate(contents):
            rig.slot(number, report)
        seen = rig.fold()
        (window,) = rig.sums_of(seen)
        (entry,) = seen.records("ledger", "LedgerEntry")
        (journal,) = seen.journals
        records.append(
            (
                {**window, "ones": b"", "zeros": b""},
                entry,
                {**journal["head"], "input_digest": b"", "release_digest": b""},
                journal["debit"],
                [(output.topic, output.partition, output.key, len(output.value)) for output in seen.outputs],
            )
        )
    assert records[0] == records[1]


def test_the_debit_is_in_the_journal_and_the_ledger_copies_it(rig):
    for number in range(4):
        rig.slot(number, REPORT)
    seen = rig.fold()
    (journal,) = seen.journals
    (entry,) = seen.records("ledger", "LedgerEntry")
    (window,) = rig.sums_of(seen)
    price = rig.system.guarantee()
    assert journal["debit"] == entry["debit"]
    assert entry["debit"]["epsilon_micro"] == price.epsilon_micro == window["epsilon_micro"] == 1_000_000
    assert int.from_bytes(entry["debit"]["delta_units"], "big") == price.delta_units
    assert (entry["debit"]["scope"], entry["entry_id"]) == ("window/0/0", window["window_id"])


def test_digests_of_private_content_need_the_key(rigs):
    heads = []
    for seed in (1, 2):
        rig = rigs.ShufflerRig(key=rigs.Key(bytes([seed]) * 31 + b"\0"))
        for number in range(4):
            rig.slot(number, REPORT)
        heads.append(rig.fold().journals[0]["head"])
    assert heads[0]["input_digest"] != heads[1]["input_digest"]
    assert heads[0]["release_digest"] != heads[1]["release_digest"]


def test_what_leaves_the_shuffler_names_no_report_offset_or_journal_of_another_zone(rigs):
    """The same slots at other offsets, and other records beside them, give the same sums to the byte."""
    windows = []
    for shift in (0, 1000):
        rig = rigs.ShufflerRig()
        for _ in range(shift // 100):
            rig.put("reports", b"junk")
        for number in range(4):
            rig.slot(number, REPORT)
        windows.append(rig.fold().releases("window-sums"))
    assert windows[0] == windows[1]


@pytest.mark.parametrize("mode", ["tuples", "paper"])
def test_tuples_below_the_threshold_never_leave(rigs, mode):
    release = {"mode": mode, "sampling": 0.5, "threshold": 3, "window_slots": 40}
    rig = rigs.ShufflerRig(rigs.make_system(release=release), rigs.Key(b"\x22" * 31 + b"\1"))
    for number in range(40):
        rig.slot(number, Report(0, 1, 1) if number < 30 else Report(number % 4, 3, 0))
    (window,) = rig.sums_of(rig.fold())
    ones, zeros = sums(window, rigs)
    assert 3 <= ones[0, 1] <= 30
    assert window["variance"] == 0
    if mode == "tuples":
        assert all(count == 0 or count >= 3 for count in (*ones.flat, *zeros.flat))
    assert window["private_as_stated"] == (mode == "tuples")


WINDOWS = 9
RUNNING = {"window_slots": 4, "sums": "counter", "windows": 64}


@pytest.fixture
def running(rigs):
    return rigs.ShufflerRig(rigs.make_system(release=RUNNING))


def play(rigs, running, windows=WINDOWS):
    for number in range(4 * windows):
        running.slot(number, Report(number % rigs.CODES, number % rigs.ARMS, number % 2))
    return running.fold()


def totals(rigs, windows):
    shape = (rigs.CODES, rigs.ARMS)
    stacked = [[np.frombuffer(window[name], "<i8").reshape(shape) for name in ("ones", "zeros")] for window in windows]
    return np.cumsum(np.array(stacked), axis=0)


def exact_totals(rigs, windows=WINDOWS):
    sums = np.zeros((windows, 2, rigs.CODES, rigs.ARMS), dtype=np.int64)
    for number in range(4 * windows):
        sums[number // 4 :, 1 - number % 2, number % rigs.CODES, number % rigs.ARMS] += 1
    return sums


def test_what_is_published_adds_up_to_the_counters_noised_total(rigs, running):
    windows = running.sums_of(play(rigs, running))
    noise = totals(rigs, windows) - exact_totals(rigs)
    tree = running.system.window_tree
    # The noise of a total is a signed sum of whole nodes, never of all windows: its spread is the tree's.
    spread = np.sqrt((noise.astype(float) ** 2).mean())
    # 360 draws of known variance: a factor of two either way has a chance below 1e-9.
    assert 0.5 < spread / tree.rmse(WINDOWS) < 2
    assert len(windows) == WINDOWS


def test_the_variances_add_up_to_that_of_the_total(rigs, running):
    windows = running.sums_of(play(rigs, running))
    tree = running.system.window_tree
    summed = np.cumsum([window["variance"] for window in windows])
    means = np.cumsum(summed) / np.arange(1, WINDOWS + 1)
    assert means == pytest.approx([tree.mean_square(t) for t in range(1, WINDOWS + 1)])


def test_an_aggregator_adds_sums_without_knowing_of_the_counter(rigs, running):
    seen = play(rigs, running)
    aggregator = rigs.AggregatorRig(running.system)
    aggregator.give([output.value for output in seen.releases("window-sums")])
    held = aggregator.machine.totals._totals
    np.testing.assert_array_equal(np.stack([held.ones, held.zeros]), totals(rigs, running.sums_of())[-1])
    assert held.variance == pytest.approx(sum(window["variance"] for window in running.sums_of()))
    assert aggregator.machine.version == WINDOWS


def test_a_counter_is_paid_for_once_with_its_first_window(rigs, running):
    seen = play(rigs, running)
    debits = [record["debit"] for record in seen.journals]
    price = running.system.guarantee()
    assert [debit["epsilon_micro"] for debit in debits] == [price.epsilon_micro] + [0] * (WINDOWS - 1)
    assert [delta_from_bytes(debit["delta_units"]) for debit in debits] == [price.delta_units] + [0] * (WINDOWS - 1)
    assert {debit["scope"] for debit in debits} == {"epoch/0/0"}
    assert [entry["debit"] for entry in seen.records("ledger", "LedgerEntry")] == debits


def test_beyond_the_horizon_windows_are_closed_and_nothing_leaves(rigs):
    running = rigs.ShufflerRig(rigs.make_system(release={**RUNNING, "windows": 3}))
    seen = play(rigs, running, windows=5)
    assert len(seen.journals) == 5
    assert len(running.sums_of(seen)) == 3
    assert seen.counts["release_withheld"] == 2
    assert [record["debit"]["epsilon_micro"] for record in seen.journals[3:]] == [0, 0]
    again = running.replayed(rigs.ShufflerMachine(running.system, 0, running.key))
    assert len(again.releases("window-sums")) == 3


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
