"""The collector role (shuffler zone): it reads padded slots of one round, and releases their noised sums, once.

A round ends when all partitions of users have ended it. Its slots are released then, and never later. The release is a
function of the set of slots, the key and the journal's genesis, so the order in which partitions arrive does not
matter. Slots are folded in batches, and refusals are known at the end of a batch.

The next round, its items and its number of factors follow from releases alone. A sender of slots first puts the round
into this log, so no slot comes before its round. Where devices make slots, the sender puts there the statement that the
aggregator has signed, and the collector opens no other round. The first round follows from the configuration.

Each round is charged with its release (`hushstream.systems.bgt.price.budget`). If inputs have changed under the journal
(`hushstream.engine.releasing`), the released round is over: its slots are not added up again, and the next release
opens an epoch, for which users pay again. If the budget refuses a release, only the end of the round is sent, and the
server starts no further round.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import compress
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.devices.envelope import STATEMENT_RECORD
from hushstream.engine.devices.errors import BadModel, BadSeal
from hushstream.engine.devices.recipients import Openers
from hushstream.engine.devices.sealing import ContentOpener
from hushstream.engine.devices.signing import SigningKeys
from hushstream.engine.devices.travelling import place_of
from hushstream.engine.journal.chain import Identity
from hushstream.engine.noise.spending import ChargeResult
from hushstream.engine.one_input import Gathered, Read
from hushstream.engine.phase_ends import PHASE_ENDS, PhaseEnds
from hushstream.engine.records import InputSlice, Output, Step
from hushstream.engine.refusals import Refused
from hushstream.engine.releasing import ReopeningRole, releasing_state
from hushstream.engine.state.declared import FIXED, Flat, Several, Single, boolean, integer
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.gaussian import discrete_gaussian
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress, checked_add
from hushstream.schemas import codec
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.deployment import NAMED_BY, BgtSystem
from hushstream.systems.bgt.errors import BadSlots, BgtError
from hushstream.systems.bgt.price.budget import MECHANISM
from hushstream.systems.bgt.price.sensitivity import variance_of
from hushstream.systems.bgt.reasons import BgtOutcome, BgtRefusal
from hushstream.systems.bgt.records import blank_model, parse_round, parse_slots, round_fields
from hushstream.systems.bgt.rounds import ROUNDS, Release, Round, first_round
from hushstream.systems.bgt.shuffler.admission import Refusal as Inadmissible
from hushstream.systems.bgt.shuffler.admission import admit
from hushstream.systems.bgt.shuffler.sums import Sums
from hushstream.systems.bgt.slots import ID_BYTES, NOTHING, Slots, packed_slots, slot_bytes
from hushstream.systems.bgt.stated import signed_round
from hushstream.systems.bgt.topics import SHUFFLER_ZONE

COLLECTED = {"sums": "bytes", "slots": "long", "contents": "bytes", "pairs": "bytes"}
"""Avro fields of `Collector.dump`."""

IDS_GENERATION = 2
"""The first schema generation in which noise addresses of rounds contain ids."""

_HISTORY_BYTES = 32
_HISTORIES = 1 << 8 * _HISTORY_BYTES
"""Modulus of the sum of slots' digests; a sum does not depend on their order."""


class Naming(Enum):
    """What the noise address of a round contains of its slots; the value is the end of the history in the address."""

    CONTENTS = b""
    """The contents of slots alone, as in journals of the first schema generation. Then somebody could repeat a round
    that was rolled back, with a guessed content under another id: exactly if the guess is right, the noise is equal."""
    IDS = b"\x02"
    """The ids of slots and their contents."""


_SLOT, _SEALED_SLOT = "RatingSlot", "SealedRatingSlot"
_AT_ONCE = 1024
"""Slots that are folded together."""

_NO_NONCE = bytes(32)
"""In place of the journal's nonce before the journal is known; nothing is drawn under it."""


def _unpack_ids(value: bytes, before: set[bytes]) -> set[bytes]:
    return {value[place : place + ID_BYTES] for place in range(0, len(value), ID_BYTES)}


