"""Roles that release with noise: they collect input, close a window, charge the budget, add noise, write the journal
record, and only then release.

A role's own ``fold`` shows what happens to its input, and calls the shared steps (`Releases`):

    1. ``opens_epoch``: open an epoch that is due; 2. ``ask``: charge the price; then the role draws; 3. ``journal``:
    write the record, or compare it with the one that is replayed, and rotate the key if the record says so.

A journal record is written only when a window or a step closes; until then anyone with the log can fold the input
again. The record names the range and a keyed digest of its input, the debit, and a keyed digest of what is released.
The journal's genesis nonce, the epoch and the place within it name the noise. So the same log gives the same release,
and never a second draw (PRIVACY rules 5 to 7).

When the zone's key was rotated (`hushstream.engine.noise.key_rotation`), the next record says so, and what follows is
released under the new key in an epoch of its own. When a rollback is suspected (`ReleasingMachine.request_epoch` of
`hushstream.engine.machine`), a role that draws noise ahead of its input begins an epoch, and pays for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.journal.chain import START, Batch, Chain, Identity, Replayed, append, replaying
from hushstream.engine.noise.budget import SpendingTerms, debit_fields
from hushstream.engine.noise.epochs import EPOCH, NoiseEpoch
from hushstream.engine.noise.key_rotation import STAYS, KeyInForce
from hushstream.engine.noise.spending import SPENDING, Asked, Spending
from hushstream.engine.one_input import POSITION, Gathered, OneInput
from hushstream.engine.records import InputSlice, Output, ReplayMismatch, Step, TopicPartition
from hushstream.engine.refusals import DeadLetters
from hushstream.engine.state.declared import Field, Several, State, after
from hushstream.engine.system import Core, DeploymentValues
from hushstream.privacy.amounts import Cost
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Exhausted


class Releases:
    """Key, epoch and budget of the releases of one journal.

    Attributes:
        keys: of the zone, and the one in force.
        epoch: where the noise stands.
        spending: what is charged.
        replayed: the journal record that is replayed; None where new input is folded.
    """

    def __init__(
        self,
        chain: Chain,
        letters: DeadLetters,
        key: Key,
        ring: KeyRing | None,
        terms: SpendingTerms,
        first_epoch: int = 0,
    ) -> None:
        """Before the first release.

        Args:
            chain: of the journal.
            letters: dead letters under the key in force.
            key: the zone's key that the journal begins with.
            ring: what the zone's key file holds: where the key turns next.
            terms: what releases cost, and out of which limit.
            first_epoch: number of the first epoch of noise.
        """
        self._chain = chain
        self._letters = letters
        self.keys = KeyInForce(key, ring)
        self.epoch = NoiseEpoch(first_epoch)
        self.spending = Spending(terms, chain.identity.journal[1])
        self.replayed: Replayed | None = None

    @property
    def key(self) -> Key:
        """The zone's key in force."""
        return self.keys.key

    @property
    def nonce(self) -> bytes:
        """What names the noise of this epoch in this journal."""
        return self.epoch.nonce(self._chain.genesis_nonce)

    # One release.

    def opens_epoch(self) -> bool:
        """Open the epoch that is due, if one is: then whatever draws ahead has to begin again, under its noise.

        Asked before `ask`: else the release would be on the charge, and under the noise, that are suspected.
        """
        if not self.epoch.due:
            return False
        self.epoch.redraw(self._chain.sequence + 1)
        return True

    def ask(self, window: int = 0) -> Asked:
        """Charge a release to a charge of this epoch. What was paid is in the state, so a replay is told the same."""
        return self.spending.ask(self.epoch.charge_key(window))

    def journal(self, batch: Batch, asked: Asked) -> tuple[bytes, bool]:
        """Write the journal record of a release, or follow the one that is replayed; the outputs are sent behind it.

        Args:
            batch: what was made of the input; nothing of it is known to anybody yet.
            asked: what it was charged.

        Returns:
            The record, and whether the zone's next key is in force from here on. The record was digested under the key
            before; all that follows is under the next one, in an epoch that has begun.

        Raises:
            ReplayMismatch: the record that is replayed is another one; nothing has changed but what `ask` did.
        """
        turned_to = self.keys.due if self.replayed is None else self.replayed.fields["turned_to"]
        fields = {**batch.fields, "debit": debit_fields(asked.debit), "turned_to": turned_to}
        batch = replace(batch, fields=fields, epoch=self.epoch.number)
        value = append(self._chain, batch) if self.replayed is None else self.replayed.follow(batch)
        if turned_to == STAYS:
            return value, False
        self.put_key(turned_to)
        self.epoch.rotate()
        return value, True

    def put_key(self, key_id: bytes) -> None:
        """Use the zone's key with this public id from here on.

        Raises:
            KeyFileError: it was destroyed, or the zone never had it.
        """
        key = self.keys.rotate_to(key_id)
        self._chain.rotate_to(key)
        self._letters.rotate_to(key)

    # After a restart.

    @contextmanager
    def replaying(self, value: bytes, positions: Mapping[TopicPartition, int]) -> Iterator[None]:
        """Follow a journal record: the release that is made meanwhile must be the one that it says.

        Raises:
            OffChain: it does not continue the chain.
        """
        with replaying(self._chain, value, positions) as self.replayed:
            try:
                fields = self.replayed.fields
                self.epoch.follow(fields["head"]["epoch"], fields["debit"]["scope"], self.spending.terms.own)
                yield
            finally:
                self.replayed = None

    def require_followed(self) -> None:
        """Refuse to end the replay of a record before its release has come; no replay: nothing.

        A fold that settles something at its end, which no save point brings back, asks for it before that.

        Raises:
            ReplayMismatch: it has not come.
        """
        if self.replayed is not None:
            self.replayed.require_followed()

    def adopt(self, fields: Mapping[str, Any], window: int) -> bool:
        """Accept a journal record whose release its inputs no longer give. It counts, and is never sent again.

        The next release opens an epoch after the record's own, which another state of this journal may have begun:
        under the noise of any earlier one something else was released.

        Args:
            fields: of the record; the chain has advanced by it.
            window: the charge of its epoch that it was on.

        Returns:
            Whether the zone's next key is in force from here on.
        """
        debit = fields["debit"]
        self.epoch.adopt(fields["head"]["epoch"], debit["scope"], self.spending.terms.own, self._chain.sequence)
        # What the journal says was paid is paid, whatever its inputs say now.
        if debit["epsilon_micro"] or debit["delta_units"]:
            self.spending.adopt(self.epoch.charge_key(window))
        if fields["turned_to"] == STAYS:
            return False
        # No epoch of its own: the next release opens one in any case.
        self.put_key(fields["turned_to"])
        return True


