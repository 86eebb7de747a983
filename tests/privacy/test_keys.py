import copy
import hashlib
import hmac
import logging
import os
import pickle
import stat
import struct

import pytest
from full_disk import no_room
from hypothesis import given
from hypothesis import strategies as st

from hushstream.privacy.errors import KeyFileError, PrivacyError
from hushstream.privacy.key_files import check, load_key
from hushstream.privacy.keys import Key, generate_keys, key_path, seeded_key, write_key

MATERIAL = bytes(range(100, 132))
ZONES = ("edge", "shuffler", "counter")


def test_nothing_that_prints_or_stores_a_key_shows_its_material(caplog):
    key = Key(MATERIAL)
    with caplog.at_level(logging.INFO):
        logging.getLogger("canary").info("%s %r %s", key, key, [key])
    shown = caplog.text + repr(key) + str(key) + f"{key}" + repr({"k": key})
    for canary in (MATERIAL.hex(), repr(MATERIAL)[2:-1], MATERIAL.decode("latin-1")):
        assert canary not in shown
    assert key.key_id.hex() in shown
    with pytest.raises(PrivacyError, match="pickle"):
        pickle.dumps(key)
    with pytest.raises(TypeError):
        vars(key)


def test_a_key_never_changes_and_its_copies_are_itself():
    key = Key(MATERIAL)
    with pytest.raises(PrivacyError, match="expected no change"):
        key._material = bytes(32)
    with pytest.raises(PrivacyError, match="expected no change"):
        del key._material
    assert copy.copy(key) is key
    assert copy.deepcopy([key])[0] is key
    assert key == Key(MATERIAL)
    assert key != Key(bytes(range(32)))
    assert key != "key"
    assert len({key, Key(MATERIAL)}) == 1


@pytest.mark.parametrize("material", [b"", bytes(31), bytes(33), "a" * 32, None])
def test_material_of_another_size_is_refused_without_repeating_it(material):
    with pytest.raises(PrivacyError, match="expected 32 bytes") as raised:
        Key(material)
    assert "aaaa" not in str(raised.value)


def test_derivation_is_hmac_over_length_prefixed_parts():
    def part(tag, payload):
        return tag + struct.pack("<Q", len(payload)) + payload

    message = part(b"s", b"derive") + part(b"s", b"user") + part(b"b", b"u1") + part(b"i", b"\x05")
    material = hmac.new(MATERIAL, message, hashlib.sha256).digest()
    assert Key(MATERIAL).derive("user", b"u1", 5) == Key(material)


@given(st.lists(st.binary(max_size=3), max_size=4), st.lists(st.binary(max_size=3), max_size=4))
def test_digests_and_derived_keys_meet_only_when_their_chunks_do(first, second):
    key = Key(MATERIAL)
    same = first == second
    assert (key.digest("x", *first) == key.digest("x", *second)) == same
    assert (key.derive("x", *first) == key.derive("x", *second)) == same


def test_a_digest_depends_on_key_purpose_and_chunk_borders():
    key = Key(MATERIAL)
    base = key.digest("log", b"ab", b"c")
    assert len(base) == 16
    others = {
        key.digest("lo", b"gab", b"c"),
        key.digest("log", b"a", b"bc"),
        key.digest("log", b"abc"),
        key.digest("log", b"ab", b"c", b""),
        Key(bytes(range(32))).digest("log", b"ab", b"c"),
    }
    assert len(others | {base}) == 6


def test_known_answers_of_a_key_stay_the_same_for_ever():
    key = Key(MATERIAL)
    assert key.key_id.hex() == "0537b6c41b9b627c"
    assert key.digest("log", b"ab", b"c").hex() == "912a6f72304d1af29565c45d4027a6e6"
    assert key.derive("user", "u", 1).key_id.hex() == "37020a14f8195e9d"
    assert seeded_key(1, "edge").key_id.hex() == "354aa7977fd54635"


