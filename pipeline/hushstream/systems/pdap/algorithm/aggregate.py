"""Makes models from releases. The aggregator reads published records alone, and has no key.

A model is the open cells and, for each, 256 tickets. A version says which cells opened and which rows of tickets
changed. A reader that applies all versions in order has the model.

*Pool.* The pool of arms that may be shown: the first ones of a public permutation.

The pool grows with the number of decisions.

*Outcomes.* Input and output of a counter.

*Tickets.* Draws tickets: 256 arms for each cell, each the winner of one draw from the beliefs about arms.

Ticket t of a cell is argmax over the pool of mu + temper (sd z + sv z'), z standard normal for each arm and z' for each
vendor, sv the vendor's deviation: this is Thompson sampling, drawn ahead. So a decision is a look-up in a table, and
its propensity is a whole number of 256ths. Without the uncertainty of vendors, a vendor whose first arms were poor
would never be tried again.

Beliefs are rounded to a grid before they are used, in single precision, whose sums and products are the same on every
machine; the draws come from ChaCha20 under a public key made of the cell and its rounded beliefs. So a row's tickets
are a function of the row, and only rows whose beliefs or pool changed are drawn again. The random numbers need not be
secret, because tickets are made from releases.

Source: Thompson 1933; the tempered posterior as in Phan, Abbasi-Yadkori, Domke 2019.

*Beliefs.* Gaussian belief propagation on the tree of cells: exact posterior means and variances in two passes.

The value at the root has a normal prior of mean 0; the value of a child is its parent's plus a normal step. What was
observed at a cell is a precision W and a weighted sum B = W y. A message over an edge with step variance t turns (W, B)
into (W, B) / (1 + t W). A message to the parent sums up all that was observed at the child and below it; a message to a
child sums up everything else.

Source: Pearl 1988 (Probabilistic Reasoning in Intelligent Systems), chapter 7; on a tree two passes are exact.

*Estimate.* Estimates what each arm earns in each cell from released blocks: random effects of vendors, and the tree of
cells.

A block gives y = S/n with known noise: the rewards' own variance sigma2/n and that of the release, V/n^2. So its
precision is P = 1 / (sigma2/n + V/n^2), and the precisions of blocks of one (cell, arm) add up. An arm's value in a
cell is its vendor's mean there plus its own deviation:

* the vendor's mean: arms scatter around it with variance omega, so one arm has the weight w = 1 / (omega + 1/P); cells
  are smoothed over the tree. The prior mean is ``prior_share`` of the mean reward of all blocks, because the arms that
  are played are better than the others;
* the deviation: `beliefs` on the tree, after the vendor's mean was subtracted from the observations. All of this is
  post-processing of releases.

*Trial.* Decides which vendors share, from released windows and declared rates alone.

A vendor on trial is shut: its visits are clean with a small chance, by a coin, and dark else (`OwnRewards` in
`hushstream.systems.pdap.algorithm.serving`). Let y be the mean reward of the last `TRIAL_WINDOWS` windows of its
counter that released anything, each outcome without a block counted as unrewarded, and se its standard error, that of
the rewards and of the known noise. The vendor opens where y - z se exceeds the rate that it declared before it joined,
and shuts again where y + z se is below it. Once it is open all of its visits are clean, and nothing bounds what it
loses until it shuts.

Why it is sound: a reward of a clean visit enters one block, as without a trial (`hushstream.systems.pdap.counter`), and
y, se and the declared rates are functions of releases and of the configuration. A reward of a dark visit moves nothing
that leaves its vendor. What would break it: a gate by exact rewards (a forward that depends on them shows them to the
neighbour), or a sum over dark visits, whose arms one reward may steer from there on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from hushstream.engine.configuration import config_digest
from hushstream.systems.pdap.algorithm.blocks import Blocks, block_variances
from hushstream.systems.pdap.algorithm.partition import PARTITION, Partition
from hushstream.systems.pdap.cells import Int64, PdapError, levels_of
from hushstream.systems.pdap.configuration import EstimateConfig, PdapConfig, steps_to

_COLUMNS_AT_ONCE = 256
"""Number of arms whose trees are solved together: more need more memory, fewer need more calls."""


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """Sums over all blocks: one row for each (row of a cell, arm) with blocks, (n,) each.

    Attributes:
        rows: of the open cells.
        arms: global numbers.
        precision: sum of P.
        weighted: sum of P y.
    """

    rows: Int64
    arms: Int64
    precision: Float64
    weighted: Float64

    @classmethod
    def none(cls) -> Observed:
        """Sums of no block."""
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty, np.zeros(0), np.zeros(0))

    def plus(self, more: Observed) -> Observed:
        """The sums of both, by (row, arm), added in the order of releases."""
        rows, arms = np.concatenate([self.rows, more.rows]), np.concatenate([self.arms, more.arms])
        _, first, group = np.unique(rows << 32 | arms, return_index=True, return_inverse=True)
        precision = _added(group, np.concatenate([self.precision, more.precision]), len(first))
        weighted = _added(group, np.concatenate([self.weighted, more.weighted]), len(first))
        return Observed(rows[first], arms[first], precision, weighted)


@dataclass(frozen=True, slots=True, eq=False)
class Beliefs:
    """Beliefs about each arm of a pool in each open cell.

    Attributes:
        pool: (p,) arms.
        mean: (rows, p).
        deviation: (rows, p) standard deviations around the vendor's mean.
        vendor_deviation: (rows, vendors) standard deviations of the vendors' means themselves.
    """

    pool: Int64
    mean: Float64
    deviation: Float64
    vendor_deviation: Float64


def precisions(counts: Int64, variances: Float64, sigma2: float) -> Float64:
    """P of blocks with ``counts`` outcomes whose sums were released with noise of ``variances``."""
    sizes = counts.astype(np.float64)
    return np.asarray(1.0 / (sigma2 / sizes + variances / (sizes * sizes)))


def believe(
    levels: Levels,
    observed: Observed,
    pool: Int64,
    owners: NDArray[np.int64],
    grand: float,
    terms: EstimateConfig,
    arm_steps: Sequence[float],
    vendor_steps: Sequence[float],
) -> Beliefs:
    """Mean and standard deviation of each arm of ``pool`` in each cell.

    Args:
        levels: the tree of open cells, see `beliefs`.
        observed: of all arms, whether in the pool or not.
        pool: the arms that may be shown.
        owners: the vendor of every arm.
        grand: mean reward of all blocks.
        terms: variances.
        arm_steps: of an arm's deviation, to level 1, 2, ...
        vendor_steps: of a vendor's mean.
    """
    rows = sum(len(level[0]) for level in levels)
    means, vendor_variances = vendor_means(levels, rows, observed, owners, grand, terms, vendor_steps)
    mu, sd = np.empty((rows, len(pool))), np.empty((rows, len(pool)))
    for begin in range(0, len(pool), _COLUMNS_AT_ONCE):
        arms = pool[begin : begin + _COLUMNS_AT_ONCE]
        precision, weighted = _dense(observed, arms, rows, len(owners))
        around = means[:, owners[arms]]
        weighted -= around * precision
        deviation, variance = posterior(levels, precision, weighted, terms.arm_variance, arm_steps)
        mu[:, begin : begin + len(arms)] = around + deviation
        sd[:, begin : begin + len(arms)] = np.sqrt(variance)
    return Beliefs(pool, mu, sd, np.sqrt(vendor_variances))


def vendor_means(
    levels: Levels,
    rows: int,
    observed: Observed,
    owners: NDArray[np.int64],
    grand: float,
    terms: EstimateConfig,
    steps: Sequence[float],
) -> tuple[Float64, Float64]:
    """The mean of each vendor's arms in each cell and its variance, (rows, vendors)."""
    vendors = int(owners.max()) + 1
    weights = 1.0 / (terms.arm_spread + 1.0 / observed.precision)
    prior = terms.prior_share * grand
    place = observed.rows * vendors + owners[observed.arms]
    precision = _added(place, weights, rows * vendors).reshape(rows, vendors)
    offsets = weights * (observed.weighted / observed.precision - prior)
    weighted = _added(place, offsets, rows * vendors).reshape(rows, vendors)
    means, variances = posterior(levels, precision, weighted, terms.vendor_variance, steps)
    return prior + means, variances


