"""The collector: the trusted curator of one round. It takes slots, and releases their sums with noise, once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import compress
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

COLLECTED = {"sums": "bytes", "slots": "long", "contents": "bytes", "pairs": "bytes"}
"""Avro fields of `Collector.dump`."""

IDS_GENERATION = 2
"""The first schema generation whose rounds have ids in the name of their noise."""

_HISTORY_BYTES = 32
_HISTORIES = 1 << 8 * _HISTORY_BYTES
"""Digests of slots are added up within so much, so that their order does not matter."""


class Naming(Enum):
    """What of a slot is in the name of its round's noise; the value ends that name's history."""

    CONTENTS = b""
    """Its content alone, as in journals of the first schema generation. Then a rolled back round that holds a guess
    under another id has the same noise exactly if the guess is right."""
    IDS = b"\x02"
    """Its id and its content."""


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
    keyed digests over ids and contents of all that was taken is part of the noise's address, beside the sums
    themselves. So a collector that was rolled back and met other slots, or equal contents under other ids, draws other
    noise, and one that meets the same slots in another order or in other batches the same.

    Both sums of digests are kept, whichever is asked for at the end: a worker that writes another schema generation
    than the one before it goes on with the same state.

    Attributes:
        asked: what users were asked for.
        sums: of what was taken.
        histories: the sum of its digests, for each naming.
    """

    __slots__ = ("_address", "_config", "_key", "_known", "_released", "asked", "histories", "sums")

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
        self.histories = dict.fromkeys(Naming, 0)
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
        why = np.zeros(len(ids), dtype=np.int8)
        why[~repeated] = self.fold(slots[~repeated], list(compress(ids, ~repeated)))
        return Taken(why, repeated)

    def fold(self, slots: Slots, ids: Sequence[bytes]) -> NDArray[np.int8]:
        """Fold slots, each of which counts; what is refused counts as null, so that refusals move no public number.

        Args:
            slots: to fold.
            ids: of each of them.

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
        packed = packed_slots(taken)
        self._remember(Naming.CONTENTS, (_content_digest(slot) for slot in packed))
        self._remember(Naming.IDS, self._pair_digests(packed, ids))
        return why

    def _remember(self, naming: Naming, digests: Iterator[bytes]) -> None:
        added = sum(int.from_bytes(one, "little") for one in digests)
        self.histories[naming] = (self.histories[naming] + added) % _HISTORIES

    def _pair_digests(self, packed: Sequence[bytes], ids: Sequence[bytes]) -> Iterator[bytes]:
        """Of each slot and its id; keyed, so that nobody who sends slots can look for some that add up alike."""
        key = b"" if self._key is None else self._key.prf("bgt-slots")
        digest = partial(hashlib.blake2b, digest_size=_HISTORY_BYTES, key=key, person=b"hush-bgt-named")
        # Ids have one size, and so have slots: the joined bytes can be read in one way.
        return (digest(one + slot).digest() for one, slot in zip(ids, packed, strict=True))

    def refusals(self, slots: Slots) -> NDArray[np.int8]:
        return admit(slots, self.asked, self._config)

    def release(self, naming: Naming = Naming.IDS) -> Release:
        """The sums with noise. A round is released once.

        Args:
            naming: of the noise.

        Raises:
            BadSlots: it was released.
        """
        if self._released:
            raise BadSlots(f"round {self.asked.number}: expected to be released once, got a second request")
        self._released = True
        cells = self.sums.cells()
        noised = checked_add(cells, self.noise(cells.size, naming).reshape(cells.shape))
        return Release(self.asked.number, self.asked.kind, self.sums.slots, noised)

    def noise(self, size: int, naming: Naming = Naming.IDS) -> NDArray[np.int64]:
        """What is added to so many cells; it follows from key, address and everything that was taken."""
        if self._key is None:
            return np.zeros(size, dtype=np.int64)
        variance = variance_of(self.asked.number, self.asked.kind, self._config)
        exact = self.sums.exact.astype("<i8").tobytes()
        content = self._key.digest("bgt-round", self.history(naming), exact)
        parameters = {"kind": self.asked.kind, "variance": "/".join(map(str, variance))}
        address = replace(self._address, window=self.asked.number, parameters=parameters, content=content)
        return discrete_gaussian(KeyedStream(self._key, address), *variance, size)

    def dump(self) -> dict[str, Any]:
        """What was folded, in packed form (`COLLECTED`)."""
        return {
            "sums": self.sums.exact.astype("<i8").tobytes(),
            "slots": self.sums.slots,
            "contents": self._packed(Naming.CONTENTS),
            "pairs": self._packed(Naming.IDS),
        }

    def history(self, naming: Naming) -> bytes:
        """What a name of the noise holds of all that was taken: no two namings have a history in common."""
        return self._packed(naming) + naming.value

    def _packed(self, naming: Naming) -> bytes:
        return self.histories[naming].to_bytes(_HISTORY_BYTES, "little")

    def load(self, state: Mapping[str, Any]) -> None:
        """Return to a dumped state of the same round."""
        exact = np.frombuffer(state["sums"], "<i8").astype(np.int64)
        self.sums.exact, self.sums.slots = exact.reshape(self.sums.exact.shape), state["slots"]
        for naming, packed in ((Naming.CONTENTS, state["contents"]), (Naming.IDS, state["pairs"])):
            self.histories[naming] = int.from_bytes(packed, "little")
        self._released = False

    def repeated(self, ids: list[bytes]) -> NDArray[np.bool_]:
        """Which ids came before; all of them are known from then on."""
        repeated = np.zeros(len(ids), dtype=bool)
        for place, one in enumerate(ids):
            repeated[place] = one in self._known
            self._known.add(one)
        return repeated


def _content_digest(slot: bytes) -> bytes:
    return hashlib.blake2b(slot, digest_size=_HISTORY_BYTES, person=b"hush-bgt-slots").digest()


def _nulled(slots: Slots, refused: NDArray[np.bool_]) -> Slots:
    """The slots, nulls in place of those refused: by arithmetic, which takes as long whichever they are."""
    null = refused.astype(np.int32)
    kept = 1 - null
    rows = kept[:, None]
    items = slots.items * rows + NOTHING * null[:, None]
    return Slots(items, slots.values * rows, slots.weights * kept, slots.directions * rows)
