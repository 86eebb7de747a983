"""What a real learner worker leaves in the raw log of a real broker: nothing there tells whose a slot is.

The embedded broker always; Apache Kafka where HUSHSTREAM_TEST_BOOTSTRAP names one on this machine. The attacker of
`test_attacker` is tried on the same bytes, with the contexts topic as its other side. With some 85 pairs on trial it
would be found, with a false alarm in 1e-6, if it were right in 85 % of pairs (probability above 0.97); the finer figure
is that of `test_attacker`, and the control here shows that its eyes are open.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from scipy.stats import binom

from hushstream.agents.security import CLIENT_ID
from hushstream.schemas import codec

BOOTSTRAP = os.environ.get("HUSHSTREAM_TEST_BOOTSTRAP")
FALSE_ALARM = 1e-6
LEAST_PAIRS = 80

pytestmark = pytest.mark.slow


@pytest.fixture(
    scope="module",
    params=[
        "embedded",
        pytest.param(
            "apache",
            marks=[
                pytest.mark.kafka,
                pytest.mark.skipif(
                    not BOOTSTRAP,
                    reason="needs Apache Kafka: `make kafka-up` (Java 17, Maven), then set HUSHSTREAM_TEST_BOOTSTRAP",
                ),
            ],
        ),
    ],
)
def left(request: Any, deployed: Any, raw: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The raw logs of one learner worker that met 360 users."""
    embedded = request.param == "embedded"
    with deployed.embedded() if embedded else deployed.apache(BOOTSTRAP) as broker:
        yield deployed.worked(broker, tmp_path_factory.mktemp("deployment"), raw.records)


@pytest.fixture(scope="module")
def reports(left: Any, raw: Any) -> list[Any]:
    """Every record of the reports topic that holds a slot of a user, as it lies in the segments."""
    return [record for record in raw.of_topic(left.logs, "reports") if record.value[10:26] in left.user_of]


def came_of(left: Any, raw: Any) -> dict[str, float]:
    """When each user came, from the contexts topic; among those of one millisecond, in which order."""
    found = {}
    for record in raw.of_topic(left.logs, "contexts"):
        fields = codec.decode(record.value)[1]
        if fields["user"] in left.user_of.values():
            found[fields["user"]] = record.appended_ms + record.offset / 1e6
    return found


def test_every_user_sent_one_slot(left, reports):
    assert sorted(left.user_of[record.value[10:26]] for record in reports) == sorted(left.user_of.values())
    schemas = {codec.decode(record.value)[0] for record in reports}
    assert schemas == {"SlotReport"}


def test_records_carry_no_key_and_no_headers_and_no_attributes(reports, raw):
    assert {record.key for record in reports} == {None}
    assert {record.headers for record in reports} == {()}
    assert {record.attributes for record in reports} == {0}
    assert {record.batch_attributes for record in reports} == {raw.LOG_APPEND_TIME}, "the broker's time and no more"


def test_records_have_one_size(reports):
    assert len({len(record.value) for record in reports}) == 1


def test_one_producer_has_written_them_all_under_one_epoch_and_without_a_gap(left, reports):
    assert len({record.producer[:2] for record in reports}) == 1
    for partition in range(left.system.config.partitions.shuffler):
        batches = {record.batch: record.producer[2] for record in reports if record.partition == partition}
        assert list(batches.values()) == sorted(batches.values())


def test_the_partition_follows_from_the_opaque_id_alone(left, reports):
    shufflers = left.system.config.partitions.shuffler
    assert {record.partition for record in reports} == set(range(shufflers))
    for record in reports:
        assert record.partition == int.from_bytes(record.value[10:18], "little") % shufflers


