"""The collector role (shuffler zone): it reads fixed-size reports of one round, and releases their noised sums, once.

A round ends when all partitions of users have ended it. Its slots are released then, and never later. The release is a
function of the set of slots, the key and the journal's genesis, so the order in which partitions arrive does not
matter. Slots are folded in batches, and refusals are known at the end of a batch.

The next round, its items and its number of factors follow from releases alone. A sender of slots first puts the round
into this log, so no slot comes before its round. Where devices make slots, the sender puts there the statement that the
aggregator has signed, and the collector opens no other round. The first round follows from the configuration.

Each round is charged with its release (`hushstream.systems.bgt.guarantee`). If inputs have changed under the
journal (`ReopeningRole`), the released round is over: its slots are not added up again, and the next release
opens an epoch, for which users pay again. If the budget refuses a release, only the end of the round is sent, and the
server starts no further round.

*Admission.* Checks slots in whole numbers, so that the sensitivity depends on no rounding.

*Sums.* Exact sums of slots in whole numbers, independent of order and batches.

Batches go through floats where these are exact: sums of whole numbers below 2^53 are.

A null takes as long as a slot that holds something (PRIVACY rule 10). No branch depends on content. Choices are made by
arithmetic, because an unpredictable branch takes five times as long as a predictable one. Two neighbouring places of a
slot are never added to the same cell, because a processor would have to wait for the first addition (three times as
long): unused places use different spare cells behind the items.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from itertools import compress
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.batch import Batch, Refused
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.devices.envelope import STATEMENT_RECORD
from hushstream.engine.devices.kept import BadModel, BadSeal
from hushstream.engine.devices.sealing import Openers, place_of
from hushstream.engine.devices.signing import SigningKeys
from hushstream.engine.journal.chain import Identity
from hushstream.engine.noise.spending import ChargeResult
from hushstream.engine.one_input import PHASE_ENDS, PhaseEnds, Read, ReopeningRole, releasing_state
from hushstream.engine.records import InputSlice, Output, Step
from hushstream.engine.state.declared import FIXED, Flat, Several, Single, boolean, integer
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.gaussian import discrete_gaussian
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress, checked_add
from hushstream.schemas import codec
from hushstream.systems.bgt.artefacts import BgtSystem
from hushstream.systems.bgt.configuration import LARGEST_USERS, LATTICE_BITS, UNIT, BgtConfig
from hushstream.systems.bgt.guarantee import MECHANISM, squared_clip, variance_of
from hushstream.systems.bgt.records import (
    ID_BYTES,
    NOTHING,
    ROUNDS,
    BadSlots,
    BgtError,
    Int64,
    Release,
    Round,
    Slots,
    blank_model,
    first_round,
    packed_slots,
    parse_round,
    parse_slots,
    round_fields,
    signed_round,
    slot_bytes,
)
from hushstream.systems.bgt.topics import SHUFFLER_ZONE, BgtOutcome, BgtRefusal

_SUMMED_AT_ONCE = 1 << 12
"""Slots of a batch: 2^12 products of norm 2^20 x 2^20 sum up to at most 2^52, which a float holds exactly."""

_SPARE = 8
"""Number of spare cells for unused places: enough so that the addition before is done when a cell is used again."""


class Sums:
    """The sums of one round, and its number of slots."""

    __slots__ = ("_asked", "_items", "_place", "exact", "slots")

    def __init__(self, asked: Round, config: BgtConfig) -> None:
        """Sums of nothing."""
        self._asked, self._items = asked, config.items
        # The place of each item among the top items; the last entry is for `NOTHING`.
        self._place = np.full(config.items + 1, len(asked.top), dtype=np.int64)
        self._place[asked.top] = np.arange(len(asked.top))
        shape = {
            "items": (2, config.items),
            "pairs": (len(asked.top), len(asked.top)),
            "factors": (config.items, asked.model.factors.shape[1]),
        }[asked.kind]
        self.exact = np.zeros(shape, dtype=np.int64)
        self.slots = 0

    def add(self, slots: Slots) -> None:
        """Add admitted slots; refused ones must be nulls.

        Raises:
            BadSlots: so many slots that sums might not fit into 64 bits.
        """
        if self.slots + len(slots) > LARGEST_USERS:
            raise BadSlots(f"sums: expected at most {LARGEST_USERS} slots in a round, got more")
        fold = {"items": self._fold_items, "pairs": self._fold_pairs, "factors": self._fold_factors}[self._asked.kind]
        for first in range(0, len(slots), _SUMMED_AT_ONCE):
            some = slots[first : first + _SUMMED_AT_ONCE]
            self.exact = checked_add(self.exact, fold(some))
        self.slots += len(slots)

    def cells(self) -> Int64:
        """The sums before noise; of pairs the strict lower triangle, by rows."""
        if self._asked.kind == "pairs":
            return self.exact[np.tril_indices(len(self.exact), -1)]
        return self.exact

    def _fold_items(self, slots: Slots) -> Int64:
        where = _places(slots, self._items).ravel()
        weights = np.broadcast_to(slots.weights[:, None], slots.items.shape).ravel()
        return np.stack([_counted(where, column, self._items) for column in (weights, slots.values.ravel())])

    def _fold_pairs(self, slots: Slots) -> Int64:
        top = len(self._asked.top)
        dense = np.zeros((len(slots), top + _SPARE))
        # Unused places go to the spare columns behind, which are cut off below.
        place = self._place[slots.items] + _spare_cells(slots)
        dense[np.arange(len(slots))[:, None], place] = slots.values
        dense = dense[:, :top]
        return np.asarray(dense.T @ dense).astype(np.int64)

    def _fold_factors(self, slots: Slots) -> Int64:
        where, kept = _places(slots, self._items).ravel(), self._asked.model.factors.shape[1]
        values, directions = slots.values.astype(np.int64), slots.directions.astype(np.int64)
        columns = []
        for factor in range(kept):
            product = values * directions[:, factor, None]
            shorter = np.sign(product) * (np.abs(product) >> LATTICE_BITS)
            columns.append(_counted(where, shorter.ravel(), self._items))
        return np.stack(columns, axis=1)


def _places(slots: Slots, items: int) -> Int64:
    """The cell of each pair, (n, P): its item, or one of the spare cells behind all items if it is unused."""
    return np.asarray(slots.items + _spare_cells(slots, items - NOTHING))


def _spare_cells(slots: Slots, first: int = 0) -> Int64:
    """The spare cell of each unused place, counted from ``first``, (n, P); 0 for used places."""
    return np.asarray((slots.items == NOTHING) * (first + np.arange(slots.items.shape[1]) % _SPARE))


def _counted(where: Int64, values: NDArray[np.integer[Any]], items: int) -> Int64:
    """Sums by place. They are exact: the values of 2^12 slots, each at most 2^20, sum up to less than 2^53."""
    sums = np.bincount(where, weights=values, minlength=items + _SPARE)
    return np.asarray(sums[:items].astype(np.int64))


class Inadmissible(IntEnum):
    """Why a slot counts as null; zone-private, because it depends on content."""

    TAKEN = 0
    ITEM = 1
    """An unknown item, or one that the round of kind B does not request."""
    ORDER = 2
    """Items that are not ascending (so that one may occur twice), or a value at an unused place."""
    NORM = 3
    """A norm above the clip, even by one unit."""
    KIND = 4
    """A weight or a direction that slots of this kind do not have."""


def admit(slots: Slots, asked: Round, config: BgtConfig) -> NDArray[np.int8]:
    """A `Inadmissible` for each slot, int8 (n,).

    The operations and the sizes of arrays do not depend on the slots' content, and no operation branches on content.

    Raises:
        BadSlots: slots do not have the size of the configuration.

    Guarantee:
        What is taken has items of the round, each once, and a squared norm of at most `squared_clip`.
    """
    width = config.release.pairs, config.release.factors
    if (slots.items.shape[1], slots.directions.shape[1]) != width:
        got = slots.items.shape[1], slots.directions.shape[1]
        raise BadSlots(f"slots: expected {width[0]} pairs and {width[1]} directions, got {got[0]} and {got[1]}")
    why = np.zeros(len(slots), dtype=np.int8)
    why = _marked(why, _wrong_kind(slots, asked), Inadmissible.KIND)
    why = _marked(why, _too_long(slots, asked, config), Inadmissible.NORM)
    used = slots.items != NOTHING
    rising = ((slots.items[:, 1:] > slots.items[:, :-1]) & used[:, :-1]) | ~used[:, 1:]
    why = _marked(why, _any(~rising) | _any((slots.values != 0) & ~used), Inadmissible.ORDER)
    unknown = np.asarray((slots.items < NOTHING) | (slots.items >= config.items))
    if asked.kind == "pairs":
        # Two more entries: one for unknown items, and the last one for unused places.
        known = np.zeros(config.items + 2, dtype=bool)
        known[asked.top] = known[-1] = True
        unknown = unknown | ~known[np.clip(slots.items, NOTHING, config.items)]
    return _marked(why, _any(unknown), Inadmissible.ITEM)


def _wrong_kind(slots: Slots, asked: Round) -> NDArray[np.bool_]:
    factors = asked.model.factors.shape[1] if asked.kind == "factors" else 0
    directed = _any(slots.directions[:, factors:] != 0)
    weighted = (slots.weights < 0) if asked.kind == "items" else (slots.weights != 0)
    return np.asarray(directed | weighted)


def _too_long(slots: Slots, asked: Round, config: BgtConfig) -> NDArray[np.bool_]:
    """Whether a number or a norm is above its bound.

    Numbers are cut to 2^20 before they are squared: otherwise the sum of P squares could leave 64 bits.
    """
    far = _any(_far(slots.values)) | _far(slots.weights) | _any(_far(slots.directions))
    values, weights = (np.clip(column, -UNIT, UNIT).astype(np.int64) for column in (slots.values, slots.weights))
    directions = np.clip(slots.directions, -UNIT, UNIT).astype(np.int64)
    used = np.count_nonzero(slots.items != NOTHING, axis=1)
    squares = (values**2).sum(axis=1) + used * weights**2
    long = squares > squared_clip(asked.kind, config.release)
    return np.asarray(far | long | ((directions**2).sum(axis=1) > UNIT**2))


def _far(numbers: NDArray[np.int32]) -> NDArray[np.bool_]:
    return np.asarray((numbers > UNIT) | (numbers < -UNIT))


def _any(where: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether any value of a row is true; `numpy.any` would stop at the first one."""
    return np.asarray(np.count_nonzero(where, axis=1) > 0)


