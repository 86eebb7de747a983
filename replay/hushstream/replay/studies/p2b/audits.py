"""The audits of P2B: releases, attacks, noise of each place, forks and configurations.

*Recordings.* P2B's roles release from known inputs, with stops and restarts.

*Protocol.* Attacks around the noise; each succeeds if a certain rule of the protocol is missing.

*Neighbours.* The shuffler and the lift on neighbouring inputs, each under its own journal nonce. A run is one cell of
the shuffler, or one group of the lift: a slot or a user changes only its own cell or group, and the noise (or the
coins) of the others is independent. So one release gives as many runs as it has cells.

*Declared features.* The strongest report of a deployment puts all units of a slot into one cell: it moves that cell as
far as any report moves all cells together. A run is one cell, because each cell has its own slot and its own noise.

Forks of the journals of P2B's roles.

The audits of P2B: every release mode, the lift, and attacks through its roles.

The audit of one P2B configuration.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import generate_latest

from hushstream.agents.errors import JournalLost
from hushstream.agents.observe.metrics import Labels, Metrics
from hushstream.agents.recovery.journal import JournalWriter
from hushstream.counting import NegativeDigitTree
from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.machine import Machine
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.records import InputRecord, InputSlice, Output, Step
from hushstream.features.schema import declare
from hushstream.privacy.amounts import epsilon_float
from hushstream.privacy.audits import (
    Attack,
    Family,
    Pair,
    Sizes,
    laplace_pair,
    lattice_sizes,
    pure,
    sampled_pair,
)
from hushstream.privacy.keys import Key, seeded_key
from hushstream.privacy.mechanisms.guarantee import tuples_guarantee
from hushstream.privacy.mechanisms.noise import (
    bernoulli,
)
from hushstream.replay.audits.configured import (
    AuditReport,
    first_draw,
    laplace_law,
    report_of,
    seen,
    steps_for,
)
from hushstream.replay.audits.readings import LAPLACE_FAMILY, Reading, reading_family, reading_of, unmixed
from hushstream.replay.audits.recordings import (
    AS_IT_WAS,
    Branch,
    PlayedRole,
    fresh_key,
    fresh_nonce,
    means,
    phase_end_fields,
    restart_between,
)
from hushstream.replay.audits.row import HORIZON, Audit, fork_row, noise_row
from hushstream.replay.audits.tests import (
    LEAVES,
    PARTITIONS,
    Axes,
    ForkTest,
    NeighbourTest,
    PlacesTest,
    SizeTest,
    columns,
    each_run,
    side_by_side,
)
from hushstream.replay.audits.work import SLOTS, Holds, Work, audit_of, has_content
from hushstream.replay.runners.to_end import run_to_end
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.codebook import CENTROID_STEPS
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    EncoderConfig,
    MeasurementConfig,
    P2BConfig,
    ReleaseConfig,
)
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.guarantee import PAPER_THRESHOLD, resolve_codes, summed_of
from hushstream.systems.p2b.lift import SUMS, Group, LiftCounter, lift_guarantee, lift_tree, required_lift
from hushstream.systems.p2b.machines.learner import LearnerMachine
from hushstream.systems.p2b.machines.shuffler import ShufflerMachine, open_running, release_address, release_window
from hushstream.systems.p2b.shuffler import ClosedBy, ClosedWindow, Windows
from hushstream.systems.p2b.slots import UNITS, FeatureLayout, Report, pack, pack_null, slot_columns
from hushstream.systems.p2b.system import LEARNER
from hushstream.systems.p2b.topics import TOPICS


def played_windows(
    system: P2BSystem,
    key: Key,
    windows: Sequence[Contents],
    nonce: bytes | None = None,
    partition: int = 0,
    branch: Branch = AS_IT_WAS,
) -> NDArray[np.float64]:
    """Sums of each window as a shuffler publishes them, float64 (windows, 2, codes, arms).

    The shuffler restarts after every window, from the journal alone or from a snapshot of the half-filled window.

    Args:
        system: a system whose windows have as many slots as each of ``windows``.
        key: the shuffler's key.
        windows: contents of the slots.
        nonce: the journal's nonce; None: a new one.
        partition: partition of the reports.
        branch: which branch of a rolled-back journal to play.
    """
    role = PlayedRole(partial(ShufflerMachine, system, partition, key), nonce, branch)
    for number, contents in enumerate(windows):
        half = len(contents) // 2
        for place, content in enumerate(contents):
            if place == half:
                role.work()
                role.keep()
            fields = slot_fields(system, branch.number(number * len(contents) + place), content)
            role.put("reports", "SlotReport", fields, partition)
        role.work()
        if number:
            role.restart(*role.kept)
        else:
            role.restart()
    sums = role.published("window-sums", "WindowSums", 0)
    return means(((record["window_id"], sums_released(system, record)) for record in sums), len(windows))


def played_lift(
    system: P2BSystem, key: Key, releases: int, nonce: bytes, partition: int = 0, branch: Branch = AS_IT_WAS
) -> NDArray[np.float64]:
    """Running counts of a lift as a learner publishes them, when no user was shown an item: (releases, 6)."""
    role = PlayedRole(partial(LearnerMachine, system, partition, key), nonce, branch)
    for number in range(releases):
        role.put("contexts", "Seal", phase_end_fields(system.digest, number), partition)
        role.work()
        restart_between(role, number, releases)
    lifts = role.published("lift", "Lift", partition)
    sums = ((lift["release_id"], np.frombuffer(lift["sums"], "<i8").astype(np.int64)) for lift in lifts)
    return means(sums, releases)


def slot_fields(system: P2BSystem, place: int, content: bytes) -> dict[str, Any]:
    """The fields of a record with one slot."""
    return {
        "report_id": place.to_bytes(16, "big"),
        "period": bytes(8),
        "config_digest": system.digest,
        "content": content,
    }


WINDOWS, WINDOW_SLOTS = 14, 4
REPLAYS = 16
OWNERS = 16
SAMPLING, THRESHOLD = 0.5, 5


def shifted_window() -> NeighbourTest:
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
            closed = windows.offer(place.to_bytes(16, "big"), 0, content if place or present else NULL).closed
            if closed is None or closed.window == WINDOWS:
                continue
            ones = sums_released(system, release_window(system, key, nonce, 0, closed).record)[0, :, TARGET]
            votes += 1 if ones[closed.window] >= WINDOW_SLOTS else -1
            votes += 1 if ones[closed.window + 1] <= 0 else -1
        return float(votes)

    return NeighbourTest(each_run(score), system.guarantee().cost)


def redrawn_noise() -> NeighbourTest:
    """Attack a window that is released repeatedly, as after crashes: the mean of new draws would reveal the content."""
    system, key = p2b(ReleaseConfig(sums="fresh")), fresh_key()

    def scores(present: bool) -> NDArray[np.float64]:
        nonce = fresh_nonce()
        again = [published(system, key, [slots(present)], nonce)[0, 0, :, TARGET] for _ in range(REPLAYS)]
        return np.asarray(np.mean(again, axis=0) - 0.5, dtype=np.float64)

    return NeighbourTest(side_by_side(scores, CELLS), system.guarantee().cost)


def injected_reports() -> NeighbourTest:
    """Attack sampled tuples: an adversary adds all but one of the reports that a crowd needs, and sees its release."""
    system, key = p2b(ReleaseConfig(mode="tuples", sampling=SAMPLING, threshold=THRESHOLD)), fresh_key()

    def scores(present: bool) -> NDArray[np.float64]:
        return np.asarray(published(system, key, [slots(present, THRESHOLD - 1)])[0, 0, :, TARGET] - 0.5)

    return NeighbourTest(side_by_side(scores, CELLS), system.guarantee().cost)


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


def two_owners() -> NeighbourTest:
    """Attack several workers on one partition, each with its own slot: together their releases would average noise."""
    system = p2b(ReleaseConfig(sums="fresh", window_slots=CELLS + 1))
    key = fresh_key()
    held = [pack(Report(code, 1 - TARGET, 1)) for code in range(OWNERS)]

    def scores(present: bool) -> NDArray[np.float64]:
        genesis = ShufflerMachine(system, 0, key).genesis(fresh_nonce())
        seen = run_to_end(partial(_race, system, key, genesis, [[*slots(present), other] for other in held]))
        return np.asarray(np.mean([record[0, :, TARGET] for record in seen], axis=0) - 0.5, dtype=np.float64)

    return NeighbourTest(side_by_side(scores, CELLS), system.guarantee().cost)


async def _race(system: P2BSystem, key: Key, genesis: bytes, windows: Sequence[Contents]) -> list[NDArray[np.int64]]:
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
    published_sums = []
    for writer, append, step in under_way:
        try:
            await writer.confirm(append)
        except JournalLost:
            continue
        fields = [codec.decode(output.value)[1] for output in step.releases if output.topic == "window-sums"]
        published_sums += [sums_released(system, record) for record in fields]
    return published_sums


def _sequence(machine: Machine, value: bytes) -> int:
    return machine.entry(value).sequence


def _reports(system: P2BSystem, contents: Contents) -> InputSlice:
    values = slot_records(system, contents)
    records = tuple(InputRecord(place, 0, value) for place, value in enumerate(values))
    return InputSlice("reports", 0, 0, len(records), records)


def slot_records(system: P2BSystem, contents: Contents) -> list[bytes]:
    """A record of each slot."""
    return [codec.encode("SlotReport", slot_fields(system, place, one)) for place, one in enumerate(contents)]


def differenced_metrics() -> NeighbourTest:
    """Attack the public endpoint: read it before and after, to see whether a user clicked."""
    system, key = p2b(ReleaseConfig(sums="fresh")), fresh_key()
    without = _public_change(system, key, clicked=False)

    def score(present: bool) -> float:
        return 1.0 if _public_change(system, key, clicked=present) != without else -1.0

    return NeighbourTest(each_run(score), system.guarantee().cost)


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


def differenced_windows() -> NeighbourTest:
    """Attack everything public about a window except its sums, to see whether every slot holds a report, or null."""
    system, key = p2b(ReleaseConfig(sums="fresh", window_slots=CELLS)), fresh_key()
    without = _public_window(system, key, slots(False))

    def score(present: bool) -> float:
        return 1.0 if _public_window(system, key, slots(present)) != without else -1.0

    return NeighbourTest(each_run(score), system.guarantee().cost)


def _public_window(system: P2BSystem, key: Key, contents: Contents) -> tuple[list[object], bytes]:
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


Contents = Sequence[bytes]
"""The contents of the slots of one window."""

NULL = pack(None)
"""The content of a slot of codes without a report."""

CELLS, ARMS = 25, 2
"""Codes and arms of an attacked deployment."""

_WAIT_MS = 1_000
"""Time that a decision waits for its reward before the lift counts it."""

TARGET = 1
"""The arm of the unit's report; the known reports are of arm 0, or in the same cell."""


