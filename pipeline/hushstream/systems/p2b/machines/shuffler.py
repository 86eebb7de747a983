"""The shuffler role: windows of padded slots, and what a sealed window releases (shuffler zone).

A journal record is written when a window closes, and only then: before that the state is a fold of the
reports that anyone with the log can repeat. The record holds the window's range, a keyed digest of its
input, a keyed digest of the release, and the debit. Noise comes from the key, the journal's genesis nonce
and the window's number, so the same log gives the same release, never a second draw (PRIVACY rules 5 to 7).

Noise is named by what a window holds as well, so a journal that was rolled back draws other noise over other slots; a
counter over windows draws ahead, so where a rollback cannot be ruled out (`Distrusts`) it begins anew in an epoch of
its own, at its price.

Where the zone's key has turned (`hushstream.engine.key_rotation`), the next window's record says so, and windows after
it are released under the new key. A counter over windows begins anew then: no slot is in two of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hushstream.engine.budget import debit_fields, ledger_fields
from hushstream.engine.chain import (
    Chain,
    Identity,
    digest_outputs,
    extend_digest,
    head_fields,
)
from hushstream.engine.editions import in_its_edition
from hushstream.engine.epochs import NoiseEpoch
from hushstream.engine.key_rotation import STAYS, KeyInForce
from hushstream.engine.machine import (
    InputRecord,
    InputSlice,
    Output,
    ReplayMismatch,
    Step,
)
from hushstream.engine.one_input import OneInput
from hushstream.engine.one_input_state import dump_place, restore_place
from hushstream.engine.outcomes import Outcome, Refusal
from hushstream.engine.refusals import DeadLetters
from hushstream.engine.spending import Asked, Spending
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Exhausted
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.systems.p2b.contribution.errors import BadSeal, BadSlot
from hushstream.systems.p2b.contribution.recipients import Openers
from hushstream.systems.p2b.contribution.sealed import SlotPlace
from hushstream.systems.p2b.contribution.slots import unpack
from hushstream.systems.p2b.deployment import LINES, P2BSystem
from hushstream.systems.p2b.machines.shuffler_state import FORM
from hushstream.systems.p2b.release import FIRST_EPOCH, parameters_text, release_address, release_window
from hushstream.systems.p2b.running import RunningSums, open_running, require_running
from hushstream.systems.p2b.shuffler.errors import ShufflingError
from hushstream.systems.p2b.shuffler.windows import Sealed, SlotOutcome, Windows

_KINDS = frozenset({"SlotReport", "Seal", "Tick"})
_SEALED_KINDS = frozenset({"SealedSlot", "Seal", "Tick"})
"""Where slots are sealed, one in clear is refused: an edge that forgot to seal shows what its users do."""
_OUTCOMES = {
    SlotOutcome.JOINED: Outcome.SLOT,
    SlotOutcome.REPEATED: Outcome.REPEATED_SLOT,
}


@dataclass(slots=True)
class _Gathered:
    """What happened since the last step."""

    dead: list[Output] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class ShufflerMachine(OneInput):
    """The shuffler on one partition of reports."""

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
        super().__init__(Chain(identity, key, "WindowJournal"), key, identity.journal, ("reports", partition))
        self.system = system
        self._opener = None if system.sealing is None else Openers(system.sealing, sealing)
        self.partition = partition
        self._keys = KeyInForce(key, ring)
        self._retired = self._keys.retired
        self._epoch = NoiseEpoch(FIRST_EPOCH)
        self._letters = DeadLetters("shuffler", "shuffler", partition, key, self.chain.encode)
        self._windows = Windows(system.window_rules())
        self._running_sums: RunningSums | None = None
        self.spending = Spending(system.slot_terms, partition)

    @property
    def windows_covered(self) -> int:
        """How many windows the counter over windows has taken in this epoch; 0 where there is none."""
        return 0 if self._running_sums is None else self._running_sums.windows

    @property
    def refused(self) -> Exhausted | None:
        """Why the next window would not be released; None while the budget has room for it."""
        return self.spending.refusal(self._epoch.next_place(self._charged(self._windows.window)))

    def distrust(self, nonce: bytes, forked: bool = False) -> bool:
        """See `Distrusts.distrust`."""
        if forked or self._running_sums is not None:
            self._epoch.ask(nonce)
        return self._epoch.due

    def start(self, genesis: bytes) -> None:
        """See `Machine.start`."""
        super().start(genesis)
        self._running_sums = self._open_running()

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for each window that closes, and one for what is left."""
        return self._fold(slices, self._keys.due)

    def _fold(self, slices: Sequence[InputSlice], turned_to: bytes) -> Sequence[Step]:
        """Fold; the first window that closes names the key of what follows."""
        steps: list[Step] = []
        gathered = _Gathered()
        for part in slices:
            for record in part.records:
                gathered = self._feed(record, gathered, steps, STAYS if steps else turned_to)
            self.position = part.high
        if gathered.dead or gathered.counts:
            steps.append(Step(None, (), tuple(gathered.dead), gathered.counts))
        return steps

    @in_its_edition
    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: everything here is whole numbers, so the bytes must be the same.

        After a `ReplayMismatch` the machine must be thrown away.
        """
        fields = self.chain.check(value, self.committed())
        turned_to = fields["turned_to"]
        self._epoch.follow(fields["head"]["epoch"], fields["debit"]["scope"], self.spending.terms.own)
        end = self.entry(value).inputs[0].high
        steps = self._fold(slices, turned_to)
        if len(steps) != 1 or steps[0].journal != value or self.journaled != end:
            raise ReplayMismatch(
                f"journal-shuffler/{self.partition} record {self.chain.sequence}: its inputs give another release; "
                f"nothing is sent"
            )
        return steps[0]

    def tick(self, idle_ms: int) -> Output | None:
        """See `Machine.tick`: log time must go on while a window waits for its end."""
        open_ms = self._windows.rules.open_ms
        if open_ms is None or not self._windows.slots or idle_ms < open_ms:
            return None
        return Output("reports", self.partition, self.chain.encode("Tick", {"config_digest": self.system.digest}))

    def snapshot(self) -> bytes:
        """See `Machine.snapshot`; it may be taken while a window is open."""
        state = {
            **dump_place(self),
            "key_id": self._keys.key.key_id,
            "epoch": self._epoch.dump(),
            "windows": self._windows.dump(),
            "running_sums": b"" if self._running_sums is None else self._running_sums.dump(),
            "spending": self.spending.dump(),
        }
        return FORM.write(state)

    def restore(self, snapshot: bytes) -> None:
        """See `Machine.restore`."""
        state = FORM.read(snapshot)
        restore_place(self, state)
        self._epoch = NoiseEpoch(**state["epoch"])
        self._put_key(state["key_id"])
        self._windows = Windows.load(self.system.window_rules(), state["windows"])
        require_running(self._running_sums, state["running_sums"])
        self.spending.load(state["spending"])

    # One record.

    def _feed(self, record: InputRecord, gathered: _Gathered, steps: list[Step], turned_to: bytes) -> _Gathered:
        self.running = extend_digest(self._keys.key, self.running, record)
        sealed = self._windows.advance(record.timestamp_ms)
        try:
            name, fields = codec.decode(record.value, _KINDS if self._opener is None else _SEALED_KINDS)
        except CodecError as error:
            self._refuse(gathered, error.reason, record)
        else:
            sealed = self._handle(name, fields, record, gathered) or sealed
        if sealed is None:
            return gathered
        steps.append(self._release(sealed, record.offset + 1, gathered, turned_to))
        return _Gathered()

    def _handle(self, name: str, fields: dict[str, Any], record: InputRecord, gathered: _Gathered) -> Sealed | None:
        if fields["config_digest"] != self.system.digest:
            self._refuse(gathered, Refusal.OTHER_CONFIGURATION, record)
            return None
        if name == "Tick":
            gathered.counts[Outcome.TICK] += 1
            return None
        if name == "Seal":
            return self._seal(fields, record, gathered)
        return self._slot(fields, record, gathered)

    def _seal(self, fields: dict[str, Any], record: InputRecord, gathered: _Gathered) -> Sealed | None:
        try:
            sealed = self._windows.seal(fields["phase"], fields["origin"])
        except ShufflingError:
            self._refuse(gathered, Refusal.UNKNOWN_ORIGIN, record)
            return None
        gathered.counts[Outcome.SEAL] += 1
        return sealed

    def _slot(self, fields: dict[str, Any], record: InputRecord, gathered: _Gathered) -> Sealed | None:
        config = self.system.config
        try:
            content = self._content(fields)
            unpack(content, self.system.codes, config.arms, config.release.levels)
        except BadSeal:
            self._refuse(gathered, Refusal.SEALED_FOR_ANOTHER, record)
            return None
        except BadSlot:
            self._refuse(gathered, Refusal.MALFORMED_SLOT, record)
            return None
        period = int.from_bytes(fields["period"], "little", signed=True)
        offer = self._windows.offer(fields["report_id"], period, content)
        if offer.outcome in _OUTCOMES:
            gathered.counts[_OUTCOMES[offer.outcome]] += 1
        else:
            self._refuse(gathered, Refusal.STALE_PERIOD, record)
        return offer.sealed

    def _content(self, fields: dict[str, Any]) -> bytes:
        if self._opener is None:
            content: bytes = fields["content"]
            return content
        place = SlotPlace(fields["report_id"], fields["period"], fields["config_digest"])
        return self._opener.open(fields["sealed"], place)

    def _refuse(self, gathered: _Gathered, reason: str, record: InputRecord) -> None:
        letter = self._letters.letter(reason, "reports", self.partition, record.offset, value=record.value)
        gathered.dead.append(letter)
        gathered.counts[Outcome.REJECTED] += 1

    # One window.

    def _release(self, sealed: Sealed, high: int, gathered: _Gathered, turned_to: bytes) -> Step:
        if self._epoch.due:
            self._epoch.renew()
            self._running_sums = self._open_running()
        asked = self.spending.ask(self._epoch.place(self._charged(sealed.window)))
        outputs = () if asked.refused else self._outputs(sealed, asked)
        fields = self._journal_fields(sealed, high, outputs, asked)
        journal = self.chain.append({**fields, "turned_to": turned_to})
        self._close(high)
        if turned_to != STAYS:
            self._epoch.turn()
            self._put_key(turned_to)
        gathered.counts[Outcome.RELEASE_WITHHELD if asked.refused else Outcome.WINDOW] += 1
        return Step(journal, outputs, tuple(gathered.dead), gathered.counts)

    def _charged(self, window: int) -> int:
        """Which charge of its epoch a window is on: its own, or the one of the counter that windows run through."""
        return 0 if self._running_sums is not None else window

    def _outputs(self, sealed: Sealed, asked: Asked) -> tuple[Output, ...]:
        nonce, key, running = self._nonce, self._keys.key, self._running_sums
        release = release_window(self.system, key, nonce, self.partition, sealed, running, self._epoch.number)
        name, digest = self.system.config.deployment, self.system.digest
        entry = ledger_fields(name, digest, release.window_id, asked.debit, release.private_as_stated)
        return (
            Output("crowds", LINES.index("private"), self.chain.encode("Crowd", release.crowd)),
            Output("ledger", self.partition, self.chain.encode("LedgerEntry", entry)),
        )

    @property
    def _nonce(self) -> bytes:
        return self._epoch.nonce(self.chain.genesis_nonce)

    def _put_key(self, key_id: bytes) -> None:
        """Go on under the zone's key with this public id, in an epoch of noise of its own."""
        key = self._keys.turn_to(key_id)
        self._turn_digests(key)
        self._letters = DeadLetters("shuffler", "shuffler", self.partition, key, self.chain.encode)
        self._running_sums = self._open_running()

    def _open_running(self) -> RunningSums | None:
        address = release_address(self.system, self._nonce, self.partition, self._epoch.number)
        return open_running(self.system.window_tree, self._keys.key, address)

    def _journal_fields(self, sealed: Sealed, high: int, outputs: Sequence[Output], asked: Asked) -> dict[str, Any]:
        head = head_fields(
            self.chain.sequence + 1,
            self._epoch.number,
            [self._covered(high)],
            self.running,
            digest_outputs(self._keys.key, outputs),
            self.chain.edition,
        )
        return {
            "head": head,
            "window": sealed.window,
            "slots": len(sealed.contents),
            "closed_by": str(sealed.closed_by),
            "mechanism": self.system.config.release.mode,
            "parameters": parameters_text(self.system),
            "debit": debit_fields(asked.debit),
        }
