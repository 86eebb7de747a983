"""A device: its slots are those of any learner, one size, written before they leave, and never two for one number."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import hpke
import numpy as np
import pytest

from hushstream.agents.worker.deployment import KeySource, artefacts_of, parse_config
from hushstream.agents.worker.roles import role_work
from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.devices.agreed import configuration_of, keys_of
from hushstream.engine.devices.envelope import read_model
from hushstream.engine.devices.kept import BadAgreement, BadModel, BadSeal, OlderModel, WeakerAgreement
from hushstream.engine.devices.sealing import (
    SEALING_BYTES,
    BadBody,
    ContentOpener,
    Openers,
    SlotPlace,
    period_of,
    place_of,
    read_slot,
    seal_content,
)
from hushstream.engine.devices.signing import Signer, SigningKeys
from hushstream.engine.records import InputRecord, InputSlice
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.amounts import DELTA_ONE
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import laplace_scale, truncation
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.edge.device import LEAST_ERROR, Agreement, Device
from hushstream.systems.p2b.prepared import VisitDeviceService
from hushstream.systems.p2b.slots import SLOT_RECORD, UNITS, unpack_reports
from hushstream.systems.p2b.system import KIND

OPENER = ContentOpener(KeySource(seed=5).key("sealing"))
PLACE = SlotPlace(b"i" * 16, b"p" * 8, b"c" * 16)


def opened(body: bytes, agreement: Agreement) -> bytes:
    fields = dict(read_slot(body, agreement.body_bytes))
    sealed = fields.pop("sealed")
    return OPENER.open(sealed, SlotPlace(**fields))


def test_what_the_library_opens_a_sender_made_from_the_rfc_alone_seals():
    content = bytes(range(60))
    made = hpke.sealed(content, OPENER.public_key, b"hushstream slot 1" + b"".join(PLACE), bytes(range(32)))
    assert OPENER.open(made, PLACE) == content
    assert len(made) == len(content) + SEALING_BYTES


def test_the_sender_of_these_tests_is_that_of_the_rfc():
    """RFC 9180, appendix A.1.1: the first message of base mode, without the message's own aad."""
    recipient = bytes.fromhex("3948cfe0ad1ddb695d780e59077195da6c56506b027329794ab02bca80815c4d")
    ephemeral = bytes.fromhex("52c4a758a802cd8b936eceea314432798d5baf2d7e9235dc084ab1b9cfa2f736")
    info = bytes.fromhex("4f6465206f6e2061204772656369616e2055726e")
    content = bytes.fromhex("4265617574792069732074727574682c20747275746820626561757479")
    aad = bytes.fromhex("436f756e742d30")
    made = hpke.sealed(content, recipient, info, ephemeral, aad)
    assert made[:32].hex() == "37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431"
    assert made[32:].hex() == (
        "f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218a355a96d8770ac83d07bea87e13c512a"
    )


@pytest.mark.parametrize("changed", ["report_id", "period", "config_digest"])
def test_a_sealed_content_opens_in_its_own_place_alone(changed):
    sealed = seal_content(b"content", PLACE, OPENER.public_key)
    assert OPENER.open(sealed, PLACE) == b"content"
    moved = PLACE._replace(**{changed: b"x" * len(getattr(PLACE, changed))})
    with pytest.raises(BadSeal):
        OPENER.open(sealed, moved)


def test_nothing_is_sealed_to_a_key_of_small_order():
    with pytest.raises(BadSeal, match="full order"):
        seal_content(b"content", PLACE, bytes(32))


