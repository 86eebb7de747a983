"""Tests that the time of a role's work does not depend on content: empty slots against full ones.

If one takes longer than the other, an observer of times (a public endpoint, the broker) learns about content. So equal
machines fold one batch of each kind in random order; other programs on the computer slow down both. Time is the
processor's, and the shortest of `REPEATS` for each batch of a pair.

The test is a sign test (Dixon, Mood 1946) with a margin: it counts the pairs in which one batch took longer than the
other by more than `MARGIN`. While the median of their ratio is within the margin, at most half of the pairs count, so
the audit fails with at most the stated probability. The power for each of `DIFFERENCES` is computed from the spread of
the pairs themselves, and stated beside the result.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from hushstream.engine.machine import Machine
from hushstream.engine.records import InputRecord, InputSlice
from hushstream.privacy.amounts import Cost
from hushstream.privacy.audits import AuditResult
from hushstream.replay.audits.row import Audit

SLOTS = 512
"""The number of slots in a batch."""

MARGIN = 0.02
"""The largest relative difference that is accepted, as a part of a batch's time."""

DIFFERENCES = 0.05, 0.15
"""Differences, as parts of a batch's time, for which the power is computed."""

REPEATS = 3
"""The number of measurements of each batch of a pair."""

_NONCE = bytes(range(32))

Holds = Literal["nothing", "something", "both"]
"""The content of a batch's slots: null or the smallest possible; a report or the largest possible; or both in turn."""


@dataclass(frozen=True, slots=True)
class Work:
    """A role that adds noise, and batches for it.

    Attributes:
        name: name of the audit.
        role: names of its system and of the role.
        about: the compared batches, as text.
        make: makes a machine that is not started.
        before: records that come before the batch.
        batch: makes a batch of records whose number and sizes do not depend on their content.
    """

    name: str
    role: tuple[str, str]
    about: str
    make: Callable[[], Machine]
    before: Sequence[bytes]
    batch: Callable[[Holds], Sequence[bytes]]

    def state_before_batch(self) -> bytes:
        """The state of a machine that has folded everything before the batch."""
        machine = self._started()
        if self.before:
            machine.fold([_slice(machine, 0, self.before)])
        return machine.snapshot()

    def prepared(self, state: bytes, records: Sequence[bytes]) -> Callable[[], object]:
        """Prepare the call that is measured: a machine in this state folds a batch."""
        machine = self._started()
        machine.restore(state)
        return partial(machine.fold, [_slice(machine, len(self.before), records)])

    def _started(self) -> Machine:
        machine = self.make()
        machine.start(machine.genesis(_NONCE))
        return machine


def has_content(holds: Holds, place: int) -> bool:
    """Whether the slot at this place of a batch has content."""
    return holds == "something" or (holds == "both" and place % 2 == 0)


def audit_of(work: Work, pairs: int = 60) -> Audit:
    """The row of a role."""
    about = f"time of a batch, {work.about}"
    return Audit(work.name, "role", about, pairs, lambda: TimeTest(work), 2, subjects=(work,))


@dataclass(frozen=True, slots=True, eq=False)
class TimeTest:
    """A test of pairs of batches: whether one kind takes longer.

    Attributes:
        work: the role and its batches.
    """

    work: Work

    @property
    def claimed(self) -> Cost:
        """Nothing: times tell nothing of content."""
        return Cost(0, 0)

    def __call__(self, pairs: int, false_alarm: float) -> AuditResult:
        """Measure the pairs."""
        work = self.work
        batches = [list(work.batch(holds)) for holds in ("nothing", "something")]
        order, state = np.random.default_rng().integers(0, 2, size=pairs), work.state_before_batch()
        _pair(work, state, batches, 0)
        ratios = np.log([_pair(work, state, batches, first) for first in order])
        return audit_result_of(ratios, false_alarm)

    def power(self, result: AuditResult) -> str:
        """The chance to find each of `DIFFERENCES`, by the spread of the pairs."""
        return result.remark


def audit_result_of(ratios: NDArray[np.float64], false_alarm: float) -> AuditResult:
    """Judge the log ratios of pairs of times, (pairs,): of null slots against full ones."""
    pairs, margin = len(ratios), math.log1p(MARGIN)
    longer = int(np.count_nonzero(ratios > margin)), int(np.count_nonzero(ratios < -margin))
    least = fewest(pairs, false_alarm)
    middle = float(np.median(ratios))
    found = ", ".join(f"{power_at(ratios - middle, one, least):.3f} for {one:.0%}" for one in DIFFERENCES)
    structure = ""
    if max(longer) >= least:
        which = ("nothing", "something")[longer[1] > longer[0]]
        structure = f"slots that hold {which} take over {MARGIN:.0%} longer in {max(longer)} of {pairs} pairs"
    remark = f"middle {math.expm1(middle):+.1%}, power {found}"
    return AuditResult(Cost(0, 0), 0.0, pairs, false_alarm, longer, structure=structure, remark=remark)


def power_at(centred: NDArray[np.float64], difference: float, least: int) -> float:
    """The probability that at least ``least`` pairs of this spread show a given difference of the median."""
    share = float(np.mean(centred + math.log1p(difference) > math.log1p(MARGIN)))
    return float(stats.binom.sf(least - 1, len(centred), share))


def fewest(pairs: int, false_alarm: float) -> int:
    """The number of pairs in which one kind must take longer, for a false-alarm rate of at most ``false_alarm``."""
    return int(stats.binom.isf(false_alarm / 2, pairs, 0.5)) + 1


def _pair(work: Work, state: bytes, batches: Sequence[Sequence[bytes]], first: int) -> float:
    """The time for null slots divided by that for full ones."""
    taken: tuple[list[int], list[int]] = ([], [])
    for _ in range(REPEATS):
        for which in (first, 1 - first):
            taken[which].append(_time_of(work.prepared(state, batches[which])))
    return min(taken[0]) / min(taken[1])


def _time_of(call: Callable[[], object]) -> int:
    """Nanoseconds of processor time; garbage is collected before, and not during the call."""
    gc.collect(0)
    enabled = gc.isenabled()
    gc.disable()
    try:
        start = time.thread_time_ns()
        call()
        return time.thread_time_ns() - start
    finally:
        if enabled:
            gc.enable()


def _slice(machine: Machine, first: int, records: Sequence[bytes]) -> InputSlice:
    topic, partition = machine.inputs[0]
    found = [InputRecord(first + place, 1_000_000 + first + place, value) for place, value in enumerate(records)]
    return InputSlice(topic, partition, first, first + len(records), found)
