"""P2B (Malekzadeh et al. 2020): local learners, one slot per user, noised slot sums, a shared model to start from.

Stages, in order: LinUCB per user (edge) -> one padded slot (edge) -> windows and release (shuffler) ->
model from noised sums (server) -> new users start from it (edge).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import NegativeDigitTree
from hushstream.engine.catalogue import CatalogueRules
from hushstream.engine.declare.requests import ContextRules
from hushstream.engine.devices.recipients import Recipients
from hushstream.engine.devices.signing import SigningKeys
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.system import Core
from hushstream.engine.values import ConfigurationError, require
from hushstream.privacy.mechanisms.amplification import noise_epsilon
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.privacy.promises.sentence import Prices
from hushstream.systems.p2b.configuration import P2BConfig, configuration_digest
from hushstream.systems.p2b.contribution.encoder import Encoder
from hushstream.systems.p2b.edge.policy import COLD, SharedPolicy
from hushstream.systems.p2b.edge.terms import EdgeTerms
from hushstream.systems.p2b.guarantee.form import CodesForm, FeaturesForm, SlotForm
from hushstream.systems.p2b.guarantee.promise import lifetime_slots_of, priced, window_tree_of
from hushstream.systems.p2b.guarantee.summed import resolve_codes, resolve_threshold
from hushstream.systems.p2b.lift import required_lift
from hushstream.systems.p2b.model_file import ExportedModel
from hushstream.systems.p2b.shuffler.windows import WindowRules

TRACKS: tuple[Literal["private", "nonprivate"], ...] = ("private", "nonprivate")
"""Model tracks, by partition of crowds and models. Only replays of public datasets have the second one."""


@dataclass(frozen=True, eq=False)
class P2BSystem(Core[P2BConfig]):
    """A configuration with the encoder that was fitted for it: the object that all roles of the deployment use."""

    form: SlotForm
    sealing: Recipients | None = None
    """The shuffler's public keys, where slots are sealed to them."""
    signing: SigningKeys | None = None
    """The aggregator's public keys, where models are signed for devices."""
    non_private_arm: bool = False
    """Whether there is a second model track, of exact interactions that travel in clear: for public datasets alone."""

    @classmethod
    def of(
        cls,
        config: P2BConfig,
        lattice: NDArray[np.int64],
        sealing: Recipients | None = None,
        public_dataset: bool = False,
        non_private_arm: bool | None = None,
        start: ExportedModel | None = None,
    ) -> P2BSystem:
        """Join a configuration and an encoder's centroids, (k, d) in units of 2^-16.

        Args:
            config: the configuration.
            lattice: the centroids.
            sealing: the shuffler's public keys; given if and only if slots are sealed.
            public_dataset: whether it is a replay of a public dataset.
            non_private_arm: whether that replay also has a model of exact interactions; by default it has.
            start: the exported model that new users begin with.

        Raises:
            ConfigurationError: the encoder, keys or start do not fit the configuration, a record would be too large,
                or the budget pays for nothing.
        """
        compared = public_dataset and non_private_arm is not False
        return cls._joined(config, CodesForm.of(config, lattice, start), sealing, None, public_dataset, compared)

    @classmethod
    def declared(
        cls,
        config: P2BConfig,
        public_dataset: bool = False,
        start: ExportedModel | None = None,
        sealing: Recipients | None = None,
        signing: SigningKeys | None = None,
    ) -> P2BSystem:
        """A deployment of declared features: nothing is fitted for it.

        Args:
            config: the configuration.
            public_dataset: whether it is a replay of a public dataset.
            start: the exported model that new users begin with.
            sealing: the shuffler's public keys; given if and only if slots are sealed.
            signing: the aggregator's public keys; given if and only if devices take models.

        Raises:
            ConfigurationError: keys do not fit the configuration, a record would be too large, the budget pays for
                nothing, or the start is a model of other features or items.
        """
        if config.devices and start is not None:
            raise ConfigurationError("start: expected none for kind edge, whose devices begin without a model, got one")
        return cls._joined(config, FeaturesForm.of(config, start), sealing, signing, public_dataset, compared=False)

    @classmethod
    def _joined(
        cls,
        config: P2BConfig,
        form: SlotForm,
        sealing: Recipients | None,
        signing: SigningKeys | None,
        public_dataset: bool,
        compared: bool,
    ) -> P2BSystem:
        found = priced(config, compared)
        hosted = config.kind == "hosted" or not public_dataset
        require(hosted, "kind", "hosted in a replay, whose learners are workers", config.kind)
        _require_keys("slot.sealed", config.slot.sealed, sealing, "the shuffler")
        _require_keys("devices", config.devices, signing, "the aggregator")
        pinned = b"".join(keys.pinned for keys in (sealing, signing) if keys is not None)
        digest = configuration_digest(config, form.fitted, pinned, public_dataset)
        return cls(config, digest, found, form, sealing, signing, compared, public_dataset=public_dataset)

    @classmethod
    def fitted(cls, config: P2BConfig, sealing: Recipients | None = None, public_dataset: bool = False) -> P2BSystem:
        """Fit the encoder on the public grid of contexts (needs scikit-learn), then make a deployment as `of` does."""
        from hushstream.systems.p2b.contribution.fitting import fit_grid

        context = config.context
        encoder = fit_grid(context.dimension, context.digits, resolve_codes(config), config.encoder.seed)
        return cls.of(config, encoder.lattice, sealing, public_dataset)

    @property
    def counts_lift(self) -> bool:
        """Whether learners release a lift, over a hold-out or in the shadow."""
        return self.config.counted is not None

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of partitions: each shuffler partition is a scope of the ledger."""
        partitions = self.config.partitions
        return {
            "learner": partitions.learner,
            "shuffler": partitions.shuffler,
            "tracks": self.track_count,
            "scopes": partitions.shuffler,
        }

    @property
    def encoder(self) -> Encoder:
        """The encoder, in a deployment of codes."""
        return self.coded.encoder

    @property
    def coded(self) -> CodesForm:
        """The form of a deployment of codes, for callers that know no other form."""
        assert isinstance(self.form, CodesForm), "expected a deployment of codes"
        return self.form

    @property
    def linear(self) -> FeaturesForm:
        """The form of a deployment of declared features, for callers that know no other form."""
        assert isinstance(self.form, FeaturesForm), "expected a deployment of declared features"
        return self.form

    @property
    def codes(self) -> int:
        """k, in a deployment of codes."""
        return self.encoder.codes

    @property
    def track_count(self) -> int:
        """The number of partitions of crowds and models: one, and one more if there is a non-private arm."""
        return 2 if self.non_private_arm else 1

    @property
    def tracks_for_users(self) -> tuple[str, ...]:
        """The tracks that a context may name."""
        return (COLD, *TRACKS[: self.track_count])

    @property
    def requests(self) -> ContextRules:
        """See `System.requests`."""
        shadow = self.config.mode == "shadow"
        return replace(self.form.rules(self.tracks_for_users), catalogue=self.catalogue_rules, shadow=shadow)

    @property
    def catalogue_rules(self) -> CatalogueRules | None:
        """The rules of the catalogue; None if items have no names."""
        config = self.config
        if not config.named_items:
            return None
        return CatalogueRules(
            config.arms,
            reuse_after_ms(config),
            self.digest,
            config.item_features,
            config.items_from_requests,
            known=self.linear.known,
        )

    @property
    def model_dimension(self) -> int:
        """The dimension of the learner's features: d for centroids, k for one-hot codes."""
        return self.coded.dimension

    @property
    def noise_epsilon(self) -> Fraction:
        """The epsilon of the noise alone: with it and the secret sampling, a slot costs the configured epsilon."""
        return noise_epsilon(self.config.release.slot_epsilon, self.config.release.sampling)

    @property
    def threshold(self) -> int:
        """The smallest crowd that is released, in the modes that have a threshold."""
        return resolve_threshold(self.config)

    @property
    def window_tree(self) -> NegativeDigitTree | None:
        """The counter over a partition's windows, or None where each window has fresh noise."""
        return window_tree_of(self.config)

    def policy(self) -> SharedPolicy:
        """A fresh kernel with every track cold."""
        return self.form.policy(COLD, TRACKS[: self.track_count])

    def window_rules(self) -> WindowRules:
        """When the shuffler's windows close."""
        config = self.config
        seconds = config.release.window_seconds
        return WindowRules(
            slots=config.release.window_slots,
            origins=frozenset(range(config.partitions.learner)),
            period_ms=round(config.slot.period_seconds * 1000),
            open_ms=None if seconds is None else max(1, round(seconds * 1000)),
            content_bytes=self.form.content_bytes,
            item_rows=config.arms if config.named_items else 0,
        )

    def edge_terms(self) -> EdgeTerms:
        """The terms that agents of this deployment follow, with a fresh policy."""
        config, renewed = self.config, self.config.slot.renew_every_seconds
        return EdgeTerms(
            policy=self.policy(),
            after_interactions=config.slot.after_interactions,
            lifetime_slots=self.lifetime_slots,
            levels=config.release.levels,
            attribution_window_ms=round(config.feedback.attribution_window_seconds * 1000),
            contexts_per_period=config.users.contexts_per_period,
            quota_period_ms=round(config.users.period_seconds * 1000),
            choice=self.form.choice,
            exploration=config.exploration.rule(),
            renew_ms=None if renewed is None else round(renewed * 1000),
        )

    def lift_address(self, genesis_nonce: bytes, partition: int, epoch: int = 0) -> NoiseAddress:
        """The address of the noise of a learner partition's lift in one epoch."""
        lift, levels, answers = required_lift(self.config)
        by_answer = {"answers": answers} if answers else {}
        parameters = {"levels": levels, "decisions": lift.decisions_per_user, **by_answer}
        return self.noise_address("lift", "lift", parameters, genesis_nonce, epoch, partition)

    @property
    def start(self) -> ExportedModel | None:
        """The exported model that new users begin with; None if they begin without a model."""
        return self.form.start

    @property
    def paid(self) -> Prices:
        """The most that one person pays for all slots behind its models, with those of other deployments."""
        own = self.promises.together
        return own if self.start is None else own + self.start.paid

    @property
    def lifetime_slots(self) -> int:
        """How many slots a user sends in their life: as many as are planned, or as fit the budget."""
        return lifetime_slots_of(self.config)

    @property
    def slot_terms(self) -> SpendingTerms:
        """The prices of the shuffler's releases, and their limit."""
        return self.ledgers["ledger"]

    @property
    def lift_terms(self) -> SpendingTerms:
        """The prices of the lift's releases, and their limit."""
        return self.ledgers["ledger-edge"]


def reuse_after_ms(config: P2BConfig) -> int:
    """How long (log time) after an item was retired its row may get another item, because no slot of it can come.

    The item's last decision waits for a reward, then for its slot to settle. A slot names the period of log time in
    which its content was fixed, and shufflers take slots of the current and the previous period. If time closes
    windows, the window of such a slot has then closed, too. A window that closes on a count alone may stay open longer:
    then the catalogue version in a slot distinguishes it from slots of the row's next item.
    """
    slot, seconds = config.slot, config.release.window_seconds or 0.0
    wait = config.feedback.attribution_window_seconds + 2 * (slot.settle_seconds + slot.period_seconds)
    return round((wait + seconds) * 1000)


def _require_keys(setting: str, wanted: bool, keys: object | None, whose: str) -> None:
    if wanted != (keys is not None):
        expected, got = ("the", "none") if wanted else ("no", "one")
        raise ConfigurationError(
            f"{setting} {str(wanted).lower()}: expected {expected} public key of {whose}, got {got}"
        )
