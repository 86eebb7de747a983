"""The collector: the trusted curator of one round. It takes slots, and releases their sums with noise, once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

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

MECHANISM = "three-slots"


def bgt_address(config: BgtConfig, digest: bytes, nonce: bytes, epoch: int, partition: int = 0) -> NoiseAddress:
    """The address of a collector's noise; round and content are filled in for each release."""
    return NoiseAddress(
        purpose="release-noise",
        deployment=config.deployment,
        genesis_nonce=nonce,
        system=config.system,
        mechanism=MECHANISM,
        parameters={},
        config_digest=digest,
        epoch=epoch,
        partition=partition,
    )


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

    A slot has an id, a pseudorandom function of user and round: whoever sends twice in a round is taken once. A chain
    of digests over all that was taken, slot by slot, is part of the noise's address, so a collector that was rolled
    back and met other slots draws other noise, and one that meets the same slots in other batches the same.
    """

    __slots__ = ("_address", "_config", "_history", "_key", "_known", "_released", "asked", "sums")

    def __init__(self, asked: Round, config: BgtConfig, key: Key | None, address: NoiseAddress) -> None:
        """Begin a round.

        Args:
            asked: what users were asked for.
            config: of the deployment.
            key: of the collector's zone; None where there is no noise.
            address: see `bgt_address`.

        Raises:
            BadSlots: noise without a key.
        """
        if (key is None) != (config.release.noise == "exact"):
            raise BadSlots(f"collector: expected a key exactly where there is noise, got {config.release.noise}")
        self.asked, self._config, self._key, self._address = asked, config, key, address
        self.sums = Sums(asked, config)
        self._known: set[bytes] = set()
        self._history = b""
        self._released = False

    def take(self, slots: Slots, ids: list[bytes]) -> Taken:
        """Fold slots; what is refused counts as null, so that refusals move no public number.

        Raises:
            BadSlots: other numbers of slots and ids, ids of another length, slots of another size, a round that was
                released.
        """
        if self._released or len(ids) != len(slots) or any(len(one) != ID_BYTES for one in ids):
            raise BadSlots(f"take: expected an open round and an id of {ID_BYTES} bytes for each of {len(slots)} slots")
        repeated = self.repeated(ids)
        slots = slots[~repeated]
        why = self.refusals(slots)
        taken = _nulled(slots, why != Refusal.TAKEN)
        self.sums.add(taken)
        for slot in packed_slots(taken):
            self._history = hashlib.blake2b(self._history + slot, digest_size=32, person=b"hush-bgt-slots").digest()
        all_why = np.zeros(len(ids), dtype=np.int8)
        all_why[~repeated] = why
        return Taken(all_why, repeated)

    def refusals(self, slots: Slots) -> NDArray[np.int8]:
        """See `admit`."""
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
        content = self._key.digest("bgt-round", self._history, self.sums.exact.astype("<i8").tobytes())
        parameters = {"kind": self.asked.kind, "variance": "/".join(map(str, variance))}
        address = replace(self._address, window=self.asked.number, parameters=parameters, content=content)
        return discrete_gaussian(KeyedStream(self._key, address), *variance, size)

    def repeated(self, ids: list[bytes]) -> NDArray[np.bool_]:
        """Which ids came before; all of them are known from then on."""
        repeated = np.zeros(len(ids), dtype=bool)
        for place, one in enumerate(ids):
            repeated[place] = one in self._known
            self._known.add(one)
        return repeated


def _nulled(slots: Slots, refused: NDArray[np.bool_]) -> Slots:
    rows = refused[:, None]
    return Slots(
        np.where(rows, np.int32(NOTHING), slots.items),
        np.where(rows, np.int32(0), slots.values),
        np.where(refused, np.int32(0), slots.weights),
        np.where(rows, np.int32(0), slots.directions),
    )
