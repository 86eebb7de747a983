"""Seals and opens slots of devices by HPKE (RFC 9180), which a browser can compute with its own cryptography.

Base mode, one message: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM. The slot's place (id, period,
configuration) is part of ``info``, so it is bound to the key of the message: a sealed content opens in its own place
and no other. P2B's sealed slots of codes (`hushstream.systems.p2b.contribution.sealed`) have the same recipients. A
deployment has one form of slots, so no pair of keys serves both schemes.

Unlike there, the encapsulated key is random and not derived. A device stores the sealed bytes in its state before it
sends them, and repeats the same bytes. If a content is sealed twice, the results are two messages under two keys.

The protection that sealing gives, and its limits, are the same as there.

Guarantee:
    Computational: IND-CCA2 of HPKE's base mode (Alwen et al. 2021) for the content, against everyone without the
    shuffler's sealing key. The differential privacy of a release does not depend on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from hushstream.engine.devices.errors import BadSeal
from hushstream.privacy.keys import Key

PUBLIC_KEY_BYTES = ENCAPSULATED_BYTES = 32
TAG_BYTES = 16
SEALING_BYTES = ENCAPSULATED_BYTES + TAG_BYTES
"""Number of bytes by which a sealed content is longer than the content."""

_LABEL = b"hushstream slot 1"
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)


class SlotPlace(NamedTuple):
    """The fields of a slot that are sent in clear beside the sealed content, and authenticated with it.

    Attributes:
        report_id: 16 opaque bytes.
        period: 8 bytes.
        config_digest: 16 bytes, so that a slot of one deployment does not open in another.
    """

    report_id: bytes
    period: bytes
    config_digest: bytes


def seal_content(content: bytes, place: SlotPlace, recipient: bytes) -> bytes:
    """Seal a slot's content to the shuffler.

    Args:
        content: a report or null, in the size of the layout.
        place: the place of this slot.
        recipient: the shuffler's public key, 32 bytes.

    Returns:
        The sealed content, `SEALING_BYTES` longer than the content; it differs each time.

    Raises:
        BadSeal: the public key has another size, or no secret can be agreed with it.
    """
    try:
        return _SUITE.encrypt(content, X25519PublicKey.from_public_bytes(recipient), _info(place))
    except ValueError:
        raise BadSeal(
            f"sealing: expected a public key of 32 bytes and full order, got {len(recipient)} bytes"
        ) from None


class Opener(ABC):
    """Opens at the shuffler what was sealed to one key. It holds the private key, and never gives it away."""

    __slots__ = ("_private", "public_key")

    _private: X25519PrivateKey
    public_key: bytes
    """The public half, 32 bytes."""

    def __init__(self, key: Key) -> None:
        """Derive the pair of keys from the shuffler's sealing key."""
        self._private = private_of(key)
        self.public_key = self._private.public_key().public_bytes_raw()

    @abstractmethod
    def open(self, sealed: bytes, place: SlotPlace) -> bytes:
        """Open a sealed slot and return its content; raises `BadSeal`."""

    def __repr__(self) -> str:
        """The public half; never the private one."""
        return f"{type(self).__name__}(public_key={self.public_key.hex()})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse: a pickled key would leave its zone unnoticed."""
        raise BadSeal("sealing key: expected to stay in this process, got a request to pickle it")


class ContentOpener(Opener):
    """Opens contents of devices' slots."""

    __slots__ = ()

    def open(self, sealed: bytes, place: SlotPlace) -> bytes:
        """Open a sealed slot and return its content.

        Raises:
            BadSeal: it was sealed to another key, for another place, or was changed. These cases cannot be
                distinguished. The message never repeats bytes.
        """
        try:
            return _SUITE.decrypt(sealed, self._private, _info(place))
        except (InvalidTag, ValueError):
            raise BadSeal("expected a slot sealed to this key for this place, got another") from None


def require_public_key(material: bytes) -> None:
    """Refuse a public key to which nothing can be sealed.

    Raises:
        BadSeal: it has another size, or is a point of small order (everyone knows the secret agreed with it).
    """
    exchange(X25519PrivateKey.from_private_bytes(bytes(range(32))), material)


def private_of(key: Key) -> X25519PrivateKey:
    """Derive the private key that opens what is sealed to a sealing key."""
    return X25519PrivateKey.from_private_bytes(key.prf("sealing-private"))


def exchange(private: X25519PrivateKey, public: bytes) -> bytes:
    """Compute the shared secret of two keys; raises `BadSeal` as `require_public_key` does."""
    if len(public) != PUBLIC_KEY_BYTES:
        raise BadSeal(f"sealing: expected a public key of {PUBLIC_KEY_BYTES} bytes, got {len(public)}")
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise BadSeal("sealing: expected a public key of full order, got one of small order") from None


def _info(place: SlotPlace) -> bytes:
    """Encode a place. Different places give different bytes, because each field has a fixed size."""
    return _LABEL + place.report_id + place.period + place.config_digest