def record(system: Any, content: bytes, recipient: bytes = OPENER.public_key, **changes: Any) -> bytes:
    """A slot of the first period as the gateway appends it, some of it changed afterwards."""
    place = place_of(b"i" * 16, 0, system.digest)
    sealed = seal_content(content, place, recipient)
    return codec.encode(SLOT_RECORD, {**place._asdict(), "sealed": sealed, **changes})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"recipient": ContentOpener(KeySource(seed=6).key("sealing")).public_key}, "sealed_for_another"),
        ({"sealed": b"\x01" * 80}, "sealed_for_another"),
        ({"report_id": b"j" * 16}, "sealed_for_another"),
        ({"config_digest": b"d" * 16}, "other_configuration"),
        ({"content": b""}, "malformed_slot"),
    ],
    ids=["another key", "noise", "another place", "another configuration", "no slot inside"],
)
def test_what_the_shuffler_cannot_open_goes_to_the_dead_letters_and_the_rest_counts(system, change, reason):
    machine = role_work("shuffler", system, KeySource(seed=5)).make_machine(0)
    machine.start(machine.genesis(bytes(32)))
    null = bytes(system.core.form.content_bytes)
    fields = {"report_id": b"k" * 16, "period": bytes(8), "config_digest": system.digest, "content": null}
    values = [
        record(system, **{"content": null, **change}),
        codec.encode("FeatureSlot", fields),
        record(system, null),
    ]
    records = tuple(InputRecord(offset, 0, value) for offset, value in enumerate(values))
    steps = machine.fold([InputSlice("reports", 0, 0, len(records), records)])
    letters = [codec.decode(letter.value)[1]["reason"] for step in steps for letter in step.dead_letters]
    assert letters == [reason, "unexpected_schema"], "a slot in clear would show what its user did"
    assert sum(step.counts[Outcome.SLOT] for step in steps) == 1


def test_a_shuffler_without_the_published_key_does_not_start(system):
    with pytest.raises(BadSeal, match="expected the sealing key of public half"):
        role_work("shuffler", system, KeySource(seed=6))


def test_a_slot_leaves_after_all_its_rewards_could_come_and_holds_what_the_agent_chose(devices, agreement, device):
    ended = devices.interact(device, random.Random(3), devices.NOW_MS)
    earliest = ended - 1_000 + agreement.attribution_window_ms
    assert earliest <= device.next_ms() < earliest + agreement.delay_ms
    assert device.outgoing(device.next_ms() - 1) == []
    (slot,) = device.outgoing(device.next_ms())
    content = opened(slot.body, agreement)
    agent = EdgeAgent(agreement.terms(), Key(device._key), "private")
    source, now_ms = random.Random(3), devices.NOW_MS
    for number in range(10):
        values = {"country": source.choice(["de", "fr", "it"]), "age": source.uniform(10, 100)}
        row = np.frombuffer(agreement.layout.schema.encode(values).row, np.uint8)
        item = agent.decide_new(f"visit-{number}", row, now_ms).arm
        agent.shown(f"visit-{number}", item)
        if source.random() < 0.5:
            agent.rewarded(f"visit-{number}", item, 1.0)
        now_ms += 1_000
    for event in list(agent.open):
        agent.expire(event)
    expected = agent.take_slot(device.next_ms())
    assert (slot.report_id, content) == (expected.report_id, expected.content)
    assert unpack_reports(agreement.layout, [content]).held.all()


def test_click_and_null_have_one_size(devices, agreement):
    sizes = set()
    for clicks in (True, False):
        device = Device.begun(agreement, random.Random(4).randbytes)
        if clicks:
            devices.interact(device, random.Random(3), devices.NOW_MS)
        else:  # nothing was ever shown: the slot is null
            for number in range(10):
                device.decide(str(number), {}, devices.NOW_MS)
        (slot,) = device.outgoing(device.next_ms())
        held = unpack_reports(agreement.layout, [opened(slot.body, agreement)]).held
        assert held.tolist() == [clicks]
        sizes.add(len(slot.body))
    assert sizes == {agreement.body_bytes}


def test_a_restart_sends_the_same_bytes_and_nothing_after_it_was_handed_in(devices, agreement, device):
    devices.interact(device, random.Random(3), devices.NOW_MS)
    due = device.next_ms()
    sent = device.outgoing(due)
    again = Device.load(agreement, device.dump(), random.Random(9).randbytes)
    assert again.outgoing(due + 10_000_000) == sent
    again.handed_in(sent[0].report_id)
    assert Device.load(agreement, again.dump(), random.Random(9).randbytes).outgoing(due + 10_000_000) == []


