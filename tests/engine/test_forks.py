"""A journal that lost its end and goes on over other data: both branches together tell no exact difference.

Each case is played twice on one genesis: the lost branch, and the one that a worker goes on with who has the journal up
to a cut and finds other inputs behind it. Under noise that is named by its place alone, both branches' releases differ
by exactly what their data differ by.
"""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.counting.nodes import KeyedNodes
from hushstream.engine.journal import chain
from hushstream.engine.journal.chain import ForeignJournal
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.edge import learner as collaborative_fold
from hushstream.systems.p2b.contribution.slots import Report, pack
from hushstream.systems.p2b.machines import release as p2b_release
from hushstream.systems.p2b.shuffler.windows import ClosedBy, ClosedWindow

EPOCH_NONCE, OTHER_NONCE = bytes(range(16)), bytes(range(1, 17))
RUNNING = {"window_slots": 4, "sums": "counter", "windows": 64, "epsilon": 0.05}
COUNTERS = {
    "negative-digit": {},
    "negative-digit k-norm": {"noise": "k-norm"},
    "negative-digit gaussian": {"noise": "gaussian"},
    "binary": {"mechanism": "binary"},
    "binary k-norm": {"mechanism": "binary", "noise": "k-norm"},
    "binary gaussian": {"mechanism": "binary", "noise": "gaussian"},
    "honaker": {"mechanism": "honaker"},
    "honaker gaussian": {"mechanism": "honaker", "noise": "gaussian"},
    "blt": {"mechanism": "blt", "noise": "gaussian"},
}
AHEAD = [name for name in COUNTERS if name.startswith("negative")]
OVER_CONTENT = [name for name in COUNTERS if name not in AHEAD]


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


def told(first, second, exact):
    """Share of the sums in which two releases differ by exactly what their data differ by."""
    return float(np.mean(np.asarray(first) - np.asarray(second) == exact))


# Windows of the shuffler.


def window_sums(rigs, crowd):
    shape = (rigs.CODES, rigs.ARMS)
    return np.stack([np.frombuffer(crowd[name], "<i8").reshape(shape) for name in ("ones", "zeros")])


def exact_sums(rigs, reports):
    sums = np.zeros((2, rigs.CODES, rigs.ARMS), dtype=np.int64)
    for report in reports:
        if report is not None:
            sums[1 - report.level, report.code, report.arm] += 1
    return sums


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
    (crowd,) = rig.crowds(rig.fold())
    return window_sums(rigs, crowd)


def test_two_shufflers_on_one_genesis_do_not_differ_by_the_exact_difference_of_their_slots(rigs):
    """The reproduction: at epsilon .05 the two crowds differed by exactly [1, -1] in the true cell and by 0 elsewhere.

    Of 40 sums with noise of scale 20 on either side about one in 80 agrees by chance: a quarter of them do with a
    probability below 1e-9.
    """
    lost, kept = windows_of(rigs, {"window_slots": 4, "epsilon": 0.05})
    one = next_window(rigs, lost, 100, LOST)
    two = next_window(rigs, kept, 200, FOUND)
    assert told(one, two, exact_sums(rigs, LOST) - exact_sums(rigs, FOUND)) < 0.25
    assert (one - two)[:, 1, 2].tolist() != [1, -1]


def test_under_noise_that_is_named_by_its_window_alone_they_would(rigs, monkeypatch):
    """The mutant: the same attack reads the exact difference in every cell."""
    named = p2b_release.window_address
    blind = lambda *given: named(*given[:4], given[4]._replace(contents=(), ids=()), *given[5:])  # noqa: E731
    monkeypatch.setattr(p2b_release, "window_address", blind)
    lost, kept = windows_of(rigs, {"window_slots": 4, "epsilon": 0.05})
    one, two = next_window(rigs, lost, 100, LOST), next_window(rigs, kept, 200, FOUND)
    assert told(one, two, exact_sums(rigs, LOST) - exact_sums(rigs, FOUND)) == 1


def test_the_same_slots_give_the_same_bytes_in_both_branches(rigs):
    """A rollback over the same data costs nothing."""
    lost, kept = windows_of(rigs, {"window_slots": 4, "epsilon": 0.05})
    for rig in (lost, kept):
        next_window(rigs, rig, 100, LOST)
    assert lost.journal == kept.journal
    assert lost.seen.releases("crowds")[1:] == kept.seen.releases("crowds")


