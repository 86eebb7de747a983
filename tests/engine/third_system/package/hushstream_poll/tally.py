"""The tally: votes in clear come in, noised counts of closed windows go out, each with its debit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.journal.chain import Identity
from hushstream.engine.noise.spending import ChargeResult
from hushstream.engine.one_input import Gathered
from hushstream.engine.records import InputRecord, InputSlice, Output, Step
from hushstream.engine.releasing import ReleasingRole, releasing_state
from hushstream.engine.state.declared import Single, Table, integer, recent_ids
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import KeyedStream, checked_add, discrete_laplace, laplace_variance
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
        1,
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
        gathered = Gathered(self)
        for record, name, fields, reason in self.read(slices, frozenset({"Vote", "Forget", "Tick"})):
            if reason:
                gathered.refuse(reason, record)
            elif name == "Tick":
                gathered.counts[Outcome.TICK] += 1
            elif name == "Forget":
                self.ballots = [ballot for ballot in self.ballots if ballot.user != fields["user"]]
                gathered.counts[Outcome.FORGOTTEN] += 1
            else:
                self._vote(Ballot(fields["vote_id"], fields["user"], fields["option"]), record, gathered)
            closed = self._closed_by(record)
            if closed:
                self._release(closed, record.offset + 1, gathered)
        self.releases.require_followed()
        self._settle(gathered)
        return self.finished(slices, gathered)

    def _vote(self, ballot: Ballot, record: InputRecord, gathered: Gathered) -> None:
        if not 0 <= ballot.option < len(self.system.options):
            gathered.refuse(UNKNOWN_OPTION, record)
            return
        if ballot.vote_id in self.known or ballot.vote_id in gathered.ids:
            gathered.counts[REPEATED_VOTE] += 1
            return
        gathered.ids[ballot.vote_id] = None
        voter = self._voter(ballot.user)
        if self.counted.get(voter, 0) >= self.system.config.votes_per_user:
            gathered.counts[Outcome.ALLOWANCE_SPENT] += 1
            return
        if not self.ballots:
            self.open_since_ms = record.timestamp_ms
        self.counted[voter] = self.counted.get(voter, 0) + 1
        self.ballots.append(ballot)
        gathered.counts[VOTE] += 1

    def _closed_by(self, record: InputRecord) -> str:
        if len(self.ballots) >= self.system.config.window_votes:
            return "votes"
        open_ms = self.system.config.open_ms
        late = open_ms is not None and record.timestamp_ms - self.open_since_ms >= open_ms
        return "time" if late and self.ballots else ""

    def _settle(self, gathered: Gathered) -> None:
        for vote_id in gathered.ids:
            self.known.put(vote_id, None)
        gathered.ids.clear()

    def _release(self, closed_by: str, high: int, gathered: Gathered) -> None:
        """Charge the window, draw its noise if the price fits, and journal it."""
        self.releases.opens_epoch()
        charge_result = self.releases.try_charge(self.window)
        ballots = sorted(self.ballots, key=lambda ballot: ballot.vote_id)
        outputs = () if charge_result.refused else self._outputs(ballots, charge_result)
        fields = {
            "window": self.window,
            "votes": len(ballots),
            "closed_by": closed_by,
            "parameters": json.dumps(dict(self.system.parameters), sort_keys=True),
        }
        self.released(high, fields, outputs, charge_result, gathered, TALLY)
        self._settle(gathered)
        self.ballots, self.window = [], self.window + 1

    @property
    def charge(self) -> int:
        """See `ReleasingRole.charge`: every window is charged for itself."""
        return self.window

    @property
    def draws_ahead(self) -> bool:
        """See `ReleasingRole.draws_ahead`: noise is named by the votes of its window."""
        return False

    def tick(self, idle_ms: int) -> Output | None:
        """See `Ticks.tick`."""
        open_ms = self.system.config.open_ms
        return self.tick_record() if open_ms is not None and self.ballots and idle_ms >= open_ms else None

    def _voter(self, user: str) -> str:
        return hashlib.blake2b(user.encode(), digest_size=16, key=self.chain.genesis_nonce).hexdigest()

    def _outputs(self, ballots: list[Ballot], charge_result: ChargeResult) -> tuple[Output, ...]:
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
        spent = self.debited(name, charge_result, "spent-on-votes")
        return Output("tallies", 0, self.chain.encode("Tally", tally)), spent
