"""The report on the shadow lift: what the answers would earn, compared with what the application showed.

It is made from released counts alone. For each item a, of N decisions in all: W_a decisions answered a, in G_a of these
the application showed a, too, and r_a is the rate of reward there. Assume that among visits with the answer a, the
application's choice does not depend on what these visits would have rewarded. Then the answers earn sum W_a / N r_a: a
self-normalised estimate (SNIPS) whose propensities are the rates of agreement, by item. An item that was answered and
hardly ever shown may earn anything from 0 to 1, and the interval is wider by that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import count_text, epsilon_text
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.lift import NORMAL_95, SUMS, ShareCounts, decisions_more, smoothed
from hushstream.systems.p2b.reports.lift_report import newest_releases

_BASIS = (
    "This assumes that, among visits with the same answer, the application's choice did not depend on what these "
    "visits would have rewarded. The 95 % hold however alike the decisions of one user are. "
    "A doubly robust estimate needs an export, inside the edge zone."
)


@dataclass(frozen=True, slots=True)
class ShadowLift:
    """The lift of the answers for each decision.

    Attributes:
        decisions: noised number of counted decisions.
        agreed: noised number of those whose answer was shown.
        earned: mean reward of what was shown.
        unseen: share of answers whose items were shown too rarely where they were answered.
        lift: the estimate, in which unseen items earn as much as what was shown; None if too few answers were shown to
            distinguish it from the noise.
        interval: the 95 % interval of the lift; None if there is no lift.
    """

    decisions: float
    agreed: float
    earned: float
    unseen: float
    lift: float | None
    interval: tuple[float, float] | None

    @property
    def certain(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval is not None and not self.interval[0] <= 0.0 <= self.interval[1]

    @property
    def decisions_more(self) -> int | None:
        """How many more decisions are needed until the interval excludes 0, if the lift stays.

        None if that is unknown, or if no number of decisions is enough.
        """
        if self.lift is None or self.interval is None:
            return None
        # Unseen items stay unseen, however many decisions come.
        unseen = self.unseen * (self.earned if self.lift > 0 else 1.0 - self.earned)
        reach = self.lift - self.interval[0] if self.lift > 0 else self.interval[1] - self.lift
        seen = max(0.0, abs(self.lift) - unseen)
        return decisions_more(self.decisions, seen, reach - unseen)


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """The lift in the shadow, and the releases that it was computed from.

    Attributes:
        found: the figures.
        releases: number of releases of all counters together.
        epsilon_micro: the most epsilon that one user has spent on it.
        private_as_stated: False if a release was made under a seeded key.
    """

    found: ShadowLift
    releases: int
    epsilon_micro: int
    private_as_stated: bool

    @property
    def exit_code(self) -> int:
        """0 if the interval excludes 0; 1 if it does not yet."""
        return 0 if self.found.certain else 1

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys; null if too little was shown."""
        found = self.found
        return {
            "decisions": found.decisions,
            "agreed": found.agreed,
            "earned": found.earned,
            "unseen": found.unseen,
            "lift_snips": found.lift,
            "interval": None if found.interval is None else list(found.interval),
            "certain": found.certain,
            "decisions_more": found.decisions_more,
            "releases": self.releases,
            "epsilon_micro": self.epsilon_micro,
            "private_as_stated": self.private_as_stated,
        }

    def as_text(self) -> str:
        """The figures, one a line."""
        found = self.found
        lines = [] if self.private_as_stated else ["REPRODUCIBLE, NOT PRIVATE"]
        lines.append(
            f"About {max(0.0, found.decisions):.0f} decisions in the shadow; in {max(0.0, found.agreed):.0f} the "
            f"application showed what was answered."
        )
        if found.lift is None or found.interval is None:
            lines.append("Too little was shown to distinguish the lift from the noise: continue.")
        else:
            low, high = found.interval
            lines += [
                f"What was shown earned {found.earned:.4f} a decision.",
                f"Lift of the answers (SNIPS): {found.lift:+.4f} a decision, 95 % within {low:+.4f} to {high:+.4f}.",
                *_verdict(found),
            ]
        lines.append(_BASIS)
        price = f"epsilon {epsilon_text(self.epsilon_micro)}"
        lines.append(f"From {count_text(self.releases, 'release')}; together they cost one user {price}.")
        return "\n".join(lines) + "\n"


