"""The key of a journal, and its rotation (PRIVACY rule 9).

A journal record that closes a window or a step may name another key. Everything after that record is under the new key:
the chain, the digests, the noise. The record itself is still under the old key, so only a holder of the old key can
rotate it. Readers follow the journal, and not the present state of their own key file. No window and no step is open at
that point, so no digest and no sum is made under two keys.

Releases after a rotation are about input after it. Earlier sums are kept with their noise, as they were released, and
new sums under the new key are added. So each reward or slot is under one key only and pays once (parallel composition),
however often keys rotate.
"""

from __future__ import annotations

from hushstream.privacy.errors import KeyFileError
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key

STAYS = b""
"""Value in a journal record that does not rotate the key."""


class KeyInForce:
    """The key of a journal, from its genesis on.

    Attributes:
        key: the key in force now.
        due: the value for the next closing record: public id of the key file's current key, or `STAYS` if that key is
            in force.
    """

    def __init__(self, key: Key, ring: KeyRing | None = None) -> None:
        """Begin under ``key``.

        A role whose keys come from a seed (in experiments) has no ring, and its key never rotates.
        """
        self.key = key
        self._ring = ring
        self._newest = key.key_id if ring is None else ring.of(ring.current).key_id
        self.due = STAYS if self._newest == key.key_id else self._newest

    @property
    def retired(self) -> frozenset[bytes]:
        """Public ids of destroyed keys."""
        return frozenset() if self._ring is None else frozenset(key_id for _, key_id in self._ring.retired)

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
            self.due = STAYS if self._newest == key_id else self._newest
        return self.key
