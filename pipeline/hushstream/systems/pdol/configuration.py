"""The configuration of a PDOL deployment: plain frozen values, checked once, digested once.

Nodes are the holders of records (data centres, shops, hospitals). A domain is one or more nodes that trust one
another enough to share a counter; by default every node is a domain of its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from hushstream.counting.digits import LARGEST_LIFE
from hushstream.engine import language
from hushstream.engine.configuration import (
    LARGEST_EPSILON,
    PrivacyConfig,
    canonical_form,
    declared_features,
    undigested_privacy,
)
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.values import (
    Checked,
    Is,
    between,
    check_fields,
    keep,
    positive,
    price,
    probability,
    require,
    require_deployment,
    whole,
)
from hushstream.privacy.amounts import count_text

CounterName = Literal["blt", "negative-digit", "exact"]

LATTICE_BITS = 12
"""Records and models are whole multiples of 2^-12: far finer than any noise, and products fit into 64 bits."""

UNIT = 1 << LATTICE_BITS
"""The number 1 on the lattice; also the largest change of a sum of gradients by one record, in L2."""

MAX_RECORD_BYTES = 1 << 20
"""Largest size of one record of a topic."""

LARGEST_DIMENSION = (MAX_RECORD_BYTES - 4096) // 8
"""A release is one record with 8 bytes for each coordinate."""

LARGEST_HORIZON = 1 << 16

LARGEST_MOMENTS = 128
"""Up to this number of features moments are released (n + n (n + 1) / 2 sums), and gradients (n sums) beyond."""


@dataclass(frozen=True, slots=True)
class RecordConfig(Checked):
    """What a record is.

    Attributes:
        dimension: n, number of features, including a constant one if records have it; none if features are declared.
        records_per_user: number of records of one person in one domain that are learned from; null slots are sent for
            later ones. Their joint price is the lifetime of the guarantee.
        label_slots: a record's slot is counted after this number of further records of its domain, or at a phase end;
            without a label by then the slot is null.
        remembered_events: number of past event ids that a domain remembers (a repeated id gets the same answer).
        declared: features by name, each with its kind and settings (`hushstream.features.schema.declare`); then n is
            their cells and a constant one.
    """

    dimension: Annotated[int, Is(language.DIMENSION)] = 0
    records_per_user: Annotated[int, Is(language.UNITS_PER_PERSON, whole, 1, LARGEST_LIFE)] = 1
    label_slots: Annotated[int, Is("feedback.", whole, 0, 4096)] = 64
    remembered_events: Annotated[int, Is(language.REMEMBERED_EVENTS, whole, 1, 10_000_000)] = 50_000
    declared: Annotated[Any, Is(language.FEATURES)] = None

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        if self.declared is not None:
            self._declare()
        whole("features.dimension", self.dimension, 1, LARGEST_DIMENSION)
        check_fields(self)

    def _declare(self) -> None:
        keep(self, declared=declared_features(self.declared))
        cells = 1 + self.declared.cells
        require(self.dimension in (0, cells), "features.dimension", "none beside declared features", self.dimension)
        keep(self, dimension=cells)


@dataclass(frozen=True, slots=True)
class SharingConfig(Checked):
    """What a domain releases, and how often.

    Attributes:
        counter: blt (least noise), negative-digit (whole-number matrix), or exact (no noise: for
            replays of public datasets, not private as stated).
        epsilon: of one record against none, over all releases of all nodes.
        delta: the delta at which epsilon is stated.
        slots_per_release: B, the slots of a domain that are summed in one leaf of its counter: one number, or one for
            each domain, so that those with more records need no more counters than the others.
        horizon: K, number of leaves of a counter; then its last release stays, and a new counter takes later records.
        domains: number of counters; null for one for each node. Nodes are distributed to domains evenly, in order. Each
            counts the records of its users; so with 1 the promise is for a person, with more for a user of one domain.
        epochs: how often the price may be paid; a budget may end it earlier. With more than one, a counter can continue
            with new noise after its inputs have changed, or after a suspected rollback.
    """

    counter: Annotated[CounterName, Is(language.MECHANISM)] = "blt"
    epsilon: Annotated[float, Is(language.EPSILON, price, LARGEST_EPSILON)] = 1.0
    delta: Annotated[float, Is(language.DELTA, probability)] = 1e-6
    slots_per_release: Annotated[int | tuple[int, ...], Is(language.WINDOW_UNITS)] = 128
    horizon: Annotated[int, Is(language.HORIZON, whole, 1, LARGEST_HORIZON)] = 32
    domains: Annotated[int | None, Is("release.", whole, 1, 4096)] = None
    epochs: Annotated[int, Is(language.EPOCHS, whole, 1, 1000)] = 1

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        check_fields(self)
        for slots in self.sizes:
            whole("release.window_units", slots, 1, 1 << 20)

    @property
    def sizes(self) -> tuple[int, ...]:
        """B: one number for all domains, or one for each."""
        slots = self.slots_per_release
        return slots if isinstance(slots, tuple) else (slots,)


@dataclass(frozen=True, slots=True)
class ModelConfig(Checked):
    """Parameters of the model; the guarantee does not depend on them.

    Attributes:
        radius: R, scales the weights; null for 1.5, and for 0.5 without noise.
        threshold: a coordinate of the weighted sum below this multiple of the noise's standard deviation is zero.
        releases_per_version: a version is published after this number of releases (or half of it, after a second
            release of one domain); null for one release of each domain.
    """

    radius: Annotated[float | None, Is("model.", positive, 1024)] = None
    threshold: Annotated[float, Is("model.", between, 0, 100)] = 0.35
    releases_per_version: Annotated[int | None, Is("model.", whole, 1, 1 << 20)] = None


@dataclass(frozen=True, slots=True)
class PredictionConfig(Checked):
    """Where labels are predicted.

    Attributes:
        place: node (also by the node's own learners, and expected to be wrong at most 5 times more than they are;
            predictions depend on its records, and the guarantee holds only against outsiders) or released (by the
            published model alone, so predictions reveal nothing about records).
    """

    place: Annotated[Literal["node", "released"], Is("prediction.")] = "node"


@dataclass(frozen=True, slots=True)
class PdolConfig(Checked):
    """All parameters of a PDOL deployment's computation (Li et al. 2016, in a sound form).

    Attributes:
        deployment: its name; topics and consumer groups begin with it.
        nodes: M, the holders of records.
        records: what a record is.
        sharing: releases of a domain.
        model: parameters of the model.
        prediction: where labels are predicted.
        budget: limit of one record's price over all noise epochs, of which privacy.epochs are planned; null for the
            price of these.
        privacy: what the operator says of the promise in words; no digest follows from it.
        system: which system this is a configuration of.
    """

    deployment: str
    nodes: Annotated[int, Is("nodes", whole, 1, 1 << 16)]
    records: RecordConfig
    sharing: SharingConfig = field(default_factory=SharingConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    prediction: PredictionConfig = field(default_factory=PredictionConfig)
    budget: Annotated[BudgetConfig | None, Is(language.LIFETIME)] = None
    privacy: PrivacyConfig = undigested_privacy()
    system: Literal["pdol"] = "pdol"

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        require_deployment(self.deployment, self.system, "pdol")
        check_fields(self)
        expected = f"at most one for each of {count_text(self.nodes, 'node')}"
        require(self.domains <= self.nodes, "release.domains", expected, self.sharing.domains)
        several = isinstance(self.sharing.slots_per_release, tuple)
        expected = f"one number, or one for each of {count_text(self.domains, 'domain')}"
        fits = not several or len(self.sharing.sizes) == self.domains
        require(fits, "release.window_units", expected, len(self.sharing.sizes))
        if self.budget is not None:
            require(self.budget.lift == 0, "budget.lift", "0 (nothing is measured)", self.budget.lift)
            priced = self.sharing.counter != "exact"
            require(priced, "privacy.lifetime", "none where no budget is kept (exact sums)", "one")

    @property
    def domains(self) -> int:
        """D, how many counters there are."""
        return self.nodes if self.sharing.domains is None else self.sharing.domains

    @property
    def releases_per_version(self) -> int:
        """Number of releases for a version."""
        wanted = self.model.releases_per_version
        return self.domains if wanted is None else wanted

    @property
    def radius(self) -> float:
        """R."""
        if self.model.radius is not None:
            return self.model.radius
        return 0.5 if self.sharing.counter == "exact" else 1.5

    def slots_of(self, domain: int) -> int:
        """B of a domain."""
        sizes = self.sharing.sizes
        return sizes[domain] if len(sizes) > 1 else sizes[0]

    def domain_of(self, node: int) -> int:
        """The domain of a node: nodes are distributed in order, as evenly as possible."""
        return node * self.domains // self.nodes

    def nodes_of(self, domain: int) -> range:
        """The nodes of a domain."""
        return range(-(-domain * self.nodes // self.domains), -(-(domain + 1) * self.nodes // self.domains))


def pdol_digest(config: PdolConfig, public_dataset: bool = False) -> bytes:
    """Digest of the configuration, and of whether a public dataset is replayed under it (16 bytes)."""
    canonical = canonical_form(config, public_dataset)
    return hashlib.blake2b(canonical, digest_size=16, person=b"hush-config").digest()
