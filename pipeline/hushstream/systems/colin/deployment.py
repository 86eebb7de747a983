"""Collaborative bandits under privacy: LinUCB, CoLin and GOBLin on continual-release counters.

Stages, in order: features of the shown arm and its reward (edge) -> noised running sums (a trusted counter, or
each user's own counter at the edge) -> model of all users through the relation graph (server) -> choice (edge).

Source: Wang et al., Global and Local Differential Privacy for Collaborative Bandits (DP-CoLin), Algorithms 1 and
2. Differences to the paper: noise is added to each user's sums before the relation matrix is applied
(`hushstream.systems.colin.release`), and a choice uses the last published version.

*Artefacts.* The prepared file of a collaborative deployment: ``relation.json`` with its users in order, and their ties.

The ridge of a learner: for a known noise of released sums: with a smaller one an estimate follows the noise.

Where the sums b carry noise of standard deviation s, ``A^-1 b`` moves by about ``s / lambda`` in every direction that
was hardly shown, so lambda must grow with s. The level of the noise follows from the mechanism and the graph alone,
without data, so this choice of lambda costs no privacy. The factors were tuned on seeds 0 to 3 and 20 to 27 of the
uniform world of related users with five features (`hushstream experiment colin-table1`); other worlds may need other
ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import NegativeDigitTree
from hushstream.engine.catalogue import CatalogueRules
from hushstream.engine.declare.artefacts import Artefacts, Given, PreparedFrom
from hushstream.engine.declare.outcomes import Refusal
from hushstream.engine.declare.requests import ContextRules
from hushstream.engine.system import NO_NONCE, Core
from hushstream.engine.values import MAX_RECORD_BYTES, ConfigurationError
from hushstream.learners.exploration import LearnerError
from hushstream.privacy.keys import Key
from hushstream.systems.colin.algorithm.estimator import CollaborativeState
from hushstream.systems.colin.algorithm.noised_sums import NoisedRewardSums, open_noised_sums
from hushstream.systems.colin.configuration import (
    GRID_BITS,
    CollaborativeConfig,
    FeatureConfig,
    collaborative_digest,
    local_reward_of,
    mean_variance,
    plan_of,
)
from hushstream.systems.colin.relation import (
    Relation,
    SocialGraph,
    gaussian_norm,
    laplace_norm,
    raw_noise_width,
    reward_width,
)
from hushstream.systems.colin.release import priced
from hushstream.systems.colin.rows import MAX_ROWS_A_RECORD, Rows, short_enough

SUMS_RIDGE_PER_NOISE = 3.0
"""Factor for noised sums; the noise is measured by its standard deviation on a projected sum."""

REWARD_RIDGE_PER_NOISE = 10.0
"""Factor for rewards that are noised one by one; the noise is measured by its variance on one reward."""


def alone_ridge(dimension: int) -> float:
    """The ridge of a user's own exact LinUCB with alpha .1, which is what sharing is compared with: .2 a feature.

    In worlds of 5, 10, 15 and 25 features (200 rewards a user, five or six seeds) it has .11, .17, .21 and .24 of a
    random policy's regret. A ridge of 1 has .11, .19, .27 and .35; a ridge of 12 has .22, .22, .23 and .24: it suits 25
    features and no fewer.
    """
    return max(1.0, 0.2 * dimension)


def noise_aware_ridge(noise: float, per_noise: float) -> float:
    """Lambda: 1 plus a multiple of the noise.

    Args:
        noise: as the factor has it; 0 without noise.
        per_noise: how much lambda grows with it.

    Raises:
        LearnerError: a value that is negative or not finite.
    """
    for name, value in (("noise", noise), ("per_noise", per_noise)):
        if not 0.0 <= value < np.inf:
            raise LearnerError(f"ridge: expected a finite {name} of at least 0, got {value}")
    return 1.0 + per_noise * noise


def projected_deviation(relation: Relation, deviation: float) -> float:
    """Root mean square, over users, of the noise on projected sums of which each user's raw sums carry ``deviation``.

    Coordinate i of the projected sums, of user j's block, is ``sum_u w_uj b_ui``: its variance is that of one raw sum
    times ``sum_u w_uj^2``, whose mean over j is the mean of the rows' squared lengths.
    """
    return deviation * float(np.sqrt(np.mean(np.square(relation.row_norms(2)))))


NAME = "colin"
"""Its name in configurations and noise addresses."""

TRACK = "private"
"""The one model track: every context uses it."""


@dataclass(frozen=True, eq=False)
class CollaborativeSystem(Core[CollaborativeConfig]):
    """A configuration with its relation graph, which every role of the deployment uses.

    Attributes:
        graph: of all users.
        relation: the matrix that the algorithm derives from the graph.
        ridge: lambda of the estimator, resolved.
    """

    graph: SocialGraph
    relation: Relation
    ridge: float

    @classmethod
    def of(cls, config: CollaborativeConfig, graph: SocialGraph, public_dataset: bool = False) -> CollaborativeSystem:
        """Join a configuration and the graph of its users; ``public_dataset``: whether a public dataset is replayed.

        Raises:
            ConfigurationError: a model of this size would not fit into a record.
            RelationError: the graph has no relation matrix for the configured algorithm.
        """
        _require_record_sizes(config, len(graph.users))
        learner = config.learner
        relation = Relation.of(graph, learner.algorithm, learner.self_weight, learner.tie_weight)
        ridge = ridge_of(config, relation)
        digest = collaborative_digest(config, graph.canonical(), public_dataset)
        found = priced(config, len(graph.users))
        return cls(config, digest, found, graph, relation, ridge, public_dataset=public_dataset)

    @property
    def counted(self) -> bool:
        """Whether a trusted counter gets the rewards; otherwise the learner workers add the noise."""
        return self.config.release.noise_at == "server"

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of partitions: one counter, because the relation couples all users.

        Each home that releases is a scope.
        """
        learners = self.config.partitions.learner
        scopes = learners if self.config.release.noise_at == "learner" else 1
        return {"learner": learners, "counter": 1, "tracks": 1, "scopes": scopes}

    @property
    def nodes(self) -> int:
        """N, the users of the graph."""
        return len(self.graph.users)

    @property
    def features(self) -> FeatureConfig:
        """Bounds of features."""
        return self.config.features

    @property
    def open_ms(self) -> int | None:
        """The longest that a step stays open in log time, or None."""
        seconds = self.config.release.seconds
        return None if seconds is None else max(1, round(seconds * 1000))

    @property
    def requests(self) -> ContextRules:
        """See `System.requests`: contexts hold the features of every arm, and users are those of the graph."""
        return ContextRules(
            arms=self.config.arms,
            width=self.config.arms * self.features.dimension,
            good=self._lengths_allowed,
            refusal=Refusal.TOO_LONG_FEATURES,
            expected=f"each of {self.config.arms} arms' {self.features.dimension} features, within the length bounds",
            tracks=(TRACK,),
            users=self.graph.index,
            catalogue=self.catalogue_rules,
            item_numbers=self.features.dimension,
            shadow=self.config.mode == "shadow",
        )

    @property
    def catalogue_rules(self) -> CatalogueRules | None:
        """Rules of the catalogue, if items have names.

        No sum here belongs to an item, so a row is free as soon as no decision about its last item waits any more. That
        is two settle spans after the item was retired: all decisions of one span leave one full span after its end.
        """
        if not self.config.named_items:
            return None
        return CatalogueRules(self.config.arms, 2 * round(self.config.settle_seconds * 1000), self.digest)

    def _lengths_allowed(self, contexts: NDArray[np.float32]) -> NDArray[np.bool_]:
        features = self.config.features
        rows = short_enough(contexts.reshape(-1, features.dimension), features)
        return np.asarray(rows.reshape(-1, self.config.arms).all(axis=1))

    def noised_sums(self, key: Key, genesis_nonce: bytes, epoch: int, partition: int) -> NoisedRewardSums:
        """Running sums without rewards, under the noise of one journal and epoch."""
        nonce, mechanism = genesis_nonce or NO_NONCE, self.config.release.mechanism
        address = self.noise_address("counter", mechanism, {"grid_bits": GRID_BITS}, nonce, epoch, partition)
        return open_noised_sums(self.config.release, self.config.features, self.nodes, key, address)

    @property
    def alpha(self) -> float:
        """Factor of the published widths; 1 for lemma, where the widths already contain it."""
        alpha = self.config.learner.alpha
        return 1.0 if alpha == "lemma" else alpha

    def width_factor(self, counts: Sequence[int]) -> float:
        """Factor of alpha that a version's widths contain, for ``counts`` (N,) rows of each user."""
        if self.config.learner.alpha != "lemma":
            return 1.0
        return lemma_alpha(self.config, self.relation, self.ridge, counts)

    def estimator(self) -> CollaborativeState:
        """The server's estimator before any row."""
        return CollaborativeState(self.relation, self.config.features.dimension, self.ridge)

    def release_record(
        self, noised_sums: NoisedRewardSums, rows: Rows, release_id: bytes, leaf: int, epoch: int, reproducible: bool
    ) -> dict[str, Any]:
        """The fields of a Release: the noised sums of the users in ``rows``, and their public features.

        Args:
            noised_sums: after ``rows`` were added.
            rows: of this step, in the order of their nodes.
            release_id: 16 bytes.
            leaf: number of the step, from 1.
            epoch: of the noise.
            reproducible: whether the key is seeded.
        """
        blocks = np.unique(rows.nodes.astype(np.int64))
        return {
            "release_id": release_id,
            "config_digest": self.digest,
            "mechanism": noised_sums.mechanism,
            "leaf": leaf,
            "epoch": epoch,
            "nodes": rows.nodes.astype("<i4").tobytes(),
            "contexts": rows.features.astype("<f4").tobytes(),
            "blocks": blocks.astype("<i4").tobytes(),
            "sums": noised_sums.sums(blocks).astype("<i8").tobytes(),
            "grid_bits": GRID_BITS,
            "variance": noised_sums.variance,
            **self.stated[self.as_stated(reproducible)],
        }