def test_an_older_copy_numbers_its_slot_anew_under_the_same_id(devices, agreement, device):
    older = device.dump()
    devices.interact(device, random.Random(3), devices.NOW_MS)
    (first,) = device.outgoing(device.next_ms())
    restored = Device.load(agreement, older, random.Random(9).randbytes)
    devices.interact(restored, random.Random(4), devices.NOW_MS)
    (second,) = restored.outgoing(restored.next_ms())
    # The shuffler counts an id once, so the user is in one report all the same.
    assert first.report_id == second.report_id
    assert opened(first.body, agreement) != opened(second.body, agreement)


def test_no_more_slots_than_a_life_has(devices, agreement, device):
    now_ms = devices.interact(device, random.Random(3), devices.NOW_MS)
    for turn in range(5):
        now_ms = devices.interact(device, random.Random(turn), now_ms, name=f"later-{turn}")
    assert len(device.outgoing(now_ms + 100_000_000)) == agreement.promise.lifetime_slots == 1


def test_what_was_sealed_for_a_wrong_clock_is_sealed_again_with_the_same_content(devices, agreement, device):
    devices.interact(device, random.Random(3), devices.NOW_MS)
    (first,) = device.outgoing(device.next_ms())
    later_ms = devices.NOW_MS + 3 * agreement.period_ms
    device.seal_again(first.report_id, later_ms)
    (second,) = device.outgoing(later_ms)
    assert first.report_id == second.report_id
    assert opened(first.body, agreement) == opened(second.body, agreement)
    period = int.from_bytes(read_slot(second.body, agreement.body_bytes)["period"], "little")
    assert period == later_ms // agreement.period_ms


