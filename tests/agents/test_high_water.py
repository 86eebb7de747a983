"""What was paid for is noted before its release is sent; a journal that is older than that is refused."""

from __future__ import annotations

import asyncio
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hushstream.agents.errors import JournalLost
from hushstream.agents.high_water import HighWater, OlderThanPaid, releases
from hushstream.agents.recovery import Held, Recovery
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.machine import Output

GENESIS = b"the first record"


def marks(folder: Path, **changes: object) -> HighWater:
    values = {"bootstrap": "127.0.0.1:1", "role": "shuffler", "group": "g", "deployment": "dep", "datadir": folder}
    return HighWater(WorkerSettings(**{**values, **changes}))


def test_a_journal_that_ends_before_the_mark_is_refused(tmp_path: Path) -> None:
    high = marks(tmp_path)
    high.raise_to(2, GENESIS, 7)
    paid = high.noted(2, GENESIS)
    high.check(2, paid, 7)
    high.check(2, paid, 12)
    with pytest.raises(OlderThanPaid, match=r"ends at record 6, but a release was sent with record 7"):
        high.check(2, paid, 6)


def test_without_a_mark_or_with_one_of_another_journal_any_journal_is_taken(tmp_path: Path) -> None:
    high = marks(tmp_path)
    assert high.noted(0, GENESIS) == 0
    high.raise_to(0, b"another first record", 7)
    assert high.noted(0, GENESIS) == high.noted(1, GENESIS) == 0
    high.raise_to(0, GENESIS, 3)
    assert high.noted(0, GENESIS) == 3


def test_the_mark_outlives_its_writer_and_belongs_to_one_role_of_one_deployment(tmp_path: Path) -> None:
    marks(tmp_path).raise_to(0, GENESIS, 7)
    assert marks(tmp_path).noted(0, GENESIS) == 7
    assert marks(tmp_path, role="counter").noted(0, GENESIS) == 0
    assert marks(tmp_path, deployment="other").noted(0, GENESIS) == 0


def test_an_owner_that_wakes_late_does_not_lower_the_mark(tmp_path: Path) -> None:
    marks(tmp_path).raise_to(0, GENESIS, 31)
    marks(tmp_path).raise_to(0, GENESIS, 5)
    assert marks(tmp_path).noted(0, GENESIS) == 31


def test_two_owners_that_note_at_once_leave_the_higher_mark(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda sequence: marks(tmp_path).raise_to(0, GENESIS, sequence), range(1, 200)))
    assert marks(tmp_path).noted(0, GENESIS) == 199


def test_an_owner_that_was_stopped_between_looking_and_noting_does_not_lower_the_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks(tmp_path).raise_to(0, GENESIS, 31)
    with monkeypatch.context() as stopped:
        stopped.setattr(HighWater, "noted", lambda *_: 4)  # what he saw before the other noted 31
        marks(tmp_path).raise_to(0, GENESIS, 5)
    assert marks(tmp_path).noted(0, GENESIS) == 31
    marks(tmp_path).raise_to(0, GENESIS, 32)
    assert list(marks(tmp_path).marks(0, GENESIS)) == [32]


def test_a_journal_that_comes_back_after_another_is_still_held_to_its_mark(tmp_path: Path) -> None:
    marks(tmp_path).raise_to(0, GENESIS, 7)
    marks(tmp_path).raise_to(0, b"another first record", 2)
    assert marks(tmp_path).noted(0, GENESIS) == 7


def test_another_folder_keeps_the_mark_out_of_the_data(tmp_path: Path) -> None:
    high = marks(tmp_path / "state", paid_marks=tmp_path / "marks")
    high.raise_to(0, GENESIS, 7)
    assert high.marks(0, GENESIS)[7].parent == tmp_path / "marks"
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("position", [0, 20, 40, -2])
def test_a_damaged_mark_is_refused_not_believed(tmp_path: Path, position: int) -> None:
    high = marks(tmp_path)
    high.raise_to(0, GENESIS, 7)
    path = high.marks(0, GENESIS)[7]
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(OlderThanPaid, match=r"damaged|readable"):
        high.noted(0, GENESIS)
    with pytest.raises(OlderThanPaid, match=r"damaged|readable"):
        marks(tmp_path).raise_to(0, GENESIS, 8)


def test_the_name_of_a_mark_is_on_disk_before_lower_marks_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    high = marks(tmp_path)
    high.raise_to(0, GENESIS, 7)
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
        high.raise_to(0, GENESIS, 8)
    assert done == ["fsync file", "replace", "fsync folder", "unlink"]
    assert list(marks(tmp_path).marks(0, GENESIS)) == [8]


def test_the_folder_is_gone_through_for_the_first_mark_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks(tmp_path).raise_to(0, GENESIS, 3)
    high = marks(tmp_path)
    high.raise_to(0, GENESIS, 7)
    with monkeypatch.context() as watched:
        watched.setattr(HighWater, "marks", lambda *_: pytest.fail("the folder was gone through"))
        for sequence in (8, 9, 9, 4, 12):
            high.raise_to(0, GENESIS, sequence)
    assert list(marks(tmp_path).marks(0, GENESIS)) == [12]


def test_a_mark_that_cannot_be_written_lets_nothing_out(tmp_path: Path) -> None:
    (tmp_path / "paid").write_text("in the way")
    with pytest.raises(JournalLost, match="could not be noted"):
        marks(tmp_path).raise_to(0, GENESIS, 7)


async def test_every_portion_of_a_recovery_is_noted_before_it_is_sent(tmp_path: Path) -> None:
    high = marks(tmp_path)
    noted: list[int] = []

    class Noting:
        async def send(self, output: Output) -> asyncio.Future[None]:
            noted.append(high.noted(0, GENESIS))
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done

    unused: Any = None
    machine: Any = SimpleNamespace(journal=("journal-counter", 0))
    recovery = Recovery(high.settings, unused, Noting(), unused, lambda: True)
    for sequence in (3, 5):
        await recovery._send(Held(machine, GENESIS, sequence, sequence + 1), [Output("releases", 0, b"x")])
    assert noted == [3, 5]


def test_whatever_carries_noise_or_pays_for_it_raises_the_mark_and_nothing_else_does() -> None:
    for topic in ("releases", "crowds", "lift", "ledger", "ledger-edge"):
        assert releases([Output("decisions", 0, b""), Output(topic, 0, b"")]), topic
    assert not releases([Output("reports", 0, b""), Output("decisions", 0, b""), Output("rewards", 0, b"")])
