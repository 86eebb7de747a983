"""Serving: an arm for a context from earlier releases alone; no click is seen here.

The deepest open cell of the context has 256 tickets; the ticket is a keyed function of user and round, so an answer
can be given again and nobody without the key can foresee it. The propensity is the share of tickets with that arm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.keys import Key
from hushstream.systems.pdap.aggregate import ModelUpdate
from hushstream.systems.pdap.cells import Grid, Int64
from hushstream.systems.pdap.errors import PdapError
from hushstream.systems.pdap.partition import CellIndex
from hushstream.systems.pdap.tickets import TICKETS, ticket_counts


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """Answers to a batch, (n,) each.

    Attributes:
        arms: chosen.
        propensities: out of 256, how likely that arm was.
        cells: the cell that served.
        arrivals: where the arrival is counted, see `CellIndex.arrivals`.
        tickets: which of the 256.
        version: of the model.
    """

    arms: Int64
    propensities: Int64
    cells: Int64
    arrivals: Int64
    tickets: NDArray[np.uint8]
    version: int


class TicketNumbers:
    """Which ticket a user holds at a round: one byte of keyed BLAKE2b, the same whenever it is asked."""

    def __init__(self, key: Key) -> None:
        """Tickets under the key of a home vendor."""
        self._keyed = hashlib.blake2b(digest_size=1, key=key.prf("pdap-tickets"))

    def __call__(self, users: Sequence[bytes], rounds: Sequence[int]) -> NDArray[np.uint8]:
        """Ticket numbers, uint8 (n,), of users at rounds."""
        found = bytearray()
        for user, number in zip(users, rounds, strict=True):
            hasher = self._keyed.copy()
            # The round has a fixed length, so no two pairs give the same bytes.
            hasher.update(number.to_bytes(8, "little") + user)
            found += hasher.digest()
        return np.frombuffer(bytes(found), dtype=np.uint8)


class Serving:
    """A model, applied version by version, and the answers that it gives."""

    def __init__(self, grid: Grid, key: Key) -> None:
        """Before the first version; nothing can be answered yet."""
        self.version = -1
        self._grid = grid
        self._numbers = TicketNumbers(key)
        self._cells = np.zeros(0, dtype=np.int64)
        self._tickets = np.zeros((0, TICKETS), dtype=np.int64)
        self._counts = self._tickets
        self._index: CellIndex | None = None

    def apply(self, update: ModelUpdate) -> None:
        """Go on to the next version.

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
        self._tickets, self._counts = grown, counts
        if len(update.opened):
            self._cells = np.concatenate([self._cells, update.opened])
            self._index = CellIndex(self._grid, self._cells)
        self.version = update.version

    def choose(self, contexts: NDArray[np.floating], users: Sequence[bytes], rounds: Sequence[int]) -> Decisions:
        """Answer a batch; every row by itself, so batches of any size give the same answers.

        Args:
            contexts: (n, d), entries from 0 to 1.
            users: (n,) as bytes.
            rounds: (n,) of each user, from 0.

        Raises:
            PdapError: no version was applied yet, or a context that cannot be.
        """
        return self.answer(contexts, self._numbers(users, rounds))

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

    def _known(self) -> CellIndex:
        if self._index is None:
            raise PdapError("serving: expected a model, got none yet")
        return self._index