def test_a_gateway_that_tells_an_early_time_gets_no_slot_that_is_sealed_to_a_key_that_was_replaced(
    devices, system, agreement, device
):
    old, new = KeySource(seed=5).key("sealing"), KeySource(seed=6).key("sealing")
    keys = system.core.sealing.followed_by(new, devices.NOW_MS // agreement.period_ms, (old,))
    device.take(devices.model_of(system)._replace(sealing=keys).as_bytes(), devices.NOW_MS)
    devices.interact(device, random.Random(3), devices.NOW_MS)
    (first,) = device.outgoing(device.next_ms())
    device.seal_again(first.report_id, devices.NOW_MS - 50 * agreement.period_ms)
    (second,) = device.outgoing(device.next_ms())
    fields = read_slot(second.body, agreement.body_bytes)
    place = place_of(first.report_id, period_of(fields), agreement.configuration)
    assert period_of(fields) == devices.NOW_MS // agreement.period_ms - 50
    with pytest.raises(BadSeal):
        ContentOpener(old).open(fields["sealed"], place)
    # The shuffler has both: it opens what was sealed to the newer one for any period.
    assert len(Openers(keys, (old, new)).open(fields["sealed"], place)) == system.core.form.content_bytes


def test_a_device_goes_by_the_agreement_that_it_has(devices, system, agreement, device, tmp_path):
    stronger = devices.agreed(devices.deployed(tmp_path / "stronger", privacy={"epsilon": 0.5}))
    weaker = devices.agreed(devices.deployed(tmp_path / "weaker", privacy={"epsilon": 2.0}))
    with pytest.raises(WeakerAgreement, match="at most 1000000 millionths"):
        Device.agreed_anew(weaker, device.dump(), random.Random(9).randbytes)
    devices.interact(device, random.Random(3), devices.NOW_MS)
    device.outgoing(device.next_ms())
    for other in (stronger, weaker):
        with pytest.raises(BadAgreement, match="configuration that this device agreed to"):
            Device.load(other, device.dump(), random.Random(9).randbytes)
    anew = Device.agreed_anew(stronger, device.dump(), random.Random(9).randbytes)
    devices.interact(anew, random.Random(3), devices.NOW_MS)
    assert anew.outgoing(devices.NOW_MS * 2) == [], "the slot of this life was sent under the first agreement"


def test_a_device_keeps_what_it_has_paid_through_every_agreement(devices, tmp_path):
    def agreement(epsilon: float, slots: int) -> Agreement:
        privacy = {"epsilon": epsilon, "units_per_person": slots, "person": "unprotected"}
        return devices.agreed(devices.deployed(tmp_path / f"{epsilon}-{slots}", privacy=privacy))

    dear, cheap = agreement(1.0, 2), agreement(0.5, 4)
    draw = random.Random(1).randbytes
    device = Device.begun(dear, draw)
    devices.interact(device, random.Random(3), devices.NOW_MS)
    assert device._spent() == {"life": 2_000_000, "paid": 1_000_000}
    # Three slots of the other agreement, of which the first counts as sent, are more than the half that is left.
    with pytest.raises(WeakerAgreement, match=r"at most 1000000 millionths, .* got 1500000"):
        Device.agreed_anew(cheap, device.dump(), draw)
    device = Device.agreed_anew(agreement(0.5, 3), device.dump(), draw)
    devices.interact(device, random.Random(3), devices.NOW_MS, visits=20)
    assert device._spent() == {"life": 2_000_000, "paid": 2_000_000}
    kept = Device.load(device.agreement, device.dump(), draw)
    assert kept._spent() == device._spent()
    with pytest.raises(WeakerAgreement, match="at most 0 millionths"):
        Device.agreed_anew(cheap, kept.dump(), draw)


def test_an_agreement_states_the_price_of_its_settings(devices, system):
    from hushstream.systems.p2b.prepared import agreement_of

    said = json.loads(agreement_of(system.core))
    assert Agreement.read(json.dumps(said)).promise.epsilon_micro == 1_000_000
    for changed in (
        {"promise": {**said["promise"], "epsilon_micro": 500_000}},
        {"promise": {**said["promise"], "exchange_epsilon_micro": 500_000}},
        {"promise": {**said["promise"], "delta_units": "0"}},
        {"promise": {**said["promise"], "exchange_delta_units": "1"}},
        {"promise": {**said["promise"], "lifetime_slots": 2}},
        {"terms": {**said["terms"], "lifetime_slots": 2}},
        {"layout": {**said["layout"], "digest": "00" * 16}},
        {"layout": {**said["layout"], "budgets": said["layout"]["budgets"][::-1]}},
        {"slot": {**said["slot"], "delay_ms": 0}},
    ):
        with pytest.raises(BadAgreement, match=r"of its settings|of its features"):
            Agreement.read(json.dumps({**said, **changed}))


def test_tables_of_every_scale_are_off_by_more_than_devices_suppose():
    # A device has no tables: it refuses a delta that no deployment of its settings can have.
    scales = [laplace_scale(epsilon, levels) for epsilon in (0.001, 0.03, 1, 7, 20) for levels in (UNITS, 977 * UNITS)]
    assert min(truncation(*scale) for scale in scales) * DELTA_ONE > LEAST_ERROR


def test_an_agreement_that_states_a_small_price_as_none_is_refused(devices, tmp_path):
    from hushstream.systems.p2b.prepared import agreement_of

    privacy = {"epsilon": 4e-6, "units_per_person": 250_000, "person": "unprotected"}
    said = json.loads(agreement_of(devices.deployed(tmp_path / "small", privacy=privacy).core))
    assert Agreement.read(json.dumps(said)).promise.epsilon_micro == 1_000_000
    free = {**said["promise"], "epsilon_micro": 0, "exchange_epsilon_micro": 1_000_000}
    with pytest.raises(BadAgreement, match="privacy cost of its settings"):
        Agreement.read(json.dumps({**said, "promise": free}))


@pytest.mark.parametrize(
    "other",
    [{"kind": "hosted"}, {"system": "bgt"}, {"public_dataset": True}, {"named_items": True}, {"mode": "tuples"}],
)
def test_an_agreement_of_another_mechanism_is_refused(system, other):
    from hushstream.systems.p2b.prepared import agreement_of

    said = json.loads(agreement_of(system.core))
    settings = json.loads(said["canonical"])
    release = {**settings["release"], **({} if "mode" not in other else other)}
    canonical = json.dumps({**settings, **({} if "mode" in other else other), "release": release})
    sealing, signing = keys_of(said)
    digest = configuration_of(canonical.encode(), sealing.pinned + signing.pinned).hex()
    with pytest.raises(BadAgreement, match="slots for noised sums"):
        Agreement.read(json.dumps({**said, "canonical": canonical, "configuration": digest}))


def test_an_agreement_under_which_slots_cost_nothing_is_refused(system):
    from hushstream.systems.p2b.prepared import agreement_of

    said = json.loads(agreement_of(system.core))
    settings = json.loads(said["canonical"])
    for epsilon in (0.0, -1.0):
        micro = round(epsilon * 1e6)
        canonical = json.dumps({**settings, "release": {**settings["release"], "epsilon": epsilon}})
        sealing, signing = keys_of(said)
        digest = configuration_of(canonical.encode(), sealing.pinned + signing.pinned).hex()
        promise = {**said["promise"], "epsilon_micro": micro, "exchange_epsilon_micro": 2 * micro}
        with pytest.raises(BadAgreement, match=r"cost something|a number >= 0"):
            Agreement.read(json.dumps({**said, "canonical": canonical, "configuration": digest, "promise": promise}))


@pytest.mark.parametrize(("behind", "stale"), [(-1, True), (0, False), (1, False), (2, True)])
def test_a_gateway_takes_slots_of_the_current_period_and_the_one_before(devices, system, agreement, behind, stale):
    period = devices.NOW_MS // agreement.period_ms - behind
    fields = {"period": place_of(bytes(16), period, agreement.configuration).period}
    assert VisitDeviceService(system.core).is_stale(fields, devices.NOW_MS) == stale


def test_a_clock_that_is_set_back_gives_no_fresh_quota(devices, agreement):
    limited = replace(agreement, contexts_per_period=5)
    device, day_ms = Device.begun(limited, random.Random(1).randbytes), limited.quota_period_ms

    def learned(day: int, name: str) -> int:
        for number in range(4):
            device.decide(f"{name}-{number}", {}, devices.NOW_MS + day * day_ms)
        return sum(event.startswith(name) for event in device._agent.open)

    assert learned(0, "first") == 4
    # Set back, and forward again: one context is left of the newest day's quota.
    assert learned(-1, "back") + learned(0, "again") + learned(-2, "further") == 1
    device = Device.load(limited, device.dump(), random.Random(1).randbytes)
    assert learned(-1, "restarted") == 0
    assert learned(1, "next") == 4
    shorter = replace(limited, configuration=b"another".ljust(16), quota_period_ms=10 * day_ms)
    device = Device.agreed_anew(shorter, device.dump(), random.Random(1).randbytes)
    assert learned(1, "anew") == 4, "the numbers of periods of another length say nothing"


def test_the_quota_counts_before_a_slot_is_due_while_it_waits_and_when_it_has_left(devices, agreement):
    limited = replace(agreement, contexts_per_period=agreement.after_interactions + 4)
    device = Device.begun(limited, random.Random(1).randbytes)

    def learned(name: str, count: int, now_ms: int) -> int:
        for number in range(count):
            device.decide(f"{name}-{number}", {}, now_ms)
        return sum(event.startswith(name) for event in device._agent.open)

    learned("before", agreement.after_interactions, devices.NOW_MS)
    due_ms = device.next_ms()
    assert due_ms is not None
    assert learned("due", 2, devices.NOW_MS) == 2
    device = Device.load(limited, device.dump(), random.Random(1).randbytes)
    (slot,) = device.outgoing(due_ms)
    device.handed_in(slot.report_id)
    assert due_ms // limited.quota_period_ms == devices.NOW_MS // limited.quota_period_ms
    assert learned("sent", 4, due_ms) == 2
    assert learned("next", 40, due_ms + limited.quota_period_ms) == limited.contexts_per_period


def test_every_slot_and_every_seal_of_it_has_a_key_of_its_own(devices, agreement):
    """Equal contents under one key, or two contents under one key, would show in the sealed bytes."""
    more = replace(agreement, promise=agreement.promise._replace(lifetime_slots=3))
    device, now_ms, keys = Device.begun(more, random.Random(1).randbytes), devices.NOW_MS, []
    for number in range(3):
        for turn in range(agreement.after_interactions):
            device.decide(f"{number}-{turn}", {}, now_ms)
        now_ms = device.next_ms() or now_ms
        (slot,) = device.outgoing(now_ms)
        device.seal_again(slot.report_id, now_ms + 5 * agreement.period_ms)
        (again,) = device.outgoing(now_ms)
        keys += [body[41:73] for body in (slot.body, again.body)]
        device.handed_in(slot.report_id)
    assert len(set(keys)) == 6


def test_when_a_slot_is_renewed_stays_with_the_device_that_agrees_anew(devices, agreement):
    renewed = replace(agreement, renew_ms=7 * 86_400_000, promise=agreement.promise._replace(lifetime_slots=3))
    device = Device.begun(renewed, random.Random(1).randbytes)
    now_ms = devices.interact(device, random.Random(3), devices.NOW_MS)
    other = replace(renewed, configuration=b"another".ljust(16))
    anew = Device.agreed_anew(other, device.dump(), random.Random(1).randbytes)
    now_ms = devices.interact(anew, random.Random(4), now_ms, visits=20, name="early")
    assert anew.next_ms() is None, "the wait between two slots is not over"
    devices.interact(anew, random.Random(4), now_ms + renewed.renew_ms, visits=20, name="later")
    assert anew.next_ms() is not None


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("signing_key", "00" * 31 + "09"),
        ("canonical", "{}"),
        ("configuration", "00" * 16),
        ("format", 2),
        ("terms", {}),
        ("slot", {"content_bytes": 1, "body_bytes": 1, "period_ms": 1, "delay_ms": 1}),
    ],
)
def test_an_agreement_that_does_not_hold_together_is_refused(devices, system, place, value):
    from hushstream.systems.p2b.prepared import agreement_of

    said = json.loads(agreement_of(system.core))
    with pytest.raises(BadAgreement):
        Agreement.read(json.dumps({**said, place: value}))


