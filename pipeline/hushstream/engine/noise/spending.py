"""Decides before each release whether the budget allows it, and which amount is debited.

The results follow from the configuration and from earlier charges. A replay gives the same results, so no record holds
them. A refusal changes no sum, and is repeated for every further release of that charge: if the price of an epoch is
refused, all its steps are withheld. When a redraw is charged, earlier redraws that were not charged are charged with
it. For instance, a requested epoch may be the n-th incarnation of a journal that has lost the records of earlier ones;
these have released, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hushstream.engine.noise.budget import ChargeKey, SpendingTerms
from hushstream.engine.state.parts import array, record
from hushstream.privacy.amounts import Cost
from hushstream.privacy.errors import LedgerError
from hushstream.privacy.ledger import Debit, Exhausted

SPENDING = record(
    "Spending",
    epoch="long",
    window="long",
    redraw="long",
    doubt="string",
    charged="boolean",
    newest="long",
    redraws="long",
    own=array("bytes"),
    deployment=array("bytes"),
)
"""Avro schema of `Spending.dump`, for snapshots; sums are unsigned, big-endian: deltas go beyond 64 bits."""

_NO_CHARGE = ChargeKey(-1)


class ChargeResult(NamedTuple):
    """What came of the attempt to charge one release.

    Attributes:
        debit: the debit to the own scope for the journal: the price with the first release of a charge, nothing for the
            other releases that it covers (or the difference, if each release is charged by itself), and nothing if the
            budget refused it.
        refused: why nothing may be released; None if it may.
        opens: whether this is the first release of the charge; then the ledger's topic gets a copy of the debit, also
            of a refused one.
    """

    debit: Debit
    refused: Exhausted | None
    opens: bool


class Spending:
    """The ledger of one home partition: its deployment scope, and the own scope of the charge that is open.

    Attributes:
        terms: prices and limits.
        redraws: number of payments by the deployment scope.
    """

    def __init__(self, terms: SpendingTerms, partition: int) -> None:
        """Begin with nothing spent."""
        self.terms = terms
        self.redraws = 0
        self._partition = partition
        self._life_scope = terms.deployment_scope(partition)
        self._ledger = terms.ledger(partition)
        self._charge_key = _NO_CHARGE
        self._own_scope = terms.own_scope(partition, _NO_CHARGE)
        """The own scope of the open charge."""
        self._charged = False
        self._newest = -1
        """The last redraw that was paid."""

    @property
    def spent(self) -> Cost:
        """What the deployment scope has spent."""
        return self._ledger.spent(self._life_scope)

    def try_charge(self, charge_key: ChargeKey) -> ChargeResult:
        """Debit one release before it is made, if the budget allows it.

        Args:
            charge_key: its charge; never below the last one.

        Raises:
            LedgerError: the charge is closed.
        """
        own, life = self._debits(charge_key)
        opens = charge_key != self._charge_key
        self._open(charge_key, own.scope)
        refused = self._ledger.try_debits((own, life))
        if refused is not None:
            return ChargeResult(replace(own, cost=Cost(0), curve=()), refused, opens)
        self._note_paid(charge_key)
        return ChargeResult(own, None, opens)

    def refusal(self, charge_key: ChargeKey) -> Exhausted | None:
        """Why the next release of a charge would be refused; None if it would not. Changes nothing.

        Raises:
            LedgerError: the charge is closed.
        """
        return self._ledger.refusal(self._debits(charge_key))

    def adopt(self, charge_key: ChargeKey) -> None:
        """Add a charge that was paid according to the journal, although inputs no longer show it, even above the limit.

        Raises:
            LedgerError: the charge is closed.
        """
        own, life = self._debits(charge_key)
        self._open(charge_key, own.scope)
        self._ledger.take((own, life))
        self._note_paid(charge_key)

    def dump(self) -> dict[str, Any]:
        """The state in packed form."""
        totals = self._ledger.totals()
        return {
            "epoch": self._charge_key.epoch,
            "window": self._charge_key.window,
            "redraw": self._charge_key.redraw,
            "doubt": self._charge_key.nonce,
            "charged": self._charged,
            "newest": self._newest,
            "redraws": self.redraws,
            "own": _packed(totals.get(self._own_scope, ())),
            "deployment": _packed(totals[self._life_scope]),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state.

        Raises:
            LedgerError: not the sums of such a ledger.
        """
        self._charge_key = ChargeKey(state["epoch"], state["window"], state["redraw"], state["doubt"])
        self._charged, self._newest, self.redraws = state["charged"], state["newest"], state["redraws"]
        self._own_scope = self.terms.own_scope(self._partition, self._charge_key)
        self._ledger.resume({self._own_scope: _sums(state["own"]), self._life_scope: _sums(state["deployment"])})

    def _debits(self, charge_key: ChargeKey) -> tuple[Debit, Debit]:
        """Debits of the next release to the own scope and to the deployment scope."""
        if charge_key < self._charge_key:
            raise LedgerError(f"spending: expected {self._charge_key} or a later charge, got {charge_key}")
        scope = self.terms.own_scope(self._partition, charge_key)
        own = replace(self.terms.price_up_to(charge_key.window), scope=scope)
        paid = self._ledger.spent(own.scope)
        if paid != Cost(0):
            own = replace(own, cost=own.cost - paid, curve=())
        return own, self._life(charge_key)

    def _life(self, charge_key: ChargeKey) -> Debit:
        """Debit of the next release to the deployment scope, in the units of its filter.

        A redraw before the last paid one costs nothing.
        """
        terms, scope = self.terms, self._life_scope
        wanted = terms.life_up_to(max(charge_key.redraw, self._newest), charge_key.window)
        paid = self._ledger.totals()[scope] or (0,) * len(wanted)
        lacking = tuple(max(0, want - has) for want, has in zip(wanted, paid, strict=True))
        if lacking == terms.limit.price(terms.life):
            return replace(terms.life, scope=scope)
        return replace(terms.life, scope=scope, cost=terms.limit.cost(lacking), curve=lacking if any(lacking) else ())

    def _open(self, charge_key: ChargeKey, scope: str) -> None:
        """Open a new charge with its scope. The charge before it is closed for good."""
        if charge_key == self._charge_key:
            return
        if scope != self._own_scope:
            self._ledger.close(self._own_scope)
        self._charge_key, self._own_scope, self._charged = charge_key, scope, False

    def _note_paid(self, charge_key: ChargeKey) -> None:
        """Note that a charge was paid for."""
        if charge_key.redraw > self._newest:
            self.redraws += charge_key.redraw - self._newest
            self._newest = charge_key.redraw
        self._charged = True


def _packed(total: Sequence[int]) -> list[bytes]:
    return [part.to_bytes((part.bit_length() + 7) // 8, "big") for part in total]


def _sums(packed: Sequence[bytes]) -> tuple[int, ...]:
    return tuple(int.from_bytes(part, "big") for part in packed)
