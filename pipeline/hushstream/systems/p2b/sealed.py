"""Sealed slots: slots whose content is encrypted for the shuffler, so that the operator of the broker cannot read it.

Every message has a key of its own. An ephemeral X25519 key and the shuffler's public key give a shared secret (RFC
7748). HKDF with SHA-256 (RFC 5869) derives from it a key for ChaCha20-Poly1305 (RFC 8439). The slot's place (id,
period, configuration) is authenticated with its content. This follows the base mode of HPKE (RFC 9180, Section 5.1.1),
with one difference: the ephemeral key is derived, not drawn at random.

**The same slot gives the same bytes.** A worker that restarts sends its journaled slots again, so sealing must not use
fresh randomness. The ephemeral private key is ``HMAC(user's key, place, recipient, content)``.

**Why the constant nonce is harmless.** A key of ChaCha20-Poly1305 comes from one ephemeral key and one recipient. Two
sealings under one user's key share their ephemeral key only if place, recipient and content are all equal (the
encoding is injective; otherwise HMAC-SHA256 would have to collide). Then they are the same message under the same key,
and the result is the same bytes: a repeat, which the shuffler drops by the slot's id. Different messages never share
a key, so no pair of a key and a nonce is used for two messages, and every nonce may be zero. This is the argument of
SIV (Rogaway and Shrimpton 2006). The derivation includes the content, so if a journal was rolled back and a slot then
gets another content, its key is another too. Two users never share a key, because each key is derived for one user.

**What it gives.** All sealed slots are 80 bytes long. Without the shuffler's sealing key or the user's key, nobody can
tell a report from null better than by chance. The ephemeral public key is a function of the content, but under a
secret key (the user's), so nobody else can recompute it for a guessed content.

**What it does not give.**

* It does not show who wrote a slot, because anyone can seal to a public key. A malicious client voids only their own
  bound.
* There is no forward secrecy. Whoever records sealed slots and gets the shuffler's sealing key later can open them, and
  whoever gets an edge key can test guesses of their content.
* It does not hide when a slot came.
* It hides nothing from an operator whose broker also carries contexts and clicks in clear (a `hosted` deployment): they
  can compute what the slots hold. An operator who reads contexts and clicks and also opened slots can match users and
  slots by their content, and no shuffler prevents that. The two sides then need clusters or operators of their own.
  Sealing lets the slots of an `edge` deployment pass through a broker that nobody trusts.

Guarantee:
    Computational: IND-CCA2 of DHIES in the random-oracle model under gap Diffie-Hellman on X25519, for the content
    against everyone who holds neither key. The differential privacy of a release does not depend on it.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hushstream.engine.devices.kept import BadSeal
from hushstream.engine.devices.sealing import PUBLIC_KEY_BYTES, TAG_BYTES, Opener, SlotPlace, exchange
from hushstream.privacy.keys import Key, encode
from hushstream.systems.p2b.slots import SLOT_BYTES

SEALED_BYTES = PUBLIC_KEY_BYTES + SLOT_BYTES + TAG_BYTES
"""Length of a sealed slot: ephemeral public key, encrypted content and its tag, 80 bytes for every content."""

_NONCE = bytes(12)


def seal(content: bytes, place: SlotPlace, recipient: bytes, user_key: Key) -> bytes:
    """Seal a slot's content to the shuffler.

    Args:
        content: `SLOT_BYTES` bytes, a report or null.
        place: the slot's id, period and configuration.
        recipient: the shuffler's public key, `PUBLIC_KEY_BYTES` bytes.
        user_key: the key of the user whose slot it is.

    Returns:
        `SEALED_BYTES` bytes; the same for the same arguments.

    Raises:
        BadSeal: a content or a public key of another size, or a public key that gives no shared secret.
    """
    if len(content) != SLOT_BYTES:
        raise BadSeal(f"expected {SLOT_BYTES} bytes of slot content, got {len(content)}")
    ephemeral = X25519PrivateKey.from_private_bytes(user_key.prf("seal-slot", recipient, *place, content))
    shown = ephemeral.public_key().public_bytes_raw()
    cipher = ChaCha20Poly1305(_agreed(exchange(ephemeral, recipient), shown, recipient))
    return shown + cipher.encrypt(_NONCE, content, encode(*place))


class SealOpener(Opener):
    """Opens slots that workers sealed."""

    __slots__ = ()

    def open(self, sealed: bytes, place: SlotPlace) -> bytes:
        """Decrypt the content of a sealed slot, `SLOT_BYTES` bytes.

        Raises:
            BadSeal: another size; or it was sealed to another key or for another place, or was changed (the cipher
                cannot tell these three apart). The message never quotes bytes.
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
    """Derive the key of one message, bound to both public keys (RFC 9180, Section 4.1: the context of the exchange)."""
    context = encode("hushstream sealed slot", ephemeral, recipient)
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=context).derive(secret)
