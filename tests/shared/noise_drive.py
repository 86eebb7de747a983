"""Rolls a role back, forks it and renews its noise over a recording, and says which rule of the one way out it breaks.

All noise comes from one function of the zone's key and an encoded address (`Key.prf_encoded`), so which noise a branch
drew is the set of addresses that it passed there. Two branches share noise exactly if they share addresses. `flaws`
drives one home partition to a release, and then the same input again from an earlier state:

* as it was: the same bytes leave, whoever releases them (a rollback costs nothing);
* with one value of one record replaced, or one id renamed, after a restart that suspects a rollback, as a worker does:
  if what leaves is about other content, it has other noise, and ids count as content;
* in a requested epoch: no address of the earlier epoch is used again.

On the way it looks at each release: noise is drawn in `Batch.release` alone, after the charge, and all that is sent on
a noised topic stands under the digest of the journal record that goes before it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import pytest

from hushstream.engine.batch import Batch
from hushstream.engine.noise.spending import Spending
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.privacy.amounts import Cost
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import BasicFilter
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.topics import PUBLISHED
from machine_drive import EPOCH_NONCE, Rig, Written
from recordings import Recording

ROOM = BasicFilter(Cost(10**15, 1 << 90))
"""A limit with room for an epoch more than the configuration pays for."""

LOOKED_BACK = 40
"""How many records before a release are changed, one after the other."""

IDS = ("_id", "_ids", "names")
"""How the names of fields end that hold ids of records."""

PASSED_ON = ("Seal", "Membership", "ArmChange")
"""Schemas of public records that roles pass on beside their releases."""

NAMING = (
    "config_digest",
    "user",
    "users",
    "kind",
    "counter",
    "round",
    "period",
    "epoch",
    "phase",
    "origin",
    "catalogue",
)
"""Fields that say where a record belongs: another value is a record of somewhere else."""


class Calls:
    """What a machine did: the noise that it drew, and what it drew or sent outside of the one way out."""

    def __init__(self) -> None:
        self.drawn: set[bytes] = set()
        self.unpaid = False
        self.releases = 0
        self._paid = False

    @contextmanager
    def noted(self) -> Iterator[Calls]:
        """Note the calls of machines that fold meanwhile."""
        charge, release, draw = Batch.charge, Batch.release, Key.prf_encoded

        def charged(batch: Batch, *given: Any) -> Any:
            self._paid = True
            return charge(batch, *given)

        def released(batch: Batch, *given: Any, **named: Any) -> None:
            self.releases += 1
            release(batch, *given, **named)
            self._paid = False

        def drew(key: Key, purpose: str, encoded: bytes) -> bytes:
            if purpose == "noise":
                self.drawn.add(key.key_id + encoded)
                self.unpaid |= not self._paid
            return draw(key, purpose, encoded)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Batch, "charge", charged)
            patch.setattr(Batch, "release", released)
            patch.setattr(Key, "prf_encoded", drew)
            yield self


class Branch(NamedTuple):
    """What a machine wrote over some input, and the noise that it drew."""

    written: list[Written]
    drawn: set[bytes]

    def sent(self, topics: frozenset[str]) -> list[bytes]:
        """The values of what it sent on some topics, without records that it passes on."""
        sent = (output.value for one in self.written for output in one.releases if output.topic in topics)
        return [value for value in sent if codec.decode(value)[0] not in PASSED_ON]

    @property
    def counts(self) -> Counter[str]:
        """The outcomes of all steps."""
        return sum((Counter(one.counts) for one in self.written), Counter())


Arrived = list[tuple[TopicPartition, InputRecord]]
"""Records in the order in which they arrive."""


class NoiseDrive:
    """One home partition of a role that writes a noised topic."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        given = rig.remake
        rig.remake = lambda machine: with_room(given(machine))
        rig.machine = rig.fresh()
        self.noised = noised_topics(rig.recording)
        self.input = rig.input()
        self.states: list[bytes] = []
        """The packed state before each record."""
        self.whole: list[Branch] = []
        """What each record gave."""
        self.found: list[str] = []
        self.accepted: Counter[str] = Counter()
        """How many changes of contents and of ids the role took like the records that they replace."""
        self.told: Counter[str] = Counter()
        """How many of those gave other noise."""

    def flaws(self) -> list[str]:
        """What the role does that is not allowed, in words; empty for a sound one."""
        self._drive()
        ends = [number for number, one in enumerate(self.whole) if one.sent(self.noised)]
        if not ends:
            return [*self.found, "expected a recording in which it releases, got none"]
        end = ends[len(ends) // 2]
        first = max(end - LOOKED_BACK, 0)
        self._roll_back(first, end)
        self._fork(first, end)
        self._renew(first, end)
        return self.found

    def _drive(self) -> None:
        """The recorded input, undisturbed, with a look at each release."""
        rig, arrived = self.rig, self._nothing()
        for place, record in self.input:
            self.states.append(rig.machine.snapshot())
            arrived[place].append(record)
            with Calls().noted() as calls:
                one = Branch([Written.by(step) for steps in rig.folds(arrived) for step in steps], calls.drawn)
            self.whole.append(one)
            if calls.unpaid:
                self._say("it draws noise outside of Batch.release, before its price is charged")
            if one.sent(self.noised) and not calls.releases:
                self._say("it sends on a noised topic without Batch.release")
            for written in one.written:
                if any(output.topic in self.noised for output in written.releases) and not self._journaled(written):
                    self._say("it releases what no journal record before it holds")

    def _journaled(self, written: Written) -> bool:
        if written.journal is None:
            return False
        sent = [part for out in written.releases for part in (f"{out.topic}/{out.partition}".encode(), out.value)]
        digest = self.rig.machine.chain.digester.digest("release", *sent)
        found: bytes = codec.decode(written.journal)[1]["head"]["release_digest"]
        return found == digest

    def _roll_back(self, first: int, end: int) -> None:
        if self._branch(first, end).written != self._between(first, end).written:
            self._say("after a rollback the same input gives other bytes")

    def _fork(self, first: int, end: int) -> None:
        """Other content, and other ids, after a restart that suspects a rollback."""
        for what, start, changed in self._changes(first, end):
            before, branch = self._between(start, end), self._branch(start, end, changed, suspects=True)
            if branch.counts != before.counts:
                continue
            self.accepted[what.partition(" ")[0]] += 1
            # What was drawn before is drawn again where it is not at hand.
            earlier = self._between(0, start - 1).drawn
            other = branch.drawn - earlier != before.drawn - earlier
            self.told[what.partition(" ")[0]] += other
            same = other or what in PUBLIC or branch.sent(self.noised) == before.sent(self.noised)
            if not same and what.startswith("content"):
                self._say(f"its noise does not depend on the {what}")
        if self.accepted["content"] and not self.told["content"]:
            self._say("its noise does not depend on the content that it covers")
        if self.accepted["ids"] and not self.told["ids"]:
            self._say("its noise does not depend on the ids of what it covers")

    def _renew(self, first: int, end: int) -> None:
        before, branch = self._between(first, end), self._branch(first, end, forked=True)
        if branch is None or not branch.sent(self.noised):
            self._say("it opens no epoch after a fork")
        elif branch.drawn & before.drawn:
            self._say("an epoch draws noise of the epoch before again")

    # What is changed.

    def _changes(self, first: int, end: int) -> Iterator[tuple[str, int, Arrived]]:
        """(content or ids, and where; the first record that changes; the whole changed input)."""
        for number in range(end, first - 1, -1):
            place, record = self.input[number]
            if place not in self.rig.machine.inputs:
                continue
            name, fields = self._decoded[number]
            if "sealed" in fields:
                # Nobody but its device can change it: with any other value it is refused.
                continue
            for field, value in fields.items():
                if field in NAMING or field.startswith("after_"):
                    continue
                if field.endswith(IDS):
                    yield f"ids {name}.{field}", *self._renamed(value)
                    continue
                for other in self._others(number, name, field, value):
                    changed = list(self.input)
                    changed[number] = place, record._replace(value=codec.encode(name, {**fields, field: other}))
                    yield f"content {name}.{field}", number, changed

    def _others(self, number: int, name: str, field: str, value: Any) -> list[Any]:
        """Other values of a field of recorded records: the next two before this one, of the same size."""
        sized = isinstance(value, bytes | list)
        found = []
        for schema, one in reversed(self._decoded[: number + 1]):
            if schema == name and one[field] != value and (not sized or len(one[field]) == len(value)):
                found.append(one[field])
        return found[:2]

    def _renamed(self, value: Any) -> tuple[int, Arrived]:
        """The whole input with an id renamed wherever it stands, and the first record that changes."""
        old = _first_id(value)
        new = hashlib.blake2b(old.encode() if isinstance(old, str) else old, digest_size=16).digest()
        named: str | bytes = new.hex()[: len(old)] if isinstance(old, str) else new[: len(old)]
        changed, start = [], None
        for number, (place, record) in enumerate(self.input):
            other = _with_id(record, old, named)
            if other is not None and start is None:
                start = number
            changed.append((place, record if other is None else other))
        assert start is not None, "the id stands in the record that it came from"
        return start, changed

    @cached_property
    def _decoded(self) -> list[tuple[str, Mapping[str, Any]]]:
        found: list[tuple[str, Mapping[str, Any]]] = []
        for _, record in self.input:
            try:
                found.append(codec.decode(record.value))
            except CodecError:
                found.append(("", {}))
        return found

    # Branches.

    def _branch(
        self, start: int, end: int, changed: Arrived | None = None, suspects: bool = False, forked: bool = False
    ) -> Branch:
        """What a machine gives that goes on from the state before a record."""
        rig, input_ = self.rig, self.input if changed is None else changed
        arrived = self._nothing()
        for place, record in input_[:start]:
            arrived[place].append(record)
        rig.machine = rig.fresh()
        rig.machine.restore(self.states[start])
        written = []
        with Calls().noted() as calls:
            if suspects or forked:
                rig.machine.request_epoch(EPOCH_NONCE, forked=forked)
            for place, record in input_[start : end + 1]:
                arrived[place].append(record)
                written += [Written.by(step) for steps in rig.folds(arrived) for step in steps]
        return Branch(written, calls.drawn)

    def _between(self, start: int, end: int) -> Branch:
        """What the undisturbed machine gave."""
        found = self.whole[start : end + 1]
        return Branch([one for part in found for one in part.written], set().union(*(part.drawn for part in found)))

    def _nothing(self) -> dict[TopicPartition, list[InputRecord]]:
        return {place: [] for place in self.rig.fresh().positions()}

    def _say(self, flaw: str) -> None:
        if flaw not in self.found:
            self.found.append(flaw)


PUBLIC: Mapping[str, str] = {
    "content Context.context": "features leave in clear where each reward has noise of its own",
}
"""Contents that leave in clear beside the noise, by "content", schema and field, with the reason."""


def noised_topics(recording: Recording) -> frozenset[str]:
    """The topics on which noise is published, by their flags; a ledger holds prices alone.

    Noised topics of a zone hold what spends an allowance, such as slots.
    """
    topics = (topic for topic in recording.system.topics if topic.noised and topic.zone == PUBLISHED)
    return frozenset(topic.name for topic in topics if not topic.is_ledger)


def with_room(machine: Any) -> Any:
    """A machine whose budget pays for an epoch more."""
    if machine.releases is not None and machine.spending is not None:
        machine.releases.spending = Spending(replace(machine.spending.terms, limit=ROOM), machine.partition)
    return machine


def _first_id(value: Any) -> str | bytes:
    if isinstance(value, bytes):
        return value[:16]
    found: str | bytes = value[0] if isinstance(value, list) else value
    return found


def _with_id(record: InputRecord, old: str | bytes, new: str | bytes) -> InputRecord | None:
    """The record with another id in place of one that it holds; None if it holds it nowhere."""
    try:
        name, fields = codec.decode(record.value)
    except CodecError:
        return None
    changed = {field: _replaced(value, old, new) for field, value in fields.items() if field.endswith(IDS)}
    if all(fields[field] == value for field, value in changed.items()):
        return None
    return record._replace(value=codec.encode(name, {**fields, **changed}))


def _replaced(value: Any, old: str | bytes, new: str | bytes) -> Any:
    if isinstance(value, list):
        return [new if one == old else one for one in value]
    if isinstance(value, bytes) and isinstance(old, bytes) and isinstance(new, bytes):
        return b"".join(new if value[at : at + 16] == old else value[at : at + 16] for at in range(0, len(value), 16))
    return new if value == old else value
