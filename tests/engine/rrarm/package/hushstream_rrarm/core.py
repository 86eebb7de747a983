"""What is configured, what that promises, and what the machine works from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from hushstream.engine.configuration import LARGEST_EPSILON, PrivacyConfig, undigested_privacy
from hushstream.engine.noise.budget import BudgetFacts
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.system import Core, Priced
from hushstream.engine.values import Checked, Is, check_fields, price, require_deployment, whole
from hushstream.privacy.ledger import BasicFilter, Debit
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.privacy.mechanisms.tuples import RandomisedResponse
from hushstream.privacy.promises.promise import Content, Form, Guarantee

NAME, MECHANISM, UNIT, EDGE = "rrarm", "randomised response", "one reward of one user", "edge"


@dataclass(frozen=True, slots=True)
class RrarmConfig(Checked):
    """A deployment.

    Attributes:
        deployment: its name.
        arms: how many there are.
        epsilon: of one reward.
        units_per_person: how many rewards of a user count.
        homes: partitions of questions.
        privacy: what the operator says of the promise in words; no digest follows from it.
        system: always ``rrarm``.
    """

    deployment: str
    arms: Annotated[int, Is("arms", whole, 1, 4096)]
    epsilon: Annotated[float, Is("privacy.", price, LARGEST_EPSILON)] = 1.0
    units_per_person: Annotated[int, Is("privacy.", whole, 1, 1000)] = 10
    homes: Annotated[int, Is("partitions.learner", whole, 1, 64)] = 1
    privacy: PrivacyConfig = undigested_privacy()
    system: str = NAME

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        require_deployment(self.deployment, self.system, NAME)
        check_fields(self)


def guarantee_of(config: RrarmConfig) -> Guarantee:
    """What responses promise of one reward, and of all that count of one user.

    Guarantee:
        See `RandomisedResponse.draw`: exact epsilon for one reward against the other; n rewards of a user compose. The
        arms that later users are shown follow from responses alone.
    """
    response = RandomisedResponse.of(2, config.epsilon)
    contents = (
        Content("asks", "who asked, and each reward with the user's name", Form.CLEAR, EDGE, True),
        Content("reports", "a response in place of each reward, with its arm", Form.NOISED, "published", False),
        Content("answers", "which arm was shown, which follows from responses", Form.NOISED, EDGE, False),
    )
    return replace(response.guarantee(config.units_per_person, deployment="hosted", zone=EDGE), contents=contents)


def priced(config: RrarmConfig) -> Priced:
    """Each response is charged for itself, and a user's rewards together once: users compose in parallel."""
    promise, count = guarantee_of(config), config.units_per_person
    one = Debit("", MECHANISM, promise.cost, promise.relation, UNIT)
    life = Debit("", MECHANISM, promise.lifetime.cost, promise.relation, f"{count} rewards of one user")
    terms = SpendingTerms("window", one, 1, life, BasicFilter(life.cost))
    budget = BudgetFacts(None, life.cost, "all rewards of one user", "rewards of a user", count, count, "rewards", 1)
    return Priced(promise, (budget,), {"ledger": terms})


class Rrarm(Core[RrarmConfig]):
    """What the machine of a deployment works from."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of partitions."""
        return {"learners": self.config.homes}

    @property
    def response(self) -> RandomisedResponse:
        """The law of a response to a reward of 0 or 1."""
        return RandomisedResponse.of(2, self.config.epsilon)

    def address(self, nonce: bytes, epoch: int, partition: int, number: int, content: bytes) -> NoiseAddress:
        """What names the noise of one response: its place, and a digest of its event and its content."""
        parameters = {"arms": self.config.arms, "epsilon_micro": self.response.epsilon_micro}
        return self.noise_address("response", MECHANISM, parameters, nonce, epoch, partition, number, content)
