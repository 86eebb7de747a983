import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushstream.privacy.encoding import encode
from hushstream.privacy.errors import PrivacyError

leaves = st.one_of(st.binary(max_size=6), st.text("ab\x00", max_size=4), st.integers(-(2**70), 2**70), st.none())
parts = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
sequences = st.lists(parts, max_size=5).map(tuple)


def _typed(value):
    return (type(value).__name__, tuple(map(_typed, value)) if isinstance(value, tuple) else value)


@given(sequences, sequences)
def test_two_different_sequences_never_encode_alike(first, second):
    assert (encode(*first) == encode(*second)) == (_typed(first) == _typed(second))


@given(sequences)
def test_what_was_encoded_can_be_read_back_in_one_way(sequence):
    assert _decode(encode(*sequence)) == sequence


def _decode(data):
    values = []
    while data:
        tag, size = data[:1], int.from_bytes(data[1:9], "little")
        payload, data = data[9 : 9 + size], data[9 + size :]
        assert len(payload) == size
        values.append(
            {
                b"b": lambda p: p,
                b"s": lambda p: p.decode(),
                b"i": lambda p: int.from_bytes(p, "big", signed=True),
                b"n": lambda p: None,
                b"t": _decode,
            }[tag](payload)
        )
    return tuple(values)


@pytest.mark.parametrize("part", [True, 1.5, [1], {"a": 1}])
def test_a_part_whose_encoding_would_be_unclear_is_refused(part):
    with pytest.raises(PrivacyError, match="expected bytes, str, int, None or a tuple"):
        encode("x", part)
