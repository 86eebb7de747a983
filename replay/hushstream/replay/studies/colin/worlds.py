"""The worlds of collaborative bandits: users of a public graph, simulated or of Last.fm.

Worlds in which each round shows a user several arms with features of their own, and users are related.

A context of such a world is the (arms, d) float32 matrix of the shown arms' features, flattened by rows to arms * d
numbers, so the same records carry it as any other context. Arm a of a round is row a of the matrix.

The simulator of Wang et al. 2020 (Global and Local Differential Privacy for Collaborative Bandits), section 6.1.

N users with parameters theta_i of length 1, related by a matrix W; a pool of arms with features of length 1, some of
which are shown in each round. The mean reward of arm x for user u is x' sum_j w_uj theta_j. The reward is the mean
plus Gaussian noise, clipped to [0, 1]: in the paper rewards can leave this interval, but its proofs need it.

W by the paper's recipe: w_ij is the inner product of theta_i and theta_j; edges below a threshold are deleted;
each column is divided by its sum. The paper states neither the threshold nor sigma nor d. Here the threshold is a
quantile of the users' inner products (``edge_quantile``), and a user's tie to themselves is never deleted. The graph
for GOBLin has an edge of weight 1 for every remaining pair.

The paper says how features and parameters are drawn, but drawing them so does not give its figures (a random policy
would have a lower regret than its private learners). So there are variants, and every figure names its own:

* ``uniform``: exactly as written: every coordinate of theta and x is U(0, 1), then divided by its L2 norm.
* ``nonnegative``: absolute values of normal numbers, divided by the L2 norm: wider angles, still no signs.
* ``unit-sphere``: uniform on the sphere, with signs; negative means are clipped to reward 0.
* ``masked``: uniform times a 0-1 mask of the group, divided by the L2 norm: five groups of users and five of
  arms, each with a mask of fair coins, as in the public simulator of the same authors (BanditLib).

Reads HetRec 2011 Last.fm as arrays: listened artists of each person, friendships, and tags of artists.

In the publisher's archive the tag assignments are one file, ``user_taggedartists.dat`` with 186,479 rows; no checksum
of it is known here. A public copy has two parts with known checksums (one row was lost between them). Either form is
accepted; anything else is refused.

HetRec 2011 Last.fm as a world for collaborative bandits (Wang et al. 2020, section 6.1).

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
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from hushstream.replay.datasets.builtin import DatasetFile
from hushstream.replay.datasets.store import check_file, locate
from hushstream.replay.worlds.draws import Draws, IntArray
from hushstream.replay.worlds.synthetic import clipped_normal_mean
from hushstream.replay.worlds.world import World, WorldError, check_request, require_number

# Rounding a row of length 1 to float32 can make it longer than 1; scaled to this length first, it never does.
_ROUNDING_ROOM = 1.0 - 2.0**-22


@runtime_checkable
class CollaborativeWorld(World, Protocol):
    """A world for collaborative bandits; see the module.

    Attributes:
        variant: how its features and users are made; figures name it.
        feature_dimension: d, the length of one arm's features; ``dimension`` is arms * d.
        relation: (N, N) float64, W of CoLin: entry (i, j) is the influence between users i and j, each column
            sums to 1, and user u's expected reward weighs the users' parameters by row u.
        graph: (N, N) float64, symmetric edge weights with an empty diagonal, for GOBLin.
    """

    @property
    def variant(self) -> str: ...
    @property
    def feature_dimension(self) -> int: ...
    @property
    def relation(self) -> npt.NDArray[np.float64]: ...
    @property
    def graph(self) -> npt.NDArray[np.float64]: ...

    def features(self, users: IntArray, round_index: int) -> npt.NDArray[np.float32]:
        """Return the (n, arms, d) features of the arms shown to ``users`` (n,) at one round."""
        ...

    def largest_feature_norm(self, order: int) -> float:
        """Return the largest L1 (order 1) or L2 (order 2) length of any arm's features: public, like all features."""
        ...


