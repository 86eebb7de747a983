"""A collaborative learner is a pure fold of its logs: cuts, crashes and restores change no decision and no byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.engine.records import ReplayMismatch
from hushstream.engine.state.packed import OtherVersion
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError

CASES = settings(max_examples=12, deadline=None)
PLACES = ("server", "learner", "noisy-reward")


def system_of(related, noise_at):
    """Short memories and small allowances, so that each of them is reached."""
    feedback = {"early_feedback": 3, "remembered_events": 5}
    release = {"rows": 4, "horizon": 64, "rewards_per_user": 6}
    if noise_at != "server":
        release["noise_at"] = "learner"
    if noise_at == "noisy-reward":
        release["mechanism"] = noise_at
    return related.make_system(feedback=feedback, release=release)


def models_of(related, system):
    """Two versions and their genesis, in this system's own models topic."""
    aggregator = related.RelatedAggregatorRig(system)
    rows = [related.some_rewards(number, 6) for number in range(2)]
    trusted = related.make_system()
    for number, value in enumerate(related.release_values(trusted, rows)):
        name, fields = codec.decode(value)
        aggregator.put("releases", codec.encode(name, {**fields, "config_digest": system.digest}))
        aggregator.end_phase(number)
    aggregator.fold()
    return [aggregator.genesis, *aggregator.journal]


def play(related, rig, models, seed, cut=None, after_each=None):
    """Rounds of feedback, contexts, phase ends and time drawn from a seed; ``cut`` contexts are folded at a time."""
    draw = np.random.default_rng(seed)
    models = list(models)
    for turn in range(6):
        if models:
            rig.model(models.pop(0))
        for _ in range(draw.integers(6)):
            feed(related, rig, draw)
        for _ in range(draw.integers(1, 5)):
            user = related.USERS[draw.integers(3)] if draw.random() < 0.9 else "stranger"
            long = 2 if draw.random() < 0.1 else 1
            features = related.some_features(int(draw.integers(5))) * np.float32(long)
            rig.context(f"e{draw.integers(12)}", user, features, eligible=[b"", bytes([0b0110])][draw.integers(2)])
            rig.wait(float(draw.choice([0.0, 4.0])))
        if draw.random() < 0.3:
            rig.end_phase(turn)
        for slices in cuts_of(rig.arrived(), cut):
            rig.take(slices)
            if after_each is not None:
                after_each()
        rig.wait(float(draw.choice([0.0, 11.0])))
    return rig


def feed(related, rig, draw):
    event, user = f"e{draw.integers(12)}", related.USERS[draw.integers(3)]
    arm = int(draw.integers(related.ARMS + 1))
    # An honest client names the arm that it was told.
    told = rig.seen.arms.get(event)
    if told is not None and draw.random() < 0.8:
        arm, past = told, rig.machine.past.get(event)
        user = past.user if past is not None else user
    if draw.random() < 0.6:
        rig.shown(event, arm, user)
    else:
        rig.reward(event, arm, float(draw.choice([0.0, 1.0, 0.3, 2.0])), user)


def cuts_of(slices, cut):
    """The same records in the same order of meeting: models and clicks whole, then contexts in pieces."""
    if cut is None:
        return [slices] if slices else []
    first = [part for part in slices if part.topic != "contexts"]
    pieces = [first] if first else []
    for part in slices:
        if part.topic == "contexts":
            for low in range(part.low, part.high, cut):
                records = part.records[low - part.low : low - part.low + cut]
                pieces.append([part._replace(low=low, high=low + len(records), records=records)])
    return pieces


@pytest.fixture(scope="module", params=PLACES)
def deployment(related, request):
    system = system_of(related, request.param)
    return system, models_of(related, system)


@CASES
@given(seed=st.integers(0, 10**6), cut=st.integers(1, 3))
def test_any_cut_of_the_contexts_gives_the_same_decisions_rows_and_refusals(related, deployment, seed, cut):
    system, models = deployment
    whole, pieces = (related.RelatedLearnerRig(system) for _ in range(2))
    play(related, whole, models, seed)
    play(related, pieces, models, seed, cut=cut)
    assert pieces.seen.answers == whole.seen.answers
    assert pieces.rows() == whole.rows()
    assert sorted(pieces.seen.reasons) == sorted(whole.seen.reasons)
    assert sum(record["slots"] for record in pieces.seen.journals) == sum(r["slots"] for r in whole.seen.journals)
    assert pieces.seen.counts == whole.seen.counts
    sent = [[output for step in rig.seen.steps for output in step.releases] for rig in (pieces, whole)]
    assert sent[0] == sent[1]
    if system.config.release.noise_at == "learner":
        assert pieces.machine.noised_sums.dump() == whole.machine.noised_sums.dump()
        every = np.arange(3)
        moved = every[whole.machine.taken > 0]
        assert np.array_equal(pieces.machine.noised_sums.sums(moved), whole.machine.noised_sums.sums(moved))


