"""What was refused, read from the logs."""

from __future__ import annotations

from typing import Any

import pytest

from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.outcomes import Refusal
from hushstream.ops import dead_letters
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.reasons import Reason


def letter_topics(system: System) -> tuple[str, ...]:
    return tuple(topic.name for topic in system.topics if topic.holds_dead_letters)


def test_every_refused_record_is_listed_with_its_place_and_reason(deployment: Any) -> None:
    letters = dead_letters.read(deployment.copy, letter_topics(deployment.system))
    assert len(letters) == 12
    assert {letter.zone for letter in letters} == {"edge"}
    assert all(letter.partition == letter.filed_partition and letter.times == 1 for letter in letters)
    reasons = {letter.reason for letter in letters if letter.topic == "contexts"}
    assert {str(Refusal.UNKNOWN_LINE), str(Reason.NOT_SINGLE_OBJECT)} <= reasons
    for letter in letters:
        value = deployment.log.slice(letter.topic, letter.partition, letter.offset, letter.offset + 1).records[0].value
        assert deployment.keys.key("edge").digest("dead-letter", value).hex() == letter.digest


def test_a_summary_counts_by_reason_and_partition(invaded: Any) -> None:
    letters = dead_letters.read(invaded.copy, letter_topics(invaded.system))
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
    letters = dead_letters.read(deployment.copy, letter_topics(deployment.system))
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
    letters = dead_letters.read(
        editor.inserted(source, len(records), records[2].value), letter_topics(deployment.system)
    )
    assert len(letters) == 12
    assert [letter.filed_offset for letter in letters if letter.times == 2] == [2]


def test_no_payload_is_in_a_listing(deployment: Any) -> None:
    shown = str([letter.as_json() for letter in dead_letters.read(deployment.copy, letter_topics(deployment.system))])
    assert "not a record" not in shown
    assert "nan" not in shown


def test_what_is_no_dead_letter_is_an_error_that_says_where(deployment: Any, editor: Any) -> None:
    with pytest.raises(HushstreamError, match="dead-letters-edge/0 offset 0: expected a dead letter"):
        dead_letters.read(editor.inserted(("dead-letters-edge", 0), 0, b"noise"), letter_topics(deployment.system))
