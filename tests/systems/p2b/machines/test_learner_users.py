"""Many users on one learner: spilled, forgotten, expired or over quota, no decision and no slot shows it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from hushstream.agents.recovery.user_store import UserDatabase
from hushstream.engine.learner.batch import REPEATED
from hushstream.engine.machine import MemoryUserStore, StoredUser
from hushstream.engine.records import ReplayMismatch
from hushstream.engine.state import packed
from hushstream.features.schema import declare
from hushstream.feedback.join import Decisions
from hushstream.learners.exploration import WHOLE
from hushstream.schemas import codec
from hushstream.systems.p2b.configuration import ContextConfig
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.edge import users as learner_users
from hushstream.systems.p2b.machines import learner
from hushstream.systems.p2b.machines.learner import LearnerMachine
from hushstream.systems.p2b.slots import unpack
from storage import SEAL

USERS = [f"user-{number}" for number in range(12)]
HOUR = 3600.0


def play(rig, rigs, events=160, seed=0, after_each=None, gap=2.0):
    """Users in random order: contexts, most of them rewarded, some only shown, some left; time goes on."""
    rng = np.random.default_rng(seed)
    waiting = []
    for number in range(events):
        user = USERS[int(rng.integers(len(USERS)) * rng.random())]
        rig.context(f"e{number}", user, rigs.point(int(rng.integers(4))))
        waiting.append((f"e{number}", user))
        if len(waiting) > 5 and rng.random() < 0.8:
            event_id, clicker = waiting.pop(int(rng.integers(len(waiting))))
            arm = rig.seen.arms.get(event_id, 0)
            feedback = rng.random()
            if feedback < 0.6:
                rig.reward(event_id, arm, float(rng.integers(2)), clicker)
            elif feedback < 0.8:
                rig.shown(event_id, arm, clicker)
        rig.wait(float(rng.random() * gap))
        if rng.random() < 0.05:
            rig.wait(30.0)
        if rng.random() < 0.4:
            rig.fold()
            if after_each is not None:
                after_each()
    rig.end_phase()
    rig.fold()
    return rig


def same_bytes(rig, other):
    return all(
        [rig.journal == other.journal, rig.seen.outputs == other.seen.outputs, rig.seen.counts == other.seen.counts]
    )


@pytest.fixture
def system(rigs):
    return rigs.make_system(
        slot={"lifetime_slots": 2},
        public_dataset=True,
        users={"expire_after_seconds": 45.0},
    )


@pytest.fixture
def models(rigs, system):
    track = rigs.AggregatorRig(system)
    track.give(rigs.window_sums_values(system, 3))
    return [track.genesis, *track.journal]


def rig_with(rigs, system, models):
    rig = rigs.LearnerRig(system)
    for value in models[:2]:
        rig.put("models", value)
    return rig


def newer_model(rig, models):
    """A later version in the middle of the play, so that users stand on different ones."""
    added = []

    def add():
        if len(rig.journal) == 20 and not added:
            added.extend(rig.put("models", value) for value in models[2:])

    return add


def test_users_at_rest_change_no_byte(rigs, system, models):
    straight = rig_with(rigs, system, models)
    play(straight, rigs, after_each=newer_model(straight, models))
    spilling = rig_with(rigs, system, models)
    store = MemoryUserStore()
    spilling.machine.keep_users(store, 2)
    most = []
    add = newer_model(spilling, models)
    play(spilling, rigs, after_each=lambda: (add(), most.append(len(spilling.machine.agents))))
    assert same_bytes(straight, spilling)
    assert store.all()
    assert np.median(most) < len(straight.machine.agents)


def test_a_learner_taken_up_from_disk_at_every_cut_goes_on_byte_for_byte(rigs, system, models, tmp_path):
    straight = rig_with(rigs, system, models)
    play(straight, rigs, after_each=newer_model(straight, models))
    broken = rig_with(rigs, system, models)
    place = tmp_path / "0.users"
    with closing(UserDatabase(place, SEAL)) as store:
        broken.machine.keep_users(store, 4)
        cuts = []
        add = newer_model(broken, models)

        def crash():
            add()
            cuts.append(1)
            if len(cuts) % 2:
                store.save(broken.machine.snapshot())
                saved.append(len(broken.journal))
                return
            broken.machine = LearnerMachine(system, 0, broken.key)
            store.rewind()
            broken.machine.keep_users(store, 4)
            broken.machine.start(broken.genesis)
            broken.machine.restore(store.snapshot())
            for value in broken.journal[saved[-1] :]:
                broken.machine.replay(value, [broken.slice(p) for p in broken.machine.recovery_ranges(value)])

        saved = []
        play(broken, rigs, after_each=crash)
    assert len(cuts) > 20
    assert same_bytes(straight, broken)


class Cuts:
    """Snapshots that are packed bit by bit between folds, and takes-up from the last one that was saved."""

    def __init__(self, rig, store, system, seed):
        self.rig, self.store, self.system = rig, store, system
        self.draw = np.random.default_rng(seed)
        self.packing = None
        self.cut = 0
        self.saved = None
        self.interleaved = self.takes_up = 0

    def step(self):
        if self.packing is None:
            self.packing, self.cut = self.rig.machine.snapshot_portions(), len(self.rig.journal)
        for _ in range(int(self.draw.integers(1, 40))):
            try:
                next(self.packing)
            except StopIteration as end:
                self.keep(end.value)
                return
        if self.draw.random() < 0.05:
            self.packing.close()
            self.packing = None

    def keep(self, state):
        self.packing = None
        self.interleaved += self.cut < len(self.rig.journal)
        if self.store is not None:
            self.store.save(state)
        self.saved = (state, self.cut)
        if self.draw.random() < 0.5:
            self.take_up()

    def take_up(self):
        rig = self.rig
        rig.machine = LearnerMachine(self.system, 0, rig.key)
        if self.store is not None:
            self.store.rewind()
            rig.machine.keep_users(self.store, 4)
            assert self.store.snapshot() == self.saved[0]
        rig.machine.start(rig.genesis)
        rig.machine.restore(self.saved[0])
        for value in rig.journal[self.saved[1] :]:
            rig.machine.replay(value, [rig.slice(p) for p in rig.machine.recovery_ranges(value)])
        self.takes_up += 1


class FullDatabase(UserDatabase):
    """One whose disk has room for what leaves memory, and never for those who complete a snapshot."""

    def complete(self, users):
        return False


@pytest.mark.sweep(keep=["0-UserDatabase"])
@pytest.mark.parametrize("store", [UserDatabase, FullDatabase, None])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_snapshot_that_is_packed_while_folds_go_on_is_that_of_its_cut(
    rigs, system, models, tmp_path, monkeypatch, store, seed
):
    monkeypatch.setattr(learner_users, "_PORTION_USERS", 1)
    monkeypatch.setattr(learner_users, "_MET_AT_ONCE", 1 + seed)
    monkeypatch.setattr(packed, "PORTION_ITEMS", 2)
    straight = rig_with(rigs, system, models)
    play(straight, rigs, 300, seed, after_each=newer_model(straight, models))
    broken = rig_with(rigs, system, models)
    with closing((store or UserDatabase)(tmp_path / "0.users", SEAL)) as users:
        if store is not None:
            broken.machine.keep_users(users, 4)
        cuts = Cuts(broken, None if store is None else users, system, seed)
        add = newer_model(broken, models)
        play(broken, rigs, 300, seed, after_each=lambda: (add(), cuts.step()))
    assert cuts.interleaved > 2
    assert cuts.takes_up > 1
    assert same_bytes(straight, broken)


@pytest.mark.parametrize("shown", [True, False])
def test_a_user_whose_wait_ended_between_two_snapshots_is_in_the_second_as_they_are_then(rigs, tmp_path, shown):
    rig = rigs.LearnerRig()
    with closing(UserDatabase(tmp_path / "0.users", SEAL)) as store:
        rig.machine.keep_users(store, 100)
        rig.decide("e1", "ann")
        if shown:
            rig.shown("e1", 0, "ann")
            rig.fold()
        store.save(rig.machine.snapshot())
        rig.wait(2 * HOUR)
        rig.decide("e2", "bob")
        store.save(rig.machine.snapshot())
        fresh = LearnerMachine(rig.system, 0, rig.key)
        store.rewind()
        fresh.keep_users(store, 100)
        fresh.start(rig.genesis)
        fresh.restore(store.snapshot())
        assert fresh.agents.get("ann").dump() == rig.machine.agents.get("ann").dump()
        assert fresh.agents.get("ann").open == {}


def test_a_snapshot_with_users_on_disk_holds_none_of_them(rigs, tmp_path):
    rig = rigs.LearnerRig()
    with closing(UserDatabase(tmp_path / "0.users", SEAL)) as store:
        rig.machine.keep_users(store, 4)
        rig.interact("ann", 2)
        few = len(rig.machine.snapshot())
        for number in range(50):
            rig.interact(f"u{number}", 2)
        rig.machine.past.load(Decisions().dump())
        assert len(rig.machine.snapshot()) < few + 200
    assert b"ann" not in (tmp_path / "0.users").read_bytes()


def test_users_whose_decisions_wait_are_at_rest_like_all_others_and_learn_when_feedback_comes(rigs):
    rig = rigs.LearnerRig(rigs.make_system(feedback={"attribution_window_seconds": HOUR}))
    store = MemoryUserStore()
    rig.machine.keep_users(store, 20)
    for number in range(100):
        rig.decide(f"e{number}", f"user-{number}")
    assert len(rig.machine.agents) < 40
    assert len(store.all()) > 60
    for number in range(50):
        rig.reward(f"e{number}", 0, 1.0, f"user-{number}")
        rig.shown(f"e{number + 50}", 0, f"user-{number + 50}")
        rig.fold()
    rig.wait(HOUR)
    rig.decide("last", "bob")
    assert (rig.seen.counts["rewarded"] + rig.seen.counts["other_arm"], rig.seen.counts["expired_as_zero"]) >= (50, 50)
    assert all(rig.machine.agents.get(f"user-{number}").state is not None for number in range(100))


def test_no_fold_puts_many_users_to_rest_and_no_more_than_the_limit_are_warm(rigs):
    rig = rigs.LearnerRig()
    written = []

    class Watched(MemoryUserStore):
        def put(self, users):
            users = list(users)
            written.append(len(users))
            return super().put(users)

    rig.machine.keep_users(Watched(), 400)
    most = 0
    for number in range(900):
        rig.reward(f"e{number}", rig.decide(f"e{number}", f"user-{number}"), 1.0, f"user-{number}")
        most = max(most, len(rig.machine.agents))
    assert sum(written) > 400
    assert max(written) <= learner_users._PORTION_USERS + 2, "a portion, and as many as were met"
    assert most <= 402


# Erasure.


class CrowdedDatabase(UserDatabase):
    """One that has no room now and then."""

    full = False

    def put(self, users):
        return not self.full and super().put(users)


def begun_anew(rig, rigs, store=None):
    """A user is forgotten, with no room for what stays of them, comes back, and learns."""
    rig.interact("ann", 1)
    if store is not None:
        store.full = True
    forget(rig, "ann")
    for number in range(3):
        rig.reward(f"a{number}", rig.decide(f"a{number}", "ann", rigs.point(number)), 1.0, "ann")
    rig.fold()
    if store is not None:
        store.full = False


def test_who_began_anew_while_there_was_no_room_has_what_they_learned_since(rigs, tmp_path):
    straight, crowded = rigs.LearnerRig(), rigs.LearnerRig()
    with closing(CrowdedDatabase(tmp_path / "0.users", SEAL)) as store:
        crowded.machine.keep_users(store, 2)
        begun_anew(straight, rigs)
        begun_anew(crowded, rigs, store)
        for rig in (straight, crowded):
            for number in range(6):
                rig.interact(f"other-{number}", 1)
        assert "ann" not in dict(crowded.machine.agents.warm()), "they are at rest"
        for rig in (straight, crowded):
            rig.decide("last", "ann", rigs.point(1))
        assert crowded.machine.agents.get("ann").dump() == straight.machine.agents.get("ann").dump()
        assert same_bytes(straight, crowded)


def test_a_snapshot_has_who_began_anew_while_there_was_no_room(rigs, tmp_path):
    rig = rigs.LearnerRig()
    with closing(CrowdedDatabase(tmp_path / "0.users", SEAL)) as store:
        rig.machine.keep_users(store, 100)
        begun_anew(rig, rigs, store)
        store.full = True
        store.save(rig.machine.snapshot())
        store.rewind()
        fresh = LearnerMachine(rig.system, 0, rig.key)
        fresh.keep_users(store, 100)
        fresh.start(rig.genesis)
        fresh.restore(store.snapshot())
        assert fresh.agents.get("ann").dump() == rig.machine.agents.get("ann").dump()


def forget(rig, user, **changes):
    fields = {"user": user, "config_digest": rig.system.digest, **changes}
    rig.put("contexts", codec.encode("Forget", fields))
    return rig.fold()


def test_forgetting_drops_the_state_and_sends_what_is_owed_as_null(rigs):
    rig = rigs.LearnerRig()
    rig.interact("ann", 3)
    seen = forget(rig, "ann")
    assert seen.counts["forgotten"] == 1
    assert rig.machine.agents.get("ann") is None
    rig.wait(20)
    rig.decide("later", "bob")
    (slot,) = rig.seen.slots
    assert unpack(slot.content, rigs.CODES, rigs.ARMS, 1) is None


def test_erasure_does_not_refill_the_allowance(rigs):
    rig = rigs.LearnerRig()
    for life in range(4):
        for number in range(7):
            rig.reward(f"{life}-{number}", rig.decide(f"{life}-{number}", "ann"), 1.0, "ann")
            rig.wait(12)
        forget(rig, "ann")
    rig.end_phase()
    rig.fold()
    assert len(rig.seen.slots) == rig.system.config.slot.lifetime_slots == 1


def test_a_forgotten_name_is_in_no_state(rigs):
    rig = rigs.LearnerRig()
    for number in range(2):
        rig.reward(f"e{number}", rig.decide(f"e{number}", "ann-canary"), 1.0, "ann-canary")
    rig.shown("unknown", 1, "ann-canary")
    rig.fold()
    assert b"ann-canary" in rig.machine.snapshot()
    forget(rig, "ann-canary")
    assert b"ann-canary" not in rig.machine.snapshot()
    assert rig.machine.terms.policy.dump_models()[-1]["users"] == 0


@pytest.mark.parametrize("ends", ["forgotten", "over", "rewarded"])
def test_a_context_is_in_no_state_once_nothing_waits_for_its_feedback(rigs, ends):
    rig = rigs.LearnerRig()
    context = np.array([0.123, 0.456, 0.221, 0.2], "<f4")
    arm = rig.decide("canary", "ann", context)
    assert context.tobytes() in rig.machine.snapshot()
    if ends == "forgotten":
        forget(rig, "ann")
    elif ends == "rewarded":
        rig.reward("canary", arm, 1.0, "ann")
        forget(rig, "ann")  # What she has learned from it and owes of it goes, too.
    else:
        rig.wait(3600)
    rig.decide("later", "bob")
    assert context.tobytes() not in rig.machine.snapshot()


@pytest.mark.parametrize("remembered", [1, 50])
def test_no_click_decides_whether_an_old_event_is_decided_anew(rigs, remembered):
    """That would decide whether another user's slot leaves. Rows that wait for their answer count as answered."""
    sent = set()
    for click in ("none", "early", "between"):
        feedback = {"attribution_window_seconds": 6.0, "remembered_events": remembered}
        rig = rigs.LearnerRig(
            rigs.make_system(slot={"after_interactions": 2, "settle_seconds": 10.0}, feedback=feedback)
        )
        rig.decide("e0", "ann")
        for number in range(remembered - 1):
            rig.context(f"x{number}", f"u{number}")
        rig.fold()
        rig.wait(7)
        if click == "early":
            rig.reward("e1", 0, 1.0, "bob")
        rig.context("e1", "bob")
        if click == "between":
            rig.reward("e1", 0, 1.0, "bob")
        rig.wait(0.001)
        rig.context("e0", "ann")
        rig.fold()
        rig.wait(60)
        rig.decide("last", "zoe")
        sent.add(len(rig.seen.slots))
    assert sent == {1}


