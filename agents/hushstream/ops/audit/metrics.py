"""Declares an auditor's metrics in one table, with their class, as for workers.

The length of a learner's journal tells something about clicks, so positions and lags are served only on the zone's own
endpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from hushstream.agents.observe.endpoints import MetricsEndpoints
from hushstream.agents.observe.metric_table import MetricSpec
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.records import TopicPartition

AUDIT_METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "hushstream_audit_differences",
        "gauge",
        "slot-public",
        ("role",),
        "Records that do not follow from the logs, or are missing, as an auditor found; a restart keeps the count.",
    ),
    MetricSpec(
        "hushstream_audit_uncheckable",
        "gauge",
        "slot-public",
        ("role",),
        "Records that an auditor could not check: their inputs were deleted, or they follow something changed.",
    ),
    MetricSpec(
        "hushstream_audit_age_seconds",
        "gauge",
        "slot-public",
        ("role",),
        "Time since an auditor last had checked all present records, in steps of 5 s.",
    ),
    MetricSpec(
        "hushstream_audit_sample",
        "gauge",
        "slot-public",
        ("role",),
        "The share of what is published that an auditor checks.",
    ),
    MetricSpec(
        "hushstream_audit_position",
        "gauge",
        "zone-private",
        ("role", "topic", "partition"),
        "Offset up to which an auditor has checked a journal or an output.",
    ),
    MetricSpec(
        "hushstream_audit_lag_records",
        "gauge",
        "zone-private",
        ("role", "topic", "partition"),
        "Records of a journal or an output that an auditor has not checked yet.",
    ),
)
"""Every metric of an auditor; `hushstream.agents.observe.metric_table` has those of workers."""

_STEP_SECONDS = 5


class AuditMetrics:
    """An auditor's metrics, in two registries for two kinds of reader."""

    def __init__(self, role: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Register all of `AUDIT_METRICS`; ``clock`` gives seconds."""
        self.public, self.zone = CollectorRegistry(), CollectorRegistry()
        self._role, self._clock = role, clock
        self._metrics = {spec.name: self._register(spec) for spec in AUDIT_METRICS}
        self._endpoints: MetricsEndpoints | None = None
        self._abreast = clock()
        self._of("age_seconds").set_function(self._age)
        self.found(0, 0)

    def found(self, differences: int, uncheckable: int) -> None:
        """Show what was found so far."""
        self._of("differences").set(differences)
        self._of("uncheckable").set(uncheckable)

    def sampled(self, share: float) -> None:
        """Show the share that is checked."""
        self._of("sample").set(share)

    def caught_up(self) -> None:
        """Note that everything that is to be checked by now is checked."""
        self._abreast = self._clock()

    def progress(self, source: TopicPartition, position: int, end: int) -> None:
        """Show how far a journal or an output is checked, and where it ends."""
        labels = {"topic": source[0], "partition": str(source[1])}
        self._of("position", **labels).set(position)
        self._of("lag_records", **labels).set(max(0, end - position))

    def serve(self, settings: WorkerSettings) -> tuple[int | None, int | None]:
        """Open the two endpoints; returns their ports.

        Raises:
            OSError: a port is not available.
        """
        self._endpoints = MetricsEndpoints(settings.metrics_access)
        return (
            self._endpoints.open(settings.metrics_host, settings.metrics_port, self.public),
            self._endpoints.open(settings.zone_metrics_host, settings.zone_metrics_port, self.zone),
        )

    def close(self) -> None:
        """Close the endpoints."""
        if self._endpoints is not None:
            self._endpoints.close()

    def _age(self) -> float:
        return (self._clock() - self._abreast) // _STEP_SECONDS * _STEP_SECONDS

    def _register(self, spec: MetricSpec) -> Any:
        registry = self.zone if spec.metric_class == "zone-private" else self.public
        return Gauge(spec.name, spec.help, spec.labels, registry=registry)

    def _of(self, name: str, **labels: str) -> Any:
        return self._metrics[f"hushstream_audit_{name}"].labels(role=self._role, **labels)
