"""Drives the machine of one home partition over a recording's logs, record by record, disturbed or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, NamedTuple

from attributes import Attribute, Contents, differences
from hushstream.agents.recovery.user_store import UserDatabase
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import MachineMaker
from hushstream.engine.declare.role import Role
from hushstream.engine.machine import MemoryUserStore
from hushstream.engine.records import InputRecord, InputSlice, Output, Step, TopicPartition
from hushstream.privacy.key_files import KeyRing
from recordings import KEYS, Recording
from storage import SEAL

EPOCH_NONCE = bytes(range(16))
"""Names the epoch of a suspected rollback."""


class RotatedKeys(KeySource):
    """Keys whose file was rotated after the journals began: the next record that closes something names the new key."""

    def ring(self, zone: str) -> KeyRing:
        return KeyRing(0, 1, (), self.key(zone))


ROTATED = RotatedKeys(seed=KEYS.seed)


class Scenario(NamedTuple):
    """What else happens to a machine, whether it is disturbed or not.

    Attributes:
        name: in the ids of tests.
        rotates: the zone's key is rotated.
        suspected: a rollback is suspected after half of the input, so that an epoch of the noise is opened.
        spills: where users go of whom more than `RESIDENT_USERS` are in memory; empty where all stay.
    """

    name: str
    rotates: bool = False
    suspected: bool = False
    spills: Literal["", "memory", "disk"] = ""


PLAIN = Scenario("plain")
ROTATED_AND_SUSPECTED = Scenario("rotated-and-suspected", rotates=True, suspected=True)
SPILLED = (
    Scenario("spilled-to-memory", spills="memory"),
    Scenario("spilled-to-disk", rotates=True, suspected=True, spills="disk"),
)
RESIDENT_USERS = 2
COMPARED_EVERY = 3
"""Restarts after which all attributes are compared, which takes longer than the restart."""


class Written(NamedTuple):
    """What a fold gave."""

    journal: bytes | None
    releases: tuple[Output, ...]
    dead_letters: tuple[Output, ...]
    counts: Mapping[str, int]
    rotates: bool

    @classmethod
    def by(cls, step: Step) -> Written:
        counts = {str(name): number for name, number in step.counts.items() if number}
        return cls(step.journal, tuple(step.releases), tuple(step.dead_letters), counts, step.key_rotated)


@dataclass
class Rig:
    """One home partition of a role over a recording.

    Attributes:
        recording, role, home, scenario: what is driven, and what happens to it.
        remake: makes the machine in place of the declared one (a test of the suite itself).
        folder: for users on disk.
        machine: the one that runs now.
    """

    recording: Recording
    role: Role
    home: int
    scenario: Scenario = PLAIN
    folder: Path | None = None
    remake: Callable[[Any], Any] = lambda machine: machine
    machine: Any = field(init=False)

    def __post_init__(self) -> None:
        self._store = None if not self.scenario.spills else MemoryUserStore()
        if self.scenario.spills == "disk":
            self._store = UserDatabase(Path(mkdtemp(dir=self.folder)) / "0.users", SEAL)
        self._maker = MachineMaker(self.role, self.recording.system, ROTATED if self.scenario.rotates else KEYS)
        self._genesis = self.recording.records[self._maker(self.home).journal][0].value
        self.machine = self.fresh()

    def fresh(self) -> Any:
        """A machine that has started on the recorded journal, and folded nothing."""
        machine: Any = self.remake(self._maker.of_journal(self.home, self._genesis))
        if self._store is not None:
            machine.keep_users(self._store, RESIDENT_USERS)
        machine.start(self._genesis)
        return machine

    def restored(self) -> Any:
        """A new machine that goes on from a snapshot of the one that runs, over the users that were saved with it."""
        snapshot = self.machine.snapshot()
        if self.scenario.spills == "disk":
            self._store.save(snapshot)
            self._store.rewind()
        elif self.scenario.spills:
            self._store = MemoryUserStore()
        machine = self.fresh()
        machine.restore(snapshot)
        return machine

    def close(self) -> None:
        """Give up the file of users."""
        if self.scenario.spills == "disk":
            self._store.close()

    def input(self) -> list[tuple[TopicPartition, InputRecord]]:
        """All records that the machine reads, by log time."""
        there = self.recording.records
        every = [(place, record) for place in self.machine.positions() for record in there.get(place, ())]
        return sorted(every, key=lambda item: item[1].timestamp_ms)

    def drive(self) -> Iterator[list[Written]]:
        """Feed record by record, and give what is written after each; another machine may be put in place between."""
        arrived: dict[TopicPartition, list[InputRecord]] = {place: [] for place in self.machine.positions()}
        every = self.input()
        for number, (place, record) in enumerate(every):
            suspected = self.scenario.suspected and number == len(every) // 2
            if suspected:
                self.machine.request_epoch(EPOCH_NONCE, forked=True)
            arrived[place].append(record)
            yield [Written.by(step) for steps in self.folds(arrived) for step in steps]

    def folds(self, arrived: Mapping[TopicPartition, Sequence[InputRecord]]) -> Iterator[Sequence[Step]]:
        """As the direct runner does: fold what is ready, and wait for nothing that a log has not got."""
        while True:
            slices = self.waiting(arrived)
            ready = [part for part in self.machine.ready(slices) if part.high > part.low] if slices else []
            if ready:
                yield self.machine.fold(ready)
                continue
            awaited = self.machine.awaited
            if awaited is None:
                return
            end = len(arrived[awaited.source])
            self.machine.ends_at(len(arrived[self.machine.inputs[0]]), end)
            if awaited.offset < end:
                return

    def waiting(self, arrived: Mapping[TopicPartition, Sequence[InputRecord]]) -> list[InputSlice]:
        return [
            InputSlice(*place, low, len(arrived[place]), arrived[place][low:])
            for place, low in self.machine.positions().items()
            if len(arrived[place]) > low
        ]


def require_undisturbed(rig: Rig, other: Rig, passed: Set[tuple[str, str]], contents: Contents) -> set[Attribute]:
    """Drive one rig as it is and the other restored at every record, and compare all that they write.

    Where users are spilled, a restart changes who of them is in memory: packed states are compared in the others.

    Args:
        rig, other: two of a kind.
        passed, contents: of `differences`.

    Returns:
        The attributes in which a restored machine differed from the one that it goes on for.

    Raises:
        AssertionError: what is written differs, or the packed states do.
    """
    lost: set[Attribute] = set()
    where = f"{rig.recording.name}: role {rig.role.name}, home {rig.home}, {rig.scenario.name}"

    def restart(number: int) -> None:
        before, other.machine = other.machine, other.restored()
        if not rig.scenario.spills:
            same = other.machine.snapshot() == rig.machine.snapshot()
            assert same, f"{where}: restored before record {number}, it packs another state"
            if not number % COMPARED_EVERY:
                lost.update(differences(before, other.machine, passed, contents))

    restart(0)
    for number, (ours, theirs) in enumerate(zip(rig.drive(), other.drive(), strict=True)):
        assert ours == theirs, (
            f"{where}: restored before record {number}, it writes other bytes: {_first(ours, theirs)}"
        )
        restart(number + 1)
    return lost


def _first(ours: list[Written], theirs: list[Written]) -> str:
    if len(ours) != len(theirs):
        return f"{len(theirs)} steps in place of {len(ours)}"
    pairs = (
        (name, getattr(a, name), getattr(b, name)) for a, b in zip(ours, theirs, strict=True) for name in a._fields
    )
    return next(name for name, one, another in pairs if one != another)
