"""Keeps a worker's metrics (`hushstream.agents.observe.metric_table`) and serves them.

Zone-private metrics are in a registry of their own, which has an endpoint of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import (
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

from hushstream.agents.observe.endpoints import ServedMetrics
from hushstream.agents.observe.metric_table import METRICS, MetricClass, MetricSpec, role_gauges_of
from hushstream.engine.records import Output

__all__ = ["METRICS", "OTHER", "Labels", "MetricClass", "MetricSpec", "Metrics"]

# Otherwise every counter has a second series that only says when the counter was created.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library declares no types for it

OTHER = "other"

_OF_WORK = {True: "hushstream_edge_", False: "hushstream_"}
"""The prefix of metrics of a role's work, by whether its batches depend on content."""
_WORK = ("batch_seconds", "journal_appends_total", "recovery_seconds")
_OF_STATE = frozenset(
    {"append_wait_seconds", "published_state_age_seconds", "snapshot_age_seconds", "state_disk_free_ratio"}
)
"""What tells of a role's journal and state, which a record without output may change, too."""

HEARTBEAT_STEP_SECONDS = 10.0
"""The step of the public age of the event loop. It is so coarse that no single batch (perhaps of clicks) is visible."""

_STOPPED = "hushstream_partition_stopped"
STOP_REASONS = (
    "inputs_deleted", "journal_truncated", "topics_replaced", "older_than_released", "replay_mismatch", "other_release",
)  # fmt: skip
"""The reasons for which one partition may be stopped: the names of the errors, in snake case."""
EXIT_REASONS = (
    "access_denied", "broker_version_wrong", "datadir_unusable", "foreign_journal", "no_partition",
    "partition_count_wrong", "session_refused", "topic_missing", "topic_settings_wrong",
)  # fmt: skip
"""The reasons for which a whole worker ends and a restart does not help."""

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0, 60.0)
_KINDS: Mapping[str, Callable[..., Any]] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}


@dataclass(frozen=True, slots=True)
class Labels:
    """The fixed lists of label values, and the facts about the deployment that do not change while a worker runs.

    Attributes:
        scope_classes: the classes of charges that the role's gauges show.
        roles: all roles of the deployment.
        private_work: whether the number and size of the role's batches depend on content.
        private_lag: the inputs whose number of records is private.
    """

    role: str
    outcomes: Collection[str] = ()
    reasons: Collection[str] = ()
    topics: Collection[str] = ()
    partitions: int = 0
    roles: Collection[str] = ()
    private_work: bool = False
    private_lag: Collection[str] = ()
    scope_classes: Collection[str] = ()


