"""Running sums of features times reward, one block for each user, and the guarantee of their releases.

The relation matrix is applied later, to the released sums. So a reward moves only its own user's d numbers, by at most
the length of its features, for any matrix. (Algorithm 1 of the paper adds noise to the projected sum of d*N numbers
instead, whose sensitivity depends on the matrix.) For one reward, all users' blocks together cost the same as one block
(parallel composition).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from hushstream.counting import (
    BinaryTree,
    Budget,
    BufferedToeplitz,
    Concentrated,
    HonakerTree,
    Neighbours,
    Plan,
    PureEpsilon,
    PureLength,
    best_tree,
)
from hushstream.engine.declare.topics import contents_on
from hushstream.engine.noise.exact_sums import exact_guarantee
from hushstream.privacy.mechanisms.guarantee import OPEN_IN
from hushstream.privacy.mechanisms.rewards import LocalReward
from hushstream.privacy.promises.contents import Content, Form
from hushstream.privacy.promises.promise import Guarantee
from hushstream.systems.colin.configuration import GRID_BITS, ContinualConfig, FeatureConfig
from hushstream.systems.colin.topics import TOPICS

_MARGIN = 1 + 2.0**-30
"""Relative margin of the sensitivity: above that of `short_enough`, and too small to change the noise visibly."""

NEIGHBOURS = Neighbours(
    relation="replace one reward: neighbours differ in one reward of one user, any two values in [0, 1]",
    unit="one reward",
    any_content=True,
    step=f"units of 2^-{GRID_BITS} of a feature times a reward",
)
NOT_PROTECTED = (
    "contexts, features of arms, which arm was shown, the relation graph, and when anything happened (all public)",
    "how many rewards each user has given",
    OPEN_IN["hosted"],
)
"""The learners of a collaborative deployment are workers of its operator, whoever adds the noise."""
_LOST_LEARNERS = (
    "no operator accepts the loss of a learner's journal (`--accept-loss`): the next journal sends its rewards again in"
    " other batches, and the counter counts them again; after k losses a reward may have cost k + 1 times its price"
)


def budget_of(release: ContinualConfig) -> Budget:
    """The configured price, in the form that the counter's calibration takes."""
    if release.noise == "laplace":
        return PureEpsilon(release.epsilon)
    if release.noise == "k-norm":
        return PureLength(release.epsilon)
    return Concentrated.for_epsilon(release.epsilon, release.delta)


def lattice_sensitivity(features: FeatureConfig, norm: str) -> int:
    """Largest change of a sum by one reward, in units of 2^-`GRID_BITS`, rounded up; see `Rows.lattice`."""
    length = features.l1_bound if norm == "L1" else features.norm
    return math.ceil(length * _MARGIN * (1 << GRID_BITS))


@lru_cache(maxsize=64)
def plan_of(release: ContinualConfig, features: FeatureConfig) -> Plan:
    """The counter of one user's block.

    Raises:
        BadPlan: no counter has these settings.
    """
    budget, horizon, dimension = budget_of(release), release.leaves, features.dimension
    sensitivity = lattice_sensitivity(features, budget.norm)
    if release.mechanism == "negative-digit":
        return best_tree(budget, horizon, dimension, sensitivity)
    kinds: Mapping[str, type[Plan]] = {"binary": BinaryTree, "honaker": HonakerTree, "blt": BufferedToeplitz}
    kind = kinds[release.mechanism]
    return kind(budget=budget, dimension=dimension, sensitivity=sensitivity, horizon=horizon)


@lru_cache(maxsize=64)
def counter_epoch_guarantee(release: ContinualConfig, features: FeatureConfig, nodes: int) -> Guarantee:
    """The guarantee of a counter's releases in one epoch, for one reward and for all rewards of one user."""
    plan = plan_of(release, features)
    zone = "counter" if release.noise_at == "server" else "edge"
    promise = plan.guarantee(NEIGHBOURS, release.rewards_per_user, "hosted", zone)
    # Before the graph is prepared, the number of users is not known.
    users = "" if nodes == 1 else f"{nodes} users, "
    return replace(
        promise,
        mechanism=f"{users}every reward in one user's counter, each: {promise.mechanism}",
        not_protected=(*NOT_PROTECTED, *promise.not_protected),
        conditions=(*promise.conditions, *((_LOST_LEARNERS,) if release.noise_at == "server" else ())),
    )


def local_reward_of(release: ContinualConfig) -> LocalReward:
    """How one reward is noised: the law of smaller variance for the configured levels and epsilon."""
    return LocalReward.of(release.reward_levels, release.epsilon)


@lru_cache(maxsize=64)
def mean_variance(plan: Plan) -> float:
    """Mean variance of a counter's noise over its horizon, in squared units of the reward."""
    return plan.rmse() ** 2 / float(1 << (2 * GRID_BITS))


@lru_cache(maxsize=64)
def epoch_guarantee(release: ContinualConfig, features: FeatureConfig, nodes: int) -> Guarantee:
    """The guarantee of the releases in one noise epoch, for one reward and for all rewards of one user."""
    return _mechanism_guarantee(release, features, nodes).with_contents(collaborative_contents(release))


def _mechanism_guarantee(release: ContinualConfig, features: FeatureConfig, nodes: int) -> Guarantee:
    if release.mechanism == "exact":
        contents, neighbours = collaborative_contents(release), (NEIGHBOURS.relation, NEIGHBOURS.unit)
        exact = exact_guarantee(*neighbours, release.rewards_per_user, "counter", contents)
        return replace(exact, public_participation=True)
    if release.mechanism == "noisy-reward":
        return _noisy_reward_guarantee(release)
    return counter_epoch_guarantee(release, features, nodes)


def _noisy_reward_guarantee(release: ContinualConfig) -> Guarantee:
    promise = local_reward_of(release).guarantee(release.rewards_per_user, deployment="hosted")
    return replace(promise, not_protected=(*NOT_PROTECTED, *promise.not_protected))


TRUSTED = frozenset({"edge", "counter"})

_content = contents_on(TOPICS, TRUSTED)


def collaborative_contents(release: ContinualConfig) -> tuple[Content, ...]:
    """Every topic that holds content of a person, in the order in which data flows."""
    return (*_edge(), *_released(release))


def _edge() -> Iterator[Content]:
    yield _content("contexts", "features of the arms on offer, with the user's name", Form.PUBLIC)
    yield _content("clicks", "what a user was shown and how it was rewarded, with the user's name", Form.CLEAR)
    yield _content("decisions", "the arm decided for each event id", Form.PUBLIC)


def _released(release: ContinualConfig) -> Iterator[Content]:
    if release.noise_at == "server":
        yield _content("rewards", "each reward, with the user's number and the features shown", Form.CLEAR)
    form = Form.CLEAR if release.mechanism == "exact" else Form.NOISED
    yield _content("releases", "each user's sums of feature times reward, by the user's number", form)
    yield _content("releases", "which features each user was shown, by the user's number", Form.PUBLIC)
    yield _content("models", "each user's parameters, made of releases alone", form)
