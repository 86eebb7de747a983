"""A journal that lost its end: what a suspected rollback opens, charges and leaves in the journal, role by role.

Each case is played twice on one genesis: the lost branch, and the one that a worker goes on with who has the journal up
to a cut and finds other inputs behind it. That both share no noise is audited for every role (the rows ``forked-...``
of `hushstream audit`) and required of every recording (`tests/contract/test_one_way_out.py`).
"""

import numpy as np
import pytest

from hushstream.engine.journal import chain
from hushstream.engine.journal.chain import ForeignJournal
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin import edge as collaborative_fold
from hushstream.systems.p2b.slots import Report

EPOCH_NONCE, OTHER_NONCE = bytes(range(16)), bytes(range(1, 17))
RUNNING = {"window_slots": 4, "sums": "counter", "windows": 64, "epsilon": 0.05}
COUNTERS = {
    "negative-digit": {},
    "negative-digit k-norm": {"noise": "k-norm"},
    "negative-digit gaussian": {"noise": "gaussian"},
    "binary": {"mechanism": "binary"},
    "binary k-norm": {"mechanism": "binary", "noise": "k-norm"},
    "binary gaussian": {"mechanism": "binary", "noise": "gaussian"},
    "blt": {"mechanism": "blt", "noise": "gaussian"},
}


def cut(rig, fresh, records, sources):
    """A rig whose journal ends after some records, with the inputs that those cover and no others."""
    fresh.start(rig.genesis)
    other = type(rig).__new__(type(rig))
    other.__dict__.update(rig.__dict__)
    other.machine, other.journal, other.folded = fresh, list(rig.journal[:records]), []
    other.seen = type(rig.seen)()
    for value in other.journal:
        fresh.replay(value, [rig.slice(part) for part in fresh.recovery_ranges(value)])
    ends = fresh.positions()
    other.logs = {source: log[: ends.get(source, 0)] for source, log in rig.logs.items()}
    assert all(source in ends for source in sources)
    return other


# Windows of the shuffler.


def window_sums(rigs, window):
    shape = (rigs.CODES, rigs.ARMS)
    return np.stack([np.frombuffer(window[name], "<i8").reshape(shape) for name in ("ones", "zeros")])


def windows_of(rigs, release):
    """A shuffler with two windows behind it, and one whose journal was cut before the second."""
    system = rigs.make_system(release=release, budget=BudgetConfig(8.0, 1e-6))
    lost = rigs.ShufflerRig(system, rigs.Key(b"\x07" * 31 + b"\x01"))
    for number in range(4):
        lost.slot(number, Report(number, 0, 1))
    lost.fold()
    kept = cut(lost, rigs.ShufflerMachine(system, 0, lost.key), 1, [("reports", 0)])
    return lost, kept


LOST = [Report(1, 2, 1), Report(0, 0, 1), None, None]
FOUND = [Report(1, 2, 0), Report(0, 0, 1), None, None]


def next_window(rigs, rig, first_id, reports):
    for number, report in enumerate(reports):
        rig.slot(first_id + number, report)
    (window,) = rig.sums_of(rig.fold())
    return window_sums(rigs, window)


# Windows that run through a counter.


@pytest.mark.parametrize("release", [RUNNING, {"window_slots": 4, "epsilon": 0.05}], ids=["counter", "fresh"])
def test_a_requested_epoch_pays_again_and_any_replay_opens_it(rigs, release):
    _, kept = windows_of(rigs, release)
    assert kept.machine.request_epoch(OTHER_NONCE, forked=True)
    assert kept.machine.request_epoch(EPOCH_NONCE, forked=True), "asking twice costs once, and the last names it"
    assert not kept.machine.opened_epoch_since(1)
    restored = rigs.ShufflerMachine(kept.system, 0, kept.key)
    restored.start(kept.genesis)
    restored.restore(kept.machine.snapshot())
    kept.machine = restored
    assert kept.machine.spending.redraws == 1
    next_window(rigs, kept, 200, FOUND)
    next_window(rigs, kept, 300, LOST)
    assert kept.machine.spending.redraws == 2, "the suspected rollback's epoch paid, once"
    scope = codec.decode(kept.journal[1])[1]["debit"]["scope"]
    assert scope.endswith(f"/renewal/1/{EPOCH_NONCE.hex()}")
    fresh = rigs.ShufflerMachine(kept.system, 0, kept.key)
    again = kept.replayed(fresh)
    assert again.releases("window-sums")[1:] == kept.seen.releases("window-sums")
    assert fresh.snapshot() == kept.machine.snapshot()
    assert fresh.opened_epoch_since(1), "the suspected rollback arose behind record 1"
    assert not fresh.opened_epoch_since(2), "the next one will have an epoch of its own"


