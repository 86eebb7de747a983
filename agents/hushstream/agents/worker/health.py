"""Measures a worker's health: when brokers last answered, how long records wait, whether state can still be saved.

These gauges tell an outage from an hour without traffic. Others cannot: a worker that is cut off from its brokers keeps
its partitions, its lag stands still, and its event loop runs. Ages are rounded down to steps of 5 s, so that they show
an outage but not a single batch (of clicks, perhaps).
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from faust.types import TP

from hushstream.agents.kafka.intake import Intake
from hushstream.agents.kafka.stream import Stream
from hushstream.agents.observe.metrics import Metrics
from hushstream.agents.partition.driver import PartitionDriver
from hushstream.agents.process import RateLimitedLog
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.homes import Homes

logger = logging.getLogger(__name__)

STEP_SECONDS = 5.0
_OUTAGE_SECONDS = 10.0
"""When no broker has answered for this long, the worker logs a warning."""


class BrokerContact:
    """Knows when the brokers last answered this worker's fetches."""

    def __init__(self, app: Any) -> None:
        """Watch the app's consumer, once it has started."""
        self._app = app
        self._began = time.monotonic()

    def fetch_age(self, sources: Iterable[TP]) -> float:
        """Seconds since the last answer to a fetch, of the partition that has waited longest; 0 if none is fetched.

        While partitions are assigned or revoked nothing is fetched, however long that takes.
        """
        consumer = self._app.consumer.thread.kafka
        if consumer is None or not self._app.consumer.flow_active:
            self._began = time.monotonic()
            return 0.0
        assigned, now = consumer.assignment(), time.time()
        ages = [self._age_of(consumer.last_poll_timestamp(place), now) for place in assigned.intersection(sources)]
        return max(ages, default=0.0)

    def _age_of(self, polled_ms: int | None, now: float) -> float:
        since_begun = time.monotonic() - self._began
        return since_begun if polled_ms is None else min(since_begun, max(0.0, now - polled_ms / 1000))


class StallTimer:
    """Measures how long records of a partition's first input have waited while none of them was folded."""

    def __init__(self) -> None:
        """Begin with no waiting records."""
        self._since: dict[int, tuple[int, float]] = {}

    def seconds(self, partition: int, folded_to: int, end: int, now: float) -> float:
        """Seconds for which a partition's records have waited, by the offset folded up to and the end of the log."""
        low, since = self._since.get(partition, (folded_to, now))
        if low != folded_to or end <= folded_to:
            since = now
        self._since[partition] = (folded_to, since)
        return now - since

    def keep(self, partitions: Collection[int]) -> None:
        """Forget all other partitions: other workers have them now."""
        self._since = {partition: seen for partition, seen in self._since.items() if partition in partitions}


class Health:
    """Measures the worker's health at intervals, and sets the gauges."""

    def __init__(
        self,
        settings: WorkerSettings,
        app: Any,
        stream: Stream,
        homes: Homes,
        intake: Intake,
        metrics: Metrics,
        private_lag: Collection[str],
    ) -> None:
        """Measure one worker; for an input in ``private_lag`` no gauge says whether records wait."""
        self._datadir = settings.datadir
        self._homes = homes
        self._intake = intake
        self._metrics = metrics
        self._private = private_lag
        self._contact = BrokerContact(app)
        self._stream = stream
        self._stalls = StallTimer()
        self._limited_log = RateLimitedLog(logger)
        self._out = False

    def measure(self, ends: Callable[[tuple[str, int]], int | None]) -> None:
        """Set the gauges; ``ends`` gives the end of an input log when it was last fetched."""
        fetched = self._contact.fetch_age(TP(*source) for source in self._intake.open_sources())
        drivers = list(self._homes.drivers.values())
        self._metrics.health(
            fetch_age_seconds=_stepped(fetched),
            group_commit_age_seconds=_stepped(self._stream.commit_age if drivers else 0.0),
            append_wait_seconds=_stepped(max((driver.append_wait for driver in drivers), default=0.0)),
            snapshot_age_seconds=_stepped(self._homes.snapshot_age),
            published_state_age_seconds=_stepped(self._homes.published_age),
            state_disk_free_ratio=_free(self._datadir),
        )
        self._stalls.keep(self._homes.drivers.keys())
        now = time.monotonic()
        for driver in drivers:
            self._show_dark(driver, ends, now)
        self._log_contact(fetched)

    def measure_outside(self, seconds: float) -> None:
        """Set the gauges of a worker outside its group, which fetches nothing; its last save was ``seconds`` ago."""
        self._metrics.health(
            fetch_age_seconds=0.0, group_commit_age_seconds=0.0, append_wait_seconds=0.0,
            snapshot_age_seconds=_stepped(seconds), state_disk_free_ratio=_free(self._datadir),
        )  # fmt: skip

    def _show_dark(self, driver: PartitionDriver, ends: Callable[[tuple[str, int]], int | None], now: float) -> None:
        leading = driver.inputs[0]
        if leading.source[0] in self._private:
            return
        end = max(leading.next_offset, ends(leading.source) or 0)
        seconds = self._stalls.seconds(driver.partition, leading.low, end, now)
        self._metrics.dark(driver.partition, _stepped(seconds))

    def _log_contact(self, fetch_age_seconds: float) -> None:
        if fetch_age_seconds >= _OUTAGE_SECONDS:
            self._out = True
            self._limited_log.warning("no broker has answered a fetch for %.0f s", fetch_age_seconds)
        elif self._out:
            self._out = False
            logger.info("brokers answer fetches again")


def _stepped(seconds: float) -> float:
    return seconds // STEP_SECONDS * STEP_SECONDS


def _free(folder: Path) -> float:
    """The free share of the disk of a folder, or of the nearest existing folder above it, in steps of 0.01.

    It is coarse because the size of the state depends on content, and must not be visible to the byte.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    found = shutil.disk_usage(folder)
    return found.free * 100 // found.total / 100
