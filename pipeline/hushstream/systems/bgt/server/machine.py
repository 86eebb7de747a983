"""The aggregator role: makes a version of the model and the next round from the noised sums of a round.

It makes a version at the end of a round, with the round's release, or without one if the budget is exhausted. In the
second case the model is that of kind A, and there is no further round. The version contains the next round. What the
role sends on `rounds` is made from the version, so each time it is sent again the bytes are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.devices.envelope import STATEMENT_RECORD
from hushstream.engine.devices.signing import Signer
from hushstream.engine.journal.chain import Rounding
from hushstream.engine.learner.models import aggregator_identity
from hushstream.engine.one_input import Gathered
from hushstream.engine.publishing import PUBLISHING, PublishingRole
from hushstream.engine.records import InputRecord, InputSlice, Output, Step
from hushstream.engine.refusals import Refused
from hushstream.engine.state.declared import FIXED, State, after, boolean, listed, raw
from hushstream.schemas import codec
from hushstream.systems.bgt.deployment import BgtSystem
from hushstream.systems.bgt.errors import BadRelease
from hushstream.systems.bgt.records import model_columns, parse_release, round_fields
from hushstream.systems.bgt.server.rounds import Server
from hushstream.systems.bgt.stated import Statement, content_of
from hushstream.systems.bgt.topics import SERVER_ZONE, STATEMENTS

_COLLECTORS = 1


_KINDS = frozenset({"RatingSums", "Seal"})


class BgtAggregatorMachine(PublishingRole):
    """The aggregator of the one model track."""

    state = State(
        "a rating aggregator's state",
        1,
        "RatingAggregatorState",
        PUBLISHING,
        as_stated=boolean(),
        taken=listed("bytes"),
        waiting=raw(),
        stopped=boolean(),
        server=after("_learn_again"),
    )
    rounding = Rounding(
        {"biases": "<f8", "factors": "<f8", "gains": "<f8", "edge": "<f8", "largest": "<f8"}, 1e-9, ("digest",)
    )
    derived: ClassVar[Mapping[str, str]] = {"_signer": FIXED}
    system: BgtSystem

    def __init__(self, system: BgtSystem, track: int, signer: Signer | None = None) -> None:
        """Bind to a deployment.

        Args:
            system: the deployment.
            track: 0, as there is one model track.
            signer: signs models, where devices take them.
        """
        identity = aggregator_identity(system, track)
        super().__init__(system, identity, "RatingModel", ("releases", track), SERVER_ZONE, _COLLECTORS)
        self._signer = signer
        self.as_stated = True
        self.server = Server(system.config, system.features)
        self.taken: list[bytes] = []
        """The releases that the model is made of; the rest of the server's state follows from them."""
        self.waiting = b""
        """The release of the round that has not ended yet; empty while there is none."""
        self.stopped = False

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: a version for each round, and with it the next round."""
        gathered = Gathered(self)
        for record, name, fields, reason in self.read(slices, _KINDS):
            version_follows = False
            try:
                if reason:
                    raise Refused(reason)
                if name == "Seal":
                    version_follows = self.ends_phase(fields, gathered) and self._round_ended()
                else:
                    self._on_release(fields, record, gathered)
            except Refused as error:
                gathered.refuse(error.reason, record)
            if version_follows:
                announced = partial(self._announced, record.timestamp_ms)
                self.publish(record.offset + 1, self._version(), gathered, announced)
        return self.finished(slices, gathered)

    def _on_release(self, fields: dict[str, Any], record: InputRecord, gathered: Gathered) -> None:
        """Keep a release until its round ends."""
        if fields["release_id"].hex() in self.known:
            gathered.counts[Outcome.REPEATED_RELEASE] += 1
            return
        asked = self.server.asked
        try:
            if asked is None or self.waiting:
                raise BadRelease("release: expected one release of each round, got another")
            parse_release(fields, asked, self.system.config)
        except BadRelease:
            raise Refused(Refusal.MALFORMED_RELEASE) from None
        self.first_time(fields["release_id"].hex())
        self.waiting = record.value
        self.as_stated = self.as_stated and fields["private_as_stated"]
        gathered.counts[Outcome.RELEASE] += 1

    def _round_ended(self) -> bool:
        """Learn from the round's release, if there is one; returns whether a version follows."""
        if self.server.asked is None:
            return False
        if self.waiting:
            self._learn(self.waiting)
            self.waiting = b""
        else:
            self._stop()
        return True

    def _version(self) -> dict[str, Any]:
        """The fields of the next version without head and number."""
        server, columns = self.server, model_columns(self.server.model)
        asked = round_fields(server.asked, self.version + 1, self.system.digest)
        spectrum = server.spectrum
        return {
            **columns,
            "round": len(self.taken),
            "next_kind": asked["kind"],
            "top": asked["top"],
            "gains": asked["gains"],
            "edge": 0.0 if spectrum is None else float(spectrum.edge),
            "largest": b"" if spectrum is None else np.asarray(spectrum.largest).astype("<f8").tobytes(),
            **self.system.stated[self.as_stated],
            "digest": self.chain.digester.digest("model", columns["biases"], columns["factors"]),
        }

    def _announced(self, now_ms: int, fields: Mapping[str, Any]) -> tuple[Output, ...]:
        """The outputs of a version, from its journal record alone: the next round, and the signed model for devices."""
        items = self.system.config.items
        asked = {
            "config_digest": self.system.digest,
            "number": fields["version"],
            "kind": fields["next_kind"],
            "kept": len(fields["factors"]) // (8 * items) if fields["next_kind"] == "factors" else 0,
            "top": fields["top"],
            "gains": fields["gains"],
        }
        announced = Output("rounds", self.journal[1], self.chain.encode("RatingRound", asked))
        if self._signer is None:
            return (announced,)
        content = content_of(fields)
        signed = _stated(self.system, fields, content, now_ms).signed(self._signer, self.system.digest, content)
        return (announced, Output(STATEMENTS.name, self.journal[1], self.chain.encode(STATEMENT_RECORD, signed)))

    def _learn_again(self) -> None:
        """Make the model of all releases that were taken."""
        self.server = Server(self.system.config, self.system.features)
        for release in self.taken:
            self._give_to_server(release)
        if self.stopped:
            self.server.stop()

    def _learn(self, value: bytes) -> None:
        self._give_to_server(value)
        self.taken.append(value)

    def _give_to_server(self, value: bytes) -> None:
        asked = self.server.asked
        assert asked is not None
        self.server.take(parse_release(codec.decode(value)[1], asked, self.system.config))

    def _stop(self) -> None:
        self.server.stop()
        self.stopped = True


def _stated(system: BgtSystem, fields: Mapping[str, Any], content: bytes, now_ms: int) -> Statement:
    """The statement of a version.

    Args:
        system: the deployment.
        fields: of the version's `RatingModel`.
        content: see `content_of`.
        now_ms: log time of the record that the version followed from.
    """
    config = system.config
    return Statement(
        deployment=config.deployment,
        configuration=system.digest.hex(),
        version=fields["version"],
        issued_ms=now_ms,
        expires_ms=now_ms + round(config.model.valid_seconds * 1000),
        epsilon_micro=fields["epsilon_micro"],
        delta_units=str(int.from_bytes(fields["delta_units"], "big")),
        private_as_stated=fields["private_as_stated"],
        content_sha256=hashlib.sha256(content).hexdigest(),
        content_bytes=len(content),
        kind=fields["next_kind"],
        factors=len(fields["factors"]) // (8 * config.items),
        top=len(fields["top"]) // 4,
    )
