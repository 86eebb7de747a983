"""The counter over cuts, restores and replays: the same bytes, or a refusal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.engine.records import InputSlice, OffChain
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError

CASES = settings(max_examples=12, deadline=None)


@pytest.fixture
def rig(related):
    return related.CounterRig()


# Cuts, restores and replays.


def script(related, rig, seed):
    """Rewards, repeats, phase ends, bad records and time, drawn from a seed."""
    draw = np.random.default_rng(seed)
    for number in range(14):
        way = draw.integers(9)
        if way < 6:
            rig.rewards(number, related.some_rewards(seed + number, int(draw.integers(1, 4))))
        elif way == 6:
            rig.rewards(int(draw.integers(number + 1)), related.some_rewards(seed + number, 2))
        elif way == 7:
            rig.end_phase(number)
        else:
            rig.put("rewards", b"no record")
        rig.wait(float(draw.choice([0.0, 5.0, 20.0])))


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


def timed(related):
    return related.releasing(seconds=30.0, rewards_per_user=9, epochs=2)


@CASES
@given(seed=st.integers(0, 10**6), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_where_a_batch_was_cut_changes_no_byte(related, seed, sizes):
    whole, cut = related.CounterRig(timed(related)), related.CounterRig(timed(related))
    for rig in (whole, cut):
        script(related, rig, seed)
    for part in pieces(cut, sizes):
        cut.take(part)
    whole.fold()
    assert cut.journal == whole.journal
    assert by_topic(cut.seen.outputs) == by_topic(whole.seen.outputs)
    assert cut.seen.counts == whole.seen.counts
    assert cut.machine.snapshot() == whole.machine.snapshot()


@CASES
@given(seed=st.integers(0, 10**6))
@pytest.mark.parametrize("mechanism", ["negative-digit", "honaker"])
def test_restored_after_every_record_it_goes_on_byte_for_byte(related, mechanism, seed):
    system = related.releasing(seconds=30.0, mechanism=mechanism)
    straight, broken = related.CounterRig(system), related.CounterRig(system)
    for rig in (straight, broken):
        script(related, rig, seed)
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
def test_its_journal_replayed_gives_the_same_outputs_also_from_within_a_step(related, seed, cut):
    rig = related.CounterRig(timed(related))
    script(related, rig, seed)
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
    steps = related.recover(rig, resumed, rig.journal[done:])
    assert [step.releases for step in steps] == [step.releases for step in again.steps[done:]]
    (source,) = rig.machine.inputs
    for machine in (fresh, resumed):
        rest = rig.logs[source][machine.position :]
        machine.fold([InputSlice(*source, machine.position, len(rig.logs[source]), rest)])
        assert machine.snapshot() == rig.machine.snapshot()


def test_a_foreign_or_repeated_journal_record_is_off_the_chain_and_moves_nothing(related, rig):
    other = related.CounterRig()
    for each, seed in ((rig, 1), (other, 50)):
        for number in range(2):
            each.rewards(number, related.some_rewards(seed + number, 4))
        each.fold()
    fresh = rig.fresh()
    fresh.start(rig.genesis)
    before = fresh.snapshot()
    whole = rig.logs["rewards", 0]
    for value in (rig.journal[1], codec.encode("Tick", {"config_digest": bytes(16)})):
        with pytest.raises(HushstreamError):
            fresh.replay(value, [rig.slice(part) for part in fresh.recovery_ranges(rig.journal[0])])
    related.recover(rig, fresh, rig.journal[:1])
    after = fresh.snapshot()
    with pytest.raises(OffChain):
        fresh.replay(other.journal[1], [rig.slice(part) for part in fresh.recovery_ranges(other.journal[1])])
    assert before != after == fresh.snapshot()
    assert len(whole) == 2


@pytest.mark.parametrize("what", ["damaged", "short", "other deployment", "other partition", "other journal", "text"])
def test_a_state_that_is_not_its_own_is_refused(related, rig, what):
    rig.rewards(0, related.some_rewards(1, 3))
    rig.fold()
    state = rig.machine.snapshot()
    other = {
        "damaged": lambda: rig.machine.restore(state[:40] + bytes([state[40] ^ 1]) + state[41:]),
        "short": lambda: rig.machine.restore(state[:-1]),
        "other deployment": lambda: related.CounterRig(related.make_system(deployment="other")).machine.restore(state),
        "other partition": lambda: related.CounterMachine(rig.system, 1, rig.key).restore(state),
        "other journal": lambda: related.CounterRig(rig.system, related.SECRET).machine.restore(state),
        "text": lambda: rig.machine.restore(b"no state"),
    }[what]
    with pytest.raises(HushstreamError, match=r"snapshot"):
        other()