def _marked(why: NDArray[np.int8], where: NDArray[np.bool_], refusal: Inadmissible) -> NDArray[np.int8]:
    """Set a refusal where it applies, in place of an earlier one, by arithmetic."""
    return why + where * (np.int8(refusal) - why)


COLLECTED = {"sums": "bytes", "slots": "long", "history": "bytes"}
"""Avro fields of `Collector.dump`."""

_HISTORY_BYTES = 32
_HISTORIES = 1 << 8 * _HISTORY_BYTES
"""Modulus of the sum of slots' digests; a sum does not depend on their order."""


_IDS_AND_CONTENTS = b"\x02"
"""Closes the history in a noise address: its digests are of ids and contents."""

_SLOT, _SEALED_SLOT = "RatingSlot", "SealedRatingSlot"
_AT_ONCE = 1024
"""Slots that are folded together."""


def _unpack_ids(value: bytes, before: set[bytes]) -> set[bytes]:
    return {value[place : place + ID_BYTES] for place in range(0, len(value), ID_BYTES)}


def _pack_round(role: CollectorMachine) -> Mapping[str, Any]:
    """Pack the sums of the open round, if there is one."""
    if role.collector is None:
        return {"round": b"", "sums": b"", "slots": 0, "history": b""}
    asked = round_fields(role.collector.asked, role.next, role.system.digest)
    return {"round": codec.encode("RatingRound", asked), **role.collector.dump()}