def _require_record_sizes(config: CollaborativeConfig, nodes: int) -> None:
    """Refuse a configuration whose records would be too large, before anything runs."""
    d = config.features.dimension
    # A step takes whole records, so its last one may carry it beyond the configured rows.
    rows = config.release.rows + MAX_ROWS_A_RECORD
    found = {
        "a model (4 * users * d * (d + 2))": 4 * nodes * d * (d + 2),
        f"a release ((rows + {MAX_ROWS_A_RECORD}) * 4 * (d + 1) + users * 4 * (2 * d + 1))": 4
        * (rows * (d + 1) + nodes * (2 * d + 1)),
        "a context (4 * arms * d)": 4 * config.arms * d,
    }
    for what, size in found.items():
        if size > MAX_RECORD_BYTES - 4096:
            raise ConfigurationError(
                f"configuration: expected {what} of at most {MAX_RECORD_BYTES - 4096} bytes, got {size}; "
                f"use fewer users, features, arms or rows"
            )


def ridge_of(config: CollaborativeConfig, relation: Relation) -> float:
    """Lambda, from public values alone.

    A counter's noise is taken at its mean over the horizon of one epoch.

    Raises:
        BadPlan: no counter has the configured settings.
    """
    release, ridge = config.release, config.learner.ridge
    if ridge != "auto":
        return ridge
    if release.mechanism == "exact":
        return noise_aware_ridge(0.0, SUMS_RIDGE_PER_NOISE)
    if release.mechanism == "noisy-reward":
        return noise_aware_ridge(local_reward_of(release).variance, REWARD_RIDGE_PER_NOISE)
    deviation = math.sqrt(mean_variance(plan_of(release, config.features)))
    return noise_aware_ridge(projected_deviation(relation, deviation), SUMS_RIDGE_PER_NOISE)


