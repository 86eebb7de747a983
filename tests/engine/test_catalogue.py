"""The catalogue of items, and functions that a declaration names."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from hushstream import systems
from hushstream.engine.catalogue import (
    BadItem,
    Catalogue,
    CatalogueFull,
    CatalogueRules,
    ItemChange,
    ItemRefused,
    RepeatedItem,
    StaleCatalogue,
    UnknownItem,
)
from hushstream.engine.declare.outcomes import call_imported
from hushstream.engine.learner.items import ItemReader, until_next_change
from hushstream.engine.records import InputRecord, InputSlice
from hushstream.schemas.errors import HushstreamError

WAIT_MS = 60_000
RULES = CatalogueRules(2, WAIT_MS, bytes(16))
PLACES = ("contexts", 0), ("items", 0)


def offer(item: str, version: int) -> ItemChange:
    return ItemChange(item, version, offered=True)


def retire(item: str, version: int) -> ItemChange:
    return ItemChange(item, version, offered=False)


def catalogue(*changes: tuple[ItemChange, int]) -> Catalogue:
    found = Catalogue(RULES)
    for change, log_time_ms in changes:
        found.take(change, log_time_ms)
    return found


def full() -> Catalogue:
    return catalogue((offer("a", 1), 0), (offer("b", 2), 0), (retire("b", 3), 1_000))


def test_a_row_is_used_again_only_when_nothing_of_its_item_can_be_on_its_way():
    found = full()
    with pytest.raises(CatalogueFull, match="the first is free in 1 s"):
        found.take(offer("c", 4), 1_000 + WAIT_MS - 1)
    assert found.take(offer("c", 4), 1_000 + WAIT_MS).row == 1
    assert found.entries.tolist() == [1, 4]
    assert found.of_row(1, 3).item == "b"
    assert found.of_row(1, 4).item == "c"
    with pytest.raises(UnknownItem):
        found.item("b")
    with pytest.raises(CatalogueFull, match="2 of 2 with items"):
        found.take(offer("d", 5), 10 * WAIT_MS)


def test_changes_of_one_record_count_together_or_not_at_all():
    found = catalogue((offer("a", 1), 0))
    before = found.dump()
    for wrong, number in (([offer("b", 2), offer("a", 2)], 1), ([retire("c", 2), offer("b", 2)], 0)):
        with pytest.raises(ItemRefused) as refused:
            found.take_all(wrong, 5)
        assert refused.value.number == number
        assert found.dump() == before
    taken = found.take_all([offer("b", 2), retire("a", 2)], 5)
    assert [(one.item, one.entered, one.offered) for one in taken] == [("b", 2, True), ("a", 1, False)]
    assert (found.version, found.entries.tolist()[:2], found.offered.tolist()[:2]) == (2, [1, 2], [False, True])
    with pytest.raises(StaleCatalogue):
        found.take_all([offer("c", 2)], 5)


def test_a_log_whose_time_goes_back_frees_no_row_early():
    found = full()
    found.take(retire("a", 4), 5_000 + WAIT_MS)
    # The row of the item that was retired first is free; by this record's own time none would be.
    assert found.take(offer("c", 5), 2_000).row == 1


def test_an_item_that_comes_back_before_its_row_is_used_again_is_what_it_was():
    found = full()
    assert found.take(offer("b", 4), 2_000).entered == 2
    assert found.entries.tolist() == [1, 2]
    assert found.offered.tolist() == [True, True]


def test_of_two_changes_with_one_version_the_first_counts():
    found = catalogue((offer("a", 1), 0))
    for version in (1, 3, 0, -1):
        with pytest.raises(StaleCatalogue, match="expected a change to version 2"):
            found.take(offer("b", version), 1)
    assert (found.version, found.entries.tolist()) == (1, [1, 0])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (offer("a", 4), RepeatedItem),
        (retire("b", 4), UnknownItem),
        (retire("z", 4), UnknownItem),
        (offer("", 4), BadItem),
        (offer("x" * (1 << 20), 4), BadItem),
        (offer("c", 4)._replace(title="t" * 257), BadItem),
        (offer("c", 4)._replace(features='{"colour": "red"}'), BadItem),
    ],
)
def test_what_can_never_be_taken_changes_nothing_and_is_not_repeated(change, error):
    found = full()
    before = found.dump()
    with pytest.raises(error) as caught:
        found.take(change, 10 * WAIT_MS)
    assert found.dump() == before
    assert len(str(caught.value)) < 200


def test_a_catalogue_is_what_it_was_after_a_restart():
    found = full()
    found.take(offer("c", 4), 1_000 + WAIT_MS)
    again = Catalogue(RULES)
    again.load(found.dump())
    assert again.dump() == found.dump()
    assert again.items() == found.items()
    assert again.take(retire("c", 5), 0) == found.take(retire("c", 5), 0)
    with pytest.raises(HushstreamError):
        Catalogue(CatalogueRules(1, 0, bytes(16))).load(found.dump())


NUMBERED = CatalogueRules(3, WAIT_MS, bytes(16), numbered=True)


def test_items_that_are_named_by_numbers_are_there_from_the_beginning_and_come_and_go_as_others_do():
    found = Catalogue(NUMBERED)
    assert [(one.item, one.row, one.entered) for one in found.items()] == [("0", 0, 1), ("1", 1, 2), ("2", 2, 3)]
    assert (found.version, found.full, found.of_row(2, 3).item) == (3, True, "2")
    assert not found.holds("02"), "a name is its text, not the number that it says"
    found.take(retire("1", 4), 0)
    assert (found.offered.tolist(), found.full) == ([True, False, True], False)
    with pytest.raises(CatalogueFull):
        found.take(offer("01", 5), WAIT_MS - 1)
    assert found.take(offer("01", 5), WAIT_MS).row == 1
    again = Catalogue(NUMBERED)
    again.load(found.dump())
    assert again.dump() == found.dump()
    assert (again.entries.tolist(), again.full, again.holds("1")) == ([1, 5, 3], True, False)


STARTED = CatalogueRules(3, WAIT_MS, bytes(16), known=("a", "z"))


def started(*items: str) -> Catalogue:
    found = Catalogue(STARTED)
    for version, item in enumerate(items, 3):
        found.take(offer(item, version), 0)
    return found


def test_an_item_that_is_known_beforehand_enters_its_row_with_a_version_that_says_so():
    found = started("n", "z", "a")
    assert [(one.item, one.row, one.entered) for one in found.items()] == [("a", 0, 1), ("z", 1, 2), ("n", 2, 3)]
    assert found.known.tolist() == [True, True, False]
    assert found.left_out() == []
    assert found.of_row(1, 4).item == "z"


def test_new_items_take_rows_of_known_ones_last_and_a_known_one_that_comes_too_late_is_new():
    found = started("n", "m")
    assert [(one.item, one.row, one.entered) for one in found.items()] == [("m", 1, 4), ("n", 2, 3)]
    assert found.left_out() == ["a", "z"]
    with pytest.raises(StaleCatalogue, match="expected a change to version 5"):
        found.take(offer("z", 3), 0)
    found.take(retire("n", 5), 0)
    assert found.take(offer("z", 6), 0).row == 0, "no row but that of a is left"
    assert not found.known.any()
    with pytest.raises(CatalogueFull):
        found.take(offer("a", 7), 0)


def test_a_known_item_that_comes_back_keeps_its_row_until_another_has_taken_it():
    found = started("a", "n", "m")
    found.take(retire("a", 6), 0)
    assert found.take(offer("a", 7), 0).entered == 1
    found.take(retire("a", 8), 0)
    assert found.take(offer("o", 9), WAIT_MS).row == 0
    assert not found.known.any()
    assert found.left_out() == ["a", "z"]


def test_a_catalogue_of_known_items_is_what_it_was_after_a_restart():
    found, again = started("n", "z", "a"), Catalogue(STARTED)
    found.take(retire("z", 6), 0)
    found.take(offer("o", 7), WAIT_MS)
    again.load(found.dump())
    assert (again.dump(), again.items(), again.left_out()) == (found.dump(), found.items(), ["z"])
    assert list(again._places) == list(found._places)


def slice_of(topic: str, *times_ms: int) -> InputSlice:
    records = [InputRecord(offset, at_ms, b"") for offset, at_ms in enumerate(times_ms)]
    return InputSlice(topic, 0, 0, len(records), records)


@pytest.mark.parametrize(
    ("contexts", "changes", "taken", "left"),
    [
        ((5, 6, 7), (1, 5), (3, 2), False),
        ((5, 6, 7), (5, 6), (1, 1), True),
        ((5, 6, 7), (7,), (2, 0), True),
        ((5, 6, 7), (8,), (3, 0), False),
        # Log time that goes back counts as what it had come to.
        ((9, 6, 12), (11,), (2, 0), True),
    ],
)
def test_a_batch_decides_under_one_version(contexts, changes, taken, left):
    parts, some_left = until_next_change([slice_of("contexts", *contexts), slice_of("items", *changes)], PLACES, 0)
    assert [len(part.records) for part in parts] == list(taken)
    assert [part.high for part in parts] == list(taken)
    assert some_left == left


def test_a_reader_goes_on_where_it_stood():
    reader = ItemReader(RULES)
    assert [one.reason for one in reader.read(slice_of("items", 3, 2))] == ["not_single_object"] * 2
    again = ItemReader(RULES)
    again.load(reader.dump())
    assert again.position == reader.position == 2
    (late,) = again.read(slice_of("items", 1))
    assert late.log_time_ms == 3


NAMES = sorted(
    (module, attribute)
    for folder in systems.__path__
    for module in (f"hushstream.systems.{path.parent.name}.system" for path in Path(folder).glob("*/system.py"))
    for attribute, value in vars(import_module(module)).items()
    if isinstance(value, partial) and value.func is call_imported
)


def test_declarations_name_functions_in_this_way():
    assert NAMES


@pytest.mark.parametrize(("module", "attribute"), NAMES, ids=lambda part: str(part).removeprefix("hushstream."))
def test_what_a_declaration_names_is_there(module, attribute):
    named: Any = getattr(import_module(module), attribute)
    package, place, function = named.args
    assert callable(getattr(import_module(f"{package}.{place}"), function))