def test_fresh_windows_need_no_suspected_rollback_where_no_fork_was_seen(rigs):
    _, kept = windows_of(rigs, {"window_slots": 4, "epsilon": 0.05})
    assert not kept.machine.request_epoch(EPOCH_NONCE)
    next_window(rigs, kept, 200, FOUND)
    assert kept.machine.spending.redraws == 1


def test_with_too_small_a_budget_nothing_is_released_after_a_suspected_rollback(rigs):
    system = rigs.make_system(release=RUNNING)
    rig = rigs.ShufflerRig(system, rigs.Key(b"\x07" * 31 + b"\x01"))
    for number in range(4):
        rig.slot(number, None)
    rig.fold()
    rig.machine.request_epoch(EPOCH_NONCE)
    assert rig.machine.refused is not None
    for number in range(4, 12):
        rig.slot(number, None)
    seen = rig.fold()
    assert not rig.sums_of(seen)
    assert seen.counts["release_withheld"] == 2
    assert len(seen.records("ledger", "LedgerEntry")) == 0


def test_a_nonce_of_another_size_is_refused(rigs):
    _, kept = windows_of(rigs, RUNNING)
    with pytest.raises(HushstreamError, match="nonce of 16 random bytes, got 3"):
        kept.machine.request_epoch(b"abc")


# Counters at a trusted role.


def steps_of(related, name, **release):
    """A counter with two steps behind it; the other one has the journal up to the first."""
    values = {"rows": 4, "horizon": 64, "rewards_per_user": 32, "epochs": 3, "epsilon": 0.05, "delta": 1e-6}
    system = related.make_system(release={**values, **COUNTERS[name], **release})
    lost = related.CounterRig(system, related.SECRET)
    lost.rewards(0, everyone(related, 0))
    lost.fold()
    kept = cut(lost, lost.fresh(), 1, [("rewards", 0)])
    return lost, kept


def everyone(related, number, flip=False):
    """Four rewards, of every user at least one; with ``flip`` the first of them is another."""
    features = related.some_features(number, 4)
    values = [1.0, 0.3, 0.0, 1.0]
    return [
        (node % 3, features[node].tolist(), 1 - values[node] if flip and not node else values[node])
        for node in range(4)
    ]


def step_after(related, rig, batches):
    """The last release after some batches, each a step, and the exact sums of those."""
    rows = []
    for number, step in batches:
        rig.rewards(number, step)
        rows += step
        seen = rig.fold()
    (release,) = rig.released(seen)
    return related.arrays_of(release)[1], related.lattice_sums(rows)


@pytest.mark.parametrize("name", COUNTERS)
def test_only_counters_that_draw_ahead_of_their_content_open_an_epoch_where_no_fork_was_seen(related, name):
    for _, kept in (steps_of(related, name), learner_of(related, **COUNTERS[name])):
        assert kept.machine.request_epoch(EPOCH_NONCE) == name.startswith("negative")