def p2b(
    release: ReleaseConfig,
    measurement: MeasurementConfig | None = None,
    budget: BudgetConfig | None = None,
) -> P2BSystem:
    """A deployment with `CELLS` codes."""
    return stand_in(
        P2BConfig(
            deployment="audit",
            arms=ARMS,
            context=ContextConfig(CELLS),
            expected_slots=1_000,
            encoder=EncoderConfig(codes=CELLS),
            release=release,
            measurement=MeasurementConfig() if measurement is None else measurement,
            budget=budget,
        )
    )


def stand_in(config: P2BConfig) -> P2BSystem:
    """The deployment of a configuration with an encoder that is not fitted, as releases do not depend on centroids."""
    centroids = np.arange(resolve_codes(config)) % config.context.dimension
    return P2BSystem.of(config, np.eye(config.context.dimension, dtype=np.int64)[centroids] * CENTROID_STEPS)


def published(
    system: P2BSystem, key: Key, windows: Sequence[Contents], nonce: bytes | None = None
) -> NDArray[np.int64]:
    """The sums of some windows as the shuffler publishes them: int64 (windows, 2, *shape of the sums).

    The journal has a new nonce if none is given.
    """
    genesis, item_rows = fresh_nonce() if nonce is None else nonce, system.window_rules().item_rows
    running = open_running(system.window_tree, key, release_address(system, genesis, 0))
    sums = []
    for number, contents in enumerate(windows):
        closed = ClosedWindow(number, ClosedBy.SLOTS, tuple(contents), item_rows=item_rows)
        sums.append(sums_released(system, release_window(system, key, genesis, 0, closed, running).record))
    return np.array(sums)


