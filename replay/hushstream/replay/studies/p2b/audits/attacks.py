"""Attacks on the protocol around the noise; each attack succeeds if a certain rule of the protocol is missing.

As in `hushstream.replay.studies.p2b.audits.releases`, a run is one cell wherever cells do not affect one another.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import generate_latest

from hushstream.agents.errors import JournalLost
from hushstream.agents.observe.metrics import Labels, Metrics
from hushstream.agents.recovery.journal import JournalWriter
from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.machine import Machine
from hushstream.engine.records import InputRecord, InputSlice, Output, Step
from hushstream.privacy.amounts import epsilon_float
from hushstream.privacy.audits.audit import audit_attack
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import laplace_scale
from hushstream.privacy.mechanisms.tables import LaplaceTables, laplace_tables
from hushstream.replay.audits.draws import each_run, fresh_key, fresh_nonce, side_by_side
from hushstream.replay.audits.row import Run
from hushstream.replay.runners.to_end import run_to_end
from hushstream.replay.studies.p2b.audits.releases import CELLS, TARGET, crowd_sums, p2b, published, slots
from hushstream.replay.studies.p2b.audits.worked import played_windows
from hushstream.schemas import codec
from hushstream.systems.p2b.configuration import ReleaseConfig
from hushstream.systems.p2b.contribution.slots import Report, pack
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.machines.learner import LearnerMachine
from hushstream.systems.p2b.machines.release import release_window
from hushstream.systems.p2b.machines.shuffler import ShufflerMachine
from hushstream.systems.p2b.shuffler.windows import Windows
from hushstream.systems.p2b.system import LEARNER
from hushstream.systems.p2b.topics import TOPICS

WINDOWS, WINDOW_SLOTS = 14, 4
REPLAYS = 16
OWNERS = 16
EPSILONS = (0.5, 1.0)
SAMPLING, THRESHOLD = 0.5, 5
_REACH = 120
_WORD = 1 << 64


def shifted_window() -> Run:
    """Attack windows that close by count: a missing slot would shift every later slot by one place.

    Every window has slots of one cell. The attacker decides for a shift if one window's sums are too small by one, and
    those of the next window's cell too large by one.
    """
    system = p2b(ReleaseConfig(sums="fresh", window_slots=WINDOW_SLOTS))
    key = fresh_key()
    known = [pack(Report(place // WINDOW_SLOTS, TARGET, 1)) for place in range((WINDOWS + 1) * WINDOW_SLOTS)]

    def score(present: bool) -> float:
        nonce, windows, votes = fresh_nonce(), Windows(system.window_rules()), 0
        for place, content in enumerate(known):
            closed = windows.offer(place.to_bytes(16, "big"), 0, content if place or present else pack(None)).closed
            if closed is None or closed.window == WINDOWS:
                continue
            ones = crowd_sums(system, release_window(system, key, nonce, 0, closed).crowd)[0, :, TARGET]
            votes += 1 if ones[closed.window] >= WINDOW_SLOTS else -1
            votes += 1 if ones[closed.window + 1] <= 0 else -1
        return float(votes)

    return partial(audit_attack, each_run(score), system.guarantee().cost, None)


def redrawn_noise() -> Run:
    """Attack a window that is released repeatedly, as after crashes: the mean of new draws would reveal the content."""
    system, key = p2b(ReleaseConfig(sums="fresh")), fresh_key()

    def scores(present: bool) -> NDArray[np.float64]:
        nonce = fresh_nonce()
        again = [published(system, key, [slots(present)], nonce)[0, 0, :, TARGET] for _ in range(REPLAYS)]
        return np.asarray(np.mean(again, axis=0) - 0.5, dtype=np.float64)

    return partial(audit_attack, side_by_side(scores, CELLS), system.guarantee().cost, None)


def two_epsilons() -> Run:
    """Attack one cell that is released at two epsilons under one key and nonce.

    Two draws of noise from one random stream would reveal the cell.
    """
    systems = [p2b(ReleaseConfig(sums="fresh", epsilon=epsilon)) for epsilon in EPSILONS]
    key, law = fresh_key(), _coupled(*EPSILONS)
    first, second = (system.guarantee().cost for system in systems)
    claimed = first + second
    least = math.exp(epsilon_float(claimed.epsilon_micro))

    def scores(present: bool) -> NDArray[np.float64]:
        nonce = fresh_nonce()
        noised = [published(system, key, [slots(present)], nonce)[0, 0, :, TARGET] for system in systems]
        low, high = (np.clip(one, 1 - _REACH, _REACH) + _REACH for one in noised)
        return np.asarray(law[low - 1, high - 1] - least * law[low, high])

    return partial(audit_attack, side_by_side(scores, CELLS), claimed, None)


def forked_journal() -> Run:
    """Attack a journal with two branches that release one window with different contents; equal noise would cancel.

    Each branch has its own shuffler. The other branch holds a report that the first does not; the unit is in one of
    them. The price of both together is that of two releases.
    """
    release = ReleaseConfig(sums="fresh", epsilon=EPSILONS[0], window_slots=CELLS + 1)
    system, key = p2b(release), fresh_key()

    def scores(present: bool) -> NDArray[np.float64]:
        nonce, branches = fresh_nonce(), ([*slots(present), None], [*slots(False), Report(0, 1 - TARGET, 1)])
        lost, found = (played_windows(system, key, [branch], nonce)[0, 0, :, TARGET] for branch in branches)
        difference = lost - found
        return np.asarray((difference == 1).astype(np.float64) - (difference == 0))

    price = system.guarantee().cost
    return partial(audit_attack, side_by_side(scores, CELLS), price + price, None)


@lru_cache(maxsize=4)
def _coupled(low: float, high: float) -> NDArray[np.float64]:
    """P(x, y) of one draw at each epsilon from the same random words, for x and y from -`_REACH` to `_REACH`."""
    first, second = (laplace_tables(*laplace_scale(epsilon, 1)) for epsilon in (low, high))
    sizes = _shared(*(_thresholds(tables) for tables in (first, second)))
    signs = _shared([int(first.negative_below)], [int(second.negative_below)])
    law = np.zeros((2 * _REACH + 1, 2 * _REACH + 1))
    for below_first, below_second, chance in signs:
        for one, other, mass in sizes:
            if max(one, other) < _REACH:
                x, y = (
                    size if positive else -1 - size for size, positive in ((one, below_first), (other, below_second))
                )
                law[x + _REACH, y + _REACH] += chance * mass
    return law


def _thresholds(tables: LaplaceTables) -> list[int]:
    (digit,) = tables.digits
    return [int(threshold) for threshold in digit.tolist()]


def _shared(first: list[int], second: list[int]) -> list[tuple[int, int, float]]:
    """The number of thresholds in each row that are below a uniform word, with the probability of each pair."""
    edges = sorted({0, *first, *second})
    return [
        (sum(t <= edge for t in first), sum(t <= edge for t in second), (after - edge) / _WORD)
        for edge, after in zip(edges, [*edges[1:], _WORD], strict=True)
    ]


def injected_reports() -> Run:
    """Attack sampled tuples: an adversary adds all but one of the reports that a crowd needs, and sees its release."""
    system, key = p2b(ReleaseConfig(mode="tuples", sampling=SAMPLING, threshold=THRESHOLD)), fresh_key()

    def scores(present: bool) -> NDArray[np.float64]:
        return np.asarray(published(system, key, [slots(present, THRESHOLD - 1)])[0, 0, :, TARGET] - 0.5)

    return partial(audit_attack, side_by_side(scores, CELLS), system.guarantee().cost, None)


@dataclass(slots=True)
class _Journal:
    """One journal partition in memory to which every worker may append."""

    records: list[bytes]

    async def send(self, output: Output) -> Awaitable[Any]:
        """Append, and acknowledge with the record's offset."""
        self.records.append(output.value)
        landed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        landed.set_result(_Landed(len(self.records) - 1))
        return landed

    async def read(self, offset: int) -> list[tuple[int, bytes]]:
        """The records from an offset on."""
        return list(enumerate(self.records))[offset:]