def test_no_state_tells_which_old_events_a_forgotten_user_had(rigs):
    rig = rigs.LearnerRig()
    for number in range(3):
        rig.decide(f"e{number}", "ann")
        rig.wait(3600)
    rig.decide("later", "bob")
    past = rig.machine.past
    assert [past[number].before for number in range(4)] == [-1, 0, 1, -1]
    forget(rig, "ann")
    assert {past[number].before for number in range(4)} == {-1}
    assert {past[number].number for number in range(4)} == {0}


def test_an_old_answer_of_a_forgotten_user_is_nobody_elses(rigs):
    rig = rigs.LearnerRig()
    rig.decide("once", "ann")
    forget(rig, "ann")
    rig.context("once", "ann")
    seen = rig.fold()
    assert seen.answers == []
    assert seen.reasons == ["event_of_another_user"]


def test_an_erasure_under_another_configuration_is_refused(rigs):
    rig = rigs.LearnerRig()
    rig.interact("ann", 1)
    assert forget(rig, "ann", config_digest=bytes(16)).reasons == ["other_configuration"]
    assert rig.machine.agents.get("ann") is not None


def test_where_an_erasure_lies_in_a_batch_does_not_matter(rigs):
    def played(together):
        rig = rigs.LearnerRig()
        for number in range(3):
            rig.context(f"a{number}", "ann", rigs.point(number))
            if number == 1:
                rig.put("contexts", codec.encode("Forget", {"user": "ann", "config_digest": rig.system.digest}))
            if not together:
                rig.fold()
        rig.fold()
        return rig

    assert played(True).seen.answers == played(False).seen.answers
    assert played(True).machine.agents.get("ann").decided == played(False).machine.agents.get("ann").decided == 3


