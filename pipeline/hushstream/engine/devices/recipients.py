"""The chain of the shuffler's sealing keys. Devices seal their slots to one of them, by the slot's report period.

An older key still opens the slots that were sealed to it. It is destroyed when no such slots are left. A sealing key
cannot sign. So a signing key is derived from each sealing key, and signs the next sealing key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hushstream.engine.devices.errors import BadSeal
from hushstream.engine.devices.sealing import ContentOpener, Opener, SlotPlace, require_public_key
from hushstream.engine.devices.vouching import PublicKeys
from hushstream.privacy.encoding import encode
from hushstream.privacy.keys import Key

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

    def __init__(self, recipients: Recipients, held: Sequence[Key], opener: type[Opener]) -> None:
        """Keep the openers of the published keys among ``held``, newest first.

        Raises:
            BadSeal: the newest published key is not among them.
        """
        openers = {one.public_key: one for one in map(opener, held)}
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
