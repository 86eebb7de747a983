"""Roles that publish versions of something made from public input; their journal is what they publish.

A version follows from single records, or from the end of a phase. A role's own ``fold`` says when, and calls `publish`.
The journal holds public values only, so its digests need no key. A recomputed version may differ from the journaled one
by a rounding of its floats (on another CPU); the journaled version then stands.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import EXACT, Identity, PublicDigester, Replayed, Rounding, append, replaying
from hushstream.engine.one_input import POSITION, Gathered, OneInput
from hushstream.engine.phase_ends import PHASE_ENDS, PhaseEnds
from hushstream.engine.records import InputSlice, Output, Step, TopicPartition
from hushstream.engine.refusals import Refused
from hushstream.engine.state.declared import Field, Flat, integer, recent_ids
from hushstream.engine.system import Core, DeploymentValues
from hushstream.feedback.memory import BoundedMap

REMEMBERED_IDS = 100_000
"""How many ids of inputs are known again, so that what is sent twice counts once."""


PUBLISHING: Mapping[str, Field] = {
    **POSITION,
    "version": integer("int", disk="model_version"),
    "phase_ends": Flat(PHASE_ENDS),
    "known": recent_ids(),
}
"""Fields of a state that all publishing roles have."""


class PublishingRole(OneInput, ABC):
    """One journal of versions over one input log.

    Attributes:
        state: its fields: `PUBLISHING`, and its own.
        rounding: how a version may differ from the journaled one.
        version: of what was published last; 0 before the first.
        phase_ends: ends of phases so far.
        known: ids of inputs that counted.
    """

    derived: ClassVar[Mapping[str, str]] = {"_replayed": "none between two folds"}
    rounding: Rounding = EXACT

    def __init__(
        self,
        system: Core[DeploymentValues],
        identity: Identity,
        schema: str,
        source: TopicPartition,
        zone: str,
        origins: int = 0,
    ) -> None:
        """Begin before the first record of ``source``; see `OneInput`.

        Args:
            system, identity, schema, source, zone: of the role.
            origins: how many senders end a phase together.
        """
        super().__init__(system, identity, schema, source, zone, PublicDigester())
        self.version = 0
        self.phase_ends = PhaseEnds(origins)
        self.known: BoundedMap[None] = BoundedMap(REMEMBERED_IDS)
        self._replayed: Replayed | None = None

    @abstractmethod
    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for every new version, and one for what is left."""

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: the journaled version stands if the recomputed one equals it, but for `rounding`.

        After a `ReplayMismatch` the machine must be thrown away.
        """
        with replaying(self.chain, value, self.committed()) as self._replayed:
            try:
                steps = self.fold(slices)
                self._replayed.require_followed()
            finally:
                self._replayed = None
        (step,) = steps
        return replace(step, journal=None)

    # What a fold calls.

    def first_time(self, identity: str) -> bool:
        """Whether an id was not met before; it is from now on."""
        if identity in self.known:
            return False
        self.known.put(identity, None)
        return True

    def ends_phase(self, fields: Mapping[str, Any], gathered: Gathered) -> bool:
        """Take one phase end: whether all origins have ended a phase by it.

        Raises:
            Refused: it comes from nobody who ends phases here.
        """
        complete = self.phase_ends.note(fields["origin"], fields["phase"])
        if complete is None:
            raise Refused(Refusal.UNKNOWN_ORIGIN)
        gathered.counts[Outcome.SEAL] += 1
        return complete

    def publish(
        self,
        high: int,
        fields: Mapping[str, Any],
        gathered: Gathered,
        announced: Callable[[Mapping[str, Any]], tuple[Output, ...]] | None = None,
    ) -> None:
        """Publish the version that follows from the input below ``high``, or follow the one that is replayed.

        Args:
            high: where the next version's input begins.
            fields: what it holds, beside head and number.
            gathered: counts it.
            announced: what is sent behind it, of the fields that stand: where a version is replayed, what it says.

        Raises:
            ReplayMismatch: the record that is replayed is another one.
        """
        batch = self.batch(high, {"version": self.version + 1, **fields})
        if self._replayed is None:
            value, stands = append(self.chain, batch), batch.fields
        else:
            value, stands = self._replayed.follow(batch, self.rounding), self._replayed.fields
        gathered.counts[Outcome.MODEL] += 1
        self.version += 1
        gathered.step(value, () if announced is None else announced(stands))
