"""Declared and packed states, and the set of known ids: what is packed comes back, damage is refused."""

from __future__ import annotations

import os
from collections import deque
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.engine.one_input import PHASE_ENDS, PhaseEnds
from hushstream.engine.state.declared import (
    FIXED,
    Declared,
    Flat,
    Single,
    State,
    Table,
    after,
    array,
    attributes_set,
    boolean,
    integer,
    known_ids,
    listed,
    optional_part,
    own_part,
    raw,
    recent_ids,
    record,
    remembered,
    rows,
    whole_bytes,
)
from hushstream.engine.state.packed import ID_BYTES, Form, KnownIds, OtherForm, finished
from hushstream.feedback.memory import BoundedMap
from hushstream.schemas.errors import HushstreamError


class Vote(NamedTuple):
    vote_id: str
    option: int


class Seen(NamedTuple):
    arm: int


class Tray:
    """A part that packs itself."""

    def __init__(self) -> None:
        self.held = b""

    def dump(self) -> bytes:
        return self.held

    def load(self, state: bytes) -> None:
        self.held = state


class Urn(Declared):
    """A role with a field of each form."""

    state = State(
        "an urn's state",
        "UrnState",
        count=integer(),
        round_number=integer("int", disk="round"),
        open=boolean(),
        digest=raw(),
        waiting=listed("bytes"),
        total=whole_bytes(16),
        sums=rows("<i8"),
        votes=Table(Vote, {"vote_ids": "string", "options": "int"}, ("vote_id", "option")),
        known=known_ids(),
        recent=recent_ids(),
        past=remembered(record("SeenEvent", event_id="string", arm="int"), Seen),
        ends=Flat(PHASE_ENDS),
        tray=own_part(),
        lid=optional_part("lid"),
        due=Single(array("long"), list, lambda value, _: deque(value)),
        doubled=after("double"),
    )
    derived: ClassVar = {"size": FIXED, "_decoded": "kept for one record"}

    def __init__(self, lid: bool = True) -> None:
        self.size = 3
        self.count = self.round_number = 0
        self.open, self.digest, self.waiting, self.total = False, b"", [], 0
        self.sums = np.zeros((2, 2), dtype=np.int64)
        self.votes: list[Vote] = []
        self.known = KnownIds()
        self.recent: BoundedMap[None] = BoundedMap(2)
        self.past: BoundedMap[Seen] = BoundedMap(2)
        self.ends = PhaseEnds(2)
        self.tray = Tray()
        self.lid = Tray() if lid else None
        self.due: deque[int] = deque()
        self._decoded = None
        self.double()

    def double(self) -> None:
        self.doubled = 2 * self.count

    def fill(self) -> Urn:
        self.count, self.round_number, self.open, self.digest = 7, 2, True, b"d"
        self.waiting, self.total = [b"a", b"b"], 1 << 100
        self.sums[1] = -5
        self.votes = [Vote("x", 1), Vote("y", 0)]
        self.known.add(bytes(range(16)))
        for name in "abc":
            self.recent.put(name, None)
            self.past.put(name, Seen(len(name)))
        self.ends.note(1, 4)
        self.tray.load(b"tray")
        if self.lid is not None:
            self.lid.load(b"lid")
        self.due.extend([3, 9])
        self.double()
        return self


def values_of(urn: Urn) -> dict[str, object]:
    """What can be told of an urn from outside."""
    return {
        "plain": (urn.count, urn.round_number, urn.open, urn.digest, urn.waiting, urn.total, urn.doubled),
        "sums": urn.sums.tolist(),
        "votes": urn.votes,
        "known": (len(urn.known), bytes(range(16)) in urn.known),
        "recent": list(urn.recent.items()),
        "past": list(urn.past.items()),
        "ends": (dict(urn.ends.by_origin), urn.ends.complete),
        "parts": (urn.tray.held, None if urn.lid is None else urn.lid.held),
        "due": list(urn.due),
    }


def test_a_restored_role_holds_what_the_packed_one_held():
    full, again = Urn().fill(), Urn()
    again.state.restore(again, full.state.pack(full))
    assert values_of(again) == values_of(full) != values_of(Urn())
    assert again.sums.dtype == np.int64
    assert again.sums.flags.writeable


def test_packing_in_portions_gives_what_is_restored_alike():
    full, again = Urn().fill(), Urn()
    again.state.restore(again, finished(full.state.portions(full)))
    assert values_of(again) == values_of(full)


def test_fields_lie_on_disk_in_the_order_in_which_they_are_declared():
    names = [field["name"] for field in Urn.state.form.schema["fields"]]
    assert ",".join(names) == (
        "count,round,open,digest,waiting,total,sums,vote_ids,options,known,recent,past,seals,sealed_phase,tray,lid,due"
    )


def test_a_role_is_rolled_back_to_a_save_point_whatever_was_done_since():
    urn = Urn().fill()
    before, saved = values_of(urn), urn.state.save_point(urn)
    urn.count, urn.waiting, urn.votes = 0, [], []
    urn.sums += 1
    urn.waiting.append(b"c")
    urn.past.put("z", Seen(0))
    urn.ends.note(0, 9)
    urn.tray.load(b"other")
    urn.due.clear()
    urn.state.roll_back(urn, saved)
    assert values_of(urn) == before


def test_ids_that_were_counted_are_not_in_a_save_point():
    urn = Urn().fill()
    assert "known" not in urn.state.save_point(urn)


