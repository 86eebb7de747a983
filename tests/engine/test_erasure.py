"""Erasing a user of a collaborative deployment: what goes, what is never released again, and that nothing tells it.

The strongest check plays two worlds that differ in the rewards of the erased user alone, under one key: from the
deletion request on every release must have the same bytes, and the states that are kept must be the same.
"""

import numpy as np
import pytest

from hushstream.engine.records import InputRange, ReplayMismatch
from hushstream.feedback.join import JoinOutcome
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.algorithm.noised_sums import NoisedRewardSums
from hushstream.systems.colin.rows import Rows

MODES = {
    "negative-digit": {},
    "gaussian": {"noise": "gaussian"},
    "binary": {"mechanism": "binary"},
    "blt": {"mechanism": "blt", "noise": "gaussian"},
    "exact": {"mechanism": "exact"},
    "learner": {"noise_at": "learner"},
    "edge binary": {"noise_at": "learner", "mechanism": "binary"},
    "noisy-reward": {"noise_at": "learner", "mechanism": "noisy-reward"},
}
NOISED = [mode for mode in MODES if mode != "exact"]
SERVER = [mode for mode, release in MODES.items() if "noise_at" not in release]
EDGE = [mode for mode in MODES if mode not in SERVER]
ANN, BOB = 0, 1
"""Numbers in the graph."""
KEYED = {"chain", "running", "leaves"}
"""Of a packed state: digests of what was fed, under the zone's key."""


@pytest.fixture(params=list(MODES))
def mode(request):
    return request.param


def system_of(related, mode, **changes):
    release = {**related.DEFAULTS["release"], **MODES[mode], **changes}
    return related.make_system(release=release, public_dataset=mode == "exact")


def erasure(system, node=ANN):
    """What the learner passes on to the counter."""
    return codec.encode("Erasure", {"node": node, "config_digest": system.digest})


def forget(rig, user="ann", **changes):
    """Of a learner."""
    rig.put("contexts", codec.encode("Forget", {"user": user, "config_digest": rig.system.digest, **changes}))
    return rig.fold()


class World:
    """A learner, and a counter where there is one."""

    def __init__(self, related, mode, anns_rewards):
        system = system_of(related, mode)
        self.related = related
        self.learner = related.RelatedLearnerRig(system, related.SECRET)
        self.counter = None if mode in EDGE else related.CounterRig(system, related.SECRET)
        self.anns = np.random.default_rng(anns_rewards)
        self.events = 0

    def play(self, rounds):
        """Some rounds of two users, ended by a phase end, in the middle of which a step is open."""
        for number in range(rounds):
            for user in ("ann", "bob"):
                reward = float(self.anns.random()) if user == "ann" else 1.0
                features = self.related.some_features(10 * self.events)
                self.learner.interact(f"{user[0]}-{self.events}", user, reward, features)
            self.events += 1
            if number % 3 == 2:
                self.learner.wait(20)
        return self.end()

    def end(self):
        """End a phase, and let the counter read what the learner sent; gives the new releases."""
        self.learner.end_phase(self.events)
        return self.passed_on(self.learner.fold())

    def forget(self):
        return self.passed_on(forget(self.learner))

    def passed_on(self, seen):
        rewards = [output for step in self.learner.seen.steps for output in step.releases if output.topic == "rewards"]
        if self.counter is None:
            steps = self.learner.seen.releases("releases")
        else:
            for output in rewards[len(self.counter.logs.get(("rewards", 0), [])) :]:
                self.counter.put("rewards", output.value)
            self.counter.fold()
            steps = self.counter.seen.releases("releases")
        return [output.value for output in steps if codec.decode(output.value)[0] == "Release"]

    def states(self):
        """What each role keeps, without keyed digests."""
        learner = self.learner.machine.state.form.read(self.learner.machine.snapshot())
        counter = {}
        if self.counter is not None:
            counter = self.counter.machine.state.form.read(self.counter.machine.snapshot())
        return [{name: part for name, part in state.items() if name not in KEYED} for state in (learner, counter)]


def blocks_of(values):
    return [np.frombuffer(codec.decode(value)[1]["blocks"], "<i4").tolist() for value in values]


# Nothing of the erased user is told from the deletion request on.


def played(related, mode, anns_rewards):
    """(releases before the deletion request, those after it, states right after it and at the end)."""
    world = World(related, mode, anns_rewards)
    world.play(4)
    world.learner.interact("open", "ann", float(world.anns.random()))
    before = len(world.passed_on(None))
    world.forget()
    at_once = world.states()
    world.play(4)
    released = world.play(3)
    return released[:before], released[before:], at_once, world.states()