# Quotas.


def quota(rigs, **users):
    return rigs.LearnerRig(rigs.make_system(users=users))


def test_over_quota_everybodys_decision_is_given_and_nothing_is_learned(rigs):
    rig = quota(rigs, contexts_per_period=2, period_seconds=HOUR)
    rig.interact("ann", 2)
    before = rig.machine.agents.get("ann").dump()
    for number in range(30):
        arm = rig.decide(f"more-{number}", "ann")
        rig.reward(f"more-{number}", arm, 1.0, "ann")
    seen = rig.fold()
    assert {answer.policy for answer in rig.seen.answers[2:]} == {1}
    assert seen.counts["rewarded"] == 0
    after = rig.machine.agents.get("ann").dump()
    assert {**after, "used": before["used"]} == before
    assert rig.seen.counts["over_quota"] == 30
    rig.wait(HOUR)
    rig.decide("next-period", "ann")
    assert rig.seen.answers[-1].policy == 0


def test_over_quota_one_question_gets_one_answer(rigs):
    rig = quota(rigs, contexts_per_period=1)
    rig.interact("ann", 1)
    answers = {rig.decide("again", "ann") for _ in range(5)}
    assert len(answers) == 1


def test_a_quota_is_not_refilled_by_erasure(rigs):
    rig = quota(rigs, contexts_per_period=2)
    rig.interact("ann", 2)
    forget(rig, "ann")
    rig.decide("more", "ann")
    assert rig.seen.answers[-1].policy == 1


