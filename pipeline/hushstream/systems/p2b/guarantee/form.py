"""The two forms of a deployment, slots of codes and slots of declared features, with all that differs between them.

A form is chosen once, by ``release.form``. Roles call its methods, and never ask which form it is. What follows from
the configuration alone is in `hushstream.systems.p2b.guarantee.summed`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.declare.outcomes import Refusal
from hushstream.engine.declare.requests import ContextRules
from hushstream.engine.devices.sealing import ContentOpener, Opener
from hushstream.engine.values import ConfigurationError, require
from hushstream.learners.linucb import LinUCBModel
from hushstream.learners.onehot import OneHotModel
from hushstream.learners.sparse import SparseModel
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.contribution.encoder import CENTROID_STEPS, Encoder
from hushstream.systems.p2b.contribution.errors import BadSlot
from hushstream.systems.p2b.contribution.feature_layout import FeatureLayout
from hushstream.systems.p2b.contribution.feature_slots import SLOT_RECORD, slot_bytes
from hushstream.systems.p2b.contribution.sealed import SealOpener
from hushstream.systems.p2b.contribution.slots import SLOT_BYTES, unpack
from hushstream.systems.p2b.edge.agent import DrawnBefore, is_normalised, normalised
from hushstream.systems.p2b.edge.candidates import TwoCandidates, click_chance
from hushstream.systems.p2b.edge.code_policies import LinUCBPolicy, OneHotPolicy
from hushstream.systems.p2b.edge.feature_policy import FeaturePolicy
from hushstream.systems.p2b.edge.policy import SharedPolicy
from hushstream.systems.p2b.edge.terms import SlotChoice
from hushstream.systems.p2b.guarantee.promise import layout_of_slots
from hushstream.systems.p2b.guarantee.summed import require_code_sizes, resolve_codes, summed_of
from hushstream.systems.p2b.model_file import ExportedCodes, ExportedFeatures, ExportedModel
from hushstream.systems.p2b.server.estimate import ModelSums
from hushstream.systems.p2b.server.pooling import Known, added, started
from hushstream.systems.p2b.server.warm_start import WarmStart, cold_start


class SlotForm(Protocol):
    """What a slot holds, and what is made from many slots.

    Attributes:
        slot_record: the schema of a slot.
        sealed_record: the schema of a sealed slot.
    """

    slot_record: str
    sealed_record: str

    @property
    def start(self) -> ExportedModel | None:
        """The exported model that new users begin with; None if they begin without a model."""

    @property
    def opener(self) -> type[Opener]:
        """The class that opens sealed slots."""

    @property
    def crowd_record(self) -> str:
        """The schema of what a window releases."""

    @property
    def model_record(self) -> str:
        """The schema of a model."""

    @property
    def parts(self) -> int:
        """The number of parts in which sums and models leave; 1 if each is one record."""

    @property
    def content_bytes(self) -> int:
        """The size of every slot's content."""

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of each of the two arrays of sums."""

    @property
    def fitted(self) -> bytes:
        """The part of the deployment's digest that identifies what was fitted."""

    @property
    def require_content(self) -> Callable[[bytes], object]:
        """Refuses invalid content of a slot (`BadSlot`), by the checks that are made before the window closes."""

    def rules(self, tracks: Sequence[str]) -> ContextRules:
        """The rules for contexts and feedback."""

    def policy(self, cold: str, tracks: Sequence[str]) -> SharedPolicy:
        """A fresh kernel in which every track is cold; the track ``cold`` stays so."""

    @property
    def choice(self) -> SlotChoice:
        """Chooses the interaction that a slot holds."""

    @property
    def domain(self) -> Mapping[str, Any]:
        """The fields of a crowd that describe its sums."""

    @property
    def parameters(self) -> dict[str, int | str]:
        """The values on which the noise depends besides its scale, as whole numbers."""


