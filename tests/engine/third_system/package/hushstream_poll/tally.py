"""The tally: votes in clear come in, noised counts of closed windows go out, each with its debit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hushstream.engine.batch import Batch
from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.journal.chain import Identity
from hushstream.engine.noise.spending import ChargeResult
from hushstream.engine.one_input import ReleasingRole, releasing_state
from hushstream.engine.records import InputRecord, InputSlice, Output, Step
from hushstream.engine.state.declared import Single, Table, integer, recent_ids
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import KeyedStream, checked_add, discrete_laplace, laplace_variance
from hushstream.schemas import codec
from hushstream_poll.core import PollSystem
from hushstream_poll.topics import BALLOTS

UNKNOWN_OPTION = "unknown_option"
VOTE, REPEATED_VOTE, TALLY = "vote", "repeated_vote", "tally"
REMEMBERED_IDS = 100_000


@dataclass(frozen=True, slots=True)
class Ballot:
    """A vote that waits for its window's end."""

    vote_id: str
    user: str
    option: int


class TallyMachine(ReleasingRole):
    """The tally on one partition of votes; a window closes by its votes, or by log time."""

    state = releasing_state(
        "a tally's state",
        "TallyState",
        window=integer(),
        open_since_ms=integer(),
        ballots=Table(
            Ballot, {"vote_ids": "string", "users": "string", "options": "int"}, ("vote_id", "user", "option")
        ),
        known=recent_ids(),
        counted=Single({"type": "map", "values": "long"}, dict, lambda value, _: dict(value)),
    )
    system: PollSystem

    def __init__(self, system: PollSystem, partition: int, key: Key, ring: KeyRing | None = None) -> None:
        """Bind to a deployment, a home partition, the key that its journal begins with, and the zone's key file."""
        identity = Identity.of(system, "tally", "journal-ballots", partition)
        super().__init__(system, identity, "TallyJournal", ("votes", partition), BALLOTS, key, ring)
        self.window = 0
        self.open_since_ms = 0
        self.ballots: list[Ballot] = []
        self.known: BoundedMap[None] = BoundedMap(REMEMBERED_IDS)
        self.counted: dict[str, int] = {}
        """How many votes of each user counted, under a digest that an erasure leaves."""

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: a window closes by its votes, or by log time."""
        batch = Batch(self)
        for record, name, fields, reason in self.read(slices, frozenset({"Vote", "Forget", "Tick"})):
            if reason:
                batch.refuse(reason, record)
            elif name == "Tick":
                batch.counts[Outcome.TICK] += 1
            elif name == "Forget":
                self.ballots = [ballot for ballot in self.ballots if ballot.user != fields["user"]]
                batch.counts[Outcome.FORGOTTEN] += 1
            else:
                self._vote(Ballot(fields["vote_id"], fields["user"], fields["option"]), record, batch)
            closed = self._closed_by(record)
            if closed:
                self._release(closed, record.offset + 1, batch)
        self.require_followed()
        self._settle(batch)
        return self.finished(slices, batch)

    def _vote(self, ballot: Ballot, record: InputRecord, batch: Batch) -> None:
        if not 0 <= ballot.option < len(self.system.options):
            batch.refuse(UNKNOWN_OPTION, record)
            return
        if ballot.vote_id in self.known or ballot.vote_id in batch.ids:
            batch.counts[REPEATED_VOTE] += 1
            return
        batch.ids[ballot.vote_id] = None
        voter = self._voter(ballot.user)
        if self.counted.get(voter, 0) >= self.system.config.votes_per_user:
            batch.counts[Outcome.ALLOWANCE_SPENT] += 1
            return
        if not self.ballots:
            self.open_since_ms = record.timestamp_ms
        self.counted[voter] = self.counted.get(voter, 0) + 1
        self.ballots.append(ballot)
        batch.counts[VOTE] += 1

    def _closed_by(self, record: InputRecord) -> str:
        if len(self.ballots) >= self.system.config.window_votes:
            return "votes"
        open_ms = self.system.config.open_ms
        late = open_ms is not None and record.timestamp_ms - self.open_since_ms >= open_ms
        return "time" if late and self.ballots else ""

    def _settle(self, batch: Batch) -> None:
        for vote_id in batch.ids:
            self.known.put(vote_id, None)
        batch.ids.clear()

    def _release(self, closed_by: str, high: int, batch: Batch) -> None:
        """Charge the window, draw its noise if the price fits, and journal it."""
        ballots = sorted(self.ballots, key=lambda ballot: ballot.vote_id)
        batch.release(partial(self._draw, ballots, batch), self.window, TALLY)
        fields = {
            "window": self.window,
            "votes": len(ballots),
            "closed_by": closed_by,
            "parameters": json.dumps(dict(self.system.parameters), sort_keys=True),
        }
        self.end(high, fields, batch)
        self._settle(batch)
        self.ballots, self.window = [], self.window + 1

    @property
    def charge(self) -> int:
        """See `BatchMachine.charge`: every window is charged for itself."""
        return self.window

    def tick(self, idle_ms: int) -> Output | None:
        """See `Machine.tick`."""
        open_ms = self.system.config.open_ms
        return self.tick_record() if open_ms is not None and self.ballots and idle_ms >= open_ms else None

    def _voter(self, user: str) -> str:
        return hashlib.blake2b(user.encode(), digest_size=16, key=self.chain.genesis_nonce).hexdigest()

    def _draw(self, ballots: list[Ballot], batch: Batch, charge: ChargeResult) -> tuple[Output, ...]:
        if charge.refused:
            return ()
        system, key, nonce = self.system, self.releases.key, self.releases.nonce
        place = (nonce, self.releases.epoch.number, self.partition, self.window)
        content = key.digest("window-content", *(f"{one.vote_id} {one.option}".encode() for one in ballots))
        stream = KeyedStream(key, system.address(*place, content))
        exact = np.bincount([ballot.option for ballot in ballots], minlength=len(system.options)).astype(np.int64)
        sums = checked_add(exact, discrete_laplace(stream, *system.scale, len(system.options)))
        name = key.digest("tally-id", nonce, f"{self.partition} {self.window}".encode())
        tally = {
            "tally_id": name,
            "config_digest": system.digest,
            "votes": len(ballots),
            "sums": sums.astype("<i8").tobytes(),
            "variance": laplace_variance(*system.scale),
            **system.stated[system.as_stated(key.reproducible)],
        }
        spent = batch.ledger_entry(name, charge, "spent-on-votes")
        return Output("tallies", 0, codec.encode("Tally", tally)), spent