def test_one_users_clicks_cannot_take_the_place_of_everybodys(rigs):
    rig = rigs.LearnerRig(rigs.make_system(users={"early_feedback": 3}, feedback={"early_feedback": 10}))
    rig.reward("bobs", 0, 1.0, "bob")
    for number in range(50):
        rig.reward(f"none-{number}", 0, 1.0, "ann")
    seen = rig.fold()
    assert seen.reasons == ["too_many_parked"] * 47
    rig.decide("bobs", "bob")
    assert rig.seen.counts["rewarded"] == 1
    assert (rig.machine.early.of("ann"), rig.machine.early.of("bob")) == (3, 0)


def test_a_user_unseen_for_long_begins_anew_but_their_allowance_does_not(rigs):
    system = rigs.make_system(users={"expire_after_seconds": HOUR}, slot={"lifetime_slots": 2})
    rig = rigs.LearnerRig(system)
    rig.interact("ann", 3)
    rig.wait(20)
    rig.decide("tick", "bob")
    assert len(rig.seen.slots) == 1
    gram, _ = rig.knows("ann")
    assert not np.allclose(gram, np.eye(rigs.DIMENSION), atol=1e-3)
    rig.wait(HOUR)
    rig.decide("back", "ann")
    assert rig.machine.agents.get("ann").state is None
    for number in range(20):
        rig.decide(f"more-{number}", "ann")
        rig.wait(20)
    rig.end_phase()
    rig.fold()
    assert len(rig.seen.slots) == 2
    assert len({slot.report_id for slot in rig.seen.slots}) == 2
    assert rig.machine.agents.get("ann").decided == 24


