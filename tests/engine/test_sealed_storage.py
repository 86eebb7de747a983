"""One key and nonce for one content, ever; and what was sealed opens where it was sealed, and nowhere else."""

from __future__ import annotations

import os
from itertools import combinations

import pytest

from hushstream.engine.state import sealed as sealed_storage
from hushstream.engine.state.published import NAME_BYTES, StateSeal
from hushstream.engine.state.sealed import SALT_BYTES, SealBroken, StorageSeal
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import seeded_key
from hushstream.schemas import codec
from storage import RING

ZEROS = bytes(64)
"""Sealed, it is the stream that was drawn under key and nonce: two equal ones would give content away."""
TAG_BYTES = 16


def seal(deployment="dep", role="learner", partition=0, ring=RING) -> StorageSeal:
    return StorageSeal(deployment, role, partition, ring)


def stream(sealed: bytes, size: int = len(ZEROS)) -> bytes:
    """What content of zeros was sealed with."""
    return sealed[-size - TAG_BYTES : -TAG_BYTES]


def all_differ(streams: list[bytes]) -> bool:
    """No two share eight bytes at a place; any pair would by chance with one of 2^-58."""
    places = range(0, len(streams[0]), 8)
    return all(a[p : p + 8] != b[p : p + 8] for a, b in combinations(streams, 2) for p in places)


def test_no_two_contents_of_a_writer_share_a_stream():
    writer = seal().writer("user", bytes(SALT_BYTES))
    assert all_differ([stream(writer.seal(ZEROS)) for _ in range(20)])


def test_a_writer_that_is_made_again_shares_no_stream_with_the_one_before():
    """As after a crash, when its count begins anew: the salt is another one."""
    salts = [os.urandom(SALT_BYTES) for _ in range(10)]
    assert all_differ([stream(seal().writer("user", salt).seal(ZEROS)) for salt in salts])


def test_no_two_files_and_no_two_pieces_of_one_share_a_stream(monkeypatch):
    monkeypatch.setattr(sealed_storage, "PIECE_BYTES", len(ZEROS))
    streams = []
    for _ in range(4):
        _, *pieces = seal().pack_file(os.urandom(SALT_BYTES), 5 * ZEROS)
        streams += [stream(piece) for piece in pieces]
    assert len(streams) == 20
    assert all_differ(streams)


def test_one_salt_at_two_places_or_for_two_purposes_shares_no_stream():
    other = KeyRing(0, 0, (), seeded_key(1, "edge"))
    seals = [seal(), seal("other"), seal(role="shuffler"), seal(partition=1), seal(ring=other)]
    streams = [stream(one.writer("user", bytes(SALT_BYTES)).seal(ZEROS)) for one in seals]
    streams.append(stream(seal().writer("file", bytes(SALT_BYTES)).seal(ZEROS)))
    assert all_differ(streams)


def test_no_two_publications_of_a_state_and_no_two_parts_of_one_share_a_stream():
    states = [StateSeal("dep", "learner", partition, RING) for partition in (0, 1)]
    streams = [
        stream(codec.decode(state.pack(name, number, ZEROS))[1]["sealed"])
        for state in states
        for name in (bytes(NAME_BYTES), b"\1" * NAME_BYTES)
        for number in (-2, -1, 0, 1, 256)
    ]
    assert all_differ(streams)


def test_what_was_sealed_opens_there_and_nowhere_else():
    sealed = seal().writer("user", bytes(SALT_BYTES)).seal(b"content", b"ann")
    assert seal().open("user", sealed, b"ann") == b"content"
    for other, purpose, bound in (
        (seal("other"), "user", b"ann"), (seal(role="shuffler"), "user", b"ann"), (seal(partition=1), "user", b"ann"),
        (seal(), "file", b"ann"), (seal(), "user", b"bob"), (seal(), "user", b""),
    ):  # fmt: skip
        with pytest.raises(SealBroken, match="expected content as it was sealed for this partition"):
            other.open(purpose, sealed, bound)


@pytest.mark.parametrize("place", [8, 23, 24, 31, 32, -17, -1])
def test_an_altered_byte_is_noticed(place):
    sealed = bytearray(seal().writer("user", bytes(SALT_BYTES)).seal(b"content"))
    sealed[place] ^= 1
    with pytest.raises(SealBroken, match="altered content"):
        seal().open("user", bytes(sealed))


def test_a_key_that_is_not_at_hand_is_named_and_not_shown():
    sealed = seal().writer("user", bytes(SALT_BYTES)).seal(b"content")
    other = seal(ring=KeyRing(0, 0, (), seeded_key(1, "edge")))
    with pytest.raises(SealBroken, match=f"key {RING.key.key_id.hex()}: expected a key of epochs 0 to 0"):
        other.open("user", sealed)


def test_a_file_opens_whole_or_not_at_all(monkeypatch):
    monkeypatch.setattr(sealed_storage, "PIECE_BYTES", 10)
    for size in (0, 1, 9, 10, 11, 35):
        head, *pieces = seal().pack_file(os.urandom(SALT_BYTES), content := os.urandom(size))
        assert seal().unpack_file(b"".join([head, *pieces])) == content
    for wrong in (pieces[:-1], pieces[1:], [*pieces, pieces[0]], pieces[::-1], [], [*pieces[:-1], pieces[-1][:-1]]):
        with pytest.raises(SealBroken):
            seal().unpack_file(b"".join([head, *wrong]))


def test_a_salt_of_another_length_is_refused():
    with pytest.raises(Exception, match="expected 16 bytes, got 15"):
        seal().writer("user", bytes(15))
