"""A sender of HPKE with a given ephemeral key, from RFC 9180 alone: the same bytes for the same arguments.

Base mode, one message, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM. It stands beside the library that the
product uses, so that one is held against the other, and makes recordings whose bytes follow from a seed.
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEM, KDF, AEAD = (0x0020).to_bytes(2, "big"), (0x0001).to_bytes(2, "big"), (0x0001).to_bytes(2, "big")
KEM_SUITE, HPKE_SUITE = b"KEM" + KEM, b"HPKE" + KEM + KDF + AEAD
BASE = b"\0"


def _extract(suite: bytes, salt: bytes, label: bytes, material: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + material, "sha256")


def _expand(suite: bytes, secret: bytes, label: bytes, info: bytes, size: int) -> bytes:
    labelled = size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    # Nothing here is longer than one block of SHA-256.
    assert size <= hashlib.sha256().digest_size
    return hmac.digest(secret, labelled + b"\x01", "sha256")[:size]


def sealed(content: bytes, recipient: bytes, info: bytes, ephemeral: bytes, aad: bytes = b"") -> bytes:
    """The encapsulated key and the ciphertext (sections 4.1, 5.1 and 6.1), with this ephemeral private key."""
    private = X25519PrivateKey.from_private_bytes(ephemeral)
    shown = private.public_key().public_bytes_raw()
    shared = private.exchange(X25519PublicKey.from_public_bytes(recipient))
    agreed = _extract(KEM_SUITE, b"", b"eae_prk", shared)
    secret = _expand(KEM_SUITE, agreed, b"shared_secret", shown + recipient, 32)
    psk_id = _extract(HPKE_SUITE, b"", b"psk_id_hash", b"")
    context = BASE + psk_id + _extract(HPKE_SUITE, b"", b"info_hash", info)
    schedule = _extract(HPKE_SUITE, secret, b"secret", b"")
    key = _expand(HPKE_SUITE, schedule, b"key", context, 16)
    nonce = _expand(HPKE_SUITE, schedule, b"base_nonce", context, 12)
    return shown + AESGCM(key).encrypt(nonce, content, aad)
