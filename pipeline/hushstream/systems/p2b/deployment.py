"""P2B (Malekzadeh et al. 2020): local learners, one slot per user, noised slot sums, a shared model to start from.

Stages, in order: LinUCB per user (edge) -> one fixed-size report (edge) -> windows and release (shuffler) ->
model from noised sums (server) -> new users start from it (edge).

*Forms.* The two forms of a deployment, slots of codes and slots of declared features, with all that differs between
them.

A form is chosen once, by ``release.form``. Roles call its methods, and never ask which form it is. What follows from
the configuration alone is in `hushstream.systems.p2b.guarantee`.

*Published models.* Decodes published models of P2B.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import NegativeDigitTree
from hushstream.engine.catalogue import Catalogue, CatalogueRules
from hushstream.engine.declare.outcomes import Refusal
from hushstream.engine.declare.requests import ContextRules
from hushstream.engine.devices.sealing import Recipients
from hushstream.engine.devices.signing import SigningKeys
from hushstream.engine.learner.model_parts import CONTENT
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.system import Core
from hushstream.engine.values import ConfigurationError, require
from hushstream.learners.sparse import SparseModel
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import NoiseAddress, noise_epsilon
from hushstream.privacy.promises.sentence import Prices
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.codebook import CENTROID_STEPS, Encoder
from hushstream.systems.p2b.configuration import P2BConfig, configuration_digest
from hushstream.systems.p2b.edge.agent import (
    DrawnBefore,
    EdgeTerms,
    SlotChoice,
    TwoCandidates,
    click_chance,
    is_normalised,
    normalised,
)
from hushstream.systems.p2b.edge.codes import LinUCBPolicy
from hushstream.systems.p2b.edge.policies import COLD, FeaturePolicy, SharedPolicy
from hushstream.systems.p2b.guarantee import (
    layout_of_slots,
    lifetime_slots_of,
    priced,
    require_code_sizes,
    resolve_codes,
    resolve_threshold,
    summed_of,
    window_tree_of,
)
from hushstream.systems.p2b.lift import required_lift
from hushstream.systems.p2b.models import ExportedModel
from hushstream.systems.p2b.server.estimate import Known, WarmStart, cold_start, started
from hushstream.systems.p2b.shuffler import ItemRows, WindowRules
from hushstream.systems.p2b.slots import SLOT_BYTES, BadSlot, FeatureLayout, slot_bytes, unpack
from hushstream.systems.p2b.succession import Predecessor, priced_after, require_within_life, spent_with


@dataclass(frozen=True, eq=False)
class CodesForm:
    """Contexts are histograms, and a slot holds the code of one.

    Attributes:
        config: of the deployment.
        encoder: turns contexts into codes.
    """

    config: P2BConfig
    encoder: Encoder
    start = None
    slot_record = "SlotReport"
    sums_record = "WindowSums"
    model_record = "Model"
    parts = 1

    @classmethod
    def of(cls, config: P2BConfig, lattice: NDArray[np.int64]) -> CodesForm:
        """The form with an encoder's centroids, (k, d) in units of 2^-16.

        Raises:
            ConfigurationError: the encoder does not fit the configuration, or a record would be too large.
        """
        encoder = Encoder(np.asarray(lattice, dtype=np.float64) / CENTROID_STEPS, config.context.digits)
        expected = (resolve_codes(config), config.context.dimension)
        if encoder.lattice.shape != expected:
            raise ConfigurationError(
                f"encoder: expected centroids of shape {expected}, got {encoder.lattice.shape}: the configuration of a "
                f"deployment is frozen, and the encoder belongs to another one"
            )
        require_code_sizes(config, encoder.codes)
        return cls(config, encoder)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """See `FeaturesForm.shape`."""
        return (self.encoder.codes, self.config.arms)

    @property
    def content_bytes(self) -> int:
        return SLOT_BYTES

    @property
    def fitted(self) -> bytes:
        """See `FeaturesForm.fitted`: the centroids."""
        return self.encoder.lattice.astype("<i8").tobytes()

    @cached_property
    def require_content(self) -> Callable[[bytes], object]:
        """Refuses content of a slot that cannot be read (`BadSlot`), before the window closes."""
        codes, arms = self.shape
        return partial(unpack, codes=codes, arms=arms, levels=self.config.release.levels)

    def rules(self, tracks: Sequence[str]) -> ContextRules:
        """The rules for contexts and feedback: contexts are histograms."""
        return ContextRules(
            arms=self.config.arms,
            width=self.config.context.dimension,
            good=normalised,
            good_row=is_normalised,
            refusal=Refusal.UNNORMALISED_CONTEXT,
            expected="a histogram: no entry below 0, and the sum is 1",
            tracks=tracks,
        )

    def policy(self, cold: str, tracks: Sequence[str]) -> SharedPolicy:
        learner, arms = self.config.learner, self.config.arms
        return LinUCBPolicy(
            self.encoder, arms, self.config.context.dimension, learner.alpha, learner.ridge, tuple(tracks)
        )

    @property
    def choice(self) -> SlotChoice:
        return DrawnBefore()

    @property
    def domain(self) -> dict[str, int | str]:
        return {"codes": self.encoder.codes, "arms": self.config.arms, "levels": self.config.release.levels}

    parameters = domain


@dataclass(frozen=True, eq=False)
class FeaturesForm:
    """Contexts give the values of declared features, and a slot holds units of their cells.

    Attributes:
        config: of the deployment.
        start: the exported model that new users begin with; None if they begin without a model.
    """

    config: P2BConfig
    start: ExportedModel | None = None
    slot_record = "FeatureSlot"
    sums_record = "ItemSums"

    def __post_init__(self) -> None:
        """Refuse a layout whose records would be too large."""
        summed_of(self.config).check()

    @classmethod
    def of(cls, config: P2BConfig, start: ExportedModel | None = None) -> FeaturesForm:
        """The form of a configuration.

        Raises:
            ConfigurationError: a record would be too large, or the start is a model of other features or items.
        """
        return cls(config, None if start is None else _fitting(start, config))

    @property
    def model_record(self) -> str:
        """The schema of a model; if it leaves in parts, its record has the digest of the whole."""
        return "LargeModel" if self.parts > 1 else "ItemModel"

    @cached_property
    def parts(self) -> int:
        """The number of parts in which sums and models leave; 1 if each is one record."""
        return summed_of(self.config).parts

    @cached_property
    def layout(self) -> FeatureLayout:
        """The layout of a slot and of the sums, with the division of a slot's units."""
        return layout_of_slots(self.config)

    @cached_property
    def layout_digest(self) -> bytes:
        """16 bytes that identify the declared features and the division of a slot's units."""
        return self.layout.digest

    @property
    def fitted(self) -> bytes:
        """What the digest has beside the configuration: the model that users begin with."""
        return b"" if self.start is None else self.start.digest

    @cached_property
    def content_bytes(self) -> int:
        """The size of every slot's content."""
        return slot_bytes(self.layout.places)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """The shape of each of the two arrays of sums."""
        return (self.layout.arms, self.layout.cells)

    def require_content(self, content: bytes) -> None:
        """Refuse content of another length, which is public (`BadSlot`); other invalid content counts as null."""
        if len(content) != self.content_bytes:
            raise BadSlot(f"expected {self.content_bytes} bytes of slot content, got {len(content)}")

    def rules(self, tracks: Sequence[str]) -> ContextRules:
        """The rules for contexts and feedback."""
        schema = self.layout.schema
        return ContextRules(
            arms=self.config.arms,
            width=schema.row_bytes,
            good=schema.readable,
            refusal=Refusal.MALFORMED_FEATURES,
            expected="values of the declared features",
            tracks=tracks,
            features=schema,
            events_are_users=self.config.users.events,
        )

    def policy(self, cold: str, tracks: Sequence[str]) -> SharedPolicy:
        """A fresh kernel in which every track is cold; the track ``cold`` stays so."""
        layout = self.layout
        policy = FeaturePolicy(layout, SparseModel.of(*self._cold), (cold, *tracks))
        if self.start is not None:
            means, variances, reward_variance = self.beginning
            policy.adopt(tracks[0], 0, means, variances, np.array([reward_variance]))
        return policy

    @property
    def known(self) -> tuple[str, ...]:
        """The ids of the start's items."""
        return () if self.start is None else self.start.items

    @property
    def beginning(self) -> WarmStart:
        """The model that users start from before any window; each call makes new arrays."""
        return self._cold if self.before is None else started(self.before.model, self._cold)

    @property
    def before(self) -> Known | None:
        """The exported model as estimates of its items; None if users begin without a model."""
        start = self.start
        if start is None:
            return None
        return Known(WarmStart(start.means, start.variances, start.reward_variance), start.slots)

    @property
    def _cold(self) -> WarmStart:
        layout = self.layout
        return cold_start(layout.arms, layout.cells, len(layout.schema.table))

    @property
    def chance(self) -> float | None:
        """h, the probability that a slot prefers a clicked interaction; None if it is drawn whatever was clicked."""
        rate = self.config.click_rate
        return None if rate is None else click_chance(rate)

    @property
    def choice(self) -> SlotChoice:
        """Chooses the interaction that a slot holds."""
        return TwoCandidates(self.chance)

    @property
    def domain(self) -> Mapping[str, Any]:
        """The fields of a record of sums that describe its sums."""
        arms, cells = self.shape
        levels = self.config.release.levels
        return {"layout_digest": self.layout_digest, "arms": arms, "cells": cells, "levels": levels}

    @property
    def parameters(self) -> dict[str, int | str]:
        """The values on which the noise depends besides its scale, as whole numbers."""
        layout = self.layout
        return {
            "arms": layout.arms,
            "levels": layout.levels,
            "units": layout.sensitivity // layout.levels,
            "places": layout.places,
            "budgets": ",".join(map(str, layout.budgets)),
            "features": layout.schema.digest.hex(),
        }


