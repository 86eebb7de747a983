"""Shows what has been spent and what is left, from the ledger topics, beside the configured limits.

Each charge (an epoch of noise, a window, a lift) has a scope of its own and one price. The deployment scope of a
partition holds what the charges cost one unit together, under the same filter that the roles use
(`hushstream.engine.noise.spending` says which charges are added there). A slot is in one window only, so windows are
never added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from hushstream.agents.worker.roles import role_topics
from hushstream.engine.declare.declaration import System, topic_of
from hushstream.engine.journal.marks import Mark, read_public
from hushstream.engine.noise.budget import BudgetFacts
from hushstream.engine.noise.spending import OwnScope, SpendingTerms
from hushstream.ops.log_copy import LogCopy, copied_marks, mark_topics
from hushstream.privacy.amounts import Cost, count_text, delta_from_bytes, delta_text, epsilon_text
from hushstream.privacy.promises.promise import Guarantee, amounts, plain
from hushstream.privacy.promises.sentence import ledger_words
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError

_INCOMPLETE = "INCOMPLETE: more was spent than the ledger holds; no figure is given, as each would be too low."


def budget_topics(system: System) -> tuple[str, ...]:
    """The topics that a budget needs: read them with `hushstream.ops.log_copy.copy`, `mark_topics` with their keys."""
    return (*system.ledgers, *mark_topics(system))


INCOMPLETE = 2
"""Exit code: more was spent than the ledger holds, so the spending is not known."""

EXHAUSTED = 3
"""Exit code: the ledger is correct, but some scope refuses every further release."""


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

    def __str__(self) -> str:
        """One line."""
        return f"Spent on {self.unit}: at most {self.spent} on a charge (privacy cost: {self.price})."


def _grouped(charges: Iterable[Account]) -> list[Account]:
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


def _table(accounts: Iterable[Account]) -> list[str]:
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


class LedgerRecord:
    """One record of a ledger topic: its entry, or why it is no entry of this deployment."""

    def __init__(self, value: bytes, system: System, terms: SpendingTerms) -> None:
        """Decode and check the record."""
        self.entry: Mapping[str, Any] = {}
        self.entry_id = b""
        try:
            _, self.entry = codec.decode(value, frozenset({"LedgerEntry"}))
        except CodecError as error:
            self.problem = f"expected a ledger entry ({error.reason})"
        else:
            self.entry_id = self.entry["entry_id"]
            self.problem = _foreign(self.entry, system, terms)


@dataclass(slots=True)
class _Charge:
    """The entries of one charge."""

    entries: int = 0
    spent: Cost = field(default_factory=lambda: Cost(0))
    refused: bool = False
    mechanisms: dict[str, None] = field(default_factory=dict)
    as_stated: bool = True


class _Place(NamedTuple):
    """The position of a charge among those of its partition, and its name."""

    partition: int
    order: int
    redraw: int
    nonce: str
    scope: str


class LedgerBook:
    """The entries of one ledger topic, by charge."""

    def __init__(self, terms: SpendingTerms, party: str = "") -> None:
        """Begin without entries; ``party`` owns the ledger."""
        self._terms = terms
        self._party = party
        self._charges: dict[_Place, _Charge] = {}

    def enter(self, entry: Mapping[str, Any]) -> None:
        """Add an entry, which belongs to this deployment."""
        debit = entry["debit"]
        place = _Place(*OwnScope.of(debit["scope"], self._terms.own), debit["scope"])
        charge = self._charges.setdefault(place, _Charge())
        charge.entries += 1
        price = Cost(debit["epsilon_micro"], delta_from_bytes(debit["delta_units"]))
        charge.spent += price
        # If one price pays for all releases of a charge, the releases after the first ask for nothing.
        charge.refused = price == Cost(0) if self._terms.steps else charge.spent == Cost(0)
        charge.mechanisms[debit["mechanism"]] = None
        charge.as_stated &= entry["private_as_stated"]

    def charges(self) -> list[Account]:
        """The accounts of the charges, in order."""
        price = self._terms.price.cost
        newest = {place.partition: place for place in sorted(self._charges)}
        return [
            Account(
                place.scope, " and ".join(charge.mechanisms), charge.entries, charge.spent, price,
                price - charge.spent, charge.spent.fits(price),
                self._refusing(charge) if place == newest[place.partition] else "", charge.as_stated, self._party,
                self._covers(charge),
            )
            for place, charge in sorted(self._charges.items())
        ]  # fmt: skip

    def deployments(self) -> list[Account]:
        """The accounts of the deployment scopes, by partition."""
        terms, found = self._terms, []
        for partition in sorted({place.partition for place in self._charges}):
            paid = {
                (p.redraw, p.nonce) for p, c in self._charges.items() if p.partition == partition and c.spent != Cost(0)
            }
            # The n-th redraw is charged together with all before it, even if their entries were lost.
            incarnations = max(max((redraw + 1 for redraw, _ in paid), default=0), len(paid))
            total = terms.life_up_to(incarnations - 1, self._newest_step(partition)) if incarnations else ()
            found.append(
                Account(
                    terms.deployment_scope(partition), terms.composition, len(paid), terms.limit.cost(total),
                    terms.ceiling, terms.limit.left(total), terms.limit.admits(total), party=self._party,
                    plan=f"{incarnations} of {terms.fits} charged, as planned",
                )
            )  # fmt: skip
        return found

    def _newest_step(self, partition: int) -> int:
        """The step that the charges of the newest redraw have reached; earlier redraws are paid completely."""
        paid = [
            (p.redraw, c.spent) for p, c in self._charges.items() if p.partition == partition and c.spent != Cost(0)
        ]
        newest = max(redraw for redraw, _ in paid)
        return max(self._step(spent) for redraw, spent in paid if redraw == newest)

    def _step(self, spent: Cost) -> int:
        """The first step whose price is the amount paid."""
        steps = self._terms.steps
        return next((n for n, step in enumerate(steps) if spent.fits(step.cost)), len(steps))

    def _covers(self, charge: _Charge) -> str:
        """Say how many releases the price of a charge pays for."""
        releases = self._terms.releases
        if releases is None:
            return "covers any number of releases"
        return f"covers {count_text(releases, 'release')}, {min(charge.entries, releases)} made"

    def _refusing(self, charge: _Charge) -> str:
        """Say why a partition's newest charge admits no further release; empty if it does."""
        if charge.refused:
            following = 0 if charge.spent == Cost(0) else self._step(charge.spent) + 1
            asked = self._terms.price_up_to(following).cost - charge.spent
            return f"its cost of {asked} does not fit what is left"
        releases = self._terms.releases
        if self._terms.own != "window" and releases is not None and charge.entries >= releases:
            return f"its charge covers no more than {count_text(releases, 'release')}"
        return ""


