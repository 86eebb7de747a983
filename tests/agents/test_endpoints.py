"""Metrics are served where they were asked for: on loopback, and a zone's own never beside the public ones."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from hushstream.agents.observe.metrics import Labels, Metrics
from patience import patience


def listening(port: int | None) -> set[str]:
    """The local addresses on which a port listens, by the kernel's own list."""
    assert port is not None
    found = set()
    with open("/proc/net/tcp", encoding="utf-8") as table:
        for line in list(table)[1:]:
            local, state = line.split()[1], line.split()[3]
            address, _, number = local.partition(":")
            if state == "0A" and int(number, 16) == port:
                found.add(socket.inet_ntoa(bytes.fromhex(address)[::-1]))
    return found


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics(Labels("learner", ("decided",), (), ("contexts",), partitions=1))
    made.batch({"decided": 3}, 0.01)
    return made


def test_opening_the_public_endpoint_to_others_leaves_the_zones_own_on_loopback(metrics: Metrics) -> None:
    public, zone = metrics.serve("0.0.0.0", 0, 0)
    try:
        assert listening(public) == {"0.0.0.0"}
        assert listening(zone) == {"127.0.0.1"}
    finally:
        metrics.close()


def test_an_endpoint_may_be_told_where_by_a_name_that_one_network_alone_knows(metrics: Metrics) -> None:
    _, zone = metrics.serve("127.0.0.1", None, 0, "localhost")
    try:
        page = urllib.request.urlopen(f"http://localhost:{zone}/metrics", timeout=60).read().decode()
    finally:
        metrics.close()
    assert "hushstream_events_total" in page


def test_each_endpoint_listens_where_it_was_told_and_serves_its_own_class_alone(metrics: Metrics) -> None:
    public, zone = metrics.serve("127.0.0.1", 0, 0, "127.0.0.2")
    try:
        assert (listening(public), listening(zone)) == ({"127.0.0.1"}, {"127.0.0.2"})
        pages = [
            urllib.request.urlopen(f"http://{place}/metrics", timeout=patience(5)).read().decode()
            for place in (f"127.0.0.1:{public}", f"127.0.0.2:{zone}")
        ]
    finally:
        metrics.close()
    assert ["hushstream_events_total" in page for page in pages] == [False, True]
    assert ["hushstream_partitions_held" in page for page in pages] == [True, False]
