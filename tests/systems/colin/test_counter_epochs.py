"""Inputs that changed under a journal: nothing is sent for its records, and new noise is paid for in full (rule 7)."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.counting import HorizonReached
from hushstream.engine.records import InputRange, InputRecord, ReplayMismatch
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.rows import Rows

STEPS = 3


def recorded(related, **release):
    """A counter with some steps behind it, under a key that is not seeded."""
    values = {**related.DEFAULTS["release"], "epochs": 5, **release}
    rig = related.CounterRig(related.make_system(release=values), related.SECRET)
    for number in range(STEPS):
        rig.rewards(number, related.some_rewards(number, 4))
    rig.fold()
    assert len(rig.journal) == STEPS
    return rig


def started(rig):
    machine = rig.fresh()
    machine.start(rig.genesis)
    return machine


def all_rows(related, rig):
    """Every row that lies in the log now."""
    rows = []
    for record in rig.logs["rewards", 0]:
        fields = codec.decode(record.value)[1]
        nodes = np.frombuffer(fields["nodes"], "<i4").tolist()
        features = np.frombuffer(fields["contexts"], "<f4").reshape(len(nodes), -1).tolist()
        rows += zip(nodes, features, np.frombuffer(fields["rewards"], "<f8").tolist(), strict=True)
    return rows


def go_on(rig, machine, number, rows):
    """Append rewards and fold them into a machine that stands at the end of its journal."""
    rig.rewards(number, rows)
    position = machine.position
    log = rig.logs["rewards", 0]
    (step,) = machine.fold([rig.slice(InputRange("rewards", 0, position, len(log)))])
    rig.journal.append(step.journal)
    return step


def decoded(step, topic, schema):
    found = [codec.decode(output.value) for output in step.releases if output.topic == topic]
    return [fields for name, fields in found if name == schema]


CHANGES = {
    "a reward": lambda rig, related: rig.altered(1, **related.reward_fields(flipped(related, 1))),
    "the last bit of a reward": lambda rig, related: rig.altered(1, **related.reward_fields(nudged(related, 1))),
    "a feature": lambda rig, related: rig.altered(1, contexts=bytes(4 * 4 * related.DIMENSION)),
    "whose reward it is": lambda rig, related: rig.altered(1, nodes=np.zeros(4, "<i4").tobytes()),
    "an id": lambda rig, related: rig.altered(1, batch_id=b"\xff" * 16),
    "a repeat instead": lambda rig, related: rig.altered(1, batch_id=(0).to_bytes(16, "big")),
    "no record": lambda rig, related: put(rig, 1, b"no record"),
    "its log time": lambda rig, related: later(rig, 1),
    "another configuration": lambda rig, related: rig.altered(1, config_digest=bytes(16)),
}


def flipped(related, number):
    return [(node, features, 1.0 - reward) for node, features, reward in related.some_rewards(number, 4)]


def nudged(related, number):
    rows = related.some_rewards(number, 4)
    return [*rows[:3], (rows[3][0], rows[3][1], float(np.nextafter(rows[3][2], 0.5)))]


def put(rig, offset, value):
    log = rig.logs["rewards", 0]
    log[offset] = InputRecord(offset, log[offset].timestamp_ms, value)


def later(rig, offset):
    log = rig.logs["rewards", 0]
    log[offset] = log[offset]._replace(timestamp_ms=log[offset].timestamp_ms + 1)


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_input_gives_nothing_again_and_leaves_the_state_alone(related, name):
    rig = recorded(related)
    CHANGES[name](rig, related)
    machine = started(rig)
    related.recover(rig, machine, rig.journal[:1])
    before = machine.snapshot()
    slices = [rig.slice(part) for part in machine.recovery_ranges(rig.journal[1])]
    for _ in range(2):
        with pytest.raises(ReplayMismatch, match=r"record 2: its inputs give another record .*; nothing is sent"):
            machine.replay(rig.journal[1], slices)
        assert machine.snapshot() == before
    step = machine.reopen(rig.journal[1], slices)
    assert (step.journal, step.releases, step.dead_letters) == (None, (), ())
    assert step.counts["diverged"] == 1


def test_a_log_that_lost_a_record_is_a_change_too(related):
    rig = recorded(related)
    rig.logs["rewards", 0][1] = InputRecord(1, rig.now_ms, b"")
    machine = started(rig)
    related.recover(rig, machine, rig.journal[:1])
    part = machine.recovery_ranges(rig.journal[1])[0]
    hole = rig.slice(part)._replace(records=())
    before = machine.snapshot()
    with pytest.raises(ReplayMismatch):
        machine.replay(rig.journal[1], [hole])
    assert machine.snapshot() == before


def test_without_a_horizon_an_epoch_that_noises_again_has_room_for_every_reward_that_still_counts(related):
    """The leaf that it begins with holds a reward that counted: so one is left fewer, and no step is one too many."""
    values = {**related.DEFAULTS["release"], "epochs": 5, "rows": 1, "horizon": "auto", "rewards_per_user": 6}
    rig = related.CounterRig(related.make_system(release=values), related.SECRET)
    ann = [(0, [0.1, 0.2, 0.3], 1.0)]
    rig.rewards(0, ann)
    rig.fold()
    rig.altered(0, **related.reward_fields([(0, [0.1, 0.2, 0.3], 0.0)]))
    machine = started(rig)
    related.recover(rig, machine)
    for number in range(1, 6):
        assert go_on(rig, machine, number, ann).releases
    assert machine.epoch.number == 1
    assert machine.taken[0] == 6 == machine.system.config.release.leaves
    with pytest.raises(HorizonReached):
        machine.noised_sums.add(Rows(np.zeros(1, np.int32), np.ones((1, 3), np.float32) / 2, np.ones(1)))


def test_the_next_release_has_new_noise_on_every_sum_and_pays_its_full_price_once(related):
    rig = recorded(related)
    rig.altered(1, **related.reward_fields(flipped(related, 1)))
    machine = started(rig)
    steps = related.recover(rig, machine)
    assert [step.counts.get("diverged", 0) for step in steps] == [0, 1, 1], "what follows from it has diverged too"
    assert machine.spending.redraws == 1
    everyone = [(node, [0.1, 0.2, 0.3], 1.0) for node in range(3)]
    first, second = (go_on(rig, machine, 10 + turn, [*everyone, everyone[0]]) for turn in range(2))
    head = codec.decode(first.journal)[1]
    (release,) = decoded(first, "releases", "Release")
    assert (head["head"]["epoch"], release["epoch"], release["leaf"]) == (1, 1, STEPS + 1)
    price = rig.system.guarantee().price
    assert head["debit"]["epsilon_micro"] == price.epsilon_micro
    assert int.from_bytes(head["debit"]["delta_units"], "big") == price.delta_units
    (entry,) = decoded(first, "ledger", "LedgerEntry")
    assert entry["debit"] == head["debit"]
    assert (entry["debit"]["scope"], entry["entry_id"]) == ("epoch/0/1/renewal/1", release["release_id"])
    assert codec.decode(second.journal)[1]["debit"]["epsilon_micro"] == 0
    assert not decoded(second, "ledger", "LedgerEntry")
    assert machine.spending.redraws == 2
    # The sums are those of the log as it is now; under the noise of epoch 0 no number of them stood.
    blocks, sums = related.arrays_of(release)
    exact = related.lattice_sums(all_rows(related, rig)[:-4])
    noise = sums - exact[blocks]
    assert noise.all()
    old = [related.arrays_of(found) for found in rig.released()]
    rows = [related.some_rewards(number, 4) for number in range(STEPS)]
    for step, (blocks_then, sums_then) in enumerate(old):
        then = related.lattice_sums([row for part in rows[: step + 1] for row in part])
        for block, numbers in zip(blocks_then, sums_then - then[blocks_then], strict=True):
            assert (noise[block] != numbers).all()


def test_every_row_counts_once_after_a_change(related):
    """Features of the changed step were published by its record, so the next release must not give them again."""
    rig = recorded(related)
    rig.altered(2, **related.reward_fields(flipped(related, 2)))
    machine = started(rig)
    related.recover(rig, machine)
    step = go_on(rig, machine, 10, related.some_rewards(60, 4))
    (release,) = decoded(step, "releases", "Release")
    aggregator = related.RelatedAggregatorRig(rig.system)
    aggregator.give([*(output.value for output in rig.seen.releases("releases")), step.releases[0].value])
    assert aggregator.seen.journals[-1]["observations"] == 4 * (STEPS + 1)
    assert len(np.frombuffer(release["nodes"], "<i4")) == 4
    assert machine.taken.sum() == 4 * (STEPS + 1)


def test_where_no_further_epoch_is_allowed_nothing_is_released_and_the_counter_goes_on(related):
    rig = recorded(related, epochs=1)
    rig.altered(0, **related.reward_fields(flipped(related, 0)))
    machine = started(rig)
    related.recover(rig, machine)
    for turn in range(3):
        step = go_on(rig, machine, 10 + turn, related.some_rewards(70 + turn, 4))
        head = codec.decode(step.journal)[1]
        assert not decoded(step, "releases", "Release")
        said = [entry["debit"] for entry in decoded(step, "ledger", "LedgerEntry")]
        assert said == ([head["debit"]] if turn == 0 else []), "the ledger's readers learn of the refusal, once"
        assert step.counts["release_withheld"] == 1
        assert head["debit"]["epsilon_micro"] == 0
        assert (head["leaf"], head["head"]["epoch"]) == (STEPS + 1 + turn, 1)
    price = rig.system.guarantee().price
    assert str(machine.refused).startswith(f"budget of deployment/0: asked {price}; left epsilon 0, ")
    assert machine.spending.redraws == 1
    again = started(rig)
    related.recover(rig, again)
    assert again.snapshot() == machine.snapshot()


def test_a_worker_that_follows_the_journal_of_a_reopened_one_gives_the_same_bytes(related):
    rig = recorded(related)
    rig.altered(1, **related.reward_fields(flipped(related, 1)))
    machine = started(rig)
    related.recover(rig, machine)
    made = [go_on(rig, machine, 10 + turn, related.some_rewards(80 + turn, 4)) for turn in range(3)]
    again = started(rig)
    steps = related.recover(rig, again)
    assert [step.releases for step in steps[STEPS:]] == [step.releases for step in made]
    assert again.snapshot() == machine.snapshot()
    resumed = started(rig)
    related.recover(rig, resumed, rig.journal[: STEPS - 1])
    state = resumed.snapshot()
    resumed = started(rig)
    resumed.restore(state)
    steps = related.recover(rig, resumed, rig.journal[STEPS - 1 :])
    assert [step.releases for step in steps[1:]] == [step.releases for step in made]


def test_no_epoch_is_used_by_two_states_of_one_journal(related):
    """One worker saw the change and opened epoch 1; another, from a snapshot of before, must not open it again.

    Its sums are others, so the same noise on both would show their exact difference.
    """
    rig = recorded(related)
    state = rig.machine.snapshot()
    rig.altered(1, **related.reward_fields(flipped(related, 1)))
    seeing = started(rig)
    related.recover(rig, seeing)
    rows = [(node, [0.1, 0.2, 0.3], 1.0) for node in (0, 1, 2, 0)]
    one = go_on(rig, seeing, 10, rows)
    unaware = started(rig)
    unaware.restore(state)
    (adopted,) = related.recover(rig, unaware, rig.journal[STEPS:])
    assert adopted.counts["diverged"] == 1
    two = go_on(rig, unaware, 11, rows)
    releases = [decoded(step, "releases", "Release")[0] for step in (one, two)]
    assert [release["epoch"] for release in releases] == [1, 2]
    assert releases[0]["release_id"] != releases[1]["release_id"]
    assert codec.decode(two.journal)[1]["debit"]["scope"] == "epoch/0/2/renewal/2"
    log = all_rows(related, rig)
    before = [row for number in range(STEPS) for row in related.some_rewards(number, 4)]
    exact = [related.lattice_sums(log[:-4]), related.lattice_sums([*before, *rows, *rows])]
    noises = [related.arrays_of(release)[1] - sums for release, sums in zip(releases, exact, strict=True)]
    assert (noises[0] != noises[1]).all()


def test_a_reopened_state_survives_a_snapshot(related):
    rig = recorded(related, mechanism="honaker")
    rig.altered(2, **related.reward_fields(flipped(related, 2)))
    machine = started(rig)
    related.recover(rig, machine)
    state = machine.snapshot()
    restored = started(rig)
    restored.restore(state)
    assert restored.snapshot() == state
    rig.rewards(10, related.some_rewards(90, 4))
    part = InputRange("rewards", 0, machine.position, machine.position + 1)
    ours, theirs = (m.fold([rig.slice(part)])[0] for m in (machine, restored))
    assert ours == theirs
    assert codec.decode(ours.journal)[1]["head"]["epoch"] == 1


def test_a_journal_under_another_key_or_configuration_is_refused_before_anything_is_read(related):
    rig = recorded(related)
    others = (
        related.CounterMachine(rig.system, 0, related.Key(b"\x09" * 31 + b"\x01")),
        related.CounterMachine(related.make_system(release={"epsilon": 0.5}), 0, related.SECRET),
        related.CounterMachine(rig.system, 1, related.SECRET),
    )
    for machine in others:
        with pytest.raises(HushstreamError, match=r"journal journal-counter/\d: expected "):
            machine.start(rig.genesis)