@pytest.mark.parametrize("name", COUNTERS)
def test_which_epoch_was_requested_is_in_the_journal_whatever_was_released_before_it(related, name):
    """Of a counter, also where its inputs no longer give the record that opened the epoch."""
    _, kept = steps_of(related, name, epochs=5)
    kept.machine.request_epoch(EPOCH_NONCE, forked=True, incarnations=3)
    assert not kept.machine.opened_epoch_since(1)
    step_after(related, kept, [(1, everyone(related, 1))])
    assert kept.machine.spending.redraws == 4, "three lives are known to have been paid for, this is the next"
    assert codec.decode(kept.journal[1])[1]["debit"]["scope"] == f"epoch/0/1/renewal/3/{EPOCH_NONCE.hex()}"
    fresh = kept.fresh()
    kept.replayed(fresh)
    assert fresh.opened_epoch_since(1)
    assert fresh.snapshot() == kept.machine.snapshot()
    kept.altered(1, contexts=bytes(4 * 4 * related.DIMENSION))
    adopting = kept.fresh()
    adopting.start(kept.genesis)
    related.recover(kept, adopting)
    assert adopting.opened_epoch_since(1)
    assert adopting.spending.redraws == 4


# Counters at the edge, and the lift.


def learner_of(related, **release):
    values = {"noise_at": "learner", "epsilon": 0.05, "epochs": 3, **release}
    lost = related.RelatedLearnerRig(related.edge_system(**values), related.SECRET)
    for number in range(3):
        lost.interact(f"before-{number}", related.USERS[number])
    lost.end_phase(0)
    lost.fold()
    sources = [("contexts", 0), ("clicks", 0)]
    return lost, cut(lost, lost.fresh(), len(lost.journal), sources)


def test_batches_to_a_counter_are_named_by_their_events_however_they_are_cut(related, monkeypatch):
    """The ids of all batches add up to the same name whether rows leave in one record or in many."""
    named = {}
    for cut_at, prefix in ((256, "e"), (2, "e"), (256, "f")):
        monkeypatch.setattr(collaborative_fold, "MAX_ROWS_A_RECORD", cut_at)
        rig = related.RelatedLearnerRig(related.make_system(), related.SECRET)
        for number in range(6):
            rig.interact(f"{prefix}-{number}", related.USERS[number % 3], 1.0)
        rig.end_phase(0)
        records = rig.fold().records("rewards", "Rewards")
        ids = [int.from_bytes(record["batch_id"], "little") for record in records]
        assert len(set(ids)) == len(ids)
        named[cut_at, prefix] = len(records), sum(ids) % (1 << 128)
    assert named[256, "e"][0] < named[2, "e"][0]
    assert named[256, "e"][1] == named[2, "e"][1] != named[256, "f"][1]


@pytest.mark.parametrize("levels", [1, 8])
def test_a_noisy_reward_of_another_event_or_content_has_noise_of_its_own(related, levels):
    """24 rewards of 1 in one branch and of 0 in the other: under the same draws each pair differs by what was given.

    At epsilon .05 a bit is random: under noise of its own the two sums of 24 bits are equal under one key in six, so
    the ids are ones under which they differ; nothing is drawn anew between two runs.
    """
    pairs = []
    for reward in (1.0, 0.0):
        system = related.edge_system(mechanism="noisy-reward", reward_levels=levels, epsilon=0.05)
        rig = related.RelatedLearnerRig(system, related.SECRET)
        for number in range(24):
            rig.interact(
                f"event-{reward}-{number}", related.USERS[0], reward, np.full((related.ARMS, 3), 0.5, np.float32)
            )
        rig.end_phase(0)
        rig.fold()
        assert not rig.machine.request_epoch(EPOCH_NONCE)
        sums = [related.arrays_of(release)[1][0, 0] for release in rig.seen.records("releases", "Release")]
        pairs.append(sums[-1])
    law = rig.machine.noised_sums._law
    unit = law.estimate(np.array([1]))[0] - law.estimate(np.array([0]))[0]
    assert pairs[0] != pairs[1]
    assert round((pairs[0] - pairs[1]) / (unit * 2.0**23)) != (24 if law.law == "laplace" else 0)


LIFT = {"own": 0.5, "epsilon": 0.05, "decisions_per_user": 5, "every_seconds": 100.0, "releases": 64}


