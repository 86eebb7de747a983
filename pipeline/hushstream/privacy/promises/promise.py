"""A guarantee is an object (rule 1): it says what is promised, about what, to whom, and what is not promised.

Every mechanism returns one, each system composes its own, and all printed statements about privacy come from it. All
amounts are integers that were rounded up. `hushstream.privacy.mechanisms.guarantee` makes them for releases of slots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from hushstream.privacy.amounts import (
    DELTA_ONE,
    Cost,
    delta_value,
    epsilon_float,
    float_up,
)
from hushstream.privacy.errors import BadGuarantee
from hushstream.privacy.promises.contents import Content, unnoised_topics
from hushstream.privacy.promises.sentence import (
    Odds,
    Prices,
    Subject,
    bars,
    beyond,
    core_phrase,
    core_sentence,
    noun,
    person_of,
)

Deployment = Literal["hosted", "edge"]

COMPUTATIONAL = "computational: against parties without the key"
NOT_PRIVATE = "NOT PRIVATE AS STATED"
REPRODUCIBLE = "REPRODUCIBLE, NOT PRIVATE"


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a paper for its own calibration, kept beside the true figure.

    Attributes:
        epsilon_micro: claimed epsilon in millionths, rounded up.
        delta: the claimed delta in words (papers state it up to constants).
        source: where it is claimed.
    """

    epsilon_micro: int
    delta: str
    source: str

    def as_json(self) -> dict[str, Any]:
        """Stable keys epsilon, delta, source."""
        return {
            "epsilon": epsilon_float(self.epsilon_micro),
            "delta": self.delta,
            "source": self.source,
        }


class Cap(NamedTuple):
    """The setting that limits the number of units of one person.

    Attributes:
        setting: its path in the configuration.
        most: largest number of units with which a person is still promised something.
    """

    setting: str
    most: int

    def __str__(self) -> str:
        """A sentence about the limit and its effect."""
        return f"with {self.setting} of at most {self.most} a person is promised something"


@dataclass(frozen=True, slots=True)
class Lifetime:
    """What all units of one person cost together.

    Attributes:
        units: number of units of one user in their life, on one device.
        devices: number of unlinked devices of one person.
        cost: price of all of them together, against none.
        exchange: price of all of them together, against others in their place.
        cap: the setting of this number, and the largest number with which a person is still promised something; None if
            there is no such setting or number.
        counted: whether the number is enforced for each person; False if it is an assumption: then a person with more
            units is promised nothing.
    """

    units: int
    devices: int
    cost: Cost
    exchange: Cost
    cap: Cap | None = None
    counted: bool = True

    def as_json(self) -> dict[str, Any]:
        """Stable keys units, devices, epsilon, delta, exchange, cap, counted."""
        return {
            "units": self.units,
            "devices": self.devices,
            **amounts(self.cost),
            "exchange": amounts(self.exchange),
            "cap": None if self.cap is None else self.cap._asdict(),
            "counted": self.counted,
        }


