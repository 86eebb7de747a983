"""Roles whose times are public do the same work for every content: step for step, on arrays of the same sizes."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hushstream.replay.audits import work
from hushstream.replay.audits.row import Row
from hushstream.replay.audits.work import TimeTest, Work, audit_result_of, fewest
from hushstream.replay.studies.bgt.audits import works as bgt
from hushstream.replay.studies.colin.audits import works as colin
from hushstream.replay.studies.p2b.audits import works as p2b
from hushstream.replay.studies.pdap.audits import works as pdap
from hushstream.systems.catalogue import kinds

WORKS = [one for works in (p2b, bgt, colin, pdap) for one in works(64)]
NOISING = {(name, role.name): role for name, kind in kinds().items() for role in kind.roles if role.marks is not None}
OF_THE_RELEASE = {"_counted", "tuple_sums"}
"""How many tuples a window lets through is public: they are what it releases."""


class Steps:
    """Lines that were run, functions that were called, and the sizes of arrays that they had in the end."""

    def __init__(self) -> None:
        self.counts: Counter[Any] = Counter()

    def profile(self, frame: FrameType, event: str, found: Any) -> None:
        if event.startswith("c_"):
            self.counts[event, getattr(found, "__qualname__", str(found))] += 1
            return
        code = frame.f_code
        self.counts[event, code.co_qualname] += 1
        ours = "hushstream" in code.co_filename and code.co_name not in OF_THE_RELEASE
        if event == "return" and ours:
            for name, value in frame.f_locals.items():
                if isinstance(value, np.ndarray):
                    self.counts["array", code.co_qualname, name, value.shape, str(value.dtype)] += 1

    def trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if "hushstream" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.counts["line", frame.f_code.co_qualname, frame.f_lineno] += 1
        return self.trace


@contextmanager
def watched() -> Iterator[Steps]:
    """Steps of the block, without those of a garbage collection that happens to fall into it.

    A collection runs the callbacks of whoever asked for them (hypothesis does) and finalizers of any object.
    """
    steps = Steps()
    profile, trace, collects = sys.getprofile(), sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.setprofile(steps.profile)
    sys.settrace(steps.trace)
    try:
        yield steps
    finally:
        sys.settrace(trace)
        sys.setprofile(profile)
        if collects:
            gc.enable()


def steps_over(one: Work, state: bytes, holds: work.Holds) -> Counter[Any]:
    call = one.prepared(state, one.batch(holds))
    with watched() as steps:
        call()
    return steps.counts


@pytest.mark.parametrize("one", WORKS, ids=lambda one: one.name)
def test_every_content_is_worked_on_in_the_same_steps_on_arrays_of_the_same_sizes(one):
    state = one.state_before_batch()
    steps_over(one, state, "both")  # what is done once for a process is done now
    nothing, something, both = (steps_over(one, state, holds) for holds in ("nothing", "something", "both"))
    assert nothing.total() > 500
    assert (something - nothing, nothing - something) == (Counter(), Counter())
    assert (both - nothing, nothing - both) == (Counter(), Counter())


def test_a_garbage_collection_meanwhile_is_no_step_of_a_role():
    collected = []

    def seen(phase: str, _: Any) -> None:
        collected.append(phase)

    one, often = WORKS[0], gc.get_threshold()
    state, batch = one.state_before_batch(), one.batch("something")
    gc.callbacks.append(seen)
    gc.set_threshold(1)
    try:
        one.prepared(state, batch)()
        assert collected, "work makes enough objects for a collection"
        steps = steps_over(one, state, "something")
    finally:
        gc.set_threshold(*often)
        gc.callbacks.remove(seen)
    assert not [step for step in steps if seen.__qualname__ in step]
    assert gc.isenabled()


def test_every_role_that_adds_noise_is_among_them_or_keeps_its_times_in_its_zone():
    """Where private times are shown: ``tests/agents/test_metrics.py``."""
    private = {place for place, role in NOISING.items() if role.private_work}
    assert {one.role for one in WORKS} == NOISING.keys() - private
    assert {place for place, role in NOISING.items() if role.key_zone == "edge"} == private, "which takes in clicks"


# What is made of times.

ALPHA = 1e-6


def ratios(pairs: int, middle: float, spread: float = 0.02, seed: int = 0) -> np.ndarray:
    return np.log1p(middle) + np.random.default_rng(seed).normal(0, spread, pairs)


@pytest.mark.parametrize("pairs", [40, 60, 120, 1200])
def test_chance_fails_an_equal_role_no_more_often_than_is_stated(pairs):
    """Either side has half of it; a middle on the margin is the worst case, where each pair is a fair coin."""
    assert 2 * stats.binom.sf(fewest(pairs, ALPHA) - 1, pairs, 0.5) <= ALPHA
    assert 2 * stats.binom.sf(fewest(pairs, ALPHA) - 2, pairs, 0.5) > ALPHA


def test_a_difference_is_found_and_which_takes_longer_is_said():
    slower, faster = audit_result_of(ratios(60, 0.17), ALPHA), audit_result_of(ratios(60, -0.17), ALPHA)
    assert slower.structure == "slots that hold nothing take over 2% longer in 60 of 60 pairs"
    assert faster.structure == "slots that hold something take over 2% longer in 60 of 60 pairs"
    assert not slower.passed


def test_no_difference_passes_and_its_power_is_said():
    equal = audit_result_of(ratios(120, 0.0), ALPHA)
    assert equal.passed
    row = Row("time", "role", "about", None, equal, TimeTest(WORKS[0]).power(equal))
    assert row.verdict == "within the claim"
    assert row.power.startswith("middle ")
    assert row.power.endswith(" for 15%")
    # A normal spread of 2 %: 5 % is over the margin in 93 of 100 pairs, and 120 pairs need 87.
    assert "power 1.000 for 5%, 1.000 for 15%" in row.power
    noisy = audit_result_of(ratios(60, 0.0, spread=0.3), ALPHA)
    assert "power 0.000 for 5%" in noisy.remark, "too few for so wide a spread"


def calls_of(call: Callable[[], object]) -> int:
    """How many functions are called: in place of a time, and the same on every computer."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def test_a_role_that_takes_longer_over_nothing_fails_its_audit(monkeypatch):
    """Twice the work over nothing, in calls."""
    one = WORKS[0]

    def twice(state: bytes, records: Any) -> Callable[[], object]:
        call, again = Work.prepared(one, state, records), Work.prepared(one, state, records)
        return lambda: (call(), again() if records == list(one.batch("nothing")) else None)

    class Slower:
        state_before_batch, batch, prepared = one.state_before_batch, one.batch, staticmethod(twice)

    monkeypatch.setattr(work, "_time_of", calls_of)
    monkeypatch.setattr(work, "REPEATS", 1)
    slower = TimeTest(Slower())(12, 1e-3)  # type: ignore[arg-type]
    assert slower.structure == "slots that hold nothing take over 2% longer in 12 of 12 pairs"
