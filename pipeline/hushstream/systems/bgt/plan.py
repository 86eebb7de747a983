"""The plan of a deployment on ratings, day by day: whether it is better than each device alone.

*Factors.* Kind B finds a factor if its eigenvalue lies beyond the noise's edge C^2 sqrt(M / rho_B). How large the
eigenvalue is follows from the data; over FilmTrust, MovieLens-100K and a set of a million ratings it was about .0095 U
at C = 1, so ratio = .0095 U / sqrt(M / rho_B): factors helped where it was .8 and above, and hurt at .4 and below.

*Biases.* The server takes the share g = c / (c^2 + (sigma^2 + c s2) / tau0^2) of an item's noised sum, with c its
noised count, and the rest from a fit of popularity; where users are few both are noise. So an estimate has the variance
g^2 (N^2 tau^2 + sigma^2 + N s2), plus that of the fit about its mean over ratings (each user's own offset takes up what
all items have in common), and the covariance g N tau^2 with the bias of an item that N users rated. A device, which has
the variance tau^2 alone, mixes in a share w of the estimate, the best one being w* = covariance / v, with v the
estimate's mean square. It finds w from its own n ratings and 20 that say .8 (`hushstream.systems.bgt.edge.agent.fit`):
so w has the variance n s2 / ((n + 20)^2 v), at most 1/4 as w is from 0 to 1, and is off by 20 (.8 - w*) / (n + 20); v
times the sum of that variance and this square is lost. Where no factors are found, the third slot repeats the first,
and sigma is that of both together.
`ITEM_SPREAD` and `RATING_SPREAD` are those of the datasets. Items are rated with popularity 1 / (rank + 10): variances
are means over ratings, which popular items dominate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from hushstream.engine.declare.plan import DAYS, Audience, Plan, Point, first_day, lives_of, ranged
from hushstream.engine.values import whole
from hushstream.privacy.amounts import count_text
from hushstream.systems.bgt.configuration import LONGEST_VALID_SECONDS, BgtConfig
from hushstream.systems.bgt.edge.agent import PRIOR_RATINGS, PRIOR_WEIGHT
from hushstream.systems.bgt.guarantee import deviation_of, lifetime_guarantee, rho_micro
from hushstream.systems.bgt.records import ROUNDS, slot_bytes

PER_USER = 0.0095
"""Largest eigenvalue of kind B, for each user."""

HELPS, HURTS = 0.8, 0.4
RATING_SPREAD = 0.187
"""Deviation of a rating about the user's and the item's offsets, on the scale from 0 to 1."""

ITEM_SPREAD = 0.1
"""Standard deviation of item offsets over ratings; a device alone does not know them."""

_RANKS = 10.0
_NODES = 15
"""Points of the Gauss-Hermite quadrature over the noise of a count."""

USELESS = 0.008
"""RMSE that public features of items cost where they tell nothing, at the low end of the range: in 80 drawn worlds the
range without it was too high by .007 at most, in 12, and "will" was wrong in one; with it, it held 30 of 30 others."""

LEAST_GAIN = 0.001
"""Least gain in RMSE that counts."""

GAIN = "alone minus this deployment"
"""The name of the gain in RMSE among a plan's values."""

LUCK = 0.15
"""Times 1 / sqrt(number of all ratings): how far one release may lie outside of the range of expected gains. Fitted on
70 drawn worlds of 30 to 200 users with twenty seeds each: of single releases 17 % lay outside without it, 1 % with it.
"""

TYPICAL_RATINGS = 50
"""Number of ratings of a user, by default."""

MOST_SPREAD = 0.25
"""A plan says "will" of items that differ so much that sharing is better up to this deviation of ratings about them."""

_LIKE_FILMS = "Where tastes are as strong as in films"

FACTORS = (1 / 1.5, 1.0, 1.5)
"""The plan is computed for the assumed spread of item offsets times each of these: low (with users who are alike),
expected and high. Datasets differ by 1.41; the rest is the error of the formulas in drawn worlds, a tenth of the gain.
"""


