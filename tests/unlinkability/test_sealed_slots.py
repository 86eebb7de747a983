"""Sealed slots between the roles: the sums of slots in clear, and nothing that does not open is counted."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hushstream.agents.worker.deployment import KeySource, load, parse_config, prepare
from hushstream.engine.devices.published import SEALING
from hushstream.engine.devices.sealing import Recipients, SlotPlace
from hushstream.engine.values import ConfigurationError
from hushstream.ops.check.verify import verify
from hushstream.privacy.errors import KeyFileError
from hushstream.privacy.keys import generate_keys, seeded_key
from hushstream.replay.catalogue import options_of, run_with
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.machines.learner import LearnerMachine
from hushstream.systems.p2b.machines.shuffler import ShufflerMachine
from hushstream.systems.p2b.sealed import SealOpener, seal
from hushstream.systems.p2b.slots import Report, pack

KEY = seeded_key(1, "sealing")
OTHER = seeded_key(2, "sealing")
NEARLY_EXACT = {"epsilon": 20.0, "window_slots": 4, "sums": "fresh"}
"""Noise is 0 but for a chance of 4e-9 a cell (the key is fixed): sums of two configurations can be compared."""


def sealed_system(rigs, key=KEY, **changes) -> P2BSystem:
    config = rigs.make_system(**changes).config
    return P2BSystem.of(replace(config, slot=replace(config.slot, sealed=True)), rigs.lattice(), Recipients.first(key))


def shuffler(rigs, system: P2BSystem) -> Any:
    return rigs.Rig(ShufflerMachine(system, 0, seeded_key(1, "shuffler"), (KEY,) if system.sealing else ()))


def sent(rigs, system: P2BSystem) -> list[bytes]:
    """What a learner sends of eight users, four of whom clicked."""
    rig = rigs.LearnerRig(system)
    for number in range(8):
        rig.interact(f"user-{number}", 3, number % 2)
    rig.end_phase()
    return [output.value for output in rig.fold().releases("reports")]


def sums_of(rigs, system: P2BSystem, values: list[bytes]) -> list[tuple[bytes, bytes]]:
    rig = shuffler(rigs, system)
    for value in values:
        rig.put("reports", value)
    seen = rig.fold()
    assert seen.letters == []
    return [(window["ones"], window["zeros"]) for window in seen.records("window-sums", "WindowSums")]


def record(system: P2BSystem, content: bytes, period: int, key=KEY, **changes) -> bytes:
    place = SlotPlace(b"i" * 16, period.to_bytes(8, "little"), system.digest)
    fields = {**place._asdict(), "sealed": seal(content, place, SealOpener(key).public_key, seeded_key(7, "user"))}
    return codec.encode("SealedSlot", {**fields, **changes})


def test_sealed_slots_give_the_sums_of_slots_in_clear(rigs):
    plain, sealed = rigs.make_system(release=NEARLY_EXACT), sealed_system(rigs, release=NEARLY_EXACT)
    in_clear, hidden = sent(rigs, plain), sent(rigs, sealed)
    assert len({len(value) for value in hidden[:8]}) == 1
    for value in in_clear[:8]:
        content = codec.decode(value)[1]["content"]
        assert not any(content[:8] in other for other in hidden)
    assert sums_of(rigs, sealed, hidden) == sums_of(rigs, plain, in_clear)
    assert len(sums_of(rigs, plain, in_clear)) == 2


def test_a_replay_sends_the_same_sealed_bytes(rigs):
    system = sealed_system(rigs)
    assert sent(rigs, system) == sent(rigs, system)


def test_the_shuffler_recovers_sealed_windows_byte_for_byte(rigs):
    system = sealed_system(rigs)
    rig = shuffler(rigs, system)
    for value in sent(rigs, system):
        rig.put("reports", value)
    seen = rig.fold()
    again = rig.replayed(ShufflerMachine(system, 0, seeded_key(1, "shuffler"), (KEY,)))
    assert [output.value for output in again.outputs] == [output.value for output in seen.outputs] != []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"key": OTHER}, "sealed_for_another"),
        ({"sealed": b"\x01" * 80}, "sealed_for_another"),
        ({"report_id": b"j" * 16}, "sealed_for_another"),
        ({"config_digest": b"d" * 16}, "other_configuration"),
        ({"content": b"\xff" * 32}, "malformed_slot"),
    ],
    ids=["another key", "noise", "another place", "another configuration", "no slot inside"],
)
def test_what_does_not_open_goes_to_the_dead_letters_and_the_rest_goes_on(rigs, change, reason):
    system = sealed_system(rigs)
    rig = shuffler(rigs, system)
    period = rig.now_ms // 86_400_000
    rig.put("reports", record(system, change.pop("content", pack(Report(1, 1, 1))), period, **change))
    for value in sent(rigs, system)[:4]:
        rig.put("reports", value)
    seen = rig.fold()
    assert seen.reasons == [reason]
    assert len(seen.records("window-sums", "WindowSums")) == 1


def test_slots_in_clear_are_refused_where_slots_are_sealed_and_the_other_way_round(rigs):
    plain, sealed = rigs.make_system(), sealed_system(rigs)
    for system, other in ((plain, sealed), (sealed, plain)):
        rig = shuffler(rigs, system)
        for value in sent(rigs, other)[:3]:
            rig.put("reports", value)
        assert rig.fold().reasons == ["unexpected_schema"] * 3


def test_a_shuffler_without_the_published_key_does_not_start(rigs):
    system = sealed_system(rigs)
    for held in ((), (OTHER,)):
        with pytest.raises(HushstreamError, match="which the deployment publishes"):
            ShufflerMachine(system, 0, seeded_key(1, "shuffler"), held)


def three_minutes(rigs, system: P2BSystem) -> Any:
    """A learner with four users due in each of three periods."""
    rig = rigs.LearnerRig(system)
    for number in range(12):
        rig.interact(f"user-{number}", 3, number % 2)
        if number % 4 == 3:
            rig.end_phase(number // 4)
            rig.fold()
            rig.wait(60)
    return rig


def test_a_key_rotates_under_a_running_deployment_and_every_slot_counts(rigs):
    before = sealed_system(rigs, slot={"period_seconds": 60.0}, release=NEARLY_EXACT)
    last = rigs.START_MS // 60_000 + 2
    turned = P2BSystem.of(before.config, rigs.lattice(), before.sealing.followed_by(OTHER, last, (KEY,)))
    assert turned.digest == before.digest
    learner, unturned = three_minutes(rigs, turned), three_minutes(rigs, before)
    values = [output.value for output in learner.seen.releases("reports")]
    slots = [fields for name, fields in map(codec.decode, values) if name == "SealedSlot"]
    assert [int.from_bytes(fields["period"], "little") - last for fields in slots] == [-2] * 4 + [-1] * 4 + [0] * 4
    for number, fields in enumerate(slots):
        place = SlotPlace(fields["report_id"], fields["period"], fields["config_digest"])
        SealOpener(OTHER if number >= 8 else KEY).open(fields["sealed"], place)
    again = learner.replayed(LearnerMachine(turned, 0, learner.key))
    assert [output.value for output in again.releases("reports")] == values
    # Until the period comes, who has the old file writes the same; afterwards what they write still opens.
    late = [output.value for output in unturned.seen.releases("reports")]
    assert [value == other for value, other in zip(values, late, strict=True)] == [True] * 10 + [False] * 4 + [True]
    released = []
    for sent_by in (values, late):
        rig = rigs.Rig(ShufflerMachine(turned, 0, seeded_key(1, "shuffler"), (KEY, OTHER)))
        for number, value in enumerate(sent_by):
            rig.now_ms = rigs.START_MS + 60_000 * (number // 5)
            rig.put("reports", value)
        seen = rig.fold()
        assert (seen.letters, seen.counts["slot"]) == ([], 12)
        released.append([(window["ones"], window["zeros"]) for window in seen.records("window-sums", "WindowSums")])
        fresh = ShufflerMachine(turned, 0, seeded_key(1, "shuffler"), (KEY, OTHER))
        assert rig.replayed(fresh).releases("window-sums") == rig.seen.releases("window-sums")
    assert released[0] == released[1]


def test_the_public_key_is_part_of_what_an_agent_pins(rigs):
    assert len({sealed_system(rigs).digest, sealed_system(rigs, OTHER).digest, rigs.make_system().digest}) == 3


VALUES = {
    "deployment": "small",
    "items": {"capacity": 3},
    "features": {"dimension": 3},
    "expected_slots": 40,
    "encoder": {"codes": 2},
    "slot": {"sealed": True},
}


def test_prepare_publishes_the_public_half_and_keeps_it(tmp_path):
    config, keys = parse_config(VALUES), tmp_path / "keys"
    with pytest.raises(ConfigurationError, match="the shuffler's public keys, got none"):
        prepare(tmp_path / "shop", config)
    with pytest.raises(KeyFileError, match=r"hushstream keys generate .* --zone sealing"):
        prepare(tmp_path / "shop", config, keys=KeySource(keys))
    key = generate_keys(keys, ("sealing",))["sealing"]
    system = prepare(tmp_path / "shop", config, keys=KeySource(keys))
    assert system.core.sealing == Recipients.first(key)
    assert load(tmp_path / "shop").digest == prepare(tmp_path / "shop", config).digest == system.digest
    with pytest.raises(ConfigurationError, match="expected the public half of the zone's first key or no file"):
        prepare(tmp_path / "shop", config, keys=KeySource(seed=1))


def published(**changes: Any) -> str:
    first = Recipients.first(KEY).keys[0]
    fields = {"public_key": first.public_key.hex(), "vouch_key": first.vouch_key.hex(), "from_period": 0, "vouched": ""}
    return json.dumps({"keys": [{**fields, **changes}]})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "as JSON"),
        (published(public_key="xyz"), "in hexadecimal"),
        ('{"key": "00"}', "in hexadecimal"),
        (published(public_key="00"), "public key of 32 bytes, got 1"),
        (published(public_key="00" * 32), "small order"),
        (published(from_period=7), "grow from 0 on"),
    ],
)
def test_a_damaged_public_key_is_refused(tmp_path, content, message):
    prepare(tmp_path, parse_config(VALUES), keys=KeySource(seed=1))
    (tmp_path / SEALING).write_text(content, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message):
        load(tmp_path)


def test_a_key_is_given_exactly_where_slots_are_sealed(rigs):
    config = rigs.make_system().config
    with pytest.raises(ConfigurationError, match=r"slot\.sealed false: expected no public key"):
        P2BSystem.of(config, rigs.lattice(), Recipients.first(KEY))
    with pytest.raises(ConfigurationError, match=r"slot\.sealed true: expected the public key"):
        P2BSystem.of(replace(config, slot=replace(config.slot, sealed=True)), rigs.lattice())


# Sealed slots end to end: both runners, verify, and a worker that is killed.

OPTIONS: dict[str, Any] = {"dataset": "synthetic", "seed": 3, "world": {"users": 30}}
CONFIG: dict[str, Any] = {
    "encoder": {"codes": 4},
    "partitions": {"learner": 2, "shuffler": 2},
    "privacy": {"epsilon": 20.0},
    "release": {"sums": "fresh"},
}
SEALED = {**CONFIG, "slot": {"sealed": True}}


@pytest.mark.slow
@pytest.mark.process
def test_sealed_slots_give_the_same_sums_on_both_runners_and_all_that_was_published_follows():
    in_clear = run_with(options_of("p2b", {"runner": "direct", "config": CONFIG, **OPTIONS}))
    direct = run_with(options_of("p2b", {"runner": "direct", "config": SEALED, **OPTIONS}))
    stream = run_with(options_of("p2b", {"runner": "stream", "config": SEALED, **OPTIONS}))
    assert in_clear.counts["slot"] > 10
    private, own = (in_clear.rows[name] for name in ("shared private model", "own learning only"))
    assert private["mean_reward"] != own["mean_reward"], "the model has an effect"
    for sealed in (direct, stream):
        assert (sealed.rows, sealed.curve) == (in_clear.rows, in_clear.curve)
        assert sealed.verify is not None
        assert {check.status for check in sealed.verify.values()} == {"equal"}
    assert direct.config_digest == stream.config_digest != in_clear.config_digest


@pytest.mark.slow
@pytest.mark.process
def test_a_worker_that_is_killed_seals_every_slot_to_the_same_bytes_again(deployed, raw, tmp_path):
    with deployed.embedded() as broker:
        left = deployed.worked(broker, tmp_path, raw.records, sealed=True, killed=True)
    values: dict[bytes, set[bytes]] = {}
    for record in raw.of_topic(left.logs, "reports"):
        assert codec.decode(record.value)[0] == "SealedSlot"
        values.setdefault(record.value[10:26], set()).add(record.value)
    assert values.keys() >= left.user_of.keys()
    assert {len(found) for found in values.values()} == {1}, "one content an id, whichever worker sent it"
    found = verify(left.copy, left.system, left.keys, ("learner",))
    assert found.exit_code == 0, found.as_text()