def unit_rows(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Scale rows (n, d) to L2 length 1, as float32 rows that are never longer than 1.

    Raises:
        WorldError: a row is all zeros.
    """
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not lengths.all():
        raise WorldError("features: expected every row to differ from zero, got a row of zeros")
    return np.asarray(rows / lengths * _ROUNDING_ROOM, dtype=np.float32)


def columns_to_one(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Divide each column of a nonnegative (N, N) matrix by its sum, as the paper normalises W.

    Raises:
        WorldError: a weight is negative or a column is all zeros.
    """
    totals = weights.sum(axis=0)
    if weights.min(initial=0.0) < 0.0 or not totals.all():
        raise WorldError("relation: expected weights >= 0 and a positive sum in each column")
    return np.asarray(weights / totals, dtype=np.float64)


def pick_without_replacement(
    draws: Draws, users: IntArray, round_index: int, count: int, pool: int | IntArray
) -> npt.NDArray[np.int64]:
    """Draw ``count`` different numbers below ``pool`` for each user at a round; every set is equally likely.

    It uses Floyd's method (Bentley and Floyd 1987), with one uniform draw for each number.

    Args:
        draws: seed and purpose.
        users: (n,).
        round_index: the round.
        count: how many numbers each user gets; no pool may be smaller.
        pool: one for all or (n,).

    Returns:
        (n, count) int64; each row depends only on seed, purpose, user and round.
    """
    coins = draws.uniforms(users, round_index, count)
    picked = np.empty((len(users), count), dtype=np.int64)
    for column in range(count):
        last = pool - count + column
        drawn = (coins[:, column] * (last + 1)).astype(np.int64)
        taken = (picked[:, :column] == drawn[:, None]).any(axis=1)
        picked[:, column] = np.where(taken, last, drawn)
    return picked


Variant = Literal["uniform", "nonnegative", "unit-sphere", "masked"]

_GROUPS = 5


@dataclass(frozen=True, slots=True)
class ColinWorld:
    """The simulator with its true parameters; see `colin` for the meaning of each option.

    Attributes:
        parameters: (N, d) float64, theta of each user, length 1.
        mixed: (N, d) float64, W theta: the parameters of each user's mean rewards.
        pool: (pool, d) float32, features of every arm, length at most 1.
        relation: W.
        graph: 0-1 edges.
    """

    variant: Variant
    users: int
    rounds: int
    feature_dimension: int
    arms: int
    noise_std: float
    clicks: bool
    edge_quantile: float
    seed: int
    parameters: npt.NDArray[np.float64] = field(repr=False, compare=False)
    mixed: npt.NDArray[np.float64] = field(repr=False, compare=False)
    pool: npt.NDArray[np.float32] = field(repr=False, compare=False)
    relation: npt.NDArray[np.float64] = field(repr=False, compare=False)
    graph: npt.NDArray[np.float64] = field(repr=False, compare=False)
    public: bool = True

    @property
    def name(self) -> str:
        """Name with the variant, which figures must state."""
        return f"colin/{self.variant}"

    @property
    def dimension(self) -> int:
        """arms * d: the length of a flattened context."""
        return self.arms * self.feature_dimension

    def shown(self, users: IntArray, round_index: int) -> npt.NDArray[np.int64]:
        """Return the (n, arms) places in the pool of the arms shown, all different in a row."""
        check_request(self, users, round_index)
        draws = Draws(self.seed, "shown")
        return pick_without_replacement(draws, np.asarray(users), round_index, self.arms, len(self.pool))

    def features(self, users: IntArray, round_index: int) -> npt.NDArray[np.float32]:
        """Return the (n, arms, d) features of the arms shown."""
        return self.pool[self.shown(users, round_index)]

    def contexts(self, users: IntArray, round_index: int) -> npt.NDArray[np.float32]:
        """Return the features as rows (n, arms * d)."""
        return self.features(users, round_index).reshape(len(users), self.dimension)

    def rewards(self, users: IntArray, round_index: int, arms: IntArray) -> npt.NDArray[np.float64]:
        """Return the (n,) noisy rewards, clipped to [0, 1], or clicks."""
        mean = self._means(users, round_index, arms)
        if self.clicks:
            coins = Draws(self.seed, "clicks").uniforms(users, round_index, self.arms)
            return (coins[np.arange(len(users)), np.asarray(arms)] < mean).astype(np.float64)
        if self.noise_std > 0.0:
            mean = mean + self.noise_std * Draws(self.seed, "noise").normals(users, round_index, arms)
        return np.clip(mean, 0.0, 1.0)

    def expected(self, users: IntArray, round_index: int, arms: IntArray) -> npt.NDArray[np.float64]:
        """Return the (n,) exact mean rewards, clipping included."""
        mean = self._means(users, round_index, arms)
        if self.noise_std > 0.0 and not self.clicks:
            return clipped_normal_mean(mean, self.noise_std)
        return np.clip(mean, 0.0, 1.0)

    def eligible(self, users: IntArray, round_index: int) -> None:
        """None: every arm of a round may be shown."""
        return

    def largest_feature_norm(self, order: int) -> float:
        """Return the largest L1 or L2 length in the pool, in exact float64 sums of the float32 features."""
        return float(np.linalg.norm(self.pool.astype(np.float64), ord=order, axis=1).max())

    def _means(self, users: IntArray, round_index: int, arms: IntArray) -> npt.NDArray[np.float64]:
        check_request(self, users, round_index, arms)
        places = self.shown(users, round_index)[np.arange(len(users)), np.asarray(arms)]
        rows = self.pool[places].astype(np.float64)
        return np.asarray((rows * self.mixed[np.asarray(users)]).sum(axis=1), dtype=np.float64)


def colin(
    *,
    variant: str = "uniform",
    users: int = 10,
    rounds: int = 1000,
    dimension: int = 25,
    arms: int = 10,
    pool: int = 1000,
    noise_std: float = 0.1,
    clicks: bool = False,
    alike: float = 0.0,
    edge_quantile: float = 0.3,
    seed: int = 0,
) -> ColinWorld:
    """Build the paper's simulator.

    Args:
        variant: how features and parameters are drawn; see the module.
        users: N; the paper has 10 (5 to 50 in its Figure 1c).
        rounds: interactions of each user; all users are served equally often, so T = users * rounds.
        dimension: d of one arm's features; not stated in the paper, 25 as in its other experiments.
        arms: shown per round; the paper has 10.
        pool: all arms; the paper has 1,000.
        noise_std: sigma of the reward's noise before clipping; not stated in the paper.
        clicks: whether a reward is 1 or 0, with its mean as the chance of 1, and has no other noise.
        alike: the share of the first user's parameters in those of all others, before these get length 1.
        edge_quantile: the share of the pairs of users that is deleted, the least similar first; the paper has a
            threshold but does not state it. 0 keeps all pairs with a positive inner product.
        seed: seed of all random numbers.

    Raises:
        WorldError: an option has an unknown value or lies out of range.
    """
    if variant not in get_args(Variant):
        raise WorldError(f"colin: variant must be one of {', '.join(get_args(Variant))}, got {variant!r}")
    for option, value, least, most in (
        ("users", users, 1, 1024),
        ("rounds", rounds, 1, 2**32),
        ("dimension", dimension, 1, 1024),
        ("pool", pool, 2, 2**20),
        ("noise_std", noise_std, 0.0, 1e3),
        ("edge_quantile", edge_quantile, 0.0, 1.0),
        ("alike", alike, 0.0, 1.0),
        ("arms", arms, 2, 4096),
    ):
        require_number("colin", option, value, least, most)
    if arms > pool:
        raise WorldError(f"colin: arms must be at most pool = {pool}, got {arms}")
    kind = cast(Variant, variant)
    parameters = _rows(kind, "users", users, dimension, seed)
    parameters /= np.linalg.norm(parameters, axis=1, keepdims=True)
    if alike:
        parameters = alike * parameters[0] + (1.0 - alike) * parameters
        parameters /= np.linalg.norm(parameters, axis=1, keepdims=True)
    relation, graph = relate(parameters, edge_quantile)
    return ColinWorld(
        variant=kind,
        users=users,
        rounds=rounds,
        feature_dimension=dimension,
        arms=arms,
        noise_std=float(noise_std),
        clicks=clicks,
        edge_quantile=float(edge_quantile),
        seed=seed,
        parameters=parameters,
        mixed=relation @ parameters,
        pool=unit_rows(_rows(kind, "arms", pool, dimension, seed)),
        relation=relation,
        graph=graph,
    )


def relate(
    parameters: npt.NDArray[np.float64], edge_quantile: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """W and the graph from the users' parameters (N, d), by the paper's recipe.

    Args:
        parameters: one row a user, length 1.
        edge_quantile: pairs whose inner product is below this quantile of all pairs' are deleted.

    Returns:
        W (N, N), each column summing to 1; and the symmetric 0-1 edges, (N, N).
    """
    similar = parameters @ parameters.T
    above = similar[np.triu_indices(len(similar), 1)]
    threshold = np.quantile(above, edge_quantile) if above.size else 0.0
    # Influence is nonnegative in CoLin: a pair with a negative inner product has no edge, whatever the threshold.
    kept = (similar >= threshold) & (similar > 0.0)
    np.fill_diagonal(kept, val=True)
    graph = kept.astype(np.float64)
    np.fill_diagonal(graph, 0.0)
    return columns_to_one(np.where(kept, similar, 0.0)), graph


def _rows(variant: Variant, purpose: str, count: int, dimension: int, seed: int) -> npt.NDArray[np.float64]:
    """Draw unscaled rows, (count, dimension); none is all zeros."""
    generator = Draws(seed, purpose).generator()
    if variant == "uniform":
        # Drawn from (0, 1], as a row of zeros would have no direction.
        return 1.0 - generator.random((count, dimension))
    if variant == "masked":
        masks = _masks(generator, dimension)
        group = np.arange(count) * _GROUPS // count
        return (1.0 - generator.random((count, dimension))) * masks[group]
    normal = generator.standard_normal((count, dimension))
    return np.abs(normal) if variant == "nonnegative" else normal


def _masks(generator: np.random.Generator, dimension: int) -> npt.NDArray[np.float64]:
    """Draw (groups, dimension) fair coins; a mask without a one becomes all ones."""
    masks = generator.integers(0, 2, size=(_GROUPS, dimension)).astype(np.float64)
    masks[~masks.any(axis=1)] = 1.0
    return masks


DATASET = "lastfm"

_TAG_PARTS = (
    DatasetFile(
        "user_taggedartists.dat",
        "7d46ca9d9abfd2a5018d42e3f1ed21e04981d608c376cb12f7c7285a94c37f89",
        2485033,
    ),
    DatasetFile(
        "user_taggedartists_2.dat", "e2dd14c47c66201662f593acb825ff7de6239a84acb1f24c6fa01ac1ad6909d6", 1881680
    ),
)
_WHOLE_TAG_ROWS = 186_479
_TAG_COLUMNS = 6


@dataclass(frozen=True, slots=True)
class Listening:
    """The dataset, with people and artists numbered from 0 in the order of their published numbers.

    Attributes:
        people: how many people.
        artists: how many artists have a tag; others have no features and are left out.
        tags: how many tags are used.
        listened: (pairs, 2) int64: person, artist; each pair once.
        friends: (edges, 2) int64: person, person; each friendship in both directions.
        assigned: (assignments, 2) int64: artist, tag; one row each time a person assigned the tag.
    """

    people: int
    artists: int
    tags: int
    listened: npt.NDArray[np.int64]
    friends: npt.NDArray[np.int64]
    assigned: npt.NDArray[np.int64]


def read_lastfm(data_dir: str | Path | None = None) -> Listening:
    """Read the dataset from its folder.

    Args:
        data_dir: local data folder in place of the cache.

    Raises:
        DatasetError: the files are absent or differ from the published ones.
        WorldError: the tag assignments are absent, or a file is malformed.
    """
    folder = locate(DATASET, data_dir)
    heard = _table(folder / "user_artists.dat", 3)[:, :2]
    friends = _table(folder / "user_friends.dat", 2)
    return number(heard, friends, _tag_rows(folder)[:, 1:3])


def number(heard: npt.NDArray[np.int64], friends: npt.NDArray[np.int64], tagged: npt.NDArray[np.int64]) -> Listening:
    """Number people, artists and tags from 0.

    Args:
        heard: (n, 2) person, artist, as published.
        friends: (n, 2) person, person, both directions.
        tagged: (n, 2) artist, tag.

    Raises:
        WorldError: a friend who listened to nothing, or a friendship in one direction only.
    """
    people = np.unique(heard[:, 0])
    artists, artist_of = np.unique(tagged[:, 0], return_inverse=True)
    tags, tag_of = np.unique(tagged[:, 1], return_inverse=True)
    if not np.isin(friends, people).all():
        raise WorldError("lastfm: expected every friend to have listened to an artist, got one without")
    edges = np.unique(np.searchsorted(people, friends), axis=0)
    if not np.array_equal(edges, np.unique(edges[:, ::-1], axis=0)):
        raise WorldError("lastfm: expected every friendship in both directions, got some in one")
    known = heard[np.isin(heard[:, 1], artists)]
    pairs = np.column_stack((np.searchsorted(people, known[:, 0]), np.searchsorted(artists, known[:, 1])))
    return Listening(
        people=len(people),
        artists=len(artists),
        tags=len(tags),
        listened=np.unique(pairs, axis=0),
        friends=edges,
        assigned=np.column_stack((artist_of, tag_of)),
    )


def _tag_rows(folder: Path) -> npt.NDArray[np.int64]:
    whole, second = (folder / part.path for part in _TAG_PARTS)
    if not whole.is_file():
        raise WorldError(
            f"lastfm: expected the tag assignments in {whole}, got no such file; take it from the published archive "
            "(it is not fetched: no checksum of it is known) and give the folder by --data-dir"
        )
    if second.is_file():
        for part in _TAG_PARTS:
            check_file(folder / part.path, part)
        return np.concatenate([_table(whole, _TAG_COLUMNS), _table(second, _TAG_COLUMNS)])
    rows = _table(whole, _TAG_COLUMNS)
    if len(rows) != _WHOLE_TAG_ROWS:
        raise WorldError(f"{whole}: expected {_WHOLE_TAG_ROWS} rows as published, got {len(rows)}")
    return rows


def _table(path: Path, columns: int) -> npt.NDArray[np.int64]:
    """Read a file of whole numbers in tab-separated columns, after a line of names."""
    try:
        table = np.loadtxt(path, dtype=np.int64, delimiter="\t", skiprows=1, ndmin=2)
    except OSError as error:
        raise WorldError(f"{path}: expected a readable file, got: {error.strerror}") from error
    except ValueError:
        raise WorldError(f"{path}: expected {columns} tab-separated whole numbers a line after the first") from None
    if table.shape[1] != columns:
        raise WorldError(f"{path}: expected {columns} columns, got {table.shape[1]}")
    return table


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