@dataclass(frozen=True, slots=True)
class ExpectedErrors:
    """The expected result of a deployment.

    Attributes:
        local: RMSE of predictions by a device alone, which costs nothing.
        shared: RMSE with the items' biases of kind A.
        ratio: the expected factor's eigenvalue, divided by the largest eigenvalue of the noise (its edge).
    """

    local: float
    shared: float
    ratio: float

    @property
    def gain(self) -> float:
        """Reduction of the RMSE by sharing."""
        return self.local - self.shared

    @property
    def pays(self) -> bool:
        """Whether sharing is better than the device alone."""
        return self.gain >= LEAST_GAIN

    @property
    def factors_text(self) -> str:
        """Whether factors will be found, in words."""
        if self.ratio >= HELPS:
            factors = "factors are likely to be found, and to help"
        elif self.ratio <= HURTS:
            factors = "factors will not be found, and the third report repeats the first"
        else:
            factors = "factors may or may not be found"
        return f"{_LIKE_FILMS}, a factor's eigenvalue is {self.ratio:.2f} times the largest of noise: {factors}"


def expected_errors(
    config: BgtConfig,
    users: int,
    ratings_per_user: int,
    item_spread: float = ITEM_SPREAD,
    alike: bool = False,
    rating_spread: float = RATING_SPREAD,
) -> ExpectedErrors:
    """The forecast for a number of users.

    Args:
        config: of the deployment.
        users: U, the number of users.
        ratings_per_user: typical number of ratings of a user.
        item_spread: standard deviation of item offsets over ratings.
        alike: whether users have equal offsets, so that a device alone that expects the mean rating makes no error, and
            features of items tell nothing (`USELESS`).
        rating_spread: deviation of a rating about the offsets.

    Raises:
        ConfigurationError: a number out of range.
    """
    whole("users", users, 1, 1 << 22)
    whole("ratings_per_user", ratings_per_user, 1, 1 << 16)
    spread, scatter = item_spread**2, rating_spread**2
    own = 0.0 if alike else (scatter + spread) / (ratings_per_user + config.model.lone_ridge)
    rest = remaining_variance(config, users, ratings_per_user, spread, scatter)
    shared = scatter + rest + (scatter + rest) / (ratings_per_user + config.model.lone_ridge)
    useless = USELESS if alike and config.features else 0.0
    return ExpectedErrors((scatter + spread + own) ** 0.5, shared**0.5 + useless, factor_ratio(config, users))


@dataclass(frozen=True, slots=True)
class EnoughUsers:
    """The numbers of users from which on sharing helps.

    Attributes:
        ratings: number of ratings of each user.
        biases: number of users from which on sharing is better than the device alone; None if no possible number is
            enough.
        factors: number of users from which on factors are likely to help.
    """

    ratings: int
    biases: int | None
    factors: int

    @property
    def sentences(self) -> tuple[str, str]:
        """From how many users on biases and factors help, in words."""
        least = ", however many users take part"
        if self.biases is not None:
            least = f" below some {count_text(self.biases, 'user', ',')}"
        return (
            f"Users with {count_text(self.ratings, 'rating')} each: where items differ by {ITEM_SPREAD:g}, "
            f"nothing is gained over the device alone{least}.",
            f"{_LIKE_FILMS}, factors are likely to help from some {count_text(self.factors, 'user', ',')} on.",
        )


def enough_users(config: BgtConfig, ratings: int = TYPICAL_RATINGS) -> EnoughUsers:
    """The required numbers of users if each has a given number of ratings.

    Raises:
        ConfigurationError: a number out of range.
    """
    candidates = (1 << power for power in range(3, 23))
    biases = next((users for users in candidates if expected_errors(config, users, ratings).pays), None)
    return EnoughUsers(ratings, biases, max(1, math.ceil(HELPS / factor_ratio(config, 1))))


def factor_ratio(config: BgtConfig, users: int) -> float:
    """The expected factor's eigenvalue, divided by the noise's edge; see the module."""
    if config.release.noise == "exact":
        return float("inf")
    rho = rho_micro(1, config.release) / 1e6
    return float(PER_USER * users / (config.top / rho) ** 0.5)