def sums_released(system: P2BSystem, record: Mapping[str, Any]) -> NDArray[np.int64]:
    """The two sums of a window, int64 (2, *shape of the sums)."""
    sums = [np.frombuffer(record[name], "<i8").astype(np.int64) for name in ("ones", "zeros")]
    return np.array(sums).reshape(2, *system.form.shape)


def slots(present: bool, others: int = 0, other_arm: int = TARGET) -> list[bytes]:
    """For each code, the unit's slot (a report or null) and the reports of others."""
    known = [pack(Report(code, other_arm, 1)) for code in range(CELLS) for _ in range(others)]
    return [*known, *(pack(Report(code, TARGET, 1)) if present else NULL for code in range(CELLS))]


Publish = Callable[[P2BSystem, Key, Sequence[Contents]], NDArray[np.int64] | NDArray[np.float64]]
"""Publishes some windows, (windows, 2, *shape of the sums)."""

Forge = Callable[[NDArray[np.void], FeatureLayout], None]
"""Changes the content of slots of declared features in place."""


def as_it_is(slots: NDArray[np.void], layout: FeatureLayout) -> None:
    """Leave the report as it is, within the layout."""


def audit_summed(system: P2BSystem, most: int, publish: Publish = published, forge: Forge = as_it_is) -> NeighbourTest:
    """Attack fresh noise or a counter: a report moves the two sums of its cell by R and M - R, and nothing else.

    R is half of M, so that both sums move equally; where M is odd R is M, and only one sum moves. A report of declared
    features has all units in one cell, and moves it U times as far.

    Args:
        system: the attacked system.
        most: the most windows of a counter that the attack may feed.
        publish: the bare release, or the role around it.
        forge: changes reports of declared features.

    Raises:
        HushstreamError: see `reading_of`.
    """
    levels, tree = system.config.release.levels, system.window_tree
    reading = ONE_WINDOW if tree is None else reading_of(tree, most)
    level = levels if levels % 2 else levels // 2
    moved, step, key = levels // level, level * unit_of(system), fresh_key()
    present = one_in_each_cell(system, level, forge)
    absent = [null_of(system)] * len(present)
    later = [absent] * (reading.steps - 1)

    def scores(there: bool) -> NDArray[np.float64]:
        sums = publish(system, key, [present if there else absent, *later])
        totals = np.cumsum(sums, axis=0)[np.array(reading.times) - 1]
        seen = totals[:, :moved].reshape(len(totals), moved, len(present)).transpose(0, 2, 1)
        return reading.clipped_score(seen, step)

    attack = side_by_side(scores, len(present))
    return NeighbourTest(attack, system.guarantee().cost, slots_family(system, reading))


