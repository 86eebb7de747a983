"""To whom slots are sealed: the shuffler's sealing keys one after another, each vouched for by the one before.

A sealing key can turn while a deployment runs. From a stated report period on slots are sealed to the next key; the
keys before it go on opening what was sealed to them until those slots are gone, and are destroyed then. Which key a
slot is sealed to follows from its period alone, that is from the log, so that a worker that computes it again gives
the same bytes.

The configuration's digest covers the first key, so an agent that pinned it trusts that key and no other. Each later
key is signed (Ed25519, RFC 8032) with a key that only the holder of the sealing key before it can derive. So nobody
who did not hold the first can put another in its place; who did hold one of them can, as long as their key would be
believed: destroying it does not take back what they may have signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hushstream.engine.devices.errors import BadSeal
from hushstream.engine.devices.sealing import ContentOpener, SlotPlace, require_public_key
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

    @property
    def said(self) -> bytes:
        """What a signature vouches for."""
        return encode("hushstream sealing key", self.public_key, self.vouch_key, self.from_period)


@dataclass(frozen=True, slots=True)
class Recipients:
    """All sealing keys of a deployment, in the order of their periods."""

    keys: tuple[Recipient, ...]

    def __post_init__(self) -> None:
        """Refuse keys that do not follow from the first.

        Raises:
            BadSeal: there is none; one cannot be sealed to; periods do not grow from 0 on; or a key is not vouched for.
        """
        periods = [key.from_period for key in self.keys]
        if not periods or periods[0] != 0 or sorted(set(periods)) != periods:
            raise BadSeal(f"sealing keys: expected periods that grow from 0 on, got {periods}")
        for key in self.keys:
            require_public_key(key.public_key)
            if len(key.vouch_key) != VOUCH_KEY_BYTES:
                raise BadSeal(f"sealing keys: expected {VOUCH_KEY_BYTES} bytes to vouch with, got {len(key.vouch_key)}")
        for before, key in zip(self.keys, self.keys[1:], strict=False):
            try:
                Ed25519PublicKey.from_public_bytes(before.vouch_key).verify(key.vouched, key.said)
            except InvalidSignature:
                raise BadSeal(
                    f"sealing keys: expected the key from period {key.from_period} to be vouched for by the one "
                    f"before it, it is not"
                ) from None

    @classmethod
    def first(cls, key: Key) -> Self:
        """The sealing key that a deployment begins with."""
        return cls((Recipient(ContentOpener(key).public_key, _voucher(key).public_key().public_bytes_raw()),))

    def followed_by(self, key: Key, from_period: int, held: Sequence[Key]) -> Recipients:
        """With one more key, for slots from a period on.

        Args:
            key: the next sealing key.
            from_period: later than that of the newest key here.
            held: sealing keys, the newest one here among them.

        Raises:
            BadSeal: it is not; or the key is here already, or its period is not later.
        """
        newest = self.keys[-1].public_key
        public = ContentOpener(key).public_key
        if public in [one.public_key for one in self.keys]:
            raise BadSeal("sealing keys: expected a key that is not published yet, got one that is; turn it first")
        before = next((one for one in held if ContentOpener(one).public_key == newest), None)
        if before is None:
            raise BadSeal(f"sealing keys: expected the key of public half {newest.hex()[:16]}... to vouch, got others")
        made = Recipient(public, _voucher(key).public_key().public_bytes_raw(), from_period)
        vouched = _voucher(before).sign(made.said)
        return Recipients((*self.keys, Recipient(public, made.vouch_key, from_period, vouched)))

    @property
    def pinned(self) -> bytes:
        """What the configuration's digest covers: the first key, and what it vouches with."""
        return self.keys[0].public_key + self.keys[0].vouch_key

    def at(self, period: int) -> bytes:
        """The public key that slots of a report period are sealed to."""
        return next((key for key in reversed(self.keys) if key.from_period <= period), self.keys[0]).public_key


class Opener(Protocol):
    """Opens what was sealed to one sealing key.

    Attributes:
        public_key: of that key, for all to know.
    """

    public_key: bytes

    def __init__(self, key: Key) -> None:
        """Derive what opens from the sealing key."""

    def open(self, sealed: bytes, place: SlotPlace) -> bytes:
        """The content of a sealed slot; raises `BadSeal`."""


class Openers:
    """The shuffler's side: the published keys that it holds."""

    __slots__ = ("_openers",)

    def __init__(self, recipients: Recipients, held: Sequence[Key], opener: type[Opener]) -> None:
        """Keep the openers of the published keys among ``held``, newest first.

        Raises:
            BadSeal: the newest published key is not among them.
        """
        openers = {one.public_key: one for one in map(opener, held)}
        newest = recipients.keys[-1].public_key
        if newest not in openers:
            known = ", ".join(f"{public.hex()[:16]}..." for public in openers) or "none"
            raise BadSeal(
                f"expected the sealing key of public half {newest.hex()[:16]}..., which the deployment publishes, "
                f"got the one of {known}"
            )
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


def _voucher(key: Key) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(key.prf("sealing-voucher"))
