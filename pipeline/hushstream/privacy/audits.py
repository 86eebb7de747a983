"""Audits: lower bounds on epsilon, with a confidence, from attacks on the running mechanism.

Source: Jagielski, Ullman, Oprea 2020 (Auditing Differentially Private Machine Learning). An audit runs a release on two
neighbouring inputs and lets the best attacker guess the input. From the attacker's rates follows a lower bound on
epsilon. The audit fails if this bound exceeds the claim. The event that the attacker looks for is fixed before the
runs, so its rates are plain binomial proportions.

*Laws.* The best that an attacker can reach: exact trade-off curves of the mechanisms under audit.

A pair of laws has the probability of each outcome without and with the unit. By Neyman and Pearson the most powerful
test at a false-alarm rate takes the outcomes with the largest likelihood ratio first, so the curve follows from the
pair. A family is a mechanism at every calibration. The smallest epsilon whose curve reaches an attacker's rates is a
lower bound on the calibration of the mechanism that ran. This finds more than a bound on epsilon alone: for a tree of h
levels, even with half the noise, the best test is far weaker than (epsilon, 0)-DP would allow.

Source: Dong, Roth, Su 2022 (Gaussian Differential Privacy), section 2, for trade-off curves.

*Structure.* What many draws of noise show of their structure: how large each place's noise is, and which places share
some.

A pooled audit sees neither. One place without noise hardly moves the mean of fifty, and one draw that all places share
leaves the law of each as it should be, while every difference between places is exact. So here each place (a cell, a
node of a counter, a coordinate of a user) is compared with the law by itself, and with every other place.

Both tests are exact for every number of draws. The probability of a false alarm is divided among all places and all
pairs (Bonferroni). Source of both bounds: Hoeffding 1963; the first is in `Sizes.lower_bound`.

*Power.* The power of an audit: the least epsilon of a release whose excess over the claim it finds with a stated
probability.

At an epsilon an attacker has certain rates of true and false alarms. In a number of runs these rates are observed
within bounds, with probability `CHANCE`; the audit is computed from these bounds. So the power follows from the exact
curve alone, before any run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from hushstream.privacy.amounts import Cost, delta_value, epsilon_float
from hushstream.privacy.errors import PrivacyError
from hushstream.privacy.mechanisms.tuples import at_least, at_most, working

LAPLACE_STEPS = 16
"""Steps of a shift, if the real lattice is finer; see `laplace_pair`."""

_REACH = 12
_BISECTIONS = 20
_PLANE_REACH = 32
_LENGTH_REACH = 18
_SIDES = 8
_LENGTHS = 60
"""Largest noise, in scales."""
_GRID = 4_000
"""Steps of a grid to which sizes are rounded down."""

Curve = Callable[[float], float]
"""False-alarm rate -> largest rate of true alarms."""


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Two laws over the same outcomes.

    Attributes:
        null: probability of each outcome without the unit, float64 (n,).
        moved: with it.
    """

    null: NDArray[np.float64]
    moved: NDArray[np.float64]
    _false: NDArray[np.float64] = field(init=False, repr=False)
    _true: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse what is no pair of laws, and put its outcomes in the order of the most powerful test.

        Raises:
            PrivacyError: other shapes, or masses that do not sum to 1.
        """
        sums = float(self.null.sum()), float(self.moved.sum())
        if self.null.shape != self.moved.shape or max(abs(total - 1) for total in sums) > 1e-9:
            raise PrivacyError(f"pair of laws: expected two of one shape that sum to 1, got sums {sums}")

        seen = (self.null > 0) | (self.moved > 0)
        null, moved = self.null[seen], self.moved[seen]
        ratio = np.divide(moved, null, out=np.full(len(null), np.inf), where=null > 0)
        order = np.argsort(-ratio, kind="stable")
        object.__setattr__(self, "_false", np.concatenate([[0.0], np.cumsum(null[order])]))
        object.__setattr__(self, "_true", np.concatenate([[0.0], np.cumsum(moved[order])]))

    def power(self, false_rate: float) -> float:
        """The largest probability to see the unit at this false-alarm rate."""
        return float(np.interp(false_rate, self._false, self._true))


@dataclass(frozen=True, slots=True)
class Family:
    """One mechanism at every calibration, with less noise as the setting grows.

    Attributes:
        curve: trade-off curve of a setting.
        epsilon: claimed for a setting, at the delta of the claim.
        smallest: smallest setting of the search; below it the bound is 0.
        largest: largest setting of the search.
    """

    curve: Callable[[float], Curve]
    epsilon: Callable[[float], float]
    smallest: float = 1 / 128
    largest: float = 64.0

    def lower_bound(self, true_rate: Fraction, false_rate: Fraction) -> float:
        """Epsilon of the smallest setting whose curve reaches the rates; 0 if every setting does."""
        return _last(lambda setting: self.curve(setting)(float(false_rate)) < true_rate, self)


def pure(curve: Callable[[float], Curve]) -> Family:
    """A family whose setting is epsilon."""
    return Family(curve, lambda epsilon: epsilon)


def laplace_pair(epsilon: float, draws: int = 1, steps: int = 1) -> Pair:
    """Pair of noised integers, of which ``draws`` move, each by ``steps`` and each at the price epsilon/``draws``.

    An integer's likelihood ratio depends on min(max(z, 0), steps) alone, and logarithms of ratios add over draws.

    A finer lattice than ``steps`` to the shift only helps privacy, so the pair is an upper bound for all multiples of
    ``steps``: a discrete Laplace variable is the difference of two geometric ones, a geometric variable is
    independently its remainder by c and c times a coarser one (`hushstream.privacy.mechanisms.tables`), and so noise
    on the fine lattice is c times that of the coarse one plus something independent of it.
    """
    ratio = math.exp(-epsilon / (draws * steps))
    single = (1 - ratio) / (1 + ratio) * ratio ** np.arange(steps + 1.0)
    single[0] = 1 / (1 + ratio)
    single[-1] = ratio**steps / (1 + ratio)
    total = single
    for _ in range(draws - 1):
        total = np.convolve(total, single)
    return Pair(total, total[::-1].copy())


def gaussian_pair(variance: float, shift: int, draws: int = 1) -> Pair:
    """Integers with discrete Gaussian noise, ``draws`` of which move by ``shift``: their sum decides.

    ``variance`` is the parameter s of P(x) ~ exp(-x^2 / (2 s)). The logarithm of the likelihood ratio is linear in
    each integer, with one slope for all.
    """
    reach = math.ceil(_REACH * math.sqrt(variance)) + shift
    single = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2 * variance))
    single /= single.sum()
    total = single
    for _ in range(draws - 1):
        total = np.convolve(total, single)
    beyond = np.zeros(shift * draws)
    return Pair(np.concatenate([total, beyond]), np.concatenate([beyond, total]))


def gaussian_curve(distance: float) -> Curve:
    """Two normal laws of variance 1 at a distance: the curve of all Gaussian noise on a fine lattice."""
    return lambda false_rate: float(special.ndtr(distance + special.ndtri(false_rate)))


def plane_pair(scale: float, shift: int) -> Pair:
    """Two integers with noise ~ exp(-length/scale), of which the first moves by ``shift``."""
    reach = math.ceil(_PLANE_REACH * scale) + shift
    first, second = np.meshgrid(np.arange(-reach, reach + 1.0), np.arange(-reach, reach + 1.0), indexing="ij")
    null = np.exp(-np.hypot(first, second) / scale).ravel()
    moved = np.exp(-np.hypot(first - shift, second) / scale).ravel()
    return Pair(null / null.sum(), moved / moved.sum())


def length_pair(epsilon: float, dimension: int) -> Pair:
    """A vector with noise ~ exp(-epsilon * length) that moves by 1, on a lattice far finer than that.

    Both laws are symmetric around the axis of the move, so an outcome is its place on that axis and its distance r
    from it, which weighs r^(dimension - 2). Both are summed over the midpoints of squares with a side of an eighth of
    the noise's scale (more for long vectors, whose noise is wider), up to where less than 1e-9 is left: rates are exact
    to 1e-4. A vector of one number is `laplace_pair`'s, of many steps.

    Args:
        epsilon: for the whole vector.
        dimension: coordinates, at least 2.
    """
    root = math.sqrt(dimension)
    per_move = math.ceil(_SIDES * epsilon / max(1.0, root / 4))
    # A length follows a gamma law of mean ``dimension``: this many scales are beyond its tail.
    reach = math.ceil((dimension + 6 * root + _LENGTH_REACH) / epsilon * per_move)
    along = (np.arange(-reach, reach + per_move) + 0.5) / per_move
    away = (np.arange(reach) + 0.5) / per_move
    # In logarithms, as the weights of long vectors leave the range of floats.
    heights = [(dimension - 2) * np.log(away) - epsilon * np.hypot(along[:, None] - move, away) for move in (0.0, 1.0)]
    null, moved = (np.exp(height - height.max()) for height in heights)
    return Pair((null / null.sum()).ravel(), (moved / moved.sum()).ravel())


def sampled_pair(chance: float, others: int, threshold: int) -> Pair:
    """Pair of Bin(others, chance) and Bin(others + 1, chance), where counts below ``threshold`` are shown as 0."""
    laws = []
    for trials in (others, others + 1):
        counts = np.arange(others + 2.0)
        mass = special.comb(trials, counts) * chance**counts * (1 - chance) ** np.maximum(trials - counts, 0)
        hidden = counts < threshold
        laws.append(np.concatenate([[mass[hidden].sum()], mass[~hidden]]))
    return Pair(*laws)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The law of the size of a noise at every calibration; sizes shrink as the setting grows.

    Attributes:
        law: setting -> sizes, and their probabilities.
        family: epsilon of settings, and range of the search.
    """

    law: Callable[[float], tuple[NDArray[np.float64], NDArray[np.float64]]]
    family: Family

    def lower_bound(self, mean_size: float, draws: int, false_alarm: float) -> float:
        """Epsilon of the smallest setting at which such a small mean size is not surprising.

        By Chernoff the mean size of n draws is at most m with probability at most (E exp(-t (size - m)))^n, for every t
        > 0, so any t that the search finds gives a bound.

        Args:
            mean_size: m.
            draws: n, independent.
            false_alarm: probability with which the bound may exceed the true epsilon.
        """
        limit = math.log(false_alarm) / draws

        def surprising(setting: float) -> bool:
            sizes, masses = self.law(setting)
            expected = float(sizes @ masses)
            if expected <= mean_size:
                return False
            beyond = sizes - mean_size

            def exponent(tilt: float) -> float:
                return float(special.logsumexp(-math.exp(tilt) / expected * beyond, b=masses))

            return bool(optimize.minimize_scalar(exponent, bounds=(-12, 4), method="bounded").fun < limit)

        return _last(surprising, self.family)


