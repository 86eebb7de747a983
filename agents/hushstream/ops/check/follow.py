"""``verify --follow`` checks continuously what one role publishes, while the role runs.

It recomputes with the machines and the code of `verify`, which checks a copy of the logs once. It works in rounds:

1. Read the ends of the outputs, then of the journals, then of the inputs. So the journals hold every record from which
   one of these outputs follows, and the inputs hold every record from which these journals follow.
2. Follow each journal (`hushstream.ops.check.growing`), and note which outputs it requires.
3. Read the next outputs, and compare (`hushstream.ops.check.growing`).

An output that no journal explains is a difference at once. A dead letter may come before the journal record that covers
its input, so it is a difference only when the journals have covered that input and do not explain it. A required output
is missing if a later output of the same journal is there, or if the journal has gone on by more records than a worker
has in flight (`IN_FLIGHT`). The outputs of the last records may not have been sent yet; that is no difference.

At each interval the auditor saves its state, sealed under the zone's storage key: first each home partition's machine,
as a worker does, then the positions in the outputs. If it ends between the two saves, they do not fit together, and it
begins without any saved state.

`verify` checks three more things: marks and ledger against a checkpoint, the proofs that some roles give over a whole
journal, and journals of partitions that the deployment does not have.

The length of a learner's journal tells something about clicks, so positions and lags are served only on the zone's own
endpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from math import inf
from typing import Any

from aiokafka.errors import KafkaError
from prometheus_client import Gauge

from hushstream.agents.datadir import check_datadir, locked_folder
from hushstream.agents.errors import DENIED, InputsDeleted, TopicsReplaced, WorkerError, from_client
from hushstream.agents.kafka.administration import READ, check_rights
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.observe.endpoints import ServedMetrics, ports_named
from hushstream.agents.observe.metric_table import MetricSpec, specs
from hushstream.agents.process import collect_in_steps, use_uvloop
from hushstream.agents.recovery.snapshots import Snapshot, SnapshotStore
from hushstream.agents.settings import IN_FLIGHT, WorkerSettings
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.worker import quiet_libraries
from hushstream.engine.declare.declaration import System, role_of
from hushstream.engine.records import TopicPartition
from hushstream.ops.check.checkpoints import From
from hushstream.ops.check.findings import Status, Tally
from hushstream.ops.check.growing import Beginning, Bounds, CannotBegin, Follower, Outputs
from hushstream.ops.check.journal import Place
from hushstream.ops.check.verify import outputs_end
from hushstream.ops.log_copy import RoleLogs, lacking_zones
from hushstream.schemas.errors import HushstreamError

AUDIT_METRICS: tuple[MetricSpec, ...] = (
    *specs("slot-public", "gauge", ("role",), {
        "hushstream_audit_differences":
            "Records that do not follow from the logs, or are missing, as an auditor found; a restart keeps the count.",
        "hushstream_audit_uncheckable":
            "Records that an auditor could not check: their inputs were deleted, or they follow something changed.",
        "hushstream_audit_age_seconds": "Time since an auditor last had checked all present records, in steps of 5 s.",
    }),
    *specs("zone-private", "gauge", ("role", "topic", "partition"), {
        "hushstream_audit_position": "Offset up to which an auditor has checked a journal or an output.",
        "hushstream_audit_lag_records": "Records of a journal or an output that an auditor has not checked yet.",
    }),
)  # fmt: skip
"""Every metric of an auditor; `hushstream.agents.observe.metric_table` has those of workers."""

_STEP_SECONDS = 5


class AuditMetrics(ServedMetrics):
    """An auditor's metrics, in two registries for two kinds of reader."""

    def __init__(self, role: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Register all of `AUDIT_METRICS`; ``clock`` gives seconds."""
        super().__init__()
        self._role, self._clock = role, clock
        self._metrics = {spec.name: self._register(spec) for spec in AUDIT_METRICS}
        self._abreast = clock()
        self._of("age_seconds").set_function(self._age)
        self.found(0, 0)

    def found(self, differences: int, uncheckable: int) -> None:
        """Show what was found so far."""
        self._of("differences").set(differences)
        self._of("uncheckable").set(uncheckable)

    def caught_up(self) -> None:
        """Note that everything that is to be checked by now is checked."""
        self._abreast = self._clock()

    def progress(self, source: TopicPartition, position: int, end: int) -> None:
        """Show how far a journal or an output is checked, and where it ends."""
        labels = {"topic": source[0], "partition": str(source[1])}
        self._of("position", **labels).set(position)
        self._of("lag_records", **labels).set(max(0, end - position))

    def _age(self) -> float:
        return (self._clock() - self._abreast) // _STEP_SECONDS * _STEP_SECONDS

    def _register(self, spec: MetricSpec) -> Any:
        registry = self.zone if spec.metric_class == "zone-private" else self.public
        return Gauge(spec.name, spec.help, spec.labels, registry=registry)

    def _of(self, name: str, **labels: str) -> Any:
        return self._metrics[f"hushstream_audit_{name}"].labels(role=self._role, **labels)


logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.5
"""The pause after a round that found nothing new."""
END_SECONDS = 5.0
"""How long a round may go on after the auditor has received the signal to end."""
_AGAIN_SECONDS = 5.0
"""The pause before the next attempt to reach a broker that did not answer."""
_PORTIONS = 16
"""How many portions of each journal one round reads at most; then outputs are compared and freed from memory."""
_MARGIN_MS = 300_000
"""Reading of outputs begins this much earlier than the log time of a checkpoint's record: the brokers' clocks differ,
and an output that was sent before the record may be repeated after it."""
_ABSENT = (KafkaError, OSError, TimeoutError)


class Auditor:
    """Checks one role; `run` until it is stopped.

    Attributes:
        metrics: the auditor's metrics.
        counts: records by status, since the first start.
    """

    def __init__(self, settings: WorkerSettings, system: System, role: str, keys: KeySource) -> None:
        """Prepare.

        Args:
            settings: as for a worker; ``role`` names the auditor, and only this auditor uses the state folder.
            system: the deployment.
            role: the role whose output is checked.
            keys: the keys of that role's zone.

        Raises:
            HushstreamError: the deployment has no such role, or a key is missing or cannot be used.
        """
        self._settings, self._system, self._role = settings, system, role_of(system, role)
        if lacking := lacking_zones(self._role.key_zones, keys):
            raise HushstreamError(f"verify: expected the key of {' and of '.join(lacking)}, got none")
        of = RoleLogs(self._role, system, keys)
        maker = of.make
        snapshots = SnapshotStore(settings, maker)
        self._places = SnapshotStore(settings.model_copy(update={"role": f"{settings.role}-places"}), maker)
        self._snapshots = snapshots
        self._beginning = Beginning(of, snapshots, settings.resident_users)
        self._homes = range(system.homes(self._role))
        machines = {home: maker(home) for home in self._homes}
        self._inputs = {home: machine.inputs for home, machine in machines.items()}
        self._read = {home: (*machine.inputs, *machine.broadcasts) for home, machine in machines.items()}
        self.metrics = AuditMetrics(role)
        self._dropped_counts: Counter[Status] = Counter()
        """The counts of tallies of earlier followers, which were dropped."""
        self._reported: dict[int, int] = {}
        self._followers: dict[int, Follower] = {}
        self._outputs = Outputs(system, self._role)
        self._sent_up_to: dict[TopicPartition, int] = {}
        self._tried_at: dict[int, float] = {}
        self._followed_to: dict[int, int] = {}
        """For each journal whose follower could not go on, the offset that it had reached; the next one must begin
        after it."""

    @property
    def counts(self) -> Mapping[Status, int]:
        """Records by status, since the first start."""
        total = Counter(self._dropped_counts)
        for tally in self._tallies():
            total.update(tally.counts)
        return total

    @property
    def differences(self) -> int:
        """How many records are changed, missing, or not explained by any journal."""
        return self.counts[Status.CHANGED]

    @property
    def uncheckable(self) -> int:
        """How many records could not be checked."""
        return self.counts[Status.UNCHECKABLE]

    async def run(self, stop: asyncio.Event, once: bool = False) -> int:
        """Check until ``stop`` is set; with ``once``, until everything is checked that was there at the start.

        Returns:
            1 if there are differences, otherwise 0.

        Raises:
            HushstreamError: the auditor cannot go on; the message is one line.
        """
        check_datadir(self._settings.datadir)
        with locked_folder(self._settings.datadir, "auditor"):
            await self._run(stop, once)
        return 1 if self.differences else 0

    async def _run(self, stop: asyncio.Event, once: bool) -> None:
        self._serve()
        try:
            self._restore()
            while not stop.is_set():
                try:
                    await self._until_stopped(stop, once)
                    break
                except (InputsDeleted, TopicsReplaced) as error:
                    logger.warning("retention deleted records before they were audited; beginning anew: %s", error)
                    self._begin_anew()
                    await _pause(stop, PAUSE_SECONDS)
                except DENIED as error:
                    raise from_client(error, "reading what the role published") from None
                except _ABSENT as error:
                    logger.warning("no broker answered (%s); trying again", type(error).__name__)
                    if once:
                        raise WorkerError(f"no broker at {self._settings.bootstrap} answered") from None
                    await _pause(stop, _AGAIN_SECONDS)
            await self._save()
        finally:
            self.metrics.close()

    async def _until_stopped(self, stop: asyncio.Event, once: bool) -> None:
        """Check until ``stop`` is set; after that, cancel a round that waits for a broker too long."""
        checking, stopping = asyncio.create_task(self._read_and_check(stop, once)), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({checking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not checking.done():
                await asyncio.wait({checking}, timeout=END_SECONDS)
        finally:
            stopping.cancel()
            checking.cancel()
            await asyncio.wait({checking, stopping})
        if checking.cancelled():
            if not stop.is_set():
                # A client that ends while its broker does not answer cancels the tasks that wait for it.
                raise TimeoutError
        else:
            checking.result()

    async def _read_and_check(self, stop: asyncio.Event, once: bool) -> None:
        async with LogReader(self._settings) as reader:
            await self._check(reader, stop, once)

    def _serve(self) -> None:
        settings = self._settings
        try:
            ports = self.metrics.serve(
                settings.metrics_host, settings.metrics_port, settings.zone_metrics_port, settings.zone_metrics_host,
                settings.metrics_access,
            )  # fmt: skip
        except OSError as error:
            raise WorkerError(f"metrics cannot be served: {error.strerror}") from error
        logger.info("auditor of %s: %s", self._role.name, ports_named(ports))

    async def _check(self, reader: LogReader, stop: asyncio.Event, once: bool) -> None:
        bounds, named = await self._bounds(reader), self._settings.physical
        # Without a right to read, a topic that holds no record would look empty.
        await check_rights(self._settings.cluster, {named(topic): {READ} for topic, _ in bounds.highs})
        self._open(reader, bounds)
        until = await self._bounds(reader) if once else None
        kept = time.monotonic()
        while not stop.is_set():
            bounds = await self._bounds(reader)
            await self._begin(reader, bounds)
            new = await self._round(reader, bounds)
            self._show(bounds)
            if until is not None and self._has_checked(until):
                return
            if time.monotonic() - kept > self._settings.snapshot_interval_seconds:
                await self._save()
                kept = time.monotonic()
            if not new:
                await _pause(stop, PAUSE_SECONDS)

    # A round.

    async def _bounds(self, reader: LogReader) -> Bounds:
        """Read where all logs begin and end: outputs first, inputs last, as `Bounds` requires."""
        journals = [(self._role.journal, home) for home in self._homes]
        inputs = list(dict.fromkeys(source for of_home in self._read.values() for source in of_home))
        states = [(self._role.state.name, home) for home in self._homes]
        highs: dict[TopicPartition, int] = {}
        for sources in (list(self._outputs.parts), journals, inputs, states):
            highs.update(await reader.end_offsets([one for one in sources if one not in highs]))
        return Bounds(await reader.first_offsets(list(highs)), highs)

    async def _round(self, reader: LogReader, bounds: Bounds) -> bool:
        """Do one round; whether it found any new record."""
        new = False
        for follower in self._followers.values():
            journal = follower.machine.journal
            for _ in range(_PORTIONS):
                if follower.walker.lost or follower.position >= bounds.highs[journal]:
                    break
                self._outputs.expect(journal, await follower.go_on(reader, bounds))
                new = True
                await asyncio.sleep(0)
        before = {source: part.position for source, part in self._outputs.parts.items()}
        await self._compare(reader, bounds)
        return new or any(part.position > before[source] for source, part in self._outputs.parts.items())

    async def _compare(self, reader: LogReader, bounds: Bounds) -> None:
        folded: dict[TopicPartition, int] = {}
        for follower in self._followers.values():
            folded.update(follower.machine.positions())
        for source, part in self._outputs.parts.items():
            homes = [home for _, home in part.matcher.writers]
            writing = [self._followers[home] for home in homes if home in self._followers]
            # While a journal is not followed yet, its outputs are not known, so an output without explanation proves
            # nothing.
            behind = len(writing) < len(homes) or any(self._is_behind(one, bounds) for one in writing)
            complete = not any(one.walker.lost for one in writing)
            inputs = {one: bounds.highs[one] for home in homes for one in self._inputs[home]}
            await part.go_on(reader, bounds.highs[source], inputs, behind, complete)
            if not behind:
                part.settle(folded, complete)
            if part.position >= bounds.highs[source]:
                part.matcher.overdue(self._sent_up_to, part.deleted)
        self._sent_up_to = {one.machine.journal: _sent_until(one) for one in self._followers.values()}

    def _is_behind(self, follower: Follower, bounds: Bounds) -> bool:
        return bool(follower.walker.lost) or follower.position < bounds.highs[follower.machine.journal]

    def _has_checked(self, until: Bounds) -> bool:
        """Whether everything that can be followed is checked up to these ends."""
        if any(until.highs[self._role.journal, home] and home not in self._followers for home in self._homes):
            return False
        if any(one.walker.lost for one in self._followers.values()):
            return True
        followed = all(one.position >= until.highs[one.machine.journal] for one in self._followers.values())
        return followed and all(part.position >= until.highs[at] for at, part in self._outputs.parts.items())

    # Where followers begin.

    async def _begin(self, reader: LogReader, bounds: Bounds) -> None:
        """Make followers for journals that have none, or whose follower cannot go on."""
        begun = False
        for home in self._homes:
            follower = self._followers.get(home)
            if follower is not None and follower.walker.lost:
                self._followed_to[home] = follower.position
            elif follower is not None or not bounds.highs[self._role.journal, home]:
                continue
            if time.monotonic() - self._tried_at.get(home, -inf) < self._settings.snapshot_interval_seconds:
                continue
            self._tried_at[home] = time.monotonic()
            fresh = await self._fresh(home, bounds, after=self._followed_to.get(home, -1))
            if fresh is None:
                continue
            if follower is not None:
                self._reported.pop(id(follower.walker.walk.tally), None)
                self._dropped_counts.update(follower.walker.walk.tally.counts)
            self._tried_at.pop(home)
            await self._begin_outputs(fresh, reader, bounds)
            self._followers[home], begun = fresh, True
        if begun:
            self._open(reader, bounds)

    async def _fresh(self, home: int, bounds: Bounds, after: int) -> Follower | None:
        """Make a follower that begins after a journal offset; None if there is no state to begin with yet."""
        start = From.CHECKPOINT if after < 0 else From.LAST_CHECKPOINT
        async with LogReader(self._settings) as reader:
            journal, states = (self._role.journal, home), (self._role.state.name, home)
            reader.open({one: bounds.lows[one] for one in (journal, states)})
            try:
                fresh = await self._beginning.fresh(home, reader, bounds, start)
            except CannotBegin as error:
                if after < 0:
                    raise
                logger.info("no state to begin with yet: %s", error)
                return None
        return fresh if fresh is None or fresh.position > after else None

    async def _begin_outputs(self, follower: Follower, reader: LogReader, bounds: Bounds) -> None:
        """Begin to read outputs early enough for every output of the records that are recomputed from now on."""
        begun, journal = follower.walker.walk.begun, follower.machine.journal
        parts = self._outputs.of_journal(journal)
        since = dict.fromkeys((part.source for part in parts), 0)
        if begun is not None:
            since = await reader.offsets_since(dict.fromkeys(since, max(0, begun.record.timestamp_ms - _MARGIN_MS)))
        for part in parts:
            part.matcher.begin_anew(journal, 0 if begun is None else outputs_end(begun, part.source))
            if not part.position:
                part.begin(since[part.source], bounds.lows[part.source])

    def _open(self, reader: LogReader, bounds: Bounds) -> None:
        places = {source: part.position for source, part in self._outputs.parts.items()}
        for home in self._homes:
            places.update({source: bounds.lows[source] for source in self._read[home] if source not in places})
            places[self._role.journal, home] = bounds.lows[self._role.journal, home]
        for follower in self._followers.values():
            places.update(follower.machine.positions())
            places[follower.machine.journal] = follower.position
        reader.open({source: max(place, bounds.lows[source]) for source, place in places.items()})

    def _begin_anew(self) -> None:
        self._dropped_counts = Counter(self.counts)
        self._followers.clear()
        self._outputs, self._sent_up_to, self._reported = Outputs(self._system, self._role), {}, {}
        self._tried_at.clear()

    # What is shown and saved.

    def _tallies(self) -> Collection[Tally]:
        return (*(one.walker.walk.tally for one in self._followers.values()), *self._outputs.tallies)

    def _show(self, bounds: Bounds) -> None:
        for tally in self._tallies():
            known = self._reported.get(id(tally), 0)
            for finding in tally.findings[known:]:
                say = logger.error if finding.status is Status.CHANGED else logger.warning
                say("%s", finding)
            self._reported[id(tally)] = len(tally.findings)
        counts = self.counts
        self.metrics.found(counts[Status.CHANGED], counts[Status.UNCHECKABLE])
        for follower in self._followers.values():
            self.metrics.progress(follower.machine.journal, follower.position, bounds.highs[follower.machine.journal])
        for source, part in self._outputs.parts.items():
            self.metrics.progress(source, part.checked, bounds.highs[source])
        if self._has_checked(bounds):
            self.metrics.caught_up()

    async def _save(self) -> None:
        """Save machines, then positions, so that the next process goes on from here."""
        homes: dict[str, Any] = {}
        for home, follower in self._followers.items():
            place = follower.walker.place
            if place.sequence < 0 or not follower.walker.complete:
                continue
            await self._snapshots.save_beside(home, follower.snapshot())
            homes[str(home)] = {
                "sequence": place.sequence, "head": place.head.hex(), "offset": place.offset,
                "record": follower.record.hex(),
            }  # fmt: skip
        counts = {str(status): count for status, count in self.counts.items()}
        outputs, passed = self._outputs.as_json(), {str(home): end for home, end in self._followed_to.items()}
        kept = {"homes": homes, "outputs": outputs, "counts": counts, "passed": passed}
        content = json.dumps(kept).encode()
        await self._places.save_beside(0, Snapshot(0, 0, b"", content))

    def _restore(self) -> None:
        """Go on from the saved state; begin anew if there is none, or if it does not fit together."""
        kept = self._places.load(0)
        if kept is None:
            return
        content = json.loads(kept.state)
        self._dropped_counts = Counter({Status(status): count for status, count in content["counts"].items()})
        self._followed_to = {int(home): end for home, end in content["passed"].items()}
        for home, at in content["homes"].items():
            place = Place(at["sequence"], bytes.fromhex(at["head"]), at["offset"])
            follower = self._beginning.kept(int(home), place, bytes.fromhex(at["record"]))
            if follower is None:
                logger.warning("the saved state does not fit together; this auditor begins without it")
                self._followers.clear()
                return
            self._followers[int(home)] = follower
        journals = [(self._role.journal, home) for home in self._followers]
        self._outputs.restore(content["outputs"], journals)


def _sent_until(follower: Follower) -> int:
    """The journal offset up to which all outputs must have been sent: a worker has at most `IN_FLIGHT` in flight."""
    last = follower.walker.walk.last
    return last[0] if len(last) == IN_FLIGHT else 0


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


def run_following(settings: WorkerSettings, system: System, role: str, keys: KeySource, once: bool = False) -> int:
    """Check a role in this process until SIGTERM or SIGINT; the arguments are those of `Auditor`.

    Returns:
        The exit code: 0 without differences; 1 with differences, or with a one-line error on standard error.
    """
    quiet_libraries()
    use_uvloop()
    try:
        return asyncio.run(_until_signal(Auditor(settings, system, role, keys), once))
    except HushstreamError as error:
        print(f"hushstream verify --follow: {error}", file=sys.stderr)
        return 1


async def _until_signal(auditor: Auditor, once: bool) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    collecting = asyncio.create_task(collect_in_steps())
    try:
        code = await auditor.run(stop, once)
    finally:
        collecting.cancel()
    found, unchecked = auditor.differences, auditor.uncheckable
    print(f"auditor: {found} records differ, {unchecked} could not be checked", flush=True)
    return code
