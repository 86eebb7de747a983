"""Steps, releases, debits and refusals of the counter machine."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.counting.blocks import BlockPlan
from hushstream.privacy.noise import NoiseAddress
from hushstream.roles.machine import InputSlice, OffChain
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.collaborative_configuration import GRID_BITS
from hushstream.systems.collaborative_release import plan_of

CASES = settings(max_examples=12, deadline=None)
MECHANISMS = {
    "negative-digit": {},
    "binary": {"mechanism": "binary"},
    "honaker": {"mechanism": "honaker"},
    "gaussian digits": {"noise": "gaussian"},
    "blt": {"mechanism": "blt", "noise": "gaussian"},
}


@pytest.fixture
def rig(related):
    return related.CounterRig()


def release_of(related, **changes):
    return related.make_system(release={**related.DEFAULTS["release"], **changes})


# What ends a step.


def test_a_step_is_released_when_its_rows_have_come(related, rig):
    rows = related.some_rewards(1, 9)
    for number, row in enumerate(rows):
        rig.rewards(number, [row])
    seen = rig.fold()
    assert [record["rows"] for record in seen.journals] == [4, 4]
    assert [record["closed_by"] for record in seen.journals] == ["rows", "rows"]
    assert [release["leaf"] for release in rig.released(seen)] == [1, 2]
    assert seen.counts["reward_taken"] == 9


def test_a_record_is_taken_whole_so_a_step_may_have_more_rows(related, rig):
    rig.rewards(0, related.some_rewards(1, 3))
    rig.rewards(1, related.some_rewards(2, 6))
    assert [record["rows"] for record in rig.fold().journals] == [9]


def test_a_seal_ends_the_step_once_all_learner_partitions_have_sent_it(related):
    rig = related.CounterRig(related.make_system(partitions={"learner": 3}))
    rig.rewards(0, related.some_rewards(1, 2))
    for origin in (0, 0, 2):
        rig.seal(0, origin)
    assert not rig.fold().journals
    rig.seal(0, origin=1)
    (record,) = rig.fold().journals
    assert (record["closed_by"], record["rows"]) == ("seal", 2)
    rig.rewards(1, related.some_rewards(2, 1))
    rig.seal(0, origin=1)
    assert not rig.fold().journals, "that phase was sealed before"


def test_a_seal_without_rows_releases_nothing(rig):
    rig.seal(0)
    seen = rig.fold()
    assert not seen.journals
    assert seen.counts == {"seal": 1}


def test_log_time_ends_a_step_and_ticks_carry_it_on(related):
    rig = related.CounterRig(release_of(related, seconds=60.0))
    assert rig.machine.tick(10**9) is None, "no step is open"
    rig.rewards(0, related.some_rewards(1, 1))
    rig.fold()
    assert rig.machine.tick(59_999) is None
    tick = rig.machine.tick(60_000)
    rig.wait(59.999)
    rig.put(tick.topic, tick.value, tick.partition)
    assert not rig.fold().journals
    rig.wait(0.001)
    for _ in range(3):
        rig.put(tick.topic, tick.value, tick.partition)
    seen = rig.fold()
    assert [(record["closed_by"], record["rows"]) for record in seen.journals] == [("time", 1)]
    assert seen.counts["tick"] == 3
    assert rig.machine.tick(10**9) is None


def test_without_a_time_limit_no_tick_is_asked_for(related, rig):
    rig.rewards(0, related.some_rewards(1, 1))
    rig.fold()
    rig.wait(10**6)
    rig.tick()
    assert not rig.fold().journals
    assert rig.machine.tick(10**9) is None


# What counts.


def test_a_batch_that_is_sent_twice_counts_once_also_in_a_later_step(related, rig):
    one, two = related.some_rewards(1, 2), related.some_rewards(2, 4)
    for number, rows in ((0, one), (0, one), (1, two), (0, one), (1, two), (2, one)):
        rig.rewards(number, rows)
    seen = rig.fold()
    assert seen.counts["repeated_rewards"] == 3
    assert seen.counts["reward_taken"] == 8
    assert [record["rows"] for record in seen.journals] == [6]


def test_rewards_beyond_a_users_allowance_do_not_count(related):
    rig = related.CounterRig(related.make_system(release={"rows": 2, "horizon": 8, "rewards_per_user": 3}))
    row = related.some_rewards(1, 1)[0]
    ann = [(0, row[1], 1.0)]
    rig.rewards(0, ann * 2)
    rig.rewards(1, ann * 3)
    rig.rewards(2, [(1, row[1], 1.0)])
    rig.rewards(3, ann)
    seen = rig.fold()
    assert seen.counts["reward_taken"] == 4
    assert seen.counts["allowance_spent"] == 3
    assert [record["rows"] for record in seen.journals] == [2, 2]
    nodes = [np.frombuffer(release["nodes"], "<i4").tolist() for release in rig.released(seen)]
    assert nodes == [[0, 0], [0, 1]]
    rig.rewards(4, ann)
    rig.seal(0)
    assert not rig.fold().journals, "no step opens for rows that do not count"


def test_a_user_may_use_the_whole_horizon(related):
    rig = related.CounterRig(related.make_system(release={"rows": 1, "horizon": 5, "rewards_per_user": 5}))
    row = related.some_rewards(1, 1)[0]
    for number in range(7):
        rig.rewards(number, [(2, row[1], 1.0)])
    seen = rig.fold()
    assert len(rig.released(seen)) == 5
    assert seen.counts["allowance_spent"] == 2


NAN, INF = float("nan"), float("inf")
SHORT = [0.5, 0.5, 0.5]
BAD = {
    "reward above 1": ([(0, SHORT, 1.5)], {}, "malformed_rewards"),
    "negative reward": ([(0, SHORT, -0.1)], {}, "malformed_rewards"),
    "reward not a number": ([(0, SHORT, NAN)], {}, "malformed_rewards"),
    "infinite reward": ([(0, SHORT, INF)], {}, "malformed_rewards"),
    "unknown node": ([(3, SHORT, 1.0)], {}, "malformed_rewards"),
    "negative node": ([(-1, SHORT, 1.0)], {}, "malformed_rewards"),
    "feature not a number": ([(0, [NAN, 0, 0], 1.0)], {}, "malformed_rewards"),
    "infinite feature": ([(0, [INF, 0, 0], 1.0)], {}, "malformed_rewards"),
    "features too long": ([(0, [1.0, 0.1, 0.0], 1.0)], {}, "malformed_rewards"),
    "one bad row of two": ([(0, SHORT, 1.0), (0, SHORT, 2.0)], {}, "malformed_rewards"),
    "no rows": ([(0, SHORT, 1.0)], {"nodes": b"", "contexts": b"", "rewards": b""}, "malformed_rewards"),
    "other dimension": ([(0, [0.1, 0.1], 1.0)], {}, "malformed_rewards"),
    "columns of other lengths": ([(0, SHORT, 1.0)], {"rewards": bytes(16)}, "malformed_rewards"),
    "half a node": ([(0, SHORT, 1.0)], {"nodes": bytes(6)}, "malformed_rewards"),
    "too many rows": ([(0, SHORT, 1.0)] * 257, {}, "malformed_rewards"),
    "another configuration": ([(0, SHORT, 1.0)], {"config_digest": bytes(16)}, "other_configuration"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rewards_are_a_dead_letter_with_their_reason_and_leave_the_sums_alone(related, name):
    rows, changes, reason = BAD[name]
    good = related.some_rewards(1, 4)
    clean, rig = related.CounterRig(), related.CounterRig()
    for each in (clean, rig):
        each.rewards(0, good[:2])
        if each is rig:
            each.rewards(7, rows, **changes)
        each.rewards(1, good[2:])
    seen = rig.fold()
    assert seen.reasons == [reason]
    (letter,) = seen.letters
    assert (letter["zone"], letter["role"], letter["topic"], letter["offset"]) == ("counter", "counter", "rewards", 1)
    assert seen.counts["reward_taken"] == 4
    assert seen.releases("releases") == clean.fold().releases("releases")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not_single_object"),
        (b"no record at all", "not_single_object"),
        (b"\xc3\x01" + b"\x55" * 12, "unknown_fingerprint"),
        (b"\xc3\x01" + bytes(1 << 21), "too_large"),
    ],
)
def test_what_is_no_record_is_a_dead_letter(related, rig, value, reason):
    rig.put("rewards", value)
    rig.rewards(0, related.some_rewards(1, 4))
    seen = rig.fold()
    assert seen.reasons == [reason]
    assert len(rig.released(seen)) == 1


def test_seals_of_unknown_partitions_and_of_other_configurations_end_nothing(related, rig):
    rig.rewards(0, related.some_rewards(1, 1))
    rig.seal(0, origin=1)
    rig.seal(0, origin=-1)
    rig.seal(-1)
    rig.seal(0, digest=bytes(16))
    seen = rig.fold()
    assert seen.reasons == ["unknown_origin"] * 3 + ["other_configuration"]
    assert not seen.journals


# What is released.


def noise_of(related, system, key, nonce, epoch, leaves):
    """The noise of each user's counter after ``leaves`` (N,) of his leaves: drawn under the documented address."""
    release, features = system.config.release, system.config.features
    plan = plan_of(release, features)
    address = NoiseAddress(
        purpose="counter",
        deployment=system.config.deployment,
        genesis_nonce=nonce,
        system="colin",
        mechanism=release.mechanism,
        parameters={"grid_bits": GRID_BITS},
        config_digest=system.digest,
        epoch=epoch,
        partition=0,
    )
    zero = np.zeros((1, features.dimension), dtype=np.int64)
    if release.mechanism in ("negative-digit", "binary"):
        counters = BlockPlan(plan=plan, blocks=system.nodes).open(key, address)
        for node, count in enumerate(leaves):
            for _ in range(count):
                counters.add(np.array([node]), zero)
        return counters.release()
    noise = []
    for node, count in enumerate(leaves):
        counter = plan.open(key, replace(address, cell=node))
        for _ in range(count):
            counter.add(zero)
        noise.append(counter.release().values)
    return np.array(noise)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_release_is_the_exact_sums_and_the_counters_own_noise_to_the_bit(related, name):
    rig = related.CounterRig(release_of(related, **MECHANISMS[name]), related.SECRET)
    rows, steps = [], np.zeros(3, dtype=int)
    for number in range(6):
        step = related.some_rewards(number, 4)
        rig.rewards(number, step)
        (release,) = rig.released(rig.fold())
        rows += step
        steps[np.unique([row[0] for row in step])] += 1
        blocks, sums = related.arrays_of(release)
        noise = noise_of(related, rig.system, rig.key, rig.machine.chain.genesis_nonce, 0, steps)
        assert np.array_equal(blocks, np.unique([row[0] for row in step]))
        assert np.array_equal(sums, (related.lattice_sums(rows) + noise)[blocks])
        assert noise[blocks].all(), "every sum is noised"
        assert release["private_as_stated"]