@dataclass(frozen=True, eq=False)
class CodesForm:
    """Contexts are histograms, and a slot holds the code of one.

    Attributes:
        config: of the deployment.
        encoder: turns contexts into codes.
        start: the exported model that new users begin with; None if they begin without a model.
    """

    config: P2BConfig
    encoder: Encoder
    start: ExportedCodes | None = None
    slot_record = "SlotReport"
    sealed_record = "SealedSlot"
    opener = SealOpener
    crowd_record = "Crowd"
    model_record = "Model"
    parts = 1

    @classmethod
    def of(cls, config: P2BConfig, lattice: NDArray[np.int64], start: ExportedModel | None = None) -> CodesForm:
        """The form with an encoder's centroids, (k, d) in units of 2^-16.

        Raises:
            ConfigurationError: the encoder does not fit the configuration, a record would be too large, or the start
                is a model of other contexts or items.
        """
        encoder = Encoder(np.asarray(lattice, dtype=np.float64) / CENTROID_STEPS, config.context.digits)
        expected = (resolve_codes(config), config.context.dimension)
        if encoder.lattice.shape != expected:
            raise ConfigurationError(
                f"encoder: expected centroids of shape {expected}, got {encoder.lattice.shape}: the configuration of a "
                f"deployment is frozen, and the encoder belongs to another one"
            )
        require_code_sizes(config, encoder.codes)
        return cls(config, encoder, None if start is None else _start_of_codes(start, config, encoder))

    @cached_property
    def shape(self) -> tuple[int, int]:
        """See `SlotForm.shape`."""
        return (self.encoder.codes, self.config.arms)

    @property
    def content_bytes(self) -> int:
        return SLOT_BYTES

    @property
    def fitted(self) -> bytes:
        """See `SlotForm.fitted`: the centroids, and the digest of the model that users begin with."""
        return self.encoder.lattice.astype("<i8").tobytes() + (b"" if self.start is None else self.start.digest)

    @cached_property
    def require_content(self) -> Callable[[bytes], object]:
        """See `SlotForm.require_content`: content that cannot be read."""
        codes, arms = self.shape
        return partial(unpack, codes=codes, arms=arms, levels=self.config.release.levels)

    def rules(self, tracks: Sequence[str]) -> ContextRules:
        """See `SlotForm.rules`: contexts are histograms."""
        return ContextRules(
            arms=self.config.arms,
            width=self.config.context.dimension,
            good=normalised,
            good_row=is_normalised,
            refusal=Refusal.UNNORMALISED_CONTEXT,
            expected="a histogram: no entry below 0, and the sum is 1",
            tracks=tracks,
        )

    @property
    def dimension(self) -> int:
        """The dimension of the learner's features: d for centroids, k for one-hot codes."""
        return self.encoder.codes if self.config.encoder.features == "onehot" else self.config.context.dimension

    def policy(self, cold: str, tracks: Sequence[str]) -> SharedPolicy:
        learner = self.config.learner
        onehot, arms = self.config.encoder.features == "onehot", self.config.arms
        place = (self.encoder, arms, self.dimension, learner.alpha, learner.ridge, tuple(tracks))
        policy = OneHotPolicy(*place) if onehot else LinUCBPolicy(*place)
        if self.start is not None:
            begun = self.with_start(self._cold)
            policy.adopt(tracks[0], 0, begun.gram, begun.moment)
        return policy

    def with_start(self, own: ModelSums) -> ModelSums:
        """Add the sums of the model that users began with to a model's own sums."""
        start = self.start
        if start is None:
            return own
        return added(ModelSums(start.gram, start.moment, start.slots), start.ridge, own)

    @property
    def _cold(self) -> ModelSums:
        place = (self.config.arms, self.dimension, self.config.learner.ridge)
        cold = OneHotModel.cold(*place) if self.config.encoder.features == "onehot" else LinUCBModel.cold(*place)
        return ModelSums(cold.gram, cold.moment, 0.0)

    @property
    def choice(self) -> SlotChoice:
        return DrawnBefore()

    @property
    def domain(self) -> Mapping[str, Any]:
        return {"codes": self.encoder.codes, "arms": self.config.arms, "levels": self.config.release.levels}

    @property
    def parameters(self) -> dict[str, int | str]:
        return {"codes": self.encoder.codes, "arms": self.config.arms, "levels": self.config.release.levels}