def test_the_guarantee_says_what_devices_show_and_what_such_a_deployment_cannot_have(devices, tmp_path):
    config = parse_config(devices.VALUES)
    said = {fact.name: fact.text for fact in KIND.facts(config, artefacts_of(Path("nowhere")))}
    assert {"devices_see", "devices_cleared", "devices_have_no", "devices_flooded"} <= said.keys()
    assert "never what a report holds" in said["devices_see"]
    assert all(word in said["devices_flooded"] for word in ("changes nobody's guarantee", "slots_per_hour", "RFC 9578"))
    assert {"devices_send", "devices_ask", "devices_restored", "devices_killed"} <= said.keys()
    sent = devices.agreed(devices.deployed(tmp_path / "deployment")).body_bytes
    assert f"one report in a life, of {sent} bytes each" in said["devices_send"]
    hosted = parse_config({**devices.VALUES, "kind": "hosted", "slot": {}})
    assert not any("devices" in fact.name for fact in KIND.facts(hosted, artefacts_of(Path("nowhere"))))


def test_prepare_writes_the_agreement_that_applications_ship(devices, system, tmp_path):
    prepared = devices.deployed(tmp_path / "deployment")
    shipped = Agreement.read((tmp_path / "deployment" / "agreement.json").read_bytes())
    assert shipped == devices.agreed(system)
    assert shipped.configuration == prepared.digest


