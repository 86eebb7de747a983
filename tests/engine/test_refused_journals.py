"""What does not follow from the log is refused: altered inputs, records off the chain, snapshots of others."""

import numpy as np
import pytest

from hushstream.engine.journal.notes import FOREIGN, Note, NoteSeal
from hushstream.engine.learner.model_parts import ModelReader
from hushstream.engine.records import InputRecord, InputSlice, OffChain, ReplayMismatch
from hushstream.engine.state.published import PUBLIC_RING
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.machines.aggregator import AggregatorMachine
from hushstream.systems.p2b.machines.learner import LearnerMachine
from hushstream.systems.p2b.machines.shuffler import ShufflerMachine
from hushstream.systems.p2b.slots import Report


def scripted(rigs):
    """One rig of each role with a journal of several records."""
    system = rigs.make_system()
    learner = rigs.LearnerRig(system)
    for user in ("ann", "bob"):
        learner.interact(user, 3)
    shuffler = rigs.ShufflerRig(system)
    for number in range(12):
        shuffler.slot(number, Report(number % 4, number % 5, 1))
    shuffler.fold()
    aggregator = rigs.AggregatorRig(system)
    aggregator.give(rigs.window_sums_values(system, 3))
    fresh = {
        "learner": lambda: LearnerMachine(system, 0, learner.key),
        "shuffler": lambda: ShufflerMachine(system, 0, shuffler.key),
        "aggregator": lambda: type(aggregator.machine)(system, 0),
    }
    return {name: (rig, fresh[name]) for name, rig in zip(fresh, (learner, shuffler, aggregator), strict=True)}


@pytest.fixture(scope="module")
def roles(rigs):
    return scripted(rigs)


@pytest.mark.parametrize("role", ["learner", "shuffler", "aggregator"])
@pytest.mark.parametrize("change", ["value", "time", "order", "missing"])
def test_altered_input_gives_a_mismatch_and_no_release(roles, role, change):
    rig, make = roles[role]
    fresh = make()
    fresh.start(rig.genesis)
    value = rig.journal[0]
    slices = [rig.slice(part) for part in fresh.recovery_ranges(value)]
    index, part = next((index, part) for index, part in enumerate(slices) if part.records)
    records = list(part.records)
    if change == "value":
        records[0] = records[0]._replace(value=records[0].value[:-1] + bytes([records[0].value[-1] ^ 1]))
    elif change == "time":
        records[0] = records[0]._replace(timestamp_ms=records[0].timestamp_ms + 1)
    elif change == "order" and len(records) > 1:
        records[0], records[1] = (
            records[0]._replace(value=records[1].value),
            records[1]._replace(value=records[0].value),
        )
    else:
        records = records[1:]
    slices[index] = part._replace(records=tuple(records))
    with pytest.raises(ReplayMismatch):
        fresh.replay(value, slices)


@pytest.mark.parametrize("role", ["learner", "shuffler", "aggregator"])
def test_a_record_off_the_chain_is_refused_and_changes_nothing(roles, role):
    rig, make = roles[role]
    fresh = make()
    fresh.start(rig.genesis)
    first, second = rig.journal[:2]
    foreign = [
        second,
        rig.genesis,
        first[:-1] + bytes([first[-1] ^ 1]),
        first[:-20] + bytes([first[-20] ^ 1]) + first[-19:],
    ]
    before = fresh.snapshot()
    for value in foreign:
        try:
            slices = [rig.slice(part) for part in fresh.recovery_ranges(value)]
        except HushstreamError:
            continue
        with pytest.raises(OffChain):
            fresh.replay(value, slices)
    assert fresh.snapshot() == before
    fresh.replay(first, [rig.slice(part) for part in fresh.recovery_ranges(first)])
    after = fresh.snapshot()
    with pytest.raises(OffChain):
        fresh.replay(first, [rig.slice(part) for part in fresh.recovery_ranges(second)])
    assert fresh.snapshot() == after