@dataclass(frozen=True, slots=True)
class _Landed:
    offset: int


def two_owners() -> Run:
    """Attack several workers on one partition, each with its own slot: together their releases would average noise."""
    system = p2b(ReleaseConfig(sums="fresh", window_slots=CELLS + 1))
    key = fresh_key()
    held = [Report(code, 1 - TARGET, 1) for code in range(OWNERS)]

    def scores(present: bool) -> NDArray[np.float64]:
        genesis = ShufflerMachine(system, 0, key).genesis(fresh_nonce())
        seen = run_to_end(partial(_race, system, key, genesis, [[*slots(present), other] for other in held]))
        return np.asarray(np.mean([crowd[0, :, TARGET] for crowd in seen], axis=0) - 0.5, dtype=np.float64)

    return partial(audit_attack, side_by_side(scores, CELLS), system.guarantee().cost, None)


async def _race(
    system: P2BSystem, key: Key, genesis: bytes, windows: Sequence[Sequence[Report | None]]
) -> list[NDArray[np.int64]]:
    """The outputs of several owners that continue one journal at the same offset.

    An owner appends its journal record, gets the acknowledgement, and only then releases.
    """
    journal = _Journal([genesis])
    under_way = []
    for contents in windows:
        machine = ShufflerMachine(system, 0, key)
        machine.start(genesis)
        writer = JournalWriter(journal, machine.journal, 1, journal.read, partial(_sequence, machine))
        step = next(step for step in machine.fold([_reports(system, contents)]) if step.journal is not None)
        assert step.journal is not None
        under_way.append((writer, await writer.append(step.journal, 1), step))
    published_crowds = []
    for writer, append, step in under_way:
        try:
            await writer.confirm(append)
        except JournalLost:
            continue
        fields = [codec.decode(output.value)[1] for output in step.releases if output.topic == "crowds"]
        published_crowds += [crowd_sums(system, crowd) for crowd in fields]
    return published_crowds


