"""Three small real machines that obey the protocol truly: they chain, digest, verify and refuse.

Values are JSON. Each factory takes the arguments of a run and gives (make_machine, RoleTopics).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import faust

from hushstream.agents import process
from hushstream.agents.worker.preflight import RoleTopics
from hushstream.engine.machine import Machine
from hushstream.engine.records import (
    Awaited,
    InputRange,
    InputSlice,
    JournalEntry,
    OffChain,
    Output,
    ReplayMismatch,
    Step,
    TopicPartition,
)
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import seeded_key
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import PartitionRule, Topic

Place = TopicPartition


class Maker:
    """A factory whose zone has a key, for the marks of what it releases."""

    def __init__(self, make: Callable[[int], Machine]) -> None:
        self._make = make

    def __call__(self, partition: int) -> Machine:
        return self._make(partition)

    def of_journal(self, partition: int, genesis: bytes, resumed: bool = False) -> Machine:
        return self(partition)

    def mark_keys(self) -> KeyRing:
        return KeyRing(0, 0, (), seeded_key(1, "small machines"))

    def state_keys(self) -> KeyRing:
        return self.mark_keys()

    spending_terms = None
    irreplaceable = ""


Making = tuple[Maker, RoleTopics]


def pack(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def digest(*chunks: bytes) -> str:
    hasher = blake2b(digest_size=16)
    for chunk in chunks:
        hasher.update(len(chunk).to_bytes(8, "little"))
        hasher.update(chunk)
    return hasher.hexdigest()


def digest_slices(slices: Sequence[InputSlice]) -> str:
    chunks = [pack([s.topic, s.partition, s.low, s.high]) for s in slices]
    chunks += [pack([r.offset, r.timestamp_ms]) + r.value for s in slices for r in s.records]
    return digest(*chunks)


def digest_outputs(outputs: Sequence[Output]) -> str:
    return digest(*[pack([o.topic, o.partition]) + o.value for o in outputs])


class ChainedMachine(Machine):
    """Genesis, chain and replay; what a batch does is `_apply`."""

    role = ""
    inputs: tuple[Place, ...] = ()

    def __init__(self, partition: int, deployment: str) -> None:
        self.partition = partition
        self._deployment = deployment
        self.journal: Place = (f"journal-{self.role}", partition)
        self._sequence = -1
        self._chain = ""
        self._positions: dict[Place, int] = {}
        self._state: dict[str, Any] = {}

    def genesis(self, nonce: bytes) -> bytes:
        return pack([0, self.role, self.partition, self._deployment, nonce.hex()])

    def start(self, genesis: bytes) -> None:
        found = json.loads(genesis)
        if found[:4] != [0, self.role, self.partition, self._deployment]:
            raise HushstreamError(f"journal: expected deployment {self._deployment}, found {found[3]}")
        self._sequence = 0
        self._chain = digest(genesis)

    def is_last(self, value: bytes) -> bool:
        return digest(value) == self._chain

    def continues(self, value: bytes, last: bytes) -> bool:
        return False  # no schema of these is unknown

    def entry(self, value: bytes) -> JournalEntry:
        found = self._read(value)
        if isinstance(found, list):
            return JournalEntry(0, ())
        ranges = tuple(InputRange(*r) for r in found["ranges"])
        return JournalEntry(found["sequence"], ranges, input_digest=found["input"].encode())

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        return digest_slices(slices).encode()

    def positions(self) -> Mapping[Place, int]:
        return dict(self._positions)

    def committed(self) -> Mapping[Place, int]:
        return {place: self._positions.get(place, 0) for place in self.inputs}

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        return slices

    def recovery_ranges(self, value: bytes) -> tuple[InputRange, ...]:
        return self.entry(value).inputs

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        for part in slices:
            assert part.low == self._positions.get((part.topic, part.partition), 0), "folded from another place"
        outputs, dead, counts = self._apply(slices)
        value = self._record(slices, digest_slices(slices), outputs)
        self._advance(slices, value)
        return [Step(value, outputs, dead, counts)]

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        found = self._accept(value)
        if digest_slices(slices) != found["input"]:
            raise ReplayMismatch(f"record {found['sequence']}: the inputs have another digest")
        outputs, dead, counts = self._apply(slices)
        if digest_outputs(outputs) != found["release"]:
            raise ReplayMismatch(f"record {found['sequence']}: the releases have another digest")
        self._advance(slices, value)
        return Step(value, outputs, dead, counts)

    def snapshot(self) -> bytes:
        places = [[*place, offset] for place, offset in self._positions.items()]
        return pack([self._sequence, self._chain, places, self._state])

    def restore(self, snapshot: bytes) -> None:
        self._sequence, self._chain, places, self._state = json.loads(snapshot)
        self._positions = {(topic, partition): offset for topic, partition, offset in places}

    def _read(self, value: bytes) -> Any:
        try:
            return json.loads(value)
        except ValueError:
            raise HushstreamError("not a journal record") from None

    def _accept(self, value: bytes) -> Any:
        found = self._read(value)
        if isinstance(found, list) or found["sequence"] != self._sequence + 1 or found["previous"] != self._chain:
            raise OffChain("does not continue")
        for topic, partition, low, _ in found["ranges"]:
            if self._watermark().get((topic, partition), 0) != low:
                raise OffChain("other lows")
        return found

    def _watermark(self) -> Mapping[Place, int]:
        return self._positions

    def _record(self, slices: Sequence[InputSlice], input_digest: str, outputs: Sequence[Output]) -> bytes:
        return pack(
            {
                "sequence": self._sequence + 1,
                "previous": self._chain,
                "ranges": [[s.topic, s.partition, s.low, s.high] for s in slices],
                "input": input_digest,
                "release": digest_outputs(outputs),
            }
        )

    def _advance(self, slices: Sequence[InputSlice], value: bytes) -> None:
        for part in slices:
            self._positions[(part.topic, part.partition)] = part.high
        self._sequence += 1
        self._chain = digest(value)

    def _apply(self, slices: Sequence[InputSlice]) -> tuple[tuple[Output, ...], tuple[Output, ...], Mapping[str, int]]:
        raise NotImplementedError


class Counting(ChainedMachine):
    """Counts events by key; releases each touched key's count, to a partition chosen by the key."""

    role = "counting"

    def __init__(self, partition: int, deployment: str, targets: int) -> None:
        super().__init__(partition, deployment)
        self.inputs = (("events", partition),)
        self._targets = targets

    def _apply(self, slices: Sequence[InputSlice]) -> tuple[tuple[Output, ...], tuple[Output, ...], Mapping[str, int]]:
        touched: dict[str, int] = {}
        dead: list[Output] = []
        for record in slices[0].records:
            key = record.value.decode(errors="replace")
            if not key.startswith("k"):
                dead.append(Output("dead", 0, pack([self.role, self.partition, record.offset, "not_a_key"])))
                continue
            self._state[key] = touched[key] = self._state.get(key, 0) + 1
        outputs = tuple(
            Output("counts", int(digest(key.encode()), 16) % self._targets, pack([self.partition, key, count]))
            for key, count in sorted(touched.items())
        )
        return outputs, tuple(dead), {"decided": len(slices[0].records) - len(dead), "rejected": len(dead)}