def remaining_variance(config: BgtConfig, users: int, ratings_per_user: int, spread: float, scatter: float) -> float:
    """Mean variance of item biases that a device's mixture leaves, over ratings; see the module.

    Args:
        config, users, ratings_per_user: as of `expected_errors`.
        spread: variance of the items' offsets.
        scatter: variance of a rating about the offsets.
    """
    popularity = 1.0 / (np.arange(config.items) + _RANKS)
    popularity /= popularity.sum()
    sent = min(ratings_per_user, config.release.pairs)
    weight = config.release.count_weight**2 + scatter + spread
    # Longer slots are scaled down to the clip.
    shrink = min(1.0, config.release.clip / (sent * weight) ** 0.5)
    counts = np.minimum(users, users * sent * popularity) * shrink
    deviation, model = _deviation(config, users), config.model
    points, chances = hermegauss(_NODES)
    noised = np.maximum(0.0, counts + deviation / config.release.count_weight * points[:, None])
    noise = deviation**2 + noised * model.rating_variance
    taken = noised / np.maximum(noised**2 + noise / model.bias_variance, 1e-9)
    shares = chances[:, None] / chances.sum() * popularity
    known = np.stack([np.ones_like(noised), np.log1p(noised)], axis=-1)
    weights = chances[:, None] / chances.sum() * noised**2 / (noise + noised**2 * model.bias_variance)
    gram = np.einsum("ni,nij,nik->jk", weights, known, known)
    solved = np.linalg.inv(gram + np.eye(2) / model.bias_variance)
    left = (1 - taken * noised)[:, :, None] * known
    left -= (shares[:, :, None] * left).sum(axis=(0, 1))
    guessed = np.einsum("nij,jk,nik->ni", left, solved @ gram @ solved, left)
    size = float((shares * (taken**2 * (counts**2 * spread + deviation**2 + counts * scatter) + guessed)).sum())
    covered = float((shares * taken * counts).sum() * spread)
    return spread - covered**2 / size + _misweighed(ratings_per_user, size, covered, scatter)


def _misweighed(ratings: int, size: float, covered: float, scatter: float) -> float:
    """Mean square that a device adds because it estimates the weight of its mixture; see the module."""
    counted = ratings + PRIOR_RATINGS
    away = PRIOR_RATINGS * (PRIOR_WEIGHT - covered / size) / counted
    return min(ratings * scatter / counted**2, size / 4) + away**2 * size


def _deviation(config: BgtConfig, users: int) -> float:
    """Deviation of the noise on an item's sum: of both copies together where the third slot repeats the first."""
    first, third = (deviation_of(number, "items", config) for number in (0, ROUNDS - 1))
    # Without noise the ratio is infinite.
    return first if factor_ratio(config, users) >= HELPS else (first**-2 + third**-2) ** -0.5


