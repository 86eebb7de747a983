"""Runs a worker process: one role and some home partitions, from the group's first assignment to a clean end.

sys.exit(run_worker(settings, make_machine, role_topics("learner", system)))
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiokafka.errors import KafkaError

from hushstream.agents.datadir import DatadirUnusable, Seat, check_datadir
from hushstream.agents.errors import (
    DENIED,
    AccessDenied,
    BrokerUnreachable,
    NoPartition,
    TopicMissing,
    WorkerError,
    code_of,
    from_client,
)
from hushstream.agents.kafka.administration import leave_group
from hushstream.agents.kafka.intake import Intake
from hushstream.agents.kafka.logs import partition_counts
from hushstream.agents.kafka.stream import Stream
from hushstream.agents.observe.endpoints import ports_named
from hushstream.agents.observe.metrics import EXIT_REASONS, STOP_REASONS, Labels, Metrics
from hushstream.agents.process import (
    EndInTime,
    collect_in_steps,
    collect_whole,
    exit_if_late,
    use_uvloop,
    wait_for_ever,
)
from hushstream.agents.recovery.recovery import Observe
from hushstream.agents.recovery.snapshots import MachineFactory
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.app import make_app
from hushstream.agents.worker.health import Health
from hushstream.agents.worker.homes import Homes
from hushstream.agents.worker.preflight import (
    Difference,
    RoleTopics,
    answered,
    check_topics,
    drift,
    require_rights,
    way_back,
)
from hushstream.engine.machine import Machine
from hushstream.schemas.errors import HushstreamError

logger = logging.getLogger(__name__)

_WATCH_SECONDS = 0.2
_GAUGE_SECONDS = 1.0
_TOPICS_SECONDS = 10.0
"""How often a worker checks that its topics still exist."""
_DRIFT_SECONDS = 60.0
"""How often a worker compares settings, partitions and rights of its topics with their declaration."""
_ROOM_SECONDS = 2.0
"""How often a worker that left its group checks whether its state folder takes files again."""


@dataclass(frozen=True, slots=True)
class Reporting:
    """What a role adds to the worker's metrics.

    Attributes:
        outcomes, reasons: the fixed lists of label values.
        reason_of: reads the reason code of a dead letter.
        gauges: gives a machine's values, by the names of `hushstream.agents.observe.metric_table.role_gauges_of`.
        roles: all roles of the deployment.
        private_work: whether the number and size of batches depend on content.
        private_lag: the inputs whose number of records is private.
        scope_classes: the classes of charges that the gauges show.
        figures_of: gives the values of a released record, from its topic and bytes, by the same names as ``gauges``.
    """

    outcomes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    reason_of: Callable[[bytes], str] | None = None
    gauges: Callable[[Machine], Mapping[str, float]] | None = None
    roles: tuple[str, ...] = ()
    private_work: bool = False
    private_lag: frozenset[str] = frozenset()
    scope_classes: tuple[str, ...] = ()
    figures_of: Callable[[str, bytes], Mapping[str, float]] | None = None


def observe_nothing(stage: str, partition: int, sequence: int) -> None:
    """Do nothing: the default observer."""


class RoleWorker:
    """Runs the machines of the home partitions that the group gives to this process."""

    def __init__(
        self,
        settings: WorkerSettings,
        make_machine: MachineFactory,
        topics: RoleTopics,
        *,
        observe: Observe = observe_nothing,
        reporting: Reporting | None = None,
        end_in_time: EndInTime = wait_for_ever,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            settings: see `WorkerSettings`.
            make_machine: makes the machine of a home partition.
            topics: the topics that the role reads and writes.
            observe: called at each named step (decoded, folded, journal_sent, journal_acked, marking, marked,
                released, committed, snapshot) with the partition and the journal's sequence number.
            reporting: what the metrics show of the machines.
            end_in_time: limits how long the stream client may take to end, once everything is handed over.
        """
        self._settings = settings
        self._make_machine = make_machine
        self._topics = topics
        self._observe = observe
        self._reporting = reporting or Reporting()
        self._end_in_time = end_in_time
        self._stop = asyncio.Event()
        self._stopping = self._asked = False
        self._failure: BaseException | None = None
        self._app: Any = None
        self._seat: Seat
        self._homes: Homes
        self._intake: Intake
        self._missing = ""
        self._declared = 0
        self._drift: tuple[Difference, ...] = ()
        self._stream: Stream
        self._metrics: Metrics
        self._health: Health

    @property
    def starting(self) -> bool:
        """Whether the worker still prepares, and has not begun to join its group."""
        return self._app is None

    @property
    def asked(self) -> bool:
        """Whether a clean end was requested."""
        return self._asked

    def request_stop(self) -> None:
        """Begin a clean end: drain, snapshot, commit, leave the group."""
        self._asked = True
        self._stop.set()

    async def run(self) -> None:
        """Work until `request_stop`.

        Raises:
            HushstreamError: why the worker cannot go on, in one line.
        """
        check_datadir(self._settings.datadir)
        self._metrics = self._make_metrics()
        try:
            self._serve_metrics()
            self._metrics.member(False)
            try:
                self._declared = homes = await check_topics(self._settings, self._topics)
                self._metrics.homes(homes)
                (self._settings.datadir / "faust").mkdir(parents=True, exist_ok=True)
                await self._work_on(homes)
            except HushstreamError as error:
                self._failure = error
            if isinstance(self._failure, AccessDenied):
                await self._name_what_lacks()
            await self._show_reason()
        finally:
            self._metrics.close()
        if self._failure is not None:
            raise self._failure

    async def _work_on(self, homes: int) -> None:
        self._assemble()
        await answered(self._settings, partial(self._homes.require_same_configuration, homes))
        await self._work()
        while isinstance(self._failure, DatadirUnusable) and await self._has_room_again():
            self._assemble()
            await self._work()

    async def _name_what_lacks(self) -> None:
        """Say which right was taken from which account: the client's error does not."""
        try:
            await answered(self._settings, lambda: require_rights(self._settings, self._topics))
        except AccessDenied as lacking:
            self._failure = lacking
        except BrokerUnreachable:
            return

    async def _show_reason(self) -> None:
        """Keep serving metrics for a while, so that Prometheus reads why the worker ends.

        Most workers that end at once end between two scrapes, so that nobody would learn the reason. If a restart helps
        against the error, the worker ends at once.
        """
        seconds, settings = self._set_exit_reason(), self._settings
        if seconds:
            logger.error(
                "cannot go on, and serves the reason as a metric for %g s: %s",
                seconds,
                settings.located(str(self._failure)),
            )
        until = time.monotonic() + seconds
        while not self._asked and time.monotonic() < until:
            self._metrics.beat()
            await asyncio.sleep(_WATCH_SECONDS)

    def _set_exit_reason(self) -> float:
        """Show why the worker ends; returns the seconds for which it must be shown, 0 if a restart helps."""
        code, settings = "" if self._failure is None else code_of(self._failure), self._settings
        if self._asked or settings.metrics_port is None or code not in (*STOP_REASONS, *EXIT_REASONS):
            return 0.0
        self._metrics.ended(code)
        return settings.tell_seconds

    async def _has_room_again(self) -> bool:
        """Wait, outside the group, until the state folder takes files; False if a clean end was requested first."""
        logger.error("left the group: %s; will join again when the state folder has room", self._failure)
        self._metrics.ended("datadir_unusable")
        left, saved = time.monotonic(), self._homes.snapshot_age
        while not self._asked:
            await asyncio.sleep(_ROOM_SECONDS)
            self._metrics.beat()
            self._health.measure_outside(saved + time.monotonic() - left)
            with contextlib.suppress(DatadirUnusable):
                check_datadir(self._settings.datadir)
                break
        if self._asked:
            return False
        logger.warning("the state folder has room again: joining the group")
        self._metrics.works_again()
        self._failure, self._stopping = None, False
        self._stop.clear()
        return True

    def _assemble(self) -> None:
        self._intake = intake = Intake()
        self._seat = self._take_seat()
        self._app = make_app(self._settings, self._topics.inputs, intake, self._seat.instance)
        self._stream = Stream(self._app, self._settings)
        self._homes = Homes(
            self._settings, self._make_machine, self._topics,
            self._stream, intake, self._metrics, self._observe, self._fatal,
        )  # fmt: skip
        self._health = Health(
            self._settings, self._app, self._stream, self._homes, intake, self._metrics, self._reporting.private_lag
        )
        for seconds, work in (
            (self._settings.commit_interval_seconds, self._homes.commit),
            (_GAUGE_SECONDS, self._measure),
            (_GAUGE_SECONDS, self._check_journals),
            (_TOPICS_SECONDS, self._check_topics),
            (_DRIFT_SECONDS, self._check_drift),
        ):
            self._app.timer(seconds, name=work.__name__, traced=False)(partial(self._fatal_on_error, work))
        self._app.on_rebalance_complete.connect(self._on_rebalance_complete)
        self._app.on_partitions_revoked.connect(self._on_partitions_revoked)

    def _take_seat(self) -> Seat:
        try:
            return Seat(self._settings.datadir, self._settings.group)
        except OSError as error:
            raise DatadirUnusable(f"{self._settings.datadir}: the id in the group: {error.strerror}") from None

    async def _work(self) -> None:
        self._metrics.member(True)
        await answered(self._settings, self._stream.start)
        started = asyncio.create_task(self._app.start())
        loops = (self._homes.broadcast.run, self._intake.run, self._watch_membership)
        tasks = [asyncio.create_task(self._fatal_on_error(loop)) for loop in loops]
        tasks.append(asyncio.create_task(self._watch_app(started)))
        await self._stop.wait()
        self._stopping = True
        if self._failure is None or isinstance(self._failure, DatadirUnusable):
            await self._homes.on_revoked(snapshot=self._failure is None)
        # A worker that will join again when there is room stays in this process: nothing may end the process then.
        returns = isinstance(self._failure, DatadirUnusable) and not self._asked
        # Shown before the stream client ends: that may take longer than `exit_if_late` allows.
        with (wait_for_ever if returns else self._end_in_time)(self._failure, self._set_exit_reason()):
            await self._leave(started, tasks)

    async def _leave(self, started: asyncio.Task[None], tasks: Sequence[asyncio.Task[None]]) -> None:
        self._homes.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._app.stop()
        await self._stream.stop()
        await self._leave_group()
        self._metrics.member(False)
        self._seat.leave()
        started.cancel()
        await asyncio.gather(started, return_exceptions=True)

    async def _leave_group(self) -> None:
        settings = self._settings
        try:
            async with asyncio.timeout(settings.session_timeout_seconds):
                await leave_group(settings.cluster, settings.group, self._seat.instance)
        except (KafkaError, OSError, TimeoutError) as error:
            logger.warning("could not leave the group (%s): others wait for the session's end", type(error).__name__)

    async def _on_rebalance_complete(self, app: Any, **_: Any) -> None:
        """Take up the assigned partitions; Faust awaits this before it seeks and fetches."""
        if not self._stopping:
            await self._homes.on_assigned()

    async def _on_partitions_revoked(self, app: Any, revoked: Iterable[Any], **_: Any) -> None:
        """Give up all partitions: the group's protocol is eager, and the worker may get some of them again."""
        if not self._stopping:
            held = len(self._homes.drivers)
            await self._homes.on_revoked(snapshot=False)
            if held:
                collect_whole()

    async def _watch_app(self, started: asyncio.Task[None]) -> None:
        """End the worker when Faust's own services crash."""
        over = asyncio.create_task(self._app.wait_until_stopped())
        await asyncio.wait({started, over}, return_when=asyncio.FIRST_COMPLETED)
        if started.done() and not started.cancelled() and started.exception() is not None:
            over.cancel()
            self._fatal(_as_worker_error(started.exception()))
            return
        await over
        self._fatal(_as_worker_error(self._app.crash_reason))

    def _fatal(self, reason: BaseException) -> None:
        if self._failure is None and not self._stopping:
            self._failure = reason
        self._stop.set()

    async def _fatal_on_error(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - it becomes the reason with which the worker ends
            self._fatal(_as_worker_error(error))

    async def _watch_membership(self) -> None:
        """End the worker if the group refuses it, or gives it no partition for too long: Faust would wait for ever."""
        since = time.monotonic()
        limit = self._settings.join_timeout_seconds
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            self._metrics.beat()
            await self._stream.raise_refusal()
            if self._homes.occupied:
                since = time.monotonic()
            elif time.monotonic() - since > limit:
                raise NoPartition(
                    f"held no partition of {self._topics.inputs[0]} within {limit:g} s: other workers of "
                    f"group {self._settings.group} hold them all"
                )

    async def _check_topics(self) -> None:
        """End the worker if a topic was deleted.

        Its fetches and sends alone cannot tell this from a broker that does not answer.
        """
        with contextlib.suppress(KafkaError, OSError, TimeoutError):
            counts = await partition_counts(self._settings, self._topics.all)
            before, self._missing = self._missing, next((name for name in sorted(counts) if not counts[name]), "")
            # Only after two checks: a broker that has just started may not know all topics yet.
            if self._missing and self._missing == before:
                await require_rights(self._settings, self._topics)  # without them, a topic cannot be described
                raise TopicMissing(
                    f"topic {self._settings.physical(self._missing)} was deleted while this worker ran; "
                    f"{way_back(self._settings, self._topics, self._missing)}"
                )

    async def _check_drift(self) -> None:
        """Show what would stop the next start: topics whose settings, partitions or access rules were changed."""
        with contextlib.suppress(KafkaError, OSError, TimeoutError):
            before, self._drift = self._drift, await drift(self._settings, self._topics, self._declared)
            self._metrics.drift({(one.topic, one.what) for one in self._drift})
            for one in self._drift:
                if one not in before:
                    logger.error("changed while this worker runs: %s", self._settings.located(str(one)))

    async def _measure(self) -> None:
        self._metrics.keep_partitions(self._homes.drivers.keys())
        self._health.measure(self._stream.fetched_end)
        for partition, driver in list(self._homes.drivers.items()):
            for buffer in driver.inputs:
                end = self._stream.fetched_end(buffer.source)
                if end is not None:
                    self._metrics.lag(*buffer.source, max(0, end - buffer.low))
            await driver.check_inputs()
            if self._reporting.gauges is not None:
                self._metrics.role_gauges(partition, self._reporting.gauges(driver.machine))

    async def _check_journals(self) -> None:
        """Check the ends of journals, by a timer of its own: a check waits for the broker, and the gauges must not."""
        for driver in list(self._homes.drivers.values()):
            await driver.check_journal()

    def _make_metrics(self) -> Metrics:
        topics = (*self._topics.inputs, *self._topics.writes, *self._topics.own, *self._topics.broadcasts)
        reporting = self._reporting
        labels = Labels(
            self._settings.role, reporting.outcomes, reporting.reasons, topics, 0,
            reporting.roles, reporting.private_work, reporting.private_lag,
            reporting.scope_classes,
        )  # fmt: skip
        return Metrics(labels, reporting.reason_of, reporting.figures_of)

    def _serve_metrics(self) -> None:
        settings = self._settings
        try:
            ports = self._metrics.serve(
                settings.metrics_host,
                settings.metrics_port,
                settings.zone_metrics_port,
                settings.zone_metrics_host,
                settings.metrics_access,
            )
        except OSError as error:
            raise WorkerError(f"metrics cannot be served on {_places_asked_for(settings)}: {error.strerror}") from error
        logger.info("role %s, group %s, %s", settings.role, settings.group, ports_named(ports))


def _places_asked_for(settings: WorkerSettings) -> str:
    public = (settings.metrics_host, settings.metrics_port)
    zone = (settings.zone_metrics_host, settings.zone_metrics_port)
    return " and ".join(f"{host} port {port}" for host, port in (public, zone) if port is not None)


def run_worker(
    settings: WorkerSettings,
    make_machine: MachineFactory,
    topics: RoleTopics,
    *,
    observe: Observe = observe_nothing,
    reporting: Reporting | None = None,
) -> int:
    """Run one worker in this process until SIGTERM or SIGINT; the arguments are those of `RoleWorker`.

    Returns:
        The exit code: 0 after a clean end, 1 with a one-line reason on standard error otherwise.
    """
    quiet_libraries()
    use_uvloop()
    try:
        asyncio.run(_run_until_signal(settings, make_machine, topics, observe, reporting))
    except HushstreamError as error:
        print(settings.located(f"hushstream worker {settings.role}: {error}"), file=sys.stderr)
        return 1
    return 0


async def _run_until_signal(
    settings: WorkerSettings,
    make_machine: MachineFactory,
    topics: RoleTopics,
    observe: Observe,
    reporting: Reporting | None,
) -> None:
    worker = RoleWorker(settings, make_machine, topics, observe=observe, reporting=reporting, end_in_time=exit_if_late)
    running = asyncio.ensure_future(worker.run())

    def on_signal() -> None:
        worker.request_stop()
        if worker.starting:
            running.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    collecting = asyncio.create_task(collect_in_steps())
    try:
        await running
    except asyncio.CancelledError:
        # An end that nobody asked for is none that a supervisor may take for a clean one.
        if not worker.asked:
            raise _as_worker_error(None) from None
    finally:
        collecting.cancel()


def quiet_libraries() -> None:
    """Silence the libraries' logs about life cycles and retries: our own logs say what an operator needs."""
    for name in ("faust", "mode", "aiokafka", "kafka"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _as_worker_error(reason: BaseException | None) -> BaseException:
    if isinstance(reason, DENIED):
        return from_client(reason, "fetching")
    if isinstance(reason, (KafkaError, ConnectionError)) or reason is None:
        return WorkerError(f"the stream client ended: {type(reason).__name__}: {reason}")
    return reason


__all__ = ["Reporting", "RoleTopics", "RoleWorker", "observe_nothing", "quiet_libraries", "run_worker"]
