"""The configuration of a collaborative deployment (LinUCB, CoLin, GOBLin under privacy): plain frozen values.

Users are the nodes of a public relation graph. Every context carries the features of the arms that may be
shown; rewards alone are private, one reward is the unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Literal, get_args

from hushstream.counting import (
    BinaryTree,
    Budget,
    BufferedToeplitz,
    Concentrated,
    Plan,
    PureEpsilon,
    PureLength,
    best_tree,
)
from hushstream.counting.digits import LARGEST_LIFE
from hushstream.engine import language, values
from hushstream.engine.configuration import (
    LARGEST_EPSILON,
    ExplorationConfig,
    FeedbackConfig,
    Mode,
    PartitionConfig,
    PrivacyConfig,
    config_digest,
    undigested_mode,
    undigested_privacy,
)
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.values import (
    Checked,
    Is,
    between,
    check_fields,
    keep,
    not_negative,
    number,
    positive,
    price,
    probability,
    require,
    require_deployment,
    whole,
)
from hushstream.privacy.mechanisms.rewards import LocalReward

Algorithm = Literal["linucb", "colin", "goblin"]

Mechanism = Literal["auto", "negative-digit", "binary", "blt", "noisy-reward", "exact"]
MECHANISMS: tuple[Mechanism, ...] = get_args(Mechanism)[1:]
"""What auto chooses from, and exact."""

NoiseAt = Literal["server", "learner"]
NoiseLaw = Literal["laplace", "k-norm", "gaussian"]

GRID_BITS = 24
"""Sums are whole multiples of 2^-24: a step of the lattice is far below the noise, and 2^38 rewards fit."""


@dataclass(frozen=True, slots=True)
class FeatureConfig(Checked):
    """Features of an arm. The bounds on their length determine the noise, and a context with longer ones is refused.

    Attributes:
        dimension: d, number of features of one arm.
        norm: their largest L2 length.
        norm_l1: their largest L1 length; null for sqrt(dimension) * norm, which bounds any vector of that L2 length. A
            smaller one makes Laplace noise smaller.
    """

    dimension: Annotated[int, Is(language.DIMENSION, whole, 1, 512)]
    norm: Annotated[float, Is("features.", positive, 1024)] = 1.0
    norm_l1: float | None = None

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        check_fields(self)
        if self.norm_l1 is not None:
            longest = math.sqrt(self.dimension) * self.norm
            expected = f"a number above 0 and at most sqrt(dimension) * norm = {longest:g}"
            found = number("features.norm_l1", self.norm_l1, expected, lambda x: 0 < x <= longest * (1 + 1e-12))
            keep(self, norm_l1=found)

    @property
    def l1_bound(self) -> float:
        """The largest L1 length of an arm's features."""
        return math.sqrt(self.dimension) * self.norm if self.norm_l1 is None else self.norm_l1


@dataclass(frozen=True, slots=True)
class CollaborationConfig(Checked):
    """How users share; for ``auto`` see `hushstream.systems.colin.deployment`.

    Attributes:
        algorithm: linucb (each user alone), colin (weights between users mix their parameters), or goblin (ties of the
            graph draw their parameters together).
        alpha: factor of the confidence width, which controls exploration. lemma takes the width that holds for all
            users with probability 1 - failure at each version (the paper's Lemma 2, corrected); it is safe, and far
            larger than the best choice.
        ridge: lambda, the initial diagonal of A; auto computes it from the noise of the release.
        self_weight: a user's tie to themselves in CoLin's relation matrix, beside the weights of the graph.
        tie_weight: multiplies the weights of the graph for GOBLin.
        failure: probability with which the width of lemma may fail.
        clean_share: the share of visits, by a coin, that follow from releases alone and that the shared model learns
            from; the others are dark: they also follow the user's own exact rewards. Below 1 it needs noise on each
            reward; 0.05 keeps users near those who learn alone.
    """

    algorithm: Annotated[Algorithm, Is("learner.")] = "colin"
    alpha: Annotated[float | Literal["lemma"], Is("learner.", number, "lemma or a number >= 0", lambda x: x >= 0)] = 0.1
    ridge: Annotated[float | Literal["auto"], Is("learner.", number, "auto or a number > 0", lambda x: x > 0)] = "auto"
    self_weight: Annotated[float, Is("learner.", not_negative)] = 1.0
    tie_weight: Annotated[float, Is("learner.", not_negative)] = 1.0
    failure: Annotated[float, Is("learner.", probability)] = 0.05
    clean_share: Annotated[float, Is("learner.", between, 0.001, 1)] = 1.0