def _added(places: Int64, values: Float64, size: int) -> Float64:
    # Without any value, bincount returns whole numbers.
    return np.bincount(places, values, size).astype(np.float64, copy=False)


def _dense(observed: Observed, arms: Sequence[int] | Int64, rows: int, known: int) -> tuple[Float64, Float64]:
    column = np.full(known, -1, dtype=np.int64)
    column[arms] = np.arange(len(arms))
    places = column[observed.arms]
    here = places >= 0
    precision, weighted = np.zeros((rows, len(arms))), np.zeros((rows, len(arms)))
    precision[observed.rows[here], places[here]] = observed.precision[here]
    weighted[observed.rows[here], places[here]] = observed.weighted[here]
    return precision, weighted


Float64 = NDArray[np.float64]
Levels = Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]
"""From the root down: rows of one level, and the rows of their parents."""


def posterior(
    levels: Levels, precision: Float64, weighted: Float64, root_variance: float, steps: Sequence[float]
) -> tuple[Float64, Float64]:
    """Means and variances of the value at every cell, given all observations.

    Args:
        levels: the tree; the first is the root alone.
        precision: W, (rows, columns); columns are independent trees.
        weighted: B, (rows, columns).
        root_variance: prior variance of the root's value.
        steps: variance of a step to level 1, 2, ...

    Returns:
        Mean and variance, each (rows, columns).
    """
    total_w, total_b = precision.copy(), weighted.copy()
    up_w, up_b = np.zeros_like(precision), np.zeros_like(weighted)
    for depth in range(len(levels) - 1, 0, -1):
        rows, parents = levels[depth]
        shrink = 1.0 / (1.0 + steps[depth - 1] * total_w[rows])
        up_w[rows], up_b[rows] = total_w[rows] * shrink, total_b[rows] * shrink
        np.add.at(total_w, parents, up_w[rows])
        np.add.at(total_b, parents, up_b[rows])
    total_w[levels[0][0]] += 1.0 / root_variance
    for depth in range(1, len(levels)):
        rows, parents = levels[depth]
        rest_w, rest_b = total_w[parents] - up_w[rows], total_b[parents] - up_b[rows]
        shrink = 1.0 / (1.0 + steps[depth - 1] * rest_w)
        total_w[rows] += rest_w * shrink
        total_b[rows] += rest_b * shrink
    return total_b / total_w, 1.0 / total_w


