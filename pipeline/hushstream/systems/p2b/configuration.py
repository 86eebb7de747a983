"""The configuration of a deployment: plain frozen values, checked once, digested once.

Nothing here reads a file or the environment; the workers parse YAML into these classes and refuse what they
do not know. Two deployments with one digest behave alike; a report names the digest that it was made under.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hushstream.engine import language
from hushstream.engine.configuration import (
    LARGEST_EPSILON,
    ExplorationConfig,
    FeedbackConfig,
    Mode,
    PartitionConfig,
    PrivacyConfig,
    config_digest,
    declared_features,
    later,
    mode_said_aside,
    renamed,
    require_mode,
    said_aside,
)
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.values import (
    REFUSE_UNKNOWN,
    ConfigurationError,
    number,
    positive,
    price,
    require,
    require_deployment,
    seconds,
    whole,
)
from hushstream.features.schema import FeatureSchema
from hushstream.schemas.topics import LONG_MS

ReleaseMode = Literal["slot-sums", "tuples", "paper"]
DeploymentKind = Literal["hosted", "edge"]
Features = Literal["centroid", "onehot"]
SumsRelease = Literal["auto", "fresh", "counter"]
ReleaseForm = Literal["auto", "codes", "features"]

LARGEST_SHADOW = 256
"""Items of a deployment whose shadow is counted by item."""


LONGEST_VALID_SECONDS = LONG_MS / 1000
"""Of a version of the model: what is said of it is kept for so long."""

_VALID_SECONDS = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """What a context is: a histogram on a decimal grid, summing to 1 (P2B section 3.2), or values of declared features.

    Attributes:
        dimension: d, the entries of a histogram; none where features are declared.
        digits: q; every entry of a histogram is a multiple of 10^-q.
        declared: features by name, each with its kind and settings (`hushstream.features.schema.declare`); without them
            contexts are histograms.
    """

    __pydantic_config__ = REFUSE_UNKNOWN

    dimension: int = 0
    digits: int = 1
    declared: Any = later(None)

    def __post_init__(self) -> None:
        """Refuse impossible values, and check a declaration."""
        if self.declared is not None:
            self._declare()
            return
        whole("features.dimension", self.dimension, 2, 4096)
        whole("features.digits", self.digits, 1, 3)

    def _declare(self) -> None:
        object.__setattr__(self, "declared", declared_features(self.declared))
        require(self.dimension == 0, "features.dimension", "none beside declared features", self.dimension)
        require(self.digits == 1, "features.digits", "none beside declared features", self.digits)

    @property
    def schema(self) -> FeatureSchema:
        """The declared features.

        Raises:
            ConfigurationError: contexts are histograms.
        """
        if self.declared is None:
            raise ConfigurationError("features: expected declared features, got a histogram")
        schema: FeatureSchema = self.declared
        return schema


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """LinUCB of each user.

    Attributes:
        alpha: scales the width of the confidence, so how much is explored.
        ridge: the initial diagonal of each arm's A.
    """

    __pydantic_config__ = REFUSE_UNKNOWN

    alpha: float = 1.0
    ridge: float = 1.0

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        alpha = number("learner.alpha", self.alpha, "a finite number >= 0", lambda number: number >= 0)
        object.__setattr__(self, "alpha", alpha)
        object.__setattr__(self, "ridge", positive("learner.ridge", self.ridge))


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """How a context becomes a code, and what the server learns on.

    Attributes:
        codes: clusters of the grid; auto picks them from arms, expected slots and epsilon.
        features: what stands for a code in the shared model: its centroid, or a one-hot vector.
        seed: of the sample and the start of k-means; no user data is used.
    """

    __pydantic_config__ = REFUSE_UNKNOWN

    codes: int | Literal["auto"] = "auto"
    features: Features = "centroid"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        if self.codes != "auto":
            whole("encoder.codes", self.codes, 2, 65_536)
        require(self.features in ("centroid", "onehot"), "encoder.features", "centroid or onehot", self.features)
        whole("encoder.seed", self.seed, 0, 2**31 - 1)


@dataclass(frozen=True, slots=True)
class SlotConfig:
    """When a user owes a slot, and how many in a lifetime.

    Attributes:
        after_interactions: a slot is due after so many decisions of a user.
        lifetime_slots: slots of one user in their life; each costs the release's epsilon once.
        settle_seconds: log time is cut into spans of this length, so that rewards can arrive: all slots of a partition
            that fall due in one span are sent together, at its first context in the next span but one or later, or at
            a phase end; the length says among how many a slot hides.
        period_seconds: a report names its period, a span of log time of this length; the shuffler takes the current and
            the previous one.
        sealed: slots can be read by the shuffler alone, not by whoever operates the broker.
        renew_every_seconds: after a slot of theirs fell due, a user's next one begins so much later at the earliest,
            until they have sent ``lifetime_slots``; null where it may begin at once.
    """

    __pydantic_config__ = REFUSE_UNKNOWN

    after_interactions: int = 10
    lifetime_slots: int = 1
    settle_seconds: float = 3600.0
    period_seconds: float = 86_400.0
    sealed: bool = False
    renew_every_seconds: float | None = later(None)

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        whole("slot.after_interactions", self.after_interactions, 1, 1_000_000)
        whole("privacy.units_per_person", self.lifetime_slots, 1, 1_000_000)
        object.__setattr__(self, "settle_seconds", seconds("feedback.settle_seconds", self.settle_seconds, 0))
        object.__setattr__(self, "period_seconds", seconds("slot.period_seconds", self.period_seconds, 0.001))
        require(isinstance(self.sealed, bool), "slot.sealed", "true or false", self.sealed)
        if self.renew_every_seconds is not None:
            every = seconds("privacy.renew_every_seconds", self.renew_every_seconds, 0.001)
            object.__setattr__(self, "renew_every_seconds", every)
            expected = "at least 2, the cap of a life, where users get new slots (privacy.renew_every_seconds)"
            require(self.lifetime_slots > 1, "privacy.units_per_person", expected, self.lifetime_slots)


@dataclass(frozen=True, slots=True)
class ReleaseConfig:
    """What leaves the shuffler, and when a window closes.

    Attributes:
        mode: slot-sums (noised sums of every cell, pure epsilon), tuples (sampled tuples above a threshold on the whole
            tuple, epsilon and delta), or paper (a threshold on the code alone: not private as stated).
        epsilon: what one slot costs with slot-sums; null for 1. In tuples and paper it follows from sampling alone, so
            none is taken there.
        sampling: probability that the shuffler keeps a slot (secret, keyed); below 1 for tuples and paper.
        levels: M, reward levels above 0; 1 for clicks.
        threshold: smallest crowd that leaves the shuffler, for tuples and paper; auto is the smallest that
            target_delta allows, or that of the paper.
        target_delta: delta of the automatic threshold.
        window_slots: a window closes at so many slots (or at a phase end).
        window_seconds: a window closes after so much log time, too; null for never.
        sums: what the noise of a window is: fresh (its own), counter (all windows of a partition run through a
            counter), or auto (whichever gives the more exact total over the windows that expected_slots and
            window_slots make, or over ``windows`` of them where time closes windows as well).
        windows: most windows that a counter serves; after the last one nothing is released any more.
        form: what is summed: codes of contexts, or units of each declared feature (linear sums); auto is features where
            they are declared by name, else codes, and a configuration never holds it.
    """

    __pydantic_config__ = REFUSE_UNKNOWN

    mode: ReleaseMode = "slot-sums"
    epsilon: float | None = None
    sampling: float = 1.0
    levels: int = 1
    threshold: int | Literal["auto"] = "auto"
    target_delta: float = 1e-6
    window_slots: int = 10_000
    window_seconds: float | None = None
    sums: SumsRelease = "auto"
    windows: int = 1024
    form: ReleaseForm = later("auto", unused="codes")

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        require(self.form in ("auto", "codes", "features"), "release.form", "auto, codes or features", self.form)
        require(
            self.mode in ("slot-sums", "tuples", "paper"),
            "release.mechanism",
            "slot-sums, tuples or paper",
            self.mode,
        )
        self._check_epsilon()
        kept = "a probability above 0 and at most 1"
        sampling = number("release.sampling", self.sampling, kept, lambda number: 0 < number <= 1)
        object.__setattr__(self, "sampling", sampling)
        if self.form == "features":
            require(self.mode == "slot-sums", "release.mechanism", "slot-sums for form features", self.mode)
        if self.mode != "slot-sums":
            require(self.sampling < 1, "release.sampling", f"below 1 for mechanism {self.mode}", self.sampling)
        whole("feedback.reward_levels", self.levels, 1, 256)
        if self.threshold != "auto":
            whole("release.threshold", self.threshold, 1, 10_000_000)
        name, expected = "privacy.delta", "a probability in (0, 1)"
        object.__setattr__(self, "target_delta", number(name, self.target_delta, expected, lambda x: 0 < x < 1))
        whole("release.window_units", self.window_slots, 1, 100_000_000)
        require(self.sums in ("auto", "fresh", "counter"), "release.sums", "auto, fresh or counter", self.sums)
        expected = f"auto or fresh for mechanism {self.mode}"
        require(self.mode == "slot-sums" or self.sums != "counter", "release.sums", expected, self.sums)
        whole("release.horizon", self.windows, 1, 1 << 30)
        if self.window_seconds is not None:
            window = seconds("release.window_seconds", self.window_seconds, 0.001)
            object.__setattr__(self, "window_seconds", window)

    def _check_epsilon(self) -> None:
        if self.mode == "slot-sums":
            epsilon = 1.0 if self.epsilon is None else price("privacy.epsilon", self.epsilon, LARGEST_EPSILON)
            object.__setattr__(self, "epsilon", epsilon)
            return
        expected = f"none for mechanism {self.mode} (its price follows from release.sampling: -ln(1 - sampling))"
        require(self.epsilon is None, "privacy.epsilon", expected, self.epsilon)

    @property
    def slot_epsilon(self) -> float:
        """What one slot costs: as configured, or as the secret coin of the sampled modes makes it."""
        return -math.log1p(-self.sampling) if self.epsilon is None else self.epsilon


@dataclass(frozen=True, slots=True)
class UsersConfig:
    """How much one user may ask for, and how long their state is kept, in log time.

    Attributes:
        contexts_per_period: contexts of one user that are learned from in a period (null: any number); those beyond are
            decided by the shared model alone: nothing of them is remembered, learned or reported.
        period_seconds: length of that period.
        early_feedback: how many clicks of one user may wait for a context that has not arrived.
        expire_after_seconds: the state of a user unseen for so long is given up (null: never); what they spent of their
            allowance and quota stays under a keyed digest of their name.
        events: whether each event is a user of its own, where nobody says who asks: then a person's promise is one
            event's, as nobody counts how many are theirs.
    """

    __pydantic_config__ = REFUSE_UNKNOWN

    contexts_per_period: int | None = None
    period_seconds: float = 86_400.0
    early_feedback: int = renamed("parked_clicks", 100)
    expire_after_seconds: float | None = None
    events: bool = later(False)

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        require(isinstance(self.events, bool), "users.events", "true or false", self.events)
        if self.contexts_per_period is not None:
            whole("users.contexts_per_period", self.contexts_per_period, 1, 1_000_000_000)
        object.__setattr__(self, "period_seconds", seconds("users.period_seconds", self.period_seconds, 0.001))
        whole("users.early_feedback", self.early_feedback, 1, 10_000_000)
        if self.expire_after_seconds is not None:
            after = seconds("users.expire_after_seconds", self.expire_after_seconds, 0.001)
            object.__setattr__(self, "expire_after_seconds", after)


@dataclass(frozen=True, slots=True)
class LiftConfig:
    """The lift of the model over a hold-out, released with noise.

    Attributes:
        holdout: share of users who are never answered by a model; 0 switches the lift off.
        epsilon: for one user over all releases, beside what their slots cost.
        decisions_per_user: the first so many decisions of a user are counted, each when its wait for a reward is over.
        every_seconds: a release is made so often, in log time, and at a phase end.
        releases: most releases of a partition.
    """

    __pydantic_config__ = REFUSE_UNKNOWN

    holdout: float = 0.0
    epsilon: float = 0.5
    decisions_per_user: int = 20
    every_seconds: float = 86_400.0
    releases: int = 1024

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        share = number("holdout.share", self.holdout, "a share from 0 to 0.5", lambda x: 0 <= x <= 0.5)
        object.__setattr__(self, "holdout", share)
        object.__setattr__(self, "epsilon", price("holdout.epsilon", self.epsilon, LARGEST_EPSILON))
        whole("holdout.decisions_per_user", self.decisions_per_user, 1, 1_000_000)
        object.__setattr__(self, "every_seconds", seconds("holdout.every_seconds", self.every_seconds, 0.001))
        whole("holdout.releases", self.releases, 1, 1 << 30)


@dataclass(frozen=True, slots=True)
class ShadowConfig:
    """The lift of the answers over what an application showed in their place, released with noise.

    Attributes:
        epsilon: for one user over all releases, beside what their slots cost; null where nothing is released of it.
        decisions_per_user: the first so many decisions of a user are counted, each when its wait for a reward is over.
        every_seconds: a release is made so often, in log time, and at a phase end.
        releases: most releases of a partition.
    """

    __pydantic_config__ = REFUSE_UNKNOWN

    epsilon: float | None = None
    decisions_per_user: int = 20
    every_seconds: float = 86_400.0
    releases: int = 1024

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", price("shadow.epsilon", self.epsilon, LARGEST_EPSILON))
        whole("shadow.decisions_per_user", self.decisions_per_user, 1, 1_000_000)
        object.__setattr__(self, "every_seconds", seconds("shadow.every_seconds", self.every_seconds, 0.001))
        whole("shadow.releases", self.releases, 1, 1 << 30)


@dataclass(frozen=True, slots=True)
class P2BConfig:
    """Everything that decides what a P2B deployment computes (Malekzadeh et al. 2020).

    Attributes:
        deployment: its name; topics and consumer groups begin with it.
        arms: K, how many arms there are.
        context: what a context is.
        expected_slots: slots that are expected in the life of the deployment, a public number; auto values follow it.
        learner: LinUCB of each user.
        encoder: how a context becomes a code.
        slot: when a user owes a slot.
        feedback: how shown and reward are joined to the decision.
        release: what leaves the shuffler.
        lift: the noised lift of the model over a hold-out.
        partitions: how many of each topic.
        users: quotas and expiry of users.
        budget: limits what all slots of one user and the lift may cost them together; null for what the configuration
            plans. Of lifetime_slots they send as many as fit.
        privacy: what the operator says of the promise in words; no digest follows from it.
        mode: live, or shadow where clients show the application's own choice, and answers are recorded beside it; no
            digest follows from it, so a deployment goes live by this word alone.
        kind: hosted (the operator's workers run the learners) or edge (the user's device or the application does).
        system: which system this is a configuration of.
        expected_items: of all items, as many as the sums are made for; null for all. Public, never a live count.
        click_rate: the share of decisions that are rewarded, as far as is publicly known; null where it is not. It says
            which interaction a slot of declared features holds (`edge.candidates.click_chance`).
        named_items: whether items have ids of the application's own, which may be added and retired while it runs
            (`hushstream items`); else they are the numbers from 0.
        items_from_requests: whether requests may name items that the catalogue has not, which are then put into it.
        item_features: public features of items by name, each with its kind and settings; a new item starts from what is
            known of those that are most like it.
        exploration: whether an arm is chosen by its score alone or with a stated chance.
        half_life: the model halves a window's weight with every so many later windows of a partition, so that it
            follows a world that changes; null weighs all windows alike; ``auto`` takes the half-life that foretells
            released windows best, for windows with fresh noise. It costs nothing: released sums are weighed.
        model_valid_seconds: so long after a version of the model was made devices begin with it, where learners are
            agents on devices; null for 30 days. After that they keep what they have, and new ones begin without a model
            until the next version.
        shadow: the noised lift of what was answered over what was shown.
    """

    __pydantic_config__ = REFUSE_UNKNOWN

    deployment: str
    arms: int
    context: ContextConfig
    expected_slots: int
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    slot: SlotConfig = field(default_factory=SlotConfig)
    feedback: FeedbackConfig = field(default_factory=FeedbackConfig)
    release: ReleaseConfig = field(default_factory=ReleaseConfig)
    lift: LiftConfig = field(default_factory=LiftConfig)
    partitions: PartitionConfig = field(default_factory=PartitionConfig)
    users: UsersConfig = field(default_factory=UsersConfig)
    budget: BudgetConfig | None = None
    privacy: PrivacyConfig = said_aside()
    mode: Mode = mode_said_aside()
    kind: DeploymentKind = "hosted"
    system: Literal["p2b"] = "p2b"
    expected_items: int | None = later(None)
    click_rate: float | None = later(None)
    named_items: bool = later(False)
    items_from_requests: bool = later(False)
    item_features: Any = later(None)
    exploration: ExplorationConfig = later(ExplorationConfig())
    half_life: float | Literal["auto"] | None = later(None)
    model_valid_seconds: float | None = later(None)
    shadow: ShadowConfig = later(ShadowConfig())

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        require_deployment(self.deployment, self.system, "p2b")
        require_mode(self.mode)
        whole("items.capacity", self.arms, 2, 65_536)
        whole("expected_slots", self.expected_slots, 1, 10**12)
        if self.expected_items is not None:
            whole("items.expected", self.expected_items, 1, self.arms)
        if self.click_rate is not None:
            rate = number("feedback.click_rate", self.click_rate, "a share from 0 to 1", lambda x: 0 <= x <= 1)
            object.__setattr__(self, "click_rate", rate)
        self._check_form()
        self._check_items()
        if self.half_life is not None:
            require(self.release.form == "features", "model.half_life", "none for form codes", self.half_life)
            expected = "auto, or windows from 0.1 to 1,000,000"
            if self.half_life != "auto":
                half_life = number("model.half_life", self.half_life, expected, lambda x: 0.1 <= x <= 1_000_000)
                object.__setattr__(self, "half_life", half_life)
            elif self.release.sums != "fresh":
                sums = "fresh where model.half_life is auto: through a counter windows share noise"
                require(False, "release.sums", sums, self.release.sums)
        require(self.kind in ("hosted", "edge"), "kind", "hosted or edge", self.kind)
        self._check_lift()
        self._check_devices()
        after, owed = (
            self.users.expire_after_seconds,
            2 * self.slot.settle_seconds + self.feedback.attribution_window_seconds,
        )
        each = self.slot.after_interactions
        expected = "1 where each event is a user of its own (`users.events`), who comes no second time"
        require(each == 1 or not self.users.events, "slot.after_interactions", expected, each)
        renewed, wait = self.slot.renew_every_seconds, self.feedback.attribution_window_seconds
        if renewed is not None:
            # All of a slot's feedback has come, or cannot any more, when the next one begins.
            expected = f"at least the reward's wait (feedback.attribution_window_seconds: {wait:g})"
            require(renewed >= wait, "privacy.renew_every_seconds", expected, renewed)
            expected = "none where each event is a user of its own (`users.events`), who comes no second time"
            require(not self.users.events, "privacy.renew_every_seconds", expected, renewed)
        if after is not None:
            # Nothing waits then, neither for feedback nor to be sent.
            name = "users.expire_after_seconds"
            require(after > owed, name, f"more than twice settle and reward wait together ({owed:g})", after)

    def _check_devices(self) -> None:
        """What goes with learners on devices alone, and what they cannot have."""
        valid = self.model_valid_seconds
        if not self.devices:
            require(valid is None, "model.valid_seconds", "none where no devices take models (kind edge)", valid)
            return
        expected = "false for kind edge: devices know items by their numbers"
        require(not self.named_items, "items.named", expected, self.named_items)
        require(not self.users.events, "users.events", "false for kind edge: a device is its user's", self.users.events)
        if valid is not None:
            valid = seconds("model.valid_seconds", valid, 1)
            expected = f"at most {LONGEST_VALID_SECONDS:.0f}, as long as statements are kept"
            require(valid <= LONGEST_VALID_SECONDS, "model.valid_seconds", expected, valid)
            object.__setattr__(self, "model_valid_seconds", valid)

    @property
    def devices(self) -> bool:
        """Whether its learners are agents on devices that hand in slots, and take models, through a gateway."""
        return self.kind == "edge" and self.release.form == "features"

    @property
    def set_half_life(self) -> float | None:
        """The half-life that is set, in windows of a partition; None where nothing is forgotten, or it is `auto`."""
        return None if self.half_life == "auto" else self.half_life

    @property
    def valid_ms(self) -> int:
        """How long devices begin with a version of the model."""
        valid = self.model_valid_seconds
        return round((_VALID_SECONDS if valid is None else valid) * 1000)

    @property
    def counted(self) -> LiftConfig | None:
        """How the lift is counted and released, over a hold-out or in the shadow; None where none is."""
        shadow = self.shadow
        if shadow.epsilon is None:
            return self.lift if self.lift.holdout else None
        return LiftConfig(0.0, shadow.epsilon, shadow.decisions_per_user, shadow.every_seconds, shadow.releases)

    def _check_lift(self) -> None:
        held_out, shadow = self.lift.holdout, self.shadow.epsilon
        for name, value, none in (("holdout.share", held_out, 0.0), ("shadow.epsilon", shadow, None)):
            expected = f"{none or 'none'} for kind edge (its learners are not here to be counted)"
            require(self.kind == "hosted" or value == none, name, expected, value)
        expected = "none beside a hold-out (holdout.share): a learner counts one lift"
        require(shadow is None or not held_out, "shadow.epsilon", expected, shadow)
        expected = f"none for more than {LARGEST_SHADOW} items: noise would hide what each earns"
        require(shadow is None or self.arms <= LARGEST_SHADOW, "shadow.epsilon", expected, shadow)
        if self.budget is not None:
            share = self.budget.lift
            expected = (
                f"a share above 0 exactly where holdout.share is, which is {held_out:g}, or where shadow.epsilon is"
            )
            require((share > 0) == (self.counted is not None), "privacy.lifetime.holdout", expected, share)

    def _check_items(self) -> None:
        require(isinstance(self.named_items, bool), "items.named", "true or false", self.named_items)
        expected = "false for form codes" if self.release.form == "codes" else "true or false"
        require(not self.named_items or self.release.form == "features", "items.named", expected, self.named_items)
        asked = self.items_from_requests
        require(isinstance(asked, bool), "items.from_requests", "true or false", asked)
        expected = "false where items have no names (`items.named`)"
        require(self.named_items or not asked, "items.from_requests", expected, asked)
        if self.item_features is None:
            return
        require(self.named_items, "items.features", "none where items have no names (`items.named`)", "some")
        object.__setattr__(self, "item_features", declared_features(self.item_features, "items."))

    def _check_form(self) -> None:
        """Refuse what goes with one form of the sums alone."""
        declared = self.context.declared is not None
        form: ReleaseForm = "features" if declared else "codes"
        expected = "features where features are declared by name, else codes"
        require(self.release.form in ("auto", form), "release.form", expected, self.release.form)
        object.__setattr__(self, "release", replace(self.release, form=form))
        if not declared:
            for name, value in (("items.expected", self.expected_items), ("feedback.click_rate", self.click_rate)):
                require(value is None, name, "none for form codes", value)
            return
        require(
            self.encoder == EncoderConfig(), "encoder.codes", "auto: form features has no codes", self.encoder.codes
        )
        expected = "true for kind edge with form features, else false"
        require(self.slot.sealed == (self.kind == "edge"), "slot.sealed", expected, self.slot.sealed)
        require(self.learner == LearnerConfig(), "learner", "none for form features", self.learner)


def configuration_digest(
    config: P2BConfig, centroids: bytes, pinned: bytes = b"", public_dataset: bool = False
) -> bytes:
    """16 bytes that stand for the configuration, the fitted encoder and the keys that agents go by first.

    So an agent that pins the digest also pins those keys: nobody else can put others in their place or after them.

    Args:
        config: the configuration; it determines how many bytes the other two have.
        centroids: the encoder's centroids as its exact integer bytes.
        pinned: the shuffler's first public key, where slots are sealed (`Recipients.pinned`), and the aggregator's,
            where models are signed (`SigningKeys.pinned`).
        public_dataset: whether it is a replay of a public dataset.
    """
    return config_digest(config, public_dataset, centroids + pinned)


KEYS: Mapping[str, str | None] = {
    "arms": language.ITEMS,
    "context": "features",
    "context.declared": language.FEATURES,
    "expected_items": "items.expected",
    "click_rate": "feedback.click_rate",
    "named_items": language.NAMED_ITEMS,
    "item_features": "items.features",
    "items_from_requests": "items.from_requests",
    "half_life": f"{language.MODEL}.half_life",
    "model_valid_seconds": f"{language.MODEL}.valid_seconds",
    "release.mode": language.MECHANISM,
    "release.epsilon": language.EPSILON,
    "release.target_delta": language.DELTA,
    "release.levels": language.REWARD_LEVELS,
    "release.window_slots": language.WINDOW_UNITS,
    "release.windows": language.HORIZON,
    "slot.lifetime_slots": language.UNITS_PER_PERSON,
    "slot.renew_every_seconds": "privacy.renew_every_seconds",
    "slot.settle_seconds": language.SETTLE_SECONDS,
    "lift": "holdout",
    "lift.holdout": "holdout.share",
    "budget": language.LIFETIME,
    "budget.lift": f"{language.LIFETIME}.holdout",
}
