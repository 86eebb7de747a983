"""The configuration of a BGTplanner deployment: frozen values that check themselves, and the digest of all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Literal

from hushstream.engine import language
from hushstream.engine.configuration import PartitionConfig, PrivacyConfig, config_digest, undigested_privacy
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.values import (
    Checked,
    Is,
    between,
    check_fields,
    keep,
    number,
    positive,
    require,
    require_deployment,
    seconds,
    whole,
)

LATTICE_BITS = 20
UNIT = 1 << LATTICE_BITS
"""The number 1 on the lattice of slots. The lattice is far finer than any noise, and sums of squares fit into 64
bits."""

LARGEST_ITEMS = 1 << 16
LARGEST_PAIRS = 1 << 12
LARGEST_TOP = 1 << 9
"""A release of pairs has top (top - 1) / 2 cells of 8 bytes, and is one record."""
LARGEST_USERS = 1 << 22
"""The largest number of users: the sum of one product of norm at most 1 (2^40) for each user stays within 2^62."""

SETTLE_SECONDS = 3600.0
LONGEST_VALID_SECONDS = 30 * 86_400.0
_KEPT = ", as long as statements are kept"

Kind = Literal["items", "pairs", "factors"]
KINDS: tuple[Kind, ...] = ("items", "pairs", "factors")
"""A: counts and residual sums of items. B: products of residuals of pairs. C: residuals times the user's factors."""


def _is_delta(value: float) -> bool:
    return 1e-12 <= value < 1


@dataclass(frozen=True, slots=True)
class ScaleConfig(Checked):
    """The scale of ratings.

    Attributes:
        lowest, highest: the ends of the scale; lowest becomes 0 and highest 1. With lowest 0 and highest 5, the
            ratings 1 to 5 of MovieLens become 0.2 to 1.
        middle: mu, the rating from 0 to 1 that is expected of a user and an item of which nothing is known: a public
            guess of the mean rating. On plays of music (Last.fm, mean .44) the default lost .014 to each device alone.
    """

    lowest: Annotated[float, Is("scale.", number, "a number within 1e6", lambda x: abs(x) <= 1e6)] = 0.0
    highest: Annotated[float, Is("scale.", number, "a number within 1e6", lambda x: abs(x) <= 1e6)] = 5.0
    middle: Annotated[float, Is("scale.", between, 0, 1)] = 0.7

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        check_fields(self)
        require(self.lowest < self.highest, "scale.highest", f"above scale.lowest ({self.lowest:g})", self.highest)


@dataclass(frozen=True, slots=True)
class ReleaseConfig(Checked):
    """The content of slots, and their noise.

    Attributes:
        noise: gaussian, or exact (no noise: for replays of public datasets, not private as stated).
        epsilon: the price of all slots of one user together, against null.
        delta: the delta that goes with epsilon; half of it is for the noise tables.
        shares: the shares of rho that slots of kinds A, B and C pay.
        clip: C, the L2 norm of a slot of kinds A and B, at most 1.
        factor_clip: C_c, the Frobenius norm of a slot of kind C, at most 1.
        count_weight: alpha, weight of one count relative to a residual of 1.
        pairs: largest number of ratings in a slot; all slots are padded to it.
        top: M, number of items whose pairs are counted.
        factors: d, largest number of factors.
        epochs: planned number of noise epochs: the first one, and one for each suspected rollback of the collector's
            journal; users pay for each of them.
    """

    noise: Annotated[Literal["gaussian", "exact"], Is(language.MECHANISM)] = "gaussian"
    epsilon: Annotated[float, Is(language.EPSILON, between, 0.1, 20)] = 3.0
    delta: Annotated[float, Is(language.DELTA, number, "a probability from 1e-12 to below 1", _is_delta)] = 1e-5
    shares: tuple[float, float, float] = (0.3, 0.3, 0.4)
    clip: Annotated[float, Is("release.", between, 0.01, 1)] = 1.0
    factor_clip: Annotated[float, Is("release.", between, 0.01, 1)] = 0.7
    count_weight: Annotated[float, Is("release.", between, 0.01, 1)] = 0.1
    pairs: Annotated[int, Is("release.", whole, 1, LARGEST_PAIRS)] = 256
    top: Annotated[int, Is("release.", whole, 2, LARGEST_TOP)] = 300
    factors: Annotated[int, Is("release.", whole, 1, 64)] = 4
    epochs: Annotated[int, Is(language.EPOCHS, whole, 1, 1000)] = 1

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        check_fields(self)
        shares = tuple(number("release.shares", share, "shares above 0", lambda x: x > 0) for share in self.shares)
        fits = len(shares) == len(KINDS) and math.isclose(sum(shares), 1.0, abs_tol=1e-9) and min(shares) >= 0.01
        require(fits, "release.shares", "three shares of at least .01 that sum to 1", self.shares)
        keep(self, shares=shares)