TICKETS = 256
DIGEST_BYTES = 32
BELIEF_STEPS = 1 << 14
"""Means and deviations are rounded to multiples of 2^-14: far below the differences between arms."""

_NORMAL_STEPS = 1 << 12
Float32 = NDArray[np.float32]


def rounded(values: Float64) -> Float32:
    """Values on the grid of `BELIEF_STEPS`, exact in single precision below 2^9."""
    return np.asarray(np.rint(values * BELIEF_STEPS) / BELIEF_STEPS, dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class CellBeliefs:
    """Beliefs in one cell, rounded.

    Attributes:
        cell: its number.
        pool: (p,) arms.
        owners: (p,) the vendor of each.
        mean: (p,).
        deviation: (p,) of each arm around its vendor's mean.
        vendor_deviation: (vendors,) standard deviation of each vendor's mean.
        temper: multiplies both; 0 gives every ticket to the arm with the largest mean.
    """

    cell: int
    pool: Int64
    owners: Int64
    mean: Float32
    deviation: Float32
    vendor_deviation: Float32
    temper: float

    def digest(self) -> bytes:
        """Digest of all values (32 bytes), which is the key of its draws."""
        sizes = (self.cell, len(self.pool), len(self.vendor_deviation))
        head = b"".join(size.to_bytes(8, "little") for size in sizes) + np.float64(self.temper).tobytes()
        hasher = blake2b(head, digest_size=DIGEST_BYTES, person=b"hush-pdap-cell")
        for whole in (self.pool, self.owners):
            hasher.update(whole.astype("<i8").tobytes())
        for number in (self.mean, self.deviation, self.vendor_deviation):
            hasher.update(number.astype("<f4").tobytes())
        return hasher.digest()


def draw_tickets(beliefs: CellBeliefs, digest: bytes) -> Int64:
    """The arms of one cell's tickets, int64 (256,), sorted.

    Args:
        beliefs: of the cell.
        digest: theirs.
    """
    arms, vendors = len(beliefs.pool), len(beliefs.vendor_deviation)
    words = np.empty((TICKETS, arms + vendors), dtype="<u2")
    # The key stands for this row alone and is used once, so nonce and counter begin at zero.
    Cipher(ChaCha20(digest, bytes(16)), mode=None).encryptor().update_into(bytes(words.nbytes), words.data.cast("B"))
    normals = _normals()
    scores = normals[words[:, :arms]]
    scores *= beliefs.deviation
    scores += (normals[words[:, arms:]] * beliefs.vendor_deviation)[:, beliefs.owners]
    scores *= np.float32(beliefs.temper)
    scores += beliefs.mean
    return np.sort(beliefs.pool[scores.argmax(axis=1)])


@lru_cache(maxsize=1)
def _normals() -> Float32:
    """Normal quantiles at the middles of 2^16 equal parts, in multiples of 2^-12."""
    from scipy.special import ndtri

    middles = (np.arange(1 << 16) + 0.5) / (1 << 16)
    return np.asarray(np.rint(ndtri(middles) * _NORMAL_STEPS) / _NORMAL_STEPS, dtype=np.float32)


def ticket_counts(tickets: Int64) -> Int64:
    """For each ticket the number of tickets of its row with the same arm: int64 (rows, 256), for sorted rows."""
    return np.stack([np.repeat(*_runs(row)) for row in tickets]) if len(tickets) else tickets.copy()


def _runs(row: Int64) -> tuple[Int64, Int64]:
    _, counts = np.unique(row, return_counts=True)
    return counts, counts


NAME_BYTES = 16
ROW = np.dtype("V48")
"""A whole outcome as bytes; its name comes first."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Outcomes at their deadlines, int64 (n,) each.

    Attributes:
        cells: the cell that served each context.
        arrivals: the cell in which its arrival is counted: a child of the serving cell, or that cell itself on the last
            level.
        arms: the shown arms.
        rewards: in reward levels, 0 without a click.
        names: uint8 (n, 16), the public name of each event, which is never used again.
    """

    cells: Int64
    arrivals: Int64
    arms: Int64
    rewards: Int64
    names: NDArray[np.uint8]

    def __len__(self) -> int:
        """Number of outcomes."""
        return len(self.cells)

    def take(self, rows: slice | Int64) -> Outcomes:
        """The outcomes of these rows."""
        return Outcomes(self.cells[rows], self.arrivals[rows], self.arms[rows], self.rewards[rows], self.names[rows])

    def rows(self) -> NDArray[np.void]:
        """Every row as 48 bytes, V48 (n,); its name comes first."""
        columns = [
            one.astype("<i8")[:, None].view(np.uint8) for one in (self.cells, self.arrivals, self.arms, self.rewards)
        ]
        return np.ascontiguousarray(np.hstack([self.names, *columns])).view(ROW)[:, 0]


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """The release of a window.

    Attributes:
        window: its number.
        blocks: with noised sums; deepest level first, then by cell and arm.
        arrived: cells in which contexts arrived, sorted; public.
        arrivals: how many in each; public.
        outcomes: in this window; public.
    """

    window: int
    blocks: Blocks
    arrived: Int64
    arrivals: Int64
    outcomes: int


FLOOR = 12
"""Size of the pool at the beginning."""

_GROWTH = 3.0
_BLOCKS_AN_ARM = 0.1


def pool_size(arms: int, decisions: int, least: float) -> int:
    """min(arms, max(12, min(3 sqrt(N), .1 N / least))): this is the number of arms that N decisions can distinguish.

    Args:
        arms: number of arms of all vendors.
        decisions: N, public.
        least: kappa/epsilon, outcomes of the smallest block; each arm should fill about ten of them.
    """
    wanted = min(_GROWTH * math.sqrt(decisions), _BLOCKS_AN_ARM * decisions / least)
    return min(arms, max(FLOOR, math.floor(wanted)))


def permutation(arms: int, seed: bytes) -> Int64:
    """A public order of all arms, from the configuration's digest: arms sorted by a hash of their number."""
    # BLAKE2b is the same on every machine; numpy's shuffles are not promised to be.
    ranks = [blake2b(arm.to_bytes(8, "little"), key=seed, person=b"hush-pdap-pool").digest() for arm in range(arms)]
    return np.array(sorted(range(arms), key=ranks.__getitem__), dtype=np.int64)


TRIAL_Z = 2.5
"""z: were y as large as the declared rate, one window in 160 would open a vendor."""

TRIAL_WINDOWS = 3

TRIAL = {"trial_windows": "bytes", "trial_shares": "bytes"}
"""Avro fields of `Trial.dump`."""


class Trial:
    """Which vendors share; see the module.

    Attributes:
        shares: bool (vendors,): those whose visits are all clean. Without a trial, all.
    """

    def __init__(self, config: PdapConfig) -> None:
        """All vendors are shut, if there is a trial."""
        self._rates = np.array([vendor.declared_rate or 0.0 for vendor in config.vendors])
        self._of = np.arange(len(self._rates)) if config.counters > 1 else np.zeros(len(self._rates), dtype=np.int64)
        self._on = config.on_trial
        self._windows = np.zeros((config.counters, TRIAL_WINDOWS, 3))
        self.shares = np.full(len(self._rates), not self._on)

    def note(self, counter: int, rewards: float, outcomes: int, variance: float) -> None:
        """Take a window of a counter: its released rewards, its outcomes, and the variance of the noise in the sum."""
        if not self._on:
            return
        kept = self._windows[counter, 1:].copy()
        self._windows[counter, :-1], self._windows[counter, -1] = kept, (rewards, outcomes, variance)
        if not self._windows[counter, 0, 1]:
            return
        clicks, count, noise = self._windows[counter].sum(axis=0)
        mean = min(1.0, max(0.0, clicks / count))
        reach = TRIAL_Z * math.sqrt(mean * (1 - mean) / count + noise / count**2)
        here = self._of == counter
        self.shares = np.where(here & (mean - reach > self._rates), True, self.shares)
        self.shares = np.where(here & (mean + reach < self._rates), False, self.shares)

    def dump(self) -> dict[str, bytes]:
        """The state in packed form (`TRIAL`): all of it is public."""
        return {"trial_windows": self._windows.astype("<f8").tobytes(), "trial_shares": self.shares.tobytes()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a dumped state."""
        self._windows = np.frombuffer(state["trial_windows"], "<f8").reshape(self._windows.shape).astype(np.float64)
        self.shares = np.frombuffer(state["trial_shares"], np.bool_).copy()


_OBSERVED = {"rows": "<i8", "arms": "<i8", "precision": "<f8", "weighted": "<f8"}

_NEVER, _AT_FIRST, _LATER = 0, 1, 2
"""Codes for when an arm was first offered: never, before the first release, or later."""

AGGREGATE = {
    **PARTITION,
    "decisions": "long",
    "rewards": "long",
    "counted": "long",
    "ticket_version": "int",
    **dict.fromkeys(("digests", "offered", "entered", *_OBSERVED), "bytes"),
    **TRIAL,
}
"""Avro fields of `Aggregate.dump`."""


_NO_ARM = np.zeros(TICKETS, dtype=np.int64)
"""Tickets while nothing is offered."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelUpdate:
    """A version of the model, as changes.

    Attributes:
        version: counts from 0; the first opens the root.
        opened: cells that opened, in the order of their rows.
        changed: rows whose tickets are new, ascending; those of opened cells are among them.
        tickets: int64 (len(changed), 256), each row sorted.
        pool: number of arms that may be shown; 0 while nothing is offered, when no ticket has an arm.
        shares: bool (vendors,): vendors whose visits are all clean, see *Trial*.
    """

    version: int
    opened: Int64
    changed: Int64
    tickets: Int64
    pool: int
    shares: NDArray[np.bool_]


class Aggregate:
    """All releases so far, and the model from them."""

    def __init__(self, config: PdapConfig, arms: Int64 | None = None) -> None:
        """Before the first release.

        Args:
            config: of the deployment.
            arms: arms that may ever be shown; by default those of all vendors.
        """
        cells = config.cells
        self.grid = config.grid
        self.partition = Partition(self.grid, cells.split_at, cells.growth, cells.cap)
        self.decisions = 0
        self._config = config
        self._least_block = config.release.kappa / max(config.level_epsilons)
        self._owners = config.owners
        self._variances = np.array(block_variances(config))
        order = permutation(config.arms, config_digest(config))
        self._order = order if arms is None else order[np.isin(order, arms)]
        self._offered = np.full(config.arms, not config.named_items)
        self._entered = np.full(config.arms, _NEVER if config.named_items else _AT_FIRST, dtype=np.int8)
        self._observed = Observed.none()
        self._rewards, self._counted = 0, 0
        self._version = -1
        self._digests: list[bytes] = []
        self.trial = Trial(config)

    def change(self, arm: int, *, offered: bool) -> bool:
        """Offer or retire an arm from the next version on; returns whether anything changed. Offers are public.

        Releases about a retired arm are kept, also later ones.

        Raises:
            PdapError: an unknown arm.
        """
        if not 0 <= arm < self._config.arms:
            raise PdapError(f"arm: expected one from 0 to {self._config.arms - 1}, got {arm}")
        changed = bool(self._offered[arm]) != offered
        self._offered[arm] = offered
        if offered and self._entered[arm] == _NEVER:
            self._entered[arm] = _LATER if self.decisions else _AT_FIRST
        return changed

    def fold(self, release: Release, counter: int = 0) -> None:
        """Take the release of a counter's window.

        Raises:
            PdapError: a cell that is not on this grid.
        """
        blocks, levels = release.blocks, self._config.release.reward_levels
        self.grid.require(blocks.cells)
        variances = self._variances[levels_of(blocks.cells)]
        precision = precisions(blocks.counts, variances, self._config.estimate.reward_variance)
        rows = np.array([self.partition.row(cell) for cell in blocks.cells.tolist()], dtype=np.int64)
        means = self._bounded_means(rows, blocks, precision)
        self._observed = self._observed.plus(Observed(rows, blocks.arms, precision, precision * means))
        rewards = int(blocks.sums.sum())
        self._rewards += rewards
        self._counted += int(blocks.counts.sum()) * levels
        if len(blocks):
            self.trial.note(counter, rewards / levels, release.outcomes, float(variances.sum()))
        self.decisions += release.outcomes
        self.partition.observe(release.arrived, release.arrivals)
        self.partition.grow()

    def _bounded_means(self, rows: Int64, blocks: Blocks, precision: NDArray[np.float64]) -> NDArray[np.float64]:
        """Block means with a bounded distance from their expectation, because Laplace noise has heavy tails.

        Let the value have the prior variance v, and the mean be observed with scatter and noise of variance 1/P, the
        noise being Laplace of scale b. Taken as normal, at distance x from its expectation, it moves the belief by x v
        P / (1 + v P). But the slope of a Laplace likelihood is 1/b at most, which moves it by v/b at most. So x is
        clipped at (v + 1/P) / b. Without this, the best of a thousand arms would be the one with the largest noise.
        """
        means = blocks.sums / (blocks.counts * self._config.release.reward_levels)
        if not len(means):
            return means
        arms, column = np.unique(blocks.arms, return_inverse=True)
        found = self._believe(arms)
        expected = found.mean[rows, column]
        variance = found.deviation[rows, column] ** 2 + found.vendor_deviation[rows, self._owners[blocks.arms]] ** 2
        # The variance of Laplace noise is twice the square of its scale.
        scales = np.sqrt(self._variances[levels_of(blocks.cells)] / 2) / blocks.counts
        with np.errstate(divide="ignore"):
            reach = (variance + 1.0 / precision) / scales
        return np.asarray(expected + np.clip(means - expected, -reach, reach))

    @property
    def pool(self) -> Int64:
        """The arms that may be shown now.

        An arm that was first offered after the first release is in the pool at once, because its place in the
        permutation might never be reached. An arm that was retired and is offered again has its old place.
        """
        allowed = self._order[self._offered[self._order]]
        later = self._entered[allowed] == _LATER
        first = allowed[~later]
        return np.concatenate([first[: pool_size(len(first), self.decisions, self._least_block)], allowed[later]])

    def beliefs(self) -> Beliefs:
        """Beliefs about the pool in every open cell."""
        return self._believe(self.pool)

    def _believe(self, arms: Int64) -> Beliefs:
        terms = self._config.estimate
        levels = self._config.cells.levels
        return believe(
            self.partition.by_level(),
            self._observed,
            arms,
            self._owners,
            self.grand_mean,
            terms,
            steps_to(levels, terms.arm_steps),
            steps_to(levels, terms.vendor_steps),
        )

    @property
    def grand_mean(self) -> float:
        """Mean reward of all released blocks, from 0 to 1; 0 before the first one."""
        return min(1.0, max(0.0, self._rewards / self._counted)) if self._counted else 0.0

    def publish(self, greedy: bool = False) -> ModelUpdate:
        """The next version.

        Args:
            greedy: at the end of learning every ticket goes to the arm with the largest mean.
        """
        cells = self._by_cell(0.0 if greedy else self._config.estimate.temper)
        digests = [beliefs.digest() for beliefs in cells]
        known = len(self._digests)
        changed = [row for row, digest in enumerate(digests) if row >= known or digest != self._digests[row]]
        tickets = [draw_tickets(cells[row], digests[row]) if len(cells[row].pool) else _NO_ARM for row in changed]
        opened = self.partition.cells[known:]
        self._version, self._digests = self._version + 1, digests
        return ModelUpdate(
            self._version,
            np.array(opened, dtype=np.int64),
            np.array(changed, dtype=np.int64),
            np.array(tickets, dtype=np.int64).reshape(len(changed), TICKETS),
            len(cells[0].pool),
            self.trial.shares,
        )

    def _by_cell(self, temper: float) -> list[CellBeliefs]:
        found = self.beliefs()
        mean, deviation, of_vendor = map(rounded, (found.mean, found.deviation, found.vendor_deviation))
        owners = self._owners[found.pool]
        return [
            CellBeliefs(cell, found.pool, owners, mean[row], deviation[row], of_vendor[row], temper)
            for row, cell in enumerate(self.partition.cells)
        ]

    def dump(self) -> dict[str, Any]:
        """The state in packed form (`AGGREGATE`): all of it is public."""
        seen = self._observed
        return {
            **self.partition.dump(),
            "decisions": self.decisions,
            "rewards": self._rewards,
            "counted": self._counted,
            "ticket_version": self._version,
            "digests": b"".join(self._digests),
            "offered": self._offered.tobytes(),
            "entered": self._entered.tobytes(),
            **self.trial.dump(),
            **{name: getattr(seen, name).astype(kind).tobytes() for name, kind in _OBSERVED.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a dumped state."""
        self.partition.load(state)
        self.decisions, self._rewards, self._counted = state["decisions"], state["rewards"], state["counted"]
        self._version = state["ticket_version"]
        digests = state["digests"]
        self._digests = [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
        self._offered = np.frombuffer(state["offered"], np.bool_).copy()
        self._entered = np.frombuffer(state["entered"], np.int8).copy()
        seen = (np.frombuffer(state[name], kind).astype(kind[1:]) for name, kind in _OBSERVED.items())
        self._observed = Observed(*seen)
        self.trial.load(state)

    def best(self) -> NDArray[np.int64]:
        """The arm with the largest mean in each open cell, (rows,); among equal ones the first of the pool."""
        found = self.beliefs()
        return np.asarray(found.pool[rounded(found.mean).argmax(axis=1)])