def test_without_noise_the_sums_are_exact_and_say_so(related):
    system = related.make_system(release={"mechanism": "exact"}, public_dataset=True)
    rig = related.CounterRig(system, related.SECRET)
    rows = related.some_rewards(3, 7)
    rig.rewards(0, rows)
    rig.seal(0)
    (release,) = rig.released(rig.fold())
    blocks, sums = related.arrays_of(release)
    assert np.array_equal(sums, related.lattice_sums(rows)[blocks])
    assert release["variance"] == 0
    assert not release["private_as_stated"]


def test_under_a_seeded_key_nothing_is_called_private(related, rig):
    rig.rewards(0, related.some_rewards(1, 4))
    seen = rig.fold()
    assert not rig.released(seen)[0]["private_as_stated"]
    assert not seen.records("ledger", "LedgerEntry")[0]["private_as_stated"]


@pytest.mark.parametrize("change", ["key", "nonce", "epsilon", "deployment", "graph", "horizon"])
def test_another_key_life_or_parameter_draws_other_noise(related, change):
    def sums(system=None, key=related.SECRET, nonce=bytes(32)):
        rig = related.CounterRig(system, key, nonce)
        rig.rewards(0, [(node, [0.0, 0.0, 0.0], 0.0) for node in range(3)])
        rig.seal(0)
        return related.arrays_of(rig.released(rig.fold())[0])[1]

    other = {
        "key": lambda: sums(key=related.Key(b"\x08" * 31 + b"\x01")),
        "nonce": lambda: sums(nonce=bytes(31) + b"\x01"),
        "epsilon": lambda: sums(release_of(related, epsilon=1.001)),
        "deployment": lambda: sums(related.make_system(deployment="other")),
        "graph": lambda: sums(related.make_system(related.make_graph(ties=[("ann", "cyd", 1.0)]))),
        "horizon": lambda: sums(release_of(related, horizon=65)),
    }[change]()
    # Two draws of this noise agree in one number with a probability below 1e-6: its scale is above 2^24.
    assert not (sums() == other).any()