@pytest.mark.parametrize("together", [False, True])
def test_a_visit_over_quota_keeps_a_state_as_long_as_any_other_one(rigs, together):
    """Where it was folded with an earlier visit, the state once went by the time of that one."""
    rig = rigs.LearnerRig(rigs.make_system(users={"expire_after_seconds": HOUR, "contexts_per_period": 1}))
    for event in ("within", "over"):
        rig.context(event)
        if not together:
            rig.fold()
        rig.wait(1)
    rig.fold()
    rig.wait(HOUR - 1.5)
    rig.decide("before", "bob")
    assert (rig.seen.counts["over_quota"], rig.seen.counts["expired"]) == (1, 0)
    rig.wait(HOUR / 2)
    rig.decide("after", "bob")
    assert rig.seen.counts["expired"] == 1


def test_the_state_of_a_user_who_never_comes_back_goes_too(rigs):
    rig = rigs.LearnerRig(rigs.make_system(users={"expire_after_seconds": HOUR}))
    rig.interact("ann", 3)
    for number in range(8):
        rig.wait(HOUR / 4)
        rig.decide(f"b{number}", "bob")
    assert [user for user, _ in rig.machine.agents.warm()] == ["bob"]
    assert rig.seen.counts["expired"] == 1


def test_a_slot_in_progress_keeps_its_target_over_an_expiry(rigs):
    """The same number of decisions, the same reported interaction, drawn before from the key alone."""
    reported = []
    for pause in (0.0, 2 * HOUR):
        rig = rigs.LearnerRig(rigs.make_system(users={"expire_after_seconds": HOUR}, slot={"after_interactions": 6}))
        rig.interact("ann", 1)
        rig.wait(pause)
        agent = rig.machine.agents.get("ann")
        for number in range(1, 6):
            rig.reward(f"x{number}", rig.decide(f"x{number}", "ann", rigs.point(number)), 1.0, "ann")
            rig.fold()
        agent = rig.machine.agents.get("ann")
        reported.append((agent.due, sorted(agent._waits.targets)))
    assert reported[0] == reported[1]


