"""A guarantee is an object (rule 1): it says what is guaranteed, about what, to whom, and what is not.

Every mechanism returns one, each system composes its own, and all printed statements about privacy come from it. All
amounts are integers that were rounded up. `hushstream.privacy.mechanisms.guarantee` makes them for releases of slots.

*Contents.* The content of topics about persons, and its form: the part of a guarantee that says where content can be
read.

A price bounds what can be learned from the releases of a mechanism. It does not cover content that bypasses the
mechanism. So a guarantee names every topic with content of persons, and says whether its zone is trusted with it.
Content in clear outside the trusted zones is disclosed without noise, whatever the epsilon of the releases is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from hushstream.privacy.amounts import DELTA_ONE, Cost, delta_value, epsilon_float, float_up
from hushstream.privacy.errors import BadGuarantee
from hushstream.privacy.promises.sentence import (
    UNIT,
    Odds,
    Prices,
    Subject,
    bars,
    beyond,
    bounds,
    core_phrase,
    core_sentence,
    noun,
    person_of,
    told,
)


class Form(StrEnum):
    """The form of content about persons on a topic."""

    CLEAR = "in clear"
    """In clear: every reader of the topic can read it."""
    PUBLIC = "in clear, held to be public"
    """In clear; the neighbour relation treats it as public, so the guarantee does not cover it."""
    SEALED = "sealed"
    """Encrypted under a key of one trusted zone."""
    SAMPLED = "sampled"
    """Counts without noise of a secret sample, in crowds of a least size; the price follows from the sampling."""
    NOISED = "noised"
    """The output of a mechanism that adds noise, or computed from such outputs alone."""


@dataclass(frozen=True, slots=True)
class Content:
    """Content about persons on one topic, in one form.

    Attributes:
        topic: its logical name.
        what: the content, in words.
        form: its form.
        zone: the zone whose operator may read it.
        trusted: whether the guarantee trusts that zone with content.
        kept_days: days after which records are deleted; None: kept as long as the deployment.
    """

    topic: str
    what: str
    form: Form
    zone: str
    trusted: bool
    kept_days: int | None = None

    @property
    def leaves_unnoised(self) -> bool:
        """Whether the content is given in clear to a zone that is not trusted with it."""
        return self.form is Form.CLEAR and not self.trusted

    def __str__(self) -> str:
        """One line."""
        leaves = ": LEAVES UN-NOISED" if self.leaves_unnoised else ""
        reader = "published" if self.zone == "published" else f"read by operators of the {self.zone} zone"
        return f"{self.topic} ({reader}), {self.form}{leaves}: {self.what}"


def unnoised_topics(contents: Iterable[Content]) -> tuple[str, ...]:
    """The topics with content that is disclosed without noise, each once, in their order."""
    return tuple(dict.fromkeys(content.topic for content in contents if content.leaves_unnoised))


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


class Cap(NamedTuple):
    """The setting that limits the number of units of one person.

    Attributes:
        setting: its path in the configuration.
        most: largest number of units with which a person is still guaranteed something.
    """

    setting: str
    most: int

    def __str__(self) -> str:
        """A sentence about the limit and its effect."""
        return f"with {self.setting} of at most {self.most} a person is guaranteed something"


@dataclass(frozen=True, slots=True)
class Lifetime:
    """What all units of one person cost together.

    Attributes:
        units: number of units of one user in their life, on one device.
        devices: number of unlinked devices of one person.
        cost: price of all of them together, against none.
        exchange: price of all of them together, against others in their place.
        cap: the setting of this number, and the largest number with which a person is still guaranteed something; None
            if there is no such setting or number.
        counted: whether the number is enforced for each person; False if it is an assumption: then a person with more
            units is guaranteed nothing.
    """

    units: int
    devices: int
    cost: Cost
    exchange: Cost
    cap: Cap | None = None
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Redraws:
    """The figures of one redraw: noise may be drawn anew over the same units, each time at a price.

    Attributes:
        most: largest number of draws, with the first one.
        price: price of each draw for a unit.
    """

    most: int
    price: Cost


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The guarantee of a mechanism, or of a deployment: of its releases and, beside them, of its lift.

    All figures are those of the releases by themselves, but for `together`, which adds the lift about the same persons,
    and for what is said of a whole person: sentence, phrase, odds and warning.

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
        truncation_units: the part of delta that comes from the noise's tables, in units of 2^-80.
        not_protected: what the guarantee does not cover, one fact each.
        conditions: what must hold for it, one fact each; of a deployment first what must hold of persons.
        private_as_stated: False if the paper's claim does not hold, or content is disclosed without noise.
        claimed: the claim of the paper whose calibration this is, if it is one.
        reproducible: True when the key comes from a seed.
        redraws: figures if noise may be drawn more than once over a unit; None if it is drawn once.
        rho_micro: the zCDP of one charge in millionths, at the orders that `hushstream.counting.counter` proves;
            None where the mechanism is priced by (epsilon, delta) alone.
        contents: content about persons on each topic of the deployment; empty for a mechanism by itself.
        tainted: names of the inputs that are not private as stated; whatever is derived from them is not, either.
        any_content: whether an empty content is none of the possible ones. Then neighbours differ in the value
            of a unit, and ``cost`` and ``replace_one`` are the same price. That a unit came is public in any case.
        lift: guarantee of the lift, about the same persons; None if there is none.
        generations: the most that a person is charged over this generation of a deployment and all before; None for
            the first.
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
    truncation_units: int
    not_protected: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    private_as_stated: bool = True
    claimed: Claim | None = None
    reproducible: bool = False
    computational: str = COMPUTATIONAL
    redraws: Redraws | None = None
    rho_micro: int | None = None
    contents: tuple[Content, ...] = ()
    any_content: bool = False
    tainted: tuple[str, ...] = ()
    lift: Guarantee | None = None
    generations: Prices | None = None

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
        if self.private_as_stated == (self.claimed is not None or bool(self.unnoised) or bool(self.tainted)):
            raise BadGuarantee(
                "guarantee: expected a claim, content that leaves un-noised or a tainted input exactly where it is not "
                "private as stated"
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
    def held_public(self) -> tuple[str, ...]:
        """The topics with content in clear that the deployment holds to be public; the figures do not cover it."""
        return tuple(dict.fromkeys(one.topic for one in self.contents if one.form is Form.PUBLIC))

    @property
    def price(self) -> Cost:
        """Price of one charge for a unit: all of `cost`, or the part of one redraw."""
        return self.cost if self.redraws is None else self.redraws.price

    @property
    def unit_prices(self) -> Prices:
        """Both prices of one unit."""
        return Prices(self.replace_one, None if self.any_content else self.cost)

    @property
    def life_prices(self) -> Prices:
        """Both prices of all units of one person."""
        life = self.lifetime
        return Prices(life.exchange, None if self.any_content else life.cost)

    @property
    def person(self) -> Subject:
        """The words for one person."""
        supposed = None if self.lifetime.counted else self.lifetime.units
        return person_of(self.unit, self.any_content, supposed)

    @property
    def each(self) -> tuple[Guarantee, ...]:
        """This guarantee, and that of the lift."""
        return (self,) if self.lift is None else (self, self.lift)

    @property
    def together(self) -> Prices:
        """Both prices of all releases in one person's life, with the lift (basic composition)."""
        return self.life_prices if self.lift is None else self.life_prices + self.lift.life_prices

    @property
    def in_all(self) -> Prices:
        """`together`, with all generations before."""
        return self.together if self.generations is None else self.generations

    @property
    def warning(self) -> str | None:
        """A warning beside the figures of a whole life if they promise (next to) nothing; else None."""
        life = self.together
        if life.weak is None:
            return None
        text = f"for one person as a whole {life.weak} is guaranteed{life.under}"
        if self.unit_prices == life:
            return text
        if self.unit_prices.weak is not None:
            return f"{text}, and for {self.unit} {self.unit_prices.weak}"
        text += beyond(self.unit, self.unit_prices)
        return text if self.lifetime.cap is None else f"{text}; {self.lifetime.cap}"

    @property
    def summary(self) -> str:
        """The price of one unit, and that of one person's whole life where it is more, in one line."""
        unit = f"{self.unit}, {told(self.unit_prices, UNIT)}"
        return unit if self.together == self.unit_prices else f"{unit}; one person in a whole life: {self.in_life}"

    @property
    def in_life(self) -> str:
        """The price of one person's whole life, in words."""
        return told(self.together, self.person)

    @property
    def units_in_life(self) -> str:
        """What is counted of one person in `together`, in words."""
        units, devices = self.lifetime.units, self.lifetime.devices
        text = self.unit if units == 1 else f"{units:,} {noun(self.unit)}s of one user"
        text = text if devices == 1 else f"{text} on each of {devices} unlinked devices"
        text = text if self.lifetime.counted else f"{text} (nobody checks it)"
        return text if self.lift is None else f"{text}, and the A/B measurement (lift)"

    @property
    def life_line(self) -> str:
        """What is counted of one person, and `phrase`, as a sentence."""
        return f"One person in a whole life, {self.units_in_life}: {self.phrase()}."

    def under_key(self, reproducible: bool) -> Guarantee:
        """The same guarantee with the kind of key that the release uses."""
        return replace(self, reproducible=reproducible)

    def with_contents(self, contents: tuple[Content, ...]) -> Guarantee:
        """The same guarantee in a deployment whose topics hold ``contents``, with what must hold of its users."""
        stated = self.claimed is None and not unnoised_topics(contents) and not self.tainted
        conditions = (self.one_account, *self.conditions) if self.lifetime.counted else self.conditions
        return replace(self, contents=contents, private_as_stated=stated, conditions=conditions)

    @property
    def one_account(self) -> str:
        """The condition that whoever has several accounts pays for each."""
        checked = "only the application's sign-up can check it"
        if self.rho_micro is None:
            most = "m times the epsilon, and at most m e^(m epsilon) times the delta"
            return f"a person has one account: m of them cost {most}; {checked}"
        return f"a person has one account: m of them move every sum m times as far, at m^2 times the rho; {checked}"

    def derived_from(self, tainted: tuple[str, ...]) -> Guarantee:
        """The same guarantee in a deployment that is derived from inputs that are not private as stated."""
        if not tainted:
            return self
        lift = None if self.lift is None else self.lift.derived_from(tainted)
        return replace(self, tainted=tainted, private_as_stated=False, lift=lift)

    def sentence(self) -> str:
        """The guarantee for one person in one line. If nothing is guaranteed, the line begins with that."""
        text = self._led(core_sentence(self.together, self.person, self.unit, self.unit_prices))
        if self.unnoised:
            text = f"a person is guaranteed nothing, since content leaves un-noised on {', '.join(self.unnoised)}"
        elif self.tainted:
            text = (
                f"whoever is in {', '.join(self.tainted)} is guaranteed nothing, as that is not private; others: {text}"
            )
        elif not self.private_as_stated:
            text = f"the claim that is reproduced here does not hold, and {text}"
        elif self.reproducible:
            text = f"a person is guaranteed nothing here, since the noise comes from a seed; under a secret key {text}"
        return f"{text[:1].upper()}{text[1:]}."

    def phrase(self) -> str:
        """`sentence` in a few words, to follow a figure: "user-level epsilon 3 (replace-one) and 1.5 (zero-out)"."""
        if self.unnoised:
            return f"nothing guaranteed about one person: content leaves un-noised on {', '.join(self.unnoised)}"
        text = self._led(core_phrase(self.together, self.person, self.unit, self.unit_prices))
        if self.tainted:
            return f"nothing guaranteed about whoever is in {', '.join(self.tainted)}, which is not private: {text}"
        if not self.private_as_stated:
            return f"what is claimed does not hold: {text}"
        return (
            f"nothing guaranteed, as the noise comes from a seed; under a secret key {text}"
            if self.reproducible
            else text
        )

    def _led(self, text: str) -> str:
        """The sum over all generations, before what this one guarantees."""
        if self.generations is None:
            return text
        return f"all generations together charge one person at most {bounds(self.generations)}; this one alone: {text}"

    def odds(self) -> tuple[Odds, ...]:
        """How certain an observer may become, about one person and about one unit; empty if nothing is guaranteed."""
        if self.unnoised:
            return ()
        return bars(self.in_all, self.person, self.unit, self.unit_prices)


