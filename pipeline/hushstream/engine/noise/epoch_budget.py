"""The price of all noise epochs of a continual counter for one unit, and the guarantee of its releases.

An epoch has one price for all its releases. If a counter's inputs have changed, or a rollback is suspected, the next
epoch draws new noise over units that may have been released before. So epochs compose sequentially, under the filter of
the budget.

Under zCDP or Renyi accounting a Gaussian counter is priced by its rho, and the tables' error beside it: let its noise
in epoch i be off by t_i in total variation, so that the whole transcript is off by T = sum t_i from one drawn from
the exact laws, which is (epsilon, delta)-DP by its curve. Then it is (epsilon, delta + (1 + e^epsilon) T)-DP. So each
epoch has the delta (1 + e^epsilon) t_i beside its rho, with the epsilon of the *budget*, which the sum never exceeds.
A pure mechanism is priced by its (epsilon, delta), which the filters convert themselves.

*Epochs.* Epochs of a machine's noise, and how a worker requests one (`Abilities.request_epoch` in `engine.machine`).

A worker that suspects a rollback of its journal requests an epoch, and gives it a nonce: random bytes. A number alone
would not do: when the records of the first worker are lost, too, a second worker requests an epoch at the same place,
with the same number and the same content. The nonce is part of the name of the epoch's charge. So it is in the journal
record that opens the epoch, every replay of that record opens the same epoch, and the ledger distinguishes the charges
of two branches.

A request is open until the journal holds a record of the requested epoch. The zone's marks say behind which record an
operator accepted the journal. The journal says which record opened the last requested epoch
(`NoiseEpoch.opened_epoch_since`). Releases in between, and the origin of the state, do not matter.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from hushstream.engine.noise.budget import BudgetConfig, BudgetFacts, filter_of, require_fits, times
from hushstream.engine.noise.spending import ChargeKey, OwnScope, SpendingTerms
from hushstream.engine.state.declared import record
from hushstream.privacy.amounts import DELTA_ONE, Cost, epsilon_value
from hushstream.privacy.conversions import LARGEST_EXPONENT, exp_above, exp_below
from hushstream.privacy.keys import encode
from hushstream.privacy.ledger import BasicFilter, Debit
from hushstream.privacy.promises.promise import Guarantee, Redraws
from hushstream.schemas.errors import HushstreamError


def epoch_terms(
    one: Guarantee,
    mechanism: str,
    epochs: int,
    budget: BudgetConfig | None,
    releases: int | None = None,
    steps: Sequence[Guarantee] = (),
) -> SpendingTerms:
    """Price of an epoch, and its limit: the prices of the planned epochs, or the budget if there is one.

    Args:
        one: guarantee of one epoch.
        mechanism: its name in debits.
        epochs: planned number.
        budget: as configured.
        releases: number of releases that an epoch's price pays for; None: any number.
        steps: cumulative guarantees of the releases, if each release is charged by itself; the last one is ``one``.

    Raises:
        ConfigurationError: not even one epoch, or one step of it, is within the budget.

    Guarantee:
        Steps compose as their rhos do, in an order and at prices that are fixed by the configuration; only where they
        stop may follow from what was released. Under zCDP and Renyi accounting the sums at any such stop are those of
        a filter. Under basic composition a step adds what it raises the (epsilon, delta) of its epoch by; an epoch that
        is followed by another was charged in full, as if it had ended, so each but the last has the price of a
        mechanism that was fixed when it began, and the last one stops at a step that the epochs before it fix.
    """
    price = _debit(one, mechanism, budget)
    charged = tuple(_step(step, price) for step in steps)
    if budget is None:
        planned = BasicFilter(Cost(epochs * one.cost.epsilon_micro, epochs * one.cost.delta_units))
        return SpendingTerms("epoch", price, releases, price, planned, steps=charged)
    limit = filter_of(budget)
    limit = limit.within(times(limit.price(price), epochs))
    terms = SpendingTerms("epoch", price, releases, price, limit, composition=budget.filter, steps=charged)
    least = (charged or (price,))[0].cost
    require_fits(terms.fits + terms.begun, "the first release" if steps else "one epoch of noise", least, budget)
    return terms


def over_epochs(one: Guarantee, terms: SpendingTerms) -> Guarantee:
    """The guarantee of all releases over all possible epochs, at least one.

    The lifetime price of a user, and the price of replacing one report by another, are those of one epoch times the
    number of epochs (basic composition).
    """
    most = terms.fits + bool(terms.begun)
    if most == 1:
        return one
    limit, life = terms.limit, one.lifetime
    cost = limit.cost(terms.most)
    together = Cost(cost.epsilon_micro, min(DELTA_ONE, cost.delta_units))
    truncation = most * (terms.life.curve[1] if terms.life.curve else one.truncation_units)
    exchanged = together if one.replace_one == one.cost else often(one.replace_one, most)
    return replace(
        one,
        cost=together,
        replace_one=exchanged,
        lifetime=replace(life, cost=often(life.cost, most), exchange=often(life.exchange, most)),
        truncation_units=min(together.delta_units, truncation),
        redraws=Redraws(most, one.cost),
    )


def epoch_facts(terms: SpendingTerms, planned: int, budget: BudgetConfig | None, released: str) -> BudgetFacts:
    """Number of epochs that the budget pays for; ``released`` says in words what is released on a charge."""
    return BudgetFacts(
        budget=budget,
        limit=terms.ceiling if budget is None else budget.limit,
        unit=f"{terms.price.unit} over all epochs of noise",
        counted="epochs of noise",
        planned=planned,
        fits=terms.fits,
        released=released,
        releases=terms.releases,
    )


def _debit(one: Guarantee, mechanism: str, budget: BudgetConfig | None) -> Debit:
    return Debit("", mechanism, one.cost, one.relation, one.unit, _curve(one, budget))


def _step(upto: Guarantee, price: Debit) -> Debit:
    """The first step pays for the error of all tables, because the rounded error of a few could exceed that of all."""
    curve = (upto.rho_micro, *price.curve[1:]) if price.curve and upto.rho_micro is not None else ()
    return replace(price, cost=upto.cost, curve=curve)


def often(cost: Cost, times_paid: int) -> Cost:
    """Sum of a number of equal prices (basic composition)."""
    return Cost(times_paid * cost.epsilon_micro, min(DELTA_ONE, times_paid * cost.delta_units))


def _curve(one: Guarantee, budget: BudgetConfig | None) -> tuple[int, ...]:
    """(rho, additional delta) of an epoch whose rho is known; the budget's epsilon scales the tables' error."""
    if one.rho_micro is None or budget is None:
        return ()
    most, own = epsilon_value(budget.limit.epsilon_micro), epsilon_value(one.cost.epsilon_micro)
    if most > LARGEST_EXPONENT or own > LARGEST_EXPONENT:
        return (one.rho_micro, DELTA_ONE)
    # The truncation error is (1 + e^own) t, rounded up.
    beside = one.truncation_units * (1 + exp_above(most)) / (1 + exp_below(own))
    return (one.rho_micro, min(DELTA_ONE, math.ceil(beside)))


EPOCH_NONCE_BYTES = 16
"""Size of the nonce of a requested epoch."""

EPOCH = record(
    "Epoch", number="int", redraws="int", doubt="bytes", due="boolean", pending="bytes", lives="int", opened="long"
)
"""Avro schema of `NoiseEpoch.dump`, for snapshots."""

_ON_DISK = {"last_nonce": "doubt", "incarnations": "lives"}
"""Attributes that have another name in packed states."""


@dataclass(slots=True)
class NoiseEpoch:
    """The current epoch of a machine's noise, and whether the next release opens another.

    Attributes:
        number: number of the epoch; it never falls.
        redraws: number of epochs that draw new noise over units that were released before, which are paid for again. An
            epoch that a key rotation begins is not counted.
        last_nonce: nonce of the last epoch that was requested and opened; empty before the first.
        due: whether the next release opens an epoch, because a release cannot be reproduced, or other data may have
            been released.
        pending: nonce of the epoch that is requested and due; empty if an epoch is due for another reason.
        incarnations: number of this journal's incarnations that have paid before, according to the request; the epoch
            that opens pays for one more.
        opened: number of the journal record that opened the last requested epoch; 0 before the first.
    """

    number: int = 0
    redraws: int = 0
    last_nonce: bytes = b""
    due: bool = False
    pending: bytes = b""
    incarnations: int = 0
    opened: int = 0

    def nonce(self, genesis_nonce: bytes) -> bytes:
        """32 bytes in the address of its noise: genesis nonce, or one derived from the nonce of the last request."""
        if not self.last_nonce:
            return genesis_nonce
        return hashlib.sha256(encode("hushstream epoch", genesis_nonce, self.last_nonce)).digest()

    def charge_key(self, window: int = 0) -> ChargeKey:
        """The charge of releases in this epoch."""
        return ChargeKey(self.number, window, self.redraws, self.last_nonce.hex())

    def next_charge_key(self, window: int = 0) -> ChargeKey:
        """The charge of the next release."""
        if not self.due:
            return self.charge_key(window)
        return ChargeKey(self.number + 1, window, self._redraws_with_next, (self.pending or self.last_nonce).hex())

    @property
    def _redraws_with_next(self) -> int:
        """Number of redraws after the next epoch was opened."""
        return max(self.redraws + 1, self.incarnations)

    def opened_epoch_since(self, sequence: int) -> bool:
        """Whether a requested epoch was opened behind a journal record, also one that the budget refused."""
        return self.opened > sequence

    def request(self, nonce: bytes, incarnations: int = 0) -> None:
        """Let the next release open an epoch under this nonce. Of several requests the last nonce counts.

        A pending nonce is replaced. This branch has released nothing under it; but if the state is from before the
        rollback, another branch may have released under it.

        Args:
            nonce: random bytes.
            incarnations: how many incarnations of the journal have paid before.

        Raises:
            HushstreamError: a nonce of another size.
        """
        if len(nonce) != EPOCH_NONCE_BYTES:
            raise HushstreamError(f"epoch: expected a nonce of {EPOCH_NONCE_BYTES} random bytes, got {len(nonce)}")
        self.due, self.pending, self.incarnations = True, nonce, incarnations

    def follow(self, number: int, scope: str, kind: str) -> None:
        """Follow a journal record in a replay: the next release opens an epoch if the record is of a later one.

        Args:
            number: of the record's epoch.
            scope: of the charge in it.
            kind: of own scopes.
        """
        found = OwnScope.of(scope, kind)
        requested = bytes.fromhex(found.nonce)
        self.due = number > self.number
        self.pending = requested if self.due and requested != self.last_nonce else b""
        self.incarnations = found.redraw if self.due else 0

    def adopt(self, number: int, scope: str, kind: str, sequence: int) -> None:
        """Take over the epoch of a journal record whose release cannot be reproduced.

        The next release opens another epoch.

        An epoch that this machine did not open has drawn new noise over everything, so it counts as a redraw.
        """
        found = OwnScope.of(scope, kind)
        requested = bytes.fromhex(found.nonce)
        self.due, self.pending, self.incarnations = True, b"", 0
        if number > self.number:
            self.number, self.redraws = number, max(self.redraws + 1, found.redraw)
        if requested != self.last_nonce:
            self.last_nonce, self.opened = requested, sequence

    def redraw(self, sequence: int) -> None:
        """Open the epoch that is due; ``sequence`` is the number of the journal record that opens it."""
        self.number, self.redraws = self.number + 1, self._redraws_with_next
        if self.pending:
            self.last_nonce, self.opened = self.pending, sequence
        self.due, self.pending, self.incarnations = False, b"", 0

    def rotate(self) -> None:
        """Begin the epoch after a key rotation. It is not charged again."""
        self.number += 1

    def dump(self) -> dict[str, Any]:
        """The state in packed form."""
        return {_ON_DISK.get(name, name): value for name, value in asdict(self).items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a packed state."""
        for field in fields(self):
            setattr(self, field.name, state[_ON_DISK.get(field.name, field.name)])