def test_a_part_that_the_role_lacks_is_refused():
    with pytest.raises(HushstreamError, match="expected no lid, got some"):
        Urn.state.restore(Urn(lid=False), Urn.state.pack(Urn().fill()))


def test_a_role_that_forgets_a_field_cannot_be_imported():
    with pytest.raises(HushstreamError, match="in its declared state, or in `derived`") as e:

        class Forgetful(Declared):
            state = State("a state", "Forgetful", count=integer())

            def __init__(self) -> None:
                self.count, self.window = 0, 0

    assert "got window in neither" in str(e.value)


def test_a_subclass_that_sets_more_than_its_base_declares_cannot_be_imported():
    with pytest.raises(HushstreamError, match=r"Later: expected each attribute .* got window in neither"):

        class Later(Urn):
            def later(self) -> None:
                self.window = 1


def test_a_field_that_is_set_in_a_base_or_a_closure_is_found_too():
    class Base:
        def begin(self) -> None:
            def inner() -> None:
                self.inside = 1

            self.outside: int = 0
            inner()

    class Child(Base):
        @property
        def value(self) -> int:
            self.asked = True
            return 1

    assert attributes_set(Child) == {"inside", "outside", "asked"}


@pytest.mark.parametrize(
    ("derived", "named"), [({"gone": FIXED}, "gone"), ({"count": FIXED}, "count")], ids=["not set", "declared as well"]
)
def test_an_exception_that_names_no_derived_attribute_cannot_be_imported(derived, named):
    def begin(self):
        self.count = 0

    members = {"state": State("a state", "Wrong", count=integer()), "derived": derived, "__init__": begin}
    with pytest.raises(HushstreamError, match=f"to name what is set and not declared, got {named}"):
        type("Wrong", (Declared,), members)


FORM = Form.of("a toy's state", record("Toy", count="long", label="string"))
STATE = {"count": 7, "label": "n"}


def test_a_state_comes_back_as_it_was():
    assert FORM.read(FORM.write(STATE)) == STATE


@pytest.mark.parametrize("place", [0, 15, 16, 20, -1])
def test_one_changed_bit_anywhere_is_damage_and_no_other_form(place):
    packed = bytearray(FORM.write(STATE))
    packed[place] ^= 1
    with pytest.raises(HushstreamError, match="expected a toy's state, got damaged bytes") as caught:
        FORM.read(bytes(packed))
    assert not isinstance(caught.value, OtherForm)


@pytest.mark.parametrize("length", [0, 3, 16, 19])
def test_a_part_of_a_state_is_damage(length):
    with pytest.raises(HushstreamError, match="damaged"):
        FORM.read(FORM.write(STATE)[:length])


def test_another_form_is_named_before_anything_is_decoded():
    later = Form.of("a toy's state", record("Later", extra="bytes"))
    with pytest.raises(OtherForm, match="expected the present form of a toy's state"):
        FORM.read(later.write({"extra": b"x" * 40}))


# Few and many halves of a run, with those at both ends.
halves = st.one_of(st.integers(0, 40), st.integers(2**64 - 40, 2**64 - 1), st.integers(0, 2**64 - 1))


def named(half):
    return bytes(8) + half.to_bytes(8, "little")


@given(st.lists(halves, max_size=200), st.lists(halves, max_size=50))
@settings(max_examples=100, deadline=None)
def test_exactly_what_was_added_is_known_before_and_after_a_dump(added, asked):
    known = KnownIds()
    for half in dict.fromkeys(added):
        assert named(half) not in known
        known.add(named(half))
    for ids in (known, KnownIds.load(known.dump())):
        assert len(ids) == len(set(added))
        for half in (*added, *asked):
            assert (named(half) in ids) == (half in set(added))


def test_thousands_of_merged_ids_are_all_known_and_no_others():
    draw = np.random.default_rng(3)
    ids = [draw.bytes(ID_BYTES) for _ in range(40_000)]
    known = KnownIds()
    for report_id in ids:
        known.add(report_id)
    assert len(known._young) <= len(ids) // 16
    assert all(report_id in known for report_id in ids)
    assert not any(draw.bytes(ID_BYTES) in known for _ in range(40_000))
    assert len(known.dump()) == 8 + 8 * len(ids)


def test_equal_sets_give_equal_bytes_whatever_the_order():
    ids = [os.urandom(ID_BYTES) for _ in range(3000)]
    dumps = set()
    for order in (ids, ids[::-1]):
        known = KnownIds()
        for report_id in order:
            known.add(report_id)
        dumps.add(known.dump())
    assert len(dumps) == 1


def test_a_loaded_set_goes_on():
    known = KnownIds()
    for half in range(2000):
        known = KnownIds.load(known.dump()) if half % 500 == 0 else known
        known.add(named(half))
    assert len(known) == 2000
    assert named(0) in known
    assert named(2000) not in known


@pytest.mark.parametrize("halves", [(1, 1), (2, 1)])
def test_what_no_set_wrote_is_refused(halves):
    dumped = (2).to_bytes(8, "little") + b"".join(half.to_bytes(8, "little") for half in halves)
    with pytest.raises(HushstreamError, match="ascending"):
        KnownIds.load(dumped)
    for broken in (b"", dumped[:-1], dumped + b"\0"):
        with pytest.raises(HushstreamError, match="ids: expected"):
            KnownIds.load(broken)
