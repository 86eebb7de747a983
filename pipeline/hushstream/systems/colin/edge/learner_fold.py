"""One batch of a collaborative learner: what models, clicks and contexts do to it, and what follows from them.

See `hushstream.engine.deciding_fold` for the order in which they do, and for what a cut between batches changes.
"""

from __future__ import annotations

import struct

import numpy as np

from hushstream.engine.awaiting import AwaitingFold
from hushstream.engine.deciding_fold import CERTAIN, MODEL
from hushstream.engine.intake import DecodedContexts, eligible_mask
from hushstream.engine.machine import Output
from hushstream.engine.models import ModelReader, OnChain
from hushstream.engine.outcomes import Outcome, Refusal
from hushstream.feedback.memory import PastDecision
from hushstream.systems.colin.deployment import TRACK
from hushstream.systems.colin.edge.learner_base import CollaborativeLearner, OpenRow
from hushstream.systems.colin.edge.models import decode_parameters
from hushstream.systems.colin.rows import EVENT, FORGOTTEN, MAX_ROWS_A_RECORD, Rows, sum_of_names


class CollaborativeFold(AwaitingFold[CollaborativeLearner, OpenRow]):
    """See `AwaitingFold`."""

    _machine: CollaborativeLearner

    @property
    def _policy(self) -> str:
        return self._machine.system.config.learner.algorithm

    def _adopt(self, reader: ModelReader, record: OnChain) -> None:
        self._machine.shared = decode_parameters(self._machine.system, record.fields)

    def _past_of(self, row: OpenRow) -> PastDecision:
        return PastDecision(self._machine.system.graph.users[row.node], row.arm, CERTAIN, row.model_version)

    def _objection(self, decoded: DecodedContexts, row: int) -> Refusal | None:
        columns = decoded.columns
        stranger = self._stranger(columns.users[row])
        if stranger is not None:
            return stranger
        if columns.tracks[row] != TRACK:
            return Refusal.UNKNOWN_TRACK
        return self._late_click(columns.after_clicks[row]) or self._bad_baseline(decoded, row)

    def _stranger(self, user: str) -> Refusal | None:
        machine = self._machine
        if user not in machine.system.graph.index:
            return Refusal.UNKNOWN_USER
        return Refusal.FOREIGN_USER if user in machine.foreign else None

    def _decide(self, decoded: DecodedContexts, row: int) -> None:
        machine, columns = self._machine, decoded.columns
        system = machine.system
        event_id, user = columns.event_ids[row], columns.users[row]
        node = system.graph.index[user]
        features = columns.contexts[row].reshape(machine.arms, -1)
        scores = machine.shared.scores(node, features.astype(np.float64), system.alpha)
        if columns.eligible[row]:
            scores[~eligible_mask(columns.eligible[row], machine.arms)] = -np.inf
        past = PastDecision(user, int(np.argmax(scores)), CERTAIN, machine.shared.version)
        if self._journaled is not None:
            best = scores[past.arm]
            journaled, _ = self._as_journaled(past, self._journaled, lambda arm: float(best - scores[arm]))
            past = past._replace(arm=journaled.arm)
        arm = past.arm
        machine.past.put(event_id, past)
        if machine.taken[node] != FORGOTTEN:
            waiting = OpenRow(machine.now_ms, node, arm, machine.shared.version, features[arm].copy())
            self._await(event_id, waiting)
        self._answer(event_id, past, MODEL)
        self.counts[Outcome.DECIDED] += 1
        if machine.early:
            self._claim(event_id)

    # Phase ends, and rows that leave.

    def _close_phase(self, phase: int) -> None:
        machine = self._machine
        fields = {
            "phase": phase,
            "origin": machine.partition,
            "config_digest": machine.system.digest,
            "after_click": -1,
        }
        topic = "rewards" if machine.noised_sums is None else "releases"
        self.releases.append(Output(topic, 0, machine.chain.encode("Seal", fields)))

    def _give_up(self, user: str) -> None:
        """Drop a user's open rows and sums; they are answered as before, and nothing is learned from them again."""
        machine = self._machine
        node = machine.system.graph.index.get(user)
        if node is None:
            return
        self._drop_rows(user)
        machine.taken[node] = FORGOTTEN
        if machine.noised_sums is not None:
            machine.noised_sums.erase(node)
            return
        fields = {"node": node, "config_digest": machine.system.digest}
        self.releases.append(Output("rewards", 0, machine.chain.encode("Erasure", fields)))

    def _send(self, phase: int = 0) -> None:
        """Rows that have settled go to the counter in clear, or into the counters of this role."""
        for first in range(0, len(self._settled), MAX_ROWS_A_RECORD):
            names, part = zip(*self._settled[first : first + MAX_ROWS_A_RECORD], strict=True)
            rows = Rows(
                np.array([row.node for row in part], dtype=np.int32),
                np.array([row.features for row in part], dtype=np.float32),
                np.array([row.reward or 0.0 for row in part], dtype=np.float64),
                np.array([self._machine.row_name(event_id) for event_id in names], dtype=EVENT),
            )
            if self._machine.noised_sums is None:
                self._send_clear(rows)
            else:
                self._send_noised(rows)
        self._settled.clear()

    def _send_clear(self, rows: Rows) -> None:
        machine = self._machine
        fields = {
            # A sum over the rows: what it names does not depend on how they are cut into records.
            "batch_id": sum_of_names(rows.events),
            "config_digest": machine.system.digest,
            "nodes": rows.nodes.astype("<i4").tobytes(),
            "contexts": rows.features.astype("<f4").tobytes(),
            "rewards": rows.rewards.astype("<f8").tobytes(),
        }
        self.releases.append(Output("rewards", 0, machine.chain.encode("Rewards", fields)))
        self._sent += len(rows)

    def _send_noised(self, rows: Rows) -> None:
        machine = self._machine
        allowed = rows.within(machine.taken, machine.system.config.release.rewards_per_user)
        if len(allowed) < len(rows):
            self.counts[Outcome.ALLOWANCE_SPENT] += len(rows) - len(allowed)
        if not len(allowed):
            return
        asked = self._ask(machine.spending, machine.charge())
        if asked.refused:
            return
        noised_sums, ordered = machine.noised_sums, Rows.joined([allowed])
        assert noised_sums is not None
        noised_sums.add(ordered)
        machine.leaf += 1
        release_id = self._release_id()
        reproducible = machine.key.reproducible
        record = machine.system.release_record(
            noised_sums, ordered, release_id, machine.leaf, machine.epoch.number, reproducible
        )
        self.releases.append(Output("releases", 0, machine.chain.encode("Release", record)))
        if asked.opens:
            entry = machine.system.ledger_entry(release_id, asked.debit, machine.key.reproducible)
            self.releases.append(Output("ledger", machine.partition, machine.chain.encode("LedgerEntry", entry)))
        self._sent += len(allowed)
        self.counts[Outcome.RELEASE] += 1

    def _release_id(self) -> bytes:
        machine = self._machine
        place = struct.pack("<qq", machine.partition, machine.records)
        machine.records += 1
        return machine.key.digest("release-id", machine.nonce, place)
