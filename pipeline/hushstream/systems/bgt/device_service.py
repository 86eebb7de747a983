"""What a gateway needs to take the slots of BGTplanner from devices.

A slot counts only in the open round. So the gateway writes the record that opens the round before the round's slots:
otherwise the collector refuses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hushstream.engine.devices.envelope import STATEMENT_RECORD, ModelBody
from hushstream.engine.devices.travelling import body_bytes, period_of
from hushstream.schemas import codec
from hushstream.systems.bgt.deployment import BgtSystem
from hushstream.systems.bgt.rounds import Round, first_round
from hushstream.systems.bgt.slots import slot_bytes
from hushstream.systems.bgt.stated import signed_round


class RatingDeviceService:
    """See `DeviceService`."""

    topic, partitions = "updates", 1

    def __init__(self, system: BgtSystem, agreement: bytes, schema_generation: int) -> None:
        """Bind to a deployment whose slots devices make.

        Args:
            system: the deployment.
            agreement: what its devices agree to.
            schema_generation: in which the record that opens a round is written.
        """
        self.digest, self._system, self._generation = system.digest, system, schema_generation
        self.body_bytes, self.agreement = body_bytes(slot_bytes(system.config)), agreement
        self.opening: bytes | None = None
        self.asked: Round | None = first_round(system.config)
        """The round that is open."""

    def is_stale(self, fields: Mapping[str, Any], now_ms: int) -> bool:
        return self.asked is None or period_of(fields) != self.asked.number

    def record(self, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        named = {"slot_id": fields["report_id"], "config_digest": fields["config_digest"], "round": period_of(fields)}
        return "SealedRatingSlot", {**named, "sealed": fields["sealed"]}

    def follow(self, fields: Mapping[str, Any]) -> ModelBody:
        body = ModelBody.of(fields, self._system)
        self.asked, _ = signed_round(fields, self._system.config, self.digest, body.signing)
        self.opening = None if self.asked is None else codec.encode(STATEMENT_RECORD, fields, self._generation)
        return body
