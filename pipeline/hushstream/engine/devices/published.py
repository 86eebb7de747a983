"""The public keys that a deployment publishes for devices: sealing keys for slots, and signing keys of models."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from hushstream.engine.declare.artefacts import Artefacts, Given, PublishedKey
from hushstream.engine.declare.role import Role, RoleKeys
from hushstream.engine.declare.topics import STATEMENTS
from hushstream.engine.devices.kept import DeviceError
from hushstream.engine.devices.sealing import Recipients
from hushstream.engine.devices.signing import Signer, SigningKeys
from hushstream.engine.journal.chain import ChainedMachine
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.key_files import KeyRing

SEALING, SIGNING, AGREEMENT = "sealing.json", "signing.json", "agreement.json"
PUBLIC_KEYS = (SEALING, SIGNING)

Keys = TypeVar("Keys", Recipients, SigningKeys)

SEALING_ZONE = "sealing"
"""Zone of the key that opens sealed slots. No noise is drawn under it, so it is not rotated with the noise key."""

SIGNING_ZONE = "signing"
"""Zone of the aggregator's key that signs models for devices. No noise is drawn under it, and it opens nothing."""


def signing_role(role: Role, machine: Callable[[Any, int, Signer], ChainedMachine]) -> Role:
    """The form of a role that publishes where devices take models: it signs each version with a key of its own.

    Args:
        role: the role of a deployment whose models nobody signs.
        machine: makes its machine from the deployment, the number of a model track and what signs.
    """

    def make(system: Any, track: int, keys: RoleKeys) -> ChainedMachine:
        assert system.signing is not None, "devices take models that are signed"
        return machine(system, track, Signer(system.signing, keys.kept(SIGNING_ZONE)))

    return replace(role, make=make, further_key_zones=(SIGNING_ZONE,), writes=(*role.writes, STATEMENTS))


def first_keys(given: Given) -> Mapping[str, bytes]:
    """Make the files with the first public sealing key and signing key, unless they exist.

    Raises:
        ConfigurationError: other keys are published already.
    """
    made: dict[str, bytes] = {}
    artefacts = given.artefacts
    if given.keys is not None:
        ring = given.keys(SEALING_ZONE)
        made |= _with_first(SEALING, Recipients.first(ring.of(ring.current)), read_sealing, artefacts)
        ring = given.keys(SIGNING_ZONE)
        made |= _with_first(SIGNING, SigningKeys.first(ring.of(ring.current)), read_signing, artefacts)
    return made


def read_sealing(artefacts: Artefacts) -> Recipients:
    """Read the shuffler's public keys.

    Raises:
        ConfigurationError: they are missing or damaged, or a key is not signed by the key before.
    """
    return _read(artefacts, SEALING, "the shuffler's public keys", Recipients)


def read_signing(artefacts: Artefacts) -> SigningKeys:
    """Read the aggregator's public keys.

    Raises:
        ConfigurationError: they are missing or damaged, or a key is not signed by the key before.
    """
    return _read(artefacts, SIGNING, "the aggregator's public keys", SigningKeys)


def keys_published(period_ms: Callable[[Any], int] | None) -> tuple[PublishedKey, PublishedKey]:
    """Declare how later sealing keys and later signing keys are added to the published ones.

    Args:
        period_ms: see `PublishedKey`, for the sealing key. A signing key is valid from a version of the model on.
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
    """Add the public half of a key file's current key to the published keys, valid from a period or version on.

    Args:
        file, read: name and reader of the file of published keys.
        artefacts: the published files.
        ring: the key file; it must still hold the key before the current one.
        number: a period by which every learner has read the new file, or a version that was not made yet.

    Returns:
        The new file, and the public half.

    Raises:
        ConfigurationError: the key is published already, the key before it is missing from the key file, or the number
            is not later than that of the newest key.
    """
    try:
        made = read(artefacts).followed_by(ring.of(ring.current), number, ring.kept())
    except DeviceError as error:
        raise ConfigurationError(f"{artefacts.path(file)}: {error}") from None
    return _file(made), made.keys[-1].public_key


def _file(keys: Recipients | SigningKeys) -> bytes:
    return (json.dumps({"keys": keys.listed()}, indent=1) + "\n").encode()


def _with_first(file: str, first: Keys, read: Callable[[Artefacts], Keys], artefacts: Artefacts) -> Mapping[str, bytes]:
    """Make the file with the first key's public half, if there is no file yet.

    An existing file is never replaced, because agents have agreed to the first key in it.

    Raises:
        ConfigurationError: the existing file does not hold this key.
    """
    if not artefacts.has(file):
        return {file: _file(first)}
    if first.keys[0].public_key not in [one.public_key for one in read(artefacts).keys]:
        where = artefacts.path(file)
        raise ConfigurationError(f"{where}: expected the public half of the zone's first key or no file, got another")
    return {}