def test_how_the_partitions_of_learners_raced_changes_no_release(related):
    records = [[row for row in related.some_rewards(5, 12) if row[0] == node] for node in range(3)]
    released = []
    for order in ((0, 1, 2), (2, 0, 1)):
        rig = related.CounterRig(release_of(related, rows=100))
        for node in order:
            rig.rewards(node, records[node])
        rig.seal(0)
        released.append(rig.fold().releases("releases"))
    assert released[0] == released[1]


def test_only_contents_move_with_the_rewards(related):
    """Neighbours differ in rewards: number, sizes, places and prices of all that leaves stay, and its public part."""
    found = []
    for flip in (False, True):
        rig = related.CounterRig(release_of(related, rewards_per_user=6), related.SECRET)
        for number in range(5):
            rows = related.some_rewards(number, 3)
            rig.rewards(number, [(n, x, 1.0 - r) for n, x, r in rows] if flip else rows)
        rig.rewards(9, [(0, [9.0, 0, 0], 0.0)])
        seen = rig.fold()
        public = [{**release, "sums": b""} for release in rig.released(seen)]
        heads = [{**record["head"], "input_digest": b"", "release_digest": b""} for record in seen.journals]
        journals = [
            {k: record[k] for k in ("leaf", "rows", "closed_by", "mechanism", "parameters", "debit")}
            for record in seen.journals
        ]
        places = [(output.topic, output.partition, output.key, len(output.value)) for output in seen.outputs]
        entries = seen.records("ledger", "LedgerEntry")
        found.append((public, heads, journals, places, entries, seen.counts))
        sums = [release["sums"] for release in rig.released(seen)]
        found[-1] = (found[-1], sums)
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]


