"""Every output is a pure fold of the logs: the form of the records, the cuts, crashes and restores change no byte."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.schemas.batches import encode_context_batch
from hushstream.systems.p2b.contribution.slots import Report
from hushstream.systems.p2b.machines.aggregator import AggregatorMachine
from hushstream.systems.p2b.machines.learner import LearnerMachine
from hushstream.systems.p2b.machines.shuffler import ShufflerMachine

CASES = settings(max_examples=25, deadline=None)
USERS = ("ann", "bob", "cyd")


@dataclass
class Round:
    """Clicks, then contexts with time between them, then time."""

    clicks: list = field(default_factory=list)
    contexts: list = field(default_factory=list)
    phase_end: bool = False
    seconds: float = 0.0
    pause: float = 0.0


EVENTS = st.tuples(st.sampled_from(USERS), st.integers(0, 6))
CONTEXTS = st.tuples(
    EVENTS,
    st.integers(0, 3),
    st.sampled_from([b"", b"", bytes([0b00110])]),
    st.sampled_from([-1, -1, 0, 1, 9]),
    st.booleans(),
)
CLICKS = st.tuples(EVENTS, st.integers(0, 5), st.sampled_from([None, 0.0, 1.0, 2.0]), st.sampled_from(USERS))
ROUNDS = st.lists(
    st.builds(
        Round,
        st.lists(CLICKS, max_size=4),
        st.lists(CONTEXTS, max_size=5),
        st.booleans(),
        st.sampled_from([0.0, 0.5, 6.0, 11.0]),
        st.sampled_from([0.0, 2.0, 4.0]),
    ),
    min_size=1,
    max_size=7,
)


def small(rigs, features="centroid"):
    return rigs.make_system(
        feedback={"early_feedback": 3, "remembered_events": 5},
        slot={"lifetime_slots": 2},
        encoder={"features": features},
        public_dataset=True,
    )


def put_clicks(rig, clicks):
    for (user, number), arm, reward, sender in clicks:
        event_id = f"{user}:{number}"
        rig.shown(event_id, arm, sender) if reward is None else rig.reward(event_id, arm, reward, sender)


def context_fields(context):
    (user, number), code, eligible, baseline, sound = context
    return f"{user}:{number}", user, code, eligible, baseline, sound


def put_contexts(rig, rigs, contexts, pause):
    for context in contexts:
        event_id, user, code, eligible, baseline, sound = context_fields(context)
        rig.context(event_id, user, rigs.point(code) * (1 if sound else 2), eligible=eligible, baseline=baseline)
        rig.wait(pause)


def put_batch(rig, rigs, contexts):
    ids, users, codes, masks, baselines, sound = zip(*map(context_fields, contexts), strict=True)
    vectors = np.stack([rigs.point(code) * (1 if good else 2) for code, good in zip(codes, sound, strict=True)])
    masks = [mask or bytes([0b11111]) for mask in masks]
    value = encode_context_batch(ids, users, vectors, track="private", eligible=masks, baselines=np.array(baselines))
    rig.put("contexts", value)


def play(rig, rigs, rounds, models=(), columnar=False, cut=None, after_each=None):
    """Each round's clicks and contexts; ``cut`` of them are folded at a time (None: all at once)."""
    models = list(models)
    for part in rounds:
        if models:
            rig.put("models", models.pop(0))
        put_clicks(rig, part.clicks)
        if columnar and part.contexts:
            put_batch(rig, rigs, part.contexts)
        else:
            put_contexts(rig, rigs, part.contexts, part.pause)
        if part.phase_end:
            rig.end_phase(0)
        for slices in cuts_of(rig.arrived(), cut):
            rig.take(slices)
            if after_each is not None:
                after_each()
        rig.wait(part.seconds)
    return rig


def cuts_of(slices, cut):
    """The same records in the same order of meeting: models and clicks whole, then contexts in pieces."""
    if cut is None:
        return [slices] if slices else []
    first = [part for part in slices if part.topic != "contexts"]
    pieces = [first] if first else []
    for part in slices:
        if part.topic == "contexts":
            for low in range(part.low, part.high, cut):
                high = min(low + cut, part.high)
                pieces.append(
                    [part._replace(low=low, high=high, records=part.records[low - part.low : high - part.low])]
                )
    return pieces