@pytest.mark.parametrize("role", ["learner", "shuffler", "aggregator"])
def test_a_damaged_snapshot_is_refused(roles, role):
    rig, make = roles[role]
    state = rig.machine.snapshot()
    generator = np.random.default_rng(3)
    fresh = make()
    fresh.start(rig.genesis)
    damaged = [state[:cut] for cut in (0, 1, 15, 16, 17, len(state) // 2, len(state) - 1)] + [state + b"\0"]
    for _ in range(40):
        place = int(generator.integers(len(state)))
        damaged.append(state[:place] + bytes([state[place] ^ (1 << int(generator.integers(8)))]) + state[place + 1 :])
    for value in damaged:
        with pytest.raises(HushstreamError, match="damaged"):
            fresh.restore(value)
    fresh.restore(state)


@pytest.mark.parametrize("role", ["learner", "shuffler", "aggregator"])
def test_a_snapshot_of_another_role_journal_or_deployment_is_refused(rigs, roles, role):
    rig, make = roles[role]
    fresh = make()
    fresh.start(rig.genesis)
    for other, (foreign, _) in roles.items():
        if other != role:
            with pytest.raises(HushstreamError, match="snapshot"):
                fresh.restore(foreign.machine.snapshot())
    kind = {"learner": rigs.LearnerRig, "shuffler": rigs.ShufflerRig, "aggregator": rigs.AggregatorRig}[role]
    for changes in ({"deployment": "other"}, {"learner": {"alpha": 0.5}}):
        with pytest.raises(HushstreamError, match="snapshot: expected partition, deployment and configuration"):
            fresh.restore(kind(rigs.make_system(**changes)).machine.snapshot())


def test_a_snapshot_of_a_wiped_journal_is_refused(rigs):
    """With a true key the genesis nonce is random, so a second life of the same topics is another journal."""
    key = rigs.Key(b"\x5a" * 31 + b"\x01")
    old = rigs.ShufflerRig(key=key, nonce=bytes(32))
    new = rigs.ShufflerRig(key=key, nonce=b"\1" * 32)
    with pytest.raises(HushstreamError, match="another journal"):
        new.machine.restore(old.machine.snapshot())


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"deployment": "other"}, "deployment"), ({"learner": {"alpha": 0.5}}, "config_digest")],
)
def test_a_journal_of_another_deployment_or_configuration_is_not_continued(rigs, changes, named):
    genesis = rigs.LearnerRig(rigs.make_system(**changes)).genesis
    with pytest.raises(HushstreamError, match=f"expected {named}"):
        LearnerMachine(rigs.make_system(), 0, rigs.seeded_key(1, "edge")).start(genesis)


def test_a_journal_of_another_key_role_or_partition_is_not_continued(rigs):
    system = rigs.make_system(partitions={"learner": 2})
    genesis = rigs.LearnerRig(system).genesis
    for machine, named in (
        (LearnerMachine(system, 0, rigs.seeded_key(2, "edge")), "key_id"),
        (LearnerMachine(system, 1, rigs.seeded_key(1, "edge")), "partition"),
        (ShufflerMachine(system, 0, rigs.seeded_key(1, "edge")), "role"),
    ):
        with pytest.raises(HushstreamError, match=f"expected {named}"):
            machine.start(genesis)
    altered = rigs.changed(genesis, nonce=bytes(32))
    with pytest.raises(HushstreamError, match="altered"):
        LearnerMachine(system, 0, rigs.seeded_key(1, "edge")).start(altered)


def test_who_follows_models_takes_an_operators_note_for_no_foreign_record(rigs):
    """`logs repair foreign` wrote one, and the alert about foreign records fired once more by that."""
    system = rigs.make_system()
    reader = ModelReader(system, 0, "private", system.form.model_record)
    note = Note(FOREIGN, ("models", 0), 1, 2)
    deployments = (system.config.deployment, "another")
    ours, elsewhere = (NoteSeal(name, "aggregator", 0, PUBLIC_RING).pack(note) for name in deployments)
    values = (AggregatorMachine(system, 0).genesis(bytes(32)), b"of nobody", ours, elsewhere)
    records = tuple(InputRecord(offset, 0, value) for offset, value in enumerate(values))
    assert list(reader.read(InputSlice("models", 0, 0, len(records), records))) == []
    assert list(reader.foreign) == [(1, len(b"of nobody")), (3, len(elsewhere))]