def test_equal_contents_under_other_ids_have_other_noise(rigs):
    """Otherwise equal crowds would tell that what the branches hold is equal: a test of any guess at one slot."""
    lost, kept = windows_of(rigs, {"window_slots": 4, "epsilon": 0.05})
    one, two = next_window(rigs, lost, 100, LOST), next_window(rigs, kept, 200, LOST)
    assert told(one, two, 0) < 0.25


def test_coins_of_two_branches_are_thrown_apart(rigs):
    """40 windows of 100 equal reports, but for one: with coins by position the two counts never differ by more than 1.

    Each difference of two independent counts of 100 coins has a deviation of 7, so that all are within 1 has a
    probability below 1e-30.
    """
    system = rigs.make_system(release={"mode": "tuples", "sampling": 0.5, "threshold": 3, "window_slots": 100})
    key, differences = rigs.Key(b"\x07" * 31 + b"\x01"), []
    for window in range(40):
        counts = []
        for last in (Report(0, 0, 1), Report(3, 3, 1)):
            contents = tuple(pack(report) for report in [Report(0, 0, 1)] * 99 + [last])
            ids = tuple(number.to_bytes(16, "big") for number in range(100))
            closed = ClosedWindow(window, ClosedBy.SLOTS, contents, ids)
            crowd = p2b_release.release_window(system, key, bytes(32), 0, closed).crowd
            counts.append(window_sums(rigs, crowd)[0, 0, 0])
        differences.append(counts[0] - counts[1])
    assert max(map(abs, differences)) > 1


# Windows that run through a counter.


def test_a_counter_over_windows_meets_its_noise_again_unless_its_machine_requests_an_epoch(rigs):
    """Both halves: without the suspected rollback the attack reads the difference exactly, with it not."""
    exact = exact_sums(rigs, LOST) - exact_sums(rigs, FOUND)
    seen = {}
    for epoch_nonce in (b"", EPOCH_NONCE):
        lost, kept = windows_of(rigs, RUNNING)
        if epoch_nonce:
            assert kept.machine.request_epoch(epoch_nonce)
        one, two = next_window(rigs, lost, 100, LOST), next_window(rigs, kept, 200, FOUND)
        seen[epoch_nonce] = told(one, two, exact)
    assert seen[b""] == 1
    assert seen[EPOCH_NONCE] < 0.25


def test_two_workers_who_request_an_epoch_at_the_same_place_share_no_noise(rigs):
    """The journal is lost twice: both branches open epoch 1 after the same record."""
    lost, kept = windows_of(rigs, RUNNING)
    again = cut(lost, rigs.ShufflerMachine(lost.system, 0, lost.key), 1, [("reports", 0)])
    kept.machine.request_epoch(EPOCH_NONCE)
    again.machine.request_epoch(OTHER_NONCE)
    one, two = next_window(rigs, kept, 100, LOST), next_window(rigs, again, 200, FOUND)
    assert told(one, two, exact_sums(rigs, LOST) - exact_sums(rigs, FOUND)) < 0.25
    scopes = [codec.decode(rig.journal[-1])[1]["debit"]["scope"] for rig in (kept, again)]
    assert scopes == [f"epoch/0/1/renewal/1/{nonce.hex()}" for nonce in (EPOCH_NONCE, OTHER_NONCE)]


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
    assert again.releases("crowds")[1:] == kept.seen.releases("crowds")
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
    assert not rig.crowds(seen)
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


def both_branches(related, lost, kept, other_id=7):
    """Three more steps on each side, of which the first differs in one reward."""
    after = [(number, everyone(related, number)) for number in (2, 3)]
    one, exact_one = step_after(related, lost, [(1, everyone(related, 1)), *after])
    two, exact_two = step_after(related, kept, [(other_id, everyone(related, 1, flip=True)), *after])
    return told(one[0], two[0], (exact_one - exact_two)[0])


@pytest.mark.parametrize("name", COUNTERS)
def test_two_counters_on_one_genesis_do_not_differ_by_the_exact_difference_of_a_reward(related, name):
    """A sum has noise of more than 2^20 units: that one of three agrees by chance has a probability below 1e-5."""
    lost, kept = steps_of(related, name)
    assert kept.machine.request_epoch(EPOCH_NONCE) == (name in AHEAD)
    assert both_branches(related, lost, kept) == 0