def _unpack_round(role: CollectorMachine, values: Mapping[str, Any]) -> None:
    role.collector, role._rows = None, []
    if values["round"]:
        config, fields = role.system.config, codec.decode(values["round"])[1]
        asked = parse_round(fields, blank_model(config, fields["kept"]), config)
        assert asked is not None
        role.collector = role.opened(asked)
        role.collector.load(values)


class CollectorMachine(ReopeningRole):
    """The one collector."""

    state = releasing_state(
        "a collector's state",
        "CollectorState",
        noise="redraw_noise",
        phase_ends=Flat(PHASE_ENDS),
        known=Single("bytes", lambda known: b"".join(sorted(known)), _unpack_ids, saved=False),
        next=integer("int"),
        ended=boolean(),
        collector=Several({"round": "bytes", **COLLECTED}, _pack_round, _unpack_round),
    )
    derived: ClassVar[Mapping[str, str]] = {
        "_slot_bytes": FIXED,
        "_opens": FIXED,
        "_kinds": FIXED,
        "_opener": FIXED,
        "_rows": "empty between two folds (`_settle`)",
    }

    system: BgtSystem

    def __init__(
        self, system: BgtSystem, partition: int, key: Key, ring: KeyRing | None = None, sealing: Sequence[Key] = ()
    ) -> None:
        """Bind to a deployment, a home partition, and keys.

        Args:
            system: the deployment.
            partition: the home partition.
            key: the key that its journal begins with.
            ring: the zone's key file.
            sealing: the keys that open sealed slots, where devices make them.

        Raises:
            BadSeal: slots are sealed to a key that is not in ``sealing``.
        """
        identity = Identity.of(system, "collector", "journal-collector", partition)
        super().__init__(system, identity, "RoundJournal", ("updates", partition), SHUFFLER_ZONE, key, ring)
        self._slot_bytes = slot_bytes(system.config)
        # Where slots are sealed, a slot in clear is refused: it shows what its user rated, so it must not count as if
        # nothing was wrong. And a round must be signed: a forged one would void the slots that answer the signed one.
        self._opens = "RatingRound" if system.signing is None else STATEMENT_RECORD
        self._kinds = frozenset({self._opens, "Seal", _SLOT if system.sealing is None else _SEALED_SLOT})
        self._opener = None if system.sealing is None else Openers(system.sealing, sealing)
        self.phase_ends = PhaseEnds(system.config.partitions.learner)
        self.known: set[bytes] = set()
        """Ids of all slots in any round, so that a slot counts once."""
        self.next = 0
        """The open or the next round."""
        self.ended = False
        """Whether a round was withheld: then no more slots are added up."""
        self.collector: Collector | None = self.opened(first_round(system.config))
        self._rows: list[tuple[bytes, bytes]] = []
        """Ids and contents of slots that are not folded yet."""

    def start(self, genesis: bytes) -> None:
        super().start(genesis)
        self.redraw_noise()

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for each round that ends, and one for what is left."""
        batch = Batch(self)
        for one in self.read(slices, self._kinds):
            if self.accept(one, batch, self._take):
                self._release(one.record.offset + 1, batch)
        self.require_followed()
        self._settle(batch)
        return self.finished(slices, batch)

    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.reopen`: the record's round is over, whatever its slots were."""
        charged = self.charge
        fields = self.chain.accept(value, self.committed())
        batch = Batch(self)
        for one in self.read(slices, self._kinds):
            self.accept(one, batch, self._take)
        self._settle(batch)
        self._close_round(fields["round"], fields["released"])
        return self.reopened(fields, charged, batch)

    # One record.

    def _take(self, one: Read, batch: Batch) -> bool:
        """Take one record; returns whether it ends the open round."""
        if one.name == "Seal":
            return self._end_round(one.fields, batch)
        if one.name == self._opens:
            self._open(one.fields, batch)
        else:
            self._slot(one.fields, batch)
        return False

    def _end_round(self, fields: dict[str, Any], batch: Batch) -> bool:
        """End the open round after all partitions of users have ended it."""
        if fields["phase"] > self.next or self.ended or self.next >= ROUNDS:
            raise Refused(BgtRefusal.OTHER_ROUND)
        complete = self.ends_phase(fields, batch)
        if complete:
            self._fold_rows(batch)
        return complete

    def _stated(self, fields: Mapping[str, Any], signing: SigningKeys) -> Mapping[str, Any]:
        """The fields of the round that the aggregator's statement asks for."""
        try:
            return signed_round(fields, self.system.config, self.system.digest, signing)[1]
        except BadModel:
            raise Refused(BgtRefusal.UNSIGNED_ROUND) from None

    def _open(self, fields: Mapping[str, Any], batch: Batch) -> None:
        """Open a round.

        Every partition of users, or gateway of devices, says which round its slots answer: the first one opens it, and
        the others must agree.
        """
        if self.system.signing is not None:
            fields = self._stated(fields, self.system.signing)
        if self.ended or fields["number"] != self.next:
            raise Refused(BgtRefusal.OTHER_ROUND)
        if self.collector is not None:
            if round_fields(self.collector.asked, self.next, self.system.digest) != fields:
                raise Refused(BgtRefusal.BAD_ROUND)
            return
        try:
            asked = parse_round(fields, blank_model(self.system.config, fields["kept"]), self.system.config)
        except BgtError:
            raise Refused(BgtRefusal.BAD_ROUND) from None
        if asked is None:
            raise Refused(BgtRefusal.BAD_ROUND)
        self.collector = self.opened(asked)
        batch.counts[BgtOutcome.ROUND] += 1

    def _slot(self, fields: dict[str, Any], batch: Batch) -> None:
        if self.collector is None or fields["round"] != self.next:
            raise Refused(BgtRefusal.OTHER_ROUND)
        try:
            content = fields["content"] if self._opener is None else self._opened(fields, self._opener)
        except BadSeal:
            raise Refused(Refusal.SEALED_FOR_ANOTHER) from None
        if len(content) != self._slot_bytes:
            raise Refused(Refusal.MALFORMED_SLOT)
        name = fields["slot_id"].hex()
        if fields["slot_id"] in self.known or name in batch.ids:
            batch.counts[Outcome.REPEATED_SLOT] += 1
            return
        batch.ids[name] = None
        batch.counts[Outcome.SLOT] += 1
        self._rows.append((fields["slot_id"], content))
        if len(self._rows) >= _AT_ONCE:
            self._fold_rows(batch)

    def _opened(self, fields: dict[str, Any], opener: Openers) -> bytes:
        return opener.open(fields["sealed"], place_of(fields["slot_id"], fields["round"], fields["config_digest"]))

    def _fold_rows(self, batch: Batch) -> None:
        if self.collector is None or not self._rows:
            return
        ids, contents = zip(*self._rows, strict=True)
        why = self.collector.fold(parse_slots(contents, self.system.config), ids)
        self._rows = []
        batch.counts[BgtOutcome.NULLED_SLOT] += int(np.count_nonzero(why != Inadmissible.TAKEN))

    def _settle(self, batch: Batch) -> None:
        """Fold the waiting slots, and remember their ids, because they now count."""
        self._fold_rows(batch)
        self.known.update(map(bytes.fromhex, batch.ids))
        batch.ids.clear()

    # One round.

    def _release(self, high: int, batch: Batch) -> None:
        """Release the open round, which ended with the input below ``high``.

        If the budget does not cover its price, the round ends without a release.
        """
        # Each round is charged for itself.
        batch.release(partial(self._draw, batch), self.charge)
        released = self.collector is not None and not batch.withheld
        fields = self._journaled(self.collector, released)
        self._close_round(self.next, released)
        # A next key needs nothing here, as no round is open.
        self.end(high, fields, batch)
        self._settle(batch)

    def _draw(self, batch: Batch, charge: ChargeResult) -> list[Output]:
        """The noised sums of the open round. Nobody knows them yet: a crash here repeats the draw."""
        outputs = []
        if self.collector is not None and not charge.refused:
            outputs.append(self._released(self.collector.release()))
        if charge.opens:
            outputs.append(batch.ledger_entry(self._release_id(self.next), charge))
        return [*outputs, self._round_end(self.next)]

    def redraw_noise(self) -> None:
        """See `BatchMachine.redraw_noise`: the open round has the noise of this epoch."""
        if self.collector is not None:
            self.collector.draw_under(*self._noise())

    def _close_round(self, number: int, released: bool) -> None:
        self.next, self.ended, self.collector, self._rows = number + 1, not released, None, []

    def opened(self, asked: Round) -> Collector:
        """An empty collector of this round, under the noise of this epoch."""
        return Collector(asked, self.system.config, *self._noise())

    def _noise(self) -> tuple[Key | None, Any]:
        address = self.system.address(self.releases.nonce, self.releases.epoch.number, self.partition)
        return None if self.system.config.release.noise == "exact" else self.releases.key, address

    def _journaled(self, collector: Collector | None, released: bool) -> dict[str, Any]:
        """The fields of the journal record without head, debit and key. A round that nobody opened has no slots."""
        history = b"" if collector is None else collector.history
        return {
            "round": self.next,
            "kind": "" if collector is None else collector.asked.kind,
            "slots": 0 if collector is None else collector.sums.slots,
            "released": released,
            "mechanism": MECHANISM,
            "parameters": "{}" if collector is None else self._parameters(collector),
            "history": self.releases.key.digest("slots", history),
        }

    def _parameters(self, collector: Collector) -> str:
        return self.system.parameters(self.next, collector.asked.kind)

    def _released(self, release: Release) -> Output:
        system = self.system
        fields = {
            "release_id": self._release_id(release.number),
            "config_digest": system.digest,
            "epoch": self.releases.epoch.number,
            "round": release.number,
            "kind": release.kind,
            "slots": release.slots,
            "kept": release.sums.shape[1] if release.kind == "factors" else 0,
            "sums": release.sums.astype("<i8").tobytes(),
            **system.stated[system.as_stated(self.releases.key.reproducible)],
        }
        return Output("releases", 0, codec.encode("RatingSums", fields))

    def _round_end(self, number: int) -> Output:
        """The record of the round's end, for the server."""
        fields = {
            "phase": number,
            "origin": self.partition,
            "config_digest": self.system.digest,
            "after_click": -1,
        }
        return Output("releases", 0, codec.encode("Seal", fields))

    def _release_id(self, number: int) -> bytes:
        place = struct.pack("<qqq", self.partition, self.releases.epoch.number, number)
        return self.releases.key.digest("release-id", self.releases.nonce, place)

    # What a driver asks.

    @property
    def charge(self) -> int:
        """See `BatchMachine.charge`: each round is one charge."""
        return self.next

    @property
    def draws_ahead(self) -> bool:
        """See `BatchMachine.draws_ahead`: the noise address depends on all slots and their ids."""
        return False


