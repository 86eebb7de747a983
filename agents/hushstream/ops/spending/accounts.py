"""The amounts that the scopes of a deployment have spent, as values and as a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from hushstream.privacy.amounts import Cost, delta_text, epsilon_text


@dataclass(frozen=True, slots=True)
class Account:
    """The spending of one scope.

    Attributes:
        scope: the name of the scope.
        mechanism: the mechanism of its releases; for a deployment scope the privacy filter.
        entries: the number of releases (a counter at a trusted role enters only its first one); for a deployment scope
            the number of charges.
        spent: the sum of all charges.
        limit: the most that the scope may spend.
        left: the largest single price that the scope would still admit.
        within: whether it has stayed within its limit.
        refusing: why the scope admits no further release; empty if it does.
        private_as_stated: False if an entry says that its release is weaker than the printed guarantee.
        party: the party that owns the ledger, if each party of the deployment has its own; otherwise empty.
        plan: in words, how much of the plan has been paid, and how many releases that still pays for.
    """

    scope: str
    mechanism: str
    entries: int
    spent: Cost
    limit: Cost
    left: Cost
    within: bool
    refusing: str = ""
    private_as_stated: bool = True
    party: str = ""
    plan: str = ""

    @property
    def name(self) -> str:
        """The scope, after the name of the party that pays."""
        return f"{self.party}: {self.scope}" if self.party else self.scope

    def as_json(self) -> dict[str, Any]:
        """Plain values; delta in units of 2^-80, as text."""
        return {
            **({"party": self.party} if self.party else {}),
            "scope": self.scope,
            "mechanism": self.mechanism,
            "entries": self.entries,
            **amounts(self.spent),
            "limit": amounts(self.limit),
            "left": amounts(self.left),
            "plan": self.plan,
            "within": self.within,
            "refusing": self.refusing,
            "private_as_stated": self.private_as_stated,
        }


@dataclass(frozen=True, slots=True)
class UnitSpending:
    """The largest amounts that one kind of unit paid on a charge. Slots and users of a lift have different prices.

    Attributes:
        unit: the unit in words, as its guarantee names it.
        spent: the largest epsilon and the largest delta of a charge; no unit paid more on a charge.
        price: the price of a charge.
    """

    unit: str
    spent: Cost
    price: Cost

    def after(self, charges: Iterable[Account]) -> UnitSpending:
        """The same with further charges of this unit."""
        spent = [self.spent, *(account.spent for account in charges)]
        return replace(self, spent=Cost(max(one.epsilon_micro for one in spent), max(one.delta_units for one in spent)))

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"unit": self.unit, "spent": amounts(self.spent), "promised": amounts(self.price)}

    def __str__(self) -> str:
        """One line."""
        return f"Spent on {self.unit}: at most {self.spent} on a charge (price: {self.price})."


def grouped(charges: Iterable[Account]) -> list[Account]:
    """Show the windows of a partition as one line, with the most expensive one; other charges stay as they are."""
    lines: list[Account] = []
    windows: dict[tuple[str, str, str], list[Account]] = {}
    for account in charges:
        kind, _, rest = account.scope.partition("/")
        if kind == "window":
            windows.setdefault((account.party, rest.partition("/")[0], account.mechanism), []).append(account)
        else:
            lines.append(account)
    for (party, partition, mechanism), group in windows.items():
        most = max(group, key=lambda one: (one.spent.epsilon_micro, one.spent.delta_units))
        number, within = sum(one.entries for one in group), all(one.within for one in group)
        scope = f"window/{partition}/* (each)"
        lines.append(
            Account(scope, mechanism, number, most.spent, most.limit, most.left, within, party=party, plan=most.plan)
        )
    return lines


def table(accounts: Iterable[Account]) -> list[str]:
    """Lines of columns, headings first."""
    rows = [["scope", "mechanism", "entries", "spent", "limit", "left"]]
    rows += [
        [one.name, one.mechanism, str(one.entries), _short(one.spent), _short(one.limit), _left(one)]
        for one in accounts
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _left(account: Account) -> str:
    """The amount left, or, if everything planned is paid, what that pays for: a zero would look like an alarm."""
    if account.left.epsilon_micro or not account.plan:
        return _short(account.left)
    if account.refusing or not account.within:
        return "nothing"
    return account.plan


def _short(cost: Cost) -> str:
    return f"({epsilon_text(cost.epsilon_micro)}, {delta_text(cost.delta_units)})"


def amounts(cost: Cost) -> dict[str, Any]:
    """A price as plain values; delta in units of 2^-80, as text."""
    return {
        "epsilon": epsilon_text(cost.epsilon_micro),
        "epsilon_micro": cost.epsilon_micro,
        "delta": delta_text(cost.delta_units),
        "delta_units": str(cost.delta_units),
    }
