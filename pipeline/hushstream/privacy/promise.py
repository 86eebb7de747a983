"""A guarantee is an object (rule 1): what is promised, about what, to whom, and what is not.

Every mechanism returns one, each system composes its own, and whatever prints privacy prints it from here.
All amounts are integers that were rounded up. `hushstream.privacy.guarantee` makes them for releases of slots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from hushstream.privacy.amounts import (
    DELTA_ONE,
    Cost,
    delta_text,
    delta_value,
    epsilon_float,
    epsilon_text,
    float_up,
)
from hushstream.privacy.contents import Content, unnoised_topics
from hushstream.privacy.errors import BadGuarantee
from hushstream.privacy.sentence import Odds, core_sentence, even_odds, picture, weakness

Deployment = Literal["hosted", "edge"]

COMPUTATIONAL = "computational: against parties without the key"
NOT_PRIVATE = "NOT PRIVATE AS STATED"
REPRODUCIBLE = "REPRODUCIBLE, NOT PRIVATE"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a paper states for its own calibration, kept beside the true figure.

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


@dataclass(frozen=True, slots=True)
class Lifetime:
    """What all units of one person cost together.

    Attributes:
        units: how many one user has in their life, on one device.
        devices: unlinked devices of one person that are counted.
        cost: for all of them together.
    """

    units: int
    devices: int
    cost: Cost

    def as_json(self) -> dict[str, Any]:
        """Stable keys units, devices, epsilon, delta."""
        return {"units": self.units, "devices": self.devices, **_amounts(self.cost)}


@dataclass(frozen=True, slots=True)
class Redraws:
    """Noise that may be drawn anew over the same units, each time at a price: the figures of one time.

    Attributes:
        most: how many times, the first among them.
        price: what each of them costs a unit.
    """

    most: int
    price: Cost

    def as_json(self) -> dict[str, Any]:
        """Stable keys most, epsilon, delta."""
        return {"most": self.most, **_amounts(self.price)}


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What one mechanism promises.

    Attributes:
        mechanism: name and every parameter, in words.
        relation: which inputs are neighbours.
        unit: what differs between neighbours.
        cost: epsilon and delta for one unit, over all that is ever released of it.
        replace_one: epsilon and delta between two reports, where null is not one of them.
        lifetime: for all units of one person.
        sensitivity: how far one unit moves the exact result.
        norm: in which norm.
        zone: the trust zone that runs the mechanism and holds its key.
        deployment: ``hosted`` or ``edge``.
        residue_units: the part of delta that comes from the noise's tables, in units of 2^-80.
        not_protected: what the guarantee does not cover, one fact each.
        conditions: what must hold for it, one fact each.
        private_as_stated: False when the claim beside it is not what holds, or content leaves un-noised beside it.
        claimed: the claim of the paper whose calibration this is, if it is one.
        reproducible: True when the key comes from a seed.
        redraws: where noise may be drawn more than once over a unit; None: it is drawn once.
        rho_micro: the zCDP of one charge in millionths, at the orders that `hushstream.counting.counter` proves;
            None where the mechanism is priced by (epsilon, delta) alone.
        contents: what each topic of the deployment holds of persons; empty for a mechanism by itself.
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

    def __post_init__(self) -> None:
        """Refuse a guarantee that leaves something open.

        Raises:
            BadGuarantee: an unknown deployment, an empty field, or a verdict that does not match the claim and what
                leaves un-noised.
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
        """Warnings that stand wherever a result under this guarantee is shown; empty when there is none."""
        marks = () if self.private_as_stated else (NOT_PRIVATE,)
        return (*marks, REPRODUCIBLE) if self.reproducible else marks

    @property
    def unnoised(self) -> tuple[str, ...]:
        """The topics on which content leaves un-noised: the figures of this guarantee do not speak of it."""
        return unnoised_topics(self.contents)

    @property
    def price(self) -> Cost:
        """What one charge costs a unit: all of `cost`, or the part of one redraw."""
        return self.cost if self.redraws is None else self.redraws.price

    @property
    def warning(self) -> str | None:
        """What must be said beside the figures of a whole life where they promise (next to) nothing; else None."""
        return self.warning_for(self.lifetime.cost)

    def warning_for(self, life: Cost) -> str | None:
        """`warning` where all that is released of one person costs ``life``."""
        weak, unit_weak = weakness(life), weakness(self.cost)
        if weak is None:
            return None
        if unit_weak is None:
            return f"for one person as a whole {weak} is promised; only single {_noun(self.unit)}s are protected"
        return f"for one person as a whole {weak} is promised, and for {self.unit} {unit_weak}"

    @property
    def units_in_life(self) -> str:
        """In words: how many units of one person `lifetime` is for."""
        units, devices = self.lifetime.units, self.lifetime.devices
        said = self.unit if units == 1 else f"{units} {_noun(self.unit)}s of one user"
        return said if devices == 1 else f"{said} on each of {devices} unlinked devices"

    def under_key(self, reproducible: bool) -> Guarantee:
        """The same guarantee with the kind of key that the release really uses."""
        return replace(self, reproducible=reproducible)

    def with_contents(self, contents: tuple[Content, ...]) -> Guarantee:
        """The same guarantee in a deployment whose topics hold ``contents``."""
        stated = self.claimed is None and not unnoised_topics(contents)
        return replace(self, contents=contents, private_as_stated=stated)

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys; the exact amounts stand beside the rounded-up floats."""
        return {
            **_amounts(self.cost),
            "sentence": self.sentence(),
            "relation": self.relation,
            "unit": self.unit,
            "lifetime": {**self.lifetime.as_json(), "warning": self.warning},
            "replace_one": _amounts(self.replace_one),
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

    def sentence(self, life: Cost | None = None, kept: float | None = None) -> str:
        """What it comes to for one person, in one line; who is promised nothing reads that first.

        Args:
            life: what one person pays for everything that is released beside this, too; None for `lifetime`.
            kept: share of the expected reward without privacy that is left, where it is known.
        """
        text = core_sentence(self.lifetime.cost if life is None else life, self.unit, self.cost)
        if self.unnoised:
            text = f"a person is promised nothing, since content leaves un-noised on {', '.join(self.unnoised)}"
        elif not self.private_as_stated:
            text = f"the claim that is reproduced here does not hold, and {text}"
        elif self.reproducible:
            text = f"a person is promised nothing here, since the noise comes from a seed; under a secret key {text}"
        reward = "" if kept is None else f"; expected reward kept, {kept:.0%}"
        return f"{text[:1].upper()}{text[1:]}{reward}."

    def odds(self, life: Cost | None = None) -> tuple[Odds, ...]:
        """What somebody may come to believe, for one unit and for a whole life; empty where nothing is promised."""
        if self.unnoised:
            return ()
        life = self.lifetime.cost if life is None else life
        return even_odds(life, "a whole life", self.unit, self.cost)

    def as_text(self, life: Cost | None = None, kept: float | None = None) -> str:
        """The whole guarantee in plain English: the `sentence`, the picture of `odds`, and one fact a line.

        Arguments are those of `sentence`.
        """
        drawn = picture(self.odds(life)) if self.odds(life) else []
        return "\n".join([self.sentence(life, kept), *self.marks, *drawn, *self._lines()]) + "\n"

    def as_facts(self) -> str:
        """`as_text` without sentence and picture, where those stand already."""
        return "\n".join([*self.marks, *self._lines()]) + "\n"

    def _lines(self) -> list[str]:
        lines = []
        if self.unnoised:
            lines.append(f"Content leaves un-noised on: {', '.join(self.unnoised)}. The figures do not speak of it.")
        if self.claimed is not None:
            lines += [
                f"Claimed: epsilon {epsilon_text(self.claimed.epsilon_micro)}, delta {self.claimed.delta}"
                f" ({self.claimed.source}).",
                f"True: {self._true}.",
            ]
        lines += [
            f"Mechanism: {self.mechanism}.",
            f"Epsilon: {epsilon_text(self.epsilon_micro)} for {self.unit}.",
            f"Delta: {delta_text(self.delta_units)} for {self.unit}.",
            *self._redraw_lines(),
            f"Relation: {self.relation}.",
            f"One report against another report: {self.replace_one}.",
            f"Lifetime: {self.lifetime.cost} for {self.units_in_life}.",
            *_warned(self.warning),
            f"Sensitivity: {self.sensitivity}, {self.norm}.",
            f"Residue of the noise tables, included in delta: {delta_text(self.residue_units)}.",
            f"Deployment: {self.deployment}.",
            f"Trust zone: {self.zone} (it sees what it protects; a trusted curator).",
            f"Strength: {self.computational}.",
        ]
        lines += [f"Content of persons on {content}." for content in self.contents]
        lines += [f"Condition: {fact}." for fact in self.conditions]
        return lines + [f"Not protected: {fact}." for fact in self.not_protected]

    @property
    def _true(self) -> str:
        """What holds, beside a claim."""
        assert self.claimed is not None
        at_that = self.epsilon_micro == self.claimed.epsilon_micro
        return f"at that epsilon, delta {delta_text(self.delta_units)}" if at_that else str(self.cost)

    def _redraw_lines(self) -> list[str]:
        if self.redraws is None:
            return []
        most, price = self.redraws.most, self.redraws.price
        return [f"One epoch of noise: {price}; the figures above are for all {most} that there may be."]


@dataclass(frozen=True, slots=True)
class Promises:
    """All that a deployment promises of one person: its releases' guarantee, and beside it the lift's.

    Attributes:
        releases: of what the system releases.
        lift: of the lift over a hold-out, about the same persons; None: there is none.
    """

    releases: Guarantee
    lift: Guarantee | None = None

    @property
    def each(self) -> tuple[Guarantee, ...]:
        """The guarantees, the releases' first."""
        return (self.releases,) if self.lift is None else (self.releases, self.lift)

    @property
    def together(self) -> Cost:
        """What one person pays for everything in their life (basic composition)."""
        life = self.releases.lifetime.cost
        both = life if self.lift is None else life + self.lift.lifetime.cost
        return Cost(both.epsilon_micro, min(DELTA_ONE, both.delta_units))

    def sentence(self, kept: float | None = None) -> str:
        """`Guarantee.sentence` for `together`."""
        return self.releases.sentence(self.together, kept)

    @property
    def warning(self) -> str | None:
        """`Guarantee.warning` for `together`."""
        return self.releases.warning_for(self.together)

    def as_json(self) -> dict[str, Any]:
        """The releases' plain values with the lift's (null without one) and what both cost together beside them."""
        return {
            **self.releases.as_json(),
            "sentence": self.sentence(),
            "lift": None if self.lift is None else self.lift.as_json(),
            "together": {**_amounts(self.together), "warning": self.warning},
        }

    def beside_text(self) -> str:
        """What `Guarantee.as_text` of the releases leaves out: the lift, and the price of both; empty without one."""
        if self.lift is None:
            return ""
        lines = [f"Together, over the life of one user: {self.together}.", *_warned(self.warning)]
        return f"\nLift, beside it:\n{self.lift.as_facts()}\n" + "\n".join(lines) + "\n"


def _warned(warning: str | None) -> list[str]:
    return [] if warning is None else [f"Warning: {warning}."]


def _noun(unit: str) -> str:
    """The one word for a unit whose text begins with ``one WORD``."""
    first, *others = unit.split()
    return others[0] if first == "one" and others else "unit"


def _amounts(cost: Cost) -> dict[str, Any]:
    # 2^80 is beyond what JSON readers keep exact as a number, so delta's integer travels as text.
    return {
        "epsilon": epsilon_float(cost.epsilon_micro),
        "delta": float_up(delta_value(min(cost.delta_units, DELTA_ONE))),
        "epsilon_micro": cost.epsilon_micro,
        "delta_units": str(cost.delta_units),
    }
