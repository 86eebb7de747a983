"""The aggregator role: from crowds to versions of a model, one machine per model track (server zone).

The private track reads crowds: every crowd gives one new version, made from the running totals of all of them.
The non-private track reads raw interactions, exists for public data only, and publishes when a phase
ends. The models topic is the journal; what is in it is public, so its digests need no key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.gathered import Gathered
from hushstream.engine.learner.models import aggregator_identity
from hushstream.engine.publishing import PUBLISHING, PublishingRole
from hushstream.engine.records import InputRecord
from hushstream.engine.refusals import Refused
from hushstream.engine.state.declared import FIXED, State, own_part
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.deployment import TRACKS, P2BSystem
from hushstream.systems.p2b.models import PrivateTotals, RawTotals
from hushstream.systems.p2b.topics import SERVER_ZONE


class AggregatorMachine(PublishingRole):
    """The aggregator of one model track."""

    state = State("an aggregator's state", 2, "AggregatorState", PUBLISHING, totals=own_part())
    derived: ClassVar[Mapping[str, str]] = {"track": FIXED}
    floats: ClassVar[Mapping[str, str]] = {"gram": "<f8", "moment": "<f8", "observations": "<f8"}
    margin: ClassVar[float] = 1e-9
    system: P2BSystem

    def __init__(self, system: P2BSystem, track: int) -> None:
        """Bind to a deployment and a track (0 private, 1 non-private).

        Raises:
            HushstreamError: the deployment has no such track; the non-private one exists for public data only.
        """
        if not 0 <= track < system.track_count:
            raise HushstreamError(f"model track: expected a number below {system.track_count}, got {track}")
        source = ("crowds" if track == 0 else "interactions", track)
        origins = system.config.partitions.learner
        super().__init__(system, aggregator_identity(system, track), "Model", source, SERVER_ZONE, origins)
        self.track = track
        self.totals: PrivateTotals | RawTotals = PrivateTotals(system) if track == 0 else RawTotals(system)

    @property
    def expects(self) -> frozenset[str]:
        return frozenset({"Crowd"}) if self.track == 0 else frozenset({"Interactions", "Seal"})

    def on_record(self, name: str, fields: dict[str, Any], record: InputRecord, gathered: Gathered) -> bool:
        if name == "Crowd":
            return self._crowd(fields, gathered)
        self._interactions(fields, gathered)
        return False

    def on_phase_end(self) -> bool:
        """See `PublishingRole.on_phase_end`: the non-private track publishes."""
        return True

    def version_fields(self) -> dict[str, Any]:
        model = self.totals.model()
        gram, moment = model.gram.astype("<f8").tobytes(), model.moment.astype("<f8").tobytes()
        return {
            "line": TRACKS[self.track],
            "dimension": self.system.model_dimension,
            "arms": self.system.config.arms,
            "features": model.features,
            "gram": gram,
            "moment": moment,
            "observations": model.observations,
            "epsilon_micro": model.epsilon_micro,
            "delta_units": model.delta_units,
            "private_as_stated": model.private_as_stated,
            "digest": self._digester.digest("model", gram, moment),
        }

    def _crowd(self, fields: dict[str, Any], gathered: Gathered) -> bool:
        window_id = fields["window_id"].hex()
        if window_id in self.known:
            gathered.counts[Outcome.REPEATED_CROWD] += 1
            return False
        assert isinstance(self.totals, PrivateTotals)
        if not self.totals.add(fields):
            raise Refused(Refusal.OTHER_CONFIGURATION)
        self.known.put(window_id, None)
        gathered.counts[Outcome.CROWD] += 1
        return True

    def _interactions(self, fields: dict[str, Any], gathered: Gathered) -> None:
        assert isinstance(self.totals, RawTotals)
        batch_id = fields["batch_id"].hex()
        if batch_id in self.known:
            gathered.counts[Outcome.REPEATED_INTERACTIONS] += 1
        elif not self.totals.add(fields):
            raise Refused(Refusal.MALFORMED_INTERACTIONS)
        elif batch_id:
            self.known.put(batch_id, None)