def _foreign(entry: Mapping[str, Any], system: System, terms: SpendingTerms) -> str:
    if entry["deployment"] != system.config.deployment:
        return f"expected an entry of deployment {system.config.deployment}, got one of another"
    if entry["config_digest"] != system.digest:
        return f"expected an entry under configuration {system.digest.hex()}, got {entry['config_digest'].hex()}"
    try:
        OwnScope.of(entry["debit"]["scope"], terms.own)
    except ValueError:
        return f"expected a scope of kind {terms.own}, got {entry['debit']['scope']!r}"
    return ""


@dataclass(frozen=True, slots=True)
class Budget:
    """The spending of a deployment.

    Attributes:
        guarantee: of the configuration.
        facts: the limits, and how much of the plan fits within them.
        deployments: the accounts of the deployment scopes.
        charges: the accounts of the single charges.
        units: what each kind of unit paid on a charge, beside its price.
        repeated: how many entries are repeats (an entry is sent at least once); they cost nothing.
        problems: conflicting, foreign and unreadable entries. If two entries have one id but different content, both
            are charged, as both may have been released.
        lost: the places at which release marks say that more was spent than the ledger holds.
    """

    guarantee: Guarantee
    facts: tuple[BudgetFacts, ...]
    deployments: tuple[Account, ...]
    charges: tuple[Account, ...]
    units: tuple[UnitSpending, ...]
    repeated: int
    problems: tuple[Problem, ...]
    lost: tuple[Problem, ...] = ()

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
            "ok": self.ok, "complete": not self.lost, **({} if self.lost else self._spent()),
            "lifetime": {"units": lifetime.units, "devices": lifetime.devices, **amounts(lifetime.cost)},
            "private_as_stated": self.private_as_stated, "budgets": [one.as_json() for one in self.facts],
            "problems": plain(self.problems), "lost": plain(self.lost),
        }  # fmt: skip

    def _spent(self) -> dict[str, Any]:
        return {
            "exhausted": [account.name for account in self.exhausted], "releases": dict(self.by_mechanism),
            "repeated": self.repeated, "units": plain(self.units),
            "deployments": plain(self.deployments), "charges": plain(self.charges),
        }  # fmt: skip

    def as_text(self) -> str:
        """The limits, what was spent, what is left, and all problems; the windows of a partition share a line.

        For an incomplete ledger only what is missing, because its sums are less than what was spent.
        """
        if self.lost:
            return "\n".join([_INCOMPLETE, *map(str, (*self.problems, *self.lost))]) + "\n"
        guarantee = self.guarantee
        lines = [*guarantee.marks, *(one.as_text() for one in self.facts)]
        lines.append(ledger_words(guarantee.unit, guarantee.unit_prices))
        lines += [f"Releases: {number} by {mechanism}." for mechanism, number in self.by_mechanism.items()]
        lines += _table((*self.deployments, *_grouped(self.charges)))
        lines += [
            *map(str, self.units),
            guarantee.life_line,
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
        promise = _promise_of(terms, system.guarantee())
        so_far = units.get(promise.unit, UnitSpending(promise.unit, Cost(0), promise.price))
        units[promise.unit] = so_far.after(found)
    lost = tuple(gaps(logs, system))
    return Budget(
        system.guarantee(), system.budgets, tuple(deployments), tuple(charges), tuple(units.values()), repeated,
        tuple(problems), lost,
    )  # fmt: skip


def _promise_of(terms: SpendingTerms, promise: Guarantee) -> Guarantee:
    """The guarantee whose releases a ledger charges."""
    return promise.lift if terms.own == "lift" and promise.lift is not None else promise


def _conflict(seen: LedgerRecord) -> str:
    return f"entry {seen.entry_id.hex()} has another content than before; both are charged"


@dataclass(frozen=True, slots=True)
class Problem:
    """A record that no role can have written, or a mark that shows that entries are missing."""

    topic: str
    partition: int
    offset: int
    reason: str

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
