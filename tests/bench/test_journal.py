"""Rates and waits are what the log times of the records say."""

import pytest

from hushstream.replay.bench.errors import BenchFailed
from hushstream.replay.bench.journal import Folded, Timed, timed, waits_ms


def _folded(log_time_ms: int, contexts: tuple[int, int], clicks: tuple[int, int] = (0, 0)) -> Folded:
    return Folded(log_time_ms, contexts, clicks, contexts[1] - contexts[0], b"")


def test_a_rate_counts_what_was_appended_after_the_first_moment() -> None:
    records = [
        _folded(1000, (0, 900)),
        _folded(1000, (900, 1000), (0, 50)),
        _folded(1250, (1000, 1100), (50, 100)),
        _folded(1500, (1100, 1150)),
    ]
    assert timed(records, 1) == Timed(1000, 1500, 200)
    assert timed(records, 256).per_second == 256 * 200 / 0.5


def test_a_run_within_one_moment_has_no_rate() -> None:
    with pytest.raises(BenchFailed, match="too short"):
        timed([_folded(1000, (0, 10)), _folded(1000, (10, 20))], 1)


def test_each_context_waits_from_its_own_append_to_that_of_its_decision() -> None:
    records = [_folded(100, (0, 10)), _folded(117, (10, 12)), _folded(130, (12, 13))]
    assert waits_ms(records, 10, [110, 111, 125]) == [7, 6, 5]