def test_two_worlds_that_differ_in_their_rewards_are_one_from_the_deletion_on(related, mode):
    first, second = played(related, mode, 1), played(related, mode, 2)
    assert first[0] != second[0], "their rewards are in what was released before"
    assert first[1] == second[1]
    assert first[2] == second[2]
    assert first[3] == second[3]


@pytest.mark.parametrize("mode", NOISED)
def test_a_user_whose_sums_were_kept_would_be_told_by_the_states(related, mode, monkeypatch):
    """The comparison above can fail: without the erasure of the sums it does."""
    monkeypatch.setattr(NoisedRewardSums, "erase", lambda self, node: None)
    for kind in NoisedRewardSums.__subclasses__():
        monkeypatch.setattr(kind, "erase", lambda self, node: None)
    assert played(related, mode, 1)[2] != played(related, mode, 2)[2]


def test_no_release_after_the_deletion_names_them_and_the_others_go_on(related, mode):
    before, after, *_ = played(related, mode, 1)
    assert any(ANN in blocks for blocks in blocks_of(before))
    assert [BOB] in blocks_of(after)
    assert all(blocks in ([BOB], []) for blocks in blocks_of(after)), "a phase without rows has a release without users"


def test_their_name_is_in_no_state_and_their_numbers_are_gone(related, mode):
    world = World(related, mode, 1)
    world.play(3)
    world.learner.shown("never-decided", 1, "ann")
    world.learner.interact("open", "ann")
    assert b"ann" in world.learner.machine.snapshot()
    world.forget()
    machines = [world.learner.machine, *([] if world.counter is None else [world.counter.machine])]
    assert not any(b"ann" in machine.snapshot() for machine in machines)
    noised_sums = machines[-1].noised_sums
    assert not noised_sums._exact[ANN].any()
    assert noised_sums._exact[BOB].any()


@pytest.mark.parametrize("mode", NOISED)
def test_neither_new_rewards_nor_another_epoch_bring_their_sums_back(related, mode):
    world = World(related, mode, 1)
    world.play(3)
    world.forget()
    machine = (world.counter or world.learner).machine
    noised_sums = machine.noised_sums
    node = np.array([ANN])
    rows = related.some_rewards(1, 1)[0]
    again = machine.system.noised_sums(machine.key, machine.chain.genesis_nonce, 0, 0)
    again.load(noised_sums.dump())
    redrawn = machine.system.noised_sums(machine.key, machine.chain.genesis_nonce, 1, 0)
    redrawn.redraw(noised_sums)
    turned = machine.system.noised_sums(related.SECRET, machine.chain.genesis_nonce, 2, 0)
    turned.continue_from(noised_sums, released=True)
    state = noised_sums.dump()
    one = related_rows(related, (ANN, *rows[1:]))
    for held in (noised_sums, again, redrawn, turned):
        with pytest.raises(HushstreamError, match="got one who was erased"):
            held.sums(node)
        with pytest.raises(HushstreamError, match="got one who was erased"):
            held.add(one)
        assert ANN not in held.exact_sums()[0]
    assert noised_sums.dump() == state
    turned.add(related_rows(related, (BOB, *rows[1:])))
    assert turned.sums(np.array([BOB])).any()


def related_rows(related, *rows):
    return Rows(
        np.array([row[0] for row in rows], dtype=np.int32),
        np.array([row[1] for row in rows], dtype=np.float32),
        np.array([row[2] for row in rows]),
    )


# The learner.


@pytest.mark.parametrize("mode", ["negative-digit", "learner"])
def test_they_are_answered_as_before_and_nothing_is_learned_from_them(related, mode):
    rig, twin = (related.RelatedLearnerRig(system_of(related, mode)) for _ in range(2))
    forget(rig)
    for number in range(6):
        features = related.some_features(number)
        arm = rig.decide(f"e{number}", features=features)
        assert arm == twin.decide(f"e{number}", features=features)
        rig.shown(f"e{number}", arm)
        rig.reward(f"e{number}", arm)
    rig.end_phase()
    rig.fold()
    assert rig.seen.counts[JoinOutcome.LATE_REWARD] == 6
    assert rig.rows() == []
    assert not rig.machine.open
    assert rig.seen.records("releases", "Release") == []