def _sequence(machine: Machine, value: bytes) -> int:
    return machine.entry(value).sequence


def _reports(system: P2BSystem, contents: Sequence[Report | None]) -> InputSlice:
    records = []
    for place, report in enumerate(contents):
        fields = {
            "report_id": place.to_bytes(16, "big"),
            "period": bytes(8),
            "config_digest": system.digest,
            "content": pack(report),
        }
        records.append(InputRecord(place, 0, codec.encode("SlotReport", fields)))
    return InputSlice("reports", 0, 0, len(records), tuple(records))


def differenced_metrics() -> Run:
    """Attack the public endpoint: read it before and after, to see whether a user clicked."""
    system, key = p2b(ReleaseConfig(sums="fresh")), fresh_key()
    without = _public_change(system, key, clicked=False)

    def score(present: bool) -> float:
        return 1.0 if _public_change(system, key, clicked=present) != without else -1.0

    return partial(audit_attack, each_run(score), system.guarantee().cost, None)


def _public_change(system: P2BSystem, key: Key, clicked: bool) -> tuple[bytes, bytes]:
    """The public metrics of a learner before and after a context, a displayed item, and perhaps a click."""
    machine = LearnerMachine(system, 0, key)
    machine.start(machine.genesis(bytes(32)))
    topics = tuple(topic.name for topic in TOPICS)
    labels = Labels(LEARNER.name, tuple(LEARNER.outcomes), topics=topics, partitions=1, private_work=True)
    metrics = Metrics(labels)
    context = np.eye(CELLS, dtype="<f4")[0].tobytes()
    _fold(machine, metrics, "contexts", "Context", {"event_id": "event", "user": "user", "context": context})
    before = generate_latest(metrics.public)
    feedback = {"event_id": "event", "user": "user", "arm": 0}
    shown = [{**feedback, "kind": "shown", "reward": 0.0}]
    reward = [{**feedback, "kind": "reward", "reward": 1.0}] if clicked else []
    for fields in (*shown, *reward):
        _fold(machine, metrics, "clicks", "Feedback", fields)
    return before, generate_latest(metrics.public)


def _fold(machine: LearnerMachine, metrics: Metrics, topic: str, schema: str, fields: dict[str, Any]) -> None:
    """Fold one record, and count for it as a worker does."""
    place = machine.positions()[topic, 0]
    record = InputRecord(place, 0, codec.encode(schema, fields))
    for step in machine.fold([InputSlice(topic, 0, place, place + 1, (record,))]):
        _count(metrics, step)


def _count(metrics: Metrics, step: Step) -> None:
    """Count a step as a worker does; here no step takes any time."""
    if step.journal is not None:
        metrics.journaled()
    metrics.batch(step.counts, 0.0)
    metrics.released(step.releases)
    metrics.dead_letters(step.dead_letters)


def differenced_windows() -> Run:
    """Attack everything public about a window except its sums, to see whether every slot holds a report, or null."""
    system, key = p2b(ReleaseConfig(sums="fresh", window_slots=CELLS)), fresh_key()
    without = _public_window(system, key, slots(False))

    def score(present: bool) -> float:
        return 1.0 if _public_window(system, key, slots(present)) != without else -1.0

    return partial(audit_attack, each_run(score), system.guarantee().cost, None)


def _public_window(system: P2BSystem, key: Key, contents: Sequence[Report | None]) -> tuple[list[object], bytes]:
    """Everything that a shuffler publishes about one window except noised sums, and its public metrics."""
    machine = ShufflerMachine(system, 0, key)
    machine.start(machine.genesis(bytes(32)))
    metrics = Metrics(
        Labels("shuffler", outcomes=tuple(Outcome), topics=tuple(topic.name for topic in TOPICS), partitions=1)
    )
    seen: list[object] = []
    for step in machine.fold([_reports(system, contents)]):
        _count(metrics, step)
        for output in step.releases:
            name, fields = codec.decode(output.value)
            public = {field: value for field, value in fields.items() if field not in ("ones", "zeros")}
            seen.append((output.topic, output.partition, output.key, len(output.value), name, public))
    return seen, generate_latest(metrics.public)
