"""Declares a gateway's metrics in one table, with their class, as for workers.

Feedback shares the gateway's event loop, limits and log with decisions, so it moves how long these take, how many are
under way and how they end. So only the number of requests that ask for something is public, counted as they arrive. All
else is served only on the zone's own endpoint. Labels are names of calls, and codes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hushstream.agents.observe.endpoints import ServedMetrics
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
        ("role", "call"),
        "Requests to a gateway, counted when they arrive, whatever becomes of them; not feedback.",
    ),
    MetricSpec(
        "hushstream_edge_gateway_requests_total",
        "counter",
        "zone-private",
        ("role", "call", "code"),
        "Requests to a gateway by how they ended.",
    ),
    MetricSpec(
        "hushstream_edge_gateway_request_seconds",
        "histogram",
        "zone-private",
        ("role", "call", "step"),
        "How long a request took: to `read` its body, and to `answer` it.",
    ),
    MetricSpec(
        "hushstream_edge_gateway_answers_total",
        "counter",
        "zone-private",
        ("role", "call"),
        "Answers, each of a batch counted; not to feedback.",
    ),
    MetricSpec(
        "hushstream_edge_gateway_unlogged_total",
        "counter",
        "zone-private",
        ("role", "call"),
        "Answers with `logged: false`: the request's baseline, as no learner answered.",
    ),
    MetricSpec(
        "hushstream_edge_gateway_unknown_values_total",
        "counter",
        "zone-private",
        ("role", "feature"),
        "Values outside of their feature's vocabulary, which counted as unknown.",
    ),
    MetricSpec("hushstream_edge_gateway_in_flight", "gauge", "zone-private", ("role",), "Requests in progress."),
    MetricSpec(
        "hushstream_edge_gateway_unacknowledged",
        "gauge",
        "zone-private",
        ("role",),
        "Records that await their acknowledgement.",
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


class GatewayMetrics(ServedMetrics):
    """A gateway's metrics, in two registries for two kinds of reader."""

    def __init__(self) -> None:
        """Register all of `GATEWAY_METRICS`."""
        super().__init__()
        public = [spec for spec in GATEWAY_METRICS if spec.metric_class != "zone-private"]
        zone = [spec for spec in GATEWAY_METRICS if spec.metric_class == "zone-private"]
        arrivals, tallies = _Tallies(public), _Tallies(zone)
        self.public.register(arrivals)
        self.zone.register(tallies)
        self._arrived = arrivals.counts["hushstream_gateway_requests_total"]
        self._ended = tallies.counts["hushstream_edge_gateway_requests_total"]
        self._took = tallies.seconds["hushstream_edge_gateway_request_seconds"]
        self._answers = tallies.counts["hushstream_edge_gateway_answers_total"]
        self._unlogged = tallies.counts["hushstream_edge_gateway_unlogged_total"]
        self._unknown = tallies.counts["hushstream_edge_gateway_unknown_values_total"]
        self._in_flight, self._unacknowledged = (
            Gauge(one.name, one.help, one.labels, registry=self.zone) for one in zone if one.kind == "gauge"
        )

    def arrived(self, call: str) -> None:
        """Count a request that is no feedback, before anything is done for it."""
        self._arrived[call,] += 1

    def ended(self, call: str, code: str) -> None:
        """Count a request that ended with `OK` or with the code of a problem."""
        self._ended[call, code] += 1

    def took(self, call: str, read: float, answered: float) -> None:
        """Note how many seconds a request took to read its body and to answer."""
        self._took[call, "read"].add(read)
        self._took[call, "answer"].add(answered)

    def answered(self, call: str, logged: bool) -> None:
        """Count an answer; ``logged`` says whether the log holds it."""
        self._answers[call,] += 1
        self._unlogged[call,] += not logged

    def unknown(self, feature: str) -> None:
        """Count a value that is not in the vocabulary of a declared feature."""
        self._unknown[feature,] += 1

    def set_now(self, in_flight: int, unacknowledged: int) -> None:
        """Show the requests in progress, and the unacknowledged records."""
        self._in_flight.labels(ROLE).set(in_flight)
        self._unacknowledged.labels(ROLE).set(unacknowledged)

    def text(self) -> bytes:
        """The public metrics in Prometheus's text format."""
        return generate_latest(self.public)
