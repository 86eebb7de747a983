"""What has been spent, from the ledger topics, beside what the configuration allows a user in a lifetime.

A slot is in exactly one window and every window has a scope of its own, so a slot costs what its window's
scope has spent: the figure of a user is his slots times that, and never the sum over windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hushstream.ops.copies import LogCopy
from hushstream.privacy.amounts import Cost, delta_from_bytes, delta_text, epsilon_text
from hushstream.privacy.promise import Guarantee
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.systems.system import System

LEDGER_TOPICS = ("ledger",)
"""What ``hushstream.ops.live.copy(connection, counts, LEDGER_TOPICS)`` reads for a budget."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What one scope has spent on one mechanism.

    Attributes:
        scope: the budget that paid.
        mechanism: what was released.
        entries: how many releases.
        cost: for all of them together.
        left: what the scope can still spend, whatever on.
        private_as_stated: False when an entry says that its release is weaker than the printed guarantee.
    """

    scope: str
    mechanism: str
    entries: int
    cost: Cost
    left: Cost
    private_as_stated: bool

    def as_json(self) -> dict[str, Any]:
        """Plain values; delta in units of 2^-80, as text."""
        return {
            "scope": self.scope,
            "mechanism": self.mechanism,
            "entries": self.entries,
            **_amounts(self.cost),
            "left": _amounts(self.left),
            "private_as_stated": self.private_as_stated,
        }


@dataclass(frozen=True, slots=True)
class Problem:
    """A ledger entry that cannot be what a role wrote."""

    partition: int
    offset: int
    reason: str

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"partition": self.partition, "offset": self.offset, "reason": self.reason}

    def __str__(self) -> str:
        """One line."""
        return f"ledger/{self.partition} offset {self.offset}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Budget:
    """What a deployment has spent.

    Attributes:
        guarantee: what the configuration promises for one slot and for a user's lifetime.
        spent: by scope and mechanism.
        repeated: identical entries beyond the first (sends are at least once); they cost nothing.
        problems: conflicting, foreign and unreadable entries. Of two contents under one id both are charged,
            since both may have been released.
        limits: of scopes, or of kinds of scopes (what stands before the slash); others may spend the promised
            price of one slot.
    """

    guarantee: Guarantee
    spent: tuple[Spent, ...]
    repeated: int
    problems: tuple[Problem, ...]
    limits: Mapping[str, Cost] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the ledger is as the roles write it, no slot cost more than promised and no scope overspent."""
        within = all(cost.fits(limit_of(self.guarantee, self.limits, scope)) for scope, cost in self.by_scope.items())
        return not self.problems and within and self.largest_of_a_slot.fits(self.guarantee.cost)

    @property
    def exit_code(self) -> int:
        """0, or 1 when something is wrong."""
        return 0 if self.ok else 1

    @property
    def largest_of_a_slot(self) -> Cost:
        """The most that any scope has spent: no slot cost more."""
        costs = self.by_scope.values()
        return Cost(
            max((cost.epsilon_micro for cost in costs), default=0), max((cost.delta_units for cost in costs), default=0)
        )

    @property
    def by_scope(self) -> Mapping[str, Cost]:
        """What each scope has spent."""
        return _by_scope(self.spent)

    @property
    def smallest_left(self) -> tuple[str, Cost] | None:
        """The scope with the least epsilon left, and what it has left; None when nothing was spent."""
        left = {one.scope: one.left for one in self.spent}
        scope = min(left, key=lambda name: (left[name].epsilon_micro, left[name].delta_units, name), default=None)
        return None if scope is None else (scope, left[scope])

    @property
    def by_mechanism(self) -> Mapping[str, int]:
        """How many releases each mechanism made."""
        found: dict[str, int] = {}
        for one in self.spent:
            found[one.mechanism] = found.get(one.mechanism, 0) + one.entries
        return found

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        lifetime = self.guarantee.lifetime
        return {
            "ok": self.ok,
            "releases": dict(self.by_mechanism),
            "repeated": self.repeated,
            "one_slot": {"spent": _amounts(self.largest_of_a_slot), "promised": _amounts(self.guarantee.cost)},
            "lifetime": {"slots": lifetime.slots, "devices": lifetime.devices, **_amounts(lifetime.cost)},
            "private_as_stated": all(one.private_as_stated for one in self.spent),
            "spent": [one.as_json() for one in self.spent],
            "problems": [problem.as_json() for problem in self.problems],
        }

    def as_text(self) -> str:
        """The figures that matter, then what is wrong."""
        lifetime = self.guarantee.lifetime
        lines = [*self.guarantee.marks]
        lines += [f"Releases: {number} by {mechanism}." for mechanism, number in self.by_mechanism.items()]
        lines += [
            f"Spent on a slot: at most {self.largest_of_a_slot} (promised: {self.guarantee.cost}).",
            *self._left_lines(),
            f"A user's lifetime allows {lifetime.slots} slots on each device: {lifetime.cost}.",
            f"Entries: {sum(one.entries for one in self.spent)}, and {self.repeated} repeats that cost nothing.",
        ]
        if not all(one.private_as_stated for one in self.spent):
            lines.append("Entries say that their releases are not private as stated.")
        return "\n".join([*lines, *map(str, self.problems)]) + "\n"

    def _left_lines(self) -> list[str]:
        least = self.smallest_left
        return [] if least is None else [f"Left: least in scope {least[0]}, {least[1]}."]


