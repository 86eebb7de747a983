"""The configuration of a P2B deployment: frozen values that check themselves, and the digest of all of them.

Nothing here reads a file or the environment. The workers parse YAML into these classes and refuse unknown keys.
Two deployments with the same digest behave alike. Every report names the digest that it was made under.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

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
    undigested_mode,
    undigested_privacy,
)
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.values import (
    Checked,
    ConfigurationError,
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
    seconds,
    whole,
)
from hushstream.features.schema import FeatureSchema
from hushstream.privacy.amounts import MICRO, epsilon_micro, exact
from hushstream.schemas.topics import LONG_MS

ReleaseMode = Literal["slot-sums", "tuples", "paper"]
DeploymentKind = Literal["hosted", "edge"]
SumsRelease = Literal["auto", "fresh", "counter"]
ReleaseForm = Literal["auto", "codes", "features"]
MeasurementOf = Literal["groups", "answers"]

LARGEST_ANSWERS = 256
"""The largest number of items of a deployment that may count its answers by item (`MeasurementConfig.of`)."""

_HARM = re.compile(r"[A-Za-z0-9_-]{1,40}")

LONGEST_VALID_SECONDS = LONG_MS / 1000
"""The longest time that a version of the model may be valid: the topic keeps the statement of a version no longer."""

_VALID_SECONDS = 30 * 86_400.0


def _is_chance(value: float) -> bool:
    return 0 < value <= 1


@dataclass(frozen=True, slots=True)
class ContextConfig(Checked):
    """What a context is: a histogram on a decimal grid, with sum 1 (P2B section 3.2), or values of declared features.

    Attributes:
        dimension: d, how many entries a histogram has; not set if features are declared.
        digits: q; every entry of a histogram is a multiple of 10^-q.
        declared: features by name, each with its kind and settings (`hushstream.features.schema.declare`); without them
            contexts are histograms.
    """

    dimension: Annotated[int, Is("features.")] = 0
    digits: Annotated[int, Is("features.")] = 1
    declared: Annotated[Any, Is(language.FEATURES)] = None

    def __post_init__(self) -> None:
        """Refuse impossible values, and check a declaration."""
        if self.declared is not None:
            self._declare()
            return
        whole("features.dimension", self.dimension, 2, 4096)
        whole("features.digits", self.digits, 1, 3)

    def _declare(self) -> None:
        keep(self, declared=declared_features(self.declared))
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
class LearnerConfig(Checked):
    """The settings of every user's LinUCB.

    Attributes:
        alpha: factor of the confidence width; a larger one explores more.
        ridge: the initial diagonal of each arm's A.
    """

    alpha: Annotated[float, Is("learner.", not_negative)] = 1.0
    ridge: Annotated[float, Is("learner.", positive)] = 1.0


@dataclass(frozen=True, slots=True)
class EncoderConfig(Checked):
    """How a context becomes a code; the server learns on the centroids of codes.

    Attributes:
        codes: how many clusters the grid is cut into; auto picks the number from arms, expected slots and epsilon.
        seed: seed of the sample of grid points and of the start of k-means; no user data is used.
    """

    codes: Annotated[int | Literal["auto"], Is("encoder.", whole, 2, 65_536)] = "auto"
    seed: Annotated[int, Is("encoder.", whole, 0, 2**31 - 1)] = 0


@dataclass(frozen=True, slots=True)
class SlotConfig(Checked):
    """When a user owes a slot, and how many slots a user sends in their life.

    Attributes:
        after_interactions: a slot is due after this many decisions of a user.
        lifetime_slots: how many slots one user sends in their life; each costs the release's epsilon once.
        settle_seconds: log time is cut into spans of this length, so that rewards can arrive. A partition sends all
            slots that fall due in one span together: at its first context after the following span has ended, or at a
            phase end. A longer span puts more slots into one batch, so a slot hides among more.
        period_seconds: length of a period in log time. A report names its period; the shuffler accepts the current
            period and the one before.
        sealed: whether slots are encrypted for the shuffler, so that the operator of the broker cannot read them: those
            of devices are. No key sets it.
        renew_every_seconds: how long after a slot of a user fell due their next one may begin, until they have sent
            ``lifetime_slots``; null: it may begin at once.
    """

    after_interactions: Annotated[int, Is("slot.", whole, 1, 1_000_000)] = 10
    lifetime_slots: Annotated[int, Is(language.UNITS_PER_PERSON, whole, 1, 1_000_000)] = 1
    settle_seconds: Annotated[float, Is(language.SETTLE_SECONDS, seconds, 0)] = 3600.0
    period_seconds: Annotated[float, Is("slot.", seconds, 0.001)] = 86_400.0
    sealed: bool = False
    renew_every_seconds: Annotated[float | None, Is("privacy.", seconds, 0.001)] = None

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        check_fields(self)
        if self.renew_every_seconds is not None:
            expected = "at least 2, the cap of a life, where users get new reports (privacy.renew_every_seconds)"
            require(self.lifetime_slots > 1, "privacy.units_per_person", expected, self.lifetime_slots)


@dataclass(frozen=True, slots=True)
class ReleaseConfig(Checked):
    """What leaves the shuffler, and when a window closes.

    Attributes:
        mode: slot-sums (noised sums of every cell, pure epsilon), tuples (sampled tuples above a threshold on the whole
            tuple, epsilon and delta), or paper (a threshold on the code alone: not private as stated).
        epsilon: what one slot costs with slot-sums; null for 1. With tuples and paper the price follows from sampling
            alone, so epsilon must not be set.
        sampling: probability that the shuffler keeps a slot (secret, keyed); below 1 for tuples and paper.
        levels: M, reward levels above 0; 1 for clicks.
        threshold: smallest crowd that leaves the shuffler, for tuples and paper; auto: with tuples the smallest
            that target_delta allows, with paper that of the paper.
        target_delta: delta of the automatic threshold.
        window_slots: a window closes when it has this many slots, or at a phase end.
        window_seconds: a window also closes after this much log time; null: time closes no window.
        sums: how the noise of windows is made: fresh (each window has its own), counter (all windows of a partition go
            through one counter), or auto (the one of the two with the smaller error of the total over all expected
            windows: expected_slots and window_slots give their number, or ``windows`` where time also closes windows).
        windows: how many windows a counter serves at most; nothing is released after the last one.
        form: what is summed: codes of contexts, or units of each declared feature (linear sums); auto: features where
            features are declared by name, else codes. A checked configuration holds the resolved value, never auto.
    """

    mode: Annotated[ReleaseMode, Is(language.MECHANISM)] = "slot-sums"
    epsilon: Annotated[float | None, Is(language.EPSILON)] = None
    sampling: Annotated[float, Is("release.", number, "a probability above 0 and at most 1", _is_chance)] = 1.0
    levels: Annotated[int, Is(language.REWARD_LEVELS, whole, 1, 256)] = 1
    threshold: Annotated[int | Literal["auto"], Is("release.", whole, 1, 10_000_000)] = "auto"
    target_delta: Annotated[float, Is(language.DELTA, probability)] = 1e-6
    window_slots: Annotated[int, Is(language.WINDOW_UNITS, whole, 1, 100_000_000)] = 10_000
    window_seconds: Annotated[float | None, Is(language.WINDOW_SECONDS, seconds, 0.001)] = None
    sums: Annotated[SumsRelease, Is("release.")] = "auto"
    windows: Annotated[int, Is(language.HORIZON, whole, 1, 1 << 30)] = 1024
    form: Annotated[ReleaseForm, Is("release.")] = "auto"

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        check_fields(self)
        self._check_epsilon()
        if self.mode == "slot-sums":
            return
        require(self.form != "features", "release.mechanism", "slot-sums for form features", self.mode)
        require(self.sampling < 1, "release.sampling", f"below 1 for mechanism {self.mode}", self.sampling)
        require(self.sums != "counter", "release.sums", f"auto or fresh for mechanism {self.mode}", self.sums)

    def _check_epsilon(self) -> None:
        if self.mode == "slot-sums":
            keep(self, epsilon=1.0 if self.epsilon is None else price("privacy.epsilon", self.epsilon, LARGEST_EPSILON))
            return
        expected = f"none for mechanism {self.mode} (its epsilon follows from release.sampling: -ln(1 - sampling))"
        require(self.epsilon is None, "privacy.epsilon", expected, self.epsilon)

    @property
    def slot_epsilon(self) -> float:
        """What one slot costs: as configured, or as the secret coin of the sampled modes makes it."""
        return -math.log1p(-self.sampling) if self.epsilon is None else self.epsilon


@dataclass(frozen=True, slots=True)
class UsersConfig(Checked):
    """How much one user may ask for, and how long their state is kept, in log time.

    Attributes:
        contexts_per_period: how many contexts of one user are learned from in a period (null: all). Further contexts
            are answered with the shared model alone: nothing of them is remembered, learned or reported.
        period_seconds: length of that period.
        early_feedback: how many clicks of one user may wait for a context that has not arrived.
        expire_after_seconds: the state of a user whom no context names for this long is deleted (null: never). What
            they spent of their allowance and quota stays, under a keyed digest of their name.
        events: whether every event counts as a user of its own, because requests name no user. The guarantee then
            covers one event, not a person: nobody counts how many events are one person's.
    """

    contexts_per_period: Annotated[int | None, Is("users.", whole, 1, 1_000_000_000)] = None
    period_seconds: Annotated[float, Is("users.", seconds, 0.001)] = 86_400.0
    early_feedback: Annotated[int, Is("users.", whole, 1, 10_000_000)] = 100
    expire_after_seconds: Annotated[float | None, Is("users.", seconds, 0.001)] = None
    events: Annotated[bool, Is("users.")] = False


@dataclass(frozen=True, slots=True)
class MeasurementConfig(Checked):
    """What the shared private model brings, in counts that are released with noise.

    Attributes:
        of: groups (a user is in one group for life: shown the application's own choice, answered by own learning
            without the shared model, or answered with it) or answers (the application shows its own choice, and answers
            are counted by item, agreement and reward).
        baseline: share of users who are shown the application's own choice, the baseline that requests name.
        own: share of users who learn by themselves alone, from a cold start: they never get the shared model.
        epsilon: what all releases together cost one user, in addition to their slots.
        decisions_per_user: how many decisions of a user are counted, from their first on; each is counted when its
            wait for a reward is over.
        every_seconds: how often a release is made, in log time; one is also made at a phase end.
        releases: how many releases a partition makes at most; more of them need more noise.
        guardrail: name of a harm (such as complained) that is compared between the groups beside the rewards; null:
            none. The application tells it of a decision, as a number from 0 to 1.
        guardrail_share: share of ``epsilon`` that pays for the harm's counts; the rest pays for those of rewards.
        guardrail_wait_seconds: how long after its decision a harm may be told; the decision then counts.
    """

    of: Annotated[MeasurementOf, Is("measurement.")] = "groups"
    baseline: Annotated[float, Is("measurement.", between, 0, 0.5)] = 0.0
    own: Annotated[float, Is("measurement.", between, 0, 0.5)] = 0.0
    epsilon: Annotated[float, Is("measurement.", price, LARGEST_EPSILON)] = 0.5
    decisions_per_user: Annotated[int, Is("measurement.", whole, 1, 1_000_000)] = 5
    every_seconds: Annotated[float, Is("measurement.", seconds, 0.001)] = 86_400.0
    releases: Annotated[int, Is("measurement.", whole, 1, 1 << 30)] = 128
    guardrail: str | None = None
    guardrail_share: Annotated[float, Is("measurement.", number, "a share between 0 and 1", lambda x: 0 < x < 1)] = 0.25
    guardrail_wait_seconds: Annotated[float, Is("measurement.", seconds, 0.001)] = 604_800.0

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        check_fields(self)
        together = self.baseline + self.own
        require(together < 1, "measurement.own", "a share below what measurement.baseline leaves", self.own)
        expected = "no group (measurement.baseline, measurement.own) where answers are counted (measurement.of)"
        require(self.of == "groups" or not together, "measurement.of", expected, self.of)
        self._check_guardrail()

    def _check_guardrail(self) -> None:
        name, harm = "measurement.guardrail", self.guardrail
        expected = "a name of 1 to 40 letters, digits, - or _"
        require(harm is None or (isinstance(harm, str) and _HARM.fullmatch(harm) is not None), name, expected, harm)
        expected = (
            "none without groups to compare (measurement.baseline, own): where answers are counted, all are shown "
        )
        require(harm is None or self.baseline + self.own > 0, name, expected + "the application's own choice", harm)
        if harm is not None:
            for part in self.parts:
                price("measurement.guardrail_share", part, LARGEST_EPSILON)

    @property
    def parts(self) -> tuple[float, float]:
        """What the counts of rewards and those of the harm cost of ``epsilon``, in whole millionths; together all."""
        if self.guardrail is None:
            return self.epsilon, 0.0
        whole_micro = epsilon_micro(self.epsilon)
        harm_micro = int(whole_micro * exact(self.guardrail_share))
        return (whole_micro - harm_micro) / MICRO, harm_micro / MICRO

    @property
    def counts(self) -> bool:
        """Whether anything is counted: answers, or a group to compare the shared model with."""
        return self.of == "answers" or self.baseline + self.own > 0


@dataclass(frozen=True, slots=True)
class P2BConfig(Checked):
    """Everything that decides what a P2B deployment computes (Malekzadeh et al. 2020).

    Attributes:
        deployment: its name; topics and consumer groups begin with it.
        arms: K, how many arms there are.
        context: what a context is.
        expected_slots: how many slots are expected in the life of the deployment, a public number; the values that
            are set to auto follow from it.
        learner: the settings of every user's LinUCB.
        encoder: how a context becomes a code.
        slot: when a user owes a slot.
        feedback: how shown and reward are joined to the decision.
        release: what leaves the shuffler.
        measurement: the noised counts of what the shared model brings, and over what.
        partitions: how many partitions each topic has.
        users: quotas and expiry of users.
        budget: limits what all slots of one user and the lift may cost them together; null: what the configuration
            plans. A user sends as many of their lifetime_slots as fit into it.
        privacy: the operator's own words about the guarantee; they are not part of the digest.
        mode: live, or shadow, where clients show the application's own choice and the answers are recorded beside it.
            It is not part of the digest, so a deployment goes live by changing this word alone.
        kind: hosted (the operator's workers run the learners) or edge (the user's device or the application does).
        system: the system that this configuration belongs to.
        expected_items: how many of the items the sums are sized for; null: all. A public number, never a live count.
        click_rate: the share of decisions that are rewarded, as far as it is publicly known; null where it is not. It
            decides which interaction a slot of declared features holds (`edge.candidates.click_chance`).
        named_items: whether the application gives items ids of its own, and adds, retires, caps and pins items while
            it runs (`hushstream items`); otherwise they are named by the numbers from 0.
        items_from_requests: whether a request may name an item that is not in the catalogue, which is then added.
        item_features: public features of items by name, each with its kind and settings; from 30 items on, what is
            expected of an item follows from those with its features (`server.prior`).
        exploration: whether an arm is chosen by its score alone or with a stated chance.
        half_life: after how many later windows of a partition a window's weight in the model is halved, so that the
            model follows a world that changes; null: all windows weigh the same; ``auto``: the half-life that predicts
            released windows best, for windows with fresh noise. It costs no privacy: only released sums are weighed.
        model_valid_seconds: how long after a version of the model was made devices may begin with it, where learners
            are agents on devices; null: 30 days. After that, devices keep the model that they have, and new devices
            begin without one until the next version.
    """

    deployment: str
    arms: Annotated[int, Is(language.ITEMS, whole, 2, 65_536)]
    context: Annotated[ContextConfig, Is("features")]
    expected_slots: Annotated[int, Is("expected_slots", whole, 1, 10**12)]
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    slot: SlotConfig = field(default_factory=SlotConfig)
    feedback: FeedbackConfig = field(default_factory=FeedbackConfig)
    release: ReleaseConfig = field(default_factory=ReleaseConfig)
    measurement: MeasurementConfig = field(default_factory=MeasurementConfig)
    partitions: PartitionConfig = field(default_factory=PartitionConfig)
    users: UsersConfig = field(default_factory=UsersConfig)
    budget: Annotated[BudgetConfig | None, Is(language.LIFETIME)] = None
    privacy: PrivacyConfig = undigested_privacy()
    mode: Annotated[Mode, Is("mode")] = undigested_mode()
    kind: Annotated[DeploymentKind, Is("kind")] = "hosted"
    system: Literal["p2b"] = "p2b"
    expected_items: Annotated[int | None, Is("items.expected")] = None
    click_rate: Annotated[float | None, Is("feedback.", number, "a share from 0 to 1", lambda x: 0 <= x <= 1)] = None
    named_items: Annotated[bool, Is(language.NAMED_ITEMS)] = False
    items_from_requests: Annotated[bool, Is("items.from_requests")] = False
    item_features: Annotated[Any, Is("items.features")] = None
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    half_life: Annotated[float | None, Is("model.", between, 0.1, 1_000_000)] = None
    model_valid_seconds: Annotated[float | None, Is("model.valid_seconds", seconds, 1)] = None

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        require_deployment(self.deployment, self.system, "p2b")
        check_fields(self)
        require(self.devices or not self.slot.sealed, "slot.sealed", "False: only devices seal", self.slot.sealed)
        keep(self, slot=replace(self.slot, sealed=self.devices))
        if self.expected_items is not None:
            whole("items.expected", self.expected_items, 1, self.arms)
        self._check_form()
        self._check_items()
        if self.half_life is not None:
            require(self.release.form == "features", "model.half_life", "none for form codes", self.half_life)
        self._check_measurement()
        self._check_devices()
        after, owed = (
            self.users.expire_after_seconds,
            2 * self.slot.settle_seconds + self.feedback.attribution_window_seconds,
        )
        each = self.slot.after_interactions
        expected = "1 where each event is a user of its own (`users.events`): such a user comes only once"
        require(each == 1 or not self.users.events, "slot.after_interactions", expected, each)
        renewed, wait = self.slot.renew_every_seconds, self.feedback.attribution_window_seconds
        if renewed is not None:
            # When the next slot begins, no feedback of the slot before may still arrive.
            expected = f"at least the reward's wait (feedback.attribution_window_seconds: {wait:g})"
            require(renewed >= wait, "privacy.renew_every_seconds", expected, renewed)
            expected = "none where each event is a user of its own (`users.events`): such a user comes only once"
            require(not self.users.events, "privacy.renew_every_seconds", expected, renewed)
        if after is not None:
            # The state of a user may be deleted only when nothing in it waits for feedback or to be sent.
            name = "users.expire_after_seconds"
            require(after > owed, name, f"more than twice settle and reward wait together ({owed:g})", after)

    def _check_devices(self) -> None:
        """Check the settings of models on devices, and refuse with devices what they cannot have."""
        valid = self.model_valid_seconds
        if not self.devices:
            require(valid is None, "model.valid_seconds", "none where no devices take models (kind edge)", valid)
            return
        expected = "false for kind edge: items of devices are named 0, 1, 2, ... and stay, without caps and pins"
        require(not self.named_items, "items.named", expected, self.named_items)
        require(not self.users.events, "users.events", "false for kind edge: a device has one user", self.users.events)
        if valid is not None:
            expected = f"at most {LONGEST_VALID_SECONDS:.0f}, as long as statements are kept"
            require(valid <= LONGEST_VALID_SECONDS, "model.valid_seconds", expected, valid)

    @property
    def devices(self) -> bool:
        """Whether the learners are agents on devices, which send slots and fetch models through a gateway."""
        return self.kind == "edge"

    @property
    def valid_ms(self) -> int:
        """How long after it was made devices may begin with a version of the model, in milliseconds."""
        valid = self.model_valid_seconds
        return round((_VALID_SECONDS if valid is None else valid) * 1000)

    @property
    def counted(self) -> MeasurementConfig | None:
        """How what the model brings is counted and released; None where nothing is."""
        return self.measurement if self.measurement.counts else None

    def _check_measurement(self) -> None:
        asked = self.measurement
        expected = "nothing for kind edge (its learners are not here to be counted)"
        require(self.kind == "hosted" or not asked.counts, "measurement", expected, "a measurement")
        expected = f"groups for more than {LARGEST_ANSWERS} items: noise would hide what each earns"
        require(asked.of == "groups" or self.arms <= LARGEST_ANSWERS, "measurement.of", expected, asked.of)
        wait, told = self.feedback.attribution_window_seconds, asked.guardrail_wait_seconds
        expected = f"at least the reward's wait (feedback.attribution_window_seconds: {wait:g})"
        name = "measurement.guardrail_wait_seconds"
        require(asked.guardrail is None or told >= wait, name, expected, told)
        if self.budget is not None:
            share = self.budget.lift
            expected = "a share above 0 exactly where something is measured (measurement.baseline, own, or of: answers)"
            require((share > 0) == asked.counts, "privacy.lifetime.measurement", expected, share)

    def _check_items(self) -> None:
        expected = "false for form codes"
        require(not self.named_items or self.release.form == "features", "items.named", expected, self.named_items)
        asked = self.items_from_requests
        expected = "false where items have no names (`items.named`)"
        require(self.named_items or not asked, "items.from_requests", expected, asked)
        if self.item_features is None:
            return
        require(self.named_items, "items.features", "none where items have no names (`items.named`)", "some")
        keep(self, item_features=declared_features(self.item_features, "items."))

    def _check_form(self) -> None:
        """Resolve the form of the sums, and refuse settings that do not go with it."""
        declared = self.context.declared is not None
        form: ReleaseForm = "features" if declared else "codes"
        expected = "features where features are declared by name, else codes"
        require(self.release.form in ("auto", form), "release.form", expected, self.release.form)
        keep(self, release=replace(self.release, form=form))
        if not declared:
            expected = "hosted where no features are declared by name: devices learn from declared features"
            require(self.kind != "edge", "kind", expected, self.kind)
            for name, value in (("items.expected", self.expected_items), ("feedback.click_rate", self.click_rate)):
                require(value is None, name, "none for form codes", value)
            return
        require(
            self.encoder == EncoderConfig(), "encoder.codes", "auto: form features has no codes", self.encoder.codes
        )
        require(self.learner == LearnerConfig(), "learner", "none for form features", self.learner)


def configuration_digest(
    config: P2BConfig, centroids: bytes, pinned: bytes = b"", public_dataset: bool = False
) -> bytes:
    """Return 16 bytes that identify the configuration, the fitted encoder and the first keys that agents trust.

    An agent that pins the digest therefore pins those keys too: only their holders can name later keys.

    Args:
        config: the configuration; it determines the lengths of ``centroids`` and ``pinned``.
        centroids: the encoder's centroids as its exact integer bytes.
        pinned: of devices the first public keys of the shuffler (`Recipients.pinned`) and the aggregator
            (`SigningKeys.pinned`).
        public_dataset: whether the deployment replays a public dataset.
    """
    return config_digest(config, public_dataset, centroids + pinned)