@pytest.fixture(scope="module", params=["centroid", "onehot"])
def deployment(rigs, request):
    system = small(rigs, request.param)
    track = rigs.AggregatorRig(system)
    track.give(rigs.crowd_values(system, 3))
    return system, [track.genesis, *track.journal]


def content(seen):
    """What was decided and released, the journal's cuts and offsets aside."""
    letters = sorted((letter["topic"], letter["reason"]) for letter in seen.letters)
    return seen.answers, sorted(seen.slots), letters, seen.counts


@CASES
@given(rounds=ROUNDS, cut=st.integers(1, 4))
def test_any_cut_of_the_contexts_gives_the_same_decisions_and_slots(rigs, deployment, rounds, cut):
    system, models = deployment
    whole = play(rigs.LearnerRig(system), rigs, rounds, models)
    pieces = play(rigs.LearnerRig(system), rigs, rounds, models, cut=cut)
    assert content(pieces.seen) == content(whole.seen)


@CASES
@given(rounds=ROUNDS)
def test_columns_and_events_give_the_same_decisions_and_slots(rigs, deployment, rounds):
    system, models = deployment
    rounds = [replace(part, pause=0.0) for part in rounds]
    events = play(rigs.LearnerRig(system), rigs, rounds, models)
    columns = play(rigs.LearnerRig(system), rigs, rounds, models, columnar=True)
    assert content(columns.seen) == content(events.seen)


@CASES
@given(rounds=ROUNDS, cut=st.sampled_from([None, 2]))
def test_a_learner_restored_at_every_cut_goes_on_byte_for_byte(rigs, deployment, rounds, cut):
    system, models = deployment
    straight = play(rigs.LearnerRig(system), rigs, rounds, models, cut=cut)
    broken = rigs.LearnerRig(system)

    def crash():
        state = broken.machine.snapshot()
        broken.machine = LearnerMachine(system, 0, broken.key)
        broken.machine.start(broken.genesis)
        broken.machine.restore(state)
        assert broken.machine.snapshot() == state

    play(broken, rigs, rounds, models, cut=cut, after_each=crash)
    assert broken.journal == straight.journal
    assert broken.seen.outputs == straight.seen.outputs
    assert broken.machine.snapshot() == straight.machine.snapshot()


@CASES
@given(rounds=ROUNDS)
def test_a_learner_replays_its_journal_byte_for_byte(rigs, deployment, rounds):
    system, models = deployment
    rig = play(rigs.LearnerRig(system), rigs, rounds, models, cut=2)
    fresh = LearnerMachine(system, 0, rig.key)
    assert rig.replayed(fresh).outputs == rig.seen.outputs
    assert fresh.snapshot() == rig.machine.snapshot()
    assert fresh.float_ties == 0


# The shuffler.


def by_topic(outputs):
    """Outputs in the order of each topic; a dead letter need not wait for the window around it to close."""
    topics = {}
    for output in outputs:
        topics.setdefault((output.topic, output.partition), []).append(output.value)
    return topics


SLOTS = st.tuples(
    st.integers(0, 12),
    st.sampled_from([None, Report(0, 0, 0), Report(3, 4, 1), Report(9, 0, 0)]),
    st.sampled_from(["slot", "slot", "slot", "slot", "seal", "tick", "junk", "foreign"]),
    st.sampled_from([0.0, 0.0, 0.4, 3.0]),
)
SHUFFLES = st.lists(SLOTS, min_size=1, max_size=25)


def shuffle_system(rigs, **release):
    return rigs.make_system(release={"window_slots": 3, "window_seconds": 5.0, **release}, slot={"period_seconds": 8.0})


def put_shuffle(rig, items):
    phase = 0
    for number, report, kind, seconds in items:
        rig.wait(seconds)
        if kind == "seal":
            rig.end_phase(phase)
            phase += 1
        elif kind == "tick":
            rig.tick()
        elif kind == "junk":
            rig.put("reports", b"junk")
        elif kind == "foreign":
            rig.slot(number, report, config_digest=bytes(16))
        else:
            rig.slot(number, report)


