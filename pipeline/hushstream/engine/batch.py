"""What a role makes of its input up to its next journal record, and the one way by which noise leaves it.

A role collects outputs, dead letters and counts in a `Batch`, and ends it with a journal record. Whatever a role draws
for publication is drawn in `Batch.release`, which every role of every system calls, also one that answers:

    1. an epoch that is due is opened; 2. the price is charged; 3. the role's own function draws, and gives the outputs;
    4. the role ends the batch: the journal record is written, or compared with the one that is replayed, with the debit
    and a keyed digest of the outputs; 5. the driver appends the record, raises the mark, sends the outputs, commits.

So a role cannot draw before its price is charged, and nothing can be sent whose record is not in the journal. The
address of the noise consists of the journal's genesis nonce, the epoch and the position within it, and of what the
noise covers: ids and contents. So the same log gives the same release, and other content never has the same noise
(PRIVACY rules 5 to 7).

When the zone's key was rotated (`hushstream.engine.journal.notes`), the next record says so, and later releases
are under the new key in a new epoch. When a rollback is suspected (`Abilities.request_epoch` of
`hushstream.engine.machine`), a role that draws noise ahead of its input begins an epoch, and pays for it.

*Refusals.* Dead letters say which record was refused and why, without any byte of its content.

The digest is keyed with the zone's key: the operator of that zone can find the record again, and nobody else can learn
its content by guessing (PRIVACY rule 10).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.journal.chain import Chain, ChainedMachine, Digester, Identity, Replayed
from hushstream.engine.journal.notes import KeyInForce
from hushstream.engine.noise.epoch_budget import EPOCH, NoiseEpoch
from hushstream.engine.noise.spending import SPENDING, ChargeResult, Spending, SpendingTerms, debit_fields
from hushstream.engine.records import InputRecord, InputSlice, Output, Step, TopicPartition
from hushstream.engine.state.declared import FIXED, Several
from hushstream.engine.system import NO_NONCE, Core, DeploymentValues
from hushstream.privacy.amounts import Cost
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Exhausted
from hushstream.schemas import codec

WHOLE_RECORD = -1
"""Value in place of a row number when a whole record was refused."""


class Refused(Exception):
    """A record is refused, for a reason of `hushstream.engine.declare.outcomes.Refusal`."""

    def __init__(self, reason: str) -> None:
        """Keep the reason."""
        super().__init__(reason)
        self.reason = reason


class DeadLetters:
    """Makes the dead letters of one role in one zone."""

    def __init__(self, zone: str, role: str, home: int, digester: Digester) -> None:
        """Make letters for the zone whose operator may read them, and for the home partition of the role."""
        self.home = home
        self._zone = zone
        self._role = role
        self._digester = digester

    def rotate_to(self, digester: Digester) -> None:
        """Use another key for digests from now on."""
        self._digester = digester

    def letter(
        self,
        reason: str,
        topic: str,
        partition: int,
        offset: int,
        row: int = WHOLE_RECORD,
        value: bytes = b"",
    ) -> Output:
        """Make one dead letter. It holds only a keyed digest of ``value``."""
        fields = {
            "zone": self._zone,
            "role": self._role,
            "reason": str(reason),
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "row": row,
            "digest": self._digester.digest("dead-letter", value),
        }
        return Output(f"dead-letters-{self._zone}", self.home, codec.encode("DeadLetter", fields))


# Key, epoch and budget.

NO_TERMS = "a role that releases with noise has terms of its spending"


class Releases:
    """Key, epoch and budget of the releases of one journal.

    Attributes:
        key: the zone's key in force.
        keys: keys of the zone.
        epoch: the epoch of noise.
        spending: the charges; None for a role that releases nothing with noise.
    """

    def __init__(
        self,
        chain: Chain,
        letters: DeadLetters,
        key: Key,
        terms: SpendingTerms | None,
        ring: KeyRing | None = None,
        first_epoch: int = 0,
    ) -> None:
        """Begin before the first release.

        Args:
            chain: of the journal.
            letters: dead letters under the key in force.
            key: the zone's key that the journal begins with.
            terms: prices and limit of the releases.
            ring: content of the zone's key file, for key rotation.
            first_epoch: number of the first epoch of noise.
        """
        self._chain = chain
        self._letters = letters
        self.key = key
        self.keys = KeyInForce(key, ring)
        self.epoch = NoiseEpoch(first_epoch)
        self.spending = None if terms is None else Spending(terms, chain.identity.journal[1])

    @property
    def nonce(self) -> bytes:
        """The nonce in the noise addresses of this epoch; zeros before the journal is known: nothing is drawn then."""
        return self.epoch.nonce(self._chain.genesis_nonce or NO_NONCE)

    def put_key(self, key_id: bytes) -> Key:
        """Use the zone's key with this public id from here on; returns it.

        Raises:
            KeyFileError: the key was destroyed, or the zone never had it.
        """
        self.key = self.keys.rotate_to(key_id)
        self._chain.rotate_to(self.key)
        self._letters.rotate_to(self.key)
        return self.key

    def follow(self, fields: Mapping[str, Any], debits: Sequence[Mapping[str, Any]]) -> None:
        """Follow a journal record in a replay: its first release opens an epoch if it did so then.

        A record without releases opens none.
        """
        if debits and self.spending is not None:
            self.epoch.follow(fields["head"]["epoch"], debits[0]["scope"], self.spending.terms.own)

    def adopt(self, fields: Mapping[str, Any], debits: Sequence[Mapping[str, Any]], window: int) -> None:
        """Accept a journal record whose releases its inputs no longer reproduce.

        They count, and are never sent again. The next release opens an epoch after the record's own (which another
        state of this journal may have begun), because other data were released under the noise of every earlier epoch.

        Args:
            fields: of the record; the chain has advanced by it.
            debits: of its releases.
            window: the charge of the last one within its epoch.
        """
        charges = self.spending
        assert charges is not None, NO_TERMS
        open_scope = charges.terms.own_scope(self._chain.identity.journal[1], self.epoch.charge_key(window))
        scope = debits[-1]["scope"] if debits else open_scope
        self.epoch.adopt(fields["head"]["epoch"], scope, charges.terms.own, self._chain.sequence)
        # What the journal says was paid is paid, whatever its inputs say now.
        if any(debit["epsilon_micro"] or debit["delta_units"] for debit in debits):
            charges.try_charge(self.epoch.charge_key(window), already_paid=True)


KEY_IN_FORCE = Several(
    {"key_id": "bytes"},
    lambda role: {"key_id": role.key.key_id},
    lambda role, values: role.put_key(values["key_id"]),
    saved=False,
)
"""State field: the key in force, by its public id."""

NOISE_EPOCH = Several(
    {"epoch": EPOCH},
    lambda role: {"epoch": role.epoch.dump()},
    lambda role, values: role.epoch.load(values["epoch"]),
)
"""State field: the epoch of the noise."""

CHARGES = Several(
    {"spending": SPENDING},
    lambda role: {"spending": role.spending.dump()},
    lambda role, values: role.spending.load(values["spending"]),
)
"""State field: what was charged."""


CHARGES_IF_ANY = Several(
    {"spending": ["null", SPENDING]},
    lambda role: {"spending": None if role.spending is None else role.spending.dump()},
    lambda role, values: None if role.spending is None else role.spending.load(values["spending"]),
)
"""State field: what was charged, in a role that releases with noise in some configurations alone."""


# What a role makes of its input.


class BatchMachine(ChainedMachine):
    """A role that collects what it makes of its input in a `Batch`.

    Attributes:
        system: the deployment.
        journal, partition, inputs: see `Machine`.
        chain: of the journal.
        letters: writes dead letters.
        releases: key, epoch and budget of its releases; None for a role without a key.
        key: the zone's key in force, of a role with one.
    """

    derived: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("system", "journal", "partition", "inputs"), FIXED),
        "letters": "written under the key in force",
        "key": "the one in force of `releases`",
    }
    releases: Releases | None = None
    key: Key

    def __init__(
        self,
        system: Core[DeploymentValues],
        identity: Identity,
        schema: str,
        inputs: tuple[TopicPartition, ...],
        zone: str,
        digester: Digester,
    ) -> None:
        """Begin before the first record of the inputs.

        Args:
            system: the deployment.
            identity: whose journal it is.
            schema: of the journal's records.
            inputs: the co-partitioned inputs, the home partition first.
            zone: whose operator reads the dead letters.
            digester: of what is journaled; keyed where that is private.
        """
        self.system = system
        self.journal = identity.journal
        self.partition = identity.journal[1]
        self.inputs = inputs
        self.chain = Chain(identity, digester, schema)
        self.letters = DeadLetters(zone, identity.role, self.partition, digester)

    # What a role says of its noise.

    @property
    def draws_noise(self) -> bool:
        """Whether it releases with noise in this configuration."""
        return self.releases is not None and self.releases.spending is not None

    @property
    def draws_ahead(self) -> bool:
        """Whether noise is drawn before all its input has come, so that its address has no digest of the input."""
        return False

    @property
    def charge(self) -> int:
        """The charge of the next release within its epoch: 0 where one charge pays for all of them."""
        return 0

    def redraw_noise(self) -> None:
        """Begin again with the noise of the epoch that was just opened; earlier releases stay.

        A role whose every release draws for itself does nothing.
        """

    def rotate_noise(self, released: bool) -> None:
        """Begin with noise under the zone's next key, after a release that was made or withheld."""
        self.redraw_noise()

    # What a driver asks.

    def put_key(self, key_id: bytes) -> None:
        """Use the zone's key with this public id from here on."""
        assert self.releases is not None, "a role with a key"
        self.key = self.releases.put_key(key_id)

    @property
    def epoch(self) -> NoiseEpoch:
        """The epoch of the noise."""
        assert self.releases is not None, "a role with a key"
        return self.releases.epoch

    @property
    def spending(self) -> Spending | None:
        """The charges to the budget so far."""
        return None if self.releases is None else self.releases.spending

    @property
    def charged(self) -> Cost | None:
        return None if self.spending is None else self.spending.spent

    @property
    def refused(self) -> Exhausted | None:
        if self.spending is None or not self.draws_noise:
            return None
        return self.spending.refusal(self.epoch.next_charge_key(self.charge))

    def opened_epoch_since(self, sequence: int) -> bool:
        return self.releases is not None and self.epoch.opened_epoch_since(sequence)

    def request_epoch(self, nonce: bytes, forked: bool = False, incarnations: int = 0) -> bool:
        if not self.draws_noise:
            return False
        if forked or self.draws_ahead:
            self.epoch.request(nonce, incarnations)
        return self.epoch.due

    def start(self, genesis: bytes) -> None:
        self.chain.start(genesis, () if self.releases is None else self.releases.keys.retired)


