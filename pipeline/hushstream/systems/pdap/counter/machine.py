"""The counter role, in a zone of its own: it reads outcomes in clear, and releases disjoint noised blocks.

A window closes after a number of outcomes, after a log time since its first outcome, or at a phase end. All of these
are public. A window takes whole records. The release is a function of the set of outcomes, the key and the journal's
genesis: rows are sorted by name, so the order in which partitions of learners arrive does not matter. Epsilon is paid
once, with the first record of a noise epoch, for any number of windows, because each outcome is in one block
(`hushstream.systems.pdap.counter.pending`).

If a journal record can no longer be computed from its inputs (`hushstream.engine.releasing`), the outcomes that it may
have released go on waiting. They may be released a second time, under the noise of the next epoch, which is charged
again. The noise address depends on all outcomes so far. So a journal that was rolled back either has the same outcomes,
or draws other noise. An epoch that a key rotation begins takes the waiting outcomes, none of which was released.

A vendor that retires or offers an item also closes the window; its record is forwarded after the release. The change
has no other effect on the counter: outcomes of items that were shown before still count.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import Identity
from hushstream.engine.noise.spending import ChargeResult
from hushstream.engine.one_input import Gathered, Read
from hushstream.engine.phase_ends import PHASE_ENDS, PhaseEnds
from hushstream.engine.records import InputRecord, InputSlice, Output, Step
from hushstream.engine.refusals import Refused
from hushstream.engine.releasing import ReopeningRole, releasing_state
from hushstream.engine.state.declared import FIXED, Flat, integer, known_ids, own_part
from hushstream.engine.state.known_ids import KnownIds
from hushstream.engine.state.parts import record as avro_record
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.schemas.topics import of_party
from hushstream.systems.pdap.algorithm.noise import MECHANISM
from hushstream.systems.pdap.algorithm.outcomes import Outcomes, Release
from hushstream.systems.pdap.cells import Int64, PdapError
from hushstream.systems.pdap.counter.pending import COUNTER, Counter
from hushstream.systems.pdap.deployment import PdapSystem
from hushstream.systems.pdap.reasons import ARM_CHANGED, BEYOND_HORIZON, PdapRefusal
from hushstream.systems.pdap.records import parse_outcomes, release_parts
from hushstream.systems.pdap.topics import COUNTER_ZONE

_KINDS = frozenset({"Outcomes", "ArmChange", "Seal", "Tick"})

COUNT, SEAL = "count", "seal"
"""What closed a window, as records say it. COUNT: a number of outcomes, log time, or a change of the catalogue. SEAL:
the end of a phase."""


class Closing(NamedTuple):
    """What closes a window.

    Attributes:
        by: `COUNT` or `SEAL`.
        change: the record that changes the catalogue, if it closes the window.
    """

    by: str
    change: Mapping[str, Any] | None = None


class BlockCounterMachine(ReopeningRole):
    """The counter of all vendors' outcomes, or of those of one home vendor."""

    state = releasing_state(
        "a counter of blocks' state",
        3,
        "BlockCounterState",
        noise="open_noise",
        open_since_ms=integer(),
        phase_ends=Flat(PHASE_ENDS),
        known=known_ids(),
        counter=own_part(avro_record("Counter", **COUNTER)),
    )
    derived: ClassVar[Mapping[str, str]] = {"vendor": FIXED, "number": FIXED}

    system: PdapSystem

    def __init__(self, system: PdapSystem, key: Key, ring: KeyRing | None = None, vendor: str = "") -> None:
        """Bind to a deployment, the key that its journal begins with, the zone's key file, a home vendor if any."""
        identity = Identity.of(system, "counter", of_party("journal-counter", vendor), 0)
        source, zone = (of_party("outcomes", vendor), 0), of_party(COUNTER_ZONE, vendor)
        super().__init__(system, identity, "BlockJournal", source, zone, key, ring)
        self.vendor = vendor
        self.number = system.homes[vendor] if vendor else 0
        self.open_since_ms = 0
        """Log time of the first outcome of the open window, if it has any."""
        self.phase_ends = PhaseEnds(system.origins)
        self.known = KnownIds()
        """Names of all outcomes ever: a sender that died after a release sends its outcomes again, at any later
        time."""
        self.counter = Counter(system.config, system.noise(key, b"", 0, self.number))

    def start(self, genesis: bytes) -> None:
        super().start(genesis)
        self.open_noise()

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for each window that closes, and one for what is left."""
        gathered = Gathered(self)
        for one in self.read(slices, _KINDS):
            closing = self._take(one, gathered)
            if closing is not None:
                self._release(closing, one.record.offset + 1, gathered)
        self.releases.require_followed()
        self._settle(gathered)
        return self.finished(slices, gathered)

    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Reopens.reopen`: outcomes that the record may have released wait for the next epoch."""
        fields = self.chain.accept(value, self.committed())
        gathered = Gathered(self)
        for one in self.read(slices, _KINDS):
            self._take(one, gathered)
        self._settle(gathered)
        self.counter.withhold()
        self.counter.window = fields["window"] + 1
        return self.reopened(fields, self.charge, gathered)

    # One record.

    def _take(self, one: Read, gathered: Gathered) -> Closing | None:
        """Take one record; returns what closes the window with it, if anything.

        Late outcomes still join the open window.
        """
        record, name, fields, reason = one
        closing = None
        try:
            if reason:
                raise Refused(reason)
            if name == "Tick":
                gathered.counts[Outcome.TICK] += 1
            elif name == "Seal":
                closing = self._end_phase(fields, gathered)
            elif name == "ArmChange":
                closing = self._changed(fields, gathered)
            else:
                self._on_outcomes(fields, record, gathered)
        except Refused as error:
            gathered.refuse(error.reason, record)
        # A count of outcomes, or log time; both are public.
        open_ms = self.system.open_ms
        late = open_ms is not None and self.waits and record.timestamp_ms - self.open_since_ms >= open_ms
        return closing or (Closing(COUNT) if late or self.counter.capacity_left <= 0 else None)

    def _end_phase(self, fields: dict[str, Any], gathered: Gathered) -> Closing | None:
        """Take a phase end. It is forwarded, so even an empty window closes."""
        complete = self.phase_ends.note(fields["origin"], fields["phase"])
        if complete is None:
            raise Refused(Refusal.UNKNOWN_ORIGIN)
        gathered.counts[Outcome.SEAL] += 1
        return Closing(SEAL) if complete else None

    def _changed(self, fields: dict[str, Any], gathered: Gathered) -> Closing:
        # The sending vendor is known here only if each vendor has a counter of its own.
        reason = self.system.bad_change(fields["arm"], self.number if self.vendor else None)
        if reason is not None:
            raise Refused(reason)
        gathered.counts[ARM_CHANGED] += 1
        return Closing(COUNT, fields)

    def _on_outcomes(self, fields: dict[str, Any], record: InputRecord, gathered: Gathered) -> None:
        if fields["counter"] != self.number:
            raise Refused(PdapRefusal.OTHER_COUNTER)
        try:
            outcomes = parse_outcomes(fields)
            self.counter.require(outcomes)
        except PdapError:
            raise Refused(PdapRefusal.MALFORMED_OUTCOMES) from None
        first, capacity = self._first_times(outcomes, gathered), self.system.config.release.horizon - self.counter.taken
        if len(first) > capacity:
            gathered.counts[BEYOND_HORIZON] += len(first) - capacity
            first = first[:capacity]
        if len(first):
            if not self.waits:
                self.open_since_ms = record.timestamp_ms
            self.counter.take_checked(outcomes.take(first))
            gathered.counts[Outcome.REWARD_TAKEN] += len(first)

    def _first_times(self, outcomes: Outcomes, gathered: Gathered) -> Int64:
        """The rows whose names were not met before: an outcome counts once."""
        first = []
        for row, name in enumerate(map(bytes, outcomes.names)):
            if name in self.known or name.hex() in gathered.ids:
                gathered.counts[Outcome.REPEATED_REWARDS] += 1
            else:
                gathered.ids[name.hex()] = None
                first.append(row)
        return np.array(first, dtype=np.int64)

    def _settle(self, gathered: Gathered) -> None:
        """Remember the names of the input, because it now counts."""
        for name in gathered.ids:
            self.known.add(bytes.fromhex(name))
        gathered.ids.clear()

    # One window.

    def _release(self, closed: Closing, high: int, gathered: Gathered) -> None:
        """Release the open window, which closed with the input below ``high``; withheld outcomes go on waiting."""
        releases, counter = self.releases, self.counter
        if releases.opens_epoch():
            # Waiting outcomes get the noise of the opened epoch, whether they had other noise before or none.
            self.open_noise()
        # 1. Charge: an epoch has one price.
        charge_result = releases.try_charge()
        # 2. Draw. Nobody has seen a result yet: after a crash here, the same address gives the same draw.
        outcomes, window, release = counter.open_outcomes, counter.window, None
        if charge_result.refused is None:
            release = counter.close(window)
        else:
            counter.withhold()
        fields = {
            "window": window,
            "outcomes": outcomes,
            "taken": counter.taken,
            "closed_by": closed.by,
            "mechanism": MECHANISM,
            "parameters": self.system.parameters,
            "history": releases.key.digest("outcomes", counter.history),
        }
        outputs = (*self._released(release, closed.by), *self._entry(window, charge_result), *self._passed_on(closed))
        # 3. Journal: the driver appends this record, and sends the outputs only when it is acknowledged.
        key_rotated = self.released(high, fields, outputs, charge_result, gathered)
        self._settle(gathered)
        if key_rotated:
            # The waiting outcomes were never released, so the new noise costs nothing.
            self.open_noise()

    def open_noise(self) -> None:
        """Use the noise of this epoch for waiting outcomes."""
        key, nonce = self.releases.key, self.releases.nonce
        self.counter.noise = self.system.noise(key, nonce, self.releases.epoch.number, self.number)

    def _released(self, release: Release | None, closed_by: str) -> list[Output]:
        if release is None:
            return []
        system = self.system
        head = {
            "config_digest": system.digest,
            "counter": self.number,
            "epoch": self.releases.epoch.number,
            **system.stated[system.as_stated(self.releases.key.reproducible)],
            "closed_by": closed_by,
            "phase": self.phase_ends.complete if closed_by == SEAL else -1,
        }
        parts = [
            {"release_id": self._release_id(release.window, part["part"]), **head, **part}
            for part in release_parts(release)
        ]
        return [Output("releases", 0, self.chain.encode("BlockRelease", fields)) for fields in parts]

    def _entry(self, window: int, charge_result: ChargeResult) -> tuple[Output, ...]:
        """The ledger's copy of the debit that opened a charge, which is empty if its price was refused."""
        if not charge_result.opens:
            return ()
        return (self.debited(self._release_id(window, 0), charge_result, of_party("ledger", self.vendor)),)

    def _passed_on(self, closed: Closing) -> tuple[Output, ...]:
        """The phase end, or the change of the catalogue, that is forwarded to the aggregator."""
        if closed.change is not None:
            return (Output("releases", 0, self.chain.encode("ArmChange", closed.change)),)
        if closed.by != SEAL:
            return ()
        fields = {
            "phase": self.phase_ends.complete,
            "origin": self.number,
            "config_digest": self.system.digest,
            "after_click": -1,
        }
        return (Output("releases", 0, self.chain.encode("Seal", fields)),)

    def _release_id(self, window: int, part: int) -> bytes:
        place = struct.pack("<qqqq", self.number, self.releases.epoch.number, window, part)
        return self.releases.key.digest("release-id", self.releases.nonce, place)

    # What a driver asks.

    @property
    def charge(self) -> int:
        """See `ReleasingRole.charge`: an epoch has one price."""
        return 0

    @property
    def draws_ahead(self) -> bool:
        """See `ReleasingRole.draws_ahead`: the noise address depends on all outcomes."""
        return False

    @property
    def waits(self) -> bool:
        """Whether log time may close the window; an empty window has nothing new to release."""
        return self.counter.open_outcomes > 0

    def tick(self, idle_ms: int) -> Output | None:
        """See `Ticks.tick`: while a window with outcomes is open."""
        open_ms = self.system.open_ms
        return self.tick_record() if open_ms is not None and self.waits and idle_ms >= open_ms else None
