"""What a deployment takes over from the one before it, whose configuration was changed: counted slots, and prices.

**No allowance is refilled.** The id of a slot is a pseudorandom function of its user's key and its number alone
(`hushstream.systems.p2b.edge.agent`). All generations have the same edge key, and the shufflers of each begin with the
ids that were counted before. So a number of a user counts in one generation at most, whatever an edge remembers.

**What a person pays.** S_j is the most that a person with j counted slots has paid before, L(k) the price of k slots of
the new generation with its lift. A person then has t counted slots for at most

    T_t = max over k <= min(t, n) of S_(t-k) + L(k)        n slots in a life of the new generation,

since each of the t numbers was counted in one generation, and prices add up (basic composition). All t are at most the
largest number of slots that a generation has had, as numbers begin at 0 in each. A lift counts its persons anew, so its
price is in every L(k), also in L(0).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hushstream.engine.declare.artefacts import PreparedFrom
from hushstream.engine.state.packed import KnownIds
from hushstream.engine.system import Priced
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.amounts import DELTA_ONE, Cost
from hushstream.privacy.promises.promise import prices_json, read_prices
from hushstream.privacy.promises.sentence import Prices, bounds
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import MeasurementConfig, P2BConfig
from hushstream.systems.p2b.guarantee import life_prices, lifetime_slots_of, priced

_TABLES = DELTA_ONE // 10**12
"""A delta up to this is the samplers' truncation, which differs with the number of cells. Devices ignore it, too."""

NOTHING = Prices(Cost(0), Cost(0))

FOLLOWS = PreparedFrom("predecessor", "what the generation before left, by `hushstream up` with a changed file")
STARTED_FROM = PreparedFrom("start", "a model that `hushstream model export` wrote as JSON, which new users begin with")


@dataclass(frozen=True)
class Predecessor:
    """The generation before, as it ended.

    Attributes:
        deployment: its name, which is that of all generations.
        generation: its number; the first is 1.
        configuration: digest of its configuration, in hexadecimal.
        edge_key: public id of the edge key, in hexadecimal; under another one every number would count again.
        ledger, marks: digests of its final ledgers and release marks, in hexadecimal.
        life: what persons were promised over their whole life by the first generation.
        spent: at place j the most that a person with j counted slots has paid, in all generations so far.
        elsewhere: the most that one person has paid for the model of another deployment, with which the first began.
        ids: all counted ids, as `KnownIds.dump` writes them.
        private_as_stated: whether it was as private as it said.
    """

    deployment: str
    generation: int
    configuration: str
    edge_key: str
    ledger: str
    marks: str
    life: Prices
    spent: tuple[Prices, ...]
    elsewhere: Prices
    ids: bytes
    private_as_stated: bool

    @classmethod
    def of(cls, plain: Any) -> Predecessor:
        """Read what `plain` gave.

        Raises:
            HushstreamError: these are other values.
        """
        try:
            values = dict(plain)
            ids = base64.b64decode(values.pop("ids"), validate=True)
            life, elsewhere = (read_prices(values.pop(name)) for name in ("life", "elsewhere"))
            spent = tuple(map(read_prices, values.pop("spent")))
            found = cls(**values, life=life, spent=spent, elsewhere=elsewhere, ids=ids)
        except (KeyError, TypeError, ValueError) as error:
            raise HushstreamError(f"expected what a generation left, got {error!r}") from None
        KnownIds.load(ids)
        if not spent or type(found.generation) is not int or type(found.private_as_stated) is not bool:
            raise HushstreamError("expected what a generation left, got other values")
        return found

    @cached_property
    def plain(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "deployment": self.deployment,
            "generation": self.generation,
            "configuration": self.configuration,
            "edge_key": self.edge_key,
            "ledger": self.ledger,
            "marks": self.marks,
            "life": prices_json(self.life),
            "spent": [prices_json(one) for one in self.spent],
            "elsewhere": prices_json(self.elsewhere),
            "ids": base64.b64encode(self.ids).decode(),
            "private_as_stated": self.private_as_stated,
        }

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that identify it; the configuration's digest of its successor covers them, so each genesis does."""
        plain = json.dumps(self.plain, sort_keys=True).encode()
        return hashlib.blake2b(plain, digest_size=16, person=b"hush-generation").digest()

    def together(self, config: P2BConfig) -> Prices:
        """The most that a person has paid once a generation with this configuration has ended, too."""
        return _largest(spent_after(self.spent, config))


