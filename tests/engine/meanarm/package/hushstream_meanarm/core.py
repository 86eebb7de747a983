"""What is configured, what that promises, and what the machines work from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from hushstream.engine.configuration import LARGEST_EPSILON, PrivacyConfig, undigested_privacy
from hushstream.engine.noise.budget import BudgetFacts
from hushstream.engine.noise.epoch_budget import often
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.system import Core, Priced
from hushstream.engine.values import Checked, Is, check_fields, price, require_deployment, whole
from hushstream.privacy.amounts import Cost, epsilon_micro
from hushstream.privacy.ledger import BasicFilter, Debit
from hushstream.privacy.mechanisms.guarantee import truncation_delta
from hushstream.privacy.mechanisms.noise import NoiseAddress, laplace_scale, truncation
from hushstream.privacy.promises.promise import Content, Form, Guarantee, Lifetime

NAME, MECHANISM, UNIT = "meanarm", "arm sums", "one reward of one user"
RELATION = "zero-out: neighbours differ in what one slot holds, an arm with a reward or nothing"
EDGE, COUNTER, SERVER = "edge", "counter", "server"
SENSITIVITY = 2
"""A slot in place of none moves the count of one arm and its sum of rewards, by 1 each."""


@dataclass(frozen=True, slots=True)
class MeanarmConfig(Checked):
    """A deployment.

    Attributes:
        deployment: its name.
        arms: how many there are.
        epsilon: of one reward.
        window_units: slots that close a window.
        units_per_person: how many rewards of a user count.
        homes: partitions of questions.
        privacy: what the operator says of the promise in words; no digest follows from it.
        system: always ``meanarm``.
    """

    deployment: str
    arms: Annotated[int, Is("arms", whole, 1, 4096)]
    epsilon: Annotated[float, Is("privacy.", price, LARGEST_EPSILON)] = 1.0
    window_units: Annotated[int, Is("release.", whole, 1, 10**6)] = 100
    units_per_person: Annotated[int, Is("privacy.", whole, 1, 1000)] = 10
    homes: Annotated[int, Is("partitions.learner", whole, 1, 64)] = 1
    privacy: PrivacyConfig = undigested_privacy()
    system: str = NAME

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        require_deployment(self.deployment, self.system, NAME)
        check_fields(self)


def guarantee_of(config: MeanarmConfig) -> Guarantee:
    """What noised sums promise of one reward, and of all that count of one user.

    Guarantee:
        A slot in place of none moves two sums by 1 each, so discrete Laplace of scale 2/eps is pure eps-DP; the tables
        are off by r a sum, which adds 2 (1 + e^eps) r. Two rewards reach each other through none: 2 eps, and four sums
        differ. n rewards of one user compose to n times these prices.
    """
    micro, count = epsilon_micro(config.epsilon), config.units_per_person
    error = SENSITIVITY * truncation(*laplace_scale(config.epsilon, SENSITIVITY))
    one, two = (Cost(n * micro, truncation_delta(n * error, n * micro)) for n in (1, 2))
    return Guarantee(
        mechanism=f"{MECHANISM}: slots and rewards of each arm and discrete Laplace noise of 2/{config.epsilon:g}",
        relation=RELATION,
        unit=UNIT,
        cost=one,
        replace_one=two,
        lifetime=Lifetime(count, 1, often(one, count), often(two, count)),
        sensitivity=SENSITIVITY,
        norm="L1 distance of the sums, in slots and rewards",
        zone=COUNTER,
        deployment="hosted",
        truncation_units=one.delta_units,
        not_protected=(
            "that a user asked or sent a reward, and when",
            "rewards, from whoever runs the learner or counter",
        ),
        contents=(
            Content("asks", "who asked, and each reward with the user's name", Form.CLEAR, EDGE, True),
            Content("slots", "each reward with its arm, without a name", Form.CLEAR, COUNTER, True),
            Content("sums", "slots and rewards of each arm, window by window", Form.NOISED, "published", False),
            Content("models", "the mean reward of each arm, made of sums alone", Form.NOISED, "published", False),
            Content("answers", "which arm was shown, made of means alone", Form.NOISED, EDGE, False),
        ),
    )


def priced(config: MeanarmConfig) -> Priced:
    """What rewards promise and cost: a slot is in one window, and all rewards of a user are charged once."""
    promise, count = guarantee_of(config), config.units_per_person
    one = Debit("", MECHANISM, promise.cost, RELATION, UNIT)
    life = Debit("", MECHANISM, promise.lifetime.cost, RELATION, f"{count} rewards of one user")
    terms = SpendingTerms("window", one, 1, life, BasicFilter(life.cost))
    budget = BudgetFacts(None, life.cost, "all rewards of one user", "rewards of a user", count, count, "windows", 1)
    return Priced(promise, (budget,), {"ledger": terms})


class Meanarm(Core[MeanarmConfig]):
    """What the machines of a deployment work from."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of partitions."""
        return {"learners": self.config.homes, "tracks": 1}

    @property
    def scale(self) -> tuple[int, int]:
        """Of the noise of a sum."""
        return laplace_scale(self.config.epsilon, SENSITIVITY)

    def address(self, nonce: bytes, epoch: int, window: int, content: bytes) -> NoiseAddress:
        """What names the noise of a window."""
        parameters = dict(zip(("arms", "numerator", "denominator"), (self.config.arms, *self.scale), strict=True))
        return self.noise_address("release-noise", MECHANISM, parameters, nonce, epoch, 0, window, content)