def one_in_each_cell(system: P2BSystem, level: int, forge: Forge = as_it_is) -> Contents:
    """The slots of a window in which each cell has one report of its own."""
    if system.config.release.form == "codes":
        return [pack(Report(code, arm, level)) for code, arm in np.ndindex(*system.form.shape)]
    layout = system.linear.layout
    places = np.indices((layout.arms, layout.cells)).reshape(2, -1)
    slots = slot_columns(layout, places.shape[1])
    slots["arm"], slots["level"], slots["catalogue"] = places[0], level, layout.arms
    slots["cells"][:, 0], slots["units"][:, 0] = places[1], UNITS
    forge(slots, layout)
    return [slot.tobytes() for slot in slots]


def null_of(system: P2BSystem) -> bytes:
    """A slot without a report."""
    return NULL if system.config.release.form == "codes" else pack_null(system.linear.layout)


def unit_of(system: P2BSystem) -> int:
    """How far a report of one level moves its cell."""
    return 1 if system.config.release.form == "codes" else UNITS


ONE_WINDOW = Reading((1,), np.eye(1), np.ones(1), np.ones(1), 1.0)
"""Reads each window separately, for fresh noise."""


def slots_family(system: P2BSystem, reading: Reading) -> Family:
    """The distributions of one or both sums of a cell on all read nodes, at the slot's configured sampling rate."""
    return pure(lambda epsilon: slots_pair(system, reading, epsilon).power)


