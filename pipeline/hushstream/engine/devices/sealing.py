"""Seals and opens slots of devices by HPKE (RFC 9180), which a browser can compute with its own cryptography.

Base mode, one message: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM. The slot's place (id, period,
configuration) is part of ``info``, so it is bound to the key of the message: a sealed content opens in its own place
and no other. The encapsulated key is random: a device stores the sealed bytes in its state before it sends them, and
repeats the same bytes. If a content is sealed twice, the results are two messages under two keys.

All sealed slots of a deployment have one length. Without the shuffler's sealing key nobody can tell a report from null
better than by chance. What sealing does not give:

* It does not show who wrote a slot, because anyone can seal to a public key. A malicious client voids only their own
  bound.
* There is no forward secrecy. Whoever records sealed slots and gets the shuffler's sealing key later can open them.
* It does not hide when a slot came.

Guarantee:
    Computational: IND-CCA2 of HPKE's base mode (Alwen et al. 2021) for the content, against everyone without the
    shuffler's sealing key. The differential privacy of a release does not depend on it.

*Travelling.* The format in which a device sends a slot: a body of fixed size, whatever the slot holds.

The body is: format (1 byte), report id (16), period (8), configuration (16), then the sealed content. The gateway reads
everything but the content, and appends a record of the sealed slot to the log.

*Recipients.* The chain of the shuffler's sealing keys. Devices seal their slots to one of them, by the slot's report
period.

An older key still opens the slots that were sealed to it. It is destroyed when no such slots are left. A sealing key
cannot sign. So a signing key is derived from each sealing key, and signs the next sealing key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from hushstream.engine.devices.kept import BadBody, BadSeal
from hushstream.engine.devices.signing import PublicKeys
from hushstream.privacy.keys import Key, encode

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


class ContentOpener:
    """Opens at the shuffler what was sealed to one key. It holds the private key, and never gives it away."""

    __slots__ = ("_private", "public_key")

    _private: X25519PrivateKey
    public_key: bytes
    """The public half, 32 bytes."""

    def __init__(self, key: Key) -> None:
        """Derive the pair of keys from the shuffler's sealing key."""
        self._private = private_of(key)
        self.public_key = self._private.public_key().public_bytes_raw()

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

    def __repr__(self) -> str:
        """The public half; never the private one."""
        return f"{type(self).__name__}(public_key={self.public_key.hex()})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse: a pickled key would leave its zone unnoticed."""
        raise BadSeal("sealing key: expected to stay in this process, got a request to pickle it")


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


_FORMAT = b"\x01"
_PLACE = (1, 17, 25, 41)
HEAD_BYTES = _PLACE[-1]


def body_bytes(content_bytes: int) -> int:
    """Size of every slot's body in a deployment whose contents have ``content_bytes`` bytes."""
    return HEAD_BYTES + SEALING_BYTES + content_bytes


def body_of(place: SlotPlace, sealed: bytes) -> bytes:
    """The body of a sealed slot."""
    return _FORMAT + place.report_id + place.period + place.config_digest + sealed


def read_slot(body: bytes, size: int) -> Mapping[str, Any]:
    """Split a slot's body into its clear fields and its sealed content.

    Args:
        body: the body as it was received.
        size: `body_bytes` of the deployment.

    Raises:
        BadBody: it has another size or format.
    """
    if len(body) != size:
        raise BadBody(f"slot: expected a body of {size} bytes, got {len(body)}")
    if body[:1] != _FORMAT:
        raise BadBody("slot: expected format 1, got another")
    first, second, third, last = _PLACE
    return {
        "report_id": body[first:second],
        "period": body[second:third],
        "config_digest": body[third:last],
        "sealed": body[last:],
    }


def period_of(fields: Mapping[str, Any]) -> int:
    """The report period of a slot's fields."""
    return int.from_bytes(fields["period"], "little", signed=True)


def place_of(report_id: bytes, period: int, configuration: bytes) -> SlotPlace:
    """Make the clear fields of a slot."""
    return SlotPlace(report_id, period.to_bytes(8, "little", signed=True), configuration)


VOUCH_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Recipient:
    """The public half of one sealing key.

    Attributes:
        public_key: the key to which slots are sealed.
        vouch_key: public key that verifies the signature on the next sealing key.
        from_period: the first report period whose slots are sealed to it.
        vouched: signature on this key, by the key before it; empty for the first key.
    """

    public_key: bytes
    vouch_key: bytes
    from_period: int = 0
    vouched: bytes = b""

    def __post_init__(self) -> None:
        """Refuse a key to which nothing can be sealed.

        Raises:
            BadSeal: one of its two public keys is invalid.
        """
        require_public_key(self.public_key)
        if len(self.vouch_key) != VOUCH_KEY_BYTES:
            raise BadSeal(f"sealing keys: expected a vouch key of {VOUCH_KEY_BYTES} bytes, got {len(self.vouch_key)}")

    @property
    def since(self) -> int:
        return self.from_period

    @property
    def signed_bytes(self) -> bytes:
        return encode("hushstream sealing key", self.public_key, self.vouch_key, self.from_period)


@dataclass(frozen=True, slots=True)
class Recipients(PublicKeys[Recipient]):
    """All sealing keys of a deployment, in the order of their periods."""

    use: ClassVar[str] = "sealing"
    counted: ClassVar[str] = "period"
    refusal: ClassVar[type[BadSeal]] = BadSeal
    one: ClassVar[type[Recipient]] = Recipient

    @classmethod
    def public_half(cls, key: Key, number: int) -> Recipient:
        return Recipient(ContentOpener(key).public_key, cls.next_signer(key).public_key().public_bytes_raw(), number)

    @classmethod
    def next_signer(cls, key: Key) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(key.prf("sealing-voucher"))

    @property
    def pinned(self) -> bytes:
        """The bytes that the configuration's digest covers: the first key, and the key that verifies the second one."""
        return self.keys[0].public_key + self.keys[0].vouch_key

    def at(self, period: int) -> bytes:
        """The public key that slots of a report period are sealed to."""
        return self.keys[self.number_at(period)].public_key


class Openers:
    """Opens slots at the shuffler, with those private keys that it still holds."""

    __slots__ = ("_openers",)

    def __init__(self, recipients: Recipients, held: Sequence[Key]) -> None:
        """Keep the openers of the published keys among ``held``, newest first.

        Raises:
            BadSeal: the newest published key is not among them.
        """
        openers = {one.public_key: one for one in map(ContentOpener, held)}
        recipients.require_newest_in(openers)
        self._openers = [openers[key.public_key] for key in reversed(recipients.keys) if key.public_key in openers]

    def open(self, sealed: bytes, place: SlotPlace) -> bytes:
        """See `ContentOpener.open`; tries the keys, newest first."""
        *newer, oldest = self._openers
        for opener in newer:
            try:
                return opener.open(sealed, place)
            except BadSeal:
                continue
        return oldest.open(sealed, place)
