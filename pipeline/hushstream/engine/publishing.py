"""Roles that publish versions of a model, made from public input. Their journal is the published topic.

A role's own ``fold`` decides when a version is due (after single records, or at the end of a phase), and calls
`publish`. The journal holds public values only, so its digests need no key. If a recomputed version differs from the
journaled one only by rounding of floats (on another CPU), the journaled version counts.
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
"""Number of input ids that are remembered, so that a repeated input counts once."""


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
        version: the last published version; 0 before the first.
        phase_ends: phase ends so far.
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
            origins: number of senders that end a phase together.
        """
        super().__init__(system, identity, schema, source, zone, PublicDigester())
        self.version = 0
        self.phase_ends = PhaseEnds(origins)
        self.known: BoundedMap[None] = BoundedMap(REMEMBERED_IDS)
        self._replayed: Replayed | None = None

    @abstractmethod
    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for every new version, and one for the rest."""

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: the journaled version counts if the recomputed one equals it up to `rounding`.

        After a `ReplayMismatch` the machine must be discarded.
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
        """Whether an id is new; it is remembered."""
        if identity in self.known:
            return False
        self.known.put(identity, None)
        return True

    def ends_phase(self, fields: Mapping[str, Any], gathered: Gathered) -> bool:
        """Take one phase end; returns whether all origins have now ended the phase.

        Raises:
            Refused: no origin of this role has sent it.
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
        """Publish the version from the input below ``high``, or compare it with the replayed one.

        Args:
            high: beginning of the next version's input.
            fields: of the version, without head and number.
            gathered: counts it.
            announced: makes the outputs of the version from its final fields, which are the journaled ones in a replay.

        Raises:
            ReplayMismatch: the replayed record differs.
        """
        batch = self.batch(high, {"version": self.version + 1, **fields})
        if self._replayed is None:
            value, stands = append(self.chain, batch), batch.fields
        else:
            value, stands = self._replayed.follow(batch, self.rounding), self._replayed.fields
        gathered.counts[Outcome.MODEL] += 1
        self.version += 1
        gathered.step(value, () if announced is None else announced(stands))