@dataclass(slots=True)
class Taken:
    """The result of taking slots.

    Attributes:
        why: int8 (n,) a `Refusal` for each slot; refused slots counted as nulls.
        repeated: bool (n,) whether the id had come before; such slots did not count.
    """

    why: NDArray[np.int8]
    repeated: NDArray[np.bool_]


class Collector:
    """One round at one collector.

    A slot has an id, a pseudorandom function of user and round, so a user counts once in a round. The noise address
    contains the sums themselves, and a sum of keyed digests over ids and contents of all taken slots. So a collector
    that was rolled back and takes other slots, or equal contents under other ids, draws other noise. With the same
    slots in another order or in other batches it draws the same noise.

    Attributes:
        asked: the round's request.
        sums: sums of the taken slots.
        digests: sum of their digests.
    """

    __slots__ = ("_address", "_config", "_key", "_known", "_released", "asked", "digests", "sums")

    def __init__(self, asked: Round, config: BgtConfig, key: Key | None, address: NoiseAddress) -> None:
        """Begin a round.

        Args:
            asked: the round's request.
            config: of the deployment.
            key: of the collector's zone; None without noise.
            address: see `hushstream.systems.bgt.artefacts.bgt_address`.

        Raises:
            BadSlots: noise without a key.
        """
        if (key is None) != (config.release.noise == "exact"):
            expected, got = ("no key", "one") if config.release.noise == "exact" else ("a key", "none")
            raise BadSlots(f"collector: expected {expected} for noise {config.release.noise}, got {got}")
        self.asked, self._config, self._key, self._address = asked, config, key, address
        self.sums = Sums(asked, config)
        self._known: set[bytes] = set()
        self.digests = 0
        self._released = False

    def draw_under(self, key: Key | None, address: NoiseAddress) -> None:
        """Use another key or address for the noise, those of a new epoch."""
        self._key, self._address = key, address

    def take(self, slots: Slots, ids: list[bytes]) -> Taken:
        """Fold the slots with new ids.

        Raises:
            BadSlots: different numbers of slots and ids, ids of another length, slots of another size, or a round that
                was released.
        """
        if len(ids) != len(slots) or any(len(one) != ID_BYTES for one in ids):
            raise BadSlots(f"take: expected an id of {ID_BYTES} bytes for each of {len(slots)} slots, got others")
        repeated = self.repeated(ids)
        why = np.zeros(len(ids), dtype=np.int8)
        why[~repeated] = self.fold(slots[~repeated], list(compress(ids, ~repeated)))
        return Taken(why, repeated)

    def fold(self, slots: Slots, ids: Sequence[bytes]) -> NDArray[np.int8]:
        """Fold slots, all of which count. A refused slot counts as null, so that refusals change no public number.

        Args:
            slots: to fold.
            ids: of each of them.

        Returns:
            A `Refusal` for each, int8 (n,).

        Raises:
            BadSlots: slots of another size, or a round that was released.
        """
        if self._released:
            raise BadSlots(f"take: expected an open round, got {self.asked.number}, which was released")
        why = self.refusals(slots)
        taken = _nulled(slots, why != Inadmissible.TAKEN)
        self.sums.add(taken)
        packed = packed_slots(taken)
        added = sum(int.from_bytes(one, "little") for one in self._pair_digests(packed, ids))
        self.digests = (self.digests + added) % _HISTORIES
        return why

    def _pair_digests(self, packed: Sequence[bytes], ids: Sequence[bytes]) -> Iterator[bytes]:
        """A keyed digest of each slot with its id, so that no sender can search for slots with equal sums."""
        key = b"" if self._key is None else self._key.prf("bgt-slots")
        digest = partial(hashlib.blake2b, digest_size=_HISTORY_BYTES, key=key, person=b"hush-bgt-named")
        # Ids have one size, and so have slots: the joined bytes can be read in one way.
        return (digest(one + slot).digest() for one, slot in zip(ids, packed, strict=True))

    def refusals(self, slots: Slots) -> NDArray[np.int8]:
        return admit(slots, self.asked, self._config)

    def release(self) -> Release:
        """The sums with noise. A round is released once.

        Raises:
            BadSlots: the round was released before.
        """
        if self._released:
            raise BadSlots(f"round {self.asked.number}: expected to be released once, got a second request")
        self._released = True
        cells = self.sums.cells()
        noised = checked_add(cells, self.noise(cells.size).reshape(cells.shape))
        return Release(self.asked.number, self.asked.kind, self.sums.slots, noised)

    def noise(self, size: int) -> NDArray[np.int64]:
        """Noise for a number of cells, from key, address and all taken slots."""
        if self._key is None:
            return np.zeros(size, dtype=np.int64)
        variance = variance_of(self.asked.number, self.asked.kind, self._config)
        exact = self.sums.exact.astype("<i8").tobytes()
        content = self._key.digest("bgt-round", self.history, exact)
        parameters = {"kind": self.asked.kind, "variance": "/".join(map(str, variance))}
        address = replace(self._address, window=self.asked.number, parameters=parameters, content=content)
        return discrete_gaussian(KeyedStream(self._key, address), *variance, size)

    def dump(self) -> dict[str, Any]:
        """The folded slots' sums, in packed form (`COLLECTED`)."""
        return {
            "sums": self.sums.exact.astype("<i8").tobytes(),
            "slots": self.sums.slots,
            "history": self.history,
        }

    @property
    def history(self) -> bytes:
        """What a noise address contains of all taken slots: the sum of their digests, and the kind of the digests."""
        return self.digests.to_bytes(_HISTORY_BYTES, "little") + _IDS_AND_CONTENTS

    def load(self, state: Mapping[str, Any]) -> None:
        """Return to a dumped state of the same round."""
        exact = np.frombuffer(state["sums"], "<i8").astype(np.int64)
        self.sums.exact, self.sums.slots = exact.reshape(self.sums.exact.shape), state["slots"]
        self.digests = int.from_bytes(state["history"][:_HISTORY_BYTES], "little")
        self._released = False

    def repeated(self, ids: list[bytes]) -> NDArray[np.bool_]:
        """Which ids have come before; all of them are remembered."""
        repeated = np.zeros(len(ids), dtype=bool)
        for place, one in enumerate(ids):
            repeated[place] = one in self._known
            self._known.add(one)
        return repeated


def _nulled(slots: Slots, refused: NDArray[np.bool_]) -> Slots:
    """The slots with nulls in place of refused ones, by arithmetic, so that the time does not depend on them."""
    null = refused.astype(np.int32)
    kept = 1 - null
    rows = kept[:, None]
    items = slots.items * rows + NOTHING * null[:, None]
    return Slots(items, slots.values * rows, slots.weights * kept, slots.directions * rows)
