"""The collector role: padded slots of one round come in, their sums go out with noise, once (shuffler zone).

A round ends when all partitions of users have ended it; what it holds then is released, and nothing of it later. What
is released is a function of the slots as a set, of the key and of the journal's genesis, so it does not matter how
partitions of users raced. Slots are folded many at a time: which of them break a bound is known at the end of a batch.

Which round is next, its items and how many factors it has follow from releases alone; whoever sends slots puts the
round before them in this log, so no slot can come before its round. The first one follows from the configuration.

Each round is paid for with its release (`hushstream.systems.bgt.budget`). Where inputs changed under the journal
(`hushstream.engine.releasing`), the round whose sums were released is over: its slots are not summed again, and the
next release opens an epoch, for which users pay again. Where the budget has no room for a release there is none, and
the end of the round is passed on alone: the server then asks for no more.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.gathered import Gathered
from hushstream.engine.journal.chain import Identity
from hushstream.engine.noise.spending import Asked
from hushstream.engine.phase_ends import PHASE_ENDS, PhaseEnds
from hushstream.engine.records import InputRecord, InputSlice, Output, Step
from hushstream.engine.refusals import Refused
from hushstream.engine.releasing import ReopeningRole, releasing_state
from hushstream.engine.state.declared import Flat, Several, Single, boolean, integer
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.systems.bgt.budget import MECHANISM
from hushstream.systems.bgt.deployment import NAMED_BY, BgtSystem
from hushstream.systems.bgt.errors import BadSlots, BgtError
from hushstream.systems.bgt.reasons import BgtOutcome, BgtRefusal
from hushstream.systems.bgt.records import blank_model, parse_round, parse_slot, round_fields, slots_of_rows
from hushstream.systems.bgt.rounds import ROUNDS, Release, Round, first_round
from hushstream.systems.bgt.shuffler.admission import Refusal as Inadmissible
from hushstream.systems.bgt.shuffler.collector import COLLECTED, IDS_GENERATION, Collector, Naming
from hushstream.systems.bgt.slots import ID_BYTES, Int32
from hushstream.systems.bgt.topics import SHUFFLER_ZONE

_AT_ONCE = 1024
"""Slots that are folded together."""

_NO_NONCE = bytes(32)
"""Stands for the journal's nonce before the journal is known; nothing is drawn under it."""


class Ended(NamedTuple):
    """A round that all partitions of users have ended."""

    number: int


def _unpack_ids(value: bytes, before: set[bytes]) -> set[bytes]:
    return {value[place : place + ID_BYTES] for place in range(0, len(value), ID_BYTES)}


def _pack_round(role: CollectorMachine) -> Mapping[str, Any]:
    """All that slots left in the round that is open, if one is."""
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


