"""The part of a machine that reads one input log and keeps a running digest. Answering roles do not use it."""

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
"""State fields: owner of the journal, and how far its input was read and journaled."""


class Read(NamedTuple):
    """A record of the input, decoded.

    Attributes:
        record: as it is in the log.
        name: name of its schema; empty if it is refused.
        fields: by name.
        reason: why it is refused.
    """

    record: InputRecord
    name: str
    fields: dict[str, Any]
    reason: str = ""


class Gathered:
    """Collects the steps of a fold, and dead letters and counts for the next step.

    Attributes:
        steps: steps so far.
        dead: dead letters.
        counts: events by outcome.
        ids: ids of inputs that arrived; they are remembered only when the inputs count.
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
        """Make a step of the collected parts, and start with empty counts again."""
        self.steps.append(Step(journal, tuple(releases), tuple(self.dead), self.counts, key_rotated))
        self.dead, self.counts = [], Counter()


class OneInput(OwnsJournal, Declared):
    """The methods of `Machine` for a role with one input log and one journal.

    Attributes:
        system: the deployment.
        journal, partition, inputs, broadcasts: see `Machine`; there are no broadcasts.
        chain: of the journal.
        letters: writes dead letters.
        position: the next offset to feed.
        journaled: end of the input that journal records cover; the open window or step begins there.
        running: digest of the input since.
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
        """See `Machine.committed`: a worker that has only the journal reads the open window again."""
        return {self.inputs[0]: self.journaled}

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Machine.ready`: no record waits."""
        return slices

    def snapshot(self) -> bytes:
        """See `Machine.snapshot`; it may be taken while a window is open."""
        return self.state.pack(self)

    def restore(self, snapshot: bytes) -> None:
        self.state.restore(self, snapshot)

    def recovery_ranges(self, value: bytes) -> tuple[InputRange, ...]:
        """See `Machine.recovery_ranges`: from this machine's position, which may be inside the open window."""
        return tuple(part._replace(low=max(part.low, self.position)) for part in self.entry(value).inputs)

    # What a fold calls.

    def read(self, slices: Sequence[InputSlice], kinds: frozenset[str]) -> list[Read]:
        """Decode new input. Records of other schemas or another configuration are refused."""
        read, digest = [], self.system.digest
        self._undigested = deque(record for part in slices for record in part.records)
        for record in self._undigested:
            try:
                name, fields = codec.decode(record.value, kinds)
            except CodecError as error:
                read.append(Read(record, "", {}, error.reason))
                continue
            # A record without this field can only come from a role of this deployment.
            other = fields.get("config_digest", digest) != digest
            read.append(Read(record, "" if other else name, fields, Refusal.OTHER_CONFIGURATION if other else ""))
        return read

    def batch(self, high: int, fields: Mapping[str, Any], outputs: tuple[Output, ...] = (), epoch: int = 0) -> Batch:
        """The batch of the next journal record, up to ``high``; later input begins there."""
        self._digest_below(high)
        batch = Batch([InputRange(*self.inputs[0], self.journaled, high)], self.running, fields, outputs, epoch)
        self.journaled, self.running = high, START
        return batch

    def finished(self, slices: Sequence[InputSlice], gathered: Gathered) -> Sequence[Step]:
        """End a fold: returns its steps, and a last one for input without a release."""
        for part in slices:
            self._digest_below(part.high)
            self.position = part.high
        if gathered.dead or gathered.counts:
            gathered.step(None)
        return gathered.steps

    def _digest_below(self, high: int) -> None:
        """Continue the digest. It covers refused records, too, so that a replay notices if they have changed."""
        below, waiting = [], self._undigested
        while waiting and waiting[0].offset < high:
            below.append(waiting.popleft())
        if below:
            self.running = running_digest(self.chain.digester, below, self.running)
