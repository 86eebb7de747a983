"""The aggregator role of P-DAP: makes versions of tickets from released blocks and public arrivals.

Each release of a window that a count closed gives one version. Releases at a phase end wait until all counters have
ended the phase, and are taken in the order of their counters. So the version does not depend on the order in which
counters arrive. Changes of the catalogue that arrive together give one version: a version makes all tickets anew, and
a thousand items may come at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from hushstream.engine.batch import Batch, Refused
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.learner.model_parts import aggregator_identity
from hushstream.engine.one_input import PHASE_ENDS, PUBLISHING, PhaseEnds, PublishingRole, Read
from hushstream.engine.records import InputRecord, InputSlice, Step
from hushstream.engine.state.declared import Flat, State, boolean, listed
from hushstream.schemas import codec
from hushstream.schemas.rows import Reason
from hushstream.systems.pdap.algorithm.aggregate import AGGREGATE, Aggregate, Release
from hushstream.systems.pdap.cells import PdapError
from hushstream.systems.pdap.deployment import ARM_CHANGED, TRACK, PdapSystem
from hushstream.systems.pdap.promise import SERVER_ZONE
from hushstream.systems.pdap.records import model_fields, parse_part, whole_release

_KINDS = frozenset({"BlockRelease", "ArmChange", "Seal"})


class PdapAggregatorMachine(PublishingRole):
    """The aggregator of the one model track."""

    state = State(
        "a P-DAP aggregator's state",
        "PdapAggregatorState",
        PUBLISHING,
        phase_ends=Flat(PHASE_ENDS),
        aggregate=Flat(AGGREGATE),
        as_stated=boolean(),
        waiting=listed("bytes"),
    )
    system: PdapSystem

    def __init__(self, system: PdapSystem, track: int) -> None:
        """Bind to a deployment; ``track`` is 0."""
        identity = aggregator_identity(system, track)
        super().__init__(system, identity, "TicketModel", ("releases", track), SERVER_ZONE)
        self.phase_ends = PhaseEnds(system.config.counters)
        self.as_stated = True
        self.aggregate = Aggregate(system.config)
        # The first version is not published: every reader computes it from the configuration.
        self.aggregate.publish()
        self.waiting: list[bytes] = []
        """Records of releases that are not folded yet: incomplete ones, and those that wait for a phase end."""

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: a version for each release that a count closed, run of changes of items, and phase."""
        batch, due = Batch(self), False
        read = self.read(slices, _KINDS)
        for place, one in enumerate(read):
            due |= bool(self.accept(one, batch, self._take))
            # Changes that arrive together give one version. The next change is at most two records ahead: it comes
            # right behind the release of the window that it closed.
            if due and all(other.name != "ArmChange" for other in read[place + 1 : place + 3]):
                self.publish(one.record.offset + 1, self._version(), batch)
                due = False
        return self.finished(slices, batch)

    def _take(self, one: Read, batch: Batch) -> bool:
        if one.name == "Seal":
            return self.ends_phase(one.fields, batch) and self._phase_ended()
        if one.name == "ArmChange":
            return self._on_change(one.fields, batch)
        return self._on_release(one.fields, one.record, batch)

    def _on_release(self, fields: dict[str, Any], record: InputRecord, batch: Batch) -> bool:
        release_id = fields["release_id"].hex()
        if release_id in self.known:
            batch.counts[Outcome.REPEATED_RELEASE] += 1
            return False
        try:
            self._require(fields)
        except PdapError:
            raise Refused(Refusal.MALFORMED_RELEASE) from None
        self.known.put(release_id, None)
        self.waiting.append(record.value)
        self.as_stated = self.as_stated and fields["private_as_stated"]
        batch.counts[Outcome.RELEASE] += 1
        if fields["closed_by"] != "count" or fields["part"] + 1 < fields["parts"]:
            return False
        self._fold_due(lambda found: found["counter"] == fields["counter"] and found["window"] <= fields["window"])
        return True

    def _on_change(self, fields: dict[str, Any], batch: Batch) -> bool:
        """Take a change of an arm.

        A version is due at once, so that a retired arm is not shown until the next release.
        """
        try:
            changed = self.aggregate.change(fields["arm"], offered=fields["offered"])
        except PdapError:
            raise Refused(Reason.UNKNOWN_ARM) from None
        batch.counts[ARM_CHANGED] += 1
        return changed

    def _phase_ended(self) -> bool:
        """Take the waiting releases, after all counters have ended the phase."""
        self._fold_due(lambda found: found["phase"] <= self.phase_ends.complete)
        return True

    def _version(self) -> dict[str, Any]:
        """The fields of the next version without head and number."""
        columns = model_fields(self.aggregate.publish(), self.system.config.arms)
        return {
            "line": TRACK,
            **columns,
            "observations": self.aggregate.decisions,
            **self.system.stated[self.as_stated],
            "digest": self.chain.digester.digest(
                "model", columns["opened"], columns["changed"], columns["tickets"], columns["shares"]
            ),
        }

    def _require(self, fields: Mapping[str, Any]) -> None:
        """Refuse a release that is invalid in this deployment.

        Raises:
            PdapError: says what was expected and what was given.
        """
        config, found = self.system.config, parse_part(fields)
        self.aggregate.grid.require(found.blocks.cells)
        self.aggregate.grid.require(found.arrived)
        arms = found.blocks.arms
        known = not len(arms) or (arms.min() >= 0 and arms.max() < config.arms)
        if not known or not 0 <= fields["counter"] < config.counters:
            raise PdapError("release: expected arms and a counter of this deployment, got others")

    def _fold_due(self, due: Callable[[Mapping[str, Any]], bool]) -> None:
        """Fold the releases that are due, in the order of their counters and windows."""
        records = [(codec.decode(value)[1], value) for value in self.waiting]
        self.waiting = [value for fields, value in records if not due(fields)]
        whole: dict[tuple[int, int], list[Release]] = {}
        for fields, _ in records:
            if due(fields):
                whole.setdefault((fields["counter"], fields["window"]), []).append(parse_part(fields))
        for (counter, _), parts in sorted(whole.items(), key=itemgetter(0)):
            self.aggregate.fold(whole_release(parts), counter)