def lift_rig(rigs):
    budget = BudgetConfig(16.0, 1e-6, lift=0.25)
    system = rigs.make_system(measurement=LIFT, slot={"after_interactions": 100}, budget=budget)
    lost = rigs.LearnerRig(system, rigs.Key(b"\x07" * 31 + b"\x01"))
    rigs.adopt(lost)
    round_of(rigs, lost, "before", 1.0)
    fresh = rigs.LearnerMachine(system, 0, lost.key)
    return lost, cut(lost, fresh, len(lost.journal), [("contexts", 0), ("clicks", 0), ("models", 0)])


def round_of(rigs, rig, prefix, reward):
    """Decisions of eight users, released by a phase end once their wait is over."""
    for number in range(8):
        user = f"user-{number}"
        arm = rig.decide(f"{prefix}:{user}", user, rigs.point(number), baseline=2)
        rig.reward(f"{prefix}:{user}", arm, reward if not number else 1.0, user)
        rig.fold()
    rig.wait(6)
    rig.decide(f"{prefix}:tick", "tick", rigs.point(0), baseline=2)
    rig.end_phase()
    record = rig.fold().records("lift", "Lift")[-1]
    return np.frombuffer(record["sums"], "<i8"), rig.machine.lift._counter.exact, record


def test_slots_and_phase_ends_that_leave_open_no_requested_epoch_at_the_edge(rigs, related):
    """They raise the mark, and debit nothing."""
    _, kept = lift_rig(rigs)
    _, other = learner_of(related)
    for rig in (kept, other):
        rig.machine.request_epoch(EPOCH_NONCE, forked=True)
        before = len(rig.journal)
        rig.end_phase(7) if rig is other else rig.decide("alone", "zoe", rigs.point(0), baseline=2)
        rig.fold()
        assert len(rig.journal) > before
        assert not rig.machine.opened_epoch_since(before)
        fresh = type(rig.machine)(rig.system, 0, rig.key) if rig is kept else rig.fresh()
        rig.replayed(fresh)
        assert not fresh.opened_epoch_since(before), "nor for who has the journal alone"
    round_of(rigs, kept, "found", 0.0)
    assert kept.machine.opened_epoch_since(before)


def test_a_lift_goes_on_counting_over_a_requested_epoch(rigs):
    lost, kept = lift_rig(rigs)
    kept.machine.request_epoch(EPOCH_NONCE)
    _, exact_lost, record_lost = round_of(rigs, lost, "lost", 1.0)
    _, exact_kept, record_kept = round_of(rigs, kept, "lost", 1.0)
    assert exact_lost.tolist() == exact_kept.tolist(), "all that was counted is counted again, once"
    assert record_kept["leaf"] == record_lost["leaf"]
    assert record_kept["counter"] == record_lost["counter"]
    assert record_kept["release_id"] != record_lost["release_id"]
    assert kept.machine.spending.redraws == 2
    fresh = rigs.LearnerMachine(kept.system, 0, kept.key)
    again = kept.replayed(fresh)
    assert again.releases("lift")[-1:] == kept.seen.releases("lift")[-1:]
    assert fresh.snapshot() == kept.machine.snapshot()


# Journals of another noise.


def test_a_journal_that_was_begun_under_another_version_of_the_noise_is_refused_in_words(rigs, monkeypatch):
    system = rigs.make_system()
    monkeypatch.setattr(chain, "BEGINNING", bytes(16))
    older = rigs.ShufflerMachine(system, 0, rigs.Key(b"\x07" * 31 + b"\x01")).genesis(bytes(32))
    monkeypatch.undo()
    machine = rigs.ShufflerMachine(system, 0, rigs.Key(b"\x07" * 31 + b"\x01"))
    with pytest.raises(ForeignJournal, match="begun under version 2 of the noise, found version 1"):
        machine.start(older)
    altered = bytearray(machine.genesis(bytes(32)))
    altered[-1] ^= 1
    with pytest.raises(ForeignJournal, match="its first record was altered"):
        machine.start(bytes(altered))