class Joining(ChainedMachine):
    """Left records wait for a right offset; both are scaled by the last rule that was broadcast.

    A left record whose right offset is not in its batch is refused.
    """

    role = "joining"

    def __init__(self, partition: int, deployment: str) -> None:
        super().__init__(partition, deployment)
        self.inputs = (("left", partition), ("right", partition))
        self._positions[("rules", 0)] = 0
        self._state = {"rule": 1, "right": 0, "total": 0}
        self._awaited: Awaited | None = None
        self._known = (0, 0)

    @property
    def awaited(self) -> Awaited | None:
        return self._awaited

    def ends_at(self, before: int, end: int) -> None:
        self._known = (before, end)

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        right = next((s for s in slices if s.topic == "right"), None)
        seen = right.high if right is not None else self._positions.get(self.inputs[1], 0)
        chosen = []
        for part in slices:
            if part.topic == "left":
                part = self._ready_left(part, seen)
            if part.records:
                chosen.append(part)
        return sorted(chosen, key=lambda s: ("rules", "right", "left").index(s.topic))

    def _ready_left(self, part: InputSlice, seen: int) -> InputSlice:
        self._awaited = None
        before, end = self._known
        for number, record in enumerate(part.records):
            named = json.loads(record.value)[1]
            if named >= seen and not (record.offset < before and named >= end):
                self._awaited = Awaited(record.offset, self.inputs[1], named, 1 << 62)
                return part._replace(high=record.offset, records=part.records[:number])
        return part

    def _apply(self, slices: Sequence[InputSlice]) -> tuple[tuple[Output, ...], tuple[Output, ...], Mapping[str, int]]:
        state, outputs, dead = self._state, [], []
        seen = max([self._positions.get(self.inputs[1], 0), *(part.high for part in slices if part.topic == "right")])
        for part in slices:
            for record in part.records:
                value = json.loads(record.value)
                if part.topic == "rules":
                    state["rule"] = value
                elif part.topic == "right":
                    state["right"] += value
                elif value[1] >= seen:
                    dead.append(Output("dead", 0, pack([self.role, self.partition, record.offset, "not_there"])))
                else:
                    state["total"] += value[0] * state["rule"] + state["right"]
                    # The rule is not part of what must be equal between runs when rules race with inputs.
                    outputs.append(
                        Output("joined", self.partition, pack([self.partition, record.offset, state["total"]]))
                    )
        return tuple(outputs), tuple(dead), {"decided": len(outputs), "rejected": len(dead)}


