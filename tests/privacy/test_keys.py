"""Keys: what is derived from them, and the files that hold them."""

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

from hushstream.privacy import key_files
from hushstream.privacy.errors import KeyFileError, PrivacyError, RetiredKey
from hushstream.privacy.key_files import check, load_key, load_ring, next_key, retire, rotate
from hushstream.privacy.keys import Key, generate_keys, key_line, key_path, seeded_key, write_key

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
    assert "a key of zone edge" in (check(tmp_path / "keys", ZONES)[2].problem or "")


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "counter.key"
    target.touch(mode=0o600)
    target.write_text(MATERIAL.hex() + "\n", encoding="utf-8")
    return target


def _holds(folder, key):
    return any(key_line(key).encode() in file.read_bytes() for file in folder.iterdir())


def test_a_file_without_epochs_is_the_file_of_epoch_0(path):
    ring = load_ring(path)
    assert (ring.oldest, ring.current, ring.retired) == (0, 0, ())
    assert load_key(path) == ring.of(0) == Key(MATERIAL)


def test_known_answers_of_the_ratchet_stay_the_same_for_ever(path):
    assert next_key(Key(MATERIAL), 1) == Key(MATERIAL).derive("epoch-ratchet", 1)
    assert next_key(Key(MATERIAL), 1).key_id.hex() == "a66774fea6c8b082"
    rotate(path)
    assert rotate(path).of(2).key_id.hex() == "a500b75e30e0e14d"


def test_a_rotation_gives_the_next_key_and_keeps_the_ones_before(path):
    turned = rotate(path)
    assert load_ring(path) == turned
    assert turned.current == 1
    assert load_key(path) == turned.of(1) == next_key(Key(MATERIAL), 1)
    assert turned.of(0) == Key(MATERIAL)
    assert len({turned.of(0).key_id, turned.of(1).key_id, rotate(path).of(2).key_id}) == 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["counter.key"]


def test_a_journal_finds_the_key_it_was_begun_with_after_rotations(path):
    first = load_key(path).key_id
    for _ in range(3):
        rotate(path)
    ring = load_ring(path)
    assert ring.named(first) == Key(MATERIAL)
    assert ring.named(ring.of(2).key_id) == ring.of(2)
    with pytest.raises(KeyFileError, match=r"expected a key of epochs 0 to 3 .* begun with"):
        ring.named(seeded_key(1, "edge").key_id)


def test_a_retired_key_is_nowhere_in_the_folder_and_cannot_be_derived(path):
    for _ in range(3):
        rotate(path)
    before = load_ring(path)
    old = os.open(path, os.O_RDONLY)
    left = retire(path, 1)
    for epoch in (0, 1):
        assert not _holds(path.parent, before.of(epoch))
        with pytest.raises(RetiredKey, match="retired; what was released under it can no longer be derived"):
            left.of(epoch)
        with pytest.raises(RetiredKey, match="retired"):
            load_ring(path).named(before.of(epoch).key_id)
    # Whoever still holds the old file open finds it overwritten.
    assert set(os.read(old, 1 << 12)) == {0}
    os.close(old)
    assert load_ring(path) == left
    assert (left.oldest, left.current) == (2, 3)
    assert [left.of(2), left.of(3)] == [before.of(2), before.of(3)]
    assert [epoch for epoch, _ in retire(path, 2).retired] == [0, 1, 2]
    assert rotate(path).current == 4


@pytest.mark.parametrize(("turns", "epoch"), [(0, 0), (1, 1), (2, 5), (2, -1)])
def test_only_an_ended_epoch_can_be_retired(path, turns, epoch):
    for _ in range(turns):
        rotate(path)
    before = path.read_bytes()
    with pytest.raises(KeyFileError, match=r"expected an ended epoch that is kept .*, got"):
        retire(path, epoch)
    assert path.read_bytes() == before


def test_an_epoch_is_retired_once(path):
    rotate(path)
    retire(path, 0)
    with pytest.raises(KeyFileError, match=r"ended epoch that is kept \(none\), got 0"):
        retire(path, 0)


def test_an_epoch_to_come_has_no_key(path):
    with pytest.raises(KeyFileError, match=r"expected an epoch up to the current one \(0\)"):
        load_ring(path).of(1)