@dataclass(frozen=True, slots=True)
class ContinualConfig(Checked):
    """Releases from the zone that holds rewards: what, and how often.

    Attributes:
        noise_at: who adds the noise: server (a trusted counter role) or learner (each user's own counter there; nobody
            else sees a reward).
        mechanism: a counter (negative-digit, binary or blt), noisy-reward (each reward is noised once, before
            it enters a sum), or exact (no noise: for replays of public datasets, refused by a live worker). auto takes
            noisy-reward, at server or learner, unless a counter has less noise over rewards_per_user rewards
            (`least_noise`).
        noise: laplace (pure epsilon, sized by the features' L1 length), k-norm (pure epsilon, by their L2 length: less
            than laplace where features are dense) or gaussian (epsilon and delta; blt has no other). With auto it is
            that of the counter; noisy-reward always has laplace, so delta is paid only where gaussian wins.
        epsilon: for one reward, over all releases of an epoch.
        delta: for one reward, over all releases of an epoch, with gaussian noise.
        horizon: largest number of steps of a user's counter, which determines its noise; auto for rewards_per_user.
        rewards_per_user: largest number of rewards of one user that ever count.
        reward_levels: M for noisy-reward: a reward is a whole number of M steps; 1 for clicks.
        rows: a step is released after this number of rewards, or at a phase end. At the edge rows are released when
            they settle, and a model follows after this number of them or at a phase end.
        seconds: a step is also released after this log time; null for never.
        epochs: how often the price may be paid; a budget may end it earlier. With more than one, a counter can continue
            with new noise after its inputs have changed, or after a suspected rollback.
    """

    noise_at: Annotated[NoiseAt, Is("release.")] = "server"
    mechanism: Annotated[Mechanism, Is(language.MECHANISM)] = "auto"
    noise: Annotated[NoiseLaw, Is("release.")] = "laplace"
    epsilon: Annotated[float, Is(language.EPSILON, price, LARGEST_EPSILON)] = 1.0
    delta: Annotated[float, Is(language.DELTA, probability)] = 1e-6
    horizon: Annotated[int | Literal["auto"], Is(language.HORIZON, whole, 1, 1 << 30)] = "auto"
    rewards_per_user: Annotated[int, Is(language.UNITS_PER_PERSON, whole, 1, LARGEST_LIFE)] = 10_000
    reward_levels: Annotated[int, Is(language.REWARD_LEVELS, whole, 1, 256)] = 256
    rows: Annotated[int, Is(language.WINDOW_UNITS, whole, 1, 4096)] = 256
    seconds: Annotated[float | None, Is(language.WINDOW_SECONDS, values.seconds, 0.001)] = None
    epochs: Annotated[int, Is(language.EPOCHS, whole, 1, 1000)] = 1

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        check_fields(self)
        if self.mechanism == "noisy-reward":
            require(self.noise == "laplace", "release.noise", "laplace for noisy-reward", self.noise)
        if self.mechanism == "exact":
            require(self.noise_at == "server", "release.noise_at", "server for exact", self.noise_at)
        if self.mechanism == "blt":
            require(self.noise == "gaussian", "release.noise", "gaussian for blt", self.noise)
        if self.horizon != "auto":
            most = f"at most release.horizon ({self.horizon}), as each reward may be a step of its own"
            require(self.rewards_per_user <= self.horizon, "privacy.units_per_person", most, self.rewards_per_user)
        if self.seconds is not None:
            expected = "none at the learner (no step is open there)"
            require(self.noise_at == "server", "release.window_seconds", expected, self.seconds)

    @property
    def leaves(self) -> int:
        """The horizon of one user's counter: its largest number of leaves.

        Every leaf has at least one reward of theirs that counts, also the leaf with which an epoch adds new noise.
        """
        return self.rewards_per_user if self.horizon == "auto" else self.horizon


_MARGIN = 1 + 2.0**-30
"""Relative margin of the sensitivity: above that of `short_enough`, and too small to change the noise visibly."""


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
    kinds: Mapping[str, type[Plan]] = {"binary": BinaryTree, "blt": BufferedToeplitz}
    kind = kinds[release.mechanism]
    return kind(budget=budget, dimension=dimension, sensitivity=sensitivity, horizon=horizon)


def local_reward_of(release: ContinualConfig) -> LocalReward:
    """How one reward is noised: the law of smaller variance for the configured levels and epsilon."""
    return LocalReward.of(release.reward_levels, release.epsilon)


@lru_cache(maxsize=64)
def mean_variance(plan: Plan) -> float:
    """Mean variance of a counter's noise over its horizon, in squared units of the reward."""
    return plan.rmse() ** 2 / float(1 << (2 * GRID_BITS))


def noised_once(release: ContinualConfig, features: FeatureConfig, rewards: int) -> float:
    """Mean variance of the noise in one entry of a user's sum, if each of some rewards is noised once.

    Features of the largest length are spread evenly over their coordinates.
    """
    return rewards * features.norm**2 / features.dimension * local_reward_of(release).variance


def best_counter(release: ContinualConfig) -> ContinualConfig:
    """The counter of least noise under a law: digit trees, or blt where a delta is allowed."""
    return replace(release, mechanism="blt" if release.noise == "gaussian" else "negative-digit")


