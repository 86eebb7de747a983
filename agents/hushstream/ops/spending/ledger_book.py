"""Adds up the entries of a ledger topic, for each charge and for the deployment scope of each partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hushstream.engine.declare.declaration import System
from hushstream.engine.noise.spending import OwnScope, SpendingTerms
from hushstream.ops.spending.accounts import Account
from hushstream.privacy.amounts import Cost, count_text, delta_from_bytes
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError


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
                place.scope,
                " and ".join(charge.mechanisms),
                charge.entries,
                charge.spent,
                price,
                price - charge.spent,
                charge.spent.fits(price),
                self._refusing(charge) if place == newest[place.partition] else "",
                charge.as_stated,
                self._party,
                self._covers(charge),
            )
            for place, charge in sorted(self._charges.items())
        ]

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
                    terms.deployment_scope(partition),
                    terms.composition,
                    len(paid),
                    terms.limit.cost(total),
                    terms.ceiling,
                    terms.limit.left(total),
                    terms.limit.admits(total),
                    party=self._party,
                    plan=f"{incarnations} of {terms.fits} paid, as planned",
                )
            )
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
            return "paid for any number of releases"
        return f"paid for {count_text(releases, 'release')}, {min(charge.entries, releases)} made"

    def _refusing(self, charge: _Charge) -> str:
        """Say why a partition's newest charge admits no further release; empty if it does."""
        if charge.refused:
            following = 0 if charge.spent == Cost(0) else self._step(charge.spent) + 1
            asked = self._terms.price_up_to(following).cost - charge.spent
            return f"its price of {asked} does not fit what is left"
        releases = self._terms.releases
        if self._terms.own != "window" and releases is not None and charge.entries >= releases:
            return f"its price pays for no more than {count_text(releases, 'release')}"
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
