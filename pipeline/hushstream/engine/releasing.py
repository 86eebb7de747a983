"""Roles that release with noise.

They collect input, close a window, charge the budget, add noise, write the journal record, and only then release.

A role's own ``fold`` shows what happens to its input, and calls the shared steps (`Releases`):

    1. ``opens_epoch``: open an epoch that is due; 2. ``try_charge``: charge the price; then the role draws;
    3. `ReleasingRole.released`: write the journal record, or compare it with the one that is replayed, and rotate the
    key if the record says so.

A journal record is written only when a window or a step closes; until then anyone with the log can fold the input
again. The record names the range and a keyed digest of its input, the debit, and a keyed digest of what is released.
The address of the noise consists of the journal's genesis nonce, the epoch and the position within it. So the same log
gives the same release, and noise is never drawn a second time (PRIVACY rules 5 to 7).

When the zone's key was rotated (`hushstream.engine.noise.key_rotation`), the next record says so, and later releases
are under the new key in a new epoch. When a rollback is suspected (`ReleasingMachine.request_epoch` of
`hushstream.engine.machine`), a role that draws noise ahead of its input begins an epoch, and pays for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.journal.chain import START, Chain, Identity, Replayed, append, replaying
from hushstream.engine.noise.epochs import EPOCH, NoiseEpoch
from hushstream.engine.noise.key_rotation import STAYS, KeyInForce
from hushstream.engine.noise.spending import SPENDING, ChargeResult, Spending, SpendingTerms, debit_fields
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
        key: the zone's key in force.
        keys: keys of the zone.
        epoch: the epoch of noise.
        spending: the charges.
        replayed: the journal record in a replay; None while new input is folded.
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
        """Begin before the first release.

        Args:
            chain: of the journal.
            letters: dead letters under the key in force.
            key: the zone's key that the journal begins with.
            ring: content of the zone's key file, for key rotation.
            terms: prices and limit of the releases.
            first_epoch: number of the first epoch of noise.
        """
        self._chain = chain
        self._letters = letters
        self.key = key
        self.keys = KeyInForce(key, ring)
        self.epoch = NoiseEpoch(first_epoch)
        self.spending = Spending(terms, chain.identity.journal[1])
        self.replayed: Replayed | None = None

    @property
    def nonce(self) -> bytes:
        """The nonce in the noise addresses of this epoch."""
        return self.epoch.nonce(self._chain.genesis_nonce)

    # One release.

    def opens_epoch(self) -> bool:
        """Open the epoch that is due; returns whether there was one.

        Then a role that draws ahead must begin again with new noise. Call this before `try_charge`: otherwise the
        release would use the suspected charge and noise.
        """
        if not self.epoch.due:
            return False
        self.epoch.redraw(self._chain.sequence + 1)
        return True

    def try_charge(self, window: int = 0) -> ChargeResult:
        """Charge a release in this epoch, if the budget allows it.

        Payments are in the state, so a replay gets the same result.
        """
        return self.spending.try_charge(self.epoch.charge_key(window))

    def put_key(self, key_id: bytes) -> None:
        """Use the zone's key with this public id from here on.

        Raises:
            KeyFileError: the key was destroyed, or the zone never had it.
        """
        self.key = self.keys.rotate_to(key_id)
        self._chain.rotate_to(self.key)
        self._letters.rotate_to(self.key)

    # After a restart.

    @contextmanager
    def replaying(self, value: bytes, positions: Mapping[TopicPartition, int]) -> Iterator[None]:
        """Replay a journal record. The release inside the ``with`` block must be the one of the record.

        Raises:
            OffChain: the record does not continue the chain.
        """
        with replaying(self._chain, value, positions) as self.replayed:
            try:
                fields = self.replayed.fields
                self.epoch.follow(fields["head"]["epoch"], fields["debit"]["scope"], self.spending.terms.own)
                yield
            finally:
                self.replayed = None

    def require_followed(self) -> None:
        """Refuse to end a replay before the release of its record was made.

        Without a replay this does nothing. A fold calls it before changes that no save point rolls back.

        Raises:
            ReplayMismatch: the release was not made.
        """
        if self.replayed is not None:
            self.replayed.require_followed()

    def adopt(self, fields: Mapping[str, Any], window: int) -> bool:
        """Accept a journal record whose release its inputs no longer reproduce.

        It counts, and is never sent again. The next release opens an epoch after the record's own (which another state
        of this journal may have begun), because other data were released under the noise of every earlier epoch.

        Args:
            fields: of the record; the chain has advanced by it.
            window: its charge within its epoch.

        Returns:
            Whether the zone's next key is in force from here on.
        """
        debit = fields["debit"]
        self.epoch.adopt(fields["head"]["epoch"], debit["scope"], self.spending.terms.own, self._chain.sequence)
        # What the journal says was paid is paid, whatever its inputs say now.
        if debit["epsilon_micro"] or debit["delta_units"]:
            self.spending.try_charge(self.epoch.charge_key(window), already_paid=True)
        if fields["turned_to"] == STAYS:
            return False
        # The rotation begins no epoch of its own here, because the next release opens one in any case.
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
    """The declared state of a releasing role: the common fields, and its ``own``.

    ``noise`` may name a method that opens empty counters under the noise of this epoch. The role's own fields are
    restored after it was called.
    """
    opened: Mapping[str, Field] = {noise: after(noise)} if noise else {}
    return State(what, version, name, _BEFORE, opened, own, _AFTER)


class ReleasingRole(OneInput, ABC):
    """A machine with one input log and one journal of releases. A role writes `fold` itself and calls `releases` in it.

    Attributes:
        state: its fields (`releasing_state`); they hold input in clear, so a state is as sensitive as the input.
        releases: key, epoch and budget of its releases.
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
        """Begin before the first record of ``source``; see `OneInput` and `Releases`.

        Charges go to the first ledger.
        """
        super().__init__(system, identity, schema, source, zone, key)
        self.releases = Releases(self.chain, self.letters, key, ring, system.spending_terms, first_epoch)

    @property
    @abstractmethod
    def charge(self) -> int:
        """The charge of the next release within its epoch."""

    @property
    @abstractmethod
    def draws_ahead(self) -> bool:
        """Whether noise is drawn before all its input has come, so that its address has no digest of the input."""

    @abstractmethod
    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for each release, and one for the rest."""

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
        """The charges to the budget so far."""
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
            self.epoch.request(nonce, incarnations)
        return self.epoch.due

    def start(self, genesis: bytes) -> None:
        self.chain.start(genesis, self.releases.keys.retired)

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: all values are whole numbers, so the record must be equal.

        After a `ReplayMismatch` a machine that cannot reopen its journal must be discarded.
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
        charge_result: ChargeResult,
        gathered: Gathered,
        outcome: str = Outcome.RELEASE,
    ) -> bool:
        """Journal a release, and make its step: the driver appends the record, then sends the outputs.

        The record's digest is under the old key; everything later is under the next one, in a new epoch.

        Args:
            high: end of the input of the release.
            fields: of the journal record, without head, debit and key.
            outputs: the release, or records that say that it is withheld.
            charge_result: its charge.
            gathered: steps and counts so far; the release is counted there.
            outcome: the outcome to count, if its price was not refused.

        Returns:
            Whether the zone's next key is in force from here on, in a new epoch.

        Raises:
            ReplayMismatch: the replayed record differs.
        """
        releases, replayed = self.releases, self.releases.replayed
        turned_to = releases.keys.due if replayed is None else replayed.fields["turned_to"]
        fields = {**fields, "debit": debit_fields(charge_result.debit), "turned_to": turned_to}
        batch = self.batch(high, fields, outputs, releases.epoch.number)
        value = append(self.chain, batch) if replayed is None else replayed.follow(batch)
        key_rotated = turned_to != STAYS
        if key_rotated:
            releases.put_key(turned_to)
            releases.epoch.rotate()
        gathered.counts[Outcome.RELEASE_WITHHELD if charge_result.refused else outcome] += 1
        gathered.step(value, outputs, key_rotated)
        return key_rotated

    def debited(self, entry_id: bytes, charge_result: ChargeResult, topic: str = "ledger") -> Output:
        """The ledger's copy of a release's charge, which is empty if its price was refused."""
        as_stated = self.system.as_stated(self.releases.key.reproducible)
        entry = self.system.ledger_entry(entry_id, charge_result.debit, as_stated)
        return Output(topic, self.partition, self.chain.encode("LedgerEntry", entry))

    def tick_record(self) -> Output:
        """The record that `Ticks.tick` appends to the home input, so that log time advances while a window is open."""
        return Output(*self.inputs[0], self.chain.encode("Tick", {"config_digest": self.system.digest}))


class ReopeningRole(ReleasingRole):
    """A releasing role that can continue after a record that its inputs no longer reproduce (`Reopens`)."""

    @abstractmethod
    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `hushstream.engine.machine.Reopens`."""

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: after a `ReplayMismatch` the state is unchanged, and `reopen` may be called."""
        before = self.state.save_point(self)
        try:
            return super().replay(value, slices)
        except ReplayMismatch:
            self._undigested.clear()
            self.state.roll_back(self, before)
            raise

    def reopened(self, fields: Mapping[str, Any], charge: int, gathered: Gathered) -> Step:
        """The step of a reopened record: its input was taken without a release."""
        self._undigested.clear()
        self.position = fields["head"]["inputs"][0]["high"]
        self.journaled, self.running = self.position, START
        key_rotated = self.releases.adopt(fields, charge)
        gathered.counts[Outcome.DIVERGED] += 1
        return Step(None, (), (), gathered.counts, key_rotated)