SlotForm: TypeAlias = CodesForm | FeaturesForm
"""What a slot holds, and what is made from many slots."""


def _fitting(start: ExportedModel, config: P2BConfig) -> ExportedModel:
    """Check that users of this deployment can begin with an exported model.

    Raises:
        ConfigurationError: the model has other items, too many of them, or other features.
    """
    items = len(start.items)
    numbered = config.named_items or start.items == tuple(map(str, range(items)))
    require(numbered, "start", "a model of the items 0, 1, 2, ..., which are the items here", "one of other items")
    require(items <= config.arms, "start", f"a model of at most {config.arms} items (capacity)", items)
    here = config.context.schema
    if start.schema.digest != here.digest:
        expected, got = (", ".join(one.features) for one in (here, start.schema))
        raise ConfigurationError(
            f"start: expected a model of the features that this deployment declares ({expected}), got one of {got}, "
            f"declared otherwise"
        )
    return start


PRIVATE = "private"
"""The model track of users who begin with the shared model."""

TRACKS = (COLD, PRIVATE)
"""The tracks that a context may name."""


@dataclass(frozen=True, eq=False)
class P2BSystem(Core[P2BConfig]):
    """A configuration with the encoder that was fitted for it: the object that all roles of the deployment use."""

    form: SlotForm
    sealing: Recipients | None = None
    """The shuffler's public keys, to which devices seal their slots."""
    signing: SigningKeys | None = None
    """The aggregator's public keys, where models are signed for devices."""
    before: Predecessor | None = None
    """The generation before this one, whose configuration was changed."""

    @classmethod
    def of(
        cls,
        config: P2BConfig,
        lattice: NDArray[np.int64],
        public_dataset: bool = False,
    ) -> P2BSystem:
        """Join a configuration and an encoder's centroids, (k, d) in units of 2^-16.

        Args:
            config: the configuration.
            lattice: the centroids.
            public_dataset: whether it is a replay of a public dataset.

        Raises:
            ConfigurationError: the encoder does not fit the configuration, a record would be too large, or the budget
                pays for nothing.
        """
        return cls._joined(config, CodesForm.of(config, lattice), None, None, public_dataset)

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
            sealing: the shuffler's public keys, to which devices seal their slots; None without devices.
            signing: the aggregator's public keys, under which devices take models; None without devices.

        Raises:
            ConfigurationError: keys do not fit the configuration, a record would be too large, the budget pays for
                nothing, or the start is a model of other features or items.
        """
        if config.devices and start is not None:
            raise ConfigurationError("start: expected none for kind edge, whose devices begin without a model, got one")
        return cls._joined(config, FeaturesForm.of(config, start), sealing, signing, public_dataset)

    @classmethod
    def _joined(
        cls,
        config: P2BConfig,
        form: SlotForm,
        sealing: Recipients | None,
        signing: SigningKeys | None,
        public_dataset: bool,
    ) -> P2BSystem:
        found = priced(config)
        expected = "hosted in a replay, whose learners are workers"
        require(not (config.devices and public_dataset), "kind", expected, config.kind)
        _require_keys(config, sealing, "the shuffler")
        _require_keys(config, signing, "the aggregator")
        pinned = b"".join(keys.pinned for keys in (sealing, signing) if keys is not None)
        digest = configuration_digest(config, form.fitted, pinned, public_dataset)
        return cls(config, digest, found, form, sealing, signing, public_dataset=public_dataset)

    @classmethod
    def fitted(cls, config: P2BConfig, public_dataset: bool = False) -> P2BSystem:
        """Fit the encoder on the public grid of contexts (needs scikit-learn), then make a deployment as `of` does."""
        from hushstream.systems.p2b.codebook import fit_grid

        context = config.context
        encoder = fit_grid(context.dimension, context.digits, resolve_codes(config), config.encoder.seed)
        return cls.of(config, encoder.lattice, public_dataset)

    @property
    def counts_lift(self) -> bool:
        """Whether learners release what the shared model brings."""
        return self.config.counted is not None

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of partitions: each shuffler partition is a scope of the ledger."""
        partitions = self.config.partitions
        return {
            "learner": partitions.learner,
            "shuffler": partitions.shuffler,
            "tracks": 1,
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
    def requests(self) -> ContextRules:
        """See `System.requests`."""
        shadow = self.config.mode == "shadow"
        named = self.catalogue_rules if self.config.named_items else None
        harm = self.config.measurement.guardrail
        return replace(self.form.rules(TRACKS), catalogue=named, shadow=shadow, harm=harm)

    @property
    def catalogue_rules(self) -> CatalogueRules | None:
        """The rules of the catalogue; None in a deployment of codes."""
        config = self.config
        if not isinstance(self.form, FeaturesForm):
            return None
        return CatalogueRules(
            config.arms,
            reuse_after_ms(config),
            self.digest,
            config.item_features,
            config.items_from_requests,
            known=self.form.known,
            numbered=not config.named_items,
            ruled=config.named_items,
        )

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
        return self.form.policy(COLD, (PRIVATE,))

    def window_rules(self) -> WindowRules:
        """When the shuffler's windows close."""
        config = self.config
        seconds, rules = config.release.window_seconds, self.catalogue_rules
        return WindowRules(
            slots=config.release.window_slots,
            origins=frozenset(range(config.partitions.learner)),
            period_ms=round(config.slot.period_seconds * 1000),
            open_ms=None if seconds is None else max(1, round(seconds * 1000)),
            content_bytes=self.form.content_bytes,
            item_rows=None if rules is None else ItemRows.of(Catalogue(rules)),
            **({} if self.before is None else {"known": self.before.ids}),
        )

    def following(self, before: Predecessor | None) -> P2BSystem:
        """The same system as the generation after ``before``; None: as the first one.

        Raises:
            ConfigurationError: a person might pay more than was guaranteed for a life.
        """
        if before is None:
            return self
        require_within_life(before.life, before.spent, self.config)
        digest = hashlib.blake2b(self.digest + before.digest, digest_size=16, person=b"hush-following").digest()
        return replace(self, digest=digest, before=before, priced=priced_after(before, self.config, self.priced))

    def edge_terms(self, zone_key: Key | None = None) -> EdgeTerms:
        """The terms that agents of this deployment follow, with a fresh policy; users' keys come from a zone's."""
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
            zone_key=zone_key,
        )

    def lift_address(self, genesis_nonce: bytes, partition: int, epoch: int = 0) -> NoiseAddress:
        """The address of the noise of a learner partition's lift in one epoch; a guardrail has a key of its own."""
        settings, levels, cells = required_lift(self.config)
        parameters = {"levels": levels, "decisions": settings.decisions_per_user, "cells": cells}
        return self.noise_address("lift", "lift", parameters, genesis_nonce, epoch, partition)

    @property
    def start(self) -> ExportedModel | None:
        """The exported model that new users begin with; None if they begin without a model."""
        return self.form.start

    @property
    def paid(self) -> Prices:
        """The most that one person pays for all slots behind its models, with those of other deployments."""
        if self.before is not None:
            return self.before.together(self.config) + self.before.elsewhere
        own = self.guarantee().together
        return own if self.start is None else own + self.start.paid

    def paid_before(self) -> tuple[Prices, tuple[Prices, ...]]:
        """What was guaranteed for a life by the first generation, and what was spent at the end of this one."""
        life = self.guarantee().together if self.before is None else self.before.life
        return life, spent_with(self.before, self.config)

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


