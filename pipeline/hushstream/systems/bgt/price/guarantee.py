"""The guarantee of a BGTplanner deployment for one user; the proof is in `hushstream.systems.bgt.price.sensitivity`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from hushstream.counting.calibration import residue_units
from hushstream.engine.declare.topics import contents_on
from hushstream.engine.noise.exact_sums import exact_guarantee
from hushstream.privacy.amounts import DELTA_ONE, Cost, count_text, delta_units
from hushstream.privacy.conversions import rho_to_epsilon_micro
from hushstream.privacy.mechanisms.gaussian import gaussian_residue
from hushstream.privacy.promises.contents import Content, Form
from hushstream.privacy.promises.promise import Deployment, Guarantee, Lifetime
from hushstream.systems.bgt.configuration import KINDS, UNIT, BgtConfig, Kind
from hushstream.systems.bgt.price.sensitivity import rho_micro, variance_of
from hushstream.systems.bgt.rounds import ROUNDS
from hushstream.systems.bgt.topics import TOPICS

RELATION = "null-slot: neighbours differ in the content of one user's slots, ratings or null"
UNIT_OF_PROMISE = "all slots of one user, one of each kind"
ZONE = "shuffler"

_WORDS = ("no", "one", "two", "three")

_PUBLIC = (
    "that a user sent a slot of each round, with ratings in it or null, and when",
    "how many slots there are, the configuration, and public features of items",
    "what holds for the population, and what follows from it for anyone",
    "slots, from whoever runs the collector or holds its key",
    "a user's own predictions, which follow their own ratings: they and their device see them",
)
_HOSTED = (
    "ratings, from the operator, whose workers make the slots; and what the times of their work show of ratings, from"
    " whoever reads to the millisecond when slots reach the log"
)
_EDGE = "ratings, from whoever controls the device or the application's process"


def epoch_guarantee(config: BgtConfig, rounds: int = ROUNDS) -> Guarantee:
    """The guarantee of the first rounds together for one user; by default of all rounds."""
    deployment: Deployment = config.kind
    if config.release.noise == "exact":
        return exact_guarantee(RELATION, UNIT_OF_PROMISE, 1, ZONE, bgt_contents(config), deployment)
    cost, against = user_cost(config, 1, rounds), user_cost(config, 2, rounds)
    prices = ", ".join(f"{rho_micro(number, config.release) / 1e6:g}" for number in range(rounds))
    which = f"the {_WORDS[ROUNDS]} rounds" if rounds == ROUNDS else f"the first {_WORDS[rounds]} of {ROUNDS} rounds"
    clip, factor_clip = config.release.clip, config.release.factor_clip
    return Guarantee(
        mechanism=f"sums of padded slots of {count_text(config.release.pairs, 'pair')}, clipped in whole numbers to"
        f" {clip:g} (items, pairs) and {factor_clip:g} (factors), with discrete Gaussian noise; rho {prices} for"
        f" {which}",
        relation=RELATION,
        unit=UNIT_OF_PROMISE,
        cost=cost,
        replace_one=against,
        lifetime=Lifetime(1, 1, cost, against),
        sensitivity=math.ceil(clip * UNIT),
        norm="L2 distance of the sums of a round, in units of 2^-20 (of pairs: its square over sqrt 2, in 2^-40)",
        zone=ZONE,
        deployment=deployment,
        residue_units=_residue(config, cost.epsilon_micro, 1, rounds),
        not_protected=(*_PUBLIC, _HOSTED if deployment == "hosted" else _EDGE),
        conditions=(
            "a person has one account: m of them move every sum m times as far, at m^2 times the rho (two: four times)",
        ),
        contents=bgt_contents(config),
        rho_micro=_rho(config, rounds),
    )


def user_cost(config: BgtConfig, times: int, rounds: int = ROUNDS) -> Cost:
    """The price of the first rounds for a user whose slots move sums ``times`` as far as one slot.

    ``times`` is 2 to compare one user's slots with other slots of the same user; the price is then 4 rho.
    """
    epsilon = rho_to_epsilon_micro(times**2 * _rho(config, rounds), _half(config))
    return Cost(epsilon, min(DELTA_ONE, _half(config) + _residue(config, epsilon, times, rounds)))


def changed_cells(kind: Kind, config: BgtConfig) -> int:
    """The number of sums that one slot can change."""
    pairs = config.release.pairs
    most = min(pairs, config.top)
    return {"items": 2 * pairs, "pairs": most * (most - 1) // 2, "factors": pairs * config.release.factors}[kind]


def _rho(config: BgtConfig, rounds: int) -> int:
    return sum(rho_micro(number, config.release) for number in range(rounds))


def _half(config: BgtConfig) -> int:
    """The delta for the conversion of rho; the rest of the configured delta is for the noise tables."""
    return delta_units(config.release.delta) // 2


def _residue(config: BgtConfig, epsilon_micro: int, times: int, rounds: int) -> int:
    """The noise tables' part of delta. The third round may be of either kind; the larger part counts."""
    variation = Fraction(0)
    for number, kind in enumerate(KINDS[:rounds]):
        possible: tuple[Kind, ...] = (kind, "items") if number + 1 == ROUNDS else (kind,)
        variation += max(
            changed_cells(one, config) * gaussian_residue(*variance_of(number, one, config)) for one in possible
        )
    return residue_units(times * variation, epsilon_micro)


TRUSTED = frozenset({"edge", "shuffler"})

_content = contents_on(TOPICS, TRUSTED)


def bgt_contents(config: BgtConfig) -> tuple[Content, ...]:
    """Every topic that holds content of a person, in the order in which data flows."""
    return tuple(_contents(config))


def _contents(config: BgtConfig) -> Iterator[Content]:
    if not config.devices:
        yield _content("ratings", "ratings, with the user's name", Form.CLEAR)
        yield _content("predictions", "predicted ratings of the user who asks", Form.CLEAR)
    yield _content("updates", "slots, without a name", Form.SEALED if config.devices else Form.CLEAR)
    form = Form.CLEAR if config.release.noise == "exact" else Form.NOISED
    yield _content("releases", "sums over all users of a round", form)
    yield _content("models", "biases and factors of items, made of releases alone", form)
    yield _content("rounds", "the next round, made of releases alone", form)
    if config.devices:
        yield _content("statements", "models and the next round, as devices take them", form)
