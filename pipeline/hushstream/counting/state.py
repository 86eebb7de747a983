"""A counter's stored state: its bytes with a keyed digest, which also covers the counter's identity."""

from __future__ import annotations

from hushstream.counting.errors import BadState
from hushstream.privacy.keys import DIGEST_BYTES, Key

_PURPOSE = "counter-state"


def seal_state(key: Key, identity: bytes, body: bytes) -> bytes:
    """``body`` with the digest of it and of ``identity`` (plan, parameters and address of the counter)."""
    return body + key.digest(_PURPOSE, identity, body)


def open_state(key: Key, identity: bytes, state: bytes) -> bytes:
    """The body of a state that `seal_state` made with the same key and identity.

    Raises:
        BadState: damaged, or of another plan, key or address.
    """
    body, digest = state[:-DIGEST_BYTES], state[-DIGEST_BYTES:]
    if key.digest(_PURPOSE, identity, body) != digest:
        raise BadState("counter state: expected one of this plan, key and address, got a damaged or foreign one")
    return body
