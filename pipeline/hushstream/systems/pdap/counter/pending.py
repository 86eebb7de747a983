"""Makes disjoint noised blocks of outcomes; the counter alone holds rewards.

Every outcome enters the pending row of one (cell, arm): the cell that served its context, and the arm that was shown.
At the close of a window `blocks.close` forms blocks; each is released once, as (n, s + noise), and its outcomes are
forgotten.

Guarantee:
    Replace one reward of one event by another, everything public (cells, arms, times, who was served by whom, that
    and when the outcome counts) being the same. Claim: the joint law of all that is ever released changes by at most
    e^eps, eps the largest level's epsilon.

    *Disjoint.* An outcome is in one pending row; `blocks.close` puts a row into one block or leaves it; a released
    row is dropped. So each outcome enters one block, ever, and the vector of all exact block sums moves by at most R
    in L1, in one entry.

    *Given equal earlier releases everything else is equal.* Run both histories with the same coins, except that the
    noise z of the block B that holds the event is z' = z + (r - r') in the other. Then up to B's release both are the
    same: arms are a function of contexts, models and tickets' coins; models of releases; membership and windows of
    counts. At B the noised sum is s + z = s' + z'. So all that follows is the same too, also what an adversary chooses
    by it: contexts, later rewards, when to ask. Counts alone decide which block is B, so B is the same in both, and z
    -> z' is one to one.

    *Price.* Only B's noise has another value: its probability changes by e^(|r - r'| / (R / eps_l)) <= e^eps_l at
    most, l the level of B. Pure eps_l <= max_l eps_l; the noise tables are off by one draw's residue.
    c events of one person: at most c noises move, by R each: c eps (group privacy, through hybrids).

    *What would break it*: a window that a reward closes, a size that is tested on rewards, a block released twice, an
    arm chosen by somebody who has seen rewards. `hushstream.replay.studies.pdap.audits.rows` plays all of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.mechanisms.noise import checked_add
from hushstream.systems.pdap.algorithm.blocks import Blocks, close, gathered
from hushstream.systems.pdap.algorithm.noise import BlockNoise
from hushstream.systems.pdap.algorithm.outcomes import NAME_BYTES, ROW, Outcomes, Release
from hushstream.systems.pdap.cells import Int64, PdapError
from hushstream.systems.pdap.configuration import PdapConfig

_HISTORY_BYTES = 32
_COLUMNS = ("cells", "arms", "counts", "sums")

COUNTER = {
    "window": "long",
    "taken": "long",
    "history": "bytes",
    **dict.fromkeys((*_COLUMNS, "rows", "arrivals"), "bytes"),
}
"""Avro fields of `Counter.dump`."""


class Counter:
    """Pending outcomes of one counter; see the module for what its releases promise.

    Attributes:
        window: the number of the open window.
        taken: number of outcomes ever taken; public.
        noise: of the epoch.
        history: digest of all outcomes of closed windows.
    """

    def __init__(self, config: PdapConfig, noise: BlockNoise) -> None:
        """Begin before the first outcome.

        Args:
            config: of the deployment.
            noise: keyed, except in audits.
        """
        self.window = 0
        self.taken = 0
        self._config = config
        self.noise = noise
        self._grid, self._schedule, self._least_counts = config.grid, config.schedule, config.least_counts
        self._largest = {"arms": config.arms - 1, "rewards": config.release.reward_levels}
        """The largest value in a column of outcomes."""
        self._pending = Blocks.none()
        self._fresh: list[Blocks] = []
        self._arrivals: list[Int64] = []
        self._rows: list[NDArray[np.void]] = []
        self.history = bytes(_HISTORY_BYTES)
        self._open_at(0)

    @property
    def capacity_left(self) -> int:
        """Outcomes until the open window closes; 0: it must close first."""
        return self._closes_at - self.taken

    @property
    def open_outcomes(self) -> int:
        """Outcomes in the open window."""
        return self.taken - self._opened_at

    def _open_at(self, taken: int) -> None:
        """The number of taken outcomes at which the open window began."""
        self._opened_at, self._closes_at = taken, self._schedule.after(taken)

    def take(self, outcomes: Outcomes) -> None:
        """Take outcomes into the open window.

        Raises:
            PdapError: an invalid column, cell, arm or reward, or more outcomes than the horizon. No outcome is taken
                then. The message repeats no reward.
        """
        self.require(outcomes)
        if self.taken + len(outcomes) > self._config.release.horizon:
            raise PdapError(
                f"outcomes: expected at most {self._config.release.horizon} ever, got {self.taken} and"
                f" {len(outcomes)} more"
            )
        self.take_checked(outcomes)

    def take_checked(self, outcomes: Outcomes) -> None:
        """See `take`; the caller must have checked the outcomes (`require`) and the horizon."""
        rows = outcomes.rows()
        ones = np.ones(len(rows), dtype=np.int64)
        self._fresh.append(Blocks(outcomes.cells, outcomes.arms, ones, outcomes.rewards))
        self._arrivals.append(outcomes.arrivals)
        self._rows.append(rows)
        self.taken += len(rows)

    def close(self, window: int) -> Release:
        """Close the open window and release its blocks; outcomes of blocks that are too small go on waiting.

        Args:
            window: its number; the caller decides by public facts alone when it closes.

        Raises:
            PdapError: it is not the open window: a window closes once.
        """
        if window != self.window:
            raise PdapError(f"window: expected {self.window} to close, got {window}")
        blocks, self._pending = close(self._grid, self.pending, self._least_counts)
        arrived, arrivals = self._next()
        noise = self.noise(window, blocks, self.history)
        noised = Blocks(blocks.cells, blocks.arms, blocks.counts, checked_add(blocks.sums, noise))
        return Release(window, noised, arrived, arrivals, int(arrivals.sum()))

    def withhold(self) -> None:
        """Close the open window without a release; all outcomes go on waiting."""
        self._pending = self.pending
        self._next()

    def _next(self) -> tuple[Int64, Int64]:
        """Open the next window; returns the cells in which contexts arrived in this one, and their numbers."""
        # The digest covers all outcomes ever, not the blocks alone: otherwise two histories with other events but equal
        # sums would get the same noise, and show that their sums are equal. Rows are sorted by name, so that the order
        # in which learners send outcomes does not matter.
        rows = np.sort(np.concatenate([*self._rows, np.zeros(0, dtype=ROW)]))
        self.history = blake2b(self.history + rows.tobytes(), digest_size=_HISTORY_BYTES).digest()
        arrived, arrivals = np.unique(
            np.concatenate([*self._arrivals, np.zeros(0, dtype=np.int64)]), return_counts=True
        )
        self._fresh, self._arrivals, self._rows = [], [], []
        self.window += 1
        self._open_at(self.taken)
        return arrived, arrivals.astype(np.int64)

    def dump(self) -> dict[str, Any]:
        """The state in packed form (`COUNTER`); as sensitive as the rewards."""
        waiting = self.pending
        columns = {name: getattr(waiting, name).astype("<i8").tobytes() for name in _COLUMNS}
        return {
            "window": self.window,
            "taken": self.taken,
            "history": self.history,
            **columns,
            "rows": b"".join(rows.tobytes() for rows in self._rows),
            "arrivals": b"".join(cells.astype("<i8").tobytes() for cells in self._arrivals),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a dumped state."""
        self.window, self.taken, self.history = state["window"], state["taken"], bytes(state["history"])
        self._pending = Blocks(*(np.frombuffer(state[name], "<i8").astype(np.int64) for name in _COLUMNS))
        self._fresh = []
        self._rows = [np.frombuffer(state["rows"], ROW)]
        self._arrivals = [np.frombuffer(state["arrivals"], "<i8").astype(np.int64)]
        self._open_at(self.taken - len(self._arrivals[0]))

    @property
    def pending(self) -> Blocks:
        """The waiting outcomes: one row for each (cell, arm) with exact sums; as sensitive as the rewards."""
        return gathered([self._pending, *self._fresh])

    def require(self, outcomes: Outcomes) -> None:
        """Refuse invalid outcomes.

        Raises:
            PdapError: an invalid column, cell, arm or reward; the message repeats no reward.
        """
        count, columns = len(outcomes), (outcomes.cells, outcomes.arrivals, outcomes.arms, outcomes.rewards)
        if any(column.dtype != np.int64 or column.shape != (count,) for column in columns):
            raise PdapError("outcomes: expected four int64 columns of one length, got others")
        if outcomes.names.dtype != np.uint8 or outcomes.names.shape != (count, NAME_BYTES):
            raise PdapError(f"outcomes: expected names uint8 {(count, NAME_BYTES)}, got others")
        levels, arrived = self._grid.require(outcomes.cells), self._grid.require(outcomes.arrivals)
        below = np.array_equal(arrived, np.minimum(levels + 1, self._grid.levels))
        if not below or not np.array_equal(self._grid.ancestors(outcomes.arrivals, levels), outcomes.cells):
            raise PdapError("outcomes: expected arrivals in a child of the serving cell, got another cell")
        for name, limit in self._largest.items():
            values = getattr(outcomes, name)
            if len(values) and not (values.min() >= 0 and values.max() <= limit):
                raise PdapError(f"outcomes: expected {name} from 0 to {limit}, got one outside")
