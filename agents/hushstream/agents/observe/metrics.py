"""A worker's metrics (`hushstream.agents.observe.metric_table`) and the endpoints that serve them.

What is zone-private is in a registry of its own, on an endpoint of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

from hushstream.agents.observe.endpoints import EVERYBODY, MetricsAccess, MetricsEndpoints
from hushstream.agents.observe.metric_table import METRICS, MetricClass, MetricSpec, role_gauges_of
from hushstream.engine.records import Output
from hushstream.schemas import codec
from hushstream.schemas.catalogue import FIRST_GENERATION

__all__ = ["METRICS", "OTHER", "Labels", "MetricClass", "MetricSpec", "Metrics"]

# Otherwise every counter has a second series that only says when it was made.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library declares no types for it

OTHER = "other"
LOOPBACK = "127.0.0.1"

_OF_WORK = {True: "hushstream_edge_", False: "hushstream_"}
"""How the names of what is measured of a role's work begin where it follows from content, and elsewhere."""
_WORK = ("batch_seconds", "journal_appends_total", "recovery_seconds")

HEARTBEAT_STEP_SECONDS = 10.0
"""How coarse the public age of the last heartbeat is: no single batch, of clicks perhaps, can be seen in it."""

_STOPPED = "hushstream_partition_stopped"
STOP_REASONS = (
    "inputs_deleted", "journal_truncated", "topics_replaced", "older_than_paid", "replay_mismatch", "newer_journal",
)  # fmt: skip
"""Why one partition may be stopped: the names of the errors, in snake case."""
EXIT_REASONS = (
    "access_denied", "broker_version_wrong", "datadir_unusable", "foreign_journal", "no_partition",
    "partition_count_wrong", "session_refused", "topic_missing", "topic_settings_wrong",
)  # fmt: skip
"""Why a whole worker may end that a new start does not mend."""

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0, 60.0)
_KINDS: Mapping[str, Callable[..., Any]] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}


@dataclass(frozen=True, slots=True)
class Labels:
    """The fixed lists that label values are taken from, and what a worker says of its deployment once and for all.

    Attributes:
        scope_classes: of the charges that the role's gauges show.
        roles: of the deployment.
        schema_generation: in which the worker writes.
        private_work: whether the role's batches follow from content.
        private_lag: inputs whose number of records is content.
    """

    role: str
    outcomes: Collection[str] = ()
    reasons: Collection[str] = ()
    topics: Collection[str] = ()
    partitions: int = 0
    roles: Collection[str] = ()
    schema_generation: int = FIRST_GENERATION
    private_work: bool = False
    private_lag: Collection[str] = ()
    scope_classes: Collection[str] = ()


