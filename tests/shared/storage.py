"""Keys under which tests have workers seal what they write to disk."""

from __future__ import annotations

from dataclasses import dataclass

from hushstream.engine.state.packed import StorageSeal
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import seeded_key

RING = KeyRing(0, 0, (), seeded_key(0, "edge"))


@dataclass(frozen=True)
class StorageKeys:
    """As a machine factory has them."""

    ring: KeyRing = RING

    def state_keys(self) -> KeyRing:
        return self.ring


KEYS = StorageKeys()
SEAL = StorageSeal("deployment", "learner", 0, RING)
