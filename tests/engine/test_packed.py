"""Packed states: what is damaged is refused, and what another release packed is told from damage."""

from __future__ import annotations

import pytest

from hushstream.engine.state.packed import Form, OtherVersion
from hushstream.engine.state.parts import record
from hushstream.schemas.errors import HushstreamError

FORM = Form.of("a toy's state", 3, record("Toy", count="long", label="string"))
STATE = {"count": 7, "label": "n"}


def test_a_state_comes_back_as_it_was():
    assert FORM.read(FORM.write(STATE)) == STATE


@pytest.mark.parametrize("place", [0, 15, 16, 20, -1])
def test_one_changed_bit_anywhere_is_damage_and_no_other_version(place):
    packed = bytearray(FORM.write(STATE))
    packed[place] ^= 1
    with pytest.raises(HushstreamError, match="expected a toy's state, got damaged bytes") as caught:
        FORM.read(bytes(packed))
    assert not isinstance(caught.value, OtherVersion)


@pytest.mark.parametrize("length", [0, 3, 16, 19])
def test_a_part_of_a_state_is_damage(length):
    with pytest.raises(HushstreamError, match="damaged"):
        FORM.read(FORM.write(STATE)[:length])


def test_another_version_is_named_before_anything_is_decoded():
    later = Form.of("a toy's state", 4, record("Later", extra="bytes"))
    with pytest.raises(OtherVersion, match="expected version 3 of a toy's state, got 4"):
        FORM.read(later.write({"extra": b"x" * 40}))


def test_another_form_of_the_same_version_is_refused():
    other = Form.of("another", 3, record("Other", count="long"))
    with pytest.raises(HushstreamError, match="expected a toy's state, got another one"):
        FORM.read(other.write({"count": 7}))
