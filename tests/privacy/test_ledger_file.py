import multiprocessing
import os

import pytest

from hushstream.privacy.amounts import Cost
from hushstream.privacy.errors import LedgerError
from hushstream.privacy.filters import ConcentratedFilter
from hushstream.privacy.ledger import LOST, BasicFilter, Debit, Exhausted
from hushstream.privacy.ledger_file import LedgerFile

ONE = Cost(1_000_000, 400)
FILTERS = {"deployment": BasicFilter(Cost(3_000_000, 1200)), "zcdp": ConcentratedFilter(500_000, 1000, 1 << 60)}
KINDS = {"window": BasicFilter(ONE)}


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "marks").mkdir()
    return tmp_path / "data" / "ledger", tmp_path / "marks" / "ledger.mark"


def _open(paths, older="refuse"):
    return LedgerFile(*paths, FILTERS, KINDS, older)


def _debit(scope="deployment", curve=()):
    return Debit(scope, "slot-sums", ONE, "null-slot", "one slot of one user", curve)


def _id(number):
    return number.to_bytes(16, "big")


def test_a_ledger_is_the_same_after_it_was_opened_again(paths):
    with _open(paths) as ledger:
        assert ledger.try_debit(_debit(), _id(1)) == _debit()
        assert ledger.try_debit(_debit("window/7"), _id(2)) == _debit("window/7")
        assert ledger.try_debit(_debit("zcdp", (400_000, 7)), _id(3)) == _debit("zcdp", (400_000, 7))
        held = {scope: ledger.entries(scope) for scope in ledger.scopes()}
        left = {scope: ledger.left(scope) for scope in ledger.scopes()}
    with _open(paths) as again:
        assert {scope: again.entries(scope) for scope in again.scopes()} == held
        assert {scope: again.left(scope) for scope in again.scopes()} == left
        assert again.try_debit(_debit(), _id(1)) == _debit()
        assert again.spent("deployment") == ONE
        assert isinstance(again.try_debit(_debit("window/7"), _id(4)), Exhausted)
        assert isinstance(again.try_debit(_debit("zcdp", (200_000, 0)), _id(4)), Exhausted)


def test_what_does_not_fit_and_what_is_known_is_not_written(paths):
    with _open(paths) as ledger:
        for number in range(3):
            ledger.try_debit(_debit(), _id(number))
        size = paths[0].stat().st_size
        assert isinstance(ledger.try_debit(_debit(), _id(3)), Exhausted)
        ledger.try_debit(_debit(), _id(2))
        assert paths[0].stat().st_size == size


def test_an_older_ledger_put_in_its_place_is_refused_or_charged(paths):
    with _open(paths) as ledger:
        ledger.try_debit(_debit(), _id(1))
        old = paths[0].read_bytes()
        ledger.try_debit(_debit(), _id(2))
    for older in (old, b""):
        paths[0].write_bytes(older)
        with pytest.raises(LedgerError, match="its high-water mark"):
            _open(paths)
    with _open(paths, "charge") as ledger:
        assert ledger.spent("deployment") == ONE + ONE
        assert ledger.entries("deployment")[-1].debit.mechanism == LOST
    with _open(paths) as ledger:
        assert ledger.spent("deployment") == ONE + ONE
        assert ledger.try_debit(_debit(), _id(3)) == _debit()
        assert isinstance(ledger.try_debit(_debit(), _id(4)), Exhausted)


def test_a_ledger_without_its_mark_is_refused(paths):
    with _open(paths) as ledger:
        ledger.try_debit(_debit(), _id(1))
    paths[1].unlink()
    with pytest.raises(LedgerError, match="expected its high-water mark"):
        _open(paths)


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [lines[0].replace(b'"epsilon_micro":1000000', b'"epsilon_micro":1'), lines[1]],
        lambda lines: lines[1:],
        lambda lines: [lines[1], lines[0]],
        lambda lines: [lines[0], lines[0]],
        lambda lines: [lines[0][:-20] + b"\n", lines[1]],
        lambda lines: [b"\xff\xfe\n", lines[1]],
    ],
)
def test_a_damaged_ledger_is_refused(paths, damage):
    with _open(paths) as ledger:
        ledger.try_debit(_debit(), _id(1))
        ledger.try_debit(_debit(), _id(2))
    paths[0].write_bytes(b"".join(damage(paths[0].read_bytes().splitlines(keepends=True))))
    with pytest.raises(LedgerError, match=r"ledger, line \d: expected the digest"):
        _open(paths)


def test_a_damaged_mark_is_refused(paths):
    with _open(paths) as ledger:
        ledger.try_debit(_debit(), _id(1))
    paths[1].write_bytes(paths[1].read_bytes().replace(b"1000000", b"0000000"))
    with pytest.raises(LedgerError, match=r"high-water mark .*expected the digest"):
        _open(paths)


def test_a_line_that_a_crash_tore_was_never_answered_and_is_dropped(paths):
    with _open(paths) as ledger:
        ledger.try_debit(_debit(), _id(1))
        mark = paths[1].read_bytes()
        ledger.try_debit(_debit(), _id(2))
    whole = paths[0].read_bytes()
    first = len(whole.splitlines(keepends=True)[0])
    for cut in range(first, len(whole)):
        paths[0].write_bytes(whole[:cut])
        paths[1].write_bytes(mark)
        with _open(paths) as ledger:
            assert ledger.spent("deployment") == ONE
    # The same line lost after its mark had moved was answered: that is an older ledger.
    with _open(paths) as ledger:
        ledger.try_debit(_debit(), _id(2))
    paths[0].write_bytes(whole[: len(whole) - 1])
    with pytest.raises(LedgerError, match="its high-water mark"):
        _open(paths)


def test_an_entry_that_is_on_disk_before_its_mark_counts(paths):
    with _open(paths) as ledger:
        ledger.try_debit(_debit(), _id(1))
        mark = paths[1].read_bytes()
        ledger.try_debit(_debit(), _id(2))
    paths[1].write_bytes(mark)
    with _open(paths) as ledger:
        assert ledger.spent("deployment") == ONE + ONE


def _second_writer(paths, answers):
    try:
        _open(paths).close()
        answers.put("opened")
    except LedgerError as error:
        answers.put(str(error))


def test_a_second_writer_is_refused(paths):
    answers = multiprocessing.get_context("fork").Queue()
    with _open(paths):
        process = multiprocessing.get_context("fork").Process(target=_second_writer, args=(paths, answers))
        process.start()
        assert "expected one writer, got a second" in answers.get(timeout=20)
        process.join()
    _open(paths).close()


def test_a_disk_that_refuses_lets_nothing_be_released_until_the_ledger_is_opened_anew(paths, monkeypatch):
    ledger = _open(paths)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "disk full")))
        with pytest.raises(LedgerError, match="got: disk full; nothing may be released"):
            ledger.try_debit(_debit(), _id(1))
    with pytest.raises(LedgerError, match="expected to be opened anew"):
        ledger.try_debit(_debit(), _id(1))
    ledger.close()


def test_a_folder_that_is_not_there_is_a_clear_message(paths):
    with pytest.raises(LedgerError, match="expected to open it"):
        LedgerFile(paths[0].parent / "none" / "ledger", paths[1], FILTERS)