def test_a_seeded_key_says_that_it_is_not_private_and_so_does_all_that_comes_from_it():
    key = seeded_key(1, "edge")
    assert key == seeded_key(1, "edge")
    assert key != seeded_key(2, "edge")
    assert key != seeded_key(1, "shuffler")
    for one in (key, key.derive("user", "a")):
        assert one.reproducible
        assert "REPRODUCIBLE, NOT PRIVATE" in repr(one)
    assert not Key(MATERIAL).derive("user").reproducible


def test_a_written_key_is_its_owners_alone_and_reads_back(tmp_path):
    path = tmp_path / "edge.key"
    old = os.umask(0)
    try:
        key = write_key(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_key(path) == key
    assert not key.reproducible
    assert write_key(tmp_path / "other.key") != key


def test_a_full_disk_leaves_no_part_of_a_key_and_the_next_attempt_succeeds(tmp_path):
    path = tmp_path / "edge.key"
    with no_room(16), pytest.raises(KeyFileError, match=r"key file .*edge\.key: expected to write it, got: File too"):
        write_key(path)
    assert not path.exists()
    real, written = os.fsync, []

    def full(descriptor):
        if written:
            raise OSError(28, "No space left on device")
        written.append(descriptor)
        real(descriptor)

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(os, "fsync", full)
        with pytest.raises(KeyFileError, match=r"shuffler\.key: expected to write it, got: No space left"):
            generate_keys(tmp_path, ZONES)
    assert list(tmp_path.iterdir()) == [], "the key that was whole would stop the next attempt, too"
    assert set(generate_keys(tmp_path, ZONES)) == set(ZONES)


def test_a_key_file_is_never_overwritten(tmp_path):
    path = tmp_path / "edge.key"
    write_key(path)
    before = path.read_bytes()
    with pytest.raises(KeyFileError, match="never overwritten"):
        write_key(path)
    with pytest.raises(KeyFileError, match="never overwritten"):
        generate_keys(tmp_path, ZONES)
    assert path.read_bytes() == before
    assert not key_path(tmp_path, "shuffler").exists()
    with pytest.raises(KeyFileError, match="expected to create it"):
        write_key(tmp_path / "missing" / "edge.key")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_key_file_that_others_reach_is_refused(tmp_path, mode):
    path = tmp_path / "edge.key"
    write_key(path)
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=f"expected mode 600 .* got {mode:03o}"):
        load_key(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "got 0 characters"),
        (b"ab" * 31, "got 62 characters"),
        (b"ab" * 33, "got 66 characters"),
        (b"ab" * 5000, "expected 64"),
        (b"cafe" * 15 + b"caf_", "expected hexadecimal digits only"),
        ("ä".encode() * 32, "expected hexadecimal digits only"),
        (b"7f" * 32, "one byte repeated"),
    ],
)
def test_a_damaged_key_file_is_refused_without_repeating_it(tmp_path, content, message):
    path = tmp_path / "edge.key"
    path.touch(mode=0o600)
    path.write_bytes(content)
    with pytest.raises(KeyFileError, match=message) as raised:
        load_key(path)
    assert "cafe" not in str(raised.value)
    assert "7f7f" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_missing_key_file_or_a_folder_in_its_place_is_a_clear_message(tmp_path):
    with pytest.raises(KeyFileError, match=rf"`hushstream keys generate {tmp_path} --zone edge` makes one .*backup"):
        load_key(tmp_path / "edge.key")
    (tmp_path / "folder").mkdir(mode=0o700)
    with pytest.raises(KeyFileError, match=r"Is a directory|regular file"):
        load_key(tmp_path / "folder")


def test_check_reports_each_zone_and_a_key_that_two_zones_share(tmp_path):
    keys = generate_keys(tmp_path / "keys", ("edge", "shuffler"))
    found = check(tmp_path / "keys", ZONES)
    assert [(one.zone, one.key_id) for one in found[:2]] == [(zone, key.key_id.hex()) for zone, key in keys.items()]
    assert found[0].problem is None
    assert "expected a file, got none" in (found[2].problem or "")
    shared = key_path(tmp_path / "keys", "counter")
    shared.touch(mode=0o600)
    shared.write_bytes(key_path(tmp_path / "keys", "edge").read_bytes())
    assert "the key of zone edge" in (check(tmp_path / "keys", ZONES)[2].problem or "")
