"""The guarantee of a counter."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hushstream.counting.calibration import Budget
from hushstream.counting.errors import BadPlan
from hushstream.privacy.mechanisms.guarantee import NOISE_ONCE
from hushstream.privacy.promises.promise import Deployment, Guarantee, Lifetime

LARGEST_LIFE = 1_000_000


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What the two streams of the guarantee differ in.

    Attributes:
        relation: in words.
        unit: in words.
        any_content: True when the plan's sensitivity bounds one content against any other (not only against
            null); then a report against another costs no more than against null.
        leaves: largest number of leaves of one unit. The norms of its moves add up to at most the sensitivity, so by
            the triangle inequality a node's bound is that of one leaf, and only more drawn integers differ.
        step: unit of the sensitivity.
    """

    relation: str = "null-slot: neighbours differ in the content of one event, a report or null"
    unit: str = "one event"
    any_content: bool = False
    leaves: int = 1
    step: str = "lattice units"


def counter_guarantee(
    budget: Budget,
    mechanism: str,
    sensitivity: int,
    norm: str,
    changed_draws: int,
    residue: Fraction,
    neighbours: Neighbours,
    units_in_life: int,
    deployment: Deployment,
    zone: str,
) -> Guarantee:
    """Make a counter's guarantee; see `hushstream.counting.counter` for its proof.

    Raises:
        BadPlan: units out of range.
    """
    if not isinstance(units_in_life, int) or isinstance(units_in_life, bool) or not 1 <= units_in_life <= LARGEST_LIFE:
        raise BadPlan(f"units_in_life: expected a whole number from 1 to {LARGEST_LIFE}, got {units_in_life!r}")
    changed_draws *= neighbours.leaves
    cost = budget.cost(changed_draws, residue)
    life = budget.many(units_in_life, changed_draws, residue)
    within = "one leaf" if neighbours.leaves == 1 else f"at most {neighbours.leaves} leaves"
    return Guarantee(
        mechanism=mechanism,
        relation=neighbours.relation,
        unit=neighbours.unit,
        cost=cost,
        replace_one=cost if neighbours.any_content else budget.twice(changed_draws, residue),
        lifetime=Lifetime(
            units_in_life,
            1,
            life,
            life if neighbours.any_content else budget.many(2 * units_in_life, changed_draws, residue),
        ),
        sensitivity=sensitivity,
        norm=norm,
        zone=zone,
        deployment=deployment,
        residue_units=cost.delta_units - _target_units(budget),
        not_protected=(
            "how many leaves there are, and when each came and was released",
            "what holds for the population, and what follows from it for anyone",
            "the leaves, from whoever runs the counter or holds its key",
        ),
        conditions=(
            f"every unit is in {within}, and moves all of them together by at most the sensitivity",
            NOISE_ONCE,
        ),
        rho_micro=budget.rho_micro,
        public_participation=neighbours.any_content,
    )


def _target_units(budget: Budget) -> int:
    # A budget in rho prints its epsilon at a delta of its own; the tables' part comes on top.
    return budget.cost(0, Fraction(0)).delta_units