@pytest.mark.parametrize(
    "lines",
    [
        "epochs 0",
        "epochs 1 0",
        "epochs a 1",
        "epochs -1 1",
        "epochs 0 99999999",
        "epochs 1 2",
        "epochs 1 2\nretired 1 0011223344556677",
        "epochs 1 2\nretired 0 00112233445566",
        "epochs 1 2\nretired 0 001122334455667g",
        "epochs 0 2\nretired 0 0011223344556677",
        "epochs 2 2\nretired 1 0011223344556677\nretired 0 0011223344556677",
        "retired 0 0011223344556677",
        "cafecafecafe",
    ],
)
def test_a_damaged_file_is_refused_without_repeating_it(path, lines):
    path.write_text(f"{MATERIAL.hex()}\n{lines}\n", encoding="utf-8")
    for use in (load_ring, load_key, rotate, lambda where: retire(where, 0)):
        with pytest.raises(KeyFileError, match=r"key file .*: expected") as raised:
            use(path)
        assert "cafe" not in str(raised.value)
        assert MATERIAL.hex()[:8] not in str(raised.value)


def test_a_file_that_others_can_read_is_neither_rotated_nor_retired(path):
    rotate(path)
    path.chmod(0o644)
    for use in (rotate, lambda where: retire(where, 0)):
        with pytest.raises(KeyFileError, match="expected mode 600"):
            use(path)


@pytest.mark.parametrize("turn", [rotate, lambda path: retire(path, 0)])
def test_a_crash_before_the_new_file_is_in_place_changes_nothing_and_leaves_nothing_after_the_next_turn(
    path, turn, monkeypatch
):
    rotate(path)
    before = path.read_bytes()

    def crash(self, target):
        raise OSError(5, "power cut")

    with monkeypatch.context() as patch:
        patch.setattr(type(path), "replace", crash)
        with pytest.raises(KeyFileError, match="power cut"):
            turn(path)
    assert path.read_bytes() == before
    turn(path)
    assert [file.name for file in path.parent.iterdir()] == ["counter.key"]


def test_a_folder_that_cannot_be_written_is_a_clear_message(path, monkeypatch):
    monkeypatch.setattr(key_files.os, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "denied")))
    with pytest.raises(KeyFileError, match="expected to replace it, got: denied"):
        rotate(path)


def test_a_check_names_the_epochs_and_a_shared_key(tmp_path):
    generate_keys(tmp_path, ("edge", "shuffler"))
    rotate(key_path(tmp_path, "edge"))
    edge, shuffler = check(tmp_path, ("edge", "shuffler"))
    assert (edge.epochs, shuffler.epochs) == ((0, 1), (0, 0))
    assert edge.problem is None
    assert edge.key_id == load_key(edge.path).key_id.hex()


@pytest.mark.parametrize("turned", ["edge", "shuffler", None])
@pytest.mark.parametrize("retired", [False, True])
def test_a_check_finds_a_copied_key_also_after_one_of_both_was_rotated(tmp_path, turned, retired):
    """The two current keys differ, and whoever has the older one derives the other."""
    generate_keys(tmp_path, ("edge", "sealing"))
    key_path(tmp_path, "shuffler").write_bytes(key_path(tmp_path, "edge").read_bytes())
    key_path(tmp_path, "shuffler").chmod(0o600)
    if turned is not None:
        rotate(key_path(tmp_path, turned))
        if retired:
            retire(key_path(tmp_path, turned), 0)
    found = {one.zone: one.problem for one in check(tmp_path, ("edge", "sealing", "shuffler"))}
    assert found == {"edge": None, "sealing": None, "shuffler": "expected a key of its own, got a key of zone edge"}


def test_a_seeded_key_has_no_line():
    with pytest.raises(KeyFileError, match="got one from a seed"):
        key_line(seeded_key(1, "edge"))


def test_a_written_key_is_a_ring_of_one(tmp_path):
    key = write_key(tmp_path / "edge.key")
    assert load_ring(tmp_path / "edge.key").of(0) == key


@pytest.mark.parametrize("epoch", [1, 2, 20])
def test_a_check_finds_a_key_that_another_zone_will_derive(tmp_path, epoch):
    """As where a file was restored from a backup of before its rotation, and a key of after it was copied."""
    generate_keys(tmp_path, ["edge"])
    later = load_key(key_path(tmp_path, "edge"))
    for step in range(1, epoch + 1):
        later = next_key(later, step)
    path = key_path(tmp_path, "shuffler")
    path.write_text(key_line(later), encoding="utf-8")
    path.chmod(0o600)
    assert [one.problem for one in check(tmp_path, ["edge", "shuffler"])] == [
        None,
        "expected a key of its own, got a key of zone edge",
    ]
