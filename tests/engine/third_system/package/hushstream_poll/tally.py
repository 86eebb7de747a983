"""The tally: votes in clear come in, noised counts of closed windows go out, each with its debit."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.gathered import Gathered
from hushstream.engine.journal.chain import Identity
from hushstream.engine.noise.budget import ledger_fields
from hushstream.engine.noise.spending import Asked
from hushstream.engine.records import InputRecord, Output
from hushstream.engine.refusals import Refused
from hushstream.engine.releasing import ReleasingRole, releasing_state
from hushstream.engine.state.declared import Single, Table, integer, recent_ids
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.amounts import delta_to_bytes
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.privacy.noise import KeyedStream, checked_add, discrete_laplace, laplace_variance
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


class TallyMachine(ReleasingRole[str]):
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
        identity = Identity("tally", system.config.deployment, system.digest, ("journal-ballots", partition))
        super().__init__(system, identity, "TallyJournal", ("votes", partition), BALLOTS, key, ring, system.terms)
        self.window = 0
        self.open_since_ms = 0
        self.ballots: list[Ballot] = []
        self.known: BoundedMap[None] = BoundedMap(REMEMBERED_IDS)
        self.counted: dict[str, int] = {}
        """How many votes of each user counted, under a digest that an erasure leaves."""

    @property
    def expects(self) -> frozenset[str]:
        """See `ReleasingRole.expects`."""
        return frozenset({"Vote", "Forget", "Tick"})

    @property
    def draws_ahead(self) -> bool:
        """See `ReleasingRole.draws_ahead`: noise is named by the votes of its window."""
        return False

    @property
    def waits(self) -> bool:
        """See `ReleasingRole.waits`."""
        return bool(self.ballots)

    @property
    def open_ms(self) -> int | None:
        """See `ReleasingRole.open_ms`."""
        return self.system.config.open_ms

    def on_time(self, log_time_ms: int) -> None:
        """See `ReleasingRole.on_time`: a vote that comes late for its window joins it still."""

    def on_phase_end(self, fields: dict[str, Any], gathered: Gathered) -> None:
        """See `ReleasingRole.on_phase_end`: a poll has no phases."""
        raise Refused(Refusal.UNKNOWN_ORIGIN)

    def on_record(self, name: str, fields: dict[str, Any], record: InputRecord, gathered: Gathered) -> None:
        """See `ReleasingRole.on_record`: a vote, or the erasure of a user."""
        if name == "Forget":
            self.ballots = [ballot for ballot in self.ballots if ballot.user != fields["user"]]
            gathered.counts[Outcome.FORGOTTEN] += 1
            return
        ballot = Ballot(fields["vote_id"], fields["user"], fields["option"])
        if not 0 <= ballot.option < len(self.system.options):
            raise Refused(UNKNOWN_OPTION)
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

    def after(self, record: InputRecord) -> str | None:
        """See `ReleasingRole.after`."""
        if len(self.ballots) >= self.system.config.window_votes:
            return "votes"
        late = self.open_ms is not None and record.timestamp_ms - self.open_since_ms >= self.open_ms
        return "time" if late and self.ballots else None

    def settle(self, gathered: Gathered) -> None:
        """See `ReleasingRole.settle`."""
        for vote_id in gathered.ids:
            self.known.put(vote_id, None)

    def place_of(self, closed: str | None) -> int:
        """See `ReleasingRole.place_of`: every window is charged for itself."""
        return self.window

    def close(self, closed: str, asked: Asked) -> tuple[dict[str, Any], tuple[Output, ...]]:
        """See `ReleasingRole.close`."""
        ballots = sorted(self.ballots, key=lambda ballot: ballot.vote_id)
        fields = {
            "window": self.window,
            "votes": len(ballots),
            "closed_by": closed,
            "parameters": json.dumps(dict(self.system.parameters), sort_keys=True),
        }
        outputs = () if asked.refused else self._outputs(ballots, asked)
        self.ballots, self.window = [], self.window + 1
        return fields, outputs

    def count_release(self, released: bool, gathered: Gathered) -> None:
        """See `ReleasingRole.count_release`."""
        gathered.counts[TALLY if released else Outcome.RELEASE_WITHHELD] += 1

    def open_noise(self) -> None:
        """See `ReleasingRole.open_noise`: nothing runs from one window to the next."""

    def redraw(self) -> None:
        """See `ReleasingRole.redraw`: the next window's noise is of the epoch's own nonce."""

    def rotated(self, released: bool) -> None:
        """See `ReleasingRole.rotated`."""

    def _voter(self, user: str) -> str:
        return hashlib.blake2b(user.encode(), digest_size=16, key=self.chain.genesis_nonce).hexdigest()

    def _outputs(self, ballots: list[Ballot], asked: Asked) -> tuple[Output, ...]:
        system, promise = self.system, self.system.guarantee
        place = (self.nonce, self.epoch.number, self.partition, self.window)
        content = self.key.digest("window-content", *(f"{one.vote_id} {one.option}".encode() for one in ballots))
        stream = KeyedStream(self.key, system.address(*place, content))
        exact = np.bincount([ballot.option for ballot in ballots], minlength=len(system.options)).astype(np.int64)
        sums = checked_add(exact, discrete_laplace(stream, *system.scale, len(system.options)))
        name = self.key.digest("tally-id", self.nonce, f"{self.partition} {self.window}".encode())
        as_stated = promise.private_as_stated and not self.key.reproducible
        tally = {
            "tally_id": name,
            "config_digest": system.digest,
            "votes": len(ballots),
            "sums": sums.astype("<i8").tobytes(),
            "variance": laplace_variance(*system.scale),
            "epsilon_micro": promise.epsilon_micro,
            "delta_units": delta_to_bytes(promise.delta_units),
            "private_as_stated": as_stated,
        }
        entry = ledger_fields(system.config.deployment, system.digest, name, asked.debit, as_stated)
        return (
            Output("tallies", 0, self.chain.encode("Tally", tally)),
            Output("spent-on-votes", self.partition, self.chain.encode("LedgerEntry", entry)),
        )