def test_what_has_left_stays_and_what_was_open_does_not_leave(related):
    for together in (True, False):
        rig = related.RelatedLearnerRig()
        rig.interact("settled", "ann", 0.25)
        rig.interact("bobs", "bob", 0.75)
        rig.wait(20)
        rig.interact("open", "ann", 0.5)
        rig.context("open-too", "bob")
        if not together:
            rig.fold()
        forget(rig)
        rig.end_phase()
        rig.fold()
        assert [(node, reward) for node, _, reward in rig.rows()] == [(ANN, 0.25), (BOB, 0.75)]
        kinds = [codec.decode(output.value)[0] for output in rig.seen.releases("rewards")]
        assert kinds == ["Rewards", "Erasure", "Seal"]


def test_what_a_users_dark_visits_learned_is_deleted_and_nothing_is_added(related):
    mixed = {"alpha": 0.1, "clean_share": 0.001}
    rig = related.RelatedLearnerRig(related.make_system(learner=mixed, release={"mechanism": "noisy-reward"}))
    nothing = rig.machine.own.dump()
    for event in ("before", "after"):
        rig.interact(event, "ann", 1.0)
        rig.wait(30)
        rig.end_phase()
        rig.fold()
        assert (rig.machine.own.dump() == nothing) is (event == "after")
        forget(rig)


def test_the_counter_is_told_by_the_learner_of_the_users_home(related):
    rig = related.RelatedLearnerRig()
    assert forget(rig, "nobody-of-the-graph").releases("rewards") == []
    assert [output.value for output in forget(rig).releases("rewards")] == [erasure(rig.system)]
    assert forget(rig, config_digest=bytes(16)).reasons == ["other_configuration"]
    at_the_edge = related.RelatedLearnerRig(system_of(related, "learner"))
    assert forget(at_the_edge).outputs == []


# The counter.


def test_their_open_rows_are_dropped_and_a_step_of_theirs_alone_has_no_row(related):
    rig = related.CounterRig()
    rows = related.some_features(1, 3).tolist()
    rig.rewards(0, [(ANN, rows[0], 1.0), (BOB, rows[1], 1.0)])
    rig.rewards(1, [(ANN, rows[2], 1.0)])
    rig.put("rewards", erasure(rig.system))
    rig.end_phase()
    seen = rig.fold()
    (release,) = rig.released(seen)
    assert np.frombuffer(release["nodes"], "<i4").tolist() == [BOB]
    assert seen.counts["forgotten"] == 1
    rig.rewards(2, [(ANN, rows[0], 1.0)])
    rig.end_phase(1)
    seen = rig.fold()
    (release,) = rig.released(seen)
    assert (release["nodes"], release["blocks"], release["sums"]) == (b"", b"", b"")
    assert seen.counts["allowance_spent"] == 1


def test_an_erasure_of_nobody_in_the_graph_or_of_another_configuration_is_refused(related):
    rig = related.CounterRig()
    for node in (-1, len(related.USERS)):
        rig.put("rewards", erasure(rig.system, node))
    rig.put("rewards", codec.encode("Erasure", {"node": ANN, "config_digest": bytes(16)}))
    assert rig.fold().reasons == ["unknown_user", "unknown_user", "other_configuration"]


def test_an_epoch_that_noises_all_sums_again_leaves_them_out(related):
    """Inputs that changed after the erasure: the next epoch renoises the sums of those who were not erased."""
    rig = related.CounterRig(system_of(related, "negative-digit", epochs=3), related.SECRET)
    for number in range(3):
        rig.rewards(number, related.some_rewards(number, 4))
    rig.put("rewards", erasure(rig.system))
    rig.rewards(3, [(BOB, related.some_features(1, 1)[0].tolist(), 1.0)] * 4)
    rig.fold()
    machine = rig.fresh()
    machine.start(rig.genesis)
    for value in rig.journal[:-1]:
        machine.replay(value, [rig.slice(part) for part in machine.recovery_ranges(value)])
    rig.altered(4, batch_id=b"\xff" * 16)
    slices = [rig.slice(part) for part in machine.recovery_ranges(rig.journal[-1])]
    with pytest.raises(ReplayMismatch):
        machine.replay(rig.journal[-1], slices)
    machine.reopen(rig.journal[-1], slices)
    rig.rewards(4, related.some_rewards(5, 12))
    rest = rig.slice(InputRange("rewards", 0, machine.position, len(rig.logs["rewards", 0])))
    (step,) = machine.fold([rest])
    release = codec.decode(step.releases[0].value)[1]
    assert release["epoch"] == 1
    assert ANN not in np.frombuffer(release["blocks"], "<i4").tolist()
    assert ANN not in machine.noised_sums.exact_sums()[0].tolist()
