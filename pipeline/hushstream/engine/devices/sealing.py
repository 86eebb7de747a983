"""Sealed slots of devices: HPKE (RFC 9180), so that a browser seals them with what it has.

Base mode, one message: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM. The slot's place (id, period,
configuration) is part of ``info``, so it is bound to the key of the message: a sealed content opens in its own place
and no other. P2B's sealed slots of codes (`hushstream.systems.p2b.contribution.sealed`) have the same recipients; a
deployment has one form of slots, so no pair of keys serves both schemes.

The encapsulated key is drawn, not derived as there: a device writes the sealed bytes into its state before they
leave, and sends those again. Whoever seals one content twice makes two messages under two keys.

What sealing gives, and what it does not, is as there.

Guarantee:
    Computational: IND-CCA2 of HPKE's base mode (Alwen et al. 2021) for the content, against all without the shuffler's
    sealing key. Nothing of the differential privacy of a release rests on it.
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
"""What a sealed content is longer than the content."""

_LABEL = b"hushstream slot 1"
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)


class SlotPlace(NamedTuple):
    """What stands in clear beside a sealed content and is authenticated with it.

    Attributes:
        report_id: 16 opaque bytes.
        period: 8 bytes.
        config_digest: 16 bytes; with it a slot cannot be carried over to another deployment.
    """

    report_id: bytes
    period: bytes
    config_digest: bytes


def seal_content(content: bytes, place: SlotPlace, recipient: bytes) -> bytes:
    """Seal a slot's content to the shuffler.

    Args:
        content: of the layout's size, a report or null.
        place: of this slot.
        recipient: the shuffler's public key, 32 bytes.

    Returns:
        `SEALING_BYTES` more than the content; others each time.

    Raises:
        BadSeal: a public key of another size, or with which no secret can be agreed.
    """
    try:
        return _SUITE.encrypt(content, X25519PublicKey.from_public_bytes(recipient), _info(place))
    except ValueError:
        raise BadSeal(
            f"sealing: expected a public key of 32 bytes and full order, got {len(recipient)} bytes"
        ) from None


class Opener(ABC):
    """The shuffler's side of any sealing: holds what opens what was sealed to one key, and lets it go nowhere."""

    __slots__ = ("_private", "public_key")

    _private: X25519PrivateKey
    public_key: bytes
    """32 bytes, for all to know."""

    def __init__(self, key: Key) -> None:
        """Derive the pair of keys from the shuffler's sealing key."""
        self._private = private_of(key)
        self.public_key = self._private.public_key().public_bytes_raw()

    @abstractmethod
    def open(self, sealed: bytes, place: SlotPlace) -> bytes:
        """The content of a sealed slot; raises `BadSeal`."""

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
        """The content of a sealed slot.

        Raises:
            BadSeal: it was sealed to another key, for another place, or was changed (which of these cannot be told
                apart, and the message never repeats bytes).
        """
        try:
            return _SUITE.decrypt(sealed, self._private, _info(place))
        except (InvalidTag, ValueError):
            raise BadSeal("expected a slot sealed to this key for this place, got another") from None


def require_public_key(material: bytes) -> None:
    """Refuse a public key to which nothing can be sealed.

    Raises:
        BadSeal: another size, or a point of small order (the secret agreed with it is known to everyone).
    """
    exchange(X25519PrivateKey.from_private_bytes(bytes(range(32))), material)


def private_of(key: Key) -> X25519PrivateKey:
    """What opens what is sealed to a sealing key."""
    return X25519PrivateKey.from_private_bytes(key.prf("sealing-private"))


def exchange(private: X25519PrivateKey, public: bytes) -> bytes:
    """The secret of two keys; raises `BadSeal` as `require_public_key` does."""
    if len(public) != PUBLIC_KEY_BYTES:
        raise BadSeal(f"sealing: expected a public key of {PUBLIC_KEY_BYTES} bytes, got {len(public)}")
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise BadSeal("sealing: expected a public key of full order, got one of small order") from None


def _info(place: SlotPlace) -> bytes:
    """Injective: id, period and configuration have one size each."""
    return _LABEL + place.report_id + place.period + place.config_digest
