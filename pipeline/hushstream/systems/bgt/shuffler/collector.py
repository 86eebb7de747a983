"""The collector: the trusted curator of one round. It takes slots, and releases their sums with noise, once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.gaussian import discrete_gaussian
from hushstream.privacy.keys import Key
from hushstream.privacy.noise import KeyedStream, NoiseAddress, checked_add
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.errors import BadSlots
from hushstream.systems.bgt.rounds import Release, Round
from hushstream.systems.bgt.sensitivity import variance_of
from hushstream.systems.bgt.shuffler.admission import Refusal, admit
from hushstream.systems.bgt.shuffler.sums import Sums
from hushstream.systems.bgt.slots import ID_BYTES, NOTHING, Slots, packed_slots

COLLECTED = {"sums": "bytes", "slots": "long", "history": "bytes"}
"""Avro fields of `Collector.dump`."""

_HISTORIES = 1 << 256
"""Digests of slots are added up within so much, so that their order does not matter."""


@dataclass(slots=True)
class Taken:
    """What became of slots.

    Attributes:
        why: int8 (n,) a `Refusal` each; those refused counted as nulls.
        repeated: bool (n,) whose id had come before; they counted for nothing.
    """

    why: NDArray[np.int8]
    repeated: NDArray[np.bool_]


class Collector:
    """One round at one collector.

    A slot has an id, a pseudorandom function of user and round: whoever sends twice in a round is taken once. A sum of
    digests over all that was taken is part of the noise's address, beside the sums themselves, so a collector that was
    rolled back and met other slots draws other noise, and one that meets the same slots in another order or in other
    batches the same.

    Attributes:
        asked: what users were asked for.
        sums: of what was taken.
        history: the sum of its digests.
    """

    __slots__ = ("_address", "_config", "_key", "_known", "_released", "asked", "history", "sums")

    def __init__(self, asked: Round, config: BgtConfig, key: Key | None, address: NoiseAddress) -> None:
        """Begin a round.

        Args:
            asked: what users were asked for.
            config: of the deployment.
            key: of the collector's zone; None where there is no noise.
            address: see `hushstream.systems.bgt.deployment.bgt_address`.

        Raises:
            BadSlots: noise without a key.
        """
        if (key is None) != (config.release.noise == "exact"):
            raise BadSlots(f"collector: expected a key exactly where there is noise, got {config.release.noise}")
        self.asked, self._config, self._key, self._address = asked, config, key, address
        self.sums = Sums(asked, config)
        self._known: set[bytes] = set()
        self.history = 0
        self._released = False

    def draw_under(self, key: Key | None, address: NoiseAddress) -> None:
        """Noise the release under another key or address, as an epoch of its own has them."""
        self._key, self._address = key, address

    def take(self, slots: Slots, ids: list[bytes]) -> Taken:
        """Fold the slots whose ids did not come before.

        Raises:
            BadSlots: other numbers of slots and ids, ids of another length, slots of another size, a round that was
                released.
        """
        if len(ids) != len(slots) or any(len(one) != ID_BYTES for one in ids):
            raise BadSlots(f"take: expected an id of {ID_BYTES} bytes for each of {len(slots)} slots")
        repeated = self.repeated(ids)
        slots = slots[~repeated]
        why = np.zeros(len(ids), dtype=np.int8)
        why[~repeated] = self.fold(slots)
        return Taken(why, repeated)

    def fold(self, slots: Slots) -> NDArray[np.int8]:
        """Fold slots, each of which counts; what is refused counts as null, so that refusals move no public number.

        Returns:
            A `Refusal` for each, int8 (n,).

        Raises:
            BadSlots: slots of another size, a round that was released.
        """
        if self._released:
            raise BadSlots(f"take: expected an open round, got {self.asked.number}, which was released")
        why = self.refusals(slots)
        taken = _nulled(slots, why != Refusal.TAKEN)
        self.sums.add(taken)
        for slot in packed_slots(taken):
            digest = hashlib.blake2b(slot, digest_size=32, person=b"hush-bgt-slots").digest()
            self.history = (self.history + int.from_bytes(digest, "little")) % _HISTORIES
        return why

    def refusals(self, slots: Slots) -> NDArray[np.int8]:
        return admit(slots, self.asked, self._config)

    def release(self) -> Release:
        """The sums with noise. A round is released once.

        Raises:
            BadSlots: it was released.
        """
        if self._released:
            raise BadSlots(f"round {self.asked.number}: expected to be released once, got a second request")
        self._released = True
        cells = self.sums.cells()
        noised = checked_add(cells, self.noise(cells.size).reshape(cells.shape))
        return Release(self.asked.number, self.asked.kind, self.sums.slots, noised)

    def noise(self, size: int) -> NDArray[np.int64]:
        """What is added to so many cells; it follows from key, address and everything that was taken."""
        if self._key is None:
            return np.zeros(size, dtype=np.int64)
        variance = variance_of(self.asked.number, self.asked.kind, self._config)
        exact = self.sums.exact.astype("<i8").tobytes()
        content = self._key.digest("bgt-round", self.history.to_bytes(32, "little"), exact)
        parameters = {"kind": self.asked.kind, "variance": "/".join(map(str, variance))}
        address = replace(self._address, window=self.asked.number, parameters=parameters, content=content)
        return discrete_gaussian(KeyedStream(self._key, address), *variance, size)

    def dump(self) -> dict[str, Any]:
        """What was folded, in packed form (`COLLECTED`)."""
        return {
            "sums": self.sums.exact.astype("<i8").tobytes(),
            "slots": self.sums.slots,
            "history": self.history.to_bytes(32, "little"),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Return to a dumped state of the same round."""
        exact = np.frombuffer(state["sums"], "<i8").astype(np.int64)
        self.sums.exact, self.sums.slots = exact.reshape(self.sums.exact.shape), state["slots"]
        self.history, self._released = int.from_bytes(state["history"], "little"), False

    def repeated(self, ids: list[bytes]) -> NDArray[np.bool_]:
        """Which ids came before; all of them are known from then on."""
        repeated = np.zeros(len(ids), dtype=bool)
        for place, one in enumerate(ids):
            repeated[place] = one in self._known
            self._known.add(one)
        return repeated


def _nulled(slots: Slots, refused: NDArray[np.bool_]) -> Slots:
    """The slots, nulls in place of those refused: by arithmetic, which takes as long whichever they are."""
    null = refused.astype(np.int32)
    kept = 1 - null
    rows = kept[:, None]
    items = slots.items * rows + NOTHING * null[:, None]
    return Slots(items, slots.values * rows, slots.weights * kept, slots.directions * rows)