def test_slots_leave_in_batches_in_keyed_order(left, reports, deployed, raw):
    """Users came in few spans of log time; in each partition the ids begin anew with a batch, and only there."""
    times = came_of(left, raw).values()
    span_ms = deployed.SPAN_SECONDS * 1000
    spans = int(max(times) // span_ms - min(times) // span_ms) + 1
    for partition in range(left.system.config.partitions.shuffler):
        ids = [record.value[10:26] for record in reports if record.partition == partition]
        falls = sum(later < earlier for earlier, later in pairwise(ids))
        assert falls < spans < len(ids) / 4


def test_the_times_that_the_producer_left_rise_in_keyed_order_and_are_not_those_of_users(left, reports, raw):
    """Consumers are shown the broker's time, but the producer's stay in the segment: they must be those of sending."""
    came = sorted(record.appended_ms for record in raw.of_topic(left.logs, "contexts"))
    for partition in range(left.system.config.partitions.shuffler):
        created = [record.created_ms for record in reports if record.partition == partition]
        assert created == sorted(created)
    assert min(record.created_ms for record in reports) > came[0]
    assert all(record.appended_ms + 1 >= record.created_ms for record in reports)


def test_no_user_and_no_event_is_named_anywhere_in_the_segments(left):
    segments = [data for (topic, _), found in left.logs.items() if topic == "reports" for data in found]
    assert sum(map(len, segments)) > 82 * len(left.user_of)
    for data in segments:
        assert b"canary" not in data
        assert b"event-" not in data
    named = [data for (topic, _), found in left.logs.items() if topic == "contexts" for data in found]
    assert any(b"canary" in data and b"event-" in data for data in named), "the search finds what is there"


@pytest.mark.parametrize("left", ["embedded"], indirect=True)
def test_producers_name_no_one(left):
    """No broker keeps client ids in its logs; the embedded one is watched as requests come."""
    assert set(left.clients) == {CLIENT_ID}
    assert len(left.clients) > 10


def tried(left: Any, reports: list[Any], raw: Any, attacker: Any, span_ms: float, **changes: Any) -> Any:
    """The attacker on pairs of one span, with the contexts as its other side; all slots are null, nothing was shown."""
    came = came_of(left, raw)
    order = sorted(reports, key=lambda record: record.value[10:26])
    edges = [attacker.EdgeView(user, came[user], came[user], b"\1" + bytes(31))
             for user in (left.user_of[record.value[10:26]] for record in order)]  # fmt: skip
    slots = [
        attacker.SlotView(
            record.partition, record.offset, record.created_ms, record.appended_ms, len(record.value), record.key,
            record.headers, record.producer[0], CLIENT_ID, record.value,
        )
        for record in order
    ]  # fmt: skip
    for place, edge in enumerate(edges):
        slots[place] = replace(slots[place], **{name: make(edge) for name, make in changes.items()})
    pairs = attacker.pairs_of([edge.due_ms // span_ms for edge in edges], seed=7)
    return attacker.attack(edges, slots, pairs, left.system.config.partitions.shuffler, seed=8)


def test_the_attacker_is_at_chance_on_the_real_log(left, reports, raw, attacker, deployed):
    verdict = tried(left, reports, raw, attacker, deployed.SPAN_SECONDS * 1000)
    assert verdict.pairs >= LEAST_PAIRS
    low, high = verdict.interval(1 - FALSE_ALARM)
    assert low <= 0.5 <= high, verdict


def test_the_attacker_finds_what_would_link_on_the_same_log(left, reports, raw, attacker, deployed):
    needed = attacker.least_right(LEAST_PAIRS, FALSE_ALARM)
    assert binom.sf(needed - 1, LEAST_PAIRS, 0.85) > 0.97
    for changes in (
        {"key": lambda edge: edge.user.encode()},
        {"created_ms": lambda edge: edge.due_ms},
        {"producer": lambda edge: edge.came_ms},
    ):
        verdict = tried(left, reports, raw, attacker, deployed.SPAN_SECONDS * 1000, **changes)
        assert verdict.chance() < FALSE_ALARM, (changes, verdict)
