"""Chooses an arm for each context from earlier releases alone; it reads no click.

The deepest open cell of the context has 256 tickets; the ticket is a keyed function of user and event. So an answer can
be repeated, and nobody without the key can predict it. The propensity is the share of tickets with that arm. If only
some arms are eligible, only their tickets count. If none of these has a ticket in this cell, all eligible arms with a
ticket in any cell are equally likely (so no retired arm is among them); if there are none of these either, all eligible
arms. While nothing is offered, no ticket has an arm.

*Own rewards.* What a vendor shows without the others: tickets of its own items, drawn in the same way from the exact
rewards of its own users. That is the best it has alone; the dark visits of a vendor on trial are answered so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.keys import Key
from hushstream.systems.pdap.algorithm.aggregate import (
    AGGREGATE,
    TICKETS,
    Aggregate,
    ModelUpdate,
    Release,
    ticket_counts,
)
from hushstream.systems.pdap.algorithm.blocks import Blocks, gathered
from hushstream.systems.pdap.algorithm.partition import CellIndex
from hushstream.systems.pdap.cells import Grid, Int64, PdapError, level_of
from hushstream.systems.pdap.configuration import PdapConfig


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """Answers to a batch, (n,) each.

    Attributes:
        arms: the chosen arms.
        propensities: probability of the arm in 256ths.
        cells: the serving cell.
        arrivals: the cell in which the arrival is counted, see `CellIndex.arrivals`.
        tickets: number of the ticket, from 0 to 255.
        version: of the model.
    """

    arms: Int64
    propensities: Int64
    cells: Int64
    arrivals: Int64
    tickets: NDArray[np.uint8]
    version: int


class Answer(NamedTuple):
    """One answer; see `Decisions`.

    Attributes:
        propensity: out of 256.
    """

    arm: int
    propensity: int
    cell: int
    arrival: int
    ticket: int


class TicketNumbers:
    """The ticket number of a user's event: one byte of keyed BLAKE2b, which never changes."""

    def __init__(self, key: Key) -> None:
        """Tickets under the key of a home vendor."""
        self._keyed = hashlib.blake2b(digest_size=1, key=key.prf("pdap-tickets"))

    def __call__(self, users: Sequence[bytes], events: Sequence[bytes]) -> NDArray[np.uint8]:
        """Ticket numbers, uint8 (n,), of events, each of a user."""
        return np.frombuffer(bytes(map(self.one, users, events)), dtype=np.uint8)

    def one(self, user: bytes, event: bytes) -> int:
        """The ticket number of one event."""
        hasher = self._keyed.copy()
        # The user's length has a fixed size, so no two pairs give the same bytes.
        hasher.update(len(user).to_bytes(8, "little") + user + event)
        return hasher.digest()[0]


NO_ARM = -1
"""Stands for the arm of a ticket without an arm."""

SERVING = {"version": "int", "cells": "bytes", "tickets": "bytes", "shares": "bytes"}
"""Avro fields of `Serving.dump`."""


