"""Keyed randomised response: a category is kept or replaced, exactly epsilon-private, without any residue.

The keyed words are whole numbers, so every probability here is a whole number over a power of two. Where the
law with exact exponentials is no such number, the probability of the truth is rounded down until the largest
ratio of two probabilities is at most e^epsilon: the rounding costs usefulness below 2^-40, never privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import Cost, Number, epsilon_micro, epsilon_text, epsilon_value
from hushstream.privacy.bounds import exp_below
from hushstream.privacy.errors import BadNoise
from hushstream.privacy.mechanisms.noise import KeyedStream
from hushstream.privacy.promises.promise import Deployment, Guarantee, Lifetime

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
            relation="replace one value: neighbours differ in one value of one user, any two categories",
            unit="one response of one user",
            cost=one,
            replace_one=one,
            lifetime=Lifetime(responses, devices, life, life),
            sensitivity=1,
            norm="one category against another",
            zone=zone,
            deployment=deployment,
            residue_units=0,
            public_participation=True,
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
