"""What was released is noted on disk: no owner lowers it, and a damaged note is not believed."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hushstream.agents.errors import JournalLost
from hushstream.agents.recovery.high_water import HighWater, OlderThanPaid
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.journal.marks import Mark


def marks(folder: Path, **changes: object) -> HighWater:
    values = {"bootstrap": "127.0.0.1:1", "role": "shuffler", "group": "g", "deployment": "dep", "datadir": folder}
    return HighWater(WorkerSettings(**{**values, **changes}))


def mark(sequence: int, journal: str = "aa", generation: int = 0) -> Mark:
    return Mark(journal, sequence, generation)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "paid").iterdir())


def test_the_highest_mark_of_each_journal_is_told(tmp_path: Path) -> None:
    high = marks(tmp_path)
    assert high.noted(0) == ()
    for noted in (mark(7), mark(9), mark(2, "bb")):
        high.raise_to(0, noted)
    high.raise_to(1, mark(4))
    assert high.noted(0) == (mark(9), mark(2, "bb"))
    assert high.noted(1) == (mark(4),)
    high.raise_to(1, mark(3, generation=1))
    assert high.noted(1) == (mark(3, generation=1),), "what an operator went on with is later than all before"


def test_the_mark_outlives_its_writer_and_belongs_to_one_role_of_one_deployment(tmp_path: Path) -> None:
    marks(tmp_path).raise_to(0, mark(7))
    assert marks(tmp_path).noted(0) == (mark(7),)
    assert marks(tmp_path, role="counter").noted(0) == ()
    assert marks(tmp_path, deployment="other").noted(0) == ()


def test_a_mark_is_its_owners_alone(tmp_path: Path) -> None:
    marks(tmp_path).raise_to(0, mark(7))
    paths = [tmp_path / "paid", *(tmp_path / "paid").iterdir()]
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o700, 0o600]


def test_an_owner_that_wakes_late_does_not_lower_the_mark(tmp_path: Path) -> None:
    marks(tmp_path).raise_to(0, mark(31))
    marks(tmp_path).raise_to(0, mark(5))
    assert marks(tmp_path).noted(0) == (mark(31),)


def test_two_owners_that_note_at_once_leave_the_higher_mark(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda sequence: marks(tmp_path).raise_to(0, mark(sequence)), range(1, 200)))
    assert marks(tmp_path).noted(0) == (mark(199),)


def test_an_owner_that_was_stopped_between_looking_and_noting_does_not_lower_the_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks(tmp_path).raise_to(0, mark(31))
    with monkeypatch.context() as stopped:
        stopped.setattr(HighWater, "_highest", lambda *_: mark(4))  # what they saw before the other noted 31
        marks(tmp_path).raise_to(0, mark(5))
    assert marks(tmp_path).noted(0) == (mark(31),)
    marks(tmp_path).raise_to(0, mark(32))
    assert files(tmp_path) == ["dep.shuffler.0.aa.0-32.json"]


def test_a_journal_that_comes_back_after_another_is_still_held_to_its_mark(tmp_path: Path) -> None:
    marks(tmp_path).raise_to(0, mark(7))
    marks(tmp_path).raise_to(0, mark(2, "bb"))
    assert marks(tmp_path).noted(0) == (mark(7), mark(2, "bb"))


def test_another_folder_keeps_the_mark_out_of_the_data(tmp_path: Path) -> None:
    high = marks(tmp_path / "state", paid_marks=tmp_path / "marks")
    high.raise_to(0, mark(7))
    assert list((tmp_path / "marks").iterdir())
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("position", [0, 20, 40, -2])
def test_a_damaged_mark_is_refused_not_believed(tmp_path: Path, position: int) -> None:
    high = marks(tmp_path)
    high.raise_to(0, mark(7))
    (path,) = (tmp_path / "paid").iterdir()
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(OlderThanPaid, match=r"damaged|readable"):
        high.noted(0)
    with pytest.raises(OlderThanPaid, match=r"damaged|readable"):
        marks(tmp_path).raise_to(0, mark(8))


def test_the_name_of_a_mark_is_on_disk_before_lower_marks_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    high = marks(tmp_path)
    high.raise_to(0, mark(7))
    done: list[str] = []
    forced, replaced, unlinked = os.fsync, Path.replace, Path.unlink

    def fsync(descriptor: int) -> None:
        done.append("fsync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "fsync file")
        forced(descriptor)

    def replace(path: Path, target: Path) -> Path:
        done.append("replace")
        return replaced(path, target)

    def unlink(path: Path, missing_ok: bool = False) -> None:
        done.append("unlink")
        unlinked(path, missing_ok)

    with monkeypatch.context() as watched:
        watched.setattr(os, "fsync", fsync)
        watched.setattr(Path, "replace", replace)
        watched.setattr(Path, "unlink", unlink)
        high.raise_to(0, mark(8))
    assert done == ["fsync file", "replace", "fsync folder", "unlink"]
    assert files(tmp_path) == ["dep.shuffler.0.aa.0-8.json"]


def test_the_folder_is_gone_through_for_the_first_mark_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks(tmp_path).raise_to(0, mark(3))
    high = marks(tmp_path)
    high.raise_to(0, mark(7))
    with monkeypatch.context() as watched:
        watched.setattr(HighWater, "_stems", lambda *_: pytest.fail("the folder was gone through"))
        for sequence in (8, 9, 9, 4, 12):
            high.raise_to(0, mark(sequence))
    assert files(tmp_path) == ["dep.shuffler.0.aa.0-12.json"]


def test_a_mark_that_cannot_be_written_lets_nothing_out(tmp_path: Path) -> None:
    (tmp_path / "paid").write_text("in the way", encoding="utf-8")
    with pytest.raises(JournalLost, match="the mark could not be written"):
        marks(tmp_path).raise_to(0, mark(7))


def test_a_file_that_says_no_place_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "paid").mkdir()
    (tmp_path / "paid" / "dep.shuffler.0.aa.7.json").write_text("of another form", encoding="utf-8")
    with pytest.raises(OlderThanPaid, match="expected the name of a mark to end with GENERATION-RECORD"):
        marks(tmp_path).noted(0)
