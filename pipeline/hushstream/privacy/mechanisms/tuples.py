"""Exact (epsilon, delta) of the paper's release: sampled tuples, crowds below a threshold withheld.

The mechanism: every report of a closed window is kept with probability p, secretly; per whole tuple (code,
action, reward level) the kept reports are counted; a count of at least ``threshold`` is emitted, any other
shows as 0. Neighbours (zero-out) differ in m slots of one user, null or a report of one cell v. All other
cells have the same law and are independent, so the privacy loss is that of T(B + Bin(m, p)) against T(B),
B ~ Bin(n, p), T(k) = k if k >= l else 0, for the n other reports of cell v, and n is whatever is worst.

Which n is worst. Write Q_n = Bin(n, p), P_n = Bin(n+m, p), E = e^eps, and the likelihood ratio
R_n(k) = P_n(k)/Q_n(k) = prod_{j=1..m} (1-p)(n+j)/(n+j-k), infinite for k > n. It increases in k and, for
fixed k, decreases in n to (1-p)^m. Let h(n) be the hockey-stick divergence without threshold; adding one
Bernoulli(p) to both sides turns the pair of n into that of n+1, so h never increases (post-processing).

* Forward, sum [P - E Q]+. The bottom outcome 0 (k < l) never counts: the further slots can only make it
  rarer. While R_n(l-1) > E, every k >= l counts and delta_n = f(n) = P_n(>= l) - E Q_n(>= l). Since Bin(n+1)
  reaches l if Bin(n) does, or if Bin(n) = l-1 and one more comes, f(n+1) - f(n) = p (P_n(l-1) - E Q_n(l-1))
  > 0. From the first n* with R_n(l-1) <= E on, all k that count are >= l, so delta_n = h(n), which never
  increases. The worst n is n*.
* Backward, sum [Q - E P]+. Zero if E (1-p)^m >= 1. Otherwise: 1/R_n(k) decreases in k and increases in n.
  While 1/R_n(l-1) <= E only the bottom outcome can count, delta_n = [g(n)]+ with g(n) = Q_n(< l) - E P_n(< l)
  and g(n+1) - g(n) = p (E P_n(l-1) - Q_n(l-1)) >= 0. From the first n** with 1/R_n(l-1) > E on, the bottom
  outcome holds only k that count, so delta_n is h of this direction, which never increases. The worst n is
  n**.

So both suprema are single evaluations. c reports injected by an adversary whom the coin does not touch shift
the count by c: the threshold in effect is l - c, and from c >= l - 1 on there is none.

*Binomial.* Binomial tails at 448 bits, for exact accounting and exact confidence bounds.

Every value is off by less than 2^-240 in absolute terms: single terms come from log-gamma (relative error
under 2^-330 for n < 2^60), sums run away from the mode, where terms shrink, and stop below 2^-320.

*Response.* Keyed randomised response: a category is kept or replaced, exactly epsilon-private, without any truncation
error.

The keyed words are whole numbers, so every probability here is a whole number over a power of two. Where the
law with exact exponentials is no such number, the probability of the truth is rounded down until the largest
ratio of two probabilities is at most e^epsilon: the rounding costs usefulness below 2^-40, never privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import DELTA_ONE, MICRO, Cost, Number, epsilon_micro, epsilon_text, epsilon_value, exact
from hushstream.privacy.conversions import context, exp_below, log_above, to_fraction
from hushstream.privacy.errors import BadAmount, BadNoise
from hushstream.privacy.mechanisms.noise import KeyedStream, coin_probability, probability_units
from hushstream.privacy.promises.promise import Deployment, Guarantee, Lifetime

LARGEST_TRIALS = 1 << 60
_CONTEXT = context(448)
_NEGLIGIBLE = _CONTEXT.ldexp(1, -320)


def working(value: Fraction | int) -> Any:
    """A rational as a number of 448 bits."""
    exact = Fraction(value)
    return _CONTEXT.mpf(exact.numerator) / exact.denominator


def probability_of(trials: int, successes: int, chance: Any) -> Any:
    """P(Bin(trials, chance) = successes), ``chance`` strictly between 0 and 1."""
    if not 0 <= successes <= trials:
        return _CONTEXT.zero
    ways = _CONTEXT.loggamma(trials + 1) - _CONTEXT.loggamma(successes + 1) - _CONTEXT.loggamma(trials - successes + 1)
    return _CONTEXT.exp(ways + successes * _CONTEXT.log(chance) + (trials - successes) * _CONTEXT.log(1 - chance))


def at_least(trials: int, successes: int, chance: Any) -> Any:
    """P(Bin(trials, chance) >= successes)."""
    if successes > (trials + 1) * chance:
        return _upper(trials, successes, chance)
    return 1 - _lower(trials, successes - 1, chance)


def at_most(trials: int, successes: int, chance: Any) -> Any:
    """P(Bin(trials, chance) <= successes)."""
    if successes < (trials + 1) * chance:
        return _lower(trials, successes, chance)
    return 1 - _upper(trials, successes + 1, chance)


def _upper(trials: int, first: int, chance: Any) -> Any:
    """Sum from ``first``, at or above the mode, upwards."""
    term = probability_of(trials, first, chance)
    total = _CONTEXT.zero
    odds = chance / (1 - chance)
    for successes in range(first, trials + 1):
        total += term
        term = term * odds * (trials - successes) / (successes + 1)
        if term < _NEGLIGIBLE:
            break
    return total


def _lower(trials: int, last: int, chance: Any) -> Any:
    """Sum from ``last``, at or below the mode, downwards."""
    term = probability_of(trials, last, chance)
    total = _CONTEXT.zero
    odds = (1 - chance) / chance
    for successes in range(last, -1, -1):
        total += term
        term = term * odds * successes / (trials - successes + 1)
        if term < _NEGLIGIBLE:
            break
    return total


LARGEST_THRESHOLD = 10_000_000
SMALLEST_SAMPLING = Fraction(1, 1_000_000)
_LARGEST_EPSILON = Fraction(64)
"""Above it the delta of 64 is returned: still an upper bound, since delta falls as epsilon grows."""

_SLACK = Fraction(1, 1 << 100)
"""Added before rounding up; the sums are off by less than e^64 * 2^-240."""


def curve_epsilon(p: Number) -> Fraction:
    """-ln(1-p), the paper's epsilon at crowd-blending epsilon 0 (its Figure 3), rounded up to millionths.

    Gehrke et al. 2012 have ln(p (2-p)/(1-p) e^0 + 1 - p), and p (2-p) + (1-p)^2 = 1.

    Raises:
        BadAmount: p is not in [1e-6, 1).
    """
    chance = _sampling(p)
    return Fraction(math.ceil(log_above(1 / (1 - chance)) * MICRO), MICRO)


def exact_delta(threshold: int, p: Number, epsilon: Number, slots_of_user: int = 1, injected: int = 0) -> Fraction:
    """Smallest delta for which the release is (epsilon, delta)-DP, rounded up to a multiple of 2^-80.

    Args:
        threshold: l, the smallest count that is emitted.
        p: the sampling probability; rounded up to a multiple of 2^-64, as the coin is.
        epsilon: of the guarantee.
        slots_of_user: m, slots of the protected user in one crowd.
        injected: c, reports of the same cell that an adversary adds unsampled (a coin thrown at the edge).

    Raises:
        BadAmount: a setting out of range.

    Guarantee:
        (epsilon, delta) for the content of ``slots_of_user`` slots, null against a report (zero-out
        relation), for every number and content of other reports, provided that every report of the crowd but
        the ``injected`` ones was sampled secretly with probability p. Proof: the module's docstring. Reports
        that others choose adaptively change nothing: given them, n is a number.
    """
    _whole("threshold", threshold, 1, LARGEST_THRESHOLD)
    _whole("slots_of_user", slots_of_user, 1, 1_000_000)
    _whole("injected", injected, 0, LARGEST_THRESHOLD)
    rate = exact(epsilon, "epsilon")
    if rate < 0:
        raise BadAmount(f"epsilon: expected a number >= 0, got {epsilon!r}")
    return _exact_delta(max(1, threshold - injected), _sampling(p), min(rate, _LARGEST_EPSILON), slots_of_user)


@lru_cache(maxsize=4096)
def _exact_delta(threshold: int, chance: Fraction, epsilon: Fraction, slots: int) -> Fraction:
    # Delta falls as e^epsilon grows, so a lower bound of e^epsilon gives an upper bound of delta.
    factor = exp_below(epsilon)
    pair = _Pair(working(chance), working(factor), slots)
    worst = max(pair.forward(threshold), pair.backward(threshold, vanishes=factor * (1 - chance) ** slots >= 1))
    bound = max(to_fraction(worst), Fraction(0)) + _SLACK
    return min(Fraction(1), Fraction(math.ceil(bound * DELTA_ONE), DELTA_ONE))


def smallest_threshold(p: Number, epsilon: Number, delta: Number, slots_of_user: int = 1) -> int:
    """The smallest threshold whose exact delta is at most ``delta``.

    A higher threshold is post-processing of a lower one, so delta never rises with it and bisection is exact.

    Raises:
        BadAmount: no threshold up to 10,000,000 suffices (at epsilon 0 delta falls like 1/sqrt(l) only), or a
            setting is out of range.
    """
    target = exact(delta, "delta")
    if not 0 < target < 1:
        raise BadAmount(f"delta: expected a number above 0 and below 1, got {delta!r}")

    def enough(threshold: int) -> bool:
        return exact_delta(threshold, p, epsilon, slots_of_user) <= target

    if not enough(LARGEST_THRESHOLD):
        raise BadAmount(f"threshold: expected one up to {LARGEST_THRESHOLD} to reach the delta, got none")
    high = 1
    while not enough(high):
        high = min(2 * high, LARGEST_THRESHOLD)
    return _first(enough, high // 2 + 1, high)


class _Pair:
    """The two laws Bin(n, p) and Bin(n+m, p), compared at the factor E = e^epsilon."""

    __slots__ = ("chance", "factor", "slots")

    def __init__(self, chance: Any, factor: Any, slots: int) -> None:
        self.chance = chance
        self.factor = factor
        self.slots = slots

    def exceeds(self, trials: int, count: int) -> bool:
        """P_n(count) > E Q_n(count)."""
        return count > trials or bool(self._ratio(trials, count) > self.factor)

    def falls_short(self, trials: int, count: int) -> bool:
        """Q_n(count) > E P_n(count)."""
        return count <= trials and bool(self._ratio(trials, count) * self.factor < 1)

    def forward(self, threshold: int) -> Any:
        """Worst sum of [P - E Q]+ over the number of other reports."""
        trials = _first_from(threshold - 1, lambda n: not self.exceeds(n, threshold - 1))
        count = _first(lambda k: self.exceeds(trials, k), threshold, max(threshold, trials + 1))
        above = at_least(trials, count, self.chance) if count <= trials else 0
        return at_least(trials + self.slots, count, self.chance) - self.factor * above

    def backward(self, threshold: int, vanishes: bool) -> Any:
        """Worst sum of [Q - E P]+ over the number of other reports; ``vanishes`` when E (1-p)^m >= 1."""
        if vanishes:
            return working(0)
        trials = _first_from(threshold - 1, lambda n: self.falls_short(n, threshold - 1))
        # Beyond 2^60 reports the bottom outcome has probability below e^-10^5: the slack covers it.
        last = _first(lambda k: not self.falls_short(trials, k), threshold, trials + 1) - 1
        below = at_most(trials + self.slots, last, self.chance)
        return at_most(trials, last, self.chance) - self.factor * below

    def _ratio(self, trials: int, count: int) -> Any:
        """R_n(count) for count <= n."""
        ratio = (1 - self.chance) ** self.slots
        for extra in range(1, self.slots + 1):
            ratio = ratio * (trials + extra) / (trials + extra - count)
        return ratio


def _first_from(start: int, holds: Callable[[int], bool]) -> int:
    """The first number from ``start`` on where a condition holds that never ceases to; at most about 2^60."""
    step = 1
    while not holds(start + step - 1) and step < LARGEST_TRIALS:
        step *= 2
    return _first(holds, start + step // 2, start + step - 1)


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The first number in [low, high] where a monotone condition holds; ``high`` if it is taken to."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _sampling(p: Number) -> Fraction:
    chance = coin_probability(probability_units(p))
    if not SMALLEST_SAMPLING <= chance < 1:
        raise BadAmount(f"sampling probability: expected at least 1e-6 and below 1, got {p!r}")
    return chance


def _whole(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadAmount(f"{name}: expected a whole number from {low} to {high}, got {value!r}")


WORD_ONE = 1 << 64
LARGEST_CATEGORIES = 1 << 20
LARGEST_EPSILON = 40
"""Beyond it a lie is rarer than 2^-57 and the 64-bit coin no longer tells epsilons apart."""

_LOW = np.uint64(0xFFFF_FFFF)
_HALF = np.uint64(32)


@dataclass(frozen=True, slots=True)
class RandomisedResponse:
    """The law of a response over k categories.

    Attributes:
        categories: k, from 2 to 2^20.
        epsilon_micro: epsilon in millionths.
        keep_units: probability of the truth in units of 2^-64; every lie shares the rest.
    """

    categories: int
    epsilon_micro: int
    keep_units: int

    @classmethod
    def of(cls, categories: int, epsilon: Number) -> RandomisedResponse:
        """The most truthful response that is epsilon-private.

        Raises:
            BadNoise: fewer than 2 or more than 2^20 categories, or epsilon not above 0 and at most 40.
            BadAmount: epsilon is no number.
        """
        if not isinstance(categories, int) or isinstance(categories, bool) or not 2 <= categories <= LARGEST_CATEGORIES:
            raise BadNoise(f"categories: expected a whole number from 2 to {LARGEST_CATEGORIES}, got {categories!r}")
        micro = checked_epsilon(epsilon)
        others = categories - 1
        # The rarest lie has floor(2^64 / (k-1)) of the 2^64 words.
        rarest = Fraction(WORD_ONE // others, WORD_ONE)
        ratio = exp_below(epsilon_value(micro)) * rarest
        return cls(categories, micro, math.floor(WORD_ONE * ratio / (1 + ratio)))

    @property
    def truth(self) -> Fraction:
        """Probability of the truth."""
        return Fraction(self.keep_units, WORD_ONE)

    @property
    def lie(self) -> Fraction:
        """Probability of each other category; single ones differ from it by at most a relative 2^-44."""
        return (1 - self.truth) / (self.categories - 1)

    def draw(self, stream: KeyedStream, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Respond once for every value.

        Args:
            stream: the keyed words of these responses; two words for each value, whatever it holds.
            values: int64 (n,), each in 0..k-1.

        Returns:
            int64 (n,). The responses to the first n values do not depend on later ones.

        Raises:
            BadNoise: another type or shape, or a value that is no category; nothing was drawn.

        Source: Warner 1965; Kairouz, Bonawitz, Ramage 2016 (k-ary).

        Guarantee:
            Computational, against parties without the key. Pure epsilon for replacing one value by any other: a
            response has probability at most max(p, l+) and at least min(p, l-) under any value, where p is the
            truth's and l-, l+ are the rarest and most frequent lie's probability. `of` makes p <= e^eps l-, with p
            the largest such whole number of 2^-64. Both other ratios, l+ to l- and l+ to p, are at most 1 + 2^-42,
            and the smallest epsilon is 10^-6.
        """
        require_within(values, self.categories - 1, "responses")
        words = stream.words(2 * len(values), "randomised-response", self.categories, self.epsilon_micro)
        pairs = words.reshape(-1, 2)
        lie = _multiply_high(pairs[:, 1], self.categories - 1).astype(np.int64)
        lie += lie >= values
        return np.where(pairs[:, 0] < np.uint64(self.keep_units), values, lie)

    def counts(self, responses: NDArray[np.int64]) -> NDArray[np.float64]:
        """Unbiased estimates of how many values were in each category, float64 (k,); they may be negative."""
        require_within(responses, self.categories - 1, "responses")
        seen = np.bincount(responses, minlength=self.categories)
        truth, lie = float(self.truth), float(self.lie)
        return np.asarray((seen - len(responses) * lie) / (truth - lie), dtype=np.float64)

    def variance(self, share: float = 0.0) -> float:
        """Variance that one value adds to the estimate of a category which a ``share`` of all values have."""
        truth, lie = float(self.truth), float(self.lie)
        return (share * truth * (1 - truth) + (1 - share) * lie * (1 - lie)) / (truth - lie) ** 2

    def guarantee(
        self, responses: int = 1, devices: int = 1, deployment: Deployment = "edge", zone: str = "edge"
    ) -> Guarantee:
        """The guarantee of one response, and of all ``responses`` of one person on ``devices`` devices."""
        one, life = Cost(self.epsilon_micro), Cost(responses * devices * self.epsilon_micro)
        return Guarantee(
            mechanism=f"randomised response over {self.categories} categories, epsilon"
            f" {epsilon_text(self.epsilon_micro)}, drawn once for each value",
            relation="replace-one: neighbours differ in one value of one user, any two categories",
            unit="one response of one user",
            cost=one,
            replace_one=one,
            lifetime=Lifetime(responses, devices, life, life),
            sensitivity=1,
            norm="one category against another",
            zone=zone,
            deployment=deployment,
            truncation_units=0,
            any_content=True,
            not_protected=(
                "that a user responded, and when",
                "what holds for the population, and what follows from it for anyone",
            ),
        )


