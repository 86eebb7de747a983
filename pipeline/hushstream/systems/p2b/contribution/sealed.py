"""Sealed slots: content that only the shuffler opens, so that whoever operates the broker cannot read it.

One message, one key: an ephemeral X25519 key agrees on a secret with the shuffler's public key (RFC 7748), HKDF with
SHA-256 (RFC 5869) makes of it a key of ChaCha20-Poly1305 (RFC 8439), and the slot's place (id, period, configuration)
is authenticated beside its content. That is the base mode of HPKE (RFC 9180, Section 5.1.1) in parts, with one
difference: the ephemeral key is not drawn, it is derived.

**The same slot gives the same bytes.** A worker that died sends again what it had journaled, so nothing may be drawn.
The ephemeral private key is ``HMAC(user's key, place, recipient, content)``.

**Why the constant nonce is harmless.** A key of ChaCha20-Poly1305 comes from one ephemeral key and one recipient. Two
sealings under one user's key share their ephemeral key only if place, recipient and content are all equal (the
encoding is injective; otherwise HMAC-SHA256 would have to collide). Then they are one message under one key, and what
is written is the same bytes again: a repeat, which the shuffler drops by the slot's id. Different messages never share
a key, so no pair of a key and a nonce serves two messages, and every nonce may be zero. This is the argument of SIV
(Rogaway and Shrimpton 2006): with the content inside the derivation, a journal that was rolled back and gave a slot
another content still takes another key. Two users never share a key, since each one's key is derived for them alone.

**What it gives.** To parties without the shuffler's sealing key or the user's key, a sealed slot is 80 bytes that tell
a report from null no better than chance, whatever the content; all have one size. The ephemeral public key is a
function of the content, but under a secret key (the user's), so it cannot be recomputed for a guessed content.

**What it does not give.** Anyone can seal to a public key, so it does not say who wrote a slot: a malicious client
voids their own bound alone. There is no forward secrecy: whoever gets the shuffler's sealing key later opens the slots
that they kept, and whoever gets an edge key tests guesses of their content. It says nothing of when a slot came. And on
a broker that also carries contexts and clicks in clear (a `hosted` deployment) it hides nothing from the broker's
operator: they can compute what the slots hold. One operator who reads both sides, contexts and clicks here and opened
slots there, puts user and slot together by what they hold, and no shuffler helps against them. Against that the two
sides need clusters or operators of their own; sealing is what lets an `edge` deployment's slots cross a broker that
nobody trusts.

Guarantee:
    Computational: IND-CCA2 of DHIES in the random-oracle model under gap Diffie-Hellman on X25519, for the content
    against all who hold neither key. Nothing of the differential privacy of a release rests on it.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hushstream.engine.devices.errors import BadSeal
from hushstream.engine.devices.sealing import PUBLIC_KEY_BYTES, TAG_BYTES, Opener, SlotPlace, exchange
from hushstream.privacy.encoding import encode
from hushstream.privacy.keys import Key
from hushstream.systems.p2b.contribution.slots import SLOT_BYTES

SEALED_BYTES = PUBLIC_KEY_BYTES + SLOT_BYTES + TAG_BYTES
"""Ephemeral public key, then the encrypted content and its tag: 80 bytes, whatever the content."""

_NONCE = bytes(12)


def seal(content: bytes, place: SlotPlace, recipient: bytes, user_key: Key) -> bytes:
    """Seal a slot's content to the shuffler.

    Args:
        content: `SLOT_BYTES` bytes, a report or null.
        place: of this slot.
        recipient: the shuffler's public key, `PUBLIC_KEY_BYTES` bytes.
        user_key: of the user whose slot it is.

    Returns:
        `SEALED_BYTES` bytes; the same for the same arguments.

    Raises:
        BadSeal: a content or a public key of another size, or a public key with which no secret can be agreed.
    """
    if len(content) != SLOT_BYTES:
        raise BadSeal(f"expected {SLOT_BYTES} bytes of slot content, got {len(content)}")
    ephemeral = X25519PrivateKey.from_private_bytes(user_key.prf("seal-slot", recipient, *place, content))
    shown = ephemeral.public_key().public_bytes_raw()
    cipher = ChaCha20Poly1305(_agreed(exchange(ephemeral, recipient), shown, recipient))
    return shown + cipher.encrypt(_NONCE, content, encode(*place))


class SealOpener(Opener):
    """Opens contents of slots that workers sealed."""

    __slots__ = ()

    def open(self, sealed: bytes, place: SlotPlace) -> bytes:
        """The content of a sealed slot, `SLOT_BYTES` bytes.

        Raises:
            BadSeal: another size; or it was sealed to another key, for another place, or was changed (which of
                these cannot be told apart, and the message never repeats bytes).
        """
        if len(sealed) != SEALED_BYTES:
            raise BadSeal(f"expected {SEALED_BYTES} bytes of sealed slot, got {len(sealed)}")
        shown, hidden = sealed[:PUBLIC_KEY_BYTES], sealed[PUBLIC_KEY_BYTES:]
        cipher = ChaCha20Poly1305(_agreed(exchange(self._private, shown), shown, self.public_key))
        try:
            return cipher.decrypt(_NONCE, hidden, encode(*place))
        except InvalidTag:
            raise BadSeal("expected a slot sealed to this key for this place, got another") from None


def _agreed(secret: bytes, ephemeral: bytes, recipient: bytes) -> bytes:
    """A key for one message, bound to both public keys (RFC 9180, Section 4.1: the context of the exchange)."""
    context = encode("hushstream sealed slot", ephemeral, recipient)
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=context).derive(secret)