def lattice_sizes(spread: int, family: Family) -> Sizes:
    """|x| of discrete Laplace noise of scale ``spread``/epsilon, in units of ``spread``."""

    def law(epsilon: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        whole = np.arange(int(_LENGTHS * spread / epsilon) + 2.0)
        masses = np.exp(-whole * epsilon / spread) * np.where(whole > 0, 2, 1)
        return whole / spread, masses / masses.sum()

    return Sizes(law, family)


def gamma_sizes(dimension: int, family: Family) -> Sizes:
    """Lengths of vectors with noise ~ exp(-epsilon * length), on a lattice far finer than 1/epsilon, rounded down.

    With one dimension that is Laplace noise.
    """

    def law(epsilon: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        edges = np.linspace(0, dimension + 8 * math.sqrt(dimension) + _LENGTHS, _GRID)
        return edges / epsilon, np.diff(special.gammainc(dimension, edges), append=1.0)

    return Sizes(law, family)


def half_normal_sizes(rho: float, family: Family) -> Sizes:
    """Sizes of Gaussian noise, on a lattice far finer than it, in units of its deviation at ``rho``; rounded down."""

    def law(setting: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        edges = np.linspace(0, _REACH, _GRID)
        return edges * math.sqrt(rho / setting), np.diff(special.erf(edges / math.sqrt(2)), append=1.0)

    return Sizes(law, family)


def _last(surprising: Callable[[float], bool], family: Family) -> float:
    """Epsilon of the last setting that is surprising."""
    if not surprising(family.smallest):
        return 0.0
    low, high = family.smallest, family.largest
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        if surprising(middle):
            low = middle
        else:
            high = middle
    return family.epsilon(low)


FALSE_ALARM = 1e-6
_LOSS_BISECTIONS = 40
_GUESS = Fraction(1, 1 << 36)
"""Largest error of a guessed confidence bound."""

Attack = Callable[[bool, int], NDArray[np.float64]]
"""(is the unit there, runs) -> scores of that many independent releases, (runs,): above 0 the attacker says yes."""


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of an audit.

    Attributes:
        claimed: the price that the mechanism claims.
        epsilon_lower_bound: epsilon is at least this, except in a false alarm.
        runs: releases on each of the two neighbours.
        false_alarm: largest probability that a mechanism which keeps its claim fails.
        hits: number of runs in which the attacker said yes, with the unit and without it.
        calibrated_lower_bound: the same against the exact trade-off curve: the epsilon to which the mechanism is
            calibrated is at least this. None where no curve was given.
        structure: places that share noise, in words; empty if none were found.
        remark: a sentence beside the verdict.
    """

    claimed: Cost
    epsilon_lower_bound: float
    runs: int
    false_alarm: float
    hits: tuple[int, int]
    calibrated_lower_bound: float | None = None
    structure: str = ""
    remark: str = ""

    @property
    def strongest(self) -> float:
        """The larger of the bounds."""
        return max(self.epsilon_lower_bound, self.calibrated_lower_bound or 0.0)

    @property
    def passed(self) -> bool:
        """Whether the bounds stay within the claim, and no two places share noise."""
        return not self.structure and self.strongest <= epsilon_float(self.claimed.epsilon_micro)


def audit_attack(
    attack: Attack, claimed: Cost, family: Family | None, runs: int, false_alarm: float = FALSE_ALARM
) -> AuditResult:
    """Attack a mechanism on two neighbours, and compute bounds on epsilon.

    Args:
        attack: runs the mechanism and scores what it releases; fixed before the runs.
        claimed: what the mechanism claims.
        family: its exact trade-off curves, or None.
        runs: releases on each neighbour.
        false_alarm: see `AuditResult`.

    Raises:
        PrivacyError: scores of another shape, or NaN.

    Guarantee:
        An audit promises no privacy. A mechanism that keeps its claim, and whose curve lies within that of the
        claimed calibration, fails with probability at most ``false_alarm``: both bounds follow from one pair of
        confidence bounds, each of which is wrong with half of it.
    """
    hits = _hits(attack(True, runs), runs), _hits(attack(False, runs), runs)
    bound = epsilon_lower_bound(*hits, runs, delta_value(claimed.delta_units), false_alarm)
    calibrated = None
    if family is not None:
        true_rate = lower_confidence(hits[0], runs, false_alarm / 2)
        calibrated = family.lower_bound(true_rate, upper_confidence(hits[1], runs, false_alarm / 2))
    return AuditResult(claimed, bound, runs, false_alarm, hits, calibrated)


def audit_sizes(law: Sizes, mean_size: float, claimed: Cost, draws: int, false_alarm: float) -> AuditResult:
    """A bound on the calibration of a noise from the mean size of many draws; see `Sizes.lower_bound`."""
    bound = law.lower_bound(mean_size, draws, false_alarm)
    return AuditResult(claimed, 0.0, draws, false_alarm, (0, 0), bound)


def _hits(scores: NDArray[np.float64], runs: int) -> int:
    if scores.shape != (runs,) or np.isnan(scores).any():
        raise PrivacyError(f"audit: expected {runs} scores, got shape {scores.shape}")
    return int(np.count_nonzero(scores > 0))


def epsilon_lower_bound(true_hits: int, false_hits: int, runs: int, delta: Fraction, false_alarm: float) -> float:
    """The lower bound on epsilon that these hits prove, at confidence 1 - ``false_alarm``.

    Args:
        true_hits: runs with the slot in which the event was seen.
        false_hits: runs without it in which it was seen.
        runs: on each side.
        delta: of the claim.
        false_alarm: probability that the bound is too high.

    Returns:
        At least 0. For a true rate t and a false rate f, (eps, delta)-DP asks t <= e^eps f + delta and
        1 - f <= e^eps (1 - t) + delta; t is at least its lower confidence bound, f at most its upper one.
    """
    true_rate = lower_confidence(true_hits, runs, false_alarm / 2)
    false_rate = upper_confidence(false_hits, runs, false_alarm / 2)
    bounds = [0.0]
    for larger, smaller in ((true_rate - delta, false_rate), (1 - false_rate - delta, 1 - true_rate)):
        if larger > smaller > 0:
            bounds.append(math.log(larger / smaller))
    return max(bounds)


def delta_lower_bound(true_hits: int, false_hits: int, runs: int, epsilon: float, false_alarm: float) -> float:
    """The lower bound on delta at an epsilon that these hits prove; the rest is as in `epsilon_lower_bound`.

    Returns:
        At least 0: the larger of t - e^eps f and 1 - f - e^eps (1 - t) at the confidence bounds.
    """
    true_rate = lower_confidence(true_hits, runs, false_alarm / 2)
    false_rate = upper_confidence(false_hits, runs, false_alarm / 2)
    factor = math.exp(epsilon)
    return max(0.0, true_rate - factor * false_rate, 1 - false_rate - factor * (1 - true_rate))


def lower_confidence(hits: int, runs: int, error: float) -> Fraction:
    """Clopper and Pearson's lower bound: the largest rate that gives ``hits`` or more at most ``error``."""
    if hits == 0:
        return Fraction(0)
    guess = float(special.betaincinv(hits, runs - hits + 1, error))
    return _enclose(lambda rate: at_least(runs, hits, rate) <= error, guess)[0]


def upper_confidence(hits: int, runs: int, error: float) -> Fraction:
    """Clopper and Pearson's upper bound: the smallest rate that gives ``hits`` or fewer at most ``error``."""
    if hits == runs:
        return Fraction(1)
    guess = float(special.betaincinv(hits + 1, runs - hits, 1 - error))
    return _enclose(lambda rate: at_most(runs, hits, rate) > error, guess)[1]


def _enclose(holds: Callable[[Any], bool], guess: float) -> tuple[Fraction, Fraction]:
    """Enclose the largest rate for which a condition holds.

    A guess by floats shortens the search; exact tails decide.
    """
    low, high = Fraction(guess) - _GUESS, Fraction(guess) + _GUESS
    if low > 0 and high < 1 and holds(working(low)) and not holds(working(high)):
        return low, high
    return _bisect(holds)


def _bisect(holds: Callable[[Any], bool]) -> tuple[Fraction, Fraction]:
    """Enclose the largest rate for which a condition holds, to 2^-40: (it holds here, it does not here)."""
    low, high = Fraction(0), Fraction(1)
    for _ in range(_LOSS_BISECTIONS):
        middle = (low + high) / 2
        if holds(working(middle)):
            low = middle
        else:
            high = middle
    return low, high


Name = Callable[[int], str]
"""Number of a place -> its name in words."""


@dataclass(frozen=True, slots=True, eq=False)
class Noises:
    """The noise of many places, as somebody who knows the content can compute it from releases.

    Attributes:
        drawn: float64 or int64 (runs, places); runs are independent, each under its own nonce.
        name: gives the name of a place.
        sizes: of the noise, if several places are one draw (vectors), float64 (runs, draws); else those of ``drawn``.
    """

    drawn: NDArray[np.float64] | NDArray[np.int64]
    name: Name
    sizes: NDArray[np.float64] | None = None


def audit_structure(noises: Noises, law: Sizes | None, claimed: Cost, false_alarm: float = FALSE_ALARM) -> AuditResult:
    """Test the noise of each place against its law, and of each pair of places for independence.

    Args:
        noises: at least two places.
        law: of the size of each place's noise, at every calibration; None to test independence only.
        claimed: claim of the mechanism.
        false_alarm: half of it is for sizes and half for pairs; without a law all of it is for pairs.

    Raises:
        PrivacyError: fewer than two places, or no run.

    Guarantee:
        An audit promises no privacy. Noise of the claimed calibration whose places are independent, and whose law is
        symmetric, fails with probability at most ``false_alarm``: see `smallest_place` and `shared_noise`.
    """
    runs, places = noises.drawn.shape
    if runs < 1 or places < 2:
        raise PrivacyError(f"audit of structure: expected runs of at least two places, got {runs} of {places}")
    bound, share = None, false_alarm
    if law is not None:
        share = false_alarm / 2
        sizes = np.abs(noises.drawn) if noises.sizes is None else noises.sizes
        bound = smallest_place(sizes, law, share)
    pair = shared_noise(noises.drawn, share)
    structure = "" if pair is None else f"{noises.name(pair[0])} and {noises.name(pair[1])} share noise"
    return AuditResult(claimed, 0.0, runs, false_alarm, (0, 0), bound, structure)


def smallest_place(sizes: NDArray[np.float64] | NDArray[np.int64], law: Sizes, false_alarm: float) -> float:
    """The lower bound on epsilon from the place with the least noise, at confidence 1 - ``false_alarm`` for all places.

    With P places each bound is wrong with probability at most ``false_alarm`` / P, whatever the places share.

    Args:
        sizes: of each place's noise, (runs, P).
        law: see `audit_structure`.
        false_alarm: for all places together.
    """
    runs, places = sizes.shape
    return law.lower_bound(float(sizes.mean(axis=0).min()), runs, false_alarm / places)


def shared_noise(drawn: NDArray[np.float64] | NDArray[np.int64], false_alarm: float) -> tuple[int, int] | None:
    """The two places whose signs agree (or differ) in the most surprising number of runs; None if that may be chance.

    Where both are above or below 0, the signs of independent noise, one of which is symmetric, are equal with
    probability one half. So of n such runs the number of agreements less that of disagreements is beyond s in size with
    probability at most 2 exp(-s^2 / 2n) for each pair (Hoeffding).
    """
    signs = np.sign(drawn).astype(np.float32)
    agreed, counted = signs.T @ signs, np.abs(signs).T @ np.abs(signs)
    surprise = np.divide(agreed**2, 2 * counted, out=np.zeros_like(agreed), where=counted > 0)
    np.fill_diagonal(surprise, 0)
    first, second = divmod(int(surprise.argmax()), len(surprise))
    return (first, second) if surprise[first, second] > surprise_limit(len(surprise), false_alarm) else None


def surprise_limit(places: int, false_alarm: float) -> float:
    """How large s^2 / 2n of some pair may be by chance; see `shared_noise`."""
    return math.log(places * (places - 1) / false_alarm)


CHANCE = 0.9
"""Probability of finding an excess, where a power is stated."""

_HALVINGS = 10
"""Halvings of the ratio between the largest setting of a family and the claimed one; the precision is 3 % for a ratio
of a thousand."""
_SETTINGS = 40
_SPLITS = 32
_TIE = 1e-12
"""Differences below this are roundings."""

Rates = Callable[[float], tuple[float, float]]
"""Setting of a family -> rates of true and of false alarms of the attack."""


def attack_power(
    family: Family, claimed: float, runs: int, false_alarm: float, rates: Rates | None = None, chance: float = CHANCE
) -> float | None:
    """The least epsilon above the claim that `audit_attack` finds with probability ``chance``.

    Args:
        family: exact curves of the attack.
        claimed: epsilon.
        runs: on each of two neighbours.
        false_alarm: of the audit.
        rates: of the attack; those of the likelihood ratio above 1 unless given.
        chance: probability of finding it.

    Returns:
        None if it finds no setting of the family.
    """
    # Below its smallest setting a family has no curve, and the audit's bound is 0.
    rates, claim = rates or balanced_rates(family), max(family.smallest, setting_of(family, claimed))
    # Both rates come out as badly as this with the probability that is left.
    miss = (1 - chance) / 2

    def found(setting: float) -> bool:
        # Sums of masses may be above 1 by a rounding.
        true_rate, false_rate = (min(1.0, rate) for rate in rates(setting))
        few = int(stats.binom.ppf(miss, runs, true_rate))
        many = int(stats.binom.ppf(1 - miss, runs, false_rate))
        seen = lower_confidence(few, runs, false_alarm / 2)
        return family.curve(claim)(float(upper_confidence(many, runs, false_alarm / 2))) < seen

    return _least(found, family, claim)


def size_power(law: Sizes, claimed: float, draws: int, false_alarm: float, chance: float = CHANCE) -> float | None:
    """The least epsilon above the claim that `audit_sizes` finds with probability ``chance``.

    The mean of so many sizes is taken for normal, which that of some thousands is.
    """

    def found(setting: float) -> bool:
        sizes, masses = law.law(setting)
        mean = float(sizes @ masses)
        spread = math.sqrt(max(0.0, float(sizes**2 @ masses) - mean**2) / draws)
        unlucky = mean + float(stats.norm.ppf(chance)) * spread
        return law.lower_bound(unlucky, draws, false_alarm) > claimed

    return _least(found, law.family, setting_of(law.family, claimed))


def balanced_rates(family: Family) -> Rates:
    """Rates of the attacker who says yes where the likelihood ratio is above 1: there they are the furthest apart."""

    def rates(setting: float) -> tuple[float, float]:
        curve = family.curve(setting)
        low, high = 0.0, 1.0
        # Curves are concave, so what lies above the diagonal has one maximum: of equally far ones the first, as this
        # attacker says no where the likelihood ratio is 1.
        for _ in range(_SPLITS):
            first, second = low + (high - low) / 3, high - (high - low) / 3
            if curve(first) - first < curve(second) - second - _TIE:
                low = first
            else:
                high = second
        return curve(high), high

    return rates


def reaching(levels: int) -> Rates:
    """Rates of the attacker on one sum with Laplace noise who says yes where it reaches all ``levels`` of the unit."""

    def rates(epsilon: float) -> tuple[float, float]:
        pair = laplace_pair(epsilon, 1, levels)
        return float(pair.moved[-1]), float(pair.null[-1])

    return rates


def setting_of(family: Family, epsilon: float) -> float:
    """The largest setting that is sold for at most this epsilon, to some 1e-9 of it."""
    low, high = family.smallest / 1024, family.largest
    for _ in range(_SETTINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if family.epsilon(middle) <= epsilon else (low, middle)
    return low


def _least(found: Callable[[float], bool], family: Family, claim: float) -> float | None:
    low, high = claim, family.largest
    if not found(high):
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if found(middle) else (middle, high)
    return family.epsilon(high)
