"""The forecast of a deployment before anything runs: whether sharing is better than nodes that learn alone.

Information is measured in records of a sum without noise. A sum over T records of one counter adds up T gradients of
norm 1, under noise of energy n (sigma f)^2, so it has information T^2 / (T + n (sigma f)^2). D counters have D times
that. One of M nodes that learns alone has T D / M. So sharing is better if M T > T + n (sigma f)^2, that is from T* = n
sigma^2 f^2 / (M - 1) records of a counter on. Let each node have a counter, so M = D. Then the gain by the records of
the other D - 1 counters, as a share of the gain without noise, is (D a - 1) / (D - 1) with a = T / (T + n (sigma f)^2).

This compares information at the end of a stream, with noise of equal weight in all n coordinates. For the mean accuracy
over a whole stream, two effects move the crossing T* in opposite directions:

* A node alone has already learned before the first sum is useful. Where accuracy grows with the logarithm of
  information, its mean over a stream is equal where the mean over u from 0 to 1 of log(M u / (u + r)), r = n (sigma
  f)^2 / T, is 0. That is log M = (1 + r) log(1 + r) - r log r, so r = M / e for large M: at e T*.
* A score reads only the coordinates of its record. Noise of deviation s on each of them adds s^2 |x|^2 to the variance
  of the score, and the T records themselves add T sum_j c_j^2, with c_j the variance of x_j (these sum up to about 1).
  So 1 / sum_j c_j^2 takes the place of n: 157 instead of 501 words of TMC2007, and 1,660 instead of 10,000 synthetic
  features.

Crossings in replays (64 nodes, K = 32, delta 1e-6) lie on both sides of T*: on TMC2007 with 447 records a node sharing
begins to beat isolated nodes at epsilon 2.4, where T* is 130; at 10,000 features with 1,562 records at epsilon 1.7,
where T* is 5,200. No correction fits both, so T* is used without one. It is right within a factor of four if all nodes
see records of the same kind. If a node's records have features that no other node has (for instance shops with their
own customers), other records do not help with these features, but their noise is added all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hushstream.privacy.amounts import Cost, count_text, epsilon_text
from hushstream.systems.pdol.algorithm.counters import noise_of
from hushstream.systems.pdol.configuration import UNIT, PdolConfig
from hushstream.systems.pdol.errors import PdolError
from hushstream.systems.pdol.guarantee import person_cost

WORST = 4.0
"""Largest factor between T* and the crossing in replays: 3.4 (later) on TMC2007, 3.3 (earlier) at 10,000 features."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The expected gain by sharing.

    Attributes:
        crossing: T*, number of records of a counter from which sharing is better than nodes that learn alone; None if
            never, because there is only one node.
        expected: T, expected number of records of a counter.
        gain: share that is left of the gain of a central learner without noise, from 0 to 1.
        gains: `gain` if the crossing is `WORST` times later, and if it is as much earlier.
        person: joint price of all records of one person at a node.
        private_features: share of a record's squared norm, on average, in features that its own node alone has.
    """

    crossing: float | None
    expected: float
    gain: float
    gains: tuple[float, float]
    person: Cost
    private_features: float

    @property
    def beats_isolated(self) -> bool | None:
        """Whether sharing is better; None if it is too close to say."""
        if self.crossing is None:
            return False
        if self.expected >= WORST * self.crossing and self.private_features < _MOSTLY:
            return True
        return False if self.expected * WORST <= self.crossing or self.private_features >= _MOSTLY else None

    @property
    def verdict(self) -> str:
        """The forecast as the end of a sentence about sharing."""
        if self.beats_isolated is None:
            return "may or may not beat isolated nodes"
        return "will beat isolated nodes" if self.beats_isolated else "will not beat isolated nodes"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "crossing_records": self.crossing,
            "expected_records": self.expected,
            "share_of_central_gain": self.gain,
            "share_of_central_gain_within": list(self.gains),
            "private_features": self.private_features,
            "verdict": self.verdict,
            "person_epsilon": epsilon_text(self.person.epsilon_micro),
        }

    def as_text(self) -> str:
        """Lines of text."""
        where = "never" if self.crossing is None else f"from {count_text(self.crossing, 'record', ',.0f')} a counter on"
        lines = [
            f"Sharing {self.verdict}: it pays {where}, and {self.expected:,.0f} are expected.",
            f"Of what a central learner would gain over isolated nodes, about {100 * self.gain:.0f} % is left "
            f"({100 * self.gains[0]:.0f} to {100 * self.gains[1]:.0f} %, as far as the crossing is known).",
            f"The guarantee for all records of one person at a node, against none: {self.person}.",
        ]
        if self.private_features:
            lines.append(
                f"{100 * self.private_features:.0f} % of a record is in features that no other node has: nothing is"
                " learned of these from others."
            )
        return "\n".join(lines) + "\n"


_MOSTLY = 0.25
"""From this share of a record in features of its node alone on, sharing was never better, at any epsilon up to 8."""


def advise(config: PdolConfig, records_per_node: float, private_features: float = 0.0) -> Advice:
    """The forecast for the sound form.

    Args:
        config: of the sound form, with noise.
        records_per_node: number of records of each node, a public estimate.
        private_features: see `Advice`; 0 if all nodes see records of the same kind.

    Raises:
        PdolError: another form, or impossible estimates.
    """
    if not (records_per_node > 0 and 0 <= private_features <= 1):
        raise PdolError("advice: expected records above 0 and a share from 0 to 1")
    person = person_cost(config, [config.records.records_per_user])
    noise = config.records.dimension * noise_of(config.sharing, config.records.dimension).variance / (UNIT * UNIT)
    counters, alone = config.domains, records_per_node
    here = records_per_node * config.nodes / counters
    # The information in all counters together is compared with that of one node's own records.
    others = config.nodes - 1
    if others == 0:
        return Advice(None, here, 0.0, (0.0, 0.0), person, private_features)

    def gain(energy: float) -> float:
        shared = counters * here * here / (here + energy)
        return min(1.0, max(0.0, (shared - alone) / (alone * others)))

    within = gain(WORST * noise), gain(noise / WORST)
    return Advice(noise / others, here, gain(noise), within, person, private_features)
