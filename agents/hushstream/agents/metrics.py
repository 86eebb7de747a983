"""Every metric of a worker, declared in one table with its class, and the endpoints that serve them.

Classes: ``released`` came out of a mechanism; ``slot-public`` follows from what is public anyway (records per
topic, slots, windows, times); ``zone-private`` tells something of content and is served only on the zone's
own endpoint. Labels come from fixed lists: what is not on the list is counted as ``other``.

The learner takes in clicks, and a batch of clicks alone shows that there was one. So its batches and the lag of
its clicks have zone-private metrics of their own (``hushstream_edge_*``), and decisions are counted in public.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from hushstream.roles.machine import Output

MetricClass = Literal["released", "slot-public", "zone-private"]
OTHER = "other"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: ``name`` by Prometheus conventions (counters are named with their ``_total``)."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    metric_class: MetricClass
    labels: tuple[str, ...]
    help: str


METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "hushstream_events_total",
        "counter",
        "zone-private",
        ("role", "outcome"),
        "Events by what became of them.",
    ),
    MetricSpec(
        "hushstream_slots_total",
        "counter",
        "slot-public",
        ("role",),
        "Slots sent or received, whatever they hold.",
    ),
    MetricSpec(
        "hushstream_decisions_total",
        "counter",
        "slot-public",
        ("role",),
        "Contexts that were answered, whatever was clicked.",
    ),
    MetricSpec("hushstream_windows_sealed_total", "counter", "slot-public", ("role",), "Windows of slots closed."),
    MetricSpec(
        "hushstream_batch_seconds",
        "histogram",
        "slot-public",
        ("role",),
        "From taking a batch to the acknowledgement of all its outputs; not of a learner.",
    ),
    MetricSpec(
        "hushstream_edge_batch_seconds",
        "histogram",
        "zone-private",
        ("role",),
        "The same of a learner, whose batches may hold clicks alone.",
    ),
    MetricSpec(
        "hushstream_journal_appends_total",
        "counter",
        "slot-public",
        ("role",),
        "Journal records appended; not by a learner.",
    ),
    MetricSpec(
        "hushstream_edge_journal_appends_total",
        "counter",
        "zone-private",
        ("role",),
        "The same by a learner, one for each batch.",
    ),
    MetricSpec(
        "hushstream_journal_reloads_total",
        "counter",
        "slot-public",
        ("role",),
        "Times a partition was reloaded from its journal (a failed append, or another writer).",
    ),
    MetricSpec(
        "hushstream_releases_total",
        "counter",
        "slot-public",
        ("role", "topic"),
        "Records released, by topic.",
    ),
    MetricSpec(
        "hushstream_dead_letters_total",
        "counter",
        "zone-private",
        ("role", "reason"),
        "Records refused, by reason.",
    ),
    MetricSpec(
        "hushstream_partitions_declared",
        "gauge",
        "slot-public",
        ("role",),
        "Home partitions that the role has, over all its workers.",
    ),
    MetricSpec(
        "hushstream_partitions_held",
        "gauge",
        "slot-public",
        ("role",),
        "Home partitions that this worker runs.",
    ),
    MetricSpec(
        "hushstream_partitions_stopped",
        "gauge",
        "slot-public",
        ("role",),
        "Assigned home partitions that were stopped for a reason given in the log.",
    ),
    MetricSpec(
        "hushstream_consumer_lag_records",
        "gauge",
        "slot-public",
        ("role", "topic", "partition"),
        "Records of an input that are not folded yet; not of clicks.",
    ),
    MetricSpec(
        "hushstream_edge_consumer_lag_records",
        "gauge",
        "zone-private",
        ("role", "topic", "partition"),
        "Clicks that are not folded yet.",
    ),
    MetricSpec(
        "hushstream_window_slots_declared",
        "gauge",
        "slot-public",
        ("role", "partition"),
        "Slots that close a window, by the configuration.",
    ),
    MetricSpec(
        "hushstream_recovery_seconds",
        "histogram",
        "slot-public",
        ("role",),
        "Time to bring one partition to the end of its journal.",
    ),
    MetricSpec(
        "hushstream_model_version",
        "gauge",
        "released",
        ("role", "partition"),
        "Version of the model in use.",
    ),
    MetricSpec(
        "hushstream_model_age_seconds",
        "gauge",
        "released",
        ("role", "partition"),
        "Time since the model in use was published.",
    ),
    MetricSpec(
        "hushstream_budget_spent_micro_epsilon",
        "gauge",
        "released",
        ("role", "partition", "scope_class"),
        "The most that one unit has paid so far, in millionths of epsilon.",
    ),
    MetricSpec(
        "hushstream_budget_limit_micro_epsilon",
        "gauge",
        "released",
        ("role", "partition", "scope_class"),
        "The most that one unit may pay, in millionths of epsilon.",
    ),
    MetricSpec(
        "hushstream_budget_price_micro_epsilon",
        "gauge",
        "released",
        ("role", "partition", "scope_class"),
        "What the next charge costs a unit, in millionths of epsilon.",
    ),
    MetricSpec(
        "hushstream_budget_refusing",
        "gauge",
        "released",
        ("role", "partition", "scope_class"),
        "1 where the budget refuses every further release, otherwise 0.",
    ),
)


@dataclass(frozen=True, slots=True)
class RoleGauge:
    """Where a value that a role reports is shown."""

    metric: str
    labels: Mapping[str, str] = field(default_factory=dict)


def _budget(scope_class: str) -> dict[str, RoleGauge]:
    labels = {"scope_class": scope_class}
    names = ("spent_micro_epsilon", "limit_micro_epsilon", "price_micro_epsilon", "refusing")
    return {f"{scope_class}_{name}": RoleGauge(f"hushstream_budget_{name}", labels) for name in names}


ROLE_GAUGES: Mapping[str, RoleGauge] = {
    "model_version": RoleGauge("hushstream_model_version"),
    "model_age_seconds": RoleGauge("hushstream_model_age_seconds"),
    "window_slots": RoleGauge("hushstream_window_slots_declared"),
    **_budget("slot"),
    **_budget("reward"),
}
"""What a role may report about a machine, and the gauge that shows it."""

_EDGE_ROLES = frozenset({"learner"})
"""Roles whose batches follow from clicks."""
_PRIVATE_INPUTS = frozenset({"clicks"})
"""Inputs whose number of records is content."""

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0, 60.0)
_KINDS: Mapping[str, Callable[..., Any]] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}


@dataclass(frozen=True, slots=True)
class Labels:
    """The fixed lists that label values are taken from."""

    role: str
    outcomes: Collection[str] = ()
    reasons: Collection[str] = ()
    topics: Collection[str] = ()
    partitions: int = 0


class Metrics:
    """A worker's metrics, updated once per batch, in two registries for two kinds of reader."""

    def __init__(self, labels: Labels, reason_of: Callable[[bytes], str] | None = None) -> None:
        """Register all of `METRICS`.

        Args:
            labels: the values that labels may have.
            reason_of: reads the reason code out of a dead letter.
        """
        self.public = CollectorRegistry()
        self.zone = CollectorRegistry()
        self._labels = labels
        self._reason_of = reason_of
        self._metrics = {spec.name: self._register(spec) for spec in METRICS}
        self._servers: list[tuple[Any, Any]] = []
        self._shown: set[int] = set()
        self._batches = "hushstream_edge_" if labels.role in _EDGE_ROLES else "hushstream_"

    def serve(self, host: str, port: int | None, zone_port: int | None) -> tuple[int | None, int | None]:
        """Open the two endpoints (None: not served; 0: any free port) and give the ports in use."""
        return self._serve(host, port, self.public), self._serve(host, zone_port, self.zone)

    def close(self) -> None:
        """Close the endpoints."""
        for server, thread in self._servers:
            server.shutdown()
            server.server_close()
            thread.join()
        self._servers.clear()

    def batch(self, counts: Mapping[str, int], seconds: float) -> None:
        """One step is done: its event counts, and how long it took from being taken to being released."""
        for name, count in counts.items():
            self._of("hushstream_events_total", outcome=self._known(name, self._labels.outcomes)).inc(count)
        self._of("hushstream_slots_total").inc(counts.get("slot", 0) + counts.get("slot_sent", 0))
        self._of("hushstream_decisions_total").inc(counts.get("decided", 0))
        self._of("hushstream_windows_sealed_total").inc(counts.get("window", 0))
        self._of(self._batches + "batch_seconds").observe(seconds)

    def journaled(self) -> None:
        """One journal record was appended."""
        self._of(self._batches + "journal_appends_total").inc()

    def reloaded(self) -> None:
        """A partition is being reloaded from its journal."""
        self._of("hushstream_journal_reloads_total").inc()

    def released(self, outputs: Iterable[Output]) -> None:
        """These records were acknowledged."""
        totals: dict[str, int] = {}
        for output in outputs:
            totals[output.topic] = totals.get(output.topic, 0) + 1
        for topic, total in totals.items():
            self._of("hushstream_releases_total", topic=self._known(topic, self._labels.topics)).inc(total)

    def dead_letters(self, outputs: Iterable[Output]) -> None:
        """These dead letters were acknowledged."""
        for output in outputs:
            reason = self._reason_of(output.value) if self._reason_of is not None else OTHER
            self._of("hushstream_dead_letters_total", reason=self._known(reason, self._labels.reasons)).inc()

    def recovered(self, seconds: float) -> None:
        """One partition was brought to the end of its journal."""
        self._of("hushstream_recovery_seconds").observe(seconds)

    def partitions(self, held: int, stopped: int) -> None:
        """How many home partitions run, and how many were stopped."""
        self._of("hushstream_partitions_declared").set(self._labels.partitions)
        self._of("hushstream_partitions_held").set(held)
        self._of("hushstream_partitions_stopped").set(stopped)

    def lag(self, topic: str, partition: int, records: int) -> None:
        """How many records of an input are not folded yet."""
        self._shown.add(partition)
        name = self._known(topic, self._labels.topics)
        metric = (
            "hushstream_edge_consumer_lag_records" if topic in _PRIVATE_INPUTS else "hushstream_consumer_lag_records"
        )
        self._of(metric, topic=name, partition=self._partition(partition)).set(records)

    def role_gauges(self, partition: int, values: Mapping[str, float]) -> None:
        """What a role reports about the machine of one partition, by the names of `ROLE_GAUGES`."""
        self._shown.add(partition)
        for name, value in values.items():
            gauge = ROLE_GAUGES[name]
            self._of(gauge.metric, partition=self._partition(partition), **gauge.labels).set(value)

    def keep_partitions(self, held: Collection[int]) -> None:
        """Drop what was shown of partitions that are not here any more: their last values would stand for ever."""
        for partition in self._shown.difference(held):
            for spec in METRICS:
                if "partition" in spec.labels:
                    self._metrics[spec.name].remove_by_labels({"partition": self._partition(partition)})
        self._shown.intersection_update(held)

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

    def _serve(self, host: str, port: int | None, registry: CollectorRegistry) -> int | None:
        if port is None:
            return None
        server, thread = start_http_server(port, host, registry)
        self._servers.append((server, thread))
        return int(server.server_port)


def age_seconds(log_time_ms: int) -> float:
    """Seconds from a log time until now, not below 0 (for ``model_age_seconds``)."""
    return max(0.0, time.time() - log_time_ms / 1000.0)