@dataclass(frozen=True, slots=True)
class ModelConfig(Checked):
    """Parameters of the model and of predictions; the guarantee does not depend on them.

    Attributes:
        rating_variance: s2, the variance of one rating around its expectation.
        bias_variance: tau2, the variance of item biases around their prediction from features and popularity.
        offset_ridge: lb, the ridge penalty on the user's own offset in a model with factors.
        lone_ridge: the ridge penalty on the user's own offset in a model without factors.
        factor_ridge: lp, the ridge penalty on a user's factors.
        factor_variance: tq2, the variance of an item's factors.
        factor_weight: w, the mean square of a user's factor.
        feature_scale: scale of public features relative to factors on the device.
        edge_margin: an eigenvalue counts if it is at least this many times the largest eigenvalue of noise alone.
        valid_seconds: how long after a version of the model was made devices may begin with it; for kind edge.
    """

    rating_variance: Annotated[float, Is("model.", positive)] = 0.04
    bias_variance: Annotated[float, Is("model.", positive)] = 0.01
    offset_ridge: Annotated[float, Is("model.", positive)] = 4.0
    lone_ridge: Annotated[float, Is("model.", positive)] = 5.0
    factor_ridge: Annotated[float, Is("model.", positive)] = 0.035
    factor_variance: Annotated[float, Is("model.", positive)] = 0.002
    factor_weight: Annotated[float, Is("model.", positive)] = 0.5
    feature_scale: Annotated[float, Is("model.", positive)] = 0.06
    edge_margin: Annotated[float, Is("model.", number, "a number of at least 1", lambda x: x >= 1)] = 1.1
    valid_seconds: Annotated[float, Is("model.", positive, LONGEST_VALID_SECONDS, _KEPT)] = LONGEST_VALID_SECONDS


@dataclass(frozen=True, slots=True)
class BgtConfig(Checked):
    """All parameters of a BGTplanner deployment's computation (Zhang et al. 2024, in a sound form).

    Attributes:
        deployment: its name; topics and consumer groups begin with it.
        items: I, number of items that can be rated, numbered from 0.
        features: number of public features of an item; 0 for none.
        scale: the scale of ratings.
        release: slots and their noise.
        model: parameters of the model.
        partitions: number of partitions of each topic; users are distributed over those of the learner.
        budget: limit of one user's payments over all noise epochs; null for the price of one epoch.
        privacy: the operator's own words about the guarantee; they are not part of the digest.
        kind: hosted (the operator's raters make slots) or edge (users' devices make them, sealed for the collector).
        settle_seconds: longest delay of a device's slot of a round, drawn uniformly; for kind edge.
        system: name of the system.
    """

    deployment: str
    items: Annotated[int, Is(language.ITEMS, whole, 2, LARGEST_ITEMS)]
    features: Annotated[int, Is(language.DIMENSION, whole, 0, 256)] = 0
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    release: ReleaseConfig = field(default_factory=ReleaseConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    partitions: PartitionConfig = field(default_factory=PartitionConfig)
    budget: Annotated[BudgetConfig | None, Is(language.LIFETIME)] = None
    privacy: PrivacyConfig = undigested_privacy()
    kind: Annotated[Literal["hosted", "edge"], Is("kind")] = "hosted"
    settle_seconds: Annotated[float, Is(language.SETTLE_SECONDS, seconds, 0.001)] = SETTLE_SECONDS
    system: Literal["bgt"] = "bgt"

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        require_deployment(self.deployment, self.system, "bgt")
        check_fields(self)
        collectors = self.partitions.shuffler
        require(collectors == 1, "partitions.collector", "1 (there is one collector)", collectors)
        if not self.devices:
            expected = "none where no devices make slots (kind edge)"
            require(self.settle_seconds == SETTLE_SECONDS, language.SETTLE_SECONDS, expected, self.settle_seconds)
            valid = self.model.valid_seconds
            require(valid == LONGEST_VALID_SECONDS, "model.valid_seconds", expected, valid)
        else:
            expected = "gaussian for kind edge: exact sums are for replays, whose raters are workers"
            require(self.release.noise == "gaussian", "release.mechanism", expected, self.release.noise)
            raters = self.partitions.learner
            require(raters == 1, "partitions.rater", "1 for kind edge, which has no raters", raters)
        if self.budget is not None:
            require(self.budget.lift == 0, "budget.lift", "0 (nothing is measured)", self.budget.lift)

    @property
    def devices(self) -> bool:
        """Whether users' devices make slots, and take models, through a gateway."""
        return self.kind == "edge"

    @property
    def top(self) -> int:
        """M, at most the number of items."""
        return min(self.release.top, self.items)


@lru_cache(maxsize=64)
def bgt_digest(config: BgtConfig, features: bytes = b"", public_dataset: bool = False, pinned: bytes = b"") -> bytes:
    """Digest of a deployment (16 bytes).

    Args:
        config: the configuration.
        features: public features of items as bytes (`hushstream.systems.bgt.records.features_bytes`).
        public_dataset: whether a public dataset is replayed.
        pinned: the collector's first public key and the aggregator's, where devices make slots.
    """
    return config_digest(config, public_dataset, len(features).to_bytes(8, "little") + features + pinned)
