"""The public keys that devices go by, as a deployment publishes them: who opens slots, and who signs models."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from hushstream.engine.declare.artefacts import Artefacts, Given, PublishedKey
from hushstream.engine.devices.errors import DeviceError
from hushstream.engine.devices.recipients import Recipients
from hushstream.engine.devices.signing import SigningKeys
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.key_files import KeyRing

SEALING, SIGNING, AGREEMENT = "sealing.json", "signing.json", "agreement.json"

Keys = TypeVar("Keys", Recipients, SigningKeys)

SEALING_ZONE = "sealing"
"""Of the key that opens sealed slots and makes no noise, so it does not turn with the noise key."""

SIGNING_ZONE = "signing"
"""Of the aggregator's key that signs models for devices: it makes no noise and opens nothing."""


def first_keys(given: Given, signs: bool) -> Mapping[str, bytes]:
    """The first sealing key's public half, and the first signing key's where models are signed, unless they are there.

    Raises:
        ConfigurationError: others are published already.
    """
    made: dict[str, bytes] = {}
    artefacts = given.artefacts
    if given.keys is not None:
        ring = given.keys(SEALING_ZONE)
        made |= _with_first(SEALING, Recipients.first(ring.of(ring.current)), read_sealing, artefacts)
        if signs:
            ring = given.keys(SIGNING_ZONE)
            made |= _with_first(SIGNING, SigningKeys.first(ring.of(ring.current)), read_signing, artefacts)
    return made


def read_sealing(artefacts: Artefacts) -> Recipients:
    """The shuffler's public keys.

    Raises:
        ConfigurationError: they are missing, damaged, or not vouched for.
    """
    return _read(artefacts, SEALING, "the shuffler's public keys", Recipients)


def read_signing(artefacts: Artefacts) -> SigningKeys:
    """The aggregator's public keys.

    Raises:
        ConfigurationError: they are missing, damaged, or not vouched for.
    """
    return _read(artefacts, SIGNING, "the aggregator's public keys", SigningKeys)


def keys_published(period_ms: Callable[[Any], int] | None) -> tuple[PublishedKey, PublishedKey]:
    """How a later sealing key and a later signing key are added to those that are published.

    Args:
        period_ms: see `PublishedKey`, of the sealing key; a signing key is for models from a version on.
    """
    return (
        PublishedKey(SEALING_ZONE, SEALING, "slots are sealed to", period_ms, partial(_publish, SEALING, read_sealing)),
        PublishedKey(SIGNING_ZONE, SIGNING, "models are signed with", None, partial(_publish, SIGNING, read_signing)),
    )


def _read(artefacts: Artefacts, file: str, what: str, keys: type[Keys]) -> Keys:
    content, where = artefacts.json(file, what), artefacts.path(file)
    try:
        return keys.read(content["keys"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{where}: expected public keys in hexadecimal, got {type(error).__name__}") from None
    except DeviceError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _publish(
    file: str,
    read: Callable[[Artefacts], Recipients | SigningKeys],
    artefacts: Artefacts,
    ring: KeyRing,
    number: int,
) -> tuple[bytes, bytes]:
    """The public half of a key file's current key beside the earlier ones, for slots or models from a number on.

    Args:
        file, read: of the published keys.
        artefacts: what is published.
        ring: the key file, which still holds the key before it.
        number: a period when every learner has read the new file, or a version that is not made yet.

    Returns:
        The new file, and the public half.

    Raises:
        ConfigurationError: it is published already, the key before it is not at hand, or the number is not later.
    """
    try:
        made = read(artefacts).followed_by(ring.of(ring.current), number, ring.kept())
    except DeviceError as error:
        raise ConfigurationError(f"{artefacts.path(file)}: {error}") from None
    return _file(made), made.keys[-1].public_key


def _file(keys: Recipients | SigningKeys) -> bytes:
    return (json.dumps({"keys": keys.listed()}, indent=1) + "\n").encode()


def _with_first(file: str, first: Keys, read: Callable[[Artefacts], Keys], artefacts: Artefacts) -> Mapping[str, bytes]:
    """The first key's public half, if no file has one yet; agents have agreed to the first one that was published.

    Raises:
        ConfigurationError: it is not among those that are published.
    """
    if not artefacts.has(file):
        return {file: _file(first)}
    if first.keys[0].public_key not in [one.public_key for one in read(artefacts).keys]:
        where = artefacts.path(file)
        raise ConfigurationError(f"{where}: expected the public half of the zone's first key or no file, got another")
    return {}