def limit_of(guarantee: Guarantee, limits: Mapping[str, Cost], scope: str) -> Cost:
    """What a scope may spend: its own limit, that of its kind, or the promised price of one slot."""
    return limits.get(scope, limits.get(scope.partition("/")[0], guarantee.cost))


def read(logs: LogCopy, system: System, limits: Mapping[str, Cost] | None = None) -> Budget:
    """What the ledger topics of a copy say.

    Args:
        logs: a copy that holds `LEDGER_TOPICS`.
        system: the deployment.
        limits: see `Budget.limits`.
    """
    contents: dict[bytes, set[bytes]] = {}
    totals: dict[tuple[str, str], Spent] = {}
    problems: list[Problem] = []
    repeated = 0
    for partition, part in logs.of_topic("ledger"):
        for record in part.records:
            try:
                _, entry = codec.decode(record.value, frozenset({"LedgerEntry"}))
            except CodecError as error:
                problems.append(Problem(partition, record.offset, f"expected a ledger entry ({error.reason})"))
                continue
            reason = _foreign(entry, system)
            seen = contents.setdefault(entry["entry_id"], set())
            if reason:
                problems.append(Problem(partition, record.offset, reason))
            elif record.value in seen:
                repeated += 1
            else:
                if seen:
                    reason = f"entry {entry['entry_id'].hex()} has another content than before; both are charged"
                    problems.append(Problem(partition, record.offset, reason))
                seen.add(record.value)
                _charge(totals, entry)
    promise, bounds = system.guarantee(), dict(limits or {})
    spent = [totals[key] for key in sorted(totals)]
    left = {scope: limit_of(promise, bounds, scope) - cost for scope, cost in _by_scope(spent).items()}
    rows = tuple(replace(one, left=left[one.scope]) for one in spent)
    return Budget(promise, rows, repeated, tuple(problems), bounds)


def _by_scope(spent: Iterable[Spent]) -> dict[str, Cost]:
    found: dict[str, Cost] = {}
    for one in spent:
        found[one.scope] = found.get(one.scope, Cost(0)) + one.cost
    return found


def _foreign(entry: Mapping[str, Any], system: System) -> str:
    if entry["deployment"] != system.config.deployment:
        return f"expected an entry of deployment {system.config.deployment}, got one of another"
    if entry["config_digest"] != system.digest:
        return f"expected an entry under configuration {system.digest.hex()}, got {entry['config_digest'].hex()}"
    return ""


def _charge(totals: dict[tuple[str, str], Spent], entry: Mapping[str, Any]) -> None:
    debit = entry["debit"]
    key = (debit["scope"], debit["mechanism"])
    before = totals.get(key, Spent(*key, 0, Cost(0), Cost(0), True))
    totals[key] = Spent(
        *key,
        before.entries + 1,
        before.cost + Cost(debit["epsilon_micro"], delta_from_bytes(debit["delta_units"])),
        Cost(0),
        before.private_as_stated and entry["private_as_stated"],
    )


def _amounts(cost: Cost) -> dict[str, Any]:
    return {
        "epsilon": epsilon_text(cost.epsilon_micro),
        "epsilon_micro": cost.epsilon_micro,
        "delta": delta_text(cost.delta_units),
        "delta_units": str(cost.delta_units),
    }
