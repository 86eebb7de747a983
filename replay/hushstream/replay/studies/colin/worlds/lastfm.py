"""HetRec 2011 Last.fm as a world for collaborative bandits (Wang et al. 2020, section 6.1).

Features: all tags of an artist as a TF-IDF vector, reduced to d = 25 by a principal component analysis, then scaled
to length 1. Users: the people of the friend graph in 100 clusters; each cluster is one user of the bandit. Small
components of the graph are clusters of their own; the rest is cut by spectral clustering (the paper used Graclus,
which has the same normalised-cut objective). W: w_ij is the number of friendships between clusters i and j (within
a cluster for i = j), and each column is divided by its sum. The graph for GOBLin has these numbers off the diagonal.

Each round draws a person of the cluster with one artist that they listened to (every such pair is equally likely) and
24 artists that they did not listen to, in random order. The reward is 1 for the artist listened to, else 0, so it is
known exactly. Artists without tags have no features and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hushstream.replay.studies.colin.worlds.lastfm_data import Listening, read_lastfm
from hushstream.replay.studies.colin.worlds.related import columns_to_one, pick_without_replacement, unit_rows
from hushstream.replay.worlds.draws import Draws, IntArray
from hushstream.replay.worlds.world import WorldError, check_request, require_number

# A fixed seed for the fit: worlds of all seeds have the same clusters and features, and differ in the artists shown.
_FIT_SEED = 0


@dataclass(frozen=True, slots=True)
class LastfmWorld:
    """The world; see the module.

    Attributes:
        pool: (artists, d) float32.
        relation: W, (clusters, clusters).
        graph: friendships between different clusters, (clusters, clusters).
        cluster_of: (people,) the cluster of each person.
        pair_start: (clusters + 1,) where each cluster's pairs begin.
        pairs: (pairs, 2) person and artist listened to, sorted by cluster.
        heard_start: (people + 1,) where each person's artists begin.
        heard: (pairs,) artists, sorted by person and artist.
    """

    users: int
    rounds: int
    arms: int
    seed: int
    pool: npt.NDArray[np.float32] = field(repr=False, compare=False)
    relation: npt.NDArray[np.float64] = field(repr=False, compare=False)
    graph: npt.NDArray[np.float64] = field(repr=False, compare=False)
    cluster_of: npt.NDArray[np.int64] = field(repr=False, compare=False)
    pair_start: npt.NDArray[np.int64] = field(repr=False, compare=False)
    pairs: npt.NDArray[np.int64] = field(repr=False, compare=False)
    heard_start: npt.NDArray[np.int64] = field(repr=False, compare=False)
    heard: npt.NDArray[np.int64] = field(repr=False, compare=False)
    public: bool = True
    variant: str = "spectral"

    @property
    def name(self) -> str:
        """Name with the method of clustering, which figures must state."""
        return f"lastfm/{self.variant}"

    @property
    def feature_dimension(self) -> int:
        """d of one artist."""
        return int(self.pool.shape[1])

    @property
    def dimension(self) -> int:
        """arms * d: the length of a flattened context."""
        return self.arms * self.feature_dimension

    def shown(self, users: IntArray, round_index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the (n, arms) artists shown and the (n,) place of the one listened to."""
        check_request(self, users, round_index)
        users = np.asarray(users)
        coins = Draws(self.seed, "pair").uniforms(users, round_index, 2)
        start, end = self.pair_start[users], self.pair_start[users + 1]
        chosen = self.pairs[start + (coins[:, 0] * (end - start)).astype(np.int64)]
        others = self._not_heard(users, round_index, chosen[:, 0])
        place = (coins[:, 1] * self.arms).astype(np.int64)
        artists = np.empty((len(users), self.arms), dtype=np.int64)
        artists[:, 1:] = others
        rows = np.arange(len(users))
        artists[:, 0] = artists[rows, place]
        artists[rows, place] = chosen[:, 1]
        return artists, place

    def features(self, users: IntArray, round_index: int) -> npt.NDArray[np.float32]:
        """Return the (n, arms, d) features of the artists shown."""
        return self.pool[self.shown(users, round_index)[0]]

    def contexts(self, users: IntArray, round_index: int) -> npt.NDArray[np.float32]:
        """Return the features as rows (n, arms * d)."""
        return self.features(users, round_index).reshape(len(users), self.dimension)

    def rewards(self, users: IntArray, round_index: int, arms: IntArray) -> npt.NDArray[np.float64]:
        """Return 1.0 where the arm is the artist listened to, else 0.0; (n,)."""
        check_request(self, users, round_index, arms)
        hit = self.shown(users, round_index)[1] == np.asarray(arms)
        return np.asarray(hit, dtype=np.float64)

    def expected(self, users: IntArray, round_index: int, arms: IntArray) -> npt.NDArray[np.float64]:
        """Return the (n,) rewards: they are exact, since nothing is random once the arms are shown."""
        return self.rewards(users, round_index, arms)

    def eligible(self, users: IntArray, round_index: int) -> None:
        """None: every arm of a round may be shown."""
        return

    def largest_feature_norm(self, order: int) -> float:
        """Return the largest L1 or L2 length of any artist's features."""
        return float(np.linalg.norm(self.pool.astype(np.float64), ord=order, axis=1).max())

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """(users,) each cluster's share of all pairs of person and artist."""
        return np.asarray(np.diff(self.pair_start) / len(self.pairs), dtype=np.float64)

    def _not_heard(self, users: IntArray, round_index: int, people: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Draw arms - 1 different artists for each person, none that they listened to, (n, arms - 1)."""
        first, end = self.heard_start[people], self.heard_start[people + 1]
        left = len(self.pool) - (end - first)
        draws = Draws(self.seed, "others")
        found = pick_without_replacement(draws, users, round_index, self.arms - 1, left)
        for row in range(len(people)):
            heard = self.heard[first[row] : end[row]]
            # The r-th artist not in the sorted list ``heard`` is r plus the heard ones at or below it.
            found[row] += np.searchsorted(heard - np.arange(len(heard)), found[row], side="right")
        return found


def lastfm(
    *,
    users: int = 100,
    rounds: int = 500,
    dimension: int = 25,
    arms: int = 25,
    seed: int = 0,
    data_dir: str | None = None,
) -> LastfmWorld:
    """Build the Last.fm world.

    Args:
        users: clusters of the friend graph; the paper has 100.
        rounds: interactions a cluster.
        dimension: d, principal components; the paper has 25.
        arms: artists a round, one of them listened to; the paper has 25.
        seed: seed of what is shown when; features and clusters do not depend on it.
        data_dir: local data folder in place of the cache.

    Raises:
        DatasetError: the files are absent or differ from the published ones.
        WorldError: an option is out of range, or the tag assignments are absent.
    """
    for option, value, least, most in (
        ("users", users, 1, 1024),
        ("rounds", rounds, 1, 2**32),
        ("dimension", dimension, 1, 256),
        ("arms", arms, 2, 4096),
    ):
        require_number("lastfm", option, value, least, most)
    return lastfm_world(read_lastfm(data_dir), users=users, rounds=rounds, dimension=dimension, arms=arms, seed=seed)


def lastfm_world(listening: Listening, *, users: int, rounds: int, dimension: int, arms: int, seed: int) -> LastfmWorld:
    """Build the world from data already read; options as in `lastfm`.

    Raises:
        WorldError: more clusters, components or arms than the data have, or a cluster without a listener.
    """
    cluster_of = cluster_people(listening, users)
    owner = cluster_of[listening.listened[:, 0]]
    counts = np.bincount(owner, minlength=users)
    heard_counts = np.bincount(listening.listened[:, 0], minlength=listening.people)
    if not counts.all():
        raise WorldError(f"lastfm: expected a listener in each of {users} clusters, got none in one; ask for fewer")
    if listening.artists - heard_counts.max() < arms - 1:
        raise WorldError(f"lastfm: expected {arms - 1} artists that a person did not listen to, got fewer")
    friendships = friendships_between(listening, cluster_of, users)
    graph = friendships.copy()
    np.fill_diagonal(graph, 0.0)
    return LastfmWorld(
        users=users,
        rounds=rounds,
        arms=arms,
        seed=seed,
        pool=unit_rows(artist_features(listening, dimension)),
        relation=columns_to_one(friendships),
        graph=graph,
        cluster_of=cluster_of,
        pair_start=np.concatenate(([0], np.cumsum(counts))),
        pairs=listening.listened[np.argsort(owner, kind="stable")],
        heard_start=np.concatenate(([0], np.cumsum(heard_counts))),
        heard=np.ascontiguousarray(listening.listened[:, 1]),
    )


def artist_features(listening: Listening, dimension: int) -> npt.NDArray[np.float64]:
    """Tags as TF-IDF vectors, reduced by a principal component analysis: (artists, dimension)."""
    from scipy.sparse import csr_array
    from sklearn.decomposition import PCA
    from sklearn.feature_extraction.text import TfidfTransformer

    if not 1 <= dimension < min(listening.artists, listening.tags):
        raise WorldError(f"lastfm: dimension must be below artists and tags, got {dimension}")
    artist, tag = listening.assigned.T
    counts = csr_array((np.ones(len(artist)), (artist, tag)), shape=(listening.artists, listening.tags))
    weighted = TfidfTransformer().fit_transform(counts)
    reduction = PCA(dimension, svd_solver="arpack", random_state=_FIT_SEED)
    return np.asarray(reduction.fit_transform(weighted), dtype=np.float64)


def cluster_people(listening: Listening, clusters: int) -> npt.NDArray[np.int64]:
    """Cut the friend graph into clusters: (people,) cluster numbers below ``clusters``.

    Every component but the largest is one cluster; the largest component is cut into the remaining number of clusters.

    Raises:
        WorldError: there are more components than clusters, or fewer people.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components
    from sklearn.cluster import SpectralClustering

    shape = (listening.people, listening.people)
    # The clustering accepts only indices of 32 bits.
    ends = tuple(listening.friends.T.astype(np.int32))
    edges: Any = csr_array((np.ones(len(listening.friends)), ends), shape=shape)
    components, component_of = connected_components(edges, directed=False)
    largest = int(np.bincount(component_of).argmax())
    members = np.flatnonzero(component_of == largest)
    parts = clusters - components + 1
    if not 1 <= parts <= len(members):
        most = len(members) + components - 1
        raise WorldError(f"lastfm: users must be in {components}..{most} (components, people), got {clusters}")
    cluster_of = np.asarray(component_of - (component_of > largest), dtype=np.int64)
    cluster_of[members] = components - 1
    if parts > 1:
        method = SpectralClustering(parts, affinity="precomputed", assign_labels="cluster_qr", random_state=_FIT_SEED)
        cluster_of[members] += method.fit_predict(edges[members][:, members])
    return cluster_of


def friendships_between(
    listening: Listening, cluster_of: npt.NDArray[np.int64], clusters: int
) -> npt.NDArray[np.float64]:
    """Count friendships: (clusters, clusters), those within a cluster on the diagonal, each counted once."""
    ends = cluster_of[listening.friends]
    counts = np.zeros((clusters, clusters))
    np.add.at(counts, (ends[:, 0], ends[:, 1]), 1.0)
    # The list has both directions, so a friendship within a cluster was counted twice in its cell.
    np.fill_diagonal(counts, counts.diagonal() / 2)
    return counts
