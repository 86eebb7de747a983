"""The counter: outcomes in, disjoint noised blocks out. It alone holds rewards.

Every outcome enters one pending (cell, arm): the cell that served its context, the arm that was shown. At the close of
a window `blocks.close` forms blocks; each is released once, as (n, s + noise), and its outcomes are forgotten.

Guarantee:
    Replace one reward of one event by another, everything public (cells, arms, times, who was served by whom, that
    and when the outcome counts) being the same. Claim: the joint law of all that is ever released changes by at most
    e^eps, eps the largest level's epsilon.

    *Disjoint.* An outcome is in one pending row; `blocks.close` puts a row into one block or leaves it; a released
    row is dropped. So each outcome enters one block, ever, and the vector of all exact block sums moves by at most R
    in L1, in one entry.

    *Given equal earlier releases everything else is equal.* Run both histories with the same coins, except that the
    noise z of the block B that holds the event is z' = z + (r - r') in the other. Then up to B's release both are
    the same: arms are a function of contexts, models and tickets' coins; models of releases; membership and windows
    of counts. At B the noised sum is s + z = s' + z'. So all that follows is the same too, also what an adversary
    chooses by it: contexts, later rewards, when to ask. Which block is B is decided by counts alone, so it is the
    same one in both, and z -> z' is one to one.

    *Price.* Only B's noise has another value: its probability changes by e^(|r - r'| / (R / eps_l)) <= e^eps_l at
    most, l the level of B. Pure eps_l <= max_l eps_l; the noise tables are off by one draw's residue.
    c events of one person: at most c noises move, by R each: c eps (group privacy, through hybrids).

    *What would break it*: a window that a reward closes, a size that is tested on rewards, a block released twice,
    an arm chosen by who has seen rewards. `hushstream.replay.studies.pdap.audits` plays all of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.noise import checked_add
from hushstream.systems.pdap.blocks import Blocks, close, gathered
from hushstream.systems.pdap.cells import Int64, levels_of
from hushstream.systems.pdap.configuration import PdapConfig
from hushstream.systems.pdap.errors import PdapError
from hushstream.systems.pdap.noise import BlockNoise

NAME_BYTES = 16
_HISTORY_BYTES = 32


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Outcomes at their deadlines, int64 (n,) each.

    Attributes:
        cells: the cell that served each context.
        arrivals: where its arrival is counted: a child of that cell, or the cell itself on the last level.
        arms: shown.
        rewards: in reward levels, 0 where nobody clicked.
        names: uint8 (n, 16), the public name of each event; it names one event ever.
    """

    cells: Int64
    arrivals: Int64
    arms: Int64
    rewards: Int64
    names: NDArray[np.uint8]

    def __len__(self) -> int:
        """How many."""
        return len(self.cells)

    def take(self, rows: slice | Int64) -> Outcomes:
        """Some of them."""
        return Outcomes(self.cells[rows], self.arrivals[rows], self.arms[rows], self.rewards[rows], self.names[rows])

    def rows(self) -> bytes:
        """Every row as 48 bytes, one after the other: the same however the rows were cut into batches."""
        columns = [
            one.astype("<i8")[:, None].view(np.uint8) for one in (self.cells, self.arrivals, self.arms, self.rewards)
        ]
        return np.hstack([self.names, *columns]).tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """What a window publishes.

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


class Counter:
    """Pending outcomes of one counter; see the module for what its releases promise.

    Attributes:
        window: the number of the open window.
        taken: outcomes that were ever taken; public.
    """

    def __init__(self, config: PdapConfig, noise: BlockNoise) -> None:
        """Before the first outcome.

        Args:
            config: of the deployment.
            noise: keyed, but in audits.
        """
        self.window = 0
        self.taken = 0
        self._config = config
        self._noise = noise
        self._grid = config.grid
        self._pending = Blocks.none()
        self._fresh: list[Blocks] = []
        self._arrivals: list[Int64] = []
        self._rows: list[bytes] = []
        self._history = bytes(_HISTORY_BYTES)

    @property
    def room(self) -> int:
        """Outcomes until the open window closes; 0: it must close first."""
        return self._config.release.schedule.closes_at(self.window) - self.taken

    def take(self, outcomes: Outcomes) -> None:
        """Take outcomes into the open window.

        Raises:
            PdapError: a column, cell, arm or reward that cannot be, or more outcomes than the horizon. Nothing is
                taken then. The message repeats no reward.
        """
        self._admit(outcomes)
        ones = np.ones(len(outcomes), dtype=np.int64)
        self._fresh.append(Blocks(outcomes.cells, outcomes.arms, ones, outcomes.rewards))
        self._arrivals.append(outcomes.arrivals)
        self._rows.append(outcomes.rows())
        self.taken += len(outcomes)

    def close(self, window: int) -> Release:
        """Close the open window and release its blocks; what is too small goes on waiting.

        Args:
            window: its number; whoever drives the counter says when, by public facts alone.

        Raises:
            PdapError: it is not the open one: a window closes once.
        """
        if window != self.window:
            raise PdapError(f"window: expected {self.window} to close, got {window}")
        waiting = gathered([self._pending, *self._fresh])
        blocks, self._pending = close(self._grid, waiting, self._config.least_counts)
        # Of all outcomes ever, not of the blocks alone: two histories with other events and equal sums would else
        # meet one noise, and show that their sums are equal.
        self._history = blake2b(self._history + b"".join(self._rows), digest_size=_HISTORY_BYTES).digest()
        noise = self._noise(window, blocks, self._history)
        noised = Blocks(blocks.cells, blocks.arms, blocks.counts, checked_add(blocks.sums, noise))
        arrived, arrivals = np.unique(
            np.concatenate([*self._arrivals, np.zeros(0, dtype=np.int64)]), return_counts=True
        )
        release = Release(window, noised, arrived, arrivals.astype(np.int64), int(arrivals.sum()))
        self._fresh, self._arrivals, self._rows = [], [], []
        self.window += 1
        return release

    @property
    def pending(self) -> Blocks:
        """What waits: one row for each (cell, arm), exact sums; as sensitive as the rewards."""
        return gathered([self._pending, *self._fresh])

    def _admit(self, outcomes: Outcomes) -> None:
        columns = (outcomes.cells, outcomes.arrivals, outcomes.arms, outcomes.rewards)
        if any(column.dtype != np.int64 or column.shape != (len(outcomes),) for column in columns):
            raise PdapError("outcomes: expected four int64 columns of one length, got others")
        if outcomes.names.dtype != np.uint8 or outcomes.names.shape != (len(outcomes), NAME_BYTES):
            raise PdapError(f"outcomes: expected names uint8 {(len(outcomes), NAME_BYTES)}, got others")
        if self.taken + len(outcomes) > self._config.release.horizon:
            raise PdapError(
                f"outcomes: expected at most {self._config.release.horizon} ever, got {self.taken} and"
                f" {len(outcomes)} more"
            )
        self._grid.require(outcomes.cells)
        self._grid.require(outcomes.arrivals)
        below = np.minimum(levels_of(outcomes.cells) + 1, self._grid.levels)
        known = np.array_equal(levels_of(outcomes.arrivals), below)
        if not known or not np.array_equal(
            self._grid.ancestors(outcomes.arrivals, levels_of(outcomes.cells)), outcomes.cells
        ):
            raise PdapError("outcomes: expected arrivals in a child of the serving cell, got another cell")
        for name, values, limit in (
            ("arms", outcomes.arms, self._config.arms - 1),
            ("rewards", outcomes.rewards, self._config.release.reward_levels),
        ):
            if len(values) and not (values.min() >= 0 and values.max() <= limit):
                raise PdapError(f"outcomes: expected {name} from 0 to {limit}, got one outside")
