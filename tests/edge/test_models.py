"""What a device takes for a model: the aggregator's own, newer than before, and as private as was agreed."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import KeySource
from hushstream.engine.devices.envelope import read_model
from hushstream.engine.devices.kept import BadModel, OlderModel
from hushstream.engine.devices.signing import Signer, SigningKeys
from hushstream.systems.p2b.edge.device import Device


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
