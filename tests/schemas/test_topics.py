"""Topics as they are declared, and the partition of a user."""

import dataclasses
from collections import Counter

import pytest

from hushstream.engine.declare.declaration import readers, writers
from hushstream.schemas.catalogue import CATALOGUE
from hushstream.schemas.codec import MAX_VALUE_BYTES
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import (
    CLIENT,
    DAY_MS,
    MAX_MESSAGE_BYTES,
    OPERATOR,
    PUBLISHED,
    PartitionRule,
    letter_reader,
    partition_of,
    physical,
)
from hushstream.systems.catalogue import builtin
from hushstream.systems.colin.system import KIND as COLIN
from hushstream.systems.p2b.system import KIND as P2B
from hushstream.systems.pdap.system import KIND as PDAP
from hushstream.systems.pdol.system import KIND as PDOL

TOPICS = {
    "p2b": {
        "contexts",
        "clicks",
        "decisions",
        "reports",
        "journal-shuffler",
        "window-sums",
        "lift",
        "ledger-edge",
        "models",
        "model-parts",
        "statements",
        "items",
        "ledger",
        "marks-edge",
        "marks-shuffler",
        "dead-letters-edge",
        "dead-letters-shuffler",
        "dead-letters-server",
        "state-learner",
        "state-shuffler",
        "state-aggregator",
    },
    "colin": {
        "contexts",
        "items",
        "clicks",
        "decisions",
        "rewards",
        "journal-counter",
        "releases",
        "models",
        "ledger",
        "marks-edge",
        "marks-counter",
        "dead-letters-edge",
        "dead-letters-counter",
        "dead-letters-server",
        "state-learner",
        "state-counter",
        "state-aggregator",
    },
    "pdap": {
        "contexts",
        "clicks",
        "decisions",
        "outcomes",
        "forwards",
        "journal-counter",
        "releases",
        "models",
        "items",
        "ledger",
        "marks-edge",
        "marks-counter",
        "dead-letters-edge",
        "dead-letters-counter",
        "dead-letters-server",
        "state-learner",
        "state-counter",
        "state-aggregator",
    },
    "pdol": {
        "records",
        "predictions",
        "releases",
        "models",
        "ledger",
        "marks-edge",
        "dead-letters-edge",
        "dead-letters-server",
        "state-node",
        "state-aggregator",
    },
    "bgt": {
        "ratings",
        "predictions",
        "updates",
        "journal-collector",
        "releases",
        "models",
        "rounds",
        "statements",
        "ledger",
        "marks-edge",
        "marks-shuffler",
        "dead-letters-edge",
        "dead-letters-shuffler",
        "dead-letters-server",
        "state-rater",
        "state-collector",
        "state-aggregator",
    },
}
OWN = {
    ("p2b", "edge"): "learner",
    ("p2b", "shuffler"): "shuffler",
    ("p2b", "server"): "aggregator",
    ("colin", "edge"): "learner",
    ("colin", "counter"): "counter",
    ("colin", "server"): "aggregator",
    ("pdap", "edge"): "learner",
    ("pdap", "counter"): "counter",
    ("pdap", "server"): "aggregator",
    ("pdol", "edge"): "node",
    ("pdol", "server"): "aggregator",
    ("bgt", "edge"): "rater",
    ("bgt", "shuffler"): "collector",
    ("bgt", "server"): "aggregator",
}
"""Whose workers run in each zone."""


@pytest.fixture(params=builtin(), ids=lambda kind: kind.name)
def kind(request):
    return request.param


def topics_in(kind, zone):
    found = [topic for topic in kind.topics if topic.zone == zone]
    assert found, f"no topic in zone {zone}"
    return found


def test_every_topic_of_the_design_is_declared(kind):
    names = [topic.name for topic in kind.topics]
    assert set(names) == TOPICS[kind.name]
    assert len(set(names)) == len(names)


def test_every_schema_travels_somewhere():
    assert {schema for kind in builtin() for topic in kind.topics for schema in topic.schemas} == set(CATALOGUE)


def test_log_time_is_the_brokers_on_every_topic_and_the_largest_value_fits(kind):
    for topic in kind.topics:
        assert topic.settings()["message.timestamp.type"] == "LogAppendTime"
        assert topic.max_message_bytes > MAX_VALUE_BYTES


def test_journals_and_the_ledgers_are_never_dropped(kind):
    journals = {role.journal for role in kind.roles}
    ledgers = {topic.name for topic in kind.topics if topic.is_ledger}
    assert "ledger" in ledgers
    assert {topic.name for topic in kind.topics if topic.is_journal} == journals
    for name in journals | ledgers:
        assert kind.topic(name).settings()["retention.ms"] == "-1"
        assert kind.topic(name).settings()["cleanup.policy"] == "delete"


def test_what_is_trimmed_of_a_journal_is_at_most_one_small_segment_that_stays_on_disk(kind):
    """And a journal that nobody trims does not fill the broker's table of open files: 1,500 of them in a year."""
    for role in kind.roles:
        settings = kind.topic(role.journal).settings()
        assert MAX_MESSAGE_BYTES < int(settings["segment.bytes"]) <= 16 << 20
        assert DAY_MS >= int(settings["segment.ms"]) >= 365 * DAY_MS / 1_500


def test_marks_are_kept_by_key_and_never_dropped(kind):
    marks = [topic for topic in kind.topics if "ReleaseMark" in topic.schemas]
    assert {topic.name for topic in marks} == {role.marks for role in kind.roles} - {None}
    for topic in marks:
        assert (topic.settings()["cleanup.policy"], topic.settings()["retention.ms"]) == ("compact", "-1")
        assert topic.lasting
        assert len(writers(topic, kind.roles)) == 1


