"""What the counter releases: the exact sums and its own noise, its digests and its debits."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from hushstream.counting.blocks import BlockPlan
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.systems.colin.configuration import GRID_BITS
from hushstream.systems.colin.release import plan_of

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


# What is released.


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
        rig.end_phase(0)
        return related.arrays_of(rig.released(rig.fold())[0])[1]

    other = {
        "key": lambda: sums(key=related.Key(b"\x08" * 31 + b"\x01")),
        "nonce": lambda: sums(nonce=bytes(31) + b"\x01"),
        "epsilon": lambda: sums(related.releasing(epsilon=1.001)),
        "deployment": lambda: sums(related.make_system(deployment="other")),
        "graph": lambda: sums(related.make_system(related.make_graph(ties=[("ann", "cyd", 1.0)]))),
        "horizon": lambda: sums(related.releasing(horizon=65)),
    }[change]()
    # Two draws of this noise agree in one number with a probability below 1e-6: its scale is above 2^24.
    assert not (sums() == other).any()


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