def least_noise(release: ContinualConfig, features: FeatureConfig) -> ContinualConfig:
    """The release with the mechanism of less noise in a sum of all rewards of a user that count.

    Noise on each reward grows with their number n, as ``n L^2 / d`` times the variance on one; a counter's grows with
    log n. So there is one crossing: at epsilon 1 and d = 25 some 7,000 rewards against blt, and more than 100,000
    against a digit tree. Both sides follow from settings alone (the deviation of a counter is known from its matrix).
    """
    counter = best_counter(release)
    if noised_once(release, features, release.rewards_per_user) <= mean_variance(plan_of(counter, features)):
        return replace(release, mechanism="noisy-reward", noise="laplace")
    return counter


@dataclass(frozen=True, slots=True)
class CollaborativeConfig(Checked):
    """All parameters of a collaborative deployment's computation (Wang et al., DP-CoLin).

    Attributes:
        deployment: its name; topics and consumer groups begin with it.
        arms: largest number of arms in one context; if items have names, largest number of offered items.
        features: the features of an arm.
        learner: how users share.
        settle_seconds: a decision's reward counts if it comes within this log time, or before a phase end. Log time is
            divided into spans of this length. All rows that were decided in one span leave together, one full span
            after its end.
        feedback: how shown and reward are joined to the decision.
        release: what leaves the zone that holds rewards; auto is resolved here, so a digest names the mechanism.
        partitions: how many of each topic.
        budget: limit of one reward's price over all noise epochs, of which privacy.epochs are planned; null for the
            price of these.
        privacy: what the operator says of the promise in words; no digest follows from it.
        mode: live, or shadow where clients show the application's own choice, and answers are recorded beside it; no
            digest follows from it, so a deployment goes live by this word alone.
        system: which system this is a configuration of.
        exploration: whether an arm is chosen by its score alone or at random with a known propensity.
        named_items: whether items have names: they come and go in a catalogue while the deployment runs, and a context
            gives the features of some of them by id.
    """

    deployment: str
    arms: Annotated[int, Is(language.ITEMS, whole, 1, 4096)]
    features: FeatureConfig
    learner: CollaborationConfig = field(default_factory=CollaborationConfig)
    settle_seconds: Annotated[float, Is(language.SETTLE_SECONDS, values.seconds, 0)] = 3600.0
    feedback: FeedbackConfig = field(default_factory=FeedbackConfig)
    release: ContinualConfig = field(default_factory=ContinualConfig)
    partitions: PartitionConfig = field(default_factory=PartitionConfig)
    budget: Annotated[BudgetConfig | None, Is(language.LIFETIME)] = None
    privacy: PrivacyConfig = undigested_privacy()
    mode: Annotated[Mode, Is("mode")] = undigested_mode()
    system: Literal["colin"] = "colin"
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    named_items: Annotated[bool, Is(language.NAMED_ITEMS)] = False

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        require_deployment(self.deployment, self.system, "colin")
        check_fields(self)
        if self.release.mechanism == "auto":
            keep(self, release=least_noise(self.release, self.features))
        shufflers = self.partitions.shuffler
        require(shufflers == 1, "partitions.counter", "1 (there is no shuffler)", shufflers)
        if self.budget is not None:
            require(self.budget.lift == 0, "budget.lift", "0 (nothing is measured)", self.budget.lift)
            expected = "none for exact sums, which guarantee nothing"
            require(self.release.mechanism != "exact", "privacy.lifetime", expected, "one")
        bounded = self.release.mechanism in ("negative-digit", "binary", "exact")
        expected = f"a number for {self.release.mechanism} (the lemma covers digit trees and exact sums)"
        require(self.learner.alpha != "lemma" or bounded, "learner.alpha", expected, self.learner.alpha)
        lengths = self.release.noise == "k-norm" and self.release.mechanism != "exact"
        expected = "a number for k-norm noise (the lemma covers laplace and gaussian)"
        require(self.learner.alpha != "lemma" or not lengths, "learner.alpha", expected, self.learner.alpha)
        if self.learner.clean_share < 1:
            once = self.release.mechanism in ("noisy-reward", "exact")
            expected = f"1 with {self.release.mechanism} (beside a counter's noise so few clean visits tell nothing)"
            require(once, "learner.clean_share", expected, self.learner.clean_share)
            expected = "a number beside learner.clean_share (the lemma covers clean visits alone)"
            require(self.learner.alpha != "lemma", "learner.alpha", expected, self.learner.alpha)


def collaborative_digest(config: CollaborativeConfig, relation: bytes, public_dataset: bool = False) -> bytes:
    """Digest of the configuration and the relation graph (16 bytes).

    Args:
        config: the configuration.
        relation: the graph in its canonical form.
        public_dataset: whether it is a replay of a public dataset.
    """
    return config_digest(config, public_dataset, relation)