def test_no_topic_may_be_led_by_a_broker_that_missed_records(kind):
    assert {topic.settings()["unclean.leader.election.enable"] for topic in kind.topics} == {"false"}


def test_a_journal_has_one_writer_and_begins_with_a_genesis_record(kind):
    for topic in kind.topics:
        if "Genesis" in topic.schemas:
            written = writers(topic, kind.roles)
            assert len(written) == 1
            assert written[0] in readers(topic, kind.roles)


def test_what_the_edge_holds_in_clear_is_read_by_the_edge_alone(kind):
    found = {who for topic in topics_in(kind, "edge") for who in readers(topic, kind.roles)}
    assert found == {CLIENT, OWN[kind.name, "edge"], letter_reader("edge"), OPERATOR}


@pytest.mark.parametrize(("system", "zone"), [place for place in OWN if place[1] != "edge"])
def test_what_a_zone_holds_is_read_by_its_own_role_alone(system, zone):
    """But for marks, of which the operator may read that there are some."""
    kind = next(kind for kind in builtin() if kind.name == system)
    for topic in topics_in(kind, zone):
        beside = {OPERATOR} if topic.name.startswith("marks-") else {letter_reader(zone)}
        assert set(readers(topic, kind.roles)) <= {OWN[system, zone]} | beside, topic.name


def test_every_zone_of_a_system_is_looked_at_here(kind):
    assert {topic.zone for topic in kind.topics} - {PUBLISHED} == {zone for system, zone in OWN if system == kind.name}


def test_what_the_operator_reads_is_published_or_a_mark(kind):
    # What the operator may read of marks says that a journal has released, and not how far.
    read = [topic for topic in kind.topics if OPERATOR in readers(topic, kind.roles)]
    assert {topic.zone for topic in read if not topic.name.startswith("marks-")} == {PUBLISHED}


def test_each_zones_dead_letters_have_one_reader_who_reads_nothing_else(kind):
    letters = [topic for topic in kind.topics if topic.schemas == ("DeadLetter",)]
    assert {topic.zone for topic in letters} == {role.zone for role in kind.roles}
    assert all(topic.holds_dead_letters for topic in letters)
    for topic in letters:
        who = f"letters-{topic.zone}"
        assert readers(topic, kind.roles) == (who,)
        assert [other.name for other in kind.topics if who in readers(other, kind.roles)] == [topic.name]
        assert not [other.name for other in kind.topics if who in writers(other, kind.roles)]
    assert len({topic.zone for topic in letters}) == len(letters)


def test_what_leaves_the_edge_holds_no_event_and_no_user(kind):
    names = {"event_id", "event_ids", "user", "users"}
    for topic in kind.topics:
        if topic.zone != "edge":
            fields = {f["name"] for schema in topic.schemas for f in CATALOGUE[schema].parsed["fields"]}
            assert not fields & names, topic.name


@pytest.mark.parametrize(
    ("kind", "count", "names"),
    [
        (P2B, "learner", ("contexts", "clicks", "decisions")),
        (P2B, "shuffler", ("reports", "journal-shuffler")),
        (P2B, "tracks", ("window-sums", "models")),
        (COLIN, "learner", ("contexts", "clicks", "decisions")),
        (COLIN, "counter", ("rewards", "journal-counter")),
        (COLIN, "tracks", ("releases", "models")),
        (PDAP, "learner", ("contexts", "clicks", "decisions")),
        (PDAP, "counter", ("outcomes", "journal-counter")),
        (PDAP, "tracks", ("releases", "models")),
        (PDOL, "learner", ("records", "predictions")),
        (PDOL, "tracks", ("releases", "models")),
    ],
)
def test_topics_that_meet_in_one_role_have_the_same_partitions(kind, count, names):
    assert {kind.topic(name).count for name in names} == {count}
    role = next(role for role in kind.roles if set(names) <= {role.journal, *role.inputs})
    assert role.homes == count


def test_no_choice_of_a_partition_tells_a_report_from_another():
    assert P2B.topic("reports").partition_rule is PartitionRule.ANY


def test_the_prefix_stands_before_the_name_and_a_topic_that_is_not_declared_has_none(kind):
    assert physical("shop.", "contexts") == "shop.contexts"
    with pytest.raises(HushstreamError, match="'context'"):
        kind.topic("context")


def test_a_topic_with_an_unknown_schema_is_refused(kind):
    with pytest.raises(HushstreamError, match="Nothing"):
        dataclasses.replace(kind.topics[0], schemas=(*kind.topics[0].schemas, "Nothing"))


def test_the_partition_of_a_user_never_changes():
    # Computed with `b2sum -l 64` of coreutils.
    users = ["", "anna", "user-000123", "Ünal", "\ud800"]
    assert [partition_of(user, 1_000_003) for user in users] == [984010, 742119, 893255, 764462, 909672]


def test_users_spread_evenly():
    # 16 cells of 1,000 expected: chi-square with 15 degrees of freedom exceeds 56.5 with probability 1e-6.
    # The users are fixed, so this cannot flake; a rule that leaves one cell empty gives at least 1,000.
    counts = Counter(partition_of(f"user-{number}", 16) for number in range(16_000))
    assert sum((counts[cell] - 1000) ** 2 / 1000 for cell in range(16)) < 56.5


def test_no_partitions_is_refused():
    with pytest.raises(HushstreamError, match="got 0"):
        partition_of("anna", 0)