def test_very_many_expire_at_once_wherever_they_lie(rigs, tmp_path):
    system = rigs.make_system(users={"expire_after_seconds": HOUR})
    counts = []
    for store, limit in ((None, None), (MemoryUserStore(), 40), (UserDatabase(tmp_path / "0.users", SEAL), 40)):
        rig = rigs.LearnerRig(system)
        if store is not None:
            rig.machine.keep_users(store, limit)
        for number in range(2500):
            rig.context(f"e{number}", f"user-{number}")
        rig.fold()
        if isinstance(store, UserDatabase):
            store.save(rig.machine.snapshot())
        arms = rig.seen.arms
        for number in range(2500):
            rig.reward(f"e{number}", arms[f"e{number}"], 1.0, f"user-{number}")
        rig.fold()
        rig.wait(2 * HOUR)
        rig.decide("last", "bob")
        counts.append(rig.seen.counts["expired"])
        assert [user for user, _ in rig.machine.agents.warm()] == ["bob"]
        assert all(model["users"] == 0 for model in rig.machine.terms.policy.dump_models())
        if isinstance(store, UserDatabase):
            store.close()
    assert counts == [2500] * 3


def test_who_is_new_is_looked_for_once_and_again_after_a_deletion(rigs, monkeypatch):
    rig, store = rigs.LearnerRig(), MemoryUserStore([StoredUser(b"of somebody else", 0, b"")])
    monkeypatch.setattr(store, "get", asked := Mock(wraps=store.get))
    rig.machine.keep_users(store, 100)
    for number in range(1, 4):
        rig.decide(f"e{number}")
        assert (asked.call_count, rig.machine.agents.get("ann").decided) == (number, number)
        rig.machine.agents.delete_state("ann")
    for number in range(300):
        rig.context(f"new-{number}", f"user-{number}")
    rig.fold()
    assert asked.call_count == 303, "of users who come together, too"


