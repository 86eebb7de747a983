"""The packed answers of rewarded events against a plain dictionary of them."""

from __future__ import annotations

import random

import pytest

from hushstream.feedback.join import Answered, KeptAnswers


def _answer(rng: random.Random, now_ms: int) -> Answered:
    return Answered(rng.randrange(70_000), rng.choice([10**9, 0, 333_333_333]), rng.randrange(2**31), now_ms + 100)


def _forget(known: dict[str, Answered], now_ms: int) -> None:
    for event_id in list(known):
        if known[event_id].deadline_ms > now_ms:
            break
        del known[event_id]


@pytest.mark.parametrize("names", [30, 200, 900])
def test_they_are_what_a_dictionary_would_hold_in_its_order(names: int) -> None:
    """Kept, replaced, forgotten and asked for at random, with ids that begin alike, are empty, or are no ASCII."""
    rng = random.Random(names)
    kept, known = KeptAnswers(), dict[str, Answered]()
    ids = ["", "é", "\ud800", *("e" * length for length in range(1, names // 2)), *map(str, range(names // 2))]
    now_ms = most = forgotten = 0
    for _ in range(6_000):
        now_ms += rng.choice([0, 0, 1, 3])
        event_id = rng.choice(ids)
        if rng.random() < 0.6:
            # Some deadlines lie before those of older answers, as after a shorter wait of the log's time.
            answer = _answer(rng, now_ms - rng.choice([0, 0, 0, 60]))
            kept.keep(event_id, answer)
            known[event_id] = answer
        elif rng.random() < 0.3:
            before = len(known)
            kept.forget(now_ms)
            _forget(known, now_ms)
            forgotten += before - len(known)
        assert kept.get(event_id) == known.get(event_id)
        assert (event_id in kept) == (event_id in known)
        assert len(kept) == len(known)
        most = max(most, len(known))
        if known:
            assert kept.next_ms == next(iter(known.values())).deadline_ms
    assert list(kept) == list(known.items())
    assert forgotten > 20
    assert most >= min(20, names)


def test_what_is_forgotten_takes_no_room() -> None:
    """A window of 50 goes by over 20,000 answers: block and table stay as large as for some of those."""
    kept = KeptAnswers()
    for number in range(20_000):
        kept.forget(number)
        kept.keep(f"event-{number}", Answered(1, 10**9, 1, number + 50))
        assert len(kept) == min(number + 1, 50)
    assert sum(map(len, kept._blocks)) < 50 * 40 + 2 * 4200
    assert len(kept._places) <= 512


def test_one_takes_about_twenty_bytes() -> None:
    """Text of 14 bytes, 22 of fields and length, all compressed to 7, and 8 to 16 of the table."""
    kept = KeptAnswers()
    for number in range(3_000):
        kept.keep(f"event-{number:08d}", Answered(number % 7, 10**9, 1, 10**12 + 100 * number))
    size = sum(block.__sizeof__() for block in kept._blocks) + 5 * len(kept._places)
    assert size / 3_000 < 27