def test_one_reward_moves_its_own_users_sums_alone_by_at_most_the_sensitivity(related):
    rows = related.some_rewards(8, 4)
    node, features, _ = rows[2]
    sums = []
    for value in (0.0, 1.0):
        rig = related.CounterRig(None, related.SECRET)
        rig.rewards(0, [*rows[:2], (node, features, value), rows[3]])
        blocks, found = related.arrays_of(rig.released(rig.fold())[0])
        sums.append(found)
    moved = sums[1] - sums[0]
    assert not moved[blocks != node].any()
    distance = np.abs(moved[blocks == node]).sum()
    assert 0 < distance <= plan_of(rig.system.config.release, rig.system.config.features).sensitivity


def test_digests_of_rewards_need_the_key(related):
    heads = []
    for seed in (1, 2):
        rig = related.CounterRig(key=related.Key(bytes([seed]) * 31 + b"\0"))
        rig.rewards(0, related.some_rewards(1, 4))
        heads.append(rig.fold().journals[0])
    assert heads[0]["head"]["input_digest"] != heads[1]["head"]["input_digest"]
    assert heads[0]["leaves"] != heads[1]["leaves"]


# Debits.


def test_an_epoch_is_paid_once_with_its_first_record_and_the_ledger_copies_it(related, rig):
    for number in range(3):
        rig.rewards(number, related.some_rewards(number, 4))
    seen = rig.fold()
    price = rig.system.guarantee()
    assert [record["debit"]["epsilon_micro"] for record in seen.journals] == [price.epsilon_micro, 0, 0]
    assert [record["debit"]["delta_units"] for record in seen.journals][1:] == [b"", b""]
    (entry,) = seen.records("ledger", "LedgerEntry")
    assert entry["debit"] == seen.journals[0]["debit"]
    assert entry["debit"]["epsilon_micro"] == 1_000_000
    assert int.from_bytes(entry["debit"]["delta_units"], "big") == price.delta_units
    assert entry["debit"]["scope"] == "epoch/0/0"
    assert entry["entry_id"] == rig.released(seen)[0]["release_id"]


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_journal_names_the_mechanism_and_every_parameter_that_its_noise_is_drawn_under(related, name):
    system = release_of(related, **MECHANISMS[name])
    rig = related.CounterRig(system)
    rig.rewards(0, related.some_rewards(1, 4))
    (record,) = rig.fold().journals
    plan = plan_of(system.config.release, system.config.features)
    drawn = BlockPlan(plan=plan, blocks=3) if name in ("negative-digit", "binary", "gaussian digits") else plan
    assert record["mechanism"] == drawn.mechanism
    assert json.loads(record["parameters"]) == json.loads(json.dumps(dict(drawn.parameters)))


# Cuts, restores and replays.


def script(related, rig, seed):
    """Rewards, repeats, seals, bad records and time, drawn from a seed."""
    draw = np.random.default_rng(seed)
    for number in range(14):
        way = draw.integers(9)
        if way < 6:
            rig.rewards(number, related.some_rewards(seed + number, int(draw.integers(1, 4))))
        elif way == 6:
            rig.rewards(int(draw.integers(number + 1)), related.some_rewards(seed + number, 2))
        elif way == 7:
            rig.seal(number)
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
    return release_of(related, seconds=30.0, rewards_per_user=9, epochs=2)


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
@pytest.mark.parametrize("name", ["negative-digit", "honaker"])
def test_restored_after_every_record_it_goes_on_byte_for_byte(related, name, seed):
    system = release_of(related, seconds=30.0, **MECHANISMS[name])
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