def test_a_long_fold_scores_and_learns_no_more_at_once_than_a_short_one(rigs, monkeypatch):
    """Each row takes memory with every item and own step: all rows of a fold together once took 400 MB."""
    rig = rigs.LearnerRig(rigs.make_system(partitions={"learner": 1}))
    policy, sizes = type(rig.machine.terms.policy), {"scores_of": [], "learn_all": []}

    def noted(usual, found):
        return lambda self, some, *more: found.append(len(some)) or usual(self, some, *more)

    for name, found in sizes.items():
        monkeypatch.setattr(policy, name, noted(getattr(policy, name), found))
    for number in range(600):
        rig.context(f"e{number}", f"user-{number}", rigs.point(number))
    assert len(rig.fold().answers) == 600
    for number in range(600):
        rig.reward(f"e{number}", 0, 1.0, f"user-{number}")
    rig.fold()
    assert sizes == {"scores_of": [256, 256, 88], "learn_all": [256, 256, 88]}


FEATURES = declare({"age": {"kind": "number", "range": [0, 3]}, "new": {"kind": "boolean"}})


def declared_rig(rigs, system):
    """A rig whose contexts are rows of declared features."""
    changes = {"context": ContextConfig(declared=FEATURES), "encoder": rigs.EncoderConfig(), "click_rate": 0.1}
    release = rigs.ReleaseConfig(form="features", sums="fresh")
    rig = rigs.LearnerRig(P2BSystem.declared(replace(system.config, release=release, **changes)))

    def context(event_id, user, x):
        row = FEATURES.encode({"age": int(np.argmax(x)), "new": False}).row
        fields = {"features_digest": FEATURES.digest, "event_id": event_id, "user": user, "row": row, "line": "private"}
        return rig.put("contexts", codec.encode("FeatureContext", fields))

    rig.context = context
    return rig


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_rows_taken_together_are_what_each_of_them_would_be(rigs, monkeypatch, seed, declared):
    """Known users and new ones, events asked again, clicks that come early, late or twice, waits that end between."""

    def played(at_once):
        taken = {"_take": [], "_learn_rewards": []}
        for (name, found), rows in zip(taken.items(), (1, 0), strict=True):
            usual = getattr(learner.LearnerMachine, name)
            monkeypatch.setattr(
                learner.LearnerMachine,
                name,
                lambda self, *some, usual=usual, found=found, rows=rows: (
                    found.append(len(some[rows])) or usual(self, *some)
                ),
            )
        monkeypatch.setattr(learner, "AT_ONCE", at_once)
        draw, feedback = np.random.default_rng(seed), {"attribution_window_seconds": 20.0, "remembered_events": 8}
        system = rigs.make_system(partitions={"learner": 1}, slot={"after_interactions": 4}, feedback=feedback)
        rig, users = declared_rig(rigs, system) if declared else rigs.LearnerRig(system), []
        for number in range(300):
            users.append(f"user-{int(30 * draw.random() ** 2)}")
            rig.context(f"e{number}", users[-1], rigs.point(int(draw.integers(4))))
            if draw.random() < 0.04:
                rig.context(f"e{number - int(draw.integers(40))}", users[-1], rigs.point(1))
            if draw.random() < 0.1:
                rig.shown(f"e{number}", int(draw.integers(rigs.ARMS)), users[-1])
            if draw.random() < 0.1:
                rig.reward(f"e{number + 2}", int(draw.integers(rigs.ARMS)), 1.0, users[-1])
            if draw.random() < 0.15:
                rig.fold()
                rig.wait(15.0 * float(draw.random() < 0.3))
                for event in draw.integers(max(0, number - 30), number + 1, size=12).tolist():
                    reward = float(draw.integers(2))
                    whose = users[event] if draw.random() < 0.9 else users[0]
                    rig.reward(f"e{event}", int(draw.integers(rigs.ARMS + (draw.random() < 0.1))), reward, whose)
            rig.wait(float(draw.choice([0.0, 0.0, 0.2, 3.0])))
        rig.wait(60.0)
        rig.context("last", users[0], rigs.point(0))
        rig.fold()
        monkeypatch.undo()
        return rig, taken

    (together, taken), (one_by_one, alone) = played(learner.AT_ONCE), played(1)
    assert all(len(sizes) > 10 and max(sizes) > 3 for sizes in taken.values())
    assert all(max(sizes) == 1 for sizes in alone.values())
    assert same_bytes(together, one_by_one)
    assert together.machine.snapshot() == one_by_one.machine.snapshot()
    again = [policy for record in together.journal for policy in _policies_of_repeats(codec.decode(record)[1])]
    assert set(again) == {REPEATED}, "an event that is asked twice in a fold is decided once"


