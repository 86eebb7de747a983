"""Seeded schedules of faults: what is done to which role's deployment, in which order, one line for each.

    counter: kill@journal_acked+1/0 stop@folded+2/0 clock@released+1/0:-3600

is a lane: one deployment of a role over frozen inputs, and what happens to its workers one after the other. A fault
comes at a step of the protocol, so many journal records after where its home partition stands then.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

MARKS = ("marking", "marked")
"""Steps of roles that note how far they have released."""

STEPS = ("decoded", "folded", "journal_sent", "journal_acked", *MARKS, "released", "committed", "snapshot")
CLOCK_SECONDS = (-400 * 86400, -3600, -5, 5, 3600, 400 * 86400)
FOREIGN = (bytes.fromhex("c301") + b"\xee" * 58, b"of nobody " * 6, bytes.fromhex("c301") + b"\xee" * 8, bytes(60))
"""Records that no chain holds and no key of a zone made: an unknown schema with content and without, and garbage."""

ONCE = ("rebalance", "full-disk", "no-room", "wiped", "older-copy", "foreign")
"""Operations that every role meets once before anything is drawn; it meets kills and stops at every step."""
LAST = ("lost-inputs", "lost-marks")
"""The same, but none follows them in a lane: what is folded behind them is not what it is without faults."""
MOST_LOST = 3
"""So few that something follows from the records behind them, whatever the role."""

_FAULT = re.compile(r"([a-z-]+)@([a-z_]+)\+(\d+)/(\d+)(?::(-?\d+))?")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        operation: by name; see `faults.OPERATIONS`.
        step: of the protocol.
        ahead: journal records to go before it happens.
        home: counts through the home partitions that have so many records to come.
        amount: seconds by which the clock moves; which record of `FOREIGN` is appended; how many records are lost; in
            which way marks are lost.
    """

    operation: str
    step: str
    ahead: int
    home: int
    amount: int = 0

    def __str__(self) -> str:
        return f"{self.operation}@{self.step}+{self.ahead}/{self.home}" + (f":{self.amount}" if self.amount else "")


@dataclass(frozen=True, slots=True)
class Lane:
    """One deployment of one kind of role, and its faults in order."""

    kind: str
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        return f"{self.kind}: {' '.join(map(str, self.faults))}"


def parse(line: str) -> Lane:
    """The lane that a line stands for."""
    kind, _, text = line.partition(": ")
    found = [_FAULT.fullmatch(word) for word in text.split()]
    assert found, line
    faults = []
    for match in found:
        assert match is not None, line
        operation, step, ahead, home, amount = match.groups()
        faults.append(Fault(operation, step, int(ahead), int(home), int(amount or 0)))
    return Lane(kind, tuple(faults))


def draw_lanes(seed: int, kinds: Sequence[str], faults: int, lane_faults: int) -> list[Lane]:
    """A schedule of at least ``faults`` faults, ``lane_faults`` a lane: each kind meets all operations, the rest is
    drawn. At most one fault of a lane is of `LAST`, and none follows it."""
    draw = random.Random(seed)
    lanes = []
    for kind in kinds:
        steps = steps_of(kind)
        last = last_of(kind)
        due = [_fault(draw, steps, operation) for operation in (*ONCE, *last)]
        due += [_fault(draw, (step,), operation) for operation in ("kill", "stop") for step in steps]
        due += [_fault(draw, steps, "clock", sign * abs(draw.choice(CLOCK_SECONDS))) for sign in (-1, 1)]
        while len(due) * len(kinds) < faults or len(due) % lane_faults:
            others = (*ONCE, *last) if lane_faults * sum(f.operation in LAST for f in due) < len(due) else ONCE
            operation = draw.choices(("kill", "stop", "clock", *others), (8, 4, 2, *[1] * len(others)))[0]
            due.append(_fault(draw, steps, operation))
        draw.shuffle(due)
        due.sort(key=lambda fault: fault.operation in LAST)
        number = len(due) // lane_faults
        lanes += [Lane(kind, tuple(due[at::number])) for at in range(number)]
    draw.shuffle(lanes)
    return lanes


def steps_of(kind: str) -> tuple[str, ...]:
    """The steps that a kind of role goes through: an aggregator holds no key, and notes nothing."""
    return tuple(step for step in STEPS if step not in MARKS or "aggregator" not in kind)


def last_of(kind: str) -> tuple[str, ...]:
    """The operations of `LAST` that a kind of role can meet."""
    return tuple(operation for operation in LAST if operation != "lost-marks" or set(MARKS) <= set(steps_of(kind)))


def _fault(draw: random.Random, steps: Sequence[str], operation: str, amount: int = 0) -> Fault:
    if operation == "clock" and not amount:
        amount = draw.choice(CLOCK_SECONDS)
    if operation == "foreign":
        amount = draw.randrange(len(FOREIGN))
    if operation == "lost-inputs":
        amount = draw.randint(1, MOST_LOST)
    if operation == "lost-marks":
        amount = draw.randrange(2)
    return Fault(operation, draw.choice(steps), draw.randint(1, 2), draw.randrange(3), amount)
