"""The board: from noised counts to versions of the standing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from hushstream.engine.gathered import Gathered
from hushstream.engine.journal.chain import Identity
from hushstream.engine.publishing import PUBLISHING, PublishingRole
from hushstream.engine.records import InputRecord
from hushstream.engine.refusals import Refused
from hushstream.engine.state.declared import State, boolean, integer, rows
from hushstream.privacy.amounts import delta_to_bytes
from hushstream_poll.core import PollSystem
from hushstream_poll.topics import BOARD

MALFORMED_TALLY = "malformed_tally"
REPEATED_TALLY = "repeated_tally"


class BoardMachine(PublishingRole):
    """The one track of standings."""

    state = State(
        "a board's state", 1, "BoardState", PUBLISHING, sums=rows("<i8"), votes=integer(), as_stated=boolean()
    )
    floats: ClassVar[Mapping[str, str]] = {"shares": "<f8"}
    margin: ClassVar[float] = 1e-9
    system: PollSystem

    def __init__(self, system: PollSystem, track: int) -> None:
        """Bind to a deployment; ``track`` is 0."""
        identity = Identity("board", system.config.deployment, system.digest, ("standings", track))
        super().__init__(system, identity, "Standing", ("tallies", track), BOARD, origins=0)
        self.sums = np.zeros(len(system.options), dtype=np.int64)
        self.votes = 0
        self.as_stated = True

    @property
    def expects(self) -> frozenset[str]:
        """See `PublishingRole.expects`."""
        return frozenset({"Tally"})

    def on_record(self, name: str, fields: dict[str, Any], record: InputRecord, gathered: Gathered) -> bool:
        """See `PublishingRole.on_record`: every tally gives a version."""
        if len(fields["sums"]) != 8 * len(self.sums):
            raise Refused(MALFORMED_TALLY)
        if not self.first_time(fields["tally_id"].hex()):
            gathered.counts[REPEATED_TALLY] += 1
            return False
        self.sums = self.sums + np.frombuffer(fields["sums"], "<i8")
        self.votes += fields["votes"]
        self.as_stated &= fields["private_as_stated"]
        return True

    def on_phase_end(self) -> bool:
        """See `PublishingRole.on_phase_end`: a poll has no phases."""
        return False

    def version_fields(self) -> dict[str, Any]:
        """See `PublishingRole.version_fields`."""
        counts = np.maximum(self.sums, 1)
        shares = (counts / counts.sum()).astype("<f8").tobytes()
        promise = self.system.guarantee
        return {
            "shares": shares,
            "votes": self.votes,
            "epsilon_micro": promise.epsilon_micro,
            "delta_units": delta_to_bytes(promise.delta_units),
            "private_as_stated": self.as_stated,
            "digest": self._digester.digest("standing", shares),
        }
