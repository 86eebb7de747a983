"""Shows what has been spent and what is left, from the ledger topics, beside the configured limits.

Each charge (an epoch of noise, a window, a lift) has a scope of its own and one price. The deployment scope of a
partition holds what the charges cost one unit together, under the same filter that the roles use
(`hushstream.engine.noise.spending` says which charges are added there). A slot is in one window only, so windows are
never added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hushstream.agents.worker.roles import role_topics
from hushstream.engine.declare.declaration import System, topic_of
from hushstream.engine.journal.marks import Mark, read_public
from hushstream.engine.noise.budget import BudgetFacts
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.ops.log_copy import LogCopy
from hushstream.ops.spending.accounts import Account, UnitSpending, amounts, grouped, table
from hushstream.ops.spending.copied_marks import copied_marks, mark_topics
from hushstream.ops.spending.ledger_book import LedgerBook, LedgerRecord
from hushstream.privacy.amounts import Cost, count_text
from hushstream.privacy.promises.promise import Guarantee, Promises
from hushstream.privacy.promises.sentence import ledger_words

_INCOMPLETE = "INCOMPLETE: more was spent than the ledger holds; no figure is given, as each would be too low."


def budget_topics(system: System) -> tuple[str, ...]:
    """The topics that a budget needs: read them with `hushstream.ops.live.copy`, `mark_topics` with their keys."""
    return (*system.ledgers, *mark_topics(system))


INCOMPLETE = 2
"""Exit code: more was spent than the ledger holds, so the spending is not known."""

EXHAUSTED = 3
"""Exit code: the ledger is correct, but some scope refuses every further release."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The spending of a deployment.

    Attributes:
        promises: the guarantees of the configuration.
        facts: the limits, and how much of the plan fits within them.
        deployments: the accounts of the deployment scopes.
        charges: the accounts of the single charges.
        units: what each kind of unit paid on a charge, beside its price.
        repeated: how many entries are repeats (an entry is sent at least once); they cost nothing.
        problems: conflicting, foreign and unreadable entries. If two entries have one id but different content, both
            are charged, as both may have been released.
        lost: the places at which release marks say that more was spent than the ledger holds.
    """

    promises: Promises
    facts: tuple[BudgetFacts, ...]
    deployments: tuple[Account, ...]
    charges: tuple[Account, ...]
    units: tuple[UnitSpending, ...]
    repeated: int
    problems: tuple[Problem, ...]
    lost: tuple[Problem, ...] = ()

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the system's releases, without the lift."""
        return self.promises.releases

    @property
    def ok(self) -> bool:
        """Whether the ledger is correct and complete, and no scope spent more than it may."""
        return (
            not self.problems
            and not self.lost
            and all(account.within for account in (*self.deployments, *self.charges))
        )

    @property
    def exhausted(self) -> tuple[Account, ...]:
        """The scopes that admit no further release."""
        return tuple(account for account in self.charges if account.refusing)

    @property
    def exit_code(self) -> int:
        """`INCOMPLETE`; 1 for any other problem; `EXHAUSTED` if a scope refuses every further release; otherwise 0."""
        if self.lost:
            return INCOMPLETE
        if not self.ok:
            return 1
        return EXHAUSTED if self.exhausted else 0

    @property
    def by_mechanism(self) -> Mapping[str, int]:
        """The number of entries of each mechanism."""
        found: dict[str, int] = {}
        for account in self.charges:
            found[account.mechanism] = found.get(account.mechanism, 0) + account.entries
        return found

    @property
    def private_as_stated(self) -> bool:
        """Whether no entry says that its release is weaker than the printed guarantee."""
        return all(account.private_as_stated for account in self.charges)

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys; for an incomplete ledger only those that do not depend on the spending."""
        lifetime = self.guarantee.lifetime
        return {
            "ok": self.ok,
            "complete": not self.lost,
            **({} if self.lost else self._spent()),
            "lifetime": {"units": lifetime.units, "devices": lifetime.devices, **amounts(lifetime.cost)},
            "private_as_stated": self.private_as_stated,
            "budgets": [one.as_json() for one in self.facts],
            "problems": [problem.as_json() for problem in self.problems],
            "lost": [problem.as_json() for problem in self.lost],
        }

    def _spent(self) -> dict[str, Any]:
        return {
            "exhausted": [account.name for account in self.exhausted],
            "releases": dict(self.by_mechanism),
            "repeated": self.repeated,
            "units": [one.as_json() for one in self.units],
            "deployments": [account.as_json() for account in self.deployments],
            "spent": [account.as_json() for account in self.charges],
        }

    def as_text(self) -> str:
        """The limits, what was spent, what is left, and all problems; the windows of a partition share a line.

        For an incomplete ledger only what is missing, because its sums are less than what was spent.
        """
        if self.lost:
            return "\n".join([_INCOMPLETE, *map(str, (*self.problems, *self.lost))]) + "\n"
        lifetime = self.guarantee.lifetime
        guarantee = self.guarantee
        lines = [*guarantee.marks, *(one.as_text() for one in self.facts)]
        lines.append(ledger_words(guarantee.unit, guarantee.unit_prices))
        lines += [f"Releases: {number} by {mechanism}." for mechanism, number in self.by_mechanism.items()]
        lines += table((*self.deployments, *grouped(self.charges)))
        lines += [
            *map(str, self.units),
            f"One person in a whole life, {count_text(lifetime.units, 'unit')} on each device: "
            f"{self.promises.phrase()}.",
            f"Entries: {sum(self.by_mechanism.values())}, and {count_text(self.repeated, 'repeat')} at no cost.",
        ]
        if not self.private_as_stated:
            lines.append("Entries say that their releases are not private as stated.")
        lines += [f"Exhausted: {account.name}: {account.refusing}." for account in self.exhausted]
        return "\n".join([*lines, *map(str, self.problems)]) + "\n"


def read(logs: LogCopy, system: System) -> Budget:
    """Read the ledger topics of a copy.

    Args:
        logs: a copy that holds `budget_topics`.
        system: the deployment.
    """
    contents: dict[bytes, set[bytes]] = {}
    problems: list[Problem] = []
    deployments: list[Account] = []
    charges: list[Account] = []
    units: dict[str, UnitSpending] = {}
    repeated = 0
    for topic, terms in system.ledgers.items():
        book = LedgerBook(terms, topic_of(system, topic).party)
        for partition, part in logs.of_topic(topic):
            for record in part.records:
                seen = LedgerRecord(record.value, system, terms)
                known = contents.setdefault(seen.entry_id, set())
                repeat = not seen.problem and record.value in known
                repeated += repeat
                reason = seen.problem or (_conflict(seen) if known and not repeat else "")
                if reason:
                    problems.append(Problem(topic, partition, record.offset, reason))
                if not seen.problem and not repeat:
                    known.add(record.value)
                    book.enter(seen.entry)
        deployments += book.deployments()
        found = book.charges()
        charges += found
        promise = _promise_of(terms, system.promises)
        so_far = units.get(promise.unit, UnitSpending(promise.unit, Cost(0), promise.price))
        units[promise.unit] = so_far.after(found)
    lost = tuple(gaps(logs, system))
    return Budget(
        system.promises,
        system.budgets,
        tuple(deployments),
        tuple(charges),
        tuple(units.values()),
        repeated,
        tuple(problems),
        lost,
    )


def _promise_of(terms: SpendingTerms, promises: Promises) -> Guarantee:
    """The guarantee whose releases a ledger charges."""
    return promises.lift if terms.own == "lift" and promises.lift is not None else promises.releases


def _conflict(seen: LedgerRecord) -> str:
    return f"entry {seen.entry_id.hex()} has another content than before; both are charged"


@dataclass(frozen=True, slots=True)
class Problem:
    """A record that no role can have written, or a mark that shows that entries are missing."""

    topic: str
    partition: int
    offset: int
    reason: str

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"topic": self.topic, "partition": self.partition, "offset": self.offset, "reason": self.reason}

    def __str__(self) -> str:
        """One line."""
        return f"{self.topic}/{self.partition} offset {self.offset}: {self.reason}"


def gaps(logs: LogCopy, system: System) -> Iterator[Problem]:
    """Find where marks say that more was spent than the ledger holds.

    Args:
        logs: a copy that holds the ledger topics and `mark_topics`.
        system: the deployment.
    """
    for role in system.roles:
        topics = role_topics(role, system)
        if topics.marks is None:
            continue
        ledgers = [topic for topic in topics.writes if topic in system.ledgers]
        for partition, part in logs.of_topic(topics.marks):
            unpack = partial(read_public, deployment=system.config.deployment, role=role.name, partition=partition)
            marks = copied_marks(part, unpack, role.name, partition)
            for offset, why in marks.losses:
                yield Problem(topics.marks, partition, max(0, offset), why)
            reason = _gap(marks.marks, [topic for topic in ledgers if not logs.part((topic, partition)).records])
            if reason:
                yield Problem(topics.marks, partition, part.high - 1, reason)


def _gap(marks: Sequence[Mark], empty: Sequence[str]) -> str:
    """Say what is missing of one partition, of which some ledgers are empty; empty if nothing is missing."""
    journals = {mark.journal for mark in marks}
    times = max((mark.generation for mark in marks), default=0)
    if times or len(journals) > 1:
        return (
            f"here released {count_text(len(journals), 'journal')}, and an operator went on after a loss "
            f"{count_text(times, 'time')}: "
            f"add what was spent on what is lost"
        )
    if empty and any(mark.paid for mark in marks):
        return f"a debit was sent, and {' and '.join(empty)} holds none: the ledger is lost; bring it back"
    return ""
