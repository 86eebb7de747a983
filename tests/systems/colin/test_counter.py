"""The counter: when a step ends, which rewards count, what is released under which noise, and what a change costs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from hushstream.counting import HorizonReached
from hushstream.counting.blocks import BlockPlan
from hushstream.engine.records import InputRange, InputRecord, ReplayMismatch
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.schemas import codec
from hushstream.systems.colin.configuration import GRID_BITS, plan_of
from hushstream.systems.colin.rows import Rows


@pytest.fixture
def rig(related):
    return related.CounterRig()


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


def test_a_phase_end_ends_the_step_once_all_learner_partitions_have_sent_it(related):
    rig = related.CounterRig(related.make_system(partitions={"learner": 3}))
    rig.rewards(0, related.some_rewards(1, 2))
    for origin in (0, 0, 2):
        rig.end_phase(0, origin)
    assert not rig.fold().journals
    rig.end_phase(0, origin=1)
    (record,) = rig.fold().journals
    assert (record["closed_by"], record["rows"]) == ("seal", 2)
    rig.rewards(1, related.some_rewards(2, 1))
    rig.end_phase(0, origin=1)
    assert not rig.fold().journals, "that phase had ended before"


def test_a_phase_end_without_rows_releases_no_sums_but_a_step_that_a_model_follows(related, rig):
    rig.end_phase(0)
    seen = rig.fold()
    (record,), (release,) = seen.journals, rig.released(seen)
    assert (record["closed_by"], record["rows"]) == ("seal", 0)
    assert (release["nodes"], release["blocks"], release["sums"]) == (b"", b"", b"")
    rig.rewards(0, related.some_rewards(1, 4))
    rig.end_phase(1)
    assert [record["rows"] for record in rig.fold().journals] == [4], "the step of this phase had ended by its rows"


def test_log_time_ends_a_step_and_ticks_carry_it_on(related):
    rig = related.CounterRig(related.releasing(seconds=60.0))
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
    rig.end_phase(0)
    assert not rig.fold().journals, "no step opens for rows that do not count"


@pytest.mark.parametrize("horizon", [5, "auto"])
def test_a_user_may_use_the_whole_horizon(related, horizon):
    rig = related.CounterRig(related.make_system(release={"rows": 1, "horizon": horizon, "rewards_per_user": 5}))
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


@pytest.mark.parametrize(("features", "taken"), [([0.5, 0.5, 0.0], 1), ([0.6, 0.6, 0.0], 0), ([-0.6, 0.6, 0.0], 0)])
def test_features_beyond_the_l1_bound_are_refused_though_their_l2_length_is_allowed(related, features, taken):
    """Laplace noise is sized by it."""
    rig = related.CounterRig(related.make_system(features={"norm_l1": 1.0}))
    rig.rewards(0, [(0, features, 1.0)])
    seen = rig.fold()
    assert seen.counts["reward_taken"] == taken
    assert seen.reasons == ["malformed_rewards"] * (1 - taken)


def test_phase_ends_of_unknown_partitions_and_of_other_configurations_end_nothing(related, rig):
    rig.rewards(0, related.some_rewards(1, 1))
    rig.end_phase(0, origin=1)
    rig.end_phase(0, origin=-1)
    rig.end_phase(-1)
    rig.end_phase(0, digest=bytes(16))
    seen = rig.fold()
    assert seen.reasons == ["unknown_origin"] * 3 + ["other_configuration"]
    assert not seen.journals


MECHANISMS = {
    "negative-digit": {},
    "binary": {"mechanism": "binary"},
    "gaussian digits": {"noise": "gaussian"},
    "blt": {"mechanism": "blt", "noise": "gaussian"},
}


# What is released.


@pytest.mark.parametrize(("levels", "epsilon", "moved"), [(1, 0.05, 0), (8, 3.0, 24 * 8)])
def test_a_counter_may_noise_each_reward_once_and_another_batch_or_reward_has_noise_of_its_own(
    related, levels, epsilon, moved
):
    """24 rewards of one user. The same draws for rewards of 1 and of 0 move a sum by ``moved``: a bit at epsilon .05
    hardly follows its reward. The ids of batches are ones under which nothing is equal by chance."""

    def released(number: int, reward: float) -> np.ndarray:
        system = related.releasing(mechanism="noisy-reward", reward_levels=levels, epsilon=epsilon, rows=24)
        rig = related.CounterRig(system)
        rig.rewards(number, [(0, [0.5] * related.DIMENSION, reward)] * 24)
        (release,) = rig.released(rig.fold())
        law = rig.machine.noised_sums._law
        unit = law.estimate(np.array([1]))[0] - law.estimate(np.array([0]))[0]
        return related.arrays_of(release)[1][0] / (unit * 2.0**23)

    one, again, other_batch, other_reward = (released(*given) for given in ((21, 1.0), (21, 1.0), (22, 1.0), (21, 0.0)))
    assert (one == again).all()
    assert len(set(one.tolist())) == 1, "a reward is noised once, not each entry"
    assert (abs(one - other_batch) > 0.5).all()
    assert (abs(one - other_reward - moved) > 2).all()


def noise_of(related, system, key, nonce, epoch, steps):
    """The noise of each user's counter after batches 0, 1, ... with a step each: drawn under the documented address.

    What is drawn over the leaves is named by the sum of the batches' ids until then, too.
    """
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
    leaves = [(number, np.unique([row[0] for row in rows]), related.lattice_sums(rows)) for number, rows in steps]
    if release.mechanism == "negative-digit":
        counters = BlockPlan(plan=plan, blocks=system.nodes).open(key, address)
        for _, nodes, sums in leaves:
            counters.add(nodes, np.zeros_like(sums[nodes]))
        return counters.release()
    single = [plan.open(key, replace(address, cell=node)) for node in range(system.nodes)]
    taken = 0
    for number, nodes, sums in leaves:
        taken += int.from_bytes(number.to_bytes(16, "big"), "little")
        for node in nodes:
            single[node].add(sums[node][None], (taken % (1 << 128)).to_bytes(16, "little"))
    return np.array([counter.release().values - counter.exact for counter in single])


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_release_is_the_exact_sums_and_the_counters_own_noise_to_the_bit(related, name):
    rig = related.CounterRig(related.releasing(**MECHANISMS[name]), related.SECRET)
    rows, steps = [], []
    for number in range(6):
        step = related.some_rewards(number, 4)
        rig.rewards(number, step)
        (release,) = rig.released(rig.fold())
        rows += step
        steps.append((number, step))
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
    rig.end_phase(0)
    (release,) = rig.released(rig.fold())
    blocks, sums = related.arrays_of(release)
    assert np.array_equal(sums, related.lattice_sums(rows)[blocks])
    assert release["variance"] == 0
    assert not release["private_as_stated"]


def test_how_the_partitions_of_learners_raced_changes_no_release(related):
    records = [[row for row in related.some_rewards(5, 12) if row[0] == node] for node in range(3)]
    released = []
    for order in ((0, 1, 2), (2, 0, 1)):
        rig = related.CounterRig(related.releasing(rows=100))
        for node in order:
            rig.rewards(node, records[node])
        rig.end_phase(0)
        released.append(rig.fold().releases("releases"))
    assert released[0] == released[1]


def test_only_contents_move_with_the_rewards(related):
    """Neighbours differ in rewards: number, sizes, places and prices of all that leaves stay, and its public part."""
    found = []
    for flip in (False, True):
        rig = related.CounterRig(related.releasing(rewards_per_user=6), related.SECRET)
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
    system = related.releasing(**MECHANISMS[name])
    rig = related.CounterRig(system)
    rig.rewards(0, related.some_rewards(1, 4))
    (record,) = rig.fold().journals
    plan = plan_of(system.config.release, system.config.features)
    drawn = BlockPlan(plan=plan, blocks=3) if name in ("negative-digit", "gaussian digits") else plan
    assert record["mechanism"] == drawn.mechanism
    assert json.loads(record["parameters"]) == json.loads(json.dumps(dict(drawn.parameters)))


# Cuts, restores and replays.


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