@dataclass(frozen=True, eq=False)
class FeaturesForm:
    """Contexts give the values of declared features, and a slot holds units of their cells.

    Attributes:
        config: of the deployment.
        start: the exported model that new users begin with; None if they begin without a model.
    """

    config: P2BConfig
    start: ExportedFeatures | None = None
    slot_record = "FeatureSlot"
    sealed_record = SLOT_RECORD
    opener = ContentOpener

    def __post_init__(self) -> None:
        """Refuse a layout whose records would be too large."""
        summed_of(self.config).check()

    @classmethod
    def of(cls, config: P2BConfig, start: ExportedModel | None = None) -> FeaturesForm:
        """The form of a configuration.

        Raises:
            ConfigurationError: a record would be too large, or the start is a model of other features or items.
        """
        return cls(config, None if start is None else _start_of_features(start, config))

    @property
    def crowd_record(self) -> str:
        """See `SlotForm`; if items have names, the record says which item each row of sums holds."""
        return "ItemSums" if self.config.named_items else "LinearSums"

    @property
    def model_record(self) -> str:
        """See `SlotForm` and `crowd_record`; if a model leaves in parts, its record has the digest of the whole."""
        if self.parts > 1:
            return "LargeModel"
        return "ItemModel" if self.config.named_items else "FeatureModel"

    @cached_property
    def parts(self) -> int:
        """See `SlotForm.parts`."""
        return summed_of(self.config).parts

    @cached_property
    def layout(self) -> FeatureLayout:
        """The layout of a slot and of the sums, with the division of a slot's units."""
        return layout_of_slots(self.config)

    @cached_property
    def layout_digest(self) -> bytes:
        """16 bytes that identify the declared features and the division of a slot's units."""
        return layout_digest(self.layout)

    @property
    def fitted(self) -> bytes:
        """See `SlotForm.fitted`: only the model that users begin with; the layout follows from the configuration."""
        return b"" if self.start is None else self.start.digest

    @cached_property
    def content_bytes(self) -> int:
        """See `SlotForm.content_bytes`."""
        return slot_bytes(self.layout.places)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """See `SlotForm.shape`."""
        return (self.layout.arms, self.layout.cells)

    def require_content(self, content: bytes) -> None:
        """See `SlotForm.require_content`: checks the length, which is public; other invalid content counts as null."""
        if len(content) != self.content_bytes:
            raise BadSlot(f"expected {self.content_bytes} bytes of slot content, got {len(content)}")

    def rules(self, tracks: Sequence[str]) -> ContextRules:
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
        layout = self.layout
        policy = FeaturePolicy(layout, SparseModel.of(*self._cold), (cold, *tracks))
        if self.start is not None:
            means, variances, reward_variance = self.beginning
            policy.adopt(tracks[0], 0, means, variances, np.array([reward_variance]))
        return policy

    @property
    def known(self) -> tuple[str, ...]:
        """The ids of the start's items, if items have names; else none."""
        return () if self.start is None or not self.config.named_items else tuple(map(str, self.start.items))

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
        return TwoCandidates(self.chance)

    @property
    def domain(self) -> Mapping[str, Any]:
        arms, cells = self.shape
        levels = self.config.release.levels
        return {"layout_digest": self.layout_digest, "arms": arms, "cells": cells, "levels": levels}

    @property
    def parameters(self) -> dict[str, int | str]:
        layout = self.layout
        return {
            "arms": layout.arms,
            "levels": layout.levels,
            "units": layout.sensitivity // layout.levels,
            "places": layout.places,
            "budgets": ",".join(map(str, layout.budgets)),
            "features": layout.schema.digest.hex(),
        }


def require_form(start: ExportedModel, config: P2BConfig) -> None:
    """Refuse a start of another form.

    Raises:
        ConfigurationError: the start has another form.
    """
    require(start.form == config.release.form, "start", f"a model of release.form: {config.release.form}", start.form)


def _require_numbered(start: ExportedModel) -> None:
    """Refuse a start whose items are not numbered 0, 1, 2, ...

    Raises:
        ConfigurationError: the start has other items.
    """
    expected = "a model of items numbered from 0, as items have no names here"
    require(start.items == tuple(range(len(start.items))), "start", expected, "one of other items")


def _start_of_features(start: ExportedModel, config: P2BConfig) -> ExportedFeatures:
    """Check that users of this deployment can begin with an exported model.

    Raises:
        ConfigurationError: the model names items in another way, has too many items, or has other features.
    """
    require_form(start, config)
    assert isinstance(start, ExportedFeatures), "that is its form"
    items = list(start.items)
    if config.named_items:
        named = all(isinstance(item, str) for item in items) and len(set(items)) == len(items)
        require(named, "start", "a model of items by id, as items have names here", "one of items by number")
    else:
        _require_numbered(start)
    require(len(items) <= config.arms, "start", f"a model of at most {config.arms} items (capacity)", len(items))
    here = config.context.schema
    if start.schema.digest != here.digest:
        expected, got = (", ".join(one.features) for one in (here, start.schema))
        raise ConfigurationError(
            f"start: expected a model of the features that this deployment declares ({expected}), got one of {got}, "
            f"declared otherwise"
        )
    return start


def _start_of_codes(start: ExportedModel, config: P2BConfig, encoder: Encoder) -> ExportedCodes:
    """Check that users of this deployment can begin with an exported model.

    Raises:
        ConfigurationError: the model was learned on other features or contexts, or has too many items.
    """
    require_form(start, config)
    assert isinstance(start, ExportedCodes), "that is its form"
    wanted, got = (config.encoder.features, "onehot" if start.onehot else "centroid")
    require(got == wanted, "start", f"a model learned on encoder.features: {wanted}", got)
    _require_numbered(start)
    require(
        len(start.items) <= config.arms, "start", f"a model of at most {config.arms} items (capacity)", len(start.items)
    )
    dimension = start.encoder.dimension
    require(dimension == encoder.dimension, "start", f"a model of contexts of {encoder.dimension} entries", dimension)
    if start.onehot:
        same = start.encoder.digits == encoder.digits and np.array_equal(start.encoder.lattice, encoder.lattice)
        require(same, "start", "a model of the centroids of this deployment", "one of others")
    return start


def layout_digest(layout: FeatureLayout) -> bytes:
    """16 bytes that identify a layout."""
    values = {
        "features": layout.schema.digest.hex(),
        "arms": layout.arms,
        "levels": layout.levels,
        "budgets": list(layout.budgets),
    }
    plain = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(plain, digest_size=16, person=b"hush-layout").digest()
