from __future__ import annotations

import dataclasses

import pytest

from hushstream.schemas.catalogue import CATALOGUE
from hushstream.schemas.codec import MAX_VALUE_BYTES
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import LETTER_READERS, TOPICS, Count, PartitionRule, Role, physical


def test_every_topic_of_the_design_is_declared():
    assert set(TOPICS) == {
        "contexts",
        "clicks",
        "decisions",
        "reports",
        "interactions",
        "rewards",
        "journal-shuffler",
        "journal-counter",
        "crowds",
        "releases",
        "lift",
        "ledger-edge",
        "models",
        "ledger",
        "marks-edge",
        "marks-shuffler",
        "marks-counter",
        "dead-letters-edge",
        "dead-letters-shuffler",
        "dead-letters-counter",
        "dead-letters-server",
    }
    assert all(spec.name == name for name, spec in TOPICS.items())


def test_every_schema_travels_somewhere():
    assert {schema for spec in TOPICS.values() for schema in spec.schemas} == set(CATALOGUE)


def test_log_time_is_the_brokers_on_every_topic_and_the_largest_value_fits():
    for spec in TOPICS.values():
        assert spec.settings()["message.timestamp.type"] == "LogAppendTime"
        assert spec.max_message_bytes > MAX_VALUE_BYTES


def test_journals_and_the_ledger_are_never_dropped():
    for name in ("decisions", "journal-shuffler", "journal-counter", "models", "ledger"):
        assert TOPICS[name].settings()["retention.ms"] == "-1"
        assert TOPICS[name].settings()["cleanup.policy"] == "delete"


def test_marks_are_kept_by_key_and_never_dropped():
    for name in ("marks-edge", "marks-shuffler", "marks-counter"):
        spec = TOPICS[name]
        assert (spec.settings()["cleanup.policy"], spec.settings()["retention.ms"]) == ("compact", "-1")
        assert spec.lasting
        assert len(spec.writers) == 1


def test_no_topic_may_be_led_by_a_broker_that_missed_records():
    assert {spec.settings()["unclean.leader.election.enable"] for spec in TOPICS.values()} == {"false"}


def test_a_journal_has_one_writer_and_begins_with_a_genesis_record():
    for spec in TOPICS.values():
        if "Genesis" in spec.schemas:
            assert len(spec.writers) == 1
            assert spec.writers[0] in spec.readers


def test_what_the_edge_holds_in_clear_is_read_by_the_edge_alone():
    readers = {role for spec in TOPICS.values() if spec.zone == "edge" for role in spec.readers}
    assert readers == {Role.CLIENT, Role.LEARNER, Role.LETTERS_EDGE, Role.OPERATOR}


@pytest.mark.parametrize(
    ("zone", "own"),
    [(Zone.SHUFFLER, Role.SHUFFLER), (Zone.COUNTER, Role.COUNTER), (Zone.SERVER, Role.AGGREGATOR)],
)
def test_what_a_zone_holds_is_read_by_its_own_role_alone(zone, own):
    """But for marks, of which the operator may read that there are some."""
    for spec in TOPICS.values():
        if spec.zone is zone:
            beside = {Role.OPERATOR} if spec.name.startswith("marks-") else {LETTER_READERS[zone]}
            assert set(spec.readers) <= {own} | beside, spec.name


def test_what_the_operator_reads_is_published_or_a_mark():
    # What the operator may read of marks says that a journal has released, and not how far.
    read = [spec for spec in TOPICS.values() if Role.OPERATOR in spec.readers]
    assert {spec.zone for spec in read if not spec.name.startswith("marks-")} == {"published"}


def test_each_zones_dead_letters_have_one_reader_who_reads_nothing_else():
    letters = [spec for spec in TOPICS.values() if spec.schemas == ("DeadLetter",)]
    assert {spec.zone: spec.readers for spec in letters} == {zone: (who,) for zone, who in LETTER_READERS.items()}
    assert len({who for spec in letters for who in spec.readers}) == len(letters)
    assert all(str(spec.readers[0]) == f"letters-{spec.zone}" for spec in letters)
    for who in LETTER_READERS.values():
        assert len([spec for spec in TOPICS.values() if who in spec.readers]) == 1
        assert not [spec for spec in TOPICS.values() if who in spec.writers]


def test_what_leaves_the_edge_holds_no_event_and_no_user():
    names = {"event_id", "event_ids", "user", "users"}
    for spec in TOPICS.values():
        if spec.zone != "edge":
            fields = {f["name"] for schema in spec.schemas for f in CATALOGUE[schema][-1].parsed["fields"]}
            assert not fields & names, spec.name


def test_topics_that_meet_in_one_role_have_the_same_partitions():
    assert {TOPICS[name].count for name in ("contexts", "clicks", "decisions")} == {Count.LEARNER}
    assert {TOPICS[name].count for name in ("reports", "journal-shuffler")} == {Count.SHUFFLER}
    assert {TOPICS[name].count for name in ("rewards", "journal-counter")} == {Count.COUNTER}
    assert {TOPICS[name].count for name in ("crowds", "interactions", "models")} == {Count.LINES}
    assert TOPICS["reports"].partition_rule is PartitionRule.ANY


def test_the_prefix_stands_before_the_name_of_a_known_topic():
    assert physical("shop.", "contexts") == "shop.contexts"
    with pytest.raises(HushstreamError, match="'context'"):
        physical("shop.", "context")


def test_a_topic_with_an_unknown_schema_is_refused():
    with pytest.raises(HushstreamError, match="Nothing"):
        dataclasses.replace(TOPICS["contexts"], schemas=("Context", "Nothing"))
