"""Roles that read one input log: those that release windows or steps of it, and those that publish versions of a model.

A role's own ``fold`` goes through what `OneInput.read` has decoded, and shows what happens to each record. Where a
window closes, it calls `hushstream.engine.batch.Batch.release` and then `ReleasingRole.end`; where a version follows,
it calls `PublishingRole.publish`. A journal record is written only then; until then anyone with the log can fold the
input again. The record names the range and a keyed digest of its input, and a keyed digest of what is released.

*Phase ends.* Collects the phase ends that learner partitions send. A phase has ended when every partition has sent one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, TypeVar

from hushstream.engine.batch import CHARGES, KEY_IN_FORCE, NO_TERMS, NOISE_EPOCH, Batch, BatchMachine, Refused, Releases
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import (
    EXACT,
    START,
    Digester,
    Identity,
    PublicDigester,
    Replayed,
    Rounding,
    owner,
    record_of,
    running_digest,
)
from hushstream.engine.journal.notes import STAYS
from hushstream.engine.noise.spending import Spending
from hushstream.engine.records import InputRange, InputRecord, InputSlice, Output, ReplayMismatch, Step, TopicPartition
from hushstream.engine.state.declared import Field, State, after, integer, raw, recent_ids
from hushstream.engine.system import Core, DeploymentValues
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError

T = TypeVar("T")

PHASE_ENDS = {"seals": {"type": "map", "values": "long"}, "sealed_phase": "long"}
"""Avro fields of `PhaseEnds.dump`."""


class PhaseEnds:
    """The last phase that each learner partition has ended, and the last that all have."""

    __slots__ = ("by_origin", "complete", "origins")

    def __init__(self, origins: int) -> None:
        """Wait for learner partitions 0 .. ``origins`` - 1."""
        self.origins = origins
        self.by_origin: dict[int, int] = {}
        self.complete = -1

    def note(self, origin: int, phase: int) -> bool | None:
        """Take one phase end; returns whether it completes a phase. None if no partition of this deployment sent it."""
        if not 0 <= origin < self.origins or phase < 0:
            return None
        self.by_origin[origin] = max(self.by_origin.get(origin, -1), phase)
        complete = min(self.by_origin.get(known, -1) for known in range(self.origins))
        if complete <= self.complete:
            return False
        self.complete = complete
        return True

    def dump(self) -> dict[str, Any]:
        """The values of `PHASE_ENDS`."""
        return {
            "seals": {str(origin): phase for origin, phase in self.by_origin.items()},
            "sealed_phase": self.complete,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the dumped phase ends."""
        self.by_origin = {int(origin): phase for origin, phase in state["seals"].items()}
        self.complete = state["sealed_phase"]


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


