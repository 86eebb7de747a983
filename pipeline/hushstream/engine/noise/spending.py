"""What a release charges to the budget: prices, the scopes that pay, and the ledger of a partition.

A release is charged to two scopes together. Its *own* scope is one charge: an epoch of noise on a counter
(``epoch/{partition}/{epoch}``), one window (``window/{partition}/{n}``), or all of a lift (``lift/{partition}``). The
name ends with ``/renewal/{n}`` after a redraw, and then with ``/{nonce}`` if that was in a requested epoch
(`hushstream.engine.noise.epoch_budget`).
An own scope holds one price, which the configuration fixes, and the releases that
this price pays for. The *deployment* scope of the partition (``deployment/{partition}``) bounds what all charges
together cost the same unit.

Some charges add up (sequential composition), others do not (parallel composition):

* A trusted counter of rewards: an epoch that begins because inputs changed adds new noise to all rewards before it.
  Such epochs compose sequentially, and each is charged to the deployment scope. An epoch that a key rotation begins
  contains new rewards alone, so it composes in parallel with the one before. There is one counter, so one partition.
* A counter for each user, in the learners: one epoch for each partition. A user's contexts and clicks are in the
  partition of their hash. So partitions hold different users, and each partition has the whole limit (parallel
  composition; McSherry 2009).
* Windows of slots: a slot is in one window of one shuffler partition, so windows and partitions compose in parallel.
  The deployment scope is charged once, for the joint price of all slots of one user. It is charged again for every
  epoch that was requested after a suspected rollback, because slots that a lost branch released may be released again.
  Here partitions share users. The allowance, which a user's edge keeps, bounds the slots of that user over all
  partitions, and the budget covers that allowance.
* A lift beside slots is about the same users, so both compose sequentially. Each has its own writer, which cannot see
  what the other has spent, so the limit is divided between them beforehand (``lift``). A user is in one learner
  partition. (Two interactive mechanisms with fixed limits also compose when they run at the same time: Vadhan, Zhang
  2023; for Renyi and zCDP also Lyu 2022.)

`Spending` decides before each release whether the budget allows it, and which amount is debited. Its results follow
from the configuration and from earlier charges. A replay gives the same results, so no record holds them. A refusal
changes no sum, and is repeated for every further release of that charge: if the price of an epoch is refused, all its
steps are withheld. When a redraw is charged, earlier redraws that were not charged are charged with it. For instance, a
requested epoch may be the n-th incarnation of a journal that has lost the records of earlier ones; these have released,
too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from hushstream.engine.noise.budget import FilterName, largest_that, times
from hushstream.engine.state.declared import array, record
from hushstream.privacy.amounts import Cost, delta_to_bytes
from hushstream.privacy.errors import LedgerError
from hushstream.privacy.ledger import ChargeFilter, Debit, Exhausted, Filter, Ledger

_REDRAW = "/renewal/"


class ChargeKey(NamedTuple):
    """The key of a charge, by which releases belong to it. Keys of one partition only grow.

    Attributes:
        epoch: number of the noise epoch; it never falls.
        window: number of the window, if every window is a charge; it never falls.
        redraw: number of times so far that new noise was drawn over units that were released, or may have been; these
            units pay their price again each time. An epoch that a key rotation begins is no redraw, because it contains
            new units alone.
        nonce: nonce of the last requested epoch, hexadecimal; empty if there was none.
    """

    epoch: int
    window: int = 0
    redraw: int = 0
    nonce: str = ""


@dataclass(frozen=True, slots=True)
class SpendingTerms:
    """Prices and limit of the releases of one machine, fixed by the configuration.

    Attributes:
        own: kind of the own scopes: ``epoch``, ``window`` or ``lift``.
        price: price of one charge in its own scope; the scope is filled in.
        releases: number of releases that one charge pays for; None: any number.
        steps: cumulative prices of the releases of an epoch, if each release is charged by itself; the last one is
            ``price``. Empty if the first release pays for all.
        life: price of a redraw in the deployment scope (the first release is one); the scope is filled in.
        deployment: kind of the deployment scope: ``deployment``, or ``deployment-lift``.
        limit: of the deployment scope.
        composition: the limit's filter.

    A step is charged the difference to the previous cumulative price, so a scope never holds more than one price for
    each redraw. A redraw also charges the rest of the price before it, because a lost branch may have released
    everything.
    """

    own: Literal["epoch", "window", "lift"]
    price: Debit
    releases: int | None
    life: Debit
    limit: Filter
    deployment: Literal["deployment", "deployment-lift"] = "deployment"
    composition: FilterName = "basic"
    steps: tuple[Debit, ...] = ()

    def price_up_to(self, window: int) -> Debit:
        """Price of a charge in its own scope up to and including one release, whose step is ``window``."""
        return self.steps[min(window, len(self.steps) - 1)] if self.steps else self.price

    def life_up_to(self, redraws: int, window: int) -> tuple[int, ...]:
        """What the deployment scope has paid after some full redraws, and another one up to and including a step."""
        last = self.price_up_to(window) if self.steps else self.life
        whole, part = self.limit.price(self.life), self.limit.price(last)
        return tuple(redraws * one + begun for one, begun in zip(whole, part, strict=True))

    def own_scope(self, partition: int, charge_key: ChargeKey) -> str:
        """The own scope of a charge."""
        names = {
            "lift": f"lift/{partition}",
            "window": f"window/{partition}/{charge_key.window}",
            "epoch": f"epoch/{partition}/{charge_key.epoch}",
        }
        nonce = f"/{charge_key.nonce}" if charge_key.nonce else ""
        return names[self.own] + (f"{_REDRAW}{charge_key.redraw}{nonce}" if charge_key.redraw else "")

    def deployment_scope(self, partition: int) -> str:
        """The deployment scope of a home partition."""
        return f"{self.deployment}/{partition}"

    def ledger(self, partition: int) -> Ledger:
        """An empty ledger of a home partition."""
        return Ledger(
            {self.deployment_scope(partition): self.limit}, {self.own: ChargeFilter(self.price.cost, self.releases)}
        )

    @property
    def fits(self) -> int:
        """Number of redraws within the limit; the first release is one."""
        return largest_that(lambda redraws: self.limit.admits(times(self.limit.price(self.life), redraws)))

    def pays_again(self, incarnations: int) -> bool:
        """Whether a release fits the limit in the epoch that an operator's word opens, after so many incarnations."""
        return self.limit.admits(self.life_up_to(max(1, incarnations), 0))

    @property
    def begun(self) -> int:
        """Number of steps of one more redraw within the limit, after those that `fits` counts."""
        return sum(self.limit.admits(self.life_up_to(self.fits, step)) for step in range(len(self.steps)))

    @property
    def most(self) -> tuple[int, ...]:
        """The largest sum of the deployment scope: all redraws, and one that is not complete."""
        if self.begun:
            return self.life_up_to(self.fits, self.begun - 1)
        return times(self.limit.price(self.life), self.fits)

    @property
    def ceiling(self) -> Cost:
        """The joint price of `most`."""
        return self.limit.cost(self.most)