class Window(ChainedMachine):
    """Journals only full windows of n distinct ids; remembers the ids of the one before: commits lag."""

    role = "window"

    def __init__(self, partition: int, deployment: str, size: int) -> None:
        super().__init__(partition, deployment)
        self._place: Place = ("slots", partition)
        self.inputs = (self._place,)
        self._size = size
        self._low = 0
        self._ids_low = 0
        self._before: list[str] = []
        self._open: list[tuple[str, int]] = []
        self._running = ""

    def _watermark(self) -> Mapping[Place, int]:
        return {self._place: self._low}

    def committed(self) -> Mapping[Place, int]:
        return {self._place: self._ids_low}

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        (part,) = slices
        steps = [step for record in part.records if (step := self._take(record)) is not None]
        self._positions[self._place] = part.high
        return steps or [Step(None, counts={"slot": len(part.records)})]

    def recovery_ranges(self, value: bytes) -> tuple[InputRange, ...]:
        return self.entry(value).inputs

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        found = self._accept(value)
        kept = (self._open, self._running)
        self._open, self._running = [], ""
        steps = [s for record in slices[0].records if (s := self._take(record)) is not None]
        if len(steps) != 1 or steps[0].journal != value:
            self._open, self._running = kept
            raise ReplayMismatch(f"record {found['sequence']}: the inputs give another window")
        self._positions[self._place] = slices[0].high
        return steps[0]

    def snapshot(self) -> bytes:
        return pack(
            {
                "chain": [self._sequence, self._chain, self._low, self._ids_low],
                "window": [self._before, self._open, self._running],
                "position": self._positions.get(self._place, 0),
            }
        )

    def restore(self, snapshot: bytes) -> None:
        found = json.loads(snapshot)
        self._sequence, self._chain, self._low, self._ids_low = found["chain"]
        self._before, opened, self._running = found["window"]
        self._open = [(name, value) for name, value in opened]
        self._positions = {self._place: found["position"]}

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        running = ""
        for record in slices[0].records:
            running = self._ran(running, record)
        return running.encode()

    def _ran(self, running: str, record: Any) -> str:
        return digest(running.encode(), pack([record.offset, record.timestamp_ms]), record.value)

    def _take(self, record: Any) -> Step | None:
        name, amount = json.loads(record.value)
        self._running = self._ran(self._running, record)
        if name in self._before or any(name == other for other, _ in self._open):
            return None
        self._open.append((name, amount))
        if len(self._open) < self._size:
            return None
        total = sum(amount for _, amount in self._open)
        output = Output("sums", 0, pack([self.partition, self._sequence + 1, total]))
        part = InputSlice(*self._place, self._low, record.offset + 1, ())
        value = self._record([part], self._running, [output])
        self._before = [name for name, _ in self._open]
        self._ids_low, self._low = self._low, record.offset + 1
        self._open, self._running = [], ""
        self._sequence += 1
        self._chain = digest(value)
        return Step(value, (output,), counts={"window": 1, "slot": self._size})


def made_topics(
    inputs: tuple[str, ...], role: str, writes: tuple[str, ...], broadcasts: tuple[str, ...] = ()
) -> RoleTopics:
    """The topics of a small machine, all declared; the schemas are as good as any, since values are JSON here."""
    journal, marks, state = f"journal-{role}", f"marks-{role}", f"state-{role}"
    names = (*inputs, journal, *writes, *broadcasts)
    declared = {name: declaration(name) for name in names}
    declared |= {name: declaration(name, cleanup="compact") for name in (marks, state)}
    return RoleTopics(inputs, journal, writes, broadcasts, declared=declared, marks=marks, state=state)


def declaration(name: str, cleanup: str = "delete") -> Topic:
    """Kept for ever, and no ledger."""
    return Topic(
        name=name, schemas=("Tick",), zone="small", partition_rule=PartitionRule.HOME, count="homes", retention_ms=None,
        noised=False, names_users=False, deletions=False, ticks=False, private_lag=False, cleanup=cleanup,
    )  # fmt: skip


def counting(deployment: str = "test", targets: int = 2) -> Making:
    topics = made_topics(("events",), "counting", ("counts", "dead"))
    return Maker(lambda partition: Counting(partition, deployment, targets)), topics


def clinging(deployment: str = "test", targets: int = 2) -> Making:
    """Counting, in a process whose stream client never ends: its last wait holds the event loop."""

    async def stop(app: Any) -> None:
        threading.Event().wait()

    faust.App.stop = stop
    process.END_SECONDS = 1.0
    return counting(deployment, targets)


def joining(deployment: str = "test") -> Making:
    topics = made_topics(("left", "right"), "joining", ("joined", "dead"), ("rules",))
    return Maker(lambda partition: Joining(partition, deployment)), topics


def window(deployment: str = "test", size: int = 10) -> Making:
    topics = made_topics(("slots",), "window", ("sums",))
    return Maker(lambda partition: Window(partition, deployment, size)), topics