def test_a_body_of_another_size_or_format_is_no_slot(agreement):
    for body in (b"", bytes(agreement.body_bytes), bytes([1]) * (agreement.body_bytes - 1)):
        with pytest.raises(BadBody):
            read_slot(body, agreement.body_bytes)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"slot": {"sealed": True}}, "slot.sealed"),
        ({"items": {"capacity": 4, "named": True}}, "items.named"),
        ({"model": {"valid_seconds": 1e9}}, "model.valid_seconds"),
        ({"measurement": {"own": 0.1}}, "measurement"),
    ],
)
def test_what_devices_cannot_have_is_refused_before_anything_runs(devices, changes, error):
    with pytest.raises(ConfigurationError, match=error):
        parse_config({**devices.VALUES, **changes})


def test_a_device_needs_numpy_and_cryptography_alone():
    """Whoever ships it to users' machines ships little; what is imported shows in the process."""
    program = (
        "import sys, hushstream.edge, importlib.metadata as m;"
        "found = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names);"
        "print(sorted(name for name in found if not name.startswith('_')))"
    )
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
    found = set(eval(made.stdout))
    assert found - {"sitecustomize", "google", "coverage"} <= {"hushstream", "numpy", "cryptography", "cffi"}, found


def test_a_damaged_state_is_refused_in_words(agreement, device):
    for damaged in (b"", b"{}", b"[]", device.dump()[:-20], b"\xff\xfe"):
        with pytest.raises(HushstreamError):
            Device.load(agreement, damaged, random.Random(9).randbytes)