def _pack_round(role: CollectorMachine) -> Mapping[str, Any]:
    """Pack the sums of the open round, if there is one."""
    if role.collector is None:
        return {"round": b"", "sums": b"", "slots": 0, "contents": b"", "pairs": b""}
    asked = round_fields(role.collector.asked, role.next, role.system.digest)
    return {"round": role.chain.encode("RatingRound", asked), **role.collector.dump()}


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
        2,
        "CollectorState",
        noise="open_noise",
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
        identity = Identity.of(system, "collector", "journal-collector", partition, begun_in=IDS_GENERATION)
        super().__init__(system, identity, "RoundJournal", ("updates", partition), SHUFFLER_ZONE, key, ring)
        self._slot_bytes = slot_bytes(system.config)
        # Where slots are sealed, a slot in clear is refused: it shows what its user rated, so it must not count as if
        # nothing was wrong. And a round must be signed: a forged one would void the slots that answer the signed one.
        self._opens = "RatingRound" if system.signing is None else STATEMENT_RECORD
        self._kinds = frozenset({self._opens, "Seal", _SLOT if system.sealing is None else _SEALED_SLOT})
        self._opener = None if system.sealing is None else Openers(system.sealing, sealing, ContentOpener)
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
        self.open_noise()

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for each round that ends, and one for what is left."""
        gathered = Gathered(self)
        for one in self.read(slices, self._kinds):
            if self._take(one, gathered):
                self._release(one.record.offset + 1, gathered)
        self.releases.require_followed()
        self._settle(gathered)
        return self.finished(slices, gathered)

    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Reopens.reopen`: the record's round is over, whatever its slots were."""
        charged = self.charge
        fields = self.chain.accept(value, self.committed())
        gathered = Gathered(self)
        for one in self.read(slices, self._kinds):
            self._take(one, gathered)
        self._settle(gathered)
        self._close_round(fields["round"], fields["released"])
        return self.reopened(fields, charged, gathered)

    # One record.

    def _take(self, one: Read, gathered: Gathered) -> bool:
        """Take one record; returns whether it ends the open round."""
        record, name, fields, reason = one
        try:
            if reason:
                raise Refused(reason)
            if name == "Seal":
                return self._end_round(fields, gathered)
            if name == self._opens:
                self._open(fields, gathered)
            else:
                self._slot(fields, gathered)
        except Refused as error:
            gathered.refuse(error.reason, record)
        return False

    def _end_round(self, fields: dict[str, Any], gathered: Gathered) -> bool:
        """End the open round after all partitions of users have ended it."""
        if fields["phase"] > self.next or self.ended or self.next >= ROUNDS:
            raise Refused(BgtRefusal.OTHER_ROUND)
        complete = self.phase_ends.note(fields["origin"], fields["phase"])
        if complete is None:
            raise Refused(Refusal.UNKNOWN_ORIGIN)
        gathered.counts[Outcome.SEAL] += 1
        if complete:
            self._fold_rows(gathered)
        return complete

    def _stated(self, fields: Mapping[str, Any], signing: SigningKeys) -> Mapping[str, Any]:
        """The fields of the round that the aggregator's statement asks for."""
        try:
            return signed_round(fields, self.system.config, self.system.digest, signing)[1]
        except BadModel:
            raise Refused(BgtRefusal.UNSIGNED_ROUND) from None

    def _open(self, fields: Mapping[str, Any], gathered: Gathered) -> None:
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
        gathered.counts[BgtOutcome.ROUND] += 1

    def _slot(self, fields: dict[str, Any], gathered: Gathered) -> None:
        if self.collector is None or fields["round"] != self.next:
            raise Refused(BgtRefusal.OTHER_ROUND)
        try:
            content = fields["content"] if self._opener is None else self._opened(fields, self._opener)
        except BadSeal:
            raise Refused(Refusal.SEALED_FOR_ANOTHER) from None
        if len(content) != self._slot_bytes:
            raise Refused(Refusal.MALFORMED_SLOT)
        name = fields["slot_id"].hex()
        if fields["slot_id"] in self.known or name in gathered.ids:
            gathered.counts[Outcome.REPEATED_SLOT] += 1
            return
        gathered.ids[name] = None
        gathered.counts[Outcome.SLOT] += 1
        self._rows.append((fields["slot_id"], content))
        if len(self._rows) >= _AT_ONCE:
            self._fold_rows(gathered)

    def _opened(self, fields: dict[str, Any], opener: Openers) -> bytes:
        return opener.open(fields["sealed"], place_of(fields["slot_id"], fields["round"], fields["config_digest"]))

    def _fold_rows(self, gathered: Gathered) -> None:
        if self.collector is None or not self._rows:
            return
        ids, contents = zip(*self._rows, strict=True)
        why = self.collector.fold(parse_slots(contents, self.system.config), ids)
        self._rows = []
        gathered.counts[BgtOutcome.NULLED_SLOT] += int(np.count_nonzero(why != Inadmissible.TAKEN))

    def _settle(self, gathered: Gathered) -> None:
        """Fold the waiting slots, and remember their ids, because they now count."""
        self._fold_rows(gathered)
        self.known.update(map(bytes.fromhex, gathered.ids))
        gathered.ids.clear()

    # One round.

    def _release(self, high: int, gathered: Gathered) -> None:
        """Release the open round, which ended with the input below ``high``.

        If the budget does not cover its price, the round ends without a release.
        """
        releases, collector, number, release = self.releases, self.collector, self.next, None
        if releases.opens_epoch():
            self.open_noise()
        # 1. Charge: each round is charged for itself.
        charge_result = releases.try_charge(self.charge)
        # 2. Draw. Nothing is known to anybody yet: a crash here repeats the draw from the same address.
        if collector is not None and charge_result.refused is None:
            release = collector.release(self.naming)
        fields = self._journaled(collector, release)
        self._close_round(number, release is not None)
        outputs = (*self._released(release), *self._ledger_entry(number, charge_result), *self._round_end(number))
        # 3. Journal: the driver appends this record, and sends the outputs only when it is acknowledged. A next key
        # needs nothing here, as no round is open.
        self.released(high, fields, outputs, charge_result, gathered)
        self._settle(gathered)

    def open_noise(self) -> None:
        """Use the noise of this epoch for the open round."""
        if self.collector is not None:
            self.collector.draw_under(*self._noise())

    def _close_round(self, number: int, released: bool) -> None:
        self.next, self.ended, self.collector, self._rows = number + 1, not released, None, []

    def opened(self, asked: Round) -> Collector:
        """An empty collector of this round, under the noise of this epoch."""
        return Collector(asked, self.system.config, *self._noise())

    def _noise(self) -> tuple[Key | None, Any]:
        nonce = self.releases.nonce or _NO_NONCE
        address = self.system.address(nonce, self.releases.epoch.number, self.partition)
        return None if self.system.config.release.noise == "exact" else self.releases.key, address

    def _journaled(self, collector: Collector | None, release: Release | None) -> dict[str, Any]:
        """The fields of the journal record without head, debit and key. A round that nobody opened has no slots."""
        history = b"" if collector is None else collector.history(self.naming)
        return {
            "round": self.next,
            "kind": "" if collector is None else collector.asked.kind,
            "slots": 0 if collector is None else collector.sums.slots,
            "released": release is not None,
            "mechanism": MECHANISM,
            "parameters": "{}" if collector is None else self._parameters(collector),
            "history": self.releases.key.digest("slots", history),
        }

    def _parameters(self, collector: Collector) -> str:
        return self.system.parameters(self.next, collector.asked.kind, self.naming is Naming.IDS)

    def _released(self, release: Release | None) -> tuple[Output, ...]:
        if release is None:
            return ()
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
        return (Output("releases", 0, self.chain.encode("RatingSums", fields)),)

    def _ledger_entry(self, number: int, charge_result: ChargeResult) -> tuple[Output, ...]:
        """The ledger's copy of the round's charge, which is empty if it was refused."""
        return (self.debited(self._release_id(number), charge_result),) if charge_result.opens else ()

    def _round_end(self, number: int) -> tuple[Output, ...]:
        """The record of the round's end, for the server."""
        fields = {
            "phase": number,
            "origin": self.partition,
            "config_digest": self.system.digest,
            "after_click": -1,
        }
        return (Output("releases", 0, self.chain.encode("Seal", fields)),)

    def _release_id(self, number: int) -> bytes:
        place = struct.pack("<qqq", self.partition, self.releases.epoch.number, number)
        return self.releases.key.digest("release-id", self.releases.nonce, place)

    # What a driver asks.

    @property
    def charge(self) -> int:
        """See `ReleasingRole.charge`: each round is one charge."""
        return self.next

    @property
    def draws_ahead(self) -> bool:
        """See `ReleasingRole.draws_ahead`.

        The noise address depends on all slots, and on their ids unless the journal is still in the first schema
        generation. Noise without ids counts as drawn ahead.
        """
        return self.naming is Naming.CONTENTS

    @property
    def naming(self) -> Naming:
        """The naming of the next release's noise.

        An older software release, which knows contents alone, may follow a journal of the first schema generation. With
        ids it would compute other sums than the journaled ones, and open an epoch. So ids are used from the next
        generation on, which the older release refuses to read. A new journal begins in that generation. In a replay,
        the record says which naming it has.
        """
        replayed = self.releases.replayed
        if replayed is not None:
            return Naming.IDS if f'"{NAMED_BY}":' in replayed.fields["parameters"] else Naming.CONTENTS
        return Naming.IDS if self.chain.schema_generation >= IDS_GENERATION else Naming.CONTENTS


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
    slots in another order or in other batches it draws the same noise. Both sums of digests are kept, so that a worker
    of another schema generation can continue the state.

    Attributes:
        asked: the round's request.
        sums: sums of the taken slots.
        histories: sum of their digests, for each naming.
    """

    __slots__ = ("_address", "_config", "_key", "_known", "_released", "asked", "histories", "sums")

    def __init__(self, asked: Round, config: BgtConfig, key: Key | None, address: NoiseAddress) -> None:
        """Begin a round.

        Args:
            asked: the round's request.
            config: of the deployment.
            key: of the collector's zone; None without noise.
            address: see `hushstream.systems.bgt.deployment.bgt_address`.

        Raises:
            BadSlots: noise without a key.
        """
        if (key is None) != (config.release.noise == "exact"):
            expected, got = ("no key", "one") if config.release.noise == "exact" else ("a key", "none")
            raise BadSlots(f"collector: expected {expected} for noise {config.release.noise}, got {got}")
        self.asked, self._config, self._key, self._address = asked, config, key, address
        self.sums = Sums(asked, config)
        self._known: set[bytes] = set()
        self.histories = dict.fromkeys(Naming, 0)
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
        self._remember(Naming.CONTENTS, (_content_digest(slot) for slot in packed))
        self._remember(Naming.IDS, self._pair_digests(packed, ids))
        return why

    def _remember(self, naming: Naming, digests: Iterator[bytes]) -> None:
        added = sum(int.from_bytes(one, "little") for one in digests)
        self.histories[naming] = (self.histories[naming] + added) % _HISTORIES

    def _pair_digests(self, packed: Sequence[bytes], ids: Sequence[bytes]) -> Iterator[bytes]:
        """A keyed digest of each slot with its id, so that no sender can search for slots with equal sums."""
        key = b"" if self._key is None else self._key.prf("bgt-slots")
        digest = partial(hashlib.blake2b, digest_size=_HISTORY_BYTES, key=key, person=b"hush-bgt-named")
        # Ids have one size, and so have slots: the joined bytes can be read in one way.
        return (digest(one + slot).digest() for one, slot in zip(ids, packed, strict=True))

    def refusals(self, slots: Slots) -> NDArray[np.int8]:
        return admit(slots, self.asked, self._config)

    def release(self, naming: Naming = Naming.IDS) -> Release:
        """The sums with noise. A round is released once.

        Args:
            naming: what the noise address contains of the slots.

        Raises:
            BadSlots: the round was released before.
        """
        if self._released:
            raise BadSlots(f"round {self.asked.number}: expected to be released once, got a second request")
        self._released = True
        cells = self.sums.cells()
        noised = checked_add(cells, self.noise(cells.size, naming).reshape(cells.shape))
        return Release(self.asked.number, self.asked.kind, self.sums.slots, noised)

    def noise(self, size: int, naming: Naming = Naming.IDS) -> NDArray[np.int64]:
        """Noise for a number of cells, from key, address and all taken slots."""
        if self._key is None:
            return np.zeros(size, dtype=np.int64)
        variance = variance_of(self.asked.number, self.asked.kind, self._config)
        exact = self.sums.exact.astype("<i8").tobytes()
        content = self._key.digest("bgt-round", self.history(naming), exact)
        parameters = {"kind": self.asked.kind, "variance": "/".join(map(str, variance))}
        address = replace(self._address, window=self.asked.number, parameters=parameters, content=content)
        return discrete_gaussian(KeyedStream(self._key, address), *variance, size)

    def dump(self) -> dict[str, Any]:
        """The folded slots' sums, in packed form (`COLLECTED`)."""
        return {
            "sums": self.sums.exact.astype("<i8").tobytes(),
            "slots": self.sums.slots,
            "contents": self._packed(Naming.CONTENTS),
            "pairs": self._packed(Naming.IDS),
        }

    def history(self, naming: Naming) -> bytes:
        """The history of all taken slots in a noise address; no two namings have equal histories."""
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
        """Which ids have come before; all of them are remembered."""
        repeated = np.zeros(len(ids), dtype=bool)
        for place, one in enumerate(ids):
            repeated[place] = one in self._known
            self._known.add(one)
        return repeated


def _content_digest(slot: bytes) -> bytes:
    return hashlib.blake2b(slot, digest_size=_HISTORY_BYTES, person=b"hush-bgt-slots").digest()


def _nulled(slots: Slots, refused: NDArray[np.bool_]) -> Slots:
    """The slots with nulls in place of refused ones, by arithmetic, so that the time does not depend on them."""
    null = refused.astype(np.int32)
    kept = 1 - null
    rows = kept[:, None]
    items = slots.items * rows + NOTHING * null[:, None]
    return Slots(items, slots.values * rows, slots.weights * kept, slots.directions * rows)
