"""The base of roles that publish versions of something made of what is public: their journal is what they publish.

A version follows from single records, or from the end of a phase. The journal holds public values only, so its digests
need no key. A recomputed version may differ from the journaled one by a rounding of its floats (another CPU's), and the
journaled one stands.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.gathered import Gathered
from hushstream.engine.journal.chain import Chain, Identity, head_fields
from hushstream.engine.journal.digests import PublicDigester, digest_outputs, extend_digest
from hushstream.engine.journal.generations import in_its_generation
from hushstream.engine.one_input import PLACE, OneInput
from hushstream.engine.phase_ends import PHASE_ENDS, PhaseEnds
from hushstream.engine.records import InputRecord, InputSlice, Output, ReplayMismatch, Step, TopicPartition
from hushstream.engine.refusals import DeadLetters, Refused
from hushstream.engine.state.declared import FIXED, Field, Flat, integer, recent_ids
from hushstream.engine.system import Core
from hushstream.feedback.memory import BoundedMap
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError

REMEMBERED_IDS = 100_000
"""How many ids of inputs are known again, so that what is sent twice counts once."""


PUBLISHING: Mapping[str, Field] = {
    **PLACE,
    "version": integer("int", disk="model_version"),
    "phase_ends": Flat(PHASE_ENDS),
    "known": recent_ids(),
}
"""Fields of a state that all publishing roles have."""


class PublishingRole(OneInput, ABC):
    """One journal of versions over one input log.

    Attributes:
        state: its fields: `PUBLISHING`, and its own.
        floats: the floats and float arrays of a version, by field, with their types: they may differ by a rounding.
        margin: relative difference that a recomputed array may have.
        version: of what was published last; 0 before the first.
        phase_ends: ends of phases so far.
        known: ids of inputs that counted.
    """

    derived: ClassVar[Mapping[str, str]] = {"system": FIXED, "_letters": FIXED}
    floats: ClassVar[Mapping[str, str]]
    margin: ClassVar[float]

    def __init__(
        self, system: Core, identity: Identity, schema: str, source: TopicPartition, zone: str, origins: int
    ) -> None:
        """Begin before the first record of ``source``.

        Args:
            system: the deployment.
            identity: whose journal it is.
            schema: of the versions.
            source: the input.
            zone: whose operator reads the dead letters.
            origins: how many senders end a phase together.
        """
        digester = PublicDigester()
        super().__init__(Chain(identity, digester, schema), digester, identity.journal, source)
        self.system = system
        self.version = 0
        self.phase_ends = PhaseEnds(origins)
        self.known: BoundedMap[None] = BoundedMap(REMEMBERED_IDS)
        self._letters = DeadLetters(zone, identity.role, identity.journal[1], digester, self.chain.encode)

    @property
    @abstractmethod
    def expects(self) -> frozenset[str]:
        """The schemas of records that may come."""

    @abstractmethod
    def on_record(self, name: str, fields: dict[str, Any], record: InputRecord, gathered: Gathered) -> bool:
        """Take one record of this deployment; whether a version follows from it.

        Raises:
            Refused: it must not count.
        """

    @abstractmethod
    def on_phase_end(self) -> bool:
        """All origins have ended a phase: whether a version follows."""

    @abstractmethod
    def version_fields(self) -> dict[str, Any]:
        """What the next version holds beside head and number."""

    def announced(self, fields: Mapping[str, Any]) -> tuple[Output, ...]:
        """What is sent once a version with these fields stands: it follows from what the journal says alone."""
        return ()

    def first_time(self, identity: str) -> bool:
        """Whether an id was not met before; it is from now on."""
        if identity in self.known:
            return False
        self.known.put(identity, None)
        return True

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for every new version, and one for what is left."""
        steps: list[Step] = []
        gathered = Gathered()
        for part in slices:
            for record in part.records:
                if self._feed(record, gathered):
                    fields = self._fields(record.offset + 1)
                    journal = self.chain.append(fields)
                    steps.append(Step(journal, self.announced(fields), tuple(gathered.dead), gathered.counts))
                    self._published(record.offset + 1)
                    gathered = Gathered()
            self.position = part.high
        return [*steps, *gathered.steps()]

    @in_its_generation
    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: the journaled version stands if the recomputed one equals it to ``margin``."""
        fields = self.chain.check(value, self.committed())
        gathered = Gathered()
        published = [self._feed(record, gathered) for part in slices for record in part.records]
        end = self.entry(value).inputs[0].high
        again = self._fields(end) if published and published[-1] and sum(published) == 1 else None
        if again is None or not self._same(self.chain.written(again), self.chain.written(fields)):
            topic, partition = self.journal
            raise ReplayMismatch(
                f"{topic}/{partition} record {fields['head']['sequence']}: its inputs give another version"
            )
        self.chain.accept(value, self.committed())
        self._published(end)
        self.position = end
        return Step(None, self.announced(fields), tuple(gathered.dead), gathered.counts)

    def _feed(self, record: InputRecord, gathered: Gathered) -> bool:
        self.running = extend_digest(self._digester, self.running, record)
        try:
            name, fields = codec.decode(record.value, self.expects)
            due = self._take(name, fields, record, gathered)
        except (CodecError, Refused) as error:
            gathered.refuse(self._letters, error.reason, self.inputs[0], record)
            return False
        if due:
            gathered.counts[Outcome.MODEL] += 1
        return due

    def _take(self, name: str, fields: dict[str, Any], record: InputRecord, gathered: Gathered) -> bool:
        # What has no digest of its own came from a role of this deployment alone.
        if fields.get("config_digest", self.system.digest) != self.system.digest:
            raise Refused(Refusal.OTHER_CONFIGURATION)
        if name != "Seal":
            return self.on_record(name, fields, record, gathered)
        complete = self.phase_ends.note(fields["origin"], fields["phase"])
        if complete is None:
            raise Refused(Refusal.UNKNOWN_ORIGIN)
        gathered.counts[Outcome.PHASE_END] += 1
        return complete and self.on_phase_end()

    def _published(self, high: int) -> None:
        self.version += 1
        self._close(high)

    def _fields(self, high: int) -> dict[str, Any]:
        nothing = digest_outputs(self._digester, ())
        sequence, covered = self.chain.sequence + 1, [self._covered(high)]
        head = head_fields(sequence, 0, covered, self.running, nothing, self.chain.schema_generation)
        return {"head": head, "version": self.version + 1, **self.version_fields()}

    def _same(self, again: Mapping[str, Any], journaled: Mapping[str, Any]) -> bool:
        # The digest is over the arrays, so it differs where they do.
        if any(again[name] != journaled[name] for name in again if name not in (*self.floats, "digest")):
            return False
        for name, kind in self.floats.items():
            ours, theirs = _array(again[name], kind), _array(journaled[name], kind)
            if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=self.margin, atol=self.margin):
                return False
        return True


def _array(value: Any, kind: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(value, kind) if isinstance(value, bytes) else np.array([value], kind)
