"""The tests of the table of audits, one for each statistic, each with its power.

* `NeighbourTest`: two neighbouring recordings; the attacker decides by a score, and its rates bound epsilon.
* `SizeTest`: the mean size of many draws of a noise.
* `PlacesTest`: the noise of every place of a role's releases, each by itself and against all others.
* `ForkTest`: the same between the branches of a journal that was rolled back.

`hushstream.replay.audits.work` has a fifth one, of times. The power is the smallest fault that a test finds with
probability `CHANCE` at its runs: an epsilon above the claim by the exact curve of the attacked noise; the share of runs
in which a leak shows the unit, where no noise protects it; the share of runs in which two places share noise.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from hushstream.engine.noise.epoch_budget import EPOCH_NONCE_BYTES
from hushstream.privacy.amounts import Cost, delta_value, epsilon_float
from hushstream.privacy.audits import (
    CHANCE,
    Attack,
    AuditResult,
    Family,
    Noises,
    Pair,
    Rates,
    Sizes,
    attack_power,
    audit_attack,
    audit_sizes,
    audit_structure,
    epsilon_lower_bound,
    size_power,
    surprise_limit,
)
from hushstream.replay.audits.readings import Unmixed
from hushstream.replay.audits.recordings import AS_IT_WAS, BRANCHES, Branch, fresh_nonce


class Test(Protocol):
    """A test of a release that takes a number of runs, and a false-alarm rate."""

    @property
    def claimed(self) -> Cost:
        """The cost that the release claims."""

    def __call__(self, runs: int, false_alarm: float, /) -> AuditResult:
        """Run the test with this many releases on each of two neighbours."""

    def power(self, result: AuditResult, /) -> str:
        """The smallest fault that the test of this result finds."""


@dataclass(frozen=True, slots=True, eq=False)
class NeighbourTest:
    """A test of two neighbouring inputs.

    Attributes:
        attack: the attack on the release.
        claimed: the cost that the release claims.
        family: the exact trade-off curves of the attacked noise; None where there is none, or no closed form.
        rates: rates of the attack, where it does not decide by a likelihood ratio above 1.
    """

    attack: Attack
    claimed: Cost
    family: Family | None = None
    rates: Rates | None = None

    def __call__(self, runs: int, false_alarm: float) -> AuditResult:
        """Run the attack."""
        return audit_attack(self.attack, self.claimed, self.family, runs, false_alarm)

    def least(self, runs: int, false_alarm: float, chance: float = CHANCE) -> float | None:
        """The least epsilon above the claim that is found with this probability; None for none, or without curves."""
        claim = epsilon_float(self.claimed.epsilon_micro)
        return None if self.family is None else attack_power(self.family, claim, runs, false_alarm, self.rates, chance)

    def power(self, result: AuditResult) -> str:
        """The least epsilon, or without curves the least share of runs in which a leak shows the unit."""
        if self.family is not None:
            return least_text(self.least(result.runs, result.false_alarm))
        share = least_leak(self.claimed, result.runs, result.false_alarm)
        return "-" if share is None else f"a leak in {100 * share:.2f} % of runs"


def least_leak(claimed: Cost, runs: int, false_alarm: float) -> float | None:
    """The least rate of a leak that shows the unit, and never shows one that is not there, which the bounds find."""
    claim, delta = epsilon_float(claimed.epsilon_micro), delta_value(claimed.delta_units)
    few, enough = 0, runs + 1
    while enough - few > 1:
        middle = (few + enough) // 2
        exceeds = epsilon_lower_bound(middle, 0, runs, delta, false_alarm) > claim
        few, enough = (few, middle) if exceeds else (middle, enough)
    # The rate at which so many runs, or more, show it with probability `CHANCE`.
    return None if enough > runs else float(stats.beta.ppf(CHANCE, enough, runs - enough + 1))


def least_text(least: float | None) -> str:
    """The power of a test against an epsilon."""
    return "-" if least is None else f"epsilon {least:.3g}"


def sure_rates(pair: Callable[[float], Pair], sure: float, epsilon: float) -> Rates:
    """Rates of an attacker who says yes where the log likelihood ratio at the noise of ``epsilon`` is above ``sure``.

    The score weighs what was seen by the scale of that noise; with Laplace noise of another epsilon the true logarithm
    is larger in proportion.
    """

    def rates(other: float) -> tuple[float, float]:
        found = pair(other)
        seen = found.moved > found.null * math.exp(sure * other / epsilon)
        return float(found.moved[seen].sum()), float(found.null[seen].sum())

    return rates


Score = Callable[[bool], float]
"""A function of whether the unit is present; it returns the score of one release under noise of its own."""


def each_run(score: Score) -> Attack:
    """Make an attack from the score of one run."""

    def attack(present: bool, runs: int) -> NDArray[np.float64]:
        return np.fromiter((score(present) for _ in range(runs)), dtype=np.float64, count=runs)

    return attack


def side_by_side(scores: Callable[[bool], NDArray[np.float64]], width: int) -> Attack:
    """Make an attack from the scores of ``width`` independent runs under one nonce."""

    def attack(present: bool, runs: int) -> NDArray[np.float64]:
        parts = [scores(present) for _ in range(-(-runs // width))]
        return np.concatenate(parts)[:runs]

    return attack


Read = Callable[[], NDArray[np.float64]]
"""Begins journals, and returns what was drawn in some runs."""


@dataclass(frozen=True, slots=True, eq=False)
class SizeTest:
    """A test of the mean size of many draws of a noise without content.

    Attributes:
        read: returns the sizes of some independent draws, (n,), in the unit of the law.
        claimed: the cost that the noise claims.
        law: the distribution of sizes at every calibration.
    """

    read: Read
    claimed: Cost
    law: Sizes

    def __call__(self, draws: int, false_alarm: float) -> AuditResult:
        """Draw at least as often, and compare the mean size."""
        parts = [self.read()]
        while sum(map(len, parts)) < draws:
            parts.append(self.read())
        sizes = np.concatenate(parts)
        return audit_sizes(self.law, float(sizes.mean()), self.claimed, len(sizes), false_alarm)

    def least(self, draws: int, false_alarm: float, chance: float = CHANCE) -> float | None:
        """The least epsilon above the claim whose noise is found with this probability."""
        return size_power(self.law, epsilon_float(self.claimed.epsilon_micro), draws, false_alarm, chance)

    def power(self, result: AuditResult) -> str:
        """The least epsilon whose noise is found."""
        return least_text(self.least(result.runs, result.false_alarm))


# The noise of every place, also after restarts. The content is known and the same everywhere (slots hold null, rewards
# are 0), so the releases are the noise; single draws of a counter are computed from them
# (`hushstream.replay.audits.readings`). Several partitions have the same journal nonce, which can happen in a
# deployment; their noise must still differ. If places are users, cells or partitions, every run is a journal of its
# own. If places are the draws of one counter, its users or cells count as runs, too, as another audit shows that they
# share no noise.

PARTITIONS = 2

LEAVES = 63
"""Leaves of a counter whose single draws are computed; more than any round number at which a mutant may start."""

Axes = Mapping[str, Sequence[object]]
"""The axes of places, outermost first: name of an axis -> its labels."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacesTest:
    """A test of the noise that ``read`` returns: (width, *axes), or with ``solved`` (width, leaves, *axes).

    With ``solved`` the places are the draws behind a counter's releases. A release has a sum of draws that are all
    symmetric with one mode. Such a sum is stochastically at least as large as one of the draws (Anderson 1955), so the
    size of each release is compared with the distribution of a draw, too.

    Attributes:
        read: begins journals, and returns the noise of some runs.
        axes: the axes of places.
        law: the distribution of a place's size; None tests independence alone. That of ``solved`` if given.
        claimed: the cost that the noise claims.
        solved: computes the draws of a counter.
        vectors: whether the last axis is one draw.
    """

    read: Read
    axes: Axes
    law: Sizes | None
    claimed: Cost
    solved: Unmixed | None = None
    vectors: bool = False

    @classmethod
    def of_draws(cls, read: Read, solved: Unmixed, axes: Axes, claimed: Cost, vectors: bool = False) -> PlacesTest:
        """A test of the draws behind a counter's releases."""
        return cls(read, {"draw": range(solved.draws), **axes}, solved.law, claimed, solved, vectors)

    def __call__(self, runs: int, false_alarm: float) -> AuditResult:
        """Read the noise, and test each place and each pair of places."""
        read = self._gathered(runs)
        if self.solved is None:
            return audit_structure(Noises(read.reshape(runs, -1), self._name), self.law, self.claimed, false_alarm)
        releases = np.moveaxis(read, 1, 0)
        draws, scaled = self.solved(releases), (releases.T / self.solved.spreads).T
        sizes = [np.linalg.norm(part, axis=-1) if self.vectors else np.abs(part) for part in (draws, scaled)]
        each = np.concatenate([_by_run(part) for part in sizes], axis=1)
        return audit_structure(Noises(_by_run(draws), self._name, each), self.law, self.claimed, false_alarm)

    def power(self, result: AuditResult) -> str:
        """The least epsilon of one place's noise, and the least share of runs in which two places share theirs."""
        shared = self.least_shared(result.runs, result.false_alarm)
        found = "-" if shared is None else f"noise shared in {shared:.0%} of runs"
        if self.law is None:
            return found
        return f"{least_text(self.least(result.runs, result.false_alarm))} in a place, {found}"

    def least(self, runs: int, false_alarm: float, chance: float = CHANCE) -> float | None:
        """The least epsilon above the claim that is found in each place with this probability; None without a law."""
        if self.law is None:
            return None
        sizes = self._places
        if self.solved is not None:
            sizes = sizes // self.solved.draws * (self.solved.draws + len(self.solved.spreads))
        claim = epsilon_float(self.claimed.epsilon_micro)
        return size_power(self.law, claim, runs, false_alarm / 2 / sizes, chance)

    def least_shared(self, runs: int, false_alarm: float, chance: float = CHANCE) -> float | None:
        """The least share of runs, in per cent, in which two places must share noise to be found with this probability.

        In the other runs their signs agree by chance, half of the time. Noise is taken to be nowhere 0.
        """
        limit = surprise_limit(self._places, false_alarm if self.law is None else false_alarm / 2)
        for percent in range(1, 101):
            agreed = float(stats.binom.ppf(1 - chance, runs, (1 + percent / 100) / 2))
            if max(0.0, 2 * agreed - runs) ** 2 / (2 * runs) > limit:
                return percent / 100
        return None

    @property
    def _places(self) -> int:
        return math.prod(map(len, self.axes.values()))

    def _name(self, place: int) -> str:
        labels = [[f"{axis} {label}" for label in names] for axis, names in self.axes.items()]
        return ", ".join(list(product(*labels))[place])

    def _gathered(self, runs: int) -> NDArray[np.float64]:
        """Read ``runs`` runs, from as many journals as needed."""
        parts = [self.read()]
        parts += [self.read() for _ in range(-(-runs // len(parts[0])) - 1)]
        return np.concatenate(parts)[:runs]


def _by_run(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """From (draws, runs, ...) to (runs, places)."""
    return np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)


Play = Callable[[Branch, bytes], NDArray[np.float64]]
"""(branch, nonce of the journal) -> noise of the releases, (runs, places)."""


@dataclass(frozen=True, slots=True, eq=False)
class ForkTest:
    """A test of the releases of one role in the branches of a journal that was rolled back.

    Three branches continue one genesis record: the original one, one in which an event has another content, and one in
    which an event has the same content under another id. The known content is subtracted, so the noise remains.
    Branches that share noise would reveal the exact difference of contents. With equal contents under other ids they
    would confirm a guess. A worker that suspects a rollback requests an epoch (`Machine.request_epoch`); nothing else
    protects noise that is drawn ahead of its content. So the other branches begin with such a request. It has no effect
    where ids and contents are part of the noise address.

    Cells, users or features of one release count as runs here, as other audits show that they share no noise.

    Attributes:
        system: the system of the role.
        role: the role that draws the noise.
        play: plays a branch, under one key.
        price: the price of one branch; a fork costs that of two.
        places: how many places each branch has.
    """

    system: str
    role: str
    play: Play
    price: Cost
    places: int = 1

    def __call__(self, runs: int, false_alarm: float) -> AuditResult:
        """Audit that branches share no noise with one another."""
        return self._of_places(runs, false_alarm)

    def power(self, result: AuditResult) -> str:
        """The least share of runs in which two branches share noise."""
        return self._of_places.power(result)

    def least_shared(self, runs: int, false_alarm: float, chance: float = CHANCE) -> float | None:
        """As of `PlacesTest`, of two branches."""
        return self._of_places.least_shared(runs, false_alarm, chance)

    @property
    def claimed(self) -> Cost:
        """The cost of a branch and a fork of it."""
        return self.price + self.price

    @property
    def _of_places(self) -> PlacesTest:
        axes = {"branch": [branch.name for branch in BRANCHES], "place": range(self.places)}
        return PlacesTest(self._branches, axes, None, self.claimed)

    def _branches(self) -> NDArray[np.float64]:
        """The noise of each of `BRANCHES`, (runs, branches, places); each but the first requests an epoch."""
        nonce = fresh_nonce()
        others = (self.play(requesting_epoch(branch), nonce) for branch in BRANCHES[1:])
        return np.stack([self.play(AS_IT_WAS, nonce), *others], axis=1)


def requesting_epoch(branch: Branch) -> Branch:
    """The same branch with a request for an epoch."""
    return replace(branch, epoch_nonce=os.urandom(EPOCH_NONCE_BYTES))


def columns(noise: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
    """The noise of one place in all runs, in the form of `Play`."""
    return np.asarray(noise, dtype=np.float64).reshape(-1, 1)