def spent_after(before: tuple[Prices, ...], config: P2BConfig) -> tuple[Prices, ...]:
    """T of the module, at place t; ``before`` is S."""
    slots = lifetime_slots_of(config)
    prices = [_without_slots(config), *(life_prices(config, number) for number in range(1, slots + 1))]
    most = max(slots, len(before) - 1)
    return tuple(
        _largest(before[total - new] + prices[new] for new in range(min(total, slots) + 1) if total - new < len(before))
        for total in range(most + 1)
    )


def spent_with(before: Predecessor | None, config: P2BConfig) -> tuple[Prices, ...]:
    """What persons have paid once a generation has ended, by their number of counted slots.

    Args:
        before: the generation before it; None if it is the first.
        config: of the generation.
    """
    return spent_after((NOTHING,) if before is None else before.spent, config)


def priced_after(before: Predecessor | None, config: P2BConfig, own: Priced) -> Priced:
    """What a configuration promises and costs as the generation after ``before``; None: as the first one."""
    if before is None:
        return own
    return own._replace(guarantee=replace(own.guarantee, generations=before.together(config)))


def require_within_life(life: Prices, spent: tuple[Prices, ...], config: P2BConfig) -> None:
    """Refuse a generation by which a person might pay more than the first one promised over a life.

    Raises:
        ConfigurationError: says what was promised, what it would be, and what to lower.
    """
    together = _largest(spent_after(spent, config))
    if _fits(together, life):
        return
    remedy = "lower privacy.epsilon or privacy.units_per_person"
    if config.counted is not None:
        unmeasured = replace(config, measurement=MeasurementConfig())
        ends = _fits(_largest(spent_after(spent, unmeasured)), life)
        remedy = f"delete `measurement`, which counts everybody anew{'' if ends else f', and {remedy}'}"
    raise ConfigurationError(
        f"privacy: expected a generation by which nobody is charged more than the first one guaranteed for a whole "
        f"life, {bounds(life)}, got one by which a person may have been charged {bounds(together)}: {remedy}"
    )


def _fits(together: Prices, life: Prices) -> bool:
    """Whether a sum is within what was promised."""
    for paid, promised in ((together.which, life.which), (together.zero_out, life.zero_out)):
        assert paid is not None, "a report may be empty here"
        assert promised is not None, "a report may be empty here"
        if paid.epsilon_micro > promised.epsilon_micro or paid.delta_units > max(promised.delta_units, _TABLES):
            return False
    return True


def sums_told(life: Prices, spent: tuple[Prices, ...], config: P2BConfig) -> str:
    """What persons have paid, what the new generation asks, and both together, in words."""
    own, together = priced(config).guarantee.together, _largest(spent_after(spent, config))
    longer = together.which.delta_units > life.which.delta_units
    aside = " (a delta below 1e-12 is the samplers' truncation, which is not compared)" if longer else ""
    return (
        f"a person was charged at most {bounds(_largest(spent))} so far; the changed file asks at most {bounds(own)} "
        f"of somebody who was charged nothing, and no report of a number that was counted; together at most "
        f"{bounds(together)}, of {bounds(life)} that the first file guaranteed for a life{aside}"
    )


def _without_slots(config: P2BConfig) -> Prices:
    """L(0): the price of the lift, if one is released."""
    lift = priced(config).guarantee.lift
    return NOTHING if lift is None else lift.life_prices


def _largest(prices: Iterable[Prices]) -> Prices:
    """The largest of each amount."""
    found = [(one.which, one.zero_out or one.which) for one in prices]
    which, zero_out = (
        Cost(max(one.epsilon_micro for one in each), max(one.delta_units for one in each))
        for each in zip(*found, strict=True)
    )
    return Prices(which, zero_out)
