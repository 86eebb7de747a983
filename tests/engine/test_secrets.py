"""A key's bytes stay in its zone: planted canaries are looked for in everything that the machines give away."""

from __future__ import annotations

import logging

import pytest

from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.contribution.slots import Report

EDGE = bytes(range(100, 132))
SHUFFLER = bytes(range(200, 232))


def forms(material):
    hexed = material.hex()
    return [
        material[:12],
        material[-12:],
        hexed.encode()[:16],
        hexed.upper().encode()[:16],
        repr(material)[2:20].encode(),
    ]


@pytest.fixture
def played(rigs):
    edge, shuffler = rigs.Key(EDGE), rigs.Key(SHUFFLER)
    learner = rigs.LearnerRig(key=edge)
    for user in ("ann", "bob", "cyd", "dan"):
        learner.interact(user, 3)
    learner.put("contexts", b"junk")
    learner.end_phase()
    learner.fold()
    relay = rigs.ShufflerRig(key=shuffler)
    for output in learner.seen.releases("reports"):
        relay.put("reports", output.value)
    relay.slot(1, Report(1, 1, 1), config_digest=bytes(16))
    relay.fold()
    secrets = [EDGE, SHUFFLER, learner.machine.user_key("ann").prf("probe")]
    return learner, relay, secrets


def test_no_output_journal_or_snapshot_holds_key_material(played):
    learner, relay, _ = played
    material = {"edge": forms(EDGE), "shuffler": forms(SHUFFLER)}
    user_key = learner.machine.user_key("ann")._material
    material["user"] = forms(user_key)
    for rig in (learner, relay):
        values = [rig.genesis, *rig.journal, rig.machine.snapshot(), *(output.value for output in rig.seen.outputs)]
        assert len(values) > 5
        for name, found in material.items():
            assert not any(form in value for form in found for value in values), name


def test_no_representation_error_or_log_line_holds_key_material(rigs, played, caplog):
    learner, relay, _ = played
    texts = []
    with caplog.at_level(logging.DEBUG):
        for rig in (learner, relay):
            texts += [repr(rig.machine), str(vars(rig.machine)), repr(rig.machine.__dict__)]
            foreign = rigs.LearnerRig(key=rigs.seeded_key(3, "edge")).genesis
            for action in (
                lambda m=rig.machine, g=foreign: m.start(g),
                lambda m=rig.machine: m.restore(b"x" * 40),
                lambda m=rig.machine: m.genesis(b""),
                lambda m=rig.machine, r=rig: m.replay(r.journal[0], []),
            ):
                with pytest.raises(HushstreamError) as caught:
                    action()
                texts.append(f"{caught.value!r} {caught.value}")
        agent = learner.machine.agents["ann"]
        texts.append(f"{agent!r} {agent.dump()}")
    texts.append(caplog.text)
    for material in (EDGE, SHUFFLER):
        assert not any(form.decode("latin-1") in text for form in forms(material) for text in texts)


def test_report_ids_of_a_user_tell_nobody_who_they_are_without_the_edge_key(rigs):
    ids = []
    for key in (rigs.Key(EDGE), rigs.Key(SHUFFLER)):
        rig = rigs.LearnerRig(key=key)
        rig.interact("ann", 3)
        rig.end_phase()
        ids.append(rig.fold().slots[0].report_id)
    assert ids[0] != ids[1]


@pytest.mark.parametrize("seeded", [True, False])
def test_a_release_under_a_seeded_key_says_that_it_is_not_private(rigs, seeded):
    rig = rigs.ShufflerRig(key=rigs.seeded_key(1, "shuffler") if seeded else rigs.Key(SHUFFLER))
    for number in range(4):
        rig.slot(number)
    seen = rig.fold()
    records = [*seen.records("crowds", "Crowd"), *seen.records("ledger", "LedgerEntry")]
    assert [record["private_as_stated"] for record in records] == [not seeded] * 2


def test_a_seeded_run_says_that_it_is_not_private(rigs):
    assert rigs.codec.decode(rigs.LearnerRig().genesis)[1]["reproducible"]
    assert not rigs.codec.decode(rigs.LearnerRig(key=rigs.Key(EDGE)).genesis)[1]["reproducible"]
