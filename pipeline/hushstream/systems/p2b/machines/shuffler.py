"""The shuffler role: windows of padded slots, and what a closed window releases (shuffler zone).

Noise is named by what a window holds as well, so a journal that was rolled back draws other noise over other slots; a
counter over windows draws ahead, so where a rollback cannot be ruled out (`Machine.distrust`) it begins anew in an
epoch of its own, at its price. It begins anew under a next key, too: no slot is in two of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.gathered import Gathered
from hushstream.engine.journal.chain import Identity
from hushstream.engine.noise.budget import ledger_fields
from hushstream.engine.noise.spending import Asked
from hushstream.engine.records import InputRecord, Output
from hushstream.engine.refusals import Refused
from hushstream.engine.releasing import ReleasingRole, releasing_state
from hushstream.engine.state.declared import FIXED, Single, optional_part
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.systems.p2b.contribution.errors import BadSeal, BadSlot
from hushstream.systems.p2b.contribution.recipients import Openers
from hushstream.systems.p2b.contribution.sealed import SlotPlace
from hushstream.systems.p2b.contribution.slots import unpack
from hushstream.systems.p2b.deployment import TRACKS, P2BSystem
from hushstream.systems.p2b.release import FIRST_EPOCH, parameters_text, release_address, release_window
from hushstream.systems.p2b.running import RunningSums, open_running
from hushstream.systems.p2b.shuffler.errors import ShufflingError
from hushstream.systems.p2b.shuffler.windows import ClosedWindow, SlotOutcome, Windows
from hushstream.systems.p2b.topics import SHUFFLER_ZONE

_KINDS = frozenset({"SlotReport", "Seal", "Tick"})
_SEALED_KINDS = frozenset({"SealedSlot", "Seal", "Tick"})
"""Where slots are sealed, one in clear is refused: an edge that forgot to seal shows what its users do."""
_OUTCOMES = {
    SlotOutcome.JOINED: Outcome.SLOT,
    SlotOutcome.REPEATED: Outcome.REPEATED_SLOT,
}


class ShufflerMachine(ReleasingRole[ClosedWindow]):
    """The shuffler on one partition of reports."""

    state = releasing_state(
        "a shuffler's state",
        7,
        "ShufflerState",
        windows=Single("bytes", Windows.dump, lambda value, before: Windows.load(before.rules, value)),
        running_sums=optional_part("running sums"),
    )
    derived: ClassVar[Mapping[str, str]] = {"_opener": FIXED}

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
            ring: what the shuffler's key file holds: where the key turns next.

        Raises:
            BadSeal: slots are sealed to a key that is not in ``sealing``.
        """
        identity = Identity("shuffler", system.config.deployment, system.digest, ("journal-shuffler", partition))
        source, terms = ("reports", partition), system.slot_terms
        super().__init__(system, identity, "WindowJournal", source, SHUFFLER_ZONE, key, ring, terms, FIRST_EPOCH)
        self._opener = None if system.sealing is None else Openers(system.sealing, sealing)
        self.windows = Windows(system.window_rules())
        self.running_sums: RunningSums | None = None

    @property
    def windows_covered(self) -> int:
        """How many windows the counter over windows has taken in this epoch; 0 where there is none."""
        return 0 if self.running_sums is None else self.running_sums.windows

    @property
    def expects(self) -> frozenset[str]:
        return _KINDS if self._opener is None else _SEALED_KINDS

    @property
    def draws_ahead(self) -> bool:
        """See `ReleasingRole.draws_ahead`: a counter over windows does."""
        return self.running_sums is not None

    @property
    def waits(self) -> bool:
        return bool(self.windows.slots)

    @property
    def open_ms(self) -> int | None:
        return self.windows.rules.open_ms

    # One record.

    def on_time(self, log_time_ms: int) -> ClosedWindow | None:
        return self.windows.advance(log_time_ms)

    def on_phase_end(self, fields: dict[str, Any], gathered: Gathered) -> ClosedWindow | None:
        try:
            return self.windows.end_phase(fields["phase"], fields["origin"])
        except ShufflingError:
            raise Refused(Refusal.UNKNOWN_ORIGIN) from None

    def on_record(
        self, name: str, fields: dict[str, Any], record: InputRecord, gathered: Gathered
    ) -> ClosedWindow | None:
        """See `ReleasingRole.on_record`: a slot."""
        config = self.system.config
        try:
            content = self._content(fields)
            unpack(content, self.system.codes, config.arms, config.release.levels)
        except BadSeal:
            raise Refused(Refusal.SEALED_FOR_ANOTHER) from None
        except BadSlot:
            raise Refused(Refusal.MALFORMED_SLOT) from None
        period = int.from_bytes(fields["period"], "little", signed=True)
        offer = self.windows.offer(fields["report_id"], period, content)
        if offer.outcome not in _OUTCOMES:
            raise Refused(Refusal.STALE_PERIOD)
        gathered.counts[_OUTCOMES[offer.outcome]] += 1
        return offer.closed

    def _content(self, fields: dict[str, Any]) -> bytes:
        if self._opener is None:
            content: bytes = fields["content"]
            return content
        place = SlotPlace(fields["report_id"], fields["period"], fields["config_digest"])
        return self._opener.open(fields["sealed"], place)

    # One window.

    def place_of(self, closed: ClosedWindow | None) -> int:
        """See `ReleasingRole.place_of`: each window pays for itself, or all for the counter that they run through."""
        if self.running_sums is not None:
            return 0
        return self.windows.window if closed is None else closed.window

    def close(self, closed: ClosedWindow, asked: Asked) -> tuple[dict[str, Any], tuple[Output, ...]]:
        fields = {
            "window": closed.window,
            "slots": len(closed.contents),
            "closed_by": str(closed.closed_by),
            "mechanism": self.system.config.release.mode,
            "parameters": parameters_text(self.system),
        }
        return fields, () if asked.refused else self._outputs(closed, asked)

    def _outputs(self, closed: ClosedWindow, asked: Asked) -> tuple[Output, ...]:
        nonce, running = self.nonce, self.running_sums
        release = release_window(self.system, self.key, nonce, self.partition, closed, running, self.epoch.number)
        name, digest = self.system.config.deployment, self.system.digest
        entry = ledger_fields(name, digest, release.window_id, asked.debit, release.private_as_stated)
        return (
            Output("crowds", TRACKS.index("private"), self.chain.encode("Crowd", release.crowd)),
            Output("ledger", self.partition, self.chain.encode("LedgerEntry", entry)),
        )

    def count_release(self, released: bool, gathered: Gathered) -> None:
        gathered.counts[Outcome.WINDOW if released else Outcome.RELEASE_WITHHELD] += 1

    def redraw(self) -> None:
        self.open_noise()

    def rotated(self, released: bool) -> None:
        self.open_noise()

    def open_noise(self) -> None:
        address = release_address(self.system, self.nonce, self.partition, self.epoch.number)
        self.running_sums = open_running(self.system.window_tree, self.key, address)