class Metrics:
    """A worker's metrics, updated once per batch, in two registries for two kinds of reader."""

    def __init__(
        self,
        labels: Labels,
        reason_of: Callable[[bytes], str] | None = None,
        figures_of: Callable[[str, bytes], Mapping[str, float]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Register all of `METRICS`.

        Args:
            labels: the values that labels may have.
            reason_of: reads the reason code out of a dead letter.
            figures_of: what to show of a record that has left, by the names of `role_gauges_of`.
            clock: in seconds, from any time on.
        """
        self._clock = clock
        self._beaten = clock()
        self.public = CollectorRegistry()
        self.zone = CollectorRegistry()
        self._labels = labels
        self._gauges = role_gauges_of(labels.scope_classes)
        self._reason_of, self._figures_of = reason_of, figures_of
        self._metrics = {spec.name: self._register(spec) for spec in METRICS}
        self._endpoints: list[MetricsEndpoints] = []
        self._shown: set[int] = set()
        self._stopped: dict[int, str] = {}
        self._work = _OF_WORK[labels.private_work]
        self._begin_at_zero()
        self._declare()

    def serve(
        self,
        host: str,
        port: int | None,
        zone_port: int | None,
        zone_host: str = LOOPBACK,
        access: MetricsAccess = EVERYBODY,
    ) -> tuple[int | None, int | None]:
        """Open the two endpoints (None: not served; 0: any free port) and give the ports in use.

        The zone's has a host of its own: whoever opens the public one to others has not opened this one.
        """
        endpoints = MetricsEndpoints(access)
        self._endpoints.append(endpoints)
        return endpoints.open(host, port, self.public), endpoints.open(zone_host, zone_port, self.zone)

    def close(self) -> None:
        """Close the endpoints."""
        for endpoints in self._endpoints:
            endpoints.close()
        self._endpoints.clear()

    def batch(self, counts: Mapping[str, int], seconds: float) -> None:
        """One step is done: its event counts, and how long it took from being taken to being released."""
        for name, count in counts.items():
            self._of("hushstream_events_total", outcome=self._known(name, self._labels.outcomes)).inc(count)
        self._of("hushstream_slots_total").inc(counts.get("slot", 0) + counts.get("slot_sent", 0))
        self._of("hushstream_decisions_total").inc(counts.get("decided", 0) + counts.get("predicted", 0))
        self._of("hushstream_windows_sealed_total").inc(counts.get("window", 0))
        self._of(self._work + "batch_seconds").observe(seconds)

    def journaled(self) -> None:
        """One journal record was appended."""
        self._of(self._work + "journal_appends_total").inc()

    def reloaded(self) -> None:
        """A partition is being reloaded from its journal."""
        self._of("hushstream_journal_reloads_total").inc()

    def released(self, outputs: Iterable[Output]) -> None:
        """These records were acknowledged."""
        totals: dict[str, int] = {}
        for output in outputs:
            totals[output.topic] = totals.get(output.topic, 0) + 1
            if self._figures_of is not None:
                self.role_gauges(output.partition, self._figures_of(output.topic, output.value))
        for topic, total in totals.items():
            self._of("hushstream_releases_total", topic=self._known(topic, self._labels.topics)).inc(total)

    def dead_letters(self, outputs: Iterable[Output]) -> None:
        """These dead letters were acknowledged."""
        for output in outputs:
            reason = self._reason_of(output.value) if self._reason_of is not None else OTHER
            self._of("hushstream_dead_letters_total", reason=self._known(reason, self._labels.reasons)).inc()

    def waited_in_vain(self) -> None:
        """A partition waited for a click that a context names and that is not there."""
        self._of("hushstream_edge_waits_in_vain_total").inc()

    def recovered(self, seconds: float) -> None:
        """One partition was brought to the end of its journal."""
        self._of(self._work + "recovery_seconds").observe(seconds)

    def stopped(self, reasons: Mapping[int, str]) -> None:
        """The partitions that were stopped, and why, as codes of `STOP_REASONS`."""
        metric = self._metrics[_STOPPED]
        for partition in self._stopped.keys() - reasons.keys():
            metric.remove_by_labels({"partition": self._partition(partition)})
        self._stopped = dict(reasons)
        for partition, reason in reasons.items():
            self._of(_STOPPED, partition=self._partition(partition), reason=self._known(reason, STOP_REASONS)).set(1)

    def ended(self, reason: str) -> None:
        """The worker has ended its work, and stays to tell why: a code of `STOP_REASONS` or `EXIT_REASONS`."""
        known = self._known(reason, (*STOP_REASONS, *EXIT_REASONS))
        self._of("hushstream_exit_reason", reason=known).set(1)

    def homes(self, partitions: int) -> None:
        """How many home partitions the role has, once that is known; before, partitions have no numbers."""
        self._labels = replace(self._labels, partitions=partitions)

    def ended_no_more(self) -> None:
        """The worker works again."""
        self._metrics["hushstream_exit_reason"].clear()

    def member(self, is_member: bool) -> None:
        """Whether the worker is in its group, or on its way into it."""
        self._of("hushstream_group_member").set(is_member)

    def foreign(self, topic: str) -> None:
        """A record was skipped on a topic of this role that is not of the deployment."""
        self._of("hushstream_foreign_records_total", topic=self._known(topic, self._labels.topics)).inc()

    def beat(self) -> None:
        """The event loop turns; what is served shows how long ago that was, also when nothing turns any more."""
        self._beaten = self._clock()

    def health(self, **values: float) -> None:
        """What tells an outage, by the names of its gauges without prefix (`hushstream.agents.worker.health`)."""
        for name, value in values.items():
            self._of(f"hushstream_{name}").set(value)

    def dark(self, partition: int, seconds: float) -> None:
        """How long records of a partition have waited without one of them being folded."""
        self._shown.add(partition)
        self._of("hushstream_partition_dark_seconds", partition=self._partition(partition)).set(seconds)

    def partitions(self, assigned: int, held: int, stopped: int) -> None:
        """How many home partitions the group gave to this worker, how many of them run, and how many were stopped."""
        self._of("hushstream_partitions_declared").set(self._labels.partitions)
        self._of("hushstream_partitions_assigned").set(assigned)
        self._of("hushstream_partitions_held").set(held)
        self._of("hushstream_partitions_stopped").set(stopped)

    def lag(self, topic: str, partition: int, records: int) -> None:
        """How many records of an input are not folded yet."""
        self._shown.add(partition)
        name = self._known(topic, self._labels.topics)
        metric = (
            "hushstream_edge_consumer_lag_records"
            if topic in self._labels.private_lag
            else "hushstream_consumer_lag_records"
        )
        self._of(metric, topic=name, partition=self._partition(partition)).set(records)

    def role_gauges(self, partition: int, values: Mapping[str, float]) -> None:
        """What a role reports about the machine of one partition, by the names of `role_gauges_of`."""
        self._shown.add(partition)
        for name, value in values.items():
            gauge = self._gauges[name]
            self._of(gauge.metric, partition=self._partition(partition), **gauge.labels).set(value)

    def keep_partitions(self, held: Collection[int]) -> None:
        """Drop what was shown of partitions that are not here any more: their last values would stand for ever."""
        for partition in self._shown.difference(held):
            for spec in METRICS:
                if "partition" in spec.labels and spec.name != _STOPPED:
                    self._metrics[spec.name].remove_by_labels({"partition": self._partition(partition)})
        self._shown.intersection_update(held)

    def _begin_at_zero(self) -> None:
        """Show counters before they count: Prometheus sees no increase in what it first meets above 0."""
        elsewhere = _OF_WORK[not self._labels.private_work]
        never = {elsewhere + name for name in _WORK}
        for spec in METRICS:
            if spec.kind != "gauge" and spec.labels == ("role",) and spec.name not in never:
                self._of(spec.name)
        for topic in self._labels.topics:
            self._of("hushstream_foreign_records_total", topic=topic)
        for reason in (*self._labels.reasons, OTHER):
            self._of("hushstream_dead_letters_total", reason=reason)

    def _declare(self) -> None:
        for role in self._labels.roles:
            self._of("hushstream_roles_declared", declared=role).set(1)
        self._of("hushstream_schema_generation", use="writes").set(self._labels.schema_generation)
        self._of("hushstream_schema_generation", use="reads").set(codec.NEWEST_GENERATION)
        self._of("hushstream_heartbeat_age_seconds").set_function(self._heartbeat_age)

    def _heartbeat_age(self) -> float:
        return (self._clock() - self._beaten) // HEARTBEAT_STEP_SECONDS * HEARTBEAT_STEP_SECONDS

    def _register(self, spec: MetricSpec) -> Any:
        registry = self.zone if spec.metric_class == "zone-private" else self.public
        extra = {"buckets": _SECONDS} if spec.kind == "histogram" else {}
        return _KINDS[spec.kind](spec.name, spec.help, spec.labels, registry=registry, **extra)

    def _of(self, name: str, **labels: str) -> Any:
        return self._metrics[name].labels(role=self._labels.role, **labels)

    def _partition(self, partition: int) -> str:
        return str(partition) if 0 <= partition < self._labels.partitions else OTHER

    @staticmethod
    def _known(value: str, allowed: Collection[str]) -> str:
        return value if value in allowed else OTHER
