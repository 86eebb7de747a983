"""The simulator of Wang et al. 2020 (Global and Local Differential Privacy for Collaborative Bandits), section 6.1.

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
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from hushstream.replay.studies.colin.worlds.related import columns_to_one, pick_without_replacement, unit_rows
from hushstream.replay.worlds.draws import Draws, IntArray
from hushstream.replay.worlds.synthetic import clipped_normal_mean
from hushstream.replay.worlds.world import WorldError, check_request, require_number

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
        """Return the (n,) noisy rewards, clipped to [0, 1]."""
        mean = self._means(users, round_index, arms)
        if self.noise_std > 0.0:
            mean = mean + self.noise_std * Draws(self.seed, "noise").normals(users, round_index, arms)
        return np.clip(mean, 0.0, 1.0)

    def expected(self, users: IntArray, round_index: int, arms: IntArray) -> npt.NDArray[np.float64]:
        """Return the (n,) exact mean rewards, clipping included."""
        mean = self._means(users, round_index, arms)
        if self.noise_std > 0.0:
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
        ("arms", arms, 2, 4096),
    ):
        require_number("colin", option, value, least, most)
    if arms > pool:
        raise WorldError(f"colin: arms must be at most pool = {pool}, got {arms}")
    kind = cast(Variant, variant)
    parameters = _rows(kind, "users", users, dimension, seed)
    parameters /= np.linalg.norm(parameters, axis=1, keepdims=True)
    relation, graph = relate(parameters, edge_quantile)
    return ColinWorld(
        variant=kind,
        users=users,
        rounds=rounds,
        feature_dimension=dimension,
        arms=arms,
        noise_std=float(noise_std),
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
