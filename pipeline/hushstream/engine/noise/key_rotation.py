"""The key that a journal is under, and how it is rotated to the next one (PRIVACY rule 9).

A journal record that closes a window or a step may name another key. Everything after that record is under the new
key: the chain, the digests, the noise. The record itself is still under the key before, so only a holder of that key
can rotate it. Readers follow the journal, not what their own key file says at the time. No window and no step is open
at that point, so no digest and no sum is made under two keys.

What is released after a rotation is about input that came after it. The sums of before are kept as they were released,
with their noise, and new sums are added to them under the new key. So each reward or slot is under one key only, and
pays once (parallel composition), however often keys rotate.
"""

from __future__ import annotations

from hushstream.privacy.errors import KeyFileError
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key

STAYS = b""
"""What a journal record says when the key stays."""


class KeyInForce:
    """The key of a journal, from its genesis on.

    Attributes:
        key: the key in force now.
    """

    def __init__(self, key: Key, ring: KeyRing | None = None) -> None:
        """Begin under ``key``. A role whose keys come from a seed (in experiments) has no ring: its key stays."""
        self.key = key
        self._ring = ring
        self._newest = key.key_id if ring is None else ring.of(ring.current).key_id

    @property
    def retired(self) -> frozenset[bytes]:
        """Public ids of destroyed keys."""
        return frozenset() if self._ring is None else frozenset(key_id for _, key_id in self._ring.retired)

    @property
    def due(self) -> bytes:
        """What the next closing record has to say: public id of the key file's current key, unless it is in force."""
        return STAYS if self._newest == self.key.key_id else self._newest

    def rotate_to(self, key_id: bytes) -> Key:
        """Put the key with a public id in force.

        Raises:
            RetiredKey: it was destroyed.
            KeyFileError: the key file never held it.
        """
        if key_id != self.key.key_id:
            if self._ring is None:
                raise KeyFileError(
                    f"key {key_id.hex()}: expected the key file of the zone, since the journal rotated to another key"
                    f" than {self.key.key_id.hex()}, got one key alone"
                )
            self.key = self._ring.named(key_id)
        return self.key
