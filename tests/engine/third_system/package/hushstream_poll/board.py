"""The board: from noised counts to versions of the standing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hushstream.engine.batch import Batch
from hushstream.engine.journal.chain import Identity, Rounding
from hushstream.engine.one_input import PUBLISHING, PublishingRole
from hushstream.engine.records import InputSlice, Step
from hushstream.engine.state.declared import State, boolean, integer, rows
from hushstream_poll.core import PollSystem
from hushstream_poll.topics import BOARD

MALFORMED_TALLY = "malformed_tally"
REPEATED_TALLY = "repeated_tally"


class BoardMachine(PublishingRole):
    """The one track of standings."""

    state = State("a board's state", "BoardState", PUBLISHING, sums=rows("<i8"), votes=integer(), as_stated=boolean())
    rounding = Rounding({"shares": "<f8"}, 1e-9, ("digest",))
    system: PollSystem

    def __init__(self, system: PollSystem, track: int) -> None:
        """Bind to a deployment; ``track`` is 0."""
        identity = Identity.of(system, "board", "standings", track)
        super().__init__(system, identity, "Standing", ("tallies", track), BOARD)
        self.sums = np.zeros(len(system.options), dtype=np.int64)
        self.votes = 0
        self.as_stated = True

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: every tally gives a version."""
        batch = Batch(self)
        for record, _, fields, reason in self.read(slices, frozenset({"Tally"})):
            if reason or len(fields["sums"]) != 8 * len(self.sums):
                batch.refuse(reason or MALFORMED_TALLY, record)
            elif not self.first_time(fields["tally_id"].hex()):
                batch.counts[REPEATED_TALLY] += 1
            else:
                self.sums = self.sums + np.frombuffer(fields["sums"], "<i8")
                self.votes += fields["votes"]
                self.as_stated &= fields["private_as_stated"]
                self.publish(record.offset + 1, self._standing(), batch)
        return self.finished(slices, batch)

    def _standing(self) -> dict[str, Any]:
        counts = np.maximum(self.sums, 1)
        shares = (counts / counts.sum()).astype("<f8").tobytes()
        return {
            "shares": shares,
            "votes": self.votes,
            **self.system.stated[self.as_stated],
            "digest": self.chain.digester.digest("standing", shares),
        }
