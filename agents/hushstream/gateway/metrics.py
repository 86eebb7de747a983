"""A gateway's metrics: declared in one table with their class, as those of workers are.

How many decisions are asked for is public, as in a learner's metrics. How much feedback comes tells how much was
clicked: it is counted apart and served only on the zone's own endpoint. Labels are names of calls, and codes.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hushstream.agents.observe.endpoints import EVERYBODY, MetricsAccess, MetricsEndpoints
from hushstream.agents.observe.metric_table import MetricSpec

OK = "ok"
"""The code of an answer that is no problem."""
NO_CALL = "other"
"""In place of a call where a request is for none."""

GATEWAY_METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "hushstream_gateway_requests_total",
        "counter",
        "slot-public",
        ("role", "call", "code"),
        "Requests to a gateway by how they ended; not feedback.",
    ),
    MetricSpec(
        "hushstream_edge_gateway_requests_total",
        "counter",
        "zone-private",
        ("role", "call", "code"),
        "The same of feedback.",
    ),
    MetricSpec(
        "hushstream_gateway_request_seconds",
        "histogram",
        "slot-public",
        ("role", "call", "step"),
        "How long a request took: to `read` its body, and to `answer` it; not feedback.",
    ),
    MetricSpec(
        "hushstream_edge_gateway_request_seconds",
        "histogram",
        "zone-private",
        ("role", "call", "step"),
        "The same of feedback.",
    ),
    MetricSpec(
        "hushstream_gateway_answers_total",
        "counter",
        "slot-public",
        ("role", "call"),
        "Answers that were given, each of a batch; not to feedback.",
    ),
    MetricSpec(
        "hushstream_gateway_unlogged_total",
        "counter",
        "slot-public",
        ("role", "call"),
        "Those of them with `logged: false`: the request's baseline, as no learner answered.",
    ),
    MetricSpec(
        "hushstream_gateway_in_flight",
        "gauge",
        "slot-public",
        ("role",),
        "Requests under way.",
    ),
    MetricSpec(
        "hushstream_gateway_unacknowledged",
        "gauge",
        "zone-private",
        ("role",),
        "Records that await their acknowledgement, feedback among them.",
    ),
)
"""Every metric of a gateway; `hushstream.agents.observe.metric_table` has those of workers."""

ROLE = "gateway"

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_KINDS = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}


class GatewayMetrics:
    """What is counted, in two registries for two kinds of reader."""

    def __init__(self) -> None:
        """Register all of `GATEWAY_METRICS`."""
        self.public = CollectorRegistry()
        self.zone = CollectorRegistry()
        self._metrics = {spec.name: self._register(spec) for spec in GATEWAY_METRICS}
        self._known: dict[tuple[str, ...], Any] = {}
        self._endpoints: list[MetricsEndpoints] = []

    def ended(self, call: str, tells: bool, code: str) -> None:
        """A request ended: with `OK`, or a problem's code."""
        self._of(_edge("gateway_requests_total", tells), call, code).inc()

    def took(self, call: str, tells: bool, read: float, answered: float) -> None:
        """A request took so many seconds in its steps."""
        name = _edge("gateway_request_seconds", tells)
        self._of(name, call, "read").observe(read)
        self._of(name, call, "answer").observe(answered)

    def answered(self, call: str, logged: bool) -> None:
        """An answer was given, which the log holds or does not."""
        self._of("hushstream_gateway_answers_total", call).inc()
        unlogged = self._of("hushstream_gateway_unlogged_total", call)
        if not logged:
            unlogged.inc()

    def set_now(self, in_flight: int, unacknowledged: int) -> None:
        """How much is under way now."""
        self._of("hushstream_gateway_in_flight").set(in_flight)
        self._of("hushstream_gateway_unacknowledged").set(unacknowledged)

    def text(self) -> bytes:
        """What is public, as Prometheus reads it."""
        return generate_latest(self.public)

    def serve(
        self,
        host: str,
        port: int | None,
        zone_host: str,
        zone_port: int | None,
        access: MetricsAccess = EVERYBODY,
    ) -> tuple[int, ...]:
        """Open the endpoints for Prometheus (None: not served; 0: any free port); gives the ports in use."""
        endpoints = MetricsEndpoints(access)
        self._endpoints.append(endpoints)
        opened = (endpoints.open(host, port, self.public), endpoints.open(zone_host, zone_port, self.zone))
        return tuple(one for one in opened if one is not None)

    def close(self) -> None:
        """Close the endpoints."""
        for endpoints in self._endpoints:
            endpoints.close()
        self._endpoints.clear()

    def _register(self, spec: MetricSpec) -> Any:
        registry = self.zone if spec.metric_class == "zone-private" else self.public
        extra = {"buckets": _SECONDS} if spec.kind == "histogram" else {}
        return _KINDS[spec.kind](spec.name, spec.help, spec.labels, registry=registry, **extra)

    def _of(self, *key: str) -> Any:
        """A series, by its metric's name and labels."""
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._metrics[key[0]].labels(ROLE, *key[1:])
        return known


def _edge(name: str, tells: bool) -> str:
    return f"hushstream_edge_{name}" if tells else f"hushstream_{name}"