@dataclass(frozen=True, slots=True)
class Redraws:
    """The figures of one redraw: noise may be drawn anew over the same units, each time at a price.

    Attributes:
        most: largest number of draws, with the first one.
        price: price of each draw for a unit.
    """

    most: int
    price: Cost

    def as_json(self) -> dict[str, Any]:
        """Stable keys most, epsilon, delta."""
        return {"most": self.most, **amounts(self.price)}


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The guarantee of one mechanism.

    Attributes:
        mechanism: name and every parameter, in words.
        relation: which inputs are neighbours.
        unit: what differs between neighbours.
        cost: epsilon and delta for one unit, over all its releases.
        replace_one: epsilon and delta between two reports, where null is not one of them.
        lifetime: for all units of one person.
        sensitivity: largest change of the exact result by one unit.
        norm: norm of this change.
        zone: the trust zone that runs the mechanism and holds its key.
        deployment: ``hosted`` or ``edge``.
        residue_units: the part of delta that comes from the noise's tables, in units of 2^-80.
        not_protected: what the guarantee does not cover, one fact each.
        conditions: what must hold for it, one fact each.
        private_as_stated: False if the paper's claim does not hold, or content is disclosed without noise.
        claimed: the claim of the paper whose calibration this is, if it is one.
        reproducible: True when the key comes from a seed.
        redraws: figures if noise may be drawn more than once over a unit; None if it is drawn once.
        rho_micro: the zCDP of one charge in millionths, at the orders that `hushstream.counting.counter` proves;
            None where the mechanism is priced by (epsilon, delta) alone.
        contents: content about persons on each topic of the deployment; empty for a mechanism by itself.
        public_participation: whether taking part is public under the relation. Then neighbours differ in the value of a
            unit, and ``cost`` and ``replace_one`` are the same price.
    """

    mechanism: str
    relation: str
    unit: str
    cost: Cost
    replace_one: Cost
    lifetime: Lifetime
    sensitivity: int
    norm: str
    zone: str
    deployment: Deployment
    residue_units: int
    not_protected: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    private_as_stated: bool = True
    claimed: Claim | None = None
    reproducible: bool = False
    computational: str = COMPUTATIONAL
    redraws: Redraws | None = None
    rho_micro: int | None = None
    contents: tuple[Content, ...] = ()
    public_participation: bool = False

    def __post_init__(self) -> None:
        """Refuse a guarantee that is incomplete.

        Raises:
            BadGuarantee: an unknown deployment, an empty field, or a verdict that contradicts the claim or content
                without noise.
        """
        if self.deployment not in ("hosted", "edge"):
            raise BadGuarantee(f"deployment: expected hosted or edge, got {self.deployment!r}")
        for name in ("mechanism", "relation", "unit", "norm", "zone", "not_protected"):
            if not getattr(self, name):
                raise BadGuarantee(f"guarantee: expected a non-empty {name}, got an empty one")
        if self.private_as_stated == (self.claimed is not None or bool(self.unnoised)):
            raise BadGuarantee(
                "guarantee: expected a claim or content that leaves un-noised exactly where it is not private as stated"
            )

    @property
    def epsilon_micro(self) -> int:
        """Epsilon for one unit, in millionths."""
        return self.cost.epsilon_micro

    @property
    def delta_units(self) -> int:
        """Delta for one unit, in units of 2^-80."""
        return self.cost.delta_units

    @property
    def marks(self) -> tuple[str, ...]:
        """Warnings that are shown with every result under this guarantee; empty if there are none."""
        marks = () if self.private_as_stated else (NOT_PRIVATE,)
        return (*marks, REPRODUCIBLE) if self.reproducible else marks

    @property
    def unnoised(self) -> tuple[str, ...]:
        """The topics with content that is disclosed without noise, which the figures of this guarantee do not cover."""
        return unnoised_topics(self.contents)

    @property
    def price(self) -> Cost:
        """Price of one charge for a unit: all of `cost`, or the part of one redraw."""
        return self.cost if self.redraws is None else self.redraws.price

    @property
    def unit_prices(self) -> Prices:
        """Both prices of one unit."""
        return Prices(self.replace_one, None if self.public_participation else self.cost)

    @property
    def life_prices(self) -> Prices:
        """Both prices of all units of one person."""
        life = self.lifetime
        return Prices(life.exchange, None if self.public_participation else life.cost)

    @property
    def person(self) -> Subject:
        """The words for one person."""
        supposed = None if self.lifetime.counted else self.lifetime.units
        return person_of(self.unit, self.public_participation, supposed)

    @property
    def warning(self) -> str | None:
        """A warning beside the figures of a whole life if they promise (next to) nothing; else None."""
        return self.warning_for(self.life_prices)

    def warning_for(self, life: Prices) -> str | None:
        """`warning` if all releases about one person have the prices ``life``."""
        if life.weak is None:
            return None
        unit_weak = self.unit_prices.weak
        if unit_weak is not None:
            return f"for one person as a whole {life.weak} is promised, and for {self.unit} {unit_weak}"
        text = f"for one person as a whole {life.weak} is promised{beyond(self.unit, self.unit_prices)}"
        return text if self.lifetime.cap is None else f"{text}; {self.lifetime.cap}"

    @property
    def units_in_life(self) -> str:
        """The units of one person in `lifetime`, in words."""
        units, devices = self.lifetime.units, self.lifetime.devices
        text = self.unit if units == 1 else f"{units} {noun(self.unit)}s of one user"
        text = text if devices == 1 else f"{text} on each of {devices} unlinked devices"
        return text if self.lifetime.counted else f"{text}, by assumption: nobody counts them"

    def under_key(self, reproducible: bool) -> Guarantee:
        """The same guarantee with the kind of key that the release uses."""
        return replace(self, reproducible=reproducible)

    def with_contents(self, contents: tuple[Content, ...]) -> Guarantee:
        """The same guarantee in a deployment whose topics hold ``contents``."""
        stated = self.claimed is None and not unnoised_topics(contents)
        return replace(self, contents=contents, private_as_stated=stated)

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys; the exact amounts stand beside the rounded-up floats."""
        return {
            **amounts(self.cost),
            "sentence": self.sentence(),
            "phrase": self.phrase(),
            "relation": self.relation,
            "unit": self.unit,
            "lifetime": {**self.lifetime.as_json(), "warning": self.warning},
            "replace_one": amounts(self.replace_one),
            "public_participation": self.public_participation,
            "deployment": self.deployment,
            "zone": self.zone,
            "sensitivity": self.sensitivity,
            "norm": self.norm,
            "mechanism": self.mechanism,
            "residue": float_up(delta_value(self.residue_units)),
            "not_protected": list(self.not_protected),
            "conditions": list(self.conditions),
            "private_as_stated": self.private_as_stated,
            "claimed": None if self.claimed is None else self.claimed.as_json(),
            "computational": self.computational,
            "reproducible": self.reproducible,
            "redraws": None if self.redraws is None else self.redraws.as_json(),
            "contents": [content.as_json() for content in self.contents],
            "unnoised": list(self.unnoised),
        }

    def sentence(self, life: Prices | None = None) -> str:
        """The guarantee for one person in one line. If nothing is promised, the line begins with that.

        Args:
            life: prices of one person for all releases, also those beside this guarantee; None for `life_prices`.
        """
        text = core_sentence(life or self.life_prices, self.person, self.unit, self.unit_prices)
        if self.unnoised:
            text = f"a person is promised nothing, since content leaves un-noised on {', '.join(self.unnoised)}"
        elif not self.private_as_stated:
            text = f"the claim that is reproduced here does not hold, and {text}"
        elif self.reproducible:
            text = f"a person is promised nothing here, since the noise comes from a seed; under a secret key {text}"
        return f"{text[:1].upper()}{text[1:]}."

    def phrase(self, life: Prices | None = None) -> str:
        """`sentence` in a few words, to follow a figure.

        For instance: "at most e^3 about which of two things one person did, e^1.5 about whether they took part at all".
        """
        if self.unnoised:
            return f"nothing promised about one person: content leaves un-noised on {', '.join(self.unnoised)}"
        text = core_phrase(life or self.life_prices, self.person, self.unit, self.unit_prices)
        if not self.private_as_stated:
            return f"what is claimed does not hold: {text}"
        return (
            f"nothing promised, as the noise comes from a seed; under a secret key {text}"
            if self.reproducible
            else text
        )

    def odds(self, life: Prices | None = None) -> tuple[Odds, ...]:
        """How certain an observer may become, about one person and about one unit; empty if nothing is promised."""
        if self.unnoised:
            return ()
        return bars(life or self.life_prices, self.person, self.unit, self.unit_prices)