class OneInput(BatchMachine):
    """The methods of `Machine` for a role with one input log and one journal.

    Attributes:
        position: the next offset to feed.
        journaled: end of the input that journal records cover; the open window or step begins there.
        running: digest of the input since.
        replayed: the journal record in a replay; None while new input is folded.
        phase_ends: phase ends so far, of a role that reads some.
    """

    phase_ends: PhaseEnds
    folds_ahead = True
    rounding: Rounding = EXACT
    """How a record may differ from the journaled one."""
    derived: ClassVar[Mapping[str, str]] = {
        "_undigested": "empty between two folds (`finished`)",
        "replayed": "none between two folds",
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
        """Begin before the first record of ``source``; see `BatchMachine`."""
        super().__init__(system, identity, schema, (source,), zone, digester)
        self.position = 0
        self.journaled = 0
        self.running = START
        self.replayed: Replayed | None = None
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

    def recovery_ranges(self, value: bytes) -> tuple[InputRange, ...]:
        """See `Machine.recovery_ranges`: from this machine's position, which may be inside the open window."""
        return tuple(part._replace(low=max(part.low, self.position)) for part in self.entry(value).inputs)

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: the journaled record counts if the one that follows equals it up to `rounding`.

        After a `ReplayMismatch` a machine that cannot reopen its journal must be discarded.
        """
        self.replayed = Replayed(self.chain, value, self.committed())
        try:
            self.follow(self.replayed.fields)
            steps = self.fold(slices)
            self.replayed.require_followed()
        finally:
            self.replayed = None
        (step,) = steps
        return replace(step, journal=None)

    def follow(self, fields: Mapping[str, Any]) -> None:
        """Prepare for the journal record that is replayed."""

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

    def accept(self, one: Read, batch: Batch, take: Callable[[Read, Batch], T]) -> T | None:
        """What follows from a record by ``take``; None if it is refused, for a reason of its own or of ``take``."""
        try:
            if one.reason:
                raise Refused(one.reason)
            return take(one, batch)
        except Refused as error:
            batch.refuse(error.reason, one.record)
            return None

    def ends_phase(self, fields: Mapping[str, Any], batch: Batch) -> bool:
        """Take one phase end; returns whether all origins have now ended the phase.

        Raises:
            Refused: no origin of this role has sent it.
        """
        complete = self.phase_ends.note(fields["origin"], fields["phase"])
        if complete is None:
            raise Refused(Refusal.UNKNOWN_ORIGIN)
        batch.counts[Outcome.SEAL] += 1
        return complete

    def require_followed(self) -> None:
        """Refuse to end a replay before the release of its record was made.

        Without a replay this does nothing. A fold calls it before changes that no save point rolls back.

        Raises:
            ReplayMismatch: the release was not made.
        """
        if self.replayed is not None:
            self.replayed.require_followed()

    def journal_record(self, high: int, fields: Mapping[str, Any], outputs: Sequence[Output], epoch: int = 0) -> bytes:
        """Write the journal record of the input up to ``high``, or compare it with the replayed one.

        Later input begins at ``high``.

        Raises:
            ReplayMismatch: the replayed record differs.
        """
        self._digest_below(high)
        ranges = [InputRange(*self.inputs[0], self.journaled, high)]
        record = record_of(self.chain, ranges, self.running, fields, outputs, epoch)
        self.journaled, self.running = high, START
        return self.chain.append(record) if self.replayed is None else self.replayed.follow(record, self.rounding)

    def finished(self, slices: Sequence[InputSlice], batch: Batch) -> Sequence[Step]:
        """End a fold: returns its steps, and a last one for input without a journal record."""
        for part in slices:
            self._digest_below(part.high)
            self.position = part.high
        if batch.dead or batch.counts:
            batch.step(None)
        return batch.steps

    def tick_record(self) -> Output:
        """What `Machine.tick` appends to the home input, so that log time advances while a window is open."""
        return Output(*self.inputs[0], codec.encode("Tick", {"config_digest": self.system.digest}))

    def _digest_below(self, high: int) -> None:
        """Continue the digest. It covers refused records, too, so that a replay notices if they have changed."""
        below, waiting = [], self._undigested
        while waiting and waiting[0].offset < high:
            below.append(waiting.popleft())
        if below:
            self.running = running_digest(self.chain.digester, below, self.running)


# Roles that release windows or steps.


def releasing_state(what: str, name: str, *, noise: str = "", **own: Field) -> State:
    """The declared state of a releasing role: the common fields, and its ``own``.

    ``noise`` may name a method that opens empty counters under the noise of this epoch. The role's own fields are
    restored after it was called.
    """
    before: Mapping[str, Field] = {**POSITION, "keys": KEY_IN_FORCE, "epoch": NOISE_EPOCH}
    opened: Mapping[str, Field] = {noise: after(noise)} if noise else {}
    return State(what, name, before, opened, own, {"spending": CHARGES})


class ReleasingRole(OneInput):
    """One journal of releases over one input log; a record covers the input of one release.

    Attributes:
        state: its fields (`releasing_state`); they hold input in clear, so a state is as sensitive as the input.
        releases: key, epoch and budget of its releases.
    """

    derived: ClassVar[Mapping[str, str]] = {
        "releases": "its parts are declared: keys, epoch, spending",
    }
    releases: Releases

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
        self.key = key
        self.releases = Releases(self.chain, self.letters, key, system.spending_terms, ring, first_epoch)

    @property
    def spending(self) -> Spending:
        assert self.releases.spending is not None, NO_TERMS
        return self.releases.spending

    def follow(self, fields: Mapping[str, Any]) -> None:
        self.releases.follow(fields, [fields["debit"]])

    def end(self, high: int, fields: Mapping[str, Any], batch: Batch) -> None:
        """Journal a release, and make its step: the driver appends the record, then sends the outputs.

        If the record rotates the key, its digest is under the old one; everything later is under the next one, in a new
        epoch.

        Args:
            high: end of the input of the release.
            fields: of the journal record, without head, debit and key.
            batch: the batch with the release.

        Raises:
            ReplayMismatch: the replayed record differs.
        """
        releases, (debit,) = self.releases, batch.debits
        turned_to = releases.keys.due if self.replayed is None else self.replayed.fields["turned_to"]
        fields = {**fields, "debit": debit, "turned_to": turned_to}
        value = self.journal_record(high, fields, batch.outputs, releases.epoch.number)
        key_rotated = turned_to != STAYS
        if key_rotated:
            self.put_key(turned_to)
            releases.epoch.rotate()
            self.rotate_noise(not batch.withheld)
        batch.step(value, key_rotated)


class ReopeningRole(ReleasingRole):
    """A releasing role that can continue after a record that its inputs no longer reproduce."""

    reopens = True

    @abstractmethod
    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Abilities.reopen`."""

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: after a `ReplayMismatch` the state is unchanged, and `reopen` may be called."""
        before = self.state.save_point(self)
        try:
            return super().replay(value, slices)
        except ReplayMismatch:
            self._undigested.clear()
            self.state.roll_back(self, before)
            raise

    def reopened(self, fields: Mapping[str, Any], charge: int, batch: Batch) -> Step:
        """The step of a reopened record: its input was taken without a release."""
        self._undigested.clear()
        self.position = fields["head"]["inputs"][0]["high"]
        self.journaled, self.running = self.position, START
        self.releases.adopt(fields, [fields["debit"]], charge)
        # A rotation begins no epoch of its own here, because the next release opens one in any case.
        key_rotated = fields["turned_to"] != STAYS
        if key_rotated:
            self.put_key(fields["turned_to"])
        batch.counts[Outcome.DIVERGED] += 1
        return Step(None, (), (), batch.counts, key_rotated)


# Roles that publish versions of a model, made from public input. Their journal is the published topic, and holds public
# values only, so its digests need no key.

REMEMBERED_IDS = 100_000
"""Number of input ids that are remembered, so that a repeated input counts once."""

PUBLISHING: Mapping[str, Field] = {
    **POSITION,
    "version": integer("int", disk="model_version"),
    "known": recent_ids(),
}
"""Fields of a state that all publishing roles have."""


class PublishingRole(OneInput):
    """One journal of versions over one input log.

    If a recomputed version differs from the journaled one only by rounding of floats (on another CPU, `rounding`), the
    journaled version counts.

    Attributes:
        state: its fields: `PUBLISHING`, and its own.
        version: the last published version; 0 before the first.
        known: ids of inputs that counted.
    """

    def __init__(
        self,
        system: Core[DeploymentValues],
        identity: Identity,
        schema: str,
        source: TopicPartition,
        zone: str,
    ) -> None:
        """Begin before the first record of ``source``; see `OneInput`."""
        super().__init__(system, identity, schema, source, zone, PublicDigester())
        self.version = 0
        self.known: BoundedMap[None] = BoundedMap(REMEMBERED_IDS)

    # What a fold calls.

    def first_time(self, identity: str) -> bool:
        """Whether an id is new; it is remembered."""
        if identity in self.known:
            return False
        self.known.put(identity, None)
        return True

    def publish(
        self,
        high: int,
        fields: Mapping[str, Any],
        batch: Batch,
        announced: Callable[[Mapping[str, Any]], tuple[Output, ...]] | None = None,
    ) -> None:
        """Publish the version from the input below ``high``, or compare it with the replayed one.

        Args:
            high: beginning of the next version's input.
            fields: of the version, without head and number.
            batch: counts it.
            announced: makes the outputs of the version from its final fields, which are the journaled ones in a replay.

        Raises:
            ReplayMismatch: the replayed record differs.
        """
        fields = {"version": self.version + 1, **fields}
        value = self.journal_record(high, fields, ())
        batch.counts[Outcome.MODEL] += 1
        self.version += 1
        if announced is not None:
            batch.outputs.extend(announced(fields if self.replayed is None else self.replayed.fields))
        batch.step(value)