def checked_epsilon(epsilon: Number) -> int:
    """Epsilon of a response in millionths.

    Raises:
        BadNoise: not above 0 and at most `LARGEST_EPSILON`.
        BadAmount: no number.
    """
    micro = epsilon_micro(epsilon)
    if not 0 < epsilon_value(micro) <= LARGEST_EPSILON:
        raise BadNoise(f"epsilon: expected above 0 and at most {LARGEST_EPSILON}, got {epsilon!r}")
    return micro


def require_within(values: NDArray[np.int64], largest: int, what: str) -> None:
    """Refuse what is not a row of whole numbers in 0..``largest``; the message repeats no value.

    Raises:
        BadNoise: see above.
    """
    if values.dtype != np.int64 or values.ndim != 1:
        raise BadNoise(f"{what}: expected int64 of shape (n,), got {values.dtype} {values.shape}")
    if values.size and (values.min() < 0 or values.max() > largest):
        raise BadNoise(f"{what}: expected whole numbers from 0 to {largest}, got others")


def _multiply_high(words: NDArray[np.uint64], below: int) -> NDArray[np.uint64]:
    """floor(word * below / 2^64) for below <= 2^20, in 64-bit arithmetic that cannot wrap."""
    factor = np.uint64(below)
    carry = ((words & _LOW) * factor) >> _HALF
    return np.asarray(((words >> _HALF) * factor + carry) >> _HALF, dtype=np.uint64)
