"""Makes models from releases. The aggregator reads published records alone, and has no key.

A model is the open cells and, for each, 256 tickets. A version says which cells opened and which rows of tickets
changed. A reader that applies all versions in order has the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.configuration import config_digest
from hushstream.systems.pdap.algorithm.blocks import Blocks
from hushstream.systems.pdap.algorithm.estimate import Beliefs, Observed, believe, precisions
from hushstream.systems.pdap.algorithm.noise import block_variances
from hushstream.systems.pdap.algorithm.outcomes import Release
from hushstream.systems.pdap.algorithm.partition import PARTITION, Partition
from hushstream.systems.pdap.algorithm.pool import permutation, pool_size
from hushstream.systems.pdap.algorithm.tickets import DIGEST_BYTES, TICKETS, CellBeliefs, draw_tickets, rounded
from hushstream.systems.pdap.cells import Int64, PdapError, levels_of
from hushstream.systems.pdap.configuration import PdapConfig, steps_to

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
    """

    version: int
    opened: Int64
    changed: Int64
    tickets: Int64
    pool: int


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

    def fold(self, release: Release) -> None:
        """Take the release of a window.

        Raises:
            PdapError: a cell that is not on this grid.
        """
        blocks, levels = release.blocks, self._config.release.reward_levels
        self.grid.require(blocks.cells)
        precision = precisions(
            blocks.counts, self._variances[levels_of(blocks.cells)], self._config.estimate.reward_variance
        )
        rows = np.array([self.partition.row(cell) for cell in blocks.cells.tolist()], dtype=np.int64)
        means = self._bounded_means(rows, blocks, precision)
        self._observed = self._observed.plus(Observed(rows, blocks.arms, precision, precision * means))
        self._rewards += int(blocks.sums.sum())
        self._counted += int(blocks.counts.sum()) * levels
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

    def best(self) -> NDArray[np.int64]:
        """The arm with the largest mean in each open cell, (rows,); among equal ones the first of the pool."""
        found = self.beliefs()
        return np.asarray(found.pool[rounded(found.mean).argmax(axis=1)])