def _verdict(found: ShadowLift) -> Iterable[str]:
    if found.unseen >= 0.005:
        yield (
            f"{100 * found.unseen:.0f} % of the answers are items that were hardly ever shown to those who were "
            f"answered them: what these would earn is unknown, and the interval covers every possibility."
        )
    if found.certain:
        more = found.lift is not None and found.lift > 0
        yield f"The answers would bring {'more' if more else 'less'} than what is shown."
    elif found.decisions_more is None:
        yield "More decisions alone would not show a lift: let some visits see other items than you show now."
    else:
        yield f"About {found.decisions_more} decisions more until the interval excludes 0, if the lift stays."


def shadow_of(newest: Iterable[ShareCounts], decisions_per_user: int) -> ShadowLift:
    """The lift from the newest release of each counter.

    A user has at most m decisions over all items. So the sum over decisions of w_a (reward - r_a), with
    w_a = W_a / (N G_a), has at most m times the variance of independent decisions (Cauchy-Schwarz within a user).

    Args:
        newest: (sums (4 items,), variance of each, levels).
        decisions_per_user: m.
    """
    total, variance = None, 0.0
    for sums, noise, levels in newest:
        part = np.asarray(sums, dtype=np.float64).reshape(-1, SUMS) / levels
        total = part if total is None else total + part
        variance += noise / levels**2
    if total is None:
        raise HushstreamError("shadow: expected at least one release, got none")
    agreed, answered = total[:, :2].sum(axis=1), total.sum(axis=1)
    decisions = float(answered.sum())
    earned = float(total[:, 0].sum() + total[:, 2].sum()) / decisions if decisions > 0 else 0.0
    needed = max(1.0, 3 * math.sqrt(2 * variance))
    seen = agreed > needed
    if decisions <= max(1.0, 3 * math.sqrt(total.size * variance)) or not seen.any():
        return ShadowLift(decisions, float(agreed.sum()), earned, 1.0, None, None)
    return _estimated(total, seen, decisions, min(1.0, max(0.0, earned)), variance, decisions_per_user)


def _estimated(
    total: NDArray[np.float64],
    seen: NDArray[np.bool_],
    decisions: float,
    earned: float,
    variance: float,
    decisions_per_user: int,
) -> ShadowLift:
    agreed, shares = total[:, :2].sum(axis=1), total.sum(axis=1) / decisions
    rates = np.where(seen, np.divide(total[:, 0], agreed, out=np.full(len(total), earned), where=seen), earned)
    unseen = min(1.0, max(0.0, 1.0 - float(shares[seen].sum())))
    value = float(shares[seen] @ rates[seen]) + unseen * earned
    chances = smoothed(rates[seen], agreed[seen], decisions_per_user)
    sampling = float((shares[seen] ** 2 * chances * (1 - chances) / agreed[seen]).sum())
    sampling += float((shares[seen] * (rates[seen] - value) ** 2).sum()) / decisions
    chance = float(smoothed(np.array([earned]), np.array([decisions]), decisions_per_user)[0])
    sampling += chance * (1 - chance) / decisions
    slopes = _slopes(total, seen, shares, rates, decisions, value, earned)
    half = NORMAL_95 * math.sqrt(decisions_per_user * sampling + variance * float((slopes**2).sum()))
    lift = value - earned
    interval = (lift - half - unseen * earned, lift + half + unseen * (1.0 - earned))
    return ShadowLift(decisions, float(agreed.sum()), earned, unseen, lift, interval)


def _slopes(
    total: NDArray[np.float64],
    seen: NDArray[np.bool_],
    shares: NDArray[np.float64],
    rates: NDArray[np.float64],
    decisions: float,
    value: float,
    earned: float,
) -> NDArray[np.float64]:
    """How the lift moves with each sum (items, 4), to first order."""
    slopes = np.repeat(((rates - value) / decisions)[:, None], SUMS, axis=1)
    within = np.divide(shares, total[:, :2].sum(axis=1), out=np.zeros(len(total)), where=seen)
    slopes[:, 0] += within * (1 - rates)
    slopes[:, 1] -= within * rates
    slopes -= np.array([1 - earned, -earned, 1 - earned, -earned]) / decisions
    return slopes


def read_shadow(values: Iterable[bytes], system: P2BSystem) -> ShadowReport:
    """The lift of a deployment's answers in the shadow.

    Args:
        values: the bytes of the records on the lift's topic.
        system: the deployment.

    Raises:
        HushstreamError: nothing was released yet.
    """
    counted = system.config.counted
    assert counted is not None, "who releases nothing has no such view"
    found = newest_releases(values, system, counted)
    counts = ((np.frombuffer(f["sums"], "<i8"), f["variance"], f["levels"]) for f in found)
    return ShadowReport(
        shadow_of(counts, counted.decisions_per_user),
        sum(fields["leaf"] for fields in found),
        max(fields["epsilon_micro"] for fields in found),
        all(fields["private_as_stated"] for fields in found),
    )