@CASES
@given(seed=st.integers(0, 10**6), cut=st.sampled_from([None, 1, 2]))
def test_restored_at_every_cut_it_goes_on_byte_for_byte(related, deployment, seed, cut):
    system, models = deployment
    straight, broken = (related.RelatedLearnerRig(system) for _ in range(2))
    play(related, straight, models, seed, cut)

    def crash():
        state = broken.machine.snapshot()
        broken.machine = broken.fresh()
        broken.machine.start(broken.genesis)
        broken.machine.restore(state)
        assert broken.machine.snapshot() == state

    play(related, broken, models, seed, cut, crash)
    assert broken.journal == straight.journal
    assert broken.seen.outputs == straight.seen.outputs
    assert broken.machine.snapshot() == straight.machine.snapshot()


@CASES
@given(seed=st.integers(0, 10**6))
def test_its_journal_replayed_gives_the_same_outputs(related, deployment, seed):
    system, models = deployment
    rig = play(related, related.RelatedLearnerRig(system), models, seed, cut=2)
    fresh = rig.fresh()
    assert rig.replayed(fresh).outputs == rig.seen.outputs
    assert fresh.snapshot() == rig.machine.snapshot()
    assert fresh.float_ties == 0


@pytest.mark.parametrize("noise_at", PLACES)
def test_a_changed_reward_under_a_journal_stops_the_learner_before_anything_is_sent(related, noise_at):
    system = system_of(related, noise_at)
    rig = related.RelatedLearnerRig(system)
    rig.interact("e", reward=1.0)
    rig.end_phase()
    rig.fold()
    log = rig.logs["clicks", 0]
    name, fields = codec.decode(log[1].value)
    log[1] = log[1]._replace(value=codec.encode(name, {**fields, "reward": 0.5}))
    with pytest.raises(ReplayMismatch, match="its inputs give another"):
        rig.replayed(rig.fresh())


def journaled_arm(rig, arm):
    """The first journal record under the right key, but with another arm in its first row."""
    name, fields = codec.decode(rig.journal[0])
    content = codec.encode(name, {**fields, "arms": np.array([arm], "<i4").tobytes(), "chain": bytes(16)})[:-16]
    return content + rig.key.digest("chain", rig.genesis[-16:], content)


def test_an_arm_as_good_as_the_recomputed_one_is_a_float_tie_and_stands(related):
    rig = related.RelatedLearnerRig()
    features = np.repeat(related.some_features(1)[:1], 4, axis=0)
    assert rig.decide("e", features=features) == 0
    rig.journal[0] = journaled_arm(rig, 2)
    fresh = rig.fresh()
    rig.replayed(fresh)
    assert fresh.float_ties == 1
    assert fresh.open.get("e").arm == 2


@pytest.mark.parametrize("arm", [1, 9, -1])
def test_an_arm_that_scores_worse_or_is_none_is_a_change(related, arm):
    rig = related.RelatedLearnerRig()
    features = related.some_features(1) * np.array([[1.0], [0.2], [0.1], [0.1]], np.float32)
    assert rig.decide("e", features=features) == 0
    rig.journal[0] = journaled_arm(rig, arm)
    with pytest.raises(ReplayMismatch, match="another arm"):
        rig.replayed(rig.fresh())


@pytest.mark.parametrize("what", ["damaged", "other deployment", "other partition", "other journal", "text"])
def test_a_state_that_is_not_its_own_is_refused(related, what):
    rig = related.RelatedLearnerRig()
    rig.interact("e")
    state = rig.machine.snapshot()
    machine = {
        "other deployment": lambda: related.RelatedLearnerRig(related.make_system(deployment="other")).machine,
        "other partition": lambda: related.CollaborativeLearnerMachine(rig.system, 1, rig.key),
        "other journal": lambda: related.RelatedLearnerRig(rig.system, related.SECRET).machine,
    }.get(what, lambda: rig.machine)()
    value = {"damaged": state[:-1] + bytes([state[-1] ^ 1]), "text": b"no state"}.get(what, state)
    with pytest.raises(HushstreamError, match="snapshot"):
        machine.restore(value)


def test_each_machine_has_the_state_form_of_its_own_items_whichever_was_made_last(related):
    """A deployment without names goes on from what it kept before items could have names."""
    kind, rig = related.CollaborativeLearnerMachine, related.RelatedLearnerRig()
    of_class = kind.state
    named = kind(related.make_system(named_items=True), 0, rig.key)
    assert kind.state is of_class
    rig.interact("e")
    state, again = rig.machine.snapshot(), rig.fresh()
    again.start(rig.genesis)
    again.restore(state)
    assert again.snapshot() == state
    forms = [(machine.state.form.what, machine.state.form.version) for machine in (again, rig.machine, named)]
    numbered = ("a collaborative learner's state", 6)
    assert forms == [numbered, numbered, ("a collaborative learner's state with a catalogue", 1)]
    assert "items" not in rig.machine.state.form.read(state)
    with pytest.raises(OtherVersion, match="with a catalogue, got 6"):
        named.restore(state)
