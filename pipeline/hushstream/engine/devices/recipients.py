"""To whom slots are sealed: the shuffler's sealing keys one after another, each for slots from a report period on.

The keys before the newest go on opening what was sealed to them until those slots are gone, and are destroyed then. A
sealing key cannot sign, so each derives another one, with which it vouches for the next.
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
    """One sealing key, as all may know it.

    Attributes:
        public_key: what slots are sealed to.
        vouch_key: what the key that follows it is signed with.
        from_period: the first report period whose slots are sealed to it.
        vouched: the signature of the key before it; empty for the first.
    """

    public_key: bytes
    vouch_key: bytes
    from_period: int = 0
    vouched: bytes = b""

    def __post_init__(self) -> None:
        """Refuse what cannot be sealed to.

        Raises:
            BadSeal: it is such a key.
        """
        require_public_key(self.public_key)
        if len(self.vouch_key) != VOUCH_KEY_BYTES:
            raise BadSeal(f"sealing keys: expected {VOUCH_KEY_BYTES} bytes to vouch with, got {len(self.vouch_key)}")

    @property
    def since(self) -> int:
        return self.from_period

    @property
    def said(self) -> bytes:
        return encode("hushstream sealing key", self.public_key, self.vouch_key, self.from_period)


@dataclass(frozen=True, slots=True)
class Recipients(PublicKeys[Recipient]):
    """All sealing keys of a deployment, in the order of their periods."""

    use: ClassVar[str] = "sealing"
    counted: ClassVar[str] = "period"
    refusal: ClassVar[type[BadSeal]] = BadSeal
    one: ClassVar[type[Recipient]] = Recipient

    @classmethod
    def half(cls, key: Key, number: int) -> Recipient:
        return Recipient(ContentOpener(key).public_key, cls.voucher(key).public_key().public_bytes_raw(), number)

    @classmethod
    def voucher(cls, key: Key) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(key.prf("sealing-voucher"))

    @property
    def pinned(self) -> bytes:
        """What the configuration's digest covers: the first key, and what it vouches with."""
        return self.keys[0].public_key + self.keys[0].vouch_key

    def at(self, period: int) -> bytes:
        """The public key that slots of a report period are sealed to."""
        return self.keys[self.number_at(period)].public_key


class Openers:
    """The shuffler's side: the published keys that it holds."""

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
        """See `ContentOpener.open`; whichever key it was sealed to."""
        *newer, oldest = self._openers
        for opener in newer:
            try:
                return opener.open(sealed, place)
            except BadSeal:
                continue
        return oldest.open(sealed, place)