@pytest.mark.parametrize("name", COUNTERS)
def test_under_noise_that_is_named_by_its_place_alone_they_would(related, name, monkeypatch):
    """The mutant, and why trees with negative digits need a requested epoch: they are named so."""
    monkeypatch.setattr(KeyedNodes, "histories", lambda self, before, leaves, origin: [before] * len(leaves))
    lost, kept = steps_of(related, name)
    assert both_branches(related, lost, kept) == 1


@pytest.mark.parametrize("name", OVER_CONTENT)
def test_the_same_rewards_give_the_same_bytes_in_both_branches_of_a_counter(related, name):
    lost, kept = steps_of(related, name)
    for rig in (lost, kept):
        step_after(related, rig, [(1, everyone(related, 1))])
    assert lost.journal == kept.journal
    assert lost.seen.releases("releases")[1:] == kept.seen.releases("releases")


@pytest.mark.parametrize("name", OVER_CONTENT)
def test_equal_rewards_of_other_events_have_other_noise(related, name):
    lost, kept = steps_of(related, name)
    one, _ = step_after(related, lost, [(1, everyone(related, 1))])
    two, _ = step_after(related, kept, [(7, everyone(related, 1))])
    assert told(one[0], two[0], 0) == 0


@pytest.mark.parametrize("name", ["negative-digit", "honaker", "blt"])
def test_a_requested_epoch_of_a_counter_pays_again_and_any_replay_opens_it(related, name):
    _, kept = steps_of(related, name)
    assert kept.machine.request_epoch(EPOCH_NONCE, forked=True)
    restored = kept.fresh()
    restored.start(kept.genesis)
    restored.restore(kept.machine.snapshot())
    kept.machine = restored
    _, exact = step_after(related, kept, [(number, everyone(related, number)) for number in (1, 2)])
    assert kept.machine.spending.redraws == 2
    debits = [codec.decode(value)[1]["debit"] for value in kept.journal]
    assert [debit["epsilon_micro"] > 0 for debit in debits] == [True, True, False]
    assert {debit["scope"] for debit in debits[1:]} == {f"epoch/0/1/renewal/1/{EPOCH_NONCE.hex()}"}
    fresh = kept.fresh()
    again = kept.replayed(fresh)
    assert again.releases("releases")[1:] == kept.seen.releases("releases")
    assert fresh.snapshot() == kept.machine.snapshot()
    held = fresh.noised_sums.exact_sums()[1]
    assert np.array_equal(held, exact + related.lattice_sums(everyone(related, 0))), "the exact sums went along"


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


def test_two_counters_that_request_an_epoch_at_the_same_place_share_no_noise(related):
    lost, kept = steps_of(related, "negative-digit")
    again = cut(lost, lost.fresh(), 1, [("rewards", 0)])
    kept.machine.request_epoch(EPOCH_NONCE)
    again.machine.request_epoch(OTHER_NONCE)
    assert both_branches(related, kept, again) == 0


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


def edge_sums(related, rig, prefix, reward):
    """The newest sums of the first user after three more of their rewards, and the exact ones of those."""
    rows = []
    for number in range(3):
        event, features = f"{prefix}-{number}", related.some_features(number)
        given = reward if not number else 1.0
        arm = rig.interact(event, related.USERS[0], given, features)
        rows.append((0, features[arm].tolist(), given))
    rig.end_phase(1)
    release = rig.fold().records("releases", "Release")[-1]
    return related.arrays_of(release)[1][0], related.lattice_sums(rows)[0]


@pytest.mark.parametrize("name", COUNTERS)
def test_two_learners_on_one_genesis_do_not_differ_by_the_exact_difference_of_a_reward(related, name):
    lost, kept = learner_of(related, **COUNTERS[name])
    assert kept.machine.request_epoch(EPOCH_NONCE) == (name in AHEAD)
    one, exact_one = edge_sums(related, lost, "lost", 1.0)
    two, exact_two = edge_sums(related, kept, "found", 0.3)
    assert told(one, two, exact_one - exact_two) == 0


