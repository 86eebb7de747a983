"""The shuffler role (shuffler zone): collects padded slots in windows, and releases each window when it closes.

`ShufflerMachine.fold` shows the way of a slot: it is decoded, checked, and joins the open window. A window that closes
is charged, noised, journaled and released (`ShufflerMachine._release`).

The noise address contains the window's content, so a journal that was rolled back draws other noise over other slots.
A counter over windows draws noise ahead of its input. So when a rollback is suspected
(`ReleasingMachine.request_epoch`), it begins anew in a new epoch, at its price. It also begins anew under the next key;
no slot is in two counters then, so that costs nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.devices.errors import BadSeal
from hushstream.engine.devices.recipients import Openers
from hushstream.engine.devices.sealing import SlotPlace
from hushstream.engine.journal.chain import Identity
from hushstream.engine.noise.spending import ChargeResult
from hushstream.engine.one_input import Gathered, Read
from hushstream.engine.records import InputSlice, Output, Step
from hushstream.engine.release_parts import parts_of_record
from hushstream.engine.releasing import ReleasingRole, releasing_state
from hushstream.engine.state.declared import FIXED, Single, optional_part
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.systems.p2b.contribution.errors import BadSlot
from hushstream.systems.p2b.guarantee.deployment import TRACKS, P2BSystem
from hushstream.systems.p2b.machines.release import FIRST_EPOCH, release_address, release_window, terms_of
from hushstream.systems.p2b.machines.running import RunningSums, open_running
from hushstream.systems.p2b.server.forgetting import fade_of_windows
from hushstream.systems.p2b.shuffler.errors import ShufflingError
from hushstream.systems.p2b.shuffler.windows import ClosedWindow, ItemRows, SlotOutcome, Windows
from hushstream.systems.p2b.topics import SHUFFLER_ZONE

_BESIDE = frozenset({"Seal", "Tick"})
_ITEM_ROWS = "ItemRows"
_OUTCOMES = {
    SlotOutcome.JOINED: Outcome.SLOT,
    SlotOutcome.REPEATED: Outcome.REPEATED_SLOT,
}


class ShufflerMachine(ReleasingRole):
    """The shuffler on one partition of reports."""

    state = releasing_state(
        "a shuffler's state",
        7,
        "ShufflerState",
        noise="open_noise",
        windows=Single("bytes", Windows.dump, lambda value, before: Windows.load(before.rules, value)),
        running_sums=optional_part("running sums"),
    )
    derived: ClassVar[Mapping[str, str]] = {"_opener": FIXED, "_slot": FIXED, "_kinds": FIXED}

    system: P2BSystem

    def __init__(
        self, system: P2BSystem, partition: int, key: Key, sealing: Sequence[Key] = (), ring: KeyRing | None = None
    ) -> None:
        """Bind to a deployment, a home partition, keys, and the zone's key file.

        Args:
            system: the deployment.
            partition: the home partition.
            key: the shuffler's key that the journal begins with.
            sealing: the keys that open sealed slots, where slots are sealed.
            ring: the shuffler's key file; it says from where the next key is in force.

        Raises:
            BadSeal: slots are sealed to a key that is not in ``sealing``.
        """
        identity = Identity.of(system, "shuffler", "journal-shuffler", partition)
        source = ("reports", partition)
        super().__init__(system, identity, "WindowJournal", source, SHUFFLER_ZONE, key, ring, FIRST_EPOCH)
        form = system.form
        # Where slots are sealed, a slot in clear is refused: it shows what its user did.
        self._slot = form.slot_record if system.sealing is None else form.sealed_record
        self._kinds = _BESIDE | {self._slot} | ({_ITEM_ROWS} if system.config.named_items else frozenset())
        self._opener = None if system.sealing is None else Openers(system.sealing, sealing, form.opener)
        self.windows = Windows(system.window_rules())
        self.running_sums: RunningSums | None = None

    def start(self, genesis: bytes) -> None:
        super().start(genesis)
        self.open_noise()

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for each window that closes, and one for what is left."""
        gathered, windows = Gathered(self), self.windows
        for slot in self._checked(self.read(slices, self._kinds)):
            record, name, fields, reason = slot.read
            # Log time advances first: otherwise a slot after a window's end would be counted in that window.
            closed = windows.advance(record.timestamp_ms)
            if reason:
                gathered.refuse(reason, record)
            elif name == "Tick":
                gathered.counts[Outcome.TICK] += 1
            elif name == "Seal":
                try:
                    closed = windows.end_phase(fields["phase"], fields["origin"]) or closed
                    gathered.counts[Outcome.SEAL] += 1
                except ShufflingError:
                    gathered.refuse(Refusal.UNKNOWN_ORIGIN, record)
            elif name == _ITEM_ROWS:
                try:
                    windows.follow(ItemRows(fields["catalogue"], fields["entries"]))
                    gathered.counts[Outcome.ITEM_CHANGED] += 1
                except ShufflingError:
                    gathered.refuse(Refusal.MALFORMED_ROWS, record)
            else:
                period = int.from_bytes(fields["period"], "little", signed=True)
                offer = windows.offer(fields["report_id"], period, slot.content)
                closed = offer.closed or closed
                if offer.outcome in _OUTCOMES:
                    gathered.counts[_OUTCOMES[offer.outcome]] += 1
                else:
                    gathered.refuse(Refusal.STALE_PERIOD, record)
            if closed is not None:
                self._release(closed, record.offset + 1, gathered)
        return self.finished(slices, gathered)

    def _checked(self, records: Sequence[Read]) -> list[_Slot]:
        """Decrypt the contents of slots where they are sealed, and refuse invalid ones."""
        checked = []
        for read in records:
            content = b""
            if read.name == self._slot:
                fields = read.fields
                try:
                    content = fields["content"] if self._opener is None else self._opener.open(*_sealed(fields))
                    self.system.form.require_content(content)
                except BadSeal:
                    read = read._replace(reason=Refusal.SEALED_FOR_ANOTHER)
                except BadSlot:
                    read = read._replace(reason=Refusal.MALFORMED_SLOT)
            checked.append(_Slot(read, content))
        return checked

    # One window.

    def _release(self, closed: ClosedWindow, high: int, gathered: Gathered) -> None:
        """Release a window that closed with the input below ``high``; the driver appends the record, then sends."""
        releases = self.releases
        if releases.opens_epoch():
            self.open_noise()
        # 1. Charge: each window is charged for itself, or all windows together for their counter.
        charge_result = releases.try_charge(0 if self.running_sums is not None else closed.window)
        # 2. Draw. Nothing is known to anybody yet: a crash here repeats the draw from the same address.
        outputs = () if charge_result.refused else self._outputs(closed, charge_result, gathered)
        # 3. Journal.
        terms = terms_of(self.system)
        fields = {
            "window": closed.window,
            "slots": len(closed.contents),
            "closed_by": str(closed.closed_by),
            "mechanism": terms.mechanism,
            "parameters": terms.text,
        }
        if self.released(high, fields, outputs, charge_result, gathered, Outcome.WINDOW):
            self.open_noise()

    def _outputs(self, closed: ClosedWindow, charge_result: ChargeResult, gathered: Gathered) -> tuple[Output, ...]:
        key, nonce, running, epoch = (
            self.releases.key,
            self.releases.nonce,
            self.running_sums,
            self.releases.epoch.number,
        )
        release = release_window(self.system, key, nonce, self.partition, closed, running, epoch)
        if release.forged:
            gathered.counts[Outcome.FORGED_SLOT] += release.forged
        form, encode = self.system.form, self.chain.encode
        if form.parts == 1:
            crowd = [encode(form.crowd_record, release.crowd)]
        else:
            crowd = parts_of_record(form.crowd_record, release.crowd, self.chain, self.system.digest)
        return (
            *[Output("crowds", TRACKS.index("private"), value) for value in crowd],
            self.debited(release.window_id, charge_result),
        )

    def open_noise(self) -> None:
        """Begin the counter over windows, if there is one, under the noise of this epoch."""
        address = release_address(self.system, self.releases.nonce, self.partition, self.releases.epoch.number)
        fade = fade_of_windows(self.system.config)
        self.running_sums = open_running(self.system.window_tree, self.releases.key, address, fade)

    # What a driver asks.

    @property
    def charge(self) -> int:
        return 0 if self.running_sums is not None else self.windows.window

    @property
    def draws_ahead(self) -> bool:
        """See `ReleasingRole.draws_ahead`: only a counter over windows does."""
        return self.running_sums is not None

    @property
    def windows_covered(self) -> int:
        """How many windows were added to the counter in this epoch; 0 if there is no counter."""
        return 0 if self.running_sums is None else self.running_sums.windows

    def tick(self, idle_ms: int) -> Output | None:
        """See `Ticks.tick`: a tick is needed while time must close a window that holds slots."""
        open_ms = self.windows.rules.open_ms
        return self.tick_record() if open_ms is not None and self.windows.slots and idle_ms >= open_ms else None


class _Slot(NamedTuple):
    """A record of the input, and the opened content if it is a slot."""

    read: Read
    content: bytes


def _sealed(fields: Mapping[str, Any]) -> tuple[bytes, SlotPlace]:
    return fields["sealed"], SlotPlace(fields["report_id"], fields["period"], fields["config_digest"])