def take_pieces(rig, sizes, after_each=None):
    (whole,) = rig.arrived()
    low = whole.low
    while low < whole.high:
        high = min(low + (sizes.pop(0) if sizes else 7), whole.high)
        rig.take([whole._replace(low=low, high=high, records=whole.records[low - whole.low : high - whole.low])])
        low = high
        if after_each is not None:
            after_each()


@CASES
@given(items=SHUFFLES, sizes=st.lists(st.integers(1, 4), max_size=20))
def test_any_cut_of_the_reports_gives_the_same_journal_and_releases(rigs, items, sizes):
    system = shuffle_system(rigs)
    whole, pieces = rigs.ShufflerRig(system), rigs.ShufflerRig(system)
    put_shuffle(whole, items)
    put_shuffle(pieces, items)
    whole.fold()
    take_pieces(pieces, list(sizes))
    assert pieces.journal == whole.journal
    assert by_topic(pieces.seen.outputs) == by_topic(whole.seen.outputs)
    assert pieces.seen.counts == whole.seen.counts
    assert pieces.machine.snapshot() == whole.machine.snapshot()


@CASES
@given(items=SHUFFLES, size=st.integers(1, 3))
def test_a_shuffler_restored_in_an_open_window_goes_on_byte_for_byte(rigs, items, size):
    system = shuffle_system(rigs)
    straight, broken = rigs.ShufflerRig(system), rigs.ShufflerRig(system)
    put_shuffle(straight, items)
    put_shuffle(broken, items)
    straight.fold()

    def crash():
        state = broken.machine.snapshot()
        broken.machine = ShufflerMachine(system, 0, broken.key)
        broken.machine.start(broken.genesis)
        broken.machine.restore(state)
        assert broken.machine.snapshot() == state

    take_pieces(broken, [size] * 30, crash)
    assert broken.journal == straight.journal
    assert by_topic(broken.seen.outputs) == by_topic(straight.seen.outputs)


@CASES
@given(items=SHUFFLES, mode=st.sampled_from(["slot-sums", "tuples", "paper"]))
def test_a_shuffler_replays_its_journal_byte_for_byte(rigs, items, mode):
    system = shuffle_system(rigs, mode=mode, sampling=0.5, threshold=1)
    rig = rigs.ShufflerRig(system)
    put_shuffle(rig, items)
    rig.fold()
    fresh = ShufflerMachine(system, 0, rig.key)
    again = rig.replayed(fresh)
    assert [step.journal for step in again.steps] == rig.journal
    assert [o for step in again.steps for o in step.releases] == [o for s in rig.seen.steps for o in s.releases]
    recovered = rigs.ShufflerRig(system)
    recovered.machine, recovered.logs = fresh, rig.logs
    recovered.fold()
    assert fresh.snapshot() == rig.machine.snapshot()


# The aggregator.


@CASES
@given(order=st.lists(st.sampled_from([0, 1, 2, 3, "junk", "foreign"]), max_size=12), size=st.integers(1, 4))
def test_an_aggregator_restored_or_replayed_goes_on_byte_for_byte(rigs, order, size):
    system = rigs.make_system()
    crowds = rigs.crowd_values(system, 4)
    values = [
        b"junk"
        if item == "junk"
        else rigs.changed(crowds[0], config_digest=bytes(16))
        if item == "foreign"
        else crowds[item]
        for item in order
    ]
    straight, broken = rigs.AggregatorRig(system), rigs.AggregatorRig(system)
    straight.give(values)
    for low in range(0, len(values), size):
        broken.give(values[low : low + size])
        state = broken.machine.snapshot()
        broken.machine = AggregatorMachine(system, 0)
        broken.machine.start(broken.genesis)
        broken.machine.restore(state)
        assert broken.machine.snapshot() == state
    assert broken.journal == straight.journal
    fresh = AggregatorMachine(system, 0)
    straight.replayed(fresh)
    assert fresh.version == straight.machine.version == len({item for item in order if isinstance(item, int)})
    assert fresh.totals.dump() == straight.machine.totals.dump()
