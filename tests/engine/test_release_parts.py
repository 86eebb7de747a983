"""Releases in parts: what a reader makes of parts in any order, repeated, forged, and of those that never come."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from hushstream.engine import release_parts
from hushstream.engine.learner.model_parts import CONTENT, OnChain, PartReader, Version
from hushstream.engine.records import PART, InputRecord, InputSlice
from hushstream.engine.release_parts import MOST_PARTS, WHOLE_BYTES, BadPart, PartSets, parts_of, whole_digest
from hushstream.schemas import codec
from hushstream.schemas.codec import MAX_VALUE_BYTES
from hushstream.schemas.errors import HushstreamError

CONFIG = bytes(range(16))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_parts, "WHOLE_BYTES", 10)


def records_of(content: bytes) -> list[bytes]:
    return parts_of(content, CONFIG)


def fields_of(content: bytes) -> list[dict[str, Any]]:
    return [codec.decode(value, frozenset({PART}))[1] for value in records_of(content)]


CONTENT_OF_THREE = b"0123456789abcdefghijKLMNO"


def test_a_part_of_the_largest_size_is_a_record_of_the_log():
    part = {"config_digest": CONFIG, "whole": CONFIG, "part": 15, "parts": 16, "content": bytes(WHOLE_BYTES)}
    assert len(codec.encode(PART, part)) <= MAX_VALUE_BYTES


def test_parts_join_in_any_order_and_however_often_each_came():
    parts = fields_of(CONTENT_OF_THREE)
    assert [len(one["content"]) for one in parts] == [10, 10, 5]
    for order in itertools.permutations(range(3)):
        sets = PartSets(most=1)
        for place in order[:-1]:
            assert sets.take(parts[place]).content is None
            assert sets.take(parts[place]).content is None
        assert sets.take(parts[order[-1]]).content == CONTENT_OF_THREE


def test_no_set_is_whole_as_long_as_one_part_is_missing():
    for missing in range(3):
        sets = PartSets(most=1)
        some = [one for place, one in enumerate(fields_of(CONTENT_OF_THREE)) if place != missing]
        assert all(sets.take(one).content is None for one in (*some, *some))


def test_parts_of_two_releases_never_join_to_a_third():
    first, second = fields_of(b"a" * 20), fields_of(b"b" * 20)
    sets = PartSets(most=2)
    assert sets.take(first[0]).content is None
    assert sets.take(second[1]).content is None
    forged = {**second[1], "whole": first[0]["whole"]}
    with pytest.raises(BadPart, match="another content"):
        sets.take(forged)
    assert sets.take(second[0]).content == b"b" * 20


@pytest.mark.parametrize("change", [{"part": -1}, {"part": 3}, {"parts": 1, "part": 0}, {"parts": MOST_PARTS + 1}])
def test_impossible_numbers_are_refused(change):
    with pytest.raises(BadPart, match="expected a number below a count"):
        PartSets(most=1).take({**fields_of(CONTENT_OF_THREE)[0], **change})


def test_a_part_that_says_another_count_than_its_set_is_refused_and_the_set_stands():
    sets, parts = PartSets(most=1), fields_of(CONTENT_OF_THREE)
    sets.take(parts[0])
    with pytest.raises(BadPart, match="expected one of 3"):
        sets.take({**parts[1], "parts": 4})
    sets.take(parts[1])
    assert sets.take(parts[2]).content == CONTENT_OF_THREE


def test_a_set_that_is_left_behind_gives_way_to_those_that_go_on():
    sets = PartSets(most=2)
    left, other, third = (fields_of(letter * 20) for letter in (b"a", b"b", b"c"))
    sets.take(left[0])
    sets.take(other[0])
    assert sets.take(third[0]).gave_up == 1
    assert sets.take(other[1]).content == b"b" * 20
    assert sets.take(third[1]).content == b"c" * 20
    # Its last part alone is not enough any more: it is used only when all of it is sent again.
    assert sets.take(left[1]).content is None
    assert sets.take(left[0]).content == b"a" * 20


def test_sets_go_on_from_a_snapshot():
    for taken in range(3):
        sets, again, parts = PartSets(most=1), PartSets(most=1), fields_of(CONTENT_OF_THREE)
        for one in parts[:taken]:
            sets.take(one)
        again.load(sets.dump())
        assert [again.take(one).content for one in parts[taken:]][-1] == CONTENT_OF_THREE
    with pytest.raises(HushstreamError, match="snapshot"):
        PartSets(most=1).load(b"\x05\x00\x00\x00ab")
    with pytest.raises(HushstreamError, match="snapshot"):
        PartSets(most=1).load(b"\x02\x00\x00\x00ab")


# A learner's reader of models.


def slice_of(values: list[bytes], low: int = 0) -> InputSlice:
    records = [InputRecord(low + place, 100 * (low + place), value) for place, value in enumerate(values)]
    return InputSlice("model-parts", 0, low, low + len(values), records)


def version(number: int, content: bytes, log_time_ms: int = 50) -> Version:
    """A record of a model whose arrays are this content; whether it is on the chain is not asked here."""
    head = {"sequence": number, "epoch": 0, "inputs": [], "input_digest": bytes(16), "release_digest": bytes(16)}
    fields = {
        "head": head,
        "line": "private",
        "version": number,
        "cells": 1,
        "arms": 2,
        "layout_digest": bytes(16),
        "whole": whole_digest(content),
        "parts": len(records_of(content)),
        "reward_variance": 1.0,
        "observations": 1.0,
        "epsilon_micro": 1,
        "delta_units": b"",
        "private_as_stated": True,
        "catalogue": 0,
        "entries": b"",
        "digest": bytes(16),
        "chain": bytes(16),
    }
    value = codec.encode("LargeModel", fields)
    return Version(log_time_ms, OnChain(number, value, codec.decode(value)[1]))


def whole(reader: PartReader, versions: list[Version], part: InputSlice) -> list[tuple[int, int, bytes]]:
    found = reader.joined(versions, part)
    return [(one.log_time_ms, one.record.fields["version"], one.record.fields[CONTENT]) for one in found]


def test_a_version_counts_when_record_and_parts_are_there_whichever_comes_last():
    parts, content = records_of(CONTENT_OF_THREE), CONTENT_OF_THREE
    reader = PartReader(0, CONFIG)
    assert not whole(reader, [version(1, content)], slice_of(parts[:2]))
    assert whole(reader, [], slice_of(parts[2:], low=2)) == [(200, 1, content)]
    assert not whole(reader, [], slice_of([], low=3))
    reader = PartReader(0, CONFIG)
    assert not whole(reader, [], slice_of(parts))
    assert whole(reader, [version(1, content, 900)], slice_of([], low=3)) == [(900, 1, content)]
    assert reader.position == 3


def test_a_version_whose_parts_never_come_holds_up_nobody():
    reader, second = PartReader(0, CONFIG), b"z" * 15
    assert not whole(reader, [version(1, CONTENT_OF_THREE)], slice_of(records_of(CONTENT_OF_THREE)[:2]))
    assert whole(reader, [version(2, second)], slice_of(records_of(second), low=2)) == [(300, 2, second)]
    # The last part of the first comes after all: its record is past.
    assert not whole(reader, [], slice_of(records_of(CONTENT_OF_THREE)[2:], low=4))


def test_parts_that_are_sent_again_after_a_crash_change_nothing():
    parts, reader = records_of(CONTENT_OF_THREE), PartReader(0, CONFIG)
    assert whole(reader, [version(1, CONTENT_OF_THREE)], slice_of([parts[0], *parts])) == [(300, 1, CONTENT_OF_THREE)]
    assert not whole(reader, [], slice_of(parts, low=4))


def test_what_is_no_part_of_this_deployment_is_passed_over():
    parts, reader = records_of(CONTENT_OF_THREE), PartReader(0, CONFIG)
    others = parts_of(CONTENT_OF_THREE, bytes(16))
    assert not whole(reader, [version(1, CONTENT_OF_THREE)], slice_of([b"no record", *others, *parts[:2]]))
    assert len(whole(reader, [], slice_of(parts[2:], low=6))) == 1


def test_a_reader_goes_on_from_a_snapshot_between_any_two_parts():
    parts = records_of(CONTENT_OF_THREE)
    for taken in range(4):
        reader, again = PartReader(0, CONFIG), PartReader(0, CONFIG)
        before = whole(reader, [version(1, CONTENT_OF_THREE)], slice_of(parts[:taken]))
        again.load(reader.dump())
        assert again.dump() == reader.dump()
        after = whole(again, [], slice_of(parts[taken:], low=taken))
        assert [one[1:] for one in (*before, *after)] == [(1, CONTENT_OF_THREE)]
        assert again.position == 3