def _policies_of_repeats(fields):
    events = fields["event_ids"]
    return [policy for place, policy in enumerate(fields["policies"]) if events[place] in events[:place]]


def test_a_row_that_is_taken_again_has_nothing_of_who_left_it(rigs):
    rig, other = rigs.LearnerRig(), rigs.LearnerRig()
    rig.interact("ann", 5)
    rows = [rig.machine.agents.row("ann")]
    rig.machine.agents.delete_state("ann")
    rows += rig.machine.agents.begin({"bob": "private"})
    assert rows[0] == rows[1], "the row is taken again"

    def held(machine, row):
        return {name: getattr(machine.agents.table, name)[row] for name in machine.agents.table._empty}

    assert held(rig.machine, rows[1]) == held(other.machine, *other.machine.agents.begin({"bob": "private"}))


def test_rows_answered_together_are_judged_one_by_one_in_a_replay(rigs):
    """On another CPU: an arm that scores as well stands as it was journaled, any other one is a change."""
    rig = rigs.LearnerRig(rigs.make_system(partitions={"learner": 1}))

    def decide_six(first):
        for number in range(first, first + 6):
            rig.context(f"e{number}", USERS[number % 2], rigs.point(number))
        return np.array([answer.arm for answer in rig.fold().answers], "<i4")

    def follow_with(moved, propensity=None):
        """Another machine's arms, where the last record has other ones, or another propensity, in some rows."""
        name, fields = codec.decode(rig.journal[-1])
        arms = (np.frombuffer(fields["arms"], "<i4") + np.array(moved)) % rigs.ARMS
        changed = {"arms": arms.astype("<i4").tobytes()}
        if propensity is not None:
            changed["propensities"] = np.array([propensity] * len(arms), "<u4").tobytes()
        content = codec.encode(name, {**fields, **changed, "chain": bytes(16)})[:-16]
        before = [rig.genesis, *rig.journal][-2]
        fresh, rig.journal[-1] = (
            LearnerMachine(rig.system, 0, rig.key),
            content + rig.key.digest("chain", before[-16:], content),
        )
        rig.replayed(fresh)
        return fresh, arms.tolist()

    arms, cold = decide_six(0), rig.journal[-1]
    fresh, journaled = follow_with([0, 1, 0, 0, 2, 0])
    assert fresh.float_ties == 2
    assert [fresh.past[number].arm for number in range(6)] == journaled
    rig.journal[-1] = cold
    for number in range(6):
        rig.reward(f"e{number}", int(arms[number]), 1.0, USERS[number % 2])
    rig.fold()
    decide_six(6)
    known = rig.journal[-1]
    for row in range(6):
        rig.journal[-1] = known
        with pytest.raises(ReplayMismatch, match=f"another arm at row {row}"):
            follow_with(np.eye(6, dtype=int)[row])
    for propensity in (WHOLE // 2, WHOLE - 1):
        rig.journal[-1] = known
        with pytest.raises(ReplayMismatch, match="another arm at row 0"):
            follow_with([0] * 6, propensity)