def _require_keys(config: P2BConfig, keys: object | None, whose: str) -> None:
    if config.devices != (keys is not None):
        expected, got = ("the", "none") if config.devices else ("no", "one")
        raise ConfigurationError(f"kind {config.kind}: expected {expected} public key of {whose}, got {got}")


class PublishedModel(NamedTuple):
    """One version, and its arrays as `SharedPolicy.adopt` takes them.

    Of codes: gram (K, D, D) and moment (K, D), float64. Of declared features: means
    and variances (K, P), the variance of a reward (1,), and the entries of items (K,), float64.
    """

    version: int
    arrays: tuple[NDArray[np.float64], ...]


def decode_model(system: P2BSystem, fields: dict[str, Any]) -> PublishedModel:
    """The arrays of the record of a model.

    Raises:
        HushstreamError: the record or its arrays do not have the deployment's arms and dimension.
    """
    return _DECODE[system.config.release.form](system, fields)


def _of_features(system: P2BSystem, fields: dict[str, Any]) -> PublishedModel:
    form = system.linear
    found = (fields["arms"], fields["cells"])
    if found != form.shape or fields["layout_digest"] != form.layout_digest:
        raise HushstreamError(f"model: expected arms and coordinates {form.shape} of this layout, got {found}")
    size = 8 * math.prod(form.shape)
    found_arrays = _arrays(fields, size) if form.parts > 1 else (fields["means"], fields["variances"])
    if tuple(map(len, found_arrays)) != (size, size):
        raise HushstreamError(f"model: expected means and variances of {size} bytes, got others")
    means, variances = (np.frombuffer(one, "<f8").reshape(form.shape).astype(np.float64) for one in found_arrays)
    if len(fields["entries"]) != 4 * form.shape[0]:
        raise HushstreamError(f"model: expected entries of {4 * form.shape[0]} bytes, got others")
    entries = np.frombuffer(fields["entries"], "<i4").astype(np.float64)
    return PublishedModel(fields["version"], (means, variances, np.array([fields["reward_variance"]]), entries))