class OwnScope(NamedTuple):
    """The parts of the name of a charge's own scope.

    Attributes:
        partition: the home partition.
        order: number of the epoch or window; 0 for a lift.
        redraw: see `ChargeKey.redraw`.
        nonce: see `ChargeKey.nonce`.
    """

    partition: int
    order: int
    redraw: int
    nonce: str

    @classmethod
    def of(cls, scope: str, kind: str) -> OwnScope:
        """Read what `SpendingTerms.own_scope` wrote.

        Raises:
            ValueError: not the name of such a scope.
        """
        name, _, redraw = scope.partition(_REDRAW)
        found, *numbers = name.split("/")
        if found != kind or len(numbers) != (1 if kind == "lift" else 2):
            raise ValueError(f"expected a scope of kind {kind}, got {scope!r}")
        count, _, nonce = redraw.partition("/")
        order = int(numbers[1]) if len(numbers) > 1 else 0
        return cls(int(numbers[0]), order, int(count or 0), bytes.fromhex(nonce).hex())


def debit_fields(debit: Debit) -> dict[str, Any]:
    """A debit in the form of journal and ledger."""
    return {
        "scope": debit.scope,
        "mechanism": debit.mechanism,
        "epsilon_micro": debit.cost.epsilon_micro,
        "delta_units": delta_to_bytes(debit.cost.delta_units),
        "relation": debit.relation,
        "unit": debit.unit,
    }


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
_NOTHING = Cost(0)


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

    def try_charge(self, charge_key: ChargeKey, already_paid: bool = False) -> ChargeResult:
        """Debit one release before it is made, if the budget allows it.

        Args:
            charge_key: its charge; never below the last one.
            already_paid: whether the journal says that the charge was paid, although its inputs no longer show it. Then
                it is debited, even above the limit.

        Raises:
            LedgerError: the charge is closed.
        """
        own, life = self._debits(charge_key)
        opens = charge_key != self._charge_key
        if opens:
            if own.scope != self._own_scope:
                # The charge before it is closed for good.
                self._ledger.close(self._own_scope)
            self._charge_key, self._own_scope, self._charged = charge_key, own.scope, False
        if already_paid:
            self._ledger.take((own, life))
        else:
            refused = self._ledger.try_debits((own, life))
            if refused is not None:
                return ChargeResult(replace(own, cost=_NOTHING, curve=()), refused, opens)
        if charge_key.redraw > self._newest:
            self.redraws += charge_key.redraw - self._newest
            self._newest = charge_key.redraw
        self._charged = True
        return ChargeResult(own, None, opens)

    def refusal(self, charge_key: ChargeKey) -> Exhausted | None:
        """Why the next release of a charge would be refused; None if it would not. Changes nothing.

        Raises:
            LedgerError: the charge is closed.
        """
        return self._ledger.refusal(self._debits(charge_key))

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
        """Debits of the next release to the own scope and to the deployment scope: what each has not paid yet."""
        if charge_key < self._charge_key:
            raise LedgerError(f"spending: expected {self._charge_key} or a later charge, got {charge_key}")
        terms, scope = self.terms, self.terms.own_scope(self._partition, charge_key)
        own = replace(terms.price_up_to(charge_key.window), scope=scope)
        # Any other scope is new.
        if scope == self._own_scope and (spent := self._ledger.spent(scope)) != _NOTHING:
            own = replace(own, cost=own.cost - spent, curve=())
        # A redraw before the last paid one costs nothing.
        wanted = terms.life_up_to(max(charge_key.redraw, self._newest), charge_key.window)
        paid = self._ledger.totals()[self._life_scope] or (0,) * len(wanted)
        lacking = tuple(max(0, want - has) for want, has in zip(wanted, paid, strict=True))
        life = replace(terms.life, scope=self._life_scope)
        if not any(lacking):
            life = replace(life, cost=_NOTHING, curve=())
        elif lacking != terms.limit.price(terms.life):
            # In the units of the filter: an (epsilon, delta) would be converted anew, and rounded up again.
            life = replace(life, cost=terms.limit.cost(lacking), curve=lacking)
        return own, life


def _packed(total: Sequence[int]) -> list[bytes]:
    return [part.to_bytes((part.bit_length() + 7) // 8, "big") for part in total]


def _sums(packed: Sequence[bytes]) -> tuple[int, ...]:
    return tuple(int.from_bytes(part, "big") for part in packed)
