"""A check that begins with a published state: of every role of every system, on journals whose beginning is deleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import role_topics, role_work
from hushstream.engine.journal.notes import FOREIGN, Note, NoteSeal
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.ops.check.checkpoints import From
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify
from hushstream.ops.log_copy import LogCopy, NotOneLog, PartitionCopy, joined, whole

SYSTEMS = ("p2b", "colin", "pdap", "pdol", "bgt")


@pytest.fixture(scope="session", params=SYSTEMS)
def played(request: pytest.FixtureRequest, playing: Callable[[str], Any]) -> Any:
    return playing(request.param)


def changed(part: PartitionCopy, index: int) -> PartitionCopy:
    records = list(part.records)
    value = records[index].value
    records[index] = records[index]._replace(value=value[:-20] + bytes([value[-20] ^ 1]) + value[-19:])
    return replace(part, records=records)


@pytest.mark.sweep(keep=["pdol", "bgt"])
def test_what_follows_a_checkpoint_is_recomputed_in_every_role_of_every_system(played):
    logs = played.trimmed()
    trimmed = {source for source, part in logs.parts.items() if part.low}
    assert len({journal for journal, _ in trimmed}) >= 1
    refused = played.verify(logs, From.GENESIS)
    assert not refused.ok
    assert set(refused.unchecked) == {r.name for r in played.system.roles if (r.journal, 0) in trimmed}
    assert "`hushstream verify --from checkpoint` begins with a published state instead" in refused.as_text()

    found = played.verify(logs)
    assert found.exit_code == 0, found.as_text()
    assert not found.findings
    for tally in found.tallies:
        if tally.source in played.stood:
            first, end = played.stood[tally.source][0], logs.part(tally.source).high
            low = logs.part(tally.source).low
            skipped = first - low + 1
            assert tally.counts == {Status.SKIPPED: skipped, Status.EQUAL: end - first - 1}
            assert f"begun behind record {first} with the state" in tally.note
            assert f"records 0 to {first} were not recomputed" in tally.note
            assert (f"what lay before offset {low} was deleted" in tally.note) == (tally.source in trimmed)
    outputs = {t for role in played.system.roles for t in role_topics(role, played.system).writes}
    assert sum(found.of(topic)[Status.EQUAL] for topic in outputs) > 0
    assert sum(found.of(topic)[Status.SKIPPED] for topic in outputs) > 0


def test_a_state_that_stands_before_the_models_that_are_kept_begins_no_check(p2b):
    source, journal = ("models", 0), ("decisions", 0)
    part = p2b.logs.part(source)
    logs = LogCopy({**p2b.logs.parts, source: PartitionCopy(part.high, part.high, ())})
    found = p2b.verify(logs, roles=("learner",))
    (tally,) = [one for one in found.tallies if one.source == journal]
    assert "(passed over: offset" in tally.note
    assert f"it goes on at models/0 offset {p2b.firsts[source]}, but that log begins at {part.high}" in tally.note


def test_the_newest_checkpoint_is_quick_and_the_oldest_checks_most(p2b):
    source = ("decisions", 0)
    oldest, newest = p2b.stood[source]
    for start, place in ((From.CHECKPOINT, oldest), (From.LAST_CHECKPOINT, newest)):
        found = p2b.verify(p2b.logs, start, ("learner",))
        assert found.ok
        (tally,) = [one for one in found.tallies if one.source == source]
        assert tally.counts[Status.SKIPPED] == place + 1
        assert "were not recomputed, skipped on request" in tally.note
    assert not p2b.verify(p2b.logs, From.GENESIS).totals[Status.SKIPPED]


@pytest.mark.parametrize("topic", ["journal-shuffler", "window-sums", "ledger", "reports"])
def test_a_byte_that_changed_behind_a_checkpoint_is_found(p2b, topic):
    logs = p2b.trimmed()
    source = max((s for s in logs.parts if s[0] == topic), key=lambda s: len(logs.part(s).records))
    part = logs.part(source)
    # Of what is read, not the newest: no journal record covers it yet.
    index = len(part.records) - (len(part.records) // 8 if topic == "reports" else 1)
    found = p2b.verify(LogCopy({**logs.parts, source: changed(part, index)}), roles=("learner", "shuffler"))
    assert found.exit_code == 1
    assert found.totals[Status.CHANGED] >= 1


def test_what_is_put_behind_a_checkpoint_is_found_and_a_repeat_of_what_came_before_is_none(p2b):
    logs = p2b.trimmed()
    source = max((s for s in logs.parts if s[0] == "window-sums"), key=lambda s: len(logs.part(s).records))
    part = logs.part(source)
    for value, status in ((b"put here", Status.CHANGED), (part.records[0].value, Status.REPEATED)):
        records = [*part.records, InputRecord(part.high, 1, value)]
        found = p2b.verify(LogCopy({**logs.parts, source: whole(records)}), roles=("shuffler",))
        assert {one.source for one in found.tallies if one.counts[status]} == {source}
        assert (found.exit_code == 1) == (status is Status.CHANGED)


@pytest.mark.parametrize("fault", ["altered part", "altered checkpoint", "another key", "none"])
def test_a_state_that_is_not_what_was_published_begins_no_check(p2b, fault):
    logs = p2b.trimmed()
    source = ("state-shuffler", 0)
    part = logs.part(source)
    keys = p2b.keys
    if fault == "altered part":
        records = [changed(part, index).records[index] for index in range(len(part.records))]
        logs = LogCopy({**logs.parts, source: whole(records)})
    elif fault == "altered checkpoint":
        # Each publication ends with its checkpoint and its head: what is left of either is the other one's.
        half = len(part.records) // 2
        records = [*part.records[: half - 2], *part.records[half:-2], part.records[half - 2], part.records[-1]]
        logs = LogCopy({**logs.parts, source: whole([r._replace(offset=i) for i, r in enumerate(records)])})
    elif fault == "another key":
        keys = KeySource(seed=8)
    else:
        logs = LogCopy({**logs.parts, source: PartitionCopy(0, part.high, ())})
    found = verify(logs, p2b.system, keys, ("shuffler",), From.CHECKPOINT)
    assert found.unchecked == ("shuffler",)
    (tally,) = [one for one in found.tallies if one.source == ("journal-shuffler", 0)]
    assert not tally.counts[Status.EQUAL]
    assert tally.note.startswith("no state to begin with")
    assert ("passed over: offset" in tally.note) == (fault != "none")


def test_marks_that_are_ahead_and_a_ledger_that_holds_less_are_found(p2b):
    logs = p2b.trimmed()
    for topic, why in (
        ("journal-shuffler", "but a release was sent with record"),
        ("ledger", "that the state was charged by its end"),
    ):
        parts = dict(logs.parts)
        for source in [source for source in parts if source[0] == topic]:
            part = parts[source]
            kept = part.records[:-1] if topic == "journal-shuffler" else ()
            parts[source] = PartitionCopy(part.low, part.high - (topic == "journal-shuffler"), kept)
        found = p2b.verify(LogCopy(parts), roles=("shuffler",))
        assert found.exit_code == 1
        assert any(why in finding.reason for finding in found.findings), found.as_text()


def test_a_record_of_nobody_among_marks_is_changed_until_a_note_under_the_key_of_the_zone_names_it(p2b):
    logs, (journal, marks) = p2b.trimmed(), (("journal-shuffler", 0), ("marks-shuffler", 0))
    offset = logs.part(marks).high
    foreign = with_record(logs, marks, b"of nobody")

    def found(copy: LogCopy) -> Any:
        return p2b.verify(copy, roles=("shuffler",))

    why = f"marks-shuffler/0: offset {offset}: expected a release mark, got something else"
    assert [why in one.reason for one in found(foreign).findings] == [True], found(foreign).as_text()
    make = role_work("shuffler", p2b.system, p2b.keys).make_machine
    other = role_work("shuffler", p2b.system, KeySource(seed=8)).make_machine
    place = (p2b.system.config.deployment, "shuffler", 0)
    for keys, named, known in ((make, offset, True), (make, offset - 1, False), (other, offset, False)):
        note = Note(FOREIGN, marks, named, named + 1)
        noted = with_record(foreign, journal, NoteSeal(*place, keys.state_keys()).pack(note))
        assert (found(noted).exit_code == 0) == known


def with_record(logs: LogCopy, source: TopicPartition, value: bytes) -> LogCopy:
    part = logs.part(source)
    records = [*part.records, InputRecord(part.high, 1, value)]
    return LogCopy({**logs.parts, source: PartitionCopy(part.low, part.high + 1, records)})


@pytest.mark.parametrize("key", [b"x", None, b"shuffler/0/a/0/00"])
def test_a_foreign_record_among_marks_is_found_only_where_it_may_have_replaced_a_mark(p2b, key):
    logs = p2b.trimmed()
    source = ("marks-shuffler", 0)
    part = logs.part(source)
    records = [*part.records, InputRecord(part.high, 1, b"garbage")]
    keys = [*[b"shuffler/0/b/0/00"] * len(part.records), key]
    copied = PartitionCopy(part.low, part.high + 1, records, keys)
    found = p2b.verify(LogCopy({**logs.parts, source: copied}), roles=("shuffler",))
    replaced = key is not None and key.startswith(b"shuffler/0/")
    assert found.exit_code == int(replaced), found.as_text()
    assert replaced == any("under the key of a mark" in finding.reason for finding in found.findings)


def test_archives_and_what_is_left_are_one_log_again(p2b):
    whole_log, left = p2b.logs, p2b.trimmed()
    cut = {s: PartitionCopy(0, left.part(s).low, whole_log.part(s).read(0, left.part(s).low)) for s in p2b.stood}
    compacted = {topic.name for topic in p2b.system.topics if topic.cleanup == "compact"}
    again = joined([LogCopy(cut), left], compacted)
    assert {s: list(part.records) for s, part in again.parts.items()} == {
        s: list(part.records) for s, part in whole_log.parts.items()
    }
    found = p2b.verify(again, From.GENESIS)
    assert found.ok
    assert not found.totals[Status.SKIPPED]
    source = ("decisions", 0)
    gap = LogCopy({source: PartitionCopy(0, 2, whole_log.part(source).read(0, 2))})
    with pytest.raises(NotOneLog, match="decisions/0: expected a copy that goes on at offset 2, got one from"):
        joined([gap, left], compacted)
    other = LogCopy({source: changed(whole_log.part(source), len(whole_log.part(source).records) - 1)})
    with pytest.raises(NotOneLog, match="decisions/0: expected copies of one log, got other records"):
        joined([other, left], compacted)