class Serving:
    """A model, applied version by version, and its answers."""

    def __init__(self, grid: Grid, key: Key) -> None:
        """Begin before the first version; there are no answers yet."""
        self.version = -1
        self._grid = grid
        self._numbers = TicketNumbers(key)
        self._cells = np.zeros(0, dtype=np.int64)
        self._tickets = np.zeros((0, TICKETS), dtype=np.int64)
        self._counts = self._tickets
        self._shown: Int64 | None = None
        self._index: CellIndex | None = None
        self.shares = np.zeros(0, dtype=np.bool_)
        """Which vendors share (`hushstream.systems.pdap.algorithm.aggregate`, *Trial*)."""

    def apply(self, update: ModelUpdate) -> None:
        """Apply the next version.

        Raises:
            PdapError: it is not the next one, or it leaves a row without tickets.
        """
        if update.version != self.version + 1:
            raise PdapError(f"model: expected version {self.version + 1}, got {update.version}")
        rows = len(self._cells) + len(update.opened)
        opened = np.arange(len(self._cells), rows)
        if update.tickets.shape != (len(update.changed), TICKETS) or not np.isin(opened, update.changed).all():
            raise PdapError(f"model: expected {TICKETS} tickets for each changed and each opened row")
        grown = np.zeros((rows, TICKETS), dtype=np.int64)
        grown[: len(self._tickets)] = self._tickets
        grown[update.changed] = update.tickets
        counts = np.zeros((rows, TICKETS), dtype=np.int64)
        counts[: len(self._counts)] = self._counts
        counts[update.changed] = ticket_counts(update.tickets)
        if not update.pool:
            grown[:] = NO_ARM
        self._tickets, self._counts, self._shown = grown, counts, None
        if len(update.opened):
            self._cells = np.concatenate([self._cells, update.opened])
            self._index = CellIndex(self._grid, self._cells)
        self.version, self.shares = update.version, update.shares

    def choose(self, contexts: NDArray[np.floating], users: Sequence[bytes], events: Sequence[bytes]) -> Decisions:
        """Answer a batch. Rows are independent, so batches of any size give the same answers.

        Args:
            contexts: (n, d), entries from 0 to 1.
            users: (n,) as bytes.
            events: (n,) as bytes; each of its user.

        Raises:
            PdapError: no version was applied yet, or a context has another shape or an entry outside [0, 1].
        """
        return self.answer(contexts, self._numbers(users, events))

    def one(self, path: int, user: bytes, event: bytes, eligible: NDArray[np.bool_] | None = None) -> Answer:
        """Answer one context, by its path on the deepest level: as `choose`, but faster.

        Args:
            path: see `Grid.paths`.
            user: as bytes.
            event: as bytes.
            eligible: bool (arms,), one at least; None for all.

        Raises:
            PdapError: no version was applied yet.
        """
        index = self._known()
        row, number = index.row(path), self._numbers.one(user, event)
        cell = int(self._cells[row])
        level = min(level_of(cell) + 1, self._grid.levels)
        arrival = self._grid.cell_at(path, level)
        if eligible is None:
            counted = int(self._counts[row, number])
            return Answer(int(self._tickets[row, number]), counted, cell, arrival, number)
        arm, propensity = _among(self._eligible_tickets(row, eligible), number)
        return Answer(arm, propensity, cell, arrival, number)

    def _eligible_tickets(self, row: int, eligible: NDArray[np.bool_]) -> Int64:
        tickets = self._tickets[row]
        left = tickets[eligible[tickets]] if len(self.shown) else tickets[:0]
        if not len(left):
            left = self.shown[eligible[self.shown]]
        return left if len(left) else np.flatnonzero(eligible)

    @property
    def shown(self) -> Int64:
        """The arms that have a ticket in any cell, ascending."""
        if self._shown is None:
            found = np.unique(self._tickets)
            self._shown = found[found != NO_ARM]
        return self._shown

    def dump(self) -> dict[str, Any]:
        """The state in packed form (`SERVING`): all of it was published."""
        return {
            "version": self.version,
            "cells": self._cells.astype("<i8").tobytes(),
            "tickets": self._tickets.astype("<i4").tobytes(),
            "shares": self.shares.tobytes(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a dumped state."""
        cells = np.frombuffer(state["cells"], "<i8").astype(np.int64)
        tickets = np.frombuffer(state["tickets"], "<i4").astype(np.int64).reshape(-1, TICKETS)
        self.version, self._cells, self._tickets = state["version"], cells, tickets
        self._counts, self._shown = ticket_counts(tickets), None
        self._index = CellIndex(self._grid, cells)
        self.shares = np.frombuffer(state["shares"], np.bool_).copy()

    def answer(self, contexts: NDArray[np.floating], numbers: NDArray[np.uint8]) -> Decisions:
        """Answer a batch whose ticket numbers (n,) are known.

        Raises:
            PdapError: as `choose`.
        """
        index = self._known()
        paths = self._grid.paths(contexts)
        rows = index.rows(paths)
        return Decisions(
            self._tickets[rows, numbers],
            self._counts[rows, numbers],
            self._cells[rows],
            index.arrivals(paths, rows),
            numbers,
            self.version,
        )

    def rows(self, contexts: NDArray[np.floating]) -> Int64:
        """The row of the deepest open cell over each context, (n,).

        Raises:
            PdapError: as `choose`.
        """
        return self._known().rows(self._grid.paths(contexts))

    def place(self, paths: Int64) -> tuple[Int64, Int64]:
        """The serving cell of paths of the deepest level, and the cell in which the arrival is counted: (n,) each."""
        index = self._known()
        rows = index.rows(paths)
        return self._cells[rows], index.arrivals(paths, rows)

    def _known(self) -> CellIndex:
        if self._index is None:
            raise PdapError("serving: expected a model, got none yet")
        return self._index


def _among(left: Int64, number: int) -> tuple[int, int]:
    """The arm of a ticket number among the remaining tickets or arms, and its probability."""
    # Spread the 256 ticket numbers over at most 256 places as evenly as whole numbers allow. The propensity counts
    # them, so it is exact.
    places = np.arange(TICKETS) * len(left) // TICKETS
    arm = int(left[places[number]])
    return arm, int((left[places] == arm).sum())


EXACT_EPSILON = 20.0
"""The epsilon where no noise is drawn: blocks have one outcome, and the variance is below 1e-8."""

ALONE_SCHEDULE: Mapping[str, Any] = {"first_window": 100, "window_ratio": 1.05}
"""Windows of a vendor alone: it has no noise to wait for. With the first of 500 and a ratio of 1.5, as sharing has
them, 4 points fewer of a vendor's answers are clicked over 20,000 contexts (4 x 100 or 1,000 items, four seeds)."""

OWN_REWARDS = {"taken": "long", "waiting": "bytes", **AGGREGATE, **SERVING}
"""Avro fields of `OwnRewards.dump`."""


class OwnRewards:
    """A vendor without the others: its own items, learned from exact rewards; see *Own rewards*.

    Attributes:
        aggregate: of the exact rewards; it stays where they are.
        serving: the tickets from it.
        taken: number of rewards ever taken.
    """

    def __init__(self, config: PdapConfig, vendor: int, key: Key) -> None:
        """Begin before the first reward of a vendor's users.

        Args:
            config: of the deployment.
            vendor: by number.
            key: of its tickets' numbers.
        """
        exact = {"epsilon": EXACT_EPSILON, "level_growth": 0.0, "placement": "serving", **ALONE_SCHEDULE}
        self._config = replace(config, release=replace(config.release, **exact), clean_share=1.0)
        own = np.flatnonzero(config.owners == vendor)
        self._first = int(own[0])
        self.aggregate = Aggregate(self._config, own)
        self.serving = Serving(config.grid, key)
        self.serving.apply(self.aggregate.publish())
        self.taken = 0
        self._waiting = np.zeros((0, 4), dtype=np.int64)

    @property
    def capacity_left(self) -> int:
        """Rewards until the next tickets are drawn."""
        return self._config.schedule.after(self.taken) - self.taken

    def take(self, paths: Int64, arms: Int64, rewards: Int64) -> None:
        """Take rewards of own items, (n,) each, in levels; at most `capacity_left`.

        Args:
            paths: of the contexts, on the deepest level.
            arms: the shown items.
            rewards: of them.
        """
        full = len(paths) == self.capacity_left
        cells, arrivals = self.serving.place(paths)
        self._waiting = np.concatenate([self._waiting, np.stack([cells, arrivals, arms, rewards], axis=1)])
        self.taken += len(paths)
        if full:
            self.close()

    def change(self, row: int, *, offered: bool) -> None:
        """Offer or retire an own item, by its place among them, from the next tickets on."""
        self.aggregate.change(self._first + row, offered=offered)

    def close(self) -> None:
        """Draw new tickets from all rewards so far."""
        cells, arrivals, arms, rewards = np.ascontiguousarray(self._waiting.T)
        blocks = gathered([Blocks(cells, arms, np.ones_like(arms), rewards)])
        arrived, counts = np.unique(arrivals, return_counts=True)
        self.aggregate.fold(Release(0, blocks, arrived, counts.astype(np.int64), len(cells)))
        self.serving.apply(self.aggregate.publish())
        self._waiting = self._waiting[:0]

    def dump(self) -> dict[str, Any]:
        """The state in packed form (`OWN_REWARDS`); as sensitive as the rewards."""
        waiting = self._waiting.astype("<i8").tobytes()
        return {"taken": self.taken, "waiting": waiting, **self.aggregate.dump(), **self.serving.dump()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a dumped state."""
        self.taken = state["taken"]
        self._waiting = np.frombuffer(state["waiting"], "<i8").reshape(-1, 4).astype(np.int64)
        self.aggregate.load(state)
        self.serving.load(state)