def _arrays(fields: Mapping[str, Any], size: int) -> tuple[bytes, bytes]:
    """Means and variances of a model whose arrays came in parts."""
    content = fields[CONTENT]
    return content[:size], content[size:]


def _of_codes(system: P2BSystem, fields: dict[str, Any]) -> PublishedModel:
    """The arrays of a Model record.

    Raises:
        HushstreamError: the record or its arrays do not have the deployment's arms and dimension.
    """
    arms, dimension = system.config.arms, system.config.context.dimension
    shape = (arms, dimension, dimension)
    found = (fields["arms"], fields["dimension"])
    if found != (arms, dimension):
        raise HushstreamError(f"model: expected arms and dimension {(arms, dimension)}, got {found}")
    gram, moment = fields["gram"], fields["moment"]
    sizes = (8 * math.prod(shape), 8 * arms * dimension)
    if (len(gram), len(moment)) != sizes:
        raise HushstreamError(f"model: expected sums of {sizes} bytes, got {(len(gram), len(moment))}")
    return PublishedModel(
        fields["version"],
        (
            np.frombuffer(gram, "<f8").reshape(shape).astype(np.float64),
            np.frombuffer(moment, "<f8").reshape(arms, dimension).astype(np.float64),
        ),
    )


_DECODE = {"codes": _of_codes, "features": _of_features}