def prices_json(prices: Prices) -> dict[str, Any]:
    """Both prices as plain values: ``which``, and ``zero_out`` ("public" where nothing is guaranteed of it)."""
    zero_out = "public" if prices.zero_out is None else amounts(prices.zero_out)
    return {"which": amounts(prices.which), "zero_out": zero_out}


def read_prices(plain: Any) -> Prices:
    """The prices that `prices_json` gave, where neither is public.

    Raises:
        KeyError, TypeError, ValueError: these are other values.
    """
    each = [plain[question] for question in ("which", "zero_out")]
    which, zero_out = (Cost(one["epsilon_micro"], int(one["delta_units"])) for one in each)
    return Prices(which, zero_out)


def amounts(cost: Cost) -> dict[str, Any]:
    """A price as plain values: rounded-up floats, and the exact whole amounts beside them."""
    # 2^80 is beyond what JSON readers keep exact as a number, so delta's integer travels as text.
    return {
        "epsilon": epsilon_float(cost.epsilon_micro),
        "delta": float_up(delta_value(min(cost.delta_units, DELTA_ONE))),
        "epsilon_micro": cost.epsilon_micro,
        "delta_units": str(cost.delta_units),
    }


def plain(value: Any) -> Any:
    """A result as plain values: a dataclass by the names of its fields, and a price as `amounts` gives it."""
    if isinstance(value, Cost):
        return amounts(value)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return list(map(plain, value)) if isinstance(value, tuple | list) else value