def lemma_alpha(config: CollaborativeConfig, relation: Relation, ridge: float, counts: Sequence[int]) -> float:
    """The width of one version that holds with probability 1 - ``learner.failure``.

    Half of the failure is for rewards, half for the noise of this version's sums
    (`hushstream.systems.colin.relation`).

    Args:
        config: with a mechanism for which the lemma bounds the noise: a digit tree, or exact sums.
        relation: of N users.
        ridge: lambda of the estimator.
        counts: (N,) number of rows of each user in the version.
    """
    learner, features = config.learner, config.features
    width = reward_width(
        relation, features.dimension, counts, ridge=ridge, delta=learner.failure / 2, norm=features.norm
    )
    if config.release.mechanism == "exact":
        return width
    noise = _noise_norm(config, relation.users * features.dimension)
    return width + raw_noise_width(relation, noise, ridge)


def _noise_norm(config: CollaborativeConfig, coordinates: int) -> float:
    plan = plan_of(config.release, config.features)
    assert isinstance(plan, NegativeDigitTree)
    # Every level adds or takes back at most b // 2 nodes.
    nodes = plan.levels * (plan.base // 2)
    step = float(1 << GRID_BITS)
    if plan.noise.law == "laplace":
        scale = plan.noise.numerator / plan.noise.denominator / step
        return laplace_norm(scale, nodes, coordinates, config.learner.failure / 2)
    deviation = math.sqrt(nodes * plan.noise.variance) / step
    return gaussian_norm(deviation, coordinates, config.learner.failure / 2)


RELATION = "relation.json"
GRAPH = PreparedFrom("graph", "public edge list of the users: user,user[,weight] a line")
USERS = PreparedFrom("users", "with the graph: all users, one a line, for those without ties")


def prepare(config: CollaborativeConfig, given: Given) -> Mapping[str, bytes]:
    """Copy the graph of the users.

    Raises:
        ConfigurationError: there is none, or another one was prepared before.
        RelationError: a line of the edge list cannot be read, or the lines make no graph of the listed users.
    """
    artefacts = given.artefacts
    if GRAPH.name not in given.inputs:
        if not artefacts.has(RELATION):
            raise ConfigurationError("prepare: expected --graph with the users' public ties, got none")
        return {}
    graph = _graph(given)
    if artefacts.has(RELATION) and read_relation(artefacts).canonical() != graph.canonical():
        raise ConfigurationError(f"{artefacts.path(RELATION)}: expected the given graph or none, got another one")
    return {RELATION: graph.canonical()}


def assemble(config: CollaborativeConfig, artefacts: Artefacts) -> CollaborativeSystem:
    """Join a configuration with the graph of its users.

    Raises:
        ConfigurationError: the graph is missing or damaged.
        RelationError: the file has no graph of its users.
    """
    return CollaborativeSystem.of(config, read_relation(artefacts), artefacts.public_dataset is not None)


def read_relation(artefacts: Artefacts) -> SocialGraph:
    """The relation graph in its canonical form; raises as `assemble` does."""
    content = artefacts.json(RELATION, "users and their ties")
    try:
        users = [str(user) for user in content[0]]
        ties = [(users[one], users[other], float(weight)) for one, other, weight in content[1]]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        where = artefacts.path(RELATION)
        raise ConfigurationError(f"{where}: expected users and their ties, got {type(error).__name__}") from None
    return SocialGraph.of_edges(ties, users)


def inputs_of(graph: SocialGraph) -> Mapping[str, tuple[str, str]]:
    """A graph as the files that preparation takes."""
    users, weights = graph.users, graph.weights
    lines = [
        f"{users[one]},{users[other]},{float(weights[one, other])!r}"
        for one, other in zip(*np.nonzero(np.triu(weights)), strict=True)
    ]
    return {GRAPH.name: ("graph", "\n".join(lines)), USERS.name: ("users", "\n".join(users))}


def _graph(given: Given) -> SocialGraph:
    """From lines ``user,user`` or ``user,user,weight``."""
    names = None
    if USERS.name in given.inputs:
        names = [line.strip() for line in given.inputs[USERS.name][1].splitlines() if line.strip()]
    return SocialGraph.parse(given.inputs[GRAPH.name][1], names)