def plan(config: BgtConfig, audience: Audience) -> Plan:
    """The plan for a number of users."""
    model = replace(config.model, valid_seconds=LONGEST_VALID_SECONDS)
    # Devices never send exact sums, so what sharing brings without privacy is that of hosted raters.
    release = replace(config.release, noise="exact")
    exact = BgtConfig(config.deployment, config.items, config.features, config.scale, release, model)

    def users(day: float) -> int:
        return min(1 << 22, int(audience.users / audience.days * day))

    def made(day: float) -> int:
        return max(1, round(audience.visited(day) / audience.reached(1, day)))

    def at(of: BgtConfig, day: float, factor: float) -> ExpectedErrors:
        return expected_errors(of, max(1, users(day)), made(day), factor * ITEM_SPREAD, factor < 1)

    def luck(day: float) -> float:
        return LUCK / math.sqrt(max(1, users(day)) * made(day))

    def gain(day: float, factor: float) -> float:
        return at(config, day, factor).gain + luck(day) * ((factor > 1) - (factor < 1))

    def share(day: float, factor: float) -> float:
        whole = at(exact, day, factor).gain
        return min(1.0, max(0.0, at(config, day, factor).gain / whole)) if whole > 0 and users(day) else 0.0

    last = DAYS[-1]
    end = at(config, last, 1.0)

    def first(factor: float) -> int | None:
        # A lucky release is nothing to count on.
        return first_day(lambda day: users(day) > 0 and gain(day, factor) >= LEAST_GAIN + luck(day) * (factor > 1))

    days = [first(factor) for factor in reversed(FACTORS)]
    will = days[2] is not None
    # At the edge of what "will" says, users alike and ratings that scatter most, drawn worlds gained up to .004 less.
    sure, enough = ((True, MOST_SPREAD), 2 * LEAST_GAIN + luck(last)) if will else ((False, RATING_SPREAD), LEAST_GAIN)
    errors = partial(expected_errors, config, users(last), made(last))
    least = next((one / 100 for one in range(1, 100) if errors(one / 100, *sure).gain >= enough), 1.0)
    beats, verdict = _verdict(days, least)
    return Plan(
        system=config.system,
        measure="RMSE of predictions on a scale from 0 to 1",
        values={
            "each device alone": ranged(lambda factor: at(config, last, factor).local, FACTORS),
            "this deployment": ranged(lambda factor: at(config, last, factor).shared, FACTORS),
            "without privacy": ranged(lambda factor: at(exact, last, factor).shared, FACTORS),
            GAIN: ranged(partial(gain, last), FACTORS),
        },
        beats=beats,
        verdict=verdict,
        points=tuple(Point(day, users(day), ranged(partial(share, day), FACTORS)) for day in DAYS),
        first_day=(days[0], days[1], days[2]),
        unit="users",
        paid="set of three reports",
        noise=(end.factors_text,),
        lives=lives_of(lambda day: min(1, audience.of_one(day)), lambda _: lifetime_guarantee(config).life_prices),
        sizes=_sizes(config),
        assumed=(
            f"item offsets differ by {ITEM_SPREAD:g}, as rated, ratings scatter around user and item by "
            f"{RATING_SPREAD:g}, and popularity falls as 1/(rank + 10), as in FilmTrust and MovieLens",
            "range: item offsets 1.5 times smaller (and users alike, whose own mean says nothing) to 1.5 times larger",
            f"{GAIN}: the range is meant to hold this for one release, lucky or not; RMSEs lie outside theirs where "
            "ratings scatter otherwise (of FilmTrust, .236, not .200), and up to .007 above with few ratings a user",
            *([f"items' features may tell nothing, which costs {USELESS:g} at the low end"] if config.features else []),
            f"{count_text(audience.users, 'user', ',')} come every "
            f"{count_text(audience.days, 'day', 'g')}, evenly, with {count_text(audience.visits, 'rating')} each; "
            "each day's figures are of rounds that an operator ends on that day, with the mean number of ratings that "
            "users have made by then",
        ),
        facts={"factor_ratio": None if math.isinf(end.ratio) else round(end.ratio, 3)},
        notes=enough_users(config, audience.visits).sentences,
    )


def _verdict(days: list[int | None], least: float) -> tuple[bool | None, str]:
    if days[0] is None:
        return False, (
            f"It will not beat own learning (each device alone) within a year where items differ by at most "
            f"{FACTORS[-1] * ITEM_SPREAD:.2f} (of a scale from 0 to 1): RMSE is expected to fall by less than "
            f"{LEAST_GAIN:g}."
        )
    where = f"where users agree about items, and these differ by {least:.2f} or more (deviation, on a scale of 0 to 1)"
    if days[2] is None:
        return None, f"It may or may not beat each device alone; it is expected to beat them {where}."
    mean = f"ratings, whose mean is scale.middle, scatter by at most {MOST_SPREAD:g}, and popularity falls as assumed"
    return True, f"It will beat own learning (each device alone) {where}, {mean}."


def _sizes(config: BgtConfig) -> Mapping[str, str]:
    return {
        "partitions": f"learner {config.partitions.learner}: at most so many workers share the work; one collector",
        "a report": f"{slot_bytes(config):,} bytes, of each user in each of three rounds",
        "memory": "not measured for this system (`hushstream bench` measures others)",
    }