def test_without_a_suspected_rollback_the_default_counter_at_the_edge_meets_its_noise_again(related):
    """The cut lies before the users' second leaves, whose nodes are drawn ahead."""
    lost, kept = learner_of(related)
    one, exact_one = edge_sums(related, lost, "lost", 1.0)
    two, exact_two = edge_sums(related, kept, "found", 0.3)
    assert told(one, two, exact_one - exact_two) == 1


@pytest.mark.parametrize("name", OVER_CONTENT)
def test_equal_rewards_of_other_events_have_other_noise_at_the_edge(related, name):
    lost, kept = learner_of(related, **COUNTERS[name])
    one, exact_one = edge_sums(related, lost, "lost", 1.0)
    two, exact_two = edge_sums(related, kept, "found", 1.0)
    assert exact_one.tolist() == exact_two.tolist()
    assert told(one, two, 0) == 0


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

    At epsilon .05 a bit is random: under noise of its own all 24 agree with what the old draws give with a probability
    of about 2^-24.
    """
    pairs = []
    for reward in (1.0, 0.0):
        system = related.edge_system(mechanism="noisy-reward", reward_levels=levels, epsilon=0.05)
        rig = related.RelatedLearnerRig(system, related.SECRET)
        for number in range(24):
            rig.interact(f"{reward}-{number}", related.USERS[0], reward, np.full((related.ARMS, 3), 0.5, np.float32))
        rig.end_phase(0)
        rig.fold()
        assert not rig.machine.request_epoch(EPOCH_NONCE)
        sums = [related.arrays_of(release)[1][0, 0] for release in rig.seen.records("releases", "Release")]
        pairs.append(sums[-1])
    law = rig.machine.noised_sums._law
    unit = law.estimate(np.array([1]))[0] - law.estimate(np.array([0]))[0]
    assert pairs[0] != pairs[1]
    assert round((pairs[0] - pairs[1]) / (unit * 2.0**23)) != (24 if law.law == "laplace" else 0)


def test_a_requested_epoch_of_a_learner_pays_again_and_any_replay_opens_it(related):
    _, kept = learner_of(related)
    assert kept.machine.request_epoch(EPOCH_NONCE)
    restored = kept.fresh()
    restored.start(kept.genesis)
    restored.restore(kept.machine.snapshot())
    kept.machine = restored
    edge_sums(related, kept, "found", 0.3)
    assert kept.machine.spending.redraws == 2
    fresh = kept.fresh()
    again = kept.replayed(fresh)
    assert again.releases("releases")[-len(kept.seen.releases("releases")) :] == kept.seen.releases("releases")
    assert fresh.snapshot() == kept.machine.snapshot()
    epochs = [record["epoch"] for record in again.records("releases", "Release")]
    assert epochs == sorted(epochs)
    assert set(epochs) == {0, 1}


LIFT = {"holdout": 0.5, "epsilon": 0.05, "decisions_per_user": 5, "every_seconds": 100.0, "releases": 64}


def lift_rig(rigs):
    budget = BudgetConfig(16.0, 1e-6, lift=0.25)
    system = rigs.make_system(lift=LIFT, slot={"after_interactions": 100}, budget=budget)
    lost = rigs.LearnerRig(system, rigs.Key(b"\x07" * 31 + b"\x01"))
    round_of(rigs, lost, "before", 1.0)
    fresh = rigs.LearnerMachine(system, 0, lost.key)
    return lost, cut(lost, fresh, len(lost.journal), [("contexts", 0), ("clicks", 0)])


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


def test_two_lifts_on_one_genesis_do_not_differ_by_the_exact_difference_of_a_click(rigs):
    """Four sums, with noise of scale above 200: one agrees by chance with a probability below 2 %, all below 1e-7."""
    seen = {}
    for epoch_nonce in (b"", EPOCH_NONCE):
        lost, kept = lift_rig(rigs)
        if epoch_nonce:
            assert kept.machine.request_epoch(epoch_nonce)
        one, exact_one, _ = round_of(rigs, lost, "lost", 1.0)
        two, exact_two, _ = round_of(rigs, kept, "found", 0.0)
        assert (exact_one != exact_two).any()
        seen[epoch_nonce] = told(one, two, exact_one - exact_two)
    assert seen[b""] == 1, "what the suspected rollback is for"
    assert seen[EPOCH_NONCE] < 1


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
