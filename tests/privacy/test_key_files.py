import os
import stat

import pytest

from hushstream.privacy import key_files
from hushstream.privacy.errors import KeyFileError, RetiredKey
from hushstream.privacy.key_files import check, load_key, load_ring, next_key, retire, rotate
from hushstream.privacy.keys import Key, generate_keys, key_line, key_path, seeded_key, write_key

MATERIAL = bytes(range(100, 132))


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


def test_a_seeded_key_has_no_line():
    with pytest.raises(KeyFileError, match="got one from a seed"):
        key_line(seeded_key(1, "edge"))


def test_a_written_key_is_a_ring_of_one(tmp_path):
    key = write_key(tmp_path / "edge.key")
    assert load_ring(tmp_path / "edge.key").of(0) == key