_BEFORE: Mapping[str, Field] = {
    **POSITION,
    "keys": Several(
        {"key_id": "bytes"},
        lambda role: {"key_id": role.releases.key.key_id},
        lambda role, values: role.releases.put_key(values["key_id"]),
        saved=False,
    ),
    "epoch": Several(
        {"epoch": EPOCH},
        lambda role: {"epoch": role.releases.epoch.dump()},
        lambda role, values: role.releases.epoch.load(values["epoch"]),
    ),
}
_AFTER: Mapping[str, Field] = {
    "spending": Several(
        {"spending": SPENDING},
        lambda role: {"spending": role.releases.spending.dump()},
        lambda role, values: role.releases.spending.load(values["spending"]),
    )
}


def releasing_state(what: str, version: int, name: str, *, noise: str = "", **own: Field) -> State:
    """The declared state of a releasing role: what all of them hold, and fields of its ``own``.

    Where it names a method that opens its ``noise`` (counters that nothing was put into, under the noise of this
    epoch), its own fields are restored behind that.
    """
    opened: Mapping[str, Field] = {noise: after(noise)} if noise else {}
    return State(what, version, name, _BEFORE, opened, own, _AFTER)


class ReleasingRole(OneInput, ABC):
    """A machine with one journal of releases over one input log: it writes `fold` itself, and calls `releases` there.

    Attributes:
        state: its fields (`releasing_state`); they hold input in clear, so a state is as sensitive as that.
        releases: what is kept of its releases.
    """

    derived: ClassVar[Mapping[str, str]] = {"releases": "its parts are declared: keys, epoch, spending"}

    def __init__(
        self,
        system: Core[DeploymentValues],
        identity: Identity,
        schema: str,
        source: TopicPartition,
        zone: str,
        key: Key,
        ring: KeyRing | None,
        first_epoch: int = 0,
    ) -> None:
        """Begin before the first record of ``source``; see `OneInput` and `Releases`. It spends on the first ledger."""
        super().__init__(system, identity, schema, source, zone, key)
        self.releases = Releases(self.chain, self.letters, key, ring, system.spending_terms, first_epoch)

    @property
    @abstractmethod
    def charge(self) -> int:
        """The charge of its epoch that the next release is on."""

    @property
    @abstractmethod
    def draws_ahead(self) -> bool:
        """Whether noise is drawn before all that it covers is there, so that no digest of that is in its name."""

    @abstractmethod
    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for each release, and one for what is left."""

    @property
    def key(self) -> Key:
        """The zone's key in force."""
        return self.releases.key

    @property
    def epoch(self) -> NoiseEpoch:
        """The epoch of the noise."""
        return self.releases.epoch

    @property
    def spending(self) -> Spending:
        """What was charged to the budget so far."""
        return self.releases.spending

    @property
    def charged(self) -> Cost:
        return self.spending.spent

    @property
    def refused(self) -> Exhausted | None:
        return self.spending.refusal(self.epoch.next_charge_key(self.charge))

    def opened_epoch_since(self, sequence: int) -> bool:
        return self.epoch.opened_epoch_since(sequence)

    def request_epoch(self, nonce: bytes, forked: bool = False, incarnations: int = 0) -> bool:
        if forked or self.draws_ahead:
            self.epoch.ask(nonce, incarnations)
        return self.epoch.due

    def start(self, genesis: bytes) -> None:
        self.chain.start(genesis, self.releases.keys.retired)

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: everything here is whole numbers, so the record must be the same.

        A machine that cannot reopen its journal is thrown away after a `ReplayMismatch`, as it is.
        """
        with self.releases.replaying(value, self.committed()):
            steps = self.fold(slices)
            self.releases.require_followed()
        (step,) = steps
        return step

    # What a fold calls.

    def released(
        self,
        high: int,
        fields: Mapping[str, Any],
        outputs: tuple[Output, ...],
        asked: Asked,
        gathered: Gathered,
        outcome: str = Outcome.RELEASE,
    ) -> bool:
        """Journal a release, and make the step that sends it: the driver appends the record, then sends the outputs.

        Args:
            high: the release closed with the input below it.
            fields: of the journal record, beside head, debit and key.
            outputs: what is released, or says that nothing may be.
            asked: what it was charged.
            gathered: what happened until here; the release is counted there.
            outcome: what it counts as, if its price was not refused.

        Returns:
            Whether the zone's next key is in force from here on, and its epoch has begun.

        Raises:
            ReplayMismatch: the record that is replayed is another one.
        """
        gathered.counts[Outcome.RELEASE_WITHHELD if asked.refused else outcome] += 1
        journal, key_rotated = self.releases.journal(self.batch(high, fields, outputs), asked)
        gathered.step(journal, outputs, key_rotated)
        return key_rotated

    def debited(self, entry_id: bytes, asked: Asked, topic: str = "ledger") -> Output:
        """The ledger's copy of what a release was charged, or of nothing, where its price was refused."""
        entry = self.system.ledger_entry(entry_id, asked.debit, self.system.as_stated(self.releases.key.reproducible))
        return Output(topic, self.partition, self.chain.encode("LedgerEntry", entry))

    def tick_record(self) -> Output:
        """What goes into the home input where log time must go on while what is gathered waits for its end."""
        return Output(*self.inputs[0], self.chain.encode("Tick", {"config_digest": self.system.digest}))


class ReopeningRole(ReleasingRole):
    """One that can go on after a record of its journal that its inputs no longer give (`Reopens`)."""

    @abstractmethod
    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `hushstream.engine.machine.Reopens`."""

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: after a `ReplayMismatch` the state is as it was, and `reopen` may be asked for."""
        before = self.state.save_point(self)
        try:
            return super().replay(value, slices)
        except ReplayMismatch:
            self._undigested.clear()
            self.state.roll_back(self, before)
            raise

    def reopened(self, fields: Mapping[str, Any], charge: int, gathered: Gathered) -> Step:
        """The step of a record that was reopened: its input was taken without a release."""
        self._undigested.clear()
        self.position = fields["head"]["inputs"][0]["high"]
        self.journaled, self.running = self.position, START
        key_rotated = self.releases.adopt(fields, charge)
        gathered.counts[Outcome.DIVERGED] += 1
        return Step(None, (), (), gathered.counts, key_rotated)
