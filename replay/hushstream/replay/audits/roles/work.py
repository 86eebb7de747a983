"""Tests that the time of a role's work does not depend on content: empty slots against full ones.

Where one takes longer than the other, whoever sees times (a public endpoint, the broker) sees content. So one batch of
each is folded in turn, in random order, by machines that are alike: what else the computer does meanwhile slows both.
Time is that of the processor, and the shortest of `REPEATS` for each batch of a pair.

The test is a sign test (Dixon, Mood 1946) with a margin: in how many pairs one took longer than the other by more than
`MARGIN`. As long as the middle of their ratio is within the margin, that is at most half of them, so the audit fails
with at most the stated probability. How likely each of `DIFFERENCES` would have been found is computed from the spread
of the pairs themselves, and said beside the result.
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
from hushstream.privacy.audits.audit import AuditResult
from hushstream.replay.audits.row import Audit, Run

SLOTS = 512
"""Of a batch."""

MARGIN = 0.02
"""Of the time of a batch: what may stay unseen."""

DIFFERENCES = 0.05, 0.15
"""Of the time of a batch: what is to be found, and how likely it is."""

REPEATS = 3
"""Of each batch of a pair."""

_NONCE = bytes(range(32))

Holds = Literal["nothing", "something", "both"]
"""What the slots of a batch hold: null or the least there is, a report or the most there is, or every other one."""


@dataclass(frozen=True, slots=True)
class Work:
    """A role that adds noise, and batches for it.

    Attributes:
        name: of the audit.
        role: its system and its name.
        about: what is compared.
        make: a machine that was not started.
        before: records that come before the batch.
        batch: records of equal number and size, whatever they hold.
    """

    name: str
    role: tuple[str, str]
    about: str
    make: Callable[[], Machine]
    before: Sequence[bytes]
    batch: Callable[[Holds], Sequence[bytes]]

    def stands(self) -> bytes:
        """The state of a machine that stands before the batch."""
        machine = self._started()
        if self.before:
            machine.fold([_slice(machine, 0, self.before)])
        return machine.snapshot()

    def prepared(self, state: bytes, records: Sequence[bytes]) -> Callable[[], object]:
        """What is measured: a machine in that state folds a batch."""
        machine = self._started()
        machine.restore(state)
        return partial(machine.fold, [_slice(machine, len(self.before), records)])

    def _started(self) -> Machine:
        machine = self.make()
        machine.start(machine.genesis(_NONCE))
        return machine


def held(holds: Holds, place: int) -> bool:
    """Whether the slot at a place of a batch holds something."""
    return holds == "something" or (holds == "both" and place % 2 == 0)


def audit_of(work: Work, pairs: int = 60) -> Audit:
    """The row of a role."""
    return Audit(work.name, "role", f"time of a batch, {work.about}", pairs, audit_times(work), 2, subjects=(work,))


def audit_times(work: Work) -> Run:
    """Measure pairs of batches, and say whether one kind takes longer."""

    def run(pairs: int, false_alarm: float) -> AuditResult:
        batches = [list(work.batch(holds)) for holds in ("nothing", "something")]
        order, state = np.random.default_rng().integers(0, 2, size=pairs), work.stands()
        _pair(work, state, batches, 0)
        ratios = np.log([_pair(work, state, batches, first) for first in order])
        return judged(ratios, false_alarm)

    return run


def judged(ratios: NDArray[np.float64], false_alarm: float) -> AuditResult:
    """What log ratios of pairs of times say, (pairs,): of nothing against something."""
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
    """How likely it is that ``least`` pairs of this spread show a difference of the middle."""
    share = float(np.mean(centred + math.log1p(difference) > math.log1p(MARGIN)))
    return float(stats.binom.sf(least - 1, len(centred), share))


def fewest(pairs: int, false_alarm: float) -> int:
    """In how many pairs one must take longer, so that chance does it with probability ``false_alarm`` for either."""
    return int(stats.binom.isf(false_alarm / 2, pairs, 0.5)) + 1


def _pair(work: Work, state: bytes, batches: Sequence[Sequence[bytes]], first: int) -> float:
    """Time over nothing, divided by that over something."""
    taken: tuple[list[int], list[int]] = ([], [])
    for _ in range(REPEATS):
        for which in (first, 1 - first):
            taken[which].append(_time_of(work.prepared(state, batches[which])))
    return min(taken[0]) / min(taken[1])


def _time_of(call: Callable[[], object]) -> int:
    """Nanoseconds of processor; garbage is collected before, and not meanwhile."""
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
