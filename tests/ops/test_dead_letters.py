"""What was refused, read from the logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.engine.catalogue import ITEMS
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.outcomes import Refusal
from hushstream.ops import dead_letters
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.runners.direct import DirectDriver
from hushstream.replay.runners.memory import MemoryLog
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.reasons import Reason


def letters_in(copy: LogCopy, system: System) -> tuple[dead_letters.Letter, ...]:
    """All dead letters of a deployment."""
    topics = tuple(topic.name for topic in system.topics if topic.holds_dead_letters)
    return dead_letters.read(copy, topics, system.partitions)


def test_every_refused_record_is_listed_with_its_place_and_reason(deployment: Any) -> None:
    letters = letters_in(deployment.copy, deployment.system)
    assert len(letters) == 12
    assert {letter.zone for letter in letters} == {"edge"}
    assert all(letter.partition == letter.filed_partition and letter.times == 1 for letter in letters)
    reasons = {letter.reason for letter in letters if letter.topic == "contexts"}
    assert {str(Refusal.UNKNOWN_LINE), str(Reason.NOT_SINGLE_OBJECT)} <= reasons
    for letter in letters:
        value = deployment.log.slice(letter.topic, letter.partition, letter.offset, letter.offset + 1).records[0].value
        assert deployment.keys.key("edge").digest("dead-letter", value).hex() == letter.digest


def test_a_summary_counts_by_reason_and_partition(invaded: Any) -> None:
    letters = letters_in(invaded.copy, invaded.system)
    summary = dead_letters.summarise(letters)
    assert sum(one.count for one in summary) == len(letters) == 12 + 8 + 4
    foreign = [one for one in summary if one.reason == Refusal.OTHER_CONFIGURATION]
    assert {(one.zone, one.topic, one.partition, one.count) for one in foreign} == {
        ("shuffler", "reports", 0, 2),
        ("shuffler", "reports", 1, 2),
    }
    assert [one.count for one in summary] == sorted((one.count for one in summary), reverse=True)
    assert foreign[0].first_offset < foreign[0].last_offset


def test_those_of_a_record_are_found_by_its_place(deployment: Any) -> None:
    letters = letters_in(deployment.copy, deployment.system)
    wanted = letters[3]
    (one,) = dead_letters.of_record(letters, wanted.topic, wanted.partition, wanted.offset)
    assert one == wanted
    assert f"reason: {one.reason}" in one.as_text()
    assert f"digest: {one.digest}" in one.as_text()
    with pytest.raises(dead_letters.UnknownDeadLetter, match="contexts/1 offset 9999"):
        dead_letters.of_record(letters, "contexts", 1, 9999)


def test_a_repeated_dead_letter_is_one(deployment: Any, editor: Any) -> None:
    source = ("dead-letters-edge", 0)
    records = editor.copy.part(source).records
    letters = letters_in(editor.inserted(source, len(records), records[2].value), deployment.system)
    assert len(letters) == 12
    assert [letter.filed_offset for letter in letters if letter.times == 2] == [2]


def test_no_payload_is_in_a_listing(deployment: Any) -> None:
    shown = str([letter.as_json() for letter in letters_in(deployment.copy, deployment.system)])
    assert "not a record" not in shown
    assert "nan" not in shown


def test_what_is_no_dead_letter_is_an_error_that_says_where(deployment: Any, editor: Any) -> None:
    with pytest.raises(HushstreamError, match="dead-letters-edge/0 offset 0: expected a dead letter"):
        letters_in(editor.inserted(("dead-letters-edge", 0), 0, b"noise"), deployment.system)


def test_a_record_that_each_partition_of_a_role_reads_and_refuses_is_listed_once_at_its_own_place(
    tmp_path: Path,
) -> None:
    """The only partition of `items` was listed as three: each letter named the partition of its writer."""
    config = {
        "system": "p2b",
        "deployment": "shop",
        "items": {"named": True, "capacity": 3},
        "features": {"country": {"kind": "category", "vocabulary": ["de", "fr"]}},
        "release": {"form": "features", "window_units": 100},
        "expected_slots": 100,
        "partitions": {"learner": 3},
    }
    system = prepare(tmp_path, parse_config(config))
    log = MemoryLog()
    offset = log.append(ITEMS, 0, b"no change of the catalogue")
    DirectDriver(log, all_machines(system, KeySource(seed=1)), bytes(32)).pump()
    letters = letters_in(LogCopy.of(log), system)
    assert [letter.filed_partition for letter in letters] == [0, 1, 2]
    (listed,) = dead_letters.summarise(letters)
    assert (listed.topic, listed.partition, listed.count) == (ITEMS, 0, 1)
    assert (listed.first_offset, listed.last_offset) == (offset, offset)
    assert dead_letters.of_record(letters, ITEMS, 0, offset) == letters