# What a device takes for a model: the aggregator's own, newer than before, and as private as was agreed.


def test_a_signed_model_is_taken_and_a_new_user_starts_from_it(devices, system, device):
    body = devices.model_of(system).as_bytes()
    statement = device.take(body, devices.NOW_MS)
    assert (statement.version, device.version, device.tag) == (1, 1, read_model(body).tag)
    # The means grow with the item's number.
    assert device.decide("a", {"country": "fr"}, devices.NOW_MS).arm == devices.VALUES["items"]["capacity"] - 1


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"deployment": "other"}, "deployment and configuration"),
        ({"configuration": "00" * 16}, "deployment and configuration"),
        ({"layout": "00" * 16}, "deployment and configuration"),
        ({"arms": 5}, "deployment and configuration"),
        ({"epsilon_micro": 1_000_001}, "weaker"),
        ({"delta_units": str(1 << 79)}, "weaker"),
        ({"private_as_stated": False}, "weaker"),
        ({"expires_ms": 1_700_000_000_000}, "has not expired"),
        ({"content_bytes": 8}, "expected arrays"),
        ({"content_sha256": "00" * 32}, "arrays that were stated"),
        ({"reward_variance": 0.0}, "positive variances"),
        ({"reward_variance": float("nan")}, "positive variances"),
        ({"format": 2}, "format"),
    ],
)
def test_a_model_that_was_not_agreed_to_is_refused_though_it_is_signed(devices, system, device, changes, error):
    with pytest.raises(BadModel, match=error):
        device.take(devices.model_of(system, **changes).as_bytes(), devices.NOW_MS)
    assert (device.version, device.tag) == (0, None)


def test_an_older_version_than_was_seen_is_refused_and_so_is_another_statement_of_the_same(devices, system, device):
    device.take(devices.model_of(system, 3).as_bytes(), devices.NOW_MS)
    device.take(devices.model_of(system, 3).as_bytes(), devices.NOW_MS)
    with pytest.raises(OlderModel, match="expected version 3 or later, got 2"):
        device.take(devices.model_of(system, 2).as_bytes(), devices.NOW_MS)
    with pytest.raises(BadModel, match="the known statement of version 3"):
        device.take(devices.model_of(system, 3, reward_variance=0.09).as_bytes(), devices.NOW_MS)
    again = Device.load(device.agreement, device.dump(), random.Random(2).randbytes)
    with pytest.raises(OlderModel, match="expected version 3 or later, got 2"):
        again.take(devices.model_of(system, 2).as_bytes(), devices.NOW_MS)
    assert again.take(devices.model_of(system, 4).as_bytes(), devices.NOW_MS).version == 4