@dataclass(frozen=True, slots=True)
class Promises:
    """All promises of a deployment about one person: the guarantee of its releases, and that of the lift.

    Attributes:
        releases: guarantee of the system's releases.
        lift: guarantee of the lift of a hold-out, about the same persons; None if there is none.
    """

    releases: Guarantee
    lift: Guarantee | None = None

    @property
    def each(self) -> tuple[Guarantee, ...]:
        """The guarantees, the releases' first."""
        return (self.releases,) if self.lift is None else (self.releases, self.lift)

    @property
    def together(self) -> Prices:
        """Both prices of all releases in one person's life (basic composition)."""
        life = self.releases.life_prices
        return life if self.lift is None else life + self.lift.life_prices

    def sentence(self) -> str:
        """`Guarantee.sentence` for `together`."""
        return self.releases.sentence(self.together)

    def phrase(self) -> str:
        """`Guarantee.phrase` for `together`."""
        return self.releases.phrase(self.together)

    def odds(self) -> tuple[Odds, ...]:
        """`Guarantee.odds` for `together`."""
        return self.releases.odds(self.together)

    @property
    def warning(self) -> str | None:
        """`Guarantee.warning` for `together`."""
        return self.releases.warning_for(self.together)

    def as_json(self) -> dict[str, Any]:
        """Plain values of the releases' guarantee, of the lift's (null without one), and of both prices together."""
        return {
            **self.releases.as_json(),
            "sentence": self.sentence(),
            "phrase": self.phrase(),
            "lift": None if self.lift is None else self.lift.as_json(),
            "together": {**prices_json(self.together), "warning": self.warning},
        }


def prices_json(prices: Prices) -> dict[str, Any]:
    """Both prices as plain values: ``which``, and ``took_part`` ("public" where nothing is promised of it)."""
    took_part = "public" if prices.took_part is None else amounts(prices.took_part)
    return {"which": amounts(prices.which), "took_part": took_part}


def amounts(cost: Cost) -> dict[str, Any]:
    """A price as plain values: rounded-up floats, and the exact whole amounts beside them."""
    # 2^80 is beyond what JSON readers keep exact as a number, so delta's integer travels as text.
    return {
        "epsilon": epsilon_float(cost.epsilon_micro),
        "delta": float_up(delta_value(min(cost.delta_units, DELTA_ONE))),
        "epsilon_micro": cost.epsilon_micro,
        "delta_units": str(cost.delta_units),
    }
