"""Declares a gateway's metrics in one table, with their class, as for workers.

The number of decisions is public, as in a learner's metrics. The number of feedback requests shows how much was
clicked: so it is counted separately and served only on the zone's own endpoint. Labels are names of calls, and codes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hushstream.agents.observe.endpoints import EVERYBODY, MetricsAccess, MetricsEndpoints
from hushstream.agents.observe.metric_table import MetricSpec

OK = "ok"
"""The code of an answer that is no problem."""
NO_CALL = "other"
"""The name of the call in metrics if there is no such call."""

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
        "Feedback requests to a gateway by how they ended.",
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
        "How long a feedback request took: to `read` its body, and to `answer` it.",
    ),
    MetricSpec(
        "hushstream_gateway_answers_total",
        "counter",
        "slot-public",
        ("role", "call"),
        "Answers, each of a batch counted; not to feedback.",
    ),
    MetricSpec(
        "hushstream_gateway_unlogged_total",
        "counter",
        "slot-public",
        ("role", "call"),
        "Answers with `logged: false`: the request's baseline, as no learner answered.",
    ),
    MetricSpec(
        "hushstream_gateway_in_flight",
        "gauge",
        "slot-public",
        ("role",),
        "Requests in progress.",
    ),
    MetricSpec(
        "hushstream_gateway_unacknowledged",
        "gauge",
        "zone-private",
        ("role",),
        "Records that await their acknowledgement, with feedback.",
    ),
)
"""Every metric of a gateway; `hushstream.agents.observe.metric_table` has those of workers."""

ROLE = "gateway"

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_BOUNDS = [*map(str, _SECONDS), "+Inf"]

_Labels = tuple[str, ...]
"""The labels of a series, without the role."""


class _Seconds:
    """The durations of one series."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(_SECONDS, seconds)] += 1
        self.total += seconds


class _Tallies(Collector):
    """The counters and histograms of one registry, as plain numbers; a scrape makes series of them.

    The library's metrics take a lock for each number, ten times in a request. Here only one thread counts.
    """

    def __init__(self, specs: Sequence[MetricSpec]) -> None:
        self._help = {spec.name: (spec.help, spec.labels) for spec in specs}
        self.counts: dict[str, dict[_Labels, int]] = {
            spec.name: defaultdict(int) for spec in specs if spec.kind == "counter"
        }
        self.seconds: dict[str, dict[_Labels, _Seconds]] = {
            spec.name: defaultdict(_Seconds) for spec in specs if spec.kind == "histogram"
        }

    def collect(self) -> Iterator[Metric]:
        # Copy to lists: a scrape has its own thread, and series may be added in the meantime.
        for name, counts in self.counts.items():
            counter = CounterMetricFamily(name, self._help[name][0], labels=self._help[name][1])
            for labels, count in list(counts.items()):
                counter.add_metric([ROLE, *labels], count)
            yield counter
        for name, series in self.seconds.items():
            histogram = HistogramMetricFamily(name, self._help[name][0], labels=self._help[name][1])
            for labels, seconds in list(series.items()):
                buckets = list(zip(_BOUNDS, accumulate(seconds.counts), strict=True))
                histogram.add_metric([ROLE, *labels], buckets, seconds.total)
            yield histogram


class GatewayMetrics:
    """A gateway's metrics, in two registries for two kinds of reader."""

    def __init__(self) -> None:
        """Register all of `GATEWAY_METRICS`."""
        self.public = CollectorRegistry()
        self.zone = CollectorRegistry()
        public, zone = (
            [spec for spec in GATEWAY_METRICS if (spec.metric_class == "zone-private") is private]
            for private in (False, True)
        )
        tallies, edge = _Tallies(public), _Tallies(zone)
        self.public.register(tallies)
        self.zone.register(edge)
        self._ended = (
            tallies.counts["hushstream_gateway_requests_total"],
            edge.counts["hushstream_edge_gateway_requests_total"],
        )
        self._took = (
            tallies.seconds["hushstream_gateway_request_seconds"],
            edge.seconds["hushstream_edge_gateway_request_seconds"],
        )
        self._answers = tallies.counts["hushstream_gateway_answers_total"]
        self._unlogged = tallies.counts["hushstream_gateway_unlogged_total"]
        self._in_flight, self._unacknowledged = _gauges(public, self.public)[0], _gauges(zone, self.zone)[0]
        self._endpoints: list[MetricsEndpoints] = []

    def ended(self, call: str, is_feedback: bool, code: str) -> None:
        """Count a request that ended with `OK` or with the code of a problem."""
        self._ended[is_feedback][call, code] += 1

    def took(self, call: str, is_feedback: bool, read: float, answered: float) -> None:
        """Note how many seconds a request took to read its body and to answer."""
        series = self._took[is_feedback]
        series[call, "read"].add(read)
        series[call, "answer"].add(answered)

    def answered(self, call: str, logged: bool) -> None:
        """Count an answer; ``logged`` says whether the log holds it."""
        self._answers[call,] += 1
        self._unlogged[call,] += not logged

    def set_now(self, in_flight: int, unacknowledged: int) -> None:
        """Show the requests in progress, and the unacknowledged records."""
        self._in_flight.labels(ROLE).set(in_flight)
        self._unacknowledged.labels(ROLE).set(unacknowledged)

    def text(self) -> bytes:
        """The public metrics in Prometheus's text format."""
        return generate_latest(self.public)

    def serve(
        self,
        host: str,
        port: int | None,
        zone_host: str,
        zone_port: int | None,
        access: MetricsAccess = EVERYBODY,
    ) -> tuple[int, ...]:
        """Open the endpoints for Prometheus (None: not served; 0: any free port); returns the ports in use."""
        endpoints = MetricsEndpoints(access)
        self._endpoints.append(endpoints)
        opened = (endpoints.open(host, port, self.public), endpoints.open(zone_host, zone_port, self.zone))
        return tuple(one for one in opened if one is not None)

    def close(self) -> None:
        """Close the endpoints."""
        for endpoints in self._endpoints:
            endpoints.close()
        self._endpoints.clear()


def _gauges(specs: Sequence[MetricSpec], registry: CollectorRegistry) -> list[Gauge]:
    return [Gauge(one.name, one.help, one.labels, registry=registry) for one in specs if one.kind == "gauge"]
