"""A collaborative learner with its users' counters at the edge: exact sums, noise of their own, one price."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

from hushstream.counting.blocks import BlockPlan
from hushstream.engine.records import Step
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress
from hushstream.privacy.mechanisms.rewards import LocalReward
from hushstream.schemas import codec
from hushstream.systems.colin.configuration import GRID_BITS
from hushstream.systems.colin.release import plan_of


@pytest.fixture
def rig(related):
    return related.RelatedLearnerRig()


# Counters at the edge.


def test_at_the_edge_no_reward_leaves_in_clear(related):
    rig = related.played(related.edge_system(), flip=False)
    assert {output.topic for output in rig.seen.outputs} == {"releases", "ledger"}
    assert not rig.seen.releases("rewards")
    assert {name for name, _ in (codec.decode(o.value) for o in rig.seen.releases("releases"))} == {"Release", "Seal"}


def edge_address(rig, purpose, parameters, partition=0):
    return NoiseAddress(
        purpose=purpose,
        deployment=rig.system.config.deployment,
        genesis_nonce=rig.machine.chain.genesis_nonce,
        system="colin",
        mechanism=rig.system.config.release.mechanism,
        parameters=parameters,
        config_digest=rig.system.digest,
        epoch=0,
        partition=partition,
    )


def rows_played(related):
    """The same rounds where a trusted counter gets the rows in clear: by release, as they left."""
    rig = related.played(related.make_system(), flip=False)
    records = [output for step in rig.seen.steps for output in step.releases if output.topic == "rewards"]
    parts = [rig.rows(related.Seen([Step(None, (output,))])) for output in records]
    return [sorted(rows, key=lambda row: row[0]) for rows in parts]


def event_names(related, rig):
    """By the features of a row, the name under which the learner knows its event."""
    return {
        tuple(row): rig.machine.row_names([f"e{number}"])[0]
        for number in range(30)
        for row in related.some_features(number).tolist()
    }


@pytest.mark.parametrize("name", ["negative-digit", "binary", "honaker"])
def test_at_the_edge_each_sum_is_the_exact_one_and_the_noise_of_its_users_own_counter_to_the_bit(related, name):
    system = related.edge_system(mechanism=name)
    rig = related.played(system, flip=False)
    plan = plan_of(system.config.release, system.config.features)
    key = rig.key.derive("local-counters")
    address = edge_address(rig, "counter", {"grid_bits": GRID_BITS})
    zero = np.zeros((1, related.DIMENSION), dtype=np.int64)
    arena = BlockPlan(plan=plan, blocks=3).open(key, address) if name == "negative-digit" else None
    single = [plan.open(key, replace(address, cell=node)) for node in range(3)] if arena is None else []
    names = event_names(related, rig)
    rows = [row for step in rows_played(related) for row in step]
    taken, exact = 0, []
    for release in rig.seen.records("releases", "Release"):
        nodes = np.frombuffer(release["nodes"], "<i4")
        step = rows[taken : taken + len(nodes)]
        taken += len(nodes)
        exact += step
        for node, features, reward in step:
            if arena is not None:
                arena.add(np.array([node]), zero)
            else:
                leaf = related.lattice_sums([(node, features, reward)])[node]
                single[node].add(leaf[None], names[tuple(features)])
        blocks, sums = related.arrays_of(release)
        held = [single[b] for b in blocks] if single else []
        noise = np.array([one.release().values - one.exact for one in held]) if held else arena.release()[blocks]
        assert np.array_equal(sums, related.lattice_sums(exact)[blocks] + noise)
        assert noise.all()
    assert taken == len(rows) > 10


@pytest.mark.parametrize("levels", [1, 8])
def test_a_noisy_reward_is_drawn_once_for_its_user_number_event_and_content(related, levels):
    system = related.edge_system(mechanism="noisy-reward", reward_levels=levels, epsilon=0.5)
    rig = related.played(system, flip=False)
    law = LocalReward.of(levels, 0.5)
    address = edge_address(rig, "reward-noise", {"levels": levels, "epsilon_micro": 500_000, "law": law.law})
    key = rig.key.derive("local-counters")
    sums, count, taken = np.zeros((3, related.DIMENSION), np.int64), [0, 0, 0], 0
    rows = [row for step in rows_played(related) for row in step]
    names = event_names(related, rig)
    for release in rig.seen.records("releases", "Release"):
        size = len(release["nodes"]) // 4
        for node, features, reward in rows[taken : taken + size]:
            content = key.digest("reward", names[tuple(features)], struct.pack("<q", int(reward * levels)))
            stream = KeyedStream(key, replace(address, node=(node, count[node]), content=content))
            noised = law.estimate(law.draw(stream, np.array([int(reward * levels)])))
            sums[node] += np.trunc(np.array(features) * noised * 2.0**24).astype(np.int64)
            count[node] += 1
        taken += size
        blocks, found = related.arrays_of(release)
        assert np.array_equal(found, sums[blocks])
    assert taken == len(rows)


def test_at_the_edge_an_allowance_ends_too_and_the_price_is_in_the_ledger_once(related):
    system = related.edge_system(rewards_per_user=3)
    rig = related.RelatedLearnerRig(system, related.SECRET)
    for number in range(5):
        rig.interact(f"e{number}")
    rig.end_phase()
    seen = rig.fold()
    assert seen.counts["allowance_spent"] == 2
    assert [len(release["nodes"]) // 4 for release in seen.records("releases", "Release")] == [3]
    rig.interact("one more")
    rig.end_phase(1)
    assert not rig.fold().records("releases", "Release")
    (entry,) = rig.seen.records("ledger", "LedgerEntry")
    assert entry["debit"]["epsilon_micro"] == system.guarantee().epsilon_micro == 1_000_000
    assert entry["debit"]["scope"] == "epoch/0/0"
    assert entry["private_as_stated"]
    assert [debit for record in rig.seen.journals for debit in record["debits"]] == [entry["debit"]]


def test_the_journal_record_before_each_release_holds_its_debit(related):
    """The price with the first release, nothing with those that it covers, and no debit where nothing is released."""
    rig = related.RelatedLearnerRig(related.edge_system(), related.SECRET)
    for phase in range(3):
        rig.interact(f"e{phase}")
        rig.end_phase(phase)
        rig.fold()
    released = [len(related.Seen([step]).records("releases", "Release")) for step in rig.seen.steps]
    debits = [record["debits"] for record in rig.seen.journals]
    assert list(map(len, debits)) == released
    assert sum(released) == 3
    prices = [debit["epsilon_micro"] for held in debits for debit in held]
    assert prices == [rig.system.guarantee().epsilon_micro, 0, 0]
    assert rig.replayed(rig.fresh()).outputs == rig.seen.outputs


def test_partitions_with_one_key_draw_noise_of_their_own(related):
    system = related.edge_system(partitions={"learner": 2})
    noises = []
    for partition, user in enumerate(("bob", "ann")):
        rig = related.RelatedLearnerRig(system, related.SECRET, partition)
        rig.interact("e", user, reward=None)
        rig.end_phase()
        rig.fold()
        noises.append(related.arrays_of(rig.seen.records("releases", "Release")[0])[1])
    assert (noises[0] != noises[1]).all()