def slots_pair(system: P2BSystem, reading: Reading, epsilon: float) -> Pair:
    """`slots_family` at one epsilon of the slot."""
    kept, levels = system.config.release.sampling, system.config.release.levels
    step = levels if levels % 2 else levels // 2
    noise = math.log1p(math.expm1(epsilon) / kept)
    pair = laplace_pair(noise * reading.share, levels // step * len(reading.times), step)
    return Pair(pair.null, kept * pair.moved + (1 - kept) * pair.null)


def audit_lift(system: P2BSystem) -> NeighbourTest:
    """Attack the lift: compare all decisions and rewards of one user with none.

    Every cell has such a user. They make more decisions than are counted, all rewarded, before the first release.
    """
    counted = required_lift(system.config)
    settings, levels, cells = counted
    tree = lift_tree(*counted)
    reading, step = reading_of(tree, tree.horizon), levels * settings.decisions_per_user
    key = fresh_key()

    def scores(present: bool) -> NDArray[np.float64]:
        counter = LiftCounter(counted, _WAIT_MS, key, system.lift_address(fresh_nonce(), 0))
        for cell in range(cells if present else 0):
            user = cell.to_bytes(16, "little")
            for index in range(2 * settings.decisions_per_user):
                counter.decided(user, index)
                counter.count(user, index, cell, _WAIT_MS, 1.0)
        sums = np.array([counter.release(2 * _WAIT_MS).sums for _ in range(reading.steps)])
        return reading.clipped_score(sums[np.array(reading.times) - 1].reshape(-1, cells, SUMS)[..., :1], step)

    claimed = lift_guarantee(*counted).cost
    return NeighbourTest(side_by_side(scores, cells), claimed, reading_family(tree, reading, 1))


def audit_tuples_release(system: P2BSystem, others: int) -> NeighbourTest:
    """Attack tuples: one more report in a crowd of ``others``."""
    chance, threshold = system.config.release.sampling, system.threshold
    key, likelier = fresh_key(), max(threshold, math.floor(chance * (others + 1)) + 1)

    def scores(present: bool) -> NDArray[np.float64]:
        counts = published(system, key, [slots(present, others)])[0, 0, :, TARGET]
        return np.asarray(counts - likelier + 0.5)

    family = tuples_family(others, threshold)
    return NeighbourTest(side_by_side(scores, CELLS), system.guarantee().cost, family)


def tuples_family(others: int, threshold: int) -> Family:
    """The distributions of crowds of one size at every sampling probability p, with the price -ln(1-p)."""
    return Family(
        lambda sampling: sampled_pair(sampling, others, threshold).power,
        lambda sampling: -math.log1p(-sampling),
        smallest=0.01,
        largest=0.9999,
    )


def unique_tuple_attack(system: P2BSystem, others: int) -> Attack:
    """Attack a report with an arm of its own and a code of ``others``, to see whether its tuple is released."""
    key = fresh_key()

    def scores(present: bool) -> NDArray[np.float64]:
        counts = published(system, key, [slots(present, others, other_arm=0)])[0, 0, :, TARGET]
        return np.asarray(counts - 0.5)

    return side_by_side(scores, CELLS)


def audit_unique_tuple(system: P2BSystem, others: int) -> NeighbourTest:
    """Run the attack that breaks the paper's claim, on any release mode."""
    return NeighbourTest(unique_tuple_attack(system, others), system.guarantee().cost)


FEATURES = {
    "country": {"kind": "category", "vocabulary": [f"country-{number}" for number in range(12)]},
    "likes": {"kind": "tags", "vocabulary": [f"tag-{number}" for number in range(8)], "most": 3},
}


def declared(release: ReleaseConfig) -> P2BSystem:
    """A deployment with `FEATURES`."""
    context = ContextConfig(declared=declare(FEATURES))
    return P2BSystem.declared(
        P2BConfig(deployment="audit", arms=ARMS, context=context, expected_slots=1_000, release=release)
    )


def twice_the_units(slots: NDArray[np.void], layout: FeatureLayout) -> None:
    """Put more than U units into two places of one cell."""
    slots["cells"][:, 1], slots["units"][:, 1] = slots["cells"][:, 0], slots["units"][:, 0]


def signs_that_cancel(slots: NDArray[np.void], layout: FeatureLayout) -> None:
    """Use units that sum to U but have a larger absolute sum, as a second cell has units of the other sign."""
    # All these slots have the other sign in the same cell, so that no slot reduces the effect of another.
    slots["cells"][:, 1], slots["cells"][:, 2] = 0, slots["cells"][:, 0]
    slots["units"][:, 1], slots["units"][:, 2] = -slots["units"][:, 0], slots["units"][:, 0]


def a_level_beyond(slots: NDArray[np.void], layout: FeatureLayout) -> None:
    """Use a reward above the highest level."""
    slots["level"] = 3 * layout.levels


FORGED: dict[str, Forge] = {
    "twice-the-units": twice_the_units,
    "signs-that-cancel": signs_that_cancel,
    "a-level-beyond": a_level_beyond,
}


NOISE_WINDOWS = 3
NOISE_SLOTS = 4
"""How many slots a window has."""

NULLS = (NULL,) * NOISE_SLOTS


def fresh_windows() -> PlacesTest:
    """Each cell and sum of several windows of two partitions, with fresh noise."""
    system, key = p2b(ReleaseConfig(sums="fresh", window_slots=NOISE_SLOTS)), fresh_key()
    axes = _cells({"partition": range(PARTITIONS), "window": range(NOISE_WINDOWS)})

    def journal() -> NDArray[np.float64]:
        nonce = fresh_nonce()
        return np.array([[played_windows(system, key, [NULLS] * NOISE_WINDOWS, nonce, p) for p in range(PARTITIONS)]])

    return PlacesTest(journal, axes, lattice_sizes(1, LAPLACE_FAMILY), system.guarantee().cost)


def counted_cells() -> PlacesTest:
    """Each cell and sum of the first window of two partitions, with a counter over windows."""
    system, key = p2b(ReleaseConfig(sums="counter", windows=LEAVES, window_slots=NOISE_SLOTS)), fresh_key()

    def journal() -> NDArray[np.float64]:
        nonce = fresh_nonce()
        first = [played_windows(system, key, [NULLS], nonce, partition) for partition in range(PARTITIONS)]
        return np.stack(first, axis=1)[None]

    axes = _cells({"partition": range(PARTITIONS)})
    return PlacesTest.of_draws(journal, unmixed(_required(system.window_tree), 1), axes, system.guarantee().cost)


def counted_windows() -> PlacesTest:
    """Each draw of a counter over windows, on either sum; each cell is one run."""
    system, key = p2b(ReleaseConfig(sums="counter", windows=LEAVES, window_slots=NOISE_SLOTS)), fresh_key()

    def journal() -> NDArray[np.float64]:
        totals = np.cumsum(played_windows(system, key, [NULLS] * LEAVES), axis=0)
        return np.moveaxis(totals.reshape(LEAVES, 2, CELLS * ARMS), 2, 0)

    axes: Axes = {"sum": ("ones", "zeros")}
    return PlacesTest.of_draws(journal, unmixed(_required(system.window_tree), LEAVES), axes, system.guarantee().cost)


def lift_counts(lift: MeasurementConfig, levels: int) -> PlacesTest:
    """Each draw of a lift's counter, on each of its sums, in two partitions."""
    system, key = p2b(ReleaseConfig(levels=levels), lift), fresh_key()

    def journal() -> NDArray[np.float64]:
        nonce = fresh_nonce()
        counts = [played_lift(system, key, lift.releases, nonce, partition) for partition in range(PARTITIONS)]
        return np.stack(counts, axis=1)[None]

    axes: Axes = {"partition": range(PARTITIONS), "sum": range(SUMS * len(Group))}
    counted = lift, levels, len(Group)
    return PlacesTest.of_draws(
        journal, unmixed(lift_tree(*counted), lift.releases), axes, lift_guarantee(*counted).cost
    )


def _cells(outer: Axes) -> Axes:
    return {**outer, "sum": ("ones", "zeros"), "code": range(CELLS), "arm": range(ARMS)}


def _required(tree: NegativeDigitTree | None) -> NegativeDigitTree:
    if tree is None:
        raise HushstreamError("audit: expected windows that run through a counter, got fresh noise")
    return tree


FORK_SLOTS = 4

ROOM = BudgetConfig(epsilon=100.0, delta=1e-3)
"""A budget that also covers the epoch after a suspected rollback."""

CROWD = 20
"""Reports of each tuple where crowds are sampled; an even number, so kept counts are as often above half as below."""

SAMPLED = ReleaseConfig(mode="tuples", sampling=0.5, threshold=2, window_slots=CELLS * CROWD)


def windows(release: ReleaseConfig) -> ForkTest:
    """The fork of one window; each cell and each of its two sums is a run."""
    system, key = p2b(release, budget=ROOM), fresh_key()

    def play(branch: Branch, nonce: bytes) -> NDArray[np.float64]:
        report = pack(Report(0, TARGET, 1)) if branch.other_contents else NULL
        exact = np.zeros((2, CELLS, ARMS))
        exact[0, 0, TARGET] = branch.other_contents
        contents = [report, *[NULL] * (FORK_SLOTS - 1)]
        return columns(played_windows(system, key, [contents], nonce, branch=branch)[0] - exact)

    return ForkTest("p2b", "shuffler", play, system.guarantee().cost)


def sampled_tuples() -> ForkTest:
    """The fork of sampled crowds: the number that coins kept of each crowd, minus the expectation.

    Each crowd is a run.
    """
    system, key = p2b(SAMPLED), fresh_key()

    def play(branch: Branch, nonce: bytes) -> NDArray[np.float64]:
        reports = [pack(Report(code, TARGET, 1)) for code in range(CELLS) for _ in range(CROWD)]
        # The first report becomes null, so its crowd has one coin less.
        contents = [NULL, *reports[1:]] if branch.other_contents else reports
        return columns(played_windows(system, key, [contents], nonce, branch=branch)[0, 0, 1:, TARGET] - CROWD / 2)

    return ForkTest("p2b", "shuffler", play, system.guarantee().cost)


def lift_counts_fork(lift: MeasurementConfig) -> ForkTest:
    """The fork of a lift's first sums; their noise is drawn ahead, so only the requested epoch separates branches."""
    system, key = p2b(ReleaseConfig(levels=2), lift, replace(ROOM, lift=0.5)), fresh_key()

    def play(branch: Branch, nonce: bytes) -> NDArray[np.float64]:
        return columns(played_lift(system, key, 1, nonce, branch=branch))

    return ForkTest("p2b", "learner", play, lift_guarantee(lift, 2, len(Group)).cost)


def fork_rows(lift: MeasurementConfig) -> tuple[Audit, ...]:
    """All audits of forks, in the order of the table."""
    fresh = ReleaseConfig(sums="fresh", window_slots=FORK_SLOTS)
    counted = ReleaseConfig(sums="counter", windows=32, window_slots=FORK_SLOTS)
    return (
        fork_row("forked-windows", "cells and sums", partial(windows, fresh), 2_400),
        fork_row("forked-counted-windows", "cells and sums, after a suspected rollback", partial(windows, counted)),
        fork_row("forked-tuples", "coins of crowds", sampled_tuples),
        fork_row("forked-lift", "sums, after a suspected rollback", partial(lift_counts_fork, lift)),
    )


WORST_CROWD = 5
"""Other reports in a crowd: with this many, sampled tuples with threshold 5 reveal the most at epsilon ln 2."""
POPULAR = 30
"""Number of other reports with the code of the unique tuple."""

LIFT = MeasurementConfig(baseline=0.5, own=0.25, epsilon=3.0, decisions_per_user=3, releases=HORIZON)
ANSWERS = MeasurementConfig(of="answers", epsilon=3.0, decisions_per_user=3, releases=HORIZON)


def _releases() -> tuple[Audit, ...]:
    fresh, running = ReleaseConfig(levels=2, sums="fresh"), ReleaseConfig(sums="counter", windows=HORIZON)
    clicks = replace(fresh, levels=1)
    tuples = ReleaseConfig(mode="tuples", sampling=SAMPLING, threshold=THRESHOLD)
    crowds = ReleaseConfig(mode="tuples", sampling=SAMPLING, threshold=PAPER_THRESHOLD)
    paper = ReleaseConfig(mode="paper", sampling=SAMPLING)
    slot, unique = "a report against null in one slot", "a tuple of one report alone, under a popular code"
    user = "all decisions of a user against none, all releases seen"
    claim = tuples_guarantee(PAPER_THRESHOLD, SAMPLING).cost

    def summed(name: str, release: ReleaseConfig, runs: int) -> Audit:
        return Audit(name, "release", slot, runs, lambda: audit_summed(p2b(release), HORIZON), subjects=(release,))

    def measured(name: str, lift: MeasurementConfig) -> Audit:
        system = p2b(ReleaseConfig(levels=2), lift)
        return Audit(name, "release", user, 1_500, lambda: audit_lift(system), subjects=(lift,))

    def linear(name: str, release: ReleaseConfig, runs: int, forge: Forge = as_it_is) -> Audit:
        said = "a report with all units in one cell" if forge is as_it_is else "a forged report"
        chosen = replace(release, form="features")
        about = f"{said} against null in one slot"

        def make() -> NeighbourTest:
            return audit_summed(declared(chosen), HORIZON, forge=forge)

        return Audit(name, "release", about, runs, make, subjects=(chosen,))

    return (
        summed("slot-sums-fresh", fresh, 3_000),
        summed("slot-sums-sampled", replace(fresh, sampling=SAMPLING), 3_000),
        summed("slot-sums-counter", running, 2_000),
        summed("slot-sums-counter-sampled", replace(running, sampling=SAMPLING), 3_000),
        linear("linear-sums-fresh", fresh, 3_000),
        linear("linear-sums-sampled", replace(fresh, sampling=SAMPLING), 3_000),
        linear("linear-sums-counter", running, 2_000),
        *(linear(f"linear-sums-{name}", clicks, 3_000, forge) for name, forge in FORGED.items()),
        Audit(
            "tuples",
            "release",
            slot,
            5_000,
            lambda: audit_tuples_release(p2b(tuples), WORST_CROWD),
            factor=10,
            subjects=(tuples, bernoulli),
        ),
        Audit(
            "tuples-unique",
            "release",
            unique,
            1_000,
            lambda: audit_unique_tuple(p2b(crowds), POPULAR),
            subjects=(crowds,),
        ),
        Audit(
            "p2b-paper",
            "release",
            unique,
            1_000,
            lambda: audit_unique_tuple(p2b(paper), POPULAR),
            paper_claim=claim,
            subjects=(paper,),
        ),
        measured("lift", LIFT),
        measured("shadow", ANSWERS),
    )


def _attacks() -> tuple[Audit, ...]:
    def row(name: str, about: str, runs: int, make: Callable[[], NeighbourTest]) -> Audit:
        return Audit(name, "attack", about, runs, make, factor=2)

    return (
        row("shifted-window", "a slot's content against null, all later windows seen", 120, shifted_window),
        row("redrawn-noise", "one window released again and again", 500, redrawn_noise),
        row("two-owners", "workers on one journal, each with a slot of its own", 1_000, two_owners),
        row("injected-reports", "all but one report of a crowd injected", 1_000, injected_reports),
        row("differenced-metrics", "the public endpoint before and after a click", 150, differenced_metrics),
        row("differenced-windows", "a window's public facts, reports or nulls", 150, differenced_windows),
    )


def rows() -> tuple[Audit, ...]:
    """Every audit of P2B."""
    return (*_releases(), *role_rows(), *_attacks(), *map(audit_of, works()))


LIFT_OF_ROLES = replace(LIFT, releases=4)


def role_rows() -> tuple[Audit, ...]:
    """The audits of what P2B's roles publish for known inputs, while they are stopped and restarted."""
    fresh, running = ReleaseConfig(levels=2, sums="fresh"), ReleaseConfig(sums="counter", windows=32)
    slot = "a report against null, through a shuffler that restarts"

    def worked(release: ReleaseConfig, most: int) -> Callable[[], NeighbourTest]:
        return lambda: audit_summed(p2b(replace(release, window_slots=CELLS * ARMS)), most, played_windows)

    return (
        noise_row("windows-each-cell", "cells, sums, windows, partitions", fresh_windows),
        noise_row("counted-windows-each-cell", "cells, sums, partitions", counted_cells),
        noise_row("counted-windows-each-draw", "draws of 63 windows, sums", counted_windows),
        noise_row("lift-each-sum", "sums, draws, partitions", partial(lift_counts, LIFT_OF_ROLES, 2)),
        Audit("windows-through-the-role", "role", slot, 3_000, worked(fresh, 1), factor=2),
        Audit("counted-windows-through-the-role", "role", slot, 2_000, worked(running, 32), factor=1),
        *fork_rows(LIFT_OF_ROLES),
    )


# Compares the shuffler's work on a window of null slots with its work on reports, for every form of release.

FORMS = {
    "fresh": ReleaseConfig(),
    "sampled": ReleaseConfig(sampling=0.5),
    "counter": ReleaseConfig(sums="counter"),
    "tuples": ReleaseConfig(mode="tuples", sampling=0.5),
    "paper": ReleaseConfig(mode="paper", sampling=0.5),
}


def works(slots: int = SLOTS) -> tuple[Work, ...]:
    """The work of one window with ``slots`` slots, for each form."""
    return tuple(_work(form, p2b(replace(release, window_slots=slots))) for form, release in FORMS.items())


def _work(form: str, system: P2BSystem) -> Work:
    make = partial(ShufflerMachine, system, 0, seeded_key(0, "shuffler"))
    about = "a window of nulls against one of reports"
    return Work(f"time-of-windows-{form}", ("p2b", "shuffler"), about, make, (), partial(_window, system))


def _window(system: P2BSystem, holds: Holds) -> Sequence[bytes]:
    places = range(system.config.release.window_slots)
    full = [pack(Report(place * 7 % CELLS, place * 5 % ARMS, place % 2)) for place in places]
    return slot_records(system, [full[place] if has_content(holds, place) else NULL for place in places])


_SUMS = 1 << 21
"""The most noised sums that an audit draws from one counter over windows, over all steps."""


def audit_config(config: P2BConfig, runs: int, false_alarm: float) -> AuditReport:
    """Attack the releases of a configuration.

    Raises:
        HushstreamError: the noise of its mode cannot be attacked at any size, or this number of runs takes too long.
    """
    release = config.release
    if release.mode != "slot-sums":
        raise HushstreamError(
            f"audit: expected release.mechanism slot-sums, whose noise can be attacked at any size, got "
            f"{release.mode}; hushstream audit --only {release.mode} attacks that mode in a small deployment"
        )
    system = P2BSystem.declared(config) if release.form == "features" else stand_in(config)
    tree, cells = system.window_tree, math.prod(system.form.shape)
    most = min(_SUMS // cells, steps_for(runs, cells, 1)) if tree is not None else 1
    settings: dict[str, Any] = {
        "system": config.system,
        "epsilon": release.epsilon,
        "levels": release.levels,
        "sampling": release.sampling,
        "sums": "fresh" if tree is None else "counter",
        "horizon": None if tree is None else tree.horizon,
        "steps": 1 if tree is None else reading_of(tree, most).steps,
    }
    return report_of(
        summed_of(config).mechanism,
        settings,
        audit_summed(system, most),
        _noise_of(system),
        system.guarantee(),
        runs,
        false_alarm,
        seen(tree, settings["steps"], "window"),
        _REDUCED[release.form],
    )


_REDUCED: Mapping[str, tuple[str, ...]] = {
    "codes": ("how the encoder was fitted, as a slot names one code wherever centroids lie",),
    "features": (),
}
"""The parts of a configuration that are left out, by the form of its slots."""


def _noise_of(system: P2BSystem) -> SizeTest:
    """The noise of one window of a null slot."""
    unit, law = _law(system, system.config.release.levels * unit_of(system))

    def read() -> NDArray[np.float64]:
        return np.abs(published(system, fresh_key(), [[null_of(system)]])).ravel() / unit

    return SizeTest(read, system.guarantee().cost, law)


def _law(system: P2BSystem, step: int) -> tuple[float, Sizes]:
    """The unit and the distribution of a sum's noise; a slot is kept with the configured probability."""
    tree, kept = system.window_tree, system.config.release.sampling

    def drawn(epsilon: float) -> float:
        return math.log1p(math.expm1(epsilon) / kept)

    claim = epsilon_float(system.guarantee().cost.epsilon_micro)
    unit, law = (step, laplace_law(step, drawn(claim))) if tree is None else first_draw(tree)
    family = replace(law.family, smallest=claim / 4)
    return unit, Sizes(lambda epsilon: law.law(drawn(epsilon)), family)