class CollectorMachine(ReopeningRole[Ended]):
    """The one collector."""

    state = releasing_state(
        "a collector's state",
        2,
        "CollectorState",
        phase_ends=Flat(PHASE_ENDS),
        known=Single("bytes", lambda known: b"".join(sorted(known)), _unpack_ids, saved=False),
        next=integer("int"),
        ended=boolean(),
        collector=Several({"round": "bytes", **COLLECTED}, _pack_round, _unpack_round),
    )
    derived: ClassVar[Mapping[str, str]] = {
        "_rows": "empty between two folds (`settle`)",
        "_replayed": "None but while a record is replayed, which says it",
    }

    system: BgtSystem

    def __init__(self, system: BgtSystem, partition: int, key: Key, ring: KeyRing | None = None) -> None:
        """Bind to a deployment, a home partition, the key that its journal begins with, and the zone's key file."""
        journal = ("journal-collector", partition)
        identity = Identity("collector", system.config.deployment, system.digest, journal, begun_in=IDS_GENERATION)
        source, terms = ("updates", partition), system.spending_terms
        super().__init__(system, identity, "RoundJournal", source, SHUFFLER_ZONE, key, ring, terms)
        self.phase_ends = PhaseEnds(system.config.partitions.learner)
        self.known: set[bytes] = set()
        """Ids of all slots that came in any round: a slot counts once."""
        self.next = 0
        """The round that is open, or comes next."""
        self.ended = False
        """Whether a round was withheld: nothing is summed any more."""
        self._replayed: Naming | None = None
        """What the journal record that is replayed says of its noise's name."""
        self.collector: Collector | None = self.opened(first_round(system.config))
        self._rows: list[tuple[bytes, Int32]] = []
        """Slots that came and are not folded yet, each with its id."""

    @property
    def expects(self) -> frozenset[str]:
        return frozenset({"RatingRound", "RatingSlot", "Seal"})

    @property
    def draws_ahead(self) -> bool:
        """See `ReleasingRole.draws_ahead`: all slots are in the name of the noise, but for their ids where the journal
        is still written in the first schema generation: noise without them answers doubts as noise without a name."""
        return self.naming is Naming.CONTENTS

    @property
    def naming(self) -> Naming:
        """Of the noise of the next release.

        A journal that is written in the first schema generation may be followed by a release that knows contents
        alone: with ids it would find another release than was journaled, and open an epoch. So ids wait for the next
        generation, which that one refuses to read. A journal that this release begins is in it from the beginning.
        """
        if self._replayed is not None:
            return self._replayed
        return Naming.IDS if self.chain.schema_generation >= IDS_GENERATION else Naming.CONTENTS

    @property
    def waits(self) -> bool:
        """See `ReleasingRole.waits`: log time closes nothing."""
        return False

    @property
    def open_ms(self) -> int | None:
        return None

    def adopt(self, fields: Mapping[str, Any]) -> None:
        """See `ReopeningRole.adopt`: what the record released is over, whatever its slots were."""
        self._close_round(fields["round"], fields["released"])

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: a record says by what its noise is named."""
        self._replayed = self._naming_of(value)
        try:
            return super().replay(value, slices)
        finally:
            self._replayed = None

    def _naming_of(self, value: bytes) -> Naming:
        # The record may be anybody's: whether it counts is looked at later.
        parameters = self.chain.read(value)[1].get("parameters", "")
        return Naming.IDS if f'"{NAMED_BY}":' in parameters else Naming.CONTENTS

    # One record.

    def on_time(self, log_time_ms: int) -> Ended | None:
        return None

    def on_phase_end(self, fields: dict[str, Any], gathered: Gathered) -> Ended | None:
        """See `ReleasingRole.on_phase_end`: the end of the open round, once all partitions of users have come to it."""
        if fields["phase"] > self.next or self.ended or self.next >= ROUNDS:
            raise Refused(BgtRefusal.OTHER_ROUND)
        complete = self.phase_ends.note(fields["origin"], fields["phase"])
        if complete is None:
            raise Refused(Refusal.UNKNOWN_ORIGIN)
        if not complete:
            return None
        self._fold_rows(gathered)
        return Ended(self.next)

    def on_record(self, name: str, fields: dict[str, Any], record: InputRecord, gathered: Gathered) -> None:
        """See `ReleasingRole.on_record`: a round that is opened, or a slot."""
        if name == "RatingRound":
            self._open(fields, gathered)
        else:
            self._slot(fields, gathered)

    def _open(self, fields: dict[str, Any], gathered: Gathered) -> None:
        """Every partition of users says which round its slots answer: the first one opens it, the others agree."""
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
            row = parse_slot(fields["content"], self.system.config)
        except BadSlots:
            raise Refused(Refusal.MALFORMED_SLOT) from None
        name = fields["slot_id"].hex()
        if fields["slot_id"] in self.known or name in gathered.ids:
            gathered.counts[Outcome.REPEATED_SLOT] += 1
            return
        gathered.ids[name] = None
        gathered.counts[Outcome.SLOT] += 1
        self._rows.append((fields["slot_id"], row))
        if len(self._rows) >= _AT_ONCE:
            self._fold_rows(gathered)

    def _fold_rows(self, gathered: Gathered) -> None:
        if self.collector is None or not self._rows:
            return
        ids, rows = zip(*self._rows, strict=True)
        why = self.collector.fold(slots_of_rows(np.stack(rows), self.system.config), ids)
        self._rows = []
        gathered.counts[BgtOutcome.NULLED_SLOT] += int(np.count_nonzero(why != Inadmissible.TAKEN))

    def settle(self, gathered: Gathered) -> None:
        """See `ReleasingRole.settle`: slots are folded, and their ids are known again."""
        self._fold_rows(gathered)
        self.known.update(map(bytes.fromhex, gathered.ids))

    # One round.

    def place_of(self, closed: Ended | None) -> int:
        """See `ReleasingRole.place_of`: each round is charged for itself."""
        return self.next if closed is None else closed.number

    def open_noise(self) -> None:
        if self.collector is not None:
            self.collector.draw_under(*self._noise())

    def redraw(self) -> None:
        self.open_noise()

    def rotated(self, released: bool) -> None:
        """See `ReleasingRole.rotated`: nothing is open."""
        self.open_noise()

    def close(self, closed: Ended, asked: Asked) -> tuple[dict[str, Any], tuple[Output, ...]]:
        """See `ReleasingRole.close`: where nothing may be released, the round ends without."""
        collector, release = self.collector, None
        if collector is not None and asked.refused is None:
            release = collector.release(self.naming)
        fields = self._journaled(collector, release)
        self._close_round(closed.number, release is not None)
        return fields, (*self._released(release), *self._entry(closed.number, asked), *self._passed_on(closed.number))

    def count_release(self, released: bool, gathered: Gathered) -> None:
        gathered.counts[Outcome.RELEASE if released else Outcome.RELEASE_WITHHELD] += 1

    def _close_round(self, number: int, released: bool) -> None:
        self.next, self.ended, self.collector, self._rows = number + 1, not released, None, []

    def opened(self, asked: Round) -> Collector:
        """A collector of this round that nothing was put into, under the noise of this epoch."""
        return Collector(asked, self.system.config, *self._noise())

    def _noise(self) -> tuple[Key | None, Any]:
        nonce = self.nonce or _NO_NONCE
        address = self.system.address(nonce, self.epoch.number, self.partition)
        return None if self.system.config.release.noise == "exact" else self.key, address

    def _journaled(self, collector: Collector | None, release: Release | None) -> dict[str, Any]:
        """What the journal record holds beside its head, debit and key; a round that nobody opened has no slots."""
        history = b"" if collector is None else collector.history(self.naming)
        return {
            "round": self.next,
            "kind": "" if collector is None else collector.asked.kind,
            "slots": 0 if collector is None else collector.sums.slots,
            "released": release is not None,
            "mechanism": MECHANISM,
            "parameters": "{}" if collector is None else self._parameters(collector),
            "history": self.key.digest("slots", history),
        }

    def _parameters(self, collector: Collector) -> str:
        return self.system.parameters(self.next, collector.asked.kind, self.naming is Naming.IDS)

    def _released(self, release: Release | None) -> tuple[Output, ...]:
        if release is None:
            return ()
        place = self._release_id(release.number), self.epoch.number, self.key.reproducible
        return (Output("releases", 0, self.chain.encode("RatingSums", self.system.release_fields(release, *place))),)

    def _entry(self, number: int, asked: Asked) -> tuple[Output, ...]:
        """The ledger's copy of what the round adds to the price, or of nothing, where that was refused."""
        if not asked.opens:
            return ()
        entry = self.system.ledger_entry(self._release_id(number), asked.debit, self.key.reproducible)
        return (Output("ledger", self.partition, self.chain.encode("LedgerEntry", entry)),)

    def _passed_on(self, number: int) -> tuple[Output, ...]:
        """The end of the round, for the server."""
        fields = {
            "phase": number,
            "origin": self.partition,
            "config_digest": self.system.digest,
            "after_click": -1,
        }
        return (Output("releases", 0, self.chain.encode("Seal", fields)),)

    def _release_id(self, number: int) -> bytes:
        place = struct.pack("<qqq", self.partition, self.epoch.number, number)
        return self.key.digest("release-id", self.nonce, place)