class Metrics(ServedMetrics):
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
            reason_of: reads the reason code of a dead letter.
            figures_of: gives the values of a released record, by the names of `role_gauges_of`.
            clock: gives seconds; it may begin at any time.
        """
        super().__init__()
        self._clock = clock
        self._beaten = clock()
        self._labels = labels
        self._gauges = role_gauges_of(labels.scope_classes)
        self._reason_of, self._figures_of = reason_of, figures_of
        self._metrics = {spec.name: self._register(spec) for spec in METRICS}
        self._shown: set[int] = set()
        self._stopped: dict[int, str] = {}
        self._drifted: set[tuple[str, str]] = set()
        self._work = _OF_WORK[labels.private_work]
        self._begin_at_zero()
        self._declare()

    def batch(self, counts: Mapping[str, int], seconds: float) -> None:
        """Count the events of a finished step, and the time from taking its batch to releasing its outputs."""
        for name, count in counts.items():
            self._of("hushstream_events_total", outcome=self._known(name, self._labels.outcomes)).inc(count)
        self._of("hushstream_slots_total").inc(counts.get("slot", 0) + counts.get("slot_sent", 0))
        self._of("hushstream_decisions_total").inc(counts.get("decided", 0) + counts.get("predicted", 0))
        self._of("hushstream_windows_sealed_total").inc(counts.get("window", 0))
        self._of(self._work + "batch_seconds").observe(seconds)

    def journaled(self) -> None:
        """Count one appended journal record."""
        self._of(self._work + "journal_appends_total").inc()

    def reloaded(self) -> None:
        """Count a reload of a partition from its journal."""
        self._of("hushstream_journal_reloads_total").inc()

    def released(self, outputs: Iterable[Output]) -> None:
        """Count released records, which are acknowledged."""
        totals: dict[str, int] = {}
        for output in outputs:
            totals[output.topic] = totals.get(output.topic, 0) + 1
            if self._figures_of is not None:
                self.role_gauges(output.partition, self._figures_of(output.topic, output.value))
        for topic, total in totals.items():
            self._of("hushstream_releases_total", topic=self._known(topic, self._labels.topics)).inc(total)

    def dead_letters(self, outputs: Iterable[Output]) -> None:
        """Count dead letters, which are acknowledged."""
        for output in outputs:
            reason = self._reason_of(output.value) if self._reason_of is not None else OTHER
            self._of("hushstream_dead_letters_total", reason=self._known(reason, self._labels.reasons)).inc()

    def waited_in_vain(self) -> None:
        """Count a wait for a click that a context names and that does not exist."""
        self._of("hushstream_edge_waits_in_vain_total").inc()

    def recovered(self, seconds: float) -> None:
        """Note how long a partition took to reach the end of its journal."""
        self._of(self._work + "recovery_seconds").observe(seconds)

    def stopped(self, reasons: Mapping[int, str]) -> None:
        """Show which partitions were stopped, with the reasons as codes of `STOP_REASONS`."""
        metric = self._metrics[_STOPPED]
        for partition in self._stopped.keys() - reasons.keys():
            metric.remove_by_labels({"partition": self._partition(partition)})
        self._stopped = dict(reasons)
        for partition, reason in reasons.items():
            self._of(_STOPPED, partition=self._partition(partition), reason=self._known(reason, STOP_REASONS)).set(1)

    def ended(self, reason: str) -> None:
        """Show why the worker cannot go on: a code of `STOP_REASONS` or `EXIT_REASONS`."""
        known = self._known(reason, (*STOP_REASONS, *EXIT_REASONS))
        self._of("hushstream_exit_reason", reason=known).set(1)

    def homes(self, partitions: int) -> None:
        """Set the number of home partitions of the role; before that, metrics name no partition."""
        self._labels = replace(self._labels, partitions=partitions)

    def works_again(self) -> None:
        """Show that the worker is working again."""
        self._metrics["hushstream_exit_reason"].clear()

    def member(self, is_member: bool) -> None:
        """Show whether the worker is in its group, or is joining it."""
        self._of("hushstream_group_member").set(is_member)

    def foreign(self, topic: str) -> None:
        """Count a record that was skipped because nobody of the deployment wrote it."""
        self._of("hushstream_foreign_records_total", topic=self._known(topic, self._labels.topics)).inc()

    def drift(self, differences: Collection[tuple[str, str]]) -> None:
        """Show which settings of which topics differ from their declaration; what no longer differs goes to 0."""
        self._drifted |= set(differences)
        for topic, setting in self._drifted:
            name = self._known(topic, self._labels.topics)
            self._of("hushstream_topic_drift", topic=name, setting=setting).set((topic, setting) in differences)

    def beat(self) -> None:
        """Note that the event loop runs. If it hangs, its served age grows, because another thread serves metrics."""
        self._beaten = self._clock()

    def health(self, **values: float) -> None:
        """Set the gauges of `hushstream.agents.worker.health`, by their names without prefix."""
        for name, value in values.items():
            self._of(f"{_OF_WORK[self._labels.private_work and name in _OF_STATE]}{name}").set(value)

    def dark(self, partition: int, seconds: float) -> None:
        """Show how long records of a partition have waited while none of them was folded."""
        self._shown.add(partition)
        metric = f"{_OF_WORK[self._labels.private_work]}partition_dark_seconds"
        self._of(metric, partition=self._partition(partition)).set(seconds)

    def partitions(self, assigned: int, held: int, stopped: int) -> None:
        """Show how many home partitions the group gave to this worker, how many run, and how many were stopped."""
        self._of("hushstream_partitions_declared").set(self._labels.partitions)
        self._of("hushstream_partitions_assigned").set(assigned)
        self._of("hushstream_partitions_held").set(held)
        self._of("hushstream_partitions_stopped").set(stopped)

    def lag(self, topic: str, partition: int, records: int) -> None:
        """Show how many records of an input are not folded yet."""
        self._shown.add(partition)
        name = self._known(topic, self._labels.topics)
        private = self._labels.private_work or topic in self._labels.private_lag
        metric = f"hushstream_{'edge_' if private else ''}consumer_lag_records"
        self._of(metric, topic=name, partition=self._partition(partition)).set(records)

    def role_gauges(self, partition: int, values: Mapping[str, float]) -> None:
        """Show the values that a role reports about one partition's machine, by the names of `role_gauges_of`."""
        self._shown.add(partition)
        for name, value in values.items():
            gauge = self._gauges[name]
            self._of(gauge.metric, partition=self._partition(partition), **gauge.labels).set(value)

    def keep_partitions(self, held: Collection[int]) -> None:
        """Drop the values of partitions that this worker no longer has; otherwise it would show them for ever."""
        for partition in self._shown.difference(held):
            for spec in METRICS:
                if "partition" in spec.labels and spec.name != _STOPPED:
                    self._metrics[spec.name].remove_by_labels({"partition": self._partition(partition)})
        self._shown.intersection_update(held)

    def _begin_at_zero(self) -> None:
        """Show counters at 0 before they count: Prometheus sees no increase if the first value is above 0."""
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
