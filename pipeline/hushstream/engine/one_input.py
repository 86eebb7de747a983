"""The part of a machine that reads one input log and keeps a running digest. Roles that answer users do not have it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import START, Batch, Chain, Digester, Identity, running_digest
from hushstream.engine.journal.ownership import owner
from hushstream.engine.owns_journal import OwnsJournal
from hushstream.engine.records import InputRange, InputRecord, InputSlice, Output, Step, TopicPartition
from hushstream.engine.refusals import DeadLetters
from hushstream.engine.state.declared import FIXED, Declared, Field, integer, raw
from hushstream.engine.system import Core, DeploymentValues
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError

POSITION: Mapping[str, Field] = {"chain": owner(), "position": integer(), "journaled": integer(), "running": raw()}
"""Fields of a state: whose journal it is of, and how far its input was read and journaled."""


class Read(NamedTuple):
    """A record of the input, decoded.

    Attributes:
        record: as the log has it.
        name: of its schema; empty where it must not count.
        fields: by name.
        reason: why it must not count.
    """

    record: InputRecord
    name: str
    fields: dict[str, Any]
    reason: str = ""


class Gathered:
    """Collects the steps of a fold, and the dead letters and counts that the next step will carry.

    Attributes:
        steps: that were made.
        dead: dead letters.
        counts: events by outcome.
        ids: of inputs that came; known again only when it is settled that they count.
    """

    __slots__ = ("_letters", "_source", "counts", "dead", "ids", "steps")

    def __init__(self, role: OneInput) -> None:
        """Begin with no steps, dead letters or counts."""
        self._letters = role.letters
        self._source = role.inputs[0]
        self.dead: list[Output] = []
        self.steps: list[Step] = []
        self.counts: Counter[str] = Counter()
        self.ids: dict[str, None] = {}

    def refuse(self, reason: str, record: InputRecord) -> None:
        """Send a record to the dead letters, with the reason."""
        self.dead.append(self._letters.letter(reason, *self._source, record.offset, value=record.value))
        self.counts[Outcome.REJECTED] += 1

    def step(self, journal: bytes | None, releases: Sequence[Output] = (), key_rotated: bool = False) -> None:
        """Make a step of what was collected, and start with empty counts again."""
        self.steps.append(Step(journal, tuple(releases), tuple(self.dead), self.counts, key_rotated))
        self.dead, self.counts = [], Counter()


class OneInput(OwnsJournal, Declared):
    """The part of `Machine` that follows from one input log, a journal, and how far each has come.

    Attributes:
        system: the deployment.
        journal, partition, inputs, broadcasts: see `Machine`; there are no broadcasts.
        chain: of the journal.
        letters: writes dead letters.
        position: the next offset to feed.
        journaled: up to which offset journal records cover the input; below it the open window or step begins.
        running: digest of what was fed since.
    """

    broadcasts: ClassVar[tuple[TopicPartition, ...]] = ()
    derived: ClassVar[Mapping[str, str]] = {
        "system": FIXED,
        "letters": "written under the key in force",
        **dict.fromkeys(("journal", "partition", "inputs"), FIXED),
        "_undigested": "empty between two folds (`finished`)",
    }

    def __init__(
        self,
        system: Core[DeploymentValues],
        identity: Identity,
        schema: str,
        source: TopicPartition,
        zone: str,
        digester: Digester,
    ) -> None:
        """Begin before the first record of ``source``.

        Args:
            system: the deployment.
            identity: whose journal it is.
            schema: of the journal's records.
            source: the input.
            zone: whose operator reads the dead letters.
            digester: of what is journaled; keyed where that is private.
        """
        self.system = system
        self.chain = Chain(identity, digester, schema)
        self.letters = DeadLetters(zone, identity.role, identity.journal[1], digester, self.chain.encode)
        self.position = 0
        self.journaled = 0
        self.running = START
        self.journal = identity.journal
        self.partition = identity.journal[1]
        self.inputs = (source,)
        self._undigested: deque[InputRecord] = deque()

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        """See `Machine.input_digest`: a running one."""
        return running_digest(self.chain.digester, (record for part in slices for record in part.records))

    def positions(self) -> Mapping[TopicPartition, int]:
        return {self.inputs[0]: self.position}

    def committed(self) -> Mapping[TopicPartition, int]:
        """See `Machine.committed`: what is open is read again by whoever has only the journal."""
        return {self.inputs[0]: self.journaled}

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Machine.ready`: nothing waits here."""
        return slices

    def snapshot(self) -> bytes:
        """See `Machine.snapshot`; it may be taken while something is gathered."""
        return self.state.pack(self)

    def restore(self, snapshot: bytes) -> None:
        self.state.restore(self, snapshot)

    def recovery_ranges(self, value: bytes) -> tuple[InputRange, ...]:
        """See `Machine.recovery_ranges`: from where this machine stands, which may be inside what is open."""
        return tuple(part._replace(low=max(part.low, self.position)) for part in self.entry(value).inputs)

    # What a fold calls.

    def read(self, slices: Sequence[InputSlice], kinds: frozenset[str]) -> list[Read]:
        """Decode new input; what is not of these schemas, or of another configuration, must not count."""
        read, digest = [], self.system.digest
        self._undigested = deque(record for part in slices for record in part.records)
        for record in self._undigested:
            try:
                name, fields = codec.decode(record.value, kinds)
            except CodecError as error:
                read.append(Read(record, "", {}, error.reason))
                continue
            # What has no digest of its own came from a role of this deployment alone.
            other = fields.get("config_digest", digest) != digest
            read.append(Read(record, "" if other else name, fields, Refusal.OTHER_CONFIGURATION if other else ""))
        return read

    def batch(self, high: int, fields: Mapping[str, Any], outputs: tuple[Output, ...] = (), epoch: int = 0) -> Batch:
        """What the next journal record covers, up to ``high``, and what was made of it; what comes is behind that."""
        self._digest_below(high)
        batch = Batch([InputRange(*self.inputs[0], self.journaled, high)], self.running, fields, outputs, epoch)
        self.journaled, self.running = high, START
        return batch

    def finished(self, slices: Sequence[InputSlice], gathered: Gathered) -> Sequence[Step]:
        """End a fold: the steps that it made, and a last one for input that led to no release."""
        for part in slices:
            self._digest_below(part.high)
            self.position = part.high
        if gathered.dead or gathered.counts:
            gathered.step(None)
        return gathered.steps

    def _digest_below(self, high: int) -> None:
        """Go on with the digest; refused records are in it, too: a replay must see that they are what they were."""
        below, waiting = [], self._undigested
        while waiting and waiting[0].offset < high:
            below.append(waiting.popleft())
        if below:
            self.running = running_digest(self.chain.digester, below, self.running)