@dataclass(slots=True, eq=False)
class Batch:
    """What a role makes of its input up to its next journal record.

    Attributes:
        role: whose batch it is.
        replayed: the journal record in a replay; None while new input is folded.
        slices: of an answering role: one slice of every input, by topic and partition.
        input_digest: digest of those slices, for the journal record.
        outputs: what is sent after the journal record was acknowledged.
        dead: dead letters.
        counts: events by outcome.
        debits: of the releases, in the form of the journal.
        withheld: whether the price of the last release was refused.
        ids: ids of inputs that arrived; they are remembered only when the inputs count.
        steps: finished ones, of a role that journals several times in a fold.
    """

    role: BatchMachine
    replayed: Replayed | None = None
    slices: Mapping[TopicPartition, InputSlice] = field(default_factory=dict)
    input_digest: bytes = b""
    outputs: list[Output] = field(default_factory=list)
    dead: list[Output] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    debits: list[dict[str, Any]] = field(default_factory=list)
    withheld: bool = False
    ids: dict[str, None] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def refuse(
        self, reason: str, record: InputRecord, row: int = WHOLE_RECORD, source: TopicPartition | None = None
    ) -> None:
        """Send a record to the dead letters, or one of its rows; ``source`` is the first input if none is given."""
        topic, partition = source or self.role.inputs[0]
        self.dead.append(self.role.letters.letter(reason, topic, partition, record.offset, row, record.value))
        self.counts[Outcome.REJECTED] += 1

    def send(self, topic: str, partition: int, schema: str, fields: Mapping[str, Any]) -> None:
        """Send a record after the journal record was acknowledged."""
        self.outputs.append(Output(topic, partition, codec.encode(schema, fields)))

    # The one way out for noise.

    def charge(self, releases: Releases, window: int = 0) -> ChargeResult:
        """Charge a release in this epoch, if the budget allows it; the journal record of the batch holds the debit.

        Payments are in the state, so a replay gets the same result.
        """
        assert releases.spending is not None, NO_TERMS
        charge = releases.spending.try_charge(releases.epoch.charge_key(window))
        self.debits.append(debit_fields(charge.debit))
        return charge

    def release(
        self,
        draw: Callable[[ChargeResult], Iterable[Output]],
        window: int = 0,
        outcome: str = Outcome.RELEASE,
    ) -> None:
        """Open the epoch that is due, charge the price, draw, and note what leaves when the journal record is written.

        Args:
            draw: makes the outputs of the release, and is the only function that draws noise; of a price that was
                refused it makes those that say so.
            window: the charge within its epoch, if each release is charged for itself.
            outcome: what is counted, if the price was not refused.
        """
        role, releases = self.role, self.role.releases
        assert releases is not None, "a role that releases has a key"
        opens = releases.epoch.due
        if opens:
            releases.epoch.redraw(role.chain.sequence + 1)
        charge = self.charge(releases, window)
        if opens:
            role.redraw_noise()
        self.withheld = charge.refused is not None
        self.outputs.extend(draw(charge))
        self.counts[Outcome.RELEASE_WITHHELD if self.withheld else outcome] += 1

    def ledger_entry(self, entry_id: bytes, charge: ChargeResult, topic: str = "ledger") -> Output:
        """The ledger's copy of a release's charge, which is empty if its price was refused."""
        role = self.role
        entry = role.system.ledger_entry(entry_id, charge.debit, role.system.as_stated(role.key.reproducible))
        return Output(topic, role.partition, codec.encode("LedgerEntry", entry))

    def step(self, journal: bytes | None, key_rotated: bool = False) -> Step:
        """Make a step of what was collected, and begin again without anything."""
        made = Step(journal, tuple(self.outputs), tuple(self.dead), self.counts, key_rotated)
        self.outputs, self.dead, self.counts, self.debits = [], [], Counter(), []
        self.steps.append(made)
        return made
