"""BGTplanner, as a gateway for devices knows it.

A slot counts in the round that is open, which has to be told to the collector before it.
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
        """Bind to a deployment whose slots devices make, and what they agree to.

        What opens a round is written in a schema generation.
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