@pytest.mark.parametrize("place", ["statement", "signature", "content", "signing", "sealing", "number"])
def test_no_byte_can_be_changed_on_the_way(devices, system, device, place):
    model = devices.model_of(system)
    if place == "number":
        model = model._replace(signing_key=1)
    elif place in ("signing", "sealing"):
        keys = getattr(model, place)
        key = replace(keys.keys[0], public_key=bytes(31) + b"\x09")
        model = model._replace(**{place: type(keys)((key,))})
    else:
        content = bytearray(getattr(model, place))
        content[len(content) // 2] ^= 1
        model = model._replace(**{place: bytes(content)})
    with pytest.raises(BadModel):
        device.take(model.as_bytes(), devices.NOW_MS)


@pytest.mark.parametrize("version", [1, 0, -1, 1 << 70])
def test_a_model_signed_with_another_key_is_refused(devices, system, device, version):
    model = devices.model_of(system)
    statement = model.statement.replace(b'"version":1', b'"version":%d' % version)
    other = KeySource(seed=6).key("signing")
    number, signature = Signer(SigningKeys.first(other), (other,)).sign(1, statement)
    signed = model._replace(statement=statement, signing_key=number, signature=signature)
    with pytest.raises(BadModel, match="signed by the aggregator"):
        device.take(signed.as_bytes(), devices.NOW_MS)


def test_a_signing_key_rotates_and_the_old_one_signs_no_later_version(devices, system, device):
    old, new = KeySource(seed=5).key("signing"), KeySource(seed=6).key("signing")
    keys = system.core.signing.followed_by(new, 3, (old,))
    first = devices.model_of(system, 2)._replace(signing=keys)
    device.take(first.as_bytes(), devices.NOW_MS)
    later = devices.model_of(system, 3)._replace(signing=keys)  # signed with the old key, number 0
    with pytest.raises(BadModel, match="signature of key 1, got that of key 0"):
        device.take(later.as_bytes(), devices.NOW_MS)
    number, signature = Signer(keys, (old, new)).sign(3, later.statement)
    assert number == 1
    with pytest.raises(BadModel, match="key chains that continue"):
        # Whoever hides the newer key from a device that knows it is noticed.
        device.take(later._replace(signing=system.core.signing).as_bytes(), devices.NOW_MS)
    assert device.take(later._replace(signing_key=number, signature=signature).as_bytes(), devices.NOW_MS).version == 3


def test_slots_are_sealed_to_the_key_that_a_model_brought_from_its_period_on(devices, system, device):
    other = KeySource(seed=6).key("sealing")
    period = devices.NOW_MS // device.agreement.period_ms
    keys = system.core.sealing.followed_by(other, period, (KeySource(seed=5).key("sealing"),))
    device.take(devices.model_of(system)._replace(sealing=keys).as_bytes(), devices.NOW_MS)
    assert device._sealing.at(period) == keys.keys[1].public_key
    assert device._sealing.at(period - 1) == keys.keys[0].public_key


def test_a_statement_that_nobody_signed_is_refused_however_deep_it_is_nested(devices, system, device):
    for statement in (b"[" * 60_000, b'{"version":' * 5_000):
        with pytest.raises(BadModel, match="statement in JSON"):
            device.take(devices.model_of(system)._replace(statement=statement).as_bytes(), devices.NOW_MS)


def test_any_bytes_are_refused_in_words_or_taken_as_the_same_model(devices, system, agreement):
    """Seeded cuts and flips: what is not refused changes nothing that a device goes by."""
    body, source = devices.model_of(system).as_bytes(), random.Random(8)
    for _ in range(400):
        damaged = bytearray(body)
        for _ in range(source.randrange(1, 4)):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        content = bytes(damaged[: source.choice([len(damaged), source.randrange(len(damaged))])])
        device = Device.begun(agreement, source.randbytes)
        try:
            device.take(content, devices.NOW_MS)
        except BadModel:
            continue
        assert content == body


def test_the_tag_follows_from_what_is_served_and_a_statement_is_plain_json(devices, system):
    model = devices.model_of(system)
    assert model.tag == read_model(model.as_bytes()).tag
    said: dict[str, Any] = json.loads(model.statement)
    assert said["configuration"] == system.digest.hex()
    means = np.frombuffer(model.content, "<f8")[: said["arms"] * said["cells"]]
    assert means[-1] == pytest.approx(0.1)
